//! Queue files, index, pulls and searches.

mod many_queues;

use std::ops::ControlFlow;
use std::sync::Arc;

use protocol::message::{RecordView, iter_records};

use super::consume_queue::{Cached, ConsumeQueue, QueueEntry, QueueFiles, Stretch};
use super::file_pool::{FileKey, FilePool};
use super::key_index::{IndexProgress, IndexSizes, KeyIndex};
use super::queue_marks::QueueMark;
use super::*;
use crate::state_machine::testing::{Group, MemoryLog, message};

fn entry(at: u64) -> QueueEntry {
    QueueEntry { physical_offset: 1000 + at * 100, size: 100, tags_code: -(at as i64) }
}

fn queue(dir: &std::path::Path, min_offset: u64, max_offset: u64) -> ConsumeQueue {
    let files = QueueFiles { pool: Arc::new(FilePool::new(2)), entries_per_file: 8 };
    ConsumeQueue::new(Arc::new(files), dir.join("T/0"), min_offset, max_offset)
}

fn read(queue: &ConsumeQueue, from: u64, count: usize) -> Vec<QueueEntry> {
    let mut out = Vec::new();
    queue.read(from, count, &mut out).unwrap();
    out
}

#[test]
fn queue_entries_are_the_same_from_memory_and_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let queue = queue(dir.path(), 0, 0);
    let mut unsynced = Vec::new();
    for at in 0..37 {
        queue.append(at, entry(at));
        // At every state of flushing and trimming, across file boundaries of 8.
        if at % 5 == 4 {
            queue.flush(&mut unsynced).unwrap();
        }
        if at % 11 == 10 {
            queue.trim(3);
        }
        for from in 0..=at + 1 {
            let expected: Vec<QueueEntry> = (from..(from + 10).min(at + 1)).map(entry).collect();
            assert_eq!(read(&queue, from, 10), expected, "{from} at {at}");
        }
    }
    queue.flush(&mut unsynced).unwrap();
    let sizes: Vec<(String, u64)> = {
        let mut all: Vec<_> = std::fs::read_dir(dir.path().join("T/0"))
            .unwrap()
            .map(|item| item.unwrap())
            .map(|item| (item.file_name().into_string().unwrap(), item.metadata().unwrap().len()))
            .collect();
        all.sort();
        all
    };
    let expected: Vec<(String, u64)> =
        (0..5).map(|file| (format!("{:020}", file * 160), if file < 4 { 160 } else { 100 })).collect();
    assert_eq!(sizes, expected);
    assert_eq!(unsynced.iter().filter(|file| file.created).count(), 5);
}

#[test]
fn a_queue_entry_is_laid_out_as_ever() {
    let dir = tempfile::tempdir().unwrap();
    let queue = queue(dir.path(), 0, 0);
    queue.append(0, QueueEntry { physical_offset: 0x0102_0304_0506_0708, size: 0x090a_0b0c, tags_code: -2 });
    queue.flush(&mut Vec::new()).unwrap();
    let bytes = std::fs::read(dir.path().join("T/0/00000000000000000000")).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 255, 255, 255, 255, 255, 255, 255, 254]);
}

#[test]
fn an_idle_queue_has_no_file_and_no_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Arc::new(FilePool::new(2));
    let files = Arc::new(QueueFiles { pool: Arc::clone(&pool), entries_per_file: 8 });
    let idle = ConsumeQueue::new(Arc::clone(&files), dir.path().join("idle/0"), 0, 0);
    idle.flush(&mut Vec::new()).unwrap();
    assert_eq!(read(&idle, 0, 10), []);
    assert!(!dir.path().join("idle").exists());
    for number in 0..10 {
        let queue = ConsumeQueue::new(Arc::clone(&files), dir.path().join(format!("q/{number}")), 0, 0);
        queue.append(0, entry(0));
        queue.flush(&mut Vec::new()).unwrap();
        queue.trim(0);
        assert_eq!(read(&queue, 0, 1), [entry(0)]);
        assert!(pool.open_count() <= 2);
    }
}

