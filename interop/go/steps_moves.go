package main

import (
	"encoding/json"
	"fmt"
	"time"

	five "github.com/eclipse/paho.golang/packets"
)

const (
	// Messages of a flow in which somebody moves, and how many of them may be unacknowledged.
	flowCount, flowWindow = 500, 24
	// From a client to the broker on a path that is slow: much is under way when the path ends.
	oneWayDelay = 15 * time.Millisecond
)

func init() {
	for qos := byte(1); qos <= 2; qos++ {
		both(fmt.Sprintf("migration/publisher-in-qos-%d-flow", qos), func(t *Step) { publisherMoves(t, qos) })
		both(fmt.Sprintf("migration/subscriber-in-qos-%d-flow", qos), func(t *Step) { subscriberMoves(t, qos) })
		both(fmt.Sprintf("rebinding/publisher-in-qos-%d-flow", qos), func(t *Step) { publisherRebound(t, qos) })
		both(fmt.Sprintf("migration/both-ends-of-a-slow-qos-%d-flow", qos), func(t *Step) { bothMove(t, qos) })
		both(fmt.Sprintf("rebinding/subscriber-in-qos-%d-flow", qos), func(t *Step) { subscriberRebound(t, qos) })
	}
	add("migration/both-ends-with-all-that-sockets-can", wholeSockets)
	add("migration/probed-and-not-taken", probedOnly)
	add("migration/broker-knows-the-address", knownAddress)
	add("migration/streams-of-all-kinds", streamsMove)
	add("migration/large-message", largeMoves)
	add("rebinding/broker-knows-the-address", knownRebound)
	add("rebinding/idle-then-one-packet", idleRebound)
}

// move takes the connection to another socket, as a phone does that leaves the Wi-Fi: the new path is validated, then
// used, and the old one, if it can be cut, is dead at once, with all that was on its way there.
func (c *Client) move() {
	socket, transport := c.t.place(c.socket.whole)
	path, err := c.conn.AddPath(transport)
	must(err, "adding a path")
	ctx, cancel := c.t.short()
	defer cancel()
	must(path.Probe(ctx), "probing the new path")
	must(path.Switch(), "switching to the new path")
	old, oldPath := c.socket, c.path
	c.socket, c.path = socket, path
	// The broker follows what comes on the new path, so something has to.
	c.control.write(c.t.dialect.Ping())
	old.cut.Store(true)
	if oldPath != nil {
		must(oldPath.Close(), "closing the old path")
	}
}

// flow sends messages of quality of service 1 or 2 from one client to another while something happens, and checks
// that each arrives once, in order, and that neither connection ended. `changes` are made in the publisher's
// goroutine before messages, and in the subscriber's after them.
func (t *Step) flow(from, to *Client, qos byte, publishing, receiving map[int]func()) {
	topic := t.topic("flow")
	to.control.subscribe(qos, topic)
	t.start(func() {
		acks, pings := 0, 0
		for sent := 0; acks < flowCount; {
			for sent < flowCount && sent-acks < flowWindow {
				if change := publishing[sent]; change != nil {
					change()
					pings++
				}
				from.control.write(t.dialect.Publish(
					Message{Topic: topic, Payload: fmt.Append(nil, sent), QoS: qos}, uint16(sent+1)))
				sent++
			}
			ctx, cancel := t.short()
			got, err := from.control.next(ctx)
			cancel()
			must(err, fmt.Sprintf("publishing, %d of %d acknowledged", acks, sent))
			switch {
			case got.Kind == five.PUBREC && qos == 2:
				from.control.write(t.dialect.Ack(five.PUBREL, got.PID))
			case got.Kind == five.PUBACK && qos == 1, got.Kind == five.PUBCOMP && qos == 2:
				// Acknowledgements come in order: [MQTT-4.6.0-2], [MQTT-4.6.0-4]
				expect(got.Reason == 0 && int(got.PID) == acks+1, "%v, expected %d", got, acks+1)
				acks++
			case got.Kind == five.PINGRESP && pings > 0:
				pings--
			default:
				fail("%v for the publisher", got)
			}
		}
	})
	t.start(func() {
		pings := 0
		for got, done := 0, 0; got < flowCount || done < flowCount; {
			ctx, cancel := t.short()
			packet, err := to.control.next(ctx)
			cancel()
			must(err, fmt.Sprintf("receiving after %d messages", got))
			switch packet.Kind {
			case five.PUBLISH:
				expect(string(packet.Payload) == fmt.Sprint(got) && packet.QoS == qos && !packet.Dup,
					"%v, expected %d", packet, got)
				got++
				if qos == 1 {
					to.control.write(t.dialect.Ack(five.PUBACK, packet.PID))
					done++
				} else {
					to.control.write(t.dialect.Ack(five.PUBREC, packet.PID))
				}
				if change := receiving[got]; change != nil {
					change()
					pings++
				}
			case five.PUBREL:
				to.control.write(t.dialect.Ack(five.PUBCOMP, packet.PID))
				done++
			case five.PINGRESP:
				expect(pings > 0, "%v that was not asked for", packet)
				pings--
			default:
				fail("%v for the subscriber", packet)
			}
		}
	})
	t.wait()
	for _, client := range []*Client{from, to} {
		client.alive()
	}
}

