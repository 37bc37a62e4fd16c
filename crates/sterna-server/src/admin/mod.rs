//! The front door of operators: metrics, health and the admin API, by HTTP, on listeners of their own.
//!
//! `desk.rs` takes requests, and checks the rights of their senders. `routes.rs` is the table of the API, by which
//! `call.rs` reads them, `api.rs` does the work of a route, and `openapi.rs` describes the table. For facts that only other shards
//! know, the connection's shard asks them by letter (`gather.rs`); `floor.rs` answers there. In a cluster the same is
//! asked of other nodes (`nodes.rs`): `round/` decides who is asked next, and `asked.rs` answers there. `trace.rs` passes on
//! the events that shards see of messages (`watch.rs` of the crate).

mod answers;
mod api;
mod asked;
mod bans;
mod call;
mod changes;
mod desk;
mod far_trace;
mod floor;
mod gather;
mod message;
mod nodes;
mod openapi;
mod parameters;
mod role;
mod round;
mod routes;
mod rules;
mod trace;

use std::sync::Arc;

use ring::hmac;
use sterna_broker::{ConsumerId, EndCause};
use sterna_http::{Carrier, Date, INTERNAL_ERROR, Limits, NO_ERROR, Request, Settings};
use sterna_net::{Chunk, ConnectionId, StreamEnd, StreamId};

use crate::amqp;
use crate::context::Context;
use crate::door::{self, Promises, Service, Sips};
use crate::http::{Credentials, limits};
use crate::identity::Outcome;
use crate::inspect;
use crate::mail::AdminLetter;
use crate::mail::admin::Body;
use crate::metrics::Sources;
use api::Done;
use asked::{OF_NODES, Questions};
use desk::{Desk, Purpose};
use far_trace::FarTraces;
use gather::Gathers;
use trace::Traces;

pub(crate) use floor::Floor;

/// The front door of one shard.
pub(crate) type Door = door::Door<Admin>;

/// The door's state beside its connections.
#[derive(Debug)]
pub(crate) struct Admin {
    date: Date,
    /// The limits of connections since the last reload that changed them.
    limits: Option<Arc<Limits>>,
    gathers: Gathers<Purpose>,
    /// Questions of nodes of the cluster.
    questions: Questions,
    traces: Traces,
    /// Traces that operators of other nodes look at.
    far_traces: FarTraces,
    /// The shard sends its last acknowledgements, and then stops.
    pub(crate) is_draining: bool,
    pub(crate) sources: Arc<Sources>,
    /// The queues of AMQP.
    queues: Arc<amqp::Registry>,
    /// Claims that were judged.
    claims: u64,
    /// For digests of credentials; it lives and dies with the shard.
    key: hmac::Key,
}

/// An operator's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    id: ConnectionId,
    carrier: Carrier,
    credentials: Credentials,
    /// Requests that wait for the verdict on a password.
    held: Vec<Request>,
    /// Answers that wait until their effects are kept.
    promises: Promises<Done>,
    /// Deadline of this connection's entry among the timers; older entries are void.
    timer_ms: u64,
    /// Never used: operators are always read.
    sips: Sips,
}

impl Service for Admin {
    type Id = ConnectionId;
    type Client = Connection;
    type Acknowledgement = Done;

    fn greet(door: &mut Door, cx: &mut Context<'_>, id: ConnectionId) -> Option<Connection> {
        let high_watermark_bytes = door.high_watermark_bytes;
        let settings = Settings {
            limits: limits(&mut door.service.limits, cx.policy, high_watermark_bytes),
            takes_datagrams: false,
            http3_port: None,
        };
        Some(Connection {
            id,
            carrier: Carrier::new(cx.net, id, settings)?,
            credentials: Credentials::default(),
            held: Vec::new(),
            promises: Promises::default(),
            timer_ms: u64::MAX,
            sips: Sips::default(),
        })
    }

    fn begin(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        client.carrier.begin(cx.net, &mut door.service.date);
    }

    fn settle(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        client.work(door, cx, |carrier, desk| carrier.settle(desk));
        door.out.sent_bytes += client.carrier.flush(cx.net, false);
        if let Some(code) = client.carrier.close_code() {
            cx.net.close(client.id, code);
            return;
        }
        let own_ms = client.carrier.deadline_ms();
        let gathered_ms = door.service.gathers.deadline_ms(client.id);
        let traced_ms = door.service.traces.deadline_ms(client.id);
        let all_ms = own_ms.into_iter().chain(gathered_ms).chain(traced_ms);
        if let Some(next_ms) = all_ms.min()
            && next_ms < client.timer_ms
        {
            door.set_timer(client, next_ms);
        }
    }

    fn due(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        client.work(door, cx, |carrier, desk| {
            carrier.timeout(desk);
            desk.give_up(carrier.responses());
            desk.look_after_traces(carrier.responses());
        });
    }

    fn promises(client: &mut Connection) -> &mut Promises<Done> {
        &mut client.promises
    }

    fn acknowledge(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection, done: Done) {
        client.work(door, cx, |carrier, _| done.tell(carrier.responses()));
    }

    fn policy_changed(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        // Each request is judged by itself, and traces are responses that do not end.
        if let Err(why) = cx.policy.still_trusts(cx.net.info(client.id)) {
            inspect::log_distrust(cx, client.id, client.credentials.name(), &why);
            Self::lost(door, cx, client, EndCause::NotAllowed);
            return cx.net.close(client.id, NO_ERROR);
        }
        client.work(door, cx, |carrier, desk| {
            desk.end_unwanted_traces(carrier.responses());
        });
    }

