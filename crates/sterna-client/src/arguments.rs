//! Arguments that the command lines of Sterna share, for clap: broker, client, trust and QUIC.
//!
//! Names and meanings are those of mosquitto's clients where they have the same. A command flattens the
//! structures that it makes use of. `-h` is the host, so that it has to disable clap's own help flag.

use std::path::PathBuf;
use std::time::Duration;

use sterna_mqtt::{QoS, Version};
use sterna_quic::{Overrides, Profile};

use crate::tls::{Fingerprint, Tls, TlsVersion};
use crate::url::{Scheme, Url};

/// The heading of flags about TLS and QUIC in the help.
const SECURITY: &str = "TLS and QUIC";

/// A flag by its name, and whether it is given.
pub type Given = (&'static str, bool);

/// The first flag that is given.
#[must_use]
pub fn first_given(flags: &[Given]) -> Option<&'static str> {
    let given = flags.iter().find(|(_, is_given)| *is_given);
    given.map(|(flag, _)| *flag)
}

/// The value of an environment variable; `None` where it is empty or not set.
#[must_use]
pub fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Address of the broker.
#[derive(clap::Args, Clone, Debug)]
pub struct Place {
    /// The broker: mqtt://, mqtts://, ws://, wss://, mqtt+quic://, amqp://, amqps://, amqp+ws://,
    /// amqp+wss://, amqp+quic://, http://, https:// or h3://[USER[:PASSWORD]@]HOST[:PORT][/TOPIC]
    #[arg(value_name = "URL")]
    broker: Option<String>,
    /// The broker, as an option in place of the argument [env: STERNA_URL]
    #[arg(short = 'L', long, value_name = "URL", conflicts_with = "broker")]
    url: Option<String>,
    /// Host of the broker, in place of a URL [default: localhost]
    #[arg(short = 'h', long, value_name = "HOST", conflicts_with_all = ["broker", "url"])]
    host: Option<String>,
    /// Port of the broker [default: 1883; 8883 with TLS, 14567 with --quic]
    #[arg(short = 'p', long, value_name = "PORT", conflicts_with_all = ["broker", "url"])]
    port: Option<u16>,
    /// With -h: connect over QUIC
    #[arg(long, conflicts_with_all = ["broker", "url"])]
    quic: bool,
}

impl Place {
    /// Whether a broker is named, be it by the environment.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.broker.is_some()
            || self.url.is_some()
            || self.has_parts()
            || from_environment("STERNA_URL").is_some()
    }

    const fn has_parts(&self) -> bool {
        self.host.is_some() || self.port.is_some() || self.quic
    }

    /// The broker's URL. Host and port alone mean TLS where a flag of `trust` does.
    ///
    /// # Errors
    /// A sentence that names the URL and its fault.
    pub fn url(&self, trust: &Trust) -> Result<Url, String> {
        let given = self.broker.clone().or_else(|| self.url.clone());
        let url = given.or_else(|| from_environment("STERNA_URL").filter(|_| !self.has_parts()));
        if let Some(url) = url {
            return url.parse().map_err(|error| format!("{url}: {error}"));
        }
        let wants_tls = first_given(&trust.given()).is_some() || self.port == Some(8883);
        let scheme = match (self.quic, wants_tls) {
            (true, _) => Scheme::MqttQuic,
            (false, true) => Scheme::Mqtts,
            (false, false) => Scheme::Mqtt,
        };
        let host = self.host.as_deref().unwrap_or("localhost");
        Url::new(scheme, host, self.port).map_err(|error| error.to_string())
    }
}

/// Login of the client by user name and password.
#[derive(clap::Args, Clone, Debug)]
pub struct Credentials {
    /// User name [env: STERNA_USERNAME, for a URL without a user name]
    #[arg(short = 'u', long, value_name = "USER", help_heading = "Client")]
    username: Option<String>,
    /// Password. Other users of this host can see it on the command line; the environment is safer
    /// [env: STERNA_PASSWORD, with a user name that is not the URL's]
    #[arg(
        short = 'P',
        long = "pw",
        value_name = "PASSWORD",
        help_heading = "Client"
    )]
    password: Option<String>,
}

/// User name and password of a client.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UserLogin {
    /// The user name.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
}

impl std::fmt::Debug for UserLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A secret is not for logs.
        f.debug_struct("UserLogin")
            .field("user", &self.user)
            .field("has_password", &self.password.is_some())
            .finish()
    }
}

impl Credentials {
    /// Login at the broker of this URL: that of the flags, then that of the URL, and only without a
    /// user name in both that of the environment.
    #[must_use]
    pub fn login(&self, url: &Url) -> UserLogin {
        self.login_from(url, from_environment)
    }

