//! A client of the engine's making, driven by hand against the broker of the fixture.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::{BTreeMap, HashMap};

use bytes::BytesMut;
use sterna_amqp::connection::{ClientOptions, LinkId, SessionId};
use sterna_amqp::link::{AttachOptions, OutgoingTransfer, Recovery, Unsettled};
use sterna_amqp::messaging::{
    DeliveryState, DeliveryStateBuf, Filters, MessageView, MessageWriter, Outcome, Properties,
    Source, Target, TargetArchetype, TerminusDurability,
};
use sterna_amqp::performatives::{Open, ReceiverSettleMode, Role, SenderSettleMode};
use sterna_amqp::sasl::Mechanism;
use sterna_amqp::transactions::{Coordinator, Declare, Discharge, Request, TransactionalState};
use sterna_amqp::types::{Composite as _, Encoded, Multiple, Value};
use sterna_amqp::{Connection, Event, Framer, Lane, LaneWriter, Limits};
use sterna_net::{StreamId, TransportKind};

use crate::fixture::{Broker, Peer};

/// What a client writes, by lane.
#[derive(Default)]
pub struct Lanes(BTreeMap<u64, BytesMut>);

impl Lanes {
    /// What is written and not sent, by lane.
    pub fn take(&mut self) -> Vec<(u64, BytesMut)> {
        std::mem::take(&mut self.0).into_iter().collect()
    }
}

impl LaneWriter for Lanes {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        self.0.entry(lane.0).or_default()
    }
}

/// What became of a link that was attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub address: Option<String>,
    pub expiry: String,
    pub durable: TerminusDurability,
    pub filters: usize,
    pub refused: bool,
    /// The whole answer.
    pub attach: Encoded,
}

/// A message that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    pub link: LinkId,
    pub id: u32,
    pub tag: Vec<u8>,
    pub settled: bool,
    pub resumed: bool,
    /// How many happenings of the client were noted before, and not taken.
    pub after: usize,
    pub payload: Vec<u8>,
}

impl Received {
    /// The text of a body that is one data section or one string.
    pub fn text(&self) -> String {
        let view = MessageView::parse(&self.payload).expect("a message");
        match (view.data(), view.body()) {
            (Some(data), _) => String::from_utf8(data.to_vec()).expect("text"),
            (None, sterna_amqp::messaging::Body::Value(Value::String(text))) => text.to_owned(),
            (None, other) => panic!("{other:?}"),
        }
    }

    /// Whether its header says that nobody had it before.
    pub fn is_first(&self) -> bool {
        let view = MessageView::parse(&self.payload).expect("a message");
        let header = view.header().expect("a header");
        header.is_some_and(|header| header.first_acquirer)
    }

    pub fn delivery_count(&self) -> u32 {
        let view = MessageView::parse(&self.payload).expect("a message");
        view.header()
            .expect("a header")
            .map_or(0, |header| header.delivery_count)
    }
}

/// What else happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Happened {
    Disposed {
        link: LinkId,
        id: u32,
        token: u64,
        state: Option<String>,
        settled: bool,
    },
    Declared(Vec<u8>),
    Detached {
        link: LinkId,
        closed: bool,
        condition: Option<String>,
        unsettled: Vec<Unsettled>,
    },
    Ended(Option<String>),
    Closed(Option<String>),
    Recovered(Vec<u8>, String),
    Drained(LinkId),
}

/// See the module.
pub struct Client {
    pub peer: Peer,
    pub engine: Connection,
    pub out: Lanes,
    framers: HashMap<u64, Framer>,
    pub received: Vec<Received>,
    pub happened: Vec<Happened>,
    /// What became of deliveries from before, with all that there is to know.
    pub recovered: Vec<(LinkId, Unsettled, Recovery)>,
    /// What was read, byte by byte, for a test that looks.
    pub tap: Option<Vec<u8>>,
    pub answers: HashMap<LinkId, Answer>,
    pub open_properties: Option<Encoded>,
    /// The broker's open.
    pub open: Option<Encoded>,
    pub is_open: bool,
    /// Why the client's engine has given up.
    pub refusal: Option<&'static str>,
    next_stream: u64,
    is_quic: bool,
}

