//! From the first byte to the open: protocol headers and the SASL layer. See AMQP 1.0, part 2,
//! sections 2.2 and 2.4, and part 5, section 5.3.

use bytes::BytesMut;

use super::{Connection, Decision, Event, Phase, SaslPhase, Side};
use crate::frame::{self, Frame, TYPE_AMQP, TYPE_SASL};
use crate::performatives::{Open, Performative};
use crate::sasl::{
    Mechanism, SaslChallenge, SaslCode, SaslFrame, SaslInit, SaslMechanisms, SaslOutcome,
    SaslResponse, mechanism,
};
use crate::security::{ProtocolHeader, ProtocolId};
use crate::types::{Multiple, Symbol};
use crate::{CommandError, Condition, DecodeError, Lane, LaneWriter, Limits};

/// The start of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The server's name, for a connection that it opens only to close it.
    pub container_id: String,
    /// Mechanisms that it offers, the preferred one first. Without any there is no SASL layer.
    pub mechanisms: Vec<String>,
    /// Whether clients must go through the SASL layer.
    pub require_sasl: bool,
}

/// The start of a client.
#[derive(Debug)]
pub struct ClientOptions<'a> {
    /// The client's open; frame size, channels and idle time-out are set from the limits.
    pub open: Open<'a>,
    /// The client's mechanism; `None` for no SASL layer.
    pub mechanism: Option<Box<dyn Mechanism>>,
    /// Whether everything up to the open goes out at once, before anything has come from the
    /// server (section 2.4.2). The server must be known to have the mechanism. With a mechanism
    /// that may be challenged only its first message goes ahead.
    pub pipelined: bool,
}

const WRONG_HEADER: DecodeError =
    DecodeError::new(Condition::NOT_IMPLEMENTED, "protocol header is not served");
/// A client of RabbitMQ's other protocol. Its own protocol has no error before its handshake (0-9-1, section 4.2.2): the
/// answer is the header of what is served.
const EARLIER: DecodeError = DecodeError::new(
    Condition::NOT_IMPLEMENTED,
    "the client speaks AMQP 0-9-1, 0-9 or 0-10; AMQP 1.0 is served",
);
/// A client that shows nothing, where credentials are asked for.
const NO_SASL: DecodeError = DecodeError::new(
    Condition::UNAUTHORIZED_ACCESS,
    "the server asks for a SASL layer",
);
const NO_HEADER: DecodeError = DecodeError::framing("frame before the protocol header");

/// Whether a header is one of AMQP before 1.0: `AMQP 0 0 9 1`, and `AMQP 1 1` with 0-8, 0-9 or 0-10.
const fn is_earlier(id: ProtocolId, version: [u8; 3]) -> bool {
    matches!(
        (id, version),
        (ProtocolId::Amqp, [0, _, _]) | (ProtocolId::Other(1), [1, 0, 8..=10] | [1, 8..=10, _])
    )
}

impl Connection {
    /// A server's end of a connection that begins now.
    #[must_use]
    pub fn server(options: &ServerOptions, limits: &Limits, now_ms: u64) -> Self {
        let mut this = Self::new(Side::Server, &options.container_id, limits, now_ms);
        this.mechanisms.clone_from(&options.mechanisms);
        this.require_sasl = options.require_sasl && !options.mechanisms.is_empty();
        this
    }

    /// A client's end of a connection that begins now. Its first bytes are written to `out`; with
    /// [`ClientOptions::pipelined`], or without a SASL layer, sessions can begin at once.
    #[must_use]
    pub fn client(
        options: ClientOptions<'_>,
        limits: &Limits,
        now_ms: u64,
        out: &mut impl LaneWriter,
    ) -> Self {
        let mut this = Self::new(Side::Client, options.open.container_id, limits, now_ms);
        let mut open_frame = BytesMut::new();
        frame::encode(&mut open_frame, TYPE_AMQP, 0, |out| {
            Performative::Open(this.with_limits(&options.open)).encode(out);
        });
        this.open_frame = Some(open_frame);
        this.hostname = options.open.hostname.map(Into::into);
        this.mechanism = options.mechanism;
        this.pipelined = options.pipelined;
        let out = out.buffer(Lane::CONTROL);
        let may_be_challenged = this.mechanism.as_ref().map(|one| one.may_be_challenged());
        if may_be_challenged.is_some() {
            ProtocolHeader::SASL.encode(out);
            if this.pipelined {
                this.write_init(out);
            }
        }
        if may_be_challenged.is_none_or(|may_be| this.pipelined && !may_be) {
            this.write_header_and_open(out);
        }
        this
    }

