//! What is made of what was found: the damage matrix, and what each of its answers means for a start.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{LogId, LogPosition};
use crate::latch_note::LatchNotes;
use crate::options::{FlushMode, Options};
use crate::record;
use crate::region::Files;
use crate::segment;
use crate::view::StopClass;

/// What stands at the log's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finding {
    /// Zeros, and nothing behind them.
    Nothing,
    /// Zeros, but below what was proven durable.
    EndsBelowFlushed,
    /// Damage below what was proven durable, or nothing is known to be proven.
    DamageBelowFlushed,
    /// What an interrupted write looks like, and nothing valid behind it.
    Torn,
    /// What an interrupted write looks like, and valid records behind it.
    TornBeforeValid,
    /// Something else: bytes have changed.
    Rot,
}

/// What is to be done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// Nothing: the log ends there.
    Go,
    /// Cut: this node cannot have acknowledged it.
    Truncate,
    /// Cut, but the node may have acknowledged what is gone: it must come back under a new id.
    TruncateUnderNewIdentity,
    /// Fetch the range from peers; this node does not lead until then. What no peer ever had was never chosen and goes;
    /// what is damaged on every copy stays, and with it this node's own copy, until a person decides.
    Repair,
    /// Come back under a new id.
    NewIdentity,
    /// Come back under a new id, then fetch the range.
    NewIdentityThenRepair,
    /// Go if the log still reaches what the note of the failure names, else as for rot.
    GoIfNotedReached,
    /// Cannot happen by a crash: somebody changed the files.
    Stop,
}

/// The damage matrix: one cell for each finding and each way the store was left.
pub(crate) fn decide(finding: Finding, stop: StopClass, flush_is_sync: bool) -> Decision {
    use Decision::{
        Go, GoIfNotedReached, NewIdentity, NewIdentityThenRepair, Repair, Stop, Truncate, TruncateUnderNewIdentity,
    };
    use StopClass::{Clean, Latched, New, Os, Process};
    match (finding, stop, flush_is_sync) {
        (Finding::DamageBelowFlushed, ..) => Repair,

        (Finding::Torn | Finding::TornBeforeValid, Clean | New, _) => Repair,
        (Finding::Torn, Process, _) => Truncate,
        (Finding::TornBeforeValid, Process, _) => Repair,
        // Without a sync the kernel writes pages in any order, so valid records behind a hole are
        // ordinary. And what latched in synchronous mode was never acknowledged by this node.
        (Finding::Torn | Finding::TornBeforeValid, Os | Latched, true) => Truncate,
        (Finding::Torn | Finding::TornBeforeValid, Os | Latched, false) => TruncateUnderNewIdentity,

        (Finding::Rot, Clean | New | Process, _) => Repair,
        // Synced before it was acknowledged, so it may be chosen, and this may be its last copy. Another identity would
        // give that copy up and gain nothing: peers that are damaged there too elect nobody.
        (Finding::Rot, Os, true) => Repair,
        (Finding::Rot, Os, false) => NewIdentityThenRepair,
        (Finding::Rot, Latched, _) => NewIdentity,

        (Finding::Nothing, Clean | New | Process, _) => Go,
        (Finding::Nothing, Os, true) => Go,
        // What was acknowledged from memory may be gone without a trace.
        (Finding::Nothing, Os, false) => NewIdentity,
        (Finding::Nothing, Latched, _) => GoIfNotedReached,

        (Finding::EndsBelowFlushed, Clean | New | Process, _) => Stop,
        (Finding::EndsBelowFlushed, Os | Latched, _) => NewIdentity,
    }
}

/// What a start does about what it found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    /// Erase what lies behind the end.
    pub(crate) erase: bool,
    /// Give up the node id first: what is gone may have been acknowledged under it.
    pub(crate) retire: bool,
}

/// Turns a decision about `finding` into a verdict, or into a refusal.
#[expect(clippy::too_many_arguments, reason = "what the decision was made from, for the message")]
pub(super) fn act_on(
    decision: Decision,
    finding: Finding,
    options: &Options,
    last: Option<LogId>,
    notes: &LatchNotes,
    files: &Arc<dyn Files>,
    end: LogPosition,
    found: &str,
) -> Result<Verdict> {
    let refuse = |consequence: &'static str| {
        Err(Error::Unrecoverable {
            file: files
                .path(&segment::file_name(LogPosition::new(end.get() / options.segment_bytes * options.segment_bytes))),
            from: end,
            to: end.plus(record::ALIGN),
            found: found.to_owned(),
            consequence,
            repairable: consequence == REPAIR && !options.alone,
        })
    };
    const REPAIR: &str = "this node may have acknowledged it, so it must not be cut: it is fetched from the other members, or this \
         replica replaced under a new id";
    const ALONE: &str = "acknowledged entries may be gone, and there is no other replica that has them";
    const KEEP: Verdict = Verdict { erase: false, retire: false };
    const CUT: Verdict = Verdict { erase: true, retire: false };
    let is_sync = options.flush == FlushMode::Sync;
    // Whatever stands behind the end goes, and comes back from the leader if it was chosen.
    let erase = !matches!(finding, Finding::Nothing | Finding::EndsBelowFlushed);
    let under_new_identity = Verdict { erase, retire: true };
    match decision {
        Decision::Go => Ok(KEEP),
        Decision::Truncate => Ok(CUT),
        Decision::GoIfNotedReached if is_sync || options.alone || notes.is_reached(last) => Ok(KEEP),
        Decision::TruncateUnderNewIdentity if options.alone => Ok(CUT),
        Decision::NewIdentity if options.alone && !is_sync => Ok(KEEP),
        Decision::Repair => refuse(REPAIR),
        Decision::NewIdentity | Decision::NewIdentityThenRepair if options.alone => refuse(ALONE),
        Decision::TruncateUnderNewIdentity
        | Decision::NewIdentity
        | Decision::NewIdentityThenRepair
        | Decision::GoIfNotedReached => Ok(under_new_identity),
        Decision::Stop => refuse("no crash does this: the files were changed or rolled back from outside"),
    }
}