// quiet checks after a flow that nothing comes twice. A PINGRESP of the flow may still be on its way.
func (c *Client) quiet() {
	c.control.write(c.t.dialect.Publish(Message{Topic: c.t.topic("end"), QoS: 1}, 60000))
	for {
		ctx, cancel := c.t.short()
		packet, err := c.control.next(ctx)
		cancel()
		must(err, "after the flow")
		if packet.Kind == five.PUBACK && packet.PID == 60000 {
			return
		}
		expect(packet.Kind == five.PINGRESP, "%v after the flow", packet)
	}
}

func at(change func(), numbers ...int) map[int]func() {
	changes := map[int]func(){}
	for _, number := range numbers {
		changes[number] = change
	}
	return changes
}

// mover connects a client whose paths end when it leaves them.
func (t *Step) mover(name string) *Client {
	return t.connect(Options{Connect: Connect{ID: t.id(name)}, cuttable: true})
}

func publisherMoves(t *Step, qos byte) {
	from, to := t.mover("a"), t.client("b")
	before := from.conn.LocalAddr().String()
	t.flow(from, to, qos, at(from.move, 100, 200, 300), nil)
	expect(from.conn.LocalAddr().String() != before, "the publisher is still at %s", before)
	from.quiet()
	to.quiet()
}

func subscriberMoves(t *Step, qos byte) {
	from, to := t.client("a"), t.mover("b")
	before := to.conn.LocalAddr().String()
	t.flow(from, to, qos, nil, at(to.move, 100, 200, 300))
	expect(to.conn.LocalAddr().String() != before, "the subscriber is still at %s", before)
	from.quiet()
	to.quiet()
}

// behind connects a client through a router that changes the client's address, and returns what does that. The client
// knows nothing of it; what it sends by itself tells the broker.
func (t *Step) behind(name string, delay time.Duration) (*Client, *Nat, func()) {
	nat := t.nat(t.broker.Address, delay)
	client := t.connect(Options{Connect: Connect{ID: t.id(name)}, at: nat.address(), cuttable: true})
	return client, nat, func() {
		nat.rebind()
		client.control.write(t.dialect.Ping())
	}
}

func publisherRebound(t *Step, qos byte) {
	from, _, rebind := t.behind("a", 0)
	to := t.client("b")
	t.flow(from, to, qos, at(rebind, 100, 200, 300, 400), nil)
	from.quiet()
	to.quiet()
}

func subscriberRebound(t *Step, qos byte) {
	to, _, rebind := t.behind("b", 0)
	from := t.client("a")
	t.flow(from, to, qos, nil, at(rebind, 100, 200, 300, 400))
	from.quiet()
	to.quiet()
}

// bothMove: both ends of a flow move, and their addresses change under them, while windows full of messages and
// acknowledgements are under way on the paths that end.
func bothMove(t *Step, qos byte) {
	from, _, rebindFrom := t.behind("a", oneWayDelay)
	to, _, rebindTo := t.behind("b", oneWayDelay)
	t.flow(from, to, qos,
		map[int]func(){100: from.move, 200: rebindFrom, 300: from.move, 400: rebindFrom},
		map[int]func(){150: rebindTo, 250: to.move, 350: rebindTo, 450: to.move})
	from.quiet()
	to.quiet()
}

// wholeSockets: the same moves with all that quic-go does on a socket of its own: ECN, batches, larger datagrams. The old
// paths stay, and what is on its way there arrives late.
func wholeSockets(t *Step) {
	from, to := t.client("a"), t.client("b")
	t.flow(from, to, 2, at(from.move, 100, 200, 300), at(to.move, 150, 250, 350))
	from.quiet()
	to.quiet()
}

