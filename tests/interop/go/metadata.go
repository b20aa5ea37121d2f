package main

import (
	"context"
	"sort"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

func metadata(s *session) func(context.Context) error {
	return func(ctx context.Context) error {
		found, err := s.client.FetchMetadata(ctx)
		if err != nil {
			return err
		}
		for _, broker := range found.Brokers() {
			emit("broker", fields{"id": broker.ID(), "host": broker.Host(), "port": broker.Port()})
		}
		for _, stream := range found.Streams() {
			var partitions []int
			for id := range stream.Partitions() {
				partitions = append(partitions, int(id))
			}
			sort.Ints(partitions)
			emit("stream", fields{
				"name":       stream.Name(),
				"subject":    stream.Subject(),
				"partitions": partitions,
				"created_ns": stream.CreationTime().UnixNano(),
			})
		}
		return nil
	}
}

func partitionMetadata(s *session) func(context.Context) error {
	partition := s.flags.Int("partition", 0, "which partition")
	return func(ctx context.Context) error {
		found, err := s.client.FetchPartitionMetadata(ctx, s.stream, int32(*partition))
		if err != nil {
			return err
		}
		emit("partition", fields{
			"id":             found.ID(),
			"leader":         found.Leader().ID(),
			"replicas":       brokerIDs(found.Replicas()),
			"isr":            brokerIDs(found.ISR()),
			"high_watermark": found.HighWatermark(),
			"newest_offset":  found.NewestOffset(),
			"paused":         found.Paused(),
		})
		return nil
	}
}

func brokerIDs(brokers []*lift.BrokerInfo) []string {
	ids := []string{}
	for _, broker := range brokers {
		ids = append(ids, broker.ID())
	}
	sort.Strings(ids)
	return ids
}
