//! JSON web tokens (RFC 7519), signed (RFC 7515), of one issuer.
//!
//! The configuration decides about a token: algorithms, keys, issuer and audiences. Of the token's
//! header only two members count, and only to choose among the keys that are trusted anyway (RFC
//! 8725). A token says when it ends, and its client's work ends with it.

mod keys;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize as _;
use serde_json::{Map, Value};

pub(super) use self::keys::KeyId;
use self::keys::Keys;
use super::endpoint::{Endpoint, Plain, Terms};
use super::grant::{Basis, Grant};
use super::{Identity, Proof};
use crate::authorization::{GivenRule, Standing};
use crate::config::{self, JwtAlgorithm};

/// Faults of keys that are told of one set.
const MOST_TOLD: usize = 8;

/// The method of SASL, and of MQTT's authentication, that carries a token (RFC 7628).
pub(crate) const OAUTHBEARER: &str = "OAUTHBEARER";

/// The issuer whose tokens are accepted: its keys, and the required claims.
#[derive(Debug, Default)]
pub struct Issuer {
    config: Arc<config::Jwt>,
    /// Those of the files.
    own: Keys,
    /// All of them.
    keys: Keys,
    source: Option<Arc<Endpoint>>,
    /// The last good answer of the source.
    published: Option<Arc<str>>,
    /// Whether a token has named a key that is not known.
    misses_key: Arc<AtomicBool>,
    /// Requests to the source, over all reloads.
    requests: Arc<KeyRequests>,
}

/// Requests for keys, by their outcome.
#[derive(Debug, Default)]
struct KeyRequests {
    good: AtomicU64,
    failed: AtomicU64,
}

/// Why a token is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// It is too long, or not of the form of a token.
    Form,
    /// Its algorithm is not accepted.
    Algorithm,
    /// No key has the name that it gives.
    Key,
    /// The signature is wrong.
    Signature,
    /// A claim is missing, or not of its type.
    Claims,
    /// It is of another issuer.
    Issuer,
    /// It is for others.
    Audience,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    Early,
    /// It names no user.
    User,
}

impl Fault {
    /// Whether the token may be a guess: its issuer has not signed it. A client with an unknown key
    /// learns nothing, and may be ahead of a change of keys.
    pub(crate) const fn is_guess(self) -> bool {
        matches!(self, Self::Form | Self::Algorithm | Self::Signature)
    }

    /// Says so in words, for the log.
    pub(crate) const fn detail(self) -> &'static str {
        match self {
            Self::Form => "the token is malformed or too long",
            Self::Algorithm => "the token's algorithm is not one of authentication.jwt.algorithms",
            Self::Key => "no key has the token's `kid`",
            Self::Signature => "the token's signature is wrong",
            Self::Claims => "a claim of the token is missing or not of its type",
            Self::Issuer => "the token is not of authentication.jwt.issuer",
            Self::Audience => "the token is for none of authentication.jwt.audiences",
            Self::Expired => "the token has expired",
            Self::Early => "the token is not valid yet",
            Self::User => "the token names no user",
        }
    }
}

/// Whether credentials have the form of a signed token: three parts in base64url, of which the first
/// begins like an object.
pub(crate) fn is_token(credentials: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let parts = credentials.split(|byte| *byte == b'.');
    credentials.first() == Some(&b'e') && parts.count() == 3 && credentials.iter().all(is_part)
}

/// The token in the first message of [`OAUTHBEARER`]. The second value is the user that the client
/// wants to act as; empty for the token's own.
pub(crate) fn token_of_message(message: &[u8]) -> Option<(&str, &str)> {
    let message = std::str::from_utf8(message).ok()?;
    let (header, fields) = message.split_once('\u{1}')?;
    let acts_as = match header.strip_prefix("n,")?.strip_suffix(',')? {
        "" => "",
        name => name.strip_prefix("a=")?,
    };
    // Names with marks in them would be written as `=2C` and `=3D`.
    if acts_as.contains(['=', ',']) {
        return None;
    }
    let fields = fields.strip_suffix("\u{1}\u{1}")?;
    let mut values = (fields.split('\u{1}')).filter_map(|field| field.strip_prefix("auth="));
    let value = values.next()?;
    let (scheme, token) = value.split_once(' ')?;
    let is_single = values.next().is_none() && scheme.eq_ignore_ascii_case("bearer");
    is_single.then_some((token.trim_start(), acts_as))
}

