use std::collections::BTreeSet;

use super::*;

/// A campaign with nothing that it could do without.
pub(super) const SMALL: &str = r#"
name = "small"
version = 1
title = "t"
paper = "p"

[[transport]]
name = "tls"
label = "TLS"
scheme = "mqtts"

[[transport]]
name = "quic"
label = "QUIC"
scheme = "mqtt+quic"

[[grid]]
name = "g"
links = ["wifi", "lte"]
loss = ["0%", "5%"]
transports = ["tls", "quic"]
payload_bytes = [100]
repetitions = 3
workload = { kind = "stop-and-wait", messages = 10 }
quick = { repetitions = 1, loss = ["5%"] }
"#;

fn error(text: &str) -> String {
    Campaign::parse(text).unwrap_err()
}

#[test]
fn the_campaigns_of_the_program_fit_together() {
    for (name, text) in CAMPAIGNS {
        let campaign = Campaign::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(campaign.name, name);
        assert!(!campaign.figures.is_empty() && !campaign.claims.is_empty());
        let whole = Plan::new(&campaign, false, 1, &[]).unwrap().runs.len();
        let quick = Plan::new(&campaign, true, 1, &[]).unwrap().runs.len();
        assert!(quick < whole, "{name}: {quick} of {whole}");
    }
}

#[test]
fn a_claims_number_is_that_of_one_campaign() {
    let claims = CAMPAIGNS.iter().flat_map(|(name, _)| {
        let (campaign, _) = Campaign::find(name).unwrap();
        campaign.claims.into_iter().map(|claim| claim.id)
    });
    let mut seen = BTreeSet::new();
    for id in claims {
        // The page of results cites a row by its number alone.
        assert!(seen.insert(id.clone()), "{id} twice");
    }
}

#[test]
fn every_claim_of_the_papers_is_answered() {
    let ids = |name: &str| -> Vec<String> {
        let (campaign, _) = Campaign::find(name).unwrap();
        campaign
            .claims
            .iter()
            .map(|claim| claim.id.clone())
            .collect()
    };
    let wanted = |paper: u32, count: u32| -> Vec<String> {
        (1..=count).map(|row| format!("{paper}.{row}")).collect()
    };
    assert_eq!(ids("amqp-iqbal-2023"), wanted(1, 20));
    assert_eq!(ids("mqtt-jeddou-2022"), wanted(2, 28));
    assert_eq!(ids("http3-saif-2022"), wanted(3, 39));
    assert_eq!(ids("mqtt-fernandez-2020"), wanted(4, 13));
}

#[test]
fn the_papers_campaigns_have_the_papers_sizes() {
    let count = |name: &str, grid: &str| {
        let (campaign, _) = Campaign::find(name).unwrap();
        Plan::new(&campaign, false, 1, &[grid.to_owned()])
            .unwrap()
            .runs
            .len()
    };
    assert_eq!(count("mqtt-jeddou-2022", "delay"), 3 * 6 * 3 * 9);
    assert_eq!(count("mqtt-jeddou-2022", "power"), 18 * 5);
    assert_eq!(count("mqtt-fernandez-2020", "stop-and-wait"), 8 * 18 * 3);
    assert_eq!(count("amqp-iqbal-2023", "connections"), 6 * 7);
    assert_eq!(count("amqp-iqbal-2023", "bandwidth"), 5 * 8 * 5);
    assert_eq!(count("http3-saif-2022", "messages"), 3 * 5 * 8);
    assert_eq!(count("http3-saif-2022", "loss"), 50 * 4 * 5);
    assert_eq!(count("http3-saif-2022", "authentication"), 5 * 2 * 5);
    assert_eq!(count("mqtt-fernandez-2020", "connect"), 6 * 3 * 6);
}

#[test]
fn runs_have_keys_of_their_own_and_transports_the_same_losses() {
    let campaign = Campaign::parse(SMALL).unwrap();
    let runs = Plan::new(&campaign, false, 7, &[]).unwrap().runs;
    assert_eq!(runs.len(), 2 * 2 * 2 * 3);
    let mut keys: Vec<String> = runs.iter().map(Run::key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), runs.len());
    for pair in runs.chunks(2) {
        assert_ne!(pair[0].transport.name, pair[1].transport.name);
        assert_eq!(pair[0].seed, pair[1].seed);
    }
    assert_ne!(runs[0].seed, runs[2].seed);
    let other = Plan::new(&campaign, false, 8, &[]).unwrap().runs;
    assert_ne!(runs[0].seed, other[0].seed);
    let quick = Plan::new(&campaign, true, 7, &[]).unwrap().runs;
    assert_eq!(quick.len(), 4);
    assert!(quick.iter().all(|run| run.loss == "5%"));
    assert!((quick[0].settings.down.loss.expected() - 0.05).abs() < 1e-12);
    let filter = Filter::default()
        .with(Axis::Link, "lte")
        .with(Axis::Qos, "0");
    assert_eq!(quick.iter().filter(|run| run.is_in(&filter)).count(), 2);
    assert!(
        Plan::new(&campaign, true, 7, &["h".to_owned()])
            .unwrap_err()
            .contains('g')
    );
}

