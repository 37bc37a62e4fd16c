package main

import (
	"bytes"
	"fmt"
	"io"

	five "github.com/eclipse/paho.golang/packets"
	three "github.com/eclipse/paho.mqtt.golang/packets"
)

// Packet is a packet from the broker, whatever its version.
type Packet struct {
	// As in both codecs and the standard.
	Kind           byte
	PID            uint16
	Reason         byte
	Codes          []byte
	Topic          string
	Payload        []byte
	QoS            byte
	Dup, Retain    bool
	SessionPresent bool
	// User Properties; the last one of a name.
	User map[string]string
}

func (p *Packet) String() string {
	if p.Kind == five.PUBLISH {
		shown := p.Payload[:min(len(p.Payload), 40)]
		return fmt.Sprintf("PUBLISH %q %q QoS %d pid %d dup %v", p.Topic, shown, p.QoS, p.PID, p.Dup)
	}
	return fmt.Sprintf("%s pid %d reason 0x%02X codes %v", kindName(p.Kind), p.PID, p.Reason, p.Codes)
}

func kindName(kind byte) string {
	if name, known := three.PacketNames[kind]; known {
		return name
	}
	return fmt.Sprintf("packet %d", kind)
}

// Connect is what a client says in CONNECT.
type Connect struct {
	ID        string
	Keep      bool
	KeepAlive uint16
	WillTopic string
	User      map[string]string
}

// Message is a PUBLISH of a client.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool
	Dup     bool
}

// sessionSeconds is how long sessions stay that are meant to.
const sessionSeconds = 60

// Dialect is an MQTT version with its codec.
type Dialect interface {
	Name() string
	Connect(Connect) []byte
	Publish(Message, uint16) []byte
	Subscribe(pid uint16, qos byte, filters ...string) []byte
	Unsubscribe(pid uint16, filters ...string) []byte
	Ack(kind byte, pid uint16) []byte
	Ping() []byte
	Disconnect() []byte
	Read(io.Reader) (*Packet, error)
}

// v5 is MQTT 5.0 as eclipse/paho.golang writes it.
type v5 struct{}

func (v5) Name() string { return "5.0" }

func pack5(content five.Packet) []byte {
	var out bytes.Buffer
	_, _ = content.WriteTo(&out) // a buffer takes everything
	return out.Bytes()
}

func (v5) Connect(c Connect) []byte {
	properties := &five.Properties{}
	if c.Keep {
		expiry := uint32(sessionSeconds)
		properties.SessionExpiryInterval = &expiry
	}
	for key, value := range c.User {
		properties.User = append(properties.User, five.User{Key: key, Value: value})
	}
	packet := &five.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: c.ID, CleanStart: !c.Keep, KeepAlive: c.KeepAlive,
		Properties: properties,
	}
	if c.WillTopic != "" {
		packet.WillFlag, packet.WillTopic, packet.WillQOS = true, c.WillTopic, 1
		packet.WillMessage, packet.WillProperties = []byte("gone"), &five.Properties{}
	}
	return pack5(packet)
}

func (v5) Publish(m Message, pid uint16) []byte {
	return pack5(&five.Publish{
		Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Duplicate: m.Dup, PacketID: pid,
		Properties: &five.Properties{},
	})
}

func (v5) Subscribe(pid uint16, qos byte, filters ...string) []byte {
	packet := &five.Subscribe{PacketID: pid, Properties: &five.Properties{}}
	for _, filter := range filters {
		packet.Subscriptions = append(packet.Subscriptions, five.SubOptions{Topic: filter, QoS: qos})
	}
	return pack5(packet)
}

func (v5) Unsubscribe(pid uint16, filters ...string) []byte {
	return pack5(&five.Unsubscribe{PacketID: pid, Topics: filters, Properties: &five.Properties{}})
}

func (v5) Ack(kind byte, pid uint16) []byte {
	switch kind {
	case five.PUBACK:
		return pack5(&five.Puback{PacketID: pid, Properties: &five.Properties{}})
	case five.PUBREC:
		return pack5(&five.Pubrec{PacketID: pid, Properties: &five.Properties{}})
	case five.PUBREL:
		return pack5(&five.Pubrel{PacketID: pid, Properties: &five.Properties{}})
	default:
		return pack5(&five.Pubcomp{PacketID: pid, Properties: &five.Properties{}})
	}
}

func (v5) Ping() []byte { return pack5(&five.Pingreq{}) }

func (v5) Disconnect() []byte { return pack5(&five.Disconnect{Properties: &five.Properties{}}) }

