package main

import (
	"fmt"
	"time"

	five "github.com/eclipse/paho.golang/packets"
)

func init() {
	for qos := range byte(3) {
		both(fmt.Sprintf("streams/data-streams-qos-%d", qos), func(t *Step) { dataStreams(t, qos) })
		both(fmt.Sprintf("streams/one-way-qos-%d", qos), func(t *Step) { oneWay(t, qos) })
	}
	both("streams/written-before-connack", beforeConnack)
	both("streams/one-per-publish", perPublish)
	both("streams/one-way-per-publish", oneWayPerPublish)
	both("streams/identifiers-of-their-own", ownIdentifiers)
	add("streams/opened-before-they-are-used", openedFirst)
	add("streams/large-beside-small", largeBesideSmall)
	add("streams/reset-in-mid-flow", resetInFlow)
	add("streams/reading-stopped-in-mid-flow", readingStopped)
	add("streams/reading-stopped-then-written", stoppedThenWritten)
	add("streams/many-abandoned", abandoned)
	add("streams/subscriber-stream-finished", subscriberFinished)
}

// dataStreams is EMQX's way: acknowledgements on the stream of the packet, messages on the stream of the SUBSCRIBE.
func dataStreams(t *Step, qos byte) {
	client := t.client("a")
	from, to := client.open(), client.open()
	to.subscribe(qos, t.topic("t"))
	for number := range 20 {
		payload := fmt.Append(nil, number)
		from.publish(Message{Topic: t.topic("t"), Payload: payload, QoS: qos}, uint16(number+1), from)
		got := to.delivered()
		expect(string(got.Payload) == string(payload) && got.QoS == qos, "%v", got)
	}
	for _, lane := range []*Lane{client.control, from, to} {
		lane.empty("a message too many")
	}
}

// oneWay publishes on a unidirectional stream; acknowledgements come on control.
func oneWay(t *Step, qos byte) {
	client := t.client("a")
	from, to := client.oneWay(), client.open()
	to.subscribe(qos, t.topic("t"))
	for number := range 20 {
		message := Message{Topic: t.topic("t"), Payload: fmt.Append(nil, number), QoS: qos}
		from.publish(message, uint16(number+1), client.control)
		expect(string(to.delivered().Payload) == fmt.Sprint(number), "another message than %d", number)
	}
	client.control.empty("a message too many")
	to.empty("a message too many")
}

// beforeConnack writes everything in one flight: data streams wait for CONNECT to succeed. [MQTT-3.1.4-5]
func beforeConnack(t *Step) {
	watcher := t.client("w")
	watcher.control.subscribe(1, t.topic("t"))
	client, err := t.dial(Options{})
	must(err, "the QUIC connection")
	client.hello(Connect{ID: t.id("a")})
	to, from, aside := client.open(), client.open(), client.oneWay()
	to.write(t.dialect.Subscribe(1, 1, t.topic("own")))
	from.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("1"), QoS: 1}, 1))
	aside.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("2"), QoS: 1}, 2))
	client.welcome()
	to.expect(five.SUBACK)
	expect(from.expect(five.PUBACK).PID == 1, "PUBACK for something else")
	expect(client.control.expect(five.PUBACK).PID == 2, "PUBACK for something else")
	got := string(watcher.control.delivered().Payload) + string(watcher.control.delivered().Payload)
	expect(got == "12" || got == "21", "messages %q", got)
	watcher.control.empty("a message too many")
}

// perPublish uses a stream for each message and finishes it: some hundreds more than are granted at the beginning.
func perPublish(t *Step) {
	const count, window = 600, 40
	client := t.client("a")
	client.control.subscribe(0, t.topic("t"))
	gate := make(chan struct{}, window)
	for number := range count {
		gate <- struct{}{}
		lane := client.open()
		t.start(func() {
			defer func() { <-gate }()
			lane.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: fmt.Append(nil, number), QoS: 1}, 1))
			lane.finish()
			expect(lane.expect(five.PUBACK).PID == 1, "PUBACK for something else")
		})
	}
	t.wait()
	each(client.control, count)
	client.alive()
}

// oneWayPerPublish is the same with unidirectional streams, whose identifiers are the session's.
func oneWayPerPublish(t *Step) {
	const count, window = 600, 40
	client := t.client("a")
	to := client.open()
	to.subscribe(0, t.topic("t"))
	acks := 0
	for number := range count {
		lane := client.oneWay()
		lane.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: fmt.Append(nil, number), QoS: 1},
			uint16(number+1)))
		lane.finish()
		for ; acks < number+1-window; acks++ {
			client.control.expect(five.PUBACK)
		}
	}
	for ; acks < count; acks++ {
		client.control.expect(five.PUBACK)
	}
	each(to, count)
}

