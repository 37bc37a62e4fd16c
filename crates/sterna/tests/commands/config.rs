//! `sterna config`: what it writes is accepted, and what it explains is so.
#![allow(clippy::unwrap_used)] // it is all test

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::process::{Broker, code, stderr, stdout, sterna};

fn config(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = sterna();
    command.current_dir(folder).arg("config").args(arguments);
    command.output().unwrap()
}

#[test]
fn a_new_file_has_every_setting_and_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let made = config(folder, &["init"]);
    let told = stderr(&made);
    assert_eq!(code(&made), 0, "{told}");
    assert!(
        told.contains("`sterna serve --config sterna.toml` reads it"),
        "{told}"
    );
    let text = fs::read_to_string(folder.join("sterna.toml")).unwrap();
    for line in [
        "[mqtt]",
        "#receive_maximum = 1024",
        "#[[listener]]",
        "#certificate =",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}");
    }
    let checked = config(folder, &["check", "sterna.toml"]);
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
    assert!(
        stderr(&checked).contains("sterna.toml is accepted"),
        "{}",
        stderr(&checked)
    );
    // The file of this place is not read unless it is named.
    let unnamed = config(folder, &["check"]);
    let told = stderr(&unnamed);
    assert!(told.contains("no file was named"), "{told}");
    assert!(
        told.contains("./sterna.toml is read with --config sterna.toml alone"),
        "{told}"
    );
    // It is never replaced.
    fs::write(folder.join("sterna.toml"), "shards = 2\n").unwrap();
    let again = config(folder, &["init"]);
    assert_eq!(code(&again), 1);
    let why = stderr(&again);
    assert!(
        why.contains("sterna.toml: the file exists: remove it, or name another"),
        "{why}"
    );
    let text = fs::read_to_string(folder.join("sterna.toml")).unwrap();
    assert_eq!(text, "shards = 2\n");
    let printed = config(folder, &["init", "-"]);
    assert!(stdout(&printed).contains("#receive_maximum = 1024"));
}

#[test]
fn the_check_prints_where_the_broker_keeps_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let checked = sterna()
        .args(["config", "check"])
        .env_remove("STATE_DIRECTORY")
        .env("XDG_STATE_HOME", folder.path())
        .output()
        .unwrap();
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
    let printed: toml::Table = stdout(&checked).parse().unwrap();
    let expected = folder.path().join("sterna");
    assert_eq!(printed["data_directory"].as_str(), expected.to_str());
}

/// The named file is checked also where the environment names another, of a broker that runs.
#[test]
fn the_check_takes_the_file_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("good.toml"), "shards = 1\n").unwrap();
    fs::write(folder.path().join("bad.toml"), "shards = 'x'\n").unwrap();
    for (named, expected) in [(Some("good.toml"), 0), (Some("bad.toml"), 2), (None, 2)] {
        let mut command = sterna();
        let run = command.current_dir(folder.path()).args(["config", "check"]);
        let run = run.args(named).env("STERNA_CONFIG", "bad.toml");
        let run = run.output().unwrap();
        assert_eq!(code(&run), expected, "{named:?}: {}", stderr(&run));
    }
}

/// A problem of a value has the place of its setting, as one of the syntax has.
#[test]
fn the_check_names_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    for (text, problem) in [
        (
            "shards = 1\n\n[mqtt]\n# none\nreceive_maximum = 0\n",
            "sterna.toml:5: mqtt.receive_maximum is at least 1\n",
        ),
        (
            "[tls]\nkey = 'k'\ncertificate = 'c'\n",
            "sterna.toml:3: tls.certificate: there is no file c\n",
        ),
        (
            "log.level = 'verbose'\n",
            "sterna.toml:1: log.level: `verbose` is none of error, warn, info, debug, trace, off",
        ),
        (
            "mqtt = { maximum_qos = 3 }\n",
            "sterna.toml:1: mqtt.maximum_qos is at most 2\n",
        ),
    ] {
        fs::write(folder.path().join("sterna.toml"), text).unwrap();
        let checked = config(folder.path(), &["check", "sterna.toml"]);
        assert_eq!((code(&checked), stdout(&checked)), (2, ""));
        assert!(stderr(&checked).contains(problem), "{}", stderr(&checked));
    }
    // The variable is the place of what it has set.
    fs::write(
        folder.path().join("sterna.toml"),
        "mqtt.receive_maximum = 5\n",
    )
    .unwrap();
    let checked = sterna()
        .current_dir(folder.path())
        .args(["config", "check", "sterna.toml"])
        .env("STERNA__MQTT__RECEIVE_MAXIMUM", "0")
        .output()
        .unwrap();
    let text = stderr(&checked);
    assert!(
        text.starts_with("STERNA__MQTT__RECEIVE_MAXIMUM: mqtt."),
        "{text}"
    );
}