/// How a client begins.
pub struct Start {
    pub shard: usize,
    pub transport: TransportKind,
    pub container: String,
    pub mechanism: Option<Box<dyn Mechanism>>,
    pub certificates: Vec<Box<[u8]>>,
    pub limits: Limits,
    /// Whether what is read is kept byte by byte.
    pub is_tapped: bool,
}

impl Start {
    pub fn new(container: &str) -> Self {
        Self {
            shard: 0,
            transport: TransportKind::Tcp,
            container: container.to_owned(),
            mechanism: None,
            certificates: Vec::new(),
            is_tapped: false,
            limits: Limits::default(),
        }
    }

    pub fn on(mut self, shard: usize) -> Self {
        self.shard = shard;
        self
    }

    pub fn over(mut self, transport: TransportKind) -> Self {
        self.transport = transport;
        self
    }

    pub fn with(mut self, mechanism: impl Mechanism + 'static) -> Self {
        self.mechanism = Some(Box::new(mechanism));
        self
    }
}

impl Client {
    pub fn connect(broker: &mut Broker, container: &str) -> Self {
        Self::start(broker, Start::new(container))
    }

    pub fn start(broker: &mut Broker, start: Start) -> Self {
        let Start {
            shard,
            transport,
            container,
            mechanism,
            certificates,
            limits,
            is_tapped,
        } = start;
        let peer = broker.open_speaking(b"amqp", shard, transport, certificates);
        let mut out = Lanes::default();
        let pipelined = mechanism.is_none();
        let options = ClientOptions {
            open: Open::new(&container),
            mechanism,
            pipelined,
        };
        let engine = Connection::client(options, &limits, broker.wires[shard].now_ms, &mut out);
        let mut client = Self {
            peer,
            engine,
            out,
            framers: HashMap::new(),
            received: Vec::new(),
            happened: Vec::new(),
            recovered: Vec::new(),
            tap: is_tapped.then(Vec::new),
            answers: HashMap::new(),
            open_properties: None,
            open: None,
            is_open: false,
            refusal: None,
            next_stream: 4,
            is_quic: transport == TransportKind::Quic,
        };
        client.turn(broker);
        client
    }

    /// Sends what is written, and takes what has come, until nothing moves.
    pub fn turn(&mut self, broker: &mut Broker) {
        loop {
            let sent = self.flush(broker);
            let got = self.read(broker);
            if !sent && !got {
                return;
            }
        }
    }

    /// Sends what is written.
    pub fn flush(&mut self, broker: &mut Broker) -> bool {
        let mut any = false;
        for (lane, buffer) in self.out.take() {
            if !buffer.is_empty() {
                any = true;
                broker.send_on(self.peer, self.stream(lane), &buffer);
            }
        }
        any
    }

    /// The stream of a lane.
    pub fn stream(&self, lane: u64) -> StreamId {
        StreamId(if self.is_quic { lane } else { 0 })
    }

    /// Takes what has come.
    pub fn read(&mut self, broker: &mut Broker) -> bool {
        let now_ms = broker.wires[self.peer.shard].now_ms;
        let came = self.gather(broker);
        for (lane, bytes) in &came {
            self.feed(*lane, bytes, now_ms);
        }
        !came.is_empty()
    }

    /// What has come, by lane, unread.
    pub fn gather(&self, broker: &mut Broker) -> Vec<(u64, Vec<u8>)> {
        let mut lanes: Vec<u64> = broker.wires[self.peer.shard]
            .sent
            .keys()
            .filter(|(id, _)| *id == self.peer.id)
            .map(|(_, stream)| stream.0)
            .collect();
        lanes.sort_unstable();
        lanes
            .into_iter()
            .map(|lane| (lane, broker.take_on(self.peer, StreamId(lane))))
            .collect()
    }

    /// Reads bytes of a lane.
    pub fn feed(&mut self, lane: u64, bytes: &[u8], now_ms: u64) {
        if let Some(tap) = &mut self.tap {
            tap.extend_from_slice(bytes);
        }
        let mut framer = self.framers.remove(&lane).unwrap_or_default();
        let mut input = bytes;
        while let Some(unit) = framer
            .next(&mut input, self.engine.max_frame_bytes())
            .expect("frames")
        {
            match self
                .engine
                .receive(Lane(lane), &unit, now_ms, &mut self.out)
            {
                Ok(Some(event)) => self.note(event),
                Ok(None) => {}
                Err(violation) => self.refusal = Some(violation.detail),
            }
            self.note_rest();
        }
        self.framers.insert(lane, framer);
    }