#[test]
fn a_reopened_queue_agrees_with_its_checkpoint_or_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let written = queue(dir.path(), 0, 0);
    let append = |range: std::ops::Range<u64>| {
        range.for_each(|at| {
            written.append(at, entry(at));
        });
        written.flush(&mut Vec::new()).unwrap();
        written.mark()
    };
    let at_12 = append(0..12);
    let at_20 = append(12..20);
    let last = |at| entry(at).physical_offset;
    let matches = |min, max, last, mark: &QueueMark| queue(dir.path(), min, max).matches(last, mark).unwrap();
    assert!(matches(0, 20, last(19), &at_20));
    // A checkpoint may be older than the files.
    assert!(matches(0, 12, last(11), &at_12));
    assert!(!matches(0, 20, last(18), &at_20));
    assert!(!matches(0, 21, last(20), &at_20));
    assert!(!matches(0, 20, last(19), &at_12));
    let with = |stretches: &[Stretch]| QueueMark { stretches: stretches.to_vec(), ..at_20.clone() };
    assert!(!matches(0, 20, last(19), &QueueMark::default()));
    assert!(!matches(0, 20, last(19), &with(&[])));
    assert!(!matches(0, 20, last(19), &with(&at_20.stretches[1..])));
    assert!(!matches(0, 20, last(19), &with(&[at_20.stretches[0], at_20.stretches[2]])));
    // What is appended after a start is checked at the next one.
    let reopened = queue(dir.path(), 0, 12);
    assert!(reopened.matches(last(11), &at_12).unwrap());
    (12..20).for_each(|at| {
        reopened.append(at, entry(at));
    });
    reopened.flush(&mut Vec::new()).unwrap();
    assert_eq!(reopened.mark(), at_20);
    // Any bit.
    for file in 0..3 {
        let path = dir.path().join(format!("T/0/{:020}", file * 160));
        let whole = std::fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bytes).unwrap();
            assert!(!matches(0, 20, last(19), &at_20), "bit {bit} of file {file}");
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(!matches(0, 20, last(19), &at_20), "file {file} cut short");
        std::fs::write(&path, whole).unwrap();
    }
    std::fs::remove_file(dir.path().join("T/0/00000000000000000000")).unwrap();
    assert!(!matches(0, 20, last(19), &at_20));
    // What lies below the first readable offset need not be there.
    assert!(matches(8, 20, last(19), &at_20));
    assert!(matches(11, 20, last(19), &at_20));
    assert!(matches(20, 20, 0, &QueueMark::default()));
}

#[test]
fn entries_that_are_in_no_file_are_in_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let written = queue(dir.path(), 0, 0);
    let append = |range: std::ops::Range<u64>| {
        range.for_each(|at| {
            written.append(at, entry(at));
        });
    };
    append(0..3);
    let at_3 = written.mark();
    append(3..12);
    written.flush(&mut Vec::new()).unwrap();
    append(12..20);
    let at_20 = written.mark();
    assert_eq!((at_3.unwritten.len(), at_20.unwritten_from, at_20.unwritten.len()), (60, 12, 160));
    let open = |min, max, mark: &QueueMark| {
        let queue = queue(dir.path(), min, max);
        queue.matches(entry(max - 1).physical_offset, mark).unwrap().then_some(queue)
    };
    for min in 0..20 {
        let queue = open(min, 20, &at_20).unwrap();
        assert_eq!(read(&queue, min, 20), (min..20).map(entry).collect::<Vec<_>>(), "{min}");
        assert_eq!(queue.mark().unwritten_from, min.max(12));
    }
    assert_eq!(read(&open(0, 3, &at_3).unwrap(), 0, 20), (0..3).map(entry).collect::<Vec<_>>());
    // It goes on as if it had never stopped.
    let queue = open(0, 20, &at_20).unwrap();
    (20..23).for_each(|at| {
        queue.append(at, entry(at));
    });
    queue.flush(&mut Vec::new()).unwrap();
    append(20..23);
    written.flush(&mut Vec::new()).unwrap();
    assert_eq!(queue.mark(), written.mark());
    queue.trim(0);
    assert_eq!(read(&queue, 0, 30), (0..23).map(entry).collect::<Vec<_>>());
    // A mark that does not reach from the files to the end is none.
    let with = |from, bytes: &[u8]| QueueMark { unwritten_from: from, unwritten: bytes.to_vec(), ..at_20.clone() };
    assert!(open(0, 21, &at_20).is_none());
    assert!(open(0, 19, &at_20).is_none());
    assert!(open(0, 20, &with(12, &at_20.unwritten[..140])).is_none());
    assert!(open(0, 20, &with(13, &at_20.unwritten[20..])).is_none());
    assert!(open(0, 20, &with(12, &at_20.unwritten[..159])).is_none());
    assert!(open(13, 20, &QueueMark { stretches: Vec::new(), ..with(13, &at_20.unwritten[20..]) }).is_some());
    let last_differs = queue_with_last(&at_20);
    assert!(open(0, 20, &last_differs).is_none());
}

/// The mark with another last entry.
fn queue_with_last(mark: &QueueMark) -> QueueMark {
    let mut mark = mark.clone();
    let at = mark.unwritten.len() - 13;
    mark.unwritten[at] ^= 1;
    mark
}

