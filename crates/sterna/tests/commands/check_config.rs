//! `sterna config check` refuses what `sterna serve` would refuse, and touches nothing.
#![allow(clippy::unwrap_used)] // it is all test

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::process::{Broker, code, stderr, stdout, sterna};

/// A folder with good files of each kind, and a configuration that names them.
struct Folder {
    folder: tempfile::TempDir,
}

/// A record of the password `x` and one of a token.
const USERS: &str = "sensor:SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$\
    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::start(&["mqtts"], &[], |_, _| {});
        for (from, to) in [
            ("development-certificate.pem", "certificate.pem"),
            ("development-key.pem", "key.pem"),
            ("development-ca.pem", "ca.pem"),
        ] {
            fs::copy(broker.folder.path().join(from), folder.path().join(to)).unwrap();
        }
        // Of another broker, so that they do not go together.
        let other = Broker::start(&["mqtts"], &[], |_, _| {});
        let key = other.folder.path().join("development-key.pem");
        fs::copy(key, folder.path().join("other-key.pem")).unwrap();
        let this = Self { folder };
        fs::write(this.path("users"), USERS).unwrap();
        fs::write(this.path("tokens"), "# none\n").unwrap();
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configuration(&self) -> String {
        let folder = self.folder.path().display();
        format!(
            "data_directory = '{folder}/state'\n\
             [[listener]]\nurl = 'mqtts://127.0.0.1:0'\n\
             [tls]\ncertificate = '{folder}/certificate.pem'\nkey = '{folder}/key.pem'\n\
             client_ca = '{folder}/ca.pem'\n\
             [authentication]\npassword_file = '{folder}/users'\ntoken_file = '{folder}/tokens'\n"
        )
    }

    fn run(&self, command: &str, configuration: &str) -> Output {
        let file = self.path("sterna.toml");
        fs::write(&file, configuration).unwrap();
        sterna()
            .arg(command)
            .arg("--config")
            .arg(&file)
            .output()
            .unwrap()
    }

    /// Both commands refuse it, and the check says why in one line.
    fn refuses(&self, configuration: &str, why: &[&str]) {
        let before = names(self.folder.path());
        let checked = self.run("check-config", configuration);
        let text = stderr(&checked);
        assert_eq!(code(&checked), 2, "{why:?}: {text}");
        assert_eq!(stdout(&checked), "", "{why:?}");
        let told = |line: &str| why.iter().all(|word| line.contains(word));
        let lines: Vec<_> = text.lines().filter(|line| told(line)).collect();
        assert_eq!(lines.len(), 1, "{why:?}: {text}");
        assert_eq!(names(self.folder.path()), before, "{why:?}");
        let served = self.run("serve", configuration);
        assert_eq!(code(&served), 2, "{why:?}");
        assert!(stderr(&served).contains(lines[0]), "{}", stderr(&served));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "sterna.toml")
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn files_are_read_as_at_the_start_and_none_is_made() {
    let folder = Folder::new();
    let good = folder.configuration();
    let checked = folder.run("check-config", &good);
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
    // Without a certificate one would be made for development; not by a check.
    let own = good
        .lines()
        .filter(|line| !line.contains("certificate.pem") && !line.contains("key.pem"))
        .collect::<Vec<_>>()
        .join("\n");
    let checked = folder.run("check-config", &own);
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
    assert!(!folder.path("state").exists());
}

#[test]
fn a_broker_may_run_meanwhile() {
    let broker = Broker::start(&["mqtts"], &[], |_, _| {});
    let folder = Folder::new();
    let state = broker.folder.path().display();
    let checked = folder.run("check-config", &format!("data_directory = '{state}'\n"));
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
}

#[test]
fn each_wrong_file_is_named() {
    let folder = Folder::new();
    let good = folder.configuration();
    let instead = |name: &str, other: &str| {
        let (name, other) = (folder.path(name), folder.path(other));
        good.replace(name.to_str().unwrap(), other.to_str().unwrap())
    };
    fs::write(folder.path("empty"), "").unwrap();
    fs::write(folder.path("wrong-users"), format!("{USERS}\nnobody\n")).unwrap();
    fs::write(folder.path("wrong-tokens"), "# one\nuser:short\n").unwrap();
    for name in ["certificate.pem", "key.pem", "ca.pem", "users", "tokens"] {
        let missing = folder.path(name).display().to_string() + "-away";
        folder.refuses(
            &instead(name, &format!("{name}-away")),
            &[&missing, "there is no file"],
        );
    }
    for name in ["certificate.pem", "key.pem", "ca.pem"] {
        let empty = folder.path("empty").display().to_string();
        folder.refuses(&instead(name, "empty"), &[&empty]);
    }
    let key = folder.path("other-key.pem").display().to_string();
    folder.refuses(
        &instead("key.pem", "other-key.pem"),
        &[&key, "certificate.pem"],
    );
    let users = folder.path("wrong-users").display().to_string();
    folder.refuses(&instead("users", "wrong-users"), &[&users, "line 3"]);
    let tokens = folder.path("wrong-tokens").display().to_string();
    folder.refuses(&instead("tokens", "wrong-tokens"), &[&tokens, "line 2"]);
}

/// All at once, where `serve` stops at the first.
#[test]
fn every_problem_is_told() {
    let folder = Folder::new();
    for name in ["users", "tokens", "certificate.pem", "ca.pem"] {
        fs::write(folder.path(name), "nonsense\n").unwrap();
    }
    let checked = folder.run("check-config", &folder.configuration());
    let text = stderr(&checked);
    assert_eq!(code(&checked), 2, "{text}");
    assert_eq!(text.trim_end().lines().count(), 4, "{text}");
    for name in ["users", "tokens", "certificate.pem", "ca.pem"] {
        let file = folder.path(name).display().to_string();
        assert!(text.contains(&file), "{name}: {text}");
    }
}

/// The directory of the development certificate is judged, too.
#[test]
fn a_directory_that_others_can_change_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new();
    let state = folder.path("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    let configuration = format!("data_directory = '{}'\n", state.display());
    folder.refuses(&configuration, &["state", "chmod go-w"]);
    assert!(names(&state).is_empty());
}
