//! Mosquitto's access control list as rules.

use sterna_server::authorization::check_topic;
use sterna_server::config::{ActionName, Effect, Rule};

use super::Report;
use super::source::{self, Line};

/// The users whose topics follow.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Subject {
    /// Clients without a name: before the first user.
    Nameless,
    User(String),
    /// A pattern.
    Every,
}

/// One line of the list.
struct Entry {
    subject: Subject,
    effect: Effect,
    actions: Vec<ActionName>,
    topic: String,
}

/// Reads the list that a line names, as rules in the order in which they decide. In Mosquitto a client's own topics
/// come before patterns, and denials before permissions.
///
/// `is_for_named`: clients without a user name get nothing. `has_users`: clients can show that they are a user.
///
/// # Errors
/// The list cannot be read.
pub(super) fn rules(
    named_by: &Line,
    is_for_named: bool,
    has_users: bool,
    report: &mut Report,
) -> Result<Vec<Rule>, String> {
    let entries = entries(&source::lines(&named_by.path())?, report);
    if entries
        .iter()
        .any(|it| it.effect == Effect::Deny || it.topic != "#")
    {
        report.less(
            named_by,
            "a subscription that is wider than what is allowed is refused; Mosquitto takes it, and delivers a part",
        );
    }
    let is_of_user = |it: &Entry| matches!(it.subject, Subject::User(_)) || it.topic.contains("%u");
    if !has_users && entries.iter().any(is_of_user) {
        report.less(
            named_by,
            "without a password file Mosquitto believes any user name; here nobody has one, and such rules fit nobody",
        );
    }
    let mut rules = Vec::new();
    let mut users: Vec<&Subject> = Vec::new();
    for entry in &entries {
        if matches!(entry.subject, Subject::User(_)) && !users.contains(&&entry.subject) {
            users.push(&entry.subject);
        }
    }
    for user in users {
        add(&entries, user, &mut rules);
    }
    let begin = rules.len();
    add(&entries, &Subject::Every, &mut rules);
    if is_for_named {
        for rule in &mut rules[begin..] {
            rule.users = vec!["*".to_owned()];
        }
    } else if entries
        .iter()
        .any(|entry| entry.subject == Subject::Nameless)
    {
        // A rule for every client is for the nameless only where nobody else gets so far.
        rules.push(Rule {
            users: vec!["*".to_owned()],
            effect: Effect::Deny,
            topics: vec!["#".to_owned(), "$SYS/#".to_owned()],
            ..Rule::default()
        });
        add(&entries, &Subject::Nameless, &mut rules);
    }
    Ok(rules)
}

fn entries(lines: &[Line], report: &mut Report) -> Vec<Entry> {
    let mut subject = Subject::Nameless;
    let mut entries = Vec::new();
    for line in lines {
        let subject = match line.key.as_str() {
            "user" => {
                subject = Subject::User(line.value.clone());
                continue;
            }
            "topic" => subject.clone(),
            "pattern" => Subject::Every,
            _ => {
                report.less(line, "no entry of an access control list");
                continue;
            }
        };
        let both = vec![ActionName::Publish, ActionName::Subscribe];
        let first = line.value.split_once([' ', '\t']);
        let (effect, actions, topic) = match first {
            Some(("read", topic)) => (Effect::Allow, vec![ActionName::Subscribe], topic),
            Some(("write", topic)) => (Effect::Allow, vec![ActionName::Publish], topic),
            Some(("readwrite", topic)) => (Effect::Allow, both, topic),
            // Without actions a rule denies all.
            Some(("deny", topic)) => (Effect::Deny, Vec::new(), topic),
            _ => (Effect::Allow, both, line.value.as_str()),
        };
        let mut topic = topic.trim().to_owned();
        if let Err(why) = check_topic(ActionName::Subscribe, &topic) {
            report.less(line, &why);
            if effect == Effect::Allow {
                continue;
            }
            // Nobody knows what was meant.
            "#".clone_into(&mut topic);
        }
        // It would be every user in a rule.
        if subject == Subject::User("*".to_owned()) && effect == Effect::Allow {
            report.less(line, "a user cannot have the name `*` in rules");
            continue;
        }
        // Mosquitto fills in names in patterns only, and here they are filled in everywhere.
        if line.key == "topic" && (topic.contains("%u") || topic.contains("%c")) {
            report.less(
                line,
                "%u and %c mean themselves there, and cannot be said here",
            );
            if effect == Effect::Allow {
                continue;
            }
            topic = widened(&topic);
        }
        if topic.contains("%c") {
            report.note(
                line,
                "%c is the client's own choice, unless [[authentication.client_ids]] binds it to users",
            );
        }
        entries.push(Entry {
            subject,
            effect,
            actions,
            topic,
        });
    }
    entries
}

/// The topic with any text in the levels that have a name to fill in.
fn widened(topic: &str) -> String {
    let levels = topic.split('/').map(|level| {
        if level.contains("%u") || level.contains("%c") {
            "+"
        } else {
            level
        }
    });
    levels.collect::<Vec<_>>().join("/")
}

/// Adds the rules of a subject: one for all entries that differ in their topics only.
fn add(entries: &[Entry], subject: &Subject, rules: &mut Vec<Rule>) {
    let users = match subject {
        Subject::User(name) => vec![name.clone()],
        Subject::Every | Subject::Nameless => Vec::new(),
    };
    let begin = rules.len();
    for effect in [Effect::Deny, Effect::Allow] {
        let of_effect = |entry: &&Entry| entry.subject == *subject && entry.effect == effect;
        for entry in entries.iter().filter(of_effect) {
            let is_alike =
                |rule: &&mut Rule| rule.effect == effect && rule.actions == entry.actions;
            match rules[begin..].iter_mut().find(is_alike) {
                Some(rule) => rule.topics.push(entry.topic.clone()),
                None => rules.push(Rule {
                    users: users.clone(),
                    effect,
                    actions: entry.actions.clone(),
                    topics: vec![entry.topic.clone()],
                    ..Rule::default()
                }),
            }
        }
    }
}
