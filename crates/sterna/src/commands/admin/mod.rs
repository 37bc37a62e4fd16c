//! `sterna admin`: what operators see of a running broker, and change in it.

pub(super) mod connection;
mod rules;
mod sessions;
mod shown;
pub(super) mod table;

use std::fmt::Display;
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use serde_json::{Value, json};
use sterna_client::QoS;
use sterna_client::arguments::qos;
use sterna_client::http::Method;

use super::exit::{self, Failure};
use connection::{Admin, Connection, segment};
use sessions::Sessions;
use shown::{Shown, write};
use table::Column;

/// See and change what is in a running broker, by its admin listener.
///
/// The broker's operators need a role: `viewer`, `operator` or `admin` (docs/admin.md).
#[derive(ClapArgs, Debug)]
#[command(after_help = help(), mut_args(|argument| argument.global(true)))]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print JSON: a line for each entry of a list
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Most entries of a list
    #[arg(
        long,
        value_name = "N",
        default_value = "1000",
        value_parser = at_least_one,
        help_heading = "Output"
    )]
    limit: usize,
    /// Ask this node of the cluster alone, by way of the listener
    #[arg(
        id = "of_node",
        long = "node",
        value_name = "NODE",
        help_heading = "Connection"
    )]
    node: Option<String>,
    /// Ask the node of the listener alone, and no other one of its cluster
    #[arg(long, conflicts_with = "of_node", help_heading = "Connection")]
    local: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// User and role of the sender
    Me,
    /// The process: version, listeners, shards, counts
    Node,
    /// Connections of clients
    #[command(subcommand)]
    Clients(Clients),
    /// Sessions, also of clients that are away
    #[command(subcommand)]
    Sessions(Sessions),
    /// Subscriptions of all sessions
    Subscriptions {
        /// Only those that get messages of this topic
        #[arg(id = "read_topic", long = "topic", value_name = "TOPIC")]
        topic: Option<String>,
        /// Only those of exactly this filter
        #[arg(long, value_name = "FILTER")]
        filter: Option<String>,
    },
    /// How many readers a message of a topic has now
    Topic {
        #[arg(id = "read_topic", value_name = "TOPIC")]
        topic: String,
    },
    /// AMQP queues
    #[command(subcommand)]
    Queues(Queues),
    /// Retained messages
    #[command(subcommand)]
    Retained(Retained),
    /// Publish a message
    Publish(Publish),
    /// Users, clients and addresses that may not come in for a while
    Bans,
    /// Ban a user, a client, an address, or what is all of these, and end their connections
    Ban(Ban),
    /// Lift a ban
    Unban {
        /// Its number, as `bans` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Read the configuration and the files that it names again
    Reload {
        /// Put nothing in force, and say what would be: settings that need a restart, and subscriptions that would
        /// lose their right
        #[arg(long)]
        dry_run: bool,
    },
    /// End the broker in order, as SIGTERM does
    Drain,
    /// The store on disk
    Store,
    /// Resident memory by kind
    Memory,
    /// The clock by which the node dates what it keeps
    #[command(subcommand)]
    Clock(Clock),
    /// The certificates that listeners present
    Certificates,
    /// The rules in force: who may publish and subscribe where
    #[command(subcommand)]
    Rules(rules::Rules),
    /// The description of the API for machines (OpenAPI 3.1)
    Openapi,
}

#[derive(Debug, Subcommand)]
enum Clock {
    /// Show it, the wall clock, and whether that is believed
    Show,
    /// Have the next start believe the wall clock, however far it is from the last record
    Accept,
}

#[derive(Debug, Subcommand)]
enum Clients {
    /// List them
    List {
        /// Only those of this name
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Only those of this user
        #[arg(long, value_name = "USER")]
        by: Option<String>,
        /// The greatest first
        #[arg(long, value_name = "BY", value_parser = ["rtt", "loss", "queue", "bytes", "messages", "name"])]
        sort: Option<String>,
    },
    /// Show one, with its path
    Show(Client),
    /// End its connection; it may come back
    Disconnect(Client),
}

