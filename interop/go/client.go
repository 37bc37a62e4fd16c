package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	five "github.com/eclipse/paho.golang/packets"
	"github.com/quic-go/quic-go"
)

// Packets that a lane keeps until the step asks for them.
const laneBacklog = 1 << 14

// Lane is a stream that carries MQTT packets. What the peer sends is read at once, so that flow control stands still
// only where the step wants it.
type Lane struct {
	t *Step
	// Whichever of the two the lane is.
	both *quic.Stream
	out  *quic.SendStream

	writing sync.Mutex
	arrived chan *Packet
	// Why nothing more arrives; set before `arrived` is closed.
	ended error
	aside []*Packet
}

func (t *Step) lane(stream *quic.Stream) *Lane {
	lane := &Lane{t: t, both: stream, arrived: make(chan *Packet, laneBacklog)}
	go func() {
		from := bufio.NewReader(stream)
		for {
			packet, err := t.dialect.Read(from)
			if err != nil {
				lane.ended = err
				close(lane.arrived)
				return
			}
			lane.arrived <- packet
		}
	}()
	return lane
}

func (l *Lane) String() string {
	if l.both != nil {
		return fmt.Sprintf("stream %d", l.both.StreamID())
	}
	return fmt.Sprintf("stream %d", l.out.StreamID())
}

// try writes packets and says what went wrong.
func (l *Lane) try(data []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	var to io.Writer = l.out
	if l.both != nil {
		to = l.both
	}
	_, err := to.Write(data)
	return err
}

func (l *Lane) write(data []byte) { must(l.try(data), "writing on "+l.String()) }

// finish ends the client's side of the stream.
func (l *Lane) finish() {
	if l.both != nil {
		must(l.both.Close(), "finishing "+l.String())
	} else {
		must(l.out.Close(), "finishing "+l.String())
	}
}

// reset abandons the client's side of the stream.
func (l *Lane) reset() {
	if l.both != nil {
		l.both.CancelWrite(0)
	} else {
		l.out.CancelWrite(0)
	}
}

// next is the next packet, in the order of arrival.
func (l *Lane) next(ctx context.Context) (*Packet, error) {
	if len(l.aside) > 0 {
		packet := l.aside[0]
		l.aside = l.aside[1:]
		return packet, nil
	}
	return l.arrival(ctx)
}

