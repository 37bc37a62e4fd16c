//! Accesses that a configuration opens to other hosts: each needs a setting of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::{
    ActionName, Authorization, Config, Effect, JwtAlgorithm, Listener, ListenerUrl, Protocol, Rule,
};

impl Config {
    /// The faults of the listeners: wrong URLs, and accesses for other hosts without the setting that says that they
    /// are meant.
    pub(super) fn exposure_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut reachable = Vec::new();
        for listener in self.listeners_in_force() {
            match listener.url.parse::<ListenerUrl>() {
                Err(error) => problems.push(format!("listener `{}`: {error}", listener.url)),
                Ok(url) if listener.is_for_this_host(&url) => {}
                Ok(url) => reachable.push((listener, url)),
            }
        }
        let authentication = &self.authentication;
        let has_secrets = self.has_secrets();
        for (listener, url) in &reachable {
            let is_admin = url.scheme.protocol() == Protocol::Admin;
            if is_admin {
                problems.extend(self.admin_problems(listener));
            }
            let opens = [
                (
                    !is_admin
                        && self.admits_anonymous(listener)
                        && !authentication.allow_anonymous_beyond_loopback,
                    "admits clients without credentials: set authentication.password_file, or \
                     authentication.allow_anonymous_beyond_loopback = true if that is meant",
                ),
                (
                    has_secrets
                        && !url.scheme.is_encrypted()
                        && !authentication.allow_plaintext_passwords_beyond_loopback,
                    "takes passwords in the clear: use a listener that encrypts, or set \
                     authentication.allow_plaintext_passwords_beyond_loopback = true if that is meant",
                ),
                (
                    !is_admin
                        && self.authorization.decides_by_default()
                        && self.authorization.default_allow
                        && !self.authorization.allow_default_beyond_loopback,
                    "lets clients do all that no rule names: set authorization.default_allow = false, or \
                     authorization.allow_default_beyond_loopback = true if that is meant",
                ),
                (
                    self.tls.certificate.is_none()
                        && url.scheme.is_encrypted()
                        && !self.tls.allow_development_certificate_beyond_loopback,
                    "would show the development certificate: set tls.certificate and tls.key, or \
                     tls.allow_development_certificate_beyond_loopback = true if that is meant",
                ),
            ];
            for (is_open, what) in opens {
                if is_open {
                    problems.push(format!(
                        "listener `{}` is reachable from other hosts and {what}",
                        listener.url
                    ));
                }
            }
        }
        problems
    }

    /// Faults of an admin listener that other hosts reach. It requires credentials, and at least one user
    /// must be able to get in.
    fn admin_problems(&self, listener: &Listener) -> Vec<String> {
        let tls = &self.tls;
        let has_proofs = self.has_secrets()
            || (tls.certificate_as_username
                && (tls.client_ca.is_some() || tls.client_keys.is_some()));
        let faults = [
            (
                self.admits_anonymous(listener),
                "admits clients without credentials, which an admin listener does on loopback alone: \
                 leave out anonymous = true",
            ),
            (
                !has_proofs,
                "nobody can show who they are: set authentication.password_file, \
                 authentication.token_file, authentication.jwt or webhook.authentication_url",
            ),
            (
                [
                    &self.authorization.admins,
                    &self.authorization.admin_groups,
                    &self.admin.operators,
                    &self.admin.operator_groups,
                    &self.admin.viewers,
                    &self.admin.viewer_groups,
                ]
                .iter()
                .all(|names| names.is_empty()),
                "nobody may read what it serves: name users in authorization.admins, admin.operators \
                 or admin.viewers, or their groups",
            ),
        ];
        let faults = faults.into_iter().filter(|(is_fault, _)| *is_fault);
        faults
            .map(|(_, what)| {
                let url = &listener.url;
                format!("listener `{url}` is reachable from other hosts, and {what}")
            })
            .collect()
    }

    /// Warnings for the operator, each a sentence that names a file. The files have secrets that
    /// other users of this host can read or change.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let files = [
            ("tls.key", &self.tls.key),
            (
                "authentication.password_file",
                &self.authentication.password_file,
            ),
            ("authentication.token_file", &self.authentication.token_file),
            ("webhook.headers_file", &self.webhook.headers_file),
            ("cluster.credentials_file", &self.cluster.credentials_file),
            ("cluster.password_file", &self.cluster.password_file),
            ("cluster.key", &self.cluster.key),
            (
                "quic.address_token_key_file",
                &self.quic.address_token_key_file,
            ),
        ];
        let jwt = &self.authentication.jwt;
        let has_shared_secrets = jwt.algorithms.contains(&JwtAlgorithm::Hs256);
        let files = (files.into_iter())
            .filter_map(|(setting, path)| Some((setting, path.as_ref()?, true)))
            .chain((self.tls.additional.iter()).map(|pair| ("tls.additional.key", &pair.key, true)))
            .chain(
                (jwt.key_files.iter())
                    .map(|path| ("authentication.jwt.key_files", path, has_shared_secrets)),
            );
        let of_file = |(setting, path, is_secret): (&str, &PathBuf, bool)| -> Option<String> {
            let mode = fs::metadata(path).ok()?.permissions().mode();
            let what = match mode {
                _ if mode & 0o022 != 0 => "can be changed by other users",
                _ if is_secret && mode & 0o004 != 0 => "can be read by every user",
                _ => return None,
            };
            Some(format!(
                "{setting}: {} {what} of this host: chmod 600 it",
                path.display()
            ))
        };
        files.filter_map(of_file).collect()
    }

    /// Whether clients show secrets: passwords or tokens.
    pub(crate) const fn has_secrets(&self) -> bool {
        self.authentication.has_secrets() || self.webhook.authentication_url.is_some()
    }

    /// Whether clients without credentials are admitted where the listener does not say.
    #[must_use]
    pub fn admits_anonymous_usually(&self) -> bool {
        (self.authentication.anonymous).unwrap_or_else(|| !self.has_secrets())
    }

    /// Whether a listener admits clients without credentials.
    pub(super) fn admits_anonymous(&self, listener: &Listener) -> bool {
        listener.admits_anonymous(self.admits_anonymous_usually())
            && !(self.tls.require_client_certificate && listener.encrypts())
    }
}

