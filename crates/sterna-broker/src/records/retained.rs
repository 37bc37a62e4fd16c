//! A retained message, as stored: its owner, and then the stored form of the message.

use std::sync::Arc;

use bytes::Bytes;

use super::{Fields, put_bytes, put_network, read_network};
use crate::directory::{Entered, Name, Principal, Principals};
use crate::message::Message;

/// The owner of a retained message that outlives the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RetainedOwner {
    Broker,
    Others,
    Named(Name),
}

const BROKER: u8 = 0;
const OTHERS: u8 = 1;
const USER: u8 = 2;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

impl RetainedOwner {
    /// The owner that a principal is.
    pub(crate) fn of(principals: &Principals, principal: Principal) -> Self {
        match principals.name(principal) {
            Some(name) => Self::Named(name),
            None if principal == Principal::BROKER => Self::Broker,
            None => Self::Others,
        }
    }

    /// Its principal.
    pub(crate) fn enter<'a>(&self, principals: &'a Principals) -> Entered<'a> {
        match self {
            Self::Broker => principals.entered(Principal::BROKER),
            Self::Others => principals.enter_briefly(None, None),
            Self::Named(Name::User(user)) => principals.enter_briefly(Some(user), None),
            Self::Named(Name::Network(network)) => principals.enter_briefly(None, Some(*network)),
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Broker => out.push(BROKER),
            Self::Others => out.push(OTHERS),
            Self::Named(Name::User(user)) => {
                out.push(USER);
                put_bytes(out, user.as_bytes());
            }
            Self::Named(Name::Network(network)) => {
                out.push(if network.is_ipv4() { IPV4 } else { IPV6 });
                put_network(out, *network);
            }
        }
    }

    fn of_fields(fields: &mut Fields<'_>) -> Option<Self> {
        Some(match fields.byte()? {
            BROKER => Self::Broker,
            OTHERS => Self::Others,
            USER => Self::Named(Name::User(Arc::from(fields.text()?))),
            IPV4 => Self::Named(Name::Network(read_network(fields.slice(4)?)?)),
            IPV6 => Self::Named(Name::Network(read_network(fields.slice(6)?)?)),
            _ => return None,
        })
    }
}

/// The record of a retained message.
pub(crate) fn encode_retained(owner: &RetainedOwner, message: &Message) -> Vec<u8> {
    let mut record = Vec::new();
    owner.put(&mut record);
    message.encode(&mut record);
    record
}

/// The owner and the message of a record; `None` where it is not valid.
pub(crate) fn decode_retained(record: &[u8]) -> Option<(RetainedOwner, Message)> {
    let mut fields = Fields::new(record);
    let owner = RetainedOwner::of_fields(&mut fields)?;
    let message = Message::decode(Bytes::copy_from_slice(fields.rest())).ok()?;
    Some((owner, message))
}

/// The retained message of a record of a store; `None` where it is not valid.
#[must_use]
pub fn retained_message(record: &[u8]) -> Option<Message> {
    Some(decode_retained(record)?.1)
}

/// The record that a store has of a retained message of nobody in particular.
#[must_use]
pub fn retained_record(message: &Message) -> Vec<u8> {
    encode_retained(&RetainedOwner::Others, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageHeader;

    #[test]
    fn owners_come_back() {
        let networks = ["10.1.2.3", "2001:db8:1::"].map(|text| text.parse().expect("an address"));
        let networks = networks.map(|network| RetainedOwner::Named(Name::Network(network)));
        let user = RetainedOwner::Named(Name::User("ann".into()));
        let message = Message::copy("a/b", &[], b"x", MessageHeader::default()).expect("it fits");
        for owner in
            networks
                .into_iter()
                .chain([user, RetainedOwner::Broker, RetainedOwner::Others])
        {
            let record = encode_retained(&owner, &message);
            let (found, message) = decode_retained(&record).expect("valid");
            assert_eq!((found, message.topic()), (owner, "a/b"));
            assert!(decode_retained(&record[..record.len() - 1]).is_none());
        }
        assert!(decode_retained(&[]).is_none() && decode_retained(&[9, 0]).is_none());
        let record = retained_record(&message);
        assert_eq!(retained_message(&record).expect("valid").payload(), b"x");
    }
}
