//! The table of settings as a page, as an explanation of single ones, and as a file to begin with.

use std::fmt::{self, Write as _};

use super::kind::{Kind, MOST};
use super::load::nearest;
use super::table::{Nested as _, Section, Setting};
use super::{Config, ENVIRONMENT_PREFIX};

/// Longest line of a template's comments.
const LINE_CHARACTERS: usize = 100;

impl Setting {
    /// Section and key, joined by a dot.
    #[must_use]
    pub fn name(&self) -> String {
        super::table::join(&self.section, self.key)
    }

    /// The environment variable that overrides it; `None` for sections that may be repeated.
    #[must_use]
    pub fn variable(&self) -> Option<String> {
        (!self.repeats).then(|| variable_of(&self.name()))
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
            _ if self.key.contains("_bytes_") => "bytes",
            "ms" => "milliseconds",
            "s" => "seconds",
            "days" => "days",
            "bytes" => "bytes",
            "percent" => "percent",
            "packets" => "packets",
            "messages" => "messages",
            _ => return None,
        };
        Some(unit.to_owned())
    }

    /// The header of its section as TOML writes it, with the end of its line; empty at the top level.
    pub(super) fn header(&self) -> String {
        header(&self.section, self.repeats)
    }

    /// Meaning of the setting, without links.
    #[must_use]
    pub fn meaning(&self) -> String {
        plain(&self.text)
    }

    /// The default: a value of TOML, with its size where it is a large one, or words.
    #[must_use]
    pub fn default_in_words(&self) -> String {
        let value = self.value_of_default();
        match (value, self.said) {
            (Some(value), _) => match size(self.key, value) {
                Some(size) => format!("`{value}` ({size})"),
                None => format!("`{value}`"),
            },
            (None, Some(said)) => said.to_owned(),
            (None, None) => "none".to_owned(),
        }
    }

    /// The default as TOML writes it, where it is something.
    fn value_of_default(&self) -> Option<&str> {
        let value = self.default.as_deref();
        value.filter(|value| !["[]", "\"\""].contains(value))
    }

    /// The permitted numbers in words; `None` where it takes others, too.
    pub(super) fn range(&self) -> Option<String> {
        match self.kind {
            Kind::Integer(least, MOST, None) => Some(format!("a whole number from {least} on")),
            Kind::Integer(least, most, None) => {
                Some(format!("a whole number from {least} to {most}"))
            }
            _ => None,
        }
    }

    /// The permitted values, with their unit, in Markdown.
    fn values(&self) -> String {
        let words = match &self.kind {
            Kind::Integer(least, most, also) => {
                let also = also.map_or_else(String::new, |also| format!("{also}, or "));
                if *most == MOST || *most == u64::from(u32::MAX) {
                    format!("{also}{least} or more")
                } else {
                    format!("{also}{least} to {most}")
                }
            }
            Kind::Number(Some((least, most))) => format!("{least} to {most}"),
            Kind::Choice(words) => quoted(words),
            Kind::List(element) => match &**element {
                Kind::Choice(words) => format!("list of {}", quoted(words)),
                Kind::Integer(..) if self.unit().is_some() => "list of".to_owned(),
                Kind::Integer(..) => "list of numbers".to_owned(),
                element => format!("list of {element}s"),
            },
            Kind::Table(keys) => format!("table with {}", quoted(keys)),
            Kind::Other(_) => "share, size or bytes".to_owned(),
            kind => kind.to_string(),
        };
        let is_number = matches!(self.kind, Kind::Integer(..) | Kind::List(_));
        match self.unit().filter(|_| is_number) {
            Some(unit) => format!("{words} {unit}"),
            None => words,
        }
    }
}

fn quoted(words: &[impl AsRef<str>]) -> String {
    let words: Vec<String> = words
        .iter()
        .map(|it| format!("`{}`", it.as_ref()))
        .collect();
    words.join(", ")
}

/// The environment variable of a setting.
pub(super) fn variable_of(name: &str) -> String {
    let name = name.to_uppercase().replace('.', "__");
    format!("{ENVIRONMENT_PREFIX}{name}")
}

fn header(section: &str, repeats: bool) -> String {
    match (section, repeats) {
        ("", _) => String::new(),
        (section, true) => format!("[[{section}]]\n"),
        (section, false) => format!("[{section}]\n"),
    }
}