/// Listeners of one address are refused before the first is opened.
#[test]
fn listeners_of_one_address_are_refused_by_check_and_serve() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[listener]]\nurl = 'mqtt://localhost:21883'\n\n\
                [[listener]]\nurl = 'tcp://127.0.0.1:21883'\n";
    fs::write(folder.path().join("sterna.toml"), text).unwrap();
    let problem = "sterna.toml:4: listener 2: the address of `tcp://127.0.0.1:21883` is taken by \
                   listener 1, `mqtt://localhost:21883`";
    for arguments in [
        &["config", "check", "sterna.toml"][..],
        &["serve", "--config", "sterna.toml", "--data-dir", "state"],
    ] {
        let mut command = sterna();
        let run = command.current_dir(folder.path()).args(arguments);
        let run = run.output().unwrap();
        assert_eq!(code(&run), 2, "{}", stderr(&run));
        assert!(stderr(&run).contains(problem), "{}", stderr(&run));
    }
}

#[test]
fn the_check_warns_of_roles_and_files_without_effect() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "").unwrap();
    fs::set_permissions(&users, fs::Permissions::from_mode(0o600)).unwrap();
    for (text, warning) in [
        (
            "authentication.password_file = 'users'\n",
            "warning: authentication.password_file: users is empty, so no client can log in",
        ),
        (
            "admin.operators = ['bob']\n",
            "warning: admin.operators: no client can show that it is `bob`",
        ),
    ] {
        fs::write(folder.path().join("sterna.toml"), text).unwrap();
        let checked = config(folder.path(), &["check", "sterna.toml"]);
        assert_eq!(code(&checked), 0, "{}", stderr(&checked));
        assert!(stderr(&checked).contains(warning), "{}", stderr(&checked));
    }
}

/// A line of the new file that is in force without the header of its list.
#[test]
fn a_setting_without_its_section_is_told_where_it_belongs() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("sterna.toml"),
        "url = 'mqtt://localhost'\n",
    )
    .unwrap();
    let checked = config(folder.path(), &["check", "sterna.toml"]);
    let text = stderr(&checked);
    assert!(
        text.contains("`url` is a setting of [[listener]]"),
        "{text}"
    );
    assert!(!text.contains("did you mean"), "{text}");
}

#[test]
fn settings_are_explained() {
    let folder = Path::new(".");
    let one = config(folder, &["explain", "linger_ms"]);
    assert_eq!(code(&one), 0);
    let text = stdout(&one);
    for words in [
        "network.linger_ms: Time that a closing connection",
        "section   [network]",
        "type      whole number from 0 on",
        "unit      milliseconds",
        "default   3000 (3 s)",
        "change    a restart puts it in force",
        "variable  STERNA__NETWORK__LINGER_MS",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for (key, range) in [
        ("mqtt.receive_maximum", "whole number from 1 to 65535"),
        ("mqtt.server_keep_alive_s", "whole number from 0 to 65535"),
        ("shards", "whole number from 0 to 256"),
        ("mqtt.maximum_qos", "whole number from 0 to 2"),
    ] {
        let one = config(folder, &["explain", key]);
        assert!(stdout(&one).contains(range), "{key}: {}", stdout(&one));
    }
    let section = config(folder, &["explain", "log"]);
    for name in ["log.level: ", "log.format: ", "log.audit: "] {
        assert!(stdout(&section).contains(name), "{}", stdout(&section));
    }
    for (key, words) in [
        ("authorization.limit.messages_per_s", "messages per second"),
        ("amqp.queue.priorities", "true or false"),
    ] {
        let one = config(folder, &["explain", key]);
        assert!(stdout(&one).contains(words), "{key}: {}", stdout(&one));
    }
    let bogus = stderr(&config(folder, &["explain", "bogus"]));
    assert!(
        bogus.contains("`sterna config explain` lists all"),
        "{bogus}"
    );
    let none = config(folder, &["explain", "mqtt.recieve_maximum"]);
    assert_eq!(code(&none), 1);
    assert!(stderr(&none).contains("`mqtt.receive_maximum`"));
}

#[test]
fn settings_are_listed_by_section_and_beginning() {
    let folder = Path::new(".");
    let lines = |name: &[&str]| -> Vec<String> {
        let listed = config(folder, &[&["explain"], name].concat());
        assert_eq!(code(&listed), 0, "{}", stderr(&listed));
        stdout(&listed).lines().map(str::to_owned).collect()
    };
    let bans = lines(&["bans.flapping"]);
    assert_eq!(bans.len(), 3, "{bans:?}");
    assert_eq!(
        bans[1],
        "bans.flapping_window_s: Time in which logins are counted. Default: 60 (1 min)"
    );
    let all = lines(&[]);
    assert!(all.len() > 350, "{}", all.len());
    assert!(
        all.iter()
            .any(|line| line.starts_with("quic.initial_rtt_ms: "))
    );
}

/// The value in force, and the line or variable that sets it.
#[test]
fn a_value_in_force_is_explained_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = "[mqtt]\nreceive_maximum = 5\n\n[[listener]]\nurl = 'mqtt://localhost:1'\n";
    fs::write(folder.join("f.toml"), text).unwrap();
    let said = |key: &str, variable: Option<&str>| {
        let mut command = sterna();
        command.current_dir(folder).args(["config", "explain", key]);
        match variable {
            Some(value) => command.env("STERNA__MQTT__RECEIVE_MAXIMUM", value),
            None => command.args(["--config", "f.toml"]),
        };
        let run = command.output().unwrap();
        let lines = stdout(&run)
            .lines()
            .filter(|line| line.contains("in force  "));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    for (key, expected) in [
        ("receive_maximum", "in force  5 (f.toml:2)"),
        ("maximum_qos", "in force  2 (default)"),
        ("mqtt.server_reference", "in force  not set (default)"),
        (
            "listener.url",
            "in force  listener 1: \"mqtt://localhost:1\" (f.toml:4)",
        ),
    ] {
        assert_eq!(said(key, None), [expected], "{key}");
    }
    assert_eq!(
        said("receive_maximum", Some("7")),
        ["in force  7 (STERNA__MQTT__RECEIVE_MAXIMUM)"]
    );
    // Without a configuration there is the default alone.
    let plain = config(folder, &["explain", "receive_maximum"]);
    assert!(!stdout(&plain).contains("  in force"), "{}", stdout(&plain));
    fs::write(folder.join("f.toml"), "[mqtt]\nbogus = 1\n").unwrap();
    let wrong = config(folder, &["explain", "shards", "--config", "f.toml"]);
    assert_eq!(code(&wrong), 1);
    assert!(stderr(&wrong).contains("bogus"), "{}", stderr(&wrong));
}

#[test]
fn the_reference_is_the_page() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let printed = config(Path::new("."), &["reference"]);
    let is_page = stdout(&printed) == fs::read_to_string(page).unwrap();
    assert!(
        is_page,
        "`sterna config reference` prints another page than docs/configuration.md"
    );
}

