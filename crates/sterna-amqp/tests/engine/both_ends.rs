//! Messages in both directions over links that are detached and connections that break at any byte.
//!
//! Whatever happens, what a sender is told to be settled was accepted by the receiver; nothing that
//! was sent is lost; with receiver settle mode second every message arrives exactly once; and every
//! sender learns of each settlement once. The sessions ride a lane of their own, whose bytes come
//! in any order against those of the control lane.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use sterna_amqp::connection::{Delivery, LinkId, SessionId};
use sterna_amqp::link::{AttachOptions, OutgoingTransfer, Recovery, Unsettled};
use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf};
use sterna_amqp::performatives::{Open, ReceiverSettleMode, Role};
use sterna_amqp::{CommandError, Connection, Event, Lane, Limits};

use crate::harness::{End, Lanes, options};

#[derive(Clone, Copy, Debug)]
enum Action {
    /// One end sends a new message of this many bytes.
    Send(usize, usize),
    /// Bytes of a lane reach one end.
    Bytes(usize, u64, usize),
    /// One end's receiver decides about its oldest message: takes it, or gives it back.
    Decide(usize, bool),
    /// One end's receiver gives credit.
    Credit(usize, u32),
    /// The client detaches one of its links, to attach it again.
    Detach(usize),
    /// The connection breaks.
    Break,
}

fn action() -> impl Strategy<Value = Action> {
    let end = || 0..2_usize;
    prop_oneof![
        5 => (end(), prop_oneof![0..40_usize, 0..1500_usize]).prop_map(|(e, n)| Action::Send(e, n)),
        12 => (end(), prop::sample::select(vec![0, 4]), 1..300_usize)
            .prop_map(|(e, lane, n)| Action::Bytes(e, lane, n)),
        4 => (end(), prop::bool::weighted(0.7)).prop_map(|(e, take)| Action::Decide(e, take)),
        3 => (end(), 0..6_u32).prop_map(|(e, n)| Action::Credit(e, n)),
        1 => end().prop_map(Action::Detach),
        1 => Just(Action::Break),
    ]
}

/// What one application knows: a sender of its own messages and a receiver of the other's.
#[derive(Default)]
struct Application {
    sender: Sender,
    receiver: Receiver,
}

#[derive(Default)]
struct Sender {
    link: Option<LinkId>,
    /// Every message by its token, which is its tag, too.
    messages: BTreeMap<u64, Vec<u8>>,
    /// To be sent as new deliveries.
    waiting: VecDeque<u64>,
    /// To be sent as resumed deliveries.
    resuming: VecDeque<(u64, Recovery)>,
    /// The message that is being sent and how much of it has been.
    sending: Option<(u64, usize, usize)>,
    settled: BTreeMap<u64, u32>,
    /// Unsettled deliveries of the link while it is detached.
    unsettled: Vec<Unsettled>,
    attached_before: bool,
}

impl Sender {
    /// A delivery is over. One that was given back is sent again, under another name.
    fn settle(&mut self, token: u64, state: &DeliveryStateBuf) {
        *self.settled.entry(token).or_default() += 1;
        if *state == DeliveryStateBuf::Released {
            let again = self.messages.len() as u64;
            self.messages.insert(again, self.messages[&token].clone());
            self.waiting.push_back(again);
        } else {
            assert_eq!(*state, DeliveryStateBuf::Accepted);
        }
    }
}

#[derive(Default)]
struct Receiver {
    link: Option<LinkId>,
    /// Delivery-id and message.
    undecided: VecDeque<(u32, Vec<u8>)>,
    /// How often each was accepted.
    accepted: BTreeMap<Vec<u8>, u32>,
    unsettled: Vec<Unsettled>,
    attached_before: bool,
}

/// A message that says which one it is.
fn message(token: u64, bytes: usize) -> Vec<u8> {
    let mut message = token.to_be_bytes().to_vec();
    message.extend((0..bytes).map(|index| index as u8));
    message
}

struct World {
    ends: [End; 2],
    applications: [Application; 2],
    mode: ReceiverSettleMode,
    /// Whether receivers attach again with what they have not decided, too.
    keep_undecided: bool,
    session: Option<SessionId>,
}

