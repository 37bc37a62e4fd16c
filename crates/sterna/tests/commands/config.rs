//! `sterna config`: what it writes is accepted, and what it explains is so.
#![allow(clippy::unwrap_used)] // it is all test

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::process::{code, stderr, stdout, sterna};

pub(crate) fn config(folder: &Path, arguments: &[&str]) -> Output {
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
            "warning: sterna.toml:1: authentication.password_file: users is empty, so no client can log in",
        ),
        (
            "admin.operators = ['bob']\n",
            "warning: sterna.toml:1: admin.operators: no client can show that it is `bob`",
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
            .filter(|line| line.contains("value     "));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    for (key, expected) in [
        ("receive_maximum", "value     5 (f.toml:2)"),
        ("maximum_qos", "value     2 (default)"),
        ("mqtt.server_reference", "value     not set (default)"),
        (
            "listener.url",
            "value     listener 1: \"mqtt://localhost:1\" (f.toml:4)",
        ),
    ] {
        assert_eq!(said(key, None), [expected], "{key}");
    }
    assert_eq!(
        said("receive_maximum", Some("7")),
        ["value     7 (STERNA__MQTT__RECEIVE_MAXIMUM)"]
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

/// What a package installs is written to a folder that is made for it.
#[test]
fn manual_pages_make_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man1");
    let made = sterna().arg("man-pages").arg(&pages).output().unwrap();
    assert_eq!((code(&made), stderr(&made).as_str()), (0, ""));
    assert!(pages.join("sterna-serve.1").is_file());
}

/// Where there are several of a kind, each problem has the line of its own entry.
#[test]
fn a_problem_has_the_line_of_its_entry() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(folder.path().join("c"), made.cert.pem()).unwrap();
    fs::write(folder.path().join("k"), made.signing_key.serialize_pem()).unwrap();
    let tls = "[tls]\ncertificate = 'c'\nkey = 'k'\n[[tls.additional]]\ncertificate = 'c'\nkey = 'k'\n\
               [[tls.additional]]\n";
    for (text, places) in [
        (
            "[[listener]]\nurl = 'mqtt://localhost:1'\n[[listener]]\nurl = 'mqtx://localhost:2'\n",
            &["3: listener 2: "][..],
        ),
        (
            "[[listener]]\nurl = 'mqtt://localhost:1'\n[[listener]]\nurl = 'mqtt://*:2'\n",
            &["3: listener 2: ", "3: listener 2: "],
        ),
        (
            "[[listener]]\nurl = 'mqtt://localhost:1'\n[[listener]]\nurl = 'quic://localhost:2'\n\
             proxy_protocol = { from = ['127.0.0.1'] }\n[authentication]\n\
             allow_anonymous_beyond_loopback = true\n[authorization]\ndefault_allow = false\n\
             [tls]\nallow_development_certificate_beyond_loopback = true\n",
            &["3: listener 2: "],
        ),
        (
            "[[authorization.group]]\nname = 'a'\n[[authorization.group]]\n\
             [[authorization.group]]\nname = 'a'\n[[authorization.group]]\nname = 'b'\nusers = ['*']\n",
            &[
                "3: authorization.group 2: ",
                "4: authorization.group 3: ",
                "6: authorization.group 4: ",
            ],
        ),
        (
            "[[authorization.rule]]\ntopics = ['a']\n[[authorization.rule]]\ntopics = ['b']\n\
             effect = 'ask'\n",
            &["3: authorization.rule 2: "],
        ),
        (
            "[[amqp.queue]]\nname = 'a'\n[[amqp.queue]]\nname = 'a'\n[[amqp.queue]]\nname = 'b'\n\
             filter = 'a/#/b'\n",
            &["3: amqp.queue 2: ", "5: amqp.queue 3: "],
        ),
        (
            "[[authentication.client_ids]]\npatterns = ['a']\n[[authentication.client_ids]]\n\
             users = ['a']\n",
            &["3: authentication.client_ids 2: "],
        ),
        (
            &format!("{tls}certificate = 'c'\nkey = 'z'\n"),
            &["7: tls.additional 2: key: there is no file z"],
        ),
        (
            &format!("{tls}certificate = 'c'\nkey = 'c'\n"),
            &["7: tls.additional 2: key: c: it has a certificate"],
        ),
        (
            &format!("{tls}certificate = 'k'\nkey = 'k'\n"),
            &["7: tls.additional 2: certificate: k: it has a private key"],
        ),
        (
            "[tls]\ncertificate = 'c'\nkey = 'c'\n",
            &["3: tls.key: c: it has a certificate"],
        ),
        (
            "[tls]\ncertificate = 'c'\nkey = 'k'\nclient_ca = 'k'\n",
            &["4: tls.client_ca: k: cannot use the client authority: it has a private key"],
        ),
        (
            "[tls]\nclient_ca = 'c'\nclient_revocation_lists = ['k']\n",
            &["3: tls.client_revocation_lists: k: there is no revocation list"],
        ),
    ] {
        fs::write(folder.path().join("sterna.toml"), text).unwrap();
        let checked = config(folder.path(), &["check", "sterna.toml"]);
        let told = stderr(&checked);
        assert_eq!(
            (code(&checked), stdout(&checked)),
            (2, ""),
            "{text}\n{told}"
        );
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), places.len(), "{text}\n{told}");
        for (line, place) in lines.iter().zip(places) {
            assert!(
                line.starts_with(&format!("sterna.toml:{place}")),
                "{text}\n{told}"
            );
        }
    }
}

