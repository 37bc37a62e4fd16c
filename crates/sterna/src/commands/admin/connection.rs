//! The connection to the admin listener of a broker, and its calls.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use sterna_client::Url;
use sterna_client::arguments::{Credentials as Login, Trust, from_environment, seconds};
use sterna_client::http::{Client, Error, Lines, Method, Options};

use super::super::connection::http::credentials;
use super::super::exit::{self, Failure};

/// The port of an admin URL without one.
const DEFAULT_PORT: u16 = 9464;
/// Entries that are asked for at once.
const PAGE: usize = 500;

/// Where the broker's operators are served, and who asks.
#[derive(clap::Args, Clone, Debug)]
#[command(mut_arg("tls_use_os_certs", |argument| {
    argument.help("Trust the system's authorities, which admins:// does anyway")
}))]
pub(in super::super) struct Connection {
    /// The admin listener: admin:// or admins://[USER[:PASSWORD]@]HOST[:PORT] [env: STERNA_ADMIN_URL]
    /// [default: admin://localhost:9464]
    #[arg(short = 'L', long, value_name = "URL", help_heading = "Connection")]
    url: Option<String>,
    #[command(flatten)]
    login: Login,
    /// A token to log in with, in place of user name and password [env: STERNA_TOKEN]
    #[arg(
        long,
        value_name = "TOKEN",
        conflicts_with = "username",
        help_heading = "Client"
    )]
    token: Option<String>,
    /// Longest wait for the connection, and for each answer
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds,
          help_heading = "Connection")]
    timeout: Duration,
    #[command(flatten)]
    trust: Trust,
}

/// The URL of HTTP that an admin URL stands for.
fn http_url(text: &str) -> Result<Url, String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("admin", text));
    let scheme = match scheme {
        "admin" | "http" => "http",
        "admins" | "https" => "https",
        other => {
            return Err(format!(
                "{text}: {other}:// is no admin listener: admin:// or admins://"
            ));
        }
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if !matches!(path, "" | "/") {
        return Err(format!("{text}: an admin listener has no path"));
    }
    let host = authority.rsplit('@').next().unwrap_or_default();
    let has_port = host
        .rsplit(']')
        .next()
        .is_some_and(|rest| rest.contains(':'));
    let port = if has_port {
        String::new()
    } else {
        format!(":{DEFAULT_PORT}")
    };
    let url = format!("{scheme}://{authority}{port}");
    url.parse().map_err(|error| format!("{text}: {error}"))
}

impl Connection {
    /// A client, which connects with its first call.
    pub(in super::super) fn client(&self) -> Result<Admin, Failure> {
        let given = self
            .url
            .clone()
            .or_else(|| from_environment("STERNA_ADMIN_URL"));
        let url = http_url(given.as_deref().unwrap_or("admin://localhost"))?;
        self.trust.refuse_idle(url.scheme())?;
        let mut options = Options::new(url);
        options.credentials = credentials(self.token.as_ref(), &self.login.login(&options.url));
        options.tls = self.trust.tls();
        options.http3 = false;
        options.connect_timeout = self.timeout;
        options.response_timeout = self.timeout;
        options.reconnect = None;
        let place = options.url.to_string();
        let client = Client::new(options).map_err(|error| Failure::http(&error))?;
        Ok(Admin {
            client,
            place,
            scope: None,
        })
    }
}

/// A client of the admin API.
#[derive(Debug)]
pub(in super::super) struct Admin {
    client: Client,
    /// The listener, for errors.
    place: String,
    /// A parameter of each call: which nodes of a cluster are asked.
    scope: Option<String>,
}

/// Entries of a list.
#[derive(Debug, Default)]
pub(in super::super) struct Listed {
    pub(in super::super) items: Vec<Value>,
    /// Whether there are more.
    pub(in super::super) has_more: bool,
    /// Nodes of the cluster that have not answered.
    pub(in super::super) unanswered: Vec<String>,
}

impl From<Vec<Value>> for Listed {
    /// All that there are.
    fn from(items: Vec<Value>) -> Self {
        Self {
            items,
            ..Self::default()
        }
    }
}

