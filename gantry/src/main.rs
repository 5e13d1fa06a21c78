//! The one binary: broker nodes, name servers, a development cluster, and the tools of an operator.

mod dev;
mod exit_code;
mod http_get;
mod output;

use std::fmt::Write as _;
use std::process::ExitCode as ProcessExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser, Subcommand};
use rand::Rng;

use crate::exit_code::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "gantry", version, about = "A message broker whose CommitLog is a Raft log", propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole cluster on this machine, every part a real process
    Dev(dev::DevArgs),
    /// Print a new random cluster id for configuration files
    ClusterId,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

fn main() -> ProcessExitCode {
    let result = match Cli::parse().command {
        Command::Dev(args) => dev::run(args),
        Command::ClusterId => output::line(&new_cluster_id()),
        Command::Completions { shell } => completions(shell),
    };
    match result {
        Ok(()) => ProcessExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gantry: {error:#}");
            ProcessExitCode::from(ExitCode::of(&error))
        }
    }
}

fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gantry", &mut text);
    output::line(String::from_utf8(text).context("completions are text")?.trim_end())
}

/// 128 random bits in hex.
fn new_cluster_id() -> String {
    let bytes: [u8; 16] = rand::rng().random();
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")
}