/// A listener of the command line has no line of the file.
#[test]
fn a_problem_of_the_command_line_has_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[listener]]\nurl = 'mqtt://localhost:1'\n";
    fs::write(folder.path().join("sterna.toml"), text).unwrap();
    let served = sterna()
        .current_dir(folder.path())
        .args(["serve", "-c", "sterna.toml", "--listen", "mqtx://localhost"])
        .output()
        .unwrap();
    let told = stderr(&served);
    assert_eq!(code(&served), 2, "{told}");
    assert!(
        told.starts_with("sterna serve: --listen: listener 1: "),
        "{told}"
    );
}

/// Rules without effect are told with their lines, and others are not.
#[test]
fn the_check_warns_of_rules_without_effect() {
    let folder = tempfile::tempdir().unwrap();
    let rule = "[[authorization.rule]]\n";
    let first = format!("{rule}topics = ['first']\n");
    for (text, warning) in [
        (
            format!("{first}{rule}topics = ['home/%U/#']\n"),
            "warning: sterna.toml:3: authorization.rule 2: `%U` in `home/%U/#` ",
        ),
        (
            format!("{first}{rule}topics = ['home/${{username}}']\n"),
            "warning: sterna.toml:3: authorization.rule 2: `${username}` in ",
        ),
        (
            format!("{first}{rule}topics = ['$share/workers/jobs']\n"),
            "warning: sterna.toml:3: authorization.rule 2: no subscription is judged by `$share/workers/jobs`",
        ),
        (
            format!("{first}{rule}topics = ['jobs/*']\n"),
            "warning: sterna.toml:3: authorization.rule 2: `*` in `jobs/*` ",
        ),
        (
            format!("{first}{rule}topics = ['a']\nclients = ['*-%u']\n"),
            "warning: sterna.toml:3: authorization.rule 2: `*-%u` in `clients` ",
        ),
        (
            format!("{first}{rule}topics = ['first']\nusers = ['ann']\neffect = 'deny'\n"),
            "warning: sterna.toml:3: authorization.rule 2: rule 1 decides all of it before, but for `delete`\n",
        ),
        (
            format!("{first}{rule}topics = ['first']\nclients = ['c']\n"),
            "warning: sterna.toml:3: authorization.rule 2: rule 1 decides all of it before\n",
        ),
        (
            "[[authentication.client_ids]]\npatterns = ['a*']\n\
             [[authentication.client_ids]]\npatterns = ['*-%u']\n"
                .to_owned(),
            "warning: sterna.toml:3: authentication.client_ids 2: `*-%u` ",
        ),
        (
            format!("{rule}topics = ['a/%u/100%/%20/%dx', '+/%c/#']\n"),
            "",
        ),
        (format!("{first}{rule}topics = ['first/#']\n"), ""),
        (
            "[[authentication.client_ids]]\npatterns = ['%u-*', 'x%u']\n".to_owned(),
            "",
        ),
    ] {
        fs::write(folder.path().join("sterna.toml"), &text).unwrap();
        let checked = config(folder.path(), &["check", "-q", "sterna.toml"]);
        let told = stderr(&checked);
        assert_eq!(code(&checked), 0, "{text}\n{told}");
        if warning.is_empty() {
            assert_eq!(told, "", "{text}");
        } else {
            assert!(told.starts_with(warning), "{text}\n{told}");
            assert_eq!(told.lines().count(), 1, "{text}\n{told}");
        }
    }
}
