//! `sterna acl`: what the rules of a configuration decide, and by which rule.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use sterna_auth::PasswordFile;
use sterna_server::authorization::{
    Condition, Decision, MessageKind, Origin, Reading, Reason, Rules, Subject, check_topic,
};
use sterna_server::config::{self, ActionName, Authorization, Config, Rule, TransportName};

use super::exit;
use super::serve::Source;

/// Explain the rules of a configuration.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Explain(Explain),
}

/// Say whether a client may do something, and name the rule that decides.
///
/// The configuration is judged as a broker would judge it. Exit code 0: the action is allowed, also a subscription in
/// part. Exit code 2: it is refused. Exit code 1: the command line or the configuration is wrong.
#[derive(Debug, ClapArgs)]
struct Explain {
    #[command(flatten)]
    source: Source,

    /// User name; without it, a client without a name
    #[arg(short, long, value_name = "NAME")]
    user: Option<String>,

    /// Client identifier; HTTP has none
    #[arg(long, value_name = "ID", default_value = "")]
    client: String,

    /// Decide as if the user were in this group too (repeatable)
    #[arg(short, long = "group", value_name = "NAME", requires = "user")]
    groups: Vec<String>,

    /// Address of the client
    #[arg(short, long, value_name = "ADDRESS")]
    address: Option<IpAddr>,

    /// Transport of the client
    #[arg(short, long)]
    transport: Option<Transport>,

    /// Name of the listener by which the client speaks
    #[arg(short, long, value_name = "NAME")]
    listener: Option<String>,

    /// Quality of service of the message that is published
    #[arg(short, long, value_parser = clap::value_parser!(u8).range(..=2))]
    qos: Option<u8>,

    /// Whether the message is to be retained
    #[arg(short, long, value_name = "true|false")]
    retain: Option<bool>,

    /// Whether the message comes in early data
    #[arg(short, long, value_name = "true|false")]
    early_data: Option<bool>,

    /// Action of the client
    action: Action,

    /// Topic name, or the filter of a subscription (of a shared one: what follows the share name)
    topic: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    Publish,
    Subscribe,
    Delete,
}

/// By what a client speaks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Transport {
    Tcp,
    Tls,
    Ws,
    Wss,
    Quic,
}

impl Transport {
    /// Its name on the command line and in configurations.
    pub(super) fn name(self) -> Option<String> {
        Some(self.to_possible_value()?.get_name().to_owned())
    }
}

impl From<Transport> for TransportName {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self::Tcp,
            Transport::Tls => Self::Tls,
            Transport::Ws => Self::Ws,
            Transport::Wss => Self::Wss,
            Transport::Quic => Self::Quic,
        }
    }
}

impl From<Action> for ActionName {
    fn from(action: Action) -> Self {
        match action {
            Action::Publish => Self::Publish,
            Action::Subscribe => Self::Subscribe,
            Action::Delete => Self::Delete,
        }
    }
}

/// Says what is decided.
pub(crate) fn run(args: &Args) -> ExitCode {
    let Task::Explain(args) = &args.task;
    match explain(args) {
        Ok((text, is_allowed)) => {
            // A reader that has closed the output has read enough.
            let _ = io::stdout().write_all(text.as_bytes());
            if is_allowed {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(exit::DENIED)
            }
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(exit::USAGE)
        }
    }
}

fn explain(args: &Explain) -> Result<(String, bool), String> {
    let path = args.source.config.as_deref();
    let said = |error: config::ConfigError| error.to_string();
    let config = config::load(path, std::env::vars()).map_err(said)?;
    let mut authorization = config.authorization.clone();
    for name in &args.groups {
        let mut groups = authorization.groups.iter_mut();
        let group = groups.find(|group| group.name == *name);
        let group = group.ok_or_else(|| format!("there is no authorization.group `{name}`"))?;
        group.users.extend(args.user.clone());
    }
    check_topic(args.action.into(), &args.topic)?;
    let rules = Rules::new(&authorization, &config.listeners);
    let place = |name: &String| {
        let place = rules.listener(name);
        place.ok_or_else(|| format!("no listener has the name `{name}`"))
    };
    let subject = Subject {
        user: args.user.as_deref(),
        client: &args.client,
        origin: Origin {
            address: args.address.map(|address| address.to_canonical()),
            transport: args.transport.map(Into::into),
            listener: args.listener.as_ref().map(place).transpose()?,
        },
        standing: None,
    };
    let kind = MessageKind {
        qos: args.qos,
        retain: args.retain,
        early_data: args.early_data,
    };
    let (decision, open) = rules.explain_best(subject, args.action.into(), &args.topic, kind);
    let places = Places::of(path, &config);
    let mut text = places.text(args, &decision, &authorization);
    text += &depends_on(open.into_iter().map(Condition::name));
    if let Some(note) = without_password(args, &config) {
        let _ = writeln!(text, "{note}");
    }
    Ok((text, decision.reading != Reading::Refused))
}

