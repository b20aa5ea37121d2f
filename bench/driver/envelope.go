package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of Message and Ack in the Liftbridge API.
const (
	messageValue       = 3
	messageAckInbox    = 10
	messageCorrelation = 11
	messageAckPolicy   = 12

	ackCorrelation = 6
	ackError       = 10

	envelopeHeaderLen = 8
	publishType       = 0
	ackType           = 1
	correlationLen    = 8
)

var envelopeMagic = []byte{0xB9, 0x0E, 0x43, 0xB4}

// ackPolicy says who must have stored a message before it is acknowledged.
type ackPolicy uint64

const (
	leaderAcks ackPolicy = 0
	allAck     ackPolicy = 1
)

func (p ackPolicy) MarshalText() ([]byte, error) {
	if p == allAck {
		return []byte("ALL"), nil
	}
	return []byte("LEADER"), nil
}

func (p *ackPolicy) UnmarshalText(text []byte) error {
	switch string(text) {
	case "LEADER":
		*p = leaderAcks
	case "ALL":
		*p = allAck
	default:
		return fmt.Errorf("no policy %q; there are LEADER and ALL", text)
	}
	return nil
}

// envelope is a publish envelope whose correlation id can be changed in
// place: NATS clients copy what they are given, so one buffer serves a whole
// run and encoding does not count as load.
type envelope struct {
	data          []byte
	correlation   []byte
	correlationAt int
	sequence      []byte // of an idempotent producer, or nil
}

func newEnvelope(value []byte, inbox string, policy ackPolicy) *envelope {
	data := append([]byte{}, envelopeMagic...)
	data = append(data, 0, envelopeHeaderLen, 0, publishType)
	data = protowire.AppendTag(data, messageValue, protowire.BytesType)
	data = protowire.AppendBytes(data, value)
	data = protowire.AppendTag(data, messageAckInbox, protowire.BytesType)
	data = protowire.AppendString(data, inbox)
	if policy != leaderAcks {
		data = protowire.AppendTag(data, messageAckPolicy, protowire.VarintType)
		data = protowire.AppendVarint(data, uint64(policy))
	}
	data = protowire.AppendTag(data, messageCorrelation, protowire.BytesType)
	data = protowire.AppendBytes(data, make([]byte, correlationLen))
	at := len(data) - correlationLen
	return &envelope{data: data, correlation: data[at:], correlationAt: at}
}

// number writes n as the correlation id: eight letters, valid UTF-8.
func (e *envelope) number(n int) []byte {
	v := uint32(n)
	for i := range correlationLen {
		e.correlation[i] = 'a' + byte(v>>(4*i)&0xF)
	}
	e.count(n)
	return e.data
}

// ackNumber checks an ack envelope and returns the number of the message it
// answers.
func ackNumber(data []byte) (int, error) {
	if len(data) < envelopeHeaderLen || binary.BigEndian.Uint32(data) != binary.BigEndian.Uint32(envelopeMagic) {
		return 0, errors.New("an answer that is no envelope")
	}
	if data[5] != envelopeHeaderLen || data[7] != ackType {
		return 0, errors.New("an envelope that is no ack")
	}
	number, found := 0, false
	for rest := data[envelopeHeaderLen:]; len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		rest = rest[n:]
		if field == ackError {
			return 0, fmt.Errorf("an ack with an error: % x", rest)
		}
		if field == ackCorrelation && kind == protowire.BytesType {
			text, m := protowire.ConsumeBytes(rest)
			if m < 0 || len(text) != correlationLen {
				return 0, errors.New("an ack with a foreign correlation id")
			}
			number, found = correlationNumber(text), true
		}
		if n = protowire.ConsumeFieldValue(field, kind, rest); n < 0 {
			return 0, protowire.ParseError(n)
		}
		rest = rest[n:]
	}
	if !found {
		return 0, errors.New("an ack without a correlation id")
	}
	return number, nil
}

func correlationNumber(text []byte) int {
	var v uint32
	for i, letter := range text {
		v |= uint32(letter-'a') << (4 * i)
	}
	return int(v)
}
