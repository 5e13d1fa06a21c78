//! `gantry store`: looks into the directory of a stopped node, and changes nothing in it.

mod check;
mod dump;
mod entry;
mod stats;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use crate::exit_code::ExitCode;
use crate::output::Format;

/// The file that makes a directory a log.
const NODE_FILE: &str = "node";

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Print the log's records, with the messages in them
    Dump(dump::DumpArgs),
    /// Verify everything, and name what is damaged
    Check(check::CheckArgs),
    /// Show what takes the space, by topic and by kind
    Stats(stats::StatsArgs),
}

/// Which store.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// A node's data directory, or that of one group in it
    dir: PathBuf,
    /// Only this group
    #[arg(long)]
    group: Option<String>,
}

/// The store of one group.
#[derive(Debug)]
pub(crate) struct GroupDir {
    name: String,
    dir: PathBuf,
    log: PathBuf,
}

pub(crate) fn run(command: StoreCommand, format: Format) -> Result<()> {
    match command {
        StoreCommand::Dump(args) => dump::run(&args, format),
        StoreCommand::Check(args) => check::run(&args, format),
        StoreCommand::Stats(args) => stats::run(&args, format),
    }
}

impl GroupDir {
    fn new(dir: &Path, log: PathBuf) -> Self {
        let name = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let name = name.file_name().map_or_else(|| "-".to_owned(), |name| name.to_string_lossy().into_owned());
        Self { name, dir: dir.to_owned(), log }
    }

    fn open(&self) -> Result<raft_store::Inspection> {
        raft_store::Inspection::open(&self.log)
            .with_context(|| format!("group {}: a store is looked at while its node is stopped", self.name))
    }
}

impl StoreArgs {
    /// The groups that are meant, in order of their names.
    fn groups(&self) -> Result<Vec<GroupDir>> {
        let mut groups = find_groups(&self.dir)?;
        if let Some(wanted) = &self.group {
            groups.retain(|group| group.name == *wanted);
            if groups.is_empty() {
                let error = anyhow::anyhow!("{} holds no group {wanted}", self.dir.display());
                return Err(error.context(ExitCode::NotFound));
            }
        }
        Ok(groups)
    }
}

fn find_groups(dir: &Path) -> Result<Vec<GroupDir>> {
    if dir.join(NODE_FILE).is_file() {
        // The log itself; its group lies around it.
        let group = dir.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_owned));
        return Ok(vec![GroupDir::new(group.as_deref().unwrap_or(dir), dir.to_owned())]);
    }
    if dir.join("log").join(NODE_FILE).is_file() {
        return Ok(vec![GroupDir::new(dir, dir.join("log"))]);
    }
    let mut groups = Vec::new();
    let inside = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    for item in inside {
        let path = item.with_context(|| format!("reading {}", dir.display()))?.path();
        let log = path.join("log");
        if log.join(NODE_FILE).is_file() {
            groups.push(GroupDir::new(&path, log));
        }
    }
    if groups.is_empty() {
        bail!("{} is no node's data directory: no group in it has a log", dir.display());
    }
    groups.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(groups)
}

/// Text from the log on one line: control characters escaped, so that nothing stored can steer the terminal.
fn printable(text: &str) -> String {
    text.chars().fold(String::new(), |mut line, c| {
        if c.is_control() {
            line.extend(c.escape_default())
        } else {
            line.push(c)
        }
        line
    })
}
