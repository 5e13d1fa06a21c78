//! Transactions: how they end (37), how their producers are asked (39), and how one given up is resumed (323).
//!
//! ```text
//!  send --> half message --37 commit---> its message, in the topic it names
//!                  |   '---37 rollback-> nothing
//!                  |
//!                  '--- no word for a while --39--> any producer of the group, that answers by 37
//!                                |
//!                                '-- after the last check --> TRANS_CHECK_MAX_TIME_TOPIC --323--> half message
//! ```
//!
//! What is pending is replicated state. The entry that ends a half message carries the message that follows, and is
//! refused unless the half message is pending: a transaction ends once, whoever leads and however often its producer
//! says so.
//!
//! The leader asks, and counts a check in the log after a producer was sent it. Nothing is counted while no producer of
//! the group is connected to any replica: a transaction is not given up because its application was down.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use protocol::header::{CheckTransactionRequest, EndTransactionRequest, ResumeCheckRequest, TransactionEnd};
use protocol::message::{
    NewMessage, OffsetMessageId, PropertiesBuilder, RecordView, SysFlag, encode_record, patch_offsets, property,
};
use protocol::{GroupName, RemotingCommand, RequestCode, ResponseCode};

use super::answer::{Failure, Outcome, success};
use super::send::{wire_offset, wire_queue};
use super::stats::MessageKind;
use super::waiting::{BATCH_BYTES_MAX, BATCH_MAX, real_place};
use super::{Group, now};
use crate::forward::Place;
use crate::state_machine::half::{GIVEN_UP_TOPIC, HALF_TOPIC, Half, HalfEnd, HalfPlace};
use crate::state_machine::{ApplyReply, Command, CommandRefused, CommandReply};
use crate::store;

/// Most half messages that may be pending in a group.
const PENDING_MAX: usize = 1 << 20;
/// One that nobody has ended after so long is given up, checked or not.
const PENDING_TIME_MAX_MS: i64 = 72 * 3_600 * 1_000;
/// Time for another replica to say that it has passed a check on.
const PASS_TIMEOUT: Duration = Duration::from_secs(1);

/// How producers are asked about transactions that they have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionSettings {
    /// A half message is left alone for so long, unless it says for how long itself.
    pub timeout: Duration,
    /// How often the leader asks.
    pub check_interval: Duration,
    /// So often the producers of one half message are asked, then it is given up.
    pub check_max: u32,
}

impl Default for TransactionSettings {
    /// Those of RocketMQ.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(6), check_interval: Duration::from_secs(30), check_max: 15 }
    }
}

/// A half message as it is stored.
struct Stored {
    place: HalfPlace,
    half: Half,
    bytes: bytes::Bytes,
}

/// What a round of checks does with a half message.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    /// Nothing yet.
    No,
    /// Its producer is asked.
    Check,
    /// It is given up.
    GiveUp,
}

/// Where a producer of a group is connected.
#[derive(Debug, Clone, Copy)]
enum Way {
    Here,
    Through(u64),
    Nowhere,
}

fn due(half: &Half, settings: &TransactionSettings, now_ms: i64) -> Due {
    let age_ms = now_ms.saturating_sub(half.stored_ms);
    let timeout_ms = i64::try_from(settings.timeout.as_millis()).unwrap_or(i64::MAX);
    if age_ms <= half.immunity_ms.unwrap_or(timeout_ms) {
        Due::No
    } else if half.checks >= settings.check_max || age_ms > PENDING_TIME_MAX_MS {
        Due::GiveUp
    } else {
        Due::Check
    }
}

fn place_of(queue_offset: u64, half: &Half) -> HalfPlace {
    HalfPlace { queue_offset, physical_offset: half.physical_offset }
}

impl Group {
    /// Refuses a half message while too many are pending.
    pub(super) fn check_transaction_room(&self) -> Result<(), Failure> {
        if self.0.state.half_count() < PENDING_MAX {
            return Ok(());
        }
        Err(Failure::refused(
            ResponseCode::SERVICE_NOT_AVAILABLE,
            format!("not proposed: {PENDING_MAX} transactions of this broker are pending, and more are not allowed"),
        ))
    }

