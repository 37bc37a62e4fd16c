// Package main is a rival of MQTT in the lab: CoAP with confirmable messages over UDP (RFC 7252), and
// over DTLS 1.2, by the library go-coap.
//
// It is a device (docs/lab.md, "Devices of other stacks"), and the gateway beside the broker that hands
// its messages over by MQTT: `sterna-lab run rivals --rival ./rivals`.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "rivals device | rivals gateway --help")
		os.Exit(2)
	}
	switch os.Args[1] {
	case "device":
		os.Exit(deviceMain(os.Stdin, os.Stdout))
	case "gateway":
		os.Exit(gatewayMain(os.Args[2:], os.Stdin, os.Stdout))
	default:
		fmt.Fprintf(os.Stderr, "no such command: %s\n", os.Args[1])
		os.Exit(2)
	}
}
