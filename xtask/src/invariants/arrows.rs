//! Which crates may depend on which.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::Failure;

/// Each crate of the workspace and those it may depend on, from top to bottom. Development
/// dependencies are free: a test may stand anywhere.
const ARROWS: [(&str, &[&str]); 20] = [
    (
        "sterna",
        &[
            "sterna-server",
            "sterna-client",
            "sterna-store",
            "sterna-net",
            "sterna-quic",
            "sterna-broker",
            "sterna-mqtt",
            "sterna-amqp",
            "sterna-h3",
            "sterna-auth",
        ],
    ),
    (
        "sterna-lab",
        &[
            "sterna-client",
            "sterna-quic",
            "sterna-mqtt",
            "sterna-auth",
            "sterna-ledger",
        ],
    ),
    (
        "sterna-fuzz",
        &[
            "sterna-store",
            "sterna-cluster",
            "sterna-net",
            "sterna-quic",
            "sterna-broker",
            "sterna-mapping",
            "sterna-mqtt",
            "sterna-amqp",
            "sterna-h3",
            "sterna-auth",
            "sterna-topic",
        ],
    ),
    (
        "sterna-server",
        &[
            "sterna-store",
            "sterna-cluster",
            "sterna-http",
            "sterna-net",
            "sterna-quic",
            "sterna-tls",
            "sterna-broker",
            "sterna-mapping",
            "sterna-mqtt",
            "sterna-amqp",
            "sterna-h3",
            "sterna-auth",
            "sterna-topic",
        ],
    ),
    (
        "sterna-client",
        &[
            "sterna-quic",
            "sterna-tls",
            "sterna-mapping",
            "sterna-mqtt",
            "sterna-amqp",
            "sterna-h3",
            "sterna-auth",
        ],
    ),
    ("sterna-store", &["sterna-broker", "sterna-topic"]),
    ("sterna-cluster", &["sterna-broker", "sterna-topic"]),
    ("sterna-http", &["sterna-net", "sterna-h3"]),
    ("sterna-net", &["sterna-quic", "sterna-tls"]),
    ("sterna-quic", &[]),
    ("sterna-tls", &[]),
    ("sterna-broker", &["sterna-topic"]),
    (
        "sterna-mapping",
        &["sterna-mqtt", "sterna-amqp", "sterna-h3"],
    ),
    ("sterna-mqtt", &["sterna-topic"]),
    ("sterna-amqp", &[]),
    ("sterna-h3", &[]),
    ("sterna-auth", &[]),
    ("sterna-topic", &[]),
    ("sterna-ledger", &[]),
    ("xtask", &[]),
];

/// The crates without input and output.
pub(super) const ENGINES: [&str; 7] = [
    "sterna-mapping",
    "sterna-topic",
    "sterna-mqtt",
    "sterna-amqp",
    "sterna-h3",
    "sterna-broker",
    "sterna-auth",
];

/// Packages that bring sockets, clocks or tasks with them.
const IO_PACKAGES: [&str; 10] = [
    "async-std",
    "mio",
    "quinn",
    "quinn-proto",
    "quinn-udp",
    "rustls",
    "smol",
    "socket2",
    "tokio",
    "tokio-rustls",
];

/// Crates that speak a message protocol, or route messages.
const PROTOCOLS: [&str; 6] = [
    "sterna-mapping",
    "sterna-mqtt",
    "sterna-amqp",
    "sterna-h3",
    "sterna-broker",
    "sterna-auth",
];

/// Crates that know messages, topics or users.
const MESSAGES: [&str; 6] = [
    "sterna-mapping",
    "sterna-mqtt",
    "sterna-amqp",
    "sterna-topic",
    "sterna-broker",
    "sterna-auth",
];

/// Dependencies of the crates, without development dependencies.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Names of the workspace's own crates.
    members: BTreeSet<String>,
    /// Package names and the names of their direct dependencies. Versions of one package are one.
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    /// Reads the output of `cargo metadata`.
    pub(super) fn read(metadata: &Value) -> Result<Self, Failure> {
        let shape = || Failure::new("cargo metadata: unexpected shape");
        let mut names: BTreeMap<&str, &str> = BTreeMap::new();
        for package in metadata["packages"].as_array().ok_or_else(shape)? {
            let id = package["id"].as_str().ok_or_else(shape)?;
            names.insert(id, package["name"].as_str().ok_or_else(shape)?);
        }
        let name_of = |id: &Value| {
            id.as_str()
                .and_then(|id| names.get(id))
                .map(|name| (*name).to_owned())
                .ok_or_else(shape)
        };
        let mut graph = Self::default();
        for member in metadata["workspace_members"].as_array().ok_or_else(shape)? {
            graph.members.insert(name_of(member)?);
        }
        for node in metadata["resolve"]["nodes"].as_array().ok_or_else(shape)? {
            let edges = graph.edges.entry(name_of(&node["id"])?).or_default();
            for dependency in node["deps"].as_array().ok_or_else(shape)? {
                let kinds = dependency["dep_kinds"].as_array().ok_or_else(shape)?;
                if kinds.iter().any(|kind| kind["kind"] != "dev") {
                    edges.insert(name_of(&dependency["pkg"])?);
                }
            }
        }
        Ok(graph)
    }

    fn direct(&self, package: &str) -> impl Iterator<Item = &str> {
        self.edges
            .get(package)
            .into_iter()
            .flatten()
            .map(String::as_str)
    }

    /// The shortest way from one package to another.
    fn way(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut ways = vec![vec![from.to_owned()]];
        let mut seen = BTreeSet::from([from.to_owned()]);
        while !ways.is_empty() {
            let mut longer = Vec::new();
            for way in ways {
                for next in way.last().into_iter().flat_map(|last| self.direct(last)) {
                    let mut way = way.clone();
                    way.push(next.to_owned());
                    if next == to {
                        return Some(way);
                    }
                    if seen.insert(next.to_owned()) {
                        longer.push(way);
                    }
                }
            }
            ways = longer;
        }
        None
    }

    fn ways(&self, from: &[&str], to: &[&str]) -> Vec<String> {
        from.iter()
            .flat_map(|from| to.iter().filter_map(|to| self.way(from, to)))
            .map(|way| way.join(" -> "))
            .collect()
    }
}

