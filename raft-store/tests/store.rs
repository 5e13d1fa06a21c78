//! The store on a real directory: what openraft relies on, reads, refusals.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use openraft::RaftLogReader;
use raft_store::{
    Body, ClusterId, Error, FlushMode, LogEntry, LogIndex, LogPosition, Options, Preparation, ResumePoint, StopClass,
};
use support::{Store, entry, id, membership, options, raft_id};

const MODES: [FlushMode; 2] = [FlushMode::Sync, FlushMode::ASYNC];

fn payload(index: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (index as usize * 31 + at) as u8).collect()
}

/// `count` entries of a kilobyte from index 0 on.
fn filled(options: Options, count: u64) -> Store {
    let mut store = Store::open(options).unwrap();
    store.vote(1).unwrap();
    for index in 0..count {
        store.append(vec![entry(1, index, payload(index, 1000))]).unwrap();
    }
    store
}

fn indexes(entries: &[LogEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.log_index().get()).collect()
}

#[track_caller]
fn check_entries(store: &mut Store, from: u64, until: u64) {
    let found = store.entries(0, u64::MAX).unwrap();
    assert_eq!((from..until).collect::<Vec<_>>(), indexes(&found));
    for found in found {
        let index = found.log_index().get();
        let Body::Normal(bytes) = &found.body else { panic!("{found}") };
        assert_eq!(payload(index, 1000), bytes.0);
        let position = found.payload_position().unwrap();
        assert_eq!(bytes.0, store.view.read(position, 1000).unwrap());
    }
}

// ---- what openraft relies on ----

#[test]
fn a_log_survives_stops_and_kills_in_both_modes() {
    for flush in MODES {
        let dir = tempfile::tempdir().unwrap();
        filled(options(dir.path(), flush), 200).close();
        let mut store = Store::open(options(dir.path(), flush)).unwrap();
        assert_eq!(StopClass::Clean, store.recovered.stop);
        assert_eq!(Some(1), store.recovered.vote.map(|vote| vote.term));
        check_entries(&mut store, 0, 200);
        store.append(vec![entry(1, 200, payload(200, 1000))]).unwrap();
        store.commit(raft_id(1, 200));
        store.kill();
        let mut store = Store::open(options(dir.path(), flush)).unwrap();
        assert_eq!(StopClass::Process, store.recovered.stop);
        check_entries(&mut store, 0, 201);
    }
}

#[test]
fn committed_is_kept_by_a_stop_and_never_reported_above_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = filled(options(dir.path(), FlushMode::Sync), 50);
    store.commit(raft_id(1, 42));
    // Ahead of the log, as on a replica that lags: clamped.
    store.close();
    let mut store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    assert_eq!(Some(id(1, 42)), store.recovered.committed);
    store.commit(raft_id(1, 1000));
    assert_eq!(Some(id(1, 49)), store.view.watermarks().committed);
}

#[test]
fn a_limited_read_is_a_prefix_capped_by_bytes_and_never_a_suffix() {
    for flush in MODES {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path(), flush);
        options.read_bytes_max = 10_000;
        let mut store = filled(options, 200);
        store.commit(raft_id(1, 199));
        for start in [0, 3, 77, 150, 195] {
            let read = store.limited(start, 200).unwrap();
            assert!(!read.is_empty());
            assert!(read.len() <= 10, "{}", read.len());
            assert_eq!((start..start + read.len() as u64).collect::<Vec<_>>(), indexes(&read));
        }
        assert_eq!(vec![7], indexes(&store.limited(7, 8).unwrap()));
        assert!(store.limited(7, 7).unwrap().is_empty());
        assert!(store.limited(200, 210).unwrap().is_empty());
        store.purge(raft_id(1, 100)).unwrap();
        assert!(store.limited(100, 200).unwrap().is_empty(), "the entries behind a purged one are not sent");
        assert!(store.limited(0, 200).unwrap().is_empty());
        assert_eq!(101, store.limited(101, 200).unwrap()[0].log_index().get());
    }
}

#[test]
fn one_entry_above_the_cap_is_still_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), FlushMode::Sync);
    options.read_bytes_max = 100;
    let mut store = filled(options, 100);
    store.commit(raft_id(1, 99));
    assert_eq!(vec![3], indexes(&store.limited(3, 100).unwrap()));
    assert_eq!(vec![98], indexes(&store.limited(98, 100).unwrap()));
}

