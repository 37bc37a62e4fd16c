// quic-go's HTTP/3 as a driver of the HTTP scenario: JSON lines in, JSON lines out (../README.md).
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const patience = 30 * time.Second

// Request is a line of the scenario.
type Request struct {
	N     int    `json:"n"`
	Op    string `json:"op"`
	C     int    `json:"c"`
	R     int    `json:"r"`
	Host  string `json:"host"`
	Port  int    `json:"port"`
	CA    string `json:"ca"`
	Cert  string `json:"cert"`
	Key   string `json:"key"`
	Early bool   `json:"early"`
	// Name of the store of tickets, where connections are to be resumed.
	Tickets string      `json:"tickets"`
	Method  string      `json:"method"`
	Target  string      `json:"target"`
	Fields  [][2]string `json:"fields"`
	// Base64; null without content.
	Content *string `json:"content"`
	Stream  bool    `json:"stream"`
}

type place struct {
	authority string
	transport *http3.Transport
	early     bool
}

// Driver keeps what the scenario's numbers stand for.
type Driver struct {
	mutex   sync.Mutex
	places  map[int]*place
	streams map[int]context.CancelFunc
	// Tickets of earlier connections, by the name that the scenario gives.
	tickets map[string]tls.ClientSessionCache
}

var writing sync.Mutex

func out(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	writing.Lock()
	defer writing.Unlock()
	_, _ = os.Stdout.Write(append(text, '\n'))
}

func (d *Driver) open(r Request) error {
	pem, err := os.ReadFile(r.CA)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return errors.New("no certificate to trust")
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if r.Tickets != "" && d.tickets[r.Tickets] == nil {
		d.tickets[r.Tickets] = tls.NewLRUClientSessionCache(4)
	}
	settings := &tls.Config{RootCAs: roots, ServerName: r.Host}
	if r.Cert != "" {
		pair, err := tls.LoadX509KeyPair(r.Cert, r.Key)
		if err != nil {
			return err
		}
		settings.Certificates = []tls.Certificate{pair}
	} else if r.Tickets != "" {
		// The transport sends early data whenever there is a ticket.
		settings.ClientSessionCache = d.tickets[r.Tickets]
	}
	d.places[r.C] = &place{
		authority: fmt.Sprintf("%s:%d", r.Host, r.Port),
		early:     r.Early,
		transport: &http3.Transport{
			TLSClientConfig: settings,
			QUICConfig:      &quic.Config{MaxIdleTimeout: 30 * time.Second},
			// Whatever the server encodes is for the scenario to see.
			DisableCompression: true,
		},
	}
	return nil
}

func (d *Driver) request(r Request) {
	d.mutex.Lock()
	at := d.places[r.C]
	d.mutex.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	if r.Stream {
		d.mutex.Lock()
		d.streams[r.R] = cancel
		d.mutex.Unlock()
	} else {
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	fail := func(err error) {
		out(map[string]any{"n": r.N, "error": err.Error()})
	}
	var content io.Reader
	if r.Content != nil {
		raw, err := base64.StdEncoding.DecodeString(*r.Content)
		if err != nil {
			fail(err)
			return
		}
		content = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, "https://"+at.authority, content)
	if err != nil {
		fail(err)
		return
	}
	// As it is, not as the library would write it.
	path, query, _ := strings.Cut(r.Target, "?")
	request.URL = &url.URL{Scheme: "https", Host: at.authority, Opaque: path, RawQuery: query}
	for _, pair := range r.Fields {
		if strings.EqualFold(pair[0], "host") {
			request.Host = pair[1]
		} else {
			request.Header.Add(pair[0], pair[1])
		}
	}
	if _, named := request.Header["User-Agent"]; !named {
		request.Header.Set("User-Agent", "quic-go")
	}
	if at.early && r.Method == http.MethodGet {
		request.Method = http3.MethodGet0RTT
	}
	response, err := at.transport.RoundTrip(request)
	if err != nil {
		fail(err)
		return
	}
	fields := [][2]string{}
	for name, values := range response.Header {
		for _, value := range values {
			fields = append(fields, [2]string{name, value})
		}
	}
	head := map[string]any{"status": response.StatusCode, "fields": fields,
		"version": fmt.Sprint(response.ProtoMajor)}
	defer response.Body.Close()
	if !r.Stream {
		content, err := io.ReadAll(response.Body)
		if err != nil {
			fail(err)
			return
		}
		head["content"] = base64.StdEncoding.EncodeToString(content)
		out(map[string]any{"n": r.N, "ok": head})
		return
	}
	out(map[string]any{"n": r.N, "ok": head})
	buffer := make([]byte, 64<<10)
	for {
		length, err := response.Body.Read(buffer)
		if length > 0 {
			out(map[string]any{"event": "data", "r": r.R,
				"data": base64.StdEncoding.EncodeToString(buffer[:length])})
		}
		if err != nil {
			line := map[string]any{"event": "end", "r": r.R, "error": nil}
			if !errors.Is(err, io.EOF) {
				line["error"] = err.Error()
			}
			out(line)
			return
		}
	}
}

func (d *Driver) take(r Request) {
	done := func(err error) {
		if err != nil {
			out(map[string]any{"n": r.N, "error": err.Error()})
		} else {
			out(map[string]any{"n": r.N, "ok": map[string]any{}})
		}
	}
	switch r.Op {
	case "open":
		done(d.open(r))
	case "request":
		go d.request(r)
	case "cancel":
		d.mutex.Lock()
		cancel := d.streams[r.R]
		delete(d.streams, r.R)
		d.mutex.Unlock()
		if cancel != nil {
			cancel()
		}
		done(nil)
	case "close":
		d.mutex.Lock()
		at := d.places[r.C]
		delete(d.places, r.C)
		d.mutex.Unlock()
		if at != nil {
			go at.transport.Close()
		}
		done(nil)
	default:
		out(map[string]any{"n": r.N, "cannot": "the driver has no " + r.Op})
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/quic-go/quic-go" {
			return module.Version
		}
	}
	return "?"
}

func main() {
	d := &Driver{places: map[int]*place{}, streams: map[int]context.CancelFunc{},
		tickets: map[string]tls.ClientSessionCache{}}
	out(map[string]any{"hello": map[string]any{"client": "quic-go " + version(), "transports": []string{"h3"},
		"certificates": true, "early_gets": true}})
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var r Request
		if err := json.Unmarshal(line, &r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		d.take(r)
	}
}
