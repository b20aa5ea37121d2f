package main

import (
	"context"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

// consume is a member of a consumer group, which reports what it reads until
// the time is over or somebody kills it.
func consume(s *session) func(context.Context) error {
	group := s.flags.String("group", "", "consumer group")
	consumer := s.flags.String("consumer", "", "consumer id")
	newOnly := s.flags.Bool("new-only", false, "without a cursor, begin with the next new message")
	checkpoint := s.flags.Duration("checkpoint", time.Second, "how often positions are committed")
	return func(ctx context.Context) error {
		options := []lift.ConsumerOption{lift.ConsumerID(*consumer), lift.AutoCheckpoint(*checkpoint)}
		if !*newOnly { // which is the default
			options = append(options, lift.AutoOffsetEarliest())
		}
		member, err := s.client.CreateConsumer(*group, options...)
		if err != nil {
			return err
		}
		handler := func(message *lift.Message, err error) {
			if err != nil {
				emit("consumer-error", failure(err))
				return
			}
			reportMessage(message)
		}
		if err := member.Subscribe(ctx, []string{s.stream}, handler); err != nil {
			return err
		}
		emit("joined", nil)
		<-ctx.Done()
		emit("timeout", nil)
		return nil
	}
}

// cursor reports where a group's readers of a partition go on.
func cursor(s *session) func(context.Context) error {
	partition := s.flags.Int("partition", 0, "partition")
	id := s.flags.String("cursor", "", "cursor id")
	return func(ctx context.Context) error {
		offset, err := s.client.FetchCursor(ctx, *id, s.stream, int32(*partition))
		if err != nil {
			return err
		}
		emit("cursor", fields{"offset": offset})
		return nil
	}
}
