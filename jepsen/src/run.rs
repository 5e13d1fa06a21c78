//! One run: a cluster, a workload, faults, and the files that tell of it.
//!
//! | File of a run | Holds |
//! | --- | --- |
//! | `plan.json` | seed, workload and faults, drawn before anything starts |
//! | `history.jsonl` | everything that happened |
//! | `results.json`, `report.txt` | the verdict |
//! | `repro.sh` | the command that repeats the plan |
//! | `cluster/` | logs and configurations; the data of the nodes only if the run did not pass |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::checker::{Outcome, judge};
use crate::cluster::{Cluster, Lab, Shape};
use crate::contract::Limits;
use crate::history::{self, Note, Phase};
use crate::nemesis::{self, Family, Plan};
use crate::observer;
use crate::recorder::Recorder;
use crate::report::Results;
use crate::seed::Seed;
use crate::workload::{self, Stage, Workload};

/// Everything must succeed for so long before the first fault.
const WARM_UP: Duration = Duration::from_secs(5);
/// After the last fault the load goes on for so long: longer than recovery of throughput may take.
const QUIET_HEAL: Duration = Duration::from_secs(26);
const SHAPE: Shape = Shape { brokers: 3, name_servers: 2, groups: 2 };

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    pub gantry: PathBuf,
    pub workload: Workload,
    pub family: Family,
    /// How long faults are injected.
    pub main: Duration,
    pub seed: Seed,
    /// Where the directory of the run is made.
    pub runs: PathBuf,
}

/// What `plan.json` holds.
#[derive(Serialize)]
struct PlanFile<'a> {
    seed: u64,
    seconds: u64,
    workload: Workload,
    faults: &'a Plan,
}

/// Runs, judges, and writes the report. Says the verdict and the directory of the run.
///
/// # Errors
/// The harness failed, so there is no verdict. What is known is left in the directory.
pub async fn run(options: &Options) -> Result<(Outcome, PathBuf)> {
    let dir = make_dir(options)?;
    let plan = Plan::drawn(options.seed, options.family, options.main);
    let seconds = options.main.as_secs();
    let file = PlanFile { seed: options.seed.0, seconds, workload: options.workload, faults: &plan };
    write(&dir, "plan.json", &serde_json::to_vec_pretty(&file).context("encoding the plan")?)?;
    write(&dir, "repro.sh", repro(options).as_bytes())?;

    let (recorder, thread) = Recorder::start(&dir.join("history.jsonl"))?;
    let ran = perform(options, &plan, &dir, recorder).await;
    let written = thread.finish();
    ran.and(written).with_context(|| format!("what is known is in {}", dir.display()))?;

    let history = history::read(&dir.join("history.jsonl")).context("reading back the history")?;
    let verdict = judge(&history);
    let results = Results::new(&history, &verdict);
    write(&dir, "results.json", &serde_json::to_vec_pretty(&results).context("encoding the results")?)?;
    write(&dir, "report.txt", results.text(&history).as_bytes())?;
    if verdict.outcome == Outcome::Pass {
        drop_data(&dir)?;
    }
    Ok((verdict.outcome, dir))
}

/// From the start of the cluster to its end. Every process is ended on return, whatever happened.
async fn perform(options: &Options, plan: &Plan, dir: &Path, recorder: Recorder) -> Result<()> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into();
    let limits = Limits::default();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (wall, commit) = (format!("{since_1970} s since 1970"), commit().into());
    recorder.note(Note::Run(history::Run { run: name, seed: options.seed.0, commit, wall: wall.into(), limits }))?;
    recorder.note(Note::Plan(expected(plan)))?;
    let cluster_dir = dir.join("cluster");
    std::fs::create_dir(&cluster_dir).with_context(|| format!("creating {}", cluster_dir.display()))?;
    let lab = options.family.needs_lab().then(|| Lab::build(SHAPE.brokers, SHAPE.name_servers)).transpose();
    let lab = lab.context("building a network")?;
    let mut cluster = Cluster::start(&options.gantry, &cluster_dir, SHAPE, lab, &recorder).await?;
    let performed = phases(options, plan, &mut cluster, &recorder).await;
    cluster.stop().await;
    performed
}

async fn phases(options: &Options, plan: &Plan, cluster: &mut Cluster, recorder: &Recorder) -> Result<()> {
    let stage = Stage::set(options.seed, cluster, recorder).await?;
    let phase = |name| recorder.note(Note::Phase { name });
    let mut watching = observer::start(cluster, &stage.topic, recorder)?;

    phase(Phase::WarmUp)?;
    let mut running = options.workload.start(&stage)?;
    let faults = async {
        tokio::time::sleep(WARM_UP).await;
        phase(Phase::Main)?;
        let begun = tokio::time::Instant::now();
        nemesis::run(plan, options.seed, cluster, recorder).await?;
        tokio::time::sleep_until(begun + options.main).await;
        phase(Phase::QuietHeal)?;
        tokio::time::sleep(QUIET_HEAL).await;
        anyhow::Ok(())
    };
    tokio::select! {
        done = faults => done?,
        failed = running.failed() => failed.and(Err(anyhow::anyhow!("a client process ended by itself")))?,
        Some(ended) = watching.join_next() => ended.context("an observer panicked")?.context("an observer failed")?,
    }
    phase(Phase::Final)?;
    running.stop().await?;
    workload::read_everything(&stage, cluster).await
}

/// What the run must have done to count.
fn expected(plan: &Plan) -> history::Plan {
    let ops = [("send", 100), ("pull", 100), ("commit", 20), ("query-offset", 20), ("final-read", 1)];
    let ops: BTreeMap<Box<str>, u64> = ops.into_iter().map(|(name, count)| (name.into(), count)).collect();
    history::Plan { faults: plan.kinds(), ops, leader_changes: u64::from(plan.moves_leadership()) }
}

/// The commit that is checked out, if there is a repository.
fn commit() -> String {
    let asked = Command::new("git").args(["rev-parse", "HEAD"]).output();
    asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn make_dir(options: &Options) -> Result<PathBuf> {
    std::fs::create_dir_all(&options.runs).with_context(|| format!("creating {}", options.runs.display()))?;
    // The process tells apart runs of one seed.
    let dir = options.runs.join(format!("{:016x}-{}", options.seed.0, std::process::id()));
    std::fs::create_dir(&dir).with_context(|| format!("creating {}", dir.display()))?;
    std::fs::canonicalize(&dir).with_context(|| format!("finding {}", dir.display()))
}

fn repro(options: &Options) -> String {
    let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
    let workload = name(clap::ValueEnum::to_possible_value(&options.workload)).unwrap_or_default();
    let family = name(clap::ValueEnum::to_possible_value(&options.family)).unwrap_or_default();
    let (seconds, seed) = (options.main.as_secs(), options.seed.0);
    format!(
        "#!/bin/sh\n# Repeats the plan, not the interleaving. Run it in the repository, after `cargo build --release`.\n\
         exec cargo run --release -p jepsen -- run --workload {workload} --nemesis {family} --seconds {seconds} --seed {seed}\n"
    )
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))
}

/// Removes the data of the nodes; logs and configurations stay.
fn drop_data(dir: &Path) -> Result<()> {
    for number in 1..=SHAPE.brokers {
        let data = dir.join("cluster").join(format!("n{number}")).join("data");
        std::fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
    }
    Ok(())
}
