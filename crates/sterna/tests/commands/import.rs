//! `sterna config import`: configurations of Mosquitto. Nobody gets more than there.

use std::fs;
use std::path::Path;

use crate::config::config;
use crate::process::{Broker, code, stderr, sterna};

/// What a plant might have: every kind of line, and some that are nothing here.
const MOSQUITTO: &str = "\
# A plant's broker.
per_listener_settings false
allow_anonymous false
password_file users
acl_file rules.acl
persistence true
persistence_location /var/lib/mosquitto/
autosave_interval 300
persistent_client_expiration 2w
max_inflight_messages 40
max_queued_messages 0
max_queued_bytes 1048576
max_packet_size 3000000
max_keepalive 600
memory_limit 536870912
retain_available true
set_tcp_nodelay true
sys_interval 30
log_dest stderr
log_dest file /var/log/mosquitto/mosquitto.log
log_type warning
log_type notice
connection_messages true
user mosquitto
pid_file /run/mosquitto.pid

listener 1883 127.0.0.1
max_connections 100

listener 8883
socket_domain ipv4
certfile certificate.pem
keyfile key.pem
cafile ca.pem
require_certificate true
use_identity_as_username true
tls_version tlsv1.3
max_connections 5000
max_qos 1
max_topic_alias 10
ciphers HIGH

listener 9001 ::1
protocol websockets

listener 1884
mount_point site/

include_dir more

connection north
address north.example:8883
topic # out 1 plant/ north/
bridge_cafile ca.pem
remote_username plant

max_inflight_bytes 100000
";

const RULES: &str = "\
topic read public/#
user ann
topic readwrite pumps/#
topic deny pumps/secret
user bob
topic read pumps/+/state
topic pumps/bob notes
pattern write devices/%u/#
pattern read devices/%c/orders
topics typo
";

/// Made by `mosquitto_passwd` 2.0 for the password `pass word`.
const USERS: &str = "\
ann:$7$101$TW8yJOn8lwmx+LAH$mwDPYDx8osXJwYsxCEKHamrwAUtxS3jEr2ENsE43jWZkN55wqwGBXPzcPYT2/QkYhu6QAYB161OzABMU8LCepA==
bob:$6$06v3aHF2XQ6mvI8m$Lhmg9Cc/mnRY8D8+oxt0FEwe/HeSIg+g5RmyYyEng6H9ZSZNgCTiNXV8hJFezmECdz2BGj3+Ify8ppsHcpRYEQ==
";

/// A folder with the configuration of a plant's broker, and what it names.
fn plant() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let broker = Broker::start(&["mqtts"], &[], |_, _| {});
    for (from, to) in [
        ("development-certificate.pem", "certificate.pem"),
        ("development-key.pem", "key.pem"),
        ("development-ca.pem", "ca.pem"),
    ] {
        fs::copy(broker.folder.path().join(from), path(to)).unwrap();
    }
    fs::write(path("mosquitto.conf"), MOSQUITTO).unwrap();
    fs::write(path("rules.acl"), RULES).unwrap();
    fs::write(path("users"), format!("{USERS}eve:plain\n")).unwrap();
    fs::create_dir(path("more")).unwrap();
    fs::write(path("more/b.conf"), "clientid_prefixes plant-\n").unwrap();
    folder
}

