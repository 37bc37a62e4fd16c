//! QUIC listeners with profiles and raw public keys, as a configuration asks for them.

use sterna_server::Server;
use sterna_server::config::{Config, parse};

/// A public key (P-256), as a device's list has it.
const KEY: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt
6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==
-----END PUBLIC KEY-----
";

fn config(text: &str, directory: &std::path::Path) -> Config {
    let mut config = parse("test", text).expect("a configuration");
    config.data_directory = Some(directory.to_owned());
    config
}

#[test]
fn every_profile_starts_and_keys_are_read_again() {
    let directory = tempfile::tempdir().expect("a folder");
    let keys = directory.path().join("keys.pem");
    std::fs::write(&keys, KEY).expect("writes");
    let text = format!(
        "[quic]\nprofile = \"cellular\"\nearly_data = \"idempotent\"\naddress_tokens = 1\n\
         [tls]\nraw_public_key = true\nclient_keys = \"{}\"\n\
         [[listener]]\nurl = \"mqtt+quic://127.0.0.1:0\"\n\
         [[listener]]\nurl = \"mqtt+quic://127.0.0.1:0\"\nprofile = \"nb-iot\"\n\
         [[listener]]\nurl = \"mqtt+quic://127.0.0.1:0\"\nprofile = \"satellite\"\n\
         [[listener]]\nurl = \"mqtt+quic://127.0.0.1:0\"\nprofile = \"lan\"\n\
         [[listener]]\nurl = \"mqtt+quic://127.0.0.1:0\"\nprofile = \"sleepy\"\n",
        keys.display()
    );
    let config = config(&text, directory.path());
    let server = Server::start(&config).expect("a broker");
    assert_eq!(server.listeners().len(), 5);
    assert_eq!(
        server.reload(&config).expect("the same"),
        Vec::<String>::new()
    );
    // Another profile needs a restart, and keys that are none change nothing.
    let mut other = config.clone();
    other.quic.transport.profile = None;
    other.listeners[0].profile = None;
    assert_eq!(server.reload(&other).expect("sound"), ["quic.profile"]);
    std::fs::write(&keys, KEY.replace("MFkw", "!!!!")).expect("writes");
    let error = server.reload(&config).expect_err("no keys");
    assert!(error.contains("keys.pem"), "{error}");
    server.shutdown();
}

#[test]
fn what_this_build_cannot_do_is_said_at_the_start() {
    let directory = tempfile::tempdir().expect("a folder");
    let text = "[quic]\nkey_share = \"x25519mlkem768\"\n\
                [[listener]]\nurl = \"mqtt+quic://127.0.0.1:0\"\n";
    let error = Server::start(&config(text, directory.path())).expect_err("ring has none");
    assert!(error.contains("x25519mlkem768"), "{error}");
    let text = "[tls]\nclient_keys = \"keys.pem\"\n";
    let error = Server::start(&config(text, directory.path())).expect_err("needs another");
    assert!(error.contains("tls.raw_public_key"), "{error}");
}
