//! A39 unmodelled answer: a response code that the contract does not allow for this request.
//!
//! The soft answers 10, 11 and 12 (flush timed out, no slave, slave timed out) are never given, nor 2 to a send.

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Call, End};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "answers", finds: &[Anomaly::A39], run: check };

/// System error, unsupported, service not available, illegal message, no permission, no topic; too many requests.
const SEND_CODES: &[i32] = &[1, 3, 13, 14, 16, 17, 29];
/// Those, and of consumers: pull codes, unknown groups and offsets, missing subscriptions, locks.
const OTHER_CODES: &[i32] = &[1, 2, 3, 14, 16, 17, 19, 20, 21, 22, 23, 24, 25, 26, 29, 205, 206];
/// With this mark a broker says that what it answers 14 to was never proposed.
const NOT_PROPOSED: &str = "not proposed";
const SERVICE_NOT_AVAILABLE: i32 = 14;

fn check(index: &Index<'_>, report: &mut Report) {
    for op in &index.history.ops {
        let (End::Fail { refusal, .. } | End::Info { refusal, .. }) = &op.end else { continue };
        report.checked += 1;
        let Some(code) = refusal.code else { continue };
        let sends = op.call.message().is_some() || matches!(op.call, Call::Batch(_) | Call::EndTx(_));
        let allowed = if sends { SEND_CODES } else { OTHER_CODES };
        if !allowed.contains(&code) {
            report.find(Anomaly::A39, [op.op], || {
                format!("{} was answered with code {code}: {}", op.call.name(), refusal.why)
            });
        }
        if sends && op.failed() && code == SERVICE_NOT_AVAILABLE && !refusal.why.contains(NOT_PROPOSED) {
            report.undecided(format!("operation {} counts as failed, but code 14 without the mark is unknown", op.op));
        }
    }
}