#[test]
fn a_configuration_of_mosquitto_is_translated() {
    let plant = plant();
    let folder = plant.path();
    let imported = config(folder, &["import", "mosquitto.conf", "-o", "sterna.toml"]);
    let told = stderr(&imported);
    assert_eq!(code(&imported), 3, "{told}");
    let checked = config(folder, &["check", "sterna.toml"]);
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));

    let text = fs::read_to_string(folder.join("sterna.toml")).unwrap();
    let found = sterna_server::config::parse("sterna.toml", &text).unwrap();
    let urls: Vec<&str> = found.listeners.iter().map(|it| it.url.as_str()).collect();
    assert_eq!(
        urls,
        [
            "mqtt://127.0.0.1:1883",
            "mqtts://0.0.0.0:8883",
            "ws://[::1]:9001",
            "admin://localhost:9464"
        ]
    );
    let limits: Vec<Option<u32>> = found
        .listeners
        .iter()
        .map(|it| it.maximum_connections)
        .collect();
    assert_eq!(limits, [Some(100), Some(5000), None, None]);
    assert_eq!(found.listeners[3].anonymous, Some(false));
    let file = |name: &str| Some(folder.join(name));
    let tls = &found.tls;
    assert_eq!(
        (&tls.certificate, &tls.key),
        (&file("certificate.pem"), &file("key.pem"))
    );
    assert_eq!(tls.client_ca, file("ca.pem"));
    assert!(tls.require_client_certificate && tls.certificate_as_username && tls.only_tls13);
    assert_eq!(found.authentication.anonymous, Some(false));
    assert_eq!(found.authentication.password_file, file("passwords"));
    assert_eq!(found.authentication.client_ids[0].patterns, ["plant-*"]);
    assert!(found.store.enabled && found.mqtt.retain_available);
    let mqtt = &found.mqtt;
    assert_eq!((mqtt.send_maximum, mqtt.receive_maximum), (40, 40));
    assert_eq!((mqtt.maximum_qos, mqtt.topic_alias_maximum), (1, 10));
    assert_eq!(
        (mqtt.maximum_packet_bytes, mqtt.maximum_keep_alive_s),
        (3_000_000, 600)
    );
    assert_eq!(mqtt.maximum_session_expiry_s, 14 * 24 * 3600);
    assert_eq!(found.broker.maximum_queued_messages, u32::MAX);
    assert_eq!(found.broker.maximum_queued_bytes, 1 << 20);
    let ceiling = sterna_server::config::MemoryCeiling::Bytes(512 << 20);
    assert_eq!(found.broker.memory_ceiling, ceiling);
    assert_eq!(
        (found.sys.interval_s, found.log.level.as_str()),
        (30, "info")
    );
    // Each line that is nothing here is named.
    let lines: Vec<&str> = MOSQUITTO.lines().collect();
    for (what, is_left) in [
        ("persistence_location /", true),
        ("log_dest file", true),
        ("ciphers", true),
        ("mount_point", true),
        ("connection north", true),
        ("topic # out", true),
        ("bridge_cafile", true),
        ("max_inflight_bytes", true),
        ("max_connections 100", false),
        ("max_connections 5000", false),
        ("password_file", true),
        ("set_tcp_nodelay", false),
        ("listener 8883", false),
        ("certfile", false),
        ("log_dest stderr", false),
    ] {
        let at = 1 + lines
            .iter()
            .position(|line| line.starts_with(what))
            .unwrap();
        let (_, left) = told.split_once("not translated:").unwrap();
        let name = format!("mosquitto.conf:{at}: ");
        assert_eq!(left.contains(&name), is_left, "{what}: {told}");
    }
    assert!(told.contains("rules.acl:10: topics:"), "{told}");
    for note in [
        "max_qos: holds for all listeners: 1",
        "max_topic_alias: holds for all listeners: 10",
    ] {
        assert!(told.contains(note), "{note}: {told}");
    }
    let users = fs::read_to_string(folder.join("passwords")).unwrap();
    assert_eq!(users, format!("{USERS}# eve\n"));
}

#[test]
fn rules_decide_as_in_mosquitto() {
    let plant = plant();
    let folder = plant.path();
    config(folder, &["import", "mosquitto.conf"]);
    let decided = |user: &str, action: &str, topic: &str| {
        let mut command = sterna();
        command.args(["acl", "explain", "--config", "sterna.toml", action, topic]);
        if !user.is_empty() {
            command.args(["--user", user, "--client", "plant-7"]);
        }
        code(&command.current_dir(folder).output().unwrap()) == 0
    };
    for (user, action, topic, is_allowed) in [
        ("", "subscribe", "public/news", true),
        ("", "publish", "public/news", false),
        ("", "subscribe", "pumps/1/state", false),
        ("ann", "subscribe", "public/news", false),
        ("ann", "publish", "pumps/1", true),
        ("ann", "publish", "pumps/secret", false),
        ("bob", "subscribe", "pumps/1/state", true),
        ("bob", "publish", "pumps/1/state", false),
        ("bob", "publish", "pumps/bob notes", true),
        ("bob", "publish", "devices/bob/x", true),
        ("bob", "publish", "devices/ann/x", false),
        ("carl", "publish", "devices/carl/x", true),
        ("carl", "subscribe", "devices/plant-7/orders", true),
    ] {
        assert_eq!(
            decided(user, action, topic),
            is_allowed,
            "{user} {action} {topic}"
        );
    }
}

