//! The values of a setting in a configuration, and their places.

use std::fmt;
use std::path::{Path, PathBuf};

use super::load::{line_of, text_of};
use super::secrets::hide;
use super::{Config, Listener, Setting};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is the default.
    Default,
    /// An environment variable.
    Variable(String),
    /// The configuration file, and the line in it, counted from 1. `None` where the line is not known.
    File(PathBuf, Option<usize>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Variable(name) => f.write_str(name),
            Self::File(path, None) => path.display().fmt(f),
            Self::File(path, Some(line)) => write!(f, "{}:{line}", path.display()),
        }
    }
}

/// One value in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The value as TOML writes it; `None` where none is set.
    pub value: Option<String>,
    /// Where it comes from.
    pub place: Place,
}

impl Config {
    /// The value of a setting in this configuration, which was read from `file` and the names of `variables`. A
    /// setting of a section that may be repeated has one for each entry.
    #[must_use]
    pub fn in_force(
        &self,
        setting: &Setting,
        file: Option<&Path>,
        variables: &[String],
    ) -> Vec<InForce> {
        let text = text_of(file);
        let set: toml::Table = (text.as_deref())
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        // Each configuration is a table; else it would have no values.
        let mut table = toml::Value::try_from(self).unwrap_or_else(|_| toml::Table::new().into());
        hide(&mut table);
        let set = toml::Value::Table(set);
        let line = |name: &str, number| line_of(text.as_deref()?, name, number);
        let place = |is_set: bool, name: &str, number| match file {
            Some(file) if is_set => Place::File(file.to_owned(), line(name, number)),
            _ => Place::Default,
        };
        if !setting.repeats {
            let name = setting.name();
            let variable = setting.variable().filter(|name| variables.contains(name));
            let place = variable.map_or_else(
                || place(at(&set, &name).is_some(), &name, None),
                Place::Variable,
            );
            let value = at(&table, &name).map(ToString::to_string);
            let value = value.or_else(|| self.of_profile(setting));
            return vec![InForce { value, place }];
        }
        let entries = at(&table, &setting.section).and_then(toml::Value::as_array);
        let written = at(&set, &setting.section).and_then(toml::Value::as_array);
        let entries = entries.into_iter().flatten().enumerate();
        entries
            .map(|(index, entry)| {
                let own = written.and_then(|written| written.get(index));
                let is_set = own.is_some_and(|own| own.get(setting.key).is_some());
                InForce {
                    value: entry.get(setting.key).map(ToString::to_string),
                    place: place(is_set, &setting.section, Some(index + 1)),
                }
            })
            .collect()
    }

    /// A setting of the transport that is as the profile of `[quic]` has it.
    fn of_profile(&self, setting: &Setting) -> Option<String> {
        let is_of_quic = setting.section == "quic";
        let settings = is_of_quic.then(|| self.quic_settings(&Listener::default()))?;
        settings.value(setting.key)
    }
}

/// The value at a name whose parts are joined by dots.
fn at<'a>(table: &'a toml::Value, name: &str) -> Option<&'a toml::Value> {
    name.split('.').try_fold(table, |table, key| table.get(key))
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::super::reference::settings;

    #[test]
    fn each_value_has_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        let text = "shards = 2\n\n[mqtt]\nreceive_maximum = 5\n[quic]\nprofile = 'nb-iot'\n\n\
                    [[listener]]\nurl = 'mqtt://localhost:1'\n\n[[listener]]\nurl = 'mqtt://localhost:2'\n";
        std::fs::write(&file, text).unwrap();
        let variable = "STERNA__MQTT__RECEIVE_MAXIMUM".to_owned();
        let config = load(Some(&file), [(variable.clone(), "7".to_owned())]).unwrap();
        let said = |name: &str| -> Vec<String> {
            let setting = settings().into_iter().find(|it| it.name() == name).unwrap();
            let found = config.in_force(&setting, Some(&file), std::slice::from_ref(&variable));
            let found = found.into_iter().map(|it| {
                let place = it.place.to_string();
                let place = place.replace(&file.display().to_string(), "f");
                format!("{} ({place})", it.value.as_deref().unwrap_or("none"))
            });
            found.collect()
        };
        for (name, expected) in [
            ("shards", &["2 (f:1)"][..]),
            (
                "mqtt.receive_maximum",
                &["7 (STERNA__MQTT__RECEIVE_MAXIMUM)"],
            ),
            ("mqtt.maximum_qos", &["2 (default)"]),
            ("mqtt.server_reference", &["none (default)"]),
            ("quic.profile", &["\"nb-iot\" (f:6)"]),
            ("quic.initial_rtt_ms", &["1500 (default)"]),
            (
                "listener.url",
                &[
                    "\"mqtt://localhost:1\" (f:8)",
                    "\"mqtt://localhost:2\" (f:11)",
                ],
            ),
            ("listener.durability", &["none (default)", "none (default)"]),
            ("amqp.queue.name", &[]),
        ] {
            assert_eq!(said(name), expected, "{name}");
        }
    }
}