    /// Ends a transaction: code 37.
    pub(super) async fn end_transaction(&self, request: &RemotingCommand) -> Outcome {
        let header = EndTransactionRequest::decode(request)?;
        let end = match header.commit_or_rollback {
            // The producer will be asked.
            TransactionEnd::UNKNOWN => return Ok(success(request)),
            TransactionEnd::COMMIT => HalfEnd::Commit,
            TransactionEnd::ROLLBACK => HalfEnd::Rollback,
            other => {
                return Err(Failure::refused(
                    ResponseCode::INVALID_PARAMETER,
                    format!("commitOrRollback is {other}, known are 0 (unknown), 8 (commit) and 12 (rollback)"),
                ));
            }
        };
        if end == HalfEnd::Commit {
            self.check_room()?;
        }
        let half = match self.named_half(&header) {
            Ok(half) => half,
            Err(_) => {
                // Another replica may have led since, and know of it.
                self.be_sure_to_lead().await?;
                self.named_half(&header)?
            }
        };
        let place = HalfPlace {
            queue_offset: u64::try_from(header.half_queue_offset).expect("it names a pending one"),
            physical_offset: half.physical_offset,
        };
        let stored = self.read_half(place, half).await?;
        let record = stored.record()?;
        if !header.from_transaction_check
            && let Some(immunity_ms) = stored.half.immunity_ms
            && now().wall_ms.saturating_sub(record.born_timestamp()) > immunity_ms
        {
            return Err(Failure::refused(
                ResponseCode::ILLEGAL_OPERATION,
                format!(
                    "the producer ends the transaction {immunity_ms} ms after its message was born or later: it is \
                     asked instead"
                ),
            ));
        }
        let born_ms = record.born_timestamp();
        let mut records = BytesMut::new();
        let mut topic = None;
        if end == HalfEnd::Commit {
            topic = Some(self.commit_record(&stored, &record, &mut records)?);
        }
        let command = Command::EndHalves { halves: vec![place], end, stamped_ms: self.stamp_ms() };
        match self.0.raft.propose(command.encode_with(&records)).await? {
            (ApplyReply::Command { reply: CommandReply::Done, .. }, _) => {
                let ended = if topic.is_some() { &self.0.stats.committed } else { &self.0.stats.rolled_back };
                ended.fetch_add(1, Ordering::Relaxed);
                if let Some(topic) = topic {
                    let lasted_ms = now().wall_ms.saturating_sub(born_ms);
                    let seconds = u64::try_from(lasted_ms).unwrap_or(0) / 1_000;
                    self.0.stats.commit_seconds.note(1, seconds, seconds);
                    self.0.stats.count_put(&topic, MessageKind::Transaction, 1, records.len() as u64);
                }
                Ok(success(request))
            }
            (ApplyReply::Command { reply: CommandReply::Refused(why), .. }, _) => Err(Failure::error(why.to_string())),
            (other, _) => Err(Failure::error(format!("the end of a transaction was answered with {other:?}"))),
        }
    }

    /// The pending half message that a request names, if it says everything right about it.
    fn named_half(&self, header: &EndTransactionRequest) -> Result<Half, Failure> {
        let queue_offset = u64::try_from(header.half_queue_offset).unwrap_or(u64::MAX);
        let half = self.0.state.half(queue_offset).ok_or_else(|| {
            let why = CommandRefused::NotPending { queue_offset };
            Failure::error(why.to_string())
        })?;
        if header.producer_group != half.group.as_str() {
            return Err(Failure::error(format!(
                "the producer group is wrong: the transaction belongs to another than {}",
                header.producer_group
            )));
        }
        if u64::try_from(header.half_physical_offset) != Ok(half.physical_offset) {
            return Err(Failure::error(format!(
                "the commit log offset is wrong: the half message is not at {}",
                header.half_physical_offset
            )));
        }
        Ok(half)
    }

    /// Reads a half message.
    async fn read_half(&self, place: HalfPlace, half: Half) -> Result<Stored, Failure> {
        let mut read = self.read_halves(vec![(place, half)]).await?;
        read.pop().ok_or_else(|| Failure::error("the half message is not in the log any more"))
    }

