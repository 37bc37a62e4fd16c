//! `docs/tuning.md` says what the code does.
#![allow(clippy::unwrap_used)] // it is all test

use sterna_quic::{Profile, SavedPath, Settings};

const GUIDE: &str = include_str!("../../../../docs/tuning.md");

/// The table of the profiles, as it has to be.
fn table() -> Vec<String> {
    let names: Vec<_> = Profile::ALL.iter().map(|profile| profile.name()).collect();
    let mut rows = vec![
        format!("| setting | {} |", names.join(" | ")),
        format!("|{}", "---|".repeat(names.len() + 1)),
    ];
    for name in Settings::NAMES {
        let values: Vec<_> = Profile::ALL
            .iter()
            .map(|profile| Settings::of(*profile).value(name).unwrap())
            .map(|value| value.trim_matches('"').to_owned())
            .collect();
        rows.push(format!("| `{name}` | {} |", values.join(" | ")));
    }
    rows
}

#[test]
fn the_table_of_the_profiles_is_that_of_the_code() {
    let written: Vec<_> = GUIDE
        .lines()
        .skip_while(|line| !line.starts_with("| setting |"))
        .take_while(|line| line.starts_with('|'))
        .collect();
    let expected = table();
    assert!(
        written == expected,
        "the table in docs/tuning.md has to be:\n{}",
        expected.join("\n")
    );
}

#[test]
fn every_setting_is_explained() {
    for name in Settings::NAMES {
        assert!(GUIDE.contains(&format!("**`{name}`**")), "{name}");
    }
}

#[test]
fn statements_in_the_text_of_the_guide_are_true() {
    for profile in Profile::ALL {
        let settings = Settings::of(*profile);
        assert_eq!(
            settings.keep_alive_interval_ms, 0,
            "{profile}: no profile sends keep-alives"
        );
        assert!(GUIDE.contains(&format!("| `{profile}` | ")));
    }
    assert!(GUIDE.contains(&format!(
        "each end keeps {} bytes",
        SavedPath::ENCODED_BYTES
    )));
}
