//! What was sent, what was answered, what was read back, and whether they agree.
//!
//! Each sender numbers its messages from 0 and has one in flight at a time, so in every queue its numbers must rise:
//! a message that comes again is a duplicate, and a first appearance behind a higher number is out of order.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

/// One place in one queue of one broker group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) broker: Arc<str>,
    pub(super) queue: i32,
    pub(super) queue_offset: i64,
}

/// What the sender knows of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The broker answered SEND_OK: it must be there, and nowhere else than it said unless it was sent twice.
    Acked(Place),
    /// An error or no answer: it may be there.
    Unknown,
}

/// The answers one sender got, by message number.
#[derive(Debug, Default)]
pub(super) struct SenderLog {
    outcomes: Vec<Outcome>,
}

impl SenderLog {
    /// Notes the outcome of the next message.
    pub(super) fn push(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }
}

/// One message found in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) sender: u32,
    pub(super) number: u32,
    pub(super) queue_offset: i64,
}

/// The verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// Calls made.
    pub(super) sent: u64,
    /// Calls that were answered SEND_OK.
    pub(super) acked: u64,
    /// Calls that failed or were not answered.
    pub(super) unknown: u64,
    /// Different messages found.
    pub(super) stored: u64,
    /// Found although the call failed: allowed.
    pub(super) stored_unknown: u64,
    /// Acknowledged and not found.
    pub(super) lost: u64,
    /// Extra copies: a client that sends again after an unknown outcome makes them.
    pub(super) duplicated: u64,
    /// First appearances behind a later message of the same sender in the same queue.
    pub(super) out_of_order: u64,
    /// Acknowledged at a place that does not hold them, though some other does.
    pub(super) moved: u64,
    /// Messages of this run that no sender sent: damage.
    pub(super) phantom: u64,
    /// Some of what is lost, and where it was acknowledged.
    pub(super) lost_examples: Vec<String>,
}

const EXAMPLES_MAX: usize = 20;

/// What has been found of one message.
#[derive(Clone, Copy, Default)]
struct Seen {
    copies: u32,
    /// One of them is where the acknowledgement said.
    in_place: bool,
}

/// Collects what is read back, queue by queue, each in the order of its offsets.
pub(super) struct Checker<'a> {
    logs: &'a [SenderLog],
    /// By sender and number.
    seen: Vec<Vec<Seen>>,
    report: Report,
}

impl<'a> Checker<'a> {
    pub(super) fn new(logs: &'a [SenderLog]) -> Self {
        let seen = logs.iter().map(|log| vec![Seen::default(); log.outcomes.len()]).collect();
        Self { logs, seen, report: Report::default() }
    }

    /// Takes all messages of one queue.
    pub(super) fn queue(&mut self, broker: &str, queue: i32, messages: impl IntoIterator<Item = Found>) {
        let mut highest: HashMap<u32, u32> = HashMap::new();
        for Found { sender, number, queue_offset } in messages {
            let seen = self.seen.get_mut(sender as usize).and_then(|seen| seen.get_mut(number as usize));
            let Some(seen) = seen else {
                self.report.phantom += 1;
                continue;
            };
            if let Outcome::Acked(place) = &self.logs[sender as usize].outcomes[number as usize] {
                seen.in_place |= (&*place.broker, place.queue, place.queue_offset) == (broker, queue, queue_offset);
            }
            seen.copies += 1;
            if seen.copies > 1 {
                self.report.duplicated += 1;
                continue;
            }
            match highest.get_mut(&sender) {
                Some(highest) if number < *highest => self.report.out_of_order += 1,
                Some(highest) => *highest = number,
                None => {
                    highest.insert(sender, number);
                }
            }
        }
    }

