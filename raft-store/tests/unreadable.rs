//! Pages of a mapping that the disk cannot read.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use raft_store::{FlushMode, LogPosition};
use support::{Store, entry, options, raft_id};

const SIGBUS: i32 = 7;
const AT: u64 = 20 << 10;

fn segment(dir: &Path) -> PathBuf {
    dir.join(format!("{:020}", 0))
}

/// Not a test of its own: cuts the segment that it has mapped, and looks at what is gone.
#[test]
fn child_that_looks_at_a_page_that_is_gone() {
    let Some(dir) = std::env::var_os("STORE_WITH_GONE_PAGE") else { return };
    let mut store = Store::open(options(Path::new(&dir), FlushMode::Sync)).unwrap();
    store.commit(raft_id(1, 2));
    let range = store.view.record_containing(LogPosition::new(AT)).unwrap().unwrap();
    let bytes = store.view.read(range.payload_start, range.payload_bytes).unwrap();
    let file = File::options().write(true).open(segment(Path::new(&dir))).unwrap();
    file.set_len(8 << 10).unwrap();
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    println!("still alive: {sum}");
}

/// Lets a child die by it, and puts the file right again.
fn die_by_a_gone_page(dir: &Path) -> (ExitStatus, String) {
    let whole = dir.join("whole");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["child_that_looks_at_a_page_that_is_gone", "--exact", "--nocapture"]);
    child.env("STORE_WITH_GONE_PAGE", dir.join("store"));
    let output = child.output().unwrap();
    fs::copy(&whole, segment(&dir.join("store"))).unwrap();
    (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn is_mapped(dir: &Path) -> bool {
    let name = segment(dir).display().to_string();
    fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| line.contains(&name))
}

#[test]
fn a_page_that_is_gone_ends_the_process_with_a_note_and_the_third_time_the_segment_is_not_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let store_dir = dir.path().join("store");
    let mut store = Store::open(options(&store_dir, FlushMode::Sync)).unwrap();
    store.vote(1).unwrap();
    for index in 0..3 {
        store.append(vec![entry(1, index, vec![7; 8 << 10])]).unwrap();
    }
    store.close();
    fs::copy(segment(&store_dir), dir.path().join("whole")).unwrap();

    for times in 1..=3 {
        let (status, text) = die_by_a_gone_page(dir.path());
        assert_eq!(Some(SIGBUS), status.signal(), "{status} {text}");
        assert!(text.contains("the disk cannot read a page of the log: segment, offset, time: 00000000000000000000 "));
        let notes = fs::read(store_dir.join("sigbus")).unwrap();
        assert_eq!(times, notes.iter().filter(|byte| **byte == b'\n').count());
        if times < 3 {
            let store = Store::open(options(&store_dir, FlushMode::Sync)).unwrap();
            assert!(is_mapped(&store_dir));
            store.kill();
        }
    }
    let mut store = Store::open(options(&store_dir, FlushMode::Sync)).unwrap();
    assert!(store.recovered.report.iter().any(|line| line.contains("not mapped any more")), "{:?}", store.recovered);
    assert!(!is_mapped(&store_dir));
    // It is read all the same, by calls that can fail.
    assert!(store.entries(0, 3).unwrap().len() == 3);
    store.append(vec![entry(1, 3, "more")]).unwrap();
}

/// The note that a process leaves which dies by a page of segment `base`.
fn note(dir: &Path, base: u64, offset: u64) {
    let mut bytes = fs::read(dir.join("sigbus")).unwrap();
    let text = format!("{base:020} {offset:020} {:020} ", 1);
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes[63] = b'\n';
    fs::write(dir.join("sigbus"), bytes).unwrap();
}

#[test]
fn a_segment_that_ended_a_process_is_read_at_the_next_start_and_what_is_damaged_in_it_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    store.vote(1).unwrap();
    for index in 0..30 {
        store.append(vec![entry(1, index, vec![7; 8 << 10])]).unwrap();
    }
    store.commit(raft_id(1, 29));
    store.close();
    // An old segment: of those a start reads no records.
    let mut bytes = fs::read(segment(dir.path())).unwrap();
    bytes[usize::try_from(AT).unwrap()] ^= 1;
    fs::write(segment(dir.path()), bytes).unwrap();
    let store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    assert!(store.view.damage().borrow().is_empty(), "nobody has looked");
    store.close();

    note(dir.path(), 0, AT);
    let store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    let damage = store.view.damage().borrow().clone();
    let [range] = &damage[..] else { panic!("{damage:?}") };
    assert!(range.base.get() == 0 && range.from.get() <= AT && AT < range.to.get(), "{range:?}");
    // Others are left alone, and so is a segment that is gone.
    note(dir.path(), 64 << 20, 0);
    drop(store);
    let store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    assert!(store.view.damage().borrow().is_empty());
}
