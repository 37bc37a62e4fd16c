//! What a client can do wrong, what it is told, and how much it loses.

use bytes::{BufMut as _, BytesMut};
use sterna_amqp::performatives::{
    Attach, Begin, Close, Detach, Disposition, End as EndFrame, Flow, Open, Performative,
    ReceiverSettleMode, Role, SenderSettleMode, Transfer,
};
use sterna_amqp::security::{ProtocolHeader, ProtocolId};
use sterna_amqp::types::{Encoded, ListWriter, MapWriter, Value};
use sterna_amqp::{Condition, Limits, Scope, frame};

use crate::harness::{End, Lanes, agree, attach, encode, frames};

/// What is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lost {
    Connection,
    Session,
    Link,
}
use Lost::{Connection, Link, Session};

/// A client that a test plays.
struct Script {
    server: End,
    input: Lanes,
}

fn limits() -> Limits {
    Limits {
        max_frame_bytes: 4_096,
        channel_max: 3,
        links_per_session: 4,
        max_link_name_bytes: 16,
        unsettled_per_link: 3,
        max_message_bytes: 100,
        max_assembling_bytes: 150,
        max_errant_frames: 2,
        ..Limits::default()
    }
}

impl Script {
    fn new(limits: &Limits) -> Self {
        Self {
            server: End::server(limits),
            input: Lanes::default(),
        }
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.input.0.entry(0).or_default().extend_from_slice(bytes);
        self.server
            .read(&mut self.input, 0, usize::MAX, |connection, out, event| {
                agree(connection, out, &event, 5);
            });
        self
    }

    fn send(&mut self, channel: u16, performative: &Performative<'_>) -> &mut Self {
        self.raw(&encode(channel, performative, &[]))
    }

    /// A frame with any body.
    fn body(&mut self, channel: u16, body: &[u8]) -> &mut Self {
        let mut out = BytesMut::new();
        frame::encode(&mut out, frame::TYPE_AMQP, channel, |out| {
            out.put_slice(body);
        });
        self.raw(&out)
    }

    /// A described list of any fields.
    fn list(&mut self, channel: u16, code: u8, fields: &[Value<'_>]) -> &mut Self {
        let body = composite(code, fields);
        self.body(channel, &body)
    }

    fn header(&mut self) -> &mut Self {
        self.raw(b"AMQP\x00\x01\x00\x00")
    }

    fn open(&mut self) -> &mut Self {
        self.header().send(0, &Performative::Open(Open::new("me")))
    }

    /// Open, and a session on channel 1.
    fn begin(&mut self) -> &mut Self {
        self.open().send(1, &Performative::Begin(begin()))
    }

    /// A session with a link on which the client sends, with credit 5.
    fn sender(&mut self) -> &mut Self {
        self.begin()
            .send(1, &Performative::Attach(attach("out", 0, Role::Sender)))
    }

    /// A session with a link on which the client receives.
    fn receiver(&mut self) -> &mut Self {
        self.begin()
            .send(1, &Performative::Attach(attach("in", 0, Role::Receiver)))
    }

    fn transfer(&mut self, transfer: Transfer<'_>, payload: &[u8]) -> &mut Self {
        self.raw(&encode(1, &Performative::Transfer(transfer), payload))
    }
}

fn composite(code: u8, fields: &[Value<'_>]) -> BytesMut {
    let mut out = BytesMut::from(&[0x00, 0x53, code][..]);
    let mut list = ListWriter::new(&mut out);
    for field in fields {
        list.push(field);
    }
    list.finish();
    out
}

fn begin() -> Begin<'static> {
    Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window: 100,
        outgoing_window: 100,
        handle_max: u32::MAX,
        offered_capabilities: sterna_amqp::types::Multiple::None,
        desired_capabilities: sterna_amqp::types::Multiple::None,
        properties: None,
    }
}

fn flow() -> Flow<'static> {
    Flow {
        next_incoming_id: Some(0),
        incoming_window: 100,
        next_outgoing_id: 0,
        outgoing_window: 100,
        handle: None,
        delivery_count: None,
        link_credit: None,
        available: None,
        drain: false,
        echo: false,
        properties: None,
    }
}

