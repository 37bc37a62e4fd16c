//! Every resource of the admin API, in one table: requests are routed by it, and it is described to
//! machines by it.

use std::borrow::Cow;

use sterna_mapping::percent;

use super::parameters::{
    ACTION, AFTER, CHANGES, CLIENT, DRY_RUN, EVENTS, EXACT_FILTER, FILTER, LIMIT,
    MESSAGE_EARLY_DATA, MESSAGE_QOS, MESSAGE_RETAIN, NAME, OWNER, PAYLOADS, Parameter, READ_TOPIC,
    SORT, SUBJECT_ADDRESS, SUBJECT_CLIENT, SUBJECT_GROUPS, SUBJECT_TOPIC, SUBJECT_TRANSPORT,
    SUBJECT_USER, TOPIC, USER,
};
use super::role::Role;
use crate::http::{ProblemKind as Kind, Trouble};

/// The prefix of every path.
pub(super) const PREFIX: &str = "/admin/v1";

/// The operation of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    OpenApi,
    Me,
    Node,
    Clients,
    Client,
    Disconnect,
    Sessions,
    Session,
    EndSession,
    EndSessionsOf,
    Subscriptions,
    AllSubscriptions,
    Topic,
    Queues,
    Queue,
    RemoveQueue,
    Messages,
    Purge,
    Move,
    Retained,
    RetainedMessage,
    DeleteRetained,
    Publish,
    Store,
    Memory,
    Clock,
    AcceptClock,
    Certificates,
    Cluster,
    SetReplicas,
    Rules,
    Explain,
    Bans,
    Ban,
    Lift,
    Trace,
    Reload,
    Drain,
}

