//! Both ends of a connection, and the wire between them.

use std::collections::BTreeMap;

use bytes::{Buf as _, BytesMut};
use sterna_amqp::connection::{ClientOptions, LinkId, ServerOptions, SessionId};
use sterna_amqp::frame::Unit;
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{Source, Target, TargetArchetype};
use sterna_amqp::performatives::{Attach, Open, Performative, Role};
use sterna_amqp::types::Multiple;
use sterna_amqp::{Connection, Event, Framer, Lane, LaneWriter, Limits, Violation, frame};

/// Bytes to send, by lane.
#[derive(Default, Debug)]
pub(crate) struct Lanes(pub(crate) BTreeMap<u64, BytesMut>);

impl LaneWriter for Lanes {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        self.0.entry(lane.0).or_default()
    }
}

impl Lanes {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(BytesMut::is_empty)
    }
}

/// One end with what it has written and what has not been read.
pub(crate) struct End {
    pub(crate) connection: Connection,
    pub(crate) out: Lanes,
    framers: BTreeMap<u64, Framer>,
    unread: BTreeMap<u64, BytesMut>,
    pub(crate) violations: Vec<Violation>,
}

impl End {
    pub(crate) fn client(limits: &Limits) -> Self {
        let mut out = Lanes::default();
        let options = ClientOptions {
            open: Open::new("client"),
            mechanism: None,
            pipelined: true,
        };
        let connection = Connection::client(options, limits, 0, &mut out);
        Self::new(connection, out)
    }

    pub(crate) fn server(limits: &Limits) -> Self {
        let options = ServerOptions {
            container_id: "server".to_owned(),
            mechanisms: Vec::new(),
            require_sasl: false,
        };
        Self::new(Connection::server(&options, limits, 0), Lanes::default())
    }

