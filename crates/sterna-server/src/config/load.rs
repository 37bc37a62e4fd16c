//! Reading the configuration: file, then environment, then flags.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use super::secrets::without_secrets;
use super::{Config, reference};

/// Environment variables that start with this override the file: `STERNA__MQTT__RECEIVE_MAXIMUM=20`
/// sets `mqtt.receive_maximum`. The value is read as TOML, and as a plain string where it is none.
pub const ENVIRONMENT_PREFIX: &str = "STERNA__";

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The file cannot be read.
    Unreadable(PathBuf, String),
    /// The text is not valid: where it came from, and what is wrong with line and column.
    Invalid(String, String),
    /// The values do not go together.
    Problems(Vec<String>),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(path, why) => write!(f, "cannot read {}: {why}", path.display()),
            // Both may show what the file has.
            Self::Invalid(source, why) => {
                write!(f, "{source}: {}", without_secrets(why.trim_end()))
            }
            Self::Problems(problems) => f.write_str(&without_secrets(&problems.join("\n"))),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Reads the configuration from an optional file and the given environment.
///
/// # Errors
/// [`ConfigError`] has place and fault; for unknown keys also the nearest known one.
/// [`Config::check`] checks values against each other, after flags were applied.
pub fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    let (source, text) = match file {
        None => ("the built-in configuration".to_owned(), String::new()),
        Some(path) => (
            path.display().to_string(),
            std::fs::read_to_string(path)
                .map_err(|e| ConfigError::Unreadable(path.to_owned(), e.to_string()))?,
        ),
    };
    // The file alone first: its errors then carry the line and column of the file.
    let config = parse(&source, &text)?;
    let mut overrides: Vec<(String, String)> = environment
        .into_iter()
        .filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX))
        .collect();
    if overrides.is_empty() {
        return Ok(config);
    }
    overrides.sort();
    let mut table: toml::Table = text.parse().unwrap_or_default();
    for (name, value) in &overrides {
        set(&mut table, &name[ENVIRONMENT_PREFIX.len()..], value)
            .map_err(|why| ConfigError::Invalid(name.clone(), why))?;
        // One by one, so that an error names its variable.
        table
            .clone()
            .try_into::<Config>()
            .map_err(|e| ConfigError::Invalid(name.clone(), with_nearest(&e.to_string())))?;
    }
    table
        .try_into()
        .map_err(|e: toml::de::Error| ConfigError::Invalid(source, with_nearest(&e.to_string())))
}

/// Says with each problem of [`Config::check`], or warning, where its setting has its value: the variable, or file
/// and line.
///
/// The line is that of its section where the file does not set it, and left out where it has neither. A problem of
/// `listener 2: …` has that of the second entry.
#[must_use]
pub fn located(
    problems: Vec<String>,
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Vec<String> {
    let variables: Vec<String> = environment.into_iter().map(|(name, _)| name).collect();
    let text = text_of(file);
    let place = |problem: &str| {
        let end = problem.find(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c)));
        let setting = problem[..end.unwrap_or(problem.len())].trim_end_matches('.');
        let variable = setting.to_ascii_uppercase().replace('.', "__");
        let variable = format!("{ENVIRONMENT_PREFIX}{variable}");
        if variables.contains(&variable) {
            return Some(variable);
        }
        let file = file?.display();
        let number = (problem[setting.len()..].split_once(':'))
            .and_then(|(number, _)| number.strip_prefix(' ')?.parse().ok());
        let line = (text.as_deref()).and_then(|text| {
            let of_section = || line_of(text, setting.rsplit_once('.')?.0, None);
            // A setting that is missing belongs below the header of its section.
            line_of(text, setting, number).or_else(of_section)
        });
        Some(line.map_or_else(|| file.to_string(), |line| format!("{file}:{line}")))
    };
    let with_place = |problem: String| match place(&problem) {
        Some(place) => format!("{place}: {problem}"),
        None => problem,
    };
    problems.into_iter().map(with_place).collect()
}

/// The text of a configuration file; `None` where there is none that can be read.
pub(super) fn text_of(file: Option<&Path>) -> Option<String> {
    std::fs::read_to_string(file?).ok()
}

