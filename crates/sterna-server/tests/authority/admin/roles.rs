//! Who may do what: every route, every role, with right, wrong and no credentials.
#![allow(
    clippy::literal_string_with_formatting_args,
    reason = "parts of paths are written like that"
)]

use std::fs;

use base64::Engine as _;
use serde_json::Value;
use sterna_auth::{MIN_ITERATIONS, Record};
use sterna_server::config::{Config, Listener};
use tracing::Level;

use crate::admin::world::{World, told};
use crate::fixture::{Broker, Lines};
use crate::page::{ADMIN, config};

/// A configuration with the users `ann` (admin), `oli` (operator), `vic` (viewer) and `bob`.
pub(crate) fn guarded(directory: &tempfile::TempDir, admin: &str) -> Config {
    let record = |user: &str| {
        let record = Record::from_password("secret", &[7; 16], MIN_ITERATIONS);
        format!("{user}:{}\n", record.expect("a record"))
    };
    let path = directory.path().join("users");
    let users: String = ["ann", "oli", "vic", "bob"]
        .into_iter()
        .map(record)
        .collect();
    fs::write(&path, users).expect("written");
    let mut config = config();
    config.listeners[usize::from(ADMIN)] = Listener::at(admin);
    config.authentication.password_file = Some(path);
    config.authorization.admins = vec!["ann".to_owned()];
    config.admin.operators = vec!["oli".to_owned()];
    config.admin.viewers = vec!["vic".to_owned()];
    config
}

pub(crate) fn credentials(user: &str, password: &str) -> String {
    let value = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    format!("Authorization: Basic {value}\r\n")
}

/// Method, path with its parts filled in, and least role of every route.
fn routes(document: &Value) -> Vec<(String, String, Option<String>)> {
    let mut routes = Vec::new();
    for (template, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let path = template
                .replace("{client}", "0.99.1")
                .replace("{session}", "nobody")
                .replace("{queue}", "nothing")
                .replace("{topic}", "none")
                .replace("{ban}", "7");
            let role = operation["x-role"].as_str().map(str::to_owned);
            routes.push((method.to_uppercase(), path, role));
        }
    }
    routes
}

#[test]
fn every_route_asks_for_its_role() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut document = World::new(1);
    let document = document.read("/admin/v1/openapi.json");
    let routes = routes(&document);
    assert!(routes.len() >= 22, "{}", routes.len());
    // Beyond loopback, and on it: users are configured, so nobody without credentials has a role.
    for listener in ["admins://0.0.0.0:0", "admin://127.0.0.1:0"] {
        let config = guarded(&directory, listener);
        for (user, password, rank) in [
            ("ann", "secret", Some(3)),
            ("oli", "secret", Some(2)),
            ("vic", "secret", Some(1)),
            ("bob", "secret", Some(0)),
            ("ann", "wrong", None),
            ("nobody", "secret", None),
            ("", "", None),
        ] {
            let mut world = World::of(Broker::with(&config, 1));
            let fields = if user.is_empty() {
                String::new()
            } else {
                credentials(user, password)
            };
            let mut is_checked = user.is_empty();
            for (method, path, role) in &routes {
                let least = match role.as_deref() {
                    Some("viewer") => 1,
                    Some("operator") => 2,
                    Some("admin") => 3,
                    _ => 0,
                };
                let fields = format!("{fields}Content-Type: application/json\r\n");
                let request = format!(
                    "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: 2\r\n\r\n{{}}"
                );
                world.broker.send(world.peer, request.as_bytes());
                // Right credentials are checked once for a connection, wrong ones each time.
                if least > 0 && (!is_checked || (rank.is_none() && !user.is_empty())) {
                    world.broker.await_verdicts();
                    is_checked = true;
                }
                let answer = crate::page::answer(&mut world.broker, world.peer);
                let answer = told(answer.unwrap_or_else(|| panic!("{method} {path} by {user}")));
                let what =
                    format!("{method} {path} by {user}/{password} on {listener}: {answer:?}");
                match rank {
                    _ if least == 0 => assert_eq!(answer.status, 200, "{what}"),
                    None => assert!([401, 429].contains(&answer.status), "{what}"),
                    Some(rank) if rank < least => assert_eq!(answer.status, 403, "{what}"),
                    Some(_) => assert!(![401, 403].contains(&answer.status), "{what}"),
                }
                if answer.status == 401 {
                    assert!(answer.field("www-authenticate").is_some(), "{what}");
                }
            }
        }
    }
}

/// Without users, who connects on loopback may view, and is told what more would need.
#[test]
fn without_users_a_listener_on_loopback_lets_everybody_view() {
    let mut config = config();
    config.authorization.admins.clear();
    let mut world = World::with(&config, 1);
    assert_eq!(world.get("/admin/v1/node").status, 200);
    let refused = world.get("/admin/v1/retained");
    assert_eq!(refused.status, 403);
    let detail = refused.json["detail"].as_str().expect("a detail");
    assert!(
        detail.contains("role operator") && detail.contains("has the role viewer"),
        "{detail}"
    );
    assert_eq!(world.call("DELETE", "/admin/v1/sessions/x", "").status, 403);
    config.admin.operators = vec!["anonymous".to_owned()];
    let mut world = World::with(&config, 1);
    assert_eq!(world.call("DELETE", "/admin/v1/sessions/x", "").status, 404);
    assert_eq!(world.call("POST", "/admin/v1/reload", "").status, 403);
    config.listeners[usize::from(ADMIN)].anonymous = Some(false);
    let mut world = World::with(&config, 1);
    assert_eq!(world.get("/admin/v1/node").status, 401);
}

/// Who asks for what is not his again and again fills no log. A line says which request it was.
#[test]
fn refused_requests_are_told_at_a_pace_with_method_and_path() {
    let text = Lines::of(Level::INFO, |_| {
        let mut config = config();
        config.authorization.admins.clear();
        let mut world = World::with(&config, 2);
        for _ in 0..30 {
            assert_eq!(world.call("POST", "/admin/v1/reload", "").status, 403);
        }
        world.broker.advance(10_000);
        assert_eq!(world.call("POST", "/admin/v1/reload", "").status, 403);
        for path in [
            "/admin/v1/sessions/away?user=x",
            "/admin/v1/none?key=secret",
        ] {
            assert_eq!(world.get(path).status, 404, "{path}");
        }
        let explained = world.get("/admin/v1/rules/explain?action=publish");
        assert_eq!(explained.status, 400);
        let detail = explained.json["detail"].as_str().expect("a detail");
        assert!(detail.contains("\"topic\" is missing"), "{detail}");
    });
    let of =
        |word: &str| -> Vec<&str> { text.lines().filter(|line| line.contains(word)).collect() };
    let refused = of("admin action refused");
    let [first, last] = *refused else {
        panic!("{text}");
    };
    assert!(!first.contains("more="), "{first}");
    assert!(last.contains("more=29"), "{last}");
    for path in ["/admin/v1/sessions/away", "/admin/v1/none"] {
        let asked = format!("method=\"GET\" path=\"{path}\"");
        let lines = of(&asked);
        let [line] = *lines else {
            panic!("{asked}: {text}");
        };
        assert!(line.contains("admin request refused"), "{line}");
    }
    assert!(!text.contains("secret"), "{text}");
}
