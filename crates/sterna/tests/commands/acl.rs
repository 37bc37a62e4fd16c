//! `sterna acl explain` names the rule that decides.
#![allow(clippy::unwrap_used)] // it is all test

use crate::process::{code, stderr, stdout, sterna};

const RULES: &str = "[authorization]
default_allow = false
admins = ['root']

[[authorization.group]]
name = 'plant'
users = ['ann']

[[authorization.rule]]
groups = ['plant']
effect = 'deny'
topics = ['pumps/secret']

[[authorization.rule]]
groups = ['plant']
topics = ['pumps/#', 'own/%u/#']
";

#[test]
fn the_rule_that_decides_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sterna.toml");
    std::fs::write(&path, RULES).unwrap();
    let file = path.to_str().unwrap();
    let (first, second) = (
        format!("{file}:9, rule 1 ("),
        format!("{file}:14, rule 2 ("),
    );
    let none = "no rule matches, and authorization.default_allow = false";
    for (arguments, expected, said) in [
        (
            "--user ann publish pumps/1",
            0,
            vec!["allowed: ", &second, "groups of ann: plant"],
        ),
        (
            "--user ann publish pumps/secret",
            2,
            vec!["refused: ", &first, "effect = \"deny\""],
        ),
        (
            "--user ann subscribe pumps/#",
            0,
            vec!["allowed in part: ", &second, &first],
        ),
        ("--user ann subscribe #", 2, vec!["refused: ", none]),
        (
            "--user ann publish own/ann/x",
            0,
            vec!["allowed: ", &second],
        ),
        ("--user ann publish own/bob/x", 2, vec!["refused: ", none]),
        ("--user bob publish pumps/1", 2, vec!["refused: ", none]),
        (
            "--user bob --group plant publish pumps/1",
            0,
            vec!["allowed: ", &second],
        ),
        ("--client c publish pumps/1", 2, vec!["refused: ", none]),
        (
            "--user root delete pumps/1",
            0,
            vec!["allowed: the broker's own rule"],
        ),
        (
            "--user ann publish $SYS/x",
            2,
            vec!["refused: topics below $SYS/"],
        ),
    ] {
        let mut all = vec!["acl", "explain", "--config", file];
        all.extend(arguments.split(' '));
        let output = sterna().args(&all).output().unwrap();
        let text = stdout(&output);
        assert_eq!(
            code(&output),
            expected,
            "{arguments}: {text}{}",
            stderr(&output)
        );
        for said in said {
            assert!(text.contains(said), "{arguments}: {said}: {text}");
        }
    }
    for (arguments, said) in [
        ("--user ann publish a/#", "a/#"),
        ("--user ann subscribe a/#/b", "a/#/b"),
        (
            "--user ann --group nobodys publish a",
            "no authorization.group `nobodys`",
        ),
        ("--group plant publish a", "--user"),
    ] {
        let mut all = vec!["acl", "explain", "--config", file];
        all.extend(arguments.split(' '));
        let output = sterna().args(&all).output().unwrap();
        assert_eq!(code(&output), 1, "{arguments}");
        assert!(
            stderr(&output).contains(said),
            "{arguments}: {}",
            stderr(&output)
        );
    }
}

/// Where a variable replaces the rules, no line of the file is named.
#[test]
fn rules_that_are_not_the_files_have_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sterna.toml");
    std::fs::write(&path, RULES).unwrap();
    let explain = |arguments: &[&str]| {
        let mut command = sterna();
        command.env("STERNA__AUTHORIZATION__RULE", "[{topics=['a']}]");
        command
            .args(["acl", "explain"])
            .args(arguments)
            .output()
            .unwrap()
    };
    let output = explain(&["--config", path.to_str().unwrap(), "publish", "a"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.starts_with("allowed: authorization.rule 1 ("),
        "{text}"
    );
    let output = explain(&["publish", "b"]);
    assert_eq!(code(&output), 0);
    assert_eq!(
        stdout(&output),
        "allowed: no rule matches, and authorization.default_allow = true\n"
    );
}

