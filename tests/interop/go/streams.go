package main

import (
	"context"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

func create(s *session) func(context.Context) error {
	subject := s.flags.String("subject", "", "NATS subject; the stream's name if empty")
	group := s.flags.String("group", "", "load-balance group")
	partitions := s.flags.Int("partitions", 1, "number of partitions")
	replicas := s.flags.Int("replication-factor", 1, "replicas of each partition")
	minISR := s.flags.Int("min-isr", 0, "in-sync replicas a commit needs; 0 leaves it to the server")
	concurrency := s.flags.Bool("concurrency-control", false, "check expected offsets")
	return func(ctx context.Context) error {
		options := []lift.StreamOption{
			lift.Partitions(int32(*partitions)), lift.ReplicationFactor(int32(*replicas)), lift.Group(*group),
		}
		if *minISR > 0 {
			options = append(options, lift.MinISR(*minISR))
		}
		if *concurrency {
			options = append(options, lift.OptimisticConcurrencyControl(true))
		}
		name := *subject
		if name == "" {
			name = s.stream
		}
		if err := s.client.CreateStream(ctx, name, s.stream, options...); err != nil {
			return err
		}
		emit("created", nil)
		return nil
	}
}

func remove(s *session) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.client.DeleteStream(ctx, s.stream); err != nil {
			return err
		}
		emit("deleted", nil)
		return nil
	}
}

func pause(s *session) func(context.Context) error {
	resumeAll := s.flags.Bool("resume-all", false, "a publish to one partition resumes all")
	return func(ctx context.Context) error {
		var options []lift.PauseOption
		if *resumeAll {
			options = append(options, lift.ResumeAll())
		}
		if err := s.client.PauseStream(ctx, s.stream, options...); err != nil {
			return err
		}
		emit("paused", nil)
		return nil
	}
}

func readonly(s *session) func(context.Context) error {
	off := s.flags.Bool("off", false, "make it writable again")
	return func(ctx context.Context) error {
		if err := s.client.SetStreamReadonly(ctx, s.stream, lift.Readonly(!*off)); err != nil {
			return err
		}
		emit("readonly", fields{"readonly": !*off})
		return nil
	}
}
