// A consumer: LATE_URL=http://127.0.0.1:7280 LATE_QUEUE=payments go run ./cmd/consumer
//
// Its handlers are those that `python -m tests.consumers` asks for; yours take their place.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"example.org/late/late"
)

func main() {
	consumer := late.Consumer{
		Client:      &late.Client{URL: setting("LATE_URL", "http://127.0.0.1:7280"), Token: os.Getenv("LATE_TOKEN")},
		Queue:       setting("LATE_QUEUE", "payments"),
		Name:        os.Getenv("LATE_CONSUMER"),
		Concurrency: 4,
		Visibility:  seconds("LATE_VISIBILITY_S", 30),
		Grace:       seconds("LATE_GRACE_S", 20),
		Handlers: map[string]late.Handler{
			"work": told(work), "echo": told(echo), "flaky": told(flaky), "broken": told(broken),
		},
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := consumer.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// work takes as long as it is asked to. A later attempt finds that nothing is left to do.
func work(ctx context.Context, task *late.Pulled) (any, error) {
	var given struct{ Seconds float64 }
	if err := json.Unmarshal(task.Payload, &given); err != nil {
		return nil, late.Fail(err.Error())
	}
	if task.Attempt > 1 {
		return nil, nil
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Duration(given.Seconds * float64(time.Second))):
		return nil, nil
	}
}

// echo gives its arguments back as the result. They are decoded to show what they become in Go:
// json.Number keeps an integer that a float64 would round.
func echo(_ context.Context, task *late.Pulled) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(task.Payload))
	decoder.UseNumber()
	var given map[string]any
	err := decoder.Decode(&given)
	return given, err
}

// flaky fails until a later attempt.
func flaky(_ context.Context, task *late.Pulled) (any, error) {
	var given struct {
		UntilAttempt int64   `json:"until_attempt"`
		AfterS       float64 `json:"after_s"`
	}
	if err := json.Unmarshal(task.Payload, &given); err != nil {
		return nil, late.Fail(err.Error())
	}
	if task.Attempt < given.UntilAttempt {
		return nil, late.Retry(time.Duration(given.AfterS*float64(time.Second)), "not yet")
	}
	return nil, nil
}

// broken fails for good.
func broken(_ context.Context, task *late.Pulled) (any, error) {
	var given struct{ Reason string }
	if err := json.Unmarshal(task.Payload, &given); err != nil {
		return nil, err
	}
	return nil, late.Fail(given.Reason)
}

var output sync.Mutex

// told writes a line as an attempt begins, and one as its work is done.
func told(handler late.Handler) late.Handler {
	return func(ctx context.Context, task *late.Pulled) (any, error) {
		tell("began", task)
		defer tell("ended", task)
		return handler(ctx, task)
	}
}

func tell(event string, task *late.Pulled) {
	output.Lock()
	defer output.Unlock()
	fmt.Printf("{%q: %q, \"attempt\": %d}\n", event, task.TaskID, task.Attempt)
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func seconds(name string, otherwise float64) time.Duration {
	value, err := strconv.ParseFloat(os.Getenv(name), 64)
	if err != nil {
		value = otherwise
	}
	return time.Duration(value * float64(time.Second))
}
