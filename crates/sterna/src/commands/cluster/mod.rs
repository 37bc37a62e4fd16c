//! `sterna cluster`: the nodes of a cluster, as one of them sees it; and all that it has, as NATS has it.

mod transfer;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use serde_json::Value;
use sterna_client::http::Method;

use super::admin::connection::Connection;
use super::admin::table::{Column, harmless, json, table};
use super::exit::{self, Failure};

const NODES: [Column; 10] = [
    ("NODE", "/node"),
    ("PRESENCE", "/presence"),
    ("STATE", "/told/state"),
    ("FILTERS", "/filters"),
    ("INBOX batches", "/inbox_batches"),
    ("WAITING bytes", "/told/waiting_bytes"),
    ("VERSION", "/told/version"),
    ("WIRE", "/told/wire"),
    ("NATS", "/told/nats_server"),
    ("NATS VERSION", "/told/nats_version"),
];

const STREAMS: [Column; 6] = [
    ("STREAM", "/stream"),
    ("MESSAGES", "/messages"),
    ("BYTES", "/bytes"),
    ("REPLICAS", "/replicas"),
    ("LEADER", "/leader"),
    ("FOLLOWERS", "/shown_followers"),
];

const REGIONS: [Column; 4] = [
    ("REGION", "/region"),
    ("WAITING entries", "/waiting"),
    ("HEARD ms ago", "/heard_ms"),
    ("BEHIND entries", "/behind"),
];

/// See the nodes of a cluster, by the admin listener of one of them. Take all that a cluster has elsewhere, and back.
#[derive(ClapArgs, Debug)]
#[command(after_help = exit::HELP, mut_args(|argument| argument.global(true)))]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print the answer as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// The nodes with the messages that wait for them, and the state of NATS. Problems are lines of their
    /// own; the exit status is 0 all the same
    #[command(after_help = exit::HELP)]
    Status,
    /// Have NATS keep another number of copies of all streams of the cluster. A node with a higher `cluster.replicas` raises
    /// it again when it starts
    #[command(after_help = exit::HELP)]
    Replicas {
        /// 1 to 5, and no more than there are servers of NATS
        #[arg(value_parser = clap::value_parser!(u8).range(1..=5))]
        replicas: u8,
    },
    /// Write all sessions, queues, retained messages and messages as JSON lines, in the form of `sterna store export`.
    /// Talks to NATS as a node's configuration says. Changes nothing, and nodes may run.
    ///
    /// Exit status: 0 done; 1 done, and standard error names what was not carried; 2 not done.
    Export(transfer::Export),
    /// Fill a cluster from an export, of a cluster or of a store. All nodes have to be stopped.
    /// Talks to NATS as a node's configuration says.
    ///
    /// Exit status: 0 done; 1 done, and standard error names what was not carried; 2 not done.
    Import(transfer::Import),
}

/// It was not done.
const NOT_DONE: u8 = 2;

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let transferred = match &args.action {
        Action::Status => return exit::code(super::block_on(status(args)), false),
        Action::Replicas { replicas } => {
            return exit::code(super::block_on(set_replicas(args, *replicas)), false);
        }
        Action::Export(export) => export.run(),
        Action::Import(import) => import.run(),
    };
    match transferred {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            eprintln!("sterna cluster: {why}");
            ExitCode::from(NOT_DONE)
        }
    }
}

async fn set_replicas(args: &Args, replicas: u8) -> Result<(), Failure> {
    let path = format!("/cluster/replicas/{replicas}");
    (args.connection.client()?)
        .call(Method::Post, &path, None)
        .await?;
    eprintln!("NATS keeps {replicas} of each stream of the cluster");
    Ok(())
}

async fn status(args: &Args) -> Result<(), Failure> {
    let report = args.connection.client()?.get("/cluster").await?;
    let text = if args.json {
        json(&report) + "\n"
    } else {
        describe(&report)
    };
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|_| Failure::quiet())
}

/// The report as text.
fn describe(report: &Value) -> String {
    let name = |key: &str| harmless(report[key].as_str().unwrap_or("-"));
    let items = |key: &str| report[key].as_array().cloned().unwrap_or_default();
    let mut streams = items("streams");
    for stream in &mut streams {
        let followers = stream["followers"].as_array().into_iter().flatten();
        let followers: Vec<String> = followers.map(follower).collect();
        stream["shown_followers"] = followers.join(", ").into();
    }
    let mut text = format!(
        "Cluster {}, as node {} sees it.\n\n{}",
        name("cluster"),
        name("node"),
        table(&NODES, &items("nodes"))
    );
    if !streams.is_empty() {
        let _ = write!(text, "\n{}", table(&STREAMS, &streams));
    }
    let regions = items("regions");
    if !regions.is_empty() {
        let _ = write!(text, "\n{}", table(&REGIONS, &regions));
    }
    for problem in items("problems") {
        let _ = write!(
            text,
            "\nproblem: {}\n",
            harmless(problem.as_str().unwrap_or_default())
        );
    }
    text
}

/// A follower in one word, and what is wrong with it.
fn follower(follower: &Value) -> String {
    let server = follower["server"].as_str().unwrap_or("-");
    match (&follower["is_offline"], &follower["is_current"]) {
        (Value::Bool(true), _) => format!("{server} (offline)"),
        (_, Value::Bool(false)) => match follower["lag"].as_u64() {
            Some(lag) => format!("{server} ({lag} behind)"),
            None => format!("{server} (behind)"),
        },
        _ => server.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_page_of_commands_has_each_column() {
        let page = include_str!("../../../../../docs/commands.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
        let named: Vec<&str> = rows
            .filter_map(|row| row.split(" | ").next())
            .flat_map(|names| names.split(", "))
            .collect();
        for (column, _) in NODES.iter().chain(&STREAMS).chain(&REGIONS) {
            assert!(named.contains(column), "docs/commands.md lacks {column}");
        }
    }

    #[test]
    fn what_is_wrong_is_seen() {
        let report = json!({
            "cluster": "c", "node": "a",
            "nodes": [
                { "node": "a", "presence": "here", "filters": 2, "inbox_batches": 0,
                  "told": { "state": "draining", "version": "1", "nats_server": "n1" } },
                { "node": "b", "presence": "away", "filters": 0, "inbox_batches": 7, "told": null },
            ],
            "streams": [{
                "stream": "S", "messages": 1, "bytes": 2, "replicas": 3, "leader": "n1",
                "followers": [
                    { "server": "n2", "is_current": true, "is_offline": false, "lag": 0 },
                    { "server": "n3", "is_current": false, "is_offline": true, "lag": null },
                    { "server": "n4", "is_current": false, "is_offline": false, "lag": 5 },
                ],
            }],
            "regions": [{ "region": "south", "waiting": 12, "heard_ms": null, "behind": 0 }],
            "problems": ["NATS takes\u{1b} no messages"],
        });
        let text = describe(&report);
        for wanted in [
            "Cluster c, as node a sees it.",
            "draining",
            "away",
            "n2, n3 (offline), n4 (5 behind)",
            "south",
            "WAITING entries",
            "problem: NATS takes\\u{1b} no messages",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }
}
