// Azure's go-amqp as a driver of the AMQP scenario: JSON lines in, JSON lines out (../README.md).
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
)

// How long an answer of the broker may take; the scenario waits less for most.
const patience = 60 * time.Second

// cannot is what the library has no way to do.
type cannot string

// Request is a line of the scenario.
type Request struct {
	N         int            `json:"n"`
	Op        string         `json:"op"`
	C         int            `json:"c"`
	S         int            `json:"s"`
	L         int            `json:"l"`
	D         int            `json:"d"`
	Transport string         `json:"transport"`
	Host      string         `json:"host"`
	Port      int            `json:"port"`
	CA        string         `json:"ca"`
	Cert      string         `json:"cert"`
	Key       string         `json:"key"`
	Container string         `json:"container"`
	SASL      string         `json:"sasl"`
	User      string         `json:"user"`
	Password  string         `json:"password"`
	MaxFrame  uint32         `json:"max_frame"`
	IdleS     float64        `json:"idle_s"`
	Name      string         `json:"name"`
	Source    Terminus       `json:"source"`
	Target    Terminus       `json:"target"`
	Snd       string         `json:"snd"`
	Rcv       string         `json:"rcv"`
	Credit    uint32         `json:"credit"`
	Message   map[string]any `json:"m"`
	Settled   bool           `json:"settled"`
	Count     int            `json:"count"`
	Size      int            `json:"size"`
	State     string         `json:"state"`
	Condition string         `json:"condition"`
	Failed    bool           `json:"failed"`
	Undeliver bool           `json:"undeliverable"`
	Closed    bool           `json:"closed"`
	Txn       *int           `json:"txn"`
}

// Terminus is a source or target.
type Terminus struct {
	Address      *string        `json:"address"`
	Dynamic      bool           `json:"dynamic"`
	Durable      uint32         `json:"durable"`
	Expiry       string         `json:"expiry"`
	Timeout      uint32         `json:"timeout"`
	Capabilities []string       `json:"capabilities"`
	Filters      map[string]any `json:"filters"`
	Distribution string         `json:"distribution"`
}

type connection struct {
	conn   *amqp.Conn
	socket net.Conn
	quiet  bool
}

type sender struct {
	link *amqp.Sender
	mode string
}

type receiver struct {
	link   *amqp.Receiver
	cancel context.CancelFunc
}

type delivery struct {
	message *amqp.Message
	from    *receiver
}

// Driver keeps what the scenario's numbers stand for.
type Driver struct {
	mutex       sync.Mutex
	connections map[int]*connection
	sessions    map[int]*amqp.Session
	senders     map[int]*sender
	receivers   map[int]*receiver
	deliveries  map[int]delivery
	number      int
}

var writing sync.Mutex

func out(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	writing.Lock()
	defer writing.Unlock()
	_, _ = os.Stdout.Write(append(text, '\n'))
}

// why finds the peer's error in the library's.
func why(err error) (condition any, description string) {
	var found *amqp.Error
	if errors.As(err, &found) && found != nil {
		return string(found.Condition), found.Description
	}
	return nil, err.Error()
}

func get[K comparable, V any](d *Driver, from map[K]V, key K) V {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return from[key]
}

func put[K comparable, V any](d *Driver, into map[K]V, key K, value V) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	into[key] = value
}