#[test]
fn retention_ahead_of_the_files_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let queue = queue(dir.path(), 0, 0);
    let append = |range: std::ops::Range<u64>| {
        range.for_each(|at| {
            queue.append(at, entry(at));
        });
    };
    append(0..10);
    queue.flush(&mut Vec::new()).unwrap();
    append(10..30);
    // Entries 10 to 29 are in no file; the first two files end at 8 and 16.
    queue.raise_min_offset(27).unwrap();
    assert_eq!(file_nos(dir.path()), [1]);
    queue.flush(&mut Vec::new()).unwrap();
    assert_eq!(file_nos(dir.path()), [1, 2, 3]);
    append(30..33);
    queue.raise_min_offset(28).unwrap();
    assert_eq!(file_nos(dir.path()), [3]);
    queue.flush(&mut Vec::new()).unwrap();
    queue.trim(0);
    assert_eq!(read(&queue, 28, 10), (28..33).map(entry).collect::<Vec<_>>());
    let mark = queue.mark();
    let reopened = self::queue(dir.path(), 28, 33);
    assert!(reopened.matches(entry(32).physical_offset, &mark).unwrap());
}

/// The numbers of the files of a queue.
fn file_nos(dir: &std::path::Path) -> Vec<u64> {
    let names =
        std::fs::read_dir(dir.join("T/0")).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<u64> = names.map(|name| name.parse::<u64>().unwrap() / 160).collect();
    all.sort_unstable();
    all
}

#[test]
fn queue_files_wholly_below_the_start_are_removed_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let queue = queue(dir.path(), 0, 0);
    (0..37).for_each(|at| {
        queue.append(at, entry(at));
    });
    queue.flush(&mut Vec::new()).unwrap();
    queue.trim(0);
    for (min_offset, files) in [(7, 0..5), (8, 1..5), (6, 1..5), (23, 2..5), (24, 3..5), (37, 4..5)] {
        queue.raise_min_offset(min_offset).unwrap();
        assert_eq!(file_nos(dir.path()), files.collect::<Vec<u64>>(), "{min_offset}");
        let start = queue.min_offset();
        assert_eq!(read(&queue, start, 10), (start..(start + 10).min(37)).map(entry).collect::<Vec<_>>());
    }
    // The queue goes on in the file that it has.
    queue.append(37, entry(37));
    queue.flush(&mut Vec::new()).unwrap();
    queue.trim(0);
    assert_eq!(read(&queue, 37, 10), [entry(37)]);
    assert_eq!(file_nos(dir.path()), [4]);
}

#[test]
fn queue_files_that_a_crash_left_below_the_start_are_removed_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let written = queue(dir.path(), 0, 0);
    (0..37).for_each(|at| {
        written.append(at, entry(at));
    });
    written.flush(&mut Vec::new()).unwrap();
    std::fs::remove_file(dir.path().join("T/0/00000000000000000000")).unwrap();
    let reopened = queue(dir.path(), 26, 37);
    reopened.remove_left_over().unwrap();
    assert_eq!(file_nos(dir.path()), [3, 4]);
    assert_eq!(read(&reopened, 26, 1), [entry(26)]);
}

#[test]
fn a_reader_overtaken_by_retention_finds_nothing_and_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let queue = queue(dir.path(), 0, 0);
    (0..37).for_each(|at| {
        queue.append(at, entry(at));
    });
    queue.flush(&mut Vec::new()).unwrap();
    queue.trim(0);
    queue.raise_min_offset(30).unwrap();
    // These were readable when the reader looked.
    assert_eq!(read(&queue, 0, 10), []);
    assert_eq!(queue.entry(5).unwrap(), None);
    let looked_at = std::cell::Cell::new(0);
    let found = queue.partition_point(|entry| {
        looked_at.set(looked_at.get() + 1);
        Ok(entry.physical_offset < 1000 + 33 * 100)
    });
    assert_eq!((found.unwrap(), looked_at.get() > 0), (33, true));
    // A file that should be there is still missed.
    std::fs::remove_file(dir.path().join("T/0/00000000000000000480")).unwrap();
    let fresh = self::queue(dir.path(), 24, 37);
    assert!(fresh.read(24, 1, &mut Vec::new()).is_err());
}

#[test]
fn a_missing_queue_file_is_an_error_and_not_an_empty_queue() {
    let dir = tempfile::tempdir().unwrap();
    let queue = queue(dir.path(), 0, 5);
    assert!(matches!(queue.read(0, 1, &mut Vec::new()), Err(Error::Damaged { .. })));
    assert_eq!(queue.cached_entry(4), Cached::OnDisk);
    assert_eq!(queue.cached_entry(5), Cached::Beyond);
}

