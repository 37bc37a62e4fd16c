//! A small AMQP broker made of the engine's server side: queues by address, in memory, with links that
//! can be suspended and recovered.
#![allow(clippy::unwrap_used, dead_code)] // it is all test, and each test file uses a part

mod transports;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use sterna_amqp::connection::{Delivery, LinkId, ServerOptions};
use sterna_amqp::link::{AttachOptions, OutgoingTransfer, Recovery, Unsettled};
use sterna_amqp::messaging::{
    DeliveryState, DeliveryStateBuf, MessageView, Modified, Outcome, Rejected, Source, Target,
    TargetArchetype,
};
use sterna_amqp::performatives::{Attach, Error, Open, ReceiverSettleMode, Role};
use sterna_amqp::sasl::{PlainCredentials, SaslCode};
use sterna_amqp::transactions::{Declared, Request, TransactionalState};
use sterna_amqp::types::{MapWriter, Value};
use sterna_amqp::{CommandError, Condition, Connection, Event, Framer, Lane, LaneWriter, Limits};
use sterna_auth::{ClientFirst, Nonce, Record, ServerStart};
use tokio::sync::Notify;

pub(crate) use transports::Broker;

/// How the broker behaves.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) mechanisms: Vec<&'static str>,
    /// The user and password that PLAIN and SCRAM take.
    pub(crate) login: (&'static str, &'static str),
    /// Announced for resuming clients.
    pub(crate) initial_credit: Option<u32>,
    /// Given to senders.
    pub(crate) credit: u32,
    pub(crate) limits: Limits,
    /// Streams that a client may have at once, over QUIC.
    pub(crate) streams: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            mechanisms: vec!["ANONYMOUS", "PLAIN", "EXTERNAL", "SCRAM-SHA-256"],
            login: ("user", "pencil"),
            initial_credit: None,
            credit: 100,
            limits: Limits::default(),
            streams: 100,
        }
    }
}

/// What all connections share.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) queues: BTreeMap<String, VecDeque<Bytes>>,
    /// Every message that was accepted, by address.
    pub(crate) accepted: Vec<(String, Bytes)>,
    /// What a suspended link keeps: by container, name and the broker's role.
    suspended: HashMap<(String, String, bool), Suspended>,
    /// Links that were attached, violations, and more that tests look at.
    pub(crate) log: Vec<String>,
    /// Links that are suspended are forgotten.
    pub(crate) forget: bool,
    next: u64,
}

#[derive(Clone, Default)]
struct Suspended {
    unsettled: Vec<Unsettled>,
    /// A source's messages by token.
    sent: BTreeMap<u64, Bytes>,
}

pub(crate) struct Shared {
    pub(crate) setup: Setup,
    pub(crate) world: Mutex<World>,
    /// Rung when a queue has got something.
    pub(crate) bell: Notify,
    /// Rung when all connections are to be broken.
    pub(crate) break_all: Notify,
    /// Rung when the streams of sessions are to be reset.
    pub(crate) reset_streams: Notify,
    /// Nothing is sent at all, over QUIC.
    pub(crate) hold: AtomicBool,
    /// How the next login is refused.
    pub(crate) refusal: Mutex<Option<SaslCode>>,
}

impl Shared {
    pub(crate) fn new(setup: Setup) -> Arc<Self> {
        Arc::new(Self {
            setup,
            world: Mutex::default(),
            bell: Notify::new(),
            break_all: Notify::new(),
            reset_streams: Notify::new(),
            hold: AtomicBool::new(false),
            refusal: Mutex::default(),
        })
    }

    pub(crate) fn put(&self, address: &str, message: Bytes) {
        let mut world = self.world.lock().unwrap();
        world
            .queues
            .entry(address.to_owned())
            .or_default()
            .push_back(message);
        drop(world);
        self.bell.notify_waiters();
    }

    /// Bodies of the accepted messages of an address.
    pub(crate) fn accepted(&self, address: &str) -> Vec<Vec<u8>> {
        let world = self.world.lock().unwrap();
        let of = world.accepted.iter().filter(|(to, _)| to == address);
        of.map(|(_, payload)| {
            let view = MessageView::parse(payload).unwrap();
            view.data().unwrap_or_default().to_vec()
        })
        .collect()
    }
}

/// What is to be sent, by lane.
#[derive(Default)]
pub(crate) struct Lanes(pub(crate) BTreeMap<u64, BytesMut>);

impl LaneWriter for Lanes {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        self.0.entry(lane.0).or_default()
    }
}

