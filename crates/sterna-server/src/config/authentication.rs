//! The section `authentication`: credentials of clients.

use std::path::PathBuf;

use super::{ClientIds, Jwt};

settings! {
    /// Credentials of clients. [Users](configuring.md#users) has the commands, and [Who a client
    /// is](configuring.md#who-a-client-is) the rules.
    #[derive(Eq)]
    pub struct Authentication {
        /// Whether clients without credentials are admitted.
        reload anonymous: Option<bool>, said
            "true without a password file, a token file, keys of `jwt` and `webhook.authentication_url`, else false";
        /// Users, one `name:record` a line, made by `sterna passwd`. A record proves a plain password and SCRAM-SHA-256
        /// and reveals neither. Records of `mosquitto_passwd` prove plain passwords.
        reload password_file: Option<PathBuf>;
        /// Bearer tokens of HTTP, one `name:digest` or `name:digest:expiry` a line, made by `sterna token`. The digest
        /// is the token's SHA-256 in hexadecimal digits, the expiry in seconds since 1970.
        reload token_file: Option<PathBuf>;
        /// JSON web tokens of an issuer.
        section jwt: Jwt;
        /// Whether clients without credentials are served on addresses that other hosts reach. Without it such a
        /// listener is refused at start and reload.
        reload allow_anonymous_beyond_loopback: bool = false;
        /// Whether secrets may come in the clear on addresses that other hosts reach. Without it such `mqtt://`,
        /// `amqp://`, `http://` and `ws://` listeners are refused beside a password file, token file, keys of `jwt` or
        /// `webhook.authentication_url`.
        reload allow_plaintext_passwords_beyond_loopback: bool = false;
        /// Client identifiers that users may have; without an entry, all.
        section client_ids: Vec<ClientIds>;
    }
}

impl Authentication {
    /// Whether files or an issuer know clients by secrets: passwords or tokens.
    pub(super) const fn has_secrets(&self) -> bool {
        self.password_file.is_some() || self.token_file.is_some() || self.jwt.is_configured()
    }
}
