//! The section `authentication.jwt`: JSON web tokens of an issuer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Longest clock skew, in seconds: beyond it an expiry means little.
const MAXIMUM_CLOCK_SKEW_S: u64 = 600;

/// Longest token that MQTT can carry, in bytes.
const MAXIMUM_TOKEN_BYTES: u64 = 65_535;

settings! {
    /// JSON web tokens (RFC 7519) of one issuer. Without `key_files` and `keys_url`, no token is accepted.
    ///
    /// [Signed tokens](configuring.md#signed-tokens) says how clients show them.
    #[derive(Eq)]
    pub struct Jwt {
        /// Keys of the issuer: JWK sets (RFC 7517), single JWKs, or public keys in PEM (`BEGIN PUBLIC KEY`). RSA keys
        /// have at least 2048 bits, secrets at least 32 bytes. Keys in a JWK set for encryption, or of other types, are
        /// ignored.
        reload key_files: Vec<PathBuf>;
        /// URL (`https://`) where the issuer publishes its keys as a JWK set (RFC 7517, section 5). Secrets from there
        /// are ignored.
        reload keys_url: Option<String>;
        /// Certificates in PEM that sign the certificate of `keys_url`.
        reload keys_ca: Option<PathBuf>, said "the system's";
        /// Time between two requests to `keys_url`.
        reload keys_refresh_s: u32 = 300, within 1..;
        /// Shortest time between two requests, after a failure or when a token names an unknown key.
        reload keys_retry_s: u32 = 10, within 1..;
        /// Longest time of one request, from the connection to the last byte.
        reload keys_timeout_ms: u64 = 5000, within 1..;
        /// Longest answer of `keys_url`.
        reload maximum_keys_bytes: u32 = 256 << 10, within 1..;
        /// Accepted algorithms. A key serves the one algorithm of its type only, also if a token names another.
        /// `none` does not exist.
        reload algorithms: Vec<JwtAlgorithm> = vec![
            JwtAlgorithm::Es256,
            JwtAlgorithm::EdDsa,
            JwtAlgorithm::Rs256,
        ];
        /// The claim `iss` of each token. Tokens need it.
        reload issuer: Option<String>;
        /// Names of this service: each token has one of them in its claim `aud`. Tokens need it.
        reload audiences: Vec<String>;
        /// Difference allowed between the issuer's clock and this one, for `exp` and `nbf`.
        reload clock_skew_s: u32 = 30, within ..=MAXIMUM_CLOCK_SKEW_S;
        /// The claim with the user name. A name that starts with `/` is a JSON pointer into the claims.
        reload user_claim: String = "sub".to_owned();
        /// The claim with the client identifiers that the client may have. It is a pattern or a list of at most 64, as
        /// in [client identifiers](configuring.md#who-a-client-is). If it is set, a token without it is refused.
        reload client_ids_claim: Option<String>;
        /// The claim with the client's groups, a text or a list of texts, beside those of `[[authorization.group]]`.
        /// Each group that a rule, limit or role names needs an entry there, even without `users`. If it is set, a
        /// token without it is refused.
        reload groups_claim: Option<String>;
        /// The claim with rules of the client: a list of objects with `effect`, `actions` and `topics`. They decide
        /// before `[[authorization.rule]]`. If it is set, a token without it is refused.
        reload rules_claim: Option<String>;
        /// Whether a token may come as the user name, without a password: the one field that some devices have. The user
        /// is the token's.
        reload token_as_user_name: bool = false;
        /// Longest token.
        reload maximum_token_bytes: u32 = 8192, within 1..=MAXIMUM_TOKEN_BYTES;
        /// Keys in all files and from `keys_url`. At most four keys of an algorithm may have the same `kid`, or none.
        reload maximum_keys: u32 = 64, within 1..;
    }
}

/// An algorithm of signatures (RFC 7518, RFC 8037).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum JwtAlgorithm {
    /// ECDSA with P-256 and SHA-256.
    #[serde(rename = "ES256")]
    Es256,
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
    /// HMAC with SHA-256: issuer and broker share the secret.
    #[serde(rename = "HS256")]
    Hs256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    #[serde(rename = "RS256")]
    Rs256,
}

impl JwtAlgorithm {
    /// The name in the header of tokens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
        }
    }
}

impl Jwt {
    /// Whether tokens are accepted at all.
    #[must_use]
    pub const fn is_configured(&self) -> bool {
        !self.key_files.is_empty() || self.keys_url.is_some()
    }

    /// A sentence for each fault.
    pub(super) fn problems(&self) -> Vec<String> {
        let is_empty = |claim: &str| claim.is_empty() || claim == "/";
        let faults = [
            (
                !self.is_configured() && *self != Self::default(),
                "authentication.jwt accepts no token without authentication.jwt.key_files or keys_url",
            ),
            (
                self.is_configured() && self.issuer.is_none(),
                "authentication.jwt.issuer is needed: the claim `iss` of each token",
            ),
            (
                self.is_configured() && self.audiences.is_empty(),
                "authentication.jwt.audiences is needed: else tokens for other services work here",
            ),
            (
                self.algorithms.is_empty(),
                "authentication.jwt.algorithms names at least one of ES256, EdDSA, RS256 and HS256",
            ),
            (
                is_empty(&self.user_claim)
                    || [
                        &self.client_ids_claim,
                        &self.groups_claim,
                        &self.rules_claim,
                    ]
                    .into_iter()
                    .any(|name| name.as_deref().is_some_and(is_empty)),
                "authentication.jwt.user_claim, client_ids_claim, groups_claim and rules_claim are \
                 names of claims",
            ),
            (
                self.keys_ca.is_some() && self.keys_url.is_none(),
                "authentication.jwt.keys_ca needs authentication.jwt.keys_url",
            ),
        ];
        let faults = faults.into_iter().filter(|(is_fault, _)| *is_fault);
        faults.map(|(_, what)| what.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Jwt);

    #[test]
    fn tokens_need_an_issuer_and_an_audience() {
        let complete = Jwt {
            key_files: vec!["keys.json".into()],
            issuer: Some("https://issuer.example".to_owned()),
            audiences: vec!["sterna".to_owned()],
            ..Jwt::default()
        };
        assert_eq!(complete.problems(), [""; 0]);
        assert_eq!(Jwt::default().problems(), [""; 0]);
        let changes: [(Change, &str); 5] = [
            (|jwt| jwt.key_files.clear(), "key_files"),
            (|jwt| jwt.issuer = None, "issuer"),
            (|jwt| jwt.audiences.clear(), "audiences"),
            (|jwt| jwt.algorithms.clear(), "algorithms"),
            (|jwt| jwt.user_claim.clear(), "user_claim"),
        ];
        for (change, named) in changes {
            let mut jwt = complete.clone();
            change(&mut jwt);
            let problems = jwt.problems();
            assert!(
                problems.len() == 1 && problems[0].contains(named),
                "{problems:?}"
            );
        }
    }

    #[test]
    fn there_is_no_algorithm_none() {
        let parse = |name: &str| serde_json::from_value::<JwtAlgorithm>(name.into());
        for algorithm in Jwt::default().algorithms {
            assert_eq!(parse(algorithm.name()).unwrap(), algorithm);
        }
        for name in ["none", "None", "HS512", ""] {
            assert!(parse(name).is_err(), "{name}");
        }
    }
}