#[derive(ClapArgs, Debug)]
struct Client {
    /// Its name, or the id of its connection
    #[arg(value_name = "CLIENT")]
    client: String,
}

#[derive(Debug, Subcommand)]
enum Queues {
    /// List them
    List,
    /// Show one
    Show(Queue),
    /// Remove one that no configuration declares, with the messages that wait in it
    Remove(Queue),
    /// List messages that wait, first the one that is delivered next; nothing is taken
    Peek(Queue),
    /// Remove messages that wait, from the front
    Purge {
        #[command(flatten)]
        queue: Queue,
        /// Only so many [default: all that wait now]
        #[arg(long, value_name = "N")]
        messages: Option<u64>,
    },
    /// Move messages that wait to another queue, from the front
    Move {
        #[command(flatten)]
        queue: Queue,
        /// The other queue
        #[arg(long, value_name = "QUEUE")]
        to: String,
        /// Only so many [default: all that wait now]
        #[arg(long, value_name = "N")]
        messages: Option<u64>,
    },
}

#[derive(ClapArgs, Debug)]
struct Queue {
    /// Its name, without the `queue/` of its address
    #[arg(value_name = "QUEUE")]
    queue: String,
}

#[derive(Debug, Subcommand)]
enum Retained {
    /// List those whose topics match a filter
    List {
        #[arg(value_name = "FILTER", default_value = "#")]
        filter: String,
    },
    /// Show that of a topic
    Show {
        #[arg(value_name = "TOPIC")]
        topic: String,
    },
    /// Delete that of a topic; subscribers are not told
    Delete {
        #[arg(value_name = "TOPIC")]
        topic: String,
    },
}

#[derive(ClapArgs, Debug)]
struct Publish {
    /// Its topic
    #[arg(short = 't', long, value_name = "TOPIC")]
    topic: String,
    /// Its payload
    #[arg(
        short = 'm',
        long,
        value_name = "TEXT",
        default_value = "",
        allow_hyphen_values = true
    )]
    message: String,
    /// Quality of service: 0, 1 or 2
    #[arg(short = 'q', long, value_name = "QOS", default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Keep it as the topic's retained message
    #[arg(short = 'r', long)]
    retain: bool,
}

#[derive(ClapArgs, Debug)]
#[command(
    override_usage = "sterna admin ban <--ban-user NAME|--ban-client ID|--ban-address ADDRESS>... [OPTIONS]"
)]
struct Ban {
    /// Name of the user
    #[arg(id = "ban_user", long = "ban-user", value_name = "NAME")]
    user: Option<String>,
    /// Client identifier of MQTT, or container-id of AMQP
    #[arg(id = "ban_client", long = "ban-client", value_name = "ID")]
    client: Option<String>,
    /// Address, or a prefix such as 10.0.0.0/8
    #[arg(id = "ban_address", long = "ban-address", value_name = "ADDRESS")]
    address: Option<String>,
    /// Why, in words
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// How long, in seconds [default: for ever]
    #[arg(long, value_name = "SECONDS")]
    expiry: Option<u32>,
}

fn help() -> String {
    format!(
        "\
Examples:
  sterna admin clients list
  sterna admin clients show sensor-7
  sterna admin subscriptions --topic house/door
  sterna admin sessions end sensor-7 --user greenhouse -L admins://broker.example -u ann --cafile ca.pem
  sterna admin queues move dead-letters --to orders
  sterna admin retained list 'house/#' --json

{}",
        exit::HELP
    )
}

