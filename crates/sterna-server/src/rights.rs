//! The rules as the broker asks them: at a subscription, at a will, and of everything when they change.

use std::borrow::Cow;
use std::net::Ipv6Addr;
use std::ops::Deref;
use std::sync::Arc;

use ring::digest::{Context, SHA256};
use sterna_broker::{Holder, Message, Permit, Right, Rights};
use sterna_net::ConnectionInfo;

use crate::authorization::{MessageKind, Origin, Reading, Rules, Standing, Subject};
use crate::bans::{Bans, Newcomer};
use crate::identity::{Basis, Grant, Identity, Proof, common_name, may_have_client_id};
use crate::policy::Policy;
use crate::session::{AMQP_PREFIX, HTTP_PREFIX, QUEUE_PREFIX, amqp};
use sterna_mapping::percent;

/// Why a client that was let in would not be any more.
pub(crate) type Distrust = Cow<'static, str>;

/// The reason for clients whose credentials were being checked when the policy changed: by users who may not be there
/// any more.
pub(crate) const CHANGED_DURING_CHECK: &str =
    "the configuration has changed while the credentials were checked: connect again";

/// The right of a client to messages of subscriptions that a rule denies in part.
#[derive(Debug)]
struct Reader {
    rules: Rules,
    user: Option<Arc<str>>,
    client: Box<str>,
    origin: Origin,
    standing: Option<Arc<Standing>>,
    /// The place of the rule whose question about the filter was answered, if one asks.
    answered: Option<usize>,
    /// Whether it has the right to a queue: then it needs none to the topics of its messages, and a rule that denies
    /// one still holds.
    has_queue: bool,
}

impl Reader {
    fn subject(&self) -> Subject<'_> {
        Subject {
            user: self.user.as_deref(),
            client: &self.client,
            origin: self.origin,
            standing: self.standing.as_deref(),
        }
    }
}

impl Permit for Reader {
    fn permits(&self, topic: &str) -> bool {
        if self.has_queue {
            return !self.rules.denies(self.subject(), topic);
        }
        (self.rules).may_receive_by(self.subject(), topic, |place| {
            place.is_some() && place == self.answered
        })
    }

    fn permits_message(&self, message: &Message) -> bool {
        self.permits(message.topic()) && !denies_origin(&self.rules, self.subject(), message)
    }
}

/// Whether a rule denies the subject a topic from which a dead letter has come.
fn denies_origin(rules: &Rules, subject: Subject<'_>, message: &Message) -> bool {
    // Only a queue has them, and a look into the properties of any other message would be dear.
    if !message.topic().starts_with(amqp::QUEUE_LEVEL) {
        return false;
    }
    let mut topics = amqp::topics_before_death(message).into_iter();
    topics.any(|topic| rules.denies(subject, topic))
}

/// The client's name, as the rules know it, of a session by its name.
fn client_of(client_id: &str) -> Box<str> {
    if client_id.starts_with(HTTP_PREFIX) {
        // HTTP has no client identifiers.
        return "".into();
    }
    let Some(rest) = client_id.strip_prefix(AMQP_PREFIX) else {
        return client_id.into();
    };
    // The container, and the link.
    let container = rest.split('/').next().unwrap_or_default();
    name_of_share(container)
}

/// The name that a part of a session's, or of a shared subscription's, stands for.
fn name_of_share(part: &str) -> Box<str> {
    percent::decode_text(part.as_bytes())
        .unwrap_or_else(|| part.into())
        .into()
}

/// Whether a session is the broker's own.
fn is_own(holder: Holder<'_>) -> bool {
    holder.client_id.starts_with(QUEUE_PREFIX)
}

impl Policy {
    /// Whether a user may be one that is admitted. A password or token of it is known here. A certificate, a signed
    /// token or the webhook's answer comes with a connection: where these are in use, any name may be admitted.
    pub(crate) fn knows(&self, user: &str) -> bool {
        self.certificate_as_username
            || self.issuer.is_configured()
            || self.webhook.authenticates()
            || self.has_credentials(user)
    }

