//! Requests about a session: its contents, acknowledgements, and its end. The session may be on another shard,
//! which is asked by letter.

use serde::Deserialize;
use sterna_broker::{Outcome, SessionName};
use sterna_cluster::{Answer, Answerer};
use sterna_http::{Content, ExchangeId, Request, Responses};
use sterna_net::ConnectionId;

use super::Api;
use super::acknowledge::Acknowledgement;
use super::answer::{Trouble, fail, respond};
use super::open::{Asker, CLUSTER_AWAY};
use super::origin::Reader;
use super::peer::Peer;
use super::target::Target;
use crate::context::Context;
use crate::door::Promise;
use crate::http::problem::ProblemKind as Kind;
use crate::mail::Mail;
use crate::mail::http::{Acknowledge, Body, Done, From, HttpLetter, MAXIMUM_HOPS, Work, WorkError};
use crate::session::SessionState;
use crate::session::http::{IDS_KEY, position_of, reserved_ids, session_name};

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
    /// The answer to a request that fails.
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
        let session = session_name(asker.identity.user(), name);
        let work = if request.head.method() == "POST" {
            let most = cx.policy.http.maximum_unacknowledged as usize;
            Work::Acknowledge(read_acknowledgement(target, &request.content, most)?)
        } else {
            target.without_parameters()?;
            match request.head.method() {
                "DELETE" => Work::End,
                _ => Work::Describe,
            }
        };
        let id = asker.id;
        peer.asked.push((id, asker.reader));
        let from = From::of(cx, peer, id);
        let (done, append) = cx.appended(|cx| ask(cx, &session, work.clone(), from, MAXIMUM_HOPS));
        match done {
            Some(Err(WorkError::NoSession)) => {
                self.ask_cluster(cx, peer, out, &session, &work, from);
            }
            Some(Ok(Done::Ended)) => self.ended(cx, peer, out, id, append),
            Some(done) => self.answered(cx, peer, out, Reply { id, done }),
            None => {}
        }
        Ok(())
    }

    /// Says that a session of this shard has ended, once that is kept.
    fn ended(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        id: ExchangeId,
        append: u64,
    ) {
        let Some(at) = peer.asked.iter().position(|(asked, _)| *asked == id) else {
            return;
        };
        let (_, reader) = peer.asked.swap_remove(at);
        let promise = peer.promise(cx).at(append);
        let done = Acknowledgement::Done {
            id,
            reader,
            status: 204,
            is_replay: false,
        };
        self.acknowledge(cx, peer, out, promise, done);
    }

    /// Asks the node that has a session, where there are other nodes.
    fn ask_cluster(
        &mut self,
        cx: &Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        session: &SessionName,
        work: &Work,
        from: From,
    ) {
        let post = cx.outbox.postbox(cx.shard);
        let answer = move |done| Mail::Http(Box::new(HttpLetter(Body::Answer { from, done })));
        let is_asked = match (self.registry.cluster(), post, serde_json::to_vec(work)) {
            (Some(asker), Some(post), Ok(question)) => {
                Ok(asker.ask_owner(session, question, move |said| post(answer(read(said)))))
            }
            (None, ..) => Err(WorkError::NoSession),
            _ => Ok(false),
        };
        let error = match is_asked {
            Ok(true) => return,
            Ok(false) => WorkError::Away,
            Err(error) => error,
        };
        let id = ExchangeId(from.exchange);
        self.answered(
            cx,
            peer,
            out,
            Reply {
                id,
                done: Err(error),
            },
        );
    }

    /// Handles a letter from another shard. Returns the answer for one of this shard's connections.
    pub(crate) fn mail(
        &mut self,
        cx: &mut Context<'_>,
        letter: HttpLetter,
    ) -> Option<(ConnectionId, Reply)> {
        match letter.0 {
            Body::Question {
                session,
                work,
                from,
                hops,
            } => {
                let (done, append) = cx.appended(|cx| ask(cx, &session, work, from, hops));
                self.tell(cx, Told::Shard { from, done: done? }, append)
            }
            Body::Answer { from, done } => Some(reply(from, done)),
            Body::OfNode {
                session,
                work,
                answer,
                hops,
            } => {
                let (told, append) =
                    cx.appended(|cx| ask_for_node(cx, session, work, answer, hops));
                self.tell(cx, told?, append)
            }
        }
    }

    /// Tells another shard or node what was done here. That a session has ended is told once the store has it.
    fn tell(
        &mut self,
        cx: &mut Context<'_>,
        told: Told,
        append: u64,
    ) -> Option<(ConnectionId, Reply)> {
        if told.done() == &Ok(Done::Ended) {
            // The client's listener may promise more than the others.
            let promise = Promise::again(cx).at(append);
            if !promise.is_kept_now(cx) {
                self.untold.push_back((promise, told));
                return None;
            }
        }
        told.send(cx)
    }

    /// Tells what the store has by now.
    pub(crate) fn tell_kept(&mut self, cx: &mut Context<'_>) -> Vec<(ConnectionId, Reply)> {
        let mut replies = Vec::new();
        while let Some((promise, _)) = self.untold.front()
            && promise.is_kept_now(cx)
            && let Some((_, told)) = self.untold.pop_front()
        {
            replies.extend(told.send(cx));
        }
        replies
    }

    /// Answers the client's request with its result.
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
            Ok(Done::Acknowledged | Done::Ended) => {
                respond(out, id, &reader, 204, &[], Content::Empty);
            }
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
                super::log_refusal(cx, peer.connection, peer.name(), None, &trouble);
                fail(out, id, &reader, &trouble);
            }
        }
    }
}

