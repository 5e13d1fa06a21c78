//! Randomness from one seed, in streams by name.
//!
//! A stream is its own generator, derived from the seed and the stream's name, so that adding a stream shifts none of
//! the others and an old seed keeps its meaning.

/// The seed of a run, from which every stream is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// The stream called `name`; the same seed and name give the same numbers for ever.
    pub fn stream(self, name: &str) -> Stream {
        // FNV-1a of the name keeps streams apart; one step of the generator mixes both halves.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in name.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let mut stream = Stream { state: self.0 ^ hash };
        stream.state = stream.next() ^ self.0.rotate_left(32);
        stream
    }
}

/// SplitMix64: small, quick and fixed, which a library's default generator is not across versions.
#[derive(Clone, Debug)]
pub struct Stream {
    state: u64,
}

impl Stream {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "a stream never ends, so it is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below 0");
        // The bias of a modulus is below 2^-40 for every bound used here.
        self.next() % bound
    }

    /// A number in `low..=high`.
    ///
    /// # Panics
    /// If `low` is above `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range");
        low + self.below(high - low + 1)
    }

    /// True in `percent` of 100 calls.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`, none if there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() {
            return None;
        }
        usize::try_from(self.below(items.len() as u64)).ok().and_then(|at| items.get(at))
    }
}

#[cfg(test)]
mod tests {
    use super::Seed;

    #[test]
    fn streams_are_fixed_and_independent() {
        let first: Vec<u64> = (0..3).scan(Seed(7).stream("plan"), |s, _| Some(s.next())).collect();
        let again: Vec<u64> = (0..3).scan(Seed(7).stream("plan"), |s, _| Some(s.next())).collect();
        assert_eq!(first, again);
        assert_ne!(first[0], Seed(7).stream("ops.c1.p1").next());
        assert_ne!(first[0], Seed(8).stream("plan").next());
    }
}