/// A method of a resource.
#[derive(Debug)]
pub(super) struct Route {
    /// GET serves HEAD, too.
    pub(super) method: &'static str,
    /// Behind [`PREFIX`]. `{topic}` is all that follows, with its slashes.
    pub(super) template: &'static str,
    pub(super) operation: Operation,
    /// Its name for machines.
    pub(super) id: &'static str,
    /// The least role; `None` where nobody needs one.
    pub(super) role: Option<Role>,
    pub(super) about: &'static str,
    pub(super) parameters: &'static [Parameter],
    /// The schema of the request's content.
    pub(super) content: Option<&'static str>,
    /// The status of success, and the schema of its content.
    pub(super) success: (u16, Option<&'static str>),
    /// The media type of that content.
    pub(super) media_type: &'static str,
    /// Problems beside those that every route has.
    pub(super) problems: &'static [Kind],
}

const fn read(
    template: &'static str,
    operation: Operation,
    id: &'static str,
    schema: &'static str,
    about: &'static str,
) -> Route {
    Route {
        method: "GET",
        template,
        operation,
        id,
        role: Some(Role::Viewer),
        about,
        parameters: &[],
        content: None,
        success: (200, Some(schema)),
        media_type: "application/json",
        problems: &[],
    }
}

/// All routes.
pub(super) const ROUTES: &[Route] = &[
    Route {
        role: None,
        ..read(
            "/openapi.json",
            Operation::OpenApi,
            "openapi",
            "OpenApi",
            "This description",
        )
    },
    read(
        "/me",
        Operation::Me,
        "me",
        "Me",
        "Who asks, and the role of who asks",
    ),
    read(
        "/node",
        Operation::Node,
        "node",
        "Node",
        "The process: version, listeners, shards, and what was counted",
    ),
    Route {
        parameters: &[LIMIT, AFTER, NAME, USER, SORT],
        ..read(
            "/clients",
            Operation::Clients,
            "clients",
            "ClientPage",
            "Connections of clients, with identity, path and queue. A page may be short, or empty, before the last",
        )
    },
    Route {
        problems: &[Kind::NoClient],
        ..read(
            "/clients/{client}",
            Operation::Client,
            "client",
            "Client",
            "One connection, by its id",
        )
    },
    Route {
        method: "DELETE",
        role: Some(Role::Operator),
        success: (204, None),
        problems: &[Kind::NoClient],
        ..read(
            "/clients/{client}",
            Operation::Disconnect,
            "disconnect",
            "",
            "Ends a connection. The client's will is published, its session stays as it is to, and the client may come back",
        )
    },
    Route {
        parameters: &[LIMIT, AFTER],
        ..read(
            "/sessions",
            Operation::Sessions,
            "sessions",
            "SessionPage",
            "Sessions, also of clients that are away. A page may be short, or empty, before the last",
        )
    },
    Route {
        method: "DELETE",
        role: Some(Role::Operator),
        parameters: &[OWNER],
        ..read(
            "/sessions",
            Operation::EndSessionsOf,
            "endSessionsOf",
            "Ended",
            "Ends all sessions of a user on this node, with their subscriptions, queues and wills, and disconnects their clients. No will is published",
        )
    },
    Route {
        problems: &[Kind::NoSession, Kind::SessionBusy],
        ..read(
            "/sessions/{session}",
            Operation::Session,
            "session",
            "Session",
            "One session, by its name",
        )
    },
    Route {
        method: "DELETE",
        role: Some(Role::Operator),
        success: (204, None),
        problems: &[Kind::NoSession, Kind::Conflict],
        ..read(
            "/sessions/{session}",
            Operation::EndSession,
            "endSession",
            "",
            "Ends a session with its subscriptions and queue, and disconnects its client",
        )
    },
    Route {
        parameters: &[LIMIT, AFTER],
        problems: &[Kind::NoSession, Kind::SessionBusy],
        ..read(
            "/sessions/{session}/subscriptions",
            Operation::Subscriptions,
            "subscriptions",
            "SubscriptionPage",
            "Subscriptions of a session, by filter",
        )
    },
    Route {
        parameters: &[LIMIT, AFTER, READ_TOPIC, EXACT_FILTER],
        ..read(
            "/subscriptions",
            Operation::AllSubscriptions,
            "allSubscriptions",
            "SubscriberPage",
            "Subscriptions of all sessions, also of clients that are away. A page may be short, or empty, before the last",
        )
    },
    Route {
        problems: &[Kind::InvalidTopic],
        ..read(
            "/topics/{topic}",
            Operation::Topic,
            "topic",
            "Topic",
            "How many readers a message of a topic has now, and whether one is retained",
        )
    },
    Route {
        parameters: &[LIMIT, AFTER],
        ..read(
            "/queues",
            Operation::Queues,
            "queues",
            "QueuePage",
            "AMQP queues, by name",
        )
    },
    Route {
        problems: &[Kind::NoQueue],
        ..read(
            "/queues/{queue}",
            Operation::Queue,
            "queue",
            "Queue",
            "One queue: what waits, its consumers and its rules",
        )
    },
    Route {
        method: "DELETE",
        role: Some(Role::Operator),
        success: (204, None),
        problems: &[Kind::NoQueue, Kind::Conflict, Kind::SessionBusy],
        ..read(
            "/queues/{queue}",
            Operation::RemoveQueue,
            "removeQueue",
            "",
            "Removes a queue that no configuration declares, with the messages that wait in it",
        )
    },
    Route {
        role: Some(Role::Operator),
        parameters: &[LIMIT, AFTER],
        problems: &[Kind::NoQueue, Kind::QueueElsewhere, Kind::ClusterAway],
        ..read(
            "/queues/{queue}/messages",
            Operation::Messages,
            "messages",
            "MessagePage",
            "Messages that wait in a queue, first the one that is delivered next. Nothing is taken",
        )
    },
    Route {
        method: "DELETE",
        role: Some(Role::Operator),
        parameters: &[CHANGES],
        problems: &[Kind::NoQueue, Kind::QueueElsewhere, Kind::ClusterAway],
        ..read(
            "/queues/{queue}/messages",
            Operation::Purge,
            "purge",
            "QueueChange",
            "Removes messages that wait in a queue, from its front",
        )
    },
    Route {
        method: "POST",
        role: Some(Role::Operator),
        content: Some("Move"),
        problems: &[
            Kind::NoQueue,
            Kind::Conflict,
            Kind::InvalidContent,
            Kind::QueueElsewhere,
            Kind::ClusterAway,
        ],
        ..read(
            "/queues/{queue}/move",
            Operation::Move,
            "move",
            "QueueChange",
            "Moves messages that wait in a queue to another, from its front",
        )
    },
    Route {
        role: Some(Role::Operator),
        parameters: &[FILTER, LIMIT, AFTER],
        problems: &[Kind::InvalidFilter],
        ..read(
            "/retained",
            Operation::Retained,
            "retained",
            "MessagePage",
            "Retained messages. Those that change while pages are read may be missed or come twice",
        )
    },
    Route {
        role: Some(Role::Operator),
        problems: &[Kind::NoRetainedMessage],
        ..read(
            "/retained/{topic}",
            Operation::RetainedMessage,
            "retainedMessage",
            "Message",
            "The retained message of a topic",
        )
    },
    Route {
        method: "DELETE",
        role: Some(Role::Operator),
        success: (204, None),
        problems: &[Kind::NoRetainedMessage],
        ..read(
            "/retained/{topic}",
            Operation::DeleteRetained,
            "deleteRetained",
            "",
            "Removes the retained message of a topic. Subscribers are not told",
        )
    },
    Route {
        method: "POST",
        role: Some(Role::Operator),
        content: Some("Publication"),
        problems: &[
            Kind::InvalidContent,
            Kind::InvalidTopic,
            Kind::QueueFull,
            Kind::StoreFull,
            Kind::RetainedFull,
        ],
        ..read(
            "/publish",
            Operation::Publish,
            "publish",
            "Published",
            "Publishes a message, if the rules let the user publish there",
        )
    },
    read(
        "/store",
        Operation::Store,
        "store",
        "Store",
        "The store on disk",
    ),
    read(
        "/memory",
        Operation::Memory,
        "memory",
        "Memory",
        "Resident memory by kind",
    ),
    Route {
        problems: &[Kind::NoResource],
        ..read(
            "/clock",
            Operation::Clock,
            "clock",
            "Clock",
            "The clock by which the node dates what it keeps, and the wall clock",
        )
    },
    Route {
        method: "POST",
        role: Some(Role::Admin),
        problems: &[Kind::NoResource],
        ..read(
            "/clock/accept",
            Operation::AcceptClock,
            "acceptClock",
            "Clock",
            "Has the next start believe the wall clock, however far it is from the last record",
        )
    },
    read(
        "/certificates",
        Operation::Certificates,
        "certificates",
        "Certificates",
        "The certificates that listeners present",
    ),
    Route {
        problems: &[Kind::ClusterAway],
        ..read(
            "/cluster",
            Operation::Cluster,
            "cluster",
            "Cluster",
            "The nodes of the cluster and its streams in NATS; asks the other nodes",
        )
    },
    Route {
        method: "POST",
        role: Some(Role::Admin),
        success: (204, None),
        problems: &[Kind::Conflict, Kind::ClusterAway],
        ..read(
            "/cluster/replicas/{replicas}",
            Operation::SetReplicas,
            "setClusterReplicas",
            "",
            "Has NATS keep 1 to 5 copies of each stream of the cluster, more or fewer than before",
        )
    },
    read(
        "/rules",
        Operation::Rules,
        "rules",
        "Rules",
        "The rules in force: who may publish and subscribe where",
    ),
    Route {
        parameters: &[
            ACTION,
            SUBJECT_TOPIC,
            SUBJECT_USER,
            SUBJECT_GROUPS,
            SUBJECT_CLIENT,
            SUBJECT_ADDRESS,
            SUBJECT_TRANSPORT,
            MESSAGE_QOS,
            MESSAGE_RETAIN,
            MESSAGE_EARLY_DATA,
        ],
        ..read(
            "/rules/explain",
            Operation::Explain,
            "explain",
            "Explanation",
            "What the rules in force decide about an action, and which of them decides",
        )
    },
    Route {
        parameters: &[LIMIT, AFTER],
        ..read(
            "/bans",
            Operation::Bans,
            "bans",
            "BanPage",
            "Users, clients and addresses that may not come in for a while, by hand or by their behaviour",
        )
    },
    Route {
        method: "POST",
        role: Some(Role::Operator),
        content: Some("BanRequest"),
        problems: &[Kind::InvalidContent, Kind::Conflict],
        ..read(
            "/bans",
            Operation::Ban,
            "ban",
            "Ban",
            "Bans a user, a client, addresses, or what is all of these, and ends their connections",
        )
    },
    Route {
        method: "DELETE",
        role: Some(Role::Operator),
        success: (204, None),
        problems: &[Kind::NoBan],
        ..read("/bans/{ban}", Operation::Lift, "liftBan", "", "Lifts a ban")
    },
    Route {
        role: Some(Role::Operator),
        parameters: &[CLIENT, TOPIC, EVENTS, PAYLOADS],
        media_type: super::trace::MEDIA_TYPE,
        problems: &[Kind::InvalidFilter],
        ..read(
            "/trace",
            Operation::Trace,
            "trace",
            "TraceEvent",
            "The ways of messages as they happen, a line for each event, until the client ends it",
        )
    },
    Route {
        method: "POST",
        role: Some(Role::Admin),
        parameters: &[DRY_RUN],
        problems: &[Kind::ReloadRefused],
        ..read(
            "/reload",
            Operation::Reload,
            "reload",
            "Reloaded",
            "Reads the configuration and the files that it names again, as SIGHUP does",
        )
    },
    Route {
        method: "POST",
        role: Some(Role::Admin),
        success: (202, None),
        ..read(
            "/drain",
            Operation::Drain,
            "drain",
            "",
            "Ends the process in order, as SIGTERM does: no new clients, acknowledgements that wait leave, clients are told goodbye",
        )
    },
];

/// Undoes percent-encoding; `None` where that is broken, or not UTF-8.
fn decode(text: &str) -> Option<Cow<'_, str>> {
    percent::decode_text(text.as_bytes())
}