#[test]
fn a_small_configuration_is_translated_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let import = |text: &str, to: &str| {
        fs::write(folder.join("m.conf"), text).unwrap();
        let imported = config(folder, &["import", "m.conf", "-o", to]);
        let text = fs::read_to_string(folder.join(to)).unwrap_or_default();
        let found = sterna_server::config::parse(to, &text).unwrap();
        (code(&imported), stderr(&imported), found)
    };
    // Without a listener Mosquitto is for this host, and asks nobody who they are.
    let (code, told, found) = import("persistence false\n", "local.toml");
    assert_eq!((code, told.as_str()), (0, ""));
    assert_eq!(found.listeners[0].url, "mqtt://localhost:1883");
    assert_eq!(found.authentication.anonymous, Some(true));
    assert!(!found.store.enabled);
    assert_eq!(found.listeners[1].url, "admin://localhost:9464");
    // What is open to other hosts stays so, and it is said.
    let open = "listener 1883\nallow_anonymous true\n";
    let (code, told, found) = import(open, "open.toml");
    assert_eq!(code, 0, "{told}");
    assert!(
        told.contains("allow_anonymous_beyond_loopback = true"),
        "{told}"
    );
    assert!(found.authentication.allow_anonymous_beyond_loopback);
    assert_eq!(found.check(), Ok(()));
    // Otherwise it is not opened.
    let (_, _, found) = import("listener 1883\n", "closed.toml");
    assert_eq!(found.authentication.anonymous, Some(false));
    assert!(!found.authentication.allow_anonymous_beyond_loopback);
    // A listener that would be more than Mosquitto's is left out.
    let bound = "listener 1883\nbind_interface eth0\nallow_anonymous true\n";
    let (code, told, found) = import(bound, "bound.toml");
    assert_eq!(code, 3);
    assert!(told.contains("m.conf:2: bind_interface"), "{told}");
    assert_eq!(found.listeners[0].url, "admin://localhost:9464");
    // What gives and takes no right is said, and is no more than that.
    let (code, told, _) = import(
        "listener 1884 127.0.0.1\nmax_inflight_bytes 9\n",
        "bytes.toml",
    );
    assert_eq!(code, 1, "{told}");
}

#[test]
fn nothing_is_written_where_it_cannot_be_whole() {
    let plant = plant();
    let folder = plant.path();
    fs::write(folder.join("sterna.toml"), "# mine\n").unwrap();
    let imported = config(folder, &["import", "mosquitto.conf"]);
    assert_eq!(code(&imported), 2, "{}", stderr(&imported));
    assert!(!folder.join("passwords").exists());
    for foreign in [
        "listeners.tcp.default = 1883",
        "node { name = a }",
        "[{rabbit, []}].",
        "<mqtt>",
    ] {
        fs::write(folder.join("other.conf"), foreign).unwrap();
        let imported = config(folder, &["import", "other.conf", "-o", "other.toml"]);
        assert_eq!(code(&imported), 2, "{foreign}");
        let told = stderr(&imported);
        assert!(
            told.contains("other.conf:1: ") && told.contains("RabbitMQ"),
            "{told}"
        );
        assert!(!folder.join("other.toml").exists());
    }
    fs::remove_file(folder.join("rules.acl")).unwrap();
    let imported = config(folder, &["import", "mosquitto.conf", "-o", "new.toml"]);
    assert_eq!(code(&imported), 2);
    let told = stderr(&imported);
    assert!(told.contains("rules.acl"), "{told}");
    assert!(!folder.join("new.toml").exists());
}

