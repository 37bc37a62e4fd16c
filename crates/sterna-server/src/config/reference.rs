//! The description of each setting. The one table is `docs/configuration.md`, which is part of the program. Names,
//! defaults and sentences are read from it, and types are asked of [`Config`] itself.

use std::fmt::{self, Write as _};

use super::load::{nearest, parse};
use super::{Config, Listener};

/// The page, by a link beside this file, so that a package of the crate has it too.
const PAGE: &str = include_str!("configuration.md");

/// Longest line of a template's comments.
const LINE_CHARACTERS: usize = 100;

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Section of the setting, for example `authentication.jwt`; empty at the top level.
    pub section: String,
    /// Whether the section may be repeated (`[[listener]]`).
    pub repeats: bool,
    /// Name of the setting in its section.
    pub key: String,
    /// The default, in words.
    pub default: String,
    /// Meaning of the setting.
    pub meaning: String,
}

/// Kind of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// A whole number from the first to the second.
    Integer(u64, u64),
    /// Any number.
    Number,
    /// Text.
    Text,
    /// A path of a file or folder.
    Path,
    /// One of these words.
    Choice(Vec<String>),
    /// A list.
    List(Box<Self>),
    /// A table with keys of its own.
    Table,
    /// A form of its own, in words.
    Other(String),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("true or false"),
            Self::Integer(least, most) => write!(f, "whole number from {least} to {most}"),
            Self::Number => f.write_str("number"),
            Self::Text => f.write_str("text"),
            Self::Path => f.write_str("path"),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::List(element) => write!(f, "list; each element: {element}"),
            Self::Table => f.write_str("table"),
            Self::Other(words) => f.write_str(words),
        }
    }
}

impl Setting {
    /// Section and key, joined by a dot.
    #[must_use]
    pub fn name(&self) -> String {
        if self.section.is_empty() {
            self.key.clone()
        } else {
            format!("{}.{}", self.section, self.key)
        }
    }

    /// The environment variable that overrides it; `None` for sections that may be repeated.
    #[must_use]
    pub fn variable(&self) -> Option<String> {
        let name = self.name().to_uppercase().replace('.', "__");
        (!self.repeats).then(|| format!("{}{name}", super::ENVIRONMENT_PREFIX))
    }

    /// The unit of its value, which is the last word of its name; of a rate, `THINGS_per_s`.
    #[must_use]
    pub fn unit(&self) -> Option<String> {
        if let Some(things) = self.key.strip_suffix("_per_s") {
            let (_, things) = things.rsplit_once('_').unwrap_or(("", things));
            return Some(format!("{things} per second"));
        }
        let (_, last) = self.key.rsplit_once('_')?;
        let unit = match last {
            "ms" => "milliseconds",
            "s" => "seconds",
            "bytes" => "bytes",
            "percent" => "percent",
            "packets" => "packets",
            "messages" => "messages",
            _ => return None,
        };
        Some(unit.to_owned())
    }

