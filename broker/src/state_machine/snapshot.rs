//! The state as bytes: what a checkpoint holds and a snapshot carries.
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 0-7 | `GNTRYCKP` |
//! | 8-11 | format version, 5 |
//! | 12-19 | length of the image |
//! | 20.. | the image, bincode 2 (standard configuration) |
//! | last 4 | CRC-32 over all before |
//!
//! Integers outside the image are big-endian. Equal states give equal bytes on every replica and in every run.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bincode::{Decode, Encode};
use bytes::Bytes;
use protocol::{GroupName, TopicName};

use super::command::{IdentityRecord, QueueKey};
use super::group::GroupConfig;
use super::half::{Half, Halves};
use super::members::Changes;
use super::pop::PopsImage;
use super::state::{
    Counters, DataVersion, EntryId, MembershipImage, Names, QueueCounter, QueueLease, Registry, State, TopicOffsets,
};
use super::timer::Timers;
use super::topic::TopicConfig;
use super::topic_log::TopicLog;

const MAGIC: [u8; 8] = *b"GNTRYCKP";
const VERSION: u32 = 6;
/// The version before, which knew no changes of members.
const WITHOUT_CHANGES: u32 = 5;
/// How an image of that version would end.
const NO_CHANGES: [u8; 2] = [0; 2];
const HEADER_BYTES: usize = 20;
const CRC_BYTES: usize = 4;

const CONFIG: bincode::config::Configuration = bincode::config::standard();

/// Why bytes are no snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Not a snapshot, or cut short.
    #[error("not a checkpoint, or cut short")]
    Shape,
    /// Written by another version.
    #[error("unknown checkpoint version {found}, this program reads {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
    /// The checksum does not fit.
    #[error("checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The checksum of the bytes.
        found: u32,
        /// The checksum they carry.
        expected: u32,
    },
    /// The image does not decode.
    #[error("decoding a checkpoint: {0}")]
    Decode(#[from] bincode::error::DecodeError),
    /// The image contradicts itself.
    #[error("checkpoint contradicts itself: {0}")]
    Contradiction(&'static str),
}

/// Everything the log said up to one entry.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Image {
    pub(crate) cluster_id: [u8; 16],
    /// The entry.
    pub(crate) applied: EntryId,
    /// Where its log record starts.
    pub(crate) last_position: u64,
    /// Where the log goes on.
    pub(crate) resume: ResumeImage,
    pub(crate) membership: MembershipImage,
    names: Option<Names>,
    topics: Vec<TopicConfig>,
    topic_version: DataVersion,
    groups: Vec<GroupConfig>,
    group_version: DataVersion,
    #[bincode(with_serde)]
    offsets: BTreeMap<GroupName, TopicOffsets>,
    offset_version: DataVersion,
    #[bincode(with_serde)]
    resets: BTreeMap<GroupName, TopicOffsets>,
    locks: Vec<LockImage>,
    settings: BTreeMap<String, String>,
    marks: BTreeMap<String, u64>,
    identities: Vec<IdentityRecord>,
    /// By name.
    pub(crate) queues: Vec<TopicImage>,
    halves: HalvesImage,
    pops: PopsImage,
    /// See [`Timers::pack`].
    timers: Vec<u8>,
    /// Last, for version 5 ends before it.
    changes: Changes,
}

/// Transactions that are pending or were given up.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
struct HalvesImage {
    pending: BTreeMap<u64, Half>,
    given_up: BTreeSet<u64>,
}

/// Where the record after an entry goes, and the checksum it is chained to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct ResumeImage {
    pub(crate) position: u64,
    pub(crate) chain: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
struct LockImage {
    #[bincode(with_serde)]
    group: GroupName,
    queues: Vec<(QueueKey, QueueLease)>,
}

/// The queues of one topic.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct TopicImage {
    #[bincode(with_serde)]
    pub(crate) name: TopicName,
    /// Index of the entry that created it.
    pub(crate) born: u64,
    queues: u32,
    pub(crate) counters: Vec<QueueCounter>,
}

impl State {
    /// The state as an image; none before the first entry.
    pub(crate) fn to_image(&self, cluster_id: [u8; 16], resume: ResumeImage) -> Option<Image> {
        let registry = self.registry.read();
        let halves = self.halves.read();
        let pops = self.pops.read();
        let mut topics: Vec<TopicConfig> = registry.topics.values().map(|topic| TopicConfig::clone(topic)).collect();
        topics.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut groups: Vec<GroupConfig> = registry.groups.values().map(|group| GroupConfig::clone(group)).collect();
        groups.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let locks = registry.locks.iter().map(|(group, locks)| LockImage {
            group: group.clone(),
            queues: locks.iter().map(|(queue, lease)| (queue.clone(), lease.clone())).collect(),
        });
        let queues = self.counters.sorted().into_iter().map(|topic| TopicImage {
            name: topic.handle.name.clone(),
            born: topic.handle.born,
            queues: topic.queues,
            counters: topic.counters.clone(),
        });
        Some(Image {
            cluster_id,
            applied: self.applied?,
            last_position: self.last_position,
            resume,
            membership: self.membership.clone(),
            names: registry.names.as_deref().cloned(),
            topics,
            topic_version: registry.topic_version,
            groups,
            group_version: registry.group_version,
            offsets: registry.offsets.clone(),
            offset_version: registry.offset_version,
            resets: registry.resets.clone(),
            locks: locks.collect(),
            settings: (*registry.settings).clone(),
            marks: registry.marks.clone(),
            identities: registry.identities.values().cloned().collect(),
            queues: queues.collect(),
            halves: HalvesImage { pending: halves.pending.clone(), given_up: halves.given_up.clone() },
            pops: PopsImage::of(&pops),
            timers: self.timers.read().pack(),
            changes: registry.changes.clone(),
        })
    }