fn transfer(delivery_id: u32) -> Transfer<'static> {
    Transfer {
        handle: 0,
        delivery_id: Some(delivery_id),
        delivery_tag: Some(b"tag"),
        message_format: Some(0),
        settled: None,
        more: false,
        rcv_settle_mode: None,
        state: None,
        resume: false,
        aborted: false,
        batchable: false,
    }
}

fn detach(handle: u32) -> Performative<'static> {
    Performative::Detach(Detach {
        handle,
        closed: true,
        error: None,
    })
}

fn disposition(first: u32, last: Option<u32>) -> Performative<'static> {
    Performative::Disposition(Disposition {
        role: Role::Receiver,
        first,
        last,
        settled: true,
        state: None,
        batchable: false,
    })
}

fn map(entries: &[(Value<'_>, Value<'_>)]) -> Encoded {
    let mut out = BytesMut::new();
    let mut map = MapWriter::new(&mut out);
    for (key, value) in entries {
        map.push(key, value);
    }
    map.finish();
    Encoded::from_bytes(out.freeze()).unwrap()
}

/// The fields of an attach up to and with source and target.
fn attach_fields<'a>(source: &'a Encoded, target: &'a Encoded) -> [Value<'a>; 10] {
    [
        Value::String("x"),
        Value::Uint(0),
        Value::Boolean(false),
        Value::Null,
        Value::Null,
        source.value(),
        target.value(),
        Value::Null,
        Value::Null,
        Value::Uint(0),
    ]
}

