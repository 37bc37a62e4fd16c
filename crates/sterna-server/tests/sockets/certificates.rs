//! Certificates under live connections: chosen by name, exchanged, and revoked.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use sterna_server::Server;
use sterna_server::config::{AdditionalCertificate, Config, Listener};

use crate::scrape::metric;

const PATIENCE: Duration = Duration::from_secs(60);

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "an authority");
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signs")
}

/// A certificate of a name, and its key.
struct Leaf {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Leaf {
    fn new(authority: &Authority, name: &str, serial: u64) -> Self {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        params.serial_number = Some(SerialNumber::from(serial));
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, authority).expect("signs");
        Self { certificate, key }
    }

    fn write(&self, folder: &Path, name: &str) -> AdditionalCertificate {
        let files = AdditionalCertificate {
            certificate: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}.key")),
        };
        std::fs::write(&files.certificate, self.certificate.pem()).expect("written");
        std::fs::write(&files.key, self.key.serialize_pem()).expect("written");
        files
    }

    fn der(&self) -> CertificateDer<'static> {
        self.certificate.der().clone()
    }
}

fn revoke(authority: &Authority, serials: &[u64]) -> String {
    let revoked = serials.iter().map(|&serial| RevokedCertParams {
        serial_number: SerialNumber::from(serial),
        revocation_time: date_time_ymd(2024, 1, 1),
        reason_code: None,
        invalidity_date: None,
    });
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2024, 1, 1),
        next_update: date_time_ymd(2090, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(authority).expect("signs");
    list.pem().expect("PEM")
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// How a device connects; its sessions are resumed where the server lets them.
fn device(authority: &Authority, own: Option<&Leaf>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key = PrivatePkcs8KeyDer::from(own.key.serialize_der());
            let key = PrivateKeyDer::from(key);
            builder
                .with_client_auth_cert(vec![own.der()], key)
                .expect("a key")
        }
    };
    Arc::new(config)
}

/// Connects and gets CONNACK. An error where the client is refused, by TLS or after a reload meanwhile.
fn enter(server: &Server, device: &Arc<ClientConfig>, name: &str) -> std::io::Result<Stream> {
    let address = server.listeners()[0]
        .trim_start_matches("mqtts://")
        .to_owned();
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let client = ClientConnection::new(Arc::clone(device), name).expect("a client");
    let mut stream = StreamOwned::new(client, stream);
    stream.write_all(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00")?;
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    let mut rest = vec![0; usize::from(head[1])];
    stream.read_exact(&mut rest)?;
    assert_eq!(head[0], 0x20);
    if rest[1] != 0 {
        let why = format!("reason code {:#04x}", rest[1]);
        return Err(std::io::Error::other(why));
    }
    Ok(stream)
}

fn is_alive(stream: &mut Stream) -> bool {
    let mut answer = [0; 2];
    stream.write_all(&[0xc0, 0]).is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && answer == [0xd0, 0]
}

fn presented(stream: &Stream) -> CertificateDer<'static> {
    let chain = stream.conn.peer_certificates().expect("a chain");
    chain[0].clone().into_owned()
}

#[test]
fn certificates_are_chosen_by_name_and_exchanged_under_live_connections() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = authority();
    let leaf = |name: &str, serial: u64| Leaf::new(&authority, name, serial);
    let (first, second) = (leaf("a.example", 1), leaf("b.example", 2));
    let main = first.write(folder.path(), "first");
    let mut config = Config {
        listeners: vec![Listener::at("mqtts://127.0.0.1:0")],
        data_directory: Some(folder.path().join("state")),
        ..Config::default()
    };
    config.tls.certificate = Some(main.certificate);
    config.tls.key = Some(main.key);
    config.tls.additional = vec![second.write(folder.path(), "second")];
    let server = Server::start(&config).expect("starts");
    let device = device(&authority, None);
    let mut a = enter(&server, &device, "a.example").expect("enters");
    let mut b = enter(&server, &device, "b.example").expect("enters");
    assert_eq!((presented(&a), presented(&b)), (first.der(), second.der()));
    assert!(
        enter(&server, &device, "c.example").is_err(),
        "nobody vouches for it"
    );

    // The second one is renewed; connections stay.
    let renewed = leaf("b.example", 3);
    renewed.write(folder.path(), "second");
    server.reload(&config).expect("reloads");
    assert!(is_alive(&mut a) && is_alive(&mut b));
    let fresh = self::device(&authority, None);
    let b = enter(&server, &fresh, "b.example").expect("enters");
    assert_eq!(presented(&b), renewed.der());

    // A key of another certificate changes nothing, and is named.
    let other = leaf("b.example", 4).write(folder.path(), "other");
    config.tls.additional[0].key = other.key;
    let why = server.reload(&config).expect_err("they do not go together");
    assert!(why.contains("other.key"), "{why}");
    let fresh = self::device(&authority, None);
    let b = enter(&server, &fresh, "b.example").expect("enters");
    assert_eq!(presented(&b), renewed.der());
    server.shutdown();
}

