package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	api "github.com/liftbridge-io/liftbridge-api/v2/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Field numbers of bascule.v1.WriteRequest, its parts, and WriteResponse.
const (
	writeOpen       = 1
	writeBatch      = 2
	openStream      = 1
	batchCount      = 1
	batchMessages   = 15
	writtenBatch    = 1
	writtenLast     = 3
	writtenError    = 5
	bulkWriteMethod = "/bascule.v1.Log/Write"
	messagesABatch  = 4096
	batchesInFlight = 8
)

// bulkWrite measures batches that are acked when they are synced, several in
// flight. The messages of each batch are encoded one by one, as a program
// would that has them as values.
func bulkWrite(o options) (result, error) {
	conn, err := dialConn(o.address)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := conn.NewStream(ctx, both, bulkWriteMethod, grpc.ForceCodecV2(writeCodec{}))
	if err != nil {
		return result{}, err
	}
	opening := protowire.AppendString(protowire.AppendTag(nil, openStream, protowire.BytesType), o.stream)
	if err := stream.SendMsg(field(writeOpen, opening)); err != nil {
		return result{}, err
	}
	var opened written
	if err := stream.RecvMsg(&opened); err != nil {
		return result{}, err
	}
	batches := (o.count + messagesABatch - 1) / messagesABatch
	w := newWindow(batchesInFlight)
	ended := make(chan struct{})
	var failure error
	go func() {
		defer close(ended)
		failure = receiveWritten(stream, w, batches, o.count)
	}()
	deadline := time.After(o.timeout)
	value := bytes.Repeat([]byte{'v'}, o.size)
	watch := startWatch()
	for first := 0; first < o.count; first += messagesABatch {
		if !w.enter(deadline, ended) {
			break
		}
		request, err := batchRequest(value, min(messagesABatch, o.count-first))
		if err != nil {
			return result{}, err
		}
		if err := stream.SendMsg(request); err != nil {
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

func batchRequest(value []byte, count int) ([]byte, error) {
	framed := make([]byte, 0, count*(len(value)+16))
	for range count {
		start := len(framed)
		framed = append(framed, 0, 0, 0, 0, 0)
		var err error
		framed, err = proto.MarshalOptions{}.MarshalAppend(framed, &api.Message{Value: value})
		if err != nil {
			return nil, err
		}
		binary.BigEndian.PutUint32(framed[start+1:], uint32(len(framed)-start-5))
	}
	head := protowire.AppendVarint(protowire.AppendTag(nil, batchCount, protowire.VarintType), uint64(count))
	head = protowire.AppendTag(head, batchMessages, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(framed)))
	request := protowire.AppendTag(make([]byte, 0, len(framed)+32), writeBatch, protowire.BytesType)
	request = protowire.AppendVarint(request, uint64(len(head)+len(framed)))
	return append(append(request, head...), framed...), nil
}

func field(number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
}

func receiveWritten(stream grpc.ClientStream, w *window, batches, count int) error {
	var got written
	for n := range batches {
		if err := stream.RecvMsg(&got); err != nil {
			return err
		}
		if got.failed {
			return errors.New("a batch was refused")
		}
		if got.batch != n+1 {
			return fmt.Errorf("batch %d was acked after batch %d", got.batch, n)
		}
		w.acknowledge()
	}
	if got.last != count-1 {
		return fmt.Errorf("the last offset is %d, and %d messages were written", got.last, count)
	}
	return nil
}

// written is what the measure needs of a WriteResponse.
type written struct {
	batch, last int
	failed      bool
}

// writeCodec sends bytes as they are, and reads WriteResponses.
type writeCodec struct{}

func (writeCodec) Name() string { return "proto" }

func (writeCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (writeCodec) Unmarshal(data mem.BufferSlice, v any) error {
	got := v.(*written)
	*got = written{}
	rest := data.Materialize()
	for len(rest) > 0 {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if kind != protowire.VarintType {
			got.failed = got.failed || number == writtenError
			m := protowire.ConsumeFieldValue(number, kind, rest[n:])
			if m < 0 {
				return protowire.ParseError(m)
			}
			rest = rest[n+m:]
			continue
		}
		value, m := protowire.ConsumeVarint(rest[n:])
		if m < 0 {
			return protowire.ParseError(m)
		}
		switch number {
		case writtenBatch:
			got.batch = int(value)
		case writtenLast:
			got.last = int(value)
		}
		rest = rest[n+m:]
	}
	return nil
}
