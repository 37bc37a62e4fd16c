package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"

	five "github.com/eclipse/paho.golang/packets"
	"github.com/quic-go/quic-go"
)

// TLS alert no_application_protocol, as QUIC carries it (RFC 9001 section 4.8).
const noApplicationProtocol = 0x100 + 120

// Below the broker's maximum_packet_bytes of 2 MiB.
const largePayload = 2<<20 - 1000

func init() {
	for qos := range byte(3) {
		both(fmt.Sprintf("messages/qos-%d-both-ways", qos), func(t *Step) { bothWays(t, qos) })
	}
	both("messages/many-of-each-qos", manyOfEach)
	both("messages/lower-qos-is-granted", lowerQoS)
	both("messages/retained", retained)
	both("messages/unsubscribed", unsubscribed)
	both("messages/large", large)
	both("session/outlives-the-connection", outlives)
	both("session/taken-over", takenOver)
	both("session/will", will)
	both("session/disconnect", disconnect)
	add("handshake/alpn-refused", alpnRefused)
	add("handshake/alpn-among-others", alpnAmongOthers)
	add("handshake/wrong-name", wrongName)
}

// bothWays has two clients publish to each other.
func bothWays(t *Step, qos byte) {
	one, two := t.client("a"), t.client("b")
	for index, pair := range [][2]*Client{{one, two}, {two, one}} {
		from, to := pair[0], pair[1]
		topic := t.topic(fmt.Sprint(index))
		to.control.subscribe(qos, topic)
		from.control.publish(Message{Topic: topic, Payload: []byte("hello"), QoS: qos}, 1, from.control)
		got := to.control.delivered()
		expect(got.Topic == topic && string(got.Payload) == "hello" && got.QoS == qos && !got.Dup && !got.Retain,
			"%v", got)
	}
	one.control.empty("a message too many")
	two.control.empty("a message too many")
	one.leave()
	two.leave()
}

// manyOfEach mixes all qualities of service on one stream, each way.
func manyOfEach(t *Step) {
	const count = 300
	client := t.client("a")
	for qos := range byte(3) {
		client.control.subscribe(qos, t.topic(fmt.Sprint(qos)))
	}
	for number := range count {
		qos := byte(number % 3)
		topic := t.topic(fmt.Sprint(qos))
		client.control.write(t.dialect.Publish(Message{Topic: topic, Payload: fmt.Append(nil, number), QoS: qos},
			uint16(number+1)))
	}
	next := [3]int{0, 1, 2}
	open := map[uint16]bool{}
	for got, acked, done := 0, 0, 0; got < count || acked < count*2/3 || done < count/3; {
		ctx, cancel := t.short()
		packet, err := client.control.next(ctx)
		cancel()
		must(err, fmt.Sprintf("%d messages, %d acknowledgements, %d of QoS 2 done", got, acked, done))
		switch packet.Kind {
		case five.PUBLISH:
			// [MQTT-4.6.0-5]: messages of a topic and a quality of service in order
			expect(string(packet.Payload) == fmt.Sprint(next[packet.QoS]), "%v, expected %d", packet, next[packet.QoS])
			next[packet.QoS] += 3
			got++
			if packet.QoS == 1 {
				client.control.write(t.dialect.Ack(five.PUBACK, packet.PID))
			} else if packet.QoS == 2 {
				open[packet.PID] = true
				client.control.write(t.dialect.Ack(five.PUBREC, packet.PID))
			}
		case five.PUBREL:
			expect(open[packet.PID], "%v for no message", packet)
			delete(open, packet.PID)
			client.control.write(t.dialect.Ack(five.PUBCOMP, packet.PID))
			done++
		case five.PUBACK, five.PUBCOMP:
			acked++
		case five.PUBREC:
			client.control.write(t.dialect.Ack(five.PUBREL, packet.PID))
		default:
			fail("%v", packet)
		}
	}
}

func lowerQoS(t *Step) {
	client := t.client("a")
	client.control.subscribe(1, t.topic("t"))
	client.control.publish(Message{Topic: t.topic("t"), Payload: []byte("x"), QoS: 2}, 1, client.control)
	if got := client.control.delivered(); got.QoS != 1 {
		fail("%v for a subscription of QoS 1", got)
	}
}

func retained(t *Step) {
	client := t.client("a")
	client.control.publish(Message{Topic: t.topic("t"), Payload: []byte("kept"), QoS: 1, Retain: true}, 1, client.control)
	client.control.subscribe(1, t.topic("+"))
	got := client.control.delivered()
	expect(got.Retain && string(got.Payload) == "kept", "%v, retain %v", got, got.Retain)
	client.control.publish(Message{Topic: t.topic("t"), QoS: 1, Retain: true}, 2, client.control)
	client.control.delivered()
	later := t.client("b")
	later.control.subscribe(1, t.topic("#"))
	later.control.empty("a retained message that was cleared")
}

func unsubscribed(t *Step) {
	client := t.client("a")
	client.control.subscribe(1, t.topic("t"), t.topic("u"))
	client.control.write(t.dialect.Unsubscribe(2, t.topic("t")))
	expect(client.control.expect(five.UNSUBACK).PID == 2, "UNSUBACK for something else")
	client.control.publish(Message{Topic: t.topic("t"), QoS: 1}, 3, client.control)
	client.control.publish(Message{Topic: t.topic("u"), QoS: 1}, 4, client.control)
	expect(client.control.delivered().Topic == t.topic("u"), "a message after UNSUBSCRIBE")
	client.control.empty("a message after UNSUBSCRIBE")
}