    /// Reads half messages; those that are not there are left out, with a warning.
    async fn read_halves(&self, halves: Vec<(HalfPlace, Half)>) -> Result<Vec<Stored>, Failure> {
        self.read_applied("reading half messages", move |group| {
            let mut read = Vec::with_capacity(halves.len());
            for (place, half) in halves {
                match group.0.store.message_at(place.physical_offset)? {
                    Some(bytes) => read.push(Stored { place, half, bytes }),
                    None => tracing::warn!(group = group.name(), ?place, "a half message cannot be found"),
                }
            }
            Ok(read)
        })
        .await
    }

    /// Adds the message of a half message that is committed, and says where it goes.
    fn commit_record(
        &self,
        stored: &Stored,
        record: &RecordView<'_>,
        records: &mut BytesMut,
    ) -> Result<protocol::TopicName, Failure> {
        let (config, queue_id) = self.target_of(record)?;
        let properties = checked_properties(record, stored.half.checks)?;
        let message = NewMessage {
            topic: &config.name,
            queue_id: wire_queue(queue_id),
            sys_flag: record.sys_flag().without_transaction().with(SysFlag::TRANSACTION_COMMIT),
            store_timestamp: self.stamp_ms(),
            store_host: self.0.settings.client_addr,
            prepared_transaction_offset: wire_offset(stored.place.physical_offset),
            properties: properties.as_str(),
            ..record.to_new_message()
        };
        encode_record(&message, records).map_err(|error| Failure::error(error.to_string()))?;
        Ok(config.name.clone())
    }

    /// Adds a copy of a half message for `topic`, which is to hold it from now on.
    fn copy_record(
        &self,
        record: &RecordView<'_>,
        topic: &str,
        checks: u32,
        records: &mut BytesMut,
    ) -> Result<(), Failure> {
        let properties = checked_properties(record, checks)?;
        self.copy(record, topic, 0, properties.as_str(), records)
    }

