//! `gantry dev`: a whole cluster on this machine, every part a real process.

mod child;
mod control;
mod layout;
mod parent;
mod process_group;
mod setting;
mod view;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use self::control::{Action, Answer, Request, Target};
use self::layout::{BASE_PORT, Flush, Layout, Wanted};
use self::setting::Setting;
use self::view::View;
use crate::output::{self, Format};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DevArgs {
    #[command(subcommand)]
    command: Option<DevCommand>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Broker nodes: 1, 3 or 5 [default: 3]
    #[arg(long)]
    nodes: Option<u16>,
    /// Broker groups, 1 to 9 [default: as many as nodes]
    #[arg(long)]
    groups: Option<u16>,
    /// Directory of everything the cluster keeps; running it again resumes what is there
    #[arg(long, default_value = "data/dev")]
    data: PathBuf,
    /// First port; name servers take it and the next two, all other ports follow [default: 9876]
    #[arg(long)]
    base_port: Option<u16>,
    /// When an acknowledged message is on disk [default: sync]
    #[arg(long, value_enum)]
    flush: Option<Flush>,
    /// Keep the data in a temporary directory that is removed at the end
    #[arg(long, conflicts_with = "data")]
    ephemeral: bool,
    /// Seconds for which a node that is stopped forwards requests, so that clients move away unnoticed; outside of
    /// `gantry dev` it is 35
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=50))]
    stop_forward: u64,
    /// A key of every node's configuration, for this run, such as retention.time=30s; may be given several times
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<Setting>,
    /// Print one JSON object instead of the table, and nothing else on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum DevCommand {
    /// Kill a process (SIGKILL), as losing its machine would: its ports close, and it stays away until `start`
    Kill(TargetArgs),
    /// Kill a broker's process only (SIGKILL), as a fault in it would: its client ports stay open, and it comes back at
    /// once
    Crash(TargetArgs),
    /// Stop a process cleanly: it hands its leaderships over first
    Stop(TargetArgs),
    /// Start a process that was killed or stopped
    Start(StartArgs),
    /// Pause a process (SIGSTOP): it is there, and silent
    Pause(TargetArgs),
    /// Let a paused process go on
    Resume(TargetArgs),
    /// Show processes, ports and leaders
    Status(DirArgs),
    /// Remove the cluster and its data; it must not be running
    Reset(DirArgs),
}

#[derive(Debug, Args)]
struct DirArgs {
    /// Directory of the cluster
    #[arg(long, default_value = "data/dev")]
    data: PathBuf,
}

#[derive(Debug, Args)]
struct TargetArgs {
    /// A node (n1) or a name server (ns1)
    #[arg(required_unless_present = "leader", conflicts_with = "leader")]
    node: Option<String>,
    /// The node that leads this group (broker-a), instead of a name
    #[arg(long, value_name = "GROUP")]
    leader: Option<String>,
    #[command(flatten)]
    dir: DirArgs,
}

#[derive(Debug, Args)]
struct StartArgs {
    /// A node (n1) or a name server (ns1)
    node: String,
    /// Let a node whose directory is gone come back as a new member
    #[arg(long)]
    rejoin: bool,
    #[command(flatten)]
    dir: DirArgs,
}

pub(crate) fn run(args: DevArgs, format: Format) -> Result<()> {
    match args.command {
        None => start(args.run, format),
        Some(DevCommand::Kill(target)) => act(Action::Kill, target),
        Some(DevCommand::Crash(target)) => act(Action::Crash, target),
        Some(DevCommand::Stop(target)) => act(Action::Stop, target),
        Some(DevCommand::Start(StartArgs { node, rejoin, dir })) => {
            let action = if rejoin { Action::Rejoin } else { Action::Start };
            act(action, TargetArgs { node: Some(node), leader: None, dir })
        }
        Some(DevCommand::Pause(target)) => act(Action::Pause, target),
        Some(DevCommand::Resume(target)) => act(Action::Resume, target),
        Some(DevCommand::Status(args)) => match control::call(&args.data, &Request::Status)? {
            Answer::Status(view) if format == Format::Json => output::json(&view),
            Answer::Status(view) => output::line(&view.to_text()),
            Answer::Done(text) | Answer::Refused(text) => bail!("{text}"),
        },
        Some(DevCommand::Reset(dir)) => reset(&dir.data),
    }
}

fn act(action: Action, args: TargetArgs) -> Result<()> {
    let target = match (args.node, args.leader) {
        (Some(name), _) => Target::Process(name),
        (None, Some(group)) => Target::LeaderOf(group),
        (None, None) => bail!("name a node, or --leader GROUP"),
    };
    match control::call(&args.dir.data, &Request::Act { action, target })? {
        Answer::Done(text) => output::line(&text),
        Answer::Refused(text) => bail!("{text}"),
        Answer::Status(view) => output::line(&view.to_text()),
    }
}

