//! Requests about a session: what it holds, what of it is done, and its end. The session may be on
//! another shard, which is asked by letter.

use serde::Deserialize;
use sterna_broker::Outcome;
use sterna_http::{Content, ExchangeId, Request, Responses};
use sterna_net::ConnectionId;

use super::Api;
use super::acknowledge::Acknowledgement;
use super::answer::{Trouble, fail, respond};
use super::open::Asker;
use super::origin::Reader;
use super::peer::Peer;
use super::target::Target;
use crate::context::Context;
use crate::http::problem::ProblemKind as Kind;
use crate::mail::Mail;
use crate::mail::http::{Acknowledge, Body, Done, From, HttpLetter, Work, WorkError};
use crate::session::SessionState;
use crate::session::http::{IDS_KEY, client_id, reserved_ids};

/// Shards that a question about a session is passed on to, if that moves meanwhile.
const MAXIMUM_HOPS: u8 = 8;

/// The answer to a request of a connection.
#[derive(Debug)]
pub(crate) struct Reply {
    id: ExchangeId,
    done: Result<Done, WorkError>,
}

/// The content of an acknowledgement.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ids {
    id: Option<u64>,
    ids: Option<Vec<u64>>,
}

impl Api {
    /// Answers a request about a session.
    ///
    /// # Errors
    /// What to answer instead.
    #[allow(clippy::too_many_arguments, reason = "a step of a request")]
    pub(super) fn about_session(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        target: &Target<'_>,
        name: &str,
        asker: Asker,
        request: &Request,
    ) -> Result<(), Trouble> {
        let client_id = client_id(asker.identity.user(), name);
        if request.head.method() == "DELETE" {
            target.without_parameters()?;
            let now_ms = cx.net.now_ms();
            let (was_there, token) = cx.appended(|cx| cx.broker.end_session_of(now_ms, &client_id));
            if !was_there {
                return Err(trouble(WorkError::NoSession));
            }
            let promise = peer.promise(cx).at(token);
            let done = Acknowledgement::Done {
                id: asker.id,
                reader: asker.reader,
                status: 204,
                is_replay: false,
            };
            self.acknowledge(cx, peer, out, promise, done);
            return Ok(());
        }
        let work = if request.head.method() == "POST" {
            let most = cx.policy.http.maximum_unacknowledged as usize;
            Work::Acknowledge(read_acknowledgement(target, &request.content, most)?)
        } else {
            target.without_parameters()?;
            Work::Describe
        };
        let id = asker.id;
        peer.asked.push((id, asker.reader));
        let from = From {
            shard: cx.shard,
            connection: peer.connection,
            exchange: id.0,
        };
        if let Some(done) = ask(cx, &client_id, work, from, MAXIMUM_HOPS) {
            self.answered(cx, peer, out, Reply { id, done });
        }
        Ok(())
    }

    /// A letter from another shard; what is to be told to one of this shard's connections.
    #[expect(clippy::unused_self, reason = "called as everything else of the API")]
    pub(crate) fn mail(
        &self,
        cx: &mut Context<'_>,
        letter: HttpLetter,
    ) -> Option<(ConnectionId, Reply)> {
        match letter.0 {
            Body::Question {
                client_id,
                work,
                from,
                hops,
            } => {
                let done = ask(cx, &client_id, work, from, hops)?;
                if from.shard == cx.shard {
                    // It has come back to where it was asked.
                    return Some(reply(from, done));
                }
                let letter = HttpLetter(Body::Answer { from, done });
                cx.outbox.post(from.shard, Mail::Http(Box::new(letter)));
                None
            }
            Body::Answer { from, done } => Some(reply(from, done)),
        }
    }

    /// Tells the client what came of its request.
    pub(crate) fn answered(
        &mut self,
        cx: &Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        reply: Reply,
    ) {
        let Reply { id, done } = reply;
        let Some(at) = peer.asked.iter().position(|(asked, _)| *asked == id) else {
            return; // it was given up
        };
        let (_, reader): (_, Reader) = peer.asked.swap_remove(at);
        self.counts.messages_sent += 1;
        match done {
            Ok(Done::Acknowledged) => respond(out, id, &reader, 204, &[], Content::Empty),
            Ok(Done::Described(description)) => {
                let fields: [(&str, &[u8]); 2] = [
                    ("content-type", b"application/json"),
                    ("cache-control", b"no-store"),
                ];
                let json = description.to_string();
                respond(
                    out,
                    id,
                    &reader,
                    200,
                    &fields,
                    Content::Whole(json.as_bytes()),
                );
            }
            Err(error) => {
                let trouble = trouble(error);
                super::log_refusal(cx, peer.connection, peer.name(), &trouble);
                fail(out, id, &reader, &trouble);
            }
        }
    }
}

/// The answer for a connection of this shard.
const fn reply(from: From, done: Result<Done, WorkError>) -> (ConnectionId, Reply) {
    let id = ExchangeId(from.exchange);
    (from.connection, Reply { id, done })
}