#[test]
fn losses_are_on_the_way_that_is_named() {
    let up = SMALL.replace("payload_bytes", "loss_direction = \"up\"\npayload_bytes");
    let campaign = Campaign::parse(&up).unwrap();
    let runs = Plan::new(&campaign, true, 1, &[]).unwrap().runs;
    assert!((runs[0].settings.up.loss.expected() - 0.05).abs() < 1e-12);
    assert!(runs[0].settings.down.loss.expected().abs() < 1e-12);
}

#[test]
fn what_does_not_fit_together_is_said() {
    for (from, to, wanted) in [
        ("\"wifi\", \"lte\"", "\"carrier-pigeon\"", "carrier-pigeon"),
        ("[\"tls\", \"quic\"]", "[\"sctp\"]", "sctp"),
        ("\"0%\", \"5%\"", "\"150%\"", "grid `g`"),
        ("payload_bytes = [100]", "payload_bytes = [4]", "4 bytes"),
        ("messages = 10", "messages = 0", "workload"),
        ("repetitions = 3", "repetitions = 3\nrepeats = 4", "repeats"),
        ("name = \"small\"", "name = \"Small!\"", "lower-case"),
        ("name = \"quic\"", "name = \"tls\"", "twice"),
        (
            "scheme = \"mqtts\"",
            "scheme = \"mqtt\"\nauthentication = \"certificate\"",
            "needs TLS",
        ),
        (
            "scheme = \"mqtts\"",
            "scheme = \"mqtts\"\nauthentication = \"password-once\"",
            "is for h3",
        ),
        (
            "scheme = \"mqtts\"",
            "scheme = \"mqtts\"\nearly_data = true",
            "needs tls",
        ),
        (
            "scheme = \"mqtts\"",
            "scheme = \"wss\"\nearly_data = true",
            "taken of mqtts and amqps",
        ),
        (
            "scheme = \"mqtt+quic\"",
            "scheme = \"mqtt+quic\"\nfast_open = true",
            "is QUIC",
        ),
    ] {
        let text = SMALL.replacen(from, to, 1);
        assert_ne!(text, SMALL);
        let error = error(&text);
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn claims_refer_to_cells_that_there_are() {
    let claim = |check: &str| {
        format!(
            "{SMALL}\n[[claim]]\nid = \"1\"\ntext = \"t\"\nwhere = \"w\"\npaper = \"p\"\n\
             check = {{ {check} }}\n"
        )
    };
    let good =
        "kind = \"value\", grid = \"g\", metric = \"total_s\", each = [\"link\"], most = [1, 2]";
    Campaign::parse(&claim(good)).unwrap();
    for (check, wanted) in [
        ("kind = \"guess\", grid = \"g\", metric = \"m\"", "guess"),
        ("kind = \"value\", metric = \"m\"", "needs `grid`"),
        (
            "kind = \"value\", grid = \"g\", metric = \"m\"",
            "agrees with everything",
        ),
        (
            "kind = \"value\", grid = \"g\", metric = \"m.p42\", most = [1]",
            "no statistic is called `p42`",
        ),
        ("kind = \"value\", grid = \"h\", metric = \"m\"", "no grid"),
        (
            "kind = \"value\", grid = \"g\", metric = \"m\", at = { loss = \"9%\" }",
            "no loss `9%`",
        ),
        (
            "kind = \"value\", grid = \"g\", metric = \"m\", each = [\"link\"], most = [1, 2, 3]",
            "3 bounds for 2 cells",
        ),
        (
            "kind = \"value\", grid = \"g\", metric = \"m\", reduction = true",
            "against",
        ),
        (
            "kind = \"value\", grid = \"g\", metric = \"m\", difference = true",
            "against",
        ),
        (
            "kind = \"value\", grid = \"g\", metric = \"m\", mots = [1]",
            "mots",
        ),
        (
            "kind = \"value\", grid = \"g\", metric = \"m\", transports = [\"sctp\"], most = [1]",
            "no transport `sctp`",
        ),
        ("kind = \"stated\"", "reason"),
    ] {
        let error = error(&claim(check));
        assert!(error.contains(wanted), "{check}: {error}");
    }
}

#[test]
fn campaigns_are_found_by_name_and_by_file() {
    let error = Campaign::find("no-such").unwrap_err();
    assert!(error.contains("mqtt-jeddou-2022"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.toml");
    fs::write(&path, SMALL).unwrap();
    let (campaign, text) = Campaign::find(path.to_str().unwrap()).unwrap();
    assert_eq!(campaign.name, "small");
    assert_eq!(text, SMALL);
}

#[test]
fn results_of_a_built_in_campaign_are_read_with_what_it_says_now() {
    let (now, text) = Campaign::find("mqtt-fernandez-2020").unwrap();
    let before = text.replace("agreement means", "an old one:");
    let notes = |campaign: &Campaign| format!("{:?}", campaign.claims);
    assert!(notes(&Campaign::parse(&before).unwrap()).contains("an old one"));
    let again = Campaign::parse_again(&before).unwrap();
    assert_eq!(notes(&again), notes(&now));
    // A campaign with other runs is described by its own file.
    let other = before.replace("repetitions = 8", "repetitions = 9");
    assert_ne!(other, before);
    let again = Campaign::parse_again(&other).unwrap();
    assert!(notes(&again).contains("an old one"));
}
