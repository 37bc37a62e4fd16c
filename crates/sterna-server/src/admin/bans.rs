//! Bans as operators list, make and lift them.

use serde::Deserialize;
use serde_json::{Value, json};
use sterna_http::{ExchangeId, Responses};

use super::answers::{give_page, missing};
use super::api::{Done, Sent};
use super::asked::Lifting;
use super::call::Call;
use super::changes::Change;
use super::desk::Desk;
use super::floor::of_node;
use crate::audit::Outcome;
use crate::bans::{BY_HAND, Ban, Banned, TooManyBans};
use crate::config::AddressPrefix;
use crate::http::{ProblemKind as Kind, Trouble};
use crate::judge::announce_bans;

/// Most bytes of a name or a reason in a ban: those of the longest name of a user.
const MAXIMUM_BAN_TEXT_BYTES: usize = 1024;

/// The content of `POST /bans`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BanRequest {
    user: Option<Box<str>>,
    client: Option<Box<str>>,
    address: Option<AddressPrefix>,
    reason: Option<Box<str>>,
    expiry_s: Option<u32>,
}

fn ban_value(node: Option<&str>, id: u64, ban: &Ban) -> Value {
    json!({
        "id": of_node(node, &id.to_string()),
        "user": ban.banned.user,
        "client": ban.banned.client,
        "address": ban.banned.address,
        "reason": ban.reason,
        "cause": ban.cause,
        "since_ms": ban.since_ms,
        "until_ms": ban.until_ms,
    })
}

/// The people and addresses that a request bans, as the audit log names them.
pub(super) fn target_of_ban(content: &[u8]) -> String {
    let wanted = serde_json::from_slice::<BanRequest>(content);
    wanted.map_or_else(
        |_| String::new(),
        |wanted| {
            let banned = Banned {
                user: wanted.user,
                client: wanted.client,
                address: wanted.address,
                nameless: false,
            };
            banned.to_string()
        },
    )
}

impl Desk<'_, '_> {
    /// Lists bans.
    pub(super) fn bans(
        &self,
        out: &mut dyn Responses,
        id: ExchangeId,
        call: &Call,
        limit: usize,
    ) -> Result<(), Trouble> {
        let after = call.after(|text| text.parse().ok())?.unwrap_or(0);
        let (page, has_more) = self.cx.bans.page(self.cx.now_ms, after, limit);
        let next = page.last().filter(|_| has_more);
        let next = next.map(|(number, _)| number.to_string());
        let node = self.admin.sources.node();
        let page = page
            .iter()
            .map(|(number, ban)| ban_value(node, *number, ban));
        give_page(out, id, page.collect(), next, &[]);
        Ok(())
    }

    /// Lifts a ban.
    pub(super) fn lift_ban(
        &self,
        out: &mut dyn Responses,
        sent: &Sent<'_>,
        call: &Call,
        change: &Change,
    ) -> Result<(), Trouble> {
        // The number is another one at each node.
        let lifted = if self.is_of_node() && !sent.content.is_empty() {
            let Lifting {
                user,
                client,
                address,
            } = sent.read()?;
            let banned = Banned {
                user,
                client,
                address,
                nameless: false,
            };
            self.cx.bans.lift_same(self.cx.now_ms, &banned)
        } else {
            let number = call.argument.parse();
            let number = number.ok();
            number.and_then(|number| self.cx.bans.lift(self.cx.now_ms, number))
        };
        let Some((number, ban)) = lifted else {
            return Err(missing(Kind::NoBan));
        };
        self.log_change(change, Outcome::Done);
        announce_bans(self.cx);
        let (status, value) = if self.is_of_node() {
            (
                200,
                Some(ban_value(self.admin.sources.node(), number, &ban)),
            )
        } else {
            (204, None)
        };
        Done::new(sent.id, status, value).tell(out);
        Ok(())
    }

    /// Bans somebody.
    pub(super) fn ban(
        &self,
        out: &mut dyn Responses,
        sent: &Sent<'_>,
        change: &mut Change,
    ) -> Result<(), Trouble> {
        let wanted: BanRequest = sent.read()?;
        let invalid = |detail: &'static str| Trouble::new(Kind::InvalidContent, detail);
        let names = [&wanted.user, &wanted.client];
        if names
            .into_iter()
            .flatten()
            .any(|name| name.is_empty() || name.contains('\0'))
        {
            let detail = "a name is not empty, and has no character U+0000";
            return Err(invalid(detail));
        }
        let banned = Banned {
            user: wanted.user,
            client: wanted.client,
            address: wanted.address,
            nameless: false,
        };
        if banned.is_empty() {
            return Err(invalid(
                "name a user, a client, an address, or several of these",
            ));
        }
        let bytes = [&banned.user, &banned.client, &wanted.reason]
            .map(|text| text.as_ref().map_or(0, |text| text.len()));
        if bytes.iter().any(|bytes| *bytes > MAXIMUM_BAN_TEXT_BYTES) {
            return Err(invalid("a name or a reason has at most 1024 bytes"));
        }
        let now_ms = self.cx.now_ms;
        let ban = Ban {
            banned,
            reason: wanted.reason.unwrap_or_default(),
            cause: BY_HAND.into(),
            since_ms: now_ms,
            until_ms: wanted.expiry_s.map(|s| now_ms + u64::from(s) * 1000),
        };
        change.target = ban.banned.to_string();
        let added = self.cx.bans.add(&self.cx.policy.bans, now_ms, ban.clone());
        let number = added.map_err(|TooManyBans| {
            Trouble::new(
                Kind::Conflict,
                "there are as many bans as bans.maximum_bans",
            )
        })?;
        change.detail = Some(format!("ban {number}: {ban}"));
        self.log_change(change, Outcome::Done);
        announce_bans(self.cx);
        Done::new(
            sent.id,
            200,
            Some(ban_value(self.admin.sources.node(), number, &ban)),
        )
        .tell(out);
        Ok(())
    }
}