/// The part of a path that varies. `None` where the template does not match, and an empty text where it has no
/// such part.
fn argument<'p>(template: &str, path: &'p str) -> Option<&'p str> {
    let Some((before, rest)) = template.split_once('{') else {
        return (template == path).then_some("");
    };
    let (name, after) = rest.split_once('}')?;
    let part = path.strip_prefix(before)?.strip_suffix(after)?;
    let is_level = name != "topic";
    let is_one = !is_level || !part.contains('/');
    (is_one && !part.is_empty()).then_some(part)
}

/// The methods of a resource, as `Allow` names them.
fn allowed(template: &str) -> &'static str {
    let has = |method| {
        let mut routes = ROUTES.iter();
        routes.any(|route| route.template == template && route.method == method)
    };
    match (has("GET"), has("DELETE")) {
        (true, _) if has("POST") => "GET, HEAD, POST",
        (true, true) => "GET, HEAD, DELETE",
        (true, false) => "GET, HEAD",
        (false, true) => "DELETE",
        (false, false) => "POST",
    }
}

/// A request that has its route.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) route: &'static Route,
    /// The part of the path that varies.
    pub(super) argument: String,
    parameters: Vec<(&'static str, String)>,
}

impl Call {
    /// Finds the route of a request.
    ///
    /// # Errors
    /// There is no such resource, method or parameter.
    pub(super) fn read(method: &str, target: &str) -> Result<Self, Trouble> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let nothing = || Trouble::new(Kind::NoResource, "there is nothing by this name");
        let path = path.strip_prefix(PREFIX).ok_or_else(nothing)?;
        let mut found = ROUTES
            .iter()
            .filter_map(|route| Some((route, argument(route.template, path)?)))
            .peekable();
        let (first, _) = *found.peek().ok_or_else(nothing)?;
        let wanted = if method == "HEAD" { "GET" } else { method };
        let (route, argument) = found
            .find(|(route, _)| route.method == wanted && route.template == first.template)
            .ok_or_else(|| Trouble::method(allowed(first.template)))?;
        let argument = decode(argument).ok_or_else(|| {
            let detail = "the path is not percent-encoded UTF-8";
            Trouble::new(Kind::InvalidParameter, detail)
        })?;
        let nul = |name: &str| {
            let detail = format!("{name}: no name or topic has the character U+0000");
            Trouble::new(Kind::InvalidParameter, detail)
        };
        // Names with it are those of the broker's own sessions.
        if argument.contains('\0') {
            return Err(nul("the path"));
        }
        let mut parameters = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let known = route.parameters.iter().find(|known| known.name == name);
            let value = decode(value);
            let is_new = parameters.iter().all(|(other, _)| *other != name);
            match (known, value) {
                (Some(known), Some(value)) if is_new => {
                    if value.contains('\0') {
                        return Err(nul(known.name));
                    }
                    parameters.push((known.name, value.into_owned()));
                }
                _ => {
                    let names: Vec<&str> = route.parameters.iter().map(|one| one.name).collect();
                    let detail = match names.as_slice() {
                        [] => "there are no parameters here".to_owned(),
                        names => format!("the parameters here are {}, each once", names.join(", ")),
                    };
                    return Err(Trouble::new(Kind::InvalidParameter, detail));
                }
            }
        }
        Ok(Self {
            route,
            argument: argument.into_owned(),
            parameters,
        })
    }

    /// A parameter's value.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let mut parameters = self.parameters.iter();
        parameters.find_map(|(known, value)| (*known == name).then_some(&**value))
    }

    /// The parameter `limit`, at most `most`.
    ///
    /// # Errors
    /// It is no number from 1 on.
    pub(super) fn limit(&self, default: u32, most: u32) -> Result<usize, Trouble> {
        let Some(text) = self.parameter("limit") else {
            return Ok(default.min(most) as usize);
        };
        let limit = text.parse::<u32>().ok();
        let limit = limit.filter(|limit| *limit >= 1);
        limit.map(|limit| limit.min(most) as usize).ok_or_else(|| {
            let detail = format!("limit is a number from 1 to {}", u32::MAX);
            Trouble::new(Kind::InvalidParameter, detail)
        })
    }

    /// The parameter `after`, read by `read`.
    ///
    /// # Errors
    /// It is not one that a page has named.
    pub(super) fn after<T>(
        &self,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Trouble> {
        let Some(text) = self.parameter("after") else {
            return Ok(None);
        };
        read(text).map(Some).ok_or_else(|| {
            let detail = "after is not what a page before has said";
            Trouble::new(Kind::InvalidParameter, detail)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, target: &str) -> Result<(Operation, String), u16> {
        Call::read(method, target)
            .map(|call| (call.route.operation, call.argument))
            .map_err(|trouble| trouble.status())
    }

    #[test]
    fn paths_lead_to_their_operations() {
        let found = |operation, argument: &str| Ok((operation, argument.to_owned()));
        for (method, target, expected) in [
            ("GET", "/admin/v1/node", found(Operation::Node, "")),
            ("HEAD", "/admin/v1/node", found(Operation::Node, "")),
            (
                "GET",
                "/admin/v1/clients/0.1.2",
                found(Operation::Client, "0.1.2"),
            ),
            (
                "DELETE",
                "/admin/v1/clients/x",
                found(Operation::Disconnect, "x"),
            ),
            (
                "GET",
                "/admin/v1/sessions/a%2Fb",
                found(Operation::Session, "a/b"),
            ),
            (
                "GET",
                "/admin/v1/sessions/a/subscriptions?limit=3",
                found(Operation::Subscriptions, "a"),
            ),
            (
                "GET",
                "/admin/v1/retained/a/b",
                found(Operation::RetainedMessage, "a/b"),
            ),
            (
                "GET",
                "/admin/v1/retained/a%2Fb",
                found(Operation::RetainedMessage, "a/b"),
            ),
            (
                "POST",
                "/admin/v1/queues/q/move",
                found(Operation::Move, "q"),
            ),
            ("POST", "/admin/v1/node", Err(405)),
            ("PATCH", "/admin/v1/reload", Err(405)),
            ("GET", "/admin/v1", Err(404)),
            ("GET", "/admin/v1/", Err(404)),
            ("GET", "/admin/v2/node", Err(404)),
            ("GET", "/admin/v1/sessions/", Err(404)),
            ("GET", "/admin/v1/sessions/a/b", Err(404)),
            ("GET", "/admin/v1/sessions/%ff", Err(400)),
            // The root of a shared subscription of a cluster, and what has such a name beside the path.
            ("GET", "/admin/v1/sessions/%00$share%2Fg%2Ft", Err(400)),
            ("DELETE", "/admin/v1/sessions/%00$share%2Fg%2Ft", Err(400)),
            (
                "GET",
                "/admin/v1/sessions/%00$share%2Fg%2Ft/subscriptions",
                Err(400),
            ),
            ("GET", "/admin/v1/trace?client=%00$share%2Fg%2Ft", Err(400)),
            ("GET", "/admin/v1/clients?name=a%00", Err(400)),
            ("GET", "/admin/v1/node?x=1", Err(400)),
            ("GET", "/admin/v1/clients?limit=1&limit=2", Err(400)),
        ] {
            assert_eq!(call(method, target), expected, "{method} {target}");
        }
    }

    #[test]
    fn limits_are_numbers_within_bounds() {
        let limit = |text: &str| {
            let call = Call::read("GET", &format!("/admin/v1/clients{text}")).expect("a route");
            call.limit(100, 50).map_err(|trouble| trouble.status())
        };
        assert_eq!(limit(""), Ok(50));
        assert_eq!(limit("?limit=7"), Ok(7));
        // The sender does not know the setting, so a higher limit is lowered to it.
        assert_eq!(limit("?limit=51"), Ok(50));
        for wrong in [
            "?limit=0",
            "?limit=x",
            "?limit=-1",
            "?limit=",
            "?limit=4294967296",
        ] {
            assert_eq!(limit(wrong), Err(400), "{wrong}");
        }
    }
}
