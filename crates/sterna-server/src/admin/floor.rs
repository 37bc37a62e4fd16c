//! A shard's answers to queries of the admin API.

use serde_json::{Value, json};
use sterna_broker::{
    ConsumerId, EndCause, EvictReason, Message, QueueChange, SessionInfo, SessionName,
    SubscriptionInfo, Wish,
};
use sterna_net::{ConnectionId, Network};

use super::message::message_value;
use crate::amqp;
use crate::context::Context;
use crate::door::Promise;
use crate::http;
use crate::inspect::{ClientView, add_queue_members, path_value, transport_name};
use crate::mail::admin::{Found, Query, Window};
use crate::mail::ranking::Best;
use crate::mqtt;
use crate::session::{QUEUE_PREFIX, protocol_of};

/// A shard, for one query. The terms of each query bound its work.
pub(crate) struct Floor<'a, 'b> {
    pub(crate) mqtt: &'a mut mqtt::Door,
    pub(crate) amqp: &'a mut amqp::Door,
    pub(crate) http: &'a mut http::Door,
    pub(crate) cx: &'a mut Context<'b>,
    /// URLs of the listeners.
    pub(crate) listeners: &'a [String],
    /// Name of the node in a cluster.
    pub(crate) node: Option<&'a str>,
}

/// Places of sessions that are looked at before other work goes on.
const SLOTS_AT_ONCE: usize = 1_024;

/// The name of a connection in the API: its node in a cluster, shard, place, and use of the place.
pub(super) fn client_name(node: Option<&str>, shard: usize, id: ConnectionId) -> String {
    of_node(node, &format!("{shard}.{}.{}", id.slot, id.generation))
}

/// The name of something that has another one at each node of a cluster.
pub(super) fn of_node(node: Option<&str>, name: &str) -> String {
    node.map_or_else(|| name.to_owned(), |node| format!("{node}:{name}"))
}

/// The shard and the connection of a name without its node; `None` where it is none.
pub(super) fn client_of(name: &str) -> Option<(usize, ConnectionId)> {
    let mut parts = name.split('.');
    let shard = parts.next()?.parse().ok()?;
    let slot = parts.next()?.parse().ok()?;
    let generation = parts.next()?.parse().ok()?;
    let is_whole = parts.next().is_none();
    is_whole.then_some((shard, ConnectionId { slot, generation }))
}

/// Ends a session of this shard; the append that keeps that, 0 for none. `None` where the session is not here.
pub(super) fn end_session_here(
    cx: &mut Context<'_>,
    now_ms: u64,
    name: &SessionName,
) -> Option<u64> {
    let (is_here, append) = cx.appended(|cx| cx.broker.end_session_here(now_ms, name));
    is_here.then_some(append)
}

impl Floor<'_, '_> {
    /// Tells of a change when the store has its append. Until then `again` is asked; `None` where there was nothing to
    /// change.
    fn kept(
        &mut self,
        append: Option<u64>,
        again: impl FnOnce(Option<u64>) -> Query,
    ) -> Result<Found, Query> {
        let Some(token) = append else {
            return Ok(Found::Nothing);
        };
        if Promise::again(self.cx).at(token).is_kept_now(self.cx) {
            return Ok(Found::One(json!({})));
        }
        Err(again(append))
    }