impl From {
    /// A request of a connection of this shard.
    const fn of(cx: &Context<'_>, peer: &Peer, id: ExchangeId) -> Self {
        Self {
            shard: cx.shard,
            connection: peer.connection,
            exchange: id.0,
        }
    }
}

/// The answer of another node, decoded.
fn read(said: Answer) -> Result<Done, WorkError> {
    match said {
        Answer::Said(text) => serde_json::from_slice(&text).unwrap_or(Err(WorkError::Away)),
        Answer::NoSession => Err(WorkError::NoSession),
        Answer::Away => Err(WorkError::Away),
    }
}

/// Work on a session that was done for somebody else.
#[derive(Debug)]
pub(super) enum Told {
    /// For a connection of a shard.
    Shard {
        from: From,
        done: Result<Done, WorkError>,
    },
    /// For a client of another node.
    Node {
        answer: Answerer,
        done: Result<Done, WorkError>,
    },
}

impl Told {
    const fn done(&self) -> &Result<Done, WorkError> {
        match self {
            Self::Shard { done, .. } | Self::Node { done, .. } => done,
        }
    }

    /// Sends it; returns the answer for one of this shard's connections.
    fn send(self, cx: &mut Context<'_>) -> Option<(ConnectionId, Reply)> {
        match self {
            // It has come back to where it was asked.
            Self::Shard { from, done } if from.shard == cx.shard => return Some(reply(from, done)),
            Self::Shard { from, done } => {
                let letter = HttpLetter(Body::Answer { from, done });
                cx.outbox.post(from.shard, Mail::Http(Box::new(letter)));
            }
            // An answer that cannot be written counts as none.
            Self::Node { answer, done } => {
                answer.answer(serde_json::to_vec(&done).unwrap_or_default());
            }
        }
        None
    }
}

/// Does the work that another node's client asks of a session, here or on the shard that has it. `None` where that will
/// answer.
fn ask_for_node(
    cx: &mut Context<'_>,
    session: SessionName,
    work: Work,
    answer: Answerer,
    hops: u8,
) -> Option<Told> {
    let done = do_work(cx, &session, &work);
    if matches!(done, Err(WorkError::Elsewhere))
        && let Some(shard) = cx.broker.directory().shard_of(&session)
        && usize::from(shard.0) != cx.shard
        && let Some(hops) = hops.checked_sub(1)
    {
        let letter = HttpLetter(Body::OfNode {
            session,
            work,
            answer,
            hops,
        });
        cx.outbox
            .post(usize::from(shard.0), Mail::Http(Box::new(letter)));
        return None;
    }
    // It is this node's, and on its way here.
    let done = match done {
        Err(WorkError::NoSession) => Err(WorkError::Away),
        done => done,
    };
    Some(Told::Node { answer, done })
}

/// The answer for a connection of this shard.
const fn reply(from: From, done: Result<Done, WorkError>) -> (ConnectionId, Reply) {
    let id = ExchangeId(from.exchange);
    (from.connection, Reply { id, done })
}