    /// Notes what else follows.
    pub fn note_rest(&mut self) {
        while let Some(event) = self.engine.next_event() {
            self.note(event);
        }
    }

    fn note(&mut self, event: Event<'_>) {
        let name = |state: &DeliveryStateBuf| match state.view() {
            DeliveryState::Outcome(outcome) => {
                let detail = match &outcome {
                    Outcome::Rejected(rejected) => rejected
                        .error
                        .as_ref()
                        .map_or(String::new(), |error| format!(" {}", error.condition.0)),
                    _ => String::new(),
                };
                let symbol = outcome.symbol();
                let short = symbol.trim_start_matches("amqp:").trim_end_matches(":list");
                format!("{short}{detail}")
            }
            DeliveryState::Transactional(state) => format!(
                "transactional {}",
                state.outcome.map_or("", |outcome| outcome.symbol())
            ),
            other => format!("{other:?}"),
        };
        match event {
            Event::Open(open) => {
                self.is_open = true;
                let mut whole = BytesMut::new();
                open.encode(&mut whole);
                self.open = Encoded::from_bytes(whole.freeze()).ok();
                self.open_properties = open.properties.map(|map| Encoded::new(&Value::Map(map)));
            }
            Event::Attached { link, attach } => {
                let is_sender = attach.role == Role::Receiver;
                let durable = match (&attach.source, &attach.target) {
                    (Some(source), _) if !is_sender => source.durable,
                    (_, Some(target)) if is_sender => target
                        .node()
                        .map_or(TerminusDurability::None, |node| node.durable),
                    _ => TerminusDurability::None,
                };
                let (address, refused, filters, expiry) = if is_sender {
                    let target = attach.target.as_ref().and_then(TargetArchetype::node);
                    (
                        target.and_then(Target::address).map(str::to_owned),
                        attach.target.is_none(),
                        0,
                        String::new(),
                    )
                } else {
                    let source = attach.source.as_ref();
                    (
                        source.and_then(Source::address).map(str::to_owned),
                        source.is_none(),
                        source.map_or(0, |source| Filters::count(source.filters())),
                        source.map_or(String::new(), |source| {
                            format!("{:?}", source.expiry_policy)
                        }),
                    )
                };
                let mut whole = BytesMut::new();
                attach.encode(&mut whole);
                let whole = Encoded::from_bytes(whole.freeze()).expect("an attach");
                self.answers.insert(
                    link,
                    Answer {
                        address,
                        expiry,
                        durable,
                        filters,
                        refused,
                        attach: whole,
                    },
                );
            }
            Event::Delivery(delivery) => self.received.push(Received {
                link: delivery.link,
                id: delivery.delivery_id,
                tag: delivery.tag.as_bytes().to_vec(),
                settled: delivery.settled,
                resumed: delivery.resumed.is_some(),
                after: self.happened.len(),
                payload: delivery.payload.to_vec(),
            }),
            Event::Disposition {
                link,
                delivery_id,
                token,
                state,
                settled,
            } => {
                if let Some(DeliveryState::Declared(declared)) =
                    state.as_ref().map(DeliveryStateBuf::view)
                {
                    self.happened
                        .push(Happened::Declared(declared.txn_id.to_vec()));
                    return;
                }
                self.happened.push(Happened::Disposed {
                    link,
                    id: delivery_id,
                    token,
                    state: state.as_ref().map(name),
                    settled,
                });
            }
            Event::Detached {
                link,
                closed,
                error,
                unsettled,
            } => self.happened.push(Happened::Detached {
                link,
                closed,
                condition: error.map(|error| error.condition.into()),
                unsettled,
            }),
            Event::Ended { error, .. } => self
                .happened
                .push(Happened::Ended(error.map(|error| error.condition.into()))),
            Event::Closed { error } => self
                .happened
                .push(Happened::Closed(error.map(|error| error.condition.into()))),
            Event::Recover {
                link,
                delivery,
                recovery,
            } => {
                self.happened.push(Happened::Recovered(
                    delivery.tag.as_bytes().to_vec(),
                    format!("{recovery:?}"),
                ));
                self.recovered.push((link, delivery, recovery));
            }
            Event::SenderFlow {
                link, credit: 0, ..
            } => {
                self.happened.push(Happened::Drained(link));
            }
            _ => {}
        }
    }

    // Sessions and links.