const CLIENTS: [Column; 13] = [
    ("ID", "/id"),
    ("NAME", "/name"),
    ("USER", "/user"),
    ("PROTOCOL", "/protocol"),
    ("TRANSPORT", "/transport"),
    ("PEER", "/peer"),
    ("SINCE", "/since_ms"),
    ("IN", "/messages_received"),
    ("OUT", "/messages_sent"),
    ("RTT us", "/path/rtt_us"),
    ("LOST", "/path/lost_packets"),
    ("PENDING", "/pending"),
    ("IN FLIGHT", "/unacknowledged"),
];
const SESSIONS: [Column; 8] = [
    ("NAME", "/name"),
    ("USER", "/user"),
    ("PROTOCOL", "/protocol"),
    ("CONNECTED", "/connected"),
    ("EXPIRY s", "/expiry_s"),
    ("SUBSCRIPTIONS", "/subscriptions"),
    ("PENDING", "/pending"),
    ("IN FLIGHT", "/unacknowledged"),
];
const SUBSCRIPTIONS: [Column; 6] = [
    ("FILTER", "/filter"),
    ("QOS", "/qos"),
    ("NO LOCAL", "/no_local"),
    ("AS PUBLISHED", "/retain_as_published"),
    ("IDENTIFIER", "/identifier"),
    ("RESTING", "/resting"),
];
const ALL_SUBSCRIPTIONS: [Column; 6] = [
    ("FILTER", "/filter"),
    ("SESSION", "/session"),
    ("USER", "/user"),
    ("QOS", "/qos"),
    ("IDENTIFIER", "/identifier"),
    ("RESTING", "/resting"),
];
const QUEUES: [Column; 9] = [
    ("NAME", "/name"),
    ("FILTER", "/filter"),
    ("MESSAGES", "/messages"),
    ("DELAYED", "/delayed"),
    ("BYTES", "/bytes"),
    ("CONSUMERS", "/consumers"),
    ("MAX DELIVERIES", "/maximum_deliveries"),
    ("DEAD LETTERS", "/dead_letter"),
    ("NODE", "/node"),
];
const RETAINED: [Column; 4] = [
    ("TOPIC", "/topic"),
    ("QOS", "/qos"),
    ("BYTES", "/payload_bytes"),
    ("PAYLOAD", "/payload"),
];
const WAITING: [Column; 8] = [
    ("TOPIC", "/topic"),
    ("QOS", "/qos"),
    ("BYTES", "/payload_bytes"),
    ("FAILURES", "/failures"),
    ("DEAD BY", "/dead_letter/cause"),
    ("FROM QUEUE", "/dead_letter/queue"),
    ("FAILED THERE", "/dead_letter/failures"),
    ("PAYLOAD", "/payload"),
];
const CERTIFICATES: [Column; 5] = [
    ("SUBJECT", "/subject"),
    ("EXPIRES", "/expires_s"),
    ("DEVELOPMENT", "/is_for_development"),
    ("FILE", "/file"),
    ("FINGERPRINT", "/fingerprint"),
];

const BANS: [Column; 8] = [
    ("ID", "/id"),
    ("USER", "/user"),
    ("CLIENT", "/client"),
    ("ADDRESS", "/address"),
    ("CAUSE", "/cause"),
    ("SINCE", "/since_ms"),
    ("UNTIL", "/until_ms"),
    ("REASON", "/reason"),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    exit::code(super::block_on(act(args)), false)
}

