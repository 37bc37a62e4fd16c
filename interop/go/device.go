package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	five "github.com/eclipse/paho.golang/packets"
	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"
)

// stampBytes is how long number and moment at a message's start are.
const stampBytes = 12

// roundRobin is SCHED_RR, the policy that the lab gives to a device if it may.
const roundRobin = "2"

// Task is what the lab asks a device for (docs/lab.md).
type Task struct {
	Role         string          `json:"role"`
	URL          string          `json:"url"`
	ServerName   string          `json:"server_name"`
	Authority    string          `json:"authority"`
	Credentials  json.RawMessage `json:"credentials"`
	Resumption   bool            `json:"resumption"`
	EarlyData    bool            `json:"early_data"`
	Streams      *string         `json:"streams"`
	Datagrams    bool            `json:"datagrams"`
	QoS          byte            `json:"qos"`
	PayloadBytes int             `json:"payload_bytes"`
	Messages     int             `json:"messages"`
	Connections  int             `json:"connections"`
	Topics       int             `json:"topics"`
	IntervalNs   int64           `json:"interval_ns"`
	WaitConnack  bool            `json:"wait_connack"`
	TimeLimitMs  int64           `json:"time_limit_ms"`
}

// Measured is what a device answers. Moments are nanoseconds of the monotonic clock.
type Measured struct {
	Event       string   `json:"event"`
	ConnectNs   []int64  `json:"connect_ns,omitempty"`
	SentAfterNs []int64  `json:"sent_after_ns,omitempty"`
	StartedNs   []int64  `json:"started_ns,omitempty"`
	EarlyData   []string `json:"early_data,omitempty"`
	RoundTripNs []int64  `json:"round_trip_ns,omitempty"`
	FirstNs     int64    `json:"first_ns"`
	LastNs      int64    `json:"last_ns"`
	LateP99Ns   int64    `json:"late_p99_ns"`
	LateMaxNs   int64    `json:"late_max_ns"`
	CPUNs       int64    `json:"cpu_ns"`
	PeakRss     int64    `json:"peak_rss_bytes"`
	IsRealTime  bool     `json:"is_real_time"`
	RTTNs       int64    `json:"rtt_ns"`
	PacketsLost uint64   `json:"packets_lost"`
	Congestion  string   `json:"congestion"`
}

func monotonicNs() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}
	return now.Nano()
}

func cpuNs() int64 {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return used.Utime.Nano() + used.Stime.Nano()
}

func say(word any) {
	line, _ := json.Marshal(word)
	fmt.Println(string(line))
}

// deviceMain is a device of the lab, with quic-go below it.
func deviceMain() int {
	input := bufio.NewReader(os.Stdin)
	measured, err := beDevice(input)
	if err != nil {
		say(map[string]string{"event": "failed", "reason": err.Error()})
		return 1
	}
	measured.Event = "result"
	say(measured)
	return 0
}

func beDevice(input *bufio.Reader) (*Measured, error) {
	line, err := input.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("no task: %w", err)
	}
	var task Task
	if err := json.Unmarshal(line, &task); err != nil {
		return nil, fmt.Errorf("no task: %w", err)
	}
	if task.Streams != nil || task.Datagrams || task.QoS > 1 ||
		(len(task.Credentials) > 0 && string(task.Credentials) != `"none"`) {
		return nil, errors.New("no streams, datagrams, QoS 2 or credentials with this device")
	}
	place, err := url.Parse(task.URL)
	if err != nil || place.Scheme != "mqtt+quic" {
		return nil, fmt.Errorf("not an URL of MQTT over QUIC: %q", task.URL)
	}
	roots := x509.NewCertPool()
	text, err := os.ReadFile(task.Authority)
	if err != nil || !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("authority %q: no certificate (%v)", task.Authority, err)
	}
	config := &tls.Config{
		ServerName: task.ServerName, RootCAs: roots,
		NextProtos: []string{"mqtt"}, MinVersion: tls.VersionTLS13,
	}
	if task.Resumption {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(task.TimeLimitMs)*time.Millisecond)
	defer cancel()
	device := &device{task: &task, address: place.Host, tls: config, input: input, measured: &Measured{Congestion: "reno"}}
	switch task.Role {
	case "publisher":
		err = device.publish(ctx)
	case "stop-and-wait":
		err = device.stopAndWait(ctx)
	case "connect-publish":
		err = device.reconnect(ctx)
	default:
		err = fmt.Errorf("no role %q with this device", task.Role)
	}
	return device.measured, err
}

type device struct {
	task     *Task
	address  string
	tls      *tls.Config
	input    *bufio.Reader
	measured *Measured
	cpuNs    int64
}