    fn stop(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        client.work(door, cx, |carrier, desk| carrier.stop(desk));
    }

    fn lost(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection, _: EndCause) {
        (door.service.gathers).leave(client.id, None, Purpose::is_change);
        client.work(door, cx, |_, desk| desk.end_traces(None));
    }

    fn hang_up(cx: &mut Context<'_>, id: ConnectionId, failed: bool) {
        cx.net
            .close(id, if failed { INTERNAL_ERROR } else { NO_ERROR });
    }

    fn is_consumer_of(&self, _: ConsumerId, _: ConnectionId) -> bool {
        false
    }

    fn name(client: &Connection) -> Option<&str> {
        client.credentials.name()
    }

    fn user(client: &Connection) -> Option<&str> {
        client.credentials.name()
    }

    fn timer(client: &mut Connection) -> (ConnectionId, &mut u64) {
        (client.id, &mut client.timer_ms)
    }

    fn partial_bytes(client: &Connection) -> usize {
        client.carrier.partial_bytes() + desk::held_bytes(&client.held)
    }

    fn sips(client: &mut Connection) -> &mut Sips {
        &mut client.sips
    }

    fn shed(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        // Operators stay: they are those who can help.
        if client.credentials.name().is_none() {
            Self::lost(door, cx, client, EndCause::Limit);
            cx.net.close(client.id, NO_ERROR);
        }
    }

    // Requests that wait for other shards have their own deadlines.
    fn check(_: &Door) {}
}

impl Connection {
    /// A piece of work of a step.
    fn work(
        &mut self,
        door: &mut Door,
        cx: &mut Context<'_>,
        work: impl FnOnce(&mut Carrier, &mut Desk<'_, '_>),
    ) {
        let is_stopping = door.stopping || door.service.is_draining;
        let mut desk = Desk {
            connection: self.id,
            admin: &mut door.service,
            is_stopping,
            cx,
            credentials: &mut self.credentials,
            held: &mut self.held,
            promises: &mut self.promises,
            asked: None,
        };
        work(&mut self.carrier, &mut desk);
    }
}

impl Door {
    /// A door without connections.
    pub(crate) fn new(
        sources: Arc<Sources>,
        queues: Arc<amqp::Registry>,
        high_watermark_bytes: usize,
    ) -> Self {
        let mut secret = [0; 32];
        // Without randomness the digests are merely not secret; nobody sees them.
        let _ = getrandom::fill(&mut secret);
        let service = Admin {
            date: Date::default(),
            limits: None,
            gathers: Gathers::default(),
            questions: Questions::default(),
            traces: Traces::default(),
            far_traces: FarTraces::default(),
            is_draining: false,
            sources,
            queues,
            claims: 0,
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
        };
        Self::open_for(service, high_watermark_bytes)
    }

    /// Bytes arrived.
    pub(crate) fn received(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        chunk: Chunk<'_>,
    ) {
        self.with_connection(cx, connection, |carrier, desk| {
            carrier.received(desk, &chunk);
        });
    }

    /// Early data can no longer be a replay; no transport of this door has any.
    pub(crate) fn confirmed(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        self.with_connection(cx, connection, |carrier, _| carrier.confirmed());
    }

    /// A peer has ended one side of a stream.
    pub(crate) fn stream_ended(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        stream: StreamId,
        end: StreamEnd,
    ) {
        self.with_connection(cx, connection, |carrier, desk| {
            carrier.stream_ended(desk, stream, end);
        });
    }

    /// The queue towards a client has room again.
    pub(crate) fn writable(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        self.with_connection(cx, connection, |carrier, desk| carrier.writable(desk));
    }

    /// The verdict on a password.
    pub(crate) fn judged(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        number: u64,
        outcome: Outcome,
    ) {
        self.with_connection(cx, connection, |carrier, desk| {
            desk.judged(carrier.responses(), number, outcome);
        });
    }

    /// A shard has answered.
    pub(crate) fn mail(&mut self, cx: &mut Context<'_>, letter: AdminLetter) {
        match letter.0 {
            Body::Answer {
                number,
                shard,
                answer,
            } => {
                let gathered = self.service.gathers.answered(number, shard, answer);
                let Some(gathered) = gathered else {
                    return;
                };
                let Some((connection, exchange)) = gathered.asker else {
                    return gathered.purpose.end_unheard(cx.meters, gathered.answers);
                };
                if connection == OF_NODES {
                    return self.for_nodes(cx, |desk, out| desk.gathered(out, exchange, gathered));
                }
                self.with_connection(cx, connection, |carrier, desk| {
                    desk.gathered(carrier.responses(), exchange, gathered);
                });
            }
            Body::Seen(events) => {
                if let Some(connection) = self.service.traces.connection_of(events.number) {
                    self.with_connection(cx, connection, |carrier, desk| {
                        desk.seen(carrier.responses(), &events);
                    });
                } else {
                    self.for_nodes(cx, |desk, out| desk.seen_for_node(out, &events));
                }
            }
            Body::Traced { number, node, said } => {
                if let Some(connection) = self.service.traces.connection_of(number) {
                    self.with_connection(cx, connection, |carrier, desk| {
                        desk.traced(carrier.responses(), number, &node, said);
                    });
                }
            }
            Body::Asked { question, answer } => self.asked(cx, &question, answer),
            // These are for the shard.
            Body::Question { .. } | Body::Watch { .. } | Body::Unwatch { .. } => {}
        }
    }

    /// A step with a connection.
    fn with_connection(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        step: impl FnOnce(&mut Carrier, &mut Desk<'_, '_>),
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            client.work(door, cx, step);
        });
    }
}