/// Does work on a session here, or asks the shard that has it; `None` where that will answer.
fn ask(
    cx: &mut Context<'_>,
    client_id: &str,
    work: Work,
    from: From,
    hops: u8,
) -> Option<Result<Done, WorkError>> {
    match do_work(cx, client_id, &work) {
        Err(WorkError::Elsewhere) => {}
        done => return Some(done),
    }
    let shard = cx.broker.directory().shard_of(client_id)?;
    let shard = usize::from(shard.0);
    if shard == cx.shard || hops == 0 {
        return Some(Err(WorkError::Elsewhere));
    }
    let letter = HttpLetter(Body::Question {
        client_id: client_id.into(),
        work,
        from,
        hops: hops - 1,
    });
    cx.outbox.post(shard, Mail::Http(Box::new(letter)));
    None
}

/// Does work on a session of this shard; [`WorkError::Elsewhere`] where it is not here.
pub(super) fn do_work(
    cx: &mut Context<'_>,
    client_id: &str,
    work: &Work,
) -> Result<Done, WorkError> {
    if !cx.broker.owner_exists(client_id) {
        return Err(WorkError::NoSession);
    }
    match work {
        Work::Describe => {
            let (info, filters) =
                (cx.broker.session_named(client_id)).ok_or(WorkError::Elsewhere)?;
            let mut filters: Vec<&str> = filters.iter().map(|filter| &**filter).collect();
            filters.sort_unstable();
            let name = client_id.rsplit('/').next();
            // What the log has for it is not counted before it is read.
            let queue = Some(info.queue).filter(|queue| !queue.has_more_in_log);
            Ok(Done::Described(serde_json::json!({
                "session": name,
                "connected": info.consumer.is_some(),
                "pending": queue.map(|queue| queue.pending),
                "pending_bytes": queue.map(|queue| queue.pending_bytes),
                "unacknowledged": info.queue.unacknowledged,
                "filters": filters,
            })))
        }
        Work::Acknowledge(which) => {
            let highest = match which {
                Acknowledge::UpTo(id) => Some(*id),
                Acknowledge::Each(ids) => ids.iter().copied().max(),
            };
            let reserved = reserved_ids(cx.broker.record_named(client_id, IDS_KEY));
            let state = match cx.broker.protocol_named(client_id) {
                Some(SessionState::Http(state)) => state,
                // Nobody has listened since a restart, and everything that was sent will be again.
                Some(SessionState::Mqtt(_)) => {
                    return if highest.is_some_and(|id| id > reserved) {
                        Err(WorkError::UnknownId)
                    } else {
                        Ok(Done::Acknowledged)
                    };
                }
                Some(SessionState::Amqp(_)) | None => return Err(WorkError::Elsewhere),
            };
            if highest.is_some_and(|id| id > state.last_id()) {
                return Err(WorkError::UnknownId);
            }
            let tags: Vec<u64> = match which {
                Acknowledge::UpTo(id) => state.acknowledge_up_to(*id).collect(),
                Acknowledge::Each(ids) => {
                    ids.iter().filter_map(|&id| state.acknowledge(id)).collect()
                }
            };
            let now_ms = cx.net.now_ms();
            for tag in tags {
                cx.broker
                    .settle_named(now_ms, client_id, tag, Outcome::Accepted);
            }
            // Its response may wait for this.
            if let Some(session) = cx.broker.key_named(client_id) {
                cx.broker.unpark(session);
            }
            Ok(Done::Acknowledged)
        }
    }
}

/// What is told of work that could not be done.
fn trouble(error: WorkError) -> Trouble {
    let (kind, detail) = match error {
        WorkError::NoSession => (Kind::NoSession, "the user has no session of this name"),
        WorkError::UnknownId => (
            Kind::InvalidContent,
            "no message of the session has this id yet",
        ),
        WorkError::Elsewhere => (
            Kind::SessionBusy,
            "the session is moving between shards; try again",
        ),
    };
    Trouble::new(kind, detail)
}

/// Reads which messages are done: from the parameter `id`, or the content.
fn read_acknowledgement(
    target: &Target<'_>,
    content: &[u8],
    most: usize,
) -> Result<Acknowledge, Trouble> {
    let mut id = None;
    for parameter in target.parameters() {
        let value = match &parameter {
            Ok((name, value)) if name == "id" => value.parse().ok(),
            _ => None,
        };
        id = Some(value.ok_or_else(|| {
            let detail = "the only parameter is `id`, a number";
            Trouble::new(Kind::InvalidParameter, detail)
        })?);
    }
    let invalid = |detail: String| Trouble::new(Kind::InvalidContent, detail);
    match id {
        Some(id) if content.is_empty() => return Ok(Acknowledge::UpTo(id)),
        Some(_) => return Err(invalid("there is a parameter `id` already".to_owned())),
        None => {}
    }
    let ids: Ids = serde_json::from_slice(content)
        .map_err(|error| invalid(format!("not {{\"id\": N}} or {{\"ids\": [N, M]}}: {error}")))?;
    match ids {
        Ids {
            id: Some(id),
            ids: None,
        } => Ok(Acknowledge::UpTo(id)),
        Ids {
            id: None,
            ids: Some(ids),
        } if ids.len() <= most => Ok(Acknowledge::Each(ids)),
        Ids {
            id: None,
            ids: Some(_),
        } => Err(invalid(format!("more than {most} ids"))),
        Ids { .. } => Err(invalid("either `id` or `ids`".to_owned())),
    }
}