    fn login_from(&self, url: &Url, variable: impl Fn(&str) -> Option<String>) -> UserLogin {
        let of_url = url.user().map(str::to_owned);
        let user = self.username.clone().or_else(|| of_url.clone());
        let user = user.or_else(|| variable("STERNA_USERNAME"));
        // A password goes with its own user name, and no secret to a server that it is not for.
        let password_of_url = || {
            let password = url.password().filter(|_| user == of_url);
            password.map(str::to_owned)
        };
        let is_users_own = user.is_some() && (self.username.is_some() || of_url.is_none());
        let password = self.password.clone().or_else(password_of_url);
        let password = password.or_else(|| variable("STERNA_PASSWORD").filter(|_| is_users_own));
        UserLogin { user, password }
    }
}

/// Servers that the client trusts on encrypted transports, and the client's own certificate.
#[derive(clap::Args, Clone, Debug)]
pub struct Trust {
    /// PEM file of authorities to trust, in place of the system's
    #[arg(long, value_name = "FILE", help_heading = SECURITY)]
    cafile: Option<PathBuf>,
    /// Folder of PEM files of authorities to trust, in place of the system's
    #[arg(long, value_name = "FOLDER", help_heading = SECURITY)]
    capath: Option<PathBuf>,
    /// Trust exactly the certificate with this SHA-256, which `sterna serve` prints; may be
    /// repeated
    #[arg(long, value_name = "SHA256", help_heading = SECURITY)]
    fingerprint: Vec<Fingerprint>,
    /// Trust exactly the server whose bare key has this SHA-256. The key is requested in place of a
    /// certificate (RFC 7250). May be repeated
    #[arg(long, value_name = "SHA256", help_heading = SECURITY)]
    server_key: Vec<Fingerprint>,
    /// PEM file with this client's certificate
    #[arg(long, value_name = "FILE", requires = "key", help_heading = SECURITY)]
    cert: Option<PathBuf>,
    /// PEM file with its key; without --cert this client shows the bare key (RFC 7250)
    #[arg(long, value_name = "FILE", help_heading = SECURITY)]
    key: Option<PathBuf>,
    /// Do not verify the broker at all: anyone on the path can read and change everything
    #[arg(long, help_heading = SECURITY)]
    pub insecure: bool,
    /// Name that the broker's certificate must have, if not the host's
    #[arg(long, value_name = "NAME", help_heading = SECURITY)]
    server_name: Option<String>,
    /// Protocol to ask for on a TLS port that serves several
    #[arg(long, value_name = "NAME", help_heading = SECURITY)]
    pub tls_alpn: Option<String>,
    /// Only this version of TLS: tlsv1.2 or tlsv1.3
    #[arg(long, value_name = "VERSION", value_parser = tls_version, help_heading = SECURITY)]
    tls_version: Option<TlsVersion>,
    /// With -h: use TLS and trust the system's authorities, as mqtts:// does
    #[arg(long, help_heading = SECURITY)]
    tls_use_os_certs: bool,
}

impl Trust {
    fn given(&self) -> [Given; 11] {
        [
            ("--cafile", self.cafile.is_some()),
            ("--capath", self.capath.is_some()),
            ("--fingerprint", !self.fingerprint.is_empty()),
            ("--server-key", !self.server_key.is_empty()),
            ("--cert", self.cert.is_some()),
            ("--key", self.key.is_some()),
            ("--insecure", self.insecure),
            ("--server-name", self.server_name.is_some()),
            ("--tls-alpn", self.tls_alpn.is_some()),
            ("--tls-version", self.tls_version.is_some()),
            ("--tls-use-os-certs", self.tls_use_os_certs),
        ]
    }

    /// Refuses a flag that does nothing over the URL's transport.
    ///
    /// # Errors
    /// A sentence that names the flag and the scheme.
    pub fn refuse_idle(&self, scheme: Scheme) -> Result<(), String> {
        if let Some(flag) = first_given(&self.given()).filter(|_| !scheme.is_encrypted()) {
            return Err(format!("{flag}: {}:// is not encrypted", scheme.name()));
        }
        let over_tcp = [
            ("--tls-alpn", self.tls_alpn.is_some()),
            (
                "--tls-version tlsv1.2",
                self.tls_version == Some(TlsVersion::Tls12),
            ),
        ];
        match first_given(&over_tcp).filter(|_| scheme.is_quic()) {
            Some(flag) => Err(format!(
                "{flag}: QUIC has TLS 1.3 and a protocol that the URL says"
            )),
            None => Ok(()),
        }
    }

    /// The settings of TLS. Secrets are not logged.
    #[must_use]
    pub fn tls(&self) -> Tls {
        Tls {
            ca_file: self.cafile.clone(),
            ca_path: self.capath.clone(),
            fingerprints: self.fingerprint.clone(),
            server_keys: self.server_key.clone(),
            certificate: self.cert.clone(),
            key: self.key.clone(),
            insecure: self.insecure,
            server_name: self.server_name.clone(),
            alpn: self.tls_alpn.iter().cloned().collect(),
            version: self.tls_version,
            ..Tls::default()
        }
    }
}