/// Does work on a session here, or asks the shard that has it; `None` where that will answer.
fn ask(
    cx: &mut Context<'_>,
    session: &SessionName,
    work: Work,
    from: From,
    hops: u8,
) -> Option<Result<Done, WorkError>> {
    match do_work(cx, session, &work) {
        Err(WorkError::Elsewhere) => {}
        done => return Some(done),
    }
    let shard = cx.broker.directory().shard_of(session)?;
    let shard = usize::from(shard.0);
    if shard == cx.shard || hops == 0 {
        return Some(Err(WorkError::Elsewhere));
    }
    let letter = HttpLetter(Body::Question {
        session: session.clone(),
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
    session: &SessionName,
    work: &Work,
) -> Result<Done, WorkError> {
    if !cx.broker.owner_exists(session) {
        return Err(WorkError::NoSession);
    }
    match work {
        Work::End => {
            let now_ms = cx.now_ms;
            let has_ended = cx.broker.end_session_here(now_ms, session);
            has_ended.then_some(Done::Ended).ok_or(WorkError::Elsewhere)
        }
        Work::Describe => {
            let (info, filters) = (cx.broker.session_named(session)).ok_or(WorkError::Elsewhere)?;
            let mut filters: Vec<&str> = filters.iter().map(|filter| &**filter).collect();
            filters.sort_unstable();
            let name = session.id().rsplit('/').next();
            // Messages in the log are not counted before they are read.
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
            let known = reserved_ids(cx.broker.record_named(session, IDS_KEY));
            let (end, is_in_cluster) = (cx.broker.next_position(), cx.broker.is_in_cluster());
            let now_ms = cx.now_ms;
            let state = match cx.broker.protocol_named(session) {
                Some(SessionState::Http(state)) => state,
                // Nobody has listened since a restart, and everything that was sent will be again.
                Some(SessionState::Mqtt(_)) if is_in_cluster => {
                    // Nobody has listened at this node.
                    let place = |id| position_of(known, id).filter(|&place| place < end);
                    if known == 0 || highest.is_some_and(|id| place(id).is_none()) {
                        return Err(WorkError::UnknownId);
                    }
                    settle_places(cx, session, which, place);
                    return Ok(Done::Acknowledged);
                }
                Some(SessionState::Mqtt(_)) => {
                    let reserved = known;
                    return if highest.is_some_and(|id| id > reserved) {
                        Err(WorkError::UnknownId)
                    } else {
                        Ok(Done::Acknowledged)
                    };
                }
                Some(SessionState::Amqp(_)) | None => return Err(WorkError::Elsewhere),
            };
            if highest.is_some_and(|id| !state.has_given(id, end)) {
                return Err(WorkError::UnknownId);
            }
            let first = state.position_of(1);
            let acknowledged = match which {
                Acknowledge::UpTo(id) => state.acknowledge_up_to(*id),
                Acknowledge::Each(ids) => state.acknowledge(ids),
            };
            for tag in acknowledged.tags {
                cx.broker
                    .settle_named(now_ms, session, tag, Outcome::Accepted);
            }
            let places = acknowledged.places;
            cx.broker.settle_places_named(now_ms, session, &places);
            if let Some(first) = first {
                // Another node may have sent it.
                settle_places(cx, session, which, |id| position_of(first, id));
            }
            // Its response may wait for this.
            if let Some(key) = cx.broker.key_named(session) {
                cx.broker.unpark(key);
            }
            Ok(Done::Acknowledged)
        }
    }
}

/// Settles messages of a cluster's log, which another node may have sent.
fn settle_places(
    cx: &mut Context<'_>,
    session: &SessionName,
    which: &Acknowledge,
    place: impl Fn(u64) -> Option<u64>,
) {
    let now_ms = cx.now_ms;
    match which {
        Acknowledge::UpTo(id) => {
            if let Some(place) = place(*id) {
                cx.broker.settle_up_to_named(now_ms, session, place);
            }
        }
        Acknowledge::Each(ids) => {
            let places: Vec<u64> = ids.iter().filter_map(|&id| place(id)).collect();
            cx.broker.settle_places_named(now_ms, session, &places);
        }
    }
}

/// The answer about work that could not be done.
fn trouble(error: WorkError) -> Trouble {
    let (kind, detail) = match error {
        WorkError::NoSession => (Kind::NoSession, "the user has no session of this name"),
        WorkError::UnknownId => (
            Kind::InvalidContent,
            "no message of the session has this id yet",
        ),
        WorkError::Away => (Kind::ClusterAway, CLUSTER_AWAY),
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