async fn act(args: &Args) -> Result<(), Failure> {
    let scope = match (&args.node, args.local) {
        (Some(node), _) => Some(format!("node={}", segment(node))),
        (None, true) => Some("local=yes".to_owned()),
        (None, false) => None,
    };
    let admin = args.connection.client()?.within(scope);
    let shown = match &args.action {
        Action::Me => one(&admin, "/me").await?,
        Action::Rules(action) => rules::act(&admin, action).await?,
        Action::Node => one(&admin, "/node").await?,
        Action::Store => one(&admin, "/store").await?,
        Action::Memory => one(&admin, "/memory").await?,
        Action::Clock(Clock::Show) => one(&admin, "/clock").await?,
        Action::Clock(Clock::Accept) => {
            let answer = admin.call(Method::Post, "/clock/accept", None).await?;
            let text = "the wall clock is believed from the next start on: restart the broker";
            Shown::Told(answer, text.to_owned())
        }
        Action::Openapi => {
            // It is for machines in any case.
            let document = admin.get("/openapi.json").await?;
            return write(&format!("{document:#}\n"));
        }
        Action::Certificates => {
            let mut certificates = admin.get("/certificates").await?;
            match certificates["items"].take() {
                Value::Array(items) => Shown::List(&CERTIFICATES, items.into()),
                other => Shown::One(other),
            }
        }
        Action::Clients(action) => clients(&admin, action, args.limit).await?,
        Action::Sessions(action) => sessions::act(&admin, action, args.limit).await?,
        Action::Subscriptions { topic, filter } => {
            let path = path("/subscriptions", &[("topic", topic), ("filter", filter)]);
            list(&admin, &ALL_SUBSCRIPTIONS, &path, args.limit).await?
        }
        Action::Topic { topic } => one(&admin, &format!("/topics/{}", segment(topic))).await?,
        Action::Queues(action) => queues(&admin, action, args.limit).await?,
        Action::Retained(action) => retained(&admin, action, args.limit).await?,
        Action::Publish(publish) => {
            let content = json!({
                "topic": publish.topic,
                "payload": publish.message,
                "qos": publish.qos as u8,
                "retain": publish.retain,
            });
            Shown::One(admin.call(Method::Post, "/publish", Some(&content)).await?)
        }
        Action::Bans => list(&admin, &BANS, "/bans", args.limit).await?,
        Action::Ban(ban) => {
            if [&ban.user, &ban.client, &ban.address]
                .iter()
                .all(|it| it.is_none())
            {
                let text = "a ban names somebody: --ban-user NAME, --ban-client ID, --ban-address ADDRESS, \
                            or several of these";
                return Err(Failure::local(text));
            }
            let content = [
                ("user", ban.user.clone().map(Value::from)),
                ("client", ban.client.clone().map(Value::from)),
                ("address", ban.address.clone().map(Value::from)),
                ("reason", ban.reason.clone().map(Value::from)),
                ("expiry_s", ban.expiry.map(Value::from)),
            ];
            let content: serde_json::Map<String, Value> = (content.into_iter())
                .filter_map(|(name, value)| Some((name.to_owned(), value?)))
                .collect();
            Shown::One(
                admin
                    .call(Method::Post, "/bans", Some(&content.into()))
                    .await?,
            )
        }
        Action::Unban { id } => {
            let path = format!("/bans/{}", segment(id));
            let answer = admin.call(Method::Delete, &path, None).await?;
            Shown::done(answer, format_args!("ban {id} is lifted"))
        }
        Action::Reload { dry_run } => {
            let path = if *dry_run {
                "/reload?dry_run=yes"
            } else {
                "/reload"
            };
            let answer = admin.call(Method::Post, path, None).await?;
            let text = reloaded(&answer, *dry_run);
            Shown::Told(answer, text)
        }
        Action::Drain => {
            let answer = admin.call(Method::Post, "/drain", None).await?;
            let words = match answer["node"].as_str() {
                Some(node) => format!("node {node} is ending, and no other"),
                None => "the broker is ending".to_owned(),
            };
            Shown::done(Value::Null, words)
        }
    };
    shown.print(args.json)
}