    /// Asks about transactions for as long as this replica serves as leader.
    pub(super) async fn run_transaction_checks(&self) {
        loop {
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                () = tokio::time::sleep(self.live().transactions.check_interval) => {}
            }
            if let Err(failure) = self.check_transactions().await {
                tracing::warn!(group = self.name(), ?failure, "transactions are checked again in the next round");
            }
        }
    }

    /// One round: asks about every half message that is due, or gives it up.
    async fn check_transactions(&self) -> Result<(), Failure> {
        let mut from = 0;
        let mut ways = HashMap::new();
        while matches!(self.place(), Place::Here { .. }) {
            let batch = self.0.state.halves_from(from, BATCH_MAX);
            let Some((last, _)) = batch.last() else { break };
            from = last + 1;
            let (now_ms, transactions) = (now().wall_ms, self.live().transactions);
            let (mut checked, mut given_up) = (Vec::new(), Vec::new());
            for (queue_offset, half) in batch {
                match due(&half, &transactions, now_ms) {
                    Due::No => {}
                    Due::Check => checked.push((place_of(queue_offset, &half), half)),
                    Due::GiveUp => given_up.push((place_of(queue_offset, &half), half)),
                }
            }
            self.check(checked, &mut ways).await?;
            self.give_up(given_up).await?;
        }
        Ok(())
    }

    /// Asks the producers of half messages, and counts the checks that reached one.
    async fn check(&self, halves: Vec<(HalfPlace, Half)>, ways: &mut HashMap<GroupName, Way>) -> Result<(), Failure> {
        let mut asked = Vec::with_capacity(halves.len());
        for stored in self.read_halves(halves).await? {
            if matches!(ways.get(&stored.half.group), Some(Way::Nowhere)) {
                continue;
            }
            let check = self.check_command(&stored)?;
            if self.ask_producer(&stored.half.group, check, ways).await {
                asked.push(stored.place);
            }
        }
        if !asked.is_empty() {
            self.propose(Command::CountChecks { halves: asked, stamped_ms: self.stamp_ms() }).await?;
        }
        Ok(())
    }

    /// The question about a half message, with the message as its consumers would get it.
    fn check_command(&self, stored: &Stored) -> Result<RemotingCommand, Failure> {
        let record = stored.record()?;
        let (topic, queue_id) = real_place(&record)?;
        let properties = checked_properties(&record, stored.half.checks.saturating_add(1))?;
        let message = NewMessage {
            topic,
            queue_id: wire_queue(queue_id),
            properties: properties.as_str(),
            ..record.to_new_message()
        };
        let mut body = BytesMut::with_capacity(stored.bytes.len() + 64);
        encode_record(&message, &mut body).map_err(|error| Failure::error(error.to_string()))?;
        let (queue_offset, physical_offset) =
            (wire_offset(stored.place.queue_offset), wire_offset(stored.place.physical_offset));
        patch_offsets(&mut body, queue_offset, physical_offset).map_err(|error| Failure::error(error.to_string()))?;
        let key = properties.get(property::UNIQ_KEY).map(str::to_owned);
        let header = CheckTransactionRequest {
            topic: Some(HALF_TOPIC.to_owned()),
            half_queue_offset: queue_offset,
            half_physical_offset: physical_offset,
            msg_id: key.clone(),
            transaction_id: key,
            offset_msg_id: Some(OffsetMessageId { store_host: record.store_host(), physical_offset }.to_string()),
        };
        let mut check = RemotingCommand::oneway(RequestCode::CHECK_TRANSACTION_STATE).with_body(body.freeze());
        header.encode_into(&mut check.ext);
        check.ext.push("bname", &self.0.settings.broker_name);
        Ok(check)
    }

    /// Sends a check to any producer of a group, on whatever replica it is connected to. Says whether one was sent it.
    async fn ask_producer(
        &self,
        group: &GroupName,
        check: RemotingCommand,
        ways: &mut HashMap<GroupName, Way>,
    ) -> bool {
        if self.send_check(group, &check) {
            ways.insert(group.clone(), Way::Here);
            return true;
        }
        let mut question = check;
        question.flag = 0;
        question.ext.push(RELAYED_GROUP, group);
        let members = match ways.get(group) {
            Some(Way::Through(member)) => vec![*member],
            Some(Way::Here | Way::Nowhere) | None => self.other_members(),
        };
        for member in members {
            let (name, origin) = (&self.0.settings.broker_name, self.0.settings.client_addr);
            let passed = self.0.peers.forward(name, member, origin, &question, PASS_TIMEOUT).await;
            if passed.is_ok_and(|answer| answer.is_success()) {
                ways.insert(group.clone(), Way::Through(member));
                return true;
            }
        }
        ways.insert(group.clone(), Way::Nowhere);
        false
    }

    /// Sends a check to a producer that is connected here, if there is one.
    fn send_check(&self, group: &GroupName, check: &RemotingCommand) -> bool {
        let producers = self.0.clients.producer_handles(group);
        let Ok(count) = u32::try_from(producers.len()) else { return false };
        let first = self.next_queue(count) as usize;
        let (after, before) = (producers.iter().skip(first), producers.iter().take(first));
        after.chain(before).any(|producer| producer.send_oneway(check.clone()).is_ok())
    }

    /// Passes a check on to a producer that is connected here, for the leader.
    pub(super) fn pass_check_on(&self, request: &RemotingCommand) -> Outcome {
        let group = GroupName::parse(request.ext.get(RELAYED_GROUP).unwrap_or_default())?;
        let mut check = RemotingCommand::oneway(RequestCode::CHECK_TRANSACTION_STATE).with_body(request.body.clone());
        for (name, value) in request.ext.iter().filter(|(name, _)| *name != RELAYED_GROUP) {
            check.ext.push(name, value);
        }
        if self.send_check(&group, &check) {
            Ok(success(request))
        } else {
            Err(Failure::error(format!("no producer of {group} is connected here")))
        }
    }

    /// Moves half messages to the topic of those given up.
    async fn give_up(&self, halves: Vec<(HalfPlace, Half)>) -> Result<(), Failure> {
        for batch in batches(self.read_halves(halves).await?) {
            let mut records = BytesMut::new();
            for stored in &batch {
                self.copy_record(&stored.record()?, GIVEN_UP_TOPIC, stored.half.checks, &mut records)?;
            }
            let halves: Vec<HalfPlace> = batch.iter().map(|stored| stored.place).collect();
            let count = halves.len();
            let command = Command::EndHalves { halves, end: HalfEnd::GiveUp, stamped_ms: self.stamp_ms() };
            match self.0.raft.propose(command.encode_with(&records)).await? {
                (ApplyReply::Command { reply: CommandReply::Done, .. }, _) => {
                    tracing::warn!(group = self.name(), count, "transactions were given up: nobody would end them");
                }
                // One of them has ended meanwhile: the next round sees the others.
                (ApplyReply::Command { reply: CommandReply::Refused(CommandRefused::NotPending { .. }), .. }, _) => {}
                (other, _) => return Err(Failure::error(format!("giving up was answered with {other:?}"))),
            }
        }
        Ok(())
    }

    /// Takes up a half message again that was given up: code 323.
    pub(super) async fn resume_check(&self, request: &RemotingCommand) -> Outcome {
        let header = ResumeCheckRequest::decode(request)?;
        self.check_room()?;
        self.check_transaction_room()?;
        let id = header.msg_id.unwrap_or_default();
        let group = self.clone();
        let wanted = id.clone();
        let found = tokio::task::spawn_blocking(move || group.find_given_up(&wanted)).await;
        let bytes = found
            .map_err(|error| Failure::error(format!("looking for the message: {error}")))?
            .map_err(|error| Failure::error(format!("looking for the message: {error}")))?
            .ok_or_else(|| Failure::error(format!("no transaction was given up whose message has the id `{id}`")))?;
        let record = RecordView::parse(&bytes).map_err(|error| Failure::error(error.to_string()))?;
        let given_up = u64::try_from(record.physical_offset()).expect("a stored message has a place");
        let mut records = BytesMut::new();
        self.copy_record(&record, HALF_TOPIC, 0, &mut records)?;
        let command = Command::ResumeHalf { given_up, stamped_ms: self.stamp_ms() };
        match self.0.raft.propose(command.encode_with(&records)).await? {
            (ApplyReply::Command { reply: CommandReply::Done, .. }, _) => Ok(success(request)),
            (ApplyReply::Command { reply: CommandReply::Refused(why), .. }, _) => Err(Failure::error(why.to_string())),
            (other, _) => Err(Failure::error(format!("resuming was answered with {other:?}"))),
        }
    }

    /// The copy of a half message given up, by its offset message id or its unique key. Reads files.
    fn find_given_up(&self, id: &str) -> store::Result<Option<bytes::Bytes>> {
        let place = id.parse::<OffsetMessageId>().ok().and_then(|id| u64::try_from(id.physical_offset).ok());
        if let Some(place) = place.filter(|place| self.0.state.is_given_up(*place)) {
            return self.0.store.message_at(place);
        }
        // The newest first: an older one was resumed before.
        let found = self.0.store.query_by_key(GIVEN_UP_TOPIC, id, 1, 0, i64::MAX)?;
        Ok(found.messages.into_iter().next())
    }

    /// Appends again every pending half message that lies below `below` in the log. Returns how many were moved.
    ///
    /// Each moves by one entry with its place in the replicated state, and keeps its age and its checks. A producer that
    /// ends one by its old place is told no, and asked later.
    pub(super) async fn carry_half_messages(&self, below: u64) -> Result<u64, Failure> {
        let mut moved = 0;
        loop {
            let first = self.0.state.halves_from(0, BATCH_MAX).into_iter();
            let below: Vec<_> = first.take_while(|(_, half)| half.physical_offset < below).collect();
            if below.is_empty() {
                return Ok(moved);
            }
            let halves: Vec<_> = below.into_iter().map(|(offset, half)| (place_of(offset, &half), half)).collect();
            let wanted = halves.len();
            let read = self.read_halves(halves).await?;
            if read.len() < wanted {
                return Err(Failure::error("some half messages cannot be found in the log"));
            }
            for batch in batches(read) {
                moved += self.carry_batch(&batch).await?;
            }
        }
    }

    async fn carry_batch(&self, batch: &[Stored]) -> Result<u64, Failure> {
        let mut records = BytesMut::new();
        for stored in batch {
            self.copy_record(&stored.record()?, HALF_TOPIC, stored.half.checks, &mut records)?;
        }
        let halves: Vec<HalfPlace> = batch.iter().map(|stored| stored.place).collect();
        let count = halves.len() as u64;
        let command = Command::CarryHalves { halves, stamped_ms: self.stamp_ms() };
        self.move_waiting(&command, &records, count).await
    }

    /// The members of the group but this one.
    pub(super) fn other_members(&self) -> Vec<u64> {
        let own = self.0.settings.node_id;
        self.0.raft.metrics().members.keys().copied().filter(|member| *member != own).collect()
    }
}

