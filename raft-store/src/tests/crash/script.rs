//! A workload for a recording disk, and what it was promised by when.

use std::collections::BTreeMap;

use super::*;
use crate::ids::{LogId, LogPosition};
use crate::view::ResumePoint;
use crate::{Body, LogEntry};

/// Where the state machine's checkpoints lie, and the file that names the one that counts.
pub(super) const CHECKPOINTS: &str = "checkpoints";
pub(super) const CURRENT: &str = "checkpoints/current";

/// What the workload asked for, and what it was told. In order; a moment of the disk is marked with how many there
/// were.
#[derive(Clone, Debug)]
enum Fact {
    Voting(u64),
    Voted(u64),
    Appending(Vec<LogEntry>),
    /// All up to this index, and whether the disk has them.
    Appended(u64, bool),
    /// From this index on.
    Cutting(u64),
    Cut(u64),
    Purging(LogId),
    /// A snapshot that ends with this entry replaces the log.
    Replacing(LogId),
    Replaced(LogId),
    /// Everything that was there is on disk: the store was closed or opened.
    Durable,
}

/// What a disk may hold.
#[derive(Clone, Default)]
pub(super) struct Promises {
    /// Every entry that may be at an index: the acknowledged one, and those on their way.
    pub(super) possible: BTreeMap<u64, Vec<LogEntry>>,
    /// Entries up to here must be there after a kill.
    floor: Option<u64>,
    /// And up to here after a power cut.
    durable_floor: Option<u64>,
    /// The last vote that was answered, and the last that was asked for.
    pub(super) voted: u64,
    pub(super) voting: u64,
    pub(super) purging: Option<LogId>,
    replacing: Option<LogId>,
    pub(super) replaced: Option<LogId>,
    taken: usize,
}

impl Promises {
    fn take(&mut self, fact: &Fact) {
        match fact {
            Fact::Voting(term) => self.voting = *term,
            Fact::Voted(term) => {
                self.voted = *term;
                self.durable_floor = self.floor;
            }
            Fact::Appending(entries) => {
                for entry in entries {
                    self.possible.entry(entry.log_index().get()).or_default().push(entry.clone());
                }
            }
            Fact::Appended(last, durable) => {
                for possible in self.possible.range_mut(self.floor.map_or(0, |floor| floor + 1)..=*last) {
                    possible.1.drain(..possible.1.len() - 1);
                }
                self.floor = Some(*last);
                if *durable {
                    self.durable_floor = self.floor;
                }
            }
            Fact::Cutting(from) => {
                self.floor = self.floor.min(from.checked_sub(1));
                self.durable_floor = self.durable_floor.min(from.checked_sub(1));
            }
            Fact::Cut(from) => {
                self.possible.retain(|index, _| index < from);
                self.durable_floor = self.floor;
            }
            Fact::Purging(id) => self.purging = Some(*id),
            Fact::Replacing(id) => self.replacing = Some(*id),
            Fact::Replaced(id) => {
                self.possible.clear();
                (self.floor, self.durable_floor) = (None, None);
                (self.replaced, self.purging, self.replacing) = (Some(*id), Some(*id), None);
            }
            Fact::Durable => self.durable_floor = self.floor,
        }
        self.taken += 1;
    }

    /// Up to which index entries must be there, if the log now begins behind `purged`.
    pub(super) fn floor(&self, purged: Option<LogId>, power_cut: bool) -> Option<u64> {
        if self.replacing.is_some() && purged == self.replacing {
            return None;
        }
        if power_cut { self.durable_floor } else { self.floor }
    }

    /// Whether the log may begin behind `purged`.
    pub(super) fn may_be_purged(&self, purged: Option<LogId>) -> bool {
        let replacing = self.replacing.is_some() && purged == self.replacing;
        (self.replaced <= purged && purged <= self.purging) || replacing
    }
}

/// The workload.
pub(super) struct Script {
    disk: Arc<SimulatedDisk>,
    options: Options,
    store: Option<Store>,
    numbers: Numbers,
    facts: Vec<Fact>,
    term: u64,
    /// Terms of the entries, by index.
    terms: BTreeMap<u64, u64>,
    next: u64,
    committed: Option<u64>,
    purged: Option<u64>,
    checkpoints: Vec<u64>,
    /// How often what was done.
    pub(super) counts: BTreeMap<&'static str, usize>,
}

impl Script {
    /// Runs `operations` of them, chosen by `seed`.
    pub(super) fn run(disk: &Arc<SimulatedDisk>, options: &Options, seed: u64, operations: usize) -> Self {
        let mut this = Self {
            disk: Arc::clone(disk),
            options: options.clone(),
            store: None,
            numbers: Numbers::new(seed),
            facts: Vec::new(),
            term: 0,
            terms: BTreeMap::new(),
            next: 0,
            committed: None,
            purged: None,
            checkpoints: Vec::new(),
            counts: BTreeMap::new(),
        };
        this.start();
        this.vote();
        for _ in 0..operations {
            match this.numbers.below(100) {
                0..62 => this.append(),
                62..70 => this.vote(),
                70..77 => this.truncate(),
                77..86 => this.commit(),
                86..91 => this.purge(),
                91 => this.replace(),
                92..95 => this.stop(),
                95..97 => this.kill(),
                _ => this.checkpoint(),
            }
        }
        this.stop();
        this
    }

    /// The promises as of each mark, in order.
    pub(super) fn promises(&self) -> Vec<Promises> {
        let mut promises = vec![Promises::default()];
        for fact in &self.facts {
            let mut next = promises.last().cloned().unwrap();
            next.take(fact);
            promises.push(next);
        }
        promises
    }

    fn store(&mut self) -> &mut Store {
        self.store.as_mut().unwrap()
    }

