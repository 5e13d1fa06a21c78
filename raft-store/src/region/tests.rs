//! What becomes of mappings and of the kernel's cache.

use super::*;

const BYTES: u64 = 4 << 20;

fn written(files: &Directory, name: &str) -> Arc<dyn Region> {
    let region = files.create(name, BYTES, b"head", Preparation::Prewrite).unwrap();
    region.sync().unwrap();
    region
}

#[test]
fn a_cold_read_leaves_nothing_in_the_cache_and_a_hot_one_does() {
    let dir = tempfile::tempdir().unwrap();
    let files = Directory::new(dir.path().to_owned());
    let region = written(&files, "00000000000000000000");
    let file = File::open(region.path()).unwrap();
    if file_system_forgets_nothing(&file) {
        eprintln!("skipped: this file system keeps everything in memory");
        return;
    }
    region.cool();
    mapped_file::advise_file(&file, 0, BYTES, FileAdvice::DontNeed);
    let mut bytes = vec![0; 1 << 20];
    for offset in [0, 1 << 20, 2 << 20, 3 << 20] {
        region.read(offset, &mut bytes).unwrap();
    }
    let left = mapped_file::cached_bytes(&file, BYTES).unwrap();
    // What the kernel has read ahead of the last read may still be there.
    assert!(left <= 1 << 20, "{left} bytes stay in the cache");
    region.warm().unwrap();
    for offset in [0, 1 << 20, 2 << 20, 3 << 20] {
        region.read(offset, &mut bytes).unwrap();
    }
    assert_eq!(BYTES, mapped_file::cached_bytes(&file, BYTES).unwrap());
}

fn file_system_forgets_nothing(file: &File) -> bool {
    mapped_file::advise_file(file, 0, BYTES, FileAdvice::DontNeed);
    mapped_file::cached_bytes(file, BYTES).unwrap() > 0
}

#[test]
fn cold_reads_share_one_rate_and_hot_ones_are_free() {
    let dir = tempfile::tempdir().unwrap();
    let budget = Arc::new(ReadBudget::new(100 << 20));
    let files = Directory::with_budget(dir.path().to_owned(), Arc::clone(&budget));
    let (one, other) = (written(&files, "00000000000000000000"), written(&files, "00000000000004194304"));
    let mut bytes = vec![0; 4 << 20];
    let started = std::time::Instant::now();
    for _ in 0..10 {
        one.read(0, &mut bytes).unwrap();
    }
    assert!(budget.is_paid(), "reads of open files cost nothing");
    one.cool();
    other.cool();
    for _ in 0..4 {
        one.read(0, &mut bytes).unwrap();
        other.read(0, &mut bytes).unwrap();
    }
    // 32 MiB at 100 MiB/s, the last read and a burst not waited for.
    assert!(started.elapsed() >= std::time::Duration::from_millis(150), "{:?}", started.elapsed());
}

#[test]
fn beyond_the_most_mappings_of_a_process_files_are_read_without() {
    let dir = tempfile::tempdir().unwrap();
    let files = Directory::new(dir.path().to_owned());
    let region = files.create("00000000000000000000", 1 << 16, b"head", Preparation::Allocate).unwrap();
    let mut all = Vec::new();
    while let Some(registered) = Registered::reserve(LogPosition::ZERO, None) {
        all.push(registered);
    }
    assert!(all.len() <= sigbus::MAPPINGS_MAX && all.len() > sigbus::MAPPINGS_MAX / 2);
    region.warm().unwrap();
    assert_eq!(None, region.lend(0, 4, 4).unwrap());
    let mut head = [0; 4];
    region.read(0, &mut head).unwrap();
    assert_eq!(b"head", &head);
    drop(all);
    region.cool();
    region.warm().unwrap();
    assert_eq!(Some(Bytes::from_static(b"head")), region.lend(0, 4, 4).unwrap());
}

