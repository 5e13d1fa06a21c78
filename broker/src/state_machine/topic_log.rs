//! Which topics changed lately, for whoever tells name servers.

use std::collections::{BTreeSet, VecDeque};

use protocol::TopicName;

/// Changes of the topic table that are remembered.
const CHANGES_KEPT: usize = 4096;

/// Which topics the newest changes of the topic table were about.
///
/// A replica keeps it for itself, to tell name servers only what changed: it is in no checkpoint, and states that differ
/// in it are equal.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopicLog {
    /// Counter of the table after the change, and the topic; in the order of the changes.
    newest: VecDeque<(u64, TopicName)>,
    /// Changes up to this counter are forgotten.
    forgotten: u64,
}

impl PartialEq for TopicLog {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl TopicLog {
    /// Knows nothing of what made the table with this counter.
    pub(super) fn behind(counter: u64) -> Self {
        Self { newest: VecDeque::new(), forgotten: counter }
    }

    /// A change made the table with this counter.
    pub(super) fn note(&mut self, counter: u64, topic: TopicName) {
        self.newest.push_back((counter, topic));
        while self.newest.len() > CHANGES_KEPT
            && let Some((counter, _)) = self.newest.pop_front()
        {
            self.forgotten = counter;
        }
    }

    /// The topics that changed since the table with this counter; none if that is too long ago.
    pub(super) fn since(&self, counter: u64) -> Option<BTreeSet<&TopicName>> {
        let first = self.newest.partition_point(|(changed, _)| *changed <= counter);
        (counter >= self.forgotten).then(|| self.newest.range(first..).map(|(_, topic)| topic).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> TopicName {
        TopicName::parse(&format!("T{number}")).unwrap()
    }

    #[test]
    fn only_the_newest_changes_are_remembered() {
        let mut log = TopicLog::behind(7);
        assert_eq!(log.since(6), None);
        assert_eq!(log.since(7), Some(BTreeSet::new()));
        log.note(8, name(1));
        log.note(9, name(2));
        log.note(9, name(1));
        assert_eq!(log.since(7), Some(BTreeSet::from([&name(1), &name(2)])));
        assert_eq!(log.since(8), Some(BTreeSet::from([&name(1), &name(2)])));
        assert_eq!(log.since(9), Some(BTreeSet::new()));
        // One change of as many topics as are kept pushes the others out, and a change that is there in part is not
        // there.
        (0..CHANGES_KEPT - 1).for_each(|number| log.note(10, name(number)));
        assert_eq!(log.since(8), None);
        assert_eq!(log.since(9).map(|topics| topics.len()), Some(CHANGES_KEPT - 1));
    }
}
