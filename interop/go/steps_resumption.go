package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"

	five "github.com/eclipse/paho.golang/packets"
	"github.com/quic-go/quic-go"
)

func init() {
	both("resumption/without-early-data", resumed)
	both("resumption/early-data-accepted", earlyAccepted)
	both("resumption/early-data-on-many-streams", earlyStreams)
	both("resumption/ticket-used-twice", usedTwice)
	both("resumption/early-data-refused-by-the-listener", refusedHere)
	add("resumption/early-data-is-done-before-the-handshake-ends", earlyAtOnce)
	add("resumption/what-a-replay-could-harm-waits", idempotentOnly)
	add("resumption/ticket-used-twice-at-once", twiceAtOnce)
	add("resumption/no-early-data-from-a-strict-listener", strictTicket)
	add("resumption/chain", chain)
}

// Tickets keeps what a broker gave, and hands out what the step says.
type Tickets struct {
	mutex sync.Mutex
	use   *tls.ClientSessionState
	given chan *tls.ClientSessionState
}

func newTickets() *Tickets { return &Tickets{given: make(chan *tls.ClientSessionState, 16)} }

// Get is asked by crypto/tls at a handshake.
func (k *Tickets) Get(string) (*tls.ClientSessionState, bool) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return k.use, k.use != nil
}

// Put is told by crypto/tls what arrived; nothing means that a ticket is of no use.
func (k *Tickets) Put(_ string, state *tls.ClientSessionState) {
	if state != nil {
		k.given <- state
	}
}

// using is a cache that has one ticket, copied the way a program does that keeps it on disk.
func using(state *tls.ClientSessionState) *Tickets {
	ticket, session, err := state.ResumptionState()
	must(err, "the ticket")
	text, err := session.Bytes()
	must(err, "the ticket's state")
	session, err = tls.ParseSessionState(text)
	must(err, "the ticket's state")
	copied, err := tls.NewResumptionState(ticket, session)
	must(err, "the ticket")
	tickets := newTickets()
	tickets.use = copied
	return tickets
}

// ticket connects in full and waits for the ticket that this gives.
func (t *Step) ticket(at *net.UDPAddr) *tls.ClientSessionState {
	tickets := newTickets()
	client := t.connect(Options{Connect: Connect{ID: t.id("first")}, tickets: tickets, at: at})
	state := client.conn.ConnectionState()
	expect(!state.TLS.DidResume && !state.Used0RTT, "a first connection that is a resumed one")
	ticket := t.given(tickets)
	client.leave()
	return ticket
}

// given waits for a ticket.
func (t *Step) given(tickets *Tickets) *tls.ClientSessionState {
	ctx, cancel := t.short()
	defer cancel()
	select {
	case ticket := <-tickets.given:
		return ticket
	case <-ctx.Done():
		fail("the broker gave no ticket")
		return nil
	}
}

// confirmed waits for the end of the handshake and returns what became of it.
func (c *Client) confirmed() quic.ConnectionState {
	ctx, cancel := c.t.short()
	defer cancel()
	select {
	case <-c.conn.HandshakeComplete():
	case <-c.conn.Context().Done():
		c.alive()
	case <-ctx.Done():
		fail("the handshake is not complete: %w", ctx.Err())
	}
	return c.conn.ConnectionState()
}

// early does `work` on a connection whose early data may be refused: then it does it again, as programs on quic-go
// must. It returns how often it was done.
func (c *Client) early(work func()) int {
	err := caught(work)
	if !errors.Is(err, quic.Err0RTTRejected) {
		if err != nil {
			panic(failure{err})
		}
		return 1
	}
	ctx, cancel := c.t.short()
	defer cancel()
	again, err := c.conn.NextConnection(ctx)
	must(err, "after early data was refused")
	c.conn = again
	work()
	return 2
}

// resumed: a ticket saves the certificate; the client chooses to wait for the handshake.
func resumed(t *Step) {
	ticket := t.ticket(nil)
	client := t.connect(Options{Connect: Connect{ID: t.id("a")}, tickets: using(ticket)})
	state := client.confirmed()
	expect(state.TLS.DidResume && !state.Used0RTT, "resumed %v, early data %v", state.TLS.DidResume, state.Used0RTT)
	client.control.subscribe(1, t.topic("t"))
	client.control.publish(Message{Topic: t.topic("t"), Payload: []byte("x"), QoS: 1}, 2, client.control)
	client.control.delivered()
}

// watched is a second client that hears a topic.
func (t *Step) watched(topic string) *Lane {
	watcher := t.client("w")
	watcher.control.subscribe(2, topic)
	return watcher.control
}