#[test]
fn both_ways_to_the_disk_leave_the_same_bytes_for_every_reader() {
    let dir = tempfile::tempdir().unwrap();
    let files = Directory::new(dir.path().to_owned());
    let region = files.create("00000000000000000000", BYTES, b"head", Preparation::Allocate).unwrap();
    region.warm().unwrap();
    let mut stage = Stage::new(1 << 20);
    let mut expected = vec![0; 4096];
    let mut lent = Vec::new();
    for (turn, bytes) in [100, 5000, 64, 64, 70_000, 4096, 1, 300_000, 60, 8192, 200, 4032].into_iter().enumerate() {
        let way = if turn % 3 == 1 { Way::Direct } else { Way::Cached };
        let byte = u8::try_from(turn + 1).unwrap();
        let from = expected.len() as u64;
        stage.begin(from, |offset, into| region.read(offset, into)).unwrap();
        stage.put(&vec![byte; bytes]);
        region.append(&mut stage, way).unwrap();
        stage.note_written();
        expected.resize(expected.len() + bytes, byte);
        // All that was there before is still there, and zeros follow.
        let end = expected.len() as u64;
        let mut all = vec![7; expected.len() + 5000];
        region.read(0, &mut all).unwrap();
        assert_eq!(expected[4096..], all[4096..expected.len()], "turn {turn}");
        assert!(all[expected.len()..].iter().all(|byte| *byte == 0), "turn {turn}");
        lent.push((region.lend(from, bytes as u64, end).unwrap().unwrap(), byte));
    }
    region.sync().unwrap();
    let on_disk = region.read_from_disk(0, expected.len().next_multiple_of(4096)).unwrap();
    assert_eq!(expected[4096..], on_disk[4096..expected.len()]);
    // What was lent was written over with itself.
    assert!(lent.iter().all(|(slice, byte)| slice.iter().all(|other| other == byte)));
}

#[test]
fn an_append_past_the_cache_leaves_nothing_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let files = Directory::new(dir.path().to_owned());
    let region = files.create("00000000000000000000", BYTES, b"head", Preparation::Allocate).unwrap();
    let file = File::open(region.path()).unwrap();
    if file_system_forgets_nothing(&file)
        || File::options().write(true).custom_flags(libc::O_DIRECT).open(region.path()).is_err()
    {
        eprintln!("skipped: this file system writes to its cache only");
        return;
    }
    let before = mapped_file::cached_bytes(&file, BYTES).unwrap();
    let mut stage = Stage::new(1 << 20);
    let append = |stage: &mut Stage, bytes: usize, way| {
        let offset = if stage.offset() == 0 { 1 << 20 } else { stage.offset() };
        stage.begin(offset, |offset, into| region.read(offset, into)).unwrap();
        stage.put(&vec![1; bytes]);
        region.append(stage, way).unwrap();
        stage.note_written();
    };
    append(&mut stage, 100_000, Way::Direct);
    assert_eq!(before, mapped_file::cached_bytes(&file, BYTES).unwrap());
    // The block that both ends are in is not read for that: it is known.
    append(&mut stage, 100_000, Way::Cached);
    assert_eq!(before + 102_400, mapped_file::cached_bytes(&file, BYTES).unwrap());
}

#[test]
#[should_panic(expected = "below the stable mark")]
fn nothing_is_appended_to_what_was_lent() {
    let dir = tempfile::tempdir().unwrap();
    let files = Directory::new(dir.path().to_owned());
    let region = files.create("00000000000000000000", 1 << 16, b"head", Preparation::Allocate).unwrap();
    region.warm().unwrap();
    region.lend(8000, 100, 9000).unwrap().unwrap();
    let mut stage = Stage::new(1 << 16);
    stage.begin(8900, |offset, into| region.read(offset, into)).unwrap();
    stage.put(&[1]);
    let _ = region.append(&mut stage, Way::Direct);
}