/// The line of a setting, or of an entry of a list by its number; lines and entries are counted from 1.
/// `None` where the text does not set it, or in several places.
pub(super) fn line_of(text: &str, setting: &str, number: Option<usize>) -> Option<usize> {
    let parsed = DeTable::parse(text).ok()?;
    let mut table = parsed.get_ref();
    let mut parts = setting.split('.').peekable();
    while let Some(part) = parts.next() {
        let (key, value) = table.iter().find(|(key, _)| key.get_ref() == part)?;
        if parts.peek().is_none() {
            let start = match (value.get_ref(), number) {
                (DeValue::Array(entries), Some(number)) => {
                    entries.get(number.checked_sub(1)?)?.span().start
                }
                _ => key.span().start,
            };
            return Some(1 + text[..start].matches('\n').count());
        }
        table = match value.get_ref() {
            DeValue::Table(table) => table,
            DeValue::Array(entries) if entries.len() == 1 => match entries.first()?.get_ref() {
                DeValue::Table(table) => table,
                _ => return None,
            },
            _ => return None,
        };
    }
    None
}

/// The most faults of a file that are told at once.
const MOST_FAULTS: usize = 20;

/// Reads a configuration from text.
///
/// # Errors
/// [`ConfigError::Invalid`] with line, column, and the nearest known key for an unknown one, of each line that cannot be read.
pub fn parse(source: &str, text: &str) -> Result<Config, ConfigError> {
    let mut faults = Vec::new();
    // The parser ends at a fault. So the line is left out, and what is left is read again.
    let mut left = text.to_owned();
    while let Err(error) = toml::from_str::<Config>(&left) {
        // A field that is missing may have been in a line that is left out.
        if faults.is_empty() || !error.message().starts_with("missing field") {
            let at = error.span().map_or(0, |span| span.start);
            faults.push((at, with_nearest(&placed(&error, &left))));
        }
        if faults.len() >= MOST_FAULTS || !leave_out(&mut left, &error) {
            break;
        }
    }
    if faults.is_empty() {
        return toml::from_str(text).map_err(|error| {
            ConfigError::Invalid(source.to_owned(), with_nearest(&error.to_string()))
        });
    }
    faults.sort_by_key(|(at, _)| *at);
    let faults: Vec<&str> = faults.iter().map(|(_, fault)| fault.trim_end()).collect();
    Err(ConfigError::Invalid(source.to_owned(), faults.join("\n")))
}

/// Leaves the lines of a fault out of a text, whose other places stay the same. False where they cannot be left out alone.
fn leave_out(text: &mut String, error: &toml::de::Error) -> bool {
    /// A value has so many lines at most.
    const MOST_LINES: usize = 100;
    let Some(span) = error.span() else {
        return false;
    };
    let begin = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
    let mut end = begin;
    for (number, line) in text[begin..].split_inclusive('\n').enumerate() {
        let is_empty = number == 0 && line.trim().is_empty();
        if number >= MOST_LINES || line.starts_with('[') || is_empty {
            return false;
        }
        end += line.len();
        let blank: String = (text[begin..end].bytes())
            .map(|byte| if byte == b'\n' { '\n' } else { ' ' })
            .collect();
        let left = format!("{}{blank}{}", &text[..begin], &text[end..]);
        if DeTable::parse(&left).is_ok() {
            *text = left;
            return true;
        }
    }
    false
}

/// An error with its place. Below a header whose settings are read together, the parser knows the header alone.
fn placed(error: &toml::de::Error, text: &str) -> String {
    let exact = || {
        let section = error.span()?.start;
        if !text[section..].starts_with('[') {
            return None;
        }
        let wrong = error.message();
        let value = [
            "unknown variant `",
            "unknown profile `",
            "string \"",
            "integer `",
            "float `",
            "boolean `",
        ]
        .into_iter()
        .find_map(|start| {
            let (_, rest) = wrong.split_once(start)?;
            rest.split(['`', '"']).next()
        })?;
        let header = 1 + text[..section].matches('\n').count();
        let settings = text[section..].lines().zip(header..).skip(1);
        let mut settings = settings.take_while(|(line, _)| !line.starts_with('['));
        let (line, number) = settings.find(|(line, _)| {
            let set = line.split_once('=').map(|(_, set)| set.trim());
            set.is_some_and(|set| set.trim_matches(['"', '\'']) == value)
        })?;
        let line = line.trim_end();
        let edge = " ".repeat(number.to_string().len());
        let marks = "^".repeat(line.chars().count());
        Some(format!(
            "TOML parse error at line {number}, column 1\n{edge} |\n{number} | {line}\n{edge} | {marks}\n{wrong}"
        ))
    };
    exact().unwrap_or_else(|| error.to_string())
}

/// The numbers that the setting of a fault takes; `None` where the fault shows none, or several of other ranges.
fn range_in(message: &str) -> Option<String> {
    let key = message.lines().find_map(|line| {
        let (_, set) = line.split_once(" | ")?;
        set.split_once('=').map(|(key, _)| key.trim())
    })?;
    let settings = reference::settings();
    let mut ranges = (settings.iter().filter(|it| it.key == key)).map(super::table::Setting::range);
    let first = ranges.next()??;
    ranges
        .all(|range| range.as_ref() == Some(&first))
        .then_some(first)
}