struct Link {
    name: String,
    address: Option<String>,
    second: bool,
    coordinator: bool,
    /// A source outlives its connection.
    lasting: bool,
    /// Messages of a source by token.
    sent: BTreeMap<u64, Bytes>,
    resuming: VecDeque<(u64, Recovery)>,
    /// A message of which parts were sent.
    sending: Option<(u64, usize)>,
}

/// One connection of the broker's.
pub(crate) struct Served {
    engine: Connection,
    pub(crate) out: Lanes,
    framers: HashMap<u64, Framer>,
    kept: BTreeMap<u64, BytesMut>,
    shared: Arc<Shared>,
    container: String,
    links: HashMap<LinkId, Link>,
    exchange: Option<ServerStart>,
    transactions: HashMap<Vec<u8>, Vec<(String, Bytes)>>,
    pub(crate) streams: HashSet<u64>,
}

impl Served {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let options = ServerOptions {
            container_id: "broker".to_owned(),
            mechanisms: shared
                .setup
                .mechanisms
                .iter()
                .map(|one| (*one).to_owned())
                .collect(),
            require_sasl: false,
        };
        Self {
            engine: Connection::server(&options, &shared.setup.limits, 0),
            out: Lanes::default(),
            framers: HashMap::new(),
            kept: BTreeMap::new(),
            shared,
            container: String::new(),
            links: HashMap::new(),
            exchange: None,
            transactions: HashMap::new(),
            streams: HashSet::new(),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.engine.is_closed()
    }

    /// Takes bytes of a lane.
    pub(crate) fn input(&mut self, lane: u64, bytes: &[u8]) {
        self.kept.entry(lane).or_default().extend_from_slice(bytes);
        self.streams.insert(lane);
        let mut again = true;
        while again {
            again = false;
            let lanes: Vec<u64> = self.kept.keys().copied().collect();
            for lane in lanes {
                if self.engine.accepts_input(Lane(lane)) {
                    let bytes = std::mem::take(self.kept.get_mut(&lane).unwrap());
                    again |= !bytes.is_empty();
                    self.read(lane, &bytes);
                }
            }
        }
        self.dispatch();
    }

    fn read(&mut self, lane: u64, mut input: &[u8]) {
        let mut framer = self.framers.remove(&lane).unwrap_or_default();
        while self.engine.accepts_input(Lane(lane)) {
            let unit = match framer.next(&mut input, self.engine.max_frame_bytes()) {
                Ok(Some(unit)) => unit,
                Ok(None) => break,
                Err(error) => {
                    let _ = self.engine.decode_failed(error, &mut self.out);
                    break;
                }
            };
            match self.engine.receive(Lane(lane), &unit, 0, &mut self.out) {
                Ok(Some(event)) => self.handle(event),
                Ok(None) => {}
                Err(violation) => {
                    let mut world = self.shared.world.lock().unwrap();
                    world.log.push(format!("violation: {violation}"));
                }
            }
            self.drain();
        }
        self.framers.insert(lane, framer);
        if !input.is_empty() {
            self.kept.get_mut(&lane).unwrap().extend_from_slice(input);
        }
    }

    fn drain(&mut self) {
        while let Some(event) = self.engine.next_event() {
            self.handle(event);
        }
    }

    /// Notes how many streams there are.
    pub(crate) fn log_streams(&self) {
        let streams = format!("streams {}", self.streams.len());
        let mut world = self.shared.world.lock().unwrap();
        if !world.log.contains(&streams) {
            world.log.push(streams);
        }
    }

    pub(crate) fn log(&self, line: &str) {
        self.shared.world.lock().unwrap().log.push(line.to_owned());
    }

    /// A stream was reset.
    pub(crate) fn lane_closed(&mut self, lane: u64) {
        self.engine.lane_closed(Lane(lane));
        self.drain();
    }

    /// The transport is gone.
    pub(crate) fn lost(&mut self) {
        self.engine.transport_closed();
        self.drain();
        self.shared.bell.notify_waiters();
    }

    fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::SaslInit {
                is_offered: false, ..
            } => self.outcome(SaslCode::Auth, None),
            Event::SaslInit {
                mechanism,
                initial_response,
                ..
            } => self.login(mechanism, initial_response.unwrap_or_default()),
            Event::SaslResponse { response } => {
                let signature = self.exchange.take().map(|start| start.verify(response));
                match signature {
                    Some(Ok(signature)) => {
                        self.outcome(SaslCode::Ok, Some(signature.as_bytes()));
                    }
                    _ => self.outcome(SaslCode::Auth, None),
                }
            }
            Event::Open(open) => {
                open.container_id.clone_into(&mut self.container);
                let mut bytes = BytesMut::new();
                let mut map = MapWriter::new(&mut bytes);
                if let Some(credit) = self.shared.setup.initial_credit {
                    let key = Value::Symbol("sterna:initial-credit");
                    map.push(&key, &Value::Uint(credit));
                }
                map.finish();
                let Ok(Value::Map(properties)) = Value::decode(&bytes) else {
                    unreachable!()
                };
                let answer = Open {
                    properties: Some(properties),
                    ..Open::new("broker")
                };
                self.engine.open(&answer, &mut self.out).unwrap();
            }
            Event::Attach { link, attach } => self.attach(link, &attach),
            Event::Delivery(delivery) => self.delivered(&delivery),
            Event::Disposition {
                link,
                delivery_id,
                token,
                state,
                settled,
            } => self.disposition(link, delivery_id, token, state.as_ref(), settled),
            Event::Credit {
                link, drain: true, ..
            } => {
                self.log("drain");
                self.dispatch();
                let _ = self.engine.drained(link, 0, &mut self.out);
            }
            Event::Recover {
                link,
                delivery,
                recovery,
            } => self.recover(link, &delivery, recovery),
            Event::Detached {
                link,
                closed,
                unsettled,
                ..
            } => self.detached(link, closed, unsettled),
            _ => {}
        }
    }

    fn outcome(&mut self, code: SaslCode, data: Option<&[u8]>) {
        self.engine.sasl_outcome(code, data, &mut self.out).unwrap();
    }

    fn login(&mut self, mechanism: &str, response: &[u8]) {
        let (user, password) = self.shared.setup.login;
        let refusal = self.shared.refusal.lock().unwrap().take();
        if let Some(code) = refusal {
            self.outcome(code, None);
            return;
        }
        match mechanism {
            "PLAIN" => {
                let right = PlainCredentials::parse(response)
                    .is_some_and(|one| one.user == user && one.password == password);
                let code = if right { SaslCode::Ok } else { SaslCode::Auth };
                self.outcome(code, None);
            }
            "SCRAM-SHA-256" => {
                let first = ClientFirst::parse(response).unwrap();
                let record = Record::from_password(password, b"sixteen random B", 4096).unwrap();
                let nonce = Nonce::from_random([2; 18]);
                let (start, challenge) = ServerStart::new(first, record, &nonce);
                self.exchange = Some(start);
                self.engine
                    .sasl_challenge(challenge.as_bytes(), &mut self.out)
                    .unwrap();
            }
            _ => self.outcome(SaslCode::Ok, None),
        }
    }

    fn attach(&mut self, id: LinkId, attach: &Attach<'_>) {
        let own_role = attach.role.other();
        let is_sender = own_role == Role::Sender;
        let key = (self.container.clone(), attach.name.to_owned(), is_sender);
        let coordinator = matches!(attach.target, Some(TargetArchetype::Coordinator(_)));
        let mut address = if is_sender {
            attach
                .source
                .as_ref()
                .and_then(Source::address)
                .map(str::to_owned)
        } else {
            let target = attach.target.as_ref().and_then(TargetArchetype::node);
            target.and_then(Target::address).map(str::to_owned)
        };
        if address.as_deref() == Some("missing") {
            let error = Error::new(Condition::NOT_FOUND, "there is no such node");
            self.engine.refuse_attach(id, error, &mut self.out).unwrap();
            self.drain();
            return;
        }
        let mut world = self.shared.world.lock().unwrap();
        let dynamic = attach.source.as_ref().is_some_and(|source| source.dynamic);
        if dynamic && is_sender {
            world.next += 1;
            address = Some(format!("dynamic/{}", world.next));
        }
        let known = world.suspended.remove(&key);
        world.log.push(format!(
            "attach {} recovered {}",
            attach.name,
            known.is_some()
        ));
        drop(world);
        let recover = known.is_some();
        let Suspended { unsettled, sent } = known.unwrap_or_default();
        let named = address.clone();
        let mut source = attach.source.clone();
        if let (true, Some(source), Some(address)) = (dynamic, &mut source, &named) {
            source.address = Some(Value::String(address));
        }
        let lasting = attach.source.as_ref().is_some_and(|source| {
            source.timeout > 0
                || source.expiry_policy == sterna_amqp::messaging::TerminusExpiryPolicy::Never
        });
        let options = AttachOptions {
            snd_settle_mode: attach.snd_settle_mode,
            rcv_settle_mode: attach.rcv_settle_mode,
            source,
            target: attach.target.clone(),
            unsettled: &unsettled,
            recover,
            ..AttachOptions::default()
        };
        let link = Link {
            name: attach.name.to_owned(),
            address,
            second: attach.rcv_settle_mode == ReceiverSettleMode::Second,
            coordinator,
            lasting,
            sent,
            resuming: VecDeque::new(),
            sending: None,
        };
        self.links.insert(id, link);
        self.engine
            .accept_attach(id, &options, &mut self.out)
            .unwrap();
        if !is_sender {
            let credit = self.shared.setup.credit;
            self.engine
                .set_credit(id, credit, false, false, &mut self.out)
                .unwrap();
        }
        self.drain();
    }

    fn delivered(&mut self, delivery: &Delivery<'_>) {
        let id = delivery.link;
        let credit = self.shared.setup.credit;
        let link = &self.links[&id];
        let second = link.second;
        if link.coordinator {
            self.coordinate(delivery);
            return;
        }
        let view = MessageView::parse(&delivery.payload).unwrap();
        let to = view.properties().unwrap().and_then(|one| one.to);
        let to = to.and_then(|to| to.as_text().map(str::to_owned));
        let address = link.address.clone().or(to).unwrap_or_default();
        let payload = Bytes::copy_from_slice(&delivery.payload);
        let outcome = match address.as_str() {
            "reject" => Outcome::Rejected(Rejected {
                error: Some(Error::new(Condition::NOT_ALLOWED, "not here")),
            }),
            "release" => Outcome::Released,
            "modify" => Outcome::Modified(Modified {
                delivery_failed: true,
                undeliverable_here: true,
                message_annotations: None,
            }),
            _ => Outcome::Accepted,
        };
        let mut state = DeliveryState::Outcome(outcome.clone());
        let posted = match delivery.state.as_ref().map(DeliveryStateBuf::view) {
            Some(DeliveryState::Transactional(posted)) => Some(posted.txn_id.to_vec()),
            _ => None,
        };
        if let Some(txn_id) = &posted {
            let messages = self.transactions.get_mut(txn_id).unwrap();
            messages.push((address, payload));
            state = DeliveryState::Transactional(TransactionalState {
                txn_id,
                outcome: Some(outcome),
            });
        } else if outcome == Outcome::Accepted {
            self.accept(&address, payload);
        }
        if !delivery.settled && address_decides(&self.links[&id]) {
            let range = (delivery.delivery_id, delivery.delivery_id);
            self.engine
                .dispose(id.session, range, Some(&state), !second, &mut self.out)
                .unwrap();
        }
        if self.engine.credit(id) <= credit / 2 {
            self.engine
                .set_credit(id, credit, false, false, &mut self.out)
                .unwrap();
        }
    }

    fn accept(&self, address: &str, payload: Bytes) {
        let mut world = self.shared.world.lock().unwrap();
        world.accepted.push((address.to_owned(), payload.clone()));
        drop(world);
        self.shared.put(address, payload);
    }

    fn coordinate(&mut self, delivery: &Delivery<'_>) {
        let range = (delivery.delivery_id, delivery.delivery_id);
        let session = delivery.link.session;
        let second = self.links[&delivery.link].second;
        let mut is_silent = false;
        let (state, name);
        match Request::decode(&delivery.payload).unwrap() {
            Request::Declare(_) => {
                name = format!("txn{}", self.transactions.len()).into_bytes();
                self.transactions.insert(name.clone(), Vec::new());
                state = DeliveryState::Declared(Declared { txn_id: &name });
            }
            Request::Discharge(discharge) => match self.transactions.remove(discharge.txn_id) {
                Some(messages) => {
                    is_silent = messages.iter().any(|(address, _)| address == "mute");
                    if !discharge.fail {
                        for (address, payload) in messages {
                            self.accept(&address, payload);
                        }
                    }
                    state = DeliveryState::ACCEPTED;
                }
                None => {
                    state = DeliveryState::Outcome(Outcome::Rejected(Rejected {
                        error: Some(Error::new(Condition::TRANSACTION_UNKNOWN_ID, "no such")),
                    }));
                }
            },
        }
        // A decision in silence is known, and does not reach the client.
        let mut nowhere = Lanes::default();
        let out = if is_silent {
            &mut nowhere
        } else {
            &mut self.out
        };
        self.engine
            .dispose(session, range, Some(&state), !second && !is_silent, out)
            .unwrap();
    }

    fn disposition(
        &mut self,
        id: LinkId,
        delivery_id: u32,
        token: u64,
        state: Option<&DeliveryStateBuf>,
        settled: bool,
    ) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Some(message) = link.sent.remove(&token) else {
            return;
        };
        let address = link.address.clone().unwrap_or_default();
        if !settled {
            let view = state.map(DeliveryStateBuf::view);
            let range = (delivery_id, delivery_id);
            self.engine
                .settle(id.session, range, view.as_ref(), &mut self.out)
                .unwrap();
        }
        match state.map(DeliveryStateBuf::view) {
            Some(DeliveryState::Outcome(Outcome::Released | Outcome::Modified(_))) => {
                let mut world = self.shared.world.lock().unwrap();
                world.queues.entry(address).or_default().push_front(message);
            }
            state => {
                let mut world = self.shared.world.lock().unwrap();
                let told = match state {
                    Some(DeliveryState::Transactional(_)) => "in a transaction",
                    Some(DeliveryState::Outcome(Outcome::Accepted)) => "accepted",
                    _ => "rejected",
                };
                world.log.push(format!("{address} {told}"));
            }
        }
    }

    fn recover(&mut self, id: LinkId, delivery: &Unsettled, recovery: Recovery) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        match recovery {
            Recovery::Resend | Recovery::Resume(_) | Recovery::Settle(_) => {
                link.resuming.push_back((delivery.token, recovery));
            }
            Recovery::Settled(_) => {
                link.sent.remove(&delivery.token);
            }
            _ => {}
        }
    }

    fn detached(&mut self, id: LinkId, closed: bool, unsettled: Vec<Unsettled>) {
        let Some(link) = self.links.remove(&id) else {
            return;
        };
        let is_sender = !link.sent.is_empty() || link.lasting;
        let mut world = self.shared.world.lock().unwrap();
        if is_sender && (closed || !link.lasting) {
            let queue = world
                .queues
                .entry(link.address.unwrap_or_default())
                .or_default();
            for message in link.sent.into_values().rev() {
                queue.push_front(message);
            }
            return;
        }
        if closed {
            return;
        }
        let key = (self.container.clone(), link.name, is_sender);
        let kept = Suspended {
            unsettled: unsettled
                .into_iter()
                .filter(|one| is_sender || one.state.is_some())
                .collect(),
            sent: link.sent,
        };
        if !world.forget {
            world.suspended.insert(key, kept);
        }
    }

    /// Sends what the queues have and the receivers take.
    pub(crate) fn dispatch(&mut self) {
        let ids: Vec<LinkId> = self.links.keys().copied().collect();
        for id in ids {
            while self.send_one(id) {}
        }
    }

    fn send_one(&mut self, id: LinkId) -> bool {
        let link = self.links.get_mut(&id).unwrap();
        if let Some((token, offset)) = link.sending {
            let payload = link.sent[&token].clone();
            match self
                .engine
                .transfer_more(id, &[&payload[offset..]], false, &mut self.out)
            {
                Ok(sent) => {
                    let offset = offset + sent.payload_bytes;
                    link.sending = (!sent.complete).then_some((token, offset));
                    return sent.complete;
                }
                Err(CommandError::NoCredit) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        if !self.engine.can_send(id) {
            return false;
        }
        let (token, recovery) = if let Some((token, recovery)) = link.resuming.pop_front() {
            (token, Some(recovery))
        } else {
            let mut world = self.shared.world.lock().unwrap();
            let queue = world.queues.get_mut(link.address.as_deref().unwrap_or(""));
            let Some(message) = queue.and_then(VecDeque::pop_front) else {
                return false;
            };
            world.next += 1;
            link.sent.insert(world.next, message);
            (world.next, None)
        };
        let tag = token.to_be_bytes();
        let decided = match &recovery {
            Some(Recovery::Settle(state)) => Some(state.clone()),
            _ => None,
        };
        let settled = decided.is_some() || link.address.as_deref() == Some("at-most-once");
        let transfer = OutgoingTransfer {
            resume: recovery.is_some_and(|recovery| recovery != Recovery::Resend),
            settled,
            state: decided.as_ref().map(DeliveryStateBuf::view),
            ..OutgoingTransfer::new(&tag, token)
        };
        let payload = link.sent[&token].clone();
        let payload: &[u8] = if decided.is_some() { &[] } else { &payload };
        let sent = self
            .engine
            .transfer(id, &transfer, &[payload], false, &mut self.out)
            .unwrap();
        link.sending = (!sent.complete).then_some((token, sent.payload_bytes));
        if settled && sent.complete {
            link.sent.remove(&token);
        }
        true
    }
}

/// Whether the broker decides about messages on a link: it does not for the address `silent`.
fn address_decides(link: &Link) -> bool {
    link.address.as_deref() != Some("silent")
}