/// Dependencies between the workspace's crates that the table doesn't allow.
pub(super) fn upward(graph: &Graph) -> Vec<String> {
    let mut violations = Vec::new();
    for member in &graph.members {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| name == member) else {
            violations.push(format!(
                "{member} is not in the table of xtask/src/invariants/arrows.rs"
            ));
            continue;
        };
        for dependency in graph.direct(member) {
            if graph.members.contains(dependency) && !allowed.contains(&dependency) {
                violations.push(format!("{member} -> {dependency}"));
            }
        }
    }
    violations
}

/// Engines whose dependencies bring input or output.
pub(super) fn engines_with_io(graph: &Graph) -> Vec<String> {
    graph.ways(&ENGINES, &IO_PACKAGES)
}

/// Ways from the transports to a message protocol.
pub(super) fn transport_with_protocol(graph: &Graph) -> Vec<String> {
    graph.ways(&["sterna-net"], &PROTOCOLS)
}

/// Ways from the carriers of HTTP to the subjects of its requests.
pub(super) fn carriers_with_messages(graph: &Graph) -> Vec<String> {
    graph.ways(&["sterna-http"], &MESSAGES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn graph(arrows: &[(&str, &str, &str)], members: &[&str]) -> Graph {
        let mut names: BTreeSet<&str> = members.iter().copied().collect();
        names.extend(arrows.iter().flat_map(|(from, to, _)| [*from, *to]));
        let packages: Vec<Value> = names
            .iter()
            .map(|name| json!({"id": format!("{name}#1"), "name": name}))
            .collect();
        let nodes: Vec<Value> = names
            .iter()
            .map(|name| {
                let deps: Vec<Value> = arrows
                    .iter()
                    .filter(|(from, _, _)| from == name)
                    .map(|(_, to, kind)| {
                        let kind = if *kind == "normal" {
                            Value::Null
                        } else {
                            json!(kind)
                        };
                        json!({"pkg": format!("{to}#1"), "dep_kinds": [{"kind": kind}]})
                    })
                    .collect();
                json!({"id": format!("{name}#1"), "deps": deps})
            })
            .collect();
        let members: Vec<String> = members.iter().map(|name| format!("{name}#1")).collect();
        Graph::read(&json!({
            "packages": packages, "workspace_members": members, "resolve": {"nodes": nodes}
        }))
        .unwrap()
    }

    #[test]
    fn an_arrow_up_is_found_unless_it_is_for_tests() {
        let members = [
            "sterna-mqtt",
            "sterna-server",
            "sterna-client",
            "sterna-new",
        ];
        let graph = graph(
            &[
                ("sterna-server", "sterna-mqtt", "normal"),
                ("sterna-mqtt", "sterna-server", "build"),
                ("sterna-client", "sterna-server", "dev"),
            ],
            &members,
        );
        assert_eq!(
            upward(&graph),
            [
                "sterna-mqtt -> sterna-server",
                "sterna-new is not in the table of xtask/src/invariants/arrows.rs"
            ]
        );
    }

    #[test]
    fn a_hidden_way_to_a_socket_is_shown() {
        let graph = graph(
            &[
                ("sterna-mqtt", "bytes", "normal"),
                ("bytes", "sockets", "normal"),
                ("sockets", "mio", "normal"),
                ("sterna-amqp", "tokio", "dev"),
            ],
            &["sterna-mqtt", "sterna-amqp"],
        );
        assert_eq!(
            engines_with_io(&graph),
            ["sterna-mqtt -> bytes -> sockets -> mio"]
        );
    }

    #[test]
    fn transports_may_not_reach_a_protocol() {
        let graph = graph(
            &[
                ("sterna-net", "glue", "normal"),
                ("glue", "sterna-h3", "normal"),
            ],
            &["sterna-net", "sterna-h3"],
        );
        assert_eq!(
            transport_with_protocol(&graph),
            ["sterna-net -> glue -> sterna-h3"]
        );
    }

    #[test]
    fn carriers_of_http_may_not_reach_a_message() {
        let graph = graph(
            &[
                ("sterna-http", "sterna-h3", "normal"),
                ("sterna-http", "glue", "normal"),
                ("glue", "sterna-topic", "normal"),
                ("sterna-http", "sterna-broker", "dev"),
            ],
            &["sterna-http", "sterna-topic"],
        );
        assert_eq!(
            carriers_with_messages(&graph),
            ["sterna-http -> glue -> sterna-topic"]
        );
    }

    #[test]
    fn the_table_has_no_circle() {
        for (index, (name, below)) in ARROWS.iter().enumerate() {
            for crate_below in *below {
                let position = ARROWS.iter().position(|(other, _)| other == crate_below);
                assert!(
                    position.is_some_and(|position| position > index),
                    "{name} -> {crate_below}"
                );
            }
        }
    }
}