/// What may be done with a translation of a configuration: by user (empty for none), listener, action and topic.
fn decides(folder: &Path, who: (&str, &str), action: &str, topic: &str) -> bool {
    let (user, listener) = who;
    let mut command = sterna();
    command.args(["acl", "explain", "--config", "sterna.toml", action, topic]);
    for (flag, value) in [("--user", user), ("--listener", listener)] {
        if !value.is_empty() {
            command.args([flag, value]);
        }
    }
    let output = command.current_dir(folder).output().unwrap();
    assert_ne!(code(&output), 1, "{}", stderr(&output));
    code(&output) == 0
}

/// A translation of these lines in a new folder, with the files that they name.
fn translated(
    text: &str,
) -> (
    tempfile::TempDir,
    i32,
    String,
    sterna_server::config::Config,
) {
    let folder = plant();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("all.acl"), "topic readwrite #\n").unwrap();
    fs::write(path("web.acl"), "topic readwrite web/#\n").unwrap();
    fs::write(path("others"), USERS.replace("ann:", "carl:")).unwrap();
    fs::write(path("m.conf"), text).unwrap();
    let imported = config(folder.path(), &["import", "m.conf"]);
    let written = fs::read_to_string(path("sterna.toml")).unwrap();
    let found = sterna_server::config::parse("sterna.toml", &written).unwrap();
    assert_eq!(found.check(), Ok(()), "{text}: {written}");
    (folder, code(&imported), stderr(&imported), found)
}

/// Whatever a line means that is not known here: nobody gets a right by it.
#[test]
fn what_restricts_and_is_not_known_takes_all_rights() {
    let open = "listener 1884 127.0.0.1\nallow_anonymous true\n";
    for line in [
        "plugin /usr/lib/mosquitto_dynamic_security.so",
        "global_plugin /usr/lib/a.so",
        "plugin_load a /usr/lib/a.so",
        "auth_plugin /usr/lib/go-auth.so",
        "acl_file all.acl\nauth_plugin /usr/lib/mosquitto-auth-plug.so",
        "acl_file all.acl\nacl_file web.acl",
        "something_new true",
        "clientid_prefixes %u",
    ] {
        for text in [
            format!("{line}\n{open}"),
            format!("{open}{line}\n"),
            format!("per_listener_settings true\n{open}{line}\n"),
        ] {
            let (folder, code, told, found) = translated(&text);
            assert_eq!(code, 3, "{text}: {told}");
            assert!(
                !found.authorization.default_allow && found.authorization.rules.is_empty(),
                "{text}"
            );
            assert!(
                !decides(folder.path(), ("", ""), "publish", "valve/open"),
                "{text}"
            );
            assert!(told.contains("no client has any right"), "{text}: {told}");
        }
    }
}

/// Each of these admits fewer clients than a listener without the line would here: it is left out.
#[test]
fn a_listener_that_would_admit_more_is_left_out() {
    let tls = "certfile certificate.pem\nkeyfile key.pem\n";
    for (rest, why) in [
        ("bind_interface eth0\n".to_owned(), "bind_interface"),
        ("mount_point site/\n".to_owned(), "mount_point"),
        ("psk_hint a\n".to_owned(), "psk_hint"),
        ("protocol http_api\n".to_owned(), "protocol"),
        (
            "accept_protocol_versions 5\n".to_owned(),
            "accept_protocol_versions",
        ),
        (
            "enable_proxy_protocol 2\n".to_owned(),
            "enable_proxy_protocol",
        ),
        ("socket_domain any\n".to_owned(), "socket_domain"),
        (
            "socket_domain ipv6\nbind_interface lo\n".to_owned(),
            "bind_interface",
        ),
        ("max_connections 0\n".to_owned(), "max_connections"),
        (
            "certfile certificate.pem\n".to_owned(),
            "certfile and keyfile",
        ),
        ("require_certificate true\n".to_owned(), "without certfile"),
        (format!("{tls}require_certificate true\n"), "cafile"),
        (
            format!("{tls}require_certificate true\ncapath .\n"),
            "cafile",
        ),
        (
            format!("{tls}use_subject_as_username true\n"),
            "use_subject_as_username",
        ),
        (
            format!("{tls}cafile ca.pem\nuse_identity_as_username true\n"),
            "lets nobody in",
        ),
    ] {
        let text = format!(
            "allow_anonymous true\nlistener 1884 127.0.0.1\n{rest}listener 1885 127.0.0.1\n"
        );
        let (_folder, code, told, found) = translated(&text);
        let urls: Vec<&str> = found.listeners.iter().map(|it| it.url.as_str()).collect();
        assert_eq!(
            urls,
            ["mqtt://127.0.0.1:1885", "admin://localhost:9464"],
            "{text}: {told}"
        );
        assert_eq!(code, 3, "{text}: {told}");
        assert!(told.contains(why), "{text}: {told}");
    }
}

