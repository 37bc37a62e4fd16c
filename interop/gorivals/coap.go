package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	piondtls "github.com/pion/dtls/v3"
	"github.com/plgd-dev/go-coap/v3/dtls"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/udp"
	"github.com/plgd-dev/go-coap/v3/udp/client"
)

// tick is how often the library looks for what is to be sent again. Its own 4 s are longer than
// ACK_TIMEOUT (2 s, RFC 7252 section 4.8).
const tick = 10 * time.Millisecond

// cidBytes is the length of the gateway's connection identifiers (RFC 9146).
const cidBytes = 8

// errGivenUp is a message that was sent again as often as it may be (MAX_RETRANSMIT), without answer.
var errGivenUp = errors.New("given up")

func ticks(look func(time.Time) bool) {
	go func() {
		for look(time.Now()) {
			time.Sleep(tick)
		}
	}()
}

// security is what DTLS needs of a client, and keeps between connections.
type security struct {
	name     string
	roots    *x509.CertPool
	sessions *sessions
}

func clientSecurity(task *Task) (*security, error) {
	roots := x509.NewCertPool()
	text, err := os.ReadFile(task.Authority)
	if err != nil || !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("authority %q: no certificate (%v)", task.Authority, err)
	}
	s := &security{name: task.ServerName, roots: roots}
	if task.Resumption {
		s.sessions = newSessions()
	}
	return s, nil
}

// coapConn is a connection to the gateway.
type coapConn struct{ *client.Conn }

func (d *device) connect(ctx context.Context) (*coapConn, error) {
	// Without a connection nothing is sent here.
	if d.security == nil {
		conn, err := udp.Dial(d.place.Host, options.WithPeriodicRunner(ticks))
		if err != nil {
			return nil, fmt.Errorf("cannot connect: %w", err)
		}
		return &coapConn{conn}, nil
	}
	chosen := []piondtls.ClientOption{
		piondtls.WithRootCAs(d.security.roots),
		piondtls.WithServerName(d.security.name),
		piondtls.WithExtendedMasterSecret(piondtls.RequireExtendedMasterSecret),
		piondtls.WithConnectionIDGenerator(piondtls.OnlySendCIDGenerator()),
	}
	if d.security.sessions != nil {
		chosen = append(chosen, piondtls.WithSessionStore(d.security.sessions))
	}
	conn, err := dtls.Dial(d.place.Host, dtls.NewDTLSClientOptions(chosen...),
		options.WithPeriodicRunner(ticks))
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	secured, ok := conn.NetConn().(*piondtls.Conn)
	if !ok {
		return nil, fmt.Errorf("not a connection of DTLS: %T", conn.NetConn())
	}
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	return &coapConn{conn}, nil
}

// post sends a confirmable message, and waits until the broker has it. By the library's defaults one
// message is under way at a time (NSTART, RFC 7252 section 4.7); others wait.
func (c *coapConn) post(ctx context.Context, topic string, payload []byte) error {
	answer, err := c.Post(ctx, "/"+topic, message.AppOctets, bytes.NewReader(payload))
	if err != nil {
		if ctx.Err() == nil && c.Context().Err() == nil {
			return fmt.Errorf("%w: %w", errGivenUp, err)
		}
		return fmt.Errorf("cannot send: %w", err)
	}
	if answer.Code() != codes.Changed {
		return fmt.Errorf("the gateway answers %v", answer.Code())
	}
	return nil
}

// sessions keeps what resumes a connection: of a client by the server's name, of a server by identifier.
type sessions struct {
	sync.Mutex
	of map[string]piondtls.Session
}

// mostSessions are kept; a run has fewer.
const mostSessions = 1024

func newSessions() *sessions { return &sessions{of: map[string]piondtls.Session{}} }

func (s *sessions) Set(key []byte, session piondtls.Session) error {
	s.Lock()
	defer s.Unlock()
	if len(s.of) < mostSessions {
		s.of[string(key)] = session
	}
	return nil
}

func (s *sessions) Get(key []byte) (piondtls.Session, error) {
	s.Lock()
	defer s.Unlock()
	return s.of[string(key)], nil
}

func (s *sessions) Del(key []byte) error {
	s.Lock()
	defer s.Unlock()
	delete(s.of, string(key))
	return nil
}

// serverSecurity is what DTLS needs of the gateway.
func serverSecurity(certificate, key string) ([]piondtls.ServerOption, error) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	return []piondtls.ServerOption{
		piondtls.WithCertificates(pair),
		piondtls.WithExtendedMasterSecret(piondtls.RequireExtendedMasterSecret),
		piondtls.WithConnectionIDGenerator(piondtls.RandomCIDGenerator(cidBytes)),
		piondtls.WithSessionStore(newSessions()),
	}, nil
}
