//! Applies one entry: pure, and the same on every replica.
//!
//! No clock, no randomness, no order of a hash map: time comes stamped in the command. An entry that is not the next
//! one, or that this version does not know in full, is an error, and apply goes no further.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::GroupName;
use protocol::message::{RecordError, RecordView, iter_records};
use raft_store::LOST_STORE;

use super::command::{
    self, Command, GroupQueue, IdentityRecord, IdentityWanted, OffsetCommit, OffsetsOfDeleted, Parsed, PayloadError,
    PutMode, QueueKey, ResetHold,
};
use super::half::{GIVEN_UP_TOPIC, HALF_TOPIC, Half, HalfEnd, HalfPlace, Halves};
use super::pop::{PopAction, PopStep, Pops};
use super::reply::{Appended, ApplyReply, CommandRefused, CommandReply, MessageOutcome, MessageRefused, PackReply};
use super::state::{Counters, EntryId, MembershipImage, Names, QueueCounter, QueueLease, Registry, State, TopicHandle};
use super::timer::{self, TIMER_TOPIC, Timer, Timers};
use super::topic::{PERM_ALL, QUEUES_MAX, TopicConfig};
use super::topic_log::TopicLog;

/// An entry that cannot be applied. The state machine stops here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The entry is not the one after the last applied.
    #[error("entry {found} handed to apply, expected {expected}")]
    NotNext {
        /// Index handed over.
        found: u64,
        /// Index expected.
        expected: u64,
    },
    /// The entry's place in the log is not known.
    #[error("entry {index} has no position in the log")]
    NoPosition {
        /// Its index.
        index: u64,
    },
    /// The payload is not understood.
    #[error("entry {index}: {source}")]
    Payload {
        /// Its index.
        index: u64,
        /// Why.
        source: PayloadError,
    },
    /// A message record is damaged.
    #[error("entry {index}: bad message record at byte {at} of the payload: {source}")]
    Record {
        /// Its index.
        index: u64,
        /// Where in the payload.
        at: usize,
        /// What is wrong.
        source: RecordError,
    },
}

/// An entry as apply sees it.
pub(crate) struct EntryView<'a> {
    pub(crate) id: EntryId,
    /// Where its log record starts.
    pub(crate) position: u64,
    /// Where its payload starts.
    pub(crate) payload_position: u64,
    pub(crate) body: BodyView<'a>,
}

pub(crate) enum BodyView<'a> {
    Blank,
    Membership(MembershipImage),
    Payload(&'a [u8]),
}

/// What an applied entry did.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    pub(crate) reply: ApplyReply,
    /// Messages that got a queue offset, for reput.
    pub(crate) assigned: Vec<Assigned>,
    /// Topics that ended with this entry, before its messages.
    pub(crate) deleted: Vec<Arc<TopicHandle>>,
    /// Whether the entry says how the group flushes.
    pub(crate) says_flush: bool,
    /// Queues whose first messages are hidden from now on.
    pub(crate) hidden: Vec<Hidden>,
}

/// The first messages of a queue are hidden.
#[derive(Clone, Debug)]
pub(crate) struct Hidden {
    pub(crate) topic: Arc<TopicHandle>,
    pub(crate) queue_id: u32,
    /// The first offset that is not.
    pub(crate) end: u64,
}

/// A message that got its queue offset.
#[derive(Clone, Debug)]
pub(crate) struct Assigned {
    pub(crate) topic: Arc<TopicHandle>,
    pub(crate) queue_id: u32,
    pub(crate) queue_offset: u64,
    /// Where its record starts in the payload.
    pub(crate) at: u32,
    pub(crate) size: u32,
}

