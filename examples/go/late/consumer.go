package late

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"
)

// Handler does one task. A value that it returns is the task's result, and an error is a failed
// attempt; one that Outcome made says what is to become of the task. Its context ends when the task
// is no longer this consumer's.
type Handler func(ctx context.Context, task *Pulled) (any, error)

// Outcome is an error that says what is to become of a task: see Retry, Snooze, Discard and Fail.
type Outcome struct {
	Word   string
	After  *time.Duration
	Reason string
}

func (o *Outcome) Error() string { return o.Word + ": " + o.Reason }

// Retry is a failed attempt; the next one is not due before this time is over.
func Retry(after time.Duration, reason string) error { return &Outcome{"retry", &after, reason} }

// Snooze puts the task off, at no cost of an attempt.
func Snooze(after time.Duration, reason string) error { return &Outcome{"snooze", &after, reason} }

// Discard ends a task that is pointless now.
func Discard(reason string) error { return &Outcome{Word: "discard", Reason: reason} }

// Fail makes a dead letter at once.
func Fail(reason string) error { return &Outcome{Word: "fail", Reason: reason} }

// Consumer works on the tasks of one queue.
type Consumer struct {
	Client *Client
	Queue  string
	// Name tells this consumer from others: the server gives what it cannot do to those.
	Name string
	// Handlers are called by the task's name. What is in no handler's name is for others to do.
	Handlers map[string]Handler
	// Concurrency is the most tasks at a time; 0 is 1.
	Concurrency int
	// Visibility is how long a task may stay without a word; 0 is 30 s.
	Visibility time.Duration
	// Grace is how long running tasks may go on after the end of Run's context.
	Grace time.Duration
}

const (
	waitS      = 20.0
	answerTime = 30 * time.Second
)

// Run works until the context ends. It then takes nothing more, waits for running tasks up to Grace,
// and gives the others back. The error is nil, or that the server refuses this consumer.
func (c *Consumer) Run(ctx context.Context) error {
	taking, stop := context.WithCancel(ctx)
	defer stop()
	hurried, hurry := context.WithCancel(context.Background())
	defer hurry()
	go func() {
		<-taking.Done()
		time.AfterFunc(c.Grace, hurry)
	}()
	count := c.Concurrency
	if count == 0 {
		count = 1
	}
	errs := make(chan error, count)
	var all sync.WaitGroup
	for i := 0; i < count; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := c.take(taking, hurried); err != nil {
				errs <- err
				stop()
			}
		}()
	}
	all.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// take receives one task after the other, as long as `taking` lasts.
func (c *Consumer) take(taking, hurried context.Context) error {
	wait, visibility := waitS, c.visibility().Seconds()
	asked := Receive{Consumer: c.Name, WaitS: &wait, VisibilityS: &visibility}
	for taking.Err() == nil {
		tasks, err := c.Client.Receive(taking, c.Queue, asked)
		if err != nil && taking.Err() == nil {
			return err
		}
		for i := range tasks {
			c.do(hurried, &tasks[i])
		}
	}
	return nil
}

func (c *Consumer) visibility() time.Duration {
	if c.Visibility == 0 {
		return 30 * time.Second
	}
	return c.Visibility
}

// do works on one task, extends its visibility meanwhile, and answers at the end.
func (c *Consumer) do(hurried context.Context, task *Pulled) {
	handler, known := c.Handlers[task.Name]
	if !known {
		c.answer(task, nil, &Outcome{Word: "not_capable", Reason: task.Name})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type ended struct {
		result any
		err    error
	}
	end := make(chan ended, 1)
	go func() {
		result, err := guarded(ctx, handler, task)
		end <- ended{result, err}
	}()
	ticker := time.NewTicker(c.visibility() / 3)
	defer ticker.Stop()
	for {
		select {
		case found := <-end:
			c.answer(task, found.result, found.err)
			return
		case <-hurried.Done():
			c.answer(task, nil, Snooze(0, "the consumer stops"))
			return
		case <-ticker.C:
			if err := c.extend(ctx, task); errors.Is(err, ErrStale) {
				log.Printf("task %s is no longer ours", task.TaskID)
				return
			} else if err != nil {
				log.Printf("task %s: not extended: %v", task.TaskID, err)
			}
		}
	}
}

func (c *Consumer) extend(ctx context.Context, task *Pulled) error {
	seconds := c.visibility().Seconds()
	ctx, cancel := context.WithTimeout(ctx, c.visibility()/3)
	defer cancel()
	return c.Client.Extend(ctx, Extend{Receipt: task.Receipt, VisibilityS: &seconds})
}

// guarded calls the handler. A panic is a failed attempt.
func guarded(ctx context.Context, handler Handler, task *Pulled) (result any, err error) {
	defer func() {
		if found := recover(); found != nil {
			err = fmt.Errorf("panic: %v", found)
		}
	}()
	return handler(ctx, task)
}

// answer tells the server how the attempt ended. That the receipt is stale is no error: either an
// answer before this one was lost on its way back, or another consumer has the task. A result that is
// no JSON, or that the server refuses, as one that is too large, is a failure of the attempt.
func (c *Consumer) answer(task *Pulled, result any, failed error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	var err error
	if failed == nil {
		err = c.Client.Ack(ctx, Ack{Receipt: task.Receipt, Result: result})
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrStale) {
			failed = err
		}
	}
	if failed != nil {
		err = c.Client.Nack(ctx, nack(task, failed))
	}
	if err != nil && !errors.Is(err, ErrStale) {
		log.Printf("task %s: the answer is lost, and it will come again: %v", task.TaskID, err)
	}
}

// nack says what a failure is to do to its task.
func nack(task *Pulled, failed error) Nack {
	var outcome *Outcome
	if !errors.As(failed, &outcome) {
		return Nack{Receipt: task.Receipt, Reason: cut(failed.Error())}
	}
	said := Nack{Receipt: task.Receipt, Outcome: outcome.Word, Reason: cut(outcome.Reason)}
	if outcome.After != nil {
		seconds := outcome.After.Seconds()
		said.AfterS = &seconds
	}
	return said
}

// cut shortens a text to what the server takes.
func cut(text string) string {
	const most = 4096
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most])
	}
	return text
}
