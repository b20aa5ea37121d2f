package main

import (
	"bytes"
	"errors"
	"sort"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// envelopeLatency measures the time from publish to ack at a steady rate. The
// sender never waits for acks, so a slow answer does not hide the next one.
func envelopeLatency(o options) (result, error) {
	conn, err := connect(o.nats)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	inbox := nats.NewInbox()
	message := newEnvelope(bytes.Repeat([]byte{'v'}, o.size), inbox, o.policy)
	return steady(conn, o, inbox, func(n int) *nats.Msg {
		return &nats.Msg{Subject: o.subject, Data: message.number(n)}
	}, func(_ int, m *nats.Msg) (int, error) {
		return ackNumber(m.Data)
	})
}

// jetstreamLatency is the same for JetStream. Its acks come in the order of
// the publishes of one connection.
func jetstreamLatency(o options) (result, error) {
	_, conn, err := openJetStream(o)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	inbox := nats.NewInbox()
	accept := jetstreamPublisher(conn, o).accept
	value := bytes.Repeat([]byte{'v'}, o.size)
	return steady(conn, o, inbox, func(int) *nats.Msg {
		return &nats.Msg{Subject: o.subject, Reply: inbox, Data: value}
	}, func(answers int, m *nats.Msg) (int, error) {
		return answers, accept(m.Data)
	})
}

func steady(
	conn *nats.Conn, o options, inbox string, message func(n int) *nats.Msg, number func(answers int, m *nats.Msg) (int, error),
) (result, error) {
	sent := make([]time.Time, o.count)
	taken := make([]time.Duration, 0, o.count)
	published := atomic.Int64{}
	finished := make(chan error, 1)
	subscription, err := conn.Subscribe(inbox, func(m *nats.Msg) {
		now := time.Now()
		n, err := number(len(taken), m)
		if err == nil && int64(n) >= published.Load() {
			err = errors.New("an answer to a message that was never sent")
		}
		if err != nil {
			finished <- err
			return
		}
		taken = append(taken, now.Sub(sent[n]))
		if len(taken) == o.count {
			finished <- nil
		}
	})
	if err != nil {
		return result{}, err
	}
	defer subscription.Unsubscribe()
	watch := startWatch()
	interval := time.Second / time.Duration(o.rate)
	for n := range o.count {
		if wait := time.Until(watch.start.Add(time.Duration(n) * interval)); wait > 0 {
			time.Sleep(wait)
		}
		sent[n] = time.Now()
		published.Store(int64(n + 1))
		if err := conn.PublishMsg(message(n)); err != nil {
			return result{}, err
		}
	}
	select {
	case err := <-finished:
		if err != nil {
			return result{}, err
		}
	case <-time.After(o.timeout):
		return result{}, errTimeout
	}
	measured := watch.stop(o.count)
	sort.Slice(taken, func(i, j int) bool { return taken[i] < taken[j] })
	measured.P50Micros = micros(taken[len(taken)/2])
	measured.P99Micros = micros(taken[len(taken)*99/100])
	return measured, nil
}

func micros(d time.Duration) float64 {
	return float64(d) / float64(time.Microsecond)
}