impl State {
    /// Applies the entry after the last applied one.
    ///
    /// # Errors
    /// The state is unchanged, and no later entry may be applied.
    pub(crate) fn apply(&mut self, entry: &EntryView<'_>) -> Result<Applied, ApplyError> {
        let index = entry.id.index;
        // The first entry of a log has index 0.
        let expected = self.applied.map_or(0, |id| id.index + 1);
        if index != expected {
            return Err(ApplyError::NotNext { found: index, expected });
        }
        let mut applied = Applied::default();
        match &entry.body {
            BodyView::Blank => {}
            BodyView::Membership(membership) => self.membership = membership.clone(),
            BodyView::Payload(payload) => {
                let parsed = command::parse_payload(payload).map_err(|source| ApplyError::Payload { index, source })?;
                match parsed {
                    Parsed::Pack => {
                        let records = place_records(payload, 0, index)?;
                        let messages = self.apply_records(&records, entry.payload_position, &mut applied.assigned);
                        applied.reply = ApplyReply::Pack(messages);
                    }
                    Parsed::Command { command, records_at } => {
                        applied.says_flush = matches!(&command, Command::PutSettings { settings, .. }
                            if settings.contains_key(command::FLUSH_SETTING));
                        let mut records = place_records(payload, records_at, index)?;
                        let reply = self.apply_command(command, index, &mut records, &mut applied);
                        let messages = if let CommandReply::Refused(_) = reply {
                            let refused = MessageOutcome::Refused(MessageRefused::CommandRefused);
                            PackReply { outcomes: vec![refused; records.len()] }
                        } else {
                            self.apply_records(&records, entry.payload_position, &mut applied.assigned)
                        };
                        applied.reply = ApplyReply::Command { reply, messages };
                    }
                }
            }
        }
        self.applied = Some(entry.id);
        self.last_position = entry.position;
        Ok(applied)
    }

