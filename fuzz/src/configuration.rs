//! Configurations from any text.

use crate::config::{Config, ConfigError, ENVIRONMENT_PREFIX, ListenerUrl, load, parse};

/// What divides the file from the variables, and these from each other.
const DIVIDER: char = '\0';

/// Checks that a configuration is read or refused with words, and stays the same when it is written
/// and read again. Behind the file stand variables as `NAME=VALUE`.
///
/// # Panics
///
/// Where this does not hold.
pub fn file_and_variables(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.split(DIVIDER);
    let file = parts.next().unwrap_or_default();
    read(parse("file", file));
    let variables: Vec<(String, String)> = parts
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (format!("{ENVIRONMENT_PREFIX}{name}"), value.to_owned()))
        .collect();
    if !variables.is_empty() {
        read(load(None, variables));
    }
    if let Ok(url) = file.parse::<ListenerUrl>() {
        let bound = url.with_port(4000);
        let again: ListenerUrl = bound.parse().expect("what was written is read");
        assert_eq!(again.with_port(4000), bound);
    }
}

fn read(result: Result<Config, ConfigError>) {
    match result {
        Ok(config) => {
            if let Err(problems) = config.check() {
                assert!(problems.iter().all(|problem| !problem.is_empty()) && !problems.is_empty());
            }
            let written = toml::to_string(&config).expect("what was read can be written");
            let again = parse("again", &written).expect("what was written is read");
            assert_eq!(again, config);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