func (l *Lane) arrival(ctx context.Context) (*Packet, error) {
	select {
	case packet, more := <-l.arrived:
		if !more {
			return nil, l.ended
		}
		return packet, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// expect is the next packet, which has to be of this kind; messages may come before an acknowledgement.
func (l *Lane) expect(kind byte) *Packet {
	ctx, cancel := l.t.short()
	defer cancel()
	if kind == five.PUBLISH && len(l.aside) > 0 {
		packet, _ := l.next(ctx)
		return packet
	}
	for {
		packet, err := l.arrival(ctx)
		if err != nil {
			fail("waiting for %s on %v: %w", kindName(kind), l, err)
		}
		if packet.Kind == five.PUBLISH && kind != five.PUBLISH {
			l.aside = append(l.aside, packet)
			continue
		}
		expect(packet.Kind == kind, "%v on %v instead of %s", packet, l, kindName(kind))
		return packet
	}
}

// empty fails if a message has arrived. A PINGRESP shows that whatever the broker had sent before it is here.
func (l *Lane) empty(why string) {
	l.ping()
	if len(l.aside) > 0 {
		fail("%s: %v on %v", why, l.aside[0], l)
	}
}

func (l *Lane) ping() {
	l.write(l.t.dialect.Ping())
	l.expect(five.PINGRESP)
}

func (l *Lane) subscribe(qos byte, filters ...string) {
	l.write(l.t.dialect.Subscribe(1, qos, filters...))
	answer := l.expect(five.SUBACK)
	expect(answer.PID == 1 && len(answer.Codes) == len(filters), "%v for %d filters", answer, len(filters))
	for _, code := range answer.Codes {
		expect(code == qos, "%v, asked for QoS %d", answer, qos)
	}
}

// publish does the whole exchange of one PUBLISH; its acknowledgements come on `acks`.
func (l *Lane) publish(message Message, pid uint16, acks *Lane) {
	l.write(l.t.dialect.Publish(message, pid))
	acks.acknowledged(message.QoS, pid)
}

// acknowledged sees a PUBLISH that this client sent through to its end.
func (l *Lane) acknowledged(qos byte, pid uint16) {
	ack := func(kind byte) {
		got := l.expect(kind)
		expect(got.PID == pid && got.Reason < 0x80, "%v, published %d", got, pid)
	}
	switch qos {
	case 1:
		ack(five.PUBACK)
	case 2:
		ack(five.PUBREC)
		l.write(l.t.dialect.Ack(five.PUBREL, pid))
		ack(five.PUBCOMP)
	}
}

// delivered is the next message, acknowledged on the lane that brought it.
func (l *Lane) delivered() *Packet {
	message := l.expect(five.PUBLISH)
	switch message.QoS {
	case 1:
		l.write(l.t.dialect.Ack(five.PUBACK, message.PID))
	case 2:
		l.write(l.t.dialect.Ack(five.PUBREC, message.PID))
		release := l.expect(five.PUBREL)
		expect(release.PID == message.PID, "%v for %v", release, message)
		l.write(l.t.dialect.Ack(five.PUBCOMP, message.PID))
	}
	return message
}

// Socket is a client's place in the network. One that can be cut hides from quic-go what else a UDP socket can: batches,
// segmentation offload, ECN, the search for larger datagrams.
type Socket struct {
	*net.UDPConn
	whole bool
	cut   atomic.Bool
}

// plain hides what quic-go would send and receive past a Socket.
type plain struct{ net.PacketConn }

func (s *Socket) WriteTo(data []byte, to net.Addr) (int, error) {
	if s.cut.Load() {
		return len(data), nil
	}
	return s.UDPConn.WriteTo(data, to)
}

func (s *Socket) ReadFrom(into []byte) (int, net.Addr, error) {
	for {
		count, from, err := s.UDPConn.ReadFrom(into)
		if err != nil || !s.cut.Load() {
			return count, from, err
		}
	}
}

// place opens a socket on this host; it is closed with the step.
func (t *Step) place(whole bool) (*Socket, *quic.Transport) {
	raw, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err, "a socket")
	socket := &Socket{UDPConn: raw, whole: whole}
	transport := &quic.Transport{Conn: raw}
	if !whole {
		transport.Conn = plain{socket}
	}
	t.atEnd(func() {
		_ = transport.Close()
		_ = raw.Close()
	})
	return socket, transport
}

// Options say how a connection is opened.
type Options struct {
	Connect
	// The listener that early data may do everything on, without one.
	at *net.UDPAddr
	// Of mqtt, without any.
	alpn []string
	// Gets and gives session tickets.
	tickets tls.ClientSessionCache
	// Dial with early data, if the tickets allow it.
	early bool
	// Announce datagrams (RFC 9221).
	datagrams bool
	// The sockets can be cut, so that paths which the client leaves are dead at once.
	cuttable bool
}

// Client is a connection with its control stream.
type Client struct {
	t       *Step
	conn    *quic.Conn
	control *Lane
	connack *Packet
	socket  *Socket
	path    *quic.Path
}

// dial opens a QUIC connection.
func (t *Step) dial(o Options) (*Client, error) {
	socket, transport := t.place(!o.cuttable)
	settings := t.broker.TLS()
	settings.ClientSessionCache = o.tickets
	if o.alpn != nil {
		settings.NextProtos = o.alpn
	}
	at := o.at
	if at == nil {
		at = t.broker.Address
	}
	config := &quic.Config{EnableDatagrams: o.datagrams, HandshakeIdleTimeout: patience}
	open := transport.Dial
	if o.early {
		open = transport.DialEarly
	}
	ctx, cancel := t.short()
	defer cancel()
	conn, err := open(ctx, at, settings, config)
	if err != nil {
		return nil, err
	}
	t.watch(conn)
	// The packets of the goodbye go before the socket is closed.
	t.atEnd(func() { _ = conn.CloseWithError(0, "") })
	return &Client{t: t, conn: conn, socket: socket}, nil
}

// connect opens a connection and an MQTT session on it.
func (t *Step) connect(o Options) *Client {
	client, err := t.dial(o)
	must(err, "the QUIC connection")
	client.hello(o.Connect)
	client.welcome()
	return client
}

// client connects with nothing but a name.
func (t *Step) client(name string) *Client {
	return t.connect(Options{Connect: Connect{ID: t.id(name)}})
}

// hello opens the control stream and writes CONNECT on it.
func (c *Client) hello(connect Connect) {
	c.control = c.open()
	c.control.write(c.t.dialect.Connect(connect))
}

// welcome waits for CONNACK.
func (c *Client) welcome() {
	c.connack = c.control.expect(five.CONNACK)
	expect(c.connack.Reason == 0, "%v", c.connack)
}

// open opens the next bidirectional stream.
func (c *Client) open() *Lane {
	ctx, cancel := c.t.short()
	defer cancel()
	stream, err := c.conn.OpenStreamSync(ctx)
	must(err, "opening a stream")
	return c.t.lane(stream)
}

// oneWay opens the next unidirectional stream.
func (c *Client) oneWay() *Lane {
	ctx, cancel := c.t.short()
	defer cancel()
	stream, err := c.conn.OpenUniStreamSync(ctx)
	must(err, "opening a unidirectional stream")
	return &Lane{t: c.t, out: stream}
}

// alive fails if the connection has ended.
func (c *Client) alive() {
	expect(c.conn.Context().Err() == nil, "the connection ended: %v", context.Cause(c.conn.Context()))
}

// over waits for the end of the connection.
func (c *Client) over() error {
	ctx, cancel := c.t.short()
	defer cancel()
	select {
	case <-c.conn.Context().Done():
		return context.Cause(c.conn.Context())
	case <-ctx.Done():
		fail("the connection is still open: %w", context.Cause(ctx))
		return nil
	}
}

// leave says DISCONNECT and waits until the broker has ended the connection in order.
func (c *Client) leave() {
	c.control.write(c.t.dialect.Disconnect())
	c.control.finish()
	var end *quic.ApplicationError
	if why := c.over(); !errors.As(why, &end) || !end.Remote || end.ErrorCode != 0 {
		fail("after DISCONNECT: %w", why)
	}
}

// vanish closes the connection without DISCONNECT.
func (c *Client) vanish() { _ = c.conn.CloseWithError(1, "") }