/// The answer to a reload in words.
fn reloaded(answer: &Value, is_dry_run: bool) -> String {
    let number = |name: &str| answer[name].as_u64().unwrap_or(0);
    let many = |number: u64, what: &str| {
        let end = if number == 1 { "" } else { "s" };
        format!("{number} {what}{end}")
    };
    let (subscriptions, sessions) = (number("lost_subscriptions"), number("lost_sessions"));
    let (is, lost) = if is_dry_run {
        ("can be put", "would lose")
    } else {
        ("is", "lost")
    };
    let lost = if subscriptions == 0 {
        String::new()
    } else {
        let (subscriptions, sessions) = (
            many(subscriptions, "subscription"),
            many(sessions, "session"),
        );
        format!("{subscriptions} of {sessions} {lost} their right\n")
    };
    let judging = if answer["judging"] == true {
        "sessions that are away are still to be judged\n"
    } else {
        ""
    };
    let lost = lost + judging;
    let place = (answer["node"].as_str())
        .map(|node| format!(" at node {node}, and no other"))
        .unwrap_or_default();
    let settings = answer["unchanged"].as_array().into_iter().flatten();
    let settings: Vec<String> = settings.map(|it| table::cell(Some(it))).collect();
    if settings.is_empty() {
        return format!("the configuration {is} in force{place}\n{lost}");
    }
    let settings = settings.join(", ");
    format!(
        "the configuration {is} in force{place}, but changes of {settings} need a restart\n{lost}"
    )
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a number from 1 on".to_owned())
}

async fn one(admin: &Admin, path: &str) -> Result<Shown, Failure> {
    admin.get(path).await.map(Shown::One)
}

async fn list(
    admin: &Admin,
    columns: &'static [Column],
    path: &str,
    most: usize,
) -> Result<Shown, Failure> {
    let listed = admin.list(path, most).await?;
    Ok(Shown::List(columns, listed))
}

/// A path with the parameters that are given.
fn path(resource: &str, parameters: &[(&str, &Option<String>)]) -> String {
    let given = (parameters.iter())
        .filter_map(|(name, value)| Some(format!("{name}={}", segment(value.as_ref()?))));
    let given: Vec<String> = given.collect();
    if given.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}?{}", given.join("&"))
    }
}

/// The connection that a name or an id stands for.
async fn find(admin: &Admin, wanted: &str) -> Result<Value, Failure> {
    // In a cluster its node is in front.
    let number = wanted.rsplit(':').next().unwrap_or_default();
    let is_id = number.split('.').count() == 3
        && number
            .bytes()
            .all(|byte| byte == b'.' || byte.is_ascii_digit());
    if is_id && let Ok(client) = admin.get(&format!("/clients/{}", segment(wanted))).await {
        return Ok(client);
    }
    let path = format!("/clients?name={}", segment(wanted));
    let listed = admin.list(&path, 10).await?;
    let mut found = listed.items;
    match found.len() {
        0 if !listed.unanswered.is_empty() => {
            let nodes = table::harmless(&listed.unanswered.join(", "));
            let text =
                format!("no node that answers has a client {wanted}; no answer from {nodes}");
            Err(Failure::new(exit::UNREACHABLE, text))
        }
        0 => Err(Failure::new(
            exit::NO_TOPIC,
            format_args!("no client is connected as {wanted}"),
        )),
        1 => Ok(found.remove(0)),
        _ => {
            let ids: Vec<String> = found
                .iter()
                .map(|client| table::cell(client.get("id")))
                .collect();
            let ids = ids.join(", ");
            let text =
                format!("several connections have the name {wanted}: name one by its id: {ids}");
            Err(Failure::local(text))
        }
    }
}

async fn clients(admin: &Admin, action: &Clients, most: usize) -> Result<Shown, Failure> {
    match action {
        Clients::List { name, by, sort } => {
            let path = path("/clients", &[("name", name), ("user", by), ("sort", sort)]);
            list(admin, &CLIENTS, &path, most).await
        }
        Clients::Show(Client { client }) => find(admin, client).await.map(Shown::One),
        Clients::Disconnect(Client { client }) => {
            let found = find(admin, client).await?;
            let id = found["id"].as_str().unwrap_or_default();
            let path = format!("/clients/{}", segment(id));
            let answer = admin.call(Method::Delete, &path, None).await?;
            let words = format_args!("{client} is disconnected");
            Ok(Shown::done(answer, words))
        }
    }
}

/// A failure with a hint, where nothing has the name that was given.
fn hinted(failure: Failure, hint: impl Display) -> Failure {
    if failure.code != exit::NO_TOPIC {
        return failure;
    }
    Failure::new(failure.code, format_args!("{}; {hint}", failure.text))
}

