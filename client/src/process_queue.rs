//! Messages of one queue that are pulled and not yet consumed. Pure.

use std::collections::BTreeMap;

/// Keeps count of a queue, and of how far it is consumed without a gap.
#[derive(Debug, Default)]
pub(crate) struct ProcessQueue {
    /// Bytes of each message, by queue offset.
    waiting: BTreeMap<i64, usize>,
    bytes: usize,
    /// Where the queue goes on after everything that was put in.
    next_offset: i64,
}

impl ProcessQueue {
    /// Nothing pulled yet; consumption begins at `next_offset`.
    pub(crate) fn new(next_offset: i64) -> Self {
        Self { next_offset, ..Self::default() }
    }

    /// Adds a pulled message.
    pub(crate) fn put(&mut self, queue_offset: i64, bytes: usize) {
        if self.waiting.insert(queue_offset, bytes).is_none() {
            self.bytes += bytes;
        }
        self.next_offset = self.next_offset.max(queue_offset + 1);
    }

    /// Everything before `queue_offset` was pulled or is of no interest.
    pub(crate) fn advance(&mut self, queue_offset: i64) {
        self.next_offset = self.next_offset.max(queue_offset);
    }

    /// A message is consumed.
    pub(crate) fn done(&mut self, queue_offset: i64) {
        if let Some(bytes) = self.waiting.remove(&queue_offset) {
            self.bytes -= bytes;
        }
    }

    /// Where consumption would have to go on now: before the first message that waits.
    pub(crate) fn consumed_offset(&self) -> i64 {
        self.waiting.keys().next().copied().unwrap_or(self.next_offset)
    }

    /// Messages that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Distance between the first and the last message that wait.
    pub(crate) fn span(&self) -> i64 {
        match (self.waiting.keys().next(), self.waiting.keys().next_back()) {
            (Some(first), Some(last)) => last - first,
            _ => 0,
        }
    }

    /// First and last message that wait.
    pub(crate) fn range(&self) -> Option<(i64, i64)> {
        Some((*self.waiting.keys().next()?, *self.waiting.keys().next_back()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumed_offset_never_passes_a_message_that_waits() {
        let mut queue = ProcessQueue::new(5);
        assert_eq!(queue.consumed_offset(), 5);
        for offset in 5..9 {
            queue.put(offset, 10);
        }
        assert_eq!((queue.consumed_offset(), queue.len(), queue.bytes(), queue.span()), (5, 4, 40, 3));
        queue.done(6);
        queue.done(8);
        assert_eq!(queue.consumed_offset(), 5);
        queue.done(5);
        assert_eq!(queue.consumed_offset(), 7);
        queue.done(7);
        queue.done(7);
        assert_eq!((queue.consumed_offset(), queue.len(), queue.bytes()), (9, 0, 0));
    }

    #[test]
    fn filtered_messages_move_the_offset_once_nothing_waits() {
        let mut queue = ProcessQueue::new(0);
        queue.put(0, 1);
        queue.advance(100);
        assert_eq!(queue.consumed_offset(), 0);
        queue.done(0);
        assert_eq!(queue.consumed_offset(), 100);
    }
}
