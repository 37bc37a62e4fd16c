//! Sources and targets (part 3, section 3.5).

use bytes::BytesMut;

use super::filter::Filters;
use super::state::Outcome;
use crate::DecodeError;
use crate::transactions::Coordinator;
use crate::types::{
    Composite, Described, Encoded, Field, ListWriter, Map, Multiple, Symbol, Value, composite,
    symbolic,
};

symbolic! {
    /// The surviving part of a terminus (section 3.5.5).
    TerminusDurability: u32 {
        /// Neither configuration nor unsettled state survives.
        None = 0,
        /// Existence and settings of the terminus.
        Configuration = 1,
        /// The state of unsettled deliveries, too.
        UnsettledState = 2,
    }
}

symbolic! {
    /// Event with which the expiry of a terminus begins (section 3.5.6).
    TerminusExpiryPolicy: Symbol<'a> {
        /// The detach of the link.
        LinkDetach = Symbol("link-detach"),
        /// The end of the session.
        SessionEnd = Symbol("session-end"),
        /// The close of the connection.
        ConnectionClose = Symbol("connection-close"),
        /// No event: the terminus does not expire.
        Never = Symbol("never"),
    }
}

symbolic! {
    /// The effect of sending on a message at its source (section 3.5.7).
    DistributionMode: Symbol<'a> {
        /// The message goes to no other link.
        Move = Symbol("move"),
        /// The message stays for other links.
        Copy = Symbol("copy"),
    }
}

composite! {
    /// Source of a link's messages (section 3.5.3).
    Source<'a> = 0x28, "amqp:source:list" {
        /// The node: a string, as a rule.
        address: Value<'a>, optional;
        /// The surviving part.
        durable: TerminusDurability, default TerminusDurability::None;
        /// Event with which the terminus begins to expire.
        expiry_policy: TerminusExpiryPolicy, default TerminusExpiryPolicy::SessionEnd;
        /// Time until it expires, in seconds.
        timeout: u32, default 0;
        /// Whether a node is to be made, or was made.
        dynamic: bool, default false;
        /// Properties of the node to be made.
        dynamic_node_properties: Map<'a>, optional;
        /// Moved or copied.
        distribution_mode: DistributionMode, optional;
        /// Filters that choose messages.
        filter: Map<'a>, optional;
        /// The state of a delivery that is settled without one.
        default_outcome: Outcome<'a>, optional;
        /// Outcomes that can be chosen.
        outcomes: Multiple<'a>, default Multiple::None;
        /// Extensions.
        capabilities: Multiple<'a>, default Multiple::None;
    }
}

composite! {
    /// Target of a link's messages (section 3.5.4).
    Target<'a> = 0x29, "amqp:target:list" {
        /// The node: a string, as a rule.
        address: Value<'a>, optional;
        /// The surviving part.
        durable: TerminusDurability, default TerminusDurability::None;
        /// Event with which the terminus begins to expire.
        expiry_policy: TerminusExpiryPolicy, default TerminusExpiryPolicy::SessionEnd;
        /// Time until it expires, in seconds.
        timeout: u32, default 0;
        /// Whether a node is to be made, or was made.
        dynamic: bool, default false;
        /// Properties of the node to be made.
        dynamic_node_properties: Map<'a>, optional;
        /// Extensions.
        capabilities: Multiple<'a>, default Multiple::None;
    }
}

impl Default for Source<'_> {
    fn default() -> Self {
        Self {
            address: None,
            durable: TerminusDurability::None,
            expiry_policy: TerminusExpiryPolicy::SessionEnd,
            timeout: 0,
            dynamic: false,
            dynamic_node_properties: None,
            distribution_mode: None,
            filter: None,
            default_outcome: None,
            outcomes: Multiple::None,
            capabilities: Multiple::None,
        }
    }
}

impl<'a> Source<'a> {
    /// A source with an address.
    #[must_use]
    pub fn new(address: &'a str) -> Self {
        Self {
            address: Some(Value::String(address)),
            ..Self::default()
        }
    }