    /// Assumes the limits of the server's open on an earlier connection. Then the client may use
    /// more than channel 0 and 512 bytes a frame before the server's open has come.
    pub fn assume_peer(&mut self, max_frame_bytes: u32, channel_max: u16) {
        if !matches!(self.phase, Phase::Opened) {
            self.peer.max_frame_bytes = max_frame_bytes.max(crate::MIN_MAX_FRAME_BYTES);
            self.peer.channel_max = channel_max;
        }
    }

    fn write_init(&mut self, out: &mut BytesMut) {
        if let Some(mechanism) = &mut self.mechanism {
            let response = mechanism.initial_response();
            let init = SaslInit {
                mechanism: Symbol(mechanism.name()),
                initial_response: response.as_deref(),
                hostname: self.hostname.as_deref(),
            };
            frame::encode(out, TYPE_SASL, 0, |out| SaslFrame::Init(init).encode(out));
        }
    }

    fn write_header_and_open(&mut self, out: &mut BytesMut) {
        if let Some(open) = self.open_frame.take() {
            ProtocolHeader::AMQP.encode(out);
            out.extend_from_slice(&open);
            self.open_sent = true;
            self.wrote = true;
        }
    }

    /// The answer to a header that is not served.
    pub(super) fn refuse_header(&self, out: &mut BytesMut) {
        if self.side == Side::Server {
            let right = match self.phase {
                Phase::Header {
                    authenticated: false,
                } if !self.mechanisms.is_empty() => ProtocolHeader::SASL,
                _ => ProtocolHeader::AMQP,
            };
            right.encode(out);
        }
    }

    pub(super) fn header_received(
        &mut self,
        header: ProtocolHeader,
        out: &mut BytesMut,
    ) -> Result<(), DecodeError> {
        let Phase::Header { authenticated } = self.phase else {
            return Err(DecodeError::framing("protocol header within a layer"));
        };
        match (self.side, header) {
            (Side::Server, ProtocolHeader::SASL)
                if !authenticated && !self.mechanisms.is_empty() =>
            {
                header.encode(out);
                let names: Vec<&str> = self.mechanisms.iter().map(String::as_str).collect();
                let mechanisms = SaslMechanisms {
                    sasl_server_mechanisms: Multiple::Slice(&names),
                };
                frame::encode(out, TYPE_SASL, 0, |out| {
                    SaslFrame::Mechanisms(mechanisms).encode(out);
                });
                self.phase = Phase::Sasl(SaslPhase::Init);
            }
            (Side::Server, ProtocolHeader::AMQP) if authenticated || !self.require_sasl => {
                header.encode(out);
                self.phase = Phase::Open;
            }
            (Side::Client, ProtocolHeader::SASL) if !authenticated && self.mechanism.is_some() => {
                self.phase = Phase::Sasl(SaslPhase::Mechanisms);
            }
            (Side::Client, ProtocolHeader::AMQP) if authenticated || self.mechanism.is_none() => {
                self.phase = Phase::Open;
            }
            (Side::Server, ProtocolHeader::AMQP) => return Err(NO_SASL),
            (_, ProtocolHeader { id, version }) => {
                return Err(match id {
                    _ if is_earlier(id, version) => EARLIER,
                    ProtocolId::Tls => DecodeError::new(
                        Condition::NOT_IMPLEMENTED,
                        "TLS within AMQP is not served",
                    ),
                    _ => WRONG_HEADER,
                });
            }
        }
        self.wrote = true;
        Ok(())
    }

