//! Whether a replica should lead, as far as that is its own affair.

use std::sync::atomic::{AtomicU8, Ordering};

/// A reason for a replica not to lead as long as another can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Unfit {
    /// It is about to stop.
    Leaving = 1,
    /// Its disk is too full to take messages.
    DiskFull = 2,
    /// Its disk has taken too long to write just now.
    DiskSlow = 4,
    /// Its log is damaged, and not repaired yet.
    Damaged = 8,
    /// An operator has drained its node.
    Drained = 16,
}

/// The reasons that hold now. Other replicas ask before they hand leadership over.
#[derive(Debug, Default)]
pub(super) struct Fitness(AtomicU8);

impl Fitness {
    pub(super) fn set(&self, reason: Unfit, holds: bool) {
        if holds {
            self.0.fetch_or(reason as u8, Ordering::AcqRel);
        } else {
            self.0.fetch_and(!(reason as u8), Ordering::AcqRel);
        }
    }

    pub(super) fn would_lead(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Whether a leader should look for another one. One that leaves hands over by itself.
    pub(super) fn should_hand_over(&self) -> bool {
        self.0.load(Ordering::Acquire) & !(Unfit::Leaving as u8) != 0
    }

    pub(super) fn has(&self, reason: Unfit) -> bool {
        self.0.load(Ordering::Acquire) & reason as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_would_lead_once_no_reason_holds_any_more() {
        let fitness = Fitness::default();
        assert!(fitness.would_lead() && !fitness.should_hand_over());
        fitness.set(Unfit::Leaving, true);
        assert!(!fitness.would_lead() && !fitness.should_hand_over());
        fitness.set(Unfit::DiskFull, true);
        assert!(fitness.should_hand_over());
        assert!(fitness.has(Unfit::DiskFull) && !fitness.has(Unfit::DiskSlow));
        fitness.set(Unfit::Leaving, false);
        assert!(!fitness.would_lead());
        fitness.set(Unfit::DiskFull, false);
        assert!(fitness.would_lead() && !fitness.should_hand_over());
    }
}