/// A user that no password stands for is told: the name may be mistyped.
#[test]
fn a_user_without_a_password_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let passwords = folder.path().join("passwords");
    let mut adding = sterna();
    adding.args(["passwd", "--create", "--batch"]);
    adding.arg(&passwords).args(["ann", "pump house"]);
    let added = adding.output().unwrap();
    let explained = |user: &str, text: &str| {
        let file = folder.path().join("sterna.toml");
        std::fs::write(&file, text).unwrap();
        let output = (sterna().args(["acl", "explain", "--config"]).arg(&file))
            .args(["--user", user, "publish", "a"])
            .output()
            .unwrap();
        stdout(&output).to_owned()
    };
    assert_eq!(code(&added), 0, "{}", stderr(&added));
    let file = passwords.display();
    let text = format!("[authentication]\npassword_file = '{file}'\n");
    assert!(!explained("ann", &text).contains("password"));
    let noted = explained("anne", &text);
    let note = format!("`anne` has no password in {file}");
    assert!(noted.contains(&note), "{noted}");
    // Without a file there is nothing to compare with.
    assert!(!explained("anne", "").contains("no password"));
}

#[test]
fn a_listener_is_named_where_rules_ask_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sterna.toml");
    let text = "[authorization]\ndefault_allow = false\n\
                [[listener]]\nurl = 'mqtt://localhost:1'\nname = 'plant'\n\
                [[listener]]\nurl = 'mqtt://localhost:2'\nname = 'web'\n\
                [[authorization.rule]]\nlisteners = ['plant']\ntopics = ['#']\n";
    std::fs::write(&path, text).unwrap();
    for (arguments, expected, said) in [
        ("--listener plant publish a", 0, "listeners = [\"plant\"]"),
        ("--listener web publish a", 2, "no rule matches"),
        ("publish a", 0, "it also depends on --listener"),
        (
            "--listener nowhere publish a",
            1,
            "no listener has the name `nowhere`",
        ),
    ] {
        let mut command = sterna();
        command.args(["acl", "explain", "--config"]).arg(&path);
        let output = command.args(arguments.split(' ')).output().unwrap();
        let told = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(code(&output), expected, "{arguments}: {told}");
        assert!(told.contains(said), "{arguments}: {told}");
    }
}

/// The best case is one case: a rule that is passed by at one listener does not give a right at another. And what is named
/// beside it is what the decision depends on.
#[test]
fn the_best_case_is_one_case() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sterna.toml");
    let text = "[authorization]\ndefault_allow = false\n\
                [[listener]]\nurl = 'mqtt://localhost:1'\nname = 'one'\n\
                [[listener]]\nurl = 'mqtt://localhost:2'\nname = 'two'\n\
                [[authorization.rule]]\neffect = 'deny'\nlisteners = ['one']\ntopics = ['pumps/secret']\n\
                [[authorization.rule]]\nlisteners = ['one']\ntopics = ['pumps/#']\n\
                [[authorization.rule]]\ntransports = ['quic']\ntopics = ['fast/#']\n\
                [[authorization.rule]]\neffect = 'deny'\nretain = true\ntopics = ['noretain/#']\n\
                [[authorization.rule]]\ntopics = ['noretain/#']\n";
    std::fs::write(&path, text).unwrap();
    for (topic, expected, flags) in [
        ("pumps/secret", 2, ""),
        ("pumps/x", 0, "--listener"),
        ("fast/x", 0, "--transport"),
        ("noretain/x", 0, "--retain"),
        ("other", 2, ""),
    ] {
        let mut command = sterna();
        command.args(["acl", "explain", "--config"]).arg(&path);
        let output = command.args(["publish", topic]).output().unwrap();
        let told = stdout(&output);
        assert_eq!(code(&output), expected, "{topic}: {told}");
        let named = told
            .lines()
            .find_map(|line| line.strip_prefix("it also depends on "));
        let named = named
            .and_then(|rest| rest.split_once(", which"))
            .map_or("", |(flags, _)| flags);
        assert_eq!(named, flags, "{told}");
    }
}
