package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// openJetStream makes sure the file stream exists, with the server's own
// defaults: no limits, no per-message sync unless configured. In a cluster the
// connection is to the server that leads the stream, which saves it a hop.
func openJetStream(o options, opts ...jetstream.JetStreamOpt) (jetstream.JetStream, *nats.Conn, error) {
	for _, url := range strings.Split(o.nats, ",") {
		js, conn, err := connectJetStream(url, opts...)
		if err != nil {
			return nil, nil, err
		}
		leader, err := ensureStream(js, o)
		if err == nil && (leader == "" || leader == conn.ConnectedServerName()) {
			return js, conn, nil
		}
		conn.Close()
		if err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, errors.New("the leader of the stream changed meanwhile, or is none of the servers named")
}

func connectJetStream(url string, opts ...jetstream.JetStreamOpt) (jetstream.JetStream, *nats.Conn, error) {
	conn, err := connect(url)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn, opts...)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return js, conn, nil
}

// ensureStream returns the name of the server that leads the stream; none
// outside a cluster.
func ensureStream(js jetstream.JetStream, o options) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: o.stream, Subjects: []string{o.subject}, Storage: jetstream.FileStorage, Replicas: o.replicas,
	})
	if err != nil {
		return "", err
	}
	if info := stream.CachedInfo(); info.Cluster != nil {
		return info.Cluster.Leader, nil
	}
	return "", nil
}

// jetstreamAsync measures acknowledged publishes with the official client's
// own asynchronous publisher.
func jetstreamAsync(o options) (result, error) {
	refused := make(chan error, 1)
	js, conn, err := openJetStream(o,
		jetstream.WithPublishAsyncMaxPending(o.window),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) {
			select {
			case refused <- err:
			default:
			}
		}))
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	value := bytes.Repeat([]byte{'v'}, o.size)
	watch := startWatch()
	for range o.count {
		if _, err := js.PublishAsync(o.subject, value, jetstream.WithStallWait(o.timeout)); err != nil {
			return result{}, err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(o.timeout):
		return result{}, errTimeout
	}
	measured := watch.stop(o.count)
	select {
	case err := <-refused:
		return result{}, err
	default:
		return measured, nil
	}
}

// jetstreamLean publishes with a reply subject and counts the answers: less
// work for the client than the official publisher, the same for the server.
func jetstreamLean(o options) (result, error) {
	_, conn, err := openJetStream(o)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	publisher := jetstreamPublisher(conn, o)
	watch := startWatch()
	if err := publisher.run(o.count, o.window, time.After(o.timeout)); err != nil {
		return result{}, err
	}
	return watch.stop(o.count), nil
}

func jetstreamPublisher(conn *nats.Conn, o options) answered {
	value := bytes.Repeat([]byte{'v'}, o.size)
	return answered{
		conn:    conn,
		subject: o.subject,
		inbox:   nats.NewInbox(),
		reply:   true,
		payload: func(int) []byte { return value },
		accept: func(answer []byte) error {
			if !bytes.Contains(answer, []byte(`"seq":`)) || bytes.Contains(answer, []byte(`"error"`)) {
				return fmt.Errorf("publish refused: %s", answer)
			}
			return nil
		},
	}
}

// jetstreamConsume measures reading a stored stream with an ordered consumer,
// which itself checks that the sequence is complete.
func jetstreamConsume(o options) (result, error) {
	js, conn, err := openJetStream(o)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	watch := startWatch()
	consumer, err := js.OrderedConsumer(ctx, o.stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return result{}, err
	}
	var pull []jetstream.PullConsumeOpt
	if o.pull > 0 {
		pull = append(pull, jetstream.PullMaxMessages(o.pull))
	}
	done := make(chan struct{})
	received, size := 0, int64(0)
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		size += int64(len(m.Data()))
		if received++; received == o.count {
			close(done)
		}
	}, pull...)
	if err != nil {
		return result{}, err
	}
	defer consuming.Stop()
	select {
	case <-done:
	case <-ctx.Done():
		return result{}, errTimeout
	}
	measured := watch.stop(o.count)
	measured.Bytes = size
	return measured, nil
}

func jetstreamDelete(o options) (result, error) {
	js, conn, err := openJetStream(o)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	watch := startWatch()
	if err := js.DeleteStream(ctx, o.stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return result{}, err
	}
	return watch.stop(1), nil
}