#[test]
fn listeners_with_users_or_authorities_of_others_are_left_out() {
    let tls =
        "certfile certificate.pem\nkeyfile key.pem\ncafile ca.pem\nrequire_certificate true\n";
    let other = tls.replace("ca.pem", "certificate.pem");
    for (first, second, why) in [
        (
            "password_file users\n",
            "password_file others\n",
            "one password file",
        ),
        ("password_file users\n", "", "no password file"),
        (tls, &other, "other authorities"),
        (
            &format!("{tls}use_identity_as_username true\n"),
            tls,
            "another one differs",
        ),
    ] {
        let text = format!(
            "per_listener_settings true\nlistener 1884 127.0.0.1\n{first}listener 1885 127.0.0.1\n{second}"
        );
        let (_folder, code, told, found) = translated(&text);
        assert_eq!(found.listeners.len(), 2, "{text}: {told}");
        assert!(found.listeners[0].url.ends_with(":1884"), "{text}: {told}");
        assert_eq!(code, 3, "{text}: {told}");
        assert!(told.contains(why), "{text}: {told}");
    }
}

/// A certificate that names nobody lets its client in here. In Mosquitto it has to show a password, too.
#[test]
fn a_certificate_alone_gives_no_right() {
    let tls =
        "certfile certificate.pem\nkeyfile key.pem\ncafile ca.pem\nrequire_certificate true\n";
    for list in ["", "acl_file web.acl\n", "acl_file rules.acl\n"] {
        let text = format!("password_file users\n{list}listener 1884 127.0.0.1\n{tls}");
        let (folder, _, told, _) = translated(&text);
        let may = |user: &str, topic: &str| decides(folder.path(), (user, ""), "publish", topic);
        assert!(
            !may("", "web/a") && !may("", "devices//x"),
            "{text}: {told}"
        );
        assert_eq!(may("ann", "web/a"), list.is_empty(), "{text}: {told}");
        assert_eq!(
            may("ann", "pumps/1"),
            list != "acl_file web.acl\n",
            "{text}: {told}"
        );
    }
}

#[test]
fn each_listener_keeps_its_own_list() {
    let (folder, code, told, found) = translated(
        "per_listener_settings true\nlistener 1884 127.0.0.1\nallow_anonymous true\nacl_file all.acl\n\
         listener 1885 127.0.0.1\nallow_anonymous true\nacl_file web.acl\n\
         listener 1886 127.0.0.1\nallow_anonymous true\n\
         listener 1887 127.0.0.1\nallow_anonymous true\nplugin /usr/lib/a.so\n",
    );
    assert_eq!(code, 3, "{told}");
    assert_eq!(found.listeners.len(), 5, "{told}");
    for (listener, topic, is_allowed) in [
        ("mqtt-1884", "valve", true),
        ("mqtt-1885", "valve", false),
        ("mqtt-1885", "web/a", true),
        ("mqtt-1886", "valve", true),
        ("mqtt-1887", "valve", false),
        ("mqtt-1887", "web/a", false),
    ] {
        for action in ["publish", "subscribe"] {
            let found = decides(folder.path(), ("", listener), action, topic);
            assert_eq!(found, is_allowed, "{listener} {action} {topic}: {told}");
        }
    }
}

