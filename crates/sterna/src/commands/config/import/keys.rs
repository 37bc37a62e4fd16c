//! Words of mosquitto.conf of which there is little to say.

/// Lines that give and take no right.
pub(super) const OF_NO_RIGHT: &[(&str, &str)] = &[
    (
        "allow_duplicate_messages",
        "subscriptions that overlap are as MQTT says",
    ),
    (
        "allow_zero_length_clientid",
        "a client without an identifier gets one",
    ),
    (
        "auto_id_prefix",
        "identifiers that the broker gives are its own",
    ),
    (
        "check_retain_source",
        "a retained message stays when its publisher loses the right to its topic",
    ),
    (
        "disable_client_cert_date_checks",
        "certificates that have expired are refused",
    ),
    (
        "enable_control_api",
        "sterna admin changes a running broker",
    ),
    (
        "listener_auto_id_prefix",
        "identifiers that the broker gives are its own",
    ),
    (
        "log_facility",
        "the log goes to standard error, and a service's to the journal",
    ),
    ("log_timestamp", "each line has its time"),
    ("log_timestamp_format", "each line has its time"),
    (
        "max_inflight_bytes",
        "messages under way are counted, mqtt.send_maximum",
    ),
    (
        "max_topic_alias_broker",
        "mqtt.topic_alias_maximum is one for both directions",
    ),
    ("packet_buffer_size", "there is nothing like it here"),
    (
        "queue_qos0_messages",
        "messages of QoS 0 do not wait for clients that are away",
    ),
    (
        "retain_expiry_interval",
        "a retained message lives as long as its own expiry says",
    ),
    (
        "retry_interval",
        "messages are sent again when their client comes back",
    ),
    ("set_tcp_nodelay", "it is always so"),
    ("store_clean_interval", "there is nothing like it here"),
    (
        "upgrade_outgoing_qos",
        "a message is delivered with the lesser QoS",
    ),
    ("websockets_headers_size", "there is nothing like it here"),
    ("websockets_log_level", "there is one level, log.level"),
];

/// Lines that ask for what is so here anyway.
pub(super) const ALWAYS_SO: &[(&str, &str)] = &[
    ("allow_duplicate_messages", "false"),
    ("allow_zero_length_clientid", "true"),
    ("log_timestamp", "true"),
    ("queue_qos0_messages", "false"),
    ("set_tcp_nodelay", "true"),
    ("upgrade_outgoing_qos", "false"),
];

/// Keys of a bridge, beside those that begin with `bridge_`, `remote_` and `local_`.
pub(super) const OF_BRIDGES: &[&str] = &[
    "address",
    "addresses",
    "cleansession",
    "clientid",
    "idle_timeout",
    "keepalive_interval",
    "notification_topic",
    "notifications",
    "notifications_local_only",
    "password",
    "restart_timeout",
    "round_robin",
    "start_type",
    "threshold",
    "topic",
    "try_private",
    "username",
];

/// Levels of the log, and what Mosquitto calls them.
pub(super) const LEVELS: [(&str, &[&str]); 5] = [
    ("off", &["none"]),
    ("error", &["error"]),
    ("warn", &["warning"]),
    ("info", &["notice", "information"]),
    (
        "debug",
        &["debug", "all", "subscribe", "unsubscribe", "websockets"],
    ),
];