/// A note on a user that the password file does not have. The rules decide about any name.
fn without_password(args: &Explain, config: &Config) -> Option<String> {
    let user = args.user.as_deref()?;
    let file = config.authentication.password_file.as_deref()?;
    let text = fs::read_to_string(file).ok()?;
    let known = PasswordFile::parse(&text).ok()?.has(user);
    let file = file.display();
    (!known).then(|| {
        format!(
            "`{user}` has no password in {file}: only a token, a certificate or a service can be it"
        )
    })
}

/// The sentence about what a decision depends on, too; empty for nothing.
pub(super) fn depends_on<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let flags: Vec<String> = names
        .map(|name| format!("--{}", name.replace('_', "-")))
        .collect();
    if flags.is_empty() {
        return String::new();
    }
    let flags = flags.join(", ");
    format!(
        "it also depends on {flags}, which you did not give: this is the best case for the client\n"
    )
}

/// Where the rules are.
struct Places {
    file: String,
    lines: Vec<usize>,
}

impl Places {
    fn of(path: Option<&Path>, config: &Config) -> Self {
        let text = path.and_then(|path| fs::read_to_string(path).ok());
        let text = text.unwrap_or_default();
        let file = path.map(|path| path.display().to_string());
        let of_file = config::parse("", &text).ok();
        // Where a variable has replaced them, the rules are not those of the file.
        let is_same = of_file
            .is_some_and(|of_file| of_file.authorization.rules == config.authorization.rules);
        Self {
            file: file.unwrap_or_default(),
            lines: if is_same {
                config::rule_lines(&text)
            } else {
                Vec::new()
            },
        }
    }

    fn text(&self, args: &Explain, decision: &Decision, authorization: &Authorization) -> String {
        let verdict = match decision.reading {
            Reading::Whole => "allowed",
            Reading::Part => "allowed in part",
            Reading::Refused => "refused",
            Reading::Asked => "asked of the webhook",
        };
        let mut text = format!(
            "{verdict}: {}\n",
            self.reason(decision.reason, authorization)
        );
        if decision.reading == Reading::Part {
            for reason in &decision.denied_in_part {
                let reason = self.reason(*reason, authorization);
                let _ = writeln!(text, "some of its topics are refused: {reason}");
            }
            text += "each message is decided by its topic\n";
        }
        if let Some(user) = &args.user {
            let groups: Vec<&str> = (authorization.groups.iter())
                .filter(|group| group.users.contains(user))
                .map(|group| group.name.as_str())
                .collect();
            if !groups.is_empty() {
                let _ = writeln!(text, "groups of {user}: {}", groups.join(", "));
            }
        }
        text
    }

    fn reason(&self, reason: Reason, authorization: &Authorization) -> String {
        match reason {
            Reason::Rule(at) => {
                let place = match self.lines.get(at) {
                    Some(line) => format!("{}:{line}, rule {}", self.file, at + 1),
                    None => format!("authorization.rule {}", at + 1),
                };
                let rule = authorization.rules.get(at).map(Rule::summary);
                format!("{place} ({})", rule.unwrap_or_default())
            }
            Reason::Administrators => "the broker's own rule about authorization.admins".to_owned(),
            Reason::Default => format!(
                "no rule matches, and authorization.default_allow = {}",
                authorization.default_allow
            ),
            Reason::Server => "topics below $SYS/ are the broker's".to_owned(),
            Reason::Nothing => {
                "no rule gives this right, and authorization.default_allow does not".to_owned()
            }
        }
    }
}
