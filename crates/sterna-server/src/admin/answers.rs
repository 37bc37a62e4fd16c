//! The use of shards' answers, and the form in which the API writes them.

use serde_json::{Value, json};
use sterna_http::{Content, ExchangeId, Responses};

use super::api::{Condition, Done, Paging, Whole};
use super::changes::Change;
use super::desk::{Desk, Purpose};
use crate::control::{Order, Reloaded};
use crate::http::{ProblemKind as Kind, Trouble, etag_of, respond};
use crate::mail::admin::{Answer, Ask, Found};
use crate::mail::ranking::Best;
use crate::metrics::Figures;
use crate::sys::{Counts, Process};

impl Desk<'_, '_> {
    /// Shards have answered a query.
    pub(super) fn found_page(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        mut paging: Box<Paging>,
        answers: Vec<Answer>,
        deadline_ms: u64,
    ) {
        let mut next = None;
        for found in answers.into_iter().filter_map(found) {
            match (found, &mut paging.best) {
                (Found::Page(items, place), _) => {
                    paging.items.extend(items);
                    next = place;
                }
                (Found::Part(items, place), _) => {
                    paging.items.extend(items);
                    return self.found_part(out, id, paging, place, deadline_ms);
                }
                (Found::Ranked(items, has_more, place), Some(best)) => {
                    best.see_all(items, has_more);
                    next = place;
                }
                _ => {}
            }
        }
        let shards = usize::from(self.cx.broker.directory().shards());
        if paging.best.is_some() {
            let go_on = match next {
                Some(place) => Some((paging.shard, usize::try_from(place).unwrap_or(usize::MAX))),
                None if paging.shard + 1 == shards => None,
                None => Some((paging.shard + 1, 0)),
            };
            let Some((shard, from)) = go_on else {
                let (found, has_more) = paging.best.take().map(Best::end).unwrap_or_default();
                let next = found
                    .last()
                    .filter(|_| has_more)
                    .map(|(rank, _)| rank.text());
                let is_of_node = self.is_of_node();
                let items = found.into_iter().map(|(rank, mut client)| {
                    if is_of_node {
                        client["rank"] = rank.text().into();
                    }
                    client
                });
                let items = items.collect();
                return give_page(out, id, items, next, &[]);
            };
            paging.shard = shard;
            return self.go_on(out, id, paging, from, deadline_ms);
        }
        let next = match next {
            Some(place) => Some(format!("{}.{place}", paging.shard)),
            None if paging.shard + 1 == shards => None,
            None if paging.items.len() < paging.limit => {
                paging.shard += 1;
                return self.go_on(out, id, paging, 0, deadline_ms);
            }
            None => Some(format!("{}.0", paging.shard + 1)),
        };
        give_page(out, id, paging.items, next, &[]);
    }

    /// A shard has given a part of a page of which it looks at few places at a time.
    fn found_part(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        mut paging: Box<Paging>,
        next: Option<(usize, Option<Box<str>>)>,
        deadline_ms: u64,
    ) {
        let shards = usize::from(self.cx.broker.directory().shards());
        paging.left = paging.left.saturating_sub(paging.scan);
        let (from, behind) = match next {
            Some(next) => next,
            None if paging.shard + 1 == shards => {
                return give_page(out, id, paging.items, None, &[]);
            }
            None => {
                paging.shard += 1;
                (0, None)
            }
        };
        if paging.items.len() >= paging.limit || paging.left == 0 {
            let behind = behind.as_deref().unwrap_or_default();
            let next = format!("{}.{from}.{behind}", paging.shard);
            return give_page(out, id, paging.items, Some(next), &[]);
        }
        paging.behind = behind;
        self.go_on(out, id, paging, from, deadline_ms);
    }

    /// Asks the shard that a page has come to, from a place on.
    fn go_on(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        paging: Box<Paging>,
        from: usize,
        deadline_ms: u64,
    ) {
        let (shard, query) = (paging.shard, paging.query(from));
        match self.open_until(id, Purpose::Page(paging), shard..shard + 1, deadline_ms) {
            Ok(number) => self.post(number, shard, Ask::Query(query)),
            Err(trouble) => self.refused(out, id, &trouble),
        }
    }