/// Small, so that messages take several frames and windows shut.
fn limits() -> Limits {
    Limits {
        max_frame_bytes: 512,
        incoming_window: 4,
        idle_timeout_ms: 0,
        ..Limits::default()
    }
}

/// Names of the links: by the end that sends.
const NAMES: [&str; 2] = ["from-client", "from-server"];

impl World {
    fn new(mode: ReceiverSettleMode, keep_undecided: bool) -> Self {
        let mut world = Self {
            ends: [End::client(&limits()), End::server(&limits())],
            applications: [Application::default(), Application::default()],
            mode,
            keep_undecided,
            session: None,
        };
        world.attach_missing();
        world
    }

    /// The client begins its session and attaches what is detached.
    fn attach_missing(&mut self) {
        let [client, _] = &mut self.ends;
        if self.session.is_none() {
            self.session = client.connection.begin(Lane(4), &mut client.out).ok();
        }
        let Some(session) = self.session else { return };
        let application = &mut self.applications[0];
        for (index, role) in [(0, Role::Sender), (1, Role::Receiver)] {
            let taken = match role {
                Role::Sender => application.sender.link.is_some(),
                Role::Receiver => application.receiver.link.is_some(),
            };
            if taken {
                continue;
            }
            let link = attach_options(application, role, self.mode, |options| {
                client
                    .connection
                    .attach(session, NAMES[index], role, options, &mut client.out)
            });
            // As long as the answer to a detach is awaited the name is taken.
            let link = match link {
                Ok(link) => Some(link),
                Err(CommandError::State) => None,
                Err(error) => panic!("{error:?}"),
            };
            match role {
                Role::Sender => application.sender.link = link,
                Role::Receiver => application.receiver.link = link,
            }
        }
    }

    fn read(&mut self, end: usize, lane: u64, bytes: usize) {
        let application = &mut self.applications[end];
        let (mode, keep) = (self.mode, self.keep_undecided);
        let [client, server] = &mut self.ends;
        let (to, from) = if end == 0 {
            (client, server)
        } else {
            (server, client)
        };
        to.read(&mut from.out, lane, bytes, |connection, out, event| {
            handle(application, connection, out, event, mode, keep);
        });
        assert_eq!(to.violations, []);
        to.drain_events(|connection, out, event| {
            handle(application, connection, out, event, mode, keep);
        });
        self.send_waiting(end);
        if end == 0 {
            self.attach_missing();
        }
    }

    /// Sends what credit and window allow.
    fn send_waiting(&mut self, end: usize) {
        let End {
            connection, out, ..
        } = &mut self.ends[end];
        let sender = &mut self.applications[end].sender;
        let Some(link) = sender.link else { return };
        if let Some((token, done, _)) = sender.sending {
            let payload = &sender.messages[&token];
            match connection.transfer_more(link, &[&payload[done..]], false, out) {
                Ok(sent) => {
                    let done = done + sent.payload_bytes;
                    sender.sending = (!sent.complete).then_some((token, done, 0));
                }
                // `NoLink`: its detach waits for the answer.
                Err(CommandError::NoCredit | CommandError::NoLink) => return,
                Err(error) => panic!("{error:?}"),
            }
            if sender.sending.is_some() {
                return;
            }
        }
        while sender.sending.is_none() && connection.can_send(link) {
            let (token, recovery) = match sender.resuming.pop_front() {
                Some((token, recovery)) => (token, Some(recovery)),
                None => match sender.waiting.pop_front() {
                    Some(token) => (token, None),
                    None => return,
                },
            };
            let tag = token.to_be_bytes();
            let state = match &recovery {
                Some(Recovery::Settle(state)) => Some(state.clone()),
                _ => None,
            };
            let transfer = OutgoingTransfer {
                resume: recovery.is_some(),
                settled: state.is_some(),
                state: state.as_ref().map(DeliveryStateBuf::view),
                ..OutgoingTransfer::new(&tag, token)
            };
            let payload: &[u8] = if state.is_some() {
                &[]
            } else {
                &sender.messages[&token]
            };
            let sent = connection
                .transfer(link, &transfer, &[payload], false, out)
                .unwrap();
            if let Some(state) = &state {
                sender.settle(token, state);
            }
            sender.sending = (!sent.complete).then_some((token, sent.payload_bytes, 0));
        }
    }

