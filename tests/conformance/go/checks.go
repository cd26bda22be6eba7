package main

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

type named struct {
	name string
	run  func(context.Context, *client) error
}

var checks = []named{
	{"unary", unary},
	{"empty messages", empty},
	{"metadata, binary too", metadataPasses},
	{"32 KiB of metadata", largeMetadata},
	{"every status with its text", statuses},
	{"unknown method", unknownMethod},
	{"client stream", clientStream},
	{"server stream", serverStream},
	{"bidirectional ping-pong", pingPong},
	{"early end of a bidirectional stream", earlyEnd},
	{"large message 5 MiB", large(5 << 20)},
	{"large message 64 MiB", large(64 << 20)},
	{"gzip", compressed},
	{"deadline passes", deadlinePasses},
	{"deadline is forwarded", deadlineForwarded},
	{"cancellation of a unary call", cancelUnary},
	{"cancellation of a stream", cancelStream},
	{"200 calls at once", crowd},
	{"100 streams at once", crowdOfStreams},
}

func differs(what string, wanted, found any) error {
	if reflect.DeepEqual(wanted, found) {
		return nil
	}
	return fmt.Errorf("%s: wanted %.200v, found %.200v", what, wanted, found)
}

func hasCode(err error, wanted codes.Code) error {
	if status.Code(err) != wanted {
		return fmt.Errorf("wanted %v, found %v", wanted, err)
	}
	return nil
}

func unary(ctx context.Context, c *client) error {
	answer, err := c.unary(ctx, "Unary", []byte("hello"))
	if err != nil {
		return err
	}
	return differs("answer", "hello", string(answer))
}

func empty(ctx context.Context, c *client) error {
	answer, err := c.unary(ctx, "Unary", nil)
	if err != nil {
		return err
	}
	return differs("length", 0, len(answer))
}

func metadataPasses(ctx context.Context, c *client) error {
	blob := string([]byte{0, 1, 2, 0xff, 0xfe})
	sent := metadata.Pairs(
		"echo-a", "1", "echo-a", "2", "echo-b-bin", blob, "echo-b-bin", "", "echo-c", "a, b",
	)
	var header, trailer metadata.MD
	_, err := c.unary(
		metadata.NewOutgoingContext(ctx, sent), "Unary", nil,
		grpc.Header(&header), grpc.Trailer(&trailer),
	)
	if err != nil {
		return err
	}
	for key, values := range sent {
		if err := differs("header "+key, fields(key, values), fields(key, header[key])); err != nil {
			return err
		}
		found := fields(key, trailer["trail-"+key])
		if err := differs("trailer "+key, fields(key, values), found); err != nil {
			return err
		}
	}
	return nil
}

// fields: fields of one name may be joined by commas on the way, binary ones come apart again.
func fields(key string, values []string) []string {
	if strings.HasSuffix(key, "-bin") {
		return values
	}
	return []string{strings.Join(values, ", ")}
}

func largeMetadata(ctx context.Context, c *client) error {
	value := strings.Repeat("v", 16<<10)
	var header metadata.MD
	_, err := c.unary(
		metadata.AppendToOutgoingContext(ctx, "echo-x", value, "echo-y", value), "Unary", nil,
		grpc.Header(&header),
	)
	if err != nil {
		return err
	}
	return differs("header", []string{value}, header["echo-y"])
}

func statuses(ctx context.Context, c *client) error {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		text := fmt.Sprintf("%v: 100%% café\n\U0001f600", code)
		asked := metadata.AppendToOutgoingContext(ctx, "fail-code", fmt.Sprint(uint32(code)))
		_, err := c.unary(asked, "Fail", []byte(text))
		if err := hasCode(err, code); err != nil {
			return err
		}
		if err := differs("text", text, status.Convert(err).Message()); err != nil {
			return err
		}
	}
	return nil
}

func unknownMethod(ctx context.Context, c *client) error {
	_, err := c.unary(ctx, "NoSuchMethod", nil)
	return hasCode(err, codes.Unimplemented)
}