#[test]
fn the_pool_closes_what_was_used_least_recently() {
    let dir = tempfile::tempdir().unwrap();
    let pool = FilePool::new(2);
    let owner = pool.new_owner();
    let open = |file: u64| {
        let path = dir.path().join(file.to_string());
        pool.or_create(FileKey { owner, file }, &|| path.clone()).unwrap().1
    };
    assert!(open(1));
    assert!(open(2));
    assert!(!open(1));
    assert!(open(3));
    // 2 has been closed; with its file gone it is created again, while 3 is still open.
    std::fs::remove_file(dir.path().join("2")).unwrap();
    std::fs::remove_file(dir.path().join("3")).unwrap();
    assert!(!open(3));
    assert!(open(2));
    pool.forget(owner);
    assert_eq!(pool.open_count(), 0);
}

fn index(dir: &std::path::Path) -> KeyIndex {
    let sizes = IndexSizes { slots: 3, entries: 11 };
    KeyIndex::open(dir.join("index"), sizes, Arc::new(FilePool::new(4))).unwrap()
}

fn found(index: &KeyIndex, hash: u32, begin_ms: i64, end_ms: i64) -> Vec<u64> {
    let mut all = Vec::new();
    index
        .visit(hash, begin_ms, end_ms, &mut |physical_offset| {
            all.push(physical_offset);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    all
}

#[test]
fn keys_are_found_newest_first_though_slots_collide_and_files_fill_up() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path());
    // Hashes 0..7 share 3 slots; each message has two keys; files hold 10 entries.
    for at in 0..40 {
        index.add(at * 10, at as i64 * 1000, &mut &[(at % 7) as u32, 100][..]).unwrap();
    }
    for hash in 0..7 {
        let expected: Vec<u64> = (0..40).rev().filter(|at| at % 7 == hash).map(|at| at * 10).collect();
        assert_eq!(found(&index, hash as u32, 0, i64::MAX), expected, "{hash}");
    }
    assert_eq!(found(&index, 100, 0, i64::MAX).len(), 40);
    assert!(found(&index, 7, 0, i64::MAX).is_empty());
    assert_eq!(found(&index, 100, 12_000, 15_000), [150, 140, 130, 120]);
    assert_eq!(found(&index, 100, 39_000, i64::MAX), [390]);
    assert!(found(&index, 100, 50_000, i64::MAX).is_empty());
    assert_eq!(index.progress(), IndexProgress { last_time_ms: 39_000, last_physical_offset: 390 });
    let mut one = 0;
    index
        .visit(100, 0, i64::MAX, &mut |_| {
            one += 1;
            Ok(ControlFlow::Break(()))
        })
        .unwrap();
    assert_eq!(one, 1);
}

#[test]
fn an_index_is_cut_back_to_its_mark_and_fed_again() {
    let dir = tempfile::tempdir().unwrap();
    let add =
        |index: &KeyIndex, at: u64| index.add(at * 10, at as i64 * 1000, &mut &[(at % 7) as u32, 100][..]).unwrap();
    for marked in [0, 1, 4, 5, 6, 13, 20, 27] {
        let index = index(dir.path());
        index.reset(0).unwrap();
        (0..marked).for_each(|at| add(&index, at));
        index.sync(&index.flush(marked * 10).unwrap()).unwrap();
        // Lost with the process.
        (marked..marked + 20).for_each(|at| add(&index, at));
        drop(index);
        let index = self::index(dir.path());
        assert_eq!(index.indexed_end(), marked * 10);
        let expected: Vec<u64> = (0..marked).rev().map(|at| at * 10).collect();
        assert_eq!(found(&index, 100, 0, i64::MAX), expected, "{marked}");
        // What comes again from before the mark is not indexed twice.
        (marked / 2..marked + 5).for_each(|at| add(&index, at));
        let expected: Vec<u64> = (0..marked + 5).rev().map(|at| at * 10).collect();
        assert_eq!(found(&index, 100, 0, i64::MAX), expected, "{marked}");
    }
}

#[test]
fn any_flipped_bit_of_a_marked_index_has_it_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path());
    (0..27).for_each(|at| index.add(at * 10, at as i64 * 1000, &mut &[at as u32 % 7][..]).unwrap());
    index.sync(&index.flush(270).unwrap()).unwrap();
    drop(index);
    let files = || std::fs::read_dir(dir.path().join("index")).unwrap().map(|file| file.unwrap().path());
    let whole: Vec<(PathBuf, Vec<u8>)> = files().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    assert_eq!(whole.len(), 4);
    let newest =
        whole.iter().filter(|(path, _)| path.file_name().unwrap() != "mark").map(|(path, _)| path).max().unwrap();
    let is_believed = |path: &std::path::Path, bytes: &[u8]| {
        whole.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        std::fs::write(path, bytes).unwrap();
        self::index(dir.path()).indexed_end() == 270
    };
    for (path, bytes) in &whole {
        assert!(is_believed(path, bytes));
        for at in 0..bytes.len() {
            // Of the newest file nothing in its header but where it begins and its slots is used, nor its slots.
            let computed =
                path == newest && ((8..16).contains(&at) || (24..32).contains(&at) || (36..72).contains(&at));
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert_eq!(is_believed(path, &flipped), computed, "byte {at} of {}", path.display());
        }
        assert!(!is_believed(path, &bytes[..bytes.len() - 1]), "{} cut short", path.display());
        assert!(is_believed(path, bytes));
        std::fs::remove_file(path).unwrap();
        assert_ne!(self::index(dir.path()).indexed_end(), 270, "{} deleted", path.display());
    }
}

