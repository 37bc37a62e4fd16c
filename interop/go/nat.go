package main

import (
	"net"
	"sync"
)

// Nat passes datagrams between one client and the broker, as a router at home does that gives its clients another
// address: it forgets them and gives them another port, and it can keep back what the broker sends.
type Nat struct {
	inside *net.UDPConn
	broker *net.UDPAddr
	mutex  sync.Mutex
	// The side that the broker sees.
	outside *net.UDPConn
	client  *net.UDPAddr
	holding bool
	held    [][]byte
}

// Datagrams are no longer than this on any path that the steps use.
const datagramBytes = 65536

func (t *Step) nat(broker *net.UDPAddr) *Nat {
	inside, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err, "a socket")
	nat := &Nat{inside: inside, broker: broker}
	nat.rebind()
	t.atEnd(func() {
		_ = inside.Close()
		nat.mutex.Lock()
		defer nat.mutex.Unlock()
		_ = nat.outside.Close()
	})
	go nat.up()
	return nat
}

// address is what the client takes for the broker.
func (n *Nat) address() *net.UDPAddr { return n.inside.LocalAddr().(*net.UDPAddr) }

// seen is the client's address as the broker sees it.
func (n *Nat) seen() string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.outside.LocalAddr().String()
}

// rebind gives the client another port. What is on its way to the old one is lost.
func (n *Nat) rebind() {
	fresh, err := net.DialUDP("udp4", nil, n.broker)
	must(err, "a socket")
	n.mutex.Lock()
	old := n.outside
	n.outside = fresh
	n.mutex.Unlock()
	if old != nil {
		_ = old.Close()
	}
	go n.down(fresh)
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
	for _, datagram := range n.held {
		_, _ = n.inside.WriteToUDP(datagram, n.client)
	}
	n.held = nil
}

func (n *Nat) up() {
	buffer := make([]byte, datagramBytes)
	for {
		count, from, err := n.inside.ReadFromUDP(buffer)
		if err != nil {
			return
		}
		n.mutex.Lock()
		n.client = from
		// A datagram that cannot be sent is a lost one.
		_, _ = n.outside.Write(buffer[:count])
		n.mutex.Unlock()
	}
}

func (n *Nat) down(outside *net.UDPConn) {
	buffer := make([]byte, datagramBytes)
	for {
		count, err := outside.Read(buffer)
		if err != nil {
			return
		}
		n.mutex.Lock()
		if n.holding {
			n.held = append(n.held, append([]byte(nil), buffer[:count]...))
		} else if n.client != nil {
			_, _ = n.inside.WriteToUDP(buffer[:count], n.client)
		}
		n.mutex.Unlock()
	}
}
