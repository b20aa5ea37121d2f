package main

import (
	"context"
	"sync"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

// ride publishes numbered messages one after the other, each until it is acked
// by all replicas, while a subscription follows. Whatever happens to the
// brokers meanwhile, it ends when everything acked has also been read.
func ride(s *session) func(context.Context) error {
	count := s.flags.Int("count", 500, "how many messages")
	pause := s.flags.Duration("pause", 10*time.Millisecond, "between two messages")
	return func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var lock sync.Mutex
		seen := map[string]int{}
		last := int64(-1)
		disordered := 0
		handler := func(message *lift.Message, err error) {
			if err != nil {
				emit("end", failure(err))
				return
			}
			lock.Lock()
			defer lock.Unlock()
			if message.Offset() <= last {
				disordered++
			}
			last = message.Offset()
			seen[string(message.Value())]++
		}
		if err := s.client.Subscribe(ctx, s.stream, handler, lift.StartAtEarliestReceived()); err != nil {
			return err
		}
		emit("riding", nil)
		retries := 0
		publisher := s.client
		worst := time.Duration(0)
		for n := 0; n < *count; n++ {
			began := time.Now()
			for publishOnce(ctx, publisher, s.stream, n) != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				retries++
				// This client gives a broker a quarter of a second to come
				// back and never asks it again: a program connects anew.
				if anew, err := lift.Connect([]string{s.address}); err == nil {
					publisher = anew
				}
			}
			worst = max(worst, time.Since(began))
			if n%50 == 0 {
				emit("acked", fields{"number": n})
			}
			time.Sleep(*pause)
		}
		for {
			lock.Lock()
			done := len(seen) == *count
			lock.Unlock()
			if done || ctx.Err() != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		lock.Lock()
		defer lock.Unlock()
		emit("arrived", fields{
			"acked": *count, "seen": len(seen), "retries": retries, "disordered": disordered,
			"worst_ms": worst.Milliseconds(),
		})
		return nil
	}
}

func publishOnce(ctx context.Context, client lift.Client, stream string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := client.Publish(ctx, stream, []byte(numbered("ride #", n)), lift.AckPolicyAll())
	if err != nil {
		time.Sleep(20 * time.Millisecond)
	}
	return err
}