    /// Shards have answered a query for one thing.
    pub(super) fn found_one(
        &self,
        out: &mut dyn Responses,
        id: ExchangeId,
        (condition, kind): (&Condition, Kind),
        answers: Vec<Answer>,
    ) {
        match one(answers) {
            Some(value) => give_value(out, id, condition, &value),
            None => self.refused(out, id, &missing(kind)),
        }
    }

    /// Shards have answered a query for a whole page.
    pub(super) fn found_whole(
        &self,
        out: &mut dyn Responses,
        id: ExchangeId,
        whole: Whole,
        condition: &Condition,
        answers: Vec<Answer>,
    ) {
        let mut page = None;
        let mut parts = Vec::new();
        if let Some(node) = elsewhere(&answers) {
            if self.is_of_node() {
                return Self::lead_node(out, id, node);
            }
            return self.refused(out, id, &queue_elsewhere(node));
        }
        for found in answers.into_iter().filter_map(found) {
            match found {
                Found::Page(items, next) => page = Some((items, next)),
                Found::Some(some) => parts.extend(some),
                Found::Nothing
                | Found::Elsewhere(_)
                | Found::One(_)
                | Found::Part(..)
                | Found::Ranked(..) => {}
            }
        }
        match whole {
            Whole::Queues(queues, has_more) => {
                let next = queues.last().filter(|_| has_more);
                let next = next.map(|(name, _)| name.to_string());
                give_page(out, id, described(queues, parts), next, &[]);
            }
            Whole::Queue(queues) => match described(queues, parts).pop() {
                Some(queue) => give_value(out, id, condition, &queue),
                None => self.refused(out, id, &missing(Kind::NoQueue)),
            },
            Whole::Subscriptions => match page {
                Some((items, next)) => {
                    let last = items.last().and_then(|last| last["filter"].as_str());
                    let next = next.and(last).map(str::to_owned);
                    give_page(out, id, items, next, &[]);
                }
                None => self.refused(out, id, &missing(Kind::SessionBusy)),
            },
            Whole::Messages => match page {
                Some((items, next)) => {
                    give_page(out, id, items, next.map(|place| place.to_string()), &[]);
                }
                None => self.refused(out, id, &missing(Kind::NoQueue)),
            },
        }
    }

    /// Shards have made a change, or have not found its object.
    pub(super) fn found_change(
        &self,
        out: &mut dyn Responses,
        id: ExchangeId,
        (change, kind): (Change, Kind),
        answers: Vec<Answer>,
    ) {
        if let Some(node) = elsewhere(&answers).filter(|_| self.is_of_node()) {
            return Self::lead_node(out, id, node);
        }
        match change.found(self.cx.meters, kind, answers) {
            Ok(value) if self.is_of_node() => Done::new(id, 200, Some(value)).tell(out),
            Ok(_) if matches!(kind, Kind::NoClient | Kind::SessionBusy) => {
                Done::new(id, 204, None).tell(out);
            }
            Ok(value) => Done::new(id, 200, Some(value)).tell(out),
            Err(trouble) => self.refused(out, id, &trouble),
        }
    }

    /// The engine of the cluster has told how that is.
    pub(super) fn reported(
        &self,
        out: &mut dyn Responses,
        id: ExchangeId,
        condition: &Condition,
        answers: Vec<Answer>,
    ) {
        let report = answers.into_iter().find_map(|answer| match answer {
            Answer::Report(report) => serde_json::to_value(report).ok(),
            _ => None,
        });
        if let Some(report) = report {
            give_value(out, id, condition, &report);
        } else {
            let trouble = Trouble::new(Kind::ClusterAway, "the cluster's engine has ended");
            self.refused(out, id, &trouble);
        }
    }

    /// Names this node in what it alone has done; nothing where there is no cluster.
    pub(super) fn said_by_node(&self, mut value: Value) -> Value {
        if let Some(node) = self.admin.sources.node() {
            value["node"] = node.into();
        }
        value
    }