    /// Becomes what the image says. Readers of the registry see the new contents at once.
    pub(crate) fn load(&mut self, image: &Image) {
        let mut counters = Counters::default();
        for topic in &image.queues {
            counters.insert(topic.name.clone(), topic.queues, topic.born, topic.counters.clone());
        }
        self.counters = counters;
        self.applied = Some(image.applied);
        self.last_position = image.last_position;
        self.membership = image.membership.clone();
        *self.registry.write() = image.registry();
        let HalvesImage { pending, given_up } = image.halves.clone();
        *self.halves.write() = Halves { pending, given_up };
        *self.pops.write() = image.pops.to_pops();
        *self.timers.write() = Timers::unpack(&image.timers).expect("decoding an image checks its timers");
    }

    /// A state that starts from an image.
    pub(crate) fn from_image(image: &Image) -> Self {
        let mut state = Self::default();
        state.load(image);
        state
    }
}

impl Image {
    fn registry(&self) -> Registry {
        let locks = self.locks.iter().map(|lock| (lock.group.clone(), lock.queues.iter().cloned().collect()));
        Registry {
            names: self.names.clone().map(Arc::new),
            topics: self.topics.iter().map(|topic| (topic.name.clone(), Arc::new(topic.clone()))).collect(),
            topic_version: self.topic_version,
            topic_log: TopicLog::behind(self.topic_version.counter),
            groups: self.groups.iter().map(|group| (group.name.clone(), Arc::new(group.clone()))).collect(),
            group_version: self.group_version,
            offsets: self.offsets.clone(),
            offset_version: self.offset_version,
            resets: self.resets.clone(),
            locks: locks.collect(),
            settings: Arc::new(self.settings.clone()),
            marks: self.marks.clone(),
            identities: self.identities.iter().map(|identity| (identity.node_id, identity.clone())).collect(),
            changes: self.changes.clone(),
        }
    }

    /// The bytes of a checkpoint file.
    pub(crate) fn encode(&self) -> Bytes {
        let image = bincode::encode_to_vec(self, CONFIG).expect("encoding into memory cannot fail");
        let mut out = Vec::with_capacity(HEADER_BYTES + image.len() + CRC_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&(image.len() as u64).to_be_bytes());
        out.extend_from_slice(&image);
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out.into()
    }

    /// Reads the bytes of a checkpoint file.
    ///
    /// # Errors
    /// Anything but exactly what [`Image::encode`] writes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let (body, crc) = bytes.split_last_chunk::<CRC_BYTES>().ok_or(SnapshotError::Shape)?;
        let (magic, rest) = body.split_first_chunk::<8>().ok_or(SnapshotError::Shape)?;
        let (version, rest) = rest.split_first_chunk::<4>().ok_or(SnapshotError::Shape)?;
        let (length, image) = rest.split_first_chunk::<8>().ok_or(SnapshotError::Shape)?;
        if *magic != MAGIC {
            return Err(SnapshotError::Shape);
        }
        let version = u32::from_be_bytes(*version);
        if version != VERSION && version != WITHOUT_CHANGES {
            return Err(SnapshotError::Version { found: version });
        }
        if u64::from_be_bytes(*length) != image.len() as u64 {
            return Err(SnapshotError::Shape);
        }
        let (found, expected) = (crc32fast::hash(body), u32::from_be_bytes(*crc));
        if found != expected {
            return Err(SnapshotError::Checksum { found, expected });
        }
        let mut image = Cow::Borrowed(image);
        if version == WITHOUT_CHANGES {
            image.to_mut().extend(NO_CHANGES);
        }
        let length = image.len();
        let (image, used): (Self, usize) = bincode::decode_from_slice(&image, CONFIG)?;
        if used != length {
            return Err(SnapshotError::Shape);
        }
        let sorted = image.queues.windows(2).all(|pair| pair[0].name < pair[1].name);
        if !sorted || image.queues.iter().any(|topic| topic.counters.len() > super::topic::QUEUES_MAX as usize) {
            return Err(SnapshotError::Contradiction("its queues are not in order"));
        }
        if Timers::unpack(&image.timers).is_none() {
            return Err(SnapshotError::Contradiction("its timers are not in order"));
        }
        Ok(image)
    }
}