/// In Mosquitto only patterns have names to fill in.
#[test]
fn names_are_filled_in_for_patterns_alone() {
    let folder = plant();
    let list = "user ann\ntopic readwrite of/%u/#\ntopic deny all/%c/x\ntopic deny a#b\ntopic readwrite all/#\n\
                user bob\ntopic deny all/%c/x\ntopic readwrite all/#\n\
                user *\ntopic readwrite stars/#\n";
    fs::write(folder.path().join("rules.acl"), list).unwrap();
    fs::write(
        folder.path().join("m.conf"),
        "acl_file rules.acl\npassword_file users\nlistener 1884 127.0.0.1\n",
    )
    .unwrap();
    let imported = config(folder.path(), &["import", "m.conf"]);
    assert_eq!(code(&imported), 3);
    let may = |user: &str, topic: &str| decides(folder.path(), (user, ""), "publish", topic);
    assert!(!may("ann", "of/ann/a"), "{}", stderr(&imported));
    assert!(
        !may("ann", "all/a"),
        "a denial that is not understood is one of all"
    );
    assert!(!may("bob", "stars/a"), "a name, and not everybody");
    assert!(may("bob", "all/a") && !may("bob", "all/anything/x"));
}

#[test]
fn identifiers_are_bound_as_in_mosquitto_or_more() {
    for (lines, patterns) in [
        ("use_username_as_clientid true\n", ["%u"]),
        ("clientid_prefixes plant-\n", ["plant-*"]),
        (
            "clientid_prefixes plant-\nuse_username_as_clientid true\n",
            ["%u"],
        ),
        (
            "use_username_as_clientid true\nclientid_prefixes plant-\n",
            ["%u"],
        ),
    ] {
        let (_folder, _, told, found) = translated(&format!("listener 1884 127.0.0.1\n{lines}"));
        let ids = &found.authentication.client_ids;
        assert_eq!(
            (ids.len(), &ids[0].patterns[..]),
            (1, &patterns.map(str::to_owned)[..]),
            "{told}"
        );
    }
}

#[test]
fn pages_may_use_what_each_listener_lets_them() {
    let listener =
        |port: u16, rest: &str| format!("listener {port} 127.0.0.1\nprotocol websockets\n{rest}");
    for (lists, expected) in [
        (["", ""], &["*"][..]),
        (["websockets_origin https://a\n", ""], &["https://a"]),
        (
            [
                "websockets_origin https://a\n",
                "websockets_origin https://b\n",
            ],
            &[],
        ),
    ] {
        let text = listener(1884, lists[0]) + &listener(1885, lists[1]);
        let (_folder, _, told, found) = translated(&text);
        assert_eq!(found.http.cors_origins, expected, "{told}");
    }
}

/// Mosquitto 2.1 has its files by plugins, which do nothing else.
#[test]
fn plugins_of_files_are_files() {
    for key in ["plugin", "global_plugin"] {
        let plugin = |name: &str, option: &str| {
            format!("{key} /usr/lib/mosquitto_{name}_file.so\n{option}\n")
        };
        let text = format!(
            "{}{}listener 1884 127.0.0.1\n",
            plugin("password", "plugin_opt_password_file users"),
            plugin("acl", "plugin_opt_acl_file web.acl")
        );
        let (folder, _, told, found) = translated(&text);
        assert!(found.authentication.password_file.is_some(), "{told}");
        // Clients without a name come first in the list.
        assert!(
            !decides(folder.path(), ("", ""), "publish", "valve"),
            "{told}"
        );
        assert!(
            decides(folder.path(), ("", ""), "publish", "web/a"),
            "{told}"
        );
        let text = format!(
            "{}listener 1884 127.0.0.1\n",
            plugin("acl", "plugin_opt_x y")
        );
        let (folder, code, told, _) = translated(&text);
        assert_eq!(code, 3, "{told}");
        assert!(
            !decides(folder.path(), ("", ""), "publish", "web/a"),
            "{told}"
        );
    }
}

/// Mosquitto serves no IPv4 there.
#[test]
fn all_addresses_of_ipv6_are_not_those_of_ipv4() {
    for listener in ["listener 1884 ::\n", "listener 1884\nsocket_domain ipv6\n"] {
        let (_folder, code, told, found) = translated(listener);
        assert_eq!(found.listeners.len(), 1, "{told}");
        assert_eq!(code, 3, "{told}");
        assert!(told.contains("takes IPv4"), "{told}");
    }
}
