//! Where the time of a message goes: its path through this broker as spans, for an OpenTelemetry collector.
//!
//! A message is followed if its client says so, by a property `traceparent` as W3C Trace Context defines it, and a share
//! of those of whose clients say nothing. Its way into the log and its way to each consumer are a `Journey` each: a few
//! instants, noted as it passes. Only when the answer has left is a journey handed to the `Collector`, so nothing that a
//! collector does is in anybody's way.
//!
//! ```text
//!  send    |-receive-|-pack-|-replicate---------|-apply-|-answer-|
//!                           |-append----|                           the own log; a majority may be quicker
//!  deliver |-wait----------------|-read-|-answer-|                  wait: held until reput has something
//!  (POP)   |-wait----------------|-read-|-take-|-answer-|           take: the log says that nobody else gets it
//! ```
//!
//! Nothing here knows OpenTelemetry. What does is `otlp`, behind the feature `otel`; without it there is never a
//! collector, and all that is left is a look at an `Option` for each request.

#[cfg(feature = "otel")]
mod otlp;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use raft_store::{LogIndex, LogView};

use crate::config::TracingOptions;

/// The property by which a client says which span a message belongs to.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// Appends whose time is known; more than packs are in flight.
const STORED_MAX: usize = 256;
/// Messages of one batch, and of one answer, that are followed.
pub(crate) const FOLLOWED_MAX: usize = 32;

/// A span of a client, as W3C Trace Context writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    pub(crate) sampled: bool,
}

impl TraceParent {
    /// None if `text` is no `traceparent`: it is treated as if it were not there.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut hex = |digits: usize| {
            let part = parts.next()?;
            let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            (part.len() == digits && part.bytes().all(lower)).then(|| u128::from_str_radix(part, 16).ok())?
        };
        let version = hex(2)?;
        let (trace_id, span_id, flags) = (hex(32)?, u64::try_from(hex(16)?).ok()?, hex(2)?);
        // Later versions may say more.
        let ends = parts.next().is_none();
        let is_known = version != 0xff && (ends || version != 0);
        (is_known && trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}

/// What a client says of a message with these properties; none if it says nothing.
pub(crate) fn said_by_client(properties: &str) -> Option<TraceParent> {
    // Most clients trace nothing: then properties are not taken apart.
    let said = properties.contains(TRACEPARENT).then(|| protocol::message::Properties::new(properties));
    said.and_then(|properties| TraceParent::parse(properties.get(TRACEPARENT)?))
}

/// What a message has gone through, once it is over.
#[derive(Debug)]
#[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "only a collector reads it, and there is none"))]
pub(crate) struct Journey {
    pub(crate) name: &'static str,
    pub(crate) topic: String,
    /// The client's span.
    pub(crate) parent: Option<TraceParent>,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) stages: Vec<Stage>,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    /// Why it ended badly, if it did.
    pub(crate) failed: Option<String>,
}

/// A part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
}

impl Stage {
    pub(crate) const fn new(name: &'static str, began: Instant, ended: Instant) -> Self {
        Self { name, began, ended }
    }
}

/// What is known besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// Takes journeys that are over.
pub(crate) trait Collector: Send + Sync + 'static {
    /// Must be quick: it is called where messages are applied. What it has no room for is lost.
    fn take(&self, journey: Journey);

    /// Sends what it holds, for a moment.
    fn close(&self) -> BoxFuture<'static, ()>;
}

/// Decides whom to follow. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tracer {
    sample_ratio: f64,
    collector: Arc<dyn Collector>,
}

impl Tracer {
    /// Follows messages to the collector that the options name; none if they name none.
    ///
    /// # Errors
    /// What is wrong with the collector's address.
    pub(crate) fn start(options: &TracingOptions, node: &str) -> Result<Option<Self>, String> {
        let Some(endpoint) = &options.endpoint else { return Ok(None) };
        #[cfg(feature = "otel")]
        {
            let collector = Arc::new(otlp::Otlp::start(endpoint, &options.service_name, node)?);
            tracing::info!(endpoint, sample_ratio = options.sample_ratio, "messages are traced");
            Ok(Some(Self { sample_ratio: options.sample_ratio, collector }))
        }
        #[cfg(not(feature = "otel"))]
        {
            let _ = node;
            Err(format!("messages cannot be traced to {endpoint}: this program was built without the feature `otel`"))
        }
    }