// each takes messages whose payloads count from zero, in any order, each once.
func each(lane *Lane, count int) {
	seen := make(map[string]bool, count)
	for range count {
		got := lane.delivered()
		expect(!seen[string(got.Payload)], "%v twice", got)
		seen[string(got.Payload)] = true
	}
	for number := range count {
		expect(seen[fmt.Sprint(number)], "message %d is missing", number)
	}
	lane.empty("a message too many")
}

// ownIdentifiers: every stream counts its packet identifiers from one, and QoS 2 goes through on all of them at once.
func ownIdentifiers(t *Step) {
	client := t.client("a")
	client.control.subscribe(0, t.topic("t"))
	lanes := make([]*Lane, 8)
	for index := range lanes {
		lanes[index] = client.open()
		lanes[index].write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: fmt.Append(nil, index), QoS: 2}, 1))
	}
	for _, lane := range lanes {
		lane.acknowledged(2, 1)
	}
	each(client.control, len(lanes))
}

// openedFirst: a client that keeps a pool of streams opens them all before it writes on one. A stream that is open and
// not used is nothing that the broker sees; what it sees is that the client waits for more (STREAMS_BLOCKED).
func openedFirst(t *Step) {
	client := t.client("a")
	lanes := make([]*Lane, 10)
	for index := range lanes {
		lanes[index] = client.open()
	}
	for index := len(lanes) - 1; index >= 0; index-- {
		lanes[index].ping()
	}
}

// largeBesideSmall: a message that is being written does not hold up those on other streams.
func largeBesideSmall(t *Step) {
	client := t.client("a")
	bulk, small := client.open(), client.open()
	small.subscribe(1, t.topic("small"))
	whole := t.dialect.Publish(Message{Topic: t.topic("large"), Payload: make([]byte, 1<<20), QoS: 1}, 1)
	// Half of it now, the rest when the small ones are through.
	bulk.write(whole[:len(whole)/2])
	for number := range 20 {
		small.publish(Message{Topic: t.topic("small"), Payload: fmt.Append(nil, number), QoS: 1}, uint16(number+1), small)
		small.delivered()
	}
	bulk.write(whole[len(whole)/2:])
	bulk.acknowledged(1, 1)
}

// resetInFlow abandons streams in the middle of packets, while many messages are under way on others: whatever was
// acknowledged is delivered, once, and the subscription of a stream that is abandoned too goes on.
func resetInFlow(t *Step) {
	const lanes, rounds, batch = 6, 12, 10
	client, other := t.client("a"), t.client("b")
	to := other.open()
	to.subscribe(1, t.topic("t"))
	open := make([]*Lane, lanes)
	for index := range open {
		open[index] = client.open()
		open[index].ping()
	}
	var acked []string
	sent := 0
	for round := range rounds {
		for index, lane := range open {
			for pid := range uint16(batch) {
				payload := fmt.Sprint(sent)
				sent++
				lane.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte(payload), QoS: 1}, pid+1))
				if index != round%lanes {
					acked = append(acked, payload)
				}
			}
		}
		// One of them ends within a packet; its messages may be there or not.
		gone := open[round%lanes]
		half := t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("half a message"), QoS: 1}, batch+1)
		gone.write(half[:len(half)-3])
		gone.reset()
		for index, lane := range open {
			if index == round%lanes {
				continue
			}
			for pid := range uint16(batch) {
				expect(lane.expect(five.PUBACK).PID == pid+1, "PUBACK for something else")
			}
		}
		open[round%lanes] = client.open()
		if round == rounds/2 {
			to.reset()
		}
	}
	// Whatever PUBACK was on its way when its stream was abandoned counts too, but need not be known.
	seen := map[string]int{}
	take := func(lane *Lane) bool {
		select {
		case packet, more := <-lane.arrived:
			if !more {
				return false
			}
			expect(packet.Kind == five.PUBLISH && !packet.Dup, "%v on %v", packet, lane)
			seen[string(packet.Payload)]++
			// The stream that brought it may be gone for this direction.
			acks := lane
			if lane == to {
				acks = other.control
			}
			acks.write(t.dialect.Ack(five.PUBACK, packet.PID))
			return true
		default:
			return false
		}
	}
	complete := func() bool {
		for _, payload := range acked {
			if seen[payload] == 0 {
				return false
			}
		}
		return true
	}
	for deadline := time.Now().Add(patience); !complete(); {
		if !take(to) && !take(other.control) {
			expect(time.Now().Before(deadline), "%d of %d acknowledged messages came", len(seen), len(acked))
			time.Sleep(time.Millisecond)
		}
	}
	for payload, times := range seen {
		expect(times == 1, "message %q %d times", payload, times)
		expect(payload != "half a message", "%q was delivered", payload)
	}
	client.control.ping()
	other.control.ping()
}

