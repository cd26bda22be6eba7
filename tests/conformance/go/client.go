package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// limit of one check; it only catches hangs.
const limit = 60 * time.Second

// client calls the methods of a peer.
type client struct {
	connection *grpc.ClientConn
}

// outcome is what one check printed.
type outcome struct {
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	Detail string `json:"detail,omitempty"`
	Ms     int64  `json:"ms"`
}

func dial(target, authority string) (*client, error) {
	connection, err := grpc.NewClient(
		"passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(authority),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(rawCodec{}),
			grpc.MaxCallRecvMsgSize(messageBytesMax),
			grpc.MaxCallSendMsgSize(messageBytesMax),
		),
		grpc.WithDisableRetry(),
	)
	if err != nil {
		return nil, err
	}
	return &client{connection}, nil
}

func (c *client) unary(
	ctx context.Context, method string, message []byte, options ...grpc.CallOption,
) ([]byte, error) {
	var answer []byte
	err := c.connection.Invoke(ctx, "/test.Peer/"+method, &message, &answer, options...)
	return answer, err
}

func (c *client) stream(ctx context.Context, method string) (grpc.ClientStream, error) {
	description := &grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true}
	return c.connection.NewStream(ctx, description, "/test.Peer/"+method)
}

func push(stream grpc.ClientStream, message []byte) error {
	return stream.SendMsg(&message)
}

func pull(stream grpc.ClientStream) ([]byte, error) {
	var message []byte
	err := stream.RecvMsg(&message)
	return message, err
}

// pullAll reads until the status; OK is no error.
func pullAll(stream grpc.ClientStream) ([][]byte, error) {
	var messages [][]byte
	for {
		message, err := pull(stream)
		if errors.Is(err, io.EOF) {
			return messages, nil
		}
		if err != nil {
			return messages, err
		}
		messages = append(messages, message)
	}
}

type counts struct {
	Started   int64 `json:"started"`
	Cancelled int64 `json:"cancelled"`
	LeftMs    int64 `json:"left_ms"`
}

func (c *client) counts(ctx context.Context) (counts, error) {
	var found counts
	answer, err := c.unary(ctx, "Counts", nil)
	if err != nil {
		return found, err
	}
	return found, json.Unmarshal(answer, &found)
}

func leftMs(ctx context.Context) int64 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return -1
	}
	return time.Until(deadline).Milliseconds()
}

// check runs every check against a target and prints the outcomes as JSON.
func check(target, authority string) error {
	c, err := dial(target, authority)
	if err != nil {
		return err
	}
	defer c.connection.Close()
	var outcomes []outcome
	failed := 0
	for _, entry := range checks {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		err := entry.run(ctx, c)
		cancel()
		result := outcome{Name: entry.name, Passed: err == nil, Ms: time.Since(began).Milliseconds()}
		if err != nil {
			result.Detail = err.Error()
			failed++
		}
		outcomes = append(outcomes, result)
	}
	if err := json.NewEncoder(os.Stdout).Encode(outcomes); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(outcomes))
	}
	return nil
}