    /// For the messages of one group, whose log is `log`.
    pub(crate) fn for_group(&self, log: &LogView) -> GroupTracer {
        let stored = Arc::new(Stored::default());
        let told = Arc::clone(&stored);
        log.tell_stored(move |last| told.note(last, Instant::now()));
        GroupTracer { tracer: self.clone(), stored }
    }

    /// Sends what has been collected, for a moment.
    pub(crate) async fn close(&self) {
        self.collector.close().await;
    }

    /// Whether the dice choose a message of which nobody has said anything.
    fn is_drawn(&self) -> bool {
        self.sample_ratio > 0.0 && rand::random::<f64>() < self.sample_ratio
    }
}

/// Whether a message is followed, and as part of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Followed(pub(crate) Option<TraceParent>);

/// A message of a send that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FollowedMessage {
    pub(crate) followed: Followed,
    /// Its number in the send.
    pub(crate) at: usize,
    /// Its bytes in the log; none: those of the whole send.
    pub(crate) bytes: Option<u64>,
}

impl FollowedMessage {
    /// All messages of the send as one.
    pub(crate) const fn whole(followed: Followed) -> Self {
        Self { followed, at: 0, bytes: None }
    }
}

/// A message of an answer that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FollowedRecord {
    pub(crate) followed: Followed,
    pub(crate) queue_id: u32,
    pub(crate) queue_offset: u64,
}

impl FollowedRecord {
    fn new(followed: Followed, record: &protocol::message::RecordView<'_>) -> Self {
        let number = |value: i64| u64::try_from(value).unwrap_or(0);
        let queue_id = u32::try_from(record.queue_id()).unwrap_or(0);
        Self { followed, queue_id, queue_offset: number(record.queue_offset()) }
    }
}

/// Follows the messages of one group. Cheap to clone.
#[derive(Clone)]
pub struct GroupTracer {
    tracer: Tracer,
    stored: Arc<Stored>,
}

impl GroupTracer {
    /// Whether a message with these properties is followed.
    pub(crate) fn follow(&self, properties: &str) -> Option<Followed> {
        match said_by_client(properties) {
            Some(parent) => parent.sampled.then_some(Followed(Some(parent))),
            None => self.tracer.is_drawn().then_some(Followed(None)),
        }
    }

    /// Whom to follow of a batch with these properties, `members` of which ask for it; `said`: some of them say that they
    /// do, or that they do not.
    pub(crate) fn follow_batch(
        &self,
        properties: &str,
        members: Vec<FollowedMessage>,
        said: bool,
    ) -> Vec<FollowedMessage> {
        let whole = match said_by_client(properties) {
            Some(parent) => parent.sampled.then_some(Followed(Some(parent))),
            None => (!said && self.tracer.is_drawn()).then_some(Followed(None)),
        };
        whole.into_iter().map(FollowedMessage::whole).chain(members).collect()
    }

    /// Whom to follow among the records of an answer.
    pub(crate) fn follow_records(&self, records: &[u8]) -> Vec<FollowedRecord> {
        // Most clients trace nothing: then no record is looked into.
        let any = memchr::memmem::find(records, TRACEPARENT.as_bytes()).is_some();
        let mut said = false;
        let mut followed = Vec::new();
        if any {
            for record in protocol::message::iter_records(records).map_while(Result::ok) {
                let Some(parent) = record.properties().get(TRACEPARENT).and_then(TraceParent::parse) else { continue };
                said = true;
                if parent.sampled && followed.len() < FOLLOWED_MAX {
                    followed.push(FollowedRecord::new(Followed(Some(parent)), &record));
                }
            }
        }
        if !said && self.tracer.is_drawn() {
            let first = protocol::message::iter_records(records).next().and_then(Result::ok);
            followed.extend(first.map(|record| FollowedRecord::new(Followed(None), &record)));
        }
        followed
    }

    /// Hands over a journey that is over.
    pub(crate) fn take(&self, journey: Journey) {
        self.tracer.collector.take(journey);
    }

    /// When the own log had an entry; none if it has not yet.
    pub(crate) fn stored_at(&self, index: u64) -> Option<Instant> {
        self.stored.at(index)
    }
}

/// When the last appends to a log were done.
#[derive(Debug, Default)]
struct Stored(Mutex<VecDeque<(LogIndex, Instant)>>);

impl Stored {
    fn note(&self, last: LogIndex, at: Instant) {
        let mut known = self.0.lock();
        // A log that was cut goes on from an earlier entry.
        while known.back().is_some_and(|(before, _)| *before >= last) {
            known.pop_back();
        }
        if known.len() == STORED_MAX {
            known.pop_front();
        }
        known.push_back((last, at));
    }