/// A broker for clients with a certificate, and its revocation list, which has the serial number 77.
fn with_list(folder: &Path, authority: &Authority) -> (Config, PathBuf) {
    let own = Leaf::new(authority, "a.example", 1).write(folder, "own");
    let (ca, list) = (folder.join("ca.pem"), folder.join("revoked.pem"));
    std::fs::write(&ca, authority.pem()).expect("written");
    std::fs::write(&list, revoke(authority, &[77])).expect("written");
    let mut config = Config {
        listeners: vec![Listener::at("mqtts://127.0.0.1:0")],
        data_directory: Some(folder.join("state")),
        ..Config::default()
    };
    config.tls.certificate = Some(own.certificate);
    config.tls.key = Some(own.key);
    config.tls.client_ca = Some(ca);
    config.tls.client_revocation_lists = vec![list.clone()];
    config.tls.require_client_certificate = true;
    (config, list)
}

#[test]
fn a_revoked_client_is_refused_from_the_reload_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = authority();
    let (config, list) = with_list(folder.path(), &authority);
    let server = Server::start(&config).expect("starts");
    let leaves: Vec<Leaf> = [7, 8, 77]
        .map(|serial| Leaf::new(&authority, "device", serial))
        .into();
    let devices: Vec<_> = leaves
        .iter()
        .map(|leaf| device(&authority, Some(leaf)))
        .collect();
    let enters = |device: &Arc<ClientConfig>| enter(&server, device, "a.example").is_ok();
    assert!(enters(&devices[0]) && enters(&devices[1]));
    assert!(!enters(&devices[2]), "it is revoked from the start");

    std::fs::write(&list, revoke(&authority, &[7])).expect("written");
    server.reload(&config).expect("reloads");
    // It has a ticket, which is void.
    assert!(!enters(&devices[0]));
    assert!(enters(&devices[1]) && enters(&devices[2]));

    // A list that is being written revokes nobody; the old one stays.
    let whole = revoke(&authority, &[7]);
    for bad in ["", "garbage", &whole[..whole.len() / 2]] {
        std::fs::write(&list, bad).expect("written");
        let why = server.reload(&config).expect_err("no list");
        assert!(why.contains("revoked.pem"), "{why}");
        assert!(!enters(&devices[0]) && enters(&devices[1]));
    }
    server.shutdown();
}

/// A chain ends with the first of its certificates, and a revocation list when the next one is due.
#[test]
fn the_ends_of_chains_and_lists_are_told() {
    const YEAR_2031_S: u64 = 1_924_992_000;
    const YEAR_2090_S: u64 = 3_786_912_000;
    let folder = tempfile::tempdir().expect("a folder");
    let authority = authority();
    let own = Leaf::new(&authority, "a.example", 1).write(folder.path(), "own");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.not_after = date_time_ymd(2031, 1, 1);
    let middle = params
        .signed_by(&KeyPair::generate().expect("a key"), &authority)
        .expect("signs");
    let leaf = std::fs::read_to_string(&own.certificate).expect("a file");
    std::fs::write(&own.certificate, leaf + &middle.pem()).expect("written");
    let (ca, list) = (folder.path().join("ca.pem"), folder.path().join("list.pem"));
    std::fs::write(&ca, authority.pem()).expect("written");
    std::fs::write(&list, revoke(&authority, &[7])).expect("written");
    let mut config = Config {
        listeners: vec![
            Listener::at("mqtts://127.0.0.1:0"),
            Listener::at("admin://127.0.0.1:0"),
        ],
        data_directory: Some(folder.path().join("state")),
        ..Config::default()
    };
    config.tls.certificate = Some(own.certificate.clone());
    config.tls.key = Some(own.key);
    config.tls.client_ca = Some(ca);
    config.tls.client_revocation_lists = vec![list.clone()];
    let server = Server::start(&config).expect("starts");
    let of = |name: &str, file: &Path| {
        let sample = format!(
            "sterna_{name}_timestamp_seconds{{file=\"{}\"}}",
            file.display()
        );
        metric(&server, &sample)
    };
    assert_eq!(of("certificate_expiry", &own.certificate), YEAR_2031_S);
    assert_eq!(of("revocation_list_due", &list), YEAR_2090_S);
    assert_eq!(
        of("certificate_expiry", &list),
        0,
        "a list is no certificate"
    );
    server.shutdown();
}

