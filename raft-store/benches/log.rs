//! What the store reaches, beside the plain system calls that bound it, in one run.
//!
//! `cargo bench -p raft-store` runs everything; an argument selects the cases whose name contains it.
//! `BENCH_DIR` names a directory on the disk to be measured, `BENCH_GIB` the size of the log that is recovered.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a program for the terminal")]

#[path = "log/append.rs"]
mod append;
#[path = "log/bare.rs"]
mod bare;
#[path = "log/measure.rs"]
mod measure;
#[path = "log/read.rs"]
mod read;
#[path = "log/recovery.rs"]
mod recovery;
#[path = "../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use raft_store::{FlushMode, Options};

use self::append::Pattern;

const RUN: Duration = Duration::from_millis(1000);
const SIZES: [(&str, usize); 2] = [("1 KiB", 1 << 10), ("64 KiB", 64 << 10)];
const MIB: f64 = 1048576.0;
const WRITERS: [usize; 6] = [1, 4, 16, 64, 256, 1024];

fn directory() -> tempfile::TempDir {
    match std::env::var_os("BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

fn options(dir: &Path, flush: FlushMode) -> Options {
    let mut options = support::options(dir, flush);
    let usual = Options::new(dir, support::CLUSTER, 1);
    options.segment_bytes = usual.segment_bytes;
    options.tail_bytes = usual.tail_bytes;
    options
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} = {text} is no number")))
}

/// The segment files in a directory, in order.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<PathBuf> =
        names.filter(|path| path.file_name().is_some_and(|name| name.len() == 20)).collect();
    segments.sort();
    segments
}

/// One figure as a share of the one that bounds it.
fn compare(what: &str, figure: f64, bound: f64, target: f64) {
    if figure > 0.0 && bound > 0.0 {
        let percent = figure / bound * 100.0;
        println!("  = {percent:.0} % of {what} (target {target:.0} %)");
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Some(dir) = std::env::var_os(recovery::CHILD) {
        return recovery::append_until_killed(dir.as_ref()).await;
    }
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()));

    if wanted("append: async") {
        bare::append("bare: pwrite + fdatasync 32 MiB, allocated", 32 << 20, true, false);
        let disk = bare::direct("bare: O_DIRECT 1 MiB, allocated", 1 << 20, false);
        for (size, bytes) in SIZES {
            let copy = bare::copy(&format!("bare: CRC and copy to mapped memory, {size}"), bytes);
            let pwrite = bare::append(&format!("bare: pwrite {size}, allocated"), bytes, false, false);
            bare::append(&format!("bare: pwrite {size}, written before"), bytes, false, true);
            for writers in WRITERS {
                for (how, pattern) in [("in bursts", Pattern::Bursts), ("steadily", Pattern::Steady)] {
                    let name = format!("append: async, {size}, {writers} waiting, {how}");
                    let rate = append::append(&name, FlushMode::ASYNC, bytes, writers, pattern).await;
                    if writers == 1024 && pattern == Pattern::Bursts {
                        compare("CRC and copy", rate, copy, 70.0);
                        compare("pwrite, allocated", rate, pwrite, 70.0);
                    }
                    if writers == 1024 && pattern == Pattern::Steady {
                        compare("what the disk writes in order", rate * bytes as f64 / MIB, disk, 70.0);
                    }
                }
            }
        }
    }
    if wanted("append: sync") {
        bare::append("bare: pwrite + fdatasync 8 MiB, allocated", 8 << 20, true, false);
        bare::direct("bare: O_DIRECT + fdatasync 512 KiB, allocated", 512 << 10, true);
        bare::direct("bare: O_DIRECT + fdatasync 1 MiB, allocated", 1 << 20, true);
        let most = bare::direct("bare: O_DIRECT 1 MiB, allocated", 1 << 20, false);
        for (size, bytes) in SIZES {
            let one = bare::append(&format!("bare: pwrite + fdatasync {size}, allocated"), bytes, true, false);
            bare::append(&format!("bare: pwrite + fdatasync {size}, written before"), bytes, true, true);
            let handed = bare::handed_over(&format!("bare: the same on a thread of its own, {size}"), bytes);
            for writers in WRITERS {
                let name = format!("append: sync, {size}, {writers} waiting");
                let rate = append::append(&name, FlushMode::Sync, bytes, writers, Pattern::Steady).await;
                match writers {
                    1 => {
                        compare("pwrite + fdatasync", rate, one, 90.0);
                        compare("the same on a thread of its own", rate, handed, 90.0);
                    }
                    256.. => compare("what the disk writes in order", rate * bytes as f64 / MIB, most, 80.0),
                    _ => {}
                }
            }
        }
    }
    if wanted("roll") {
        append::roll("async", FlushMode::ASYNC, 8).await;
        append::roll("sync", FlushMode::Sync, 8).await;
    }
    if wanted("read") {
        read::reads(2 << 30).await;
    }
    if wanted("start") {
        // Nearly a whole number of segments, so that the newest two, which are read in full, are full.
        recovery::recovery((number("BENCH_GIB").unwrap_or(2) << 30) - (64 << 20)).await;
    }
}
