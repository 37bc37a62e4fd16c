//! The same options for AMQP: what they mean there, and which of them mean nothing.

use sterna_client::amqp::{self, Sasl};
use sterna_client::{Streams, Version};

use super::super::exit::Failure;
use super::super::property::Properties;
use super::Connection;

/// A mechanism of SASL, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mechanism {
    None,
    Anonymous,
    Plain,
    External,
    Scram,
}

pub(super) fn mechanism(text: &str) -> Result<Mechanism, String> {
    match text {
        "none" => Ok(Mechanism::None),
        "anonymous" => Ok(Mechanism::Anonymous),
        "plain" => Ok(Mechanism::Plain),
        "external" => Ok(Mechanism::External),
        "scram" => Ok(Mechanism::Scram),
        _ => Err("none, anonymous, plain, external or scram".to_owned()),
    }
}

/// The settings of a command line for AMQP.
pub(in super::super) struct AmqpSettings {
    pub(in super::super) options: amqp::Options,
    /// Those of messages.
    pub(in super::super) properties: Properties,
    /// The address that the URL names.
    pub(in super::super) address: Option<String>,
}

/// An error for a flag that is given and means nothing here.
pub(in super::super) fn refuse(flags: &[(&str, bool)]) -> Result<(), String> {
    match flags.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(format!("{flag}: AMQP has no such thing")),
        None => Ok(()),
    }
}

impl Connection {
    /// Makes the options. `packets` are those whose properties this command has a place for.
    pub(in super::super) fn amqp(&self, packets: &[&str]) -> Result<AmqpSettings, String> {
        refuse(&[
            ("-V", self.protocol_version != Version::V5),
            ("--streams", self.streams != Streams::Single),
            ("--datagrams", self.datagrams),
            ("--will-topic", self.will_topic.is_some()),
            ("--token", self.token.is_some()),
            ("--login-once", self.login_once),
            ("--no-http3", self.no_http3),
        ])?;
        let url = self.url()?;
        self.refuse_idle_flags(url.scheme())?;
        let address = url.topic().map_err(|error| error.to_string())?;
        let mut options = amqp::Options::new(url);
        if let Some(id) = &self.id {
            options.container_id.clone_from(id);
        } else if let Some(prefix) = &self.id_prefix {
            options.container_id = format!("{prefix}{}", std::process::id());
        }
        self.sasl(&mut options)?;
        options.idle_timeout_s = self.keepalive;
        self.link(&mut options.link)?;
        options.close_timeout = self.close_timeout.unwrap_or(options.close_timeout);
        Ok(AmqpSettings {
            options,
            properties: Properties::new(&self.properties, Version::V5, packets)?,
            address,
        })
    }

    /// The login of --sasl, or that of the user name, password and --scram.
    fn sasl(&self, options: &mut amqp::Options) -> Result<(), String> {
        let login = self.login.login(&options.url);
        let password = login.password.unwrap_or_default();
        let credentials = login.user.map(|user| (user, password));
        let mechanism = match (self.sasl, self.scram, &credentials) {
            (Some(mechanism), ..) => mechanism,
            (None, true, _) => Mechanism::Scram,
            (None, false, Some(_)) => Mechanism::Plain,
            (None, false, None) => Mechanism::Anonymous,
        };
        let needed = || {
            credentials
                .clone()
                .ok_or_else(|| "--sasl: there is no user name".to_owned())
        };
        options.sasl = match mechanism {
            Mechanism::None => Sasl::None,
            Mechanism::Anonymous => Sasl::Anonymous,
            Mechanism::External => Sasl::External,
            Mechanism::Plain => {
                let (user, password) = needed()?;
                Sasl::Plain { user, password }
            }
            Mechanism::Scram => {
                let (user, password) = needed()?;
                if password.is_empty() {
                    return Err("--scram: there is no password".to_owned());
                }
                Sasl::ScramSha256 { user, password }
            }
        };
        Ok(())
    }

    /// For how many seconds the subscription outlives the connection, if it does; `u32::MAX` is for
    /// ever.
    pub(in super::super) fn durable(&self) -> Option<u32> {
        match self.session_expiry_interval {
            Some(0) => None,
            Some(seconds) => Some(seconds),
            None => self.disable_clean_session.then_some(u32::MAX),
        }
    }

    /// Says what the connection knows of its path, when --path-stats asks for it.
    pub(in super::super) async fn tell_amqp_path(&self, connection: &amqp::Connection) {
        if self.path_stats
            && let Ok(path) = connection.path().await
        {
            eprintln!("{}", path.to_json());
        }
    }
}

/// The address that a command is about.
pub(in super::super) fn address(
    given: Option<&String>,
    of_url: Option<String>,
) -> Result<String, Failure> {
    given
        .cloned()
        .or(of_url)
        .ok_or_else(|| Failure::local("no address: give one with -t or as the path of the URL"))
}