impl Issuer {
    /// Reads the keys.
    ///
    /// # Errors
    /// A sentence that names the file and its fault.
    pub fn load(config: &config::Jwt) -> Result<Self, String> {
        let keys = Keys::load(&config.key_files, &config.algorithms, config.maximum_keys)?;
        Ok(Self {
            own: keys.clone(),
            keys,
            source: source(config)?.map(Arc::new),
            config: Arc::new(config.clone()),
            published: None,
            misses_key: Arc::default(),
            requests: Arc::default(),
        })
    }

    /// Whether a token is accepted as a user name without a password.
    pub(crate) fn takes_token_as_name(&self) -> bool {
        self.config.token_as_user_name && self.is_configured()
    }

    /// Asks the URL of the keys and waits for the answer. The value is the same issuer with these keys, or `None`
    /// without a URL.
    ///
    /// # Errors
    /// The reason, in words: there is no answer, or it has no good keys.
    pub(crate) fn ask(&self) -> Result<Option<Self>, String> {
        let Some(source) = &self.source else {
            return Ok(None);
        };
        let asked = source.get().and_then(|text| self.with_published(&text));
        let requests = match &asked {
            Ok(_) => &self.requests.good,
            Err(_) => &self.requests.failed,
        };
        requests.fetch_add(1, Ordering::Relaxed);
        asked.map(Some)
    }

    /// Goes on with the counts of the issuer before.
    pub(crate) fn succeed(&mut self, old: &Self) {
        self.requests = Arc::clone(&old.requests);
    }

    /// Requests to the URL of the keys since the start: those with a good answer, and the others.
    pub(crate) fn key_requests(&self) -> [(&'static str, u64); 2] {
        let KeyRequests { good, failed } = &*self.requests;
        [("good", good), ("failed", failed)]
            .map(|(outcome, number)| (outcome, number.load(Ordering::Relaxed)))
    }

    /// Keys that are trusted now.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The same issuer with the keys that its URL has published now.
    ///
    /// # Errors
    /// A sentence that names the fault.
    pub(crate) fn with_published(&self, text: &str) -> Result<Self, String> {
        let (algorithms, most) = (&self.config.algorithms, self.config.maximum_keys);
        let (keys, left_out) = self.own.with_published(text, algorithms, most)?;
        let url = self.keys_url_shown();
        // A set may have many.
        for why in left_out.iter().take(MOST_TOLD) {
            tracing::warn!(url, why, "a key of tokens is left out");
        }
        if keys.len() == self.own.len() {
            tracing::warn!(url, "the issuer has published no key that is accepted");
        }
        Ok(Self {
            config: Arc::clone(&self.config),
            own: self.own.clone(),
            keys,
            source: self.source.clone(),
            published: Some(text.into()),
            misses_key: Arc::clone(&self.misses_key),
            requests: Arc::clone(&self.requests),
        })
    }

    /// The last good answer of the URL, where this issuer has the same URL as `old`.
    pub(crate) fn published_by(&self, old: &Self) -> Option<Arc<str>> {
        let is_same = self.config.keys_url == old.config.keys_url;
        old.published.clone().filter(|_| is_same)
    }

    /// Whether the URL has published good keys so far.
    pub(crate) const fn has_published(&self) -> bool {
        self.published.is_some()
    }

    /// The URL of the keys.
    pub(crate) fn keys_url(&self) -> Option<&str> {
        self.config.keys_url.as_deref()
    }

    /// The same without what is secret in it.
    pub(crate) fn keys_url_shown(&self) -> Option<&str> {
        self.source.as_deref().map(Endpoint::shown)
    }

    /// The settings.
    pub(crate) fn config(&self) -> &config::Jwt {
        &self.config
    }

    /// Whether a token has named an unknown key since this was asked last.
    pub(crate) fn take_missed(&self) -> bool {
        self.misses_key.swap(false, Ordering::Relaxed)
    }

    /// Whether tokens are accepted at all.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.config.is_configured()
    }

    /// Whether tokens give groups or rules.
    pub(crate) fn gives_standings(&self) -> bool {
        self.config.groups_claim.is_some() || self.config.rules_claim.is_some()
    }

    /// Whether tokens give rules.
    pub(crate) fn gives_rules(&self) -> bool {
        self.config.rules_claim.is_some()
    }