#[test]
fn a_stream_yields_the_whole_range_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), FlushMode::Sync);
    options.read_bytes_max = 5000;
    let mut store = filled(options, 300);
    assert_eq!((10..290).collect::<Vec<_>>(), indexes(&store.stream(10, 290).unwrap()));
    assert_eq!(300, store.stream(0, u64::MAX).unwrap().len());
}

#[test]
#[should_panic(expected = "an append must follow the last entry")]
fn a_hole_on_append_stops_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = filled(options(dir.path(), FlushMode::Sync), 3);
    let _ = store.append(vec![entry(1, 4, "after a hole")]);
}

#[test]
#[should_panic(expected = "an append must follow the last entry")]
fn an_append_over_an_entry_stops_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = filled(options(dir.path(), FlushMode::Sync), 3);
    let _ = store.append(vec![entry(1, 2, "again")]);
}

#[test]
fn committed_entries_are_never_truncated() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = filled(options(dir.path(), FlushMode::Sync), 10);
    store.commit(raft_id(1, 5));
    store.truncate_after(Some(raft_id(1, 5))).unwrap();
    assert_eq!(6, store.entries(0, 100).unwrap().len());
    // The writer stops rather than obey.
    store.truncate_after(Some(raft_id(1, 4))).unwrap_err();
    assert_eq!(6, store.entries(0, 100).unwrap().len());
    // And nothing after that hangs.
    store.append(vec![entry(1, 6, "late")]).unwrap_err();
    store.vote(9).unwrap_err();
    store.view.close().unwrap_err();
}

#[test]
fn truncation_takes_whole_segments_and_the_log_goes_on_in_place() {
    for flush in MODES {
        let dir = tempfile::tempdir().unwrap();
        let mut store = filled(options(dir.path(), flush), 300);
        let positions: Vec<_> = store.entries(0, 400).unwrap().iter().map(|entry| entry.position).collect();
        for keep in [250, 120, 57, 56, 3] {
            store.truncate_after(Some(raft_id(1, keep))).unwrap();
            assert_eq!(Some(id(1, keep)), store.log_state().1);
            check_entries(&mut store, 0, keep + 1);
            store.append(vec![entry(2, keep + 1, payload(keep + 1, 1000))]).unwrap();
            let again = store.entries(keep + 1, keep + 2).unwrap();
            assert_eq!(positions[keep as usize + 1], again[0].position);
        }
        store.truncate_after(None).unwrap();
        assert_eq!((None, None), store.log_state());
        store.append(vec![entry(3, 0, payload(0, 1000))]).unwrap();
        store.vote(3).unwrap();
        store.kill();
        check_entries(&mut Store::open(options(dir.path(), flush)).unwrap(), 0, 1);
    }
}

#[test]
fn a_purge_in_the_midst_of_a_segment_hides_and_frees_whole_segments_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = filled(options(dir.path(), FlushMode::Sync), 200);
    store.commit(raft_id(1, 199));
    let segments =
        |dir: &Path| fs::read_dir(dir).unwrap().filter(|f| f.as_ref().unwrap().file_name().len() == 20).count();
    let before = segments(dir.path());
    store.purge(raft_id(1, 30)).unwrap();
    store.vote(1).unwrap();
    assert_eq!(before, segments(dir.path()));
    check_entries(&mut store, 31, 200);
    store.purge(raft_id(1, 130)).unwrap();
    store.vote(1).unwrap();
    assert!(segments(dir.path()) < before);
    check_entries(&mut store, 131, 200);
    store.kill();
    let mut store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    assert_eq!(Some(id(1, 130)), store.recovered.purged);
    check_entries(&mut store, 131, 200);
    store.purge(raft_id(1, 199)).unwrap();
    assert_eq!((Some(id(1, 199)), Some(id(1, 199))), store.log_state());
    store.append(vec![entry(1, 200, payload(200, 1000))]).unwrap();
    check_entries(&mut store, 200, 201);
    store.kill();
    check_entries(&mut Store::open(options(dir.path(), FlushMode::Sync)).unwrap(), 200, 201);
}

