//! Conditions of a rule beside names and topics: the origin of a client, and special properties of a message.
//!
//! Unknown facts speak for the client. A rule that allows fits, and one that denies does not. One that asks the webhook
//! lets the action through. The origin of a session is unknown from a restart until its client comes back, and is asked
//! for then. The message is unknown when a link is attached, and each message is asked about later.

use std::net::{IpAddr, Ipv6Addr};

use sterna_broker::{Endpoint, Message};

use super::{Subject, Users};
use crate::config::{AddressPrefix, Authorization, Listener, Rule, TransportName};

/// From where a client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Origin {
    /// Address of the client; `None` if unknown.
    pub address: Option<IpAddr>,
    /// Transport of the client; `None` if unknown.
    pub transport: Option<TransportName>,
    /// Place in the configuration of the listener by which it came; `None` if unknown.
    pub listener: Option<u16>,
}

/// Properties of a message that rules look at beside its topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageKind {
    /// Quality of service, from 0 to 2; `None` if unknown.
    pub qos: Option<u8>,
    /// Whether it is to be retained; `None` if that is not known.
    pub retain: Option<bool>,
    /// Whether it can be a replay; `None` if that is not known.
    pub early_data: Option<bool>,
}

impl Origin {
    /// An unknown origin.
    pub const UNKNOWN: Self = Self {
        address: None,
        transport: None,
        listener: None,
    };

    /// The origin in the broker's form, which the broker keeps with a session.
    #[must_use]
    pub fn endpoint(self) -> Endpoint {
        let octets = |address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Endpoint {
            address: self.address.map(octets),
            transport: self.transport.map_or(0, |transport| transport as u8 + 1),
            listener: self.listener,
        }
    }

    /// The origin from the broker's form.
    #[must_use]
    pub fn of_endpoint(endpoint: Option<Endpoint>) -> Self {
        const ALL: [TransportName; 5] = [
            TransportName::Tcp,
            TransportName::Tls,
            TransportName::Ws,
            TransportName::Wss,
            TransportName::Quic,
        ];
        endpoint.map_or(Self::UNKNOWN, |endpoint| Self {
            address: (endpoint.address)
                .map(|octets| IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()),
            transport: (endpoint.transport.checked_sub(1))
                .and_then(|at| ALL.get(usize::from(at)).copied()),
            listener: endpoint.listener,
        })
    }
}

impl MessageKind {
    /// There is no message yet.
    pub const UNKNOWN: Self = Self {
        qos: None,
        retain: None,
        early_data: None,
    };

    /// A message that may come as early data.
    #[inline]
    #[must_use]
    pub const fn new(qos: u8, retain: bool, early_data: bool) -> Self {
        Self {
            qos: Some(qos),
            retain: Some(retain),
            early_data: Some(early_data),
        }
    }

    /// A number that no other kind has; not 0 where anything is known.
    #[inline]
    pub(crate) const fn number(self) -> u8 {
        const fn flag(flag: Option<bool>) -> u8 {
            match flag {
                None => 0,
                Some(false) => 1,
                Some(true) => 2,
            }
        }
        let qos = match self.qos {
            None => 0,
            Some(qos) => qos + 1,
        };
        (qos << 4) | (flag(self.retain) << 2) | flag(self.early_data)
    }

    /// The [number](Self::number) of a kind that is [known](Self::new), by a shorter way.
    #[inline]
    pub(crate) const fn number_of(qos: u8, retain: bool, early_data: bool) -> u8 {
        ((qos + 1) << 4) | ((retain as u8 + 1) << 2) | (early_data as u8 + 1)
    }

    /// A message of the broker, which can be no replay.
    #[must_use]
    pub fn of(message: &Message) -> Self {
        Self::new(message.qos() as u8, message.retain(), false)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Conditions {
    addresses: Box<[AddressPrefix]>,
    /// A bit for each transport; 0 for all.
    transports: u8,
    /// Places of listeners in the configuration; `None` for all.
    listeners: Option<Box<[u16]>>,
    /// Whether the client has to be one of these, or none of them.
    admin: Option<(bool, Users)>,
    /// A bit for each quality of service; 0 for all.
    qos: u8,
    retain: Option<bool>,
    early_data: Option<bool>,
}

impl Conditions {
    /// Those of a rule, if it has any.
    pub(super) fn of(rule: &Rule, config: &Authorization, listeners: &[Listener]) -> Option<Self> {
        let has_any = rule.looks_at_origins() || rule.looks_at_messages() || rule.admin.is_some();
        has_any.then(|| Self {
            addresses: rule.addresses.as_slice().into(),
            transports: (rule.transports.iter())
                .fold(0, |bits, transport| bits | 1 << *transport as u8),
            listeners: (!rule.listeners.is_empty()).then(|| places(&rule.listeners, listeners)),
            admin: (rule.admin).map(|is_one| (is_one, Users::admins(config))),
            qos: (rule.qos.iter()).fold(0, |bits, qos| bits | 1 << (*qos).min(7)),
            retain: rule.retain,
            early_data: rule.early_data,
        })
    }

    /// Whether all hold; what is not known does as `unknown` says.
    pub(super) fn hold(&self, subject: Subject<'_>, kind: MessageKind, unknown: bool) -> bool {
        let Origin {
            address,
            transport,
            listener,
        } = subject.origin;
        let is_from = |address| self.addresses.iter().any(|prefix| prefix.contains(address));
        let is_flag = |wanted: Option<bool>, found: Option<bool>| {
            wanted.is_none_or(|wanted| found.map_or(unknown, |found| found == wanted))
        };
        (self.addresses.is_empty() || address.map_or(unknown, is_from))
            && (self.transports == 0
                || transport.map_or(unknown, |transport| {
                    self.transports & 1 << transport as u8 != 0
                }))
            && (self.listeners.as_ref()).is_none_or(|places| {
                listener.map_or(unknown, |listener| places.contains(&listener))
            })
            && (self.admin.as_ref()).is_none_or(|(is_one, admins)| admins.have(subject) == *is_one)
            && (self.qos == 0
                || kind
                    .qos
                    .map_or(unknown, |qos| self.qos & 1 << qos.min(7) != 0))
            && is_flag(self.retain, kind.retain)
            && is_flag(self.early_data, kind.early_data)
    }
}

/// The places of listeners with these names.
fn places(names: &[String], listeners: &[Listener]) -> Box<[u16]> {
    let is_named = |it: &Listener| it.name.as_ref().is_some_and(|name| names.contains(name));
    (0..)
        .zip(listeners)
        .filter_map(|(at, it)| is_named(it).then_some(at))
        .collect()
}