    /// Whether a client may have an identifier. Where identifiers are bound to users, a user's name is that user's,
    /// also if it fits the patterns of others.
    pub(crate) fn may_have_client_id(&self, identity: &Identity, client_id: &str) -> bool {
        let user = identity.user();
        let is_given = |grant: &Grant| grant.gives_client_id(user, client_id);
        if !identity.grant().is_none_or(is_given) {
            return false;
        }
        let is_free = self.client_ids.is_empty()
            || user == Some(client_id)
            || !self.has_credentials(client_id);
        is_free && may_have_client_id(&self.client_ids, user, client_id)
    }

    /// Whether a client without a user name may be one that is admitted somewhere.
    fn admits_nobody(&self) -> bool {
        self.takes_certificates || self.listeners.iter().any(|listener| listener.anonymous)
    }

    fn has_credentials(&self, user: &str) -> bool {
        self.users.has(user) || self.tokens.has_user(user)
    }

    /// Whether a connection may live on with the certificate that it has shown.
    ///
    /// # Errors
    /// Why not, for the client and the log.
    pub(crate) fn still_trusts(&self, info: Option<&ConnectionInfo>) -> Result<(), Distrust> {
        let kept = info.map_or(Ok(()), |info| self.trust.keeps(&info.peer_certificates));
        kept.map_err(Cow::Owned)
    }

    /// Whether a connection would still be admitted, by who it has shown to be.
    ///
    /// # Errors
    /// Why not, for the client and the log.
    pub(crate) fn still_admits(
        &self,
        info: Option<&ConnectionInfo>,
        identity: &Identity,
    ) -> Result<(), Distrust> {
        self.still_trusts(info)?;
        if let Some(grant) = identity.grant() {
            let user = identity.user().unwrap_or_default();
            return match grant.basis() {
                Basis::File(digest) if self.tokens.prove(user, digest) => Ok(()),
                Basis::File(_) => {
                    Err("the token is not in authentication.token_file any more".into())
                }
                Basis::Jwt(..) => self.issuer.stands_by(grant).map_err(Cow::Borrowed),
                Basis::Webhook(_) if self.webhook.stands_by(grant) => Ok(()),
                Basis::Webhook(_) => Err("webhook.authentication_url has changed".into()),
            };
        }
        let certificate = info.and_then(|info| info.peer_certificates.first());
        let Some(user) = identity.user() else {
            let listener = self.listener(info.map_or(0, |info| info.listener));
            return if listener.anonymous || certificate.is_some() {
                Ok(())
            } else {
                Err("the listener admits no clients without credentials any more".into())
            };
        };
        let is_certified = || {
            let name = certificate.and_then(|certificate| common_name(certificate));
            name.as_deref() == Some(user)
        };
        if self.has_credentials(user) || (self.certificate_as_username && is_certified()) {
            return Ok(());
        }
        Err(match identity.proof() {
            Proof::Certificate => "tls.certificate_as_username is off now".into(),
            _ => "the user is not in authentication.password_file any more".into(),
        })
    }

    /// Whether it gives the same rights to the same users as another.
    pub(crate) fn grants_like(&self, other: &Self) -> bool {
        self.rules.are_same(&other.rules)
            && self.certificate_as_username == other.certificate_as_username
            && self.users.have_same_names(&other.users)
            && self.tokens.have_same_names(&other.tokens)
            && self.issuer.is_same(&other.issuer)
            && self.webhook.is_same(&other.webhook)
            // Each webhook has its own answers, and the rules in force must know them.
            && !(self.rules.have_questions() && self.webhook.authorizes())
            && self.admits_nobody() == other.admits_nobody()
    }
}

impl Policy {
    /// Tells what decides about rights from that of another policy, also in another process. A difference that means
    /// nothing costs a look at each session.
    fn rights_digest(&self) -> [u8; 32] {
        let mut context = Context::new(&SHA256);
        let mut add = |part: &str| {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        };
        add(&format!("{:?}", self.rules.source()));
        add(&format!("{:?}", self.issuer.config()));
        add(&format!("{:?}", self.webhook.config()));
        let given = (self.certificate_as_username, self.admits_nobody());
        add(&format!("{given:?}"));
        for mut names in [self.users.names(), self.tokens.users()] {
            names.sort_unstable();
            for name in &names {
                add(name);
            }
            add("");
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        digest
    }
}

/// The rules and bans in force, as the broker asks them.
#[derive(Debug)]
pub(crate) struct InForce {
    policy: Arc<Policy>,
    banned: Arc<Bans>,
}

impl InForce {
    pub(crate) fn of(policy: &Arc<Policy>, banned: &Arc<Bans>) -> Arc<dyn Rights> {
        Arc::new(Self {
            policy: Arc::clone(policy),
            banned: Arc::clone(banned),
        })
    }
}

impl Deref for InForce {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.policy
    }
}

