//! Enough file descriptors, before anything is opened.

use raft_store::ReadBudget;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What all derived files of a node may have open, by all groups together.
const DERIVED_FILES_MAX: usize = 512;
/// The least that one group makes do with.
const DERIVED_FILES_MIN: usize = 16;
/// What the log of one group takes: hot segments, small files.
const OF_LOG: usize = 32;
/// Peers, administration, listeners, and a few clients.
const OF_SOCKETS_MIN: usize = 256;

/// What the derived files of each of `groups` may have open.
pub(super) fn derived_files_max(groups: usize) -> usize {
    (DERIVED_FILES_MAX / groups.max(1)).max(DERIVED_FILES_MIN)
}

/// What the storage of so many groups has open at the most, whatever the number of topics.
fn of_storage(groups: usize) -> usize {
    (derived_files_max(groups) + OF_LOG) * groups + ReadBudget::READS_MAX
}

/// Raises the limit of this process to what the system allows, and makes sure that it is enough for `groups`.
///
/// # Errors
/// The limit, and what is needed.
pub(super) fn ensure(groups: usize) -> Result<(), (u64, u64)> {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    if before.current != before.maximum && setrlimit(Resource::Nofile, raised).is_err() {
        tracing::debug!("the limit of open files cannot be raised");
    }
    check(getrlimit(Resource::Nofile).current, groups)
}

fn check(limit: Option<u64>, groups: usize) -> Result<(), (u64, u64)> {
    let needed = (of_storage(groups) + OF_SOCKETS_MIN) as u64;
    match limit {
        Some(limit) if limit < needed => Err((limit, needed)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_stays_below_a_thousand_descriptors_with_any_number_of_topics() {
        for groups in 1..=8 {
            assert!(of_storage(groups) <= 1_024, "{groups} groups: {}", of_storage(groups));
        }
    }

    #[test]
    fn a_limit_below_the_need_is_refused_with_both() {
        assert_eq!(check(Some(1_120), 3), Ok(()));
        assert_eq!(check(None, 3), Ok(()));
        assert_eq!(check(Some(256), 3), Err((256, 1_118)));
    }
}