    fn at(&self, index: u64) -> Option<Instant> {
        let known = self.0.lock();
        let first = known.partition_point(|(last, _)| last.get() < index);
        // If older ones are forgotten, the first that is known may have been much later.
        let forgotten = first == 0 && known.len() == STORED_MAX;
        known.get(first).filter(|_| !forgotten).map(|(_, at)| *at)
    }
}

/// What the sequencer knows about messages that are followed.
#[derive(Debug, Default)]
pub(crate) struct Passage {
    proposed: OnceLock<Instant>,
    /// The entry that holds them, and how many messages it has.
    entry: OnceLock<(u64, u32)>,
    /// When applying it began and ended.
    applied: OnceLock<(Instant, Instant)>,
}

impl Passage {
    pub(crate) fn proposed(&self, at: Instant) {
        // A pack is proposed once.
        let _ = self.proposed.set(at);
    }

    pub(crate) fn landed(&self, index: u64, messages: u32) {
        let _ = self.entry.set((index, messages));
    }

    pub(crate) fn proposed_at(&self) -> Option<Instant> {
        self.proposed.get().copied()
    }

    pub(crate) fn applied(&self, began: Instant, ended: Instant) {
        let _ = self.applied.set((began, ended));
    }

    pub(crate) fn applied_at(&self) -> Option<(Instant, Instant)> {
        self.applied.get().copied()
    }

    pub(crate) fn entry(&self) -> Option<(u64, u32)> {
        self.entry.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Nobody;

    impl Collector for Nobody {
        fn take(&self, _: Journey) {}

        fn close(&self) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const NOT_SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn tracer(sample_ratio: f64) -> GroupTracer {
        let tracer = Tracer { sample_ratio, collector: Arc::new(Nobody) };
        GroupTracer { tracer, stored: Arc::default() }
    }

    #[test]
    fn a_parent_is_read_as_the_standard_says() {
        let parent = TraceParent::parse(SAMPLED).unwrap();
        assert_eq!(parent.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parent.span_id, parent.sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert!(!TraceParent::parse(NOT_SAMPLED).unwrap().sampled);
        let later = SAMPLED.replacen("00", "cc", 1) + "-more";
        assert!(TraceParent::parse(&later).is_some(), "a later version may say more");
        for wrong in [
            "",
            "00",
            &SAMPLED.to_uppercase(),
            &format!("{SAMPLED}-more"),
            &format!("{SAMPLED}0"),
            &SAMPLED.replacen("00", "ff", 1),
            &SAMPLED.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            &SAMPLED.replace("00f067aa0ba902b7", "0000000000000000"),
            &SAMPLED.replace("4bf92f", "+bf92f"),
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_a_client_says_comes_before_the_dice() {
        let property = |parent: &str| format!("KEYS\u{1}k\u{2}traceparent\u{1}{parent}\u{2}");
        let parent = TraceParent::parse(SAMPLED);
        for ratio in [0.0, 1.0] {
            let follow = |properties: &str| tracer(ratio).follow(properties);
            assert_eq!(follow(&property(SAMPLED)), Some(Followed(parent)));
            assert_eq!(follow(&property(NOT_SAMPLED)), None);
            let drawn = (ratio == 1.0).then_some(Followed(None));
            for silent in ["", "KEYS\u{1}traceparent\u{2}", &property("nonsense")] {
                assert_eq!(follow(silent), drawn, "{silent:?}");
            }
        }
    }

    #[test]
    fn an_append_covers_all_entries_up_to_its_last() {
        let stored = Stored::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(stored.at(1), None);
        stored.note(LogIndex::new(3), at(3));
        stored.note(LogIndex::new(7), at(7));
        assert_eq!(
            [1, 3, 4, 7, 8].map(|index| stored.at(index)),
            [Some(at(3)), Some(at(3)), Some(at(7)), Some(at(7)), None]
        );
        // The log was cut behind entry 4.
        stored.note(LogIndex::new(5), at(9));
        assert_eq!([5, 6].map(|index| stored.at(index)), [Some(at(9)), None]);
        for index in 6..6 + STORED_MAX as u64 {
            stored.note(LogIndex::new(index), at(index));
        }
        assert_eq!(stored.at(3), None, "it is forgotten");
        assert_eq!(stored.at(8), Some(at(8)));
    }
}
