//! The SASL layer (AMQP 1.0, part 5, section 5.3).
//!
//! A server's [`Connection`](crate::connection::Connection) offers mechanisms and reports the
//! client's answers; the caller checks credentials. A client gives its connection a [`Mechanism`].

mod client;
mod plain;

use bytes::BytesMut;

pub use client::{Anonymous, External, Mechanism, Plain, SaslError};
pub use plain::PlainCredentials;

use crate::DecodeError;
use crate::types::{Composite as _, Multiple, Reader, Symbol, Value, composite, symbolic};

/// Names of mechanisms.
pub mod mechanism {
    /// RFC 4505: no credentials.
    pub const ANONYMOUS: &str = "ANONYMOUS";
    /// RFC 4616: user name and password.
    pub const PLAIN: &str = "PLAIN";
    /// RFC 4422, appendix A: the transport's knowledge of the client, its certificate.
    pub const EXTERNAL: &str = "EXTERNAL";
    /// RFC 7677: proof of a password by challenge.
    pub const SCRAM_SHA_256: &str = "SCRAM-SHA-256";
}

composite! {
    /// The server's mechanisms (section 5.3.3.1).
    SaslMechanisms<'a> = 0x40, "amqp:sasl-mechanisms:list" {
        /// Names of mechanisms, at least one.
        sasl_server_mechanisms: Multiple<'a>, required;
    }
}

composite! {
    /// The client's choice (section 5.3.3.2).
    SaslInit<'a> = 0x41, "amqp:sasl-init:list" {
        /// The name of the mechanism.
        mechanism: Symbol<'a>, required;
        /// The mechanism's first message.
        initial_response: &'a [u8], optional;
        /// The host that is addressed.
        hostname: &'a str, optional;
    }
}

composite! {
    /// A message of the server (section 5.3.3.3).
    SaslChallenge<'a> = 0x42, "amqp:sasl-challenge:list" {
        /// Data of the mechanism.
        challenge: &'a [u8], required;
    }
}

composite! {
    /// A message of the client (section 5.3.3.4).
    SaslResponse<'a> = 0x43, "amqp:sasl-response:list" {
        /// Data of the mechanism.
        response: &'a [u8], required;
    }
}

symbolic! {
    /// Result of a negotiation (section 5.3.3.6).
    SaslCode: u8 {
        /// Authenticated.
        Ok = 0,
        /// Wrong credentials.
        Auth = 1,
        /// An error of the system.
        Sys = 2,
        /// A lasting error of the system.
        SysPerm = 3,
        /// A passing error of the system.
        SysTemp = 4,
    }
}

composite! {
    /// The end of the negotiation (section 5.3.3.5).
    SaslOutcome<'a> = 0x44, "amqp:sasl-outcome:list" {
        /// Result.
        code: SaslCode, required;
        /// Data of the mechanism with its success.
        additional_data: &'a [u8], optional;
    }
}

/// A body of a SASL frame.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the types have the documentation")]
pub enum SaslFrame<'a> {
    Mechanisms(SaslMechanisms<'a>),
    Init(SaslInit<'a>),
    Challenge(SaslChallenge<'a>),
    Response(SaslResponse<'a>),
    Outcome(SaslOutcome<'a>),
}

macro_rules! sasl_frames {
    ($($variant:ident $type:ident)*) => {
        impl<'a> SaslFrame<'a> {
            /// Reads the body of a SASL frame.
            ///
            /// # Errors
            ///
            /// `amqp:decode-error` for anything else, `amqp:invalid-field` for an unknown code.
            pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
                let mut reader = Reader::new(body);
                let frame = match reader.descriptor()? {
                    $(
                        Value::Ulong($type::CODE) => {
                            Self::$variant($type::decode_list(&mut reader)?)
                        }
                        Value::Symbol($type::NAME) => {
                            Self::$variant($type::decode_list(&mut reader)?)
                        }
                    )*
                    _ => return Err(DecodeError::decode("not a SASL frame body")),
                };
                if reader.is_empty() {
                    Ok(frame)
                } else {
                    Err(DecodeError::decode("bytes after the SASL frame body"))
                }
            }

            /// Appends the body.
            pub fn encode(&self, out: &mut BytesMut) {
                match self {
                    $(Self::$variant(body) => body.encode(out),)*
                }
            }
        }
    };
}

sasl_frames!(
    Mechanisms SaslMechanisms
    Init SaslInit
    Challenge SaslChallenge
    Response SaslResponse
    Outcome SaslOutcome
);