    pub fn begin(&mut self, broker: &mut Broker) -> SessionId {
        let lane = if self.is_quic {
            let lane = Lane(self.next_stream);
            self.next_stream += 4;
            lane
        } else {
            Lane::CONTROL
        };
        let session = self.engine.begin(lane, &mut self.out).expect("a session");
        self.turn(broker);
        session
    }

    pub fn attach(
        &mut self,
        broker: &mut Broker,
        session: SessionId,
        name: &str,
        role: Role,
        options: &AttachOptions<'_>,
    ) -> LinkId {
        let link = self
            .engine
            .attach(session, name, role, options, &mut self.out)
            .expect("a link");
        self.turn(broker);
        link
    }

    /// A sending link to an address.
    pub fn sender(&mut self, broker: &mut Broker, session: SessionId, address: &str) -> LinkId {
        let options = AttachOptions {
            source: Some(Source::default()),
            target: Some(TargetArchetype::Target(Target::new(address))),
            ..AttachOptions::default()
        };
        self.attach(broker, session, address, Role::Sender, &options)
    }

    /// A sending link to the anonymous node: each message says where it goes.
    pub fn anonymous_sender(&mut self, broker: &mut Broker, session: SessionId) -> LinkId {
        let options = AttachOptions {
            source: Some(Source::default()),
            target: Some(TargetArchetype::Target(Target::default())),
            ..AttachOptions::default()
        };
        self.attach(broker, session, "anonymous", Role::Sender, &options)
    }

    /// A receiving link, with credit.
    pub fn receiver(
        &mut self,
        broker: &mut Broker,
        session: SessionId,
        name: &str,
        source: Source<'_>,
        credit: u32,
    ) -> LinkId {
        let options = AttachOptions {
            source: Some(source),
            target: Some(TargetArchetype::Target(Target::default())),
            ..AttachOptions::default()
        };
        let link = self.attach(broker, session, name, Role::Receiver, &options);
        self.credit(broker, link, credit);
        link
    }

    pub fn credit(&mut self, broker: &mut Broker, link: LinkId, credit: u32) {
        // A link that was refused takes none.
        let _ = self
            .engine
            .set_credit(link, credit, false, false, &mut self.out);
        self.turn(broker);
    }

    pub fn send(&mut self, broker: &mut Broker, link: LinkId, token: u64, text: &str) {
        let mut message = BytesMut::new();
        MessageWriter::new(&mut message).data(text.as_bytes());
        self.send_message(broker, link, token, &message, false, None);
    }

    pub fn send_settled(&mut self, broker: &mut Broker, link: LinkId, text: &str) {
        let mut message = BytesMut::new();
        MessageWriter::new(&mut message).data(text.as_bytes());
        self.send_message(broker, link, 0, &message, true, None);
    }

    pub fn send_message(
        &mut self,
        broker: &mut Broker,
        link: LinkId,
        token: u64,
        message: &[u8],
        settled: bool,
        state: Option<DeliveryState<'_>>,
    ) {
        let tag = token.to_be_bytes();
        let transfer = OutgoingTransfer {
            settled,
            state,
            ..OutgoingTransfer::new(&tag, token)
        };
        let mut sent = self
            .engine
            .transfer(link, &transfer, &[message], false, &mut self.out)
            .expect("credit");
        let mut offset = sent.payload_bytes;
        self.turn(broker);
        while !sent.complete {
            sent = self
                .engine
                .transfer_more(link, &[&message[offset..]], false, &mut self.out)
                .expect("a window");
            offset += sent.payload_bytes;
            self.turn(broker);
        }
    }

    pub fn dispose(
        &mut self,
        broker: &mut Broker,
        session: SessionId,
        range: (u32, u32),
        state: &DeliveryState<'_>,
        settled: bool,
    ) {
        self.engine
            .dispose(session, range, Some(state), settled, &mut self.out)
            .expect("a session");
        self.turn(broker);
    }

    /// A link to the coordinator of transactions.
    pub fn coordinator(&mut self, broker: &mut Broker, session: SessionId) -> LinkId {
        let options = AttachOptions {
            source: Some(Source::default()),
            target: Some(TargetArchetype::Coordinator(Coordinator {
                capabilities: Multiple::None,
            })),
            ..AttachOptions::default()
        };
        self.attach(broker, session, "coordinator", Role::Sender, &options)
    }