    /// Answers a query. If it waits for the store, the rest of the query is the error: messages have to be
    /// read in the log first, or something has to be kept. It is to be asked again when the store has woken the shard.
    pub(crate) fn answer(&mut self, query: Query) -> Result<Found, Query> {
        let now_ms = self.cx.now_ms;
        let found = match query {
            Query::Clients { window, whose } => {
                let mut found = Vec::new();
                let net = &*self.cx.net;
                let go_on = net.connections(window.from, window.scan, &mut |id| {
                    let view = self.view(id);
                    if let Some(view) = view.filter(|view| whose.is(view.name, view.user)) {
                        found.extend(self.client(net, id, &view));
                    }
                    found.len() < window.limit
                });
                Found::Page(found, go_on.map(|place| place as u64))
            }
            Query::Ranked {
                window,
                whose,
                order,
                after,
            } => {
                let net = &*self.cx.net;
                let mut best = Best::new(after, window.limit);
                let go_on = net.connections(window.from, window.scan, &mut |id| {
                    let view = self.view(id);
                    if let Some(view) = view.filter(|view| whose.is(view.name, view.user)) {
                        let place = (self.node, self.cx.shard, id);
                        let messages = view.tally.received.saturating_add(view.tally.sent);
                        let path = net.path(id);
                        let rank = order.rank(place, view.name, view.queue, messages, &path);
                        best.see(rank, id);
                    }
                    true
                });
                let (found, has_more) = best.end();
                let found = found.into_iter().filter_map(|(rank, id)| {
                    let client = self.client(net, id, &self.view(id)?)?;
                    Some((rank, client))
                });
                Found::Ranked(found.collect(), has_more, go_on.map(|place| place as u64))
            }
            Query::Client(id) => {
                let view = self.view(id);
                let client = view.and_then(|view| self.client(&*self.cx.net, id, &view));
                client.map_or(Found::Nothing, Found::One)
            }
            Query::Disconnect(id) => {
                let name = self.view(id).and_then(|view| view.name.map(str::to_owned));
                let cause = EndCause::Evicted(EvictReason::Administrative);
                let is_here = self.mqtt.dismiss(self.cx, id, cause)
                    || self.amqp.dismiss(self.cx, id, cause)
                    || self.http.dismiss(self.cx, id, cause);
                if is_here {
                    Found::One(json!({ "name": name }))
                } else {
                    Found::Nothing
                }
            }
            Query::EndSessionsOf {
                user,
                from,
                mut ended,
                append,
            } => {
                let mut next = None;
                let mut append = append;
                if append.is_none() {
                    // The anchor of a queue is nobody's session, too, and no client's.
                    let is_its = |name: &SessionName| {
                        name.user() == user.as_deref() && !name.id().starts_with(QUEUE_PREFIX)
                    };
                    let (more, go_on) =
                        (self.cx.broker).end_sessions_of(now_ms, is_its, from, SLOTS_AT_ONCE);
                    ended += more;
                    next = go_on;
                    append = next.is_none().then(|| self.cx.broker.token());
                }
                let is_kept = append
                    .is_some_and(|token| Promise::again(self.cx).at(token).is_kept_now(self.cx));
                if !is_kept {
                    let from = next.unwrap_or(from);
                    return Err(Query::EndSessionsOf {
                        user,
                        from,
                        ended,
                        append,
                    });
                }
                Found::One(json!({ "sessions": ended }))
            }
            Query::Sessions { window, whose } => {
                let broker = &*self.cx.broker;
                let (sessions, next) =
                    broker.sessions_within(window.from, window.limit, window.scan);
                let sessions = sessions.iter();
                let sessions = sessions
                    .filter(|one| whose.is(Some(one.name.id()), one.name.user()))
                    .map(|session| self.session(session));
                Found::Page(sessions.collect(), next.map(|next| next as u64))
            }
            Query::Session(name) => match self.cx.broker.session_named(&name) {
                Some((session, _)) => Found::One(self.session(&session)),
                None => Found::Nothing,
            },
            Query::EndSession { session, append } => {
                let append = append.or_else(|| end_session_here(self.cx, now_ms, &session));
                return self.kept(append, |append| Query::EndSession { session, append });
            }
            Query::RemoveQueue { name, append } => {
                let append = append.or_else(|| self.amqp.remove_queue(self.cx, &name));
                return self.kept(append, |append| Query::RemoveQueue { name, append });
            }
            Query::AllSubscriptions {
                window,
                behind,
                topic,
                filter,
            } => self.subscriptions(
                window,
                behind.as_deref(),
                Wish {
                    topic: topic.as_deref(),
                    filter: filter.as_deref(),
                },
            ),
            Query::Subscriptions {
                session,
                after,
                limit,
            } => {
                let broker = &*self.cx.broker;
                let page = broker.subscriptions_named(&session, after.as_deref(), limit);
                let Some((page, has_more)) = page else {
                    return Ok(Found::Nothing);
                };
                Found::Page(
                    page.iter().map(subscription_value).collect(),
                    has_more.then_some(0),
                )
            }
            Query::Queues(queues) => {
                let found = queues.iter().enumerate();
                let found = found.filter_map(|(at, queue)| Some((at, self.queue(queue)?)));
                Found::Some(found.collect())
            }
            Query::Messages {
                queue,
                after,
                limit,
            } => {
                let page = self.cx.broker.peek_queue(now_ms, &queue, after, limit);
                let Some((page, has_more)) = page else {
                    return Ok(self.elsewhere(&queue));
                };
                if page.is_empty() && has_more {
                    return Err(Query::Messages {
                        queue,
                        after,
                        limit,
                    });
                }
                let next = page.last().filter(|_| has_more);
                let next = next.map(|last| last.place);
                let most = self.cx.policy.admin.maximum_payload_bytes;
                let page = page.iter().map(|peeked| {
                    let mut value = message_value(&peeked.message, most);
                    value["failures"] = peeked.failures.into();
                    value
                });
                Found::Page(page.collect(), next)
            }
            Query::Purge { queue, limit } => {
                let change = self.cx.broker.purge_queue(now_ms, &queue, limit);
                change.map_or_else(|| self.elsewhere(&queue), changed)
            }
            Query::Move {
                queue,
                topic,
                limit,
                moved,
            } => {
                let make = |message: &Message| message.under_topic(&topic).ok();
                let change = self.cx.broker.move_queue(now_ms, &queue, limit, make);
                let change = change.map(|change| QueueChange {
                    messages: moved + change.messages,
                    ..change
                });
                if let Some(change) = change.filter(|change| change.is_reading) {
                    return Err(Query::Move {
                        queue,
                        topic,
                        limit: limit - (change.messages - moved),
                        moved: change.messages,
                    });
                }
                change.map_or_else(|| self.elsewhere(&queue), changed)
            }
        };
        Ok(found)
    }