/// A large number in a larger unit, if that has no fraction.
fn size(key: &str, value: &str) -> Option<String> {
    let number: u64 = value.parse().ok()?;
    let units: &[(u64, &str)] = match key.rsplit_once('_')?.1 {
        last if last == "bytes" || (key.contains("_bytes_") && last != "s") => {
            &[(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        }
        "ms" => &[(3_600_000, "h"), (60_000, "min"), (1_000, "s")],
        "s" if !key.ends_with("_per_s") => &[(86_400, "d"), (3_600, "h"), (60, "min")],
        "s" if key.contains("bytes") => &[(1 << 20, "MiB/s"), (1 << 10, "KiB/s")],
        _ => return None,
    };
    let (unit, name) = units
        .iter()
        .find(|(unit, _)| number >= *unit && number.is_multiple_of(*unit))?;
    Some(format!("{} {name}", number / unit))
}

/// All sections with their settings, in the order of the page.
#[must_use]
pub fn sections() -> Vec<Section> {
    let mut table = Vec::new();
    Config::rows("", false, &mut table);
    table
}

/// All settings, in the order of the page.
#[must_use]
pub fn settings() -> Vec<Setting> {
    (sections().into_iter())
        .flat_map(|section| section.settings)
        .collect()
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

/// The settings that a name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Those of this very name: a setting, or a key of several sections.
    Named(Vec<Setting>),
    /// Those of a section, or whose names begin so.
    Below(Vec<Setting>),
}

/// The settings that a name means: one by its full name, those of any section with a key of this name, those of a
/// section, or those whose names begin so. An empty name means all.
///
/// # Errors
/// The name that it most likely means, if one is near.
pub fn find(name: &str) -> Result<Found, Option<String>> {
    let all = settings();
    let matches = |is_meant: &dyn Fn(&Setting) -> bool| -> Option<Vec<Setting>> {
        let found: Vec<Setting> = all.iter().filter(|it| is_meant(it)).cloned().collect();
        (!found.is_empty()).then_some(found)
    };
    let exact = || matches(&|it| it.name() == name).map(Found::Named);
    let section = || matches(&|it| it.section == name && !name.is_empty()).map(Found::Below);
    let key = || matches(&|it| it.key == name).map(Found::Named);
    let prefix = || matches(&|it| it.name().starts_with(name)).map(Found::Below);
    let found = exact().or_else(section).or_else(key).or_else(prefix);
    found.ok_or_else(|| {
        let names = (all.iter()).flat_map(|it| [it.name(), it.key.to_owned(), it.section.clone()]);
        let names: Vec<String> = names.collect();
        nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
    })
}

/// The page `docs/configuration.md`.
#[must_use]
pub fn page() -> String {
    let mut text = String::from(
        "# Settings\n\n\
         <!-- Written by `cargo run -p sterna -- config reference > docs/configuration.md`. Its source is the table of\n\
         settings in `crates/sterna-server/src/config/`. -->\n\n\
         Every setting of `sterna serve`, with its permitted values and its default. This page is generated from the\n\
         program's own table. `sterna config explain NAME` prints a row of it, and the value in force.\n\n\
         - [Configuring](configuring.md): the file, variables and reloads; certificates, users, rules, limits.\n\
         - [Settings to touch](settings-to-touch.md): the ten that most brokers change, with examples.\n\n\
         The last word of a name is the unit. The column `change` says when a new value is in force. `reload`: after\n\
         `sterna admin reload` or SIGHUP. `restart`: after a restart, and a reload says that it waits. A section in\n\
         double brackets may be repeated.\n\n",
    );
    let sections = sections();
    let links: Vec<String> = (sections.iter())
        .filter(|section| !section.name.is_empty())
        .map(|section| {
            let anchor: String = section.name.chars().filter(|it| *it != '.').collect();
            format!("[`{}`](#{anchor})", section.name)
        })
        .collect();
    let _ = writeln!(text, "Contents: {}.", links.join(", "));
    for section in &sections {
        // A text takes everything.
        let _ = add_to_page(&mut text, section);
    }
    text
}

fn add_to_page(text: &mut String, section: &Section) -> fmt::Result {
    let header = header(&section.name, section.repeats);
    match header.trim_end() {
        "" => writeln!(text, "\n## Top level\n")?,
        header => writeln!(text, "\n## `{header}`\n\n{}\n", section.intro)?,
    }
    writeln!(text, "| setting | values | default | change | meaning |")?;
    writeln!(text, "|---|---|---|---|---|")?;
    for setting in &section.settings {
        writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            setting.key,
            setting.values(),
            setting.default_in_words(),
            setting.change,
            setting.text
        )?;
    }
    Ok(())
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
    for section in sections() {
        let header = header(&section.name, section.repeats);
        if !header.is_empty() {
            // An entry of a list is in force by its header, so that the header is a comment, too.
            let mark = if section.repeats { "#" } else { "" };
            let _ = write!(text, "\n{mark}{header}");
        }
        for setting in &section.settings {
            // A text takes everything.
            let _ = add_to_template(&mut text, setting);
        }
    }
    text
}

fn add_to_template(text: &mut String, setting: &Setting) -> fmt::Result {
    writeln!(text)?;
    let mut meaning = setting.meaning();
    let default = if setting.repeats {
        setting.value_of_default()
    } else {
        setting.default.as_deref()
    };
    if let (None, Some(said)) = (setting.value_of_default(), setting.said) {
        write!(meaning, " Default: {said}.")?;
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
    let value = default.map_or_else(String::new, |value| format!(" {value}"));
    writeln!(text, "#{} ={value}", setting.key)
}

#[cfg(test)]
mod tests {
    use super::super::{Listener, parse};
    use super::*;

    const PAGE: &str = "../../docs/configuration.md";

    #[test]
    fn the_page_is_the_table() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
        let written = std::fs::read_to_string(file).unwrap();
        let page = page();
        let differs = written
            .lines()
            .zip(page.lines())
            .find(|(it, should)| it != should);
        assert!(
            written == page,
            "docs/configuration.md is not the table of settings: write it by `cargo run -p sterna -- config \
             reference > docs/configuration.md`. The first difference: {differs:#?}"
        );
    }

    /// The rules of texts: sentences, none too long, no mark of a table, links that plain text loses.
    #[test]
    fn texts_are_short_sentences() {
        let mut wrong = Vec::new();
        for section in sections() {
            let intro = (section.name.clone(), section.intro.clone());
            let texts = (section.settings.iter()).map(|it| (it.name(), it.text.clone()));
            for (name, text) in texts.chain([intro]) {
                let is_sound = text.ends_with('.') && !text.contains('|');
                if !is_sound || plain(&text).contains("](") {
                    wrong.push(format!("{name}: {text}"));
                }
                let code = |(at, part)| if at % 2 == 0 { part } else { "code" };
                let words: String = text.split('`').enumerate().map(code).collect();
                for sentence in plain(&words).replace('\n', " ").split(". ") {
                    let count = sentence.split_whitespace().count();
                    if count > 25 {
                        wrong.push(format!("{name}: {count} words: {sentence}"));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// A structure that is no section has settings without a row.
    #[test]
    fn every_table_is_a_section_but_one() {
        let table = |kind: &Kind| match kind {
            Kind::Table(_) => true,
            Kind::List(element) => matches!(**element, Kind::Table(_)),
            _ => false,
        };
        let tables = settings().into_iter().filter(|it| table(&it.kind));
        let tables: Vec<(String, Kind)> = tables.map(|it| (it.name(), it.kind)).collect();
        let one = ("listener.proxy_protocol".to_owned(), Kind::Table(&["from"]));
        assert_eq!(tables, [one]);
    }

    /// The rows are read by the file's own names and types, and the defaults are those that hold.
    #[test]
    fn every_row_is_a_setting_of_the_file() {
        let all = settings();
        assert!(all.len() > 350, "{}", all.len());
        let config = toml::Table::try_from(Config::default()).unwrap();
        for setting in &all {
            let name = setting.name();
            let text = format!("{}{} = {{ x = 1 }}\n", setting.header(), setting.key);
            let why = parse("x", &text).unwrap_err().to_string();
            let is_unknown = why.contains(&format!("unknown field `{}`", setting.key));
            assert!(!is_unknown, "{why}");
            if let Some(default) = &setting.default
                && !setting.repeats
            {
                let text = format!("{}{} = {default}\n", setting.header(), setting.key);
                let read = parse("x", &text).unwrap_or_else(|why| panic!("{name}: {why}"));
                read.check().unwrap();
                let mut parts = name.split('.');
                let first = config.get(parts.next().unwrap());
                let value = parts.try_fold(first.unwrap(), |value, part| value.get(part));
                if let Some(value) = value {
                    assert_eq!(value.to_string(), *default, "{name}");
                    assert_eq!(read, Config::default(), "{name}");
                } else {
                    assert_eq!(setting.section, "quic", "{name}");
                }
            }
        }
    }

    /// Each range is the one that the check holds: its ends are taken, their neighbours are not.
    #[test]
    fn ranges_are_those_of_the_check() {
        let mut tried = 0;
        for setting in settings() {
            let Kind::Integer(least, most, also) = setting.kind else {
                continue;
            };
            let name = setting.name();
            let is_refused = |value: u64| {
                let text = format!("{}{} = {value}\n", setting.header(), setting.key);
                let Ok(config) = parse("x", &text) else {
                    return true;
                };
                let Err(problems) = config.check() else {
                    return false;
                };
                // A bound by another setting has other words.
                let is_range = |words: &str| {
                    let words = words.split(' ').map(|word| word.trim_end_matches(','));
                    let known = ["at", "least", "most", "from", "to", "or", "not"];
                    words
                        .into_iter()
                        .all(|it| known.contains(&it) || it.parse::<u64>().is_ok())
                };
                let entry = format!("{} 1: {}", setting.section, setting.key);
                problems.iter().any(|problem| {
                    let rest = [&name, &entry]
                        .into_iter()
                        .find_map(|it| problem.strip_prefix(it.as_str()));
                    let said = rest.and_then(|it| {
                        it.strip_prefix(" is ")
                            .or_else(|| it.strip_prefix(" must be "))
                    });
                    said.is_some_and(is_range)
                })
            };
            for within in [least, most] {
                assert!(!is_refused(within), "{name} = {within}");
            }
            for beyond in [least.checked_sub(1), most.checked_add(1)]
                .into_iter()
                .flatten()
            {
                if Some(beyond) != also && beyond <= MOST {
                    assert!(is_refused(beyond), "{name} = {beyond}");
                    tried += 1;
                }
            }
            assert!(also.is_none_or(|also| !is_refused(also)), "{name}");
        }
        assert!(tried > 150, "{tried}");
    }

    /// The ten that the page shows are settings, each with an example that sets it.
    #[test]
    fn settings_to_touch_are_settings_with_examples() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(file.join("../../docs/settings-to-touch.md")).unwrap();
        let parts: Vec<&str> = page.split("\n## ").skip(1).collect();
        assert_eq!(parts.len(), 10);
        for part in parts {
            let name = part.split('`').nth(1).unwrap();
            assert!(find(name).is_ok(), "{name}");
            let (_, rest) = part.split_once("```toml\n").unwrap();
            let (example, _) = rest.split_once("```").unwrap();
            let config = parse(name, example).unwrap();
            assert_ne!(config, Config::default(), "{name}");
            let (_, key) = name.rsplit_once('.').unwrap_or(("", name));
            assert!(example.contains(key), "{name}: {example}");
        }
    }

    #[test]
    fn rates_have_their_own_units() {
        let rates: Vec<_> = settings()
            .into_iter()
            .filter(|it| it.key.ends_with("_per_s"))
            .collect();
        let units: Vec<_> = rates
            .iter()
            .map(|it| (it.key, it.unit().unwrap()))
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
    fn settings_are_found_by_name_section_key_and_beginning() {
        let named = |name: &str| -> Vec<String> {
            let Ok(Found::Named(found)) = find(name) else {
                panic!("{name}");
            };
            found.iter().map(Setting::name).collect()
        };
        let below = |name: &str| -> Vec<String> {
            let Ok(Found::Below(found)) = find(name) else {
                panic!("{name}");
            };
            found.iter().map(Setting::name).collect()
        };
        assert_eq!(named("mqtt.receive_maximum"), ["mqtt.receive_maximum"]);
        assert_eq!(named("receive_maximum"), ["mqtt.receive_maximum"]);
        assert_eq!(named("quic.idle_timeout_ms"), ["quic.idle_timeout_ms"]);
        assert_eq!(
            named("maximum_held_bytes"),
            ["mqtt.maximum_held_bytes", "amqp.maximum_held_bytes"]
        );
        assert_eq!(below("sys"), ["sys.interval_s"]);
        assert_eq!(
            below("bans.flapping"),
            [
                "bans.flapping_logins",
                "bans.flapping_window_s",
                "bans.flapping_ban_s"
            ]
        );
        assert_eq!(below("authorization.rule").len(), 15);
        assert_eq!(below("").len(), settings().len());
        assert_eq!(
            find("mqtt.recieve_maximum").unwrap_err().as_deref(),
            Some("mqtt.receive_maximum")
        );
        assert_eq!(find("mqtt.bogus").unwrap_err(), None);
    }

    #[test]
    fn defaults_are_told_in_values_sizes_and_words() {
        let default = |name: &str| {
            let Ok(Found::Named(found)) = find(name) else {
                panic!("{name}");
            };
            (found[0].values(), found[0].default_in_words())
        };
        for (name, values, words) in [
            ("shards", "0 to 256", "`1`"),
            (
                "store.segment_bytes",
                "1048576 to 1073741824 bytes",
                "`67108864` (64 MiB)",
            ),
            (
                "mqtt.legacy_session_expiry_s",
                "0 or more seconds",
                "`604800` (7 d)",
            ),
            (
                "quic.idle_timeout_ms",
                "0 to 31622400000 milliseconds",
                "`120000` (2 min)",
            ),
            ("quic.time_threshold", "1.0 to 10.0", "`1.125`"),
            ("log.format", "`text`, `json`", "`\"text\"`"),
            ("tls.client_ca", "path", "none"),
            ("tls.expiry_warning_days", "list of days", "`[30, 7, 1]`"),
            (
                "listener.durability",
                "`memory`, `interval`, `commit`",
                "as `store.durability` says",
            ),
            ("authorization.rule.topics", "list of texts", "required"),
            ("authorization.limit.burst_s", "1 or more seconds", "`1`"),
        ] {
            assert_eq!(
                default(name),
                (values.to_owned(), words.to_owned()),
                "{name}"
            );
        }
    }

    #[test]
    fn meanings_are_without_links() {
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