// probedOnly: a path that is only probed is not used (RFC 9000 section 9.1).
func probedOnly(t *Step) {
	client := t.client("a")
	before := client.conn.LocalAddr().String()
	socket, transport := t.place(false)
	path, err := client.conn.AddPath(transport)
	must(err, "adding a path")
	ctx, cancel := t.short()
	defer cancel()
	must(path.Probe(ctx), "probing the path")
	// Whatever the broker would send to the probed address is lost.
	socket.cut.Store(true)
	client.control.subscribe(2, t.topic("t"))
	for number := range 20 {
		client.control.publish(Message{Topic: t.topic("t"), Payload: fmt.Append(nil, number), QoS: 2},
			uint16(number+1), client.control)
		client.control.delivered()
	}
	expect(client.conn.LocalAddr().String() == before, "the client is at %v", client.conn.LocalAddr())
	must(path.Close(), "closing the path")
	client.control.ping()
}

// told is what the broker says about a client's path.
type told struct {
	Peer       string
	Migrations int
}

// untilTold waits until the broker says what is hoped for.
func (l *Lane) untilTold(peer string, migrations int) {
	var said told
	for said.Peer != peer || said.Migrations < migrations {
		ctx, cancel := l.t.short()
		got, err := l.next(ctx)
		cancel()
		must(err, fmt.Sprintf("waiting for %s, moved %d times; the broker says %+v", peer, migrations, said))
		must(json.Unmarshal(got.Payload, &said), "the path")
	}
}

// knownAddress: after each move the broker tells the address that is in use now.
func knownAddress(t *Step) {
	client, watcher := t.mover("a"), t.client("w")
	watcher.control.subscribe(0, "$SYS/sterna/clients/"+t.id("a")+"/path")
	for moves := range 3 {
		watcher.control.untilTold(client.socket.LocalAddr().String(), moves)
		client.move()
		client.control.expect(five.PINGRESP)
	}
}

// knownRebound: and after each change that the client does not know of.
func knownRebound(t *Step) {
	client, nat, rebind := t.behind("a", 0)
	watcher := t.client("w")
	watcher.control.subscribe(0, "$SYS/sterna/clients/"+t.id("a")+"/path")
	for moves := range 3 {
		watcher.control.untilTold(nat.seen(), moves)
		rebind()
		client.control.expect(five.PINGRESP)
	}
}

// streamsMove: data streams and unidirectional ones, opened before and after, go on too.
func streamsMove(t *Step) {
	client := t.mover("a")
	to := client.open()
	to.subscribe(2, t.topic("t"))
	number := 0
	exchange := func(from, acks *Lane) {
		number++
		message := Message{Topic: t.topic("t"), Payload: fmt.Append(nil, number), QoS: 2}
		from.publish(message, uint16(number), acks)
		expect(string(to.delivered().Payload) == fmt.Sprint(number), "another message than %d", number)
	}
	older, olderOneWay := client.open(), client.oneWay()
	for range 3 {
		exchange(older, older)
		exchange(olderOneWay, client.control)
		client.move()
		client.control.expect(five.PINGRESP)
		newer, newerOneWay := client.open(), client.oneWay()
		exchange(newer, newer)
		exchange(newerOneWay, client.control)
	}
}

// largeMoves changes the address within a message, of the publisher and of the subscriber.
func largeMoves(t *Step) {
	from, to := t.mover("a"), t.mover("b")
	to.control.subscribe(1, t.topic("t"))
	payload := make([]byte, largePayload)
	whole := t.dialect.Publish(Message{Topic: t.topic("t"), Payload: payload, QoS: 1}, 1)
	beside := from.open()
	beside.write(whole[:len(whole)/2])
	from.move()
	beside.write(whole[len(whole)/2:])
	to.move()
	beside.acknowledged(1, 1)
	got := to.control.expect(five.PINGRESP)
	expect(got.Reason == 0, "%v", got)
	expect(len(to.control.delivered().Payload) == len(payload), "another payload")
	from.control.expect(five.PINGRESP)
}

// idleRebound: a sleeper whose router forgot it sends one packet and gets what is for it.
func idleRebound(t *Step) {
	client, _, rebind := t.behind("a", 0)
	sender := t.client("s")
	client.control.subscribe(2, t.topic("t"))
	for number := range 5 {
		rebind()
		client.control.expect(five.PINGRESP)
		sender.control.publish(Message{Topic: t.topic("t"), Payload: fmt.Append(nil, number), QoS: 2},
			uint16(number+1), sender.control)
		expect(string(client.control.delivered().Payload) == fmt.Sprint(number), "another message than %d", number)
	}
	client.control.empty("a message too many")
}
