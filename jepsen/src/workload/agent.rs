//! One client process: performs single attempts and records what became of each.

use std::time::Duration;

use anyhow::Result;
use client::{
    Client, Error, Message, Producer, ProducerOptions, PullConsumer, PullOptions, Queue, ReceivedMessage, SendReceipt,
    SendStatus,
};
use protocol::GroupName;

use super::{CALL_TIME_MAX, Stage};
use crate::generator::Draft;
use crate::history::{
    Answer, Batch, BodyHash, Call, Commit, Freshness, Got, GroupQueue, Offset, OneQueue, Process, Pull, Pulled,
    Refusal, Send, SendMode, Sent, Unique,
};
use crate::recorder::{Outcome, Recorder};

/// Answers of RocketMQ that store a message less well than asked for. Gantry never gives them.
const SOFT_CODES: [(SendStatus, i32); 3] =
    [(SendStatus::FlushDiskTimeout, 10), (SendStatus::SlaveNotAvailable, 11), (SendStatus::FlushSlaveTimeout, 12)];

/// Where a reader goes on, and whether the queue ended there.
#[derive(Clone, Copy)]
pub(crate) struct Next {
    pub(crate) queue_offset: u64,
    pub(crate) is_end: bool,
}

pub(crate) struct Agent {
    pub(crate) process: Process,
    client: Client,
    producer: Producer,
    reader: PullConsumer,
    recorder: Recorder,
    stage: Stage,
}

impl Agent {
    /// A client that waits as long as those of RocketMQ do.
    pub(crate) fn new(stage: &Stage, process: Process) -> Result<Self> {
        Self::with_patience(stage, process, CALL_TIME_MAX)
    }

    /// A client that waits so long for an answer.
    pub(crate) fn with_patience(stage: &Stage, process: Process, patience: Duration) -> Result<Self> {
        let client = stage.client(&process.to_string(), patience)?;
        // A client of a checked run never repeats anything by itself: every attempt is an operation.
        let (timeout, attempt_timeout) = (patience, patience);
        let options = ProducerOptions { timeout, attempt_timeout, attempts_max: 1, compress_bytes_min: None };
        let producer = Producer::new(&client, GroupName::parse("jepsen-producers")?, options);
        let reader = PullConsumer::new(&client, stage.group.clone());
        Ok(Self { process, client, producer, reader, recorder: stage.recorder.clone(), stage: stage.clone() })
    }

    /// Leaves the cluster.
    pub(crate) async fn leave(self) {
        self.producer.shutdown().await;
        self.client.shutdown().await;
    }

    /// Sends one message; whether that succeeded.
    pub(crate) async fn send(&self, queue: &Queue, draft: Draft) -> Result<bool> {
        let (message, send) = self.message(queue, &draft)?;
        let op = self.recorder.invoke(self.process, Call::Send(send))?;
        let outcome = sent(self.producer.send_to(message, queue).await);
        self.end(op, outcome)
    }

    pub(crate) async fn send_batch(&self, queue: &Queue, drafts: &[Draft]) -> Result<bool> {
        let made: Vec<(Message, Send)> =
            drafts.iter().map(|draft| self.message(queue, draft)).collect::<Result<_>>()?;
        let (messages, sends): (Vec<Message>, Vec<Send>) = made.into_iter().unzip();
        let items = sends.iter().map(|send| (send.unique, send.hash)).collect();
        let call = Call::Batch(Batch { queue: name(queue), items });
        let op = self.recorder.invoke(self.process, call)?;
        let outcome = sent(self.producer.send_batch_to(messages, queue).await);
        self.end(op, outcome)
    }

    /// Asks for messages of a session from `from` on.
    pub(crate) async fn pull(
        &self,
        queue: &Queue,
        from: u64,
        sess: u64,
        options: &PullOptions,
    ) -> Result<Option<Next>> {
        let pull = Pull { queue: name(queue), from, sess, tag: None, read: Freshness::Prefix };
        self.perform_pull(queue, from, Call::Pull(pull), options).await
    }

    /// Asks for the final content of a queue from `from` on.
    pub(crate) async fn final_read(&self, queue: &Queue, from: u64, options: &PullOptions) -> Result<Option<Next>> {
        let pull = Pull { queue: name(queue), from, sess: 0, tag: None, read: Freshness::Realtime };
        self.perform_pull(queue, from, Call::FinalRead(pull), options).await
    }

    async fn perform_pull(&self, queue: &Queue, from: u64, call: Call, options: &PullOptions) -> Result<Option<Next>> {
        let op = self.recorder.invoke(self.process, call)?;
        match self.reader.pull(queue, i64::try_from(from)?, options).await {
            Ok(pulled) => {
                let (next, max) = (unsigned(pulled.next_offset), unsigned(pulled.max_offset));
                let got = pulled.messages.iter().map(got).collect();
                let answer = Pulled { next, min: unsigned(pulled.min_offset), max, got, corrupt: Vec::new() };
                self.recorder.end(op, Outcome::Ok(Answer::Pulled(answer)))?;
                Ok(Some(Next { queue_offset: next, is_end: next >= max }))
            }
            Err(error) => self.recorder.end(op, refused(&error)).map(|()| None),
        }
    }

