//! The table of settings. `settings!` makes of one list a section's structure, its defaults, the checks of its ranges,
//! its part of a reload, and its rows.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use serde::Serialize;

use super::kind::{Kind, MOST};

/// The moment at which a changed value is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A reload puts it in force.
    Reload,
    /// It waits for a restart.
    Restart,
    /// A reload puts another value in force. Whether there is one at all changes by a restart.
    Presence,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reload => "reload",
            Self::Restart => "restart",
            Self::Presence => "reload; restart to set or unset it",
        })
    }
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Section of the setting, for example `authentication.jwt`; empty at the top level.
    pub section: String,
    /// Whether the section may be repeated (`[[listener]]`).
    pub repeats: bool,
    /// Name of the setting in its section.
    pub key: &'static str,
    /// The value's kind, with its range.
    pub kind: Kind,
    /// When a changed value is in force.
    pub change: Change,
    /// The default as TOML writes it; `None` where there is none.
    pub default: Option<String>,
    /// The default in words, where it depends on something else.
    pub said: Option<&'static str>,
    /// Meaning, in Markdown with links of the page.
    pub text: String,
}

/// A section with its settings, in the order of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name, for example `authentication.jwt`; empty at the top level.
    pub name: String,
    /// Whether it may be repeated.
    pub repeats: bool,
    /// Its use, in Markdown.
    pub intro: String,
    /// Its settings.
    pub settings: Vec<Setting>,
}

/// A setting as a list of `settings!` has it.
pub(super) struct Row {
    pub(super) key: &'static str,
    pub(super) text: &'static str,
    pub(super) kind: Kind,
    pub(super) bounds: Option<Bounds>,
    pub(super) change: Change,
    pub(super) default: Option<String>,
    pub(super) said: Option<&'static str>,
}

impl Section {
    /// The index of a section in a table, with a new section where there is none of its name.
    pub(super) fn at(table: &mut Vec<Self>, name: &str, repeats: bool, intro: &str) -> usize {
        let known = table.iter().position(|section| section.name == name);
        known.unwrap_or_else(|| {
            table.push(Self {
                name: name.to_owned(),
                repeats,
                intro: in_lines(intro),
                settings: Vec::new(),
            });
            table.len() - 1
        })
    }

    /// Adds a setting.
    pub(super) fn add(&mut self, row: Row) {
        let kind = match (row.kind, row.bounds) {
            (Kind::Integer(_, most, _), Some(bounds)) => {
                Kind::Integer(bounds.least, bounds.most.min(most), bounds.also)
            }
            (kind, _) => kind,
        };
        self.settings.push(Setting {
            section: self.name.clone(),
            repeats: self.repeats,
            key: row.key,
            kind,
            change: row.change,
            default: row.default,
            said: row.said,
            text: in_lines(row.text).replace('\n', " "),
        });
    }
}

/// The text of a documentation comment, without the blank behind its marks.
fn in_lines(comment: &str) -> String {
    let lines: Vec<&str> = comment.lines().map(str::trim).collect();
    lines.join("\n").trim().to_owned()
}

/// The permitted values of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    least: u64,
    most: u64,
    also: Option<u64>,
}

impl Bounds {
    /// The values of a range, and one beside it.
    pub(super) fn of(range: impl RangeBounds<u64>, also: Option<u64>) -> Self {
        let least = match range.start_bound() {
            Bound::Included(least) => *least,
            Bound::Excluded(below) => below.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let most = match range.end_bound() {
            Bound::Included(most) => *most,
            Bound::Excluded(above) => above.saturating_sub(1),
            Bound::Unbounded => MOST,
        };
        Self { least, most, also }
    }

    /// The fault of a value, as a sentence goes on behind the setting's name.
    fn problem(self, value: u64) -> Option<String> {
        if (self.least..=self.most).contains(&value) || self.also == Some(value) {
            return None;
        }
        let range = match (self.least, self.most) {
            (least, MOST) => format!("at least {least}"),
            (0, most) => format!("at most {most}"),
            (least, most) => format!("{least} to {most}"),
        };
        Some(match self.also {
            Some(also) => format!("is {also}, or {range}"),
            None => format!("is {range}"),
        })
    }
}

/// A number of a setting.
pub(super) trait Amount {
    /// The number; `None` where none is set.
    fn amount(&self) -> Option<u64>;
}

macro_rules! amounts {
    ($($type:ty),+) => {$(
        impl Amount for $type {
            fn amount(&self) -> Option<u64> {
                Some(u64::from(*self))
            }
        }
    )+};
}

amounts!(u8, u16, u32, u64);

impl<T: Amount> Amount for Option<T> {
    fn amount(&self) -> Option<u64> {
        self.as_ref().and_then(Amount::amount)
    }
}

/// A section's structure. `name` is the section's name, or that of an entry in problems: `authorization.limit 2`.
pub(super) trait Nested: Sized {
    /// The name of a section in another one.
    fn below(name: &str, key: &str) -> String {
        join(name, key)
    }

