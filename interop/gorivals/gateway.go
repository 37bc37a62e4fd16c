package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	piondtls "github.com/pion/dtls/v3"
	coap "github.com/plgd-dev/go-coap/v3/dtls"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/mux"
	coapnet "github.com/plgd-dev/go-coap/v3/net"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/udp"
)

// patience is how long the broker, which is on the same host, may take for a message.
const patience = 30 * time.Second

// publisher hands a message to the broker, and returns when that has it.
type publisher func(topic string, payload []byte) error

// gatewayMain listens for CoAP and hands messages on. It prints its port, and ends with its input.
func gatewayMain(args []string, in io.Reader, out io.Writer) int {
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	listen := flags.String("listen", "coap://127.0.0.1:0", "where to take CoAP")
	to := flags.String("to", "127.0.0.1:1883", "the broker's listener of MQTT")
	certificate := flags.String("certificate", "", "the certificate for coaps, in PEM form")
	key := flags.String("key", "", "its key")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	publish, err := toBroker(*to)
	if err == nil {
		var g *gateway
		if g, err = startGateway(*listen, *certificate, *key, publish); err == nil {
			fmt.Fprintln(out, g.port)
			_, _ = io.Copy(io.Discard, in)
			fmt.Fprintf(out, "{\"all\":%d,\"early\":0}\n", g.connections.Load())
			g.stop()
			return 0
		}
	}
	fmt.Fprintf(os.Stderr, "gateway: %v\n", err)
	return 1
}

// toBroker connects to the broker by MQTT, over TCP on this host.
func toBroker(address string) (publisher, error) {
	choices := paho.NewClientOptions().AddBroker("tcp://" + address).SetClientID("lab-rival-gateway")
	choices.SetOrderMatters(false)
	broker := paho.NewClient(choices)
	if token := broker.Connect(); !token.WaitTimeout(patience) || token.Error() != nil {
		return nil, fmt.Errorf("%s: %w", address, token.Error())
	}
	return func(topic string, payload []byte) error {
		token := broker.Publish(topic, 1, false, payload)
		if !token.WaitTimeout(patience) {
			return fmt.Errorf("no answer of the broker in %v", patience)
		}
		return token.Error()
	}, nil
}

// gateway is one that listens.
type gateway struct {
	port        int
	connections atomic.Int64
	stop        func()
}

func startGateway(listen, certificate, key string, publish publisher) (*gateway, error) {
	place, err := url.Parse(listen)
	if err != nil {
		return nil, err
	}
	g := &gateway{}
	router := mux.NewRouter()
	router.DefaultHandle(mux.HandlerFunc(func(w mux.ResponseWriter, r *mux.Message) {
		answer(w, take(r, publish))
	}))
	failed := make(chan error, 1)
	switch place.Scheme {
	case "coap":
		listener, err := coapnet.NewListenUDP("udp", place.Host)
		if err != nil {
			return nil, err
		}
		g.port = listener.LocalAddr().(*net.UDPAddr).Port
		server := udp.NewServer(options.WithMux(router), options.WithPeriodicRunner(ticks))
		g.stop = server.Stop
		go func() { failed <- server.Serve(listener) }()
	case "coaps":
		chosen, err := serverSecurity(certificate, key)
		if err != nil {
			return nil, err
		}
		address, err := net.ResolveUDPAddr("udp", place.Host)
		if err != nil {
			return nil, err
		}
		listener, err := piondtls.ListenWithOptions("udp", address, chosen...)
		if err != nil {
			return nil, err
		}
		g.port = listener.Addr().(*net.UDPAddr).Port
		server := coap.NewServer(options.WithMux(router), options.WithPeriodicRunner(ticks))
		g.stop = server.Stop
		go func() { failed <- server.Serve(&counted{listener, &g.connections}) }()
	default:
		return nil, fmt.Errorf("not an URL of CoAP: %q", listen)
	}
	return g, nil
}

// take hands a message to the broker; says what the device is to be told.
func take(r *mux.Message, publish publisher) codes.Code {
	path, err := r.Path()
	payload, bodyErr := r.ReadBody()
	if err != nil || bodyErr != nil || r.Code() != codes.POST {
		return codes.BadRequest
	}
	if err := publish(strings.TrimPrefix(path, "/"), payload); err != nil {
		fmt.Fprintf(os.Stderr, "gateway: %v\n", err)
		return codes.BadGateway
	}
	return codes.Changed
}

func answer(w mux.ResponseWriter, code codes.Code) {
	if err := w.SetResponse(code, message.TextPlain, bytes.NewReader(nil)); err != nil {
		fmt.Fprintf(os.Stderr, "gateway: %v\n", err)
	}
}

// counted is a listener of DTLS in the form of the library, which counts connections.
type counted struct {
	net.Listener
	count *atomic.Int64
}

func (c *counted) AcceptWithContext(context.Context) (net.Conn, error) {
	conn, err := c.Accept()
	if err == nil {
		c.count.Add(1)
	}
	return conn, err
}