    pub(crate) async fn max_offset(&self, queue: &Queue) -> Result<Option<u64>> {
        let op = self.recorder.invoke(self.process, Call::MaxOffset(OneQueue { queue: name(queue) }))?;
        let answer = self.reader.max_offset(queue).await.map(|at| Some(unsigned(at)));
        self.offset(op, answer)
    }

    pub(crate) async fn query_offset(&self, queue: &Queue) -> Result<Option<u64>> {
        let call = Call::QueryOffset(GroupQueue { group: self.group(), queue: name(queue) });
        let op = self.recorder.invoke(self.process, call)?;
        let answer = self.reader.committed_offset(queue).await.map(|at| at.map(unsigned));
        self.offset(op, answer)
    }

    pub(crate) async fn commit(&self, queue: &Queue, queue_offset: u64) -> Result<bool> {
        let commit = Commit { group: self.group(), queue: name(queue), queue_offset, oneway: false };
        let op = self.recorder.invoke(self.process, Call::Commit(commit))?;
        let outcome = match self.reader.commit(queue, i64::try_from(queue_offset)?).await {
            Ok(()) => Outcome::Ok(Answer::Done),
            Err(error) => refused(&error),
        };
        self.end(op, outcome)
    }

    fn offset(&self, op: u64, answer: client::Result<Option<u64>>) -> Result<Option<u64>> {
        match answer {
            Ok(queue_offset) => {
                self.recorder.end(op, Outcome::Ok(Answer::Offset(Offset { queue_offset })))?;
                Ok(queue_offset)
            }
            Err(error) => self.recorder.end(op, refused(&error)).map(|()| None),
        }
    }

    fn end(&self, op: u64, outcome: Outcome) -> Result<bool> {
        let ok = matches!(outcome, Outcome::Ok(_));
        self.recorder.end(op, outcome)?;
        Ok(ok)
    }

    fn group(&self) -> Box<str> {
        self.stage.group.as_str().into()
    }

    /// The message of a draft: its body begins with what makes it unlike every other.
    fn message(&self, queue: &Queue, draft: &Draft) -> Result<(Message, Send)> {
        let unique = Unique::Sent { process: self.process, sequence: draft.sequence, attempt: 0 };
        let mut body = format!("{unique} ").into_bytes();
        body.resize(body.len() + usize::try_from(draft.body_bytes)?, b'.');
        let hash = BodyHash::of(&body, draft.tag.as_deref(), draft.key.as_deref());
        let mut message = Message::new(queue.topic.clone(), body);
        if let Some(tag) = &draft.tag {
            message = message.with_tag(tag)?;
        }
        if let Some(key) = &draft.key {
            message = message.with_keys(key)?;
        }
        let (tag, key) = (draft.tag.clone(), draft.key.clone());
        let mode = SendMode::Sync;
        Ok((message, Send { queue: name(queue), unique, hash, mode, tag, key, delay_ms: None, cause: None }))
    }
}

fn name(queue: &Queue) -> Box<str> {
    queue.to_string().into()
}

/// Offsets on the wire are signed; a negative one is no offset and shows as one that no queue has.
fn unsigned(offset: i64) -> u64 {
    u64::try_from(offset).unwrap_or(u64::MAX)
}

fn sent(result: client::Result<SendReceipt>) -> Outcome {
    match result {
        Ok(receipt) => match SOFT_CODES.iter().find(|(status, _)| *status == receipt.status) {
            Some((_, code)) => Outcome::Info(Refusal { code: Some(*code), why: "a soft status".into() }),
            None => Outcome::Ok(Answer::Sent(placed(&receipt))),
        },
        Err(error) => refused(&error),
    }
}

fn placed(receipt: &SendReceipt) -> Sent {
    let id = receipt.offset_message_id.split(',').next().unwrap_or_default();
    let decoded = id.parse::<protocol::message::OffsetMessageId>().ok();
    let physical_offset = decoded.and_then(|id| u64::try_from(id.physical_offset).ok());
    let queue_offset = unsigned(receipt.queue_offset);
    Sent { queue_offset, physical_offset, offset_id: Some(id.into()), by: None, term: None }
}

/// What a failure says about the effect: surely none, or unknown.
fn refused(error: &Error) -> Outcome {
    let refusal = Refusal { code: error.code().map(|code| code.0), why: reason(error).into() };
    if error.not_sent() { Outcome::Fail(refusal) } else { Outcome::Info(refusal) }
}

/// An error with its causes, in one line.
fn reason(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    match error {
        Error::GaveUp { last: Some(last), .. } => format!("{text}: {}", reason(last)),
        _ => text,
    }
}

fn got(message: &ReceivedMessage) -> Got {
    let unique = std::str::from_utf8(&message.body).ok().and_then(|body| body.split(' ').next()?.parse().ok());
    let hash = BodyHash::of(&message.body, message.tag(), message.keys().next());
    Got {
        queue_offset: unsigned(message.queue_offset),
        unique: unique.unwrap_or(Unique::Foreign(hash.0)),
        hash,
        physical_offset: unsigned(message.physical_offset),
    }
}