func clientStream(ctx context.Context, c *client) error {
	stream, err := c.stream(ctx, "ClientStream")
	if err != nil {
		return err
	}
	total := 0
	for size := range 200 {
		if err := push(stream, make([]byte, size)); err != nil {
			return err
		}
		total += size
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	messages, err := pullAll(stream)
	if err != nil {
		return err
	}
	return differs("answer", []string{fmt.Sprintf("200 %d", total)}, texts(messages))
}

func texts(messages [][]byte) []string {
	found := make([]string, 0, len(messages))
	for _, message := range messages {
		found = append(found, string(message))
	}
	return found
}

func serverStream(ctx context.Context, c *client) error {
	stream, err := c.stream(ctx, "ServerStream")
	if err != nil {
		return err
	}
	if err := push(stream, []byte("500 3000")); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	messages, err := pullAll(stream)
	if err != nil {
		return err
	}
	if err := differs("number", 500, len(messages)); err != nil {
		return err
	}
	for number, message := range messages {
		if !bytes.HasPrefix(message, fmt.Appendf(nil, "%d.", number)) || len(message) != 3000 {
			return fmt.Errorf("message %d is out of order: %.20q", number, message)
		}
	}
	return nil
}

func pingPong(ctx context.Context, c *client) error {
	stream, err := c.stream(ctx, "Bidi")
	if err != nil {
		return err
	}
	for number := range 100 {
		message := bytes.Repeat(fmt.Appendf(nil, "%d,", number), number+1)
		if err := push(stream, message); err != nil {
			return err
		}
		answer, err := pull(stream)
		if err != nil {
			return err
		}
		if err := differs("answer", string(message), string(answer)); err != nil {
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	messages, err := pullAll(stream)
	if err != nil {
		return err
	}
	return differs("last answers", []string{"end"}, texts(messages))
}

func earlyEnd(ctx context.Context, c *client) error {
	stream, err := c.stream(ctx, "BidiEarly")
	if err != nil {
		return err
	}
	if err := push(stream, []byte("only")); err != nil {
		return err
	}
	messages, err := pullAll(stream) // without a half-close
	if err != nil {
		return err
	}
	return differs("answers", []string{"only"}, texts(messages))
}

func large(size int) func(context.Context, *client) error {
	return func(ctx context.Context, c *client) error {
		message := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		answer, err := c.unary(ctx, "Unary", message)
		if err != nil {
			return err
		}
		if !bytes.Equal(message, answer) {
			return fmt.Errorf("%d bytes came back changed as %d", len(message), len(answer))
		}
		return nil
	}
}

func compressed(ctx context.Context, c *client) error {
	message := bytes.Repeat([]byte("again "), 100_000)
	answer, err := c.unary(ctx, "Unary", message, grpc.UseCompressor(gzip.Name))
	if err != nil {
		return err
	}
	if !bytes.Equal(message, answer) {
		return fmt.Errorf("%d bytes came back changed as %d", len(message), len(answer))
	}
	return nil
}

func deadlinePasses(ctx context.Context, c *client) error {
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err := c.unary(short, "Block", nil)
	return hasCode(err, codes.DeadlineExceeded)
}

func deadlineForwarded(ctx context.Context, c *client) error {
	bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	found, err := c.counts(bounded)
	if err != nil {
		return err
	}
	if found.LeftMs <= 20_000 || found.LeftMs > 30_000 {
		return fmt.Errorf("of 30 s the peer saw %d ms", found.LeftMs)
	}
	return nil
}

// cancelled runs a call that blocks, leaves it once it runs, and waits until the peer noticed.
func cancelled(ctx context.Context, c *client, call func(context.Context) error) error {
	before, err := c.counts(ctx)
	if err != nil {
		return err
	}
	leaving, leave := context.WithCancel(ctx)
	defer leave()
	ended := make(chan error, 1)
	go func() { ended <- call(leaving) }()
	if err := c.awaitCounts(ctx, func(now counts) bool { return now.Started > before.Started }); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	leave()
	if err := hasCode(<-ended, codes.Canceled); err != nil {
		return err
	}
	if err := c.awaitCounts(ctx, func(now counts) bool { return now.Cancelled > before.Cancelled }); err != nil {
		return fmt.Errorf("cancellation at the peer: %w", err)
	}
	return nil
}

func (c *client) awaitCounts(ctx context.Context, holds func(counts) bool) error {
	for {
		now, err := c.counts(ctx)
		if err != nil {
			return err
		}
		if holds(now) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func cancelUnary(ctx context.Context, c *client) error {
	return cancelled(ctx, c, func(leaving context.Context) error {
		_, err := c.unary(leaving, "Block", nil)
		return err
	})
}

func cancelStream(ctx context.Context, c *client) error {
	return cancelled(ctx, c, func(leaving context.Context) error {
		stream, err := c.stream(leaving, "BlockStream")
		if err != nil {
			return err
		}
		if err := push(stream, []byte("3")); err != nil {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		messages, err := pullAll(stream)
		if len(messages) != 3 {
			return fmt.Errorf("%d messages before the end, not 3", len(messages))
		}
		return err
	})
}

// together runs it for every number at once; the first error counts.
func together(count int, run func(number int) error) error {
	errs := make([]error, count)
	var group sync.WaitGroup
	for number := range count {
		group.Add(1)
		go func() {
			defer group.Done()
			errs[number] = run(number)
		}()
	}
	group.Wait()
	if index := slices.IndexFunc(errs, func(err error) bool { return err != nil }); index >= 0 {
		return fmt.Errorf("call %d: %w", index, errs[index])
	}
	return nil
}

func crowd(ctx context.Context, c *client) error {
	return together(200, func(number int) error {
		message := bytes.Repeat(fmt.Appendf(nil, "%d ", number), 100)
		answer, err := c.unary(ctx, "Unary", message)
		if err != nil {
			return err
		}
		return differs("answer", string(message), string(answer))
	})
}

func crowdOfStreams(ctx context.Context, c *client) error {
	return together(100, func(int) error { return pingPong(ctx, c) })
}