    /// Kind of the setting's value.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.kind_of(str::to_owned).unwrap_or(Kind::Table) {
            Kind::Integer(least, most) => {
                let bound = |value, words| self.bound(value, words);
                let least = bound(least, "is at least ").unwrap_or(least);
                let greatest = bound(most, "is at most ").or_else(|| bound(most, "is 0, 1 or "));
                Kind::Integer(least, greatest.unwrap_or(most))
            }
            other => other,
        }
    }

    /// The number behind these words in what [`Config::check`] says to a value, all else being default.
    fn bound(&self, value: u64, words: &str) -> Option<u64> {
        let text = format!("{}{} = {value}\n", self.header(), self.key);
        let problems = parse("", &text).ok()?.check().err()?;
        let said = format!("{} {words}", self.name());
        problems.iter().find_map(|problem| {
            let rest = problem.strip_prefix(&said)?;
            let number = rest.split_once(" and ").map_or(rest, |(number, _)| number);
            number.parse().ok()
        })
    }

    /// The broker's refusal of a value; `None` if it may be set.
    fn refusal(&self, value: &str) -> Option<String> {
        let text = format!("{}{} = {value}\n", self.header(), self.key);
        // In the parser's own words, which name the types.
        let refused = toml::from_str::<Config>(&text).err()?;
        Some(refused.to_string())
    }

    /// Asks [`Config`] by values of the wrong type, put into a list or not by `form`. `None` where it says
    /// nothing that is understood.
    fn kind_of(&self, form: fn(&str) -> String) -> Option<Kind> {
        let Some(error) = self.refusal(&form("\"?\"")) else {
            let of_number = self.refusal(&form("0")).unwrap_or_default();
            let is_path = of_number.contains("path string");
            return Some(if is_path { Kind::Path } else { Kind::Text });
        };
        if let Some((_, words)) = error.split_once("choices are ") {
            let words = words.trim().split(", ").map(str::to_owned);
            return Some(Kind::Choice(words.collect()));
        }
        let Some((_, expected)) = error.split_once("expected ") else {
            // A text of a form of its own is refused for its letters.
            let of_number = self.refusal(&form("0"))?;
            return of_number
                .contains("expected a string")
                .then_some(Kind::Text);
        };
        let expected = expected.lines().next().unwrap_or_default().trim();
        if error.contains("unknown variant") {
            let words = expected.split('`').skip(1).step_by(2);
            return Some(Kind::Choice(words.map(str::to_owned).collect()));
        }
        Some(match expected {
            "a boolean" => Kind::Boolean,
            "u8" => Kind::Integer(0, u8::MAX.into()),
            "u16" => Kind::Integer(0, u16::MAX.into()),
            "u32" => Kind::Integer(0, u32::MAX.into()),
            // TOML has no greater numbers.
            "u64" | "usize" => Kind::Integer(0, i64::MAX as u64),
            "f32" | "f64" => Kind::Number,
            "a sequence" if form("").is_empty() => {
                let element = self.kind_of(|value| format!("[{value}]"));
                Kind::List(Box::new(element.unwrap_or(Kind::Table)))
            }
            words if words.starts_with("struct ") => Kind::Table,
            words => Kind::Other(words.to_owned()),
        })
    }

    pub(super) fn header(&self) -> String {
        match (self.section.as_str(), self.repeats) {
            ("", _) => String::new(),
            (section, true) => format!("[[{section}]]\n"),
            (section, false) => format!("[{section}]\n"),
        }
    }

    /// The default as TOML; `None` where there is none, or it depends.
    #[must_use]
    pub fn default_value(&self) -> Option<String> {
        if self.repeats {
            return None;
        }
        if self.section == "quic" {
            // Of a profile's settings the configuration has the changed ones only.
            let settings = Config::default().quic_settings(&Listener::default());
            let values = settings.values().into_iter();
            let mut own = values.filter(|(name, _)| *name == self.key);
            if let Some((_, value)) = own.next() {
                return Some(value);
            }
        }
        let table = toml::Table::try_from(Config::default()).ok()?;
        let name = self.name();
        let mut parts = name.split('.');
        let first = table.get(parts.next()?)?;
        let value = parts.try_fold(first, |value, part| value.get(part))?;
        Some(value.to_string())
    }
}

