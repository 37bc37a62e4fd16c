//! The suites against three nodes instead of one broker.
//!
//! `interop/python/cluster_front.py` takes the broker's place, and hands each connection to a node at
//! random. `interop/cluster.json` lists suites that have nothing to do there. It also lists checks that
//! fail because a cluster refuses something by design, with the reason:
//!
//! ```json
//! {
//!   "left_out": {"prometheus": "figures are those of one node"},
//!   "refused": [{"why": "sessions stay on their node", "said": "*session not present", "checks": ["*:*/session-*"]}]
//! }
//! ```
//!
//! `*` stands for any text. `said` is the text by which a check says that it failed; without it any text
//! fits. `checks` are names with their suite in front, `SUITE:CHECK`. A check that is listed may pass:
//! its connections may come to one node.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::Value;

use super::broker::Launch;
use crate::Failure;
use crate::parts::strings;
use crate::pattern::fits;
use crate::workspace::{Workspace, read};

/// Suites and checks of features that a cluster lacks by design.
#[derive(Debug, Default)]
pub(super) struct Design {
    left_out: BTreeMap<String, String>,
    refused: Vec<Refused>,
}

#[derive(Debug)]
struct Refused {
    why: String,
    said: String,
    checks: Vec<String>,
}

impl Design {
    pub(super) fn load(workspace: &Workspace) -> Result<Self, Failure> {
        let text = read(&workspace.root.join("interop").join("cluster.json"))?;
        Self::parse(&text).map_err(|Failure(why)| Failure(format!("interop/cluster.json: {why}")))
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| Failure::new(error.to_string()))?;
        let said = |value: &Value, what: &str| {
            let text = value.as_str().filter(|text| !text.is_empty());
            text.map(str::to_owned)
                .ok_or_else(|| Failure(format!("{what} is not a text")))
        };
        let mut design = Self::default();
        let left_out =
            (value["left_out"].as_object()).ok_or_else(|| Failure::new("no object `left_out`"))?;
        for (suite, why) in left_out {
            design.left_out.insert(suite.clone(), said(why, suite)?);
        }
        let refused =
            (value["refused"].as_array()).ok_or_else(|| Failure::new("no array `refused`"))?;
        for entry in refused {
            let checks = strings(entry, "checks")?.filter(|checks| !checks.is_empty());
            design.refused.push(Refused {
                why: said(&entry["why"], "`why`")?,
                said: match &entry["said"] {
                    Value::Null => "*".to_owned(),
                    text => said(text, "`said`")?,
                },
                checks: checks.ok_or_else(|| Failure::new("no array `checks`"))?,
            });
        }
        Ok(design)
    }

    /// Whether a suite has nothing to do with a cluster of nodes that look like one broker.
    pub(super) fn leaves_out(&self, suite: &str) -> bool {
        self.left_out.contains_key(suite)
    }

    /// Why a check of a suite fails by design; `None` where it must pass.
    pub(super) fn reason(&self, suite: &str, check: &str, said: &str) -> Option<&str> {
        let name = format!("{suite}:{check}");
        let is_named = |one: &Refused| one.checks.iter().any(|pattern| fits(pattern, &name));
        let mut refused = self.refused.iter();
        let found = refused.find(|one| fits(&one.said, said) && is_named(one));
        found.map(|one| &*one.why)
    }

    /// Whether each suite that is named is one of those.
    pub(super) fn check(&self, suites: &[&str]) -> Result<(), Failure> {
        let checks = self.refused.iter().flat_map(|one| &one.checks);
        let of_checks = checks.map(|name| name.split_once(':').map_or(&**name, |(suite, _)| suite));
        for name in (self.left_out.keys().map(|name| &**name)).chain(of_checks) {
            if !suites.iter().any(|suite| fits(name, suite)) {
                return Err(Failure(format!(
                    "interop/cluster.json: there is no suite `{name}`"
                )));
            }
        }
        Ok(())
    }
}

/// Starts the front instead of the broker.
pub(super) fn launch(
    workspace: &Workspace,
    broker: PathBuf,
    search_path: OsString,
    seed: u64,
) -> Launch {
    let front = workspace
        .root
        .join("interop/python/cluster_front.py")
        .into_os_string();
    Launch {
        program: PathBuf::from("python3"),
        before: vec![front, broker.into_os_string(), seed.to_string().into()],
        search_path: Some(search_path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_refused_where_suite_and_name_fit() {
        let design = Design::parse(
            r#"{"left_out": {"figures": "one node's"},
                "refused": [{"why": "no groups", "said": "refused*", "checks": ["paho*:*/share*"]}]}"#,
        )
        .unwrap();
        assert!(design.leaves_out("figures") && !design.leaves_out("paho"));
        let reason = |suite, check, said| design.reason(suite, check, said);
        let found = reason("paho-quic", "tcp/5.0/shared", "refused: 0x9E");
        assert_eq!(found, Some("no groups"));
        assert_eq!(reason("paho", "tcp/5.0/shared", "closed"), None);
        assert_eq!(reason("paho", "tcp/5.0/retained", "refused"), None);
        assert_eq!(reason("mqttjs", "tcp/5.0/shared", "refused"), None);
        assert!(design.check(&["figures", "paho"]).is_ok());
        assert!(design.check(&["paho"]).is_err());
        assert!(design.check(&["figures"]).is_err());
    }

    #[test]
    fn what_is_missing_is_named() {
        for (text, why) in [
            ("{", "EOF"),
            ("{}", "left_out"),
            (r#"{"left_out": {}}"#, "refused"),
            (r#"{"left_out": {"a": ""}, "refused": []}"#, "a is not"),
            (
                r#"{"left_out": {}, "refused": [{"checks": ["a:b"]}]}"#,
                "why",
            ),
            (r#"{"left_out": {}, "refused": [{"why": "a"}]}"#, "checks"),
        ] {
            let Failure(found) = Design::parse(text).unwrap_err();
            assert!(found.contains(why), "{found}");
        }
    }
}
