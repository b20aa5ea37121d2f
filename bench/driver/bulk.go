package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of bascule.v1.ReadRequest and ReadResponse.
const (
	requestStream  = 1
	responseEnd    = 2
	responseCount  = 7
	longestHead    = 96
	bulkReadMethod = "/bascule.v1.Log/Read"
)

// bulkRead measures reading a stored stream in large messages by a client
// that only counts: it looks at the head of each message, not at its records.
func bulkRead(o options) (result, error) {
	conn, err := dialConn(o.address)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	watch := startWatch()
	stream, err := conn.NewStream(
		ctx, &grpc.StreamDesc{ServerStreams: true}, bulkReadMethod, grpc.ForceCodecV2(rangeCodec{}),
	)
	if err != nil {
		return result{}, err
	}
	request := protowire.AppendString(protowire.AppendTag(nil, requestStream, protowire.BytesType), o.stream)
	if err := errors.Join(stream.SendMsg(request), stream.CloseSend()); err != nil {
		return result{}, err
	}
	var got ranges
	for {
		err := stream.RecvMsg(&got)
		if err == io.EOF {
			break
		}
		if err != nil {
			return result{}, err
		}
	}
	measured := watch.stop(o.count)
	measured.Bytes = got.size
	if got.count != o.count || got.end != o.count {
		return result{}, fmt.Errorf("%d records up to %d came, and %d are stored", got.count, got.end, o.count)
	}
	return measured, nil
}

// ranges adds up what the heads of received ranges say.
type ranges struct {
	count, end int
	size       int64
}

// rangeCodec sends bytes as they are, and reads the head of what it receives.
type rangeCodec struct{}

func (rangeCodec) Name() string { return "proto" }

func (rangeCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rangeCodec) Unmarshal(data mem.BufferSlice, v any) error {
	got := v.(*ranges)
	got.size += int64(data.Len())
	head := make([]byte, min(longestHead, data.Len()))
	reader := data.Reader()
	defer reader.Close()
	if _, err := io.ReadFull(reader, head); err != nil {
		return err
	}
	for len(head) > 0 {
		number, kind, n := protowire.ConsumeTag(head)
		if n < 0 || kind != protowire.VarintType {
			return nil // the records
		}
		value, m := protowire.ConsumeVarint(head[n:])
		if m < 0 {
			return protowire.ParseError(m)
		}
		switch number {
		case responseEnd:
			got.end = int(value)
		case responseCount:
			got.count += int(value)
		}
		head = head[n+m:]
	}
	return nil
}
