package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

func subscribe(s *session) func(context.Context) error {
	partition := s.flags.Int("partition", 0, "partition to read")
	start := s.flags.String("start", "", "earliest, latest, new, offset:<n> or time:<ns>")
	stop := s.flags.String("stop", "", "latest, offset:<n> or time:<ns>")
	count := s.flags.Int("count", 0, "leave after this many messages; 0 waits for the end")
	resume := s.flags.Bool("resume", false, "resume a paused partition first")
	replica := s.flags.Bool("replica", false, "read from any in-sync replica")
	return func(ctx context.Context) error {
		options := []lift.SubscriptionOption{lift.Partition(int32(*partition))}
		if *resume {
			options = append(options, lift.Resume())
		}
		if *replica {
			options = append(options, lift.ReadISRReplica())
		}
		for _, position := range []struct {
			text  string
			parse func(string) (lift.SubscriptionOption, error)
		}{{*start, startOption}, {*stop, stopOption}} {
			if position.text == "" {
				continue
			}
			option, err := position.parse(position.text)
			if err != nil {
				return err
			}
			options = append(options, option)
		}
		return follow(ctx, s, *count, options)
	}
}

// follow reports messages until there were enough, the subscription ended or
// the time is over.
func follow(ctx context.Context, s *session, count int, options []lift.SubscriptionOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	received := 0
	handler := func(message *lift.Message, err error) {
		if err != nil {
			emit("end", failure(err))
			close(ended)
			return
		}
		if received++; count > 0 && received > count {
			return
		}
		reportMessage(message)
		if received == count {
			close(ended)
		}
	}
	if err := s.client.Subscribe(ctx, s.stream, handler, options...); err != nil {
		return err
	}
	emit("subscribed", nil)
	select {
	case <-ended:
	case <-ctx.Done():
		emit("timeout", nil)
	}
	return nil
}

func reportMessage(message *lift.Message) {
	headers := map[string]string{}
	for name, value := range message.Headers() {
		headers[name] = string(value)
	}
	emit("message", fields{
		"offset":       message.Offset(),
		"key":          string(message.Key()),
		"value":        string(message.Value()),
		"stream":       message.Stream(),
		"partition":    message.Partition(),
		"subject":      message.Subject(),
		"reply":        message.ReplySubject(),
		"headers":      headers,
		"timestamp_ns": message.Timestamp().UnixNano(),
	})
}

func startOption(text string) (lift.SubscriptionOption, error) {
	switch text {
	case "earliest":
		return lift.StartAtEarliestReceived(), nil
	case "latest":
		return lift.StartAtLatestReceived(), nil
	case "new":
		return lift.StartAtNewOnly(), nil
	}
	kind, number, err := position(text)
	if err != nil {
		return nil, err
	}
	if kind == "offset" {
		return lift.StartAtOffset(number), nil
	}
	return lift.StartAtTime(time.Unix(0, number)), nil
}

func stopOption(text string) (lift.SubscriptionOption, error) {
	if text == "latest" {
		return lift.StopAtLatestReceived(), nil
	}
	kind, number, err := position(text)
	if err != nil {
		return nil, err
	}
	if kind == "offset" {
		return lift.StopAtOffset(number), nil
	}
	return lift.StopAtTime(time.Unix(0, number)), nil
}

func position(text string) (kind string, number int64, err error) {
	kind, digits, _ := strings.Cut(text, ":")
	if kind != "offset" && kind != "time" {
		return "", 0, fmt.Errorf("no position %q", text)
	}
	number, err = strconv.ParseInt(digits, 10, 64)
	return kind, number, err
}
