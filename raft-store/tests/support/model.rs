//! The store against a vector: what both are asked, and how they are compared.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use raft_store::{Body, FlushMode, LogId, Options};

use crate::support::{Store, entry, id, raft_id};

/// Where a store lives through its starts.
pub trait Home {
    /// Starts it.
    fn open(&mut self) -> Store;

    /// Kills it, or cuts its power, with a seed for what survives. Says whether it was the power: where that cannot be
    /// done the process dies alone.
    fn crash(&mut self, store: Store, power_cut: Option<u64>) -> bool;
}

/// Small segments, small buffers.
pub fn small(mut options: Options) -> Options {
    options.segment_bytes = 16 << 10;
    options.maps_hot = 2;
    options.tail_bytes = 2 << 10;
    options.unflushed_bytes_max = 32 << 10;
    options.read_bytes_max = 3000;
    // In asynchronous mode a lone replica goes on after a power cut.
    options.alone = true;
    options
}

#[derive(Clone, Debug)]
pub enum Op {
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
    /// The process dies, or the power goes, with a seed for what survives.
    Crash(Option<u64>),
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
        2 => any::<Option<u64>>().prop_map(Op::Crash),
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
    /// Below this index everything was acknowledged, or was on disk at a start.
    acknowledged: u64,
    /// Below this index everything is on disk.
    durable: u64,
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

    /// Everything so far is on disk.
    fn settle(&mut self) {
        self.acknowledged = self.next();
        self.durable = self.next();
    }

    /// Takes over what a crash left: at least what was promised, and nothing but a part of what was there.
    fn after_crash(&mut self, store: &mut Store, power_cut: bool) {
        let promised = if power_cut { self.durable } else { self.acknowledged };
        let (purged, last) = store.log_state();
        assert!(purged <= self.purged, "{purged:?} of {:?}", self.purged);
        if let Some(gone) = self.purged.filter(|gone| purged != Some(*gone)) {
            // A purge waits for nothing, so it may have been lost; what it promised is that this is harmless.
            store.purge(gone.to_raft()).unwrap();
        }
        let next = last.map_or(0, |last| last.index.get() + 1);
        assert!((promised..=self.next()).contains(&next), "{next} of {promised} to {}", self.next());
        // What was purged may be more than what is left: then the purge above has replaced the log.
        let next = next.max(self.first);
        self.entries.truncate(usize::try_from(next - self.first).unwrap());
        self.committed = self.committed.min(next.checked_sub(1));
        self.settle();
        assert_eq!(Some(self.term), store.recovered.vote.map(|vote| vote.term));
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

fn run(home: &mut impl Home, flush: FlushMode, ops: &[Op]) {
    let mut store = home.open();
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
                let next = first + entries.len() as u64;
                let appended = entries.iter().map(|(term, bytes, index)| entry(*term, *index, bytes.clone())).collect();
                // Some are waited for, some are not: all are readable at once.
                if step % 2 == 0 {
                    store.append(appended).unwrap();
                    model.acknowledged = next;
                    if flush == FlushMode::Sync {
                        model.durable = next;
                    }
                } else {
                    drop(store.start_append(appended));
                }
                model.entries.extend(entries.into_iter().map(|(term, bytes, _)| (term, bytes)));
            }
            Op::Vote => {
                model.term += 1;
                store.vote(model.term).unwrap();
                model.settle();
            }
            Op::Truncate(share) => {
                let least = model.committed.map_or(model.first, |committed| committed + 1).max(model.first);
                let end = model.share(least, *share);
                let keep = match end.checked_sub(1) {
                    Some(keep) if keep >= model.first => Some(raft_id(model.term_of(keep), keep)),
                    _ => model.purged.map(LogId::to_raft),
                };
                store.truncate_after(keep).unwrap();
                if end < model.next() {
                    model.entries.truncate(usize::try_from(end - model.first).unwrap());
                    model.settle();
                }
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
                model.settle();
            }
            Op::Stop => {
                store.close();
                store = home.open();
                model.settle();
            }
            Op::Crash(power_cut) => {
                let power_cut = home.crash(store, *power_cut);
                store = home.open();
                model.after_crash(&mut store, power_cut);
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

/// Runs many of them. What fails is noted in a file of seeds, which are tried first the next time.
pub fn check<H: Home>(flush: FlushMode, home: impl Fn() -> H) {
    const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model.proptest-regressions");
    let cases = if std::env::var_os("SLOW_TESTS").is_some() { 2000 } else { 40 };
    let failure_persistence = Some(Box::new(FileFailurePersistence::Direct(SEEDS)) as _);
    let config =
        Config { cases, failure_persistence, source_file: Some(file!()), max_shrink_iters: 2000, ..Config::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(op(), 1..60), |ops| {
            run(&mut home(), flush, &ops);
            Ok(())
        })
        .unwrap();
}