    pub(crate) fn new(connection: Connection, out: Lanes) -> Self {
        Self {
            connection,
            out,
            framers: BTreeMap::new(),
            unread: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// Hands in at most `max_bytes` that the other end has written on one lane, and handles every
    /// event with `handle`.
    pub(crate) fn read(
        &mut self,
        from: &mut Lanes,
        lane: u64,
        max_bytes: usize,
        mut handle: impl FnMut(&mut Connection, &mut Lanes, Event<'_>),
    ) {
        if let Some(bytes) = from.0.get_mut(&lane) {
            let taken = bytes.split_to(max_bytes.min(bytes.len()));
            self.unread
                .entry(lane)
                .or_default()
                .extend_from_slice(&taken);
        }
        // What one lane was waiting for may have come on another.
        let lanes: Vec<u64> = self.unread.keys().copied().collect();
        for lane in lanes {
            self.process(lane, &mut handle);
        }
    }

    fn process(
        &mut self,
        lane: u64,
        handle: &mut impl FnMut(&mut Connection, &mut Lanes, Event<'_>),
    ) {
        let unread = self.unread.entry(lane).or_default();
        let framer = self.framers.entry(lane).or_default();
        loop {
            if !self.connection.accepts_input(Lane(lane)) {
                return;
            }
            let mut input = &unread[..];
            let before = input.len();
            match framer.next(&mut input, self.connection.max_frame_bytes()) {
                Ok(Some(unit)) => {
                    let received = self.connection.receive(Lane(lane), &unit, 0, &mut self.out);
                    match received {
                        Ok(Some(event)) => handle(&mut self.connection, &mut self.out, event),
                        Ok(None) => {}
                        Err(violation) => self.violations.push(violation),
                    }
                }
                Ok(None) => {
                    unread.clear();
                    return;
                }
                Err(error) => {
                    let violation = self.connection.decode_failed(error, &mut self.out);
                    self.violations.push(violation);
                    unread.clear();
                    return;
                }
            }
            let used = before - input.len();
            unread.advance(used);
            while let Some(event) = self.connection.next_event() {
                handle(&mut self.connection, &mut self.out, event);
            }
        }
    }

    /// Handles what commands have brought about.
    pub(crate) fn drain_events(
        &mut self,
        mut handle: impl FnMut(&mut Connection, &mut Lanes, Event<'_>),
    ) {
        while let Some(event) = self.connection.next_event() {
            handle(&mut self.connection, &mut self.out, event);
        }
    }
}

/// Cuts bytes into what was sent: every performative with its channel and payload.
pub(crate) fn frames(bytes: &[u8]) -> Vec<(u16, String, Vec<u8>)> {
    let mut framer = Framer::new();
    let mut input = bytes;
    let mut found = Vec::new();
    while let Some(unit) = framer.next(&mut input, 1 << 24).unwrap() {
        match unit {
            Unit::Header(header) => found.push((0, format!("{header:?}"), Vec::new())),
            Unit::Frame(frame) if frame.frame_type() == frame::TYPE_AMQP => {
                if frame.body().is_empty() {
                    found.push((frame.channel(), "Empty".to_owned(), Vec::new()));
                } else {
                    let (performative, payload) = Performative::decode(frame.body()).unwrap();
                    found.push((
                        frame.channel(),
                        format!("{performative:?}"),
                        payload.to_vec(),
                    ));
                }
            }
            Unit::Frame(frame) => {
                let body = sterna_amqp::sasl::SaslFrame::decode(frame.body()).unwrap();
                found.push((frame.channel(), format!("{body:?}"), Vec::new()));
            }
        }
    }
    found
}

/// Encodes one frame.
pub(crate) fn encode(channel: u16, performative: &Performative<'_>, payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    frame::encode(&mut out, frame::TYPE_AMQP, channel, |out| {
        performative.encode(out);
        out.extend_from_slice(payload);
    });
    out
}

pub(crate) fn target(address: &str) -> TargetArchetype<'_> {
    TargetArchetype::Target(Target::new(address))
}

pub(crate) fn options<'a>(source: &'a str, to: &'a str) -> AttachOptions<'a> {
    AttachOptions {
        source: Some(Source::new(source)),
        target: Some(target(to)),
        ..AttachOptions::default()
    }
}

pub(crate) fn attach(name: &str, handle: u32, role: Role) -> Attach<'_> {
    Attach {
        name,
        handle,
        role,
        snd_settle_mode: sterna_amqp::performatives::SenderSettleMode::Mixed,
        rcv_settle_mode: sterna_amqp::performatives::ReceiverSettleMode::First,
        source: Some(Source::new("from")),
        target: Some(target("to")),
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: (role == Role::Sender).then_some(0),
        max_message_size: None,
        offered_capabilities: Multiple::None,
        desired_capabilities: Multiple::None,
        properties: None,
    }
}

/// What a server does that agrees with everything: opens, accepts attaches as they are asked for,
/// and gives senders credit.
pub(crate) fn agree(
    connection: &mut Connection,
    out: &mut Lanes,
    event: &Event<'_>,
    credit: u32,
) -> Option<LinkId> {
    match event {
        Event::Open(_) if connection.side() == sterna_amqp::connection::Side::Server => {
            connection.open(&Open::new("server"), out).unwrap();
            None
        }
        Event::Attach { link, attach } => {
            let options = AttachOptions {
                snd_settle_mode: attach.snd_settle_mode,
                rcv_settle_mode: attach.rcv_settle_mode,
                source: attach.source.clone(),
                target: attach.target.clone(),
                ..AttachOptions::default()
            };
            connection.accept_attach(*link, &options, out).unwrap();
            if attach.role == Role::Sender {
                connection
                    .set_credit(*link, credit, false, false, out)
                    .unwrap();
            }
            Some(*link)
        }
        _ => None,
    }
}

/// A client and a server that agree, over one lane or more, and everything that they are told.
pub(crate) struct Pair {
    pub(crate) client: End,
    pub(crate) server: End,
    pub(crate) client_events: Vec<String>,
    pub(crate) server_events: Vec<String>,
    /// Payloads that have arrived at either end.
    pub(crate) payloads: Vec<Vec<u8>>,
    /// Links that the server has accepted.
    pub(crate) accepted: Vec<LinkId>,
    pub(crate) credit: u32,
}

impl Pair {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            client: End::client(limits),
            server: End::server(limits),
            client_events: Vec::new(),
            server_events: Vec::new(),
            payloads: Vec::new(),
            accepted: Vec::new(),
            credit: 100,
        }
    }

    /// Moves bytes until there are none.
    pub(crate) fn run(&mut self) {
        for _ in 0..1000 {
            let lanes: Vec<u64> = self.client.out.0.keys().copied().collect();
            for lane in lanes {
                let (accepted, events, payloads, credit) = (
                    &mut self.accepted,
                    &mut self.server_events,
                    &mut self.payloads,
                    self.credit,
                );
                self.server.read(
                    &mut self.client.out,
                    lane,
                    usize::MAX,
                    |connection, out, event| {
                        accepted.extend(agree(connection, out, &event, credit));
                        if let Event::Delivery(delivery) = &event {
                            payloads.push(delivery.payload.to_vec());
                        }
                        events.push(format!("{event:?}"));
                    },
                );
            }
            let lanes: Vec<u64> = self.server.out.0.keys().copied().collect();
            for lane in lanes {
                let (events, payloads) = (&mut self.client_events, &mut self.payloads);
                self.client
                    .read(&mut self.server.out, lane, usize::MAX, |_, _, event| {
                        if let Event::Delivery(delivery) = &event {
                            payloads.push(delivery.payload.to_vec());
                        }
                        events.push(format!("{event:?}"));
                    });
            }
            let events = &mut self.client_events;
            self.client
                .drain_events(|_, _, event| events.push(format!("{event:?}")));
            let events = &mut self.server_events;
            self.server
                .drain_events(|_, _, event| events.push(format!("{event:?}")));
            if self.client.out.is_empty() && self.server.out.is_empty() {
                return;
            }
        }
        panic!("the ends do not come to rest");
    }

    /// A session of the client on a lane, answered.
    pub(crate) fn session(&mut self, lane: u64) -> SessionId {
        let session = self
            .client
            .connection
            .begin(Lane(lane), &mut self.client.out)
            .unwrap();
        self.run();
        session
    }

    /// A link of the client, answered.
    pub(crate) fn link(
        &mut self,
        session: SessionId,
        name: &str,
        role: Role,
        options: &AttachOptions<'_>,
    ) -> LinkId {
        let link = self
            .client
            .connection
            .attach(session, name, role, options, &mut self.client.out)
            .unwrap();
        self.run();
        link
    }

    pub(crate) fn client_saw(&self, part: &str) -> bool {
        self.client_events.iter().any(|event| event.contains(part))
    }

    pub(crate) fn server_saw(&self, part: &str) -> bool {
        self.server_events.iter().any(|event| event.contains(part))
    }
}
