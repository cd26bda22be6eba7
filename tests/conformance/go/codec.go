package main

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// rawCodec passes message bytes as they are, so that every peer speaks the same without a schema.
type rawCodec struct{}

func (rawCodec) Marshal(value any) (mem.BufferSlice, error) {
	message, ok := value.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("cannot send a %T, only *[]byte", value)
	}
	return mem.BufferSlice{mem.SliceBuffer(*message)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, value any) error {
	message, ok := value.(*[]byte)
	if !ok {
		return fmt.Errorf("cannot receive a %T, only *[]byte", value)
	}
	*message = data.Materialize()
	return nil
}

func (rawCodec) Name() string { return "raw" }