fn encoded(code: u8, fields: &[Value<'_>]) -> Encoded {
    Encoded::from_bytes(composite(code, fields).freeze()).unwrap()
}

fn null() -> Encoded {
    Encoded::new(&Value::Null)
}

/// An attach with this source.
fn with_source(script: &mut Script, fields: &[Value<'_>]) {
    let (source, target) = (encoded(0x28, fields), null());
    let fields = attach_fields(&source, &target);
    script.begin().list(1, 0x12, &fields);
}

/// An attach with this unsettled map.
fn with_unsettled(script: &mut Script, entries: &[(Value<'_>, Value<'_>)]) {
    let map = map(entries);
    let mut fields = attach_fields(&map, &map);
    fields[5] = Value::Null;
    fields[6] = Value::Null;
    fields[7] = map.value();
    script.begin().list(1, 0x12, &fields);
}

type Row = (&'static str, Lost, Condition, fn(&mut Script));

const FRAMING: Condition = Condition::FRAMING_ERROR;
const DECODE: Condition = Condition::DECODE_ERROR;
const INVALID: Condition = Condition::INVALID_FIELD;
const NOT_ALLOWED: Condition = Condition::NOT_ALLOWED;
const NOT_IMPLEMENTED: Condition = Condition::NOT_IMPLEMENTED;
const STATE: Condition = Condition::ILLEGAL_STATE;
const LIMIT: Condition = Condition::RESOURCE_LIMIT_EXCEEDED;
const UNATTACHED: Condition = Condition::UNATTACHED_HANDLE;
const NO_CREDIT: Condition = Condition::TRANSFER_LIMIT_EXCEEDED;

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // Protocol headers and framing: part 2, sections 2.2 and 2.3.
    ("another protocol", Connection, FRAMING, |s| { s.raw(b"GET / HTTP/1.1\r\n"); }),
    ("another version", Connection, NOT_IMPLEMENTED, |s| { s.raw(b"AMQP\x00\x01\x01\x00"); }),
    ("AMQP 0-9-1", Connection, NOT_IMPLEMENTED, |s| { s.raw(b"AMQP\x00\x00\x09\x01"); }),
    ("TLS within AMQP", Connection, NOT_IMPLEMENTED, |s| { s.raw(b"AMQP\x02\x01\x00\x00"); }),
    ("SASL that is not offered", Connection, NOT_IMPLEMENTED, |s| { s.raw(b"AMQP\x03\x01\x00\x00"); }),
    ("an unknown layer", Connection, NOT_IMPLEMENTED, |s| { s.raw(b"AMQP\x07\x01\x00\x00"); }),
    ("frame before the header", Connection, FRAMING, |s| { s.send(0, &Performative::Open(Open::new("me"))); }),
    ("header twice", Connection, FRAMING, |s| { s.header().header(); }),
    ("header after the open", Connection, FRAMING, |s| { s.open().header(); }),
    ("frame of 7 bytes", Connection, FRAMING, |s| { s.open().raw(&[0, 0, 0, 7, 2, 0, 0, 0]); }),
    ("data offset of 1", Connection, FRAMING, |s| { s.open().raw(&[0, 0, 0, 8, 1, 0, 0, 0]); }),
    ("data offset beyond the frame", Connection, FRAMING, |s| { s.open().raw(&[0, 0, 0, 8, 3, 0, 0, 0]); }),
    ("frame above max-frame-size", Connection, FRAMING, |s| { s.open().raw(&[0, 0, 16, 1, 2, 0, 0, 0]); }),
    ("frame above 512 bytes before the header", Connection, FRAMING, |s| { s.raw(&[0, 0, 2, 1, 2, 0, 0, 0]); }),
    ("SASL frame instead of open", Connection, FRAMING, |s| { s.header().raw(&[0, 0, 0, 8, 2, 1, 0, 0]); }),
    ("SASL frame after open", Connection, FRAMING, |s| { s.open().raw(&[0, 0, 0, 8, 2, 1, 0, 0]); }),
    ("unknown frame type", Connection, FRAMING, |s| { s.open().raw(&[0, 0, 0, 8, 2, 9, 0, 0]); }),
    // Open: section 2.7.1.
    ("begin before open", Connection, STATE, |s| { s.header().send(1, &Performative::Begin(begin())); }),
    ("close before open", Connection, STATE, |s| { s.header().send(0, &Performative::Close(Close { error: None })); }),
    ("open without container-id", Connection, DECODE, |s| { s.header().list(0, 0x10, &[]); }),
    ("container-id that is a symbol", Connection, DECODE, |s| { s.header().list(0, 0x10, &[Value::Symbol("me")]); }),
    ("max-frame-size of 511", Connection, INVALID, |s| { s.header().list(0, 0x10, &[Value::String("me"), Value::Null, Value::Uint(511)]); }),
    ("idle-time-out of 1 ms", Connection, NOT_ALLOWED, |s| { s.header().send(0, &Performative::Open(Open { idle_time_out: Some(1), ..Open::new("me") })); }),
    ("open on channel 1", Connection, FRAMING, |s| { s.header().send(1, &Performative::Open(Open::new("me"))); }),
    ("open with eleven fields", Connection, DECODE, |s| {
        let mut fields = [Value::Null; 11];
        fields[0] = Value::String("me");
        s.header().list(0, 0x10, &fields);
    }),
    ("bytes after open", Connection, DECODE, |s| { s.header().raw(&encode(0, &Performative::Open(Open::new("me")), b"x")); }),
    ("second open", Connection, STATE, |s| { s.open().send(0, &Performative::Open(Open::new("me"))); }),
    // Frame bodies: part 1.
    ("body that is no described type", Connection, DECODE, |s| { s.open().body(0, &[0x45]); }),
    ("body of an unknown type", Connection, DECODE, |s| { s.open().list(0, 0x7f, &[]); }),
    ("body with a string as descriptor", Connection, DECODE, |s| { s.open().body(0, &[0x00, 0xa1, 1, b'x', 0x45]); }),
    ("body with a map instead of a list", Connection, DECODE, |s| { s.open().body(0, &[0x00, 0x53, 0x18, 0xc1, 1, 0]); }),
    ("body that is cut off", Connection, DECODE, |s| { s.open().body(0, &[0x00, 0x53, 0x18, 0xc0, 9, 1]); }),
    ("list with fewer entries than it says", Connection, DECODE, |s| { s.open().body(0, &[0x00, 0x53, 0x11, 0xc0, 2, 4, 0x40]); }),
    ("SASL body in an AMQP frame", Connection, DECODE, |s| { s.open().list(0, 0x41, &[Value::Symbol("PLAIN")]); }),
    ("message section as a body", Connection, DECODE, |s| { s.open().body(0, &[0x00, 0x53, 0x77, 0x40]); }),
    // Begin and channels: sections 2.5.1 and 2.7.2.
    ("begin on a channel in use", Connection, NOT_ALLOWED, |s| { s.begin().send(1, &Performative::Begin(begin())); }),
    ("answer to a begin that was not sent", Connection, INVALID, |s| { s.open().send(1, &Performative::Begin(Begin { remote_channel: Some(0), ..begin() })); }),
    ("channel above channel-max", Connection, FRAMING, |s| { s.open().send(4, &Performative::Begin(begin())); }),
    ("begin without next-outgoing-id", Connection, DECODE, |s| { s.open().list(1, 0x11, &[Value::Null, Value::Null, Value::Uint(1), Value::Uint(1)]); }),
    ("begin without incoming-window", Connection, DECODE, |s| { s.open().list(1, 0x11, &[Value::Null, Value::Uint(1), Value::Null, Value::Uint(1)]); }),
    ("begin without outgoing-window", Connection, DECODE, |s| { s.open().list(1, 0x11, &[Value::Null, Value::Uint(1), Value::Uint(1)]); }),
    ("begin with a negative window", Connection, DECODE, |s| { s.open().list(1, 0x11, &[Value::Null, Value::Uint(1), Value::Int(-1), Value::Uint(1)]); }),
    ("attach without a session", Connection, NOT_ALLOWED, |s| { s.open().send(1, &Performative::Attach(attach("x", 0, Role::Sender))); }),
    ("flow without a session", Connection, NOT_ALLOWED, |s| { s.open().send(1, &Performative::Flow(flow())); }),
    ("transfer without a session", Connection, NOT_ALLOWED, |s| { s.open().transfer(transfer(0), b"m"); }),
    ("disposition without a session", Connection, NOT_ALLOWED, |s| { s.open().send(1, &disposition(0, None)); }),
    ("detach without a session", Connection, NOT_ALLOWED, |s| { s.open().send(1, &detach(0)); }),
    ("end without a session", Connection, NOT_ALLOWED, |s| { s.open().send(1, &Performative::End(EndFrame { error: None })); }),
    ("frame after the end", Connection, NOT_ALLOWED, |s| { s.begin().send(1, &Performative::End(EndFrame { error: None })).send(1, &Performative::Flow(flow())); }),
    ("session that goes on after an error", Connection, NOT_ALLOWED, |s| {
        s.begin().send(1, &detach(7));
        s.server.violations.clear();
        for _ in 0..3 { s.send(1, &Performative::Flow(flow())); }
    }),
    // Attach: sections 2.6.3 and 2.7.3.
    ("handle above handle-max", Connection, FRAMING, |s| { s.begin().send(1, &Performative::Attach(attach("x", 4, Role::Sender))); }),
    ("handle in use", Session, Condition::HANDLE_IN_USE, |s| { s.sender().send(1, &Performative::Attach(attach("other", 0, Role::Sender))); }),
    ("handle in use by a link of the same name", Session, Condition::HANDLE_IN_USE, |s| { s.sender().send(1, &Performative::Attach(attach("out", 0, Role::Sender))); }),
    ("link without a name", Connection, DECODE, |s| { s.begin().list(1, 0x12, &[Value::Null, Value::Uint(0), Value::Boolean(true)]); }),
    ("link without a handle", Connection, DECODE, |s| { s.begin().list(1, 0x12, &[Value::String("x"), Value::Null, Value::Boolean(true)]); }),
    ("link without a role", Connection, DECODE, |s| { s.begin().list(1, 0x12, &[Value::String("x"), Value::Uint(0)]); }),
    ("unknown snd-settle-mode", Connection, INVALID, |s| { s.begin().list(1, 0x12, &[Value::String("x"), Value::Uint(0), Value::Boolean(true), Value::Ubyte(3)]); }),
    ("unknown rcv-settle-mode", Connection, INVALID, |s| { s.begin().list(1, 0x12, &[Value::String("x"), Value::Uint(0), Value::Boolean(true), Value::Null, Value::Ubyte(2)]); }),
    ("sender without initial-delivery-count", Link, INVALID, |s| { s.begin().send(1, &Performative::Attach(Attach { initial_delivery_count: None, ..attach("x", 0, Role::Sender) })); }),
    ("name of 17 bytes", Session, LIMIT, |s| { s.begin().send(1, &Performative::Attach(attach("a name too long..", 0, Role::Sender))); }),
    ("a name that fits into no frame of the client", Session, Condition::FRAME_SIZE_TOO_SMALL, |s| {
        s.server = End::server(&Limits::default());
        let name = "x".repeat(500);
        s.header().send(0, &Performative::Open(Open { max_frame_size: 512, ..Open::new("me") }))
            .send(1, &Performative::Begin(begin()))
            .send(1, &Performative::Attach(attach(&name, 0, Role::Sender)));
    }),
    ("more links than the client itself takes", Session, LIMIT, |s| {
        s.open().send(1, &Performative::Begin(Begin { handle_max: 0, ..begin() }))
            .send(1, &Performative::Attach(attach("a", 0, Role::Sender)))
            .send(1, &Performative::Attach(attach("b", 1, Role::Sender)));
    }),
    ("source of an unknown type", Connection, DECODE, |s| {
        let (source, target) = (encoded(0x7f, &[]), null());
        s.begin().list(1, 0x12, &attach_fields(&source, &target));
    }),
    ("target of an unknown type", Connection, DECODE, |s| {
        let (source, target) = (null(), encoded(0x28, &[]));
        s.begin().list(1, 0x12, &attach_fields(&source, &target));
    }),
    ("unknown durability", Connection, INVALID, |s| with_source(s, &[Value::Null, Value::Uint(3)])),
    ("unknown expiry policy", Connection, INVALID, |s| with_source(s, &[Value::Null, Value::Null, Value::Symbol("sometimes")])),
    ("timeout that is no uint", Connection, DECODE, |s| with_source(s, &[Value::Null, Value::Null, Value::Null, Value::Ulong(1)])),
    ("unknown distribution mode", Connection, INVALID, |s| with_source(s, &[Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Symbol("borrow")])),
    ("unknown default outcome", Connection, INVALID, |s| {
        let outcome = encoded(0x7f, &[]);
        with_source(s, &[Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, outcome.value()]);
    }),
    ("outcomes that are no symbols", Connection, DECODE, |s| with_source(s, &[Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::String("x")])),
    ("unsettled tags that are strings", Link, INVALID, |s| with_unsettled(s, &[(Value::String("a"), Value::Null)])),
    ("an unsettled tag twice", Link, DECODE, |s| with_unsettled(s, &[(Value::Binary(b"a"), Value::Null), (Value::Binary(b"a"), Value::Null)])),
    ("too many unsettled deliveries in a map", Link, LIMIT, |s| with_unsettled(s, &[(Value::Binary(b"a"), Value::Null), (Value::Binary(b"b"), Value::Null), (Value::Binary(b"c"), Value::Null), (Value::Binary(b"d"), Value::Null)])),
    // Flow: sections 2.5.6, 2.6.7 and 2.7.4.
    ("next-incoming-id of a transfer to come", Session, INVALID, |s| { s.begin().send(1, &Performative::Flow(Flow { next_incoming_id: Some(1), ..flow() })); }),
    ("delivery-count without a handle", Session, INVALID, |s| { s.begin().send(1, &Performative::Flow(Flow { delivery_count: Some(0), ..flow() })); }),
    ("link-credit without a handle", Session, INVALID, |s| { s.begin().send(1, &Performative::Flow(Flow { link_credit: Some(0), ..flow() })); }),
    ("drain without a handle", Session, INVALID, |s| { s.begin().send(1, &Performative::Flow(Flow { drain: true, ..flow() })); }),
    ("flow of a link that is not attached", Session, UNATTACHED, |s| { s.begin().send(1, &Performative::Flow(Flow { handle: Some(1), ..flow() })); }),
    ("a receiver that counts too far", Link, INVALID, |s| { s.receiver().send(1, &Performative::Flow(Flow { handle: Some(0), delivery_count: Some(1), link_credit: Some(1), ..flow() })); }),
    ("a sender that counts back", Link, INVALID, |s| { s.sender().send(1, &Performative::Flow(Flow { handle: Some(0), delivery_count: Some(u32::MAX), ..flow() })); }),
    ("a sender that counts beyond its credit", Link, NO_CREDIT, |s| { s.sender().send(1, &Performative::Flow(Flow { handle: Some(0), delivery_count: Some(6), ..flow() })); }),
    ("flow without incoming-window", Connection, DECODE, |s| { s.begin().list(1, 0x13, &[Value::Uint(0), Value::Null, Value::Uint(0), Value::Uint(0)]); }),
    // Transfer: sections 2.6.12, 2.6.14 and 2.7.5.
    ("transfer on a handle that is not attached", Session, UNATTACHED, |s| { s.begin().transfer(transfer(0), b"m"); }),
    ("transfer without credit", Link, NO_CREDIT, |s| { s.sender(); for id in 0..6 { s.transfer(Transfer { settled: Some(true), ..transfer(id) }, b"m"); } }),
    ("transfer without delivery-id", Link, INVALID, |s| { s.sender().transfer(Transfer { delivery_id: None, ..transfer(0) }, b"m"); }),
    ("transfer without delivery-tag", Link, INVALID, |s| { s.sender().transfer(Transfer { delivery_tag: None, ..transfer(0) }, b"m"); }),
    ("delivery-tag of 33 bytes", Link, INVALID, |s| { s.sender().transfer(Transfer { delivery_tag: Some(&[7; 33]), ..transfer(0) }, b"m"); }),
    ("delivery-id again", Session, INVALID, |s| { s.sender().transfer(transfer(3), b"m").transfer(transfer(3), b"m"); }),
    ("delivery-id that goes back", Session, INVALID, |s| { s.sender().transfer(transfer(3), b"m").transfer(transfer(2), b"m"); }),
    ("delivery-id changes within a delivery", Link, INVALID, |s| { s.sender().transfer(Transfer { more: true, ..transfer(0) }, b"m").transfer(transfer(1), b"m"); }),
    ("delivery-tag changes within a delivery", Link, INVALID, |s| { s.sender().transfer(Transfer { more: true, ..transfer(0) }, b"m").transfer(Transfer { delivery_tag: Some(b"x"), ..transfer(0) }, b"m"); }),
    ("message-format changes within a delivery", Link, INVALID, |s| { s.sender().transfer(Transfer { more: true, ..transfer(0) }, b"m").transfer(Transfer { message_format: Some(1), ..transfer(0) }, b"m"); }),
    ("message of 101 bytes", Link, Condition::MESSAGE_SIZE_EXCEEDED, |s| { s.sender().transfer(transfer(0), &[0; 101]); }),
    ("message of 101 bytes in two", Link, Condition::MESSAGE_SIZE_EXCEEDED, |s| { s.sender().transfer(Transfer { more: true, ..transfer(0) }, &[0; 100]).transfer(transfer(0), &[0; 1]); }),
    ("incomplete messages of 200 bytes on two links", Session, LIMIT, |s| {
        s.sender().send(1, &Performative::Attach(attach("out2", 1, Role::Sender)))
            .transfer(Transfer { more: true, ..transfer(0) }, &[0; 100])
            .transfer(Transfer { handle: 1, more: true, ..transfer(1) }, &[0; 100]);
    }),
    ("unsettled on a link of settled ones", Link, NOT_ALLOWED, |s| {
        s.begin().send(1, &Performative::Attach(Attach { snd_settle_mode: SenderSettleMode::Settled, ..attach("out", 0, Role::Sender) }))
            .transfer(transfer(0), b"m");
    }),
    ("unsettled in its last transfer on a link of settled ones", Link, NOT_ALLOWED, |s| {
        s.begin().send(1, &Performative::Attach(Attach { snd_settle_mode: SenderSettleMode::Settled, ..attach("out", 0, Role::Sender) }))
            .transfer(Transfer { more: true, ..transfer(0) }, b"m").transfer(transfer(0), b"m");
    }),
    ("settled on a link of unsettled ones", Link, NOT_ALLOWED, |s| {
        s.begin().send(1, &Performative::Attach(Attach { snd_settle_mode: SenderSettleMode::Unsettled, ..attach("out", 0, Role::Sender) }))
            .transfer(Transfer { settled: Some(true), ..transfer(0) }, b"m");
    }),
    ("settle mode second on a link of mode first", Link, INVALID, |s| { s.sender().transfer(Transfer { rcv_settle_mode: Some(ReceiverSettleMode::Second), ..transfer(0) }, b"m"); }),
    ("transfer from a receiver", Link, NOT_ALLOWED, |s| { s.receiver().transfer(transfer(0), b"m"); }),
    ("more unsettled deliveries than a link may have", Link, LIMIT, |s| { s.sender(); for id in 0..4 { s.transfer(transfer(id), b"m"); } }),
    ("unknown delivery state", Connection, INVALID, |s| { let state = encoded(0x7f, &[]); s.sender().list(1, 0x14, &[Value::Uint(0), Value::Uint(0), Value::Binary(b"t"), Value::Null, Value::Null, Value::Null, Value::Null, state.value()]); }),
    ("transfer without a handle", Connection, DECODE, |s| { s.sender().list(1, 0x14, &[Value::Null, Value::Uint(0)]); }),
    // Disposition: section 2.7.6; delivery states: part 3, section 3.4.
    ("last delivery before the first", Session, INVALID, |s| { s.begin().send(1, &disposition(5, Some(4))); }),
    ("disposition without a role", Connection, DECODE, |s| { s.begin().list(1, 0x15, &[Value::Null, Value::Uint(0)]); }),
    ("disposition without a first delivery", Connection, DECODE, |s| { s.begin().list(1, 0x15, &[Value::Boolean(true)]); }),
    ("state that is no described type", Connection, DECODE, |s| { s.begin().list(1, 0x15, &[Value::Boolean(true), Value::Uint(0), Value::Null, Value::Null, Value::String("ok")]); }),
    ("rejected with an error without a condition", Connection, DECODE, |s| {
        let error = encoded(0x1d, &[]);
        let state = encoded(0x25, &[error.value()]);
        s.begin().list(1, 0x15, &[Value::Boolean(true), Value::Uint(0), Value::Null, Value::Null, state.value()]);
    }),
    ("received without a section", Connection, DECODE, |s| { let state = encoded(0x23, &[]); s.begin().list(1, 0x15, &[Value::Boolean(true), Value::Uint(0), Value::Null, Value::Null, state.value()]); }),
    ("transactional state without a transaction", Connection, DECODE, |s| { let state = encoded(0x34, &[]); s.begin().list(1, 0x15, &[Value::Boolean(true), Value::Uint(0), Value::Null, Value::Null, state.value()]); }),
    // Detach: section 2.7.7.
    ("detach of a handle that is not attached", Session, UNATTACHED, |s| { s.begin().send(1, &detach(0)); }),
    ("detach twice", Session, UNATTACHED, |s| { s.sender().send(1, &detach(0)).send(1, &detach(0)); }),
    ("transfer after the detach", Session, UNATTACHED, |s| { s.sender().send(1, &detach(0)).transfer(transfer(0), b"m"); }),
    ("link that goes on after an error", Session, Condition::ERRANT_LINK, |s| {
        s.sender().transfer(transfer(0), &[0; 101]);
        s.server.violations.clear();
        for id in 1..4 { s.transfer(transfer(id), b"m"); }
    }),
    ("detach without a handle", Connection, DECODE, |s| { s.sender().list(1, 0x16, &[]); }),
];

#[test]
fn every_violation_has_its_condition_and_scope() {
    assert!(ROWS.len() >= 80, "{}", ROWS.len());
    for (name, lost, condition, play) in ROWS {
        let mut script = Script::new(&limits());
        play(&mut script);
        let [violation] = script.server.violations[..] else {
            panic!("{name}: {:?}", script.server.violations);
        };
        assert_eq!(violation.condition, *condition, "{name}: {violation}");
        let scope = match violation.scope {
            Scope::Connection => Connection,
            Scope::Session(_) => Session,
            Scope::Link(_) => Link,
        };
        assert_eq!(scope, *lost, "{name}: {violation}");
        let told = frames(&script.server.out.0[&0]);
        let last = &told
            .iter()
            .rev()
            .find(|frame| frame.1 != "Empty")
            .unwrap()
            .1;
        let expected = match violation.scope {
            // The header that would have been right is all that can be said.
            Scope::Connection if last.starts_with("ProtocolHeader") => {
                assert!(script.server.connection.is_closed(), "{name}");
                continue;
            }
            Scope::Connection => "Close(Close",
            Scope::Session(_) => "End(End",
            Scope::Link(_) => "Detach(Detach",
        };
        assert!(last.starts_with(expected), "{name}: {last}");
        assert!(last.contains(condition.as_str()), "{name}: {last}");
    }
}

/// After a violation of a link or session the rest goes on.
#[test]
fn what_is_not_lost_goes_on() {
    for (name, lost, _, play) in ROWS {
        if *lost == Connection {
            continue;
        }
        let mut script = Script::new(&limits());
        play(&mut script);
        script.server.out = Lanes::default();
        script.server.violations.clear();
        script
            .send(3, &Performative::Begin(begin()))
            .send(3, &Performative::Attach(attach("new", 1, Role::Sender)));
        script.raw(&encode(
            3,
            &Performative::Transfer(Transfer {
                handle: 1,
                ..transfer(0)
            }),
            b"m",
        ));
        assert_eq!(script.server.violations, [], "{name}");
        assert!(script.server.connection.is_open(), "{name}");
        // The answers to what was ended end the matter.
        let told = frames(&script.server.out.0[&0]);
        assert!(
            told.iter().any(|frame| frame.1.starts_with("Attach")),
            "{name}"
        );
        if *lost == Session {
            script.send(1, &Performative::End(EndFrame { error: None }));
            script.send(1, &Performative::Begin(begin()));
            assert_eq!(
                script.server.violations,
                [],
                "{name}: channel is free again"
            );
        }
    }
}

#[test]
fn a_closed_window_is_a_limit() {
    let mut script = Script::new(&Limits {
        incoming_window: 0,
        ..limits()
    });
    script.sender().transfer(transfer(0), b"m");
    let [violation] = script.server.violations[..] else {
        panic!("{:?}", script.server.violations);
    };
    assert_eq!(violation.condition, Condition::WINDOW_VIOLATION);
    assert!(matches!(violation.scope, Scope::Session(_)));
}

/// Section 2.2: a header that is not served is answered with one that is, and the end.
#[test]
fn a_wrong_header_is_answered_with_the_right_one() {
    for (bytes, mechanisms, right) in [
        (&b"AMQP\x00\x01\x01\x00"[..], vec![], ProtocolId::Amqp),
        (
            b"AMQP\x00\x01\x00\x00",
            vec!["PLAIN".to_owned()],
            ProtocolId::Sasl,
        ),
        (
            b"AMQP\x02\x01\x00\x00",
            vec!["PLAIN".to_owned()],
            ProtocolId::Sasl,
        ),
        (b"GET / HTTP/1.1\r\n", vec![], ProtocolId::Amqp),
    ] {
        let options = sterna_amqp::connection::ServerOptions {
            container_id: "server".to_owned(),
            mechanisms,
            require_sasl: true,
        };
        let server = sterna_amqp::Connection::server(&options, &limits(), 0);
        let mut script = Script {
            server: End::new(server, Lanes::default()),
            input: Lanes::default(),
        };
        script.raw(bytes);
        let header = ProtocolHeader {
            id: right,
            version: [1, 0, 0],
        };
        let mut expected = BytesMut::new();
        header.encode(&mut expected);
        assert_eq!(script.server.out.0[&0], expected);
        assert!(script.server.connection.is_closed());
    }
}

#[test]
fn after_the_close_only_its_answer_counts() {
    let mut script = Script::new(&limits());
    script.open().send(1, &Performative::Flow(flow()));
    assert_eq!(script.server.violations.len(), 1);
    let before = script.server.out.0[&0].len();
    script.send(1, &Performative::Begin(begin()));
    script.body(0, &[0x45]);
    assert_eq!(script.server.out.0[&0].len(), before, "nothing is answered");
    assert!(!script.server.connection.is_closed());
    script.send(0, &Performative::Close(Close { error: None }));
    assert!(script.server.connection.is_closed());
    assert_eq!(script.server.violations.len(), 1);
}

/// Clients of RabbitMQ's other protocol learn from the answer that 1.0 is served; the log says what they speak.
#[test]
fn earlier_versions_are_named() {
    for header in [
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x01\x01\x00\x09",
        b"AMQP\x01\x01\x08\x00",
    ] {
        let mut script = Script::new(&limits());
        script.raw(header);
        let detail = script.server.violations[0].detail;
        assert!(
            detail.contains("0-9-1") && detail.contains("1.0"),
            "{detail}"
        );
    }
}
