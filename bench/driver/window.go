package main

import (
	"sync/atomic"
	"time"
)

// window bounds how many messages are sent and not yet acknowledged. One
// goroutine sends, another (a NATS callback, a gRPC receiver) acknowledges.
type window struct {
	size  int64
	sent  int64
	acked atomic.Int64
	wake  chan struct{}
}

func newWindow(size int) *window {
	return &window{size: int64(size), wake: make(chan struct{}, 1)}
}

// enter waits for room. It is false when the deadline passed or stop closed.
func (w *window) enter(deadline <-chan time.Time, stop <-chan struct{}) bool {
	for w.sent-w.acked.Load() >= w.size {
		select {
		case <-w.wake:
		case <-deadline:
			return false
		case <-stop:
			return false
		}
	}
	w.sent++
	return true
}

// drain waits until everything sent is acknowledged.
func (w *window) drain(deadline <-chan time.Time, stop <-chan struct{}) bool {
	for w.acked.Load() < w.sent {
		select {
		case <-w.wake:
		case <-deadline:
			return false
		case <-stop:
			return false
		}
	}
	return true
}

func (w *window) acknowledge() {
	w.acked.Add(1)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