    fn tell(&mut self, fact: Fact) {
        self.facts.push(fact);
        self.disk.set_mark(self.facts.len());
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn start(&mut self) {
        self.store = Some(open_at(&self.disk, self.options.clone(), "boot").unwrap());
        self.tell(Fact::Durable);
    }

    fn stop(&mut self) {
        self.count("stop");
        self.store.take().unwrap().view.close().unwrap();
        self.start();
    }

    fn kill(&mut self) {
        self.count("kill");
        self.store.take().unwrap().kill();
        self.start();
    }

    fn vote(&mut self) {
        self.count("vote");
        self.term += 1;
        let term = self.term;
        self.tell(Fact::Voting(term));
        self.store().vote(term).unwrap();
        self.tell(Fact::Voted(term));
    }

    fn append(&mut self) {
        let base = |store: &Store| store.view.watermarks().end.get() / (16 << 10);
        let before = base(self.store());
        let (term, first) = (self.term, self.next);
        let mut entries: Vec<LogEntry> = Vec::new();
        for index in first..first + 1 + self.numbers.below(4) {
            let longest = if self.numbers.below(4) == 0 { 5000 } else { 600 };
            let bytes = usize::try_from(self.numbers.below(longest)).unwrap();
            // Zeros too: they look like what a crash leaves.
            let fill = u8::try_from(self.numbers.below(256)).unwrap() & if bytes % 5 == 0 { 0 } else { 255 };
            entries.push(entry(term, index, vec![fill; bytes]));
            self.terms.insert(index, term);
        }
        let insists = self.numbers.below(8) == 0;
        if insists {
            entries.push(LogEntry::new(id(term, first), Body::Membership(support::membership(&[1, 2, 3]))));
            let index = first + entries.len() as u64 - 1;
            *entries.last_mut().unwrap() = LogEntry::new(id(term, index), entries.last().unwrap().body.clone());
            self.terms.insert(index, term);
        }
        self.next += entries.len() as u64;
        self.tell(Fact::Appending(entries.clone()));
        self.store().append(entries).unwrap();
        let durable = insists || self.options.flush == FlushMode::Sync;
        self.tell(Fact::Appended(self.next - 1, durable));
        let after = base(self.store());
        if after > before {
            self.count("roll");
        }
    }

    fn truncate(&mut self) {
        let least = self.committed.max(self.purged).map_or(0, |least| least + 1);
        if least >= self.next {
            return;
        }
        let from = least + self.numbers.below(self.next - least);
        self.count("truncation");
        self.tell(Fact::Cutting(from));
        let keep = from.checked_sub(1).map(|keep| raft_id(self.terms[&keep], keep));
        self.store().truncate_after(keep).unwrap();
        self.tell(Fact::Cut(from));
        self.next = from;
    }

    fn commit(&mut self) {
        let Some(last) = self.next.checked_sub(1).filter(|last| self.purged.is_none_or(|purged| *last > purged)) else {
            return;
        };
        let least = self.committed.unwrap_or(0);
        let committed = least + self.numbers.below(last.saturating_sub(least) + 1);
        self.committed = Some(committed);
        let committed = raft_id(self.terms[&committed], committed);
        self.store().commit(committed);
    }

    /// A checkpoint of what is committed, as the state machine writes them.
    fn checkpoint(&mut self) {
        let Some(committed) = self.committed.filter(|committed| !self.checkpoints.contains(committed)) else { return };
        self.count("checkpoint");
        let name = format!("{CHECKPOINTS}/{committed}");
        self.disk.write_file(&name, &contents_of(committed)).unwrap();
        self.checkpoints.push(committed);
    }

    /// The newest checkpoint becomes the one that counts, those before it go, and the log up to it.
    fn purge(&mut self) {
        self.checkpoint();
        let Some(through) = self.checkpoints.last().copied().filter(|newest| self.purged < Some(*newest)) else {
            return;
        };
        self.count("purge");
        self.make_current(through);
        let id = id(self.terms[&through], through);
        self.tell(Fact::Purging(id));
        self.store().purge(id.to_raft()).unwrap();
        self.purged = Some(through);
    }

    fn make_current(&mut self, through: u64) {
        self.disk.write_file(CURRENT, through.to_string().as_bytes()).unwrap();
        let older: Vec<String> = self
            .checkpoints
            .iter()
            .filter(|older| **older < through)
            .map(|older| format!("{CHECKPOINTS}/{older}"))
            .collect();
        crate::region::Files::remove(&*self.disk, &older).unwrap();
        self.checkpoints.retain(|older| *older >= through);
    }

    /// A snapshot comes in that replaces the log by one that goes on further up.
    fn replace(&mut self) {
        self.count("replacement");
        let index = self.next + 1 + self.numbers.below(20);
        let id = id(self.term, index);
        self.disk.write_file(&format!("{CHECKPOINTS}/{index}"), &contents_of(index)).unwrap();
        self.checkpoints.push(index);
        self.make_current(index);
        let segments = 1 + self.numbers.below(2);
        let base = (self.store().view.watermarks().end.get() / (16 << 10) + segments) * (16 << 10);
        let position = LogPosition::new(base + 4096 + 64 * self.numbers.below(30));
        self.store().view.set_resume_point(id, ResumePoint { position, chain: 77 });
        self.tell(Fact::Replacing(id));
        self.store().purge(id.to_raft()).unwrap();
        self.tell(Fact::Replaced(id));
        self.terms.insert(index, id.term.get());
        (self.next, self.committed, self.purged) = (index + 1, Some(index), Some(index));
    }
}

/// What a checkpoint of an entry holds.
pub(super) fn contents_of(index: u64) -> Vec<u8> {
    vec![u8::try_from(index % 251).unwrap() + 1; 5000]
}
