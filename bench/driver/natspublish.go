package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// plainWindow is how far plain publishes may run ahead of what the broker
// reports as committed: NATS disconnects a subscriber that falls further behind.
const plainWindow = 200_000

func connect(url string) (*nats.Conn, error) {
	return nats.Connect(url, nats.NoReconnect(), nats.Timeout(5*time.Second))
}

// answered publishes count messages, at most window in flight, and waits for
// an answer to each. payload gives the n-th message, accept checks an answer.
type answered struct {
	conn    *nats.Conn
	subject string
	inbox   string
	reply   bool // the inbox is the NATS reply subject
	payload func(n int) []byte
	accept  func(answer []byte) error
}

func (a answered) run(count, size int, deadline <-chan time.Time) error {
	w := newWindow(size)
	refused := make(chan struct{})
	var once sync.Once
	var refusal error
	subscription, err := a.conn.Subscribe(a.inbox, func(m *nats.Msg) {
		if err := a.accept(m.Data); err != nil {
			once.Do(func() { refusal = err; close(refused) })
			return
		}
		w.acknowledge()
	})
	if err != nil {
		return err
	}
	defer subscription.Unsubscribe()
	if err := subscription.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	message := &nats.Msg{Subject: a.subject}
	if a.reply {
		message.Reply = a.inbox
	}
	for n := range count {
		if !w.enter(deadline, refused) {
			return orTimeout(refused, &refusal)
		}
		message.Data = a.payload(n)
		if err := a.conn.PublishMsg(message); err != nil {
			return err
		}
	}
	if !w.drain(deadline, refused) {
		return orTimeout(refused, &refusal)
	}
	return nil
}

func orTimeout(refused <-chan struct{}, refusal *error) error {
	select {
	case <-refused:
		return *refusal
	default:
		return errTimeout
	}
}

// seen makes sure that every message is answered exactly once.
type seen struct {
	bits []atomic.Bool
}

func newSeen(count int) *seen {
	return &seen{bits: make([]atomic.Bool, count)}
}

func (s *seen) mark(n int) error {
	if n < 0 || n >= len(s.bits) {
		return fmt.Errorf("an answer to message %d, which was never sent", n)
	}
	if s.bits[n].Swap(true) {
		return fmt.Errorf("a second answer to message %d", n)
	}
	return nil
}

// publishEnvelopes measures acknowledged publishes through NATS. With several
// partitions each has a publisher of its own, with its own connection and its
// share of the window and the messages.
func publishEnvelopes(o options) (result, error) {
	return publishAs(o, nil)
}

// publishNumbered is the same by an idempotent producer.
func publishNumbered(o options) (result, error) {
	producer, err := initProducer(o)
	if err != nil {
		return result{}, err
	}
	return publishAs(o, &producer)
}

func publishAs(o options, producer *identity) (result, error) {
	publishers := make([]answered, o.partitions)
	value := bytes.Repeat([]byte{'v'}, o.size)
	share := o.count / o.partitions
	for p := range publishers {
		conn, err := connect(o.nats)
		if err != nil {
			return result{}, err
		}
		defer conn.Close()
		inbox := nats.NewInbox()
		message := newEnvelope(value, inbox, o.policy)
		if producer != nil {
			message.numbered(*producer, p)
		}
		publishers[p] = envelopePublisher(conn, partitionSubject(o.subject, p), inbox, message, share)
	}
	deadline := time.After(o.timeout)
	failures := make(chan error, len(publishers))
	watch := startWatch()
	for _, publisher := range publishers {
		go func() { failures <- publisher.run(share, max(1, o.window/o.partitions), deadline) }()
	}
	for range publishers {
		if err := <-failures; err != nil {
			return result{}, err
		}
	}
	return watch.stop(share * o.partitions), nil
}

func envelopePublisher(conn *nats.Conn, subject, inbox string, message *envelope, count int) answered {
	answers := newSeen(count)
	return answered{
		conn:    conn,
		subject: subject,
		inbox:   inbox,
		payload: message.number,
		accept: func(answer []byte) error {
			n, err := ackNumber(answer)
			if err != nil {
				return err
			}
			return answers.mark(n)
		},
	}
}

func partitionSubject(subject string, partition int) string {
	if partition == 0 {
		return subject
	}
	return fmt.Sprintf("%s.%d", subject, partition)
}

// publishPlain measures messages without envelope, from the first publish
// until the broker reports all of them as committed.
func publishPlain(o options) (result, error) {
	conn, err := connect(o.nats)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	api, closeAPI, err := dial(o.address)
	if err != nil {
		return result{}, err
	}
	defer closeAPI()
	var stored atomic.Int64
	failed := make(chan error, 1)
	go func() { failed <- followHighWatermark(ctx, api, o.stream, int64(o.count), &stored) }()
	value := bytes.Repeat([]byte{'v'}, o.size)
	watch := startWatch()
	for n := range o.count {
		for int64(n)-stored.Load() > plainWindow && ctx.Err() == nil {
			time.Sleep(200 * time.Microsecond)
		}
		if err := conn.Publish(o.subject, value); err != nil {
			return result{}, err
		}
	}
	if err := conn.Flush(); err != nil {
		return result{}, err
	}
	if err := <-failed; err != nil {
		return result{}, fmt.Errorf("%d of %d were stored: %w", stored.Load(), o.count, err)
	}
	return watch.stop(o.count), nil
}
