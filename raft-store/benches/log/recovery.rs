//! Starts: after a clean stop and after `kill -9`, with the log in memory and without.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use bytes::Bytes;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use raft_store::{FlushMode, LogStorage, Opened, Options, StopClass};

use crate::measure::pattern;
use crate::support::{Config, entry, raft_id};
use crate::{bare, directory, options};

/// Tells a child which directory to append to until it is killed.
pub(crate) const CHILD: &str = "BENCH_APPEND_UNTIL_KILLED";

const BYTES: usize = 64 << 10;

async fn append(storage: &mut LogStorage<Config>, payload: &Bytes, first: u64, end: u64) {
    let (sender, receiver) = Config::oneshot();
    let entries: Vec<_> = (first..end).map(|index| entry(1, index, payload.clone())).collect();
    storage.append(entries, IOFlushed::signal(sender)).await.unwrap();
    receiver.await.unwrap().unwrap();
    storage.save_committed(Some(raft_id(1, end - 1))).await.unwrap();
}

/// Makes a log of `bytes` bytes in entries of 64 KiB. Returns how many these are.
pub(crate) async fn fill(options: &Options, bytes: u64) -> u64 {
    let Opened { mut storage, view, .. } = raft_store::open::<Config>(options.clone()).unwrap();
    storage.save_vote(&openraft::Vote::new_committed(1, 1)).await.unwrap();
    let payload = Bytes::from(pattern(BYTES));
    let count = bytes / BYTES as u64;
    for first in (0..count).step_by(64) {
        append(&mut storage, &payload, first, (first + 64).min(count)).await;
    }
    drop(storage);
    tokio::task::spawn_blocking(move || view.close()).await.unwrap().unwrap();
    count
}

/// The child: appends for ever, and says when it has appended something.
pub(crate) async fn append_until_killed(dir: &Path) {
    let Opened { mut storage, recovered, .. } = raft_store::open::<Config>(options(dir, FlushMode::ASYNC)).unwrap();
    let payload = Bytes::from(pattern(BYTES));
    let mut next = recovered.last.map_or(0, |last| last.index.get() + 1);
    loop {
        append(&mut storage, &payload, next, next + 8).await;
        next += 8;
        println!("{next}");
    }
}

fn kill_while_appending(dir: &Path) {
    let mut child =
        Command::new(std::env::current_exe().unwrap()).env(CHILD, dir).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Some 60 MiB, of which the last are not yet flushed.
    assert_eq!(120, lines.take(120).count());
    child.kill().unwrap();
    child.wait().unwrap();
}

async fn start(name: &str, dir: &Path, bytes: u64, stop: StopClass) {
    let started = Instant::now();
    let opened = raft_store::open::<Config>(options(dir, FlushMode::ASYNC)).unwrap();
    let elapsed = started.elapsed();
    assert_eq!(stop, opened.recovered.stop);
    println!("{name:<44} {:>9.1} ms for {:.1} GiB", elapsed.as_secs_f64() * 1e3, bytes as f64 / f64::from(1 << 30));
    tokio::task::spawn_blocking(move || opened.view.close()).await.unwrap().unwrap();
}

pub(crate) async fn recovery(bytes: u64) {
    let dir = directory();
    fill(&options(dir.path(), FlushMode::ASYNC), bytes).await;
    start("start: after a clean stop", dir.path(), bytes, StopClass::Clean).await;
    bare::make_cold(dir.path());
    start("start: after a clean stop, log not in memory", dir.path(), bytes, StopClass::Clean).await;
    kill_while_appending(dir.path());
    start("start: after kill -9", dir.path(), bytes, StopClass::Process).await;
    kill_while_appending(dir.path());
    bare::make_cold(dir.path());
    start("start: after kill -9, log not in memory", dir.path(), bytes, StopClass::Process).await;
}
