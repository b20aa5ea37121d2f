package main

import (
	"context"
	"encoding/binary"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of bascule.v1.InitProducerRequest and InitProducerResponse,
// and of Message.
const (
	requestProducerStream = 2
	producerID            = 1
	producerEpoch         = 2
	producerCreation      = 3
	messageProducer       = 2001
	sequenceLen           = 8
	initProducerMethod    = "/bascule.v1.Producers/InitProducer"
)

// identity is what a producer says with each message, up to its sequence.
type identity struct {
	id, epoch, creation uint64
}

func initProducer(o options) (identity, error) {
	conn, err := dialConn(o.address)
	if err != nil {
		return identity{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	request := protowire.AppendString(protowire.AppendTag(nil, requestProducerStream, protowire.BytesType), o.stream)
	var producer identity
	return producer, conn.Invoke(ctx, initProducerMethod, request, &producer, grpc.ForceCodecV2(identityCodec{}))
}

// numbered makes the envelope one of this producer: its sequence is the
// number of the message.
func (e *envelope) numbered(producer identity, partition int) {
	var field []byte
	for _, number := range []uint64{producer.id, producer.epoch, producer.creation, uint64(partition)} {
		field = protowire.AppendVarint(field, number)
	}
	e.data = protowire.AppendTag(e.data, messageProducer, protowire.BytesType)
	e.data = protowire.AppendBytes(e.data, append(field, make([]byte, sequenceLen)...))
	e.correlation = e.data[e.correlationAt : e.correlationAt+correlationLen]
	e.sequence = e.data[len(e.data)-sequenceLen:]
}

func (e *envelope) count(n int) {
	if e.sequence != nil {
		binary.LittleEndian.PutUint64(e.sequence, uint64(n))
	}
}

// identityCodec sends bytes as they are, and reads an InitProducerResponse.
type identityCodec struct{}

func (identityCodec) Name() string { return "proto" }

func (identityCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (identityCodec) Unmarshal(data mem.BufferSlice, v any) error {
	producer := v.(*identity)
	for rest := data.Materialize(); len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 || kind != protowire.VarintType {
			return fmt.Errorf("an answer to InitProducer that is none: % x", rest)
		}
		value, m := protowire.ConsumeVarint(rest[n:])
		if m < 0 {
			return protowire.ParseError(m)
		}
		switch number {
		case producerID:
			producer.id = value
		case producerEpoch:
			producer.epoch = value
		case producerCreation:
			producer.creation = value
		}
		rest = rest[n+m:]
	}
	return nil
}
