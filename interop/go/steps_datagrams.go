package main

import (
	"bytes"
	"context"
	"fmt"

	five "github.com/eclipse/paho.golang/packets"
)

// Fits in no datagram of any path with Ethernet's MTU.
const tooLarge = 4000

func init() {
	add("datagrams/both-ways", datagramsBothWays)
	add("datagrams/too-large-comes-on-a-stream", datagramTooLarge)
	add("datagrams/acknowledged-messages-on-streams", datagramsOnlyQoS0)
	add("datagrams/without-the-transport-parameter", datagramsWithoutParameter)
	add("datagrams/in-early-data", datagramsEarly)
	both("datagrams/to-the-broker-only", datagramsUp)
}

func asking(id string) Options {
	return Options{Connect: Connect{ID: id, User: map[string]string{"datagrams": "1"}}, datagrams: true}
}

// datagram is the packet in the next datagram.
func (c *Client) datagram(ctx context.Context) (*Packet, error) {
	bytesOf, err := c.conn.ReceiveDatagram(ctx)
	if err != nil {
		return nil, err
	}
	from := bytes.NewReader(bytesOf)
	packet, err := c.t.dialect.Read(from)
	if err == nil && from.Len() > 0 {
		err = fmt.Errorf("%d bytes after %v in a datagram", from.Len(), packet)
	}
	return packet, err
}

// noDatagram fails if one has arrived. The caller has just had an answer from the broker.
func (c *Client) noDatagram() {
	ctx, cancel := context.WithCancel(c.t.ctx)
	cancel()
	if got, err := c.datagram(ctx); err == nil {
		fail("%v in a datagram", got)
	}
}

func (c *Client) agreed() bool { return c.connack.User["datagrams"] == "1" }

// datagramsBothWays: whoever asks gets messages of QoS 0 in datagrams, and may send them so.
func datagramsBothWays(t *Step) {
	const count = 50
	client := t.connect(asking(t.id("a")))
	expect(client.agreed(), "CONNACK does not agree: %v", client.connack.User)
	expect(client.conn.ConnectionState().SupportsDatagrams.Remote, "no max_datagram_frame_size")
	client.control.subscribe(0, t.topic("t"))
	for number := range count {
		payload := fmt.Append(nil, number)
		must(client.conn.SendDatagram(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: payload}, 0)), "sending")
		ctx, cancel := t.short()
		got, err := client.datagram(ctx)
		cancel()
		must(err, fmt.Sprintf("datagram %d", number))
		expect(got.Kind == five.PUBLISH && got.QoS == 0 && bytes.Equal(got.Payload, payload), "%v", got)
	}
	client.control.empty("a message that was to come in a datagram")
}

func datagramTooLarge(t *Step) {
	client, sender := t.connect(asking(t.id("a"))), t.client("s")
	client.control.subscribe(0, t.topic("t"))
	sender.control.publish(Message{Topic: t.topic("t"), Payload: make([]byte, tooLarge)}, 0, sender.control)
	expect(len(client.control.delivered().Payload) == tooLarge, "another payload")
	client.noDatagram()
}

func datagramsOnlyQoS0(t *Step) {
	client := t.connect(asking(t.id("a")))
	client.control.subscribe(2, t.topic("t"))
	for qos := byte(1); qos <= 2; qos++ {
		client.control.publish(Message{Topic: t.topic("t"), Payload: []byte("x"), QoS: qos}, uint16(qos), client.control)
		expect(client.control.delivered().QoS == qos, "another quality of service")
	}
	client.noDatagram()
}

// datagramsWithoutParameter: a client that asks and whose transport can't gets everything on streams.
func datagramsWithoutParameter(t *Step) {
	options := asking(t.id("a"))
	options.datagrams = false
	client := t.connect(options)
	expect(!client.agreed(), "CONNACK agrees to datagrams without the transport parameter")
	client.control.subscribe(0, t.topic("t"))
	client.control.publish(Message{Topic: t.topic("t"), Payload: []byte("x")}, 0, client.control)
	expect(string(client.control.delivered().Payload) == "x", "another message")
}

// datagramsUp: without asking, datagrams are taken and none are sent.
func datagramsUp(t *Step) {
	client := t.connect(Options{Connect: Connect{ID: t.id("a")}, datagrams: true})
	expect(!client.agreed(), "CONNACK agrees to what was not asked for")
	client.control.subscribe(0, t.topic("t"))
	must(client.conn.SendDatagram(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("x")}, 0)), "sending")
	expect(string(client.control.delivered().Payload) == "x", "another message")
	client.noDatagram()
}

// datagramsEarly: they may come with the first flight of a resumed client.
func datagramsEarly(t *Step) {
	options := asking(t.id("a"))
	tickets := newTickets()
	options.tickets = tickets
	first := t.connect(options)
	ticket := t.given(tickets)
	first.leave()
	watcher := t.watched(t.topic("t"))
	options.tickets, options.early = using(ticket), true
	client, err := t.dial(options)
	must(err, "the QUIC connection")
	client.hello(options.Connect)
	must(client.conn.SendDatagram(t.dialect.Publish(Message{Topic: t.topic("t"), Payload: []byte("early")}, 0)), "sending")
	client.welcome()
	expect(client.agreed(), "CONNACK does not agree: %v", client.connack.User)
	expect(client.confirmed().Used0RTT, "early data was refused")
	expect(string(watcher.delivered().Payload) == "early", "another message")
	watcher.empty("the message again")
}