#[test]
fn index_files_below_the_purge_point_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path());
    (0..33).for_each(|at| index.add(at * 10, at as i64 * 1000, &mut &[5][..]).unwrap());
    index.sync(&index.flush(330).unwrap()).unwrap();
    let files = || std::fs::read_dir(dir.path().join("index")).unwrap().count() - 1;
    assert_eq!(files(), 4);
    index.drop_below(200).unwrap();
    assert_eq!(files(), 2);
    assert_eq!(found(&index, 5, 0, i64::MAX).last(), Some(&200));
    drop(index);
    let index = self::index(dir.path());
    assert_eq!(index.indexed_end(), 330);
    assert_eq!(found(&index, 5, 0, i64::MAX).len(), 13);
    index.drop_below(10_000).unwrap();
    drop(index);
    assert_eq!(found(&self::index(dir.path()), 5, 0, i64::MAX), [320, 310, 300]);
}

#[test]
fn an_index_file_is_laid_out_as_ever() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path());
    index.add(0x11, 1_700_000_000_123, &mut &[4][..]).unwrap();
    index.add(0x22, 1_700_000_002_200, &mut &[7][..]).unwrap();
    index.flush(0x23).unwrap();
    // 2023-11-14 22:13:20.123 UTC.
    let bytes = std::fs::read(dir.path().join("index/20231114221320123")).unwrap();
    let mut expected = Vec::new();
    for time in [1_700_000_000_123_u64, 1_700_000_002_200] {
        expected.extend(time.to_be_bytes());
    }
    expected.extend(0x11_u64.to_be_bytes());
    expected.extend(0x22_u64.to_be_bytes());
    // Three slots, next entry 3; slot 1 leads to entry 2, which leads to entry 1. Number 0 is not used.
    for word in [3_u32, 3, 0, 2, 0, 0, 0, 0, 0, 0] {
        expected.extend(word.to_be_bytes());
    }
    for (hash, physical_offset, seconds, before) in [(4_u32, 0x11_u64, 0_u32, 0_u32), (7, 0x22, 2, 1)] {
        expected.extend(hash.to_be_bytes());
        expected.extend(physical_offset.to_be_bytes());
        expected.extend(seconds.to_be_bytes());
        expected.extend(before.to_be_bytes());
    }
    assert_eq!(bytes, expected);
}

#[test]
fn index_files_sort_in_the_order_they_were_made() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path());
    // The second leader's clock is an hour behind.
    (0..40).for_each(|at| index.add(at, 10_000_000 - (at as i64 / 10) * 3_600_000, &mut &[1][..]).unwrap());
    index.sync(&index.flush(40).unwrap()).unwrap();
    drop(index);
    let expected: Vec<u64> = (0..40).rev().collect();
    assert_eq!(found(&self::index(dir.path()), 1, i64::MIN, i64::MAX), expected);
}

/// Status, next offset and queue offsets of a pull.
fn pull(group: &Group, queue_id: u32, from: i64, messages_max: usize, bytes_max: usize) -> (PullStatus, u64, Vec<i64>) {
    let outcome = group.store().get_messages("A", queue_id, from, messages_max, bytes_max, &|_| true).unwrap();
    let records = outcome.parts.iter().flat_map(|part| iter_records(part)).map(|record| record.unwrap().queue_offset());
    let offsets: Vec<i64> = records.collect();
    assert_eq!(outcome.messages, offsets.len());
    (outcome.status, outcome.next_begin_offset, offsets)
}

async fn group_with(messages: usize) -> Group {
    let group = Group::new();
    group.put_topic("A", 2).await;
    for at in 0..messages {
        let tag = format!("TAGS\u{1}t{}\u{2}", at % 10);
        group.send(message("A", 0, "0123456789").properties(&tag)).await;
    }
    group.dispatched().await;
    group
}

