//! What every shard asks before it lets a client do something; replaced as a whole on reload.

use std::sync::Arc;

use crate::authentication::Users;
use crate::authorization::Rules;
use crate::config::{Config, Mqtt};

/// The part of the configuration that can change while connections live.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What MQTT clients are granted. A client that is connected keeps what it was granted.
    pub mqtt: Mqtt,
    /// Users and their records.
    pub users: Arc<Users>,
    /// Who may publish and subscribe where.
    pub rules: Rules,
    /// Per listener, in the order of the configuration: whether clients without credentials enter.
    pub anonymous: Vec<bool>,
    /// Whether the common name of a verified client certificate is the user name.
    pub certificate_as_username: bool,
}

impl Policy {
    /// Reads what a configuration asks for, the password file included.
    ///
    /// # Errors
    /// A sentence that names the file and its fault.
    pub fn load(config: &Config) -> Result<Self, String> {
        let default = config.authentication.admits_anonymous();
        Ok(Self {
            mqtt: config.mqtt.clone(),
            users: Arc::new(Users::load(config.authentication.password_file.as_deref())?),
            rules: Rules::new(&config.authorization),
            anonymous: config
                .listeners_in_force()
                .iter()
                .map(|listener| listener.anonymous.unwrap_or(default))
                .collect(),
            certificate_as_username: config.tls.certificate_as_username,
        })
    }
}
