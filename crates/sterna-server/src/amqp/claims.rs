//! Clients' sending links on which deliveries come exactly once, in a cluster. Each link is a session of the
//! broker. The session has one owner in the cluster, and keeps the deliveries that were taken.

use sterna_amqp::connection::LinkId;
use sterna_broker::{
    CompanionRecord, Companions, ConsumerId, EvictReason, MessageName, OpenError, OpenSession,
    Opened, SessionKey,
};

use super::attach::{Refusal, cluster_away, ended_after, refusal, refused, stolen};
use super::client::Client;
use super::exact::Forgotten;
use super::target::AttachingTarget;
use super::{Door, consumer_id};
use crate::context::{Context, TOO_MANY_SESSIONS};

/// The key of the record that a link's session has from its beginning.
const BEGUN: &[u8] = b"e";

/// The session of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    consumer: u64,
    pub(super) session: SessionKey,
}

impl Claim {
    /// The number of the session's consumer.
    pub(super) const fn consumer(self) -> u64 {
        self.consumer
    }

    /// Removes the records of deliveries.
    pub(super) fn forget(self, cx: &mut Context<'_>, forgotten: Forgotten) {
        for key in forgotten {
            cx.broker.forget(self.session, &key);
        }
    }

    /// Companions by which a message is taken with its record, once in the cluster.
    pub(super) fn companions(self, record: &[u8]) -> Companions<'_> {
        // A publication that comes again, in its place among others, has the same number.
        let number = (record.iter()).fold(0_u16, |sum, &byte| {
            sum.wrapping_mul(31).wrapping_add(u16::from(byte))
        });
        let session = self.session;
        Companions {
            record: Some(CompanionRecord::Session {
                session,
                key: record,
                value: &[],
            }),
            name: Some(MessageName::Logged { session, number }),
        }
    }
}

impl Door {
    /// Has a link wait until it is this node's. `None` where it is already, and for links that nobody comes back to.
    pub(super) fn claim_target(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        attaching: Box<AttachingTarget>,
    ) -> Option<Box<AttachingTarget>> {
        let expiry_s = cx.policy.amqp.suspended_link_timeout_s;
        let Some(target) = client.targets.get(&link) else {
            return Some(attaching);
        };
        if expiry_s == 0 || target.claim.is_some() || !cx.broker.is_in_cluster() {
            return Some(attaching);
        }
        let name = target.name.clone();
        let number = self.service.next_consumer;
        self.service.next_consumer += 1;
        self.service.consumers.insert(number, (client.id, link));
        let opened = cx.open(
            client.id,
            OpenSession {
                name: client.sender_name(&name),
                clean_start: false,
                expiry_s,
                consumer: consumer_id(number),
                will: None,
                on_demand: true,
                selector: None,
            },
        );
        let (session, present) = match opened {
            Ok(Opened::Ready { session, present }) => (session, Some(present)),
            Ok(Opened::Pending { session }) => (session, None),
            Err(error) => {
                self.service.consumers.remove(&number);
                let node = client.targets.remove(link)?.node;
                self.leaves_place(cx, client, link, &name);
                let refusal = not_opened(cx, error);
                self.refuse_attach(cx, client, link, (&name, node.topic()), &refusal);
                return None;
            }
        };
        let target = client.targets.get_mut(link)?;
        target.claim = Some(Claim {
            consumer: number,
            session,
        });
        if let Some(present) = present {
            self.target_claimed(cx, client, link, present);
            Some(attaching)
        } else {
            target.waiting = Some(attaching);
            None
        }
    }

    /// A link's session is here.
    pub(super) fn target_opened(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        session: SessionKey,
        present: bool,
    ) {
        let target = client.targets.get_mut(link);
        let waiting = target
            .filter(|target| target.claim.is_some_and(|claim| claim.session == session))
            .and_then(|target| target.waiting.take());
        if let Some(attaching) = waiting {
            self.target_claimed(cx, client, link, present);
            self.finish_target(cx, client, link, attaching);
        }
    }

    /// Takes up the kept deliveries of a link, if it comes from another node or is new.
    fn target_claimed(&self, cx: &mut Context<'_>, client: &Client, link: LinkId, present: bool) {
        let Some(target) = client.targets.get(&link) else {
            return;
        };
        let Some(Claim { session, .. }) = target.claim else {
            return;
        };
        let records = cx.broker.take_records(session);
        if !present || !records.is_empty() {
            let key = client.link_key(&target.name);
            let keys = records.iter().map(|(key, _)| &**key);
            self.service.registry.exact.replace(&key, keys);
        }
        // Its append is behind those of the shard that had it before.
        cx.broker.keep(session, BEGUN, &[]);
    }

    /// A link is attached no longer: its session lives on where something of it is not settled.
    pub(super) fn release_claim(&mut self, cx: &mut Context<'_>, claim: Claim, is_kept: bool) {
        let timeout_s = cx.policy.amqp.suspended_link_timeout_s;
        let close = ended_after(if is_kept { timeout_s } else { 0 });
        cx.broker.close(cx.now_ms, claim.session, close);
        self.service.consumers.remove(&claim.consumer);
    }

    /// A link's session is another node's, or is not to be had. True where the consumer is such a link.
    pub(super) fn target_evicted(
        client: &mut Client,
        link: LinkId,
        consumer: ConsumerId,
        reason: EvictReason,
    ) -> bool {
        let target = client.targets.get_mut(link).filter(|target| {
            (target.claim).is_some_and(|claim| consumer_id(claim.consumer) == consumer)
        });
        let Some(target) = target else {
            return false;
        };
        target.claim = None;
        target.is_stolen = true;
        if let Some(exact) = &target.exact
            && reason == EvictReason::TakenOver
        {
            exact.lose();
        }
        true
    }
}

/// The error of a link whose session was not opened.
pub(super) fn not_opened(cx: &Context<'_>, error: OpenError) -> Refusal {
    match error {
        OpenError::TakenOver => stolen(),
        OpenError::ClusterAway => refused(cluster_away()),
        OpenError::StoreFull => refused(super::end::store_full()),
        // A link has no will.
        OpenError::TooManySessions
        | OpenError::TooManyWills
        | OpenError::InvalidWillTopic
        | OpenError::WillTooLarge => refusal(
            sterna_amqp::Condition::RESOURCE_LIMIT_EXCEEDED,
            cx.why_full(TOO_MANY_SESSIONS),
        ),
    }
}