// earlyAccepted: CONNECT and PUBLISH with the first datagram; the broker takes both, once.
func earlyAccepted(t *Step) {
	for qos := byte(1); qos <= 2; qos++ {
		topic := t.topic(fmt.Sprint(qos))
		ticket := t.ticket(nil)
		watcher := t.watched(topic)
		client, err := t.dial(Options{tickets: using(ticket), early: true})
		must(err, "the QUIC connection")
		tries := client.early(func() {
			client.hello(Connect{ID: t.id("a")})
			client.control.write(t.dialect.Publish(Message{Topic: topic, Payload: []byte("early"), QoS: qos}, 1))
			client.welcome()
			client.control.acknowledged(qos, 1)
		})
		state := client.confirmed()
		expect(tries == 1 && state.Used0RTT && state.TLS.DidResume, "early data %v, resumed %v, %d tries",
			state.Used0RTT, state.TLS.DidResume, tries)
		got := watcher.delivered()
		expect(string(got.Payload) == "early" && got.QoS == qos, "%v", got)
		watcher.empty("early data was done twice")
		client.control.ping()
	}
}

// earlyStreams: what comes early on data streams and unidirectional ones is done once too.
func earlyStreams(t *Step) {
	ticket := t.ticket(nil)
	watcher := t.watched(t.topic("t"))
	client, err := t.dial(Options{tickets: using(ticket), early: true})
	must(err, "the QUIC connection")
	const lanes = 5
	tries := client.early(func() {
		client.hello(Connect{ID: t.id("a")})
		var data [lanes]*Lane
		for index := range data {
			data[index] = client.open()
			data[index].write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: fmt.Append(nil, index), QoS: 1}, 1))
		}
		one := client.oneWay()
		one.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: fmt.Append(nil, lanes), QoS: 1}, 9))
		client.welcome()
		for _, lane := range data {
			lane.acknowledged(1, 1)
		}
		client.control.acknowledged(1, 9)
	})
	expect(tries == 1 && client.confirmed().Used0RTT, "early data was refused")
	each(watcher, lanes+1)
}

// usedTwice: RFC 8446 section 8: what is recorded and sent again is not taken twice. A client that uses a ticket again
// sends its early data again after a full handshake, and nothing is lost or doubled.
func usedTwice(t *Step) {
	ticket := t.ticket(nil)
	for use := range 3 {
		topic := t.topic(fmt.Sprint(use))
		watcher := t.watched(topic)
		client, err := t.dial(Options{tickets: using(ticket), early: true})
		must(err, "the QUIC connection")
		tries := client.early(func() {
			client.hello(Connect{ID: t.id("a")})
			client.control.write(t.dialect.Publish(Message{Topic: topic, Payload: []byte("early"), QoS: 1}, 1))
			client.welcome()
			client.control.acknowledged(1, 1)
		})
		state := client.confirmed()
		expect(state.Used0RTT == (use == 0), "use %d of a ticket: early data %v", use+1, state.Used0RTT)
		expect(use == 0 || tries == 2, "use %d of a ticket: not refused", use+1)
		expect(string(watcher.delivered().Payload) == "early", "another message")
		watcher.empty(fmt.Sprintf("use %d of a ticket: the message again", use+1))
		client.leave()
	}
}

// twiceAtOnce: of connections that use a ticket at the same time, on whatever threads of the broker, one is early.
func twiceAtOnce(t *Step) {
	const uses = 6
	ticket := t.ticket(nil)
	watcher := t.watched(t.topic("t"))
	accepted := make(chan bool, uses)
	begin := make(chan struct{})
	for use := range uses {
		tickets := using(ticket)
		t.start(func() {
			<-begin
			client, err := t.dial(Options{tickets: tickets, early: true})
			must(err, "the QUIC connection")
			client.early(func() {
				client.hello(Connect{ID: t.id(fmt.Sprint(use))})
				client.control.write(t.dialect.Publish(
					Message{Topic: t.topic("t"), Payload: fmt.Append(nil, use), QoS: 1}, 1))
				client.welcome()
				client.control.acknowledged(1, 1)
			})
			accepted <- client.confirmed().Used0RTT
		})
	}
	close(begin)
	t.wait()
	early := 0
	for range uses {
		if <-accepted {
			early++
		}
	}
	expect(early == 1, "%d of %d uses of one ticket were given early data", early, uses)
	each(watcher, uses)
}

// refusedHere: a listener that takes no early data makes clients send it again, with a ticket of the other listener.
func refusedHere(t *Step) {
	at := t.broker.Strict
	if at == nil {
		panic(missing("the broker has one QUIC listener only"))
	}
	ticket := t.ticket(nil)
	watcher := t.watched(t.topic("t"))
	client, err := t.dial(Options{tickets: using(ticket), early: true, at: at})
	must(err, "the QUIC connection")
	tries := client.early(func() {
		client.hello(Connect{ID: t.id("a")})
		client.control.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("early"), QoS: 1}, 1))
		client.welcome()
		client.control.acknowledged(1, 1)
	})
	state := client.confirmed()
	expect(tries == 2 && !state.Used0RTT, "%d tries, early data %v", tries, state.Used0RTT)
	expect(string(watcher.delivered().Payload) == "early", "another message")
	watcher.empty("the message again")
}

