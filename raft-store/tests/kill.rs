//! `kill -9` of a real process: nothing it acknowledged is missing afterwards.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use raft_store::{Body, FlushMode, StopClass};
use support::{Store, entry, options, raft_id};

const CHILD: &str = "RAFT_STORE_KILL_CHILD";

fn payload(index: u64) -> Vec<u8> {
    vec![u8::try_from(index % 250).unwrap() + 1; usize::try_from(index * 37 % 5000).unwrap()]
}

fn mode(name: &str) -> FlushMode {
    if name == "sync" { FlushMode::Sync } else { FlushMode::ASYNC }
}

/// Runs in the child only: appends for ever and tells of each acknowledged entry.
#[test]
fn child_that_appends_until_it_is_killed() {
    let Some(task) = std::env::var_os(CHILD) else { return };
    let task = task.into_string().unwrap();
    let (flush, dir) = task.split_once(':').unwrap();
    let mut store = Store::open(options(dir.as_ref(), mode(flush))).unwrap();
    let mut next = store.log_state().1.map_or(0, |last| last.index.get() + 1);
    let mut out = std::io::stderr();
    store.vote(1).unwrap();
    loop {
        // Several in flight, as behind Raft.
        let batch: Vec<_> =
            (next..next + 8).map(|index| (index, store.start_append(vec![entry(1, index, payload(index))]))).collect();
        for (index, appending) in batch {
            store.wait(appending).unwrap();
            writeln!(out, "acknowledged {index}").unwrap();
        }
        next += 8;
        store.commit(raft_id(1, next - 1));
        if next.is_multiple_of(400) {
            store.purge(raft_id(1, next - 100)).unwrap();
        }
    }
}

fn kill_again_and_again(flush: &str, rounds: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = None::<u64>;
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_appends_until_it_is_killed", "--nocapture"])
            .env(CHILD, format!("{flush}:{}", dir.path().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // At another place each time.
        for _ in 0..50 + round * 61 % 500 {
            let line = lines.next().unwrap().unwrap();
            acknowledged = line.strip_prefix("acknowledged ").map(|index| index.parse().unwrap()).or(acknowledged);
        }
        child.kill().unwrap();
        for line in lines.map_while(Result::ok) {
            let index = line.strip_prefix("acknowledged ").and_then(|index| index.parse().ok());
            acknowledged = acknowledged.max(index);
        }
        child.wait().unwrap();
        let mut store = Store::open(options(dir.path(), mode(flush))).unwrap();
        assert_eq!(StopClass::Process, store.recovered.stop);
        let last = store.log_state().1.map(|last| last.index.get());
        assert!(last >= acknowledged, "round {round}: {last:?} is below {acknowledged:?}");
        assert!(store.recovered.committed <= store.recovered.last);
        let found = store.entries(0, u64::MAX).unwrap();
        let first = found[0].log_index().get();
        for (index, entry) in (first..).zip(&found) {
            assert_eq!(index, entry.log_index().get());
            let Body::Normal(bytes) = &entry.body else { panic!("{entry}") };
            assert_eq!(payload(index), bytes.0);
        }
        assert_eq!(last, found.last().map(|last| last.log_index().get()));
        // Each other round the next child finds a store that was closed.
        if round % 2 == 0 { store.close() } else { store.kill() }
    }
}

fn rounds() -> u64 {
    if std::env::var_os("SLOW_TESTS").is_some() { 100 } else { 6 }
}

#[test]
fn nothing_acknowledged_is_lost_by_kills_in_synchronous_mode() {
    kill_again_and_again("sync", rounds());
}

#[test]
fn nothing_acknowledged_is_lost_by_kills_in_asynchronous_mode() {
    kill_again_and_again("async", rounds());
}