    /// The address, if it is text.
    #[must_use]
    pub fn address(&self) -> Option<&'a str> {
        self.address.as_ref().and_then(Value::as_text)
    }

    /// Filters of the source.
    #[must_use]
    pub fn filters(&self) -> Filters<'a> {
        Filters::new(self.filter.unwrap_or(Map::EMPTY))
    }

    /// Event that ends a dynamic node.
    ///
    /// # Errors
    ///
    /// `amqp:invalid-field` for a value that is not a policy.
    pub fn lifetime_policy(&self) -> Result<Option<LifetimePolicy>, DecodeError> {
        LifetimePolicy::of(self.dynamic_node_properties)
    }
}

impl Default for Target<'_> {
    fn default() -> Self {
        Self {
            address: None,
            durable: TerminusDurability::None,
            expiry_policy: TerminusExpiryPolicy::SessionEnd,
            timeout: 0,
            dynamic: false,
            dynamic_node_properties: None,
            capabilities: Multiple::None,
        }
    }
}

impl<'a> Target<'a> {
    /// A target with an address.
    #[must_use]
    pub fn new(address: &'a str) -> Self {
        Self {
            address: Some(Value::String(address)),
            ..Self::default()
        }
    }

    /// The address, if it is text.
    #[must_use]
    pub fn address(&self) -> Option<&'a str> {
        self.address.as_ref().and_then(Value::as_text)
    }

    /// Event that ends a dynamic node.
    ///
    /// # Errors
    ///
    /// `amqp:invalid-field` for a value that is not a policy.
    pub fn lifetime_policy(&self) -> Result<Option<LifetimePolicy>, DecodeError> {
        LifetimePolicy::of(self.dynamic_node_properties)
    }
}

/// Kinds of a link's target.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "lives on the stack for the time of one frame"
)]
pub enum TargetArchetype<'a> {
    /// A node.
    Target(Target<'a>),
    /// A coordinator of transactions (part 4).
    Coordinator(Coordinator<'a>),
}

impl<'a> TargetArchetype<'a> {
    /// The node, if it is one.
    #[must_use]
    pub const fn node(&self) -> Option<&Target<'a>> {
        match self {
            Self::Target(target) => Some(target),
            Self::Coordinator(_) => None,
        }
    }
}

impl<'a> Field<'a> for TargetArchetype<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        match value {
            Value::Described(described) if described.is(Coordinator::CODE, Coordinator::NAME) => {
                Coordinator::from_described(&described).map(Self::Coordinator)
            }
            value => Composite::from_value(value).map(Self::Target),
        }
    }

    fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Target(target) => target.encode(out),
            Self::Coordinator(coordinator) => coordinator.encode(out),
        }
    }
}

/// Event that ends a dynamic node (sections 3.5.10 to 3.5.13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LifetimePolicy {
    /// With the link that made it.
    DeleteOnClose,
    /// With the last link.
    DeleteOnNoLinks,
    /// With the last message.
    DeleteOnNoMessages,
    /// With the last link or message, whichever is later.
    DeleteOnNoLinksOrMessages,
}

impl LifetimePolicy {
    /// The key among the properties of a dynamic node.
    pub const PROPERTY: &'static str = "lifetime-policy";

    const ALL: [(Self, u64, &'static str); 4] = [
        (Self::DeleteOnClose, 0x2b, "amqp:delete-on-close:list"),
        (Self::DeleteOnNoLinks, 0x2c, "amqp:delete-on-no-links:list"),
        (
            Self::DeleteOnNoMessages,
            0x2d,
            "amqp:delete-on-no-messages:list",
        ),
        (
            Self::DeleteOnNoLinksOrMessages,
            0x2e,
            "amqp:delete-on-no-links-or-messages:list",
        ),
    ];

    fn of(properties: Option<Map<'_>>) -> Result<Option<Self>, DecodeError> {
        match properties.and_then(|map| map.get(Self::PROPERTY)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Described(described)) => Self::from_described(&described)
                .map(Some)
                .ok_or(DecodeError::invalid("unknown lifetime policy")),
            Some(_) => Err(DecodeError::invalid("lifetime policy is not described")),
        }
    }

    fn from_described(described: &Described<'_>) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(_, code, name)| described.is(*code, name))
            .map(|(policy, ..)| *policy)
    }

    /// The value of the property.
    #[must_use]
    pub fn encoded(self) -> Encoded {
        Encoded::build(|out| {
            if let Some((_, code, _)) = Self::ALL.iter().find(|(policy, ..)| *policy == self) {
                crate::types::encode_descriptor(out, *code);
                ListWriter::new(out).finish();
            }
        })
    }
}
