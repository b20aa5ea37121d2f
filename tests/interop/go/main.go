// Interop is a user of the go-liftbridge client and of nats.go. Each command
// does one thing with them and prints what came of it as lines of JSON; what
// should have come of it is for the tests that call it to say.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

// session is what every command gets: its flags and a connected client.
type session struct {
	flags   *flag.FlagSet
	address string
	nats    string
	stream  string
	timeout time.Duration
	client  lift.Client
}

// command declares its own flags and returns what runs once they are parsed.
type command func(*session) func(context.Context) error

var commands = map[string]command{
	"create":             create,
	"delete":             remove,
	"pause":              pause,
	"readonly":           readonly,
	"publish":            publish,
	"publish-to-subject": publishToSubject,
	"envelope":           envelope,
	"plain":              plain,
	"subscribe":          subscribe,
	"metadata":           metadata,
	"partition-metadata": partitionMetadata,
	"ride":               ride,
	"consume":            consume,
	"cursor":             cursor,
	"set-cursor":         setCursor,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	if len(args) == 0 || commands[args[0]] == nil {
		return fmt.Errorf("which command? one of %s", strings.Join(commandNames(), ", "))
	}
	s := &session{flags: flag.NewFlagSet(args[0], flag.ContinueOnError)}
	s.flags.StringVar(&s.address, "address", "127.0.0.1:9292", "broker to connect to first")
	s.flags.StringVar(&s.nats, "nats", "", "URL of the NATS server, for commands that use it directly")
	s.flags.StringVar(&s.stream, "stream", "", "stream name")
	s.flags.DurationVar(&s.timeout, "timeout", 10*time.Second, "for the whole command")
	act := commands[args[0]](s)
	if err := s.flags.Parse(args[1:]); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	client, err := lift.Connect([]string{s.address}, lift.AckWaitTime(s.timeout))
	if err != nil {
		emit("error", failure(err))
		return nil
	}
	defer client.Close()
	s.client = client
	if err := act(ctx); err != nil {
		emit("error", failure(err))
	}
	return nil
}

func commandNames() []string {
	names := make([]string, 0, len(commands))
	for name := range commands {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

type fields map[string]any

var output sync.Mutex

// emit prints one line at once: handlers call it from several goroutines.
func emit(event string, more fields) {
	line := fields{"event": event}
	for name, value := range more {
		line[name] = value
	}
	output.Lock()
	defer output.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		panic(err)
	}
}

var sentinels = map[string]error{
	"ErrStreamExists":      lift.ErrStreamExists,
	"ErrNoSuchStream":      lift.ErrNoSuchStream,
	"ErrNoSuchPartition":   lift.ErrNoSuchPartition,
	"ErrStreamDeleted":     lift.ErrStreamDeleted,
	"ErrPartitionPaused":   lift.ErrPartitionPaused,
	"ErrAckTimeout":        lift.ErrAckTimeout,
	"ErrReadonlyPartition": lift.ErrReadonlyPartition,
}

// failure tells an error by the name a Go program would compare it with, and
// by its text.
func failure(err error) fields {
	for name, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			return fields{"is": name, "text": err.Error()}
		}
	}
	return fields{"is": "", "text": err.Error()}
}
