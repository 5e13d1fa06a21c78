//! What was sent, what was answered, what was read back, and whether they agree.
//!
//! Each sender numbers its messages from 0 and has one in flight at a time, so in every queue its numbers must rise:
//! a message that comes again is a duplicate, and a first appearance behind a higher number is out of order.

use std::collections::HashMap;

use serde::Serialize;

/// What the sender knows of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The broker answered SEND_OK: it must be there.
    Acked,
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
    /// Messages of this run that no sender sent: damage.
    pub(super) phantom: u64,
    /// Some of what is lost, as sender:number.
    pub(super) lost_examples: Vec<String>,
}

const EXAMPLES_MAX: usize = 20;

/// Collects what is read back, queue by queue, each in the order of its offsets.
pub(super) struct Checker<'a> {
    logs: &'a [SenderLog],
    /// Copies found, by sender and number.
    copies: Vec<Vec<u32>>,
    report: Report,
}

impl<'a> Checker<'a> {
    pub(super) fn new(logs: &'a [SenderLog]) -> Self {
        let copies = logs.iter().map(|log| vec![0; log.outcomes.len()]).collect();
        Self { logs, copies, report: Report::default() }
    }

    /// Takes all messages of one queue.
    pub(super) fn queue(&mut self, messages: impl IntoIterator<Item = Found>) {
        let mut highest: HashMap<u32, u32> = HashMap::new();
        for Found { sender, number } in messages {
            let copies = self.copies.get_mut(sender as usize).and_then(|copies| copies.get_mut(number as usize));
            let Some(copies) = copies else {
                self.report.phantom += 1;
                continue;
            };
            *copies += 1;
            if *copies > 1 {
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
        for (sender, (log, copies)) in self.logs.iter().zip(&self.copies).enumerate() {
            for (number, (outcome, &copies)) in log.outcomes.iter().zip(copies).enumerate() {
                let stored = copies > 0;
                self.report.stored += u64::from(stored);
                match outcome {
                    Outcome::Unknown => {
                        self.report.sent += 1;
                        self.report.unknown += 1;
                        self.report.stored_unknown += u64::from(stored);
                    }
                    Outcome::Acked => {
                        self.report.sent += 1;
                        self.report.acked += 1;
                        if !stored {
                            self.report.lost += 1;
                            if self.report.lost_examples.len() < EXAMPLES_MAX {
                                self.report.lost_examples.push(format!("{sender}:{number}"));
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

    /// `sent` has one string a sender, a letter a message: `a`cked or `u`nknown. `queues` has `sender:number` words.
    fn check(sent: &[&str], queues: &[&str]) -> Report {
        let logs: Vec<_> = sent
            .iter()
            .map(|letters| SenderLog {
                outcomes: letters.chars().map(|c| if c == 'a' { Outcome::Acked } else { Outcome::Unknown }).collect(),
            })
            .collect();
        let mut checker = Checker::new(&logs);
        for queue in queues {
            checker.queue(queue.split_whitespace().map(|word| {
                let (sender, number) = word.split_once(':').unwrap();
                Found { sender: sender.parse().unwrap(), number: number.parse().unwrap() }
            }));
        }
        checker.finish()
    }

    #[test]
    fn all_there_in_order_is_clean() {
        let report = check(&["aaaa", "aa"], &["0:0 1:0 0:2", "0:1 0:3 1:1"]);
        assert_eq!(report, Report { sent: 6, acked: 6, stored: 6, ..Report::default() });
    }

    #[test]
    fn a_missing_acknowledged_message_is_lost_and_a_missing_unknown_one_is_not() {
        let report = check(&["aua"], &["0:0"]);
        assert_eq!((report.lost, report.unknown, report.stored), (1, 1, 1));
        assert_eq!(report.lost_examples, ["0:2"]);
    }

    #[test]
    fn a_second_copy_is_a_duplicate_in_whatever_queue() {
        let report = check(&["aaa"], &["0:0 0:1 0:0", "0:2 0:1"]);
        assert_eq!((report.duplicated, report.out_of_order, report.stored), (2, 0, 3));
    }

    #[test]
    fn a_first_appearance_behind_a_later_number_is_out_of_order() {
        assert_eq!(check(&["aaa"], &["0:0 0:2 0:1"]).out_of_order, 1);
        assert_eq!(check(&["aaa"], &["0:0 0:2", "0:1"]).out_of_order, 0);
    }

    #[test]
    fn what_nobody_sent_is_a_phantom() {
        assert_eq!(check(&["a"], &["0:0 0:1 7:0"]).phantom, 2);
    }
}
