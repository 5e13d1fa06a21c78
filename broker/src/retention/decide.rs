//! What to drop: a choice without any I/O.

use std::time::Duration;

/// A sealed segment. Retention drops it whole, with all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Its last entry.
    pub(crate) last: u64,
    /// The newest time stamped into an entry near its end; none if nothing there carries a time.
    pub(crate) stamped_ms: Option<i64>,
    /// Whether there is a checkpoint as of its last entry.
    pub(crate) has_checkpoint: bool,
}

/// How full the disk is, as far as retention goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// There is room.
    #[default]
    None,
    /// What is old enough goes at any hour.
    Early,
    /// The oldest segment goes, however young it is and whoever still wants it.
    Forced,
}

/// Why segments go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// They are older than the retention time.
    Age,
    /// The disk is filling.
    Disk,
    /// They are damaged here, and too old for the other members to have them still.
    Damage,
}

/// What to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The last entry to go, the last one of a segment.
    pub(crate) through: u64,
    /// How many segments.
    pub(crate) segments: usize,
    /// Why.
    pub(crate) cause: Cause,
}

/// What the choice rests on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// Sealed segments, oldest first.
    pub(crate) sealed: &'a [Candidate],
    /// The last entry applied here.
    pub(crate) applied: u64,
    /// The last entry that every other replica in good health has, on a leader that has such.
    pub(crate) needed_after: Option<u64>,
    /// The first entry that holds a message still to be delivered.
    pub(crate) owed_from: Option<u64>,
    /// How full the disk is.
    pub(crate) pressure: Pressure,
}

/// The segments that have outlived `time` at `now_ms`.
///
/// Stamps come from leaders' clocks. The first segment that is too young keeps all behind it: a leader whose clock was
/// behind makes nothing go early, one whose clock was ahead makes some of it stay longer.
pub(crate) fn by_age(view: &View<'_>, now_ms: i64, time: Duration) -> Option<Choice> {
    let horizon = now_ms.saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
    let mut expired = 0;
    for (number, candidate) in view.sealed.iter().enumerate() {
        let Some(stamped) = candidate.stamped_ms else { continue };
        if stamped > horizon {
            break;
        }
        expired = number + 1;
    }
    drop_first(view, expired, Cause::Age)
}

/// The oldest segment, or as many as lie before the first checkpoint.
pub(crate) fn by_disk(view: &View<'_>) -> Option<Choice> {
    let end = view.sealed.iter().position(|candidate| candidate.has_checkpoint)? + 1;
    drop_first(view, end, Cause::Disk)
}

