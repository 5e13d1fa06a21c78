//! The note that a failed write leaves, here and in memory.

use super::*;
use crate::view::StopClass;

#[test]
fn a_note_in_memory_alone_tells_the_next_start_and_is_gone_after_it() {
    let memory = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk::new();
    let mut options = options(FlushMode::Sync);
    options.runtime_dir = Some(memory.path().to_owned());
    let mut store = open_at(&disk, options.clone(), "boot").unwrap();
    ten_entries(&mut store);
    // The directory takes no file any more, as when its file system was made read-only.
    disk.break_creates();
    disk.fail_next_sync(FIRST);
    store.append(vec![entry(4, 10, payload(10))]).unwrap_err();
    store.kill();
    let after = disk.after_kill();
    assert!(!after.names().contains(&"latched".to_owned()));
    let names =
        || std::fs::read_dir(memory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    let [name] = &names()[..] else { panic!("{:?}", names()) };
    let note = std::fs::read_to_string(memory.path().join(name)).unwrap();
    assert!(note.starts_with("reason: ") && note.contains("\nlast: 4-10\n"), "{note}");

    let store = open_at(&after, options.clone(), "boot").unwrap();
    assert_eq!(StopClass::Latched, store.recovered.stop);
    assert_eq!(0, names().len());
    store.kill();
    let store = open_at(&after.after_kill(), options, "boot").unwrap();
    assert_eq!(StopClass::Process, store.recovered.stop);
}

#[test]
fn the_note_of_another_store_in_the_same_memory_says_nothing() {
    let memory = tempfile::tempdir().unwrap();
    let mut options = options(FlushMode::Sync);
    options.runtime_dir = Some(memory.path().to_owned());
    let (failed, other) = (SimulatedDisk::new(), SimulatedDisk::new());
    open_at(&other, options.clone(), "boot").unwrap().kill();
    let mut store = open_at(&failed, options.clone(), "boot").unwrap();
    failed.fail_next_sync(FIRST);
    store.append(vec![entry(4, 0, payload(0))]).unwrap_err();
    store.kill();
    let other = open_at(&other.after_kill(), options, "boot").unwrap();
    assert_eq!(StopClass::Process, other.recovered.stop);
    assert_eq!(1, std::fs::read_dir(memory.path()).unwrap().count());
}