    /// Declares a transaction; its id.
    pub fn declare(&mut self, broker: &mut Broker, coordinator: LinkId) -> Option<Vec<u8>> {
        let mut request = BytesMut::new();
        Request::Declare(Declare { global_id: None }).encode(&mut request);
        self.send_message(broker, coordinator, 1000, &request, false, None);
        self.happened.drain(..).find_map(|one| match one {
            Happened::Declared(id) => Some(id),
            _ => None,
        })
    }

    /// Sends the end of a transaction.
    pub fn discharge(
        &mut self,
        broker: &mut Broker,
        coordinator: LinkId,
        token: u64,
        txn_id: &[u8],
        fail: bool,
    ) {
        let mut request = BytesMut::new();
        Request::Discharge(Discharge { txn_id, fail }).encode(&mut request);
        self.send_message(broker, coordinator, token, &request, false, None);
    }

    /// Posts a message in a transaction.
    pub fn post(
        &mut self,
        broker: &mut Broker,
        link: LinkId,
        token: u64,
        txn_id: &[u8],
        text: &str,
    ) {
        let mut message = BytesMut::new();
        MessageWriter::new(&mut message).data(text.as_bytes());
        let state = Some(in_transaction(txn_id, None));
        self.send_message(broker, link, token, &message, false, state);
    }

    /// Accepts and settles everything that has come and is unsettled; returns the texts of it all.
    pub fn accept_all(&mut self, broker: &mut Broker) -> Vec<String> {
        let received = std::mem::take(&mut self.received);
        for one in received.iter().filter(|one| !one.settled) {
            let range = (one.id, one.id);
            let accepted = DeliveryState::ACCEPTED;
            self.dispose(broker, one.link.session, range, &accepted, true);
        }
        received.iter().map(Received::text).collect()
    }

    pub fn texts(&mut self) -> Vec<String> {
        let received = std::mem::take(&mut self.received);
        received.iter().map(Received::text).collect()
    }

    pub fn detach(&mut self, broker: &mut Broker, link: LinkId, closed: bool) {
        self.engine
            .detach(link, closed, None, &mut self.out)
            .expect("a link");
        self.turn(broker);
    }

    /// Cuts the transport; returns what was unsettled of each link.
    pub fn cut(mut self, broker: &mut Broker) -> Vec<(LinkId, Vec<Unsettled>)> {
        broker.cut(self.peer);
        self.engine.transport_closed();
        let mut left = Vec::new();
        while let Some(event) = self.engine.next_event() {
            if let Event::Detached {
                link, unsettled, ..
            } = event
            {
                left.push((link, unsettled));
            }
        }
        left
    }

    /// The condition of the last link, session or connection that was ended with an error.
    pub fn condition(&mut self) -> Option<String> {
        self.happened
            .drain(..)
            .filter_map(|one| match one {
                Happened::Detached { condition, .. }
                | Happened::Ended(condition)
                | Happened::Closed(condition) => condition,
                _ => None,
            })
            .next_back()
    }

    pub fn outcomes(&mut self) -> Vec<(u64, String)> {
        let mut outcomes = Vec::new();
        self.happened.retain(|one| match one {
            Happened::Disposed {
                token,
                state: Some(state),
                ..
            } => {
                outcomes.push((*token, state.clone()));
                false
            }
            _ => true,
        });
        outcomes
    }
}

/// The state of a delivery in a transaction.
pub fn in_transaction<'a>(txn_id: &'a [u8], outcome: Option<Outcome<'a>>) -> DeliveryState<'a> {
    DeliveryState::Transactional(TransactionalState { txn_id, outcome })
}

/// A message to an address, with one data section.
pub fn message_to(to: &str, text: &str) -> BytesMut {
    let mut message = BytesMut::new();
    let properties = Properties {
        to: Some(Value::String(to)),
        ..Properties::default()
    };
    MessageWriter::new(&mut message)
        .properties(&properties)
        .data(text.as_bytes());
    message
}

pub fn settle_modes(
    snd_settle_mode: SenderSettleMode,
    rcv_settle_mode: ReceiverSettleMode,
    source: Source<'_>,
) -> AttachOptions<'_> {
    AttachOptions {
        snd_settle_mode,
        rcv_settle_mode,
        source: Some(source),
        target: Some(TargetArchetype::Target(Target::default())),
        ..AttachOptions::default()
    }
}
