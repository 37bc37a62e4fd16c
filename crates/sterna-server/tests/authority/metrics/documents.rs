//! The documents about metrics: the page of the documentation, the dashboard and the alerts.

use std::collections::BTreeSet;

use crate::fixture::Broker;
use crate::page::{config, scrape};

const PAGE: &str = include_str!("../../../../../docs/operations.md");
const DASHBOARD: &str = include_str!("../../../../../contrib/grafana/sterna.json");
const RULES: &str = include_str!("../../../../../contrib/prometheus/sterna.rules.yml");
const RULE_TESTS: &str = include_str!("../../../../../contrib/prometheus/sterna.rules_test.yml");

/// Names of metrics in a text.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| word.starts_with("sterna_") || word.starts_with("process_");
    // One that ends so is the beginning of a file's name.
    (words.filter(is_metric))
        .filter(|word| !word.ends_with('_'))
        .collect()
}

/// The names of all samples.
fn served() -> BTreeSet<String> {
    let mut broker = Broker::with(&config(), 1);
    let page = scrape(&mut broker);
    page.names().collect()
}

#[test]
fn each_metric_is_documented_and_no_other() {
    let served = served();
    let documented = named(PAGE);
    for name in &served {
        assert!(
            documented.contains(&**name),
            "docs/operations.md lacks {name}"
        );
    }
    for name in documented {
        assert!(served.contains(name), "docs/operations.md has {name}");
    }
}

#[test]
fn dashboard_and_alerts_name_metrics_that_are_served() {
    let served = served();
    let with_suffix = |name: &str| {
        let known = ["_bucket", "_sum", "_count"];
        let family = known.iter().find_map(|suffix| name.strip_suffix(suffix));
        served.contains(family.unwrap_or(name))
    };
    let shown = named(DASHBOARD);
    for (text, file) in [
        (DASHBOARD, "sterna.json"),
        (RULES, "rules"),
        (RULE_TESTS, "tests"),
    ] {
        for name in named(text) {
            assert!(with_suffix(name), "{file} has {name}");
        }
    }
    // Every metric is shown.
    for name in &served {
        let is_shown = |shown: &&str| shown.strip_suffix("_bucket").unwrap_or(shown) == name;
        assert!(shown.iter().any(is_shown), "the dashboard lacks {name}");
    }
}

#[test]
fn each_alert_is_documented_and_tested() {
    for line in RULES.lines() {
        if let Some((_, alert)) = line.split_once("- alert: ") {
            assert!(PAGE.contains(&format!("| `{alert}` |")), "{alert}");
            assert!(
                RULE_TESTS.contains(&format!("alertname=\"{alert}\"")),
                "{alert}"
            );
        }
    }
}

#[test]
fn each_value_of_a_label_is_documented() {
    let mut broker = Broker::with(&config(), 1);
    let page = scrape(&mut broker);
    for label in [
        "reason",
        "kind",
        "resource",
        "state",
        "verdict",
        "direction",
    ] {
        for value in page.values_of(label) {
            assert!(PAGE.contains(&format!("`{value}`")), "{label}={value}");
        }
    }
}
