//! What happened: operations with their outcomes, and what the harness did and saw.
//!
//! A history is the only thing that checkers read. It is written as it happens, one JSON object a line (see
//! [`read`] and [`Writer`]), and nothing is ever taken out of it.

mod call;
mod file;
mod note;
mod value;

pub use call::{
    Answer, Batch, Call, Commit, Consume, Decision, EndTx, Found, FoundAt, Freshness, Got, GroupQueue, Lock, LookUp,
    Node, Offset, OneQueue, Pull, Pulled, QueryMsg, QueueName, Queues, Refusal, Seek, Send, SendMode, Sent, Subscribe,
    Topic, accepts, topic_of,
};
pub use file::{ReadError, Writer, read, read_from, write_to};
pub use note::{Derived, Dump, Exit, Fault, FaultState, Gauge, NodeName, Note, Observation, Phase, Plan, Route, Run};
pub use value::{BodyHash, Nanos, NotAValue, Process, Unique};

/// One operation: a request of one process and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Links the lines of an operation, and names it in findings.
    pub op: u64,
    pub process: Process,
    pub invoked: Nanos,
    pub call: Call,
    pub end: End,
}

/// How an operation ended. These are outcomes: what a client knows, not what is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Ok {
        at: Nanos,
        answer: Answer,
    },
    /// Surely without effect.
    Fail {
        at: Nanos,
        refusal: Refusal,
    },
    /// It may have had its effect, or have it later.
    Info {
        at: Nanos,
        refusal: Refusal,
    },
    /// It never ended: as unknown as `Info`.
    Open,
}

impl Op {
    /// When it ended well, and the answer.
    pub fn ok(&self) -> Option<(Nanos, &Answer)> {
        match &self.end {
            End::Ok { at, answer } => Some((*at, answer)),
            _ => None,
        }
    }

    /// When it ended well.
    pub fn ok_at(&self) -> Option<Nanos> {
        self.ok().map(|(at, _)| at)
    }

    /// Whether it surely had no effect.
    pub fn failed(&self) -> bool {
        matches!(self.end, End::Fail { .. })
    }

    /// When its end was seen; none if it never ended.
    pub fn ended(&self) -> Option<Nanos> {
        match &self.end {
            End::Ok { at, .. } | End::Fail { at, .. } | End::Info { at, .. } => Some(*at),
            End::Open => None,
        }
    }
}

/// A whole run: operations by the time of their invocation, and notes by their time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub ops: Vec<Op>,
    pub notes: Vec<(Nanos, Note)>,
}

impl History {
    /// When phase `name` began.
    pub fn phase(&self, name: Phase) -> Option<Nanos> {
        self.notes.iter().find_map(|(at, note)| match note {
            Note::Phase { name: found } if *found == name => Some(*at),
            _ => None,
        })
    }

    /// The limits under which this run is judged.
    pub fn limits(&self) -> crate::contract::Limits {
        self.notes
            .iter()
            .find_map(|(_, note)| match note {
                Note::Run(run) => Some(run.limits.clone()),
                _ => None,
            })
            .unwrap_or_default()
    }

    /// When the last fault was healed; the beginning if there was none.
    pub fn last_heal(&self) -> Nanos {
        let healed = self.notes.iter().filter_map(|(at, note)| match note {
            Note::Fault(fault) if fault.state == FaultState::Healed => Some(*at),
            _ => None,
        });
        healed.max().unwrap_or_default()
    }

    /// The last moment of which anything is known.
    pub fn end(&self) -> Nanos {
        let ops = self.ops.iter().map(|op| op.ended().unwrap_or(op.invoked));
        ops.chain(self.notes.iter().map(|(at, _)| *at)).max().unwrap_or_default()
    }
}