    /// Longest token that is looked at, in bytes; 0 where none is.
    pub(crate) fn max_token_bytes(&self) -> u32 {
        if self.is_configured() {
            self.config.maximum_token_bytes
        } else {
            0
        }
    }

    /// Whether the same tokens are accepted.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.config == other.config && self.keys.are_same(&other.keys)
    }

    /// Whether a client would still come in by its token: the key is trusted, and the demands on a token are unchanged.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn stands_by(&self, grant: &Grant) -> Result<(), &'static str> {
        const OTHER_TERMS: &str = "the demands of authentication.jwt on tokens have changed";
        let Basis::Jwt(key, terms) = grant.basis() else {
            return Err(OTHER_TERMS);
        };
        if !self.is_configured() {
            return Err("signed tokens of authentication.jwt are not accepted any more");
        }
        if terms.issuer != self.config.issuer {
            return Err("authentication.jwt.issuer is another one now");
        }
        if !self.keys.have(key) {
            return Err(
                "the key that has signed the token is not one of authentication.jwt any more",
            );
        }
        let terms = config::Jwt {
            key_files: self.config.key_files.clone(),
            keys_url: self.config.keys_url.clone(),
            keys_ca: self.config.keys_ca.clone(),
            keys_refresh_s: self.config.keys_refresh_s,
            keys_retry_s: self.config.keys_retry_s,
            keys_timeout_ms: self.config.keys_timeout_ms,
            maximum_keys_bytes: self.config.maximum_keys_bytes,
            clock_skew_s: self.config.clock_skew_s,
            maximum_keys: self.config.maximum_keys,
            ..(**terms).clone()
        };
        if terms == *self.config {
            Ok(())
        } else {
            Err(OTHER_TERMS)
        }
    }

    /// The user that a token names, before any part of the token is verified.
    pub(crate) fn claimed_user(&self, token: &[u8]) -> Option<String> {
        let claims = token.split(|byte| *byte == b'.').nth(1)?;
        let is_short = token.len() <= self.config.maximum_token_bytes as usize;
        let claims = object(claims).filter(|_| is_short)?;
        Some(self.user_of(&Value::Object(claims))?.to_owned())
    }

    /// The identity of a client that shows a token; `now_ms` counts from the Unix epoch. It costs
    /// one signature check, or up to four where keys have no name. That is as much as a TLS
    /// handshake, so a shard does it.
    ///
    /// # Errors
    /// Why it may not come in.
    pub(crate) fn identify(&self, token: &[u8], now_ms: u64) -> Result<Identity, Fault> {
        if token.len() > self.config.maximum_token_bytes as usize {
            return Err(Fault::Form);
        }
        let mut parts = token.split(|byte| *byte == b'.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Fault::Form);
        };
        let signed = &token[..header.len() + 1 + claims.len()];
        let signature = URL_SAFE_NO_PAD.decode(signature);
        let signature = signature.map_err(|_| Fault::Form)?;
        let key = self.signer(&object(header).ok_or(Fault::Form)?, signed, &signature)?;
        let claims = Value::Object(object(claims).ok_or(Fault::Form)?);
        let until_ms = self.check_claims(&claims, now_ms)?;
        let user = self.user_of(&claims).ok_or(Fault::User)?;
        let client_ids = Self::texts_of(&claims, self.config.client_ids_claim.as_deref())?;
        let groups = Self::texts_of(&claims, self.config.groups_claim.as_deref())?;
        let rules: Vec<GivenRule> = match &self.config.rules_claim {
            None => Vec::new(),
            Some(name) => {
                let rules = claim(&claims, name).ok_or(Fault::Claims)?;
                Vec::deserialize(rules).map_err(|_| Fault::Claims)?
            }
        };
        let standing = Standing::new(&groups.unwrap_or_default(), rules);
        let standing = standing.map_err(|_| Fault::Claims)?;
        let basis = Basis::Jwt(key, Arc::clone(&self.config));
        let standing = self.gives_standings().then_some(standing);
        let grant = Grant::new(Some(until_ms), client_ids, standing, basis);
        let grant = grant.map_err(|_| Fault::Claims)?;
        Ok(Identity::granted(user, Proof::Jwt, Arc::new(grant)))
    }

    /// The key that has signed.
    fn signer(
        &self,
        header: &Map<String, Value>,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<KeyId, Fault> {
        // Extensions that have to be understood, and none is (RFC 7515, section 4.1.11).
        if header.contains_key("crit") {
            return Err(Fault::Form);
        }
        let named = header
            .get("alg")
            .and_then(Value::as_str)
            .ok_or(Fault::Form)?;
        let algorithm = (self.config.algorithms.iter()).find(|one| one.name() == named);
        let algorithm: JwtAlgorithm = *algorithm.ok_or(Fault::Algorithm)?;
        let name = match header.get("kid") {
            None => None,
            Some(name) => Some(name.as_str().ok_or(Fault::Form)?),
        };
        let mut keys = self.keys.of(algorithm, name).peekable();
        if keys.peek().is_none() {
            self.misses_key.store(true, Ordering::Relaxed);
            return Err(Fault::Key);
        }
        let key = keys.find(|key| key.verifies(signed, signature));
        key.map(|key| key.id).ok_or(Fault::Signature)
    }

    /// Checks a token's claims; the value is its end, the clocks' difference included.
    fn check_claims(&self, claims: &Value, now_ms: u64) -> Result<u64, Fault> {
        let skew_ms = u64::from(self.config.clock_skew_s) * 1000;
        let time_ms = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) => {
                let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0);
                let seconds = seconds.ok_or(Fault::Claims)?;
                #[expect(clippy::cast_sign_loss, reason = "it is not negative")]
                let time_ms = (seconds * 1000.0) as u64;
                Ok(Some(time_ms))
            }
        };
        if claims.get("iss").and_then(Value::as_str) != self.config.issuer.as_deref() {
            return Err(Fault::Issuer);
        }
        let audiences = texts(claims.get("aud")).ok_or(Fault::Audience)?;
        let is_for_us = |name: &&str| self.config.audiences.iter().any(|own| own == name);
        if !audiences.iter().any(is_for_us) {
            return Err(Fault::Audience);
        }
        let until_ms = time_ms("exp")?
            .ok_or(Fault::Claims)?
            .saturating_add(skew_ms);
        if until_ms <= now_ms {
            return Err(Fault::Expired);
        }
        if time_ms("nbf")?.is_some_and(|from_ms| from_ms > now_ms.saturating_add(skew_ms)) {
            return Err(Fault::Early);
        }
        Ok(until_ms)
    }

    /// The texts of a claim that the settings name; a token without it is refused.
    fn texts_of<'a>(claims: &'a Value, name: Option<&str>) -> Result<Option<Vec<&'a str>>, Fault> {
        let Some(name) = name else {
            return Ok(None);
        };
        texts(claim(claims, name)).map(Some).ok_or(Fault::Claims)
    }

    fn user_of<'a>(&self, claims: &'a Value) -> Option<&'a str> {
        let user = claim(claims, &self.config.user_claim)?.as_str()?;
        sterna_auth::is_user_name(user).then_some(user)
    }
}