    /// Adds its settings, and those of the sections in it, to a table.
    fn rows(name: &str, repeats: bool, table: &mut Vec<Section>);

    /// Adds a sentence for each value out of its range.
    fn range_problems(&self, name: &str, problems: &mut Vec<String>);

    /// Takes from the structure in force what waits for a restart, and names what differs there.
    fn keep(&mut self, in_force: &Self, name: &str, kept: &mut Vec<String>);
}

impl<S: Nested + Clone + PartialEq> Nested for Vec<S> {
    fn rows(name: &str, _: bool, table: &mut Vec<Section>) {
        S::rows(name, true, table);
    }

    fn range_problems(&self, name: &str, problems: &mut Vec<String>) {
        for (at, entry) in self.iter().enumerate() {
            entry.range_problems(&format!("{name} {}", at + 1), problems);
        }
    }

    /// A list changes as a whole: entries have no names by which they could be told apart.
    fn keep(&mut self, in_force: &Self, name: &str, kept: &mut Vec<String>) {
        let mut table = Vec::new();
        S::rows(name, true, &mut table);
        let mut settings = table.iter().flat_map(|section| &section.settings);
        if settings.any(|setting| setting.change == Change::Restart) {
            keep_value(self, in_force, || name.to_owned(), kept);
        }
    }
}

/// Section and key, joined by a dot; behind the number of an entry, by a colon.
pub(super) fn join(name: &str, key: &str) -> String {
    match name {
        "" => key.to_owned(),
        name if name.contains(' ') => format!("{name}: {key}"),
        name => format!("{name}.{key}"),
    }
}

/// Takes the value in force, and names the setting if it differs.
pub(super) fn keep_value<T: Clone + PartialEq>(
    own: &mut T,
    in_force: &T,
    name: impl FnOnce() -> String,
    kept: &mut Vec<String>,
) {
    if own != in_force {
        kept.push(name());
        own.clone_from(in_force);
    }
}

/// The same, where only one of both has a value.
pub(super) fn keep_presence<T: Clone>(
    own: &mut Option<T>,
    in_force: Option<&T>,
    name: impl FnOnce() -> String,
    kept: &mut Vec<String>,
) {
    if own.is_some() != in_force.is_some() {
        kept.push(name());
        *own = in_force.cloned();
    }
}

/// Adds the problem of a number out of its bounds.
pub(super) fn check_range(
    value: &impl Amount,
    bounds: Option<Bounds>,
    name: impl FnOnce() -> String,
    problems: &mut Vec<String>,
) {
    let problem = value.amount().zip(bounds);
    if let Some(problem) = problem.and_then(|(value, bounds)| bounds.problem(value)) {
        problems.push(format!("{} {problem}", name()));
    }
}

/// The defaults of a section as TOML writes them.
pub(super) fn defaults<S: Default + Serialize>() -> toml::Table {
    // Each structure is a table; the test of the page would miss every default.
    toml::Table::try_from(S::default()).unwrap_or_default()
}

/// Makes a section of a list of its settings.
///
/// ```text
/// settings! {
///     /// What the section is for: the text below its heading in `docs/configuration.md`.
///     #[derive(Eq)]
///     pub struct Store {
///         /// What the setting means: its text in the page and for `sterna config explain`.
///         restart segment_bytes: u64 = 64 << 20, within 1 << 20..=1 << 30;
///     }
/// }
/// ```
///
/// A setting is, in this order:
///
/// - its text, as documentation
/// - the moment of its change: `reload`, `restart`, or `presence` ([`Change`]). A structure or a list of structures
///   that is such a section itself has `section`
/// - its field, and `as "KEY"` where the key is another
/// - its type, and its default where that is not the type's
/// - `within RANGE` for numbers, and `or VALUE` for one more
/// - `said "WORDS"`: the default in words, where it depends on something else
macro_rules! settings {
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };

    (@default [$type:ty]) => { <$type>::default() };
    (@default [$type:ty] $default:expr) => { $default };

    (@change reload) => { $crate::config::table::Change::Reload };
    (@change restart) => { $crate::config::table::Change::Restart };
    (@change presence) => { $crate::config::table::Change::Presence };

    (@bounds) => { None };
    (@bounds [$range:expr]) => { Some($crate::config::table::Bounds::of($range, None)) };
    (@bounds [$range:expr] $also:expr) => {
        Some($crate::config::table::Bounds::of($range, Some($also)))
    };

