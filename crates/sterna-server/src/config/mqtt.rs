//! Limits and settings of MQTT clients.

settings! {
    /// Limits and features for MQTT clients; see [MQTT](mqtt.md).
    ///
    /// CONNACK tells MQTT 5 clients the values that differ from the standard's defaults.
    #[derive(Eq)]
    pub struct Mqtt {
        /// Largest packet accepted (Maximum Packet Size). Larger ones end the connection (0x95).
        reload maximum_packet_bytes: u32 = 1 << 21;
        /// Largest packet accepted before CONNACK. A CONNECT with its will must fit.
        reload maximum_connect_bytes: u32 = 128 << 10;
        /// Unacknowledged PUBLISH packets of QoS 1 and 2 that a client may have in flight (Receive Maximum; 0x93
        /// beyond).
        reload receive_maximum: u16 = 1024, within 1..;
        /// Unacknowledged PUBLISH packets sent to one client, which may ask for fewer.
        reload send_maximum: u16 = 1024;
        /// Topic aliases that a client may set (Topic Alias Maximum). 0: none.
        reload topic_alias_maximum: u16 = 32;
        /// Highest QoS that clients get.
        reload maximum_qos: u8 = 2, within ..=2;
        /// Whether retained messages are served.
        reload retain_available: bool = true;
        /// Whether wildcards are allowed in filters.
        reload wildcard_subscription_available: bool = true;
        /// Whether shared subscriptions are served.
        reload shared_subscription_available: bool = true;
        /// Whether subscription identifiers are served.
        reload subscription_identifiers_available: bool = true;
        /// Longest session expiry granted. 4294967295: for ever.
        reload maximum_session_expiry_s: u32 = u32::MAX;
        /// Session expiry of persistent 3.1 and 3.1.1 sessions.
        reload legacy_session_expiry_s: u32 = 7 * 24 * 3600;
        /// Keep alive told to every MQTT 5 client instead of its own (Server Keep Alive). 0: none.
        reload server_keep_alive_s: Option<u16>;
        /// Longest keep alive accepted. A longer one, or none, is answered with this. 0: any.
        reload maximum_keep_alive_s: u16 = 0;
        /// Longest Client Identifier.
        reload maximum_client_id_bytes: u16 = 256;
        /// Prefix of response topics told to clients that ask for Response Information.
        reload response_information: Option<String>;
        /// Another server, told to clients at shutdown (Server Reference), with 0x9C instead of 0x8B.
        reload server_reference: Option<String>;
        /// Streams beside the control stream that a QUIC client may use at once. Clients in use keep up to 100 open.
        reload maximum_data_streams: u16 = 128, within 4..;
        /// Bytes kept of a client whose CONNECT is still being decided.
        reload maximum_held_bytes: u32 = 64 << 10;
        /// Bytes of all incomplete packets of one connection. At least `maximum_packet_bytes`.
        reload maximum_assembling_bytes: u32 = 8 << 20;
        /// User properties of a message or of a will, and filters in one packet. Beyond it: PUBACK or PUBREC with 0x97
        /// (dropped at QoS 0), CONNACK with 0x97, DISCONNECT with 0x97.
        reload maximum_list_entries: u32 = 1024;
        /// Whether QUIC datagrams carry messages of QoS 0, both ways, for clients that ask.
        restart datagrams: bool = true;
        /// Time from the start of the broker to the earliest publication of the wills of clients that were connected when
        /// it stopped or was killed. A longer delay of a will counts instead. A client that returns within the time takes
        /// its will with it. 0: such wills are published at the start, after their own delay. With `store.enabled = false`
        /// wills are published when the broker stops.
        restart will_grace_ms: u32 = 30_000;
    }
}
