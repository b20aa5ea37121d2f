package main

import (
	"context"
	"fmt"
	"strings"
	"sync"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
	"github.com/nats-io/nats.go"
)

// messageFlags are the ways to say what a message carries. Values, keys and
// correlation ids are numbered when several messages are published: a `#` in
// them becomes the message's number.
type messageFlags struct {
	value, key, correlation, policy, partitioner, headers, inbox *string
	count, partition                                             *int
	expected                                                     *int64
}

func newMessageFlags(s *session) messageFlags {
	return messageFlags{
		value:       s.flags.String("value", "value #", "the value"),
		key:         s.flags.String("key", "", "the key"),
		correlation: s.flags.String("correlation", "", "the correlation id; the client's own if empty"),
		policy:      s.flags.String("policy", "leader", "leader, all or none"),
		partitioner: s.flags.String("partitioner", "", "key or round-robin"),
		headers:     s.flags.String("headers", "", "name=value,name=value"),
		inbox:       s.flags.String("inbox", "", "NATS subject for the ack"),
		count:       s.flags.Int("count", 1, "how many messages"),
		partition:   s.flags.Int("partition", -1, "to this partition"),
		expected:    s.flags.Int64("expected", -1, "expected offset of the first message"),
	}
}

func (m messageFlags) valueOf(n int) []byte {
	return []byte(numbered(*m.value, n))
}

func numbered(text string, n int) string {
	return strings.ReplaceAll(text, "#", fmt.Sprint(n))
}

func (m messageFlags) options(n int) ([]lift.MessageOption, error) {
	var options []lift.MessageOption
	switch *m.policy {
	case "leader":
		options = append(options, lift.AckPolicyLeader())
	case "all":
		options = append(options, lift.AckPolicyAll())
	case "none":
		options = append(options, lift.AckPolicyNone())
	default:
		return nil, fmt.Errorf("no ack policy %q", *m.policy)
	}
	switch *m.partitioner {
	case "":
	case "key":
		options = append(options, lift.PartitionByKey())
	case "round-robin":
		options = append(options, lift.PartitionByRoundRobin())
	default:
		return nil, fmt.Errorf("no partitioner %q", *m.partitioner)
	}
	if *m.key != "" {
		options = append(options, lift.Key([]byte(numbered(*m.key, n))))
	}
	if *m.correlation != "" {
		options = append(options, lift.CorrelationID(numbered(*m.correlation, n)))
	}
	if *m.inbox != "" {
		options = append(options, lift.AckInbox(*m.inbox))
	}
	if *m.partition >= 0 {
		options = append(options, lift.ToPartition(int32(*m.partition)))
	}
	if *m.expected >= 0 {
		options = append(options, lift.ExpectedOffset(*m.expected+int64(n)))
	}
	for _, header := range strings.Split(*m.headers, ",") {
		if name, value, found := strings.Cut(header, "="); found {
			options = append(options, lift.Header(name, []byte(value)))
		}
	}
	return options, nil
}

func publish(s *session) func(context.Context) error {
	message := newMessageFlags(s)
	async := s.flags.Bool("async", false, "publish all, then wait for the acks")
	return func(ctx context.Context) error {
		if *async {
			return publishAsync(ctx, s, message)
		}
		for n := range *message.count {
			options, err := message.options(n)
			if err != nil {
				return err
			}
			ack, err := s.client.Publish(ctx, s.stream, message.valueOf(n), options...)
			reportAck(ack, err)
		}
		return nil
	}
}

func publishAsync(ctx context.Context, s *session, message messageFlags) error {
	var pending sync.WaitGroup
	for n := range *message.count {
		options, err := message.options(n)
		if err != nil {
			return err
		}
		pending.Add(1)
		err = s.client.PublishAsync(ctx, s.stream, message.valueOf(n), func(ack *lift.Ack, err error) {
			defer pending.Done()
			reportAck(ack, err)
		}, options...)
		if err != nil {
			return err
		}
	}
	pending.Wait()
	return nil
}

func publishToSubject(s *session) func(context.Context) error {
	message := newMessageFlags(s)
	subject := s.flags.String("subject", "", "NATS subject")
	return func(ctx context.Context) error {
		for n := range *message.count {
			options, err := message.options(n)
			if err != nil {
				return err
			}
			ack, err := s.client.PublishToSubject(ctx, *subject, message.valueOf(n), options...)
			reportAck(ack, err)
		}
		return nil
	}
}

func reportAck(ack *lift.Ack, err error) {
	if err != nil {
		emit("error", failure(err))
		return
	}
	if ack == nil {
		emit("sent", nil)
		return
	}
	emit("ack", fields{
		"stream":            ack.Stream(),
		"partition_subject": ack.PartitionSubject(),
		"message_subject":   ack.MessageSubject(),
		"offset":            ack.Offset(),
		"inbox":             ack.AckInbox(),
		"correlation":       ack.CorrelationID(),
		"policy":            int(ack.AckPolicy()),
		"received_ns":       ack.ReceptionTimestamp().UnixNano(),
		"committed_ns":      ack.CommitTimestamp().UnixNano(),
	})
}

// envelope publishes straight to NATS, with the client's own helpers for
// what goes over the wire, and waits for the acks on an inbox.
func envelope(s *session) func(context.Context) error {
	message := newMessageFlags(s)
	subject := s.flags.String("subject", "", "NATS subject")
	return func(ctx context.Context) error {
		conn, err := nats.Connect(s.nats)
		if err != nil {
			return err
		}
		defer conn.Close()
		if *message.inbox == "" {
			*message.inbox = nats.NewInbox()
		}
		answers, err := conn.SubscribeSync(*message.inbox)
		if err != nil {
			return err
		}
		for n := range *message.count {
			options, err := message.options(n)
			if err != nil {
				return err
			}
			if err := conn.Publish(*subject, lift.NewMessage(message.valueOf(n), options...)); err != nil {
				return err
			}
		}
		for range *message.count {
			answer, err := answers.NextMsgWithContext(ctx)
			if err != nil {
				return err
			}
			reportAck(lift.UnmarshalAck(answer.Data))
		}
		return nil
	}
}

// plain publishes without envelope, as any NATS program does.
func plain(s *session) func(context.Context) error {
	message := newMessageFlags(s)
	subject := s.flags.String("subject", "", "NATS subject")
	reply := s.flags.String("reply", "", "NATS reply subject")
	return func(context.Context) error {
		conn, err := nats.Connect(s.nats)
		if err != nil {
			return err
		}
		defer conn.Close()
		for n := range *message.count {
			if err := conn.PublishRequest(*subject, *reply, message.valueOf(n)); err != nil {
				return err
			}
		}
		if err := conn.Flush(); err != nil {
			return err
		}
		emit("sent", fields{"count": *message.count})
		return nil
	}
}