// strictTicket: a ticket of a listener without early data doesn't offer any, and is good for resumption.
func strictTicket(t *Step) {
	at := t.broker.Strict
	if at == nil {
		panic(missing("the broker has one QUIC listener only"))
	}
	ticket := t.ticket(at)
	_, session, err := ticket.ResumptionState()
	must(err, "the ticket")
	expect(!session.EarlyData, "a ticket that offers early data")
	client, err := t.dial(Options{tickets: using(ticket), early: true, at: at})
	must(err, "the QUIC connection")
	client.hello(Connect{ID: t.id("a")})
	client.welcome()
	state := client.confirmed()
	expect(state.TLS.DidResume && !state.Used0RTT, "resumed %v, early data %v", state.TLS.DidResume, state.Used0RTT)
}

// earlyAtOnce keeps back all that the broker sends: the message is delivered while the client's handshake hangs.
func earlyAtOnce(t *Step) {
	ticket := t.ticket(nil)
	watcher := t.watched(t.topic("t"))
	nat := t.nat(t.broker.Address, 0)
	nat.hold()
	client, err := t.dial(Options{tickets: using(ticket), early: true, at: nat.address()})
	must(err, "the QUIC connection")
	client.hello(Connect{ID: t.id("a")})
	client.control.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("early"), QoS: 1}, 1))
	expect(string(watcher.delivered().Payload) == "early", "another message")
	select {
	case <-client.conn.HandshakeComplete():
		fail("the handshake was complete though nothing had reached the client")
	default:
	}
	nat.release()
	client.welcome()
	client.control.acknowledged(1, 1)
	expect(client.confirmed().Used0RTT, "early data was refused")
	watcher.empty("the message again")
}

// idempotentOnly: where early data may do what is idempotent, a new name's CONNECT and its message of QoS 1 are done at
// once. A message of QoS 0, whose repetition nobody would know, waits for the handshake; so does a CONNECT that would
// take a connection's session over.
func idempotentOnly(t *Step) {
	at := t.broker.Idempotent
	if at == nil {
		panic(missing("the broker has no QUIC listener for idempotent early data"))
	}
	watcher := t.watched(t.topic("t"))
	// held sends early what the broker answers when the NAT lets it.
	held := func(name string) (*Client, *Nat) {
		nat := t.nat(at, 0)
		ticket := t.ticket(at)
		nat.hold()
		client, err := t.dial(Options{tickets: using(ticket), early: true, at: nat.address()})
		must(err, "the QUIC connection")
		client.hello(Connect{ID: t.id(name)})
		return client, nat
	}
	welcomed := func(client *Client) {
		client.welcome()
		client.control.acknowledged(1, 1)
		expect(client.confirmed().Used0RTT, "early data was refused")
	}

	client, nat := held("a")
	client.control.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("early"), QoS: 1}, 1))
	client.control.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("late"), QoS: 0}, 0))
	expect(string(watcher.delivered().Payload) == "early", "another message")
	watcher.empty("a message of QoS 0 before the handshake was complete")
	nat.release()
	welcomed(client)
	expect(string(watcher.delivered().Payload) == "late", "another message")
	watcher.empty("the message again")

	second, nat := held("a")
	second.control.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("taken"), QoS: 1}, 1))
	watcher.empty("a session was taken over before the handshake was complete")
	client.control.ping()
	nat.release()
	welcomed(second)
	client.over()
	expect(string(watcher.delivered().Payload) == "taken", "another message")
	watcher.empty("the message again")
}

// chain: a device that wakes again and again, each time with the ticket of the last time, and its session with it.
func chain(t *Step) {
	const wakes = 8
	watcher := t.watched(t.topic("up"))
	connect := Connect{ID: t.id("a"), Keep: true}
	tickets := newTickets()
	first := t.connect(Options{Connect: connect, tickets: tickets})
	first.control.subscribe(1, t.topic("down"))
	ticket := t.given(tickets)
	first.leave()
	sender := t.client("s")
	for wake := range wakes {
		sender.control.publish(Message{Topic: t.topic("down"), Payload: fmt.Append(nil, wake), QoS: 1},
			uint16(wake+1), sender.control)
		tickets := using(ticket)
		client, err := t.dial(Options{tickets: tickets, early: true})
		must(err, "the QUIC connection")
		client.hello(connect)
		client.control.write(t.dialect.Publish(
			Message{Topic: t.topic("up"), Payload: fmt.Append(nil, wake), QoS: 1}, 1))
		client.welcome()
		expect(client.connack.SessionPresent, "the session is not present")
		client.control.expect(five.PUBACK)
		got := client.control.delivered()
		expect(string(got.Payload) == fmt.Sprint(wake), "%v at wake %d", got, wake)
		expect(client.confirmed().Used0RTT, "early data was refused at wake %d", wake)
		ticket = t.given(tickets)
		client.leave()
	}
	each(watcher, wakes)
}
