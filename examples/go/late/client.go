// Package late puts tasks into a `late serve` and takes them from it, over HTTP and with nothing but
// the standard library.
package late

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrStale says that a receipt is of no use any more: the answer came too late, or was there already.
var ErrStale = errors.New("late: stale receipt")

// Refused is an answer of the server that another try would not change.
type Refused struct {
	Status  int
	Word    string
	Message string
}

func (r *Refused) Error() string {
	return fmt.Sprintf("late: %d %s: %s", r.Status, r.Word, r.Message)
}

// passing tells whether another try may be answered otherwise.
func (r *Refused) passing() bool {
	return r.Status == http.StatusTooManyRequests || r.Status >= 500
}

// Client sends requests to one server. Its methods may be called by many goroutines.
type Client struct {
	URL   string
	Token string
	// HTTP sends the requests; nil is http.DefaultClient.
	HTTP *http.Client
	// Pause is the pause before the second try, which doubles up to 5 s; 0 is 100 ms.
	Pause time.Duration
	// Tell is told once when the server does not answer, and once when it answers again; nil is log.Print.
	Tell func(...any)

	mutex sync.Mutex
	away  bool
}

// Put enqueues one task. Without a unique key it gets one, because otherwise a repeat after a lost
// answer would be a second task. A key lives as long as its task, and that may have ended before the
// repeat: so it stays taken for an hour. Beside a key of yours, set UniqueForS for the same reason.
func (c *Client) Put(ctx context.Context, queue string, task Put) (Accepted, error) {
	var accepted Accepted
	if task.UniqueKey == "" {
		task.UniqueKey = fmt.Sprintf("%016x%016x", random(), random())
		if task.UniqueForS == nil {
			keyFor := 3600.0
			task.UniqueForS = &keyFor
		}
	}
	err := c.call(ctx, "queues/"+url.PathEscape(queue)+"/tasks", task, &accepted)
	return accepted, err
}

// Receive takes tasks, and waits for one as long as the request says.
func (c *Client) Receive(ctx context.Context, queue string, asked Receive) ([]Pulled, error) {
	var answer ReceiveAnswer
	err := c.call(ctx, "queues/"+url.PathEscape(queue)+"/receive", asked, &answer)
	return answer.Tasks, err
}

// Ack says that a task is done.
func (c *Client) Ack(ctx context.Context, ack Ack) error {
	return c.call(ctx, "ack", ack, nil)
}

// Nack says that a task is not done, and what is to become of it.
func (c *Client) Nack(ctx context.Context, nack Nack) error {
	return c.call(ctx, "nack", nack, nil)
}

// Extend says that a task is still worked on.
func (c *Client) Extend(ctx context.Context, extend Extend) error {
	var answer ExtendAnswer
	return c.call(ctx, "extend", extend, &answer)
}

// Result tells how a task ended. Without an outcome it has not ended within the wait.
func (c *Client) Result(ctx context.Context, taskID string, wait time.Duration) (TaskResult, error) {
	var found TaskResult
	path := fmt.Sprintf("tasks/%s/result?wait_s=%g", url.PathEscape(taskID), wait.Seconds())
	err := c.again(ctx, http.MethodGet, path, nil, &found)
	return found, err
}

func (c *Client) call(ctx context.Context, path string, body, answer any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.again(ctx, http.MethodPost, path, raw, answer)
}

// again sends a request until it is answered or the context ends. Every request of this client may
// be repeated: a unique key makes one task of two puts, and the second answer for a receipt is refused.
// What no other try would change is returned at once: a refusal, or a URL that is none.
func (c *Client) again(ctx context.Context, method, path string, raw []byte, answer any) error {
	at, err := url.Parse(c.URL)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return fmt.Errorf("late: not the URL of a server, as http://127.0.0.1:7280 is: %q", c.URL)
	}
	pause := c.Pause
	if pause == 0 {
		pause = 100 * time.Millisecond
	}
	var last error
	for tried := 0; ; tried++ {
		after, err := c.once(ctx, method, path, raw, answer)
		var refused *Refused
		isRefused := errors.As(err, &refused)
		if err == nil || errors.Is(err, ErrStale) || isRefused && !refused.passing() {
			c.told(nil)
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		switch {
		case isRefused && refused.Status == http.StatusTooManyRequests:
			c.told(nil)
		case tried > 0 && ctx.Err() == nil: // A single lost connection is nothing to tell.
			c.told(err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last try failed: %v", ctx.Err(), last)
		case <-time.After(after + time.Duration(random()%uint64(pause))):
		}
		if pause *= 2; pause > 5*time.Second {
			pause = 5 * time.Second
		}
	}
}

// told says once that the server does not answer, and once that it does again.
func (c *Client) told(err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	tell := c.Tell
	if tell == nil {
		tell = log.Print
	}
	switch {
	case err != nil && !c.away:
		tell("no answer from ", c.URL, ", trying again until there is one: ", err)
	case err == nil && c.away:
		tell(c.URL, " answers again")
	}
	c.away = err != nil
}

// random returns 64 random bits. Those of math/rand are the same in every process before Go 1.20.
func random() uint64 {
	var bits [8]byte
	if _, err := rand.Read(bits[:]); err != nil {
		panic(err)
	}
	return binary.LittleEndian.Uint64(bits[:])
}

// once sends a request, and returns how long the server asks to wait before the next try.
func (c *Client) once(ctx context.Context, method, path string, raw []byte, answer any) (time.Duration, error) {
	// Longer than any request waits: the connection may be dead without a word of it.
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	where := strings.TrimRight(c.URL, "/") + "/v1/" + path
	request, err := http.NewRequestWithContext(ctx, method, where, bytes.NewReader(raw))
	if err != nil {
		return 0, &Refused{Word: "bad_request", Message: err.Error()}
	}
	request.Header.Set("Content-Type", "application/json")
	if c.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.Token)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	found, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer found.Body.Close()
	text, err := io.ReadAll(found.Body)
	if err != nil {
		return 0, err
	}
	if found.StatusCode < 300 {
		if answer == nil || len(text) == 0 {
			return 0, nil
		}
		if err := json.Unmarshal(text, answer); err != nil {
			return 0, fmt.Errorf("the answer is not from late: %w", err)
		}
		return 0, nil
	}
	said := Error{Error: "no_word", Message: "the answer is not from late"}
	_ = json.Unmarshal(text, &said)
	refused := &Refused{found.StatusCode, said.Error, said.Message}
	switch {
	case refused.passing():
		seconds, _ := strconv.ParseFloat(found.Header.Get("Retry-After"), 64)
		return time.Duration(seconds * float64(time.Second)), refused
	case said.Error == "stale_receipt":
		return 0, ErrStale
	}
	return 0, refused
}
