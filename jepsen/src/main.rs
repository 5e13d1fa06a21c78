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

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use jepsen::anomaly::{Anomaly, Severity};
use jepsen::checker::{CHECKERS, Outcome, judge};
use jepsen::contract::Promise;
use jepsen::history::{History, read, write_to};
use jepsen::model::{Size, legal_history};
use jepsen::report::Results;
use jepsen::seed::Seed;

const UNDECIDED: u8 = 3;
const HARNESS_FAILED: u8 = 4;

/// Judges histories of fault tests.
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

fn report(history: &History, json: Option<&Path>) -> Result<Outcome> {
    let verdict = judge(history);
    let results = Results::new(history, &verdict);
    print!("{}", results.text(history));
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
