//! Credentials of a run's devices: a user with a password, an authority, and the certificate that
//! it has signed for the user.
//!
//! Everything is made for one folder, which is as secret as the folder is, and gone with it.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use sterna_auth::{MIN_ITERATIONS, PasswordFile, Record};

use super::device::Credentials;
use crate::campaign::Authentication;

/// The user that devices are.
pub const USER: &str = "device-7";
/// The user's password.
pub const PASSWORD: &str = "d3v1c3-p4ssw0rd";
/// The broker's users, as `sterna passwd` writes them.
pub const PASSWORD_FILE: &str = "passwords";
/// The issuer of the device's certificate.
pub const AUTHORITY: &str = "ca.pem";
/// The device's certificate; its subject's common name is [`USER`].
pub const CERTIFICATE: &str = "device.pem";
/// The key of the device's certificate.
pub const KEY: &str = "device.key";
/// Random bytes in the salt of the password's record.
const SALT_BYTES: usize = 16;

/// Whether [`make`] has been there.
#[must_use]
pub fn exist(folder: &Path) -> bool {
    folder.join(KEY).is_file()
}

/// Puts all of these files into a folder.
///
/// # Errors
///
/// If there are no random numbers, or a file cannot be written.
pub fn make(folder: &Path) -> Result<(), String> {
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let mut salt = [0; SALT_BYTES];
    getrandom::fill(&mut salt).map_err(|error| format!("no random numbers: {error}"))?;
    // The device is measured; its answers must not wait for the broker's CPU.
    let record = Record::from_password(PASSWORD, &salt, MIN_ITERATIONS)
        .map_err(|error| error.to_string())?;
    let mut users = PasswordFile::new();
    users.set(USER, record).map_err(|error| error.to_string())?;
    write(PASSWORD_FILE, users.to_string())?;
    let made = |error: rcgen::Error| error.to_string();
    let mut authority = CertificateParams::new(Vec::new()).map_err(made)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().map_err(made)?;
    write(AUTHORITY, authority.self_signed(&key).map_err(made)?.pem())?;
    let issuer = Issuer::new(authority, key);
    let mut device = CertificateParams::new(Vec::new()).map_err(made)?;
    device.distinguished_name.push(DnType::CommonName, USER);
    let key = KeyPair::generate().map_err(made)?;
    let certificate = device.signed_by(&key, &issuer).map_err(made)?;
    write(CERTIFICATE, certificate.pem())?;
    write(KEY, key.serialize_pem())
}

/// A device's credentials.
pub(super) fn of_device(authentication: Authentication, folder: &Path) -> Credentials {
    match authentication {
        Authentication::None => Credentials::None,
        Authentication::Password | Authentication::PasswordOnce => Credentials::Password {
            user: USER.into(),
            password: PASSWORD.into(),
            once: authentication == Authentication::PasswordOnce,
        },
        Authentication::Certificate => Credentials::Certificate {
            certificate: folder.join(CERTIFICATE),
            key: folder.join(KEY),
        },
    }
}

/// The settings of a broker that admits no other clients; none if it admits all.
pub(super) fn of_broker(
    authentication: Authentication,
    folder: &Path,
) -> Vec<(&'static str, PathBuf)> {
    let nobody_else = ("authentication.anonymous", "false".into());
    let passwords = ("authentication.password_file", folder.join(PASSWORD_FILE));
    let as_they_are = ("passwords.iterations", "0".into());
    match authentication {
        Authentication::None => Vec::new(),
        Authentication::Password => vec![nobody_else, passwords, as_they_are],
        Authentication::PasswordOnce => vec![
            nobody_else,
            passwords,
            as_they_are,
            ("http.authentication", "connection".into()),
        ],
        Authentication::Certificate => vec![
            nobody_else,
            ("tls.client_ca", folder.join(AUTHORITY)),
            ("tls.certificate_as_username", "true".into()),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_and_device_get_what_belongs_together() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path()).unwrap();
        let Credentials::Password {
            user,
            password,
            once: true,
        } = of_device(Authentication::PasswordOnce, folder.path())
        else {
            panic!("no password");
        };
        let settings = of_broker(Authentication::PasswordOnce, folder.path());
        assert_eq!(settings[0], ("authentication.anonymous", "false".into()));
        let text = std::fs::read_to_string(&settings[1].1).unwrap();
        let users = PasswordFile::parse(&text).unwrap();
        assert!(
            users
                .get(&user)
                .unwrap()
                .verify_password(password.as_bytes())
        );
        assert_eq!(settings[3], ("http.authentication", "connection".into()));

        let Credentials::Certificate { certificate, key } =
            of_device(Authentication::Certificate, folder.path())
        else {
            panic!("no certificate");
        };
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert!(read(&certificate).starts_with("-----BEGIN CERTIFICATE"));
        assert!(KeyPair::from_pem(&read(&key)).is_ok());
        let settings = of_broker(Authentication::Certificate, folder.path());
        assert!(read(&settings[1].1).starts_with("-----BEGIN CERTIFICATE"));
    }
}