    (@said) => { None };
    (@said $said:literal) => { Some($said) };

    (@row section [$type:ty] $table:ident $at:ident $name:ident $repeats:ident $defaults:ident
        ($key:expr) $text:expr, ($($bounds:tt)*) ($($said:tt)*)) => {
        let below = <$type as $crate::config::table::Nested>::below($name, $key);
        <$type as $crate::config::table::Nested>::rows(&below, $repeats, $table);
    };
    (@row $change:ident [$type:ty] $table:ident $at:ident $name:ident $repeats:ident $defaults:ident
        ($key:expr) $text:expr, ($($bounds:tt)*) ($($said:tt)*)) => {
        $table[$at].add($crate::config::table::Row {
            key: $key,
            text: $text,
            kind: $crate::config::kind::kind::<$type>(),
            bounds: settings!(@bounds $($bounds)*),
            change: settings!(@change $change),
            default: $defaults.get($key).map(ToString::to_string),
            said: settings!(@said $($said)*),
        });
    };

    (@check section [$type:ty] $value:expr, $name:ident $problems:ident ($key:expr) ()) => {
        let below = <$type as $crate::config::table::Nested>::below($name, $key);
        $crate::config::table::Nested::range_problems($value, &below, $problems);
    };
    (@check $change:ident [$type:ty] $value:expr, $name:ident $problems:ident ($key:expr) ()) => {};
    (@check $change:ident [$type:ty] $value:expr, $name:ident $problems:ident ($key:expr)
        ($($bounds:tt)+)) => {
        $crate::config::table::check_range(
            $value,
            settings!(@bounds $($bounds)+),
            || $crate::config::table::join($name, $key),
            $problems,
        );
    };

    (@keep section [$type:ty] $own:expr, $in_force:expr, $name:ident $kept:ident ($key:expr)) => {
        let below = <$type as $crate::config::table::Nested>::below($name, $key);
        $crate::config::table::Nested::keep($own, $in_force, &below, $kept);
    };
    (@keep reload [$type:ty] $own:expr, $in_force:expr, $name:ident $kept:ident ($key:expr)) => {};
    (@keep restart [$type:ty] $own:expr, $in_force:expr, $name:ident $kept:ident ($key:expr)) => {
        let of = || $crate::config::table::join($name, $key);
        $crate::config::table::keep_value($own, $in_force, of, $kept);
    };
    (@keep presence [$type:ty] $own:expr, $in_force:expr, $name:ident $kept:ident ($key:expr)) => {
        let of = || $crate::config::table::join($name, $key);
        $crate::config::table::keep_presence($own, $in_force.as_ref(), of, $kept);
    };

    (
        $(#[doc = $intro:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $structure:ident {
            $(
                $(#[doc = $text:literal])+
                $(#[serde($serde:ident)])?
                $change:ident $field:ident $(as $key:literal)?: $type:ty $(= $default:expr)?
                    $(, within $range:expr $(, or $also:expr)?)?
                    $(, said $said:literal)?;
            )+
        }
    ) => {
        $(#[doc = $intro])+
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize $($(, $derive)+)?)]
        #[serde(default, deny_unknown_fields)]
        pub struct $structure {
            $(
                $(#[doc = $text])+
                $(#[doc = concat!("\n\nDefault: `", stringify!($default), "`.")])?
                $(#[serde($serde)])?
                $(#[serde(rename = $key)])?
                pub $field: $type,
            )+
        }

        impl Default for $structure {
            fn default() -> Self {
                Self {
                    $($field: settings!(@default [$type] $($default)?),)+
                }
            }
        }

        impl $crate::config::table::Nested for $structure {
            fn rows(name: &str, repeats: bool, table: &mut Vec<$crate::config::table::Section>) {
                let intro = concat!($($intro, "\n"),+);
                let at = $crate::config::table::Section::at(table, name, repeats, intro);
                let defaults = $crate::config::table::defaults::<Self>();
                $(settings! {
                    @row $change [$type] table at name repeats defaults
                    (settings!(@key $field $($key)?)) concat!($($text, "\n"),+),
                    ($([$range] $($also)?)?) ($($said)?)
                })+
            }

            fn range_problems(&self, name: &str, problems: &mut Vec<String>) {
                let _ = (name, &problems);
                $(settings! {
                    @check $change [$type] &self.$field, name problems
                    (settings!(@key $field $($key)?)) ($([$range] $($also)?)?)
                })+
            }

            fn keep(&mut self, in_force: &Self, name: &str, kept: &mut Vec<String>) {
                let _ = (in_force, name, &kept);
                $(settings! {
                    @keep $change [$type] &mut self.$field, &in_force.$field, name kept
                    (settings!(@key $field $($key)?))
                })+
            }
        }
    };
}
