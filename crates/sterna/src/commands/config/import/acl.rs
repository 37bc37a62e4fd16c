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
pub(super) fn rules(named_by: &Line, report: &mut Report) -> Result<Vec<Rule>, String> {
    let entries = entries(&source::lines(&named_by.path())?, report);
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
    add(&entries, &Subject::Every, &mut rules);
    if entries
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
                report.missing(line, "no entry of an access control list");
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
        let topic = topic.trim().to_owned();
        if let Err(why) = check_topic(ActionName::Subscribe, &topic) {
            report.missing(line, &why);
            continue;
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