fn start(args: RunArgs, format: Format) -> Result<()> {
    let ephemeral = args.ephemeral.then(temporary_dir).transpose()?;
    let dir = ephemeral.as_ref().unwrap_or(&args.data);
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let dir = fs::canonicalize(dir).with_context(|| format!("finding {}", dir.display()))?;
    let _lock = lock(&dir)?;
    let wanted = Wanted { nodes: args.nodes, groups: args.groups, base_port: args.base_port, flush: args.flush };
    let layout = Layout::open(&dir, wanted)?;
    let options = parent::Options {
        dir: dir.clone(),
        layout,
        json: args.json || format == Format::Json,
        stop_forward: Duration::from_secs(args.stop_forward),
        settings: args.set,
        named_dir: ephemeral.is_some() || args.data != Path::new("data/dev"),
    };
    let result = crate::runtime()?.block_on(parent::run(options));
    if ephemeral.is_some() {
        fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    result
}

fn temporary_dir() -> Result<PathBuf> {
    let dir = std::env::temp_dir().join(format!("gantry-dev-{}", std::process::id()));
    fs::create_dir(&dir).with_context(|| format!("creating {}", dir.display()))?;
    Ok(dir)
}

/// Holds the directory for this process; the lock goes with the file handle.
fn lock(dir: &Path) -> Result<fs::File> {
    let path = dir.join("dev.lock");
    let file = fs::File::create(&path).with_context(|| format!("opening {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => bail!("a `gantry dev` runs in {} already", dir.display()),
        Err(fs::TryLockError::Error(error)) => Err(error).with_context(|| format!("locking {}", path.display())),
    }
}

/// Removes what `gantry dev` made in `dir`, and the directory if nothing else is in it.
fn reset(dir: &Path) -> Result<()> {
    if !dir.join("dev.json").exists() {
        bail!("there is no cluster in {}", dir.display());
    }
    let lock = lock(dir)?;
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry.with_context(|| format!("reading {}", dir.display()))?.path();
        let ours = path.file_name().and_then(|name| name.to_str()).is_some_and(layout::is_ours);
        let removed = match (ours, path.is_dir()) {
            (false, _) => continue,
            (true, true) => fs::remove_dir_all(&path),
            (true, false) => fs::remove_file(&path),
        };
        removed.with_context(|| format!("removing {}", path.display()))?;
    }
    drop(lock);
    // Whatever else the user keeps there stays.
    let _ = fs::remove_dir(dir);
    output::line(&format!("removed the cluster in {}", dir.display()))
}

/// Drives the cluster of one group that runs in a directory, for measurements.
pub(crate) struct Driver(PathBuf);

impl Driver {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self(dir)
    }

    fn view(&self) -> Result<View> {
        match control::call(&self.0, &Request::Status)? {
            Answer::Status(view) => Ok(view),
            Answer::Done(text) | Answer::Refused(text) => bail!("{text}"),
        }
    }

    fn act(&self, action: Action, node: &str) -> Result<()> {
        match control::call(&self.0, &Request::Act { action, target: Target::Process(node.to_owned()) })? {
            Answer::Done(_) => Ok(()),
            Answer::Refused(text) => bail!("{text}"),
            Answer::Status(_) => bail!("`gantry dev` answered something else"),
        }
    }

    /// The node that leads, and one that follows it.
    pub(crate) fn leader_and_follower(&self) -> Result<(String, String)> {
        let view = self.view()?;
        let [group] = view.groups.as_slice() else { bail!("the cluster must have one group: gantry dev --groups 1") };
        let leader = group.leader.clone().context("nobody leads at the moment")?;
        let other = view.processes.iter().find(|process| process.http.is_some() && process.name != leader);
        Ok((leader, other.context("the cluster must have three nodes")?.name.clone()))
    }

    /// The node of a cluster that has one, and where it answers over HTTP.
    pub(crate) fn only_node(&self) -> Result<(String, std::net::SocketAddr)> {
        let view = self.view()?;
        let mut nodes = view.processes.iter().filter_map(|process| Some((process.name.clone(), process.http?)));
        match (nodes.next(), nodes.next(), view.groups.len()) {
            (Some(node), None, 1) => Ok(node),
            _ => bail!("the cluster must have one node and one group: gantry dev --nodes 1 --groups 1"),
        }
    }

    /// Where the leader answers over HTTP, and the group.
    pub(crate) fn leader_http(&self) -> Result<(std::net::SocketAddr, String)> {
        let view = self.view()?;
        let group = view.groups.first().context("the cluster has no group")?;
        let leader = view.processes.iter().find(|process| Some(&process.name) == group.leader.as_ref());
        let addr = leader.and_then(|leader| leader.http).context("nobody leads at the moment")?;
        Ok((addr, group.name.clone()))
    }

    pub(crate) fn stop(&self, node: &str) -> Result<()> {
        self.act(Action::Stop, node)
    }

    pub(crate) fn kill(&self, node: &str) -> Result<()> {
        self.act(Action::Kill, node)
    }

    pub(crate) fn start(&self, node: &str) -> Result<()> {
        self.act(Action::Start, node)
    }
}

/// Process ids of the cluster that runs in `dir`.
pub(crate) fn pids(dir: &Path) -> Result<Vec<u32>> {
    match control::call(dir, &Request::Status)? {
        Answer::Status(view) => Ok(view.processes.iter().filter_map(|process| process.pid).collect()),
        Answer::Done(text) | Answer::Refused(text) => bail!("{text}"),
    }
}
