// Sterna's broker seen by foreign Go code: quic-go's transport and Eclipse's two MQTT codecs, nothing of our own.
//
// The steps are in steps_*.go. Each prints `ok NAME` or `not ok NAME: why`, as interop/README.md says.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

const (
	stepLimit = 120 * time.Second
	// Steps that run at once.
	atOnce = 4
)

// Broker is where the broker under test listens with QUIC.
type Broker struct {
	// Early data may do everything here.
	Address *net.UDPAddr
	// No early data here; nil where the broker has no such listener.
	Strict *net.UDPAddr
	// Early data may do here what is idempotent; may be nil too.
	Idempotent *net.UDPAddr
	host       string
	roots      *x509.CertPool
}

// TLS is the client's configuration; no resumption unless the caller adds a cache.
func (b *Broker) TLS() *tls.Config {
	return &tls.Config{
		ServerName: b.host,
		RootCAs:    b.roots,
		NextProtos: []string{"mqtt"},
		MinVersion: tls.VersionTLS13,
	}
}

// findBroker reads what the broker wrote when it was ready.
func findBroker() (*Broker, error) {
	text, err := os.ReadFile(os.Getenv("STERNA_READY_FILE"))
	if err != nil {
		return nil, fmt.Errorf("STERNA_READY_FILE does not say where it is: %w", err)
	}
	var ready struct {
		Certificate string
		Listeners   []struct{ URL string }
	}
	if err := json.Unmarshal(text, &ready); err != nil {
		return nil, fmt.Errorf("STERNA_READY_FILE: %w", err)
	}
	certificate, err := os.ReadFile(ready.Certificate)
	if err != nil {
		return nil, err
	}
	broker := &Broker{roots: x509.NewCertPool()}
	if !broker.roots.AppendCertsFromPEM(certificate) {
		return nil, fmt.Errorf("%s has no certificate", ready.Certificate)
	}
	for _, listener := range ready.Listeners {
		place, err := url.Parse(listener.URL)
		if err != nil || place.Scheme != "mqtt+quic" {
			continue
		}
		address, err := net.ResolveUDPAddr("udp", place.Host)
		if err != nil {
			return nil, err
		}
		switch {
		case broker.Address == nil:
			broker.Address, broker.host = address, place.Hostname()
		case broker.Strict == nil:
			broker.Strict = address
		case broker.Idempotent == nil:
			broker.Idempotent = address
		}
	}
	if broker.Address == nil {
		return nil, fmt.Errorf("the broker has no QUIC listener")
	}
	return broker, nil
}

// report prints results; steps run at once, lines come whole.
type report struct {
	mutex                   sync.Mutex
	passed, failed, skipped int
}

func (r *report) line(counter *int, verdict, name, why string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	*counter++
	if why = strings.Join(strings.Fields(why), " "); why != "" {
		why = ": " + why
	}
	fmt.Printf("%s quic-go/%s%s\n", verdict, name, why)
}

// run runs one step to its end.
func (r *report) run(broker *Broker, one step, verbose bool) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), stepLimit,
		fmt.Errorf("not done within %v", stepLimit))
	defer cancel()
	start := time.Now()
	t := newStep(ctx, broker, one.dialect)
	err := caught(func() { one.run(t); t.wait(); t.verify() })
	t.close()
	took := time.Since(start).Round(time.Millisecond)
	switch why := err.(type) {
	case nil:
		r.line(&r.passed, "ok", one.name, "")
	case missing:
		r.line(&r.skipped, "skip", one.name, string(why))
	default:
		r.line(&r.failed, "not ok", one.name, fmt.Sprintf("%v (after %v)", why, took))
	}
	if verbose {
		fmt.Printf("# %s took %v\n", one.name, took)
	}
}

// caught runs something and returns what it failed with.
func caught(work func()) (err error) {
	defer func() {
		switch what := recover().(type) {
		case nil:
		case failure:
			err = what.error
		case missing:
			err = what
		default:
			// A fault of the suite names itself and does not end the others.
			err = fmt.Errorf("panic: %v: %s", what, debug.Stack())
		}
	}()
	work()
	return nil
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "device" {
		os.Exit(deviceMain())
	}
	only := flag.String("only", "", "run only the steps whose name contains this")
	list := flag.Bool("list", false, "print the names of the steps")
	verbose := flag.Bool("times", false, "print how long each step took")
	times := flag.Int("repeat", 1, "run every step so often")
	flag.Parse()
	// quic-go would complain of sockets that hide how large their buffers are, and of hosts that limit it.
	_ = os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")
	if *list {
		for _, one := range steps {
			fmt.Println(one.name)
		}
		return
	}
	broker, err := findBroker()
	if err != nil {
		fmt.Printf("not ok quic-go/broker: %v\n", err)
		os.Exit(1)
	}
	results := &report{}
	gate := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for range *times {
		for _, one := range steps {
			if !strings.Contains(one.name, *only) {
				continue
			}
			gate <- struct{}{}
			all.Go(func() {
				defer func() { <-gate }()
				results.run(broker, one, *verbose)
			})
		}
	}
	all.Wait()
	fmt.Printf("# %d ok, %d not ok, %d skipped\n", results.passed, results.failed, results.skipped)
	if results.failed > 0 || results.passed == 0 {
		os.Exit(1)
	}
}