/// All settings, in the order of the page.
#[must_use]
pub fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    // The sections that a heading names, and the section of a table of settings.
    let mut named: Vec<(&str, bool)> = Vec::new();
    let mut table: Option<Vec<(String, bool)>> = None;
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            named = sections_of(heading);
        }
        let Some(row) = line.strip_prefix('|') else {
            table = None;
            continue;
        };
        let mut cells = row
            .trim_end()
            .trim_end_matches('|')
            .splitn(3, '|')
            .map(str::trim);
        let (Some(keys), Some(default)) = (cells.next(), cells.next()) else {
            continue;
        };
        if keys == "key" {
            let own = named.iter().map(|(name, list)| ((*name).to_owned(), *list));
            table = Some(own.collect());
        } else if let Some((_, member)) =
            (keys.strip_prefix("key of")).and_then(|it| it.rsplit_once(' '))
        {
            // A list of tables within the section.
            let member = member.trim_matches('`');
            let lists = named.iter().map(|(name, _)| format!("{name}.{member}"));
            table = Some(lists.map(|name| (name, true)).collect());
        } else if let Some(sections) = &table {
            let meaning = cells.next().unwrap_or_default();
            for key in keys.split('`').skip(1).step_by(2) {
                let (section, key) = key.rsplit_once('.').unwrap_or(("", key));
                let of_key = sections
                    .iter()
                    .find(|(name, _)| section.is_empty() || name == section);
                if let Some((section, repeats)) = of_key {
                    settings.push(Setting {
                        section: section.clone(),
                        repeats: *repeats,
                        key: key.to_owned(),
                        default: plain(default).replace('`', ""),
                        meaning: plain(meaning),
                    });
                }
            }
        }
    }
    // A setting with keys of its own is a section.
    let sections: Vec<String> = settings.iter().map(|it| it.section.clone()).collect();
    settings.retain(|it| !sections.contains(&it.name()));
    settings
}

/// The sections that a heading of the page names.
fn sections_of(heading: &str) -> Vec<(&str, bool)> {
    if heading == "Top level" {
        return vec![("", false)];
    }
    let names = heading.split('`').skip(1).step_by(2);
    let section = |name| {
        let name = str::strip_prefix(name, "[")?.strip_suffix(']')?;
        let list = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        Some((list.unwrap_or(name), list.is_some()))
    };
    names.filter_map(section).collect()
}

