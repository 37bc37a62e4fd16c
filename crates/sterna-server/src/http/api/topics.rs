//! Topics themselves: whether they exist, their beginning and end, and their retained message.

use sterna_http::{Content, Head, Request, Responses};
use sterna_mqtt::topic;
use sterna_net::ConnectionId;

use super::Api;
use super::acknowledge::Acknowledgement;
use super::answer::{Trouble, respond};
use super::open::Asker;
use super::peer::Peer;
use super::publish::{check_name, may_publish};
use super::target::{Resource, Target, Token};
use crate::authorization::MessageKind;
use crate::context::{Closed, Context, STORE_FULL};
use crate::http::created::{Created, topic_record};
use crate::http::problem::ProblemKind as Kind;
use crate::identity::Identity;
use crate::mapping::{entity_tag, http_fields};
use crate::memory::Stage;
use crate::session::topics::fault_of_name;

/// The rights of a published message in a browser: nothing in it runs.
const SANDBOX: &[u8] = b"default-src 'none'; sandbox";

/// Whether a request has a copy with this entity tag already (RFC 9110, section 13.1.2).
pub(super) fn has_etag(head: &Head, etag: &str) -> bool {
    let mut has = false;
    head.each_field("if-none-match", |value| {
        has |= names_etag(value, etag);
    });
    has
}

/// Whether a value of `If-None-Match` names an entity tag.
pub(crate) fn names_etag(value: &[u8], etag: &str) -> bool {
    let mut tags = std::str::from_utf8(value).unwrap_or_default().split(',');
    tags.any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag
    })
}

/// Whether the rules let a client know of a topic.
fn may_read(cx: &Context<'_>, connection: ConnectionId, identity: &Identity, topic: &str) -> bool {
    (cx.policy.rules).may_subscribe(identity.subject(cx, connection), topic)
}

impl Api {
    /// HEAD, PUT and DELETE of a topic.
    ///
    /// # Errors
    /// The answer to a request that fails.
    #[allow(clippy::too_many_arguments, reason = "a step of a request")]
    pub(super) fn topic(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        target: &Target<'_>,
        topic: &str,
        asker: &Asker,
        request: &Request,
    ) -> Result<(), Trouble> {
        check_name(topic)?;
        let now_ms = cx.now_ms;
        let has_retained = cx.broker.retained(now_ms, topic).is_some();
        let forbidden = |detail| Err(Trouble::new(Kind::Forbidden, detail));
        let missing = || {
            Trouble::new(
                Kind::NoTopic,
                "the topic was not created, and nothing is retained",
            )
        };
        let (status, append) = match request.head.method() {
            "HEAD" => {
                let subject = asker.identity.subject(cx, peer.connection);
                let may_write = (cx.policy.rules).may_publish(subject, topic, MessageKind::UNKNOWN);
                if !may_read(cx, peer.connection, &asker.identity, topic) && !may_write {
                    return forbidden("the rules forbid to read and to write this topic");
                }
                if !has_retained && !self.registry.exists(topic) {
                    return Err(missing());
                }
                (200, 0)
            }
            "PUT" => {
                target.without_parameters()?;
                if !request.content.is_empty() {
                    let detail = "a topic is created without content";
                    return Err(Trouble::new(Kind::InvalidContent, detail));
                }
                let kind = MessageKind::UNKNOWN;
                may_publish(cx, peer.connection, &asker.identity, topic, kind)?;
                check_limits(cx, topic)?;
                let short = if cx.broker.lacks_room() {
                    Some((Kind::StoreFull, STORE_FULL))
                } else if cx.memory.stage() >= Stage::Drop {
                    // It stays when its maker goes, so the last stage would not end.
                    Some((Kind::MemoryShort, Closed::MemoryShort.detail()))
                } else {
                    None
                };
                if let Some((kind, detail)) = short
                    && !self.registry.exists(topic)
                {
                    return Err(Trouble::new(kind, detail));
                }
                let made_by = (topic, asker.identity.user());
                let created = self.registry.create(&cx.policy.http, made_by, |owner| {
                    let record = topic_record(topic);
                    cx.appended(|cx| cx.broker.keep_node(&record, owner.as_bytes()))
                        .1
                });
                match created {
                    Created::New(append) if !has_retained => (201, append),
                    Created::New(append) | Created::Existed(append) => (200, append),
                    Created::TooMany => {
                        let detail = "no more topics can be created; see http.maximum_topics";
                        return Err(Trouble::new(Kind::TooManyTopics, detail));
                    }
                    Created::TooManyOfUser => {
                        let detail =
                            "the user can create no more topics; see http.maximum_topics_per_user";
                        return Err(Trouble::new(Kind::TooManyTopics, detail));
                    }
                }
            }
            _ => {
                target.without_parameters()?;
                let subject = asker.identity.subject(cx, peer.connection);
                if !cx.policy.rules.may_delete(subject, topic) {
                    return forbidden(
                        "deleting this topic needs a rule that allows `delete`, or authorization.admins",
                    );
                }
                let (was_there, append) = cx.appended(|cx| {
                    let forget = || cx.broker.forget_node(&topic_record(topic));
                    let was_created = self.registry.delete(topic, forget);
                    let was_retained = cx.broker.clear_retained(topic);
                    let ended = cx.broker.unsubscribe_all(now_ms, topic);
                    was_created || was_retained || ended > 0
                });
                if !was_there {
                    return Err(missing());
                }
                (204, append)
            }
        };
        let promise = peer.promise(cx).at(append);
        let done = Acknowledgement::Done {
            id: asker.id,
            reader: asker.reader.clone(),
            status,
            is_replay: false,
        };
        self.acknowledge(cx, peer, out, promise, done);
        Ok(())
    }

