//! Looking at a store: what is shown, what is found, and that nothing changes.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::*;
use crate::options::FlushMode;
use crate::support::{Store, entry, options};

fn segment_file(number: u64) -> String {
    format!("{:020}", number * (64 << 10))
}

/// `count` entries of a kilobyte over segments of 64 KiB, closed.
fn filled(dir: &Path, count: u64) {
    let mut store = Store::open(options(dir, FlushMode::Sync)).unwrap();
    store.vote(7).unwrap();
    for index in 0..count {
        store.append(vec![entry(7, index, vec![index as u8 + 1; 1024])]).unwrap();
    }
    store.close();
}

fn damage(dir: &Path, name: &str, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(dir.join(name)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// All that a walk meets, records by their number only.
fn seen(dir: &Path) -> (u64, Vec<String>) {
    let (mut records, mut findings) = (0, Vec::new());
    let inspection = Inspection::open(dir).unwrap();
    inspection
        .walk(&mut |seen| {
            match seen {
                Seen::Record(record) => records += u64::from(record.kind.is_some()),
                Seen::Finding(finding) => {
                    let name = finding.file.strip_prefix(dir).unwrap().display().to_string();
                    let range = finding.range.map(|(from, to)| format!(" {from}..{to}")).unwrap_or_default();
                    let found = finding.found.replace(&format!("{}/", dir.display()), "");
                    findings.push(format!("{name}{range}: {found}"));
                }
                Seen::Segment(_) => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    (records, findings)
}

fn everything(dir: &Path) -> BTreeMap<String, (Vec<u8>, std::time::SystemTime)> {
    fs::read_dir(dir)
        .unwrap()
        .map(|file| {
            let file = file.unwrap();
            let name = file.file_name().to_string_lossy().into_owned();
            (name, (fs::read(file.path()).unwrap(), file.metadata().unwrap().modified().unwrap()))
        })
        .collect()
}

#[test]
fn a_whole_store_has_no_findings_and_looking_changes_no_byte() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 200);
    let before = everything(dir.path());
    assert_eq!((200, vec![]), seen(dir.path()));
    assert_eq!(before, everything(dir.path()));
    let overview = Inspection::open(dir.path()).unwrap().overview().clone();
    assert_eq!((Some(1), 1, true), (overview.node_id, overview.start_counter, overview.clean));
    assert_eq!(Some(7), overview.vote.map(|vote| vote.term));
}

#[test]
fn a_store_in_use_is_not_looked_at_and_one_looked_at_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 3);
    let store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    assert!(matches!(Inspection::open(dir.path()), Err(Error::Locked { .. })));
    store.close();
    let inspection = Inspection::open(dir.path()).unwrap();
    assert!(matches!(Store::open(options(dir.path(), FlushMode::Sync)).map(|_| ()), Err(Error::Locked { .. })));
    drop(inspection);
    assert!(matches!(Inspection::open(&dir.path().join("x")), Err(Error::NoStore { .. })));
}

#[test]
fn each_kind_of_damage_is_named_and_the_walk_goes_on() {
    let check = |change: &dyn Fn(&Path), records: u64, expected: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), 200);
        change(dir.path());
        let (found, findings) = seen(dir.path());
        assert_eq!(expected, findings);
        assert_eq!(records, found);
    };
    check(
        &|dir| damage(dir, &segment_file(0), 4096 + 1088 + 100, b"x"),
        199,
        &["00000000000000000000 5184..6272: a payload whose checksum does not hold"],
    );
    check(
        &|dir| damage(dir, &segment_file(1), 4096 + 2 * 1088, &[0; 1088]),
        199,
        &["00000000000000065536 71808..72896: zeros"],
    );
    check(
        &|dir| damage(dir, &segment_file(1), 16, b"x"),
        200,
        &[
            "00000000000000065536 65536..69632: 00000000000000065536: damaged record at 65536: expected a segment header, \
           found a checksum that does not hold",
        ],
    );
    check(
        &|dir| damage(dir, &segment_file(0), (60 << 10) + 20, b"x"),
        200,
        &["00000000000000000000 61440..65536: the footer is damaged"],
    );
    check(
        &|dir| damage(dir, "hard_state", 0, &[9; 8192]),
        200,
        &[
            "hard_state: hard_state: neither slot can be read (slot 0: another kind of file; slot 1: another kind of file): this node may have voted and must not forget it: replace this replica under a new id",
        ],
    );
    check(
        &|dir| fs::remove_file(dir.join(segment_file(1))).unwrap(),
        148,
        &["00000000000000131072 65536..131072: no segment starts at 65536, the next one starts at 131072"],
    );
    check(
        &|dir| fs::remove_file(dir.join(segment_file(3))).unwrap(),
        156,
        &[
            "00000000000000262144 196608..262144: no segment starts at 196608, the next one starts at 262144",
            " 191808..248576: the log ends at 191808, but was on disk up to 248576",
        ],
    );
}

#[test]
fn a_torn_tail_after_a_kill_is_harmless_and_the_same_after_a_clean_stop_is_not() {
    for clean in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), 3);
        let store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
        if clean {
            store.close()
        } else {
            store.kill()
        }
        damage(dir.path(), &segment_file(0), 4096 + 3 * 1088, b"a torn record");
        let mut harmless = None;
        let inspection = Inspection::open(dir.path()).unwrap();
        inspection
            .walk(&mut |seen| {
                if let Seen::Finding(finding) = seen {
                    assert!(harmless.replace(finding.harmless).is_none());
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(Some(!clean), harmless);
    }
}