// readingStopped has the client refuse the stream that brings its messages, in the middle of them (STOP_SENDING). The
// subscription goes on on control, and what was not acknowledged comes again with the next connection.
// [MQTT-4.4.0-1]
func readingStopped(t *Step) {
	const count = 200
	options := Options{Connect: Connect{ID: t.id("a"), Keep: true}}
	client, other := t.connect(options), t.client("b")
	to := client.open()
	to.subscribe(1, t.topic("t"))
	seen := map[string]bool{}
	t.start(func() {
		for number := range count {
			message := Message{Topic: t.topic("t"), Payload: fmt.Append(nil, number), QoS: 1}
			other.control.publish(message, uint16(number+1), other.control)
		}
	})
	for range count / 4 {
		seen[string(to.delivered().Payload)] = true
	}
	// With this answered no acknowledgement is under way; what that makes is the next step's matter.
	to.ping()
	to.both.CancelRead(0)
	// The broker knows of it when it answers: what it writes on the stream before is lost with the stream.
	client.control.ping()
	t.wait()
	other.control.publish(Message{Topic: t.topic("t"), Payload: []byte("last"), QoS: 1}, count+1, other.control)
	for !seen["last"] {
		seen[string(client.control.delivered().Payload)] = true
	}
	// The acknowledgements are through when this is answered.
	client.control.ping()
	client.vanish()
	again := t.connect(options)
	expect(again.connack.SessionPresent, "the session is not present")
	again.control.ping()
	for len(again.control.aside) > 0 {
		got := again.control.delivered()
		expect(got.Dup && !seen[string(got.Payload)], "%v that had been acknowledged", got)
		seen[string(got.Payload)] = true
	}
	for number := range count {
		expect(seen[fmt.Sprint(number)], "message %d is lost", number)
	}
}

// stoppedThenWritten: the client refuses what comes on a stream and still writes on it; what the broker has to say
// because of it, and messages, come on control.
func stoppedThenWritten(t *Step) {
	client := t.client("a")
	beside := client.open()
	beside.subscribe(1, t.topic("t"))
	beside.both.CancelRead(0)
	client.control.ping()
	beside.write(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("x"), QoS: 1}, 1))
	kinds := map[byte]bool{}
	for range 2 {
		ctx, cancel := t.short()
		got, err := client.control.next(ctx)
		cancel()
		must(err, fmt.Sprintf("waiting for PUBLISH and PUBACK on control, had %v", kinds))
		kinds[got.Kind] = true
	}
	expect(kinds[five.PUBLISH] && kinds[five.PUBACK], "packets of the kinds %v on control", kinds)
}

// abandoned: streams of which the client abandons its side, and only that, are over: they don't count for ever as
// open ones (RFC 9000 section 4.6).
func abandoned(t *Step) {
	client := t.client("a")
	half := t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("half"), QoS: 1}, 1)
	for range 400 {
		lane := client.open()
		lane.write(half[:len(half)-1])
		lane.reset()
	}
	client.control.ping()
}

// subscriberFinished: the stream of a SUBSCRIBE is finished at once; messages come all the same.
func subscriberFinished(t *Step) {
	client := t.client("a")
	to := client.open()
	to.write(t.dialect.Subscribe(1, 0, t.topic("t")))
	to.finish()
	to.expect(five.SUBACK)
	client.control.publish(Message{Topic: t.topic("t"), Payload: []byte("x"), QoS: 1}, 2, client.control)
	ctx, cancel := t.short()
	defer cancel()
	got := make(chan *Packet, 2)
	for _, lane := range []*Lane{to, client.control} {
		t.start(func() {
			if packet, err := lane.next(ctx); err == nil {
				got <- packet
			}
		})
	}
	select {
	case packet := <-got:
		expect(string(packet.Payload) == "x", "%v", packet)
	case <-ctx.Done():
		fail("no message for the subscription of a finished stream")
	}
	cancel()
	t.wait()
	client.control.ping()
}