/// The field by which a leader tells another replica whose producer is to be asked.
const RELAYED_GROUP: &str = "relayedGroup";

impl Stored {
    fn record(&self) -> Result<RecordView<'_>, Failure> {
        RecordView::parse(&self.bytes).map_err(|error| Failure::error(error.to_string()))
    }
}

/// Cuts half messages into entries of a bounded size.
fn batches(halves: Vec<Stored>) -> Vec<Vec<Stored>> {
    let mut batches: Vec<Vec<Stored>> = Vec::new();
    let mut bytes = usize::MAX;
    for stored in halves {
        if bytes >= BATCH_BYTES_MAX {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += stored.bytes.len();
        batches.last_mut().expect("pushed above").push(stored);
    }
    batches
}

/// The properties of a half message, with the number of its checks.
fn checked_properties(record: &RecordView<'_>, checks: u32) -> Result<PropertiesBuilder, Failure> {
    let mut properties = PropertiesBuilder::from_text(record.properties().as_str());
    properties.remove(property::TRANSACTION_CHECK_TIMES);
    if checks > 0 {
        let set = properties.set(property::TRANSACTION_CHECK_TIMES, &checks.to_string());
        set.map_err(|error| Failure::error(error.to_string()))?;
    }
    Ok(properties)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_are_asked_after_a_while_and_only_so_often() {
        let settings = TransactionSettings::default();
        let check = |age_ms: i64, immunity_ms: Option<i64>, checks: u32, expected: Due| {
            let group = GroupName::parse("p").unwrap();
            let half = Half { physical_offset: 9, group, stored_ms: 1_000, immunity_ms, checks };
            assert_eq!(due(&half, &settings, 1_000 + age_ms), expected, "{age_ms} {immunity_ms:?} {checks}");
        };
        check(6_000, None, 0, Due::No);
        check(6_001, None, 0, Due::Check);
        check(6_001, None, 14, Due::Check);
        check(6_001, None, 15, Due::GiveUp);
        check(6_001, Some(60_000), 0, Due::No);
        check(60_001, Some(60_000), 0, Due::Check);
        check(1, Some(0), 0, Due::Check);
        check(72 * 3_600_000, None, 1, Due::Check);
        check(72 * 3_600_000 + 1, None, 1, Due::GiveUp);
        // A clock that went back.
        check(-50_000, None, 15, Due::No);
    }

    #[test]
    fn an_entry_holds_about_a_mebibyte() {
        let stored = |bytes: usize| Stored {
            place: HalfPlace { queue_offset: 0, physical_offset: 0 },
            half: Half {
                physical_offset: 0,
                group: GroupName::parse("p").unwrap(),
                stored_ms: 0,
                immunity_ms: None,
                checks: 0,
            },
            bytes: vec![0; bytes].into(),
        };
        let cut = |sizes: &[usize]| -> Vec<usize> {
            batches(sizes.iter().map(|bytes| stored(*bytes)).collect()).iter().map(Vec::len).collect()
        };
        assert!(cut(&[]).is_empty());
        assert_eq!(cut(&[10, 10]), [2]);
        assert_eq!(cut(&[BATCH_BYTES_MAX, 10, BATCH_BYTES_MAX - 10, 10]), [1, 2, 1]);
    }
}