impl Rights for InForce {
    fn digest(&self) -> [u8; 32] {
        self.rights_digest()
    }

    fn admits(&self, holder: Holder<'_>) -> bool {
        if is_own(holder) {
            return true;
        }
        match holder.owner {
            Some(user) => self.knows(user),
            None => self.admits_nobody(),
        }
    }

    fn reads(&self, holder: Holder<'_>, filter: &str, queue: Option<&str>) -> Right {
        self.may_read(holder, filter, queue, false)
    }

    fn still_reads(&self, holder: Holder<'_>, filter: &str, queue: Option<&str>) -> Right {
        self.may_read(holder, filter, queue, true)
    }

    fn reads_again(&self, holder: Holder<'_>, filter: &str, queue: Option<&str>) -> Right {
        let is_unknown = self.standing_of(holder).is_none() && self.may_be_given_more(holder);
        if is_unknown && !is_own(holder) {
            // Its last token or answer did not allow it. It is judged again when it comes back.
            return Right::Nothing;
        }
        self.may_read(holder, filter, queue, true)
    }

    fn denies_whatever(&self, holder: Holder<'_>, filter: &str, queue: Option<&str>) -> bool {
        !self.gives_rules()
            && matches!(
                self.may_read_by(holder, filter, queue, (true, Some(Standing::any()))),
                Right::Nothing
            )
    }

    fn varies(&self, holder: Holder<'_>) -> bool {
        // A user of the files may come by a token, too, and without it the next time.
        self.gives_standings() && holder.owner.is_some()
    }

    fn receives(&self, holder: Holder<'_>, topic: &str) -> bool {
        if is_own(holder) || (holder.client_id.starts_with(AMQP_PREFIX) && amqp::is_dynamic(topic))
        {
            return true;
        }
        self.with_subject(holder, |subject| {
            (subject.standing.is_none() && self.may_be_given_more(holder))
                // It was let through when it was subscribed to.
                || self.rules.may_receive_by(subject, topic, |_| true)
        })
    }

    fn receives_message(&self, holder: Holder<'_>, message: &Message) -> bool {
        self.receives(holder, message.topic())
            && (is_own(holder)
                || !message.topic().starts_with(amqp::QUEUE_LEVEL)
                || !self.with_subject(holder, |subject| {
                    denies_origin(&self.rules, subject, message)
                }))
    }

    fn denies(&self, holder: Holder<'_>, message: &Message) -> bool {
        if is_own(holder) || amqp::is_dynamic(message.topic()) {
            return false;
        }
        self.with_subject(holder, |subject| {
            self.rules.denies(subject, message.topic())
                || denies_origin(&self.rules, subject, message)
        })
    }

    fn most_sessions(&self, holder: Holder<'_>) -> Option<u32> {
        if is_own(holder) {
            return None;
        }
        self.with_subject(holder, |subject| self.rules.limit_of(subject)?.sessions)
    }

    fn publishes(&self, holder: Holder<'_>, will: &Message) -> bool {
        let standing = self.standing_of(holder);
        self.may_publish_will(holder, will, standing.as_deref())
    }

    fn still_publishes(&self, holder: Holder<'_>, will: &Message, now_ms: u64) -> bool {
        let standing = self.standing_of(holder);
        if standing.is_some() || !self.gives_standings() {
            return self.may_publish_will(holder, will, standing.as_deref());
        }
        // A ban is the one word on a user of an authority that the broker itself has.
        let address = holder.endpoint.and_then(|endpoint| endpoint.address);
        let who = Newcomer {
            user: holder.owner,
            client: Some(&client_of(holder.client_id)),
            address: address.map(|address| Ipv6Addr::from(address).into()),
        };
        self.banned.find(now_ms, who).is_none()
    }
}