    pub(super) fn finish(mut self) -> Report {
        let report = &mut self.report;
        for (sender, (log, seen)) in self.logs.iter().zip(&self.seen).enumerate() {
            for (number, (outcome, seen)) in log.outcomes.iter().zip(seen).enumerate() {
                let is_stored = seen.copies > 0;
                report.sent += 1;
                report.stored += u64::from(is_stored);
                match outcome {
                    Outcome::Unknown => {
                        report.unknown += 1;
                        report.stored_unknown += u64::from(is_stored);
                    }
                    Outcome::Acked(place) => {
                        report.acked += 1;
                        report.moved += u64::from(is_stored && !seen.in_place);
                        if !is_stored {
                            report.lost += 1;
                            if report.lost_examples.len() < EXAMPLES_MAX {
                                let Place { broker, queue, queue_offset } = place;
                                report
                                    .lost_examples
                                    .push(format!("{sender}:{number} at {broker}:{queue}:{queue_offset}"));
                            }
                        }
                    }
                }
            }
        }
        self.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sent` has one string a sender, a word a message: `u` for unknown, or `queue:offset` where it was acknowledged.
    /// `queues` has `sender:number` words, the first at offset 0.
    fn check(sent: &[&str], queues: &[&str]) -> Report {
        let pair = |word: &str| {
            let (a, b) = word.split_once(':').unwrap();
            (a.parse::<u32>().unwrap(), b.parse::<u32>().unwrap())
        };
        let outcome = |word: &str| match word {
            "u" => Outcome::Unknown,
            _ => {
                let (queue, offset) = pair(word);
                Outcome::Acked(Place {
                    broker: "b".into(),
                    queue: i32::try_from(queue).unwrap(),
                    queue_offset: offset.into(),
                })
            }
        };
        let logs: Vec<_> =
            sent.iter().map(|words| SenderLog { outcomes: words.split_whitespace().map(outcome).collect() }).collect();
        let mut checker = Checker::new(&logs);
        for (queue, words) in (0..).zip(queues) {
            checker.queue(
                "b",
                queue,
                (0..).zip(words.split_whitespace()).map(|(queue_offset, word)| {
                    let (sender, number) = pair(word);
                    Found { sender, number, queue_offset }
                }),
            );
        }
        checker.finish()
    }

    #[test]
    fn all_there_in_order_is_clean() {
        let report = check(&["0:0 1:0 0:2 1:1", "0:1 1:2"], &["0:0 1:0 0:2", "0:1 0:3 1:1"]);
        assert_eq!(report, Report { sent: 6, acked: 6, stored: 6, ..Report::default() });
    }

    #[test]
    fn a_missing_acknowledged_message_is_lost_and_a_missing_unknown_one_is_not() {
        let report = check(&["0:0 u 0:7"], &["0:0"]);
        assert_eq!((report.lost, report.unknown, report.stored), (1, 1, 1));
        assert_eq!(report.lost_examples, ["0:2 at b:0:7"]);
    }

    #[test]
    fn a_second_copy_is_a_duplicate_in_whatever_queue() {
        let report = check(&["0:0 1:1 1:0"], &["0:0 0:1 0:0", "0:2 0:1"]);
        assert_eq!((report.duplicated, report.out_of_order, report.stored, report.moved), (2, 0, 3, 0));
    }

    #[test]
    fn a_first_appearance_behind_a_later_number_is_out_of_order() {
        assert_eq!(check(&["0:0 0:2 0:1"], &["0:0 0:2 0:1"]).out_of_order, 1);
        assert_eq!(check(&["0:0 1:0 0:1"], &["0:0 0:2", "0:1"]).out_of_order, 0);
    }

    #[test]
    fn a_message_that_is_only_elsewhere_has_moved() {
        let report = check(&["0:1"], &["0:0"]);
        assert_eq!((report.moved, report.lost), (1, 0));
    }

    #[test]
    fn what_nobody_sent_is_a_phantom() {
        assert_eq!(check(&["0:0"], &["0:0 0:1 7:0"]).phantom, 2);
    }
}