#[test]
fn the_extent_tells_where_the_log_begins_and_what_whole_segments_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = filled(options(dir.path(), FlushMode::Sync), 200);
    store.commit(raft_id(1, 199));
    let files = |dir: &Path| fs::read_dir(dir).unwrap().filter(|f| f.as_ref().unwrap().file_name().len() == 20).count();
    let check = |store: &Store, first: u64| {
        let extent = store.view.extent().unwrap();
        let at = |index| store.view.start_position_of(LogIndex::new(index)).unwrap().unwrap();
        assert_eq!((Some(LogIndex::new(first)), at(first)), (extent.first, extent.start));
        assert_eq!(store.view.watermarks().end, extent.end);
        // One file more may be prepared for later.
        let on_disk = files(dir.path()) as u64;
        assert!((on_disk - 1..=on_disk).contains(&extent.segments), "{extent:?} of {on_disk}");
        assert_eq!(extent.segments * store.view.segment_bytes(), extent.file_bytes);
        let sealed = store.view.sealed_segments();
        assert_eq!(extent.segments - 1, sealed.len() as u64);
        for segment in sealed {
            // The next entry is the first of the next segment.
            let next = at(segment.last.index.get() + 1);
            assert_eq!(segment.resume.position, next);
            assert_ne!(segment.base, store.view.segment_base(next));
            assert_eq!(segment.base, store.view.segment_base(at(segment.last.index.get())));
            assert_eq!(segment.resume, store.view.resume_point_after(segment.last.index).unwrap());
        }
    };
    check(&store, 0);
    let last = store.view.sealed_segments()[1].last;
    store.purge(last.to_raft()).unwrap();
    store.vote(1).unwrap();
    check(&store, last.index.get() + 1);
    store.kill();
    let store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    check(&store, last.index.get() + 1);

    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    let empty = store.view.extent().unwrap();
    assert_eq!((None, empty.end), (empty.first, empty.start));
}

#[test]
fn a_purge_past_the_end_starts_the_log_anew_where_the_snapshot_says() {
    let dir = tempfile::tempdir().unwrap();
    let leader_dir = tempfile::tempdir().unwrap();
    // The leader's checkpoint at the last entry of a segment.
    let mut leader = filled(options(leader_dir.path(), FlushMode::Sync), 300);
    leader.commit(raft_id(1, 299));
    let sealed = leader.view.sealed().borrow().unwrap();
    assert_eq!(sealed.resume, leader.view.resume_point_after(sealed.last.index).unwrap());

    let mut store = filled(options(dir.path(), FlushMode::Sync), 5);
    store.view.set_resume_point(sealed.last, sealed.resume);
    store.purge(sealed.last.to_raft()).unwrap();
    assert_eq!((Some(sealed.last), Some(sealed.last)), store.log_state());
    assert_eq!(Some(sealed.last), store.view.watermarks().committed);
    let next = sealed.last.index.get() + 1;
    for found in leader.entries(next, 300).unwrap() {
        store.append(vec![LogEntry::new(found.id(), found.body)]).unwrap();
    }
    check_entries(&mut store, next, 300);
    // From there on the files are the same.
    let name = format!("{:020}", store.view.segment_base(sealed.resume.position));
    let (ours, theirs) = (fs::read(dir.path().join(&name)).unwrap(), fs::read(leader_dir.path().join(&name)).unwrap());
    assert!(ours == theirs, "replicas must be equal byte by byte");
    store.kill();
    let mut store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    assert_eq!(Some(sealed.last), store.recovered.purged);
    check_entries(&mut store, next, 300);
}

#[test]
fn replicas_are_equal_byte_by_byte_however_the_entries_came() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut first = filled(options(one.path(), FlushMode::Sync), 150);
    let mut second = Store::open(options(two.path(), FlushMode::Sync)).unwrap();
    second.vote(1).unwrap();
    // In batches, and with a detour that is cut again.
    let entries = first.entries(0, 200).unwrap();
    for batch in entries.chunks(17) {
        let last = batch.last().unwrap().log_index().get();
        let fresh = |entry: &LogEntry| LogEntry::new(entry.id(), entry.body.clone());
        second.append(batch.iter().map(fresh).collect()).unwrap();
        let detour = (last + 1..last + 40).map(|index| entry(1, index, "a detour of another leader")).collect();
        second.append(detour).unwrap();
        second.truncate_after(Some(raft_id(1, last))).unwrap();
    }
    for number in 0..2u64 {
        let name = format!("{:020}", number * (64 << 10));
        assert!(fs::read(one.path().join(&name)).unwrap() == fs::read(two.path().join(&name)).unwrap(), "{name}");
    }
    assert_eq!(first.view.watermarks().end, second.view.watermarks().end);
}