impl Authorization {
    /// Whether actions that no other rule names are denied.
    pub(super) fn is_closed(&self) -> bool {
        match self.rules.iter().find(|rule| rule.is_about_everything()) {
            Some(last) => last.effect == Effect::Deny,
            None => !self.default_allow,
        }
    }

    /// Whether there is anything that no rule names, which `default_allow` then decides.
    fn decides_by_default(&self) -> bool {
        !self.rules.iter().any(Rule::is_about_everything)
    }
}

impl Rule {
    /// Whether the rule decides about every client that publishes or subscribes anywhere.
    fn is_about_everything(&self) -> bool {
        let is_about = |action| self.actions.is_empty() || self.actions.contains(&action);
        self.users.is_empty()
            && self.groups.is_empty()
            && self.clients.is_empty()
            && self.admin.is_none()
            && !self.looks_at_origins()
            && !self.looks_at_messages()
            && is_about(ActionName::Publish)
            && is_about(ActionName::Subscribe)
            && self.topics.iter().any(|topic| topic == "#")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let config = super::super::parse("x", text).expect("a configuration");
        config.check().err().unwrap_or_default()
    }

    /// Attack rows 34 and 39: nothing is open to other hosts without a word about just that.
    #[test]
    fn each_exposure_needs_its_own_word() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, "").unwrap();
            path.display().to_string()
        };
        let users = format!("[authentication]\npassword_file = '{}'\n", file("users"));
        let certificate = format!(
            "[tls]\ncertificate = '{}'\nkey = '{}'\n",
            file("chain"),
            file("key")
        );
        let anonymous = "[authentication]\nallow_anonymous_beyond_loopback = true\n";
        let closed = "[authorization]\ndefault_allow = false\n";
        let listener = |url: &str| format!("[[listener]]\nurl = '{url}'\n");
        for (text, settings) in [
            (
                listener("mqtt://*:1883"),
                &[
                    "authentication.allow_anonymous_beyond_loopback",
                    "authorization.allow_default_beyond_loopback",
                ][..],
            ),
            (listener("mqtt://127.0.0.1:1883") + &users, &[]),
            (
                listener("mqtt://*:1883") + &users + closed,
                &["authentication.allow_plaintext_passwords_beyond_loopback"],
            ),
            (
                listener("ws://192.0.2.1:80")
                    + &users
                    + "allow_plaintext_passwords_beyond_loopback = true\n"
                    + closed,
                &[],
            ),
            (
                listener("mqtts://[::]:8883") + &users + closed,
                &["tls.allow_development_certificate_beyond_loopback"],
            ),
            (
                listener("h3://*:8443") + &users + &certificate,
                &["authorization.allow_default_beyond_loopback"],
            ),
            (
                listener("amqps://*:5671")
                    + &certificate
                    + anonymous
                    + "[authorization]\nallow_default_beyond_loopback = true\n",
                &[],
            ),
            (
                listener("amqps://*:5671")
                    + anonymous
                    + closed
                    + "[tls]\nallow_development_certificate_beyond_loopback = true\n",
                &[],
            ),
            (
                listener("admin://*:9464") + "anonymous = true\n",
                &[
                    "anonymous = true",
                    "authentication.password_file",
                    "authorization.admins",
                ],
            ),
            (
                listener("admins://*:9464")
                    + &users
                    + "[authorization]\nadmins = ['ann']\n"
                    + &certificate,
                &[],
            ),
            (
                listener("admin://*:9464") + &users + "[authorization]\nadmins = ['ann']\n",
                &["authentication.allow_plaintext_passwords_beyond_loopback"],
            ),
            (listener("admin://[::1]:9464") + &users, &[]),
            // A last rule for everything leaves nothing to the default.
            (
                listener("mqtt://*:1883")
                    + anonymous
                    + "[[authorization.rule]]\neffect = 'deny'\ntopics = ['#']\n",
                &[],
            ),
            (
                listener("mqtt://*:1883")
                    + anonymous
                    + "[[authorization.rule]]\neffect = 'deny'\nusers = ['ann']\ntopics = ['#']\n",
                &["authorization.allow_default_beyond_loopback"],
            ),
        ] {
            let problems = problems(&text);
            assert_eq!(problems.len(), settings.len(), "{text}\n{problems:?}");
            for (problem, setting) in problems.iter().zip(settings) {
                assert!(problem.contains(setting), "{text}\n{problem}");
            }
        }
    }

    #[test]
    fn secrets_that_others_read_or_change_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        fs::write(&path, "").unwrap();
        let mut config = Config::default();
        config.authentication.password_file = Some(path.clone());
        for (mode, what) in [
            (0o600, None),
            (0o640, None),
            (0o644, Some("can be read by every user")),
            (0o660, Some("can be changed by other users")),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let warnings = config.warnings();
            match what {
                None => assert_eq!(warnings, [""; 0]),
                Some(what) => {
                    assert!(warnings[0].starts_with("authentication.password_file: "));
                    assert!(warnings[0].contains(what), "{mode:o} {warnings:?}");
                }
            }
        }
    }
}
