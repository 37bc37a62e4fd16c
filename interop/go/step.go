package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

// How long an answer may take.
const patience = 30 * time.Second

// failure is what a step panics with; the text is what the report says.
type failure struct{ error }

// missing is what the broker's settings leave out.
type missing string

func (m missing) Error() string { return string(m) }

// fail ends the step, or the part of it that runs in this goroutine.
func fail(format string, arguments ...any) {
	panic(failure{fmt.Errorf(format, arguments...)})
}

func expect(condition bool, format string, arguments ...any) {
	if !condition {
		fail(format, arguments...)
	}
}

// must ends the step with what went wrong, if anything did.
func must(err error, doing string) {
	if err != nil {
		fail("%s: %w", doing, err)
	}
}

// step is one named check. The dialect is the MQTT version that its clients speak.
type step struct {
	name    string
	dialect Dialect
	run     func(*Step)
}

var steps []step

// both adds a step for each MQTT version.
func both(name string, run func(*Step)) {
	for _, dialect := range []Dialect{v5{}, v311{}} {
		steps = append(steps, step{dialect.Name() + "/" + name, dialect, run})
	}
}

// add adds a step in MQTT 5.0, where the version makes no difference.
func add(name string, run func(*Step)) {
	steps = append(steps, step{name, v5{}, run})
}

// Step is a running step: names of its own, its clients, its goroutines.
type Step struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	broker  *Broker
	dialect Dialect
	root    string
	mutex   sync.Mutex
	first   error
	work    sync.WaitGroup
	ends    []func()
	conns   []*quic.Conn
}

func newStep(ctx context.Context, broker *Broker, dialect Dialect) *Step {
	var name [5]byte
	_, _ = rand.Read(name[:])
	t := &Step{broker: broker, dialect: dialect, root: hex.EncodeToString(name[:])}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	return t
}

// topic is a topic that no other step uses.
func (t *Step) topic(name string) string { return "iop/go/" + t.root + "/" + name }

// id is a client identifier that no other step uses.
func (t *Step) id(name string) string { return "go" + t.root + name }

// start runs something beside the step; what fails there fails the step.
func (t *Step) start(work func()) {
	t.work.Go(func() {
		if err := caught(work); err != nil {
			t.mutex.Lock()
			if t.first == nil {
				t.first = err
			}
			t.mutex.Unlock()
			t.cancel(err)
		}
	})
}

// wait waits for all that start began.
func (t *Step) wait() {
	t.work.Wait()
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.first != nil {
		panic(failure{t.first})
	}
}

// atEnd has something done when the step is over.
func (t *Step) atEnd(work func()) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.ends = append(t.ends, work)
}

// watch has the step fail when the server opens a stream on this connection.
func (t *Step) watch(conn *quic.Conn) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.conns = append(t.conns, conn)
}

// verify checks what holds for every connection with ALPN `mqtt`: the server opens no stream.
func (t *Step) verify() {
	for _, conn := range t.conns {
		ctx, cancel := context.WithCancel(context.Background())
		var opened error
		var check sync.WaitGroup
		check.Go(func() {
			if _, err := conn.AcceptStream(ctx); err == nil {
				opened = errors.New("the server opened a bidirectional stream")
			}
		})
		check.Go(func() {
			if _, err := conn.AcceptUniStream(ctx); err == nil {
				opened = errors.New("the server opened a unidirectional stream")
			}
		})
		// A stream that is there is returned without waiting.
		time.AfterFunc(time.Millisecond, cancel)
		check.Wait()
		must(opened, "streams")
	}
}

func (t *Step) close() {
	t.cancel(errors.New("the step is over"))
	t.work.Wait()
	for index := len(t.ends) - 1; index >= 0; index-- {
		t.ends[index]()
	}
}

// short is the time that one answer may take.
func (t *Step) short() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(t.ctx, patience, fmt.Errorf("nothing within %v", patience))
}