#[test]
fn all_kinds_of_entries_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    store.vote(1).unwrap();
    let written = vec![
        LogEntry::new(id(1, 0), Body::Membership(membership(&[1, 2, 3]))),
        LogEntry::new(id(1, 1), Body::Blank),
        entry(1, 2, ""),
        entry(1, 3, payload(3, 50_000)),
    ];
    store.append(written.clone()).unwrap();
    for round in 0..2 {
        let found = store.entries(0, 10).unwrap();
        assert_eq!(written.len(), found.len());
        for (written, found) in written.iter().zip(&found) {
            assert_eq!((written.id(), &written.body), (found.id(), &found.body), "round {round}");
        }
        store.kill();
        store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    }
}

#[test]
fn a_payload_that_fits_no_segment_is_refused_and_nothing_of_it_stored() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = filled(options(dir.path(), FlushMode::Sync), 3);
    let largest = store.view.payload_bytes_max();
    let error = store.append(vec![entry(1, 3, vec![7; largest as usize + 1])]).unwrap_err();
    assert!(error.to_string().contains("at most"), "{error}");
    store.append(vec![entry(1, 3, vec![7; largest as usize])]).unwrap();
    store.append(vec![entry(1, 4, vec![8; largest as usize])]).unwrap();
    store.kill();
    let mut store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    assert_eq!(5, store.entries(0, 10).unwrap().len());
}

#[test]
fn an_empty_log_takes_its_first_entry_at_any_index() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    store.vote(1).unwrap();
    store.append(vec![entry(1, 77, payload(77, 1000))]).unwrap();
    check_entries(&mut store, 77, 78);
    store.kill();
    check_entries(&mut Store::open(options(dir.path(), FlushMode::Sync)).unwrap(), 77, 78);
}

// ---- reads ----

#[test]
fn committed_bytes_of_a_mapped_segment_are_not_copied_and_cold_ones_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), FlushMode::Sync);
    options.maps_hot = 2;
    options.tail_bytes = 0;
    let mut store = filled(options, 400);
    store.commit(raft_id(1, 399));
    let positions: Vec<LogPosition> =
        store.entries(0, 400).unwrap().iter().map(|entry| entry.payload_position().unwrap()).collect();
    let twice = |index: usize| {
        let one = store.view.read(positions[index], 1000).unwrap();
        let two = store.view.read(positions[index], 1000).unwrap();
        assert_eq!(payload(index as u64, 1000), one);
        one.as_ptr() == two.as_ptr()
    };
    assert!(twice(399), "hot: both are slices of one mapping");
    assert!(!twice(0), "cold: each is a copy");
    // A slice outlives the segment it came from.
    let slice = store.view.read(positions[390], 1000).unwrap();
    store.purge(raft_id(1, 395)).unwrap();
    store.vote(1).unwrap();
    store.view.close().unwrap();
    drop(store);
    assert_eq!(payload(390, 1000), slice);
}

#[test]
fn uncommitted_bytes_are_never_lent() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), FlushMode::Sync);
    options.tail_bytes = 0;
    options.unflushed_bytes_max = 4 << 10;
    let mut store = filled(options, 50);
    let position = store.entries(0, 1).unwrap()[0].payload_position().unwrap();
    let slice = store.view.read(position, 1000).unwrap();
    store.truncate_after(None).unwrap();
    store.append(vec![entry(1, 0, payload(99, 1000))]).unwrap();
    assert_eq!(payload(0, 1000), slice, "what was handed out never changes");
    assert_eq!(payload(99, 1000), store.view.read(position, 1000).unwrap());
}

#[test]
fn positions_find_their_records_and_records_their_positions() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = filled(options(dir.path(), FlushMode::Sync), 300);
    store.commit(raft_id(1, 299));
    for found in store.entries(0, 300).unwrap() {
        let start = found.position.unwrap();
        assert_eq!(Some(start), store.view.start_position_of(found.log_index()).unwrap());
        for position in [start, start.plus(64), start.plus(1000)] {
            let range = store.view.record_containing(position).unwrap().unwrap();
            assert_eq!(found.id(), range.id);
            assert_eq!(start.plus(64), range.payload_start);
            assert_eq!(1000, range.payload_bytes);
        }
        let resume = store.view.resume_point_after(found.log_index()).unwrap();
        assert!(resume.position > start);
    }
    let end = store.view.watermarks().end;
    assert_eq!(None, store.view.record_containing(end).unwrap());
    assert_eq!(None, store.view.start_position_of(LogIndex::new(300)).unwrap());
    assert!(matches!(store.view.read(end, 1), Err(Error::NotStored { .. })));
    assert!(matches!(store.view.read(LogPosition::new(u64::MAX), 2), Err(Error::NotStored { .. })));
    let replayed: Vec<_> = store.view.entries(LogIndex::new(250), LogIndex::new(1000)).map(Result::unwrap).collect();
    assert_eq!((250..300).collect::<Vec<_>>(), indexes(&replayed));
}