impl Policy {
    fn standing_of(&self, holder: Holder<'_>) -> Option<Arc<Standing>> {
        self.standings
            .of(holder.owner, &client_of(holder.client_id))
    }

    /// Asks about the holder of a session as the rules know it.
    fn with_subject<R>(&self, holder: Holder<'_>, ask: impl FnOnce(Subject<'_>) -> R) -> R {
        let client = client_of(holder.client_id);
        let standing = self.standings.of(holder.owner, &client);
        ask(Subject {
            user: holder.owner,
            client: &client,
            origin: Origin::of_endpoint(holder.endpoint),
            standing: standing.as_deref(),
        })
    }

    fn may_publish_will(
        &self,
        holder: Holder<'_>,
        will: &Message,
        standing: Option<&Standing>,
    ) -> bool {
        let client = client_of(holder.client_id);
        let subject = Subject {
            user: holder.owner,
            client: &client,
            origin: Origin::of_endpoint(holder.endpoint),
            standing,
        };
        (self.rules).may_publish_still(subject, will.topic(), MessageKind::of(will))
    }

    /// Whether a client that is away may have been given groups or rules. Nothing is known of them until it
    /// comes back. Then it is judged again. Until then it has the rights that any groups could give it.
    fn may_be_given_more(&self, holder: Holder<'_>) -> bool {
        let is_unknown = |user: &str| !self.has_credentials(user);
        self.gives_standings() && holder.owner.is_some_and(is_unknown)
    }

    fn may_read(
        &self,
        holder: Holder<'_>,
        filter: &str,
        queue: Option<&str>,
        stands: bool,
    ) -> Right {
        let mut standing = self.standing_of(holder);
        if stands && standing.is_none() && self.may_be_given_more(holder) {
            if self.gives_rules() {
                // Those that it may be given come before all others.
                return Right::Everything;
            }
            standing = Some(Standing::any());
        }
        self.may_read_by(holder, filter, queue, (stands, standing))
    }

    /// Whether clients may be given rules of their own.
    fn gives_rules(&self) -> bool {
        self.issuer.gives_rules() || self.webhook.authenticates()
    }

    fn may_read_by(
        &self,
        holder: Holder<'_>,
        filter: &str,
        queue: Option<&str>,
        (stands, standing): (bool, Option<Arc<Standing>>),
    ) -> Right {
        let is_link = holder.client_id.starts_with(AMQP_PREFIX);
        // Nobody else knows the topic of a dynamic node.
        if is_own(holder) || (is_link && amqp::is_dynamic(filter)) {
            return Right::Everything;
        }
        let client = client_of(holder.client_id);
        let origin = Origin::of_endpoint(holder.endpoint);
        let subject = Subject {
            user: holder.owner,
            client: &client,
            origin,
            standing: standing.as_deref(),
        };
        if let Some(queue) = queue {
            // A queue is a node of its own, from any source of its messages.
            let node = amqp::topic_of_queue(&name_of_share(queue));
            match self.rules.read(subject, &node, stands).0 {
                Reading::Refused | Reading::Asked => return Right::Nothing,
                Reading::Whole | Reading::Part if is_link => {
                    if !self.rules.deny_something(subject) {
                        return Right::Everything;
                    }
                    return Right::Some(Arc::new(Reader {
                        rules: self.rules.clone(),
                        user: holder.owner.map(Arc::from),
                        client,
                        origin,
                        standing,
                        answered: None,
                        has_queue: true,
                    }));
                }
                // A client that names the filter must have the right to it, too.
                Reading::Whole | Reading::Part => {}
            }
        }
        match self.rules.read(subject, filter, stands) {
            (Reading::Refused | Reading::Asked, _) => Right::Nothing,
            (Reading::Whole, _) => Right::Everything,
            (Reading::Part, answered) => Right::Some(Arc::new(Reader {
                rules: self.rules.clone(),
                user: holder.owner.map(Arc::from),
                client,
                origin,
                standing,
                answered,
                has_queue: false,
            })),
        }
    }
}