    /// The process has obeyed an order, or not.
    pub(super) fn obeyed(
        &self,
        out: &mut dyn Responses,
        id: ExchangeId,
        (order, change): (Order, &Change),
        answers: Vec<Answer>,
    ) {
        match change.obeyed(self.cx.meters, answers, order == Order::Reload) {
            Ok(Reloaded {
                unchanged,
                lost,
                is_judging,
            }) => {
                let done = match order {
                    Order::Reload | Order::DryRun => {
                        let value = json!({
                            "unchanged": unchanged,
                            "lost_subscriptions": lost.subscriptions,
                            "lost_sessions": lost.sessions,
                            "judging": is_judging,
                        });
                        Done::new(id, 200, Some(self.said_by_node(value)))
                    }
                    Order::Drain => Done::new(id, 202, Some(self.said_by_node(json!({})))),
                };
                done.tell(out);
            }
            Err(problem) => {
                let trouble = Trouble::new(Kind::ReloadRefused, problem).logged();
                self.refused(out, id, &trouble);
            }
        }
    }

    /// All shards have told their counts.
    pub(super) fn describe_node(
        &self,
        out: &mut dyn Responses,
        id: ExchangeId,
        figures: &[Figures],
    ) {
        let directory = self.cx.broker.directory();
        let sources = &self.admin.sources;
        let mut counts = Counts::default();
        let mut drops = serde_json::Map::new();
        for figures in figures {
            counts.add(&figures.sys);
            for (reason, _, messages) in figures.drops.numbers().filter(|(.., n)| *n > 0) {
                let sum = drops.entry(reason).or_insert_with(|| 0.into());
                *sum = (sum.as_u64().unwrap_or(0) + messages).into();
            }
        }
        let shards = figures.iter().enumerate().map(|(number, figures)| {
            json!({
                "number": number,
                "sessions": figures.broker.sessions,
                "queued_messages": figures.broker.stored_messages + figures.broker.logged_messages,
                "messages_received": figures.broker.received_messages,
                "messages_sent": figures.broker.sent_messages,
                "letters": figures.letters,
            })
        });
        let now_ms = self.cx.now_ms;
        let (retained_messages, retained_bytes) = directory.retained_of_clients();
        let process = Process::read();
        let value = json!({
            "node": sources.node(),
            "version": env!("CARGO_PKG_VERSION"),
            "started_ms": sources.started_ms(),
            "uptime_s": now_ms.saturating_sub(sources.started_ms()) / 1000,
            "now_ms": now_ms,
            "cpu_s": process.cpu_s,
            "resident_bytes": process.resident_bytes,
            "is_stopping": self.is_stopping,
            "listeners": sources.listeners(),
            "shards": shards.collect::<Vec<_>>(),
            "clients_connected": counts.clients_connected,
            "clients_disconnected": counts.clients_disconnected(),
            "sessions": directory.sessions(),
            "subscriptions": counts.subscriptions,
            "queued_messages": counts.queued_messages,
            "queued_bytes": counts.queued_bytes,
            "retained_messages": retained_messages,
            "retained_bytes": retained_bytes,
            "connects": counts.connections,
            "messages_received": counts.publish_received,
            "messages_sent": counts.publish_sent,
            "messages_dropped": counts.publish_dropped,
            "bytes_received": counts.bytes_received,
            "bytes_sent": counts.bytes_sent,
            "dropped": drops,
        });
        give_value(out, id, &Condition::default(), &value);
    }
}

impl Done {
    pub(super) const fn new(id: ExchangeId, status: u16, content: Option<Value>) -> Self {
        Self {
            id,
            status,
            content,
        }
    }

    /// Tells the client.
    pub(super) fn tell(self, out: &mut dyn Responses) {
        let Some(value) = self.content else {
            return respond(
                out,
                self.id,
                &None,
                self.status,
                &[NOT_STORED],
                Content::Empty,
            );
        };
        let content = value.to_string();
        let fields = [JSON, NOT_STORED, NO_SNIFFING];
        let content = Content::Whole(content.as_bytes());
        respond(out, self.id, &None, self.status, &fields, content);
    }
}

const JSON: (&str, &[u8]) = ("content-type", b"application/json");
/// No cache may keep an answer.
const NOT_STORED: (&str, &[u8]) = ("cache-control", b"no-store");
/// A browser takes the content for the media type that it names.
const NO_SNIFFING: (&str, &[u8]) = ("x-content-type-options", b"nosniff");

