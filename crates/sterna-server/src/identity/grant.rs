//! The grant of the authority that vouches for a client, beside the user's name.

use std::sync::Arc;

use sterna_auth::{TokenDigest, TokenRecord};

use super::client_ids::fits;
use super::jwt::KeyId;
use crate::authorization::Standing;
use crate::config;

/// Client identifiers that one client may be given.
const MAXIMUM_CLIENT_IDS: usize = 64;

/// The grant of a token or of the webhook.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Until when, in milliseconds since the Unix epoch; `None` for ever.
    until_ms: Option<u64>,
    /// Patterns of client identifiers; `None` for all.
    client_ids: Option<Box<[String]>>,
    standing: Option<Arc<Standing>>,
    basis: Basis,
}

/// Why it was given, which has to stay so.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// A token of the file, which gives nothing but time, by its digest.
    File(TokenDigest),
    /// The key that has signed the token, and the settings by which it was accepted.
    Jwt(KeyId, Arc<config::Jwt>),
    /// The URL that was asked.
    Webhook(Arc<str>),
}

impl Grant {
    /// Gives until a time in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// When there are too many client identifiers.
    pub(super) fn new(
        until_ms: Option<u64>,
        client_ids: Option<Vec<&str>>,
        standing: Option<Arc<Standing>>,
        basis: Basis,
    ) -> Result<Self, &'static str> {
        let is_long = |list: &Vec<&str>| list.len() > MAXIMUM_CLIENT_IDS;
        if client_ids.as_ref().is_some_and(is_long) {
            return Err("it has more than 64 client identifiers");
        }
        Ok(Self {
            until_ms,
            client_ids: client_ids.map(|list| list.into_iter().map(str::to_owned).collect()),
            standing,
            basis,
        })
    }

    /// Gives what a token of the file does.
    pub(super) fn of_file(record: &TokenRecord) -> Self {
        Self {
            until_ms: record.expires_at_s.map(|at_s| at_s.saturating_mul(1000)),
            client_ids: None,
            standing: None,
            basis: Basis::File(record.digest),
        }
    }

    /// When it ends, in milliseconds since the Unix epoch; `None` for never.
    pub(crate) const fn until_ms(&self) -> Option<u64> {
        self.until_ms
    }

    /// Groups and rules of the client.
    pub(crate) const fn standing(&self) -> Option<&Arc<Standing>> {
        self.standing.as_ref()
    }

    /// Whether the webhook has given it.
    pub(crate) const fn is_of_webhook(&self) -> bool {
        matches!(self.basis, Basis::Webhook(_))
    }

    pub(crate) const fn basis(&self) -> &Basis {
        &self.basis
    }

    /// Whether the user may have a client identifier.
    pub(crate) fn gives_client_id(&self, user: Option<&str>, client_id: &str) -> bool {
        let fit = |pattern: &String| fits(pattern, user, client_id);
        (self.client_ids.as_ref()).is_none_or(|patterns| patterns.iter().any(fit))
    }
}