#[tokio::test]
async fn a_pull_answers_by_where_its_offset_lies() {
    use PullStatus::*;
    let group = group_with(5).await;
    for (queue_id, from, expected) in [
        (0, 0, (Found, 5, vec![0, 1, 2, 3, 4])),
        (0, 3, (Found, 5, vec![3, 4])),
        (0, 5, (OffsetOverflowOne, 5, vec![])),
        (0, 6, (OffsetOverflowBadly, 5, vec![])),
        (0, i64::MAX, (OffsetOverflowBadly, 5, vec![])),
        (0, -1, (OffsetTooSmall, 0, vec![])),
        (0, i64::MIN, (OffsetTooSmall, 0, vec![])),
        (1, 0, (NoMessageInQueue, 0, vec![])),
        (1, 7, (NoMessageInQueue, 0, vec![])),
        (1, -1, (NoMessageInQueue, 0, vec![])),
        (9, 0, (NoMessageInQueue, 0, vec![])),
    ] {
        assert_eq!(pull(&group, queue_id, from, 32, 1 << 20), expected, "queue {queue_id} from {from}");
    }
    let outcome = group.store().get_messages("A", 0, 5, 32, 1 << 20, &|_| true).unwrap();
    assert_eq!((outcome.min_offset, outcome.max_offset), (0, 5));
    let outcome = group.store().get_messages("never", 0, 0, 32, 1 << 20, &|_| true).unwrap();
    assert_eq!((outcome.status, outcome.max_offset), (NoMessageInQueue, 0));
}

#[tokio::test]
async fn a_pull_returns_no_more_than_its_limits_and_at_least_one_message() {
    let group = group_with(60).await;
    let size = group.store().queue_entries("A", 0, 0, 1).unwrap()[0].size as usize;
    let count = |messages_max, bytes_max| pull(&group, 0, 0, messages_max, bytes_max).2.len();
    assert_eq!(count(5, 1 << 20), 5);
    assert_eq!(count(1000, 1 << 20), 32);
    assert_eq!(count(0, 1 << 20), 1);
    assert_eq!(count(32, 0), 1);
    assert_eq!(count(32, 3 * size), 3);
    assert_eq!(count(32, 3 * size - 1), 2);
    assert_eq!(pull(&group, 0, 0, 5, 1 << 20).1, 5);
    assert_eq!(pull(&group, 0, 0, 32, 3 * size).1, 3);

    let cold = |bytes| {
        move |options: &mut StoreOptions| {
            options.pull_limits.hot_log_bytes = 0;
            options.pull_limits.cold_bytes_max = bytes;
        }
    };
    for (bytes, expected) in [(1 << 20, 8), (2 * size, 2)] {
        let group = Group::with(cold(bytes));
        group.put_topic("A", 1).await;
        for _ in 0..20 {
            group.send(message("A", 0, "0123456789").properties("TAGS\u{1}t0\u{2}")).await;
        }
        group.dispatched().await;
        assert_eq!(pull(&group, 0, 0, 32, 1 << 20).2.len(), expected);
        assert!(!group.store().is_hot("A", 0, 0));
        assert!(group.store().is_hot("A", 0, 20));
    }
    assert!(group.store().is_hot("A", 0, 0));
}

#[tokio::test]
async fn a_filter_that_matches_nothing_moves_the_offset_on() {
    let group = group_with(30).await;
    let tag = |name: &str| i64::from(protocol::message::java_hash_code(name));
    let pull = |from, code| group.store().get_messages("A", 0, from, 32, 1 << 20, &|found| found == code).unwrap();
    let outcome = pull(0, tag("t3"));
    let records: Vec<i64> = iter_records(&outcome.parts[0]).map(|record| record.unwrap().queue_offset()).collect();
    assert_eq!((records, outcome.next_begin_offset), (vec![3, 13, 23], 30));
    let outcome = pull(0, 12345);
    assert_eq!((outcome.status, outcome.next_begin_offset), (PullStatus::NoMatchedMessage, 30));
}

#[tokio::test]
async fn one_pull_looks_at_a_bounded_number_of_entries() {
    let group = Group::with(|options| options.entries_per_queue_file = 1000);
    group.put_topic("A", 1).await;
    let messages = vec![message("A", 0, ""); 50];
    for _ in 0..20 {
        group.pack(&messages).await;
    }
    group.dispatched().await;
    let next = |messages_max| {
        let outcome = group.store().get_messages("A", 0, 0, messages_max, 1 << 20, &|_| false).unwrap();
        assert_eq!(outcome.status, PullStatus::NoMatchedMessage);
        outcome.next_begin_offset
    };
    assert_eq!(next(32), 800);
    assert_eq!(next(900), 900);
}

