// Driver puts load on Bascule and on NATS JetStream with one and the same
// clients (nats.go, grpc-go), and prints what it measured as one line of JSON.
// It decides nothing: which measures are compared, how often and against
// which bar is the business of the Python program that calls it.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sort"
	"syscall"
	"time"
)

// options holds every flag; a command reads those it needs.
type options struct {
	nats       string
	address    string
	stream     string
	subject    string
	count      int
	window     int
	size       int
	partitions int
	replicas   int
	policy     ackPolicy
	rate       int
	pull       int
	timeout    time.Duration
}

// result is what one command measured. Seconds is wall time, CPUSeconds the
// driver's own processor time in it, so that a driver at its limit shows.
type result struct {
	Messages   int     `json:"messages"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"`
	P50Micros  float64 `json:"p50_us,omitempty"`
	P99Micros  float64 `json:"p99_us,omitempty"`
	Bytes      int64   `json:"bytes,omitempty"`
}

var commands = map[string]func(options) (result, error){
	"create":            createStream,
	"delete":            deleteStream,
	"envelopes":         publishEnvelopes,
	"numbered":          publishNumbered,
	"plain":             publishPlain,
	"grpc":              publishGRPC,
	"subscribe":         subscribeDecoded,
	"subscribe-raw":     subscribeRaw,
	"bulk-read":         bulkRead,
	"bulk-write":        bulkWrite,
	"latency":           envelopeLatency,
	"jetstream":         jetstreamAsync,
	"jetstream-lean":    jetstreamLean,
	"jetstream-consume": jetstreamConsume,
	"jetstream-latency": jetstreamLatency,
	"jetstream-delete":  jetstreamDelete,
}

var errTimeout = errors.New("not done in time: see --timeout and the server's log")

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("which command? one of %v", commandNames())
	}
	command, ok := commands[args[0]]
	if !ok {
		return fmt.Errorf("no command %q; there are %v", args[0], commandNames())
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&o.nats, "nats", "", "URL of the NATS server; of a JetStream cluster all, with commas")
	flags.StringVar(&o.address, "address", "", "host:port of the broker's gRPC API")
	flags.StringVar(&o.stream, "stream", "bench", "name of the stream")
	flags.StringVar(&o.subject, "subject", "bench", "subject of the stream")
	flags.IntVar(&o.count, "count", 100_000, "messages")
	flags.IntVar(&o.window, "window", 1000, "messages in flight, over all publishers")
	flags.IntVar(&o.size, "size", 128, "bytes of a value")
	flags.IntVar(&o.partitions, "partitions", 1, "partitions, each with a publisher of its own")
	flags.IntVar(&o.replicas, "replicas", 1, "replicas of each partition")
	flags.TextVar(&o.policy, "policy", leaderAcks, "when envelopes are acknowledged: LEADER or ALL")
	flags.IntVar(&o.rate, "rate", 5000, "messages a second, for latency")
	flags.IntVar(&o.pull, "pull", 0, "messages the JetStream consumer asks for ahead; 0 is its own default")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "give up after this long")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	// Fewer collections: the driver shares two cores with what it measures.
	debug.SetGCPercent(800)
	measured, err := command(o)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return json.NewEncoder(os.Stdout).Encode(measured)
}

func commandNames() []string {
	names := make([]string, 0, len(commands))
	for name := range commands {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// stopwatch measures wall and processor time together.
type stopwatch struct {
	start time.Time
	cpu   time.Duration
}

func startWatch() stopwatch {
	return stopwatch{start: time.Now(), cpu: cpuTime()}
}

func (s stopwatch) stop(messages int) result {
	return result{
		Messages:   messages,
		Seconds:    time.Since(s.start).Seconds(),
		CPUSeconds: (cpuTime() - s.cpu).Seconds(),
	}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