/// Where the keys are, and who may say so.
fn source(config: &config::Jwt) -> Result<Option<Endpoint>, String> {
    let Some(url) = &config.keys_url else {
        return Ok(None);
    };
    let terms = Terms {
        url: ("authentication.jwt.keys_url", url),
        ca: ("authentication.jwt.keys_ca", config.keys_ca.as_deref()),
        plain: Plain::Nowhere,
        timeout_ms: config.keys_timeout_ms,
        maximum_bytes: (
            "authentication.jwt.maximum_keys_bytes",
            config.maximum_keys_bytes,
        ),
        keep_alive: std::time::Duration::ZERO,
    };
    Endpoint::new(&terms).map(Some)
}

/// An object in base64url.
fn object(part: &[u8]) -> Option<Map<String, Value>> {
    let text = URL_SAFE_NO_PAD.decode(part).ok()?;
    match serde_json::from_slice(&text).ok()? {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

/// A claim by its name, or by a JSON pointer (RFC 6901).
fn claim<'a>(claims: &'a Value, name: &str) -> Option<&'a Value> {
    if name.starts_with('/') {
        claims.pointer(name)
    } else {
        claims.get(name)
    }
}

/// A text, or a list of nothing but texts.
fn texts(value: Option<&Value>) -> Option<Vec<&str>> {
    match value? {
        Value::String(text) => Some(vec![text]),
        Value::Array(list) => list.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