/// A part of a path.
pub(in super::super) fn segment(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

impl Admin {
    fn failed(&self, error: &Error) -> Failure {
        let failure = Failure::http(error);
        match error {
            // The others name the place themselves.
            Error::Problem(_) | Error::Protocol(_) => Failure::new(
                failure.code,
                format_args!("{}: {}", self.place, failure.text),
            ),
            _ => failure,
        }
    }

    /// Calls a resource below `/admin/v1`; `null` where the answer has no content.
    pub(in super::super) async fn call(
        &self,
        method: Method,
        path: &str,
        content: Option<&Value>,
    ) -> Result<Value, Failure> {
        let mut target = format!("/admin/v1{path}");
        if let Some(scope) = &self.scope {
            target.push(if path.contains('?') { '&' } else { '?' });
            target.push_str(scope);
        }
        let content = content.map(|content| content.to_string().into());
        let answer = match self.client.call(method, &target, content).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.refused(&error).await),
        };
        if answer.content.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer.content).map_err(|error| {
            let text = format!("an answer that is not JSON: {error}");
            self.failed(&Error::Protocol(text))
        })
    }

    pub(in super::super) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.call(Method::Get, path, None).await
    }

    /// The same, where each call asks the nodes of `scope`, a parameter.
    pub(in super::super) fn within(self, scope: Option<String>) -> Self {
        Self { scope, ..self }
    }

    /// Entries of a list, page by page: up to `most`.
    pub(in super::super) async fn list(&self, path: &str, most: usize) -> Result<Listed, Failure> {
        let mut listed = Listed {
            has_more: true,
            ..Listed::default()
        };
        let mut after: Option<String> = None;
        while listed.has_more && listed.items.len() < most {
            let limit = PAGE.min(most - listed.items.len());
            let separator = if path.contains('?') { '&' } else { '?' };
            let mut target = format!("{path}{separator}limit={limit}");
            if let Some(after) = &after {
                target = format!("{target}&after={}", segment(after));
            }
            let mut page = self.get(&target).await?;
            if let Value::Array(found) = page["items"].take() {
                listed.items.extend(found);
            }
            // Each page names those of which it is known.
            for node in page["unanswered"].as_array().into_iter().flatten() {
                let node = node.as_str().unwrap_or_default();
                if listed.unanswered.iter().all(|known| known != node) {
                    listed.unanswered.push(node.to_owned());
                }
            }
            match page["next"].take() {
                Value::String(next) => after = Some(next),
                _ => listed.has_more = false,
            }
        }
        Ok(listed)
    }

    /// The listener.
    pub(in super::super) fn place(&self) -> &str {
        &self.place
    }

    /// The lines of an answer that does not end.
    pub(in super::super) async fn lines(&self, path: &str) -> Result<Lines, Failure> {
        match self.client.lines(&format!("/admin/v1{path}")).await {
            Ok(lines) => Ok(lines),
            Err(error) => Err(self.refused(&error).await),
        }
    }

    /// The failure of a call. A listener that lacks what each admin listener has is none.
    async fn refused(&self, error: &Error) -> Failure {
        let is_unknown = |error: &Error| {
            let problem = error.problem();
            problem.is_some_and(|problem| problem.status == 404 && problem.name == "no-resource")
        };
        if is_unknown(error) {
            let node = self.client.call(Method::Get, "/admin/v1/node", None).await;
            if node.is_err_and(|error| is_unknown(&error)) {
                let place = &self.place;
                let text = format!(
                    "{place}: this is no admin listener; its port is mostly {DEFAULT_PORT}"
                );
                return Failure::new(exit::UNREACHABLE, text);
            }
        }
        self.failed(error)
    }

    /// The failure of such an answer.
    pub(in super::super) fn cut_off(&self, error: &Error) -> Failure {
        self.failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_urls_are_those_of_http() {
        for (given, url) in [
            ("admin://localhost", "http://localhost:9464"),
            ("localhost", "http://localhost:9464"),
            ("admin://h:1/", "http://h:1"),
            ("admins://[::1]", "https://[::1]:9464"),
            ("admins://[::1]:7", "https://[::1]:7"),
            ("http://h:80", "http://h:80"),
        ] {
            let parsed = http_url(given).unwrap();
            assert_eq!(
                parsed.to_string(),
                url.parse::<Url>().unwrap().to_string(),
                "{given}"
            );
        }
        for wrong in ["mqtt://h", "admin://h/x", "admin://"] {
            assert!(http_url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_one_part_of_a_path() {
        assert_eq!(segment("a/b ü.1"), "a%2Fb%20%C3%BC.1");
    }
}