/// Markdown without its links.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        plain.push_str(before);
        match after.split_once("](") {
            Some((words, target)) if !words.contains(['[', '`']) || words.starts_with('`') => {
                plain.push_str(words);
                rest = target.split_once(')').map_or("", |(_, rest)| rest);
            }
            _ => {
                plain.push('[');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain
}

/// The settings that a name means: one by its full name, or those of a section. A key alone means those of
/// any section that have it.
///
/// # Errors
/// The name that it most likely means, if one is near.
pub fn find(name: &str) -> Result<Vec<Setting>, Option<String>> {
    let all = settings();
    let matches = |is_meant: &dyn Fn(&Setting) -> bool| -> Vec<Setting> {
        all.iter().filter(|it| is_meant(it)).cloned().collect()
    };
    let ways: [&dyn Fn(&Setting) -> bool; 3] =
        [&|it| it.name() == name, &|it| it.section == name, &|it| {
            it.key == name
        }];
    let found = ways
        .into_iter()
        .map(matches)
        .find(|found| !found.is_empty());
    found.ok_or_else(|| {
        let names = (all.iter()).flat_map(|it| [it.name(), it.key.clone(), it.section.clone()]);
        let names: Vec<String> = names.collect();
        nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
    })
}

/// A configuration file with every setting as a comment. It has the meaning, and the default as a
/// line. Remove the line's first character to put it in force.
#[must_use]
pub fn template() -> String {
    let mut text = String::from(
        "# The configuration of a Sterna broker: every setting, with its default. A setting is changed by\n\
         # removing the # before its key. `sterna config check FILE` says whether the file would be\n\
         # accepted, and `sterna config explain KEY` what a value may be.\n",
    );
    let mut section = String::new();
    for setting in settings() {
        // One fault of formatting would be one of memory.
        let _ = add_to_template(&mut text, &setting, &mut section);
    }
    text
}

fn add_to_template(text: &mut String, setting: &Setting, section: &mut String) -> fmt::Result {
    if *section != setting.section {
        section.clone_from(&setting.section);
        // An entry of a list is in force by its header, so that the header is a comment, too.
        let mark = if setting.repeats { "#" } else { "" };
        write!(text, "\n{mark}{}", setting.header())?;
    }
    writeln!(text)?;
    let mut meaning = setting.meaning.clone();
    let value = setting.default_value();
    if value.is_none() && !setting.default.is_empty() {
        write!(meaning, ". Default: {}", setting.default)?;
    }
    let mut line = String::from("#");
    for word in meaning.split_whitespace() {
        if line.len() + word.len() >= LINE_CHARACTERS {
            writeln!(text, "{line}")?;
            line = String::from("#");
        }
        write!(line, " {word}")?;
    }
    writeln!(text, "{line}")?;
    let value = value.map_or_else(String::new, |value| format!(" {value}"));
    writeln!(text, "#{} ={value}", setting.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_the_page_exists_with_a_meaning() {
        let settings = settings();
        assert!(settings.len() > 250, "{}", settings.len());
        for setting in &settings {
            let name = setting.name();
            assert!(!setting.meaning.is_empty(), "{name} means nothing");
            // The type that it may have is never that of every value.
            let said = [setting.refusal("{ x = 1 }"), setting.refusal("1979-05-27")];
            for refusal in said.iter().flatten() {
                let is_unknown = refusal.contains(&format!("unknown field `{}`", setting.key));
                assert!(!is_unknown, "{refusal}");
            }
            assert!(said.iter().any(Option::is_some), "{name} takes anything");
        }
    }

    #[test]
    fn the_page_has_every_setting_with_a_default() {
        let known: Vec<String> = settings().iter().map(Setting::name).collect();
        let table = toml::Table::try_from(Config::default()).unwrap();
        let mut values = vec![(String::new(), toml::Value::Table(table))];
        while let Some((name, value)) = values.pop() {
            if let toml::Value::Table(members) = value {
                let dot = if name.is_empty() { "" } else { "." };
                for (key, value) in members {
                    values.push((format!("{name}{dot}{key}"), value));
                }
                continue;
            }
            let is_section = known.iter().any(|it| it.starts_with(&format!("{name}.")));
            assert!(is_section || known.contains(&name), "{name}");
        }
    }

    #[test]
    fn types_are_those_of_the_configuration() {
        let kind = |name: &str| find(name).unwrap()[0].kind();
        assert_eq!(kind("shards"), Kind::Integer(0, 256));
        assert_eq!(kind("mqtt.datagrams"), Kind::Boolean);
        assert_eq!(kind("mqtt.server_reference"), Kind::Text);
        assert_eq!(kind("mqtt.server_keep_alive_s"), Kind::Integer(0, 65_535));
        assert_eq!(kind("tls.certificate"), Kind::Path);
        assert_eq!(kind("quic.time_threshold"), Kind::Number);
        assert_eq!(
            kind("quic.initial_rtt_ms"),
            Kind::Integer(0, u32::MAX.into())
        );
        assert_eq!(
            kind("broker.maximum_sessions"),
            Kind::Integer(0, i64::MAX as u64)
        );
        let words =
            |words: &[&str]| Kind::Choice(words.iter().map(|it| (*it).to_owned()).collect());
        assert_eq!(
            kind("store.durability"),
            words(&["memory", "interval", "commit"])
        );
        assert_eq!(kind("quic.cipher"), words(&["auto", "aes", "chacha20"]));
        assert_eq!(kind("log.format"), words(&["text", "json"]));
        assert_eq!(
            kind("authorization.rule.effect"),
            words(&["allow", "deny", "ask"])
        );
        let list = |kind| Kind::List(Box::new(kind));
        assert_eq!(kind("authorization.admins"), list(Kind::Text));
        assert_eq!(kind("authorization.rule.addresses"), list(Kind::Text));
        assert_eq!(kind("tls.client_revocation_lists"), list(Kind::Path));
        assert_eq!(find("authorization.rule").unwrap().len(), 14);
        // No other setting is left without a type.
        let tables = settings().into_iter().filter(|it| it.kind() == Kind::Table);
        let tables: Vec<String> = tables.map(|it| it.name()).collect();
        assert_eq!(tables, ["listener.proxy_protocol"]);
    }

    /// Each section, asked for a key that it has not, lists those that it has.
    #[test]
    fn every_key_of_every_section_and_list_is_explained() {
        let all = settings();
        let known: Vec<String> = all.iter().map(Setting::name).collect();
        for section in &all {
            let text = format!("{}no_such_key = 0\n", section.header());
            let refusal = parse("", &text).unwrap_err().to_string();
            let (_, expected) = refusal.split_once("expected").unwrap_or_default();
            let expected = expected.lines().next().unwrap_or_default();
            for key in expected.split('`').skip(1).step_by(2) {
                let own = Setting {
                    key: key.to_owned(),
                    ..section.clone()
                };
                let name = own.name();
                let is_section = all
                    .iter()
                    .any(|it| it.section == name || it.section.starts_with(&format!("{name}.")));
                assert!(is_section || known.contains(&name), "{name}");
            }
        }
        for list in [
            "listener",
            "tls.additional",
            "authentication.client_ids",
            "authorization.group",
            "authorization.limit",
            "authorization.rule",
            "amqp.queue",
            "cluster.remote_regions",
        ] {
            let members = find(list).unwrap();
            assert!(
                members.iter().all(|it| it.repeats && it.section == list),
                "{list}"
            );
        }
        let untold = Kind::List(Box::new(Kind::Table));
        let untold: Vec<String> = (all.iter().filter(|it| it.kind() == untold))
            .map(Setting::name)
            .collect();
        assert_eq!(
            untold, [""; 0],
            "lists of tables whose keys the page leaves out"
        );
    }

    #[test]
    fn rates_have_their_own_units() {
        let rates: Vec<_> = settings()
            .into_iter()
            .filter(|it| it.key.ends_with("_per_s"))
            .collect();
        let units: Vec<_> = rates
            .iter()
            .map(|it| (it.key.as_str(), it.unit().unwrap()))
            .collect();
        assert_eq!(
            units,
            [
                ("messages_per_s", "messages per second".to_owned()),
                ("bytes_per_s", "bytes per second".to_owned()),
                ("maximum_trace_events_per_s", "events per second".to_owned()),
                ("rewrite_bytes_per_s", "bytes per second".to_owned()),
            ]
        );
    }

    #[test]
    fn settings_are_found_by_name_section_and_key() {
        let names =
            |name: &str| -> Vec<String> { find(name).unwrap().iter().map(Setting::name).collect() };
        assert_eq!(names("mqtt.receive_maximum"), ["mqtt.receive_maximum"]);
        assert_eq!(names("receive_maximum"), ["mqtt.receive_maximum"]);
        assert_eq!(names("sys"), ["sys.interval_s"]);
        assert_eq!(
            names("maximum_held_bytes"),
            ["mqtt.maximum_held_bytes", "amqp.maximum_held_bytes"]
        );
        assert_eq!(
            find("mqtt.recieve_maximum").unwrap_err().as_deref(),
            Some("mqtt.receive_maximum")
        );
        assert_eq!(find("mqtt.bogus").unwrap_err(), None);
    }

    #[test]
    fn meanings_are_without_links() {
        let all = settings();
        let links: Vec<_> = all.iter().filter(|it| it.meaning.contains("](")).collect();
        assert!(links.is_empty(), "{links:?}");
        assert_eq!(plain("[a](b.md#c), `[[x]]` [`y`](z)"), "a, `[[x]]` `y`");
    }

    /// As it is, the template changes nothing; with each of its values in force, it changes nothing either.
    #[test]
    fn the_template_is_the_default_configuration() {
        let template = template();
        assert_eq!(parse("x", &template).unwrap(), Config::default());
        let mut repeats = false;
        let mut in_force = String::new();
        for line in template.lines() {
            repeats = match line.strip_prefix('#').unwrap_or(line) {
                header if header.starts_with("[[") => true,
                header if header.starts_with('[') => false,
                _ => repeats,
            };
            let value = line
                .strip_prefix('#')
                .filter(|line| !repeats && !line.starts_with([' ', '[']) && !line.ends_with(" ="));
            in_force.push_str(value.unwrap_or(line));
            in_force.push('\n');
        }
        let mut config = parse("x", &in_force).unwrap();
        config.check().unwrap();
        let listener = Listener::default();
        let wanted = Config::default();
        assert_eq!(
            config.quic_settings(&listener),
            wanted.quic_settings(&listener)
        );
        config.quic = wanted.quic.clone();
        assert_eq!(config, wanted);
    }
}