#[test]
fn checked_files_are_listed_with_their_modes() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "").unwrap();
    fs::set_permissions(&users, fs::Permissions::from_mode(0o640)).unwrap();
    let file = folder.path().join("sterna.toml");
    let users = users.display();
    fs::write(
        &file,
        format!("[authentication]\npassword_file = '{users}'\n"),
    )
    .unwrap();
    let checked = config(folder.path(), &["check", "sterna.toml"]);
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
    let line = format!("# authentication.password_file: {users}, mode 0640");
    assert_eq!(stdout(&checked).lines().next().unwrap(), line);
}

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

plugin /usr/lib/mosquitto_dynamic_security.so
plugin_opt_config_file /etc/dynsec.json
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
    fs::write(
        path("users"),
        "ann:$7$101$c2FsdA==$a2V5\nbob:$6$c2FsdA==$a2V5\n",
    )
    .unwrap();
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
    assert_eq!(code(&imported), 1, "{told}");
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
            "ws://[::1]:9001"
        ]
    );
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
    // Two of three listeners have a limit: the sum of all has none, and the lines are named below.
    assert_eq!(
        found.network,
        sterna_server::config::Config::default().network
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
        ("plugin /usr", true),
        ("plugin_opt", true),
        ("max_inflight_bytes", true),
        ("max_connections 100", true),
        ("max_connections 5000", true),
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
    assert!(users.contains("# ann\n# bob\n"), "{users}");
}

#[test]
fn limits_of_listeners_become_one_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = "listener 1883 127.0.0.1\nmax_connections 100\nlistener 1884 127.0.0.1\nmax_connections 50\n";
    fs::write(folder.join("m.conf"), text).unwrap();
    let told = stderr(&config(folder, &["import", "m.conf"]));
    let text = fs::read_to_string(folder.join("sterna.toml")).unwrap();
    let found = sterna_server::config::parse("sterna.toml", &text).unwrap();
    assert_eq!(found.network.maximum_connections, 150);
    let note = "m.conf:4: max_connections: the limit is one for all listeners, \
                network.maximum_connections: 150 together";
    assert!(told.contains(note), "{told}");
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
    assert_eq!(code, 1);
    assert!(told.contains("m.conf:2: bind_interface"), "{told}");
    assert_eq!(found.listeners[0].url, "mqtt://localhost:1883");
}

#[test]
fn nothing_is_written_where_it_cannot_be_whole() {
    let plant = plant();
    let folder = plant.path();
    fs::write(folder.join("sterna.toml"), "# mine\n").unwrap();
    let imported = config(folder, &["import", "mosquitto.conf"]);
    assert_eq!(code(&imported), 2, "{}", stderr(&imported));
    assert!(!folder.join("passwords").exists());
    fs::remove_file(folder.join("rules.acl")).unwrap();
    let imported = config(folder, &["import", "mosquitto.conf", "-o", "new.toml"]);
    assert_eq!(code(&imported), 2);
    let told = stderr(&imported);
    assert!(told.contains("rules.acl"), "{told}");
    assert!(!folder.join("new.toml").exists());
}

/// What a package installs is written to a folder that is made for it.
#[test]
fn manual_pages_make_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man1");
    let made = sterna().arg("man-pages").arg(&pages).output().unwrap();
    assert_eq!((code(&made), stderr(&made).as_str()), (0, ""));
    assert!(pages.join("sterna-serve.1").is_file());
}
