//! From one configuration to the next while connections live.

use super::Config;
use super::table::Nested as _;

impl Config {
    /// The configuration that a reload would put in force: this one, with the settings of `old` that cannot change at
    /// run time. The second value names those that differ.
    #[must_use]
    pub(crate) fn after(&self, old: &Self) -> (Self, Vec<String>) {
        let mut next = self.clone();
        // A broker without any listener has them, too.
        if self.listeners_in_force() == old.listeners_in_force() {
            next.listeners.clone_from(&old.listeners);
        }
        let mut kept = Vec::new();
        next.keep(old, "", &mut kept);
        (next, kept)
    }

    /// The accesses that `old` keeps shut and this configuration would open without a setting that says so. Each is a
    /// sentence. This configuration has the listeners of `old`.
    #[must_use]
    pub(crate) fn weaker_than(&self, old: &Self) -> Vec<String> {
        let mut problems = Vec::new();
        let is_said = self.authentication.anonymous == Some(true);
        for listener in self.listeners_in_force() {
            if self.admits_anonymous(&listener) && !old.admits_anonymous(&listener) && !is_said {
                problems.push(format!(
                    "listener `{}` would admit clients without credentials, which it refuses now: set \
                     authentication.anonymous = true if that is meant",
                    listener.url
                ));
            }
        }
        let limits = |config: &Self| {
            let authorization = &config.authorization;
            !authorization.default_allow || !authorization.rules.is_empty()
        };
        if limits(old) && !limits(self) {
            problems.push(
                "authorization would allow everything to everybody, and now it does not: that needs a \
                 restart if it is meant"
                    .to_owned(),
            );
        } else if self.authorization.default_allow && !old.authorization.default_allow {
            problems.push(
                "authorization.default_allow would become true, and now it is false: that needs a \
                 restart if it is meant"
                    .to_owned(),
            );
        }
        // A rule that names `#` says what it opens. One that goes does not.
        let opens_by_default =
            |config: &Self| config.authorization.default_allow && !config.authorization.is_closed();
        if problems.is_empty() && old.authorization.is_closed() && opens_by_default(self) {
            problems.push(
                "authorization would allow topics that no rule names, which are refused now: if this is \
                 intended, restart the broker"
                    .to_owned(),
            );
        }
        let binds = |config: &Self| !config.authentication.client_ids.is_empty();
        if binds(old) && !binds(self) {
            problems.push(
                "authentication.client_ids would bind no client identifier any more: that needs a \
                 restart if it is meant"
                    .to_owned(),
            );
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::settings;
    use super::super::{Change, Kind, Setting, parse};
    use super::*;

    /// Other values of a kind than a setting's default, as TOML writes them.
    fn others(setting: &Setting) -> Vec<String> {
        let default = setting.default.clone().unwrap_or_default();
        let all: Vec<String> = match &setting.kind {
            Kind::Boolean => vec!["true".to_owned(), "false".to_owned()],
            Kind::Integer(least, most, _) => vec![least.to_string(), most.to_string()],
            Kind::Number(_) => vec!["2.5".to_owned(), "3.5".to_owned()],
            Kind::Choice(words) => words.iter().map(|word| format!("\"{word}\"")).collect(),
            Kind::Text | Kind::Path => vec!["\"other\"".to_owned()],
            Kind::List(element) => match &**element {
                Kind::Integer(..) => vec!["[1]".to_owned()],
                Kind::Choice(words) => vec![format!("[\"{}\"]", words[0])],
                _ => vec!["[\"192.0.2.1\"]".to_owned()],
            },
            Kind::Table(_) => vec!["{ from = [\"192.0.2.1\"] }".to_owned()],
            Kind::Other(_) => vec!["\"1 GiB\"".to_owned()],
        };
        all.into_iter().filter(|value| *value != default).collect()
    }

    /// Each row, asked of the code of a reload: the new value is in force, or the old one and the setting is named.
    #[test]
    fn a_reload_does_what_each_row_says() {
        for setting in settings() {
            let with = |value: &str| {
                let text = format!("{}{} = {value}\n", setting.header(), setting.key);
                parse("x", &text).unwrap_or_else(|why| panic!("{}: {why}", setting.name()))
            };
            let values = others(&setting);
            assert!(!values.is_empty(), "{} has one value alone", setting.name());
            let new = with(&values[0]);
            let named = if setting.repeats {
                setting.section.clone()
            } else {
                setting.name()
            };
            // Unset before; and where there is a second value, another one before.
            let mut changes = vec![(Config::default(), setting.change == Change::Reload)];
            let takes = setting.change != Change::Restart;
            if setting.change == Change::Presence {
                changes.push((with("\"before\""), true));
            } else if let Some(second) = values.get(1) {
                changes.push((with(second), takes));
            }
            for (old, takes) in changes {
                assert_ne!(new, old, "{}", setting.name());
                let (next, kept) = new.after(&old);
                assert_eq!(
                    next,
                    if takes { new.clone() } else { old },
                    "{}",
                    setting.name()
                );
                let expected = if takes {
                    Vec::new()
                } else {
                    vec![named.clone()]
                };
                assert_eq!(kept, expected, "{}", setting.name());
            }
        }
    }

    /// The lists change as a whole, so that their settings change at one moment.
    #[test]
    fn the_settings_of_a_list_change_together() {
        for section in super::super::reference::sections() {
            let changes: Vec<Change> = section.settings.iter().map(|it| it.change).collect();
            let is_one = changes.windows(2).all(|pair| pair[0] == pair[1]);
            assert!(!section.repeats || is_one, "{}: {changes:?}", section.name);
        }
    }

    #[test]
    fn default_listeners_that_are_written_out_are_no_change() {
        let written = Config {
            listeners: Config::default_listeners(),
            ..Config::default()
        };
        let (next, kept) = written.after(&Config::default());
        assert_eq!((next, kept), (Config::default(), Vec::new()));
    }

    /// A listener of the file that only a restart opens, or names, is not one that a rule can mean now.
    #[test]
    fn a_rule_names_a_listener_in_force() {
        let of = |name: &str| {
            let text = format!(
                "[[listener]]\nurl = 'mqtt://localhost:1'\nname = '{name}'\n\
                 [[authorization.rule]]\nlisteners = ['{name}']\ntopics = ['a']\n"
            );
            parse("test", &text).expect("a configuration")
        };
        let (old, new) = (of("front"), of("back"));
        assert_eq!(new.check(), Ok(()));
        let (next, kept) = new.after(&old);
        assert_eq!(kept, ["listener"]);
        let problems = next.check().expect_err("it has no name yet").join("\n");
        assert!(
            problems.contains("no listener has the name `back`"),
            "{problems}"
        );
    }

    /// A rule for `#` may come back: it says what it opens. A default that nobody has written says nothing.
    #[test]
    fn rules_may_be_wrong_for_a_moment() {
        let of = |default_allow: bool, rules: &[(&str, &str)]| {
            let head = format!("[authorization]\ndefault_allow = {default_allow}\n");
            let rules = rules.iter().map(|(topic, effect)| {
                format!("[[authorization.rule]]\ntopics = [\"{topic}\"]\neffect = \"{effect}\"\n")
            });
            let text: String = std::iter::once(head).chain(rules).collect();
            parse("test", &text).expect("a configuration")
        };
        let (everything, wrong) = (of(false, &[("#", "allow")]), of(false, &[("b/#", "allow")]));
        assert_eq!(wrong.weaker_than(&everything), [""; 0]);
        assert_eq!(everything.weaker_than(&wrong), [""; 0]);
        let denied = of(true, &[("a/#", "allow"), ("#", "deny")]);
        let open = of(true, &[("a/#", "allow")]);
        assert_eq!(open.weaker_than(&denied).len(), 1);
    }
}