/// The message in words of TOML, where the parser's are those of Rust.
fn in_words(message: &str) -> String {
    let mut said = message.to_owned();
    let range = range_in(message);
    for (name, words) in [
        ("u8", "a whole number from 0 to 255"),
        ("u16", "a whole number from 0 to 65535"),
        ("u32", "a whole number from 0 to 4294967295"),
        ("u64", "a whole number from 0 on"),
        ("usize", "a whole number from 0 on"),
        ("i64", "a whole number"),
        ("f64", "a number"),
        ("a sequence", "a list"),
    ] {
        let rust = format!("expected {name}");
        if let Some(at) = said.find(&rust) {
            let end = at + rust.len();
            if !said[end..].starts_with(|c: char| c.is_ascii_alphanumeric()) {
                let is_number = name.starts_with(['u', 'i']);
                let words = range.as_deref().filter(|_| is_number).unwrap_or(words);
                said.replace_range(at..end, &format!("expected {words}"));
            }
        }
    }
    if let Some((before, name)) = said.split_once("expected struct ") {
        let after = name.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
        said = format!("{before}expected a section with settings{after}");
    }
    let header = said.lines().find_map(|line| {
        let (_, header) = line.split_once(" | [")?;
        header.split_once(']').map(|(name, _)| name.to_owned())
    });
    if let Some(header) = header.filter(|_| said.contains("invalid type: map, expected a list")) {
        said = format!(
            "{}\nthere may be several: write [[{header}]]",
            said.trim_end()
        );
    }
    said
}

/// The lines at which the rules of a configuration file begin, counted from 1. Empty if the text is
/// not a configuration.
#[must_use]
pub fn rule_lines(text: &str) -> Vec<usize> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Rules {
        rule: Vec<toml::Spanned<toml::Value>>,
    }
    #[derive(Deserialize)]
    struct File {
        authorization: Rules,
    }
    let Ok(file) = toml::from_str::<File>(text) else {
        return Vec::new();
    };
    let rules = file.authorization.rule.iter();
    let line_of = |start: usize| 1 + text[..start].matches('\n').count();
    rules.map(|rule| line_of(rule.span().start)).collect()
}

fn set(table: &mut toml::Table, path: &str, value: &str) -> Result<(), String> {
    let path = path.to_ascii_lowercase();
    let mut table = table;
    let mut parts = path.split("__").peekable();
    while let Some(part) = parts.next() {
        if part.is_empty() {
            return Err("an empty part in the name".to_owned());
        }
        if parts.peek().is_none() {
            table.insert(part.to_owned(), read_value(value));
            break;
        }
        table = table
            .entry(part.to_owned())
            .or_insert_with(|| toml::Value::Table(toml::Table::new()))
            .as_table_mut()
            .ok_or_else(|| format!("`{part}` is not a table"))?;
    }
    Ok(())
}

fn read_value(text: &str) -> toml::Value {
    format!("value = {text}")
        .parse::<toml::Table>()
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// Adds the nearest known key to serde's message about an unknown one, which lists them all. Without a near
/// one, a key of another section is told where it belongs.
fn with_nearest(message: &str) -> String {
    let Some(at) = message.find("unknown field `") else {
        return in_words(message);
    };
    let mut names = message[at..].split('`').skip(1).step_by(2);
    let Some(unknown) = names.next() else {
        return message.to_owned();
    };
    // The message about `[quic]`, whose settings another crate names, lists none.
    let settings = reference::settings();
    let mut names: Vec<&str> = names.collect();
    if names.is_empty() {
        let own = settings.iter().filter(|it| it.section == "quic");
        names.extend(own.map(|it| it.key));
    }
    let hint = if let Some(known) = nearest(unknown, names) {
        format!("did you mean `{known}`?")
    } else if let Some(homes) = homes_of(unknown) {
        format!("`{unknown}` is a setting of {homes}: its line goes below the header")
    } else {
        return message.to_owned();
    };
    format!("{}\n{hint}", message.trim_end())
}

/// The headers of the sections that have a setting of this name; none where no section has one.
fn homes_of(key: &str) -> Option<String> {
    let settings = reference::settings();
    let homes = (settings.iter()).filter(|it| it.key == key && !it.section.is_empty());
    let homes: Vec<String> = homes.map(|it| it.header().trim_end().to_owned()).collect();
    (!homes.is_empty()).then(|| homes.join(", "))
}

/// The known name that a wrong one most likely means; `None` where none is near.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known
        .into_iter()
        .filter_map(|known| Some((nearness(name, known)?, known)));
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Distance of two names without the words that both begin and end with; `None` where they are not near.
/// They are near if a third of the letters differ at most, or if one has the other in it.
fn nearness(name: &str, known: &str) -> Option<usize> {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(['_', '-', '.']);
        words.map(str::to_ascii_lowercase).collect()
    };
    let (name, known) = (words(name), words(known));
    let (mut a, mut b) = (&name[..], &known[..]);
    while let ([first, rest @ ..], [other, others @ ..]) = (a, b)
        && first == other
    {
        (a, b) = (rest, others);
    }
    while let ([rest @ .., last], [others @ .., other]) = (a, b)
        && last == other
    {
        (a, b) = (rest, others);
    }
    let (a, b) = (a.concat(), b.concat());
    let distance = distance(&a, &b);
    let is_slip = 3 * distance <= a.len().max(b.len());
    // A short word is in many names by chance.
    let lengths = [name.concat().len(), known.concat().len()];
    let is_alike = 2 * lengths[0].min(lengths[1]) >= lengths[0].max(lengths[1]);
    let is_part = is_alike && (a.contains(&b) || b.contains(&a));
    (is_slip || is_part).then_some(distance)
}

