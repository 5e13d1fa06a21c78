//! Records that are laid out for the end of a file.
//!
//! The disk takes whole blocks only, and the log ends anywhere. So a stage keeps what the block that it begins in holds
//! already, and lies in memory as it will lie on the disk: all of it can go there without another copy.
//!
//! ```text
//!   file     ...|  block  |  block  |  block  |  block  |
//!   stage           [ held  | new                 | 0000 ]
//!                   start   from                 end
//! ```

use std::io;

/// What the disk writes at once, or a multiple of it.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(crate) struct Stage {
    memory: Vec<u8>,
    /// Where the first block starts in `memory`, so that its address is a multiple of a block.
    base: usize,
    capacity: usize,
    /// Where the first block starts in the file.
    start: u64,
    /// Bytes from the start of the first block that the file has already.
    held: usize,
    /// Bytes from the start of the first block, the new ones included.
    end: usize,
}

impl Stage {
    /// A stage with room for `bytes` bytes, and for more when it must be.
    pub(crate) fn new(bytes: usize) -> Self {
        let capacity = bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES;
        let (memory, base) = aligned(capacity);
        Self { memory, base, capacity, start: 0, held: 0, end: 0 }
    }

    /// Whether there is nothing new.
    pub(crate) fn is_empty(&self) -> bool {
        self.end == self.held
    }

    /// How many bytes are new.
    pub(crate) fn len(&self) -> usize {
        self.end - self.held
    }

    /// Where the new bytes go in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.start + self.held as u64
    }

    /// The new bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.base + self.held..self.base + self.end]
    }

    /// Where the first block goes, and all blocks, the last one filled up with zeros.
    pub(crate) fn blocks(&mut self) -> (u64, &[u8]) {
        let end = self.end.next_multiple_of(BLOCK_BYTES);
        self.memory[self.base + self.end..self.base + end].fill(0);
        (self.start, &self.memory[self.base..self.base + end])
    }

    /// Begins at `offset`, where the file has only zeros from there on. `read` tells what it holds before.
    pub(crate) fn begin(&mut self, offset: u64, read: impl FnOnce(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
        assert!(self.is_empty());
        if offset == self.offset() {
            return Ok(());
        }
        let held = usize::try_from(offset % BLOCK_BYTES as u64).expect("less than a block");
        self.forget();
        if held > 0 {
            read(offset - held as u64, &mut self.memory[self.base..self.base + held])?;
        }
        (self.start, self.held, self.end) = (offset - held as u64, held, held);
        Ok(())
    }

    /// Adds bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let end = self.end + bytes.len();
        self.make_room(end);
        self.memory[self.base + self.end..self.base + end].copy_from_slice(bytes);
        self.end = end;
    }

    /// Adds zeros up to a multiple of `align`, which a block is a multiple of.
    pub(crate) fn pad(&mut self, align: usize) {
        let end = self.end.next_multiple_of(align);
        self.make_room(end);
        self.memory[self.base + self.end..self.base + end].fill(0);
        self.end = end;
    }

    /// Takes note that the file has all of it. What comes next goes behind it.
    pub(crate) fn note_written(&mut self) {
        let whole = self.end / BLOCK_BYTES * BLOCK_BYTES;
        let held = self.end - whole;
        if self.memory.len() > self.capacity + BLOCK_BYTES {
            let (mut memory, base) = aligned(self.capacity);
            memory[base..base + held].copy_from_slice(&self.memory[self.base + whole..self.base + self.end]);
            (self.memory, self.base) = (memory, base);
        } else {
            self.memory.copy_within(self.base + whole..self.base + self.end, self.base);
        }
        self.start += whole as u64;
        (self.held, self.end) = (held, held);
    }

    /// Takes note that the file has changed in another way, or is another one.
    pub(crate) fn forget(&mut self) {
        (self.start, self.held, self.end) = (0, 0, 0);
    }

    fn make_room(&mut self, end: usize) {
        let need = end.next_multiple_of(BLOCK_BYTES);
        if self.base + need > self.memory.len() {
            let (mut memory, base) = aligned(need);
            memory[base..base + self.end].copy_from_slice(&self.memory[self.base..self.base + self.end]);
            (self.memory, self.base) = (memory, base);
        }
    }
}

/// Memory with room for `bytes` bytes from an address on that is a multiple of a block.
fn aligned(bytes: usize) -> (Vec<u8>, usize) {
    let memory = vec![0; bytes + BLOCK_BYTES];
    let base = memory.as_ptr().align_offset(BLOCK_BYTES);
    assert!(base < BLOCK_BYTES, "any address is near a multiple of a block");
    (memory, base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(_: u64, into: &mut [u8]) -> io::Result<()> {
        into.fill(b'f');
        Ok(())
    }

    #[test]
    fn a_stage_lies_in_memory_as_it_will_lie_on_the_disk() {
        let mut stage = Stage::new(1 << 16);
        stage.begin(8192 + 100, file).unwrap();
        stage.put(b"new");
        stage.pad(64);
        assert_eq!((8292, 28), (stage.offset(), stage.len()));
        let (at, blocks) = stage.blocks();
        assert_eq!((8192, 4096, 0), (at, blocks.len(), blocks.as_ptr().align_offset(BLOCK_BYTES)));
        assert_eq!((&[b'f'; 100][..], &b"new"[..]), (&blocks[..100], &blocks[100..103]));
        assert!(blocks[103..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_comes_next_begins_with_what_was_written_last() {
        let mut stage = Stage::new(1 << 16);
        stage.begin(4096, file).unwrap();
        stage.put(&[1; 5000]);
        stage.note_written();
        stage.begin(9096, |_, _| panic!("it is known")).unwrap();
        stage.put(&[2; 10]);
        let (at, blocks) = stage.blocks();
        assert_eq!(8192, at);
        assert_eq!((&[1; 904][..], &[2; 10][..], 0), (&blocks[..904], &blocks[904..914], blocks[914]));
        assert_eq!((9096, &[2; 10][..]), (stage.offset(), stage.bytes()));
    }

    #[test]
    fn a_stage_grows_for_what_is_larger_and_shrinks_again() {
        let mut stage = Stage::new(8192);
        let before = stage.memory.len();
        stage.begin(4096 + 64, file).unwrap();
        stage.put(&[1; 64]);
        stage.put(&[2; 100_000]);
        let (_, blocks) = stage.blocks();
        assert_eq!(0, blocks.as_ptr().align_offset(BLOCK_BYTES));
        assert_eq!((b'f', 1, 2), (blocks[63], blocks[127], blocks[128]));
        stage.note_written();
        assert_eq!(before, stage.memory.len());
        assert_eq!(4096 + 128 + 100_000, stage.offset());
    }

    #[test]
    fn old_bytes_do_not_come_back() {
        let mut stage = Stage::new(8192);
        stage.begin(4096, file).unwrap();
        stage.put(&[7; 8000]);
        stage.note_written();
        stage.forget();
        stage.begin(64, file).unwrap();
        stage.put(&[1]);
        stage.pad(64);
        let (_, blocks) = stage.blocks();
        assert!(blocks[65..].iter().all(|byte| *byte == 0));
    }
}
