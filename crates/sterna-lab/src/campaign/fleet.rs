//! A fleet: many devices on one link and one broker in one run.

use serde::{Deserialize, Serialize};

use super::{Grid, Transport, WorkloadKind};
use crate::netns::Family;
use crate::quantity;

/// Most devices of a fleet. All are in one process, each with a socket of its own.
const MAX_DEVICES: u32 = 10_000;

/// The course of a fleet's run: all devices connect, each publishes its messages, and the broker's power may
/// be cut.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fleet {
    /// Time over which the devices' first calls are spread evenly; all at once without it.
    pub spread: Option<String>,
    /// After the last message the broker is without power for so long. It loses what it has in memory, and
    /// its peers hear nothing of it.
    pub power_cut: Option<String>,
    /// Seconds after which a silent device sends a sign of life.
    pub keep_alive_s: Option<u16>,
}

impl Fleet {
    /// The spread in nanoseconds.
    #[must_use]
    pub fn spread_ns(&self) -> u64 {
        nanoseconds(self.spread.as_deref()).unwrap_or(0)
    }

    /// The time without power in nanoseconds, if there is one.
    #[must_use]
    pub fn power_cut_ns(&self) -> Option<u64> {
        nanoseconds(self.power_cut.as_deref())
    }
}

/// A time of a campaign's file, which has been checked.
fn nanoseconds(text: Option<&str>) -> Option<u64> {
    text.and_then(|time| quantity::time_ns(time).ok())
}

impl Transport {
    /// The version of IP on its link.
    #[must_use]
    pub const fn family(&self) -> Family {
        Family::of(self.ipv6)
    }
}

/// Checks what a grid says of its fleet.
pub(super) fn check<'a>(
    grid: &'a Grid,
    transport: impl Fn(&str) -> Option<&'a Transport>,
) -> Result<(), String> {
    let workload = &grid.workload;
    let Some(fleet) = &workload.fleet else {
        return if workload.kind == WorkloadKind::Fleet {
            Err("the kind fleet needs `fleet`, which may be empty".into())
        } else {
            Ok(())
        };
    };
    if workload.kind != WorkloadKind::Fleet {
        return Err("`fleet` is for the kind fleet".into());
    }
    if workload.connections > MAX_DEVICES {
        return Err(format!("a fleet has {MAX_DEVICES} devices at the most"));
    }
    for time in fleet.spread.iter().chain(&fleet.power_cut) {
        quantity::time_ns(time)?;
    }
    if fleet.keep_alive_s == Some(0) {
        return Err("keep_alive_s is at least 1".into());
    }
    if !grid.alone {
        return Err("a fleet runs alone: alone = true".into());
    }
    let other = grid
        .transports
        .iter()
        .find(|name| transport(name).is_none_or(|transport| !transport.scheme.starts_with("mqtt")));
    match other {
        Some(other) => Err(format!(
            "the devices of a fleet speak MQTT, unlike `{other}`"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::campaign::{Campaign, Plan, tests::SMALL};

    /// The small campaign with a fleet, of which a part is replaced by another.
    fn with(part: &str, other: &str) -> Result<Campaign, String> {
        let fleet = r#"{ kind = "fleet", messages = 2, connections = 10, fleet = { spread = "5s", power_cut = "3s" } }
alone = true
interval = ["1s"]"#;
        let text = SMALL
            .replace(r#"["wifi", "lte"]"#, r#"["wifi,satellite"]"#)
            .replace(r#"{ kind = "stop-and-wait", messages = 10 }"#, fleet);
        assert!(text.contains("satellite") && text.contains(fleet) && text.contains(part));
        Campaign::parse(&text.replacen(part, other, 1))
    }

    #[test]
    fn a_fleet_is_planned_with_all_its_phases() {
        let campaign = with("", "").unwrap();
        let run = &Plan::new(&campaign, false, 1, &[]).unwrap().runs[0];
        let fleet = run.workload.fleet.as_ref().unwrap();
        assert_eq!(fleet.spread_ns(), 5_000_000_000);
        assert_eq!(fleet.power_cut_ns(), Some(3_000_000_000));
        // Spread, messages, power cut and the way back.
        assert!(run.expected().as_secs() >= 5 + 2 + 3 + 15);
        let quiet = with(", power_cut = \"3s\"", "").unwrap();
        let run = &Plan::new(&quiet, false, 1, &[]).unwrap().runs[0];
        assert!(run.expected().as_secs() < 25);
    }

    #[test]
    fn what_a_fleet_cannot_be_is_said() {
        for (part, other, word) in [
            ("alone = true", "", "alone"),
            ("mqtt+quic", "amqp+quic", "MQTT"),
            ("connections = 10", "connections = 20000", "10000"),
            ("5s", "5", "unit"),
            (
                ", fleet = { spread = \"5s\", power_cut = \"3s\" }",
                "",
                "needs `fleet`",
            ),
            ("kind = \"fleet\"", "kind = \"open-loop\"", "kind fleet"),
            ("power_cut = \"3s\"", "keep_alive_s = 0", "keep_alive_s"),
            ("wifi,satellite", "wifi,moon", "moon"),
        ] {
            let error = with(part, other).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn foreign_devices_have_no_fleets() {
        let error = with("", "").unwrap().with_devices(&["./other".to_owned()]);
        assert!(error.unwrap_err().contains("no plain transport"));
    }
}
