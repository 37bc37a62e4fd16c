//! Settings that are one of a few names.

use std::fmt;
use std::str::FromStr;

use quinn_proto::congestion::{Bbr, Controller, Cubic, NewReno};
use serde::{Deserialize, Serialize};

/// Gives an enum of settings its names, in TOML as on the command line.
macro_rules! names {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+ $(,)?) => {
        impl $type {
            /// Every choice, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in configurations and on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = String;

            /// Reads a name; the error names the choices.
            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL
                    .iter()
                    .copied()
                    .find(|choice| choice.name() == text)
                    .ok_or_else(|| {
                        format!(
                            concat!("unknown ", $what, " `{}`; choices are {}"),
                            text.escape_debug(),
                            [$($name),+].join(", ")
                        )
                    })
            }
        }

        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Name;

                impl serde::de::Visitor<'_> for Name {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        write!(f, concat!("a ", $what, " (one of {})"), [$($name),+].join(", "))
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }

                deserializer.deserialize_str(Name)
            }
        }
    };
}

pub(crate) use names;

/// The algorithm by which a connection learns the capacity of the path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CongestionControl {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// New Reno (RFC 9002, section 7).
    NewReno,
    /// BBR in its first version. The library calls its implementation experimental.
    Bbr,
}

names!(
    CongestionControl,
    "congestion controller",
    Cubic = "cubic",
    NewReno = "newreno",
    Bbr = "bbr",
);

impl CongestionControl {
    /// The actual algorithm of a connection's controller; `None` if it is not one of the library's.
    #[must_use]
    pub fn of(controller: Box<dyn Controller>) -> Option<Self> {
        let controller = crate::meter::unmetered(controller);
        let controller = crate::careful_resume::library_controller(controller);
        if controller.is::<Cubic>() {
            Some(Self::Cubic)
        } else if controller.is::<NewReno>() {
            Some(Self::NewReno)
        } else if controller.is::<Bbr>() {
            Some(Self::Bbr)
        } else {
            None
        }
    }
}

/// The group whose key share a client sends in its first flight (RFC 8446, section 4.2.8). A server
/// that wants another one asks with a HelloRetryRequest, which costs a round trip.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KeyShare {
    /// X25519: 32 bytes each way; the ClientHello fits one datagram.
    #[default]
    X25519,
    /// NIST P-256: 65 bytes each way, for devices with hardware for that curve only.
    P256,
    /// X25519 with ML-KEM-768. A later quantum computer cannot read recorded traffic. It has 1,216
    /// bytes up and 1,120 down, so the ClientHello takes two datagrams. Measured: 2.4 kB and one
    /// datagram each way more than X25519.
    X25519MlKem768,
}

names!(
    KeyShare,
    "key share",
    X25519 = "x25519",
    P256 = "p256",
    X25519MlKem768 = "x25519mlkem768",
);

impl KeyShare {
    /// The group's number in the TLS registry of supported groups.
    #[must_use]
    pub const fn code_point(self) -> u16 {
        match self {
            Self::X25519 => 0x001d,
            Self::P256 => 0x0017,
            Self::X25519MlKem768 => 0x11ec,
        }
    }

    /// The position of this group among those of a TLS library, given by their registered numbers.
    /// The caller that builds a TLS configuration puts that group first.
    ///
    /// # Errors
    ///
    /// When the library does not have the group: `ring` has no post-quantum one.
    pub fn position(self, offered: &[u16]) -> Result<usize, KeyShareUnavailable> {
        offered
            .iter()
            .position(|group| *group == self.code_point())
            .ok_or_else(|| KeyShareUnavailable {
                wanted: self,
                available: Self::ALL
                    .iter()
                    .copied()
                    .filter(|choice| offered.contains(&choice.code_point()))
                    .collect(),
            })
    }
}

/// The TLS library of this build cannot do the key share that the settings ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyShareUnavailable {
    /// The requested key share.
    pub wanted: KeyShare,
    /// The choices that would work.
    pub available: Vec<KeyShare>,
}

impl fmt::Display for KeyShareUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.available.iter().map(|choice| choice.name()).collect();
        write!(
            f,
            "key_share `{}` is not in this build's TLS library, which has {}",
            self.wanted,
            if names.is_empty() {
                "none of the choices".to_owned()
            } else {
                names.join(", ")
            }
        )
    }
}

impl std::error::Error for KeyShareUnavailable {}

/// The preferred cipher after QUIC's Initial packets. Those are AES-128-GCM by specification (RFC
/// 9001, section 5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Cipher {
    /// AES-GCM where this processor has instructions for it, else ChaCha20-Poly1305.
    #[default]
    Auto,
    /// AES-GCM first.
    Aes,
    /// ChaCha20-Poly1305 first: several times faster than AES in software, and without its timing
    /// leaks.
    ChaCha20,
}

names!(
    Cipher,
    "cipher",
    Auto = "auto",
    Aes = "aes",
    ChaCha20 = "chacha20",
);

impl Cipher {
    /// Whether ChaCha20-Poly1305 goes before AES-GCM on this processor. A client's order decides; a
    /// server does well to follow it, since the device is the slower one.
    #[must_use]
    pub fn prefers_chacha20(self) -> bool {
        match self {
            Self::Auto => !has_aes_instructions(),
            Self::Aes => false,
            Self::ChaCha20 => true,
        }
    }
}

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn has_aes_instructions() -> bool {
    // AES-GCM needs the carry-less multiplication as well to be fast.
    std::is_x86_feature_detected!("aes") && std::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn has_aes_instructions() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull")
}

// Nothing to ask on other processors, most of which have none (32-bit ARM, RISC-V, MIPS).
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes_instructions() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_choices() {
        assert_eq!(
            "reno".parse::<CongestionControl>(),
            Err("unknown congestion controller `reno`; choices are cubic, newreno, bbr".to_owned())
        );
        for choice in KeyShare::ALL {
            assert_eq!(choice.name().parse(), Ok(*choice));
        }
    }

    #[test]
    fn a_key_share_that_the_library_lacks_is_named() {
        let ring = [0x001d, 0x0017, 0x0018];
        assert_eq!(KeyShare::P256.position(&ring), Ok(1));
        let missing = KeyShare::X25519MlKem768.position(&ring).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "key_share `x25519mlkem768` is not in this build's TLS library, which has x25519, p256"
        );
    }

    #[test]
    fn a_controller_tells_what_it_is() {
        use std::sync::Arc;
        use std::time::Instant;

        use quinn_proto::congestion::ControllerFactory as _;

        for congestion in CongestionControl::ALL {
            let ours = Arc::new(crate::CarefulResume {
                congestion: *congestion,
                initial_window_bytes: 12_000,
            });
            let controller = ours.build(Instant::now(), 1_200);
            assert_eq!(CongestionControl::of(controller), Some(*congestion));
            let plain = crate::careful_resume::plain_factory(*congestion, 12_000);
            let controller = plain.build(Instant::now(), 1_200);
            assert_eq!(CongestionControl::of(controller), Some(*congestion));
        }
    }

    #[test]
    fn explicit_ciphers_ask_no_processor() {
        assert!(Cipher::ChaCha20.prefers_chacha20());
        assert!(!Cipher::Aes.prefers_chacha20());
    }
}