/// The file appears whole, as tools that renew certificates write it.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).expect("written");
    std::fs::rename(&beside, path).expect("renamed");
}

fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn files_that_change_are_put_in_force_without_a_reload() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = authority();
    let first = Leaf::new(&authority, "a.example", 1);
    let (mut config, list) = with_list(folder.path(), &authority);
    first.write(folder.path(), "own");
    config.tls.watch_interval_s = 1;
    let server = Server::start(&config).expect("starts");
    let leaves: Vec<Leaf> = [7, 8]
        .map(|serial| Leaf::new(&authority, "device", serial))
        .into();
    let devices: Vec<_> = leaves
        .iter()
        .map(|leaf| device(&authority, Some(leaf)))
        .collect();
    let mut revoked = enter(&server, &devices[0], "a.example").expect("enters");
    let mut stays = enter(&server, &devices[1], "a.example").expect("enters");

    // The list revokes a client that is connected.
    replace(&list, &revoke(&authority, &[7, 77]));
    let mut rest = Vec::new();
    // Whether it is told or not: the connection ends.
    let _ = revoked.read_to_end(&mut rest);
    assert!(enter(&server, &devices[0], "a.example").is_err());
    assert!(is_alive(&mut stays));

    // A list that makes no sense, beside a certificate that does: neither comes into force.
    let renewed = Leaf::new(&authority, "a.example", 2);
    replace(&list, "garbage");
    renewed.write(folder.path(), "own");
    let fresh = || device(&authority, Some(&leaves[1]));
    std::thread::sleep(Duration::from_secs(3));
    let after = enter(&server, &fresh(), "a.example").expect("enters");
    assert_eq!(presented(&after), first.der(), "all or nothing");
    assert!(enter(&server, &devices[0], "a.example").is_err());

    // When the list is whole, all of it is.
    replace(&list, &revoke(&authority, &[7]));
    await_that("the renewed certificate", || {
        let after = enter(&server, &fresh(), "a.example").expect("enters");
        presented(&after) == renewed.der()
    });
    assert!(is_alive(&mut stays));
    server.shutdown();
}

/// The list is good all the time. The fault is in a file that nobody watches.
#[test]
fn a_list_comes_into_force_once_the_fault_of_another_file_is_mended() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = authority();
    let (mut config, list) = with_list(folder.path(), &authority);
    let users = folder.path().join("users");
    std::fs::write(&users, "# nobody\n").expect("written");
    config.authentication.password_file = Some(users.clone());
    config.authentication.anonymous = Some(true);
    config.tls.watch_interval_s = 1;
    let server = Server::start(&config).expect("starts");
    let device = device(&authority, Some(&Leaf::new(&authority, "device", 7)));
    let enters = || enter(&server, &device, "a.example").is_ok();
    assert!(enters());

    replace(&users, "no record\n");
    replace(&list, &revoke(&authority, &[7]));
    std::thread::sleep(Duration::from_secs(3));
    assert!(enters(), "all or nothing");

    replace(&users, "# nobody\n");
    await_that("the list", || !enters());
    server.shutdown();
}

#[test]
fn lists_need_an_authority_and_files() {
    let mut config = Config::default();
    config.tls.client_revocation_lists = vec!["/nowhere".into()];
    config.tls.additional = vec![AdditionalCertificate::default()];
    let problems = config.check().expect_err("problems").join("\n");
    for named in [
        "tls.client_revocation_lists needs tls.client_ca",
        "tls.client_revocation_lists: there is no file /nowhere",
        "tls.additional needs tls.certificate",
        "tls.additional 1: key: there is no file",
    ] {
        assert!(problems.contains(named), "{named}: {problems}");
    }
}
