//! The section `authentication.jwt`: JSON web tokens of an issuer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Longest clock skew, in seconds: beyond it an expiry means little.
const MAXIMUM_CLOCK_SKEW_S: u32 = 600;

/// Longest token that MQTT can carry, in bytes.
const MAXIMUM_TOKEN_BYTES: u32 = 65_535;

/// JSON web tokens (RFC 7519) of one issuer, as proof of who a client is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Jwt {
    /// The issuer's keys: JWK sets (RFC 7517), single JWKs, or public keys in PEM. Without any, no token is
    /// accepted.
    pub key_files: Vec<PathBuf>,
    /// URL (`https://`) of the issuer's keys, a JWK set (RFC 7517, section 5). Secrets from there
    /// are ignored.
    pub keys_url: Option<String>,
    /// Certificates in PEM that sign the certificate of `keys_url`; by default, those that the system trusts.
    pub keys_ca: Option<PathBuf>,
    /// Time between two requests to `keys_url`, in seconds.
    pub keys_refresh_s: u32,
    /// Shortest time between two requests to `keys_url`, in seconds: after a failure, or when a token names
    /// an unknown key.
    pub keys_retry_s: u32,
    /// Time that a request to `keys_url` may take, in milliseconds.
    pub keys_timeout_ms: u64,
    /// Longest answer of `keys_url`, in bytes.
    pub maximum_keys_bytes: u32,
    /// Accepted algorithms. A key serves the one algorithm of its type only, also if a token names
    /// another.
    pub algorithms: Vec<JwtAlgorithm>,
    /// The claim `iss` of each token.
    pub issuer: Option<String>,
    /// Each token names one of these in its claim `aud`.
    pub audiences: Vec<String>,
    /// Largest difference between the issuer's clock and this one, in seconds.
    pub clock_skew_s: u32,
    /// The claim with the user name. A name that starts with `/` is a JSON pointer into the claims.
    pub user_claim: String,
    /// The claim with the client identifiers that the client may have: a pattern or a list of patterns.
    /// Without this setting, tokens do not limit them.
    pub client_ids_claim: Option<String>,
    /// The claim with the client's groups: a text or a list of texts. Without this setting, tokens give none.
    pub groups_claim: Option<String>,
    /// The claim with rules of the client, which decide before `authorization.rule`. Without this setting,
    /// tokens give none.
    pub rules_claim: Option<String>,
    /// Longest token, in bytes.
    pub maximum_token_bytes: u32,
    /// Keys in all files and from `keys_url`.
    pub maximum_keys: u32,
}

impl Default for Jwt {
    fn default() -> Self {
        Self {
            key_files: Vec::new(),
            keys_url: None,
            keys_ca: None,
            keys_refresh_s: 300,
            keys_retry_s: 10,
            keys_timeout_ms: 5000,
            maximum_keys_bytes: 256 << 10,
            algorithms: vec![
                JwtAlgorithm::Es256,
                JwtAlgorithm::EdDsa,
                JwtAlgorithm::Rs256,
            ],
            issuer: None,
            audiences: Vec::new(),
            clock_skew_s: 30,
            user_claim: "sub".to_owned(),
            client_ids_claim: None,
            groups_claim: None,
            rules_claim: None,
            maximum_token_bytes: 8192,
            maximum_keys: 64,
        }
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
                self.clock_skew_s > MAXIMUM_CLOCK_SKEW_S,
                "authentication.jwt.clock_skew_s is at most 600",
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
            (
                [
                    self.keys_refresh_s,
                    self.keys_retry_s,
                    self.maximum_keys_bytes,
                ]
                .contains(&0)
                    || self.keys_timeout_ms == 0,
                "authentication.jwt.keys_refresh_s, keys_retry_s, keys_timeout_ms and \
                 maximum_keys_bytes are at least 1",
            ),
            (
                self.maximum_keys == 0,
                "authentication.jwt.maximum_keys is at least 1",
            ),
            (
                !(1..=MAXIMUM_TOKEN_BYTES).contains(&self.maximum_token_bytes),
                "authentication.jwt.maximum_token_bytes is 1 to 65535",
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
        let changes: [(Change, &str); 8] = [
            (|jwt| jwt.key_files.clear(), "key_files"),
            (|jwt| jwt.issuer = None, "issuer"),
            (|jwt| jwt.audiences.clear(), "audiences"),
            (|jwt| jwt.algorithms.clear(), "algorithms"),
            (|jwt| jwt.clock_skew_s = 601, "clock_skew_s"),
            (|jwt| jwt.user_claim.clear(), "user_claim"),
            (|jwt| jwt.maximum_keys = 0, "maximum_keys"),
            (
                |jwt| jwt.maximum_token_bytes = 65_536,
                "maximum_token_bytes",
            ),
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
