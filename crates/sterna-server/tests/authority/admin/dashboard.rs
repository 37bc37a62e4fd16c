//! What the page needs of the admin listener: its files, who one is, the rules, and the log.

use serde_json::{Value, json};
use sterna_mqtt::QoS;
use sterna_server::config::{Authorization, Effect, Group, Rule};

use crate::admin::trace::{begin, events};
use crate::admin::world::{V5, World};
use crate::page::{ADMIN, answer, config, connect};

/// Sends a request with a name for the host; returns the status and the head.
fn ask(world: &mut World, path: &str, host: &str, fields: &str) -> (u16, String) {
    let peer = connect(&mut world.broker, ADMIN, 0);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    world.broker.send(peer, request.as_bytes());
    let answer = answer(&mut world.broker, peer).expect("an answer");
    (answer.status, answer.head)
}

#[test]
fn the_page_is_served_under_a_strict_policy_and_by_no_rebound_name() {
    let mut world = World::new(1);
    let (status, head) = ask(&mut world, "/", "localhost:9464", "");
    assert_eq!(status, 200, "{head}");
    let policy = head
        .lines()
        .find_map(|line| line.strip_prefix("content-security-policy: "))
        .expect("a policy");
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let (status, _) = ask(&mut world, "/page/page.js", "127.0.0.1:9464", "");
    assert_eq!(status, 200);
    let (status, _) = ask(&mut world, "/page/none.js", "localhost", "");
    assert_eq!(status, 404);
    for path in ["/", "/page/page.js", "/admin/v1/me"] {
        let (status, _) = ask(&mut world, path, "evil.example:9464", "");
        assert_eq!(status, 421, "{path}");
    }
    // A link may lead to the page; what it shows is read by the page alone.
    let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n";
    let (status, head) = ask(&mut world, "/", "localhost", link);
    assert_eq!(status, 200);
    assert!(!head.contains("access-control-allow"), "{head}");
    for path in ["/admin/v1/me", "/admin/v1/rules", "/metrics"] {
        let (status, _) = ask(&mut world, path, "localhost", link);
        assert_eq!(status, 403, "{path}");
    }
    let mut config = config();
    config.http.page = false;
    let mut world = World::with(&config, 1);
    assert_eq!(ask(&mut world, "/", "localhost", "").0, 404);
}

#[test]
fn the_sender_is_told_who_it_is() {
    let mut config = config();
    config.authorization.admins.clear();
    let mut world = World::with(&config, 1);
    let viewer = json!({ "user": null, "role": "viewer", "proof": "nothing" });
    assert_eq!(world.read("/admin/v1/me"), viewer);
    config.admin.operators = vec!["anonymous".to_owned()];
    let mut world = World::with(&config, 1);
    assert_eq!(world.read("/admin/v1/me")["role"], "operator");
}

fn ruled() -> World {
    let rule = |effect, users: &[&str], groups: &[&str], topics: &[&str]| {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Rule {
            effect,
            users: own(users),
            groups: own(groups),
            topics: own(topics),
            ..Rule::default()
        }
    };
    let mut config = config();
    config.authorization = Authorization {
        default_allow: false,
        groups: vec![Group {
            name: "plant".to_owned(),
            users: vec!["ann".to_owned()],
        }],
        rules: vec![
            rule(Effect::Deny, &[], &["plant"], &["a/secret"]),
            rule(Effect::Allow, &["ann"], &[], &["a/#"]),
        ],
        ..config.authorization
    };
    World::with(&config, 2)
}