#[tokio::test]
async fn messages_that_have_left_the_log_are_passed_over() {
    let group = group_with(10).await;
    let fifth = group.store().queue_entries("A", 0, 5, 1).unwrap()[0].physical_offset;
    let index = group.log.entries(0).into_iter().find(|entry| entry.payload_position().unwrap().get() == fifth);
    group.log.purge(index.unwrap().log_index().get() - 1);
    assert_eq!(pull(&group, 0, 0, 32, 1 << 20), (PullStatus::Found, 10, vec![5, 6, 7, 8, 9]));
    let outcome = group.store().get_messages("A", 0, 0, 32, 1 << 20, &|code| code == 2_570).unwrap();
    assert_eq!(outcome.status, PullStatus::NoMatchedMessage);
    group.log.purge(group.log.entries(0).last().unwrap().log_index().get());
    assert_eq!(pull(&group, 0, 0, 32, 1 << 20), (PullStatus::MessageWasRemoving, 10, vec![]));
}

#[tokio::test]
async fn a_search_by_time_ends_where_its_boundary_says() {
    use TimeBoundary::*;
    let group = Group::new();
    group.put_topic("A", 2).await;
    // Offsets 0..=6.
    for time in [100, 200, 200, 200, 300, 500, 500] {
        group.send(message("A", 0, "x").stored_at(time)).await;
    }
    group.dispatched().await;
    for (time, lower, upper) in [
        (50, 0, 0),
        (100, 0, 0),
        (150, 1, 0),
        (200, 1, 3),
        (250, 4, 3),
        (300, 4, 4),
        (400, 5, 4),
        (500, 5, 6),
        (600, 7, 6),
        (i64::MIN, 0, 0),
        (i64::MAX, 7, 6),
    ] {
        assert_eq!(group.store().offset_by_time("A", 0, time, Lower).unwrap(), lower, "lower {time}");
        assert_eq!(group.store().offset_by_time("A", 0, time, Upper).unwrap(), upper, "upper {time}");
    }
    for (topic, queue_id) in [("A", 1), ("never", 0)] {
        assert_eq!(group.store().offset_by_time(topic, queue_id, 100, Lower).unwrap(), 0);
        assert_eq!(group.store().offset_by_time(topic, queue_id, 100, Upper).unwrap(), 0);
        assert_eq!(group.store().earliest_store_time(topic, queue_id).unwrap(), None);
    }
    assert_eq!(group.store().earliest_store_time("A", 0).unwrap(), Some(100));
    assert_eq!(group.store().store_time("A", 0, 4).unwrap(), Some(300));
    assert_eq!(group.store().store_time("A", 0, 7).unwrap(), None);
}

#[tokio::test]
async fn messages_are_found_by_each_of_their_keys() {
    let group = Group::new();
    group.put_topic("A", 1).await;
    group.put_topic("B", 1).await;
    let base = 1_700_000_000_000;
    let send = async |topic, properties: &str, at| {
        group.send(message(topic, 0, "x").properties(properties).stored_at(base + at)).await.physical_offset as i64
    };
    let first = send("A", "KEYS\u{1}k1 k2  k2\u{2}UNIQ_KEY\u{1}U1\u{2}", 0).await;
    let second = send("A", "KEYS\u{1}k2\u{2}UNIQ_KEY\u{1}U2\u{2}", 10).await;
    let other = send("B", "UNIQ_KEY\u{1}k2\u{2}", 20).await;
    group.dispatched().await;
    let query = |topic, key, max, begin, end| {
        let outcome = group.store().query_by_key(topic, key, max, begin, end).unwrap();
        assert_eq!(outcome.index_progress.last_physical_offset as i64, other);
        let offsets = outcome.messages.iter().map(|bytes| RecordView::parse(bytes).unwrap().physical_offset());
        offsets.collect::<Vec<i64>>()
    };
    assert_eq!(query("A", "k1", 32, 0, i64::MAX), [first]);
    assert_eq!(query("A", "k2", 32, 0, i64::MAX), [second, first]);
    assert_eq!(query("A", "U1", 32, 0, i64::MAX), [first]);
    assert_eq!(query("B", "k2", 32, 0, i64::MAX), [other]);
    assert!(query("A", "k3", 32, 0, i64::MAX).is_empty());
    assert!(query("A", "", 32, 0, i64::MAX).is_empty());
    assert_eq!(query("A", "k2", 1, 0, i64::MAX), [second]);
    assert!(query("A", "k2", 0, 0, i64::MAX).is_empty());
    // To the millisecond, though the index keeps seconds.
    assert_eq!(query("A", "k2", 32, base, base + 9), [first]);
    assert_eq!(query("A", "k2", 32, base + 1, base + 10), [second]);
}

#[tokio::test]
async fn keys_with_the_same_hash_are_told_apart_by_the_message() {
    let group = Group::new();
    group.put_topic("A", 1).await;
    // "Aa" and "BB" have one Java hash.
    let aa = group.send(message("A", 0, "1").properties("KEYS\u{1}Aa\u{2}")).await;
    let bb = group.send(message("A", 0, "2").properties("KEYS\u{1}BB\u{2}")).await;
    group.dispatched().await;
    for (key, place) in [("Aa", aa), ("BB", bb)] {
        let outcome = group.store().query_by_key("A", key, 32, 0, i64::MAX).unwrap();
        let offsets: Vec<u64> =
            outcome.messages.iter().map(|bytes| RecordView::parse(bytes).unwrap().physical_offset() as u64).collect();
        assert_eq!(offsets, [place.physical_offset], "{key}");
    }
}