/// The value of a single thing, with its entity tag.
pub(super) fn give_value(
    out: &mut dyn Responses,
    id: ExchangeId,
    condition: &Condition,
    value: &Value,
) {
    let content = value.to_string();
    let etag = etag_of(content.as_bytes());
    give(
        out,
        id,
        condition,
        Content::Whole(content.as_bytes()),
        &etag,
    );
}

/// Content that has an entity tag.
pub(super) fn give(
    out: &mut dyn Responses,
    id: ExchangeId,
    condition: &Condition,
    content: Content<'_>,
    etag: &str,
) {
    let tag = ("etag", etag.as_bytes());
    // A cache that keeps the content has to ask whether it is still valid.
    let fresh: (&str, &[u8]) = ("cache-control", b"private, no-cache");
    if condition.has(etag) {
        return respond(out, id, &None, 304, &[tag, fresh], Content::Empty);
    }
    respond(
        out,
        id,
        &None,
        200,
        &[JSON, tag, fresh, NO_SNIFFING],
        content,
    );
}

/// A page, and the nodes of the cluster that have not answered.
pub(super) fn give_page(
    out: &mut dyn Responses,
    id: ExchangeId,
    items: Vec<Value>,
    next: Option<String>,
    unanswered: &[&str],
) {
    let mut value = json!({ "unanswered": unanswered });
    value["items"] = items.into();
    value["next"] = next.into();
    Done::new(id, 200, Some(value)).tell(out);
}

fn found(answer: Answer) -> Option<Found> {
    match answer {
        Answer::Found(found) => Some(found),
        _ => None,
    }
}

/// The sum of a number that each shard tells.
pub(super) fn sum_of(answers: &[Answer], name: &str) -> u64 {
    let numbers = answers.iter().filter_map(|answer| match answer {
        Answer::Found(Found::One(value)) => value[name].as_u64(),
        _ => None,
    });
    numbers.sum()
}

/// The one thing that one of the shards has.
pub(super) fn one(answers: Vec<Answer>) -> Option<Value> {
    answers.into_iter().find_map(|answer| match answer {
        Answer::Found(Found::One(value)) => Some(value),
        _ => None,
    })
}

/// The node that has a queue, and none where no node has it at the moment; `None` where no shard says so.
#[expect(
    clippy::option_option,
    reason = "no node may have it, and no shard may say so"
)]
pub(super) fn elsewhere(answers: &[Answer]) -> Option<Option<&str>> {
    answers.iter().find_map(|answer| match answer {
        Answer::Found(Found::Elsewhere(node)) => Some(node.as_deref()),
        _ => None,
    })
}

/// The problem of a queue that another node has.
pub(super) fn queue_elsewhere(node: Option<&str>) -> Trouble {
    node.map_or_else(
        || {
            let detail = "no node has the queue at the moment; try again";
            Trouble::new(Kind::ClusterAway, detail)
        },
        |node| {
            Trouble::new(
                Kind::QueueElsewhere,
                format!("node {node} has the queue: ask there"),
            )
        },
    )
}

/// Queues, with the accounts of the shards that have them.
fn described(queues: Vec<(Box<str>, String)>, parts: Vec<(usize, Value)>) -> Vec<Value> {
    let mut known: Vec<Option<Value>> = queues.iter().map(|_| None).collect();
    for (at, value) in parts {
        if let Some(place) = known.get_mut(at) {
            *place = Some(value);
        }
    }
    let both = queues.into_iter().zip(known);
    // One without an answer has just ended.
    let both = both.filter_map(|(queue, value)| Some((queue, value?)));
    both.map(|((name, filter), mut value)| {
        value["name"] = (*name).into();
        value["filter"] = filter.splitn(3, '/').nth(2).into();
        value
    })
    .collect()
}

pub(super) fn no_retained() -> Trouble {
    let detail = "the topic has no retained message";
    Trouble::new(Kind::NoRetainedMessage, detail)
}

/// The problem of a thing that is not there.
pub(super) fn missing(kind: Kind) -> Trouble {
    let detail = match kind {
        Kind::NoClient => "there is no such connection",
        Kind::NoQueue => "there is no such queue",
        Kind::NoBan => "there is no ban of this number",
        Kind::SessionBusy => "the session is moving between shards; try again",
        _ => "there is no such session",
    };
    Trouble::new(kind, detail)
}
