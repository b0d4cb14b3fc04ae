// A producer: LATE_URL=http://127.0.0.1:7280 go run ./cmd/producer payments charge '{"trip": 7}' trip-7
//
// With a unique key the task is there once, however often it is put.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"example.org/late/late"
)

const patience = 30 * time.Second

func main() {
	if len(os.Args) < 3 || len(os.Args) > 5 {
		fmt.Fprintln(os.Stderr, "usage: producer QUEUE NAME [PAYLOAD-JSON [UNIQUE-KEY]]")
		os.Exit(2)
	}
	if err := put(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func put(queue, name string, more []string) error {
	task := late.Put{Name: name}
	if len(more) > 0 {
		if !json.Valid([]byte(more[0])) {
			return fmt.Errorf("the payload is not JSON: %s", more[0])
		}
		task.Payload = json.RawMessage(more[0])
	}
	if len(more) > 1 {
		task.UniqueKey = more[1]
	}
	client := late.Client{URL: os.Getenv("LATE_URL"), Token: os.Getenv("LATE_TOKEN")}
	if client.URL == "" {
		client.URL = "http://127.0.0.1:7280"
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	accepted, err := client.Put(ctx, queue, task)
	if err != nil {
		return err
	}
	said, err := json.Marshal(accepted)
	fmt.Println(string(said))
	return err
}