// handle answers one request.
func (d *Driver) handle(r *Request) {
	defer func() {
		switch what := recover().(type) {
		case nil:
		case cannot:
			out(map[string]any{"n": r.N, "cannot": string(what)})
		case error:
			condition, text := why(what)
			out(map[string]any{"n": r.N, "error": text, "condition": condition})
		default:
			out(map[string]any{"n": r.N, "error": fmt.Sprint(what), "condition": nil})
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer, err := d.do(ctx, r)
	if err != nil {
		condition, text := why(err)
		out(map[string]any{"n": r.N, "error": text, "condition": condition})
		return
	}
	if answer == nil {
		answer = map[string]any{}
	}
	out(map[string]any{"n": r.N, "ok": answer})
}

func (d *Driver) do(ctx context.Context, r *Request) (map[string]any, error) {
	switch r.Op {
	case "connect":
		return d.connect(ctx, r)
	case "close":
		one := get(d, d.connections, r.C)
		one.quiet = true
		return nil, one.conn.Close()
	case "abort":
		one := get(d, d.connections, r.C)
		one.quiet = true
		return nil, one.socket.Close()
	case "session":
		session, err := get(d, d.connections, r.C).conn.NewSession(ctx, nil)
		if err == nil {
			put(d, d.sessions, r.S, session)
		}
		return nil, err
	case "end":
		return nil, get(d, d.sessions, r.S).Close(ctx)
	case "sender":
		return d.sender(ctx, r)
	case "receiver":
		return d.receiver(ctx, r)
	case "detach":
		if !r.Closed {
			panic(cannot("the library detaches no link without closing it"))
		}
		if one := get(d, d.senders, r.L); one != nil {
			return nil, one.link.Close(ctx)
		}
		one := get(d, d.receivers, r.L)
		one.cancel()
		return nil, one.link.Close(ctx)
	case "send":
		return d.send(ctx, r)
	case "burst":
		return d.burst(ctx, r)
	case "credit":
		return nil, get(d, d.receivers, r.L).link.IssueCredit(r.Credit)
	case "drain":
		return nil, get(d, d.receivers, r.L).link.DrainCredit(ctx, nil)
	case "settle":
		return nil, d.settle(ctx, r)
	default:
		panic(cannot("the library has no " + r.Op))
	}
}

func (d *Driver) connect(ctx context.Context, r *Request) (map[string]any, error) {
	options := &amqp.ConnOptions{ContainerID: r.Container, HostName: r.Host, MaxFrameSize: r.MaxFrame}
	if r.IdleS > 0 {
		options.IdleTimeout = time.Duration(r.IdleS * float64(time.Second))
	}
	switch r.SASL {
	case "ANONYMOUS":
		options.SASLType = amqp.SASLTypeAnonymous()
	case "PLAIN":
		options.SASLType = amqp.SASLTypePlain(r.User, r.Password)
	case "EXTERNAL":
		options.SASLType = amqp.SASLTypeExternal("")
	case "":
	default:
		panic(cannot("the library has no " + r.SASL))
	}
	address := net.JoinHostPort(r.Host, fmt.Sprint(r.Port))
	var socket net.Conn
	var err error
	if r.Transport == "tls" {
		certificate, readError := os.ReadFile(r.CA)
		if readError != nil {
			return nil, readError
		}
		settings := &tls.Config{ServerName: r.Host, RootCAs: x509.NewCertPool()}
		settings.RootCAs.AppendCertsFromPEM(certificate)
		if r.Cert != "" {
			pair, pairError := tls.LoadX509KeyPair(r.Cert, r.Key)
			if pairError != nil {
				return nil, pairError
			}
			settings.Certificates = []tls.Certificate{pair}
		}
		socket, err = (&tls.Dialer{Config: settings}).DialContext(ctx, "tcp", address)
	} else {
		socket, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return nil, err
	}
	conn, err := amqp.NewConn(ctx, socket, options)
	if err != nil {
		return nil, err
	}
	one := &connection{conn: conn, socket: socket}
	put(d, d.connections, r.C, one)
	go func() {
		<-conn.Done()
		if one.quiet {
			return
		}
		condition, text := any(nil), ""
		if conn.Err() != nil {
			condition, text = why(conn.Err())
		}
		out(map[string]any{"event": "closed", "c": r.C, "condition": condition, "description": text})
	}()
	return map[string]any{"properties": encode(conn.Properties())[1]}, nil
}

func settleModes(r *Request) (amqp.SenderSettleMode, amqp.ReceiverSettleMode) {
	snd := map[string]amqp.SenderSettleMode{
		"settled": amqp.SenderSettleModeSettled, "unsettled": amqp.SenderSettleModeUnsettled,
		"mixed": amqp.SenderSettleModeMixed, "": amqp.SenderSettleModeMixed,
	}[r.Snd]
	rcv := amqp.ReceiverSettleModeFirst
	if r.Rcv == "second" {
		rcv = amqp.ReceiverSettleModeSecond
	}
	return snd, rcv
}

func (d *Driver) sender(ctx context.Context, r *Request) (map[string]any, error) {
	snd, rcv := settleModes(r)
	target := r.Target
	if target.Address == nil {
		target.Address = pointer("")
	}
	link, err := get(d, d.sessions, r.S).NewSender(ctx, *target.Address, &amqp.SenderOptions{
		Name: r.Name, SourceAddress: r.Name, SettlementMode: &snd, RequestedReceiverSettleMode: &rcv,
		TargetCapabilities: target.Capabilities, DynamicAddress: target.Dynamic,
		TargetDurability: amqp.Durability(target.Durable), TargetExpiryPolicy: amqp.ExpiryPolicy(target.Expiry),
		TargetExpiryTimeout: target.Timeout,
	})
	if err != nil {
		return nil, err
	}
	put(d, d.senders, r.L, &sender{link: link, mode: r.Snd})
	return map[string]any{"address": link.Address(), "max_message": link.MaxMessageSize()}, nil
}

func (d *Driver) receiver(ctx context.Context, r *Request) (map[string]any, error) {
	snd, rcv := settleModes(r)
	options := &amqp.ReceiverOptions{
		Name: r.Name, Credit: -1, SettlementMode: &rcv, RequestedSenderSettleMode: &snd,
		SourceCapabilities: r.Source.Capabilities, DynamicAddress: r.Source.Dynamic,
		SourceDurability: amqp.Durability(r.Source.Durable), SourceExpiryPolicy: amqp.ExpiryPolicy(r.Source.Expiry),
		SourceExpiryTimeout: r.Source.Timeout, SourceDistributionMode: amqp.SourceDistributionMode(r.Source.Distribution),
	}
	for name, value := range r.Source.Filters {
		described := value.([]any)
		inner := decode(described[2])
		if descriptor := described[1].([]any); descriptor[0] == "ulong" {
			options.Filters = append(options.Filters, amqp.NewLinkFilter(name, unsigned(descriptor[1]), inner))
		} else {
			if name != descriptor[1] {
				panic(cannot("the library's filters are called like their descriptors"))
			}
			options.Filters = append(options.Filters, amqp.NewLinkFilter(name, 0, inner))
		}
	}
	address := ""
	if r.Source.Address != nil {
		address = *r.Source.Address
	}
	link, err := get(d, d.sessions, r.S).NewReceiver(ctx, address, options)
	if err != nil {
		return nil, err
	}
	if r.Credit > 0 {
		if err := link.IssueCredit(r.Credit); err != nil {
			return nil, err
		}
	}
	reading, cancel := context.WithCancel(context.Background())
	one := &receiver{link: link, cancel: cancel}
	put(d, d.receivers, r.L, one)
	go d.read(reading, r.L, one)
	filters := map[string]any{}
	for name := range r.Source.Filters {
		if value := link.LinkSourceFilterValue(name); value != nil {
			filters[name] = encode(value)
		}
	}
	return map[string]any{"address": link.Address(), "filters": filters}, nil
}

// read tells of all that arrives on a link, until it ends.
func (d *Driver) read(ctx context.Context, number int, from *receiver) {
	for {
		message, err := from.link.Receive(ctx, nil)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			var link *amqp.LinkError
			if errors.As(err, &link) {
				condition, text := why(err)
				out(map[string]any{"event": "detached", "l": number, "closed": true, "condition": condition, "description": text})
			}
			return
		}
		d.mutex.Lock()
		d.number++
		current := d.number
		d.deliveries[current] = delivery{message, from}
		d.mutex.Unlock()
		// Whether it came settled the library does not show.
		out(map[string]any{"event": "message", "l": number, "d": current, "settled": nil, "m": fromMessage(message)})
	}
}

func outcome(state amqp.DeliveryState) map[string]any {
	switch is := state.(type) {
	case *amqp.StateAccepted:
		return map[string]any{"state": "accepted"}
	case *amqp.StateReleased:
		return map[string]any{"state": "released"}
	case *amqp.StateModified:
		return map[string]any{"state": "modified", "failed": is.DeliveryFailed, "undeliverable": is.UndeliverableHere}
	case *amqp.StateRejected:
		answer := map[string]any{"state": "rejected", "condition": nil}
		if is.Error != nil {
			answer["condition"], answer["description"] = string(is.Error.Condition), is.Error.Description
		}
		return answer
	}
	return map[string]any{"state": "none"}
}

func (d *Driver) one(ctx context.Context, to *sender, message *amqp.Message, settled bool) (map[string]any, error) {
	if settled {
		return map[string]any{"state": "settled"}, to.link.Send(ctx, message, &amqp.SendOptions{Settled: true})
	}
	receipt, err := to.link.SendWithReceipt(ctx, message, nil)
	if err != nil {
		return nil, err
	}
	state, err := receipt.Wait(ctx)
	if err != nil {
		return nil, err
	}
	return outcome(state), nil
}

func (d *Driver) send(ctx context.Context, r *Request) (map[string]any, error) {
	if r.Txn != nil {
		panic(cannot("the library has no transactions"))
	}
	return d.one(ctx, get(d, d.senders, r.L), toMessage(r.Message), r.Settled)
}

// burst keeps so many messages unsettled at once.
const window = 100

func (d *Driver) burst(ctx context.Context, r *Request) (map[string]any, error) {
	to := get(d, d.senders, r.L)
	states := map[string]int{}
	var receipts []amqp.SendReceipt
	wait := func(until int) error {
		for len(receipts) > until {
			state, err := receipts[0].Wait(ctx)
			if err != nil {
				return err
			}
			states[outcome(state)["state"].(string)]++
			receipts = receipts[1:]
		}
		return nil
	}
	for number := range r.Count {
		message := amqp.NewMessage(fmt.Appendf(nil, "%-*d", r.Size, number))
		if r.Settled {
			if err := to.link.Send(ctx, message, &amqp.SendOptions{Settled: true}); err != nil {
				return nil, err
			}
			states["settled"]++
			continue
		}
		receipt, err := to.link.SendWithReceipt(ctx, message, nil)
		if err != nil {
			return nil, err
		}
		receipts = append(receipts, receipt)
		if err := wait(window); err != nil {
			return nil, err
		}
	}
	err := wait(0)
	return map[string]any{"states": states}, err
}

func (d *Driver) settle(ctx context.Context, r *Request) error {
	if r.Txn != nil {
		panic(cannot("the library has no transactions"))
	}
	one := get(d, d.deliveries, r.D)
	switch r.State {
	case "accepted":
		return one.from.link.AcceptMessage(ctx, one.message)
	case "released":
		return one.from.link.ReleaseMessage(ctx, one.message)
	case "rejected":
		var found *amqp.Error
		if r.Condition != "" {
			found = &amqp.Error{Condition: amqp.ErrCond(r.Condition), Description: "as the step wants"}
		}
		return one.from.link.RejectMessage(ctx, one.message, found)
	default:
		return one.from.link.ModifyMessage(ctx, one.message, &amqp.ModifyMessageOptions{
			DeliveryFailed: r.Failed, UndeliverableHere: r.Undeliver,
		})
	}
}

func main() {
	types := "the library has no type "
	out(map[string]any{"hello": map[string]any{
		"client":       "go-amqp 1.7.0",
		"transports":   []string{"tcp", "tls"},
		"transactions": false,
		"cannot": map[string]string{
			"value-char": types + "char", "value-decimal32": types + "decimal32", "value-decimal64": types + "decimal64",
			"value-decimal128": types + "decimal128", "value-described": "the library shows described values of filters only",
			"value-array-of-ubyte": "the library takes []uint8 for binary", "value-array-of-char": types + "char",
			"value-symbol": "the library shows symbols as strings", "sasl-scram": "the library has no SCRAM", "sasl-scram-wrong": "the library has no SCRAM",
		},
	}})
	driver := &Driver{
		connections: map[int]*connection{}, sessions: map[int]*amqp.Session{}, senders: map[int]*sender{},
		receivers: map[int]*receiver{}, deliveries: map[int]delivery{},
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		request := &Request{}
		if err := json.Unmarshal(lines.Bytes(), request); err != nil {
			out(map[string]any{"n": 0, "error": err.Error(), "condition": nil})
			continue
		}
		go driver.handle(request)
	}
}