func (v5) Read(from io.Reader) (*Packet, error) {
	got, err := five.ReadPacket(from)
	if err != nil {
		return nil, err
	}
	packet := &Packet{Kind: got.Type, PID: got.PacketID()}
	var properties *five.Properties
	switch content := got.Content.(type) {
	case *five.Connack:
		packet.Reason, packet.SessionPresent = content.ReasonCode, content.SessionPresent
		properties = content.Properties
	case *five.Publish:
		packet.Topic, packet.Payload, packet.QoS = content.Topic, content.Payload, content.QoS
		packet.Dup, packet.Retain = content.Duplicate, content.Retain
		properties = content.Properties
	case *five.Puback:
		packet.Reason = content.ReasonCode
	case *five.Pubrec:
		packet.Reason = content.ReasonCode
	case *five.Pubrel:
		packet.Reason = content.ReasonCode
	case *five.Pubcomp:
		packet.Reason = content.ReasonCode
	case *five.Suback:
		packet.Codes = content.Reasons
	case *five.Unsuback:
		packet.Codes = content.Reasons
	case *five.Disconnect:
		packet.Reason = content.ReasonCode
	}
	if properties != nil {
		packet.User = map[string]string{}
		for _, one := range properties.User {
			packet.User[one.Key] = one.Value
		}
	}
	return packet, nil
}

// v311 is MQTT 3.1.1 as eclipse/paho.mqtt.golang writes it.
type v311 struct{}

func (v311) Name() string { return "3.1.1" }

func pack3(packet three.ControlPacket) []byte {
	var out bytes.Buffer
	_ = packet.Write(&out) // a buffer takes everything
	return out.Bytes()
}

func (v311) Connect(c Connect) []byte {
	packet := three.NewControlPacket(three.Connect).(*three.ConnectPacket)
	packet.ProtocolName, packet.ProtocolVersion = "MQTT", 4
	packet.ClientIdentifier, packet.CleanSession, packet.Keepalive = c.ID, !c.Keep, c.KeepAlive
	if c.WillTopic != "" {
		packet.WillFlag, packet.WillTopic, packet.WillQos, packet.WillMessage = true, c.WillTopic, 1, []byte("gone")
	}
	return pack3(packet)
}

func (v311) Publish(m Message, pid uint16) []byte {
	packet := three.NewControlPacket(three.Publish).(*three.PublishPacket)
	packet.TopicName, packet.Payload, packet.MessageID = m.Topic, m.Payload, pid
	packet.Qos, packet.Retain, packet.Dup = m.QoS, m.Retain, m.Dup
	return pack3(packet)
}

func (v311) Subscribe(pid uint16, qos byte, filters ...string) []byte {
	packet := three.NewControlPacket(three.Subscribe).(*three.SubscribePacket)
	packet.MessageID, packet.Topics = pid, filters
	packet.Qoss = bytes.Repeat([]byte{qos}, len(filters))
	return pack3(packet)
}

func (v311) Unsubscribe(pid uint16, filters ...string) []byte {
	packet := three.NewControlPacket(three.Unsubscribe).(*three.UnsubscribePacket)
	packet.MessageID, packet.Topics = pid, filters
	return pack3(packet)
}

func (v311) Ack(kind byte, pid uint16) []byte {
	packet := three.NewControlPacket(kind)
	switch one := packet.(type) {
	case *three.PubackPacket:
		one.MessageID = pid
	case *three.PubrecPacket:
		one.MessageID = pid
	case *three.PubrelPacket:
		one.MessageID = pid
	case *three.PubcompPacket:
		one.MessageID = pid
	}
	return pack3(packet)
}

func (v311) Ping() []byte { return pack3(three.NewControlPacket(three.Pingreq)) }

func (v311) Disconnect() []byte { return pack3(three.NewControlPacket(three.Disconnect)) }

func (v311) Read(from io.Reader) (*Packet, error) {
	got, err := three.ReadPacket(from)
	if err != nil {
		return nil, err
	}
	details := got.Details()
	packet := &Packet{PID: details.MessageID, QoS: details.Qos}
	switch one := got.(type) {
	case *three.ConnackPacket:
		packet.Kind, packet.Reason, packet.SessionPresent = three.Connack, one.ReturnCode, one.SessionPresent
	case *three.PublishPacket:
		packet.Kind, packet.Topic, packet.Payload = three.Publish, one.TopicName, one.Payload
		packet.Dup, packet.Retain = one.Dup, one.Retain
	case *three.PubackPacket:
		packet.Kind = three.Puback
	case *three.PubrecPacket:
		packet.Kind = three.Pubrec
	case *three.PubrelPacket:
		packet.Kind = three.Pubrel
	case *three.PubcompPacket:
		packet.Kind = three.Pubcomp
	case *three.SubackPacket:
		packet.Kind, packet.Codes = three.Suback, one.ReturnCodes
	case *three.UnsubackPacket:
		packet.Kind = three.Unsuback
	case *three.PingrespPacket:
		packet.Kind = three.Pingresp
	default:
		return nil, fmt.Errorf("%v from a server", got)
	}
	return packet, nil
}
