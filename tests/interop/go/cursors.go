package main

import (
	"context"
)

func setCursor(s *session) func(context.Context) error {
	cursor := s.flags.String("cursor", "", "id of the cursor")
	partition := s.flags.Int("partition", 0, "partition it is about")
	offset := s.flags.Int64("offset", 0, "what it is set to")
	return func(ctx context.Context) error {
		if err := s.client.SetCursor(ctx, *cursor, s.stream, int32(*partition), *offset); err != nil {
			return err
		}
		emit("set", nil)
		return nil
	}
}
