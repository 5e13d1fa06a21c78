//! The forty ways in which a run can go wrong.

use std::fmt;

use serde::Serialize;

use crate::contract::Promise;

/// What a finding means for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Any one fails the run.
    Fails,
    /// Fails the run above a bound, which the checker applies before it reports.
    Bounded,
}

macro_rules! anomalies {
    ($($id:ident $name:literal $severity:ident $promise:ident;)*) => {
        /// An anomaly by its number. The exact meaning of each stands at the checker that finds it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum Anomaly { $($id,)* }

        impl Anomaly {
            pub const ALL: [Self; 40] = [$(Self::$id,)*];

            /// The name in words.
            pub fn name(self) -> &'static str {
                match self { $(Self::$id => $name,)* }
            }

            pub fn severity(self) -> Severity {
                match self { $(Self::$id => Severity::$severity,)* }
            }

            /// The promise that is broken.
            pub fn promise(self) -> Promise {
                match self { $(Self::$id => Promise::$promise,)* }
            }
        }
    };
}

anomalies! {
    A01 "lost acked write" Fails K1;
    A02 "phantom" Fails K3;
    A03 "aborted read" Fails K1;
    A04 "log duplicate" Fails K2;
    A05 "inconsistent offset" Fails K2;
    A06 "inconsistent position" Fails K3;
    A07 "queue hole" Fails K2;
    A08 "real-time reorder" Fails K2;
    A09 "non-monotonic send" Fails K2;
    A10 "batch torn" Fails K1;
    A11 "dirty read" Fails K4;
    A12 "stale read" Fails K4;
    A13 "poll skip" Fails K4;
    A14 "non-monotonic poll" Fails K4;
    A15 "internal skip or inversion" Fails K4;
    A16 "unseen" Fails K6;
    A17 "group skip" Fails K6;
    A18 "offset lost or regressed" Fails K5;
    A19 "offset phantom or overrun" Fails K5;
    A20 "duplicate delivery" Bounded K6;
    A21 "split ownership" Fails K6;
    A22 "ordered-key inversion" Fails K6;
    A23 "delay early, late, twice or lost" Fails K8;
    A24 "half visible" Fails K7;
    A25 "transaction torn" Fails K7;
    A26 "check-back missing" Bounded K7;
    A27 "stale route" Fails K9;
    A28 "topic regress" Fails K1;
    A29 "split brain" Fails K1;
    A30 "replica divergence" Fails K3;
    A31 "derived store incoherent" Fails K3;
    A32 "membership anomaly" Fails K1;
    A33 "ack after failed sync" Fails K10;
    A34 "corruption served" Fails K10;
    A35 "crash" Fails K10;
    A36 "no recovery" Fails K9;
    A37 "availability lost under a tolerable fault" Bounded K9;
    A38 "metastable" Bounded K9;
    A39 "unmodelled answer" Fails K1;
    A40 "resource leak" Bounded K9;
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} {}", self.name())
    }
}