async fn queues(admin: &Admin, action: &Queues, most: usize) -> Result<Shown, Failure> {
    let (queue, other) = match action {
        Queues::List => (None, None),
        Queues::Show(queue)
        | Queues::Remove(queue)
        | Queues::Peek(queue)
        | Queues::Purge { queue, .. } => (Some(&queue.queue), None),
        Queues::Move { queue, to, .. } => (Some(&queue.queue), Some(to)),
    };
    let mut addresses = queue.into_iter().chain(other);
    let name = addresses.find_map(|name| name.strip_prefix("queue/"));
    let shown = about_queue(admin, action, most).await;
    shown.map_err(|failure| match name {
        Some(name) => hinted(
            failure,
            format_args!("the queue of the address queue/{name} is called {name}"),
        ),
        None => failure,
    })
}

async fn about_queue(admin: &Admin, action: &Queues, most: usize) -> Result<Shown, Failure> {
    let of = |queue: &Queue| format!("/queues/{}", segment(&queue.queue));
    match action {
        Queues::List => list(admin, &QUEUES, "/queues", most).await,
        Queues::Show(queue) => one(admin, &of(queue)).await,
        Queues::Remove(queue) => {
            let answer = admin.call(Method::Delete, &of(queue), None).await?;
            let words = format_args!("the queue {} is removed", queue.queue);
            Ok(Shown::done(answer, words))
        }
        Queues::Peek(queue) => {
            list(admin, &WAITING, &format!("{}/messages", of(queue)), most).await
        }
        Queues::Purge { queue, messages } => {
            let path = format!("{}/messages", of(queue));
            change_queue(admin, &of(queue), *messages, Method::Delete, &path, None).await
        }
        Queues::Move {
            queue,
            to,
            messages,
        } => {
            let path = format!("{}/move", of(queue));
            change_queue(admin, &of(queue), *messages, Method::Post, &path, Some(to)).await
        }
    }
}

/// Messages of one request; the broker may take fewer.
const CHANGES: u64 = 1_000;

/// Purges or moves messages: those that wait now, or fewer, some at a time.
async fn change_queue(
    admin: &Admin,
    queue: &str,
    messages: Option<u64>,
    method: Method,
    path: &str,
    to: Option<&String>,
) -> Result<Shown, Failure> {
    let waiting = admin.get(queue).await?["messages"].as_u64().unwrap_or(0);
    let wanted = messages.unwrap_or(waiting).min(waiting);
    let mut done = 0;
    let mut last = json!({ "messages": 0, "left": waiting, "is_refused": false });
    while done < wanted {
        let limit = CHANGES.min(wanted - done);
        last = if let Some(to) = to {
            let content = json!({ "to": to, "limit": limit });
            admin.call(method, path, Some(&content)).await?
        } else {
            admin
                .call(method, &format!("{path}?limit={limit}"), None)
                .await?
        };
        let changed = last["messages"].as_u64().unwrap_or(0);
        done += changed;
        if changed == 0 || last["is_refused"] == true {
            break;
        }
    }
    last["messages"] = done.into();
    // Nothing can refuse what is only removed.
    if let (None, Value::Object(members)) = (to, &mut last) {
        members.remove("is_refused");
    }
    Ok(Shown::One(last))
}

async fn retained(admin: &Admin, action: &Retained, most: usize) -> Result<Shown, Failure> {
    match action {
        Retained::List { filter } => {
            let path = format!("/retained?filter={}", segment(filter));
            list(admin, &RETAINED, &path, most).await
        }
        Retained::Show { topic } => one(admin, &format!("/retained/{}", segment(topic))).await,
        Retained::Delete { topic } => {
            let path = format!("/retained/{}", segment(topic));
            let answer = admin.call(Method::Delete, &path, None).await?;
            let words = format_args!("the retained message of {topic} is deleted");
            Ok(Shown::done(answer, words))
        }
    }
}
