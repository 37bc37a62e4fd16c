package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

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
	QoS          byte            `json:"qos"`
	PayloadBytes int             `json:"payload_bytes"`
	Messages     int             `json:"messages"`
	Connections  int             `json:"connections"`
	Topics       int             `json:"topics"`
	IntervalNs   int64           `json:"interval_ns"`
	TimeLimitMs  int64           `json:"time_limit_ms"`
}

// Measured is what a device answers. Moments are nanoseconds of the monotonic clock.
type Measured struct {
	Event       string  `json:"event"`
	ConnectNs   []int64 `json:"connect_ns,omitempty"`
	SentAfterNs []int64 `json:"sent_after_ns,omitempty"`
	StartedNs   []int64 `json:"started_ns,omitempty"`
	FirstNs     int64   `json:"first_ns"`
	LastNs      int64   `json:"last_ns"`
	LateP99Ns   int64   `json:"late_p99_ns"`
	LateMaxNs   int64   `json:"late_max_ns"`
	CPUNs       int64   `json:"cpu_ns"`
	PeakRss     int64   `json:"peak_rss_bytes"`
	IsRealTime  bool    `json:"is_real_time"`
}

func monotonicNs() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}
	return now.Nano()
}

func usage() syscall.Rusage {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return used
}

func cpuNs() int64 {
	used := usage()
	return used.Utime.Nano() + used.Stime.Nano()
}

// isRealTime says whether the process has the lab's priority: field 41 of its status, of which the
// second may hold blanks.
func isRealTime() bool {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+1:])
	return len(fields) > 38 && fields[38] == roundRobin
}

// device is a task's work.
type device struct {
	task     *Task
	place    *url.URL
	input    *bufio.Reader
	output   io.Writer
	security *security
	measured Measured
	cpuNs    int64
}

// deviceMain is a device of the lab.
func deviceMain(in io.Reader, out io.Writer) int {
	measured, err := beDevice(bufio.NewReader(in), out)
	if err != nil {
		say(out, map[string]string{"event": "failed", "reason": err.Error()})
		return 1
	}
	measured.Event = "result"
	say(out, measured)
	return 0
}

func say(out io.Writer, word any) {
	line, _ := json.Marshal(word)
	fmt.Fprintln(out, string(line))
}

func beDevice(input *bufio.Reader, out io.Writer) (*Measured, error) {
	line, err := input.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("no task: %w", err)
	}
	var task Task
	if err := json.Unmarshal(line, &task); err != nil {
		return nil, fmt.Errorf("no task: %w", err)
	}
	if task.QoS != 1 || (len(task.Credentials) > 0 && string(task.Credentials) != `"none"`) {
		return nil, errors.New("only confirmable messages (QoS 1) without credentials with this device")
	}
	if task.PayloadBytes < stampBytes || task.Topics < 1 {
		return nil, errors.New("a task has topics, and messages with room for their stamp")
	}
	place, err := url.Parse(task.URL)
	if err != nil || (place.Scheme != "coap" && place.Scheme != "coaps") {
		return nil, fmt.Errorf("not an URL of CoAP: %q", task.URL)
	}
	d := &device{task: &task, place: place, input: input, output: out}
	if place.Scheme == "coaps" {
		if d.security, err = clientSecurity(&task); err != nil {
			return nil, err
		}
	}
	limit := time.Duration(task.TimeLimitMs) * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch task.Role {
	case "publisher":
		err = d.publish(ctx)
	case "connect-publish":
		err = d.reconnect(ctx)
	default:
		err = fmt.Errorf("no role %q with this device", task.Role)
	}
	return &d.measured, err
}

// message is the next one, stamped now; and the topic that it goes to.
func (d *device) message(number int) (payload []byte, topic string, atNs int64) {
	payload = make([]byte, d.task.PayloadBytes)
	for at := range payload {
		payload[at] = 0x5a
	}
	atNs = monotonicNs()
	binary.BigEndian.PutUint32(payload, uint32(number))
	binary.BigEndian.PutUint64(payload[4:], uint64(atNs))
	return payload, fmt.Sprintf("lab/%d", number%d.task.Topics), atNs
}

func (d *device) ready() error {
	say(d.output, map[string]string{"event": "ready"})
	if _, err := d.input.ReadBytes('\n'); err != nil {
		return errors.New("never told to go")
	}
	d.cpuNs = cpuNs()
	return nil
}

// finish says that all is done, and waits for the end of the input.
func (d *device) finish() {
	d.measured.LastNs = monotonicNs()
	d.measured.CPUNs = cpuNs() - d.cpuNs
	d.measured.PeakRss = usage().Maxrss * 1024
	d.measured.IsRealTime = isRealTime()
	say(d.output, map[string]string{"event": "finished"})
	_, _ = io.Copy(io.Discard, d.input)
}

// publish sends a message every interval, whatever became of those before.
func (d *device) publish(ctx context.Context) error {
	before := monotonicNs()
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	d.measured.ConnectNs = []int64{monotonicNs() - before}
	if err := d.ready(); err != nil {
		return err
	}
	start := time.Now()
	late := make([]int64, 0, d.task.Messages)
	outcomes := make(chan error, d.task.Messages)
	for number := range d.task.Messages {
		due := start.Add(time.Duration(number) * time.Duration(d.task.IntervalNs))
		time.Sleep(time.Until(due))
		late = append(late, time.Since(due).Nanoseconds())
		payload, topic, atNs := d.message(number)
		if number == 0 {
			d.measured.FirstNs = atNs
		}
		go func() { outcomes <- conn.post(ctx, topic, payload) }()
	}
	for range d.task.Messages {
		// A message that was given up is missing at the subscriber, which the lab counts.
		if err := <-outcomes; err != nil && !errors.Is(err, errGivenUp) {
			return err
		}
	}
	if d.task.IntervalNs > 0 && len(late) > 0 {
		slices.Sort(late)
		d.measured.LateP99Ns = late[(len(late)-1)*99/100]
		d.measured.LateMaxNs = late[len(late)-1]
	}
	d.finish()
	return nil
}

// reconnect connects, sends and ends the connection, again and again.
func (d *device) reconnect(ctx context.Context) error {
	if err := d.ready(); err != nil {
		return err
	}
	for connection := range d.task.Connections {
		started := monotonicNs()
		if connection == 0 {
			d.measured.FirstNs = started
		}
		d.measured.StartedNs = append(d.measured.StartedNs, started)
		if err := d.oneOfMany(ctx, connection, started); err != nil {
			return fmt.Errorf("connection %d: %w", connection, err)
		}
	}
	d.finish()
	return nil
}

func (d *device) oneOfMany(ctx context.Context, connection int, started int64) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	d.measured.ConnectNs = append(d.measured.ConnectNs, monotonicNs()-started)
	for index := range d.task.Messages {
		payload, topic, _ := d.message(connection*d.task.Messages + index)
		if err := conn.post(ctx, topic, payload); err != nil && !errors.Is(err, errGivenUp) {
			return err
		}
		if index == 0 {
			d.measured.SentAfterNs = append(d.measured.SentAfterNs, monotonicNs()-started)
		}
	}
	return nil
}
