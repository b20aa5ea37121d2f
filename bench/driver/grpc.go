package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	api "github.com/liftbridge-io/liftbridge-api/v2/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

const watermarkInterval = 2 * time.Millisecond

func dialConn(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func dial(address string) (api.APIClient, func() error, error) {
	conn, err := dialConn(address)
	if err != nil {
		return nil, nil, err
	}
	return api.NewAPIClient(conn), conn.Close, nil
}

func createStream(o options) (result, error) {
	return unary(o, func(ctx context.Context, client api.APIClient) error {
		_, err := client.CreateStream(ctx, &api.CreateStreamRequest{
			Subject: o.subject, Name: o.stream, Partitions: int32(o.partitions),
			ReplicationFactor: int32(o.replicas),
		})
		return err
	})
}

func deleteStream(o options) (result, error) {
	return unary(o, func(ctx context.Context, client api.APIClient) error {
		_, err := client.DeleteStream(ctx, &api.DeleteStreamRequest{Name: o.stream})
		return err
	})
}

func unary(o options, call func(context.Context, api.APIClient) error) (result, error) {
	client, closeConn, err := dial(o.address)
	if err != nil {
		return result{}, err
	}
	defer closeConn()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	watch := startWatch()
	if err := call(ctx, client); err != nil {
		return result{}, err
	}
	return watch.stop(1), nil
}

// followHighWatermark polls until count messages are committed.
func followHighWatermark(
	ctx context.Context, client api.APIClient, stream string, count int64, stored *atomic.Int64,
) error {
	for {
		answer, err := client.FetchPartitionMetadata(ctx, &api.FetchPartitionMetadataRequest{Stream: stream})
		if err != nil {
			return err
		}
		stored.Store(answer.Metadata.HighWatermark + 1)
		if stored.Load() >= count {
			return nil
		}
		select {
		case <-time.After(watermarkInterval):
		case <-ctx.Done():
			return errTimeout
		}
	}
}

// publishGRPC measures PublishAsync with acks, over one stream.
func publishGRPC(o options) (result, error) {
	client, closeConn, err := dial(o.address)
	if err != nil {
		return result{}, err
	}
	defer closeConn()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	stream, err := client.PublishAsync(ctx)
	if err != nil {
		return result{}, err
	}
	w := newWindow(o.window)
	ended := make(chan struct{})
	var failure error
	go func() {
		defer close(ended)
		failure = receiveAcks(stream, w, o.count)
	}()
	deadline := time.After(o.timeout)
	value := bytes.Repeat([]byte{'v'}, o.size)
	name := newEnvelope(nil, "", leaderAcks)
	watch := startWatch()
	for n := range o.count {
		if !w.enter(deadline, ended) {
			break
		}
		name.number(n)
		request := &api.PublishRequest{
			Stream: o.stream, Value: value, CorrelationId: string(name.correlation), ExpectedOffset: -1,
		}
		if err := stream.Send(request); err != nil {
			break
		}
	}
	select {
	case <-ended:
	case <-deadline:
		return result{}, errTimeout
	}
	if failure != nil {
		return result{}, failure
	}
	return watch.stop(o.count), nil
}

func receiveAcks(stream api.API_PublishAsyncClient, w *window, count int) error {
	answers := newSeen(count)
	for range count {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		if answer.AsyncError != nil {
			return fmt.Errorf("publish refused: %s", answer.AsyncError.Message)
		}
		if err := answers.mark(correlationNumber([]byte(answer.CorrelationId))); err != nil {
			return err
		}
		w.acknowledge()
	}
	return nil
}

func subscribeRequest(o options) *api.SubscribeRequest {
	return &api.SubscribeRequest{Stream: o.stream, StartPosition: api.StartPosition_EARLIEST}
}

// subscribeDecoded measures reading a stored stream the way a Go program
// does, checking that the offsets are complete and in order.
func subscribeDecoded(o options) (result, error) {
	client, closeConn, err := dial(o.address)
	if err != nil {
		return result{}, err
	}
	defer closeConn()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	watch := startWatch()
	stream, err := client.Subscribe(ctx, subscribeRequest(o))
	if err != nil {
		return result{}, err
	}
	if _, err := stream.Recv(); err != nil {
		return result{}, err
	}
	var size int64
	for n := range o.count {
		message, err := stream.Recv()
		if err != nil {
			return result{}, err
		}
		if message.Offset != int64(n) || len(message.Value) != o.size {
			return result{}, fmt.Errorf("message %d came with offset %d, %d bytes", n, message.Offset, len(message.Value))
		}
		size += int64(len(message.Value))
	}
	measured := watch.stop(o.count)
	measured.Bytes = size
	return measured, nil
}

// subscribeRaw measures the same without decoding: what the broker and the
// HTTP/2 library can do when protobuf is not the limit.
func subscribeRaw(o options) (result, error) {
	conn, err := dialConn(o.address)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	watch := startWatch()
	stream, err := conn.NewStream(
		ctx, &grpc.StreamDesc{ServerStreams: true}, api.API_Subscribe_FullMethodName, grpc.ForceCodecV2(sizeCodec{}),
	)
	if err != nil {
		return result{}, err
	}
	if err := errors.Join(stream.SendMsg(subscribeRequest(o)), stream.CloseSend()); err != nil {
		return result{}, err
	}
	var size frameSize
	for range o.count + 1 {
		if err := stream.RecvMsg(&size); err != nil {
			if err == io.EOF {
				err = errors.New("the subscription ended early")
			}
			return result{}, err
		}
	}
	measured := watch.stop(o.count)
	measured.Bytes = int64(size)
	if size < frameSize(o.count*o.size) {
		return result{}, fmt.Errorf("%d messages in only %d bytes", o.count, size)
	}
	return measured, nil
}

// frameSize adds up the bytes of received messages.
type frameSize int64

// sizeCodec encodes requests and only measures answers.
type sizeCodec struct{}

func (sizeCodec) Name() string { return "proto" }

func (sizeCodec) Marshal(v any) (mem.BufferSlice, error) {
	data, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(data)}, err
}

func (sizeCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*frameSize) += frameSize(data.Len())
	return nil
}
