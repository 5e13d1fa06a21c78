//! Real power cuts: a file system on a loop device is shut down under a process that appends, and mounted again.
//!
//! It needs root, loop devices and the tools of the file system; without them it says so and passes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::mapped_file;
use crate::view::StopClass;
use crate::{Body, LogEntry};

/// Set in the child only: flush mode and directory.
const CHILD: &str = "RAFT_STORE_POWER_CHILD";

fn payload_of(index: u64) -> Vec<u8> {
    vec![u8::try_from(index % 250).unwrap() + 1; usize::try_from(index * 37 % 5000).unwrap()]
}

fn real_options(dir: &Path, flush: &str) -> Options {
    let flush = if flush == "sync" { FlushMode::Sync } else { FlushMode::ASYNC };
    let mut options = support::options(dir, flush);
    options.allow_unproven_fs = false;
    options
}

/// Runs in the child only: appends and votes until the disk is gone, and tells of each answer.
#[test]
fn child_that_appends_until_the_power_is_cut() {
    let Some(task) = std::env::var_os(CHILD) else { return };
    let task = task.into_string().unwrap();
    let (flush, dir) = task.split_once(':').unwrap();
    let mut store = Store::open(real_options(dir.as_ref(), flush)).unwrap();
    let mut next = store.log_state().1.map_or(0, |last| last.index.get() + 1);
    let mut term = store.recovered.vote.map_or(0, |vote| vote.term);
    let mut out = std::io::stderr();
    loop {
        if next.is_multiple_of(40) {
            term += 1;
            if store.vote(term).is_err() {
                return;
            }
            writeln!(out, "voted {term}").unwrap();
        }
        // Several in flight, as behind Raft.
        let started: Vec<_> = (next..next + 8)
            .map_while(|index| Some((index, store.try_start_append(vec![entry(term, index, payload_of(index))]).ok()?)))
            .collect();
        let refused = started.len() < 8;
        for (index, appending) in started {
            if store.wait(appending).is_err() {
                return;
            }
            writeln!(out, "acknowledged {index}").unwrap();
        }
        if refused {
            return;
        }
        next += 8;
        store.commit(raft_id(term, next - 1));
        if next.is_multiple_of(400) && store.purge(raft_id(term, next - 8)).is_err() {
            return;
        }
    }
}

/// What the child said it has.
#[derive(Default)]
struct Said {
    acknowledged: Option<u64>,
    voted: u64,
}

impl Said {
    fn hear(&mut self, line: &str) {
        let number = |start| line.strip_prefix(start).and_then(|number| number.parse().ok());
        self.acknowledged = self.acknowledged.max(number("acknowledged "));
        self.voted = self.voted.max(number("voted ").unwrap_or(0));
    }
}

/// A file system in a file.
struct Image {
    image: PathBuf,
    mount_point: PathBuf,
    mounted: bool,
    _dir: tempfile::TempDir,
}

