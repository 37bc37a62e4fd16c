//! What each fuzz target does with an input. A target of this name is in `fuzz/targets`, its seeds are in `fuzz/corpus`.

/// Makes a function of each target, and the table of all.
macro_rules! targets {
    ($($(#[$about:meta])* $name:ident($bytes:ident) $check:expr;)*) => {
        $($(#[$about])*
        ///
        /// # Panics
        ///
        /// Where a check of it fails.
        pub fn $name($bytes: &[u8]) {
            $check;
        })*

        /// All targets by their names, in order.
        pub const ALL: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name)),*];
    };
}

targets! {
    /// Either end of an AMQP connection driven by a script: limits and ends hold whatever a peer sends.
    amqp_connection(bytes) crate::amqp_script::connection(bytes);
    /// The bytes of a lane of AMQP: frames, frame bodies and messages.
    amqp_frames(bytes) crate::amqp::frames(bytes);
    /// Selectors over messages.
    amqp_selector(bytes) crate::amqp::selector(bytes);
    /// Values of AMQP from any bytes: what is decoded can be walked and encoded.
    amqp_types(bytes) crate::amqp::types(bytes);
    /// The first bytes of a client of TLS.
    client_hello(bytes) crate::client_hello::first_record(bytes);
    /// Batches of messages from other nodes.
    cluster_batches(bytes) crate::cluster::batch(bytes);
    /// Configuration files and variables.
    config(bytes) crate::configuration::file_and_variables(bytes);
    /// Letters about shared subscriptions, from other nodes.
    group_letters(bytes) crate::cluster::group_letter(bytes);
    /// Either end of an HTTP/3 connection driven by a script: rules and limits hold whatever a peer sends.
    h3_connection(bytes) crate::h3_script::connection(bytes);
    /// The bytes of a stream of HTTP/3: integers, frames, settings.
    h3_frames(bytes) crate::h3::frames(bytes);
    /// Field sections from any bytes: what is decoded can be encoded.
    h3_qpack(bytes) crate::h3::sections(bytes);
    /// What servers of HTTP send.
    http_client(bytes) crate::http_client::responses(bytes);
    /// Frames of WebTransport.
    http_frames(bytes) crate::http_frames::frames(bytes);
    /// Marks, texts and fields of the mapping.
    mapping(bytes) crate::mapping::texts(bytes);
    /// The bytes of one lane of MQTT 3.1.
    mqtt_3_1(bytes) crate::mqtt::lane(bytes, sterna_mqtt::Version::V31);
    /// The bytes of one lane of MQTT 3.1.1.
    mqtt_3_1_1(bytes) crate::mqtt::lane(bytes, sterna_mqtt::Version::V311);
    /// The bytes of one lane of MQTT 5.0.
    mqtt_5_0(bytes) crate::mqtt::lane(bytes, sterna_mqtt::Version::V5);
    /// A server's connections driven by a script: order, limits and bounds hold whatever a client sends.
    mqtt_server(bytes) crate::mqtt_engine::server(bytes);
    /// Operations on a session against a model that is obviously right.
    mqtt_session(bytes) crate::mqtt_engine::session(bytes);
    /// Headers of a balancer.
    proxy_header(bytes) crate::proxy_header::header(bytes);
    /// The broker's index, queues and takeovers against a model.
    routing(bytes) crate::routing::play(bytes);
    /// SCRAM messages and password files.
    scram(bytes) crate::scram::messages(bytes);
    /// Headers of the log's entries, from other nodes.
    settled_lines(bytes) crate::cluster::settled_line(bytes);
    /// Files of the store's log.
    store_log(bytes) crate::store::log(bytes);
    /// Topics as subjects of NATS and back.
    subjects(bytes) crate::topics::filter_and_subject(bytes);
    /// Topic filters against a matcher that is too simple to be wrong.
    topic_filters(bytes) crate::topics::filter_and_name(bytes);
    /// Frames of a WebSocket client.
    websocket(bytes) crate::websocket::frames(bytes);
}
