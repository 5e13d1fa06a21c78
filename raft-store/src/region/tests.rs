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
    // One of these reads costs half a second.
    let budget = Arc::new(ReadBudget::new(8 << 20));
    let files = Directory::with_budget(dir.path().to_owned(), Arc::clone(&budget));
    let (one, other) = (written(&files, "00000000000000000000"), written(&files, "00000000000004194304"));
    let mut bytes = vec![0; 4 << 20];
    for _ in 0..10 {
        one.read(0, &mut bytes).unwrap();
    }
    assert_eq!(None, budget.paid_at(), "reads of open files cost nothing");
    one.cool();
    other.cool();
    let started = std::time::Instant::now();
    for (number, region) in (1..).zip([&one, &other, &one]) {
        region.read(0, &mut bytes).unwrap();
        assert!(budget.paid_at() >= Some(started + std::time::Duration::from_millis(500 * number)), "{number} reads");
    }
    // The last read and a burst are not waited for.
    assert!(started.elapsed() >= std::time::Duration::from_millis(900), "{:?}", started.elapsed());
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
#[should_panic(expected = "below the stable mark")]
fn nothing_is_appended_to_what_was_lent() {
    let dir = tempfile::tempdir().unwrap();
    let files = Directory::new(dir.path().to_owned());
    let region = files.create("00000000000000000000", 1 << 16, b"head", Preparation::Allocate).unwrap();
    region.warm().unwrap();
    region.lend(8000, 100, 9000).unwrap().unwrap();
    let _ = region.write(8900, &[1]);
}

#[test]
fn a_file_that_cannot_be_reserved_is_filled_with_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new");
    let fill = |errno| {
        let refuse = |_: &File, _| Err(io::Error::from_raw_os_error(errno));
        fill_new(&path, BYTES, b"head", Preparation::Allocate, refuse)
    };
    fill(libc::EOPNOTSUPP).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    assert!(blocks * 512 >= BYTES, "{blocks} blocks");
    let mut bytes = vec![7; 4096];
    file.read_exact_at(&mut bytes, BYTES - 4096).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(b"head\0", bytes.first_chunk().unwrap());
    // A full disk is nothing to be helped by writing.
    assert!(matches!(fill(libc::ENOSPC), Err(Error::NoSpace { .. })));
}

#[test]
fn what_the_disk_cannot_read_is_an_error_before_it_is_lent() {
    let dir = tempfile::tempdir().unwrap();
    let files = Directory::new(dir.path().to_owned());
    let region = written(&files, "00000000000000000000");
    drop(region);
    let region = files.open("00000000000000000000").unwrap();
    region.warm().unwrap();
    assert!(region.lend(8192, 100, BYTES).unwrap().is_some());
    // Stands for a disk that cannot read the page: looking at it would end the process.
    File::options().write(true).open(region.path()).unwrap().set_len(4096).unwrap();
    region.lend(1 << 20, 100, BYTES).unwrap_err();
}

/// What the kernel has been told about the mapping of a file, as two letters each.
fn flags_of_mapping(path: &Path) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let ours = maps.split_once(&*path.to_string_lossy()).unwrap().1;
    let flags = ours.lines().find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
    flags.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn mappings_stay_out_of_dumps_and_sealed_ones_are_not_read_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let files = Directory::new(dir.path().to_owned());
    let region = written(&files, "00000000000000000000");
    region.warm().unwrap();
    let has = |flag: &str| flags_of_mapping(region.path()).iter().any(|one| one == flag);
    assert!(has("dd") && !has("rr"));
    region.seal();
    assert!(has("dd") && has("rr"));
    // And so is one that is mapped only after it was sealed.
    region.cool();
    region.warm().unwrap();
    assert!(has("dd") && has("rr"));
}