// connection is an MQTT connection on one stream.
type connection struct {
	quic    *quic.Conn
	stream  *quic.Stream
	dialect Dialect
	// CONNACK, then acknowledgements and messages as they come; closed at the end.
	connack chan int64
	acked   chan struct{}
	arrived chan uint32
	ponged  chan struct{}
	suback  chan struct{}
	mutex   sync.Mutex
	ended   error
}

// open begins to connect, and writes CONNECT.
func (d *device) open(ctx context.Context) (*connection, error) {
	dial := quic.DialAddr
	if d.task.EarlyData {
		dial = quic.DialAddrEarly
	}
	conn, err := dial(ctx, d.address, d.tls.Clone(), &quic.Config{})
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	stream, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, fmt.Errorf("no stream: %w", err)
	}
	room := max(d.task.Messages, 1)
	c := &connection{
		quic: conn, stream: stream, dialect: v5{},
		connack: make(chan int64, 1), acked: make(chan struct{}, room),
		arrived: make(chan uint32, room), ponged: make(chan struct{}, 1), suback: make(chan struct{}, 1),
	}
	id := fmt.Sprintf("lab-quic-go-%d-%d", os.Getpid(), monotonicNs())
	if _, err := stream.Write(c.dialect.Connect(Connect{ID: id})); err != nil {
		return nil, fmt.Errorf("CONNECT: %w", err)
	}
	go c.listen()
	return c, nil
}

func (c *connection) listen() {
	from := bufio.NewReader(c.stream)
	for {
		packet, err := c.dialect.Read(from)
		if err == nil && packet.Reason >= 0x80 {
			err = fmt.Errorf("%v", packet)
		}
		if err != nil {
			c.mutex.Lock()
			c.ended = err
			c.mutex.Unlock()
			close(c.arrived)
			return
		}
		switch packet.Kind {
		case five.CONNACK:
			c.connack <- monotonicNs()
		case five.PUBACK:
			c.acked <- struct{}{}
		case five.SUBACK:
			c.suback <- struct{}{}
		case five.PINGRESP:
			c.ponged <- struct{}{}
		case five.PUBLISH:
			if packet.QoS == 1 {
				c.stream.Write(c.dialect.Ack(five.PUBACK, packet.PID))
			}
			if len(packet.Payload) >= stampBytes {
				c.arrived <- binary.BigEndian.Uint32(packet.Payload)
			}
		}
	}
}

// await waits for one of a channel's values.
func await[T any](ctx context.Context, c *connection, from <-chan T) (T, error) {
	var none T
	select {
	case value, more := <-from:
		if more {
			return value, nil
		}
	case <-c.quic.Context().Done():
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return none, fmt.Errorf("the connection ended: %w, %w", c.ended, context.Cause(c.quic.Context()))
}

// send hands a message over, and says when.
func (d *device) send(c *connection, number int) (int64, error) {
	payload := make([]byte, d.task.PayloadBytes)
	for index := range payload {
		payload[index] = 0x5a
	}
	now := monotonicNs()
	binary.BigEndian.PutUint32(payload, uint32(number))
	binary.BigEndian.PutUint64(payload[4:], uint64(now))
	message := Message{Topic: fmt.Sprintf("lab/%d", number%d.task.Topics), Payload: payload, QoS: d.task.QoS}
	_, err := c.stream.Write(c.dialect.Publish(message, uint16(number%0xfffe+1)))
	return now, err
}

func (d *device) settle(ctx context.Context, c *connection) error {
	if d.task.QoS == 0 {
		return nil
	}
	_, err := await(ctx, c, c.acked)
	return err
}

// ready says so, and waits for the word to go.
func (d *device) ready() error {
	say(map[string]string{"event": "ready"})
	if _, err := d.input.ReadBytes('\n'); err != nil {
		return errors.New("never told to go")
	}
	d.cpuNs = cpuNs()
	return nil
}

// done notes what the work took, says that it is finished, and waits for the end of the input.
func (d *device) done() {
	d.measured.LastNs = monotonicNs()
	d.measured.CPUNs = cpuNs() - d.cpuNs
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) == nil {
		d.measured.PeakRss = used.Maxrss * 1024
	}
	if stat, err := os.ReadFile("/proc/self/stat"); err == nil {
		// The fields behind the name in brackets start with the third one; the policy is the 41st.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		d.measured.IsRealTime = len(fields) > 38 && fields[38] == roundRobin
	}
	say(map[string]string{"event": "finished"})
	for {
		if _, err := d.input.ReadByte(); err != nil {
			return
		}
	}
}

func (d *device) look(c *connection) {
	statistics := c.quic.ConnectionStats()
	d.measured.RTTNs = statistics.SmoothedRTT.Nanoseconds()
	d.measured.PacketsLost += statistics.PacketsLost
}