#[test]
fn resume_points_are_the_same_before_and_after_a_record_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut large_tail = options(dir.path(), FlushMode::Sync);
    large_tail.tail_bytes = 64 << 20;
    let store = filled(large_tail, 300);
    let resume = |store: &Store| -> Vec<ResumePoint> {
        (0..300).map(|index| store.view.resume_point_after(LogIndex::new(index)).unwrap()).collect()
    };
    let from_memory = resume(&store);
    store.close();
    let store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    assert_eq!(from_memory, resume(&store));
}

#[test]
fn readers_beside_truncation_and_purge_see_a_log_without_holes_or_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), FlushMode::ASYNC);
    options.tail_bytes = 0;
    options.unflushed_bytes_max = 16 << 10;
    let mut store = filled(options, 100);
    store.commit(raft_id(1, 60));
    let stop = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..2)
        .map(|number: u64| {
            let mut reader = store.reader();
            let (stop, reads, view) = (stop.clone(), reads.clone(), store.view.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let mut from = number;
                while !stop.load(Ordering::Relaxed) {
                    from = (from + 7) % 110;
                    let found = runtime.block_on(reader.limited_get_log_entries(from, 120)).unwrap();
                    let all = runtime.block_on(reader.try_get_log_entries(from..120)).unwrap();
                    for entries in [found, all] {
                        for pair in entries.windows(2) {
                            assert_eq!(pair[0].log_index().next(), pair[1].log_index());
                        }
                        for entry in entries {
                            let Body::Normal(bytes) = &entry.body else { panic!() };
                            let (term, index) = (entry.log_term().get(), entry.log_index().get());
                            assert_eq!(payload(index + term - 1, 1000), bytes.0);
                        }
                    }
                    view.watermarks();
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut term = 1;
    while reads.load(Ordering::Relaxed) < 400 || term < 30 {
        term += 1;
        store.vote(term).unwrap();
        let keep = 60 + term % 37;
        let kept = store.entries(keep, keep + 1).unwrap()[0].id();
        store.truncate_after(Some(kept.to_raft())).unwrap();
        let batch = (keep + 1..100).map(|index| entry(term, index, payload(index + term - 1, 1000))).collect();
        store.append(batch).unwrap();
        if term == 20 {
            store.purge(raft_id(1, 40)).unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

// ---- segments ----

#[test]
fn the_next_segment_is_prepared_ahead_and_used_after_a_restart() {
    for preparation in [Preparation::Allocate, Preparation::Prewrite] {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path(), FlushMode::Sync);
        options.preparation = preparation;
        let store = filled(options.clone(), 40);
        let next = dir.path().join(format!("{:020}", 64 << 10));
        // A thread of its own makes it, whenever it gets to run.
        let until = Instant::now() + Duration::from_secs(20);
        while !next.exists() {
            assert!(Instant::now() < until, "half full, and the next one is not there");
            std::thread::yield_now();
        }
        store.close();
        assert_eq!(64 << 10, fs::metadata(&next).unwrap().len());
        let mut store = Store::open(options).unwrap();
        for index in 40..100 {
            store.append(vec![entry(1, index, payload(index, 1000))]).unwrap();
        }
        check_entries(&mut store, 0, 100);
    }
}

#[test]
fn each_sealed_segment_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    store.vote(1).unwrap();
    let sealed = store.view.sealed();
    let mut seen = Vec::new();
    for index in 0..300 {
        store.append(vec![entry(1, index, payload(index, 1000))]).unwrap();
        let newest = *sealed.borrow();
        if newest.is_some() && seen.last() != newest.as_ref() {
            seen.extend(newest);
        }
    }
    assert_eq!(5, seen.len());
    for sealed in seen {
        let position = |index| store.view.start_position_of(index).unwrap().unwrap();
        assert_eq!(sealed.base, store.view.segment_base(position(sealed.last.index)));
        assert_ne!(sealed.base, store.view.segment_base(position(sealed.last.index.next())));
        assert_eq!(position(sealed.last.index.next()), sealed.resume.position);
    }
}

// ---- refusals ----

#[track_caller]
fn refusal(options: Options) -> Error {
    let error = Store::open(options).err().expect("the start must be refused");
    let text = error.to_string();
    assert!(text.contains(':') || text.contains("segment_bytes"), "say what to do: {text}");
    error
}

#[test]
fn a_second_store_on_the_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(options(dir.path(), FlushMode::Sync), 1);
    assert!(matches!(refusal(options(dir.path(), FlushMode::Sync)), Error::Locked { .. }));
    store.close();
    let store = Store::open(options(dir.path(), FlushMode::ASYNC)).unwrap();
    assert!(store.view.flush_is_sync(), "the store knows its mode");
    store.close();
    filled_again(dir.path());
}

fn filled_again(dir: &Path) {
    let mut store = Store::open(options(dir, FlushMode::Sync)).unwrap();
    check_entries(&mut store, 0, 1);
}

#[test]
fn wrong_directories_are_refused_with_what_was_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut missing = options(&dir.path().join("nothing"), FlushMode::Sync);
    missing.create = false;
    assert!(matches!(refusal(missing), Error::NoStore { .. }));
    let mut empty = options(dir.path(), FlushMode::Sync);
    empty.create = false;
    assert!(matches!(refusal(empty), Error::NoStore { .. }));

    filled(options(dir.path(), FlushMode::Sync), 100).close();
    let mut other = options(dir.path(), FlushMode::Sync);
    other.cluster_id = ClusterId::new([1; 16]);
    assert!(matches!(refusal(other), Error::ForeignCluster { .. }));
    let mut other = options(dir.path(), FlushMode::Sync);
    other.node_id = 9;
    assert!(matches!(refusal(other), Error::ForeignNode { .. }));

    let mut named = options(dir.path(), FlushMode::Sync);
    named.group = "broker-a".to_owned();
    // A log that was never told whose it is learns it, and then belongs to that group.
    let mut store = Store::open(named.clone()).unwrap();
    check_entries(&mut store, 0, 100);
    store.close();
    let mut other = named.clone();
    other.group = "broker-b".to_owned();
    let error = refusal(other).to_string();
    assert!(error.contains("holds the log of group broker-a, expected is that of broker-b"), "{error}");
    let options = |dir: &Path, flush| Options { group: "broker-a".to_owned(), ..options(dir, flush) };

    let foreign = dir.path().join("holiday.jpg");
    fs::write(&foreign, "no log").unwrap();
    assert!(matches!(refusal(options(dir.path(), FlushMode::Sync)), Error::ForeignFile { .. }));
    fs::remove_file(&foreign).unwrap();
    // A directory beside the segments is somebody else's business, and what was left half made goes.
    fs::create_dir(dir.path().join("checkpoints")).unwrap();
    fs::write(dir.path().join("00000000000000999424.tmp"), "half").unwrap();
    let mut store = Store::open(options(dir.path(), FlushMode::Sync)).unwrap();
    check_entries(&mut store, 0, 100);
    assert!(!dir.path().join("00000000000000999424.tmp").exists());
    store.close();

    let segment = dir.path().join(format!("{:020}", 0));
    let file = fs::File::options().write(true).open(&segment).unwrap();
    file.set_len(60 << 10).unwrap();
    assert!(matches!(refusal(options(dir.path(), FlushMode::Sync)), Error::WrongSize { .. }));
    fs::remove_file(&segment).unwrap();
    assert!(matches!(refusal(options(dir.path(), FlushMode::Sync)), Error::Gap { .. }));
}

#[test]
fn a_segment_of_another_version_or_another_program_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    filled(options(dir.path(), FlushMode::Sync), 10).close();
    let file = fs::File::options().write(true).open(dir.path().join(format!("{:020}", 0))).unwrap();
    file.write_all_at(&[0, 2], 8).unwrap();
    assert!(matches!(refusal(options(dir.path(), FlushMode::Sync)), Error::FormatVersion { found: 2, .. }));
    file.write_all_at(b"somebody", 0).unwrap();
    assert!(matches!(refusal(options(dir.path(), FlushMode::Sync)), Error::ForeignFile { .. }));
}

#[test]
fn options_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let wrong: [fn(&mut Options); 5] = [
        |options| options.segment_bytes = 1000,
        |options| options.segment_bytes = 4 << 30,
        |options| options.maps_hot = 0,
        |options| options.payload_bytes_max = 0,
        |options| options.flush_lag_max = Duration::from_millis(1),
    ];
    for wrong in wrong {
        let mut options = options(dir.path(), FlushMode::ASYNC);
        wrong(&mut options);
        assert!(matches!(Store::open(options).err().unwrap(), Error::Options(_)));
    }
}