/// QUIC's own settings.
#[derive(clap::Args, Clone, Debug)]
pub struct Quic {
    /// Over QUIC: the kind of path: default, lan, cellular, satellite, nb-iot, sleepy
    #[arg(long, value_name = "PROFILE", help_heading = SECURITY)]
    quic_profile: Option<Profile>,
    /// Over QUIC: change one setting of the profile; may be repeated
    #[arg(long = "quic-set", value_name = "NAME=VALUE", help_heading = SECURITY)]
    quic_settings: Vec<String>,
}

impl Quic {
    /// The flags, and which of them are given.
    #[must_use]
    pub const fn given(&self) -> [Given; 2] {
        [
            ("--quic-profile", self.quic_profile.is_some()),
            ("--quic-set", !self.quic_settings.is_empty()),
        ]
    }

    /// The settings.
    ///
    /// # Errors
    /// A sentence that names the setting and its fault.
    pub fn overrides(&self) -> Result<Overrides, String> {
        let mut quic = Overrides {
            profile: self.quic_profile,
            ..Overrides::default()
        };
        for setting in &self.quic_settings {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("--quic-set {setting}: NAME=VALUE"))?;
            quic.set(name, value)
                .map_err(|error| format!("--quic-set: {error}"))?;
        }
        if let Err(problems) = quic.settings().check() {
            return Err(format!("--quic-set: {}", problems.join("; ")));
        }
        Ok(quic)
    }
}

/// A QoS of the command line.
///
/// # Errors
/// When it is none.
pub fn qos(text: &str) -> Result<QoS, String> {
    text.parse()
        .ok()
        .and_then(QoS::from_u8)
        .ok_or_else(|| "QoS is 0, 1 or 2".to_owned())
}

/// A length of time in seconds, fractions allowed.
///
/// # Errors
/// When it is none.
pub fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "not a number of seconds".to_owned())
}

/// A version of MQTT, as mosquitto's clients and as the specifications write it.
///
/// # Errors
/// When the text names no version.
pub fn version(text: &str) -> Result<Version, String> {
    match text.trim_start_matches("mqttv") {
        "5" | "5.0" => Ok(Version::V5),
        "311" | "3.1.1" | "4" => Ok(Version::V311),
        "31" | "3.1" | "3" => Ok(Version::V31),
        _ => Err("MQTT has the versions 5, 311 and 31".to_owned()),
    }
}

fn tls_version(text: &str) -> Result<TlsVersion, String> {
    match text {
        "tlsv1.2" => Ok(TlsVersion::Tls12),
        "tlsv1.3" => Ok(TlsVersion::Tls13),
        _ => Err("tlsv1.2 or tlsv1.3".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A secret of the environment is for the server that is named without a login.
    #[test]
    fn flags_go_before_the_url_and_that_before_the_environment() {
        let login = |flags: [Option<&str>; 2], url: &str, variables: bool| {
            let [username, password] = flags.map(|flag| flag.map(str::to_owned));
            let credentials = Credentials { username, password };
            let variable = |name: &str| {
                let value = match name {
                    "STERNA_USERNAME" => "env",
                    _ => "secret",
                };
                variables.then(|| value.to_owned())
            };
            let UserLogin { user, password } =
                credentials.login_from(&url.parse().unwrap(), variable);
            format!("{user:?} {password:?}").replace("Some", "")
        };
        let none = [None, None];
        for (flags, url, expected) in [
            (none, "mqtt://h", r#"("env") ("secret")"#),
            (none, "mqtt://ann:pw@h", r#"("ann") ("pw")"#),
            (none, "mqtt://ann@h", r#"("ann") None"#),
            ([None, Some("P")], "mqtt://ann@h", r#"("ann") ("P")"#),
            ([None, Some("P")], "mqtt://ann:pw@h", r#"("ann") ("P")"#),
            ([None, Some("P")], "mqtt://h", r#"("env") ("P")"#),
            ([Some("u"), None], "mqtt://h", r#"("u") ("secret")"#),
            ([Some("u"), None], "mqtt://ann:pw@h", r#"("u") ("secret")"#),
            ([Some("ann"), None], "mqtt://ann:pw@h", r#"("ann") ("pw")"#),
        ] {
            assert_eq!(login(flags, url, true), expected, "{flags:?} {url}");
        }
        assert_eq!(login(none, "mqtt://h", false), "None None");
        assert_eq!(login([None, Some("P")], "mqtt://h", false), r#"None ("P")"#);
    }
}