    /// Subscriptions of all sessions that are as wished, each with its session.
    fn subscriptions(&self, window: Window, behind: Option<&str>, wish: Wish<'_>) -> Found {
        let broker = &*self.cx.broker;
        let from = (window.from, behind);
        let page = broker.subscriptions_within(from, window.limit, window.scan, wish);
        let items = page.found.iter().map(|(session, subscription)| {
            let mut value = subscription_value(subscription);
            value["session"] = session.id().into();
            value["user"] = session.user().into();
            value
        });
        let next = page.next;
        let next = next.map(|(place, behind)| (place, behind.map(|behind| (*behind).into())));
        Found::Part(items.collect(), next)
    }

    /// The view of a connection, as its door shows it.
    fn view(&self, id: ConnectionId) -> Option<ClientView<'_>> {
        let broker = &*self.cx.broker;
        (self.mqtt.view(broker, id))
            .or_else(|| self.amqp.view(broker, id))
            .or_else(|| self.http.view(broker, id))
    }

    fn client(&self, net: &dyn Network, id: ConnectionId, view: &ClientView<'_>) -> Option<Value> {
        let info = net.info(id)?;
        let mut client = json!({
            "id": client_name(self.node, self.cx.shard, id),
            "name": view.name,
            "user": view.user,
            "proof": view.proof.map(crate::identity::Proof::name),
            "protocol": view.protocol,
            "version": view.version,
            "transport": transport_name(info.transport),
            "peer": info.peer.to_string(),
            "listener": self.listeners.get(usize::from(info.listener)),
            "since_ms": view.since_ms,
            "subscriptions": view.subscriptions,
            "messages_received": view.tally.received,
            "messages_sent": view.tally.sent,
            "paused_until_ms": view.paused_until_ms.filter(|until_ms| *until_ms > net.now_ms()),
            "path": path_value(&net.path(id)),
        });
        add_queue_members(&mut client, view.queue);
        Some(client)
    }

    fn session(&self, session: &SessionInfo) -> Value {
        let connection = session
            .consumer
            .and_then(|consumer| self.connection_of(consumer));
        let mut value = json!({
            "name": session.name.id(),
            "user": session.name.user(),
            "protocol": protocol_of(session.name.id()),
            "connected": session.consumer.is_some(),
            "client": connection.map(|id| client_name(self.node, self.cx.shard, id)),
            "shard": session.shard.0,
            "expiry_s": Some(session.expiry_s)
                .filter(|expiry_s| *expiry_s != sterna_broker::NEVER_EXPIRES_S),
            "expires_at_ms": session.expires_at_ms,
            "subscriptions": session.subscriptions,
        });
        add_queue_members(&mut value, session.queue);
        value
    }

    fn connection_of(&self, consumer: ConsumerId) -> Option<ConnectionId> {
        if http::is_consumer(consumer) {
            self.http.connection_of(consumer)
        } else if amqp::is_consumer(consumer) {
            self.amqp.connection_of(consumer)
        } else {
            self.mqtt.connection_of(consumer)
        }
    }

    fn queue(&mut self, filter: &str) -> Option<Value> {
        let owner = self.cx.broker.queue_owner(filter);
        let node = owner
            .as_ref()
            .and_then(|owner| owner.node().map(str::to_owned));
        let Some(info) = self.cx.broker.queue_info(filter) else {
            // Its content is known to that node.
            return owner.map(|_| json!({ "node": node }));
        };
        let dead_letter = info.dead_letter.as_deref();
        Some(json!({
            "messages": info.messages,
            "delayed": info.delayed,
            "bytes": info.bytes,
            "consumers": info.consumers,
            "maximum_deliveries": info.maximum_deliveries,
            "dead_letter": dead_letter
                .map(|topic| topic.strip_prefix(crate::config::QUEUE_LEVEL).unwrap_or(topic)),
            "has_priorities": info.has_priorities,
            "shard": self.cx.shard,
            "node": node,
        }))
    }

    /// Where a queue is that this shard has not.
    fn elsewhere(&self, filter: &str) -> Found {
        (self.cx.broker.queue_owner(filter)).map_or(Found::Nothing, |owner| {
            Found::Elsewhere(owner.node().map(Into::into))
        })
    }
}

fn subscription_value(subscription: &SubscriptionInfo) -> Value {
    json!({
        "filter": &*subscription.filter,
        "qos": subscription.qos as u8,
        "no_local": subscription.no_local,
        "retain_as_published": subscription.retain_as_published,
        "identifier": subscription.identifier,
        "resting": subscription.is_resting,
    })
}

fn changed(change: QueueChange) -> Found {
    Found::One(json!({
        "messages": change.messages,
        "left": change.left,
        "is_refused": change.is_refused,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_connections_are_read_as_they_are_written() {
        let id = ConnectionId {
            slot: 7,
            generation: 9,
        };
        assert_eq!(client_of(&client_name(None, 3, id)), Some((3, id)));
        assert_eq!(client_name(Some("node-1"), 3, id), "node-1:3.7.9");
        for wrong in [
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "a.b.c",
            "-1.2.3",
            "1.2.99999999999",
        ] {
            assert_eq!(client_of(wrong), None, "{wrong}");
        }
    }
}
