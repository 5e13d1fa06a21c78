//! Operations from a seed: what a producer asks for next, drawn from its own stream.
//!
//! Each seed switches features on or off and draws rates and sizes, so that runs differ from each other more than their
//! own operations do. The same seed and process give the same operations whatever the others do.

use crate::history::{Decision, Process, SendMode};
use crate::seed::{Seed, Stream};

/// The largest body that is drawn: above it one message fills a segment of the small stores of test clusters.
const BODY_BYTES_MAX: u64 = 16 << 10;
/// Messages of one batch.
const BATCH_MAX: u64 = 8;

/// What a run asks for, drawn once from its seed. Rates are percents of a producer's operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    pub queues: u32,
    /// Different tags; none if 0.
    pub tags: u64,
    /// Different sharding keys; none if 0.
    pub keys: u64,
    pub batch: u64,
    pub delay: u64,
    pub half: u64,
    pub oneway: u64,
    pub max_offset: u64,
    pub body_bytes_max: u64,
}

impl Mix {
    /// Everything that a broker can be asked for, or a part of it.
    pub fn drawn(seed: Seed, queues: u32) -> Self {
        let mut stream = seed.stream("plan.mix");
        let mut feature = |rate_max: u64| if stream.chance(70) { stream.between(1, rate_max) } else { 0 };
        Self {
            queues,
            tags: feature(4),
            keys: feature(8),
            batch: feature(15),
            delay: feature(10),
            half: feature(15),
            oneway: feature(10),
            max_offset: feature(20),
            body_bytes_max: 1 << feature(14),
        }
    }

    /// Single messages and batches with reads of the maximum: the queue workload.
    pub fn queue(seed: Seed, queues: u32) -> Self {
        Self { delay: 0, half: 0, oneway: 0, ..Self::drawn(seed, queues) }
    }
}

/// What a process means to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    Send(Draft),
    Batch(Vec<Draft>),
    SendDelay(Draft, u64),
    /// A half message, and what its producer will decide; none leaves it open.
    SendHalf(Draft, Option<Decision>),
    MaxOffset(u32),
}

/// A message to send. All messages of a batch have the queue of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    pub queue: u32,
    pub sequence: u32,
    pub mode: SendMode,
    pub tag: Option<Box<str>>,
    pub key: Option<Box<str>>,
    pub body_bytes: u64,
}

/// The operations of one producer.
pub struct Operations {
    mix: Mix,
    stream: Stream,
    sequence: u32,
}

impl Operations {
    pub fn new(seed: Seed, process: Process, mix: Mix) -> Self {
        assert!(mix.queues > 0, "a producer needs a queue");
        Self { mix, stream: seed.stream(&format!("ops.{process}")), sequence: 0 }
    }

    /// What to do next.
    #[expect(clippy::should_implement_trait, reason = "operations never end, so they are no iterator")]
    pub fn next(&mut self) -> Intent {
        let mut left = self.stream.below(100);
        let mut within = |rate: u64| {
            let hit = left < rate;
            left = left.saturating_sub(rate);
            hit
        };
        if within(self.mix.batch) {
            let queue = self.queue();
            let count = self.stream.between(2, BATCH_MAX);
            let plain = |draft| Draft { queue, tag: None, key: None, mode: SendMode::Sync, ..draft };
            return Intent::Batch((0..count).map(|_| plain(self.draft())).collect());
        }
        if within(self.mix.delay) {
            let delay_ms = self.stream.between(1, 5) * 1_000;
            return Intent::SendDelay(self.draft(), delay_ms);
        }
        if within(self.mix.half) {
            let decision = match self.stream.below(10) {
                0 => None,
                1..=3 => Some(Decision::Rollback),
                _ => Some(Decision::Commit),
            };
            return Intent::SendHalf(self.draft(), decision);
        }
        if within(self.mix.max_offset) {
            return Intent::MaxOffset(self.queue());
        }
        let mode = if within(self.mix.oneway) { SendMode::Oneway } else { SendMode::Sync };
        Intent::Send(Draft { mode, ..self.draft() })
    }

    fn queue(&mut self) -> u32 {
        u32::try_from(self.stream.below(u64::from(self.mix.queues))).unwrap_or_default()
    }

    fn draft(&mut self) -> Draft {
        let sequence = self.sequence;
        self.sequence += 1;
        let tag = (self.mix.tags > 0).then(|| format!("tag{}", self.stream.below(self.mix.tags)).into());
        // A sharding key always leads to the same queue.
        let key = (self.mix.keys > 0).then(|| self.stream.below(self.mix.keys));
        let queue = match key {
            Some(key) => u32::try_from(key % u64::from(self.mix.queues)).unwrap_or_default(),
            None => self.queue(),
        };
        let body_bytes = self.stream.between(0, self.mix.body_bytes_max.min(BODY_BYTES_MAX));
        let key = key.map(|key| format!("key{key}").into());
        Draft { queue, sequence, mode: SendMode::Sync, tag, key, body_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::{Intent, Mix, Operations};
    use crate::history::Process;
    use crate::seed::Seed;

    fn some(seed: u64, worker: u16) -> Vec<Intent> {
        let seed = Seed(seed);
        let mut operations = Operations::new(seed, Process { client: 1, worker }, Mix::drawn(seed, 4));
        (0..200).map(|_| operations.next()).collect()
    }

    #[test]
    fn a_seed_gives_the_same_operations_again() {
        assert_eq!(some(3, 1), some(3, 1));
        assert_ne!(some(3, 1), some(3, 2));
        assert_ne!(some(3, 1), some(4, 1));
    }

    #[test]
    fn sequences_are_never_used_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for intent in some(5, 1) {
            let drafts = match intent {
                Intent::Send(draft) | Intent::SendDelay(draft, _) | Intent::SendHalf(draft, _) => vec![draft],
                Intent::Batch(drafts) => drafts,
                Intent::MaxOffset(_) => vec![],
            };
            drafts.into_iter().for_each(|draft| assert!(seen.insert(draft.sequence)));
        }
    }
}
