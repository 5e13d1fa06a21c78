//! From an entry's number to its place in a segment.
//!
//! Only the first record that starts in each block is remembered; the rest is found by walking the
//! headers from there. This bounds memory whatever the size of the records: one megabyte for a segment
//! of a gigabyte.

use crate::ids::LogIndex;

const BLOCK_BYTES: u64 = 16 << 10;

/// The first record of each block, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogIndexMap {
    firsts: Vec<(LogIndex, u32)>,
}

impl LogIndexMap {
    /// Takes note of the next record.
    pub(crate) fn note(&mut self, index: LogIndex, offset: u32) {
        let block = |offset: u32| u64::from(offset) / BLOCK_BYTES;
        match self.firsts.last() {
            Some((_, last)) if block(*last) == block(offset) => {}
            Some((last_index, last)) => {
                assert!(index > *last_index && offset > *last);
                self.firsts.push((index, offset));
            }
            None => self.firsts.push((index, offset)),
        }
    }

    /// The last remembered record that is not behind `index`.
    pub(crate) fn at_or_before(&self, index: LogIndex) -> Option<(LogIndex, u32)> {
        let behind = self.firsts.partition_point(|(first, _)| *first <= index);
        behind.checked_sub(1).and_then(|at| self.firsts.get(at)).copied()
    }

    /// Offset of the last remembered record that does not start behind `offset`.
    pub(crate) fn offset_at_or_before(&self, offset: u64) -> Option<u32> {
        let behind = self.firsts.partition_point(|(_, start)| u64::from(*start) <= offset);
        behind.checked_sub(1).and_then(|at| self.firsts.get(at)).map(|(_, start)| *start)
    }

    /// The first record that starts in each of the `count` pieces of `bytes` bytes, a multiple of a block.
    pub(crate) fn first_of_each(&self, bytes: u64, count: u64) -> impl Iterator<Item = Option<(LogIndex, u32)>> {
        // A piece has as many blocks, so the first of the next one is not further away.
        let blocks = usize::try_from(bytes / BLOCK_BYTES).expect("a piece has few blocks");
        let mut left = self.firsts.as_slice();
        (0..count).map(move |piece| {
            let near = left.get(..blocks).unwrap_or(left);
            left = &left[near.partition_point(|(_, start)| u64::from(*start) < piece * bytes)..];
            left.first().copied().filter(|(_, start)| u64::from(*start) < (piece + 1) * bytes)
        })
    }

    /// Forgets records that start at or behind `offset`.
    pub(crate) fn cut(&mut self, offset: u64) {
        let keep = self.firsts.partition_point(|(_, start)| u64::from(*start) < offset);
        self.firsts.truncate(keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_start_at_the_block_before() {
        let mut map = LogIndexMap::default();
        for index in 0..100 {
            map.note(LogIndex::new(10 + index), 4096 + u32::try_from(index).unwrap() * 1024);
        }
        let at = |index| map.at_or_before(LogIndex::new(index)).map(|(index, offset)| (index.get(), offset));
        assert_eq!(None, at(9));
        assert_eq!(Some((10, 4096)), at(10));
        assert_eq!(Some((10, 4096)), at(21));
        assert_eq!(Some((22, 16384)), at(22));
        assert_eq!(Some(16384), map.offset_at_or_before(20_000));
        assert_eq!(None, map.offset_at_or_before(4095));
        let firsts: Vec<_> = map.first_of_each(32768, 5).map(|first| first.map(|(index, _)| index.get())).collect();
        assert_eq!(vec![Some(10), Some(38), Some(70), Some(102), None], firsts);
        map.cut(16384);
        assert_eq!(Some((LogIndex::new(10), 4096)), map.at_or_before(LogIndex::new(99)));
    }
}