/// Runs a tool of the system. What it said if it failed.
fn tool(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<(), String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

impl Image {
    fn make(kind: &str) -> Result<Self, String> {
        // In memory if possible: the disk below has no part in this.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let (image, mount_point) = (dir.path().join("image"), dir.path().join("mounted"));
        File::create(&image).unwrap().set_len(400 << 20).unwrap();
        std::fs::create_dir(&mount_point).unwrap();
        tool(&format!("mkfs.{kind}"), &["-q".as_ref(), image.as_os_str()])?;
        let mut this = Self { image, mount_point, mounted: false, _dir: dir };
        this.mount()?;
        Ok(this)
    }

    fn mount(&mut self) -> Result<(), String> {
        tool("mount", &["-o".as_ref(), "loop".as_ref(), self.image.as_os_str(), self.mount_point.as_os_str()])?;
        self.mounted = true;
        Ok(())
    }

    fn unmount(&mut self) {
        tool("umount", &[self.mount_point.as_os_str()]).unwrap();
        self.mounted = false;
    }

    fn cut_power(&self) {
        mapped_file::shut_down(&File::open(&self.mount_point).unwrap()).unwrap();
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.mounted {
            // Best effort: the test has failed.
            let _ = tool("umount", &["-l".as_ref(), self.mount_point.as_os_str()]);
        }
    }
}

fn start_child(flush: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::power::child_that_appends_until_the_power_is_cut", "--nocapture"])
        .env(CHILD, format!("{flush}:{}", dir.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lets a child append until it has said `lines` things, and cuts the power under it.
fn run_child(image: &mut Image, flush: &str, dir: &Path, lines: u64, said: &mut Said) {
    let mut child = start_child(flush, dir);
    let mut out = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut heard = Vec::new();
    for _ in 0..lines {
        let line = out.next().unwrap_or_else(|| panic!("the child ended by itself: {heard:#?}")).unwrap();
        said.hear(&line);
        heard.push(line);
    }
    image.cut_power();
    // What it says from here on must hold as well.
    out.map_while(Result::ok).for_each(|line| said.hear(&line));
    child.wait().unwrap();
    image.unmount();
    image.mount().unwrap();
}

fn check_entries(entries: &[LogEntry]) {
    for (entry, next) in entries.iter().zip(entries.iter().skip(1)) {
        assert_eq!(entry.log_index().next(), next.log_index(), "a hole");
    }
    for entry in entries {
        let Body::Normal(bytes) = &entry.body else { panic!("{entry}") };
        assert_eq!(payload_of(entry.log_index().get()), bytes.0);
    }
}

fn cut_again_and_again(kind: &str) {
    let rounds = if std::env::var_os("SLOW_TESTS").is_some() { 100 } else { 10 };
    let mut image = match Image::make(kind) {
        Ok(image) => image,
        Err(why) => {
            // Past the test harness, which shows what a test prints only if it fails.
            writeln!(std::io::stderr(), "skipped: real power cuts on {kind}: {why}").unwrap();
            return;
        }
    };
    let dir = image.mount_point.join("store");
    let mut said = Said::default();
    for round in 0..rounds {
        run_child(&mut image, "sync", &dir, 20 + round * 61 % 500, &mut said);
        let mut store =
            Store::open(real_options(&dir, "sync")).unwrap_or_else(|e| panic!("{kind}, round {round}: {e}"));
        assert_eq!(StopClass::Os, store.recovered.stop);
        let last = store.log_state().1.map(|last| last.index.get());
        assert!(last >= said.acknowledged, "{kind}, round {round}: {last:?} is below {:?}", said.acknowledged);
        let vote = store.recovered.vote.map_or(0, |vote| vote.term);
        assert!(vote >= said.voted, "{kind}, round {round}: {vote} is below {}", said.voted);
        check_entries(&store.entries(0, u64::MAX).unwrap());
        // Each other round the next child finds a store that was closed.
        if round % 2 == 0 { store.close() } else { store.kill() }
    }

    // In asynchronous mode what was acknowledged may be gone: the store does not go on as who it was, unless it is alone.
    for alone in [false, true] {
        let dir = image.mount_point.join(format!("alone {alone}"));
        run_child(&mut image, "async", &dir, 100, &mut Said::default());
        let mut options = real_options(&dir, "async");
        options.alone = alone;
        let mut store = Store::open(options).unwrap();
        assert_eq!(store.recovered.retired.is_empty(), alone, "{kind}");
        check_entries(&store.entries(0, u64::MAX).unwrap());
        store.kill();
    }
    image.unmount();
}

#[test]
fn nothing_acknowledged_is_lost_by_power_cuts_on_ext4() {
    cut_again_and_again("ext4");
}

#[test]
fn nothing_acknowledged_is_lost_by_power_cuts_on_xfs() {
    cut_again_and_again("xfs");
}