/// The first `count` segments, as far as they can go.
fn drop_first(view: &View<'_>, count: usize, cause: Cause) -> Option<Choice> {
    let free_to_go = |candidate: &Candidate| {
        candidate.has_checkpoint
            && candidate.last <= view.applied
            && view.owed_from.is_none_or(|owed| candidate.last < owed)
            // A replica that is cut off from what it lacks comes back by snapshot; that is better than a full disk.
            && (view.pressure == Pressure::Forced || view.needed_after.is_none_or(|needed| candidate.last <= needed))
    };
    let segments = view.sealed.get(..count)?.iter().rposition(free_to_go)? + 1;
    Some(Choice { through: view.sealed[segments - 1].last, segments, cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    /// Segments of ten entries each, the last of them stamped so many hours after the beginning.
    fn sealed(stamped: &[i64]) -> Vec<Candidate> {
        let candidate = |(number, hours): (usize, &i64)| Candidate {
            last: number as u64 * 10 + 9,
            stamped_ms: Some(hours * HOUR),
            has_checkpoint: true,
        };
        stamped.iter().enumerate().map(candidate).collect()
    }

    fn view(sealed: &[Candidate]) -> View<'_> {
        View { sealed, applied: 1000, needed_after: None, owed_from: None, pressure: Pressure::None }
    }

    /// How many segments go of age at an hour.
    #[track_caller]
    fn check_age(view: &View<'_>, now_h: i64, expected: usize) {
        let drop = by_age(view, now_h * HOUR, Duration::from_secs(72 * 3600));
        assert_eq!(drop.map_or(0, |drop| drop.segments), expected, "{drop:?}");
        if let Some(drop) = drop {
            assert_eq!(drop.through, drop.segments as u64 * 10 - 1);
            assert_eq!(drop.cause, Cause::Age);
        }
    }

    #[test]
    fn whole_segments_go_once_their_last_entry_is_old_enough() {
        let sealed = sealed(&[10, 20, 30]);
        let view = view(&sealed);
        check_age(&view, 81, 0);
        check_age(&view, 82, 1);
        check_age(&view, 91, 1);
        check_age(&view, 92, 2);
        check_age(&view, 1000, 3);
    }

    #[test]
    fn leaders_whose_clocks_were_wrong_make_nothing_go_early() {
        // The second leader's clock was nine hours behind, and the fourth's 100 hours ahead.
        let behind = sealed(&[10, 1, 12, 13]);
        check_age(&view(&behind), 81, 0);
        check_age(&view(&behind), 82, 2);
        check_age(&view(&behind), 84, 3);
        let ahead = sealed(&[10, 110, 12, 13]);
        check_age(&view(&ahead), 90, 1);
        check_age(&view(&ahead), 182, 4);
    }

    #[test]
    fn a_segment_without_a_time_goes_with_the_next_one() {
        let mut segments = sealed(&[10, 20, 30]);
        segments[0].stamped_ms = None;
        segments[2].stamped_ms = None;
        check_age(&view(&segments), 91, 0);
        check_age(&view(&segments), 92, 2);
        check_age(&view(&segments), 1000, 2);
    }

    #[test]
    fn nothing_goes_without_a_checkpoint_or_before_it_is_applied() {
        let mut segments = sealed(&[10, 20, 30]);
        segments[1].has_checkpoint = false;
        check_age(&view(&segments), 92, 1);
        check_age(&view(&segments), 102, 3);
        check_age(&View { applied: 28, ..view(&segments) }, 102, 1);
        segments[0].has_checkpoint = false;
        check_age(&view(&segments), 92, 0);
    }

    #[test]
    fn what_a_healthy_replica_lacks_stays_unless_the_disk_fills() {
        let sealed = sealed(&[10, 20, 30]);
        let needed = |after, pressure| View { needed_after: Some(after), pressure, ..view(&sealed) };
        check_age(&needed(18, Pressure::None), 1000, 1);
        check_age(&needed(19, Pressure::None), 1000, 2);
        check_age(&needed(0, Pressure::Early), 1000, 0);
        check_age(&needed(0, Pressure::Forced), 1000, 3);
    }

    #[test]
    fn what_is_still_to_be_delivered_stays_even_if_the_disk_fills() {
        let sealed = sealed(&[10, 20, 30]);
        let owed = |from, pressure| View { owed_from: Some(from), pressure, ..view(&sealed) };
        check_age(&owed(20, Pressure::None), 1000, 2);
        check_age(&owed(19, Pressure::None), 1000, 1);
        check_age(&owed(3, Pressure::Forced), 1000, 0);
        assert_eq!(by_disk(&owed(9, Pressure::Forced)), None);
    }

    #[test]
    fn a_filling_disk_takes_the_oldest_segment_and_no_more() {
        let mut segments = sealed(&[10, 20, 30]);
        let forced = |segments: &[Candidate]| {
            by_disk(&View { needed_after: Some(0), pressure: Pressure::Forced, ..view(segments) })
        };
        assert_eq!(forced(&segments), Some(Choice { through: 9, segments: 1, cause: Cause::Disk }));
        segments[0].has_checkpoint = false;
        assert_eq!(forced(&segments), Some(Choice { through: 19, segments: 2, cause: Cause::Disk }));
        assert_eq!(forced(&[]), None);
        segments.iter_mut().for_each(|segment| segment.has_checkpoint = false);
        assert_eq!(forced(&segments), None);
    }
}
