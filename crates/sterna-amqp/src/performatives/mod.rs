//! The frame bodies of the transport (AMQP 1.0, part 2, section 2.7) and their content.

mod connection;
mod link;
mod session;

use bytes::BytesMut;

pub use connection::{Close, Error, Open};
pub use link::{Attach, Detach, Disposition, Flow, Transfer};
pub use link::{ReceiverSettleMode, Role, SenderSettleMode};
pub use session::{Begin, End};

use crate::DecodeError;
use crate::types::{Composite as _, Reader, Value};

/// A frame body.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "lives on the stack for the time of one frame"
)]
#[allow(missing_docs, reason = "the types have the documentation")]
pub enum Performative<'a> {
    Open(Open<'a>),
    Begin(Begin<'a>),
    Attach(Attach<'a>),
    Flow(Flow<'a>),
    Transfer(Transfer<'a>),
    Disposition(Disposition<'a>),
    Detach(Detach<'a>),
    End(End<'a>),
    Close(Close<'a>),
}

macro_rules! performatives {
    ($($variant:ident)*) => {
        impl<'a> Performative<'a> {
            /// Reads a frame body. The second value is the rest: the payload of a transfer.
            ///
            /// # Errors
            ///
            /// `amqp:decode-error` for bytes that are not a frame body, and for bytes after one
            /// without a payload. Also for missing or mistyped fields. `amqp:invalid-field` for a
            /// field out of its range.
            pub fn decode(body: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
                let mut reader = Reader::new(body);
                let performative = match reader.descriptor()? {
                    $(
                        Value::Ulong($variant::CODE) => {
                            Self::$variant($variant::decode_list(&mut reader)?)
                        }
                        Value::Symbol($variant::NAME) => {
                            Self::$variant($variant::decode_list(&mut reader)?)
                        }
                    )*
                    _ => return Err(DecodeError::decode("not a frame body")),
                };
                if !reader.is_empty() && !matches!(performative, Self::Transfer(_)) {
                    return Err(DecodeError::decode("bytes after the frame body"));
                }
                Ok((performative, reader.rest()))
            }

            /// Appends the frame body.
            pub fn encode(&self, out: &mut BytesMut) {
                match self {
                    $(Self::$variant(body) => body.encode(out),)*
                }
            }
        }
    };
}

performatives!(Transfer Flow Disposition Attach Detach Begin End Open Close);

/// A frame of the peer that ends something, and is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// A link.
    Detach,
    /// A session.
    End,
    /// The connection.
    Close,
}

impl Ending {
    /// Whether the whole connection ends.
    #[must_use]
    pub const fn is_close(self) -> bool {
        matches!(self, Self::Close)
    }

    /// The end that a performative with this descriptor asks for; `None` for any other.
    pub(crate) fn of(descriptor: &Value<'_>) -> Option<Self> {
        let ends = [
            (Self::Detach, Detach::CODE, Detach::NAME),
            (Self::End, End::CODE, End::NAME),
            (Self::Close, Close::CODE, Close::NAME),
        ];
        let found = ends.into_iter().find(|(_, code, name)| match descriptor {
            Value::Ulong(other) => other == code,
            Value::Symbol(other) => other == name,
            _ => false,
        });
        found.map(|(end, ..)| end)
    }
}

/// Whether a descriptor is that of a transfer.
pub(crate) fn is_transfer(descriptor: &Value<'_>) -> bool {
    match descriptor {
        Value::Ulong(code) => *code == Transfer::CODE,
        Value::Symbol(name) => *name == Transfer::NAME,
        _ => false,
    }
}
