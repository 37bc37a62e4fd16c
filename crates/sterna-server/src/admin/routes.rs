//! Every resource of the admin API, in one table: requests are routed by it, and it is described to
//! machines by it.

use super::parameters::{
    ACTION, AFTER, CHANGES, CLIENT, DRY_RUN, EVENTS, EXACT_FILTER, FILTER, LIMIT, LOCAL,
    MESSAGE_EARLY_DATA, MESSAGE_QOS, MESSAGE_RETAIN, NAME, NOBODY, NODE, OWNER, PAYLOADS,
    Parameter, READ_TOPIC, SESSION_NAME, SESSION_USER, SORT, SUBJECT_ADDRESS, SUBJECT_CLIENT,
    SUBJECT_GROUPS, SUBJECT_LISTENER, SUBJECT_TOPIC, SUBJECT_TRANSPORT, SUBJECT_USER, TOPIC, USER,
    USER_OF_SESSION,
};
use super::role::Role;
use crate::http::ProblemKind as Kind;

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

/// The nodes of a cluster that a request concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// The one that is asked.
    Here,
    /// The one that is asked, or another one that the request names.
    Named,
    /// All: it lists what each has.
    Listed,
    /// All, of which each knows all queues.
    Queues,
    /// The one that has the session.
    Owner,
    /// The one that the thing's name begins with.
    Id,
    /// The one that has the queue.
    Queue,
    /// All: each does it, or tells its part.
    Every,
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
    /// The nodes of a cluster that it concerns.
    pub(super) reach: Reach,
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

impl Route {
    /// Its parameters, with those by which a request names nodes.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        let of_nodes: &'static [Parameter] = match self.reach {
            Reach::Here => &[],
            _ => &[NODE, LOCAL],
        };
        self.parameters.iter().chain(of_nodes)
    }
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
        reach: Reach::Here,
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
    Route {
        reach: Reach::Named,
        ..read(
            "/node",
            Operation::Node,
            "node",
            "Node",
            "The process: version, listeners, shards, and what was counted",
        )
    },
    Route {
        reach: Reach::Listed,
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
        reach: Reach::Id,
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
        reach: Reach::Id,
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
        reach: Reach::Listed,
        parameters: &[LIMIT, AFTER, SESSION_NAME, SESSION_USER, NOBODY],
        ..read(
            "/sessions",
            Operation::Sessions,
            "sessions",
            "SessionPage",
            "Sessions, also of clients that are away. A page may be short, or empty, before the last",
        )
    },
    Route {
        reach: Reach::Every,
        method: "DELETE",
        role: Some(Role::Operator),
        parameters: &[OWNER, NOBODY],
        ..read(
            "/sessions",
            Operation::EndSessionsOf,
            "endSessionsOf",
            "Ended",
            "Ends all sessions of a user, or of clients without one, on this node, with their subscriptions, queues and wills, and disconnects their clients. No will is published",
        )
    },
    Route {
        reach: Reach::Owner,
        parameters: &[USER_OF_SESSION],
        problems: &[Kind::NoSession, Kind::SessionBusy],
        ..read(
            "/sessions/{session}",
            Operation::Session,
            "session",
            "Session",
            "One session, by its name and its user",
        )
    },
    Route {
        reach: Reach::Owner,
        method: "DELETE",
        role: Some(Role::Operator),
        parameters: &[USER_OF_SESSION],
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
        reach: Reach::Owner,
        parameters: &[USER_OF_SESSION, LIMIT, AFTER],
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
        reach: Reach::Listed,
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
        reach: Reach::Every,
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
        reach: Reach::Queues,
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
        reach: Reach::Queue,
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
        reach: Reach::Queue,
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
        reach: Reach::Queue,
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
        reach: Reach::Queue,
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
        reach: Reach::Named,
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
        reach: Reach::Named,
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
    Route {
        reach: Reach::Named,
        ..read(
            "/store",
            Operation::Store,
            "store",
            "Store",
            "The store on disk",
        )
    },
    Route {
        reach: Reach::Named,
        ..read(
            "/memory",
            Operation::Memory,
            "memory",
            "Memory",
            "Resident memory by kind",
        )
    },
    Route {
        reach: Reach::Named,
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
    Route {
        reach: Reach::Named,
        ..read(
            "/certificates",
            Operation::Certificates,
            "certificates",
            "Certificates",
            "The certificates that listeners present",
        )
    },
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
    Route {
        reach: Reach::Named,
        ..read(
            "/rules",
            Operation::Rules,
            "rules",
            "Rules",
            "The rules in force: who may publish and subscribe where",
        )
    },
    Route {
        reach: Reach::Named,
        parameters: &[
            ACTION,
            SUBJECT_TOPIC,
            SUBJECT_USER,
            SUBJECT_GROUPS,
            SUBJECT_CLIENT,
            SUBJECT_ADDRESS,
            SUBJECT_TRANSPORT,
            SUBJECT_LISTENER,
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
        reach: Reach::Listed,
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
        reach: Reach::Every,
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
        reach: Reach::Id,
        ..read("/bans/{ban}", Operation::Lift, "liftBan", "", "Lifts a ban")
    },
    Route {
        role: Some(Role::Operator),
        parameters: &[CLIENT, TOPIC, EVENTS, PAYLOADS, LOCAL],
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
        success: (202, Some("Drained")),
        ..read(
            "/drain",
            Operation::Drain,
            "drain",
            "Drained",
            "Ends the process in order, as SIGTERM does: no new clients, acknowledgements that wait leave, clients are told goodbye",
        )
    },
];