    pub(super) fn frame_before_open<'a>(
        &mut self,
        frame: &Frame<'a>,
        out: &mut BytesMut,
    ) -> Result<Option<Event<'a>>, DecodeError> {
        match self.phase {
            Phase::Header { .. } => Err(NO_HEADER),
            Phase::Sasl(phase) => {
                if frame.frame_type() != TYPE_SASL {
                    return Err(DecodeError::framing("frame of another type in SASL"));
                }
                let body = SaslFrame::decode(frame.body())?;
                self.sasl_received(phase, body, out)
            }
            _ => self.open_received(frame),
        }
    }

    fn sasl_received<'a>(
        &mut self,
        phase: SaslPhase,
        body: SaslFrame<'a>,
        out: &mut BytesMut,
    ) -> Result<Option<Event<'a>>, DecodeError> {
        const ORDER: DecodeError =
            DecodeError::new(Condition::ILLEGAL_STATE, "SASL frame out of order");
        match (phase, body) {
            (SaslPhase::Init, SaslFrame::Init(init)) => {
                let name = init.mechanism.0;
                let is_offered = self.mechanisms.iter().any(|one| one == name);
                self.decision = if is_offered {
                    Decision::Sasl
                } else {
                    Decision::Refusal
                };
                Ok(Some(Event::SaslInit {
                    mechanism: name,
                    is_offered,
                    initial_response: init.initial_response,
                    hostname: init.hostname,
                }))
            }
            (SaslPhase::Response, SaslFrame::Response(response)) => {
                self.decision = Decision::Sasl;
                Ok(Some(Event::SaslResponse {
                    response: response.response,
                }))
            }
            (SaslPhase::Mechanisms, SaslFrame::Mechanisms(offer)) => {
                let name = self.mechanism.as_ref().map_or("", |one| one.name());
                if !offer.sasl_server_mechanisms.contains(name) {
                    let detail = if name == mechanism::ANONYMOUS {
                        "the server asks for credentials"
                    } else {
                        "the server does not offer the mechanism"
                    };
                    return Err(DecodeError::new(Condition::UNAUTHORIZED_ACCESS, detail));
                }
                if !self.pipelined {
                    self.write_init(out);
                }
                self.phase = Phase::Sasl(SaslPhase::Outcome);
                Ok(None)
            }
            (SaslPhase::Outcome, SaslFrame::Challenge(challenge)) => {
                const REFUSED: DecodeError = DecodeError::new(
                    Condition::UNAUTHORIZED_ACCESS,
                    "the server's challenge is not acceptable",
                );
                self.check_round()?;
                let mechanism = self.mechanism.as_mut().ok_or(ORDER)?;
                let response = mechanism
                    .challenge(challenge.challenge)
                    .map_err(|_| REFUSED)?;
                frame::encode(out, TYPE_SASL, 0, |out| {
                    SaslFrame::Response(SaslResponse {
                        response: &response,
                    })
                    .encode(out);
                });
                Ok(None)
            }
            (SaslPhase::Outcome, SaslFrame::Outcome(outcome)) => {
                const PROOF: DecodeError = DecodeError::new(
                    Condition::UNAUTHORIZED_ACCESS,
                    "the server has not proved itself",
                );
                match outcome.code {
                    SaslCode::Ok => {}
                    SaslCode::Auth | SaslCode::SysPerm => {
                        return Err(DecodeError::new(
                            Condition::UNAUTHORIZED_ACCESS,
                            "the server does not let the client in",
                        ));
                    }
                    SaslCode::Sys | SaslCode::SysTemp => {
                        return Err(DecodeError::new(
                            Condition::INTERNAL_ERROR,
                            "the server does not let the client in for now",
                        ));
                    }
                }
                let mechanism = self.mechanism.as_mut().ok_or(ORDER)?;
                mechanism
                    .success(outcome.additional_data)
                    .map_err(|_| PROOF)?;
                self.phase = Phase::Header {
                    authenticated: true,
                };
                self.write_header_and_open(out);
                Ok(Some(Event::Authenticated))
            }
            _ => Err(ORDER),
        }
    }

    fn check_round(&mut self) -> Result<(), DecodeError> {
        self.sasl_rounds += 1;
        if self.sasl_rounds > self.limits.max_sasl_rounds {
            return Err(DecodeError::new(
                Condition::RESOURCE_LIMIT_EXCEEDED,
                "too many SASL challenges",
            ));
        }
        Ok(())
    }

    /// Server: answers [`Event::SaslInit`] or [`Event::SaslResponse`] with a challenge.
    ///
    /// # Errors
    ///
    /// [`CommandError::State`] if no answer is due, [`CommandError::Limit`] after
    /// [`Limits::max_sasl_rounds`].
    pub fn sasl_challenge(
        &mut self,
        challenge: &[u8],
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        if self.decision != Decision::Sasl {
            return Err(CommandError::State);
        }
        self.check_round().map_err(|_| CommandError::Limit)?;
        frame::encode(out.buffer(Lane::CONTROL), TYPE_SASL, 0, |out| {
            SaslFrame::Challenge(SaslChallenge { challenge }).encode(out);
        });
        self.decision = Decision::None;
        self.phase = Phase::Sasl(SaslPhase::Response);
        Ok(())
    }

    /// Server: ends the SASL layer. With any code but [`SaslCode::Ok`] the connection is over.
    ///
    /// # Errors
    ///
    /// [`CommandError::State`] if no answer is due, or if it would let a client in by a mechanism that was not
    /// offered.
    pub fn sasl_outcome(
        &mut self,
        code: SaslCode,
        additional_data: Option<&[u8]>,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let is_due = match self.decision {
            Decision::Sasl => true,
            Decision::Refusal => code != SaslCode::Ok,
            Decision::None | Decision::Open => false,
        };
        if !is_due {
            return Err(CommandError::State);
        }
        self.decision = Decision::None;
        write_outcome(code, additional_data, out.buffer(Lane::CONTROL));
        self.phase = if code == SaslCode::Ok {
            Phase::Header {
                authenticated: true,
            }
        } else {
            Phase::Closed
        };
        Ok(())
    }

    fn open_received<'a>(&mut self, frame: &Frame<'a>) -> Result<Option<Event<'a>>, DecodeError> {
        if frame.frame_type() != TYPE_AMQP {
            return Err(DecodeError::framing("frame of another type"));
        }
        if frame.body().is_empty() {
            // Section 2.4.5: only a sign of life.
            return Ok(None);
        }
        let (Performative::Open(open), _) = Performative::decode(frame.body())? else {
            return Err(DecodeError::new(
                Condition::ILLEGAL_STATE,
                "first frame is not open",
            ));
        };
        if frame.channel() != 0 {
            return Err(DecodeError::framing("open on another channel than 0"));
        }
        if open.max_frame_size < crate::MIN_MAX_FRAME_BYTES {
            return Err(DecodeError::invalid("max-frame-size is less than 512"));
        }
        let idle_timeout_ms = open.idle_time_out.unwrap_or(0);
        if idle_timeout_ms != 0 && idle_timeout_ms < self.limits.min_peer_idle_timeout_ms {
            return Err(DecodeError::new(
                Condition::NOT_ALLOWED,
                "idle-time-out is too short",
            ));
        }
        self.peer.max_frame_bytes = open.max_frame_size;
        self.peer.channel_max = open.channel_max;
        self.peer.idle_timeout_ms = idle_timeout_ms;
        self.heartbeat_ms = self.now_ms;
        self.phase = Phase::Opened;
        if !self.open_sent {
            self.decision = Decision::Open;
        }
        Ok(Some(Event::Open(open)))
    }

    /// Server: answers [`Event::Open`]. Frame size, channels and idle time-out are set from the
    /// limits.
    ///
    /// # Errors
    ///
    /// [`CommandError::State`] if no answer is due, [`CommandError::FrameTooLarge`] if the peer
    /// does not take so large an open.
    pub fn open(&mut self, open: &Open<'_>, out: &mut impl LaneWriter) -> Result<(), CommandError> {
        if self.decision != Decision::Open {
            return Err(CommandError::State);
        }
        let out = out.buffer(Lane::CONTROL);
        let start = out.len();
        self.write_open(open, out);
        if out.len() - start > self.peer.max_frame_bytes as usize {
            out.truncate(start);
            self.open_sent = false;
            return Err(CommandError::FrameTooLarge);
        }
        self.decision = Decision::None;
        Ok(())
    }
}

fn write_outcome(code: SaslCode, additional_data: Option<&[u8]>, out: &mut BytesMut) {
    frame::encode(out, TYPE_SASL, 0, |out| {
        SaslFrame::Outcome(SaslOutcome {
            code,
            additional_data,
        })
        .encode(out);
    });
}