    fn decide(&mut self, end: usize, take: bool) {
        let second = self.mode == ReceiverSettleMode::Second;
        let End {
            connection, out, ..
        } = &mut self.ends[end];
        let receiver = &mut self.applications[end].receiver;
        let Some(link) = receiver.link else { return };
        let Some((delivery_id, message)) = receiver.undecided.pop_front() else {
            return;
        };
        let state = if take {
            *receiver.accepted.entry(message).or_default() += 1;
            DeliveryState::ACCEPTED
        } else {
            DeliveryState::RELEASED
        };
        let range = (delivery_id, delivery_id);
        connection
            .dispose(link.session, range, Some(&state), !second, out)
            .unwrap();
    }

    fn play(&mut self, action: Action) {
        match action {
            Action::Send(end, bytes) => {
                let sender = &mut self.applications[end].sender;
                let token = sender.messages.len() as u64;
                sender.messages.insert(token, message(token, bytes));
                sender.waiting.push_back(token);
                self.send_waiting(end);
            }
            Action::Bytes(end, lane, bytes) => self.read(end, lane, bytes),
            Action::Decide(end, take) => self.decide(end, take),
            Action::Credit(end, credit) => {
                let End {
                    connection, out, ..
                } = &mut self.ends[end];
                if let Some(link) = self.applications[end].receiver.link {
                    // Not before the answer to the peer's attach; and never between.
                    let _ = connection.set_credit(link, credit, false, false, out);
                }
            }
            Action::Detach(which) => {
                let End {
                    connection, out, ..
                } = &mut self.ends[0];
                let application = &self.applications[0];
                let link = [application.sender.link, application.receiver.link][which];
                if let Some(link) = link {
                    let _ = connection.detach(link, false, None, out);
                }
            }
            Action::Break => self.break_connection(),
        }
    }

    fn break_connection(&mut self) {
        let (mode, keep) = (self.mode, self.keep_undecided);
        for (end, application) in self.ends.iter_mut().zip(&mut self.applications) {
            end.connection.transport_closed();
            end.drain_events(|connection, out, event| {
                handle(application, connection, out, event, mode, keep);
            });
            assert!(application.sender.link.is_none());
            assert!(application.receiver.link.is_none());
        }
        self.ends = [End::client(&limits()), End::server(&limits())];
        self.session = None;
        self.attach_missing();
    }

    /// Lets everything come to its end.
    fn finish(&mut self) {
        for _ in 0..4000 {
            for end in 0..2 {
                for lane in [0, 4] {
                    self.read(end, lane, usize::MAX);
                }
                while !self.applications[end].receiver.undecided.is_empty()
                    && self.applications[end].receiver.link.is_some()
                {
                    self.decide(end, true);
                }
                let End {
                    connection, out, ..
                } = &mut self.ends[end];
                if let Some(link) = self.applications[end].receiver.link
                    && connection.credit(link) < 5
                {
                    let _ = connection.set_credit(link, 20, false, false, out);
                }
            }
            let done = self.applications.iter().all(|application| {
                application.sender.settled.len() == application.sender.messages.len()
            });
            if done && self.ends.iter().all(|end| end.out.is_empty()) {
                return;
            }
        }
        let open: Vec<Vec<u64>> = self
            .applications
            .iter()
            .map(|application| {
                let sender = &application.sender;
                let unsettled = |token: &&u64| !sender.settled.contains_key(token);
                sender.messages.keys().filter(unsettled).copied().collect()
            })
            .collect();
        panic!("not settled: {open:?}");
    }

    fn check(&self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let sender = &self.applications[from].sender;
            let receiver = &self.applications[to].receiver;
            for (token, message) in &sender.messages {
                assert_eq!(sender.settled.get(token), Some(&1), "settled once: {token}");
                let accepted = receiver.accepted.get(message).copied().unwrap_or(0);
                match self.mode {
                    ReceiverSettleMode::First => assert!(accepted >= 1, "lost: {token}"),
                    ReceiverSettleMode::Second => assert_eq!(accepted, 1, "once: {token}"),
                }
            }
            let sent: BTreeSet<&Vec<u8>> = sender.messages.values().collect();
            assert!(
                receiver
                    .accepted
                    .keys()
                    .all(|message| sent.contains(message))
            );
            assert_eq!(self.ends[from].connection.unsettled(SessionId(0)), (0, 0));
        }
    }
}

