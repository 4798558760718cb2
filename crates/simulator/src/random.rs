//! The simulator's only source of chance: streams of numbers that follow from a seed and a name.
//!
//! Whatever draws has a stream of its own, so that leaving out one fault of a history does not shift the luck of
//! everything after it. That is what makes histories shrink.

/// A stream of numbers (`SplitMix64`: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
#[derive(Debug, Clone)]
pub struct Stream(u64);

impl Stream {
    /// The stream that `seed` and `name` lead to.
    pub fn of(seed: u64, name: &str) -> Self {
        // FNV-1a over the name, started from the seed.
        let hash = name
            .bytes()
            .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let mut stream = Self(hash);
        stream.draw();
        stream
    }

    /// The next number of the stream, 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        let span = high.abs_diff(low).saturating_add(1);
        low.saturating_add_unsigned(self.draw() % span)
    }

    /// An index below `count`, which must be above 0.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.draw() % u64::try_from(count).unwrap_or(u64::MAX)).unwrap_or(0)
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.draw() % 100 < u64::from(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_has_the_same_luck() {
        let draw = |seed, name| Stream::of(seed, name).draw();
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
        let mut stream = Stream::of(3, "bounds");
        assert!((0..1000).all(|_| (-2..=5).contains(&stream.between(-2, 5))));
    }
}
