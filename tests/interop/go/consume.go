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
	checkpoint := s.flags.Duration("checkpoint", time.Second, "how often positions are committed")
	return func(ctx context.Context) error {
		member, err := s.client.CreateConsumer(*group,
			lift.ConsumerID(*consumer), lift.AutoCheckpoint(*checkpoint), lift.AutoOffsetEarliest())
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
