//! The command line of the fault tests.
//!
//! | Exit code | Meaning |
//! | --- | --- |
//! | 0 | pass |
//! | 1 | fail: a promise was broken |
//! | 2 | the command line is wrong |
//! | 3 | unknown: something could not be decided, or the run did not exercise what was planned |
//! | 4 | the harness failed, or the file is no history: there is no verdict |
#![expect(clippy::print_stdout, reason = "a command prints its result")]

use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use jepsen::anomaly::{Anomaly, Severity};
use jepsen::checker::{CHECKERS, Outcome, judge};
use jepsen::cluster::lab;
use jepsen::contract::Promise;
use jepsen::history::{History, read, write_to};
use jepsen::model::{Size, legal_history};
use jepsen::nemesis::Family;
use jepsen::report::Results;
use jepsen::run::Options;
use jepsen::seed::Seed;
use jepsen::workload::Workload;

const UNDECIDED: u8 = 3;
const HARNESS_FAILED: u8 = 4;

/// Runs fault tests against real clusters, and judges their histories.
#[derive(Parser)]
#[command(name = "jepsen", max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Judge a recorded history
    Check {
        /// The history: JSON lines
        file: PathBuf,
        /// Write the results there as JSON as well
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Run a real cluster under faults, and judge what happened
    Run {
        #[arg(long, value_enum, default_value_t = Workload::Queue)]
        workload: Workload,
        /// The family of faults
        #[arg(long, value_enum, default_value_t = Family::Kill)]
        nemesis: Family,
        /// For how long faults are injected
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=86_400))]
        seconds: u64,
        /// Operations and faults come from it
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The program under test
        #[arg(long, default_value = "target/release/gantry", value_name = "FILE")]
        gantry: PathBuf,
        /// Where the directory of the run is made
        #[arg(long, default_value = "data/jepsen", value_name = "DIR")]
        runs: PathBuf,
        /// This process has a network of its own already
        #[arg(long, hide = true)]
        in_lab: bool,
    },
    /// Write the history of a model that keeps every promise
    Model {
        /// Where to write it
        file: PathBuf,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Simulated seconds of work
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: u64,
    },
    /// List promises, anomalies and checkers
    Anomalies,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(Outcome::Pass) => ExitCode::SUCCESS,
        Ok(Outcome::Fail) => ExitCode::FAILURE,
        Ok(Outcome::Unknown) => ExitCode::from(UNDECIDED),
        Err(error) => {
            eprintln!("harness failure, no verdict: {error:#}");
            ExitCode::from(HARNESS_FAILED)
        }
    }
}

fn run(command: Command) -> Result<Outcome> {
    match command {
        Command::Check { file, json } => {
            let history = read(&file).with_context(|| format!("reading the history {}", file.display()))?;
            report(&history, json.as_deref())
        }
        Command::Run { nemesis, in_lab: false, .. } if nemesis.needs_lab() => {
            let args: Vec<String> = std::env::args().skip(1).chain(["--in-lab".to_owned()]).collect();
            Err(lab::enter(&args))
        }
        Command::Run { workload, nemesis, seconds, seed, gantry, runs, in_lab: _ } => {
            let (main, seed) = (Duration::from_secs(seconds), Seed(seed));
            perform(&Options { gantry, workload, family: nemesis, main, seed, runs })
        }
        Command::Model { file, seed, seconds } => {
            let size = Size { lasts: Duration::from_secs(seconds), ..Size::SMALL };
            let history = legal_history(Seed(seed), &size);
            let out = std::fs::File::create(&file).with_context(|| format!("creating {}", file.display()))?;
            write_to(&history, BufWriter::new(out)).with_context(|| format!("writing {}", file.display()))?;
            println!("{} operations in {}", history.ops.len(), file.display());
            Ok(Outcome::Pass)
        }
        Command::Anomalies => {
            list();
            Ok(Outcome::Pass)
        }
    }
}

fn perform(options: &Options) -> Result<Outcome> {
    let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
    let ran = runtime.block_on(jepsen::run::run(options));
    // Clients of processes that are gone may still wait for an answer.
    runtime.shutdown_background();
    let (outcome, dir) = ran?;
    let report = dir.join("report.txt");
    show(&std::fs::read_to_string(&report).with_context(|| format!("reading {}", report.display()))?)?;
    show(&format!("\nrun         {}\n", dir.display()))?;
    Ok(outcome)
}

/// Prints to standard output, which may be a pipe that nobody reads to its end.
fn show(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("writing to standard output"),
        _ => Ok(()),
    }
}

fn report(history: &History, json: Option<&Path>) -> Result<Outcome> {
    let verdict = judge(history);
    let results = Results::new(history, &verdict);
    show(&results.text(history))?;
    if let Some(path) = json {
        let text = serde_json::to_vec_pretty(&results).context("writing the results as JSON")?;
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(verdict.outcome)
}

fn list() {
    for promise in Promise::ALL {
        println!("{promise:<4} {}", promise.text());
    }
    println!();
    for anomaly in Anomaly::ALL {
        let finders = CHECKERS.iter().filter(|checker| checker.finds.contains(&anomaly)).map(|checker| checker.name);
        let finders: Vec<&str> = finders.collect();
        let severity = match anomaly.severity() {
            Severity::Fails => "fails",
            Severity::Bounded => "above a bound",
        };
        let (promise, name) = (anomaly.promise().to_string(), anomaly.name());
        println!("{anomaly:?}  {promise:<4} {name:<44} {severity:<14} {}", finders.join(", "));
    }
}
