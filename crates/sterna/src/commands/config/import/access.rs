//! Rights of clients, by listener.
//!
//! Nobody gets more than in Mosquitto. A restriction there that is not here closes the listener: its clients get no right,
//! until somebody writes rules.

use sterna_server::config::{Authorization, Effect, Listener, Rule};

use super::source::Line;
use super::{Report, acl};

/// The lines that decide about the clients of a listener, or of all.
#[derive(Clone, Debug, Default)]
pub(super) struct Access {
    pub(super) anonymous: Option<bool>,
    pub(super) password_file: Option<Line>,
    pub(super) acl_file: Option<Line>,
    /// Whether something decides that is not here.
    pub(super) is_closed: bool,
    /// Plugins whose files have not been named yet, each with the option that names it.
    awaited: Vec<(&'static str, Line)>,
}

/// Plugins of Mosquitto 2.1 that do what a file does, each with the option that names the file.
const OF_FILES: [(&str, &str); 2] = [
    ("mosquitto_password_file.so", "plugin_opt_password_file"),
    ("mosquitto_acl_file.so", "plugin_opt_acl_file"),
];

impl Access {
    /// Takes a line about access. `false`: it is about something else.
    pub(super) fn take(&mut self, line: &Line, report: &mut Report) -> bool {
        match line.key.as_str() {
            "allow_anonymous" => {
                if line.flag().is_none() {
                    report.less(line, "the value is not understood, and taken as false");
                }
                self.anonymous = Some(line.flag().unwrap_or_default());
            }
            "password_file" | "plugin_opt_password_file" => {
                self.awaited.retain(|(option, _)| *option != line.key);
                if let Some(known) = differing(&mut self.password_file, line) {
                    let known = known.to_string();
                    self.close(line, &format!("there is another one in {known}"), report);
                }
            }
            "acl_file" | "plugin_opt_acl_file" => {
                self.awaited.retain(|(option, _)| *option != line.key);
                if let Some(known) = differing(&mut self.acl_file, line) {
                    let known = known.to_string();
                    self.close(line, &format!("there is another one in {known}"), report);
                }
            }
            "plugin" | "global_plugin" if of_file(line).is_some() => {
                self.awaited
                    .extend(of_file(line).map(|option| (option, line.clone())));
            }
            "plugin" | "plugin_load" | "plugin_use" | "global_plugin" | "auth_plugin" => {
                self.close(
                    line,
                    "there are no plugins: users are in files, signed tokens or a webhook",
                    report,
                );
            }
            key if key.starts_with("plugin_") || key.starts_with("auth_") => {
                report.missing(line, "an option of a plugin");
            }
            _ => return false,
        }
        true
    }

    /// The lines of a listener with those for all.
    pub(super) fn within(self, all: &Self) -> Self {
        Self {
            is_closed: self.is_closed || all.is_closed,
            password_file: self.password_file.or_else(|| all.password_file.clone()),
            acl_file: self.acl_file.or_else(|| all.acl_file.clone()),
            ..self
        }
    }

    /// Takes all rights away where a plugin was not told its file.
    pub(super) fn finish(&mut self, report: &mut Report) {
        for (option, line) in std::mem::take(&mut self.awaited) {
            self.close(&line, &format!("{option} does not name its file"), report);
        }
    }

    /// Takes all rights away, because a line may restrict them in a way that is not here.
    pub(super) fn close(&mut self, line: &Line, why: &str, report: &mut Report) {
        self.is_closed = true;
        report.less(
            line,
            &format!(
                "{why}. What it refuses is not known here, so no client has any right: write rules"
            ),
        );
    }
}

/// The option that names the file of a plugin, where that is all that it does.
fn of_file(line: &Line) -> Option<&'static str> {
    let name = line.value.rsplit('/').next()?;
    let known = OF_FILES.iter().find(|(plugin, _)| *plugin == name)?;
    Some(known.1)
}

/// Keeps the first line of its kind; the value is that one where this line names another file.
fn differing<'a>(place: &'a mut Option<Line>, line: &Line) -> Option<&'a Line> {
    let known = place.get_or_insert_with(|| line.clone());
    (known.path() != line.path()).then_some(known)
}

/// A listener of the result, and its lines.
pub(super) struct Door {
    pub(super) listener: Listener,
    pub(super) access: Access,
    /// Whether clients without a user name that get in all the same have no right: those with a certificate alone.
    pub(super) is_for_named: bool,
}

impl Door {
    /// Whether it speaks TLS.
    pub(super) fn encrypts(&self) -> bool {
        ["mqtts:", "wss:"]
            .iter()
            .any(|scheme| self.listener.url.starts_with(scheme))
    }

    fn is_like(&self, other: &Self) -> bool {
        let list = |it: &Self| it.access.acl_file.as_ref().map(Line::path);
        let decides = |it: &Self| (it.access.is_closed, it.is_for_named);
        list(self) == list(other) && decides(self) == decides(other)
    }

    /// The rules of its clients, in a broker that allows nothing else.
    fn rules(&self, has_users: bool, report: &mut Report) -> Result<Vec<Rule>, String> {
        match &self.access.acl_file {
            Some(line) if self.access.is_closed => {
                report.less(line, "not translated, because something else decides, too");
                Ok(Vec::new())
            }
            None if self.access.is_closed => Ok(Vec::new()),
            Some(line) => acl::rules(line, self.is_for_named, has_users, report),
            None => Ok(vec![Rule {
                users: if self.is_for_named {
                    vec!["*".to_owned()]
                } else {
                    Vec::new()
                },
                effect: Effect::Allow,
                topics: vec!["#".to_owned(), "$SYS/#".to_owned()],
                ..Rule::default()
            }]),
        }
    }
}

/// Writes the rules. Where the doors differ, they get names, and each its own rules.
///
/// # Errors
/// An access control list cannot be read.
pub(super) fn authorize(
    doors: &mut [Door],
    has_users: bool,
    authorization: &mut Authorization,
    report: &mut Report,
) -> Result<(), String> {
    let is_open = |door: &Door| {
        door.access.acl_file.is_none() && !door.access.is_closed && !door.is_for_named
    };
    if doors.iter().all(is_open) {
        return Ok(());
    }
    authorization.default_allow = false;
    let is_one = doors.windows(2).all(|pair| pair[0].is_like(&pair[1]));
    if !is_one {
        name(doors);
    }
    for (at, door) in doors.iter().enumerate() {
        if doors[..at].iter().any(|other| other.is_like(door)) {
            continue;
        }
        let alike = doors.iter().filter(|other| !is_one && other.is_like(door));
        let names: Vec<String> = alike.filter_map(|it| it.listener.name.clone()).collect();
        for mut rule in door.rules(has_users, report)? {
            rule.listeners.clone_from(&names);
            authorization.rules.push(rule);
        }
    }
    Ok(())
}

/// Names listeners by their schemes and ports.
fn name(doors: &mut [Door]) {
    let mut taken: Vec<String> = Vec::new();
    for door in doors {
        let (scheme, rest) = door.listener.url.split_once("://").unwrap_or_default();
        let port = rest.rsplit_once(':').map_or("", |(_, port)| port);
        let base = format!("{scheme}-{port}");
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let free = std::iter::once(base.clone())
            .chain(numbered)
            .find(|name| !taken.contains(name));
        taken.extend(free.clone());
        door.listener.name = free;
    }
}
