//! Answers are as the description says.
#![allow(
    clippy::literal_string_with_formatting_args,
    reason = "parts of paths are written like that"
)]

use std::collections::BTreeSet;

use serde_json::Value;
use sterna_cluster::{FollowerView, NodeView, NodeWord, RegionView, Report, StreamView};
use sterna_mqtt::QoS;
use sterna_server::node_clock::{NodeClock, SystemClocks};

use crate::admin::world::{V5, World};
use crate::fixture::Broker;
use crate::page::HTTP;

/// Holds that a value is as a schema says, as far as this description uses JSON Schema.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(target) = schema["$ref"].as_str() {
        let schema = document.pointer(&target[1..]).expect("a schema");
        return check(document, schema, value, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let choice = choices
            .iter()
            .find(|choice| (choice["type"] == "null") == value.is_null());
        let choice = choice.unwrap_or_else(|| panic!("{at}: {value} is none of {choices:?}"));
        return check(document, choice, value, at);
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("{at}: type {other}"),
    };
    assert!(
        types.iter().any(|kind| is(kind)),
        "{at}: {value} is none of {types:?}"
    );
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(
            allowed.contains(value),
            "{at}: {value} is not in {allowed:?}"
        );
    }
    if let (Some(members), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    {
        for (name, member) in members {
            let schema = properties
                .get(name)
                .unwrap_or_else(|| panic!("{at}.{name} is not described"));
            check(document, schema, member, &format!("{at}.{name}"));
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().expect("a name");
            assert!(members.contains_key(name), "{at}: {name} is missing");
        }
    }
    for item in value.as_array().into_iter().flatten() {
        check(document, &schema["items"], item, &format!("{at}[]"));
    }
}

/// What a node tells of a cluster with one of everything, and with what is not known.
fn report() -> Value {
    let told = NodeWord {
        node: "a".to_owned(),
        state: "ready".to_owned(),
        ..NodeWord::default()
    };
    let node = |told, inbox_batches| NodeView {
        node: "a".to_owned(),
        presence: "here",
        filters: 1,
        inbox_batches,
        told,
    };
    let follower = |lag| FollowerView {
        server: "n2".to_owned(),
        is_current: true,
        is_offline: false,
        lag,
    };
    let stream = |leader| StreamView {
        stream: "S".to_owned(),
        messages: 1,
        bytes: 2,
        replicas: 3,
        leader,
        followers: vec![follower(Some(1)), follower(None)],
    };
    let region = |known| RegionView {
        region: "r".to_owned(),
        waiting: known,
        heard_ms: known,
        behind: known,
    };
    let report = Report {
        cluster: "c".to_owned(),
        node: "a".to_owned(),
        nodes: vec![node(Some(told), Some(3)), node(None, None)],
        streams: vec![stream(Some("n1".to_owned())), stream(None)],
        regions: vec![region(Some(1)), region(None)],
        problems: vec!["NATS: away".to_owned()],
    };
    serde_json::to_value(report).expect("JSON")
}

/// Every read of a broker that has one of everything, against the schema of its route.
#[test]
fn every_read_is_as_described() {
    let mut world = World::with(&crate::admin::queues::config(), 2);
    let client = world.client(1, "a", 100);
    world.broker.subscribe(client, V5, "t/#", QoS::AtLeastOnce);
    crate::page::connect(&mut world.broker, HTTP, 0);
    let retained = r#"{"topic":"t/1","payload":"x","retain":true}"#;
    assert_eq!(
        world.call("POST", "/admin/v1/publish", retained).status,
        200
    );

    let queued = r#"{"topic":"queue/q","payload":"x","qos":1}"#;
    assert_eq!(world.call("POST", "/admin/v1/publish", queued).status, 200);
    let id = world.all("/admin/v1/clients?name=a", 9)[0]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let banned = r#"{"user":"nobody","address":"192.0.2.0/24"}"#;
    assert_eq!(world.call("POST", "/admin/v1/bans", banned).status, 200);
    let document = world.read("/admin/v1/openapi.json");
    let paths = document["paths"].as_object().expect("paths").clone();
    let mut seen = BTreeSet::new();
    for (template, methods) in &paths {
        let Some(operation) = methods.get("get") else {
            continue;
        };
        let content = &operation["responses"]["200"]["content"];
        if content.get("application/json").is_none() {
            continue; // it does not end
        }
        let path = template
            .replace("{client}", &id)
            .replace("{session}", "a")
            .replace("{queue}", "q")
            .replace("{topic}", "t/1");
        let path = match path.as_str() {
            "/admin/v1/rules/explain" => path + "?action=publish&topic=t",
            _ => path,
        };
        let told = if path == "/admin/v1/clock" {
            // Nodes with a store have one.
            let clock = NodeClock::begin(None, Box::new(SystemClocks::default()), 1_000);
            let limits = sterna_broker::Limits::default();
            let store = || Box::new(sterna_broker::NoStore) as _;
            World::of(Broker::by_clock(
                &crate::page::config(),
                1,
                limits,
                clock,
                store,
            ))
            .get(&path)
        } else {
            world.get(&path)
        };
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        if path == "/admin/v1/cluster" {
            // There is none, and what one would tell is made here.
            assert_eq!(told.status, 404, "{told:?}");
            check(&document, schema, &report(), &path);
            continue;
        }
        assert_eq!(told.status, 200, "{path}: {told:?}");
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        check(&document, schema, &told.json, &path);
        if let Some(items) = told
            .json
            .get("items")
            .filter(|_| !path.ends_with("certificates"))
        {
            assert_ne!(
                items.as_array().map(Vec::len),
                Some(0),
                "{path} shows nothing"
            );
        }
        assert!(told.field("x-content-type-options").is_some(), "{path}");
        if operation["responses"].get("304").is_some() {
            let etag = told
                .field("etag")
                .unwrap_or_else(|| panic!("{path} has no tag"))
                .to_owned();
            assert_eq!(etag.len(), 18, "{etag}");
        }
        seen.insert(template.clone());
    }
    assert!(seen.len() >= 14, "{seen:?}");
    let told = world.get("/admin/v1/sessions/nobody");
    check(
        &document,
        &document["components"]["schemas"]["Problem"],
        &told.json,
        "problem",
    );
}