#[tokio::test]
async fn an_entry_of_a_waiting_message_holds_its_delivery_time() {
    let group = Group::new();
    group.put_topic("SCHEDULE_TOPIC_XXXX", 18).await;
    group.put_topic("A", 1).await;
    for (topic, queue_id, level, expected) in
        [("SCHEDULE_TOPIC_XXXX", 0, "1", 6_000), ("SCHEDULE_TOPIC_XXXX", 17, "99", 5_000 + 7_200_000), ("A", 0, "1", 0)]
    {
        let properties = format!("DELAY\u{1}{level}\u{2}");
        group.send(message(topic, queue_id, "x").properties(&properties).stored_at(5_000)).await;
        group.dispatched().await;
        let entry = group.store().queue_entries(topic, queue_id as u32, 0, 1).unwrap()[0];
        assert_eq!(entry.tags_code, expected, "{topic} {level}");
    }
}

#[tokio::test]
async fn arrivals_are_told_after_the_message_can_be_read() {
    let group = group_with(3).await;
    let heard = group.arrivals.0.lock().clone();
    let tag = |name: &str| i64::from(protocol::message::java_hash_code(name));
    let expected: Vec<(String, u32, u64, i64)> =
        (0..3).map(|at| ("A".to_owned(), 0, at + 1, tag(&format!("t{at}")))).collect();
    assert_eq!(heard, expected);
}

#[tokio::test]
async fn memory_for_queue_entries_is_bounded() {
    let group = Group::with(|options| {
        options.cached_entries_max = 64;
        options.entries_per_queue_file = 100;
    });
    group.put_topic("A", 20).await;
    for round in 0..60 {
        let messages: Vec<_> = (0..20).map(|queue_id| message("A", (queue_id + round) % 20, "x")).collect();
        group.pack(&messages).await;
    }
    group.dispatched().await;
    for queue_id in 0..20 {
        assert_eq!(group.store().max_offset("A", queue_id), 60);
        assert_eq!(group.store().queue_entries("A", queue_id, 0, 100).unwrap().len(), 60);
        assert!(!group.store().is_hot("A", queue_id, 0), "the oldest entries are on disk only");
    }
}

#[tokio::test]
async fn waiting_for_dispatch_ends_when_the_store_stops() {
    let mut group = group_with(1).await;
    let store = group.store().clone();
    assert_eq!(store.dispatched_end(), 2);
    store.wait_dispatched(1).await.unwrap();
    let waiting = tokio::spawn(async move { store.wait_dispatched(2).await });
    group.stop().await;
    assert!(matches!(waiting.await.unwrap(), Err(Error::Stopped)));
}

#[tokio::test]
async fn many_queues_cost_few_descriptors_and_survive_a_restart() {
    let topics = if std::env::var_os("SLOW_TESTS").is_some() { 20_000 } else { 300 };
    let mut group = Group::over(MemoryLog::new(1 << 30), |options| options.open_files_max = 16);
    let names: Vec<String> = (0..topics).map(|at| format!("topic-{at}")).collect();
    for name in &names {
        group.put_topic(name, 8).await;
    }
    // Half of them get a message in each queue, once.
    for name in names.iter().step_by(2) {
        let messages: Vec<_> = (0..8).map(|queue_id| message(name, queue_id, "x")).collect();
        group.pack(&messages).await;
    }
    group.dispatched().await;
    let open = || {
        std::fs::read_dir("/proc/self/fd").unwrap().filter(|fd| {
            let target = fd.as_ref().ok().and_then(|fd| std::fs::read_link(fd.path()).ok());
            target.is_some_and(|target| target.starts_with(group.path()))
        })
    };
    assert!(open().count() <= 20, "{} descriptors", open().count());
    group.stop().await;
    let items = std::fs::read_dir(group.path().join("consumequeue")).unwrap().map(|item| item.unwrap());
    assert_eq!(items.filter(|item| item.file_type().unwrap().is_dir()).count(), names.len().div_ceil(2));
    let started = std::time::Instant::now();
    group.start().await;
    let took = started.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    assert_eq!(group.started_behind(), group.state().applied_index());
    for (at, name) in names.iter().enumerate() {
        assert_eq!(group.store().max_offset(name, 7), u64::from(at % 2 == 0), "{name}");
    }
    assert_eq!(group.store().message(&names[0], 3, 0).unwrap().map(|bytes| bytes.len() > 91), Some(true));
}
