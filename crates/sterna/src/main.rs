//! The command `sterna`: the broker, its clients, and the tools around them.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments on arguments are the help that people read, where brackets are brackets"
)]

#[cfg(all(unix, any(target_env = "gnu", target_arch = "x86_64")))]
mod allocator;
mod commands;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use commands::{
    acl, admin, cluster, config, demo, exit, handshake, manual, moved, passwd, property, publish,
    request, serve, store, subscribe, token, top, trace, tune,
};

/// An IoT message broker and its clients, over QUIC, TLS, TCP and WebSocket.
#[derive(Debug, Parser)]
#[command(name = "sterna", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// One variant, one file below `commands/`, one arm in `main`.
#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Config(config::Args),
    /// The same as `config check`
    #[command(hide = true)]
    CheckConfig(config::check::Args),
    Acl(acl::Args),
    #[command(name = "pub")]
    Publish(Box<publish::Args>),
    #[command(name = "sub")]
    Subscribe(Box<subscribe::Args>),
    Request(Box<request::Args>),
    Handshake(Box<handshake::Args>),
    Passwd(passwd::Args),
    Token(token::Args),
    Store(store::Args),
    Admin(Box<admin::Args>),
    Cluster(Box<cluster::Args>),
    Top(Box<top::Args>),
    Trace(Box<trace::Args>),
    Demo(demo::Args),
    Tune(tune::Args),
    Completions(manual::Completions),
    ManPages(manual::ManPages),
    #[command(hide = true, disable_help_flag = true)]
    Bench(moved::Args),
    #[command(hide = true, disable_help_flag = true)]
    Lab(moved::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(property::join(std::env::args_os())) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not errors; the rest is a wrong command line.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(exit::USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Config(args) => config::run(&args),
        Command::CheckConfig(args) => config::check::run(&args),
        Command::Acl(args) => acl::run(&args),
        Command::Publish(args) => publish::run(&args),
        Command::Subscribe(args) => subscribe::run(&args),
        Command::Request(args) => request::run(&args),
        Command::Handshake(args) => handshake::run(&args),
        Command::Passwd(args) => passwd::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Store(args) => store::run(&args),
        Command::Admin(args) => admin::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Completions(args) => manual::completions(&args, &mut Cli::command()),
        Command::ManPages(args) => manual::man_pages(&args, Cli::command()),
        Command::Bench(args) => moved::run("bench", &args),
        Command::Lab(args) => moved::run("lab", &args),
    }
}