fn attach_options<R>(
    application: &Application,
    role: Role,
    mode: ReceiverSettleMode,
    with: impl FnOnce(&AttachOptions<'_>) -> R,
) -> R {
    let (unsettled, recover) = match role {
        Role::Sender => (
            &application.sender.unsettled,
            application.sender.attached_before,
        ),
        Role::Receiver => (
            &application.receiver.unsettled,
            application.receiver.attached_before,
        ),
    };
    with(&AttachOptions {
        rcv_settle_mode: mode,
        unsettled,
        recover,
        ..options("s", "t")
    })
}

fn handle(
    application: &mut Application,
    connection: &mut Connection,
    out: &mut Lanes,
    event: Event<'_>,
    mode: ReceiverSettleMode,
    keep_undecided: bool,
) {
    match event {
        Event::Open(_) => {
            // The client's open went out with its header.
            let _ = connection.open(&Open::new("server"), out);
        }
        Event::Attach { link, attach } => {
            let role = attach.role.other();
            attach_options(application, role, mode, |options| {
                connection.accept_attach(link, options, out).unwrap();
            });
            match role {
                Role::Sender => application.sender.link = Some(link),
                Role::Receiver => application.receiver.link = Some(link),
            }
        }
        Event::Delivery(delivery) => received(&mut application.receiver, &delivery),
        Event::Disposition {
            link,
            delivery_id,
            token,
            state,
            settled,
        } => {
            if application.sender.link != Some(link) {
                assert!(settled, "a sender tells no states here");
                return;
            }
            let state = state.unwrap();
            if !settled {
                let range = (delivery_id, delivery_id);
                connection
                    .settle(link.session, range, Some(&state.view()), out)
                    .unwrap();
            }
            application.sender.settle(token, &state);
        }
        Event::Recover {
            link,
            delivery,
            recovery,
        } if application.sender.link == Some(link) => {
            let sender = &mut application.sender;
            match recovery {
                Recovery::Resend => sender.waiting.push_front(delivery.token),
                Recovery::Resume(_) | Recovery::Settle(_) => {
                    sender.resuming.push_back((delivery.token, recovery));
                }
                Recovery::Settled(state) => sender.settle(delivery.token, &state.unwrap()),
                other => panic!("{other:?}"),
            }
        }
        Event::Recover { recovery, .. } => assert!(
            matches!(recovery, Recovery::Settled(_) | Recovery::Resumed { .. }),
            "{recovery:?}"
        ),
        Event::Detached {
            link,
            closed,
            error,
            unsettled,
        } => {
            assert_eq!((closed, error), (false, None));
            if application.sender.link == Some(link) {
                let sender = &mut application.sender;
                sender.link = None;
                sender.attached_before = true;
                // What had not been taken up again is among the unsettled, too.
                sender.resuming.clear();
                sender.sending = None;
                sender.unsettled = unsettled;
                assert!(
                    sender
                        .unsettled
                        .iter()
                        .all(|one| !sender.waiting.contains(&one.token)),
                    "unsettled and never sent"
                );
            } else {
                let receiver = &mut application.receiver;
                receiver.link = None;
                receiver.attached_before = true;
                receiver.undecided.clear();
                receiver.unsettled = unsettled;
                if !keep_undecided {
                    receiver.unsettled.retain(|one| one.state.is_some());
                }
            }
        }
        _ => {}
    }
}

fn received(receiver: &mut Receiver, delivery: &Delivery<'_>) {
    receiver
        .undecided
        .push_back((delivery.delivery_id, delivery.payload.to_vec()));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_is_lost_and_everything_is_settled_once(
        actions in prop::collection::vec(action(), 1..250),
        second in any::<bool>(),
        keep_undecided in any::<bool>(),
    ) {
        let mode = if second {
            ReceiverSettleMode::Second
        } else {
            ReceiverSettleMode::First
        };
        let mut world = World::new(mode, keep_undecided);
        for action in actions {
            world.play(action);
        }
        world.finish();
        world.check();
    }
}
