//! What every shard asks before it lets a client do something; replaced as a whole on reload.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::authentication::Users;
use crate::authorization::Rules;
use crate::config::{Amqp, Config, EarlyData, Http, ListenerUrl, Mqtt};

/// The part of the configuration that can change while connections live.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What MQTT clients are granted. A client that is connected keeps what it was granted.
    pub mqtt: Mqtt,
    /// What AMQP clients are granted. A client that is connected keeps what it was granted.
    pub amqp: Amqp,
    /// What HTTP clients are granted. A subscription that is open keeps what it was granted.
    pub http: Http,
    /// Users and their records.
    pub users: Arc<Users>,
    /// Who may publish and subscribe where.
    pub rules: Rules,
    /// Per listener, in the order of the configuration.
    pub listeners: Vec<ListenerPolicy>,
    /// Clients whose connections are traced, where, and up to how many bytes.
    pub trace: TracePolicy,
    /// Whether the common name of a verified client certificate is the user name.
    pub certificate_as_username: bool,
}

/// Whose connections are traced.
#[derive(Clone, Debug, Default)]
pub struct TracePolicy {
    /// Client identifiers.
    pub clients: HashSet<String>,
    /// Folder of the traces.
    pub directory: PathBuf,
    /// Bytes after which a trace ends.
    pub max_bytes: u64,
}

/// What clients of one listener may do.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListenerPolicy {
    /// Whether clients without credentials enter.
    pub anonymous: bool,
    /// What early data may do.
    pub early_data: EarlyData,
    /// Keep alive told to every client, in seconds.
    pub server_keep_alive_s: Option<u16>,
    /// Whether AMQP is spoken where nothing else was negotiated; otherwise MQTT is.
    pub amqp: bool,
}

impl Policy {
    /// What holds for a listener, by its index in the configuration.
    #[must_use]
    pub fn listener(&self, index: u16) -> ListenerPolicy {
        let known = self.listeners.get(usize::from(index));
        known.copied().unwrap_or_default()
    }

    /// Reads what a configuration asks for, the password file included.
    ///
    /// # Errors
    /// A sentence that names the file and its fault.
    pub fn load(config: &Config) -> Result<Self, String> {
        let default = config.authentication.admits_anonymous();
        Ok(Self {
            mqtt: config.mqtt.clone(),
            amqp: config.amqp.clone(),
            http: config.http.clone(),
            users: Arc::new(Users::load(config.authentication.password_file.as_deref())?),
            rules: Rules::new(&config.authorization),
            listeners: config
                .listeners_in_force()
                .iter()
                .map(|listener| ListenerPolicy {
                    anonymous: listener.anonymous.unwrap_or(default),
                    early_data: listener.early_data.unwrap_or(config.quic.early_data),
                    server_keep_alive_s: listener
                        .server_keep_alive_s
                        .or(config.mqtt.server_keep_alive_s),
                    amqp: (listener.url.parse::<ListenerUrl>())
                        .is_ok_and(|url| url.scheme.is_amqp()),
                })
                .collect(),
            trace: TracePolicy {
                clients: config.trace.clients.iter().cloned().collect(),
                directory: (config.trace.directory.clone())
                    .unwrap_or_else(|| config.data_directory().join("traces")),
                max_bytes: config.trace.maximum_bytes,
            },
            certificate_as_username: config.tls.certificate_as_username,
        })
    }
}
