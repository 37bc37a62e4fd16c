// A server of NATS, as its makers' own program is one: for `cargo xtask cluster` and the suite `cluster`.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	flags := flag.NewFlagSet("nats-server", flag.ExitOnError)
	nothing := func() {}
	options, err := server.ConfigureOptions(flags, os.Args[1:], nothing, nothing, nothing)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	nats, err := server.NewServer(options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	nats.ConfigureLogger()
	if err := server.Run(nats); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	nats.WaitForShutdown()
}
