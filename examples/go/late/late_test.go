package late

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// server answers requests by their paths' last words, and keeps their bodies.
type server struct {
	*httptest.Server
	mutex  sync.Mutex
	bodies map[string][]map[string]any
	count  map[string]int
}

type reply struct {
	status int
	text   string
}

// serve answers the n-th request of a word with the n-th reply, and with the last one ever after. A
// status of 0 ends the connection without an answer.
func serve(t *testing.T, replies map[string][]reply) *server {
	s := &server{bodies: map[string][]map[string]any{}, count: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		word := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		s.mutex.Lock()
		s.bodies[word] = append(s.bodies[word], body)
		number := s.count[word]
		s.count[word]++
		s.mutex.Unlock()
		list, known := replies[word]
		if !known {
			t.Errorf("nobody expects %s", r.URL.Path)
			list = []reply{{404, ""}}
		}
		if number >= len(list) {
			number = len(list) - 1
		}
		if list[number].status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(list[number].status)
		_, _ = w.Write([]byte(list[number].text))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) of(word string) []map[string]any {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append([]map[string]any(nil), s.bodies[word]...)
}

func (s *server) client() *Client {
	return &Client{URL: s.URL, Pause: time.Millisecond}
}

const stale = `{"error": "stale_receipt", "message": "stale receipt"}`

func TestPutIsRepeatedWithTheSameKey(t *testing.T) {
	s := serve(t, map[string][]reply{
		"tasks": {{503, "{}"}, {0, ""}, {200, `{"task_id": "t", "created": false}`}},
	})
	accepted, err := s.client().Put(context.Background(), "q", Put{Name: "charge"})
	if err != nil || accepted.TaskID != "t" || accepted.Created {
		t.Fatal(accepted, err)
	}
	sent := s.of("tasks")
	key := sent[0]["unique_key"]
	if len(sent) != 3 || key == nil || sent[1]["unique_key"] != key || sent[2]["unique_key"] != key {
		t.Fatal(sent)
	}
	if sent[2]["unique_for_s"] != 3600.0 {
		t.Fatal("the task may have ended before the repeat", sent)
	}
}

func TestARefusalIsNotRepeated(t *testing.T) {
	s := serve(t, map[string][]reply{
		"tasks": {{400, `{"error": "invalid_task", "message": "no name"}`}},
		"ack":   {{409, stale}},
	})
	_, err := s.client().Put(context.Background(), "q", Put{})
	var refused *Refused
	if !errors.As(err, &refused) || refused.Status != 400 || refused.Word != "invalid_task" {
		t.Fatal(err)
	}
	if err := s.client().Ack(context.Background(), Ack{Receipt: "r"}); !errors.Is(err, ErrStale) {
		t.Fatal(err)
	}
	if len(s.of("tasks")) != 1 || len(s.of("ack")) != 1 {
		t.Fatal("a refused request was sent again")
	}
}

func TestARequestEndsWithItsContext(t *testing.T) {
	s := serve(t, map[string][]reply{"ack": {{503, "{}"}}})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.client().Ack(ctx, Ack{Receipt: "r"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestWhatNoOtherTryWouldChangeIsReturnedAtOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, url := range []string{"http//127.0.0.1:7280", "127.0.0.1:7280", "ftp://127.0.0.1", ""} {
		client := &Client{URL: url}
		if _, err := client.Put(ctx, "q", Put{}); err == nil || !strings.Contains(err.Error(), "not the URL of a server") {
			t.Fatal(url, err)
		}
	}
}

// telling is a client that keeps what it tells.
func telling(url string) (*Client, *[]string) {
	told := []string{}
	keep := func(words ...any) { told = append(told, fmt.Sprint(words...)) }
	return &Client{URL: url, Pause: time.Millisecond, Tell: keep}, &told
}

func TestTheLastErrorIsToldWhenPatienceEnds(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	client, told := telling(closed.URL)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	err := client.Ack(ctx, Ack{Receipt: "r"})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
		t.Fatal(err)
	}
	if len(*told) != 1 || !strings.Contains((*told)[0], "no answer from") || !strings.Contains((*told)[0], "refused") {
		t.Fatal(*told)
	}
}

func TestAServerThatAnswersAgainIsToldOnceAndASingleLostAnswerIsNot(t *testing.T) {
	done := reply{200, `{"task_id": "t", "created": true}`}
	s := serve(t, map[string][]reply{"tasks": {
		{0, ""}, done, {503, "{}"}, {200, "<html>"}, {503, "{}"}, done, {429, "{}"}, {429, "{}"}, done,
	}})
	client, told := telling(s.URL + "/")
	for _, count := range []int{0, 2, 2} {
		if _, err := client.Put(context.Background(), "q", Put{}); err != nil || len(*told) != count {
			t.Fatal(err, *told)
		}
	}
	if !strings.Contains((*told)[0], "not from late") || !strings.Contains((*told)[1], "answers again") {
		t.Fatal(*told)
	}
}

// run gives one task to a consumer, and stops it when `until` has had a request.
func run(t *testing.T, until string, handler Handler, change func(*Consumer), ack ...reply) *server {
	task := `{"tasks": [{"task_id": "t", "name": "work", "attempt": 1, "receipt": "r", "payload": {}}]}`
	s := serve(t, map[string][]reply{
		"receive": {{200, task}, {200, `{"tasks": []}`}},
		"ack":     append(ack, reply{204, ""}),
		"nack":    {{0, ""}, {409, stale}},
		"extend":  {{200, `{"receipt": "r", "visible_until": "2026-01-01T00:00:00Z"}`}},
	})
	consumer := &Consumer{Client: s.client(), Queue: "q", Handlers: map[string]Handler{"work": handler}}
	if change != nil {
		change(consumer)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx) }()
	limit := time.Now().Add(time.Minute)
	for len(s.of(until)) == 0 && time.Now().Before(limit) {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return s
}

func failing(err error) Handler {
	return func(context.Context, *Pulled) (any, error) { return nil, err }
}

func TestWhatAHandlerReturnsIsTheAnswer(t *testing.T) {
	s := run(t, "ack", func(context.Context, *Pulled) (any, error) { return 7, nil }, nil)
	if sent := s.of("ack")[0]; sent["result"] != 7.0 || sent["receipt"] != "r" {
		t.Fatal(sent)
	}
	for _, each := range []struct {
		handler         Handler
		outcome, reason any
		after           any
	}{
		{failing(errors.New("no luck")), nil, "no luck", nil},
		{failing(Retry(0, "soon")), "retry", "soon", 0.0},
		{failing(Snooze(time.Minute, "later")), "snooze", "later", 60.0},
		{failing(Discard("too old")), "discard", "too old", nil},
		{failing(Fail("no such card")), "fail", "no such card", nil},
		{func(context.Context, *Pulled) (any, error) { panic("a bug") }, nil, "panic: a bug", nil},
	} {
		s := run(t, "nack", each.handler, nil)
		sent := s.of("nack")
		if len(sent) != 2 || len(s.of("ack")) != 0 {
			t.Fatal("an answer that was lost is sent again, once", sent)
		}
		if sent[1]["outcome"] != each.outcome || sent[1]["reason"] != each.reason || sent[1]["after_s"] != each.after {
			t.Fatal(each, sent)
		}
	}
}

func TestAResultThatIsNoJSONOrThatTheServerRefusesIsAFailedAttempt(t *testing.T) {
	tooLarge := reply{413, `{"error": "payload_too_large", "message": "300000 bytes"}`}
	for _, each := range []struct {
		result any
		reason string
	}{{make(chan int), "unsupported type: chan int"}, {"x", "413 payload_too_large: 300000 bytes"}} {
		s := run(t, "nack", func(context.Context, *Pulled) (any, error) { return each.result, nil }, nil, tooLarge)
		if reason := s.of("nack")[0]["reason"]; !strings.Contains(reason.(string), each.reason) {
			t.Fatal(reason)
		}
	}
}

func TestAnUnknownTaskIsForOthers(t *testing.T) {
	s := run(t, "nack", nil, func(c *Consumer) { c.Handlers = nil })
	if sent := s.of("nack")[0]; sent["outcome"] != "not_capable" {
		t.Fatal(sent)
	}
}

func TestALongTaskIsExtendedAndGivenBackInTheEnd(t *testing.T) {
	ended := make(chan struct{})
	s := run(t, "extend", func(ctx context.Context, _ *Pulled) (any, error) {
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}, func(c *Consumer) { c.Visibility = 30 * time.Millisecond })
	sent := s.of("nack")
	if len(sent) != 2 || sent[1]["outcome"] != "snooze" || sent[1]["after_s"] != 0.0 {
		t.Fatal(sent)
	}
	<-ended
}

func TestAConsumerThatIsRefusedEnds(t *testing.T) {
	s := serve(t, map[string][]reply{"receive": {{403, `{"error": "forbidden", "message": "no"}`}}})
	consumer := &Consumer{Client: s.client(), Queue: "q", Concurrency: 3}
	var refused *Refused
	if err := consumer.Run(context.Background()); !errors.As(err, &refused) || refused.Status != 403 {
		t.Fatal(err)
	}
}
