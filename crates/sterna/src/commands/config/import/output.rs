//! The result as text: what differs from the defaults.

use std::path::Path;

use sterna_server::config::{ClientIds, Config, Listener, Rule};
use toml::{Table, Value};

/// Settings by which a configuration says that it is meant to be open, as Mosquitto's said.
type Word = (&'static str, fn(&mut Config));

const WORDS: [Word; 3] = [
    ("authentication.allow_anonymous_beyond_loopback", |config| {
        config.authentication.allow_anonymous_beyond_loopback = true;
    }),
    (
        "authentication.allow_plaintext_passwords_beyond_loopback",
        |config| {
            config
                .authentication
                .allow_plaintext_passwords_beyond_loopback = true;
        },
    ),
    ("authorization.allow_default_beyond_loopback", |config| {
        config.authorization.allow_default_beyond_loopback = true;
    }),
];

/// Sets what the broker asks for before it does to other hosts what Mosquitto did.
pub(super) fn open_as_told(config: &mut Config, notes: &mut Vec<String>) {
    for (name, set) in WORDS {
        let problems = config.check().err().unwrap_or_default();
        if problems.iter().any(|problem| problem.contains(name)) {
            set(config);
            notes.push(format!("{name} = true: other hosts reach it, as before"));
        }
    }
}

/// The configuration as TOML, without what is so by default.
pub(super) fn text(config: &Config, from: &Path) -> Result<String, String> {
    let mut table = table(config)?;
    remove_defaults(&mut table, &self::table(&Config::default())?);
    let entries = [
        ("listener", self::table(&Listener::default())?),
        ("rule", self::table(&Rule::default())?),
        ("client_ids", self::table(&ClientIds::default())?),
    ];
    for (name, default) in &entries {
        remove_from_entries(&mut table, name, default);
    }
    let text = toml::to_string(&table).map_err(|error| error.to_string())?;
    Ok(format!("# Translated from {}.\n\n{text}", from.display()))
}

fn table(value: &impl serde::Serialize) -> Result<Table, String> {
    Table::try_from(value).map_err(|error| error.to_string())
}

fn remove_defaults(table: &mut Table, defaults: &Table) {
    table.retain(|key, value| match (value, defaults.get(key)) {
        (Value::Table(own), Some(Value::Table(default))) => {
            remove_defaults(own, default);
            !own.is_empty()
        }
        (own, default) => default != Some(own),
    });
}

/// The same for the tables of a list, wherever it is.
fn remove_from_entries(table: &mut Table, name: &str, default: &Table) {
    for (key, value) in table.iter_mut() {
        match value {
            Value::Array(entries) if key == name => {
                for entry in entries.iter_mut().filter_map(Value::as_table_mut) {
                    remove_defaults(entry, default);
                }
            }
            Value::Table(members) => remove_from_entries(members, name, default),
            _ => {}
        }
    }
}
