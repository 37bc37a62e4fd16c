//! Accesses that a configuration opens to other hosts: each needs a setting of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::{
    ANONYMOUS, ActionName, Authentication, Authorization, Config, Effect, JwtAlgorithm, Listener,
    ListenerUrl, Protocol, Rule,
};

impl Config {
    /// The faults of the listeners: wrong URLs, and accesses for other hosts without the setting that says that they
    /// are meant.
    pub(super) fn exposure_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut reachable = Vec::new();
        for (number, listener) in (1..).zip(self.listeners_in_force()) {
            let mut name = format!("listener {number}: `{}`", listener.url);
            match listener.url.parse::<ListenerUrl>() {
                Err(error) => problems.push(format!("{name}: {error}")),
                Ok(url) if listener.is_for_this_host(&url) => {}
                Ok(url) => {
                    if url.is_loopback() {
                        name.push_str(", which has proxy_protocol,");
                    }
                    reachable.push((name, listener, url));
                }
            }
        }
        let authentication = &self.authentication;
        let has_secrets = self.has_secrets();
        for (name, listener, url) in &reachable {
            let is_admin = url.scheme.protocol() == Protocol::Admin;
            if is_admin {
                problems.extend(self.admin_problems(name, listener));
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
                    problems.push(format!("{name} is reachable from other hosts and {what}"));
                }
            }
        }
        problems
    }

    /// Faults of an admin listener that other hosts reach. It requires credentials, and at least one user
    /// must be able to get in.
    fn admin_problems(&self, name: &str, listener: &Listener) -> Vec<String> {
        let faults = [
            (
                self.admits_anonymous(listener),
                "admits clients without credentials, which an admin listener does on loopback alone: \
                 leave out anonymous = true",
            ),
            (
                !self.knows_users(),
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
            .map(|(_, what)| format!("{name} is reachable from other hosts, and {what}"))
            .collect()
    }

    /// Warnings for the operator, each a sentence that names a setting. They are about files that other users of
    /// this host can read or change, and about credentials and roles without effect.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.file_warnings();
        warnings.extend(self.empty_file_warnings());
        warnings.extend(self.unknown_user_warnings());
        warnings
    }

    /// Files of credentials that have none, where clients can log in with nothing else.
    fn empty_file_warnings(&self) -> Vec<String> {
        let Authentication { jwt, .. } = &self.authentication;
        let takes_anonymous = self.listeners_in_force().iter().any(|listener| {
            let url = listener.url.parse::<ListenerUrl>();
            let is_admin = url.is_ok_and(|url| url.scheme.protocol() == Protocol::Admin);
            !is_admin && self.admits_anonymous(listener)
        });
        let has_other = takes_anonymous
            || jwt.is_configured()
            || self.webhook.authentication_url.is_some()
            || self.takes_certificates();
        let is_empty = |path: &PathBuf| {
            let text = fs::read_to_string(path).unwrap_or_else(|_| "unknown".to_owned());
            let mut lines = text.lines().map(str::trim);
            lines.all(|line| line.is_empty() || line.starts_with('#'))
        };
        let files = [
            (
                "authentication.password_file",
                &self.authentication.password_file,
                "add a user with `sterna passwd`",
            ),
            (
                "authentication.token_file",
                &self.authentication.token_file,
                "add a token with `sterna token add`",
            ),
        ];
        let files = files.into_iter().filter_map(|(setting, path, advice)| {
            let path = path.as_ref()?;
            Some((setting, path, advice, is_empty(path)))
        });
        let files: Vec<_> = files.collect();
        if has_other || files.iter().any(|(.., is_empty)| !is_empty) {
            return Vec::new();
        }
        let warning = |(setting, path, advice, _): (&str, &PathBuf, &str, bool)| {
            let path = path.display();
            format!("{setting}: {path} is empty, so no client can log in: {advice}")
        };
        files.into_iter().map(warning).collect()
    }

    /// Users with a role whom no client can be.
    fn unknown_user_warnings(&self) -> Vec<String> {
        if self.knows_users() {
            return Vec::new();
        }
        let roles = [
            ("authorization.admins", &self.authorization.admins),
            ("admin.operators", &self.admin.operators),
            ("admin.viewers", &self.admin.viewers),
        ];
        let warning = |(setting, users): (&str, &Vec<String>)| {
            let user = users.iter().find(|user| *user != ANONYMOUS)?;
            Some(format!(
                "{setting}: no client can show that it is `{user}`: set authentication.password_file, \
                 authentication.token_file, authentication.jwt or webhook.authentication_url"
            ))
        };
        roles.into_iter().filter_map(warning).collect()
    }

    /// Files whose secrets other users of this host can read or change.
    fn file_warnings(&self) -> Vec<String> {
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
        let additional = self.tls.additional_pairs();
        let files = (files.into_iter())
            .filter_map(|(setting, path)| Some((setting, path.as_ref()?, true)))
            .chain(
                (jwt.key_files.iter())
                    .map(|path| ("authentication.jwt.key_files", path, has_shared_secrets)),
            )
            .map(|(setting, path, is_secret)| (setting.to_owned(), path, is_secret))
            .chain(additional.map(|(of, pair)| (of("key"), &pair.key, true)));
        let of_file = |(setting, path, is_secret): (String, &PathBuf, bool)| -> Option<String> {
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

    /// Whether clients may show certificates or keys of their own.
    const fn takes_certificates(&self) -> bool {
        self.tls.client_ca.is_some() || self.tls.client_keys.is_some()
    }

    /// Whether a client can show which user it is.
    const fn knows_users(&self) -> bool {
        self.has_secrets() || (self.tls.certificate_as_username && self.takes_certificates())
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
    fn credentials_and_users_without_effect_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(format!("{name}-{}", text.len()));
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            format!("authentication.{name} = '{}'\n", path.display())
        };
        let users = || file("password_file", "# none\n\n");
        let no_user = &["authentication.password_file: "][..];
        let bob = "admin.operators = ['anonymous', 'bob']\n";
        let no_bob = &["admin.operators: no client can show that it is `bob`"][..];
        for (text, warnings) in [
            (users(), no_user),
            (users() + "authentication.anonymous = true\n", &[]),
            (
                users() + "webhook.authentication_url = 'http://localhost'\n",
                &[],
            ),
            (
                users() + "[[listener]]\nurl = 'mqtt://localhost'\nanonymous = true\n",
                &[],
            ),
            (
                users() + "[[listener]]\nurl = 'admin://localhost'\nanonymous = true\n",
                no_user,
            ),
            (users() + &file("token_file", "sensor:x\n"), &[]),
            (
                users() + &file("token_file", ""),
                &[
                    "authentication.password_file: ",
                    "authentication.token_file: ",
                ],
            ),
            (file("password_file", "ann:record\n") + bob, &[]),
            (bob.to_owned(), no_bob),
            ("admin.operators = ['anonymous']\n".to_owned(), &[]),
            (
                "authorization.admins = ['ann']\nadmin.viewers = ['bob']\n".to_owned(),
                &["authorization.admins: ", "admin.viewers: "],
            ),
            (
                bob.to_owned() + "tls = { certificate_as_username = true, client_ca = 'x' }\n",
                &[],
            ),
        ] {
            let config = super::super::parse("x", &text).unwrap();
            let found = config.warnings();
            assert_eq!(found.len(), warnings.len(), "{text}\n{found:?}");
            for (found, warning) in found.iter().zip(warnings) {
                assert!(found.starts_with(warning), "{text}\n{found}");
            }
        }
    }

    #[test]
    fn secrets_that_others_read_or_change_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        fs::write(&path, "ann:record\n").unwrap();
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
