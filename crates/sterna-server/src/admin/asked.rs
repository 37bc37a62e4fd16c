//! Requests that come by way of a node of the cluster, this one among them: they have their sender's rights behind
//! them. Each is answered as if it had come alone to this node.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sterna_cluster::Answerer;
use sterna_http::{Content, ExchangeId, Responses};
use sterna_net::ConnectionId;

use super::Door;
use super::api::{Condition, Sent};
use super::call::Call;
use super::changes::Change;
use super::desk::Desk;
use super::far_trace::Wanted;
use super::role::Role;
use super::routes::Reach;
use crate::context::Context;
use crate::door::Promises;
use crate::http::{Credentials, ProblemKind as Kind, Trouble};
use crate::identity::Identity;
use crate::mail::admin::Said;

/// In place of a connection: no transport has it.
pub(super) const OF_NODES: ConnectionId = ConnectionId {
    slot: u32::MAX,
    generation: u32::MAX,
};

/// A request, as one node passes it on to another.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Question {
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    /// Empty for none.
    #[serde(default)]
    pub(super) content: String,
    /// The node that its sender has asked.
    pub(super) node: String,
    #[serde(default)]
    pub(super) user: Option<String>,
    pub(super) role: String,
    /// The subject of a trace of the node's operators, in place of a request.
    #[serde(default)]
    pub(super) trace: Option<Wanted>,
}

/// Questions that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: Vec<(ExchangeId, Answerer)>,
    asked: u64,
}

/// Takes the answer to a question.
#[derive(Debug, Default)]
struct Taken(Option<(ExchangeId, Vec<u8>)>);

impl Responses for Taken {
    fn respond(&mut self, id: ExchangeId, status: u16, _: &[(&str, &[u8])], content: Content<'_>) {
        let answer = match content {
            Content::Whole(content) => Said::write(status, content),
            Content::Shared(content) => Said::write(status, &content),
            Content::Empty | Content::Open => Said::write(status, b""),
        };
        self.0 = Some((id, answer));
    }

    // No response to a node stays open.
    fn send(&mut self, _: ExchangeId, _: &[u8]) {}

    fn send_shared(&mut self, _: ExchangeId, _: Bytes) {}

    fn finish(&mut self, _: ExchangeId) {}

    fn cancel(&mut self, _: ExchangeId) {}

    fn has_room(&mut self, _: ExchangeId) -> bool {
        false
    }

    fn taken_bytes(&mut self, _: ExchangeId) -> u64 {
        0
    }

    fn accept_session(&mut self, _: ExchangeId, _: &[(&str, &[u8])]) {}
}

impl Door {
    /// A node asks.
    pub(super) fn asked(&mut self, cx: &mut Context<'_>, question: &Bytes, answer: Answerer) {
        let questions = &mut self.service.questions;
        questions.asked += 1;
        let id = ExchangeId(questions.asked);
        questions.open.push((id, answer));
        self.for_nodes(cx, |desk, out| {
            desk.give_up(out);
            if let Err(trouble) = desk.answer_node(out, id, question) {
                desk.refused(out, id, &trouble);
            }
        });
    }

    /// A step with what nodes have asked. Answers that it has leave.
    pub(super) fn for_nodes(
        &mut self,
        cx: &mut Context<'_>,
        step: impl FnOnce(&mut Desk<'_, '_>, &mut dyn Responses),
    ) {
        let mut taken = Taken::default();
        let is_stopping = self.stopping || self.service.is_draining;
        let mut desk = Desk {
            connection: OF_NODES,
            admin: &mut self.service,
            is_stopping,
            cx,
            credentials: &mut Credentials::default(),
            held: &mut Vec::new(),
            promises: &mut Promises::default(),
            asked: None,
        };
        step(&mut desk, &mut taken);
        if let Some((id, answer)) = taken.0 {
            let open = &mut self.service.questions.open;
            if let Some(at) = open.iter().position(|(known, _)| *known == id) {
                let (_, answerer) = open.swap_remove(at);
                answerer.answer(answer);
            }
        }
    }
}

impl Questions {
    /// Nobody waits for the answer to a question any more.
    pub(super) fn forget(&mut self, id: ExchangeId) {
        self.open.retain(|(known, _)| *known != id);
    }
}

impl Desk<'_, '_> {
    /// Whether the request that this step is about has come by way of a node.
    pub(super) fn is_of_node(&self) -> bool {
        self.connection == OF_NODES
    }

    fn answer_node(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        question: &Bytes,
    ) -> Result<(), Trouble> {
        let question: Question = serde_json::from_slice(question)
            .map_err(|error| Trouble::new(Kind::InvalidContent, error.to_string()))?;
        if let Some(wanted) = question.trace {
            return self.tell_node(out, id, &question.node, wanted);
        }
        let call = Call::read(&question.method, &question.target)?;
        if call.route.reach == Reach::Here {
            let detail = "nodes do not ask each other for this";
            return Err(Trouble::new(Kind::NoResource, detail));
        }
        let role = Role::named(&question.role);
        if role < call.route.role {
            let detail = "the role that the node names does not reach";
            return Err(Trouble::new(Kind::Forbidden, detail));
        }
        let mut change = Change {
            action: call.route.id,
            target: call.argument.clone(),
            peer: None,
            user: question.user,
            role,
            node: Some(question.node),
            repeats: (self.cx.now_ms, self.cx.policy.repeats),
            detail: None,
        };
        let sent = Sent {
            id,
            content: question.content.as_bytes(),
            condition: Condition::default(),
        };
        self.operate(out, sent, &call, &Identity::NOBODY, &mut change)
    }

    /// Tells a node which other one has a queue.
    pub(super) fn lead_node(out: &mut dyn Responses, id: ExchangeId, node: Option<&str>) {
        let value = json!({ "node": node });
        super::api::Done::new(id, Kind::QueueElsewhere.status(), Some(value)).tell(out);
    }
}

/// The content of a question that lifts bans of somebody, whatever their numbers are here.
#[derive(Deserialize)]
pub(super) struct Lifting {
    pub(super) user: Option<Box<str>>,
    pub(super) client: Option<Box<str>>,
    pub(super) address: Option<crate::config::AddressPrefix>,
}

/// The nodes of a page or an answer that have not answered, as a member of it.
pub(super) fn add_unanswered(value: &mut Value, nodes: &[&str]) {
    value["unanswered"] = nodes.into();
}