/// Letters to add, drop, replace or swap with the next one (Damerau-Levenshtein, no place twice).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(x != y);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_names_the_nearest_known_one() {
        let error = parse("f.toml", "[mqtt]\nrecieve_maximum = 3\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("did you mean `receive_maximum`?"), "{error}");
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn a_hint_is_a_near_name_of_the_section_or_the_section_of_the_name() {
        let rule = "[[authorization.rule]]";
        for (header, key, hint) in [
            (rule, "user", "did you mean `users`?"),
            (rule, "tpoics", "did you mean `topics`?"),
            ("[mqtt]", "keepalive", "did you mean `server_keep_alive_s`?"),
            ("[mqtt]", "max_qos", "did you mean `maximum_qos`?"),
            (
                "[mqtt]",
                "receive-maximum",
                "did you mean `receive_maximum`?",
            ),
            ("[mqtt]", "bogus", ""),
            ("[amqp]", "bogus", ""),
            ("[quic]", "bogus", ""),
            // Names that share most words with names of the section.
            (
                "[mqtt]",
                "maximum_selector_bytes",
                "is a setting of [amqp]:",
            ),
            ("[[listener]]", "client_ca", "is a setting of [tls]:"),
        ] {
            let error = parse("x", &format!("{header}\n{key} = 1\n"));
            let error = error.unwrap_err().to_string();
            if hint.is_empty() {
                let is_none = !error.contains("did you mean") && !error.contains("is a setting");
                assert!(is_none, "{key}: {error}");
            } else {
                assert!(error.contains(hint), "{key}: {error}");
            }
        }
    }

    #[test]
    fn faults_are_told_in_words_of_the_file() {
        for (text, words, line) in [
            (
                "[mqtt]\nreceive_maximum = \"20\"\n",
                "expected a whole number from 1 to 65535",
                2,
            ),
            (
                "[mqtt]\nreceive_maximum = 70000\n",
                "expected a whole number from 1 to 65535",
                2,
            ),
            ("mqtt = 3\n", "expected a section with settings", 1),
            (
                "\n[listener]\nurl = \"mqtt://h\"\n",
                "write [[listener]]",
                2,
            ),
            (
                "[quic]\ntickets = 1\nprofile = \"lte\"\n",
                "unknown profile `lte`",
                3,
            ),
        ] {
            let error = parse("x", text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(error.contains(&format!("at line {line},")), "{error}");
            let is_rust = ["u16", "struct", "sequence"]
                .iter()
                .any(|word| error.contains(word));
            assert!(!is_rust, "{error}");
        }
    }

    #[test]
    fn each_line_that_cannot_be_read_is_told() {
        let text = "[mqtt]\nrecieve_maximum = 3\nsend_maximum = 'x'\n\n[broker]\nbogus = [\n1]\n\n\
                    [[listener]]\nurl = 5\nnaem = 'a'\n";
        let error = parse("f", text).unwrap_err().to_string();
        let places: Vec<_> = ([2, 3, 6, 10, 11].iter())
            .map(|line| error.find(&format!("at line {line},")))
            .collect();
        assert!(places.iter().all(Option::is_some), "{error}");
        assert!(places.is_sorted(), "{error}");
        assert!(!error.contains("missing"), "{error}");
    }

    #[test]
    fn a_problem_of_a_rule_or_of_a_missing_setting_has_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        let text = "[[authorization.rule]]\ntopics = ['a']\n\n[[authorization.rule]]\nusers = ['b']\n\n\
                    [authentication.jwt]\nkey_files = ['k']\naudiences = ['x']\n";
        std::fs::write(&file, text).unwrap();
        let problems = parse("f", text).unwrap().check().unwrap_err();
        let said = located(problems, Some(&file), []).join("\n");
        for expected in [
            format!(
                "{}:4: authorization.rule 2: it has no topics",
                file.display()
            ),
            format!("{}:7: authentication.jwt.issuer is needed", file.display()),
        ] {
            assert!(said.contains(&expected), "{said}");
        }
    }

    #[test]
    fn a_problem_of_a_file_has_its_setting_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let (file, wrong) = (folder.path().join("f"), folder.path().join("wrong"));
        std::fs::write(&wrong, "nothing").unwrap();
        let path = wrong.display();
        let text = format!(
            "[authentication.jwt]\nissuer = 'i'\naudiences = ['a']\nkey_files = ['{path}']\n\n\
             [webhook]\nauthentication_url = 'http://127.0.0.1:1/'\nheaders_file = '{path}'\n"
        );
        std::fs::write(&file, &text).unwrap();
        let config = parse("f", &text).unwrap();
        let problems = crate::reload::Prepared::problems(&config);
        let said = located(problems, Some(&file), []).join("\n");
        for (line, setting) in [
            (4, "authentication.jwt.key_files"),
            (8, "webhook.headers_file"),
        ] {
            let expected = format!("{}:{line}: {setting}: {path}: ", file.display());
            assert!(said.contains(&expected), "{expected}: {said}");
        }
    }

    #[test]
    fn a_problem_of_an_entry_has_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        let text = "[[listener]]\nurl = 'x'\n\n[[listener]]\nurl = 'y'\n";
        std::fs::write(&file, text).unwrap();
        for (problem, line) in [
            ("listener 2: it", 4),
            ("listener 1: it", 1),
            ("listener: it", 1),
        ] {
            let said = located(vec![problem.to_owned()], Some(&file), []);
            assert_eq!(said, [format!("{}:{line}: {problem}", file.display())]);
        }
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let vars = [
            ("STERNA__MQTT__RECEIVE_MAXIMUM".to_owned(), "7".to_owned()),
            ("STERNA__LOG__LEVEL".to_owned(), "debug".to_owned()),
            ("STERNA_UNRELATED".to_owned(), "x".to_owned()),
        ];
        let config = load(None, vars).unwrap();
        assert_eq!(config.mqtt.receive_maximum, 7);
        assert_eq!(config.log.level, "debug");
    }

    #[test]
    fn an_unknown_variable_is_named() {
        let vars = [("STERNA__MQTT__RECEIVE_MAX".to_owned(), "7".to_owned())];
        let error = load(None, vars).unwrap_err().to_string();
        assert!(error.starts_with("STERNA__MQTT__RECEIVE_MAX: "), "{error}");
        assert!(error.contains("did you mean `receive_maximum`?"), "{error}");
    }

    #[test]
    fn the_default_configuration_is_valid_and_survives_a_round_trip() {
        let config = Config::default();
        config.check().unwrap();
        let text = toml::to_string(&config).unwrap();
        assert_eq!(parse("x", &text).unwrap(), config);
    }

    #[test]
    fn rules_are_found_at_their_lines() {
        let text = "# a\n[authorization]\ndefault_allow = false\n\n[[authorization.rule]]\n\
                    topics = [\"a\"]\n# b\n[[authorization.rule]]\ntopics = [\"b\"]\n";
        assert_eq!(rule_lines(text), [5, 8]);
        let inline =
            "[authorization]\nrule = [\n  { topics = [\"a\"] },\n  { topics = [\"b\"] },\n]\n";
        assert_eq!(rule_lines(inline), [3, 4]);
        assert_eq!(rule_lines("shards = 1\n"), [0; 0]);
        assert_eq!(rule_lines("["), [0; 0]);
    }

    #[test]
    fn exposure_without_credentials_needs_a_word() {
        let mut config = Config {
            listeners: vec![super::super::Listener::at("mqtt://0.0.0.0:1883")],
            ..Config::default()
        };
        let problems = config.check().unwrap_err();
        assert!(
            problems[0].contains("allow_anonymous_beyond_loopback"),
            "{problems:?}"
        );
        config.authentication.allow_anonymous_beyond_loopback = true;
        config.authorization.allow_default_beyond_loopback = true;
        config.check().unwrap();
    }
}
