package main

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Nat passes datagrams between a client and the broker, as a router at home does that gives its clients another
// address: it forgets them and gives them another port. It can keep back what the broker sends, and take its time.
type Nat struct {
	inside *net.UDPConn
	broker *net.UDPAddr
	// How long a datagram is under way, in either direction.
	delay   time.Duration
	up      chan parcel
	down    chan parcel
	mutex   sync.Mutex
	sides   map[netip.AddrPort]*net.UDPConn
	last    netip.AddrPort
	holding bool
	held    []parcel
}

// parcel is a datagram on its way from or to a client.
type parcel struct {
	due    time.Time
	client netip.AddrPort
	data   []byte
}

const (
	// Datagrams are no longer than this on any path.
	datagramBytes = 65536
	// Datagrams under way; more are lost.
	queueLimit = 4096
)

func (t *Step) nat(broker *net.UDPAddr, delay time.Duration) *Nat {
	inside, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err, "a socket")
	nat := &Nat{
		inside: inside, broker: broker, delay: delay, sides: map[netip.AddrPort]*net.UDPConn{},
		up: make(chan parcel, queueLimit), down: make(chan parcel, queueLimit),
	}
	t.atEnd(func() {
		_ = inside.Close()
		nat.mutex.Lock()
		defer nat.mutex.Unlock()
		for _, outside := range nat.sides {
			_ = outside.Close()
		}
	})
	go nat.fromClients()
	go nat.carry(t, nat.up, nat.toBroker)
	go nat.carry(t, nat.down, nat.toClient)
	return nat
}

// address is what the clients take for the broker.
func (n *Nat) address() *net.UDPAddr { return n.inside.LocalAddr().(*net.UDPAddr) }

// seen is the address of the client that sent last as the broker sees it.
func (n *Nat) seen() string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.sides[n.last].LocalAddr().String()
}

// rebind gives every client another port. What is on its way to the old one is lost.
func (n *Nat) rebind() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for client, old := range n.sides {
		fresh, err := net.DialUDP("udp4", nil, n.broker)
		must(err, "a socket")
		n.sides[client] = fresh
		go n.fromBroker(fresh, client)
		_ = old.Close()
	}
}

// hold keeps back what the broker sends until release.
func (n *Nat) hold() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.holding = true
}

func (n *Nat) release() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.holding = false
	for _, one := range n.held {
		_, _ = n.inside.WriteToUDPAddrPort(one.data, one.client)
	}
	n.held = nil
}

// enqueue puts a datagram on its way; one for which there is no room is lost, as on any path.
func (n *Nat) enqueue(queue chan<- parcel, client netip.AddrPort, data []byte) {
	select {
	case queue <- parcel{time.Now().Add(n.delay), client, append([]byte(nil), data...)}:
	default:
	}
}

// carry hands datagrams over when they are due.
func (n *Nat) carry(t *Step, queue <-chan parcel, deliver func(parcel)) {
	for {
		select {
		case one := <-queue:
			time.Sleep(time.Until(one.due))
			deliver(one)
		case <-t.ctx.Done():
			return
		}
	}
}

func (n *Nat) fromClients() {
	buffer := make([]byte, datagramBytes)
	for {
		count, client, err := n.inside.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		n.enqueue(n.up, client, buffer[:count])
	}
}

func (n *Nat) toBroker(one parcel) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	outside := n.sides[one.client]
	if outside == nil {
		fresh, err := net.DialUDP("udp4", nil, n.broker)
		if err != nil {
			return
		}
		outside, n.sides[one.client] = fresh, fresh
		go n.fromBroker(fresh, one.client)
	}
	n.last = one.client
	// What cannot be sent is lost.
	_, _ = outside.Write(one.data)
}

func (n *Nat) fromBroker(outside *net.UDPConn, client netip.AddrPort) {
	buffer := make([]byte, datagramBytes)
	for {
		count, err := outside.Read(buffer)
		if err != nil {
			return
		}
		n.enqueue(n.down, client, buffer[:count])
	}
}

func (n *Nat) toClient(one parcel) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.holding {
		n.held = append(n.held, one)
		return
	}
	_, _ = n.inside.WriteToUDPAddrPort(one.data, one.client)
}
