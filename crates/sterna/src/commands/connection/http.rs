//! The same options for HTTP: what they mean there, and which of them mean nothing.

use std::time::Duration;

use sterna_client::arguments::{UserLogin, from_environment};
use sterna_client::http::{Client, Credentials, Options};
use sterna_client::{Streams, Version};

use super::super::property::Properties;
use super::Connection;

/// The settings of a command line for HTTP.
pub(in super::super) struct HttpSettings {
    pub(in super::super) options: Options,
    /// Those of messages.
    pub(in super::super) properties: Properties,
    /// The topic that the URL names.
    pub(in super::super) topic: Option<String>,
    /// The name of the session that is kept, with -c.
    pub(in super::super) session: Option<String>,
}

/// An error for a flag that is given and means nothing here.
pub(in super::super) fn refuse(flags: &[(&str, bool)]) -> Result<(), String> {
    match flags.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(format!("{flag}: HTTP has no such thing")),
        None => Ok(()),
    }
}

/// The login for HTTP: a token of the command line, user name and password, or the token of the
/// environment.
pub(in super::super) fn credentials(token: Option<&String>, login: &UserLogin) -> Credentials {
    match (token, &login.user) {
        (Some(token), _) => Credentials::Bearer(token.clone()),
        (None, Some(user)) => Credentials::Basic {
            user: user.clone(),
            password: login.password.clone().unwrap_or_default(),
        },
        (None, None) => {
            from_environment("STERNA_TOKEN").map_or(Credentials::None, Credentials::Bearer)
        }
    }
}

impl Connection {
    /// Makes the options. `packets` are those whose properties this command has a place for.
    pub(in super::super) fn http(&self, packets: &[&str]) -> Result<HttpSettings, String> {
        let session = self.id.clone().filter(|_| self.disable_clean_session);
        refuse(&[
            ("-V", self.protocol_version != Version::V5),
            ("--scram", self.scram),
            ("--sasl", self.sasl.is_some()),
            ("--link-name", self.link_name.is_some()),
            ("-x", self.session_expiry_interval.is_some()),
            ("-I", self.id_prefix.is_some()),
            ("-i without -c", self.id.is_some() && session.is_none()),
            ("--streams", self.streams != Streams::Single),
            ("--datagrams", self.datagrams),
            ("--close-timeout", self.close_timeout.is_some()),
            ("--will-topic", self.will_topic.is_some()),
            ("--tls-alpn", self.trust.tls_alpn.is_some()),
        ])?;
        let url = self.url()?;
        self.refuse_idle_flags(url.scheme())?;
        let topic = url.topic().map_err(|error| error.to_string())?;
        let mut options = Options::new(url);
        self.credentials(&mut options);
        options.credentials_once = self.login_once;
        self.link(&mut options.link)?;
        options.http3 = !self.no_http3;
        if let Some(head_start_ms) = self.head_start {
            options.head_start = Duration::from_millis(head_start_ms.into());
        }
        Ok(HttpSettings {
            options,
            properties: Properties::new(&self.properties, Version::V5, packets)?,
            topic,
            session,
        })
    }

    /// The login: a token, or user name and password.
    fn credentials(&self, options: &mut Options) {
        options.credentials = credentials(self.token.as_ref(), &self.login.login(&options.url));
    }

    /// Says what the connection knows of its path, when --path-stats asks for it.
    pub(in super::super) fn tell_http_path(&self, client: &Client) {
        if self.path_stats
            && let Some(path) = client.path()
        {
            eprintln!("{}", path.to_json());
        }
    }
}
