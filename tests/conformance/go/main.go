// A foreign gRPC peer for the conformance run: `peer serve` is an endpoint, `peer check TARGET
// AUTHORITY` a client that runs every check against a target and prints the outcomes as JSON.
package main

import (
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc"
)

func run(arguments []string) error {
	switch {
	case len(arguments) == 1 && arguments[0] == "serve":
		return serve()
	case len(arguments) == 3 && arguments[0] == "check":
		return check(arguments[1], arguments[2])
	case len(arguments) == 1 && arguments[0] == "version":
		_, err := fmt.Println(grpc.Version)
		return err
	}
	return errors.New("usage: peer serve | peer check TARGET AUTHORITY | peer version")
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
