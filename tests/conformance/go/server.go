package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const messageBytesMax = 256 << 20

// peer serves `/test.Peer/*`; what its methods do is the same in every language's peer.
type peer struct {
	started, cancelled atomic.Int64
}

func (p *peer) begin(ctx context.Context) metadata.MD {
	p.started.Add(1)
	pairs, _ := metadata.FromIncomingContext(ctx)
	return pairs
}

// awaitEnd blocks until the call is over for the client, and counts that it was.
func (p *peer) awaitEnd(ctx context.Context) error {
	<-ctx.Done()
	p.cancelled.Add(1)
	return status.FromContextError(ctx.Err()).Err()
}

func receive(stream grpc.ServerStream) ([]byte, error) {
	var message []byte
	err := stream.RecvMsg(&message)
	return message, err
}

func send(stream grpc.ServerStream, message []byte) error {
	return stream.SendMsg(&message)
}

// unary: the message comes back; `echo-*` metadata comes back as headers and as `trail-*`.
func (p *peer) unary(stream grpc.ServerStream) error {
	message, err := receive(stream)
	if err != nil {
		return err
	}
	header, trailer := metadata.MD{}, metadata.MD{}
	for key, values := range p.begin(stream.Context()) {
		if strings.HasPrefix(key, "echo-") {
			header[key], trailer["trail-"+key] = values, values
		}
	}
	if err := stream.SendHeader(header); err != nil {
		return err
	}
	stream.SetTrailer(trailer)
	return send(stream, message)
}

// fail: Trailers-Only with the code in `fail-code` and the message as text.
func (p *peer) fail(stream grpc.ServerStream) error {
	message, err := receive(stream)
	if err != nil {
		return err
	}
	pairs := p.begin(stream.Context())
	code, err := strconv.Atoi(strings.Join(pairs["fail-code"], ""))
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "fail-code: %v", err)
	}
	if details := pairs["fail-details-bin"]; len(details) > 0 {
		stream.SetTrailer(metadata.MD{"x-details-bin": details})
	}
	return status.Error(codes.Code(code), string(message))
}

func (p *peer) block(stream grpc.ServerStream) error {
	p.begin(stream.Context())
	return p.awaitEnd(stream.Context())
}

func (p *peer) clientStream(stream grpc.ServerStream) error {
	p.begin(stream.Context())
	count, total := 0, 0
	for {
		message, err := receive(stream)
		if errors.Is(err, io.EOF) {
			return send(stream, fmt.Appendf(nil, "%d %d", count, total))
		}
		if err != nil {
			return err
		}
		count, total = count+1, total+len(message)
	}
}

// serverStream: a request of `count size` is answered with that many messages of that size.
func (p *peer) serverStream(stream grpc.ServerStream) error {
	p.begin(stream.Context())
	request, err := receive(stream)
	if err != nil {
		return err
	}
	var count, size int
	if _, err := fmt.Sscanf(string(request), "%d %d", &count, &size); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	for number := range count {
		message := bytes.Repeat([]byte{'.'}, size)
		copy(message, strconv.Itoa(number))
		if err := send(stream, message); err != nil {
			return err
		}
	}
	return nil
}

func (p *peer) blockStream(stream grpc.ServerStream) error {
	p.begin(stream.Context())
	request, err := receive(stream)
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(string(request))
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	for number := range count {
		if err := send(stream, []byte(strconv.Itoa(number))); err != nil {
			return err
		}
	}
	return p.awaitEnd(stream.Context())
}

// bidi: each message comes back at once; after the half-close one more, `end`.
func (p *peer) bidi(stream grpc.ServerStream) error {
	p.begin(stream.Context())
	for {
		message, err := receive(stream)
		if errors.Is(err, io.EOF) {
			return send(stream, []byte("end"))
		}
		if err != nil {
			return err
		}
		if err := send(stream, message); err != nil {
			return err
		}
	}
}

// bidiEarly: ends after the first message, while the client may go on sending.
func (p *peer) bidiEarly(stream grpc.ServerStream) error {
	p.begin(stream.Context())
	message, err := receive(stream)
	if err != nil {
		return err
	}
	return send(stream, message)
}

// counts: how many calls began, how many were cancelled, and the deadline of this one in ms.
func (p *peer) counts(stream grpc.ServerStream) error {
	if _, err := receive(stream); err != nil {
		return err
	}
	answer, err := json.Marshal(map[string]int64{
		"started":   p.started.Load(),
		"cancelled": p.cancelled.Load(),
		"left_ms":   leftMs(stream.Context()),
	})
	if err != nil {
		return err
	}
	return send(stream, answer)
}

func (p *peer) description() *grpc.ServiceDesc {
	methods := map[string]func(grpc.ServerStream) error{
		"Unary": p.unary, "Fail": p.fail, "Block": p.block, "ClientStream": p.clientStream,
		"ServerStream": p.serverStream, "BlockStream": p.blockStream, "Bidi": p.bidi,
		"BidiEarly": p.bidiEarly, "Counts": p.counts,
	}
	description := &grpc.ServiceDesc{ServiceName: "test.Peer", HandlerType: (*any)(nil)}
	for name, method := range methods {
		description.Streams = append(description.Streams, grpc.StreamDesc{
			StreamName:    name,
			Handler:       func(_ any, stream grpc.ServerStream) error { return method(stream) },
			ServerStreams: true,
			ClientStreams: true,
		})
	}
	return description
}

// serve prints its address and serves until standard input closes.
func serve() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.MaxRecvMsgSize(messageBytesMax),
		grpc.MaxSendMsgSize(messageBytesMax),
	)
	server.RegisterService((&peer{}).description(), struct{}{})
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{
		"address": listener.Addr().String(),
	}); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		server.Stop()
	}()
	return server.Serve(listener)
}
