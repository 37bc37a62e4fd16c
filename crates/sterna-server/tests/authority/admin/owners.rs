//! The sessions of a user, ended at once.

use sterna_mqtt::packet::{Connect, Will};
use sterna_mqtt::{Property, PublishProperties, QoS};
use sterna_server::Policy;

use crate::admin::world::{V5, World};
use crate::fixture::{block, plain};
use crate::page::config;
use crate::rights::users::{enter, users};

#[test]
fn all_sessions_of_a_user_end_with_their_wills() {
    let directory = tempfile::tempdir().expect("a folder");
    let with = |names: &[&str]| {
        let mut config = config();
        let own = users(&directory, names);
        config.authentication.password_file = own.authentication.password_file;
        config.authentication.anonymous = Some(true);
        config
    };
    let mut world = World::with(&with(&["ann", "bob"]), 2);
    let broker = &mut world.broker;
    let (watcher, _) = enter(broker, &plain(V5, "w"), "bob");
    broker.subscribe(watcher, V5, "#", QoS::AtMostOnce);
    let properties = block(&[Property::SessionExpiryInterval(600)]);
    let connect = |client_id| Connect {
        will: Some(Will {
            topic: "gone",
            payload: b"x",
            qos: QoS::AtMostOnce,
            retain: false,
            properties: PublishProperties::EMPTY,
        }),
        properties: properties.properties(),
        ..plain(V5, client_id)
    };
    for client_id in ["one", "two"] {
        enter(broker, &connect(client_id), "ann");
    }
    broker.apply(Policy::load(&with(&["bob"])).expect("a policy"));
    let nobody = world.call("DELETE", "/admin/v1/sessions", "");
    assert_eq!(nobody.status, 400, "{nobody:?}");
    let ended = world.call("DELETE", "/admin/v1/sessions?user=ann", "");
    assert_eq!(ended.status, 200, "{ended:?}");
    assert_eq!(ended.json["sessions"], 2);
    let again = world.call("DELETE", "/admin/v1/sessions?user=ann", "");
    assert_eq!(again.json["sessions"], 0);
    for client_id in ["one", "two"] {
        let path = format!("/admin/v1/sessions/{client_id}?user=ann");
        assert_eq!(world.get(&path).status, 404);
    }
    let broker = &mut world.broker;
    broker.apply(Policy::load(&with(&["ann", "bob"])).expect("a policy"));
    let told = broker.told(watcher, V5);
    assert!(told.is_empty(), "no will is left: {told:?}");
    let (peer, _) = enter(broker, &connect("three"), "ann");
    let connected = world.call("DELETE", "/admin/v1/sessions?user=ann", "");
    assert_eq!(connected.json["sessions"], 1);
    assert!(world.broker.is_closed(peer), "its connection ends, too");
}

/// A session is shown and ended by its name and its user. Another user's of the same name stays.
#[test]
fn sessions_of_one_name_are_told_apart_by_their_users() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut config = config();
    let own = users(&directory, &["ann", "bob"]);
    config.authentication.password_file = own.authentication.password_file;
    config.authentication.anonymous = Some(true);
    let mut world = World::with(&config, 2);
    let broker = &mut world.broker;
    let properties = block(&[Property::SessionExpiryInterval(600)]);
    let connect = Connect {
        properties: properties.properties(),
        ..plain(V5, "device")
    };
    let (anns, _) = enter(broker, &connect, "ann");
    broker.subscribe(anns, V5, "hers", QoS::AtMostOnce);
    enter(broker, &connect, "bob");
    let nameless = broker.open();
    broker.packet(nameless, V5, &sterna_mqtt::Packet::Connect(connect));
    assert_eq!(broker.told(nameless, V5), ["CONNACK Success"]);
    let listed = world.get("/admin/v1/sessions?name=device").json;
    let mut owners: Vec<Option<&str>> = (listed["items"].as_array().expect("a list"))
        .iter()
        .map(|session| session["user"].as_str())
        .collect();
    owners.sort_unstable();
    assert_eq!(owners, [None, Some("ann"), Some("bob")]);
    let listed = world.get("/admin/v1/sessions?user=bob").json;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    let of = |user: &str| format!("/admin/v1/sessions/device{user}");
    assert_eq!(world.get(&of("?user=ann")).json["user"], "ann");
    assert_eq!(world.get(&of("")).json["user"], serde_json::Value::Null);
    assert_eq!(world.get(&of("?user=eve")).status, 404);
    let subscriptions = world.get(&of("/subscriptions?user=ann")).json;
    assert_eq!(subscriptions["items"][0]["filter"], "hers");
    assert_eq!(world.call("DELETE", &of("?user=bob"), "").status, 204);
    assert_eq!(world.get(&of("?user=bob")).status, 404);
    assert_eq!(world.get(&of("?user=ann")).status, 200);
    assert_eq!(world.get(&of("")).status, 200);
    assert!(!world.broker.is_closed(anns) && !world.broker.is_closed(nameless));
}

/// Sessions of clients without a user are listed and ended as those of a user. A queue is no client's.
#[test]
fn sessions_of_nobody_are_listed_and_ended_alone() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut config = config();
    let own = users(&directory, &["ann"]);
    config.authentication.password_file = own.authentication.password_file;
    config.authentication.anonymous = Some(true);
    let mut world = World::with(&config, 2);
    let broker = &mut world.broker;
    enter(broker, &plain(V5, "hers"), "ann");
    for client_id in ["one", "two"] {
        let nameless = broker.open();
        broker.packet(
            nameless,
            V5,
            &sterna_mqtt::Packet::Connect(plain(V5, client_id)),
        );
    }
    let listed = world.get("/admin/v1/sessions?nobody=yes").json;
    let items = listed["items"].as_array().expect("a list");
    let mut names: Vec<&str> = (items.iter())
        .filter_map(|session| session["name"].as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["one", "two"]);
    for wrong in ["nobody=no", "nobody=yes&user=ann"] {
        let path = format!("/admin/v1/sessions?{wrong}");
        assert_eq!(world.get(&path).status, 400, "{wrong}");
        assert_eq!(world.call("DELETE", &path, "").status, 400, "{wrong}");
    }
    let ended = world.call("DELETE", "/admin/v1/sessions?nobody=yes", "");
    assert_eq!(ended.json["sessions"], 2, "{ended:?}");
    let left = world.get("/admin/v1/sessions").json;
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1), "{left}");
    assert_eq!(left["items"][0]["name"], "hers");
}