#[test]
fn rules_are_listed_and_explained_as_they_decide() {
    let mut world = ruled();
    let rules = world.read("/admin/v1/rules");
    assert_eq!(rules["default_allow"], false);
    assert_eq!(rules["rules"].as_array().map(Vec::len), Some(2));
    assert_eq!(rules["rules"][0]["effect"], "deny");
    let mut explain =
        |query: &str| -> Value { world.read(&format!("/admin/v1/rules/explain?{query}")) };
    let texts = [
        r#"topics = ["a/secret"], groups = ["plant"], effect = "deny""#,
        r#"topics = ["a/#"], users = ["ann"], effect = "allow""#,
    ];
    let by = |name: &str, rule: Option<usize>| {
        let text = rule.map(|rule| texts[rule - 1]);
        json!({ "by": name, "rule": rule, "text": text })
    };
    let refused = explain("action=publish&topic=a/secret&user=ann");
    assert_eq!(refused["decision"], "refused");
    assert_eq!(refused["reason"], by("rule", Some(1)));
    assert_eq!(refused["groups"], json!(["plant"]));
    let part = explain("action=subscribe&topic=a/%23&user=ann");
    assert_eq!(part["decision"], "allowed_in_part");
    assert_eq!(part["reason"], by("rule", Some(2)));
    assert_eq!(part["denied_in_part"], json!([by("rule", Some(1))]));
    // A group that a token gives, as the webhook may.
    let given = explain("action=publish&topic=a/secret&user=eve&groups=plant,office");
    assert_eq!(given["reason"], by("rule", Some(1)));
    assert_eq!(given["groups"], json!(["office", "plant"]));
    let nobody = explain("action=publish&topic=a/x");
    assert_eq!(nobody["reason"], by("default", None));
    let special = "&address=10.0.0.1&transport=quic&qos=1&retain=true&early_data=false";
    let told = explain(&format!("action=publish&topic=a/x&user=ann{special}"));
    assert_eq!(told["reason"], by("rule", Some(2)));
    assert_eq!(
        explain("action=publish&topic=$SYS/x&user=ann")["reason"]["by"],
        "server"
    );
    for query in [
        "",
        "?action=publish",
        "?action=read&topic=a",
        "?action=publish&topic=a/%23",
        "?action=publish&topic=a&qos=3",
        "?action=publish&topic=a&retain=yes",
        "?action=publish&topic=a&address=here",
        "?action=publish&topic=a&transport=pigeon",
        "?action=publish&topic=a&listener=nowhere",
        "?action=publish&topic=a&groups=plant",
    ] {
        let told = world.get(&format!("/admin/v1/rules/explain{query}"));
        assert_eq!(told.status, 400, "{query}");
    }
}

#[test]
fn a_trace_of_events_is_a_log_of_what_was_refused_and_who_came() {
    let mut world = ruled();
    let of_other = begin(&mut world, "client=other&events=login");
    let messages = begin(&mut world, "topic=%23");
    let log = begin(
        &mut world,
        "events=login,login_refused,refused,dropped,action",
    );
    let client = world.client(0, "c", 0);
    world
        .broker
        .publish(client, V5, "a/x", "payload", QoS::AtLeastOnce);
    assert_eq!(
        world.call("DELETE", "/admin/v1/sessions/nobody", "").status,
        404
    );
    let seen = events(&mut world, log);
    let named: Vec<&str> = seen
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    assert_eq!(named, ["login", "refused", "action"], "{seen:?}");
    assert_eq!(
        (&seen[0]["client"], &seen[0]["protocol"]),
        (&json!("c"), &json!("mqtt"))
    );
    assert_eq!(seen[1]["topic"], "a/x");
    assert_eq!(
        (&seen[2]["action"], &seen[2]["on"]),
        (&json!("endSession"), &json!("nobody"))
    );
    assert!(seen[2]["reason"].is_string(), "{seen:?}");
    assert!(events(&mut world, of_other).is_empty());
    let named = events(&mut world, messages);
    assert!(
        named.iter().all(|event| event["event"] == "refused"),
        "{named:?}"
    );
    for query in ["events=nothing", "payloads=maybe&topic=a", "events="] {
        assert_eq!(
            world.get(&format!("/admin/v1/trace?{query}")).status,
            400,
            "{query}"
        );
    }
}

#[test]
fn a_trace_has_payloads_where_they_are_asked_for() {
    let mut world = World::new(2);
    let with = begin(&mut world, "topic=%23&events=received&payloads=yes");
    let without = begin(&mut world, "topic=%23&events=received");
    let client = world.client(0, "c", 0);
    let long = "x".repeat(5_000);
    for payload in ["21.5", &long] {
        world
            .broker
            .publish(client, V5, "t", payload, QoS::AtLeastOnce);
    }
    let seen = events(&mut world, with);
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(
        (&seen[0]["payload"], &seen[0]["is_cut"]),
        (&json!("21.5"), &json!(false))
    );
    let shown = seen[1]["payload"].as_str().expect("a payload");
    assert_eq!(
        (shown.len(), &seen[1]["payload_bytes"]),
        (4_096, &json!(5_000))
    );
    assert_eq!(seen[1]["is_cut"], true);
    let bare = events(&mut world, without);
    assert!(bare[0].get("payload").is_none(), "{bare:?}");
    assert_eq!(bare[0]["payload_bytes"], 4);
}
