//! Messages from clients.

use sterna_broker::{Message, Origin, Publication, Retention};
use sterna_mqtt::topic;
use sterna_net::ConnectionId;

use super::Api;
use super::answer::{Trouble, respond};
use super::open::Asker;
use super::peer::Peer;
use super::target::Target;
use crate::context::Context;
use crate::http::exchange::{Content, Request, Responses};
use crate::http::problem::ProblemKind as Kind;
use crate::http::registry::{Begin, Fingerprint};
use crate::identity::Identity;
use crate::mapping::message_from_http;

/// Checks the name of a topic.
///
/// # Errors
/// When it is none.
pub(super) fn check_name(topic: &str) -> Result<(), Trouble> {
    topic::check_name(topic).map_err(|error| Trouble::new(Kind::InvalidTopic, error.detail()))
}

/// Status of the answer to a message that was published.
pub(super) const PUBLISHED: u16 = 204;

/// Most bytes of an `Idempotency-Key`.
const MAXIMUM_KEY_BYTES: usize = 255;

/// Checks the value of `Idempotency-Key`.
fn check_key(key: &[u8]) -> Result<(), Trouble> {
    if (1..=MAXIMUM_KEY_BYTES).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic) {
        return Ok(());
    }
    let detail = "idempotency-key: not 1 to 255 visible characters";
    Err(Trouble::new(Kind::InvalidField, detail))
}

fn not_retained() -> Trouble {
    Trouble::new(
        Kind::RetainedFull,
        "the message was delivered, but there is no room to retain it",
    )
}

impl Api {
    /// Publishes what a request brings.
    ///
    /// # Errors
    /// What to answer instead.
    #[allow(clippy::too_many_arguments, reason = "a step of a request")]
    pub(super) fn post(
        &mut self,
        cx: &mut Context<'_>,
        peer: &Peer,
        out: &mut dyn Responses,
        target: &Target<'_>,
        topic: &str,
        asker: &Asker,
        request: &Request,
    ) -> Result<(), Trouble> {
        target.without_parameters()?;
        check_name(topic)?;
        let now_ms = cx.net.now_ms();
        let message = message_from_http(&request.head, topic, &request.content, now_ms)
            .map_err(|error| Trouble::new(Kind::InvalidField, error.to_string()))?;
        let Some(key) = request.head.field("idempotency-key") else {
            self.publish(cx, peer.connection, &asker.identity, message)?;
            self.published(out, asker, &[]);
            return Ok(());
        };
        check_key(key)?;
        let fingerprint = Fingerprint::of(&message);
        let (http, user) = (&cx.policy.http, asker.identity.user());
        let ticket = match self.registry.begin(http, user, key, fingerprint, now_ms) {
            Begin::First(ticket) => ticket,
            Begin::Replay(status) => {
                if status != PUBLISHED {
                    return Err(not_retained());
                }
                self.published(out, asker, &[("idempotent-replayed", b"?1")]);
                return Ok(());
            }
            Begin::Reused => {
                let detail = "the key was used for another message";
                return Err(Trouble::new(Kind::KeyReused, detail));
            }
            Begin::InProgress => {
                let detail = "a request with this key is not answered yet";
                return Err(Trouble::new(Kind::KeyInUse, detail));
            }
        };
        match self.publish(cx, peer.connection, &asker.identity, message) {
            Ok(()) => {
                ticket.done(PUBLISHED);
                self.published(out, asker, &[]);
                Ok(())
            }
            Err(trouble) => {
                // It was delivered all the same, so it must not be again. Whatever else failed may be
                // tried again.
                if trouble.status() == not_retained().status() {
                    ticket.done(trouble.status());
                }
                Err(trouble)
            }
        }
    }

    /// Says that a message was published.
    fn published(&mut self, out: &mut dyn Responses, asker: &Asker, fields: &[(&str, &[u8])]) {
        self.counts.messages_sent += 1;
        respond(
            out,
            asker.id,
            &asker.reader,
            PUBLISHED,
            fields,
            Content::Empty,
        );
    }

    /// Publishes a message, if that is allowed.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn publish(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        identity: &Identity,
        message: Message,
    ) -> Result<(), Trouble> {
        self.counts.publish_received += 1;
        self.counts.publish_bytes_received += message.payload().len() as u64;
        check_name(message.topic())?;
        may_publish(cx, connection, identity, message.topic())?;
        let routed = cx.broker.publish(
            cx.net.now_ms(),
            Publication {
                origin: None,
                message: message.with_origin(Origin::NONE),
            },
        );
        if routed.refused {
            let detail = "a queue that the message belongs to is full; it went nowhere";
            return Err(Trouble::new(Kind::QueueFull, detail));
        }
        match routed.retention {
            Retention::InvalidTopic => Err(Trouble::new(
                Kind::InvalidTopic,
                "the topic is longer or deeper than the broker allows",
            )),
            Retention::Refused => Err(not_retained()),
            Retention::NotAsked | Retention::Stored | Retention::Cleared => Ok(()),
        }
    }
}

/// Whether the rules let a client publish to a topic.
///
/// # Errors
/// When they don't.
pub(super) fn may_publish(
    cx: &Context<'_>,
    connection: ConnectionId,
    identity: &Identity,
    topic: &str,
) -> Result<(), Trouble> {
    if cx.policy.rules.may_publish(identity.subject(), topic) {
        return Ok(());
    }
    let peer = cx.net.info(connection).map(|info| info.peer);
    tracing::info!(
        peer = peer.map(tracing::field::display),
        user = identity.user(),
        topic,
        "publication refused"
    );
    let detail = "the rules forbid to publish to this topic";
    Err(Trouble::new(Kind::Forbidden, detail))
}
