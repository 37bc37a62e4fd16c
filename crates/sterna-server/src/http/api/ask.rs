//! Requests about which a rule asks, which wait for the webhook, and messages that wait for a reader.

use sterna_http::Request;
use sterna_mapping::from_fields;
use sterna_mqtt::QoS;

use super::Api;
use super::admission::asks_session;
use super::peer::Peer;
use super::plan::{Plan, Subscribe};
use super::target::{Resource, Target};
use crate::authorization::MessageKind;
use crate::config::ActionName;
use crate::context::Context;
use crate::http::fields::Fields;
use crate::identity::Identity;

/// Whether a request has to wait until the webhook has been asked; the letter carries `number`. Nothing of
/// it is done before.
pub(super) fn must_ask(
    cx: &Context<'_>,
    peer: &mut Peer,
    number: u64,
    identity: &Identity,
    target: &Target<'_>,
    request: &Request,
) -> bool {
    if !cx.policy.rules.have_questions() {
        return false;
    }
    let letter = (peer.connection, number);
    let mut asking = std::mem::take(&mut peer.asking);
    let subject = identity.subject(cx, peer.connection);
    let mut ask_of =
        |action, about: (&str, MessageKind)| asking.must_wait(cx, letter, subject, action, about);
    let unknown = MessageKind::UNKNOWN;
    let head = &request.head;
    let waits = match (&target.resource, head.method()) {
        (Resource::Topic(topic), "POST") => {
            // An invalid message is refused when the request is answered.
            from_fields(&Fields(head)).is_ok_and(|message| {
                let kind = MessageKind::new(message.qos as u8, message.retain, false);
                ask_of(ActionName::Publish, (topic, kind))
            })
        }
        (Resource::Topic(topic), "PUT") => ask_of(ActionName::Publish, (topic, unknown)),
        (Resource::Topic(topic), "DELETE") => ask_of(ActionName::Delete, (topic, unknown)),
        (Resource::Topic(topic), "HEAD") => ask_of(ActionName::Subscribe, (topic, unknown)),
        (resource @ (Resource::Topic(_) | Resource::Topics), "GET" | "CONNECT") => {
            match (
                Plan::read(&cx.policy.http, target, head, asks_session(head)),
                resource,
            ) {
                (Ok(Plan::Last), Resource::Topic(topic)) => {
                    ask_of(ActionName::Subscribe, (topic, unknown))
                }
                (Ok(Plan::Subscribe(plan)), _) => {
                    let Subscribe { filters, .. } = *plan;
                    filters.iter().any(|filter| {
                        // Rules are about topics. The topics of a shared subscription follow the share name.
                        let parsed = sterna_mqtt::topic::Filter::parse(filter);
                        let about = |filter| (filter, unknown);
                        parsed
                            .is_ok_and(|parsed| ask_of(ActionName::Subscribe, about(parsed.filter)))
                    })
                }
                _ => false,
            }
        }
        _ => false,
    };
    if !waits {
        asking.passed();
    }
    peer.asking = asking;
    waits
}

impl Api {
    /// Whether a request has to wait: for another turn, as messages and subscriptions do, or for a reader whose queue is half
    /// full.
    pub(super) fn must_hold(
        &self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        target: &Target<'_>,
        request: &Request,
    ) -> bool {
        if !(cx.is_turn_spent() || cx.broker.may_hold()) {
            return false;
        }
        let head = &request.head;
        let topic = match (&target.resource, head.method()) {
            (Resource::Topic(topic), "POST") => topic,
            (Resource::Topic(_) | Resource::Topics, "GET" | "CONNECT") => {
                let waits =
                    cx.is_turn_spent() && cx.must_line_up(peer.connection, peer.name(), None);
                peer.sips.is_held |= waits;
                return waits;
            }
            _ => return false,
        };
        // An invalid message is refused when the request is answered.
        let is_acknowledged =
            || from_fields(&Fields(head)).is_ok_and(|message| message.qos != QoS::AtMostOnce);
        self.must_hold_for(cx, peer, topic, is_acknowledged)
    }

    /// The same of a message for a topic. Only one that is acknowledged waits for a reader.
    pub(super) fn must_hold_for(
        &self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        topic: &str,
        is_acknowledged: impl FnOnce() -> bool,
    ) -> bool {
        // Messages that came before keep their place.
        if peer.sips.is_held {
            return true;
        }
        if cx.is_turn_spent() {
            let waits = cx.must_line_up(peer.connection, peer.name(), Some(topic));
            peer.sips.is_held = waits;
        }
        if !peer.sips.is_held && cx.broker.may_hold() && is_acknowledged() {
            let connection = peer.connection;
            let is_own = |consumer| self.connection_of(consumer) == Some(connection);
            let waits = cx.must_hold(connection, topic, is_own, peer.sessions(), true);
            peer.sips.is_held = waits;
        }
        peer.sips.is_held
    }
}
