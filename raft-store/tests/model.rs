//! The store against a vector, with stops and kills among the operations.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use raft_store::{Body, FlushMode, LogId, Options};
use support::{Store, entry, id, options, raft_id};

#[derive(Clone, Debug)]
enum Op {
    /// Payload sizes of one append.
    Append(Vec<usize>),
    Vote,
    /// Of the entries that may go, keep this share of 256.
    Truncate(u8),
    Commit(u8),
    Purge(u8),
    /// A snapshot that many entries further on replaces the log.
    Replace(u8),
    Stop,
    Kill,
    /// A read that starts at this share of the log.
    Read(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => prop::collection::vec(prop_oneof![4 => 0..200usize, 2 => 0..3000usize, 1 => 0..7000usize], 1..6)
            .prop_map(Op::Append),
        1 => Just(Op::Vote),
        2 => any::<u8>().prop_map(Op::Truncate),
        3 => any::<u8>().prop_map(Op::Commit),
        1 => any::<u8>().prop_map(Op::Purge),
        1 => (1..50u8).prop_map(Op::Replace),
        1 => Just(Op::Stop),
        1 => Just(Op::Kill),
        3 => any::<u8>().prop_map(Op::Read),
    ]
}

#[derive(Default)]
struct Model {
    first: u64,
    entries: Vec<(u64, Vec<u8>)>,
    purged: Option<LogId>,
    committed: Option<u64>,
    term: u64,
}

impl Model {
    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn term_of(&self, index: u64) -> u64 {
        self.entries[usize::try_from(index - self.first).unwrap()].0
    }

    fn share(&self, from: u64, share: u8) -> u64 {
        from + (self.next() - from) * u64::from(share) / 256
    }

    fn last(&self) -> Option<LogId> {
        match self.entries.last() {
            Some((term, _)) => Some(id(*term, self.next() - 1)),
            None => self.purged,
        }
    }

    fn check(&self, store: &mut Store, from: u64) {
        let found = store.entries(from, u64::MAX).unwrap();
        let from = from.max(self.first);
        assert_eq!(self.next().saturating_sub(from), found.len() as u64);
        for (index, found) in (from..).zip(found) {
            let (term, bytes) = &self.entries[usize::try_from(index - self.first).unwrap()];
            assert_eq!(id(*term, index), found.id());
            let Body::Normal(payload) = &found.body else { panic!("{found}") };
            assert_eq!(bytes, &payload.0);
            let start = found.payload_position().unwrap();
            assert_eq!(bytes, &store.view.read(start, bytes.len() as u64).unwrap());
        }
        assert_eq!((self.purged, self.last()), store.log_state());
        store.view.watermarks();
    }
}

fn small(dir: &Path, flush: FlushMode) -> Options {
    let mut options = options(dir, flush);
    options.segment_bytes = 16 << 10;
    options.maps_hot = 2;
    options.tail_bytes = 2 << 10;
    options.unflushed_bytes_max = 32 << 10;
    options.read_bytes_max = 3000;
    options
}

fn run(flush: FlushMode, ops: &[Op]) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(small(dir.path(), flush)).unwrap();
    let mut model = Model { term: 1, ..Model::default() };
    store.vote(1).unwrap();
    for (step, op) in ops.iter().enumerate() {
        match op {
            Op::Append(sizes) => {
                let first = model.next();
                let entries = sizes.iter().zip(first..).map(|(bytes, index)| {
                    let fill = u8::try_from((index * 7 + model.term) % 256).unwrap();
                    (model.term, vec![fill; *bytes], index)
                });
                let entries: Vec<_> = entries.collect();
                let appended = entries.iter().map(|(term, bytes, index)| entry(*term, *index, bytes.clone())).collect();
                // Some are waited for, some are not: all are readable at once.
                if step % 2 == 0 {
                    store.append(appended).unwrap();
                } else {
                    drop(store.start_append(appended));
                }
                model.entries.extend(entries.into_iter().map(|(term, bytes, _)| (term, bytes)));
            }
            Op::Vote => {
                model.term += 1;
                store.vote(model.term).unwrap();
            }
            Op::Truncate(share) => {
                let least = model.committed.map_or(model.first, |committed| committed + 1).max(model.first);
                let end = model.share(least, *share);
                let keep = match end.checked_sub(1) {
                    Some(keep) if keep >= model.first => Some(raft_id(model.term_of(keep), keep)),
                    _ => model.purged.map(LogId::to_raft),
                };
                store.truncate_after(keep).unwrap();
                model.entries.truncate(usize::try_from(end - model.first).unwrap());
            }
            Op::Commit(share) => {
                if model.entries.is_empty() {
                    continue;
                }
                let committed = model.share(model.first, *share);
                store.commit(raft_id(model.term_of(committed), committed));
                model.committed = model.committed.max(Some(committed));
            }
            Op::Purge(share) => {
                let Some(committed) = model.committed.filter(|committed| *committed >= model.first) else { continue };
                let through = model.first + (committed - model.first) * u64::from(*share) / 256;
                let gone = id(model.term_of(through), through);
                store.purge(gone.to_raft()).unwrap();
                model.entries.drain(..=usize::try_from(through - model.first).unwrap());
                model.first = through + 1;
                model.purged = Some(gone);
            }
            Op::Replace(further) => {
                let index = model.next() + u64::from(*further);
                let gone = id(model.term, index);
                store.purge(gone.to_raft()).unwrap();
                model.entries.clear();
                model.first = index + 1;
                model.purged = Some(gone);
                model.committed = Some(index);
            }
            Op::Stop => {
                store.close();
                store = Store::open(small(dir.path(), flush)).unwrap();
            }
            Op::Kill => {
                // What was not waited for may go with the process; a vote waits for all before it.
                store.vote(model.term).unwrap();
                store.kill();
                store = Store::open(small(dir.path(), flush)).unwrap();
            }
            Op::Read(share) => {
                let from = model.share(model.first, *share);
                let some = store.limited(from, model.next()).unwrap();
                assert_eq!(from < model.next(), !some.is_empty());
                model.check(&mut store, from);
            }
        }
    }
    model.check(&mut store, 0);
}

fn check(flush: FlushMode) {
    let cases = if std::env::var_os("SLOW_TESTS").is_some() { 2000 } else { 40 };
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(op(), 1..60), |ops| {
            run(flush, &ops);
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_store_behaves_like_a_vector_in_synchronous_mode() {
    check(FlushMode::Sync);
}

#[test]
fn the_store_behaves_like_a_vector_in_asynchronous_mode() {
    check(FlushMode::ASYNC);
}