// close ends a connection in order. The library forgets unsent data of a connection that is closed: PINGRESP
// says that everything is there.
func (c *connection) close(ctx context.Context) error {
	if _, err := c.stream.Write(c.dialect.Ping()); err != nil {
		return err
	}
	if _, err := await(ctx, c, c.ponged); err != nil {
		return err
	}
	c.stream.Write(c.dialect.Disconnect())
	c.stream.Close()
	return c.quic.CloseWithError(0, "")
}

func (d *device) connected(ctx context.Context) (*connection, error) {
	before := monotonicNs()
	c, err := d.open(ctx)
	if err != nil {
		return nil, err
	}
	at, err := await(ctx, c, c.connack)
	if err != nil {
		return nil, fmt.Errorf("no CONNACK: %w", err)
	}
	d.measured.ConnectNs = append(d.measured.ConnectNs, at-before)
	return c, nil
}

func (d *device) publish(ctx context.Context) error {
	c, err := d.connected(ctx)
	if err != nil {
		return err
	}
	if err := d.ready(); err != nil {
		return err
	}
	start := time.Now()
	var late []int64
	for number := range d.task.Messages {
		due := start.Add(time.Duration(d.task.IntervalNs) * time.Duration(number))
		time.Sleep(time.Until(due))
		late = append(late, time.Since(due).Nanoseconds())
		at, err := d.send(c, number)
		if err != nil {
			return err
		}
		if number == 0 {
			d.measured.FirstNs = at
		}
	}
	for range d.task.Messages {
		if err := d.settle(ctx, c); err != nil {
			return err
		}
	}
	if d.task.IntervalNs > 0 && len(late) > 0 {
		slices.Sort(late)
		last := len(late) - 1
		d.measured.LateP99Ns, d.measured.LateMaxNs = late[last*99/100], late[last]
	}
	d.look(c)
	d.done()
	return c.close(ctx)
}

func (d *device) stopAndWait(ctx context.Context) error {
	c, err := d.connected(ctx)
	if err != nil {
		return err
	}
	if _, err := c.stream.Write(c.dialect.Subscribe(1, d.task.QoS, "lab/#")); err != nil {
		return err
	}
	if _, err := await(ctx, c, c.suback); err != nil {
		return fmt.Errorf("no SUBACK: %w", err)
	}
	if err := d.ready(); err != nil {
		return err
	}
	d.measured.FirstNs = monotonicNs()
	for number := range d.task.Messages {
		at, err := d.send(c, number)
		if err != nil {
			return err
		}
		for {
			got, err := await(ctx, c, c.arrived)
			if err != nil {
				return err
			}
			if int(got) == number {
				break
			}
		}
		d.measured.RoundTripNs = append(d.measured.RoundTripNs, monotonicNs()-at)
	}
	d.look(c)
	d.done()
	return c.close(ctx)
}

func (d *device) reconnect(ctx context.Context) error {
	if err := d.ready(); err != nil {
		return err
	}
	for number := range d.task.Connections {
		started := monotonicNs()
		if number == 0 {
			d.measured.FirstNs = started
		}
		d.measured.StartedNs = append(d.measured.StartedNs, started)
		if err := d.oneOfMany(ctx, number, started); err != nil {
			return fmt.Errorf("connection %d: %w", number, err)
		}
	}
	d.done()
	return nil
}

func (d *device) oneOfMany(ctx context.Context, number int, started int64) error {
	c, err := d.open(ctx)
	if err != nil {
		return err
	}
	connack := int64(0)
	if d.task.WaitConnack {
		if connack, err = await(ctx, c, c.connack); err != nil {
			return fmt.Errorf("no CONNACK: %w", err)
		}
	}
	start, sentAfter := time.Now(), int64(0)
	for index := range d.task.Messages {
		if d.task.IntervalNs > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(d.task.IntervalNs) * time.Duration(index))))
		}
		if _, err := d.send(c, number*d.task.Messages+index); err != nil {
			return err
		}
		if d.task.IntervalNs == 0 {
			if err := d.settle(ctx, c); err != nil {
				return err
			}
		}
		if index == 0 {
			sentAfter = monotonicNs() - started
		}
	}
	if d.task.IntervalNs > 0 {
		for range d.task.Messages {
			if err := d.settle(ctx, c); err != nil {
				return err
			}
		}
	}
	if connack == 0 {
		if connack, err = await(ctx, c, c.connack); err != nil {
			return fmt.Errorf("no CONNACK: %w", err)
		}
	}
	d.measured.ConnectNs = append(d.measured.ConnectNs, connack-started)
	d.measured.SentAfterNs = append(d.measured.SentAfterNs, sentAfter)
	fate := "not tried"
	if c.quic.ConnectionState().Used0RTT {
		fate = "accepted"
	} else if d.task.EarlyData && number > 0 {
		fate = "rejected"
	}
	d.measured.EarlyData = append(d.measured.EarlyData, fate)
	d.look(c)
	return c.close(ctx)
}