    /// The retained message of a topic.
    ///
    /// # Errors
    /// The answer to a request that fails.
    pub(super) fn last(
        &mut self,
        cx: &Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        target: &Target<'_>,
        asker: &Asker,
        head: &Head,
    ) -> Result<(), Trouble> {
        let Resource::Topic(topic) = &target.resource else {
            return Err(Trouble::new(Kind::InvalidTopic, "`last` is for one topic"));
        };
        check_name(topic)?;
        if !may_read(cx, peer.connection, &asker.identity, topic) {
            let detail = "the rules forbid to subscribe to this topic";
            return Err(Trouble::new(Kind::Forbidden, detail));
        }
        let now_ms = cx.now_ms;
        let Some(message) = cx.broker.retained(now_ms, topic) else {
            let detail = "nothing is retained for this topic";
            return Err(Trouble::new(Kind::NoRetainedMessage, detail));
        };
        let etag = entity_tag(&message);
        // RFC 6750, section 2.3: others have the address, and may not have what it gives.
        let caching: &[u8] = match target.token {
            Token::Absent => b"no-cache",
            _ => b"no-store",
        };
        let mut values: Vec<(&'static str, String)> = Vec::new();
        http_fields(&message, now_ms, |name, value| {
            values.push((name, value.to_owned()));
        });
        let mut fields: Vec<(&str, &[u8])> = vec![
            ("etag", etag.as_bytes()),
            ("cache-control", caching),
            ("x-content-type-options", b"nosniff"),
            ("content-security-policy", SANDBOX),
        ];
        fields.extend(values.iter().map(|(name, value)| (*name, value.as_bytes())));
        self.counts.messages_sent += 1;
        if has_etag(head, &etag) {
            respond(
                out,
                asker.id,
                &asker.reader,
                304,
                &fields[..2],
                Content::Empty,
            );
            return Ok(());
        }
        self.counts.publish_sent += 1;
        peer.sips.tally.sent += 1;
        self.counts.publish_bytes_sent += message.payload().len() as u64;
        let content = Content::Shared(message.payload_shared());
        respond(out, asker.id, &asker.reader, 200, &fields, content);
        Ok(())
    }
}

/// Whether a topic is within the broker's limits.
fn check_limits(cx: &Context<'_>, topic: &str) -> Result<(), Trouble> {
    let limits = cx.broker.limits();
    if topic.len() > limits.topic_bytes.min(topic::MAX_TOPIC_BYTES)
        || topic.split('/').count() > limits.topic_levels
    {
        return Err(Trouble::new(
            Kind::InvalidTopic,
            fault_of_name(topic, limits),
        ));
    }
    Ok(())
}
