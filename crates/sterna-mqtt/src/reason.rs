//! Reason codes (MQTT 5.0 section 2.4) and the return codes of the older versions.

use std::fmt;

use crate::PacketType;

macro_rules! reason_codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// A reason code of MQTT 5.0. Codes of 0x80 and above tell failure.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum ReasonCode {
            $($(#[$doc])* $name = $value,)*
        }

        impl ReasonCode {
            /// Every code, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code with this number, or `None` where the specification has none.
            #[must_use]
            pub const fn from_u8(value: u8) -> Option<Self> {
                Some(match value {
                    $($value => Self::$name,)*
                    _ => return None,
                })
            }

            /// The specification's name of the code.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reason_codes! {
    /// Success; also Normal disconnection and Granted QoS 0.
    Success = 0x00, "Success";
    /// The subscription is accepted with QoS 1.
    GrantedQoS1 = 0x01, "Granted QoS 1";
    /// The subscription is accepted with QoS 2.
    GrantedQoS2 = 0x02, "Granted QoS 2";
    /// The client disconnects and wants its will published.
    DisconnectWithWill = 0x04, "Disconnect with Will Message";
    /// Accepted, without a subscriber.
    NoMatchingSubscribers = 0x10, "No matching subscribers";
    /// The subscription did not exist.
    NoSubscriptionExisted = 0x11, "No subscription existed";
    /// The authentication goes on.
    ContinueAuthentication = 0x18, "Continue authentication";
    /// Start of a re-authentication.
    ReAuthenticate = 0x19, "Re-authenticate";
    /// No reason is given.
    UnspecifiedError = 0x80, "Unspecified error";
    /// The packet does not conform to the specification.
    MalformedPacket = 0x81, "Malformed Packet";
    /// Unexpected or out of order, or data that the protocol does not allow.
    ProtocolError = 0x82, "Protocol Error";
    /// Valid but not processed by this implementation.
    ImplementationSpecificError = 0x83, "Implementation specific error";
    /// The version is not served.
    UnsupportedProtocolVersion = 0x84, "Unsupported Protocol Version";
    /// The Client Identifier is not allowed.
    ClientIdentifierNotValid = 0x85, "Client Identifier not valid";
    /// User name or password are wrong.
    BadUserNameOrPassword = 0x86, "Bad User Name or Password";
    /// The client is not authorised.
    NotAuthorized = 0x87, "Not authorized";
    /// The server is not available.
    ServerUnavailable = 0x88, "Server unavailable";
    /// The server is busy; try again later.
    ServerBusy = 0x89, "Server busy";
    /// The client is banned.
    Banned = 0x8a, "Banned";
    /// The server is shutting down.
    ServerShuttingDown = 0x8b, "Server shutting down";
    /// The authentication method is not supported or does not match.
    BadAuthenticationMethod = 0x8c, "Bad authentication method";
    /// No packet arrived for one and a half times the Keep Alive time.
    KeepAliveTimeout = 0x8d, "Keep Alive timeout";
    /// Another connection uses the same Client Identifier.
    SessionTakenOver = 0x8e, "Session taken over";
    /// The Topic Filter is not accepted.
    TopicFilterInvalid = 0x8f, "Topic Filter invalid";
    /// The Topic Name is not accepted.
    TopicNameInvalid = 0x90, "Topic Name invalid";
    /// The Packet Identifier is in use.
    PacketIdentifierInUse = 0x91, "Packet Identifier in use";
    /// The Packet Identifier is not known.
    PacketIdentifierNotFound = 0x92, "Packet Identifier not found";
    /// More unacknowledged messages than Receive Maximum.
    ReceiveMaximumExceeded = 0x93, "Receive Maximum exceeded";
    /// The Topic Alias is above the maximum.
    TopicAliasInvalid = 0x94, "Topic Alias invalid";
    /// The packet is larger than Maximum Packet Size.
    PacketTooLarge = 0x95, "Packet too large";
    /// The data rate is too high.
    MessageRateTooHigh = 0x96, "Message rate too high";
    /// A quota or limit is exceeded.
    QuotaExceeded = 0x97, "Quota exceeded";
    /// Closed by an administrator.
    AdministrativeAction = 0x98, "Administrative action";
    /// The payload does not match its Payload Format Indicator.
    PayloadFormatInvalid = 0x99, "Payload format invalid";
    /// Retained messages are not supported.
    RetainNotSupported = 0x9a, "Retain not supported";
    /// The QoS is above the server's Maximum QoS.
    QoSNotSupported = 0x9b, "QoS not supported";
    /// Use another server for now.
    UseAnotherServer = 0x9c, "Use another server";
    /// Use another server from now on.
    ServerMoved = 0x9d, "Server moved";
    /// Shared subscriptions are not supported.
    SharedSubscriptionsNotSupported = 0x9e, "Shared Subscriptions not supported";
    /// Too many connections in a time.
    ConnectionRateExceeded = 0x9f, "Connection rate exceeded";
    /// The connection has lasted as long as it may.
    MaximumConnectTime = 0xa0, "Maximum connect time";
    /// Subscription Identifiers are not supported.
    SubscriptionIdentifiersNotSupported = 0xa1, "Subscription Identifiers not supported";
    /// Wildcard subscriptions are not supported.
    WildcardSubscriptionsNotSupported = 0xa2, "Wildcard Subscriptions not supported";
}

impl ReasonCode {
    /// Whether the code tells failure.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// The SUBACK code that grants `qos`.
    #[must_use]
    pub const fn granted(qos: crate::QoS) -> Self {
        match qos {
            crate::QoS::AtMostOnce => Self::Success,
            crate::QoS::AtLeastOnce => Self::GrantedQoS1,
            crate::QoS::ExactlyOnce => Self::GrantedQoS2,
        }
    }

    /// The closest return code of a CONNACK of MQTT 3.1 and 3.1.1 (3.1.1 table 3.1). `None` if the
    /// older versions close the connection without a CONNACK.
    #[must_use]
    pub const fn for_v3_connack(self) -> Option<u8> {
        // [MQTT311-3.2.2-6] an error without a return code closes the connection without a CONNACK
        Some(match self {
            Self::Success => 0,
            Self::UnsupportedProtocolVersion => 1,
            Self::ClientIdentifierNotValid => 2,
            Self::ServerUnavailable
            | Self::ServerBusy
            | Self::ServerShuttingDown
            | Self::QuotaExceeded
            | Self::UseAnotherServer
            | Self::ServerMoved
            | Self::ConnectionRateExceeded => 3,
            Self::BadUserNameOrPassword => 4,
            Self::NotAuthorized | Self::Banned | Self::BadAuthenticationMethod => 5,
            _ => return None,
        })
    }

    /// The reason code for the return code of a CONNACK of MQTT 3.1 or 3.1.1.
    #[must_use]
    pub const fn from_v3_connack(return_code: u8) -> Option<Self> {
        Some(match return_code {
            0 => Self::Success,
            1 => Self::UnsupportedProtocolVersion,
            2 => Self::ClientIdentifierNotValid,
            3 => Self::ServerUnavailable,
            4 => Self::BadUserNameOrPassword,
            5 => Self::NotAuthorized,
            _ => return None,
        })
    }

    /// The return code of a SUBACK of MQTT 3.1.1: the granted QoS or 0x80.
    #[must_use]
    pub const fn for_v3_suback(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::GrantedQoS1 => 1,
            Self::GrantedQoS2 => 2,
            // MQTT 3.1.1 section 3.9.3: no other value exists
            _ => 0x80,
        }
    }

    /// Whether the specification lists this code for packets of this type (from either end).
    #[must_use]
    pub const fn is_valid_in(self, packet: PacketType) -> bool {
        let code = self as u8;
        match packet {
            // [MQTT-3.2.2-8]
            PacketType::ConnAck => matches!(
                code,
                0x00 | 0x80..=0x8a | 0x8c | 0x90 | 0x95 | 0x97 | 0x99..=0x9d | 0x9f
            ),
            // [MQTT-3.4.2-1] [MQTT-3.5.2-1]
            PacketType::PubAck | PacketType::PubRec => {
                matches!(
                    code,
                    0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99
                )
            }
            // [MQTT-3.6.2-1] [MQTT-3.7.2-1]
            PacketType::PubRel | PacketType::PubComp => matches!(code, 0x00 | 0x92),
            // [MQTT-3.9.3-2]
            PacketType::SubAck => matches!(
                code,
                0x00..=0x02 | 0x80 | 0x83 | 0x87 | 0x8f | 0x91 | 0x97 | 0x9e | 0xa1 | 0xa2
            ),
            // [MQTT-3.11.3-2]
            PacketType::UnsubAck => {
                matches!(code, 0x00 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8f | 0x91)
            }
            // [MQTT-3.14.2-1]; 0x8c is in the table of section 2.4 only
            PacketType::Disconnect => matches!(
                code,
                0x00 | 0x04 | 0x80..=0x83 | 0x87 | 0x89 | 0x8b..=0x90 | 0x93..=0xa2
            ),
            // [MQTT-3.15.2-1]
            PacketType::Auth => matches!(code, 0x00 | 0x18 | 0x19),
            _ => false,
        }
    }

    /// Whether a client may send this code in a DISCONNECT (MQTT 5.0 table 3-10, column "Sent by").
    #[must_use]
    pub const fn is_disconnect_by_client(self) -> bool {
        matches!(self as u8, 0x00 | 0x04 | 0x80..=0x83 | 0x90 | 0x93..=0x99)
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
