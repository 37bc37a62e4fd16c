//! Parameters of the query, as requests have them and as they are described.

/// A parameter of the query.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) is_number: bool,
}

pub(super) const LIMIT: Parameter = Parameter {
    name: "limit",
    about: "Most entries, at least 1; 100 without it. A page has at most `admin.maximum_page`",
    is_number: true,
};
pub(super) const AFTER: Parameter = Parameter {
    name: "after",
    about: "Where to go on: `next` of the page before",
    is_number: false,
};
pub(super) const NODE: Parameter = Parameter {
    name: "node",
    about: "Only this node of the cluster",
    is_number: false,
};
pub(super) const LOCAL: Parameter = Parameter {
    name: "local",
    about: "`yes`: only the node that is asked",
    is_number: false,
};
pub(super) const NAME: Parameter = Parameter {
    name: "name",
    about: "Only clients of this name",
    is_number: false,
};
pub(super) const USER: Parameter = Parameter {
    name: "user",
    about: "Only clients of this user",
    is_number: false,
};
pub(super) const SORT: Parameter = Parameter {
    name: "sort",
    about: "The greatest first by `rtt`, `loss` (lost part of the packets), `queue`, `bytes` or `messages` (both ways, since the connection began), or by `name`; without it, by place",
    is_number: false,
};
pub(super) const CLIENT: Parameter = Parameter {
    name: "client",
    about: "Messages that this client publishes or gets: the client identifier of MQTT, or a session's name",
    is_number: false,
};
pub(super) const TOPIC: Parameter = Parameter {
    name: "topic",
    about: "Messages whose topics match this filter",
    is_number: false,
};
pub(super) const EVENTS: Parameter = Parameter {
    name: "events",
    about: "Only these events, with commas between; `login`, `login_refused` and `action` come only if they are named",
    is_number: false,
};
pub(super) const PAYLOADS: Parameter = Parameter {
    name: "payloads",
    about: "`yes`: with the payloads of messages that are received",
    is_number: false,
};
pub(super) const ACTION: Parameter = Parameter {
    name: "action",
    about: "`publish`, `subscribe` or `delete`",
    is_number: false,
};
pub(super) const SUBJECT_TOPIC: Parameter = Parameter {
    name: "topic",
    about: "A topic name, or the filter of a subscription (of a shared one: what follows the share name)",
    is_number: false,
};
pub(super) const SUBJECT_USER: Parameter = Parameter {
    name: "user",
    about: "User name; without it, a client without a name",
    is_number: false,
};
pub(super) const SUBJECT_GROUPS: Parameter = Parameter {
    name: "groups",
    about: "More groups of the user, as a token or the webhook gives them, with commas between",
    is_number: false,
};
pub(super) const SUBJECT_CLIENT: Parameter = Parameter {
    name: "client",
    about: "Client identifier; HTTP has none",
    is_number: false,
};
pub(super) const SUBJECT_ADDRESS: Parameter = Parameter {
    name: "address",
    about: "Address of the client; unknown without it",
    is_number: false,
};
pub(super) const SUBJECT_TRANSPORT: Parameter = Parameter {
    name: "transport",
    about: "Transport of the client: `tcp`, `tls`, `ws`, `wss` or `quic`; unknown without it",
    is_number: false,
};
pub(super) const SUBJECT_LISTENER: Parameter = Parameter {
    name: "listener",
    about: "Name of the listener by which the client speaks; unknown without it",
    is_number: false,
};
pub(super) const MESSAGE_QOS: Parameter = Parameter {
    name: "qos",
    about: "Quality of service of the message, from 0 to 2; unknown without it",
    is_number: true,
};
pub(super) const MESSAGE_RETAIN: Parameter = Parameter {
    name: "retain",
    about: "`true` for a message that is to be retained, or `false`; unknown without it",
    is_number: false,
};
pub(super) const MESSAGE_EARLY_DATA: Parameter = Parameter {
    name: "early_data",
    about: "`true` for a message in early data, or `false`; unknown without it",
    is_number: false,
};
pub(super) const DRY_RUN: Parameter = Parameter {
    name: "dry_run",
    about: "`yes`: nothing is put in force; the answer says what would be",
    is_number: false,
};
pub(super) const SESSION_NAME: Parameter = Parameter {
    name: "name",
    about: "Only sessions of this name, whichever user has them",
    is_number: false,
};
pub(super) const SESSION_USER: Parameter = Parameter {
    name: "user",
    about: "Only sessions of this user",
    is_number: false,
};
pub(super) const USER_OF_SESSION: Parameter = Parameter {
    name: "user",
    about: "The user whose session it is; without it, that of clients without a user name",
    is_number: false,
};
pub(super) const OWNER: Parameter = Parameter {
    name: "user",
    about: "The user whose sessions these are; required without `nobody`",
    is_number: false,
};
pub(super) const NOBODY: Parameter = Parameter {
    name: "nobody",
    about: "`yes`: sessions of clients without a user, in place of `user`",
    is_number: false,
};
pub(super) const FILTER: Parameter = Parameter {
    name: "filter",
    about: "Only topics that match this filter; `#` without it",
    is_number: false,
};
pub(super) const CHANGES: Parameter = Parameter {
    name: "limit",
    about: "Most messages, at least 1; `admin.maximum_changes` without it, and at most",
    is_number: true,
};
pub(super) const READ_TOPIC: Parameter = Parameter {
    name: "topic",
    about: "Only subscriptions that get messages of this topic",
    is_number: false,
};
pub(super) const EXACT_FILTER: Parameter = Parameter {
    name: "filter",
    about: "Only subscriptions of exactly this filter, with `$share/NAME/` where it is shared",
    is_number: false,
};