// large sends payloads near the broker's limit through both directions of flow control, on control and beside it.
func large(t *Step) {
	from, to := t.client("a"), t.client("b")
	beside := to.open()
	to.control.subscribe(1, t.topic("1"))
	beside.subscribe(2, t.topic("2"))
	source := rand.NewChaCha8([32]byte{1})
	for number := range 4 {
		payload := make([]byte, largePayload-number)
		_, _ = source.Read(payload)
		qos := byte(1 + number%2)
		message := Message{Topic: t.topic(fmt.Sprint(qos)), Payload: payload, QoS: qos}
		from.control.publish(message, uint16(number+1), from.control)
		lane := to.control
		if qos == 2 {
			lane = beside
		}
		if got := lane.delivered(); !bytes.Equal(got.Payload, payload) {
			fail("%d bytes that differ from the %d sent", len(got.Payload), len(payload))
		}
	}
}

// outlives: [MQTT-3.1.2-5] [MQTT-4.4.0-1] [MQTT311-3.1.2-4] [MQTT311-4.4.0-1] what is not acknowledged comes again,
// what came meanwhile after it.
func outlives(t *Step) {
	options := Options{Connect: Connect{ID: t.id("a"), Keep: true, WillTopic: t.topic("will")}}
	first, other := t.connect(options), t.client("b")
	first.control.subscribe(2, t.topic("t"))
	other.control.subscribe(0, t.topic("will"))
	send := func(payload string, pid uint16) {
		other.control.publish(Message{Topic: t.topic("t"), Payload: []byte(payload), QoS: 2}, pid, other.control)
	}
	send("open", 1)
	first.control.expect(five.PUBLISH)
	first.vanish()
	// Until the broker knows, what is published is sent to the connection that is gone.
	expect(string(other.control.delivered().Payload) == "gone", "another will")
	send("queued", 2)
	second := t.connect(options)
	expect(second.connack.SessionPresent, "the session is not present")
	for _, want := range []struct {
		payload string
		dup     bool
	}{{"open", true}, {"queued", false}} {
		got := second.control.delivered()
		expect(string(got.Payload) == want.payload && got.Dup == want.dup, "%v instead of %v", got, want)
	}
	second.control.empty("a message too many")
}

// takenOver: [MQTT-3.1.4-3] [MQTT311-3.1.4-2]
func takenOver(t *Step) {
	const tries = 10
	told := t.dialect.Name() != "5.0"
	for try := 0; try == 0 || !told && try < tries; try++ {
		first := t.client("a")
		second := t.client("a")
		var end *quic.ApplicationError
		if why := first.over(); !errors.As(why, &end) || !end.Remote || end.ErrorCode != 0 {
			fail("the first connection: %w", why)
		}
		// quic-go throws away what was not read when the connection ends, and the broker ends it as soon as DISCONNECT
		// has been acknowledged: not every time does it get through to the reader.
		ctx, cancel := t.short()
		if got, err := first.control.next(ctx); err == nil {
			expect(!told && got.Kind == five.DISCONNECT && got.Reason == five.DisconnectSessionTakenOver,
				"%v for who was taken over", got)
			told = true
		}
		cancel()
		second.control.ping()
		second.leave()
	}
	expect(told, "no DISCONNECT in %d times", tries)
}

func will(t *Step) {
	watcher := t.client("w")
	watcher.control.subscribe(1, t.topic("will"))
	client := t.connect(Options{Connect: Connect{ID: t.id("a"), WillTopic: t.topic("will")}})
	client.vanish()
	expect(string(watcher.control.delivered().Payload) == "gone", "another will")
}

// disconnect: [MQTT-3.14.4-3] [MQTT311-3.14.4-3] no will; the broker closes with code 0.
func disconnect(t *Step) {
	watcher := t.client("w")
	watcher.control.subscribe(1, t.topic("will"))
	client := t.connect(Options{Connect: Connect{ID: t.id("a"), WillTopic: t.topic("will")}})
	client.leave()
	// The same client again: whatever was left of the first connection has been dealt with.
	t.client("a").control.ping()
	watcher.control.empty("a will after DISCONNECT")
}

func alpnRefused(t *Step) {
	for _, offered := range [][]string{{"h2"}, {"coap", "MQTT"}} {
		_, err := t.dial(Options{alpn: offered})
		var refused *quic.TransportError
		expect(errors.As(err, &refused) && refused.Remote && refused.ErrorCode == noApplicationProtocol,
			"ALPN %v: %v, expected 0x%x from the broker", offered, err, noApplicationProtocol)
	}
}

func alpnAmongOthers(t *Step) {
	client, err := t.dial(Options{alpn: []string{"coap", "mqtt"}})
	must(err, "the QUIC connection")
	state := client.conn.ConnectionState()
	expect(state.TLS.NegotiatedProtocol == "mqtt", "ALPN %q", state.TLS.NegotiatedProtocol)
	expect(state.TLS.Version == tls.VersionTLS13 && state.Version == quic.Version1, "TLS %x, QUIC %v",
		state.TLS.Version, state.Version)
	client.hello(Connect{ID: t.id("a")})
	client.welcome()
}

// wrongName: the client refuses the certificate; the broker takes that and goes on.
func wrongName(t *Step) {
	stranger := *t.broker
	stranger.host = "elsewhere.invalid"
	wrong := newStep(t.ctx, &stranger, t.dialect)
	defer wrong.close()
	var name *tls.CertificateVerificationError
	if _, err := wrong.dial(Options{}); !errors.As(err, &name) {
		fail("a certificate for another name: %v", err)
	}
	t.client("a").control.ping()
}
