//! `[log]`: the log on standard error, and the audit log in it.

use serde::{Deserialize, Serialize};

settings! {
    /// `$SYS` topics, which tell clients about the broker.
    #[derive(Eq)]
    pub struct Sys {
        /// Time between two updates of `$SYS`. 0 turns it off.
        restart interval_s: u32 = 10;
    }
}

/// The values of a level.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

settings! {
    /// The log on standard error, and the [audit log](operations.md#the-log) in it.
    #[derive(Eq)]
    pub struct Log {
        /// Level of the log: `error`, `warn`, `info`, `debug`, `trace`, `off`, or directives such as
        /// `sterna_net=debug`. Libraries are heard of errors alone, unless a directive names them: `info,h2=warn`.
        restart level: String = "info".to_owned();
        /// Form of the lines. `text`: one readable line an event. `json`: one object a line.
        restart format: LogFormat = LogFormat::Text;
        /// Level of the audit log, whatever `log.level` says. `warn`: refused logins. `info`: reloads and shutdowns as
        /// well. `debug`: logins as well.
        restart audit: AuditLevel = AuditLevel::Info;
        /// Time in which the log has the first of the lines alone that a client or an address causes for one reason. The next
        /// one has their number in the field `more`. 0 lets all of them through. Metrics and traces count each.
        restart repeat_interval_ms: u32 = 10_000;
        /// Lines of that kind that each shard remembers, a sixteenth of them for one address (IPv6: a network of 48
        /// bits). Those beyond are taken for alike.
        restart maximum_repeats: u32 = 1_000, within 1..;
    }
}

/// Form of the log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One readable line an event.
    #[default]
    Text,
    /// One JSON object an event.
    Json,
}

/// Level of the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditLevel {
    /// Nothing.
    Off,
    /// Logins that were refused.
    Warn,
    /// Reloads and shutdowns as well.
    #[default]
    Info,
    /// Logins as well.
    Debug,
}

impl AuditLevel {
    /// The level as a directive of the log has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl Log {
    /// A level that is none. A bare word would be the name of a target, and everything else be muted.
    pub(super) fn problem(&self) -> Option<String> {
        let wrong = (self.level.split(','))
            .map(str::trim)
            .find(|directive| !is_directive(directive))?;
        Some(format!(
            "log.level: `{wrong}` is none of {}, and no directive such as sterna_net=debug",
            LEVELS.join(", ")
        ))
    }
}

/// Whether it is a level, a target with a level, or empty, as after a last comma.
fn is_directive(text: &str) -> bool {
    let level = match text.rsplit_once('=') {
        Some((target, level)) if !target.is_empty() => level,
        _ => text,
    };
    text.is_empty() || LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_word_or_directives() {
        let of = |level: &str| {
            let level = level.to_owned();
            Log {
                level,
                ..Log::default()
            }
            .problem()
        };
        for good in [
            "info",
            "WARN",
            "off",
            "sterna_net=debug",
            "info,sterna::drop=debug",
            "warn, a=off",
        ] {
            assert_eq!(of(good), None, "{good}");
        }
        for (wrong, word) in [
            ("verbose", "`verbose`"),
            ("info,sterna_net", "`sterna_net`"),
            ("sterna_net=loud", "`sterna_net=loud`"),
            ("=debug", "`=debug`"),
        ] {
            let problem = of(wrong).unwrap();
            assert!(
                problem.contains(word) && problem.contains("error, warn, info"),
                "{problem}"
            );
        }
    }
}