    /// Gives each record the next offset of its queue.
    fn apply_records(
        &mut self,
        records: &[Placed<'_>],
        payload_position: u64,
        assigned: &mut Vec<Assigned>,
    ) -> PackReply {
        let mut outcomes = Vec::with_capacity(records.len());
        assigned.reserve(records.len());
        // Neighbours are mostly of one topic.
        let mut topic_before = "";
        let mut slot: Option<usize> = None;
        for record in records {
            if record.topic != topic_before {
                topic_before = record.topic;
                slot = self.counters.slot_of(record.topic);
            }
            let outcome = match slot.and_then(|slot| self.counters.slot_mut(slot)) {
                None => MessageOutcome::Refused(MessageRefused::NoTopic),
                Some(topic) if record.queue_id >= topic.queues => MessageOutcome::Refused(MessageRefused::NoQueue),
                Some(topic) => {
                    let queue = record.queue_id as usize;
                    if topic.counters.len() <= queue {
                        topic.counters.resize(queue + 1, QueueCounter::default());
                    }
                    let counter = &mut topic.counters[queue];
                    let queue_offset = counter.next_offset;
                    let physical_offset = payload_position + record.at as u64;
                    counter.next_offset += 1;
                    counter.last_physical_offset = physical_offset;
                    assigned.push(Assigned {
                        topic: Arc::clone(&topic.handle),
                        queue_id: record.queue_id,
                        queue_offset,
                        at: u32::try_from(record.at).expect("a payload is shorter than 4 GiB"),
                        size: record.size,
                    });
                    MessageOutcome::Appended(Appended { queue_offset, physical_offset })
                }
            };
            if let (MessageOutcome::Appended(Appended { queue_offset, physical_offset }), Some(mark)) =
                (outcome, &record.mark)
            {
                match &**mark {
                    Mark::Half(half) => {
                        self.halves.write().stored(HalfPlace { queue_offset, physical_offset }, half.clone());
                    }
                    Mark::GivenUp => self.halves.write().gave_up(physical_offset),
                    Mark::Timer { due_ms } => self.timers.write().stored(Timer { due_ms: *due_ms, physical_offset }),
                }
            }
            outcomes.push(outcome);
        }
        PackReply { outcomes }
    }

    fn apply_command(
        &mut self,
        command: Command,
        index: u64,
        records: &mut [Placed<'_>],
        applied: &mut Applied,
    ) -> CommandReply {
        let registry = Arc::clone(&self.registry);
        let registry = &mut *registry.write();
        let counters = &mut self.counters;
        let pops = &self.pops;
        let result = match command {
            Command::Bootstrap(bootstrap) => {
                if registry.names.is_some() {
                    Err(CommandRefused::AlreadyBootstrapped)
                } else {
                    put_topics(registry, counters, bootstrap.topics, PutMode::CreateOnly, bootstrap.stamped_ms, index)
                        .map(|_| {
                            registry.names = Some(Arc::new(Names {
                                cluster: bootstrap.cluster_name,
                                broker: bootstrap.broker_name,
                            }));
                            for group in bootstrap.groups {
                                registry.groups.entry(group.name.clone()).or_insert_with(|| Arc::new(group));
                            }
                            registry.group_version.bump(bootstrap.stamped_ms);
                            CommandReply::Done
                        })
                }
            }
            Command::PutTopics { topics, mode, stamped_ms } => {
                put_topics(registry, counters, topics, mode, stamped_ms, index)
            }
            Command::DeleteTopic { topic, stamped_ms } => match registry.topics.remove(&topic) {
                None => Err(CommandRefused::NoTopic),
                Some(_) => {
                    applied.deleted.extend(counters.remove(&topic));
                    for table in [&mut registry.offsets, &mut registry.resets] {
                        table.retain(|_, topics| {
                            topics.remove(&topic);
                            !topics.is_empty()
                        });
                    }
                    registry.locks.retain(|_, locks| {
                        locks.retain(|queue, _| queue.topic != topic);
                        !locks.is_empty()
                    });
                    pops.write().forget_topic(&topic);
                    registry.topic_version.bump(stamped_ms);
                    registry.topic_log.note(registry.topic_version.counter, topic);
                    Ok(CommandReply::Done)
                }
            },
            Command::PutGroups { groups, mode, stamped_ms } => {
                let mut created = Vec::with_capacity(groups.len());
                let mut changed = false;
                for group in groups {
                    let new = !registry.groups.contains_key(&group.name);
                    created.push(new);
                    if new || mode == PutMode::Replace {
                        registry.groups.insert(group.name.clone(), Arc::new(group));
                        changed = true;
                    }
                }
                if changed {
                    registry.group_version.bump(stamped_ms);
                }
                Ok(CommandReply::Put { created })
            }
            Command::DeleteGroup { group, offsets, stamped_ms } => {
                if offsets == OffsetsOfDeleted::Delete {
                    registry.offsets.remove(&group);
                    registry.resets.remove(&group);
                }
                registry.locks.remove(&group);
                pops.write().forget_group(&group);
                match registry.groups.remove(&group) {
                    None => Err(CommandRefused::NoGroup),
                    Some(_) => {
                        registry.group_version.bump(stamped_ms);
                        Ok(CommandReply::Done)
                    }
                }
            }
            Command::CommitOffsets { commits, stamped_ms } => {
                Ok(commit_offsets(registry, counters, &mut pops.write(), commits, stamped_ms))
            }
            Command::ResetOffsets { group, topic, offsets, hold, stamped_ms } => match counters.topic(&topic) {
                None => Err(CommandRefused::NoTopic),
                Some(counters) if offsets.iter().any(|(queue_id, _)| *queue_id >= counters.queues) => {
                    Err(CommandRefused::Invalid("the topic has no such queue"))
                }
                Some(_) => {
                    let stored = registry.offsets.entry(group.clone()).or_default().entry(topic.clone()).or_default();
                    stored.extend(offsets.iter().copied());
                    let pops = &mut *pops.write();
                    for (queue_id, _) in &offsets {
                        pops.forget_queue(&group, &topic, *queue_id);
                    }
                    if hold == ResetHold::UntilReleased {
                        registry.resets.entry(group.clone()).or_default().entry(topic).or_default().extend(offsets);
                    }
                    registry.drop_empty(&group);
                    registry.offset_version.bump(stamped_ms);
                    Ok(CommandReply::Done)
                }
            },
            Command::ReleaseResets { group, topic, queues } => {
                if let Some(held) = registry.resets.get_mut(&group).and_then(|topics| topics.get_mut(&topic)) {
                    held.retain(|queue_id, _| !queues.contains(queue_id));
                }
                registry.drop_empty(&group);
                Ok(CommandReply::Done)
            }
            Command::ClearOffsets { group, topic } => {
                pops.write().forget_offsets(&group, topic.as_ref());
                match topic {
                    None => {
                        registry.offsets.remove(&group);
                        registry.resets.remove(&group);
                    }
                    Some(topic) => {
                        for table in [&mut registry.offsets, &mut registry.resets] {
                            if let Some(topics) = table.get_mut(&group) {
                                topics.remove(&topic);
                            }
                        }
                    }
                }
                registry.drop_empty(&group);
                Ok(CommandReply::Done)
            }
            Command::CloneOffsets { from, to, topic } => {
                let offsets = registry.offsets.get(&from).and_then(|topics| topics.get(&topic)).cloned();
                if let Some(offsets) = offsets {
                    pops.write().forget_offsets(&to, Some(&topic));
                    registry.offsets.entry(to).or_default().entry(topic).or_default().extend(offsets);
                }
                Ok(CommandReply::Done)
            }
            Command::LockQueues { group, client_id, queues, stamped_ms, lease_ms } => {
                let locks = registry.locks.entry(group.clone()).or_default();
                locks.retain(|_, lease| lease.until_ms > stamped_ms);
                let until_ms = stamped_ms.saturating_add(lease_ms);
                let mut held = Vec::with_capacity(queues.len());
                for queue in queues {
                    held.push(lock_queue(locks, counters, queue, &client_id, until_ms));
                }
                registry.drop_empty(&group);
                Ok(CommandReply::Locked { held })
            }
            Command::UnlockQueues { group, client_id, queues, stamped_ms } => {
                if let Some(locks) = registry.locks.get_mut(&group) {
                    locks.retain(|queue, lease| {
                        lease.until_ms > stamped_ms && !(lease.client_id == client_id && queues.contains(queue))
                    });
                }
                registry.drop_empty(&group);
                Ok(CommandReply::Done)
            }
            Command::PutSettings { settings, stamped_ms } => {
                // Name servers take a topic's permission for new only in a new table.
                if settings.contains_key(command::PERMISSION_SETTING) {
                    registry.topic_version.bump(stamped_ms);
                    registry.topic_log = TopicLog::behind(registry.topic_version.counter);
                }
                let known = Arc::make_mut(&mut registry.settings);
                for (name, value) in settings {
                    if value.is_empty() {
                        known.remove(&name);
                    } else {
                        known.insert(name, value);
                    }
                }
                Ok(CommandReply::Done)
            }
            Command::PutIdentity(identity) => {
                let taken = registry
                    .identities
                    .values()
                    .any(|known| (known.node_id == identity.node_id) != (known.store_uuid == identity.store_uuid));
                if taken {
                    Err(CommandRefused::IdentityTaken)
                } else {
                    registry.identities.insert(identity.node_id, identity);
                    Ok(CommandReply::Done)
                }
            }
            Command::GiveIdentity(wanted) => give_identity(&mut registry.identities, &self.membership, wanted, index),
            Command::Append { moves, stamped_ms: _ } => {
                let stands = |mark: &str| registry.marks.get(mark).copied().unwrap_or(0);
                match moves.iter().find(|step| stands(&step.mark) != step.from) {
                    Some(step) => Err(CommandRefused::MarkMoved {
                        stands: stands(&step.mark),
                        expected: step.from,
                        mark: step.mark.clone(),
                    }),
                    // Progress that moved without its message would have lost it.
                    None if !records.iter().all(|record| has_queue(counters, record)) => Err(CommandRefused::NoQueue),
                    None => {
                        registry.marks.extend(moves.into_iter().map(|step| (step.mark, step.to)));
                        Ok(CommandReply::Done)
                    }
                }
            }
            Command::EndHalves { halves, end, stamped_ms: _ } => {
                end_halves(&mut self.halves.write(), counters, &halves, end, records)
            }
            Command::CountChecks { halves, stamped_ms: _ } => {
                let table = &mut *self.halves.write();
                for place in halves {
                    if let Some(half) = table.pending.get_mut(&place.queue_offset)
                        && half.physical_offset == place.physical_offset
                    {
                        half.checks = half.checks.saturating_add(1);
                    }
                }
                Ok(CommandReply::Done)
            }
            Command::CarryHalves { halves, stamped_ms: _ } => {
                carry_halves(&mut self.halves.write(), counters, &halves, records)
            }
            Command::ResumeHalf { given_up, stamped_ms: _ } => {
                if !is_half(counters, records, 1) {
                    Err(CommandRefused::Invalid("one half message must follow"))
                } else if self.halves.write().given_up.remove(&given_up) {
                    Ok(CommandReply::Done)
                } else {
                    Err(CommandRefused::NotGivenUp)
                }
            }
            Command::HideMessages { queues, stamped_ms: _ } => {
                applied.hidden = queues.into_iter().filter_map(|(queue, end)| hide(counters, &queue, end)).collect();
                Ok(CommandReply::Done)
            }
            Command::Pop { steps, stamped_ms } => Ok(pop(registry, counters, &mut pops.write(), steps, stamped_ms)),
            Command::BuryPopped { queue, queue_offsets, stamped_ms } => {
                let pops = &mut *pops.write();
                if records.len() != queue_offsets.len() {
                    Err(CommandRefused::Invalid("one dead letter must follow for each message"))
                } else if !pops.are_due(&queue, &queue_offsets, stamped_ms) {
                    Err(CommandRefused::NotDue)
                } else if !records.iter().all(|record| has_queue(counters, record)) {
                    Err(CommandRefused::NoQueue)
                } else {
                    pops.remove(&queue, &queue_offsets);
                    store_committed(registry, pops, &queue);
                    registry.offset_version.bump(stamped_ms);
                    Ok(CommandReply::Done)
                }
            }
            Command::PutRequestMode { group, topic, mode, stamped_ms: _ } => {
                if registry.topics.contains_key(&topic) {
                    pops.write().set_mode(group, topic, mode);
                    Ok(CommandReply::Done)
                } else {
                    Err(CommandRefused::NoTopic)
                }
            }
            Command::FireTimers { timers, stamped_ms: _ } => {
                fire_timers(&mut self.timers.write(), counters, &timers, records)
            }
            Command::CarryTimers { timers, stamped_ms: _ } => {
                carry_timers(&mut self.timers.write(), counters, &timers, records)
            }
            Command::ChangeMembers { step, stamped_ms } => {
                let identities = &mut registry.identities;
                registry.changes.apply(identities, &self.membership, step, index, stamped_ms)
            }
        };
        result.unwrap_or_else(CommandReply::Refused)
    }
}

/// Hides the messages of a queue below `end`. None if there is nothing more to hide.
fn hide(counters: &mut Counters, queue: &QueueKey, end: u64) -> Option<Hidden> {
    let slot = counters.slot_of(&queue.topic)?;
    let topic = counters.slot_mut(slot)?;
    let counter = topic.counters.get_mut(queue.queue_id as usize)?;
    let end = end.min(counter.next_offset);
    if end <= counter.hidden_end {
        return None;
    }
    counter.hidden_end = end;
    Some(Hidden { topic: Arc::clone(&topic.handle), queue_id: queue.queue_id, end })
}

/// The index of the entry becomes the identity, or the next number that nobody ever had.
fn give_identity(
    identities: &mut BTreeMap<u64, IdentityRecord>,
    membership: &MembershipImage,
    wanted: IdentityWanted,
    index: u64,
) -> Result<CommandReply, CommandRefused> {
    let IdentityWanted { node_name, store_uuid, former, former_uuid, stamped_ms } = wanted;
    if let Some(given) = identities.values().find(|identity| identity.store_uuid == store_uuid) {
        return match given.node_name == node_name {
            true => Ok(CommandReply::Identity { node_id: given.node_id }),
            false => Err(CommandRefused::IdentityTaken),
        };
    }
    let is_other = |uuid: [u8; 16]| former_uuid != LOST_STORE && uuid != former_uuid;
    if identities.get(&former).is_some_and(|known| known.node_name != node_name || is_other(known.store_uuid)) {
        return Err(CommandRefused::IdentityTaken);
    }
    let members = membership.nodes.iter().map(|(id, _)| *id);
    let highest = identities.keys().copied().chain(members).chain([former]).max().unwrap_or(0);
    let node_id = index.max(highest + 1);
    let record = |node_id, store_uuid| IdentityRecord { node_id, node_name: node_name.clone(), store_uuid, stamped_ms };
    // A node that was added by a change of members is configured without an identity.
    if former != 0 {
        identities.entry(former).or_insert_with(|| record(former, former_uuid));
    }
    identities.insert(node_id, record(node_id, store_uuid));
    Ok(CommandReply::Identity { node_id })
}

fn end_halves(
    table: &mut Halves,
    counters: &Counters,
    places: &[HalfPlace],
    end: HalfEnd,
    records: &[Placed<'_>],
) -> Result<CommandReply, CommandRefused> {
    let follows = match end {
        HalfEnd::Commit => records.len() == places.len() && records.iter().all(|record| record.mark.is_none()),
        HalfEnd::Rollback => records.is_empty(),
        HalfEnd::GiveUp => {
            let is_copy = |record: &Placed<'_>| matches!(record.mark.as_deref(), Some(Mark::GivenUp));
            records.len() == places.len() && records.iter().all(is_copy)
        }
    };
    if !follows {
        return Err(CommandRefused::Invalid("what follows does not fit the end of the half messages"));
    }
    if let Some(HalfPlace { queue_offset, .. }) = table.not_pending(places) {
        return Err(CommandRefused::NotPending { queue_offset });
    }
    // An end without its message would lose it.
    if !records.iter().all(|record| has_queue(counters, record)) {
        return Err(CommandRefused::NoQueue);
    }
    for place in places {
        table.pending.remove(&place.queue_offset);
    }
    Ok(CommandReply::Done)
}

fn carry_halves(
    table: &mut Halves,
    counters: &Counters,
    places: &[HalfPlace],
    records: &mut [Placed<'_>],
) -> Result<CommandReply, CommandRefused> {
    if !is_half(counters, records, places.len()) {
        return Err(CommandRefused::Invalid("one half message must follow for each that moves"));
    }
    if let Some(HalfPlace { queue_offset, .. }) = table.not_pending(places) {
        return Err(CommandRefused::NotPending { queue_offset });
    }
    for (place, record) in places.iter().zip(records) {
        let half = table.pending.remove(&place.queue_offset).expect("looked up above");
        // Only its place changes.
        record.mark = Some(Box::new(Mark::Half(half)));
    }
    Ok(CommandReply::Done)
}

fn fire_timers(
    table: &mut Timers,
    counters: &Counters,
    timers: &[Timer],
    records: &[Placed<'_>],
) -> Result<CommandReply, CommandRefused> {
    if records.len() > timers.len() || records.iter().any(|record| record.mark.is_some()) {
        return Err(CommandRefused::Invalid("at most one message may follow for each timer, and none that waits"));
    }
    end_timers(table, counters, timers, records)
}

fn carry_timers(
    table: &mut Timers,
    counters: &Counters,
    timers: &[Timer],
    records: &[Placed<'_>],
) -> Result<CommandReply, CommandRefused> {
    let is_same = |(timer, record): (&Timer, &Placed<'_>)| match record.mark.as_deref() {
        Some(Mark::Timer { due_ms }) => *due_ms == timer.due_ms,
        _ => false,
    };
    if records.len() != timers.len() || !timers.iter().zip(records).all(is_same) {
        return Err(CommandRefused::Invalid("one timer must follow for each that moves, due at the same time"));
    }
    end_timers(table, counters, timers, records)
}

/// Removes timers whose messages follow.
fn end_timers(
    table: &mut Timers,
    counters: &Counters,
    timers: &[Timer],
    records: &[Placed<'_>],
) -> Result<CommandReply, CommandRefused> {
    if let Some(Timer { due_ms, physical_offset }) = table.not_pending(timers) {
        return Err(CommandRefused::TimerNotPending { due_ms, physical_offset });
    }
    // A timer that ended without its message would have lost it.
    if !records.iter().all(|record| has_queue(counters, record)) {
        return Err(CommandRefused::NoQueue);
    }
    table.remove(timers);
    Ok(CommandReply::Done)
}

/// Whether the records are `count` half messages that will be stored.
fn is_half(counters: &Counters, records: &[Placed<'_>], count: usize) -> bool {
    let is_half =
        |record: &Placed<'_>| matches!(record.mark.as_deref(), Some(Mark::Half(_))) && has_queue(counters, record);
    records.len() == count && records.iter().all(is_half)
}

fn put_topics(
    registry: &mut Registry,
    counters: &mut Counters,
    topics: Vec<TopicConfig>,
    mode: PutMode,
    stamped_ms: i64,
    index: u64,
) -> Result<CommandReply, CommandRefused> {
    if topics.iter().any(|topic| topic.queues() > QUEUES_MAX) {
        return Err(CommandRefused::Invalid("too many queues"));
    }
    if topics.iter().any(|topic| topic.perm > PERM_ALL) {
        return Err(CommandRefused::Invalid("unknown permission bits"));
    }
    let mut created = Vec::with_capacity(topics.len());
    let mut changed = false;
    for topic in topics {
        let new = !registry.topics.contains_key(&topic.name);
        created.push(new);
        if new || mode == PutMode::Replace {
            counters.put(&topic.name, topic.queues(), index);
            registry.topic_log.note(registry.topic_version.counter + 1, topic.name.clone());
            registry.topics.insert(topic.name.clone(), Arc::new(topic));
            changed = true;
        }
    }
    if changed {
        registry.topic_version.bump(stamped_ms);
    }
    Ok(CommandReply::Put { created })
}

fn commit_offsets(
    registry: &mut Registry,
    counters: &Counters,
    pops: &mut Pops,
    commits: Vec<OffsetCommit>,
    stamped_ms: i64,
) -> CommandReply {
    let mut ignored = 0;
    for OffsetCommit { group, topic, queue_id, queue_offset } in commits {
        let counter = end_of(counters, &topic, queue_id);
        let held = registry
            .resets
            .get(&group)
            .and_then(|topics| topics.get(&topic))
            .is_some_and(|queues| queues.contains_key(&queue_id));
        match counter {
            Some(next_offset) if queue_offset <= next_offset && !held => {
                pops.forget_queue(&group, &topic, queue_id);
                registry.offsets.entry(group).or_default().entry(topic).or_default().insert(queue_id, queue_offset);
            }
            _ => ignored += 1,
        }
    }
    registry.offset_version.bump(stamped_ms);
    CommandReply::Committed { ignored }
}

fn pop(
    registry: &mut Registry,
    counters: &Counters,
    pops: &mut Pops,
    steps: Vec<PopStep>,
    stamped_ms: i64,
) -> CommandReply {
    let mut outcomes = Vec::with_capacity(steps.len());
    for step in steps {
        let queue = step.queue.clone();
        let GroupQueue { group, topic, queue_id } = &queue;
        let end = end_of(counters, topic, *queue_id);
        let stored = registry.offsets.get(group).and_then(|topics| topics.get(topic));
        let stored = stored.and_then(|queues| queues.get(queue_id)).copied();
        if let (PopAction::Take(_), Some(held)) =
            (&step.action, registry.resets.get_mut(group).and_then(|topics| topics.get_mut(topic)))
        {
            // Its consumer pops, and need not be told where it goes on.
            held.remove(queue_id);
            registry.drop_empty(group);
        }
        outcomes.push(pops.step(step, end, stored));
        store_committed(registry, pops, &queue);
    }
    registry.offset_version.bump(stamped_ms);
    CommandReply::Popped { outcomes }
}

/// Stores the offset that follows from what a group has under way.
fn store_committed(registry: &mut Registry, pops: &Pops, queue: &GroupQueue) {
    let Some(committed) = pops.committed(queue) else { return };
    let GroupQueue { group, topic, queue_id } = queue;
    let known = registry.offsets.get_mut(group).and_then(|topics| topics.get_mut(topic));
    match known {
        Some(queues) => queues.insert(*queue_id, committed),
        None => {
            let topics = registry.offsets.entry(group.clone()).or_default();
            topics.entry(topic.clone()).or_default().insert(*queue_id, committed)
        }
    };
}

/// The offset that the next message of a queue gets; none if there is no such queue.
fn end_of(counters: &Counters, topic: &str, queue_id: u32) -> Option<u64> {
    let topic = counters.topic(topic).filter(|topic| queue_id < topic.queues)?;
    Some(topic.counters.get(queue_id as usize).map_or(0, |counter| counter.next_offset))
}

/// Whether `client_id` holds `queue` from now on. Leases that have ended are gone from `locks`.
fn lock_queue(
    locks: &mut BTreeMap<QueueKey, QueueLease>,
    counters: &Counters,
    queue: QueueKey,
    client_id: &str,
    until_ms: i64,
) -> bool {
    let exists = counters.topic(&queue.topic).is_some_and(|counters| queue.queue_id < counters.queues);
    let foreign = locks.get(&queue).is_some_and(|lease| lease.client_id != client_id);
    if !exists || foreign {
        return false;
    }
    locks.insert(queue, QueueLease { client_id: client_id.to_owned(), until_ms });
    true
}

impl Registry {
    /// Removes tables of a group that hold nothing, so that equal states are equal byte for byte.
    fn drop_empty(&mut self, group: &GroupName) {
        for table in [&mut self.offsets, &mut self.resets] {
            if let Some(topics) = table.get_mut(group) {
                topics.retain(|_, queues| !queues.is_empty());
                if topics.is_empty() {
                    table.remove(group);
                }
            }
        }
        if self.locks.get(group).is_some_and(BTreeMap::is_empty) {
            self.locks.remove(group);
        }
    }
}

fn has_queue(counters: &Counters, record: &Placed<'_>) -> bool {
    counters.topic(record.topic).is_some_and(|topic| record.queue_id < topic.queues)
}

/// A message record in a payload.
struct Placed<'a> {
    at: usize,
    size: u32,
    queue_id: u32,
    topic: &'a str,
    /// What storing it means beyond its place in a queue. Few have one.
    mark: Option<Box<Mark>>,
}

/// What storing a record of some topics means.
enum Mark {
    /// A transaction is pending.
    Half(Half),
    /// A transaction can be resumed.
    GivenUp,
    /// A message waits for its time.
    Timer { due_ms: i64 },
}

impl Mark {
    fn of(record: &RecordView<'_>) -> Option<Box<Self>> {
        match record.topic() {
            HALF_TOPIC => Half::of(record).map(|half| Box::new(Self::Half(half))),
            GIVEN_UP_TOPIC => Some(Box::new(Self::GivenUp)),
            TIMER_TOPIC => timer::due_of(record).map(|due_ms| Box::new(Self::Timer { due_ms })),
            _ => None,
        }
    }
}

/// Finds the message records of a payload from `records_at` on.
fn place_records(payload: &[u8], records_at: usize, index: u64) -> Result<Vec<Placed<'_>>, ApplyError> {
    let mut at = records_at;
    let mut placed = Vec::with_capacity((payload.len() - records_at) / 256 + 1);
    for record in iter_records(&payload[records_at..]) {
        let record = record.map_err(|source| ApplyError::Record { index, at, source })?;
        placed.push(Placed {
            at,
            size: u32::try_from(record.size()).expect("a record's size is an i32"),
            // A negative queue is one that no topic has.
            queue_id: u32::try_from(record.queue_id()).unwrap_or(u32::MAX),
            topic: record.topic(),
            mark: Mark::of(&record),
        });
        at += record.size();
    }
    Ok(placed)
}
