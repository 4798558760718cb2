//! The random stream of a search: Mersenne Twister 19937, bit for bit `numpy.random.RandomState`.
//!
//! The same stream as `NumPy` lets a forked or continued search find its old trials again by request id, and lets users
//! compare a search with one they ran elsewhere. Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally
//! equidistributed uniform pseudo-random number generator", ACM TOMACS 8 (1998).

/// Words of state.
const WORDS: usize = 624;
/// Distance of the second word that goes into a new one.
const MIDDLE: usize = 397;
/// Coefficients of the twist.
const MATRIX: u32 = 0x9908_b0df;
const UPPER_BIT: u32 = 0x8000_0000;
const LOWER_BITS: u32 = 0x7fff_ffff;

/// The generator; its state is determined by its seed and the number of words drawn from it.
#[derive(Clone)]
pub(crate) struct Mt19937 {
    seed: u32,
    drawn: u64,
    /// The current block of words, untempered.
    block: Box<[u32; WORDS]>,
    /// Number of words of the current block that were already drawn.
    used: usize,
}

impl Mt19937 {
    /// Longest stream that [`Mt19937::at`] computes again, so that a damaged snapshot cannot keep it busy for ever. A
    /// search draws a few dozen words per trial.
    pub(crate) const MAX_DRAWN: u64 = 1 << 32;

    /// The stream that begins at `seed`, like `RandomState(seed)`.
    pub(crate) fn new(seed: u32) -> Self {
        let mut block = Box::new([0; WORDS]);
        let mut word = seed;
        for (place, number) in block.iter_mut().zip(1_u32..) {
            *place = word;
            word = (word ^ (word >> 30))
                .wrapping_mul(1_812_433_253)
                .wrapping_add(number);
        }
        Self {
            seed,
            drawn: 0,
            block,
            used: WORDS,
        }
    }

    /// The stream that begins at `seed`, after `drawn` words; `None` beyond [`Self::MAX_DRAWN`].
    pub(crate) fn at(seed: u32, drawn: u64) -> Option<Self> {
        if drawn > Self::MAX_DRAWN {
            return None;
        }
        let mut stream = Self::new(seed);
        let mut left = drawn;
        while left > 0 {
            stream.twist();
            stream.used = WORDS.min(usize::try_from(left).unwrap_or(WORDS));
            left = left.saturating_sub(WORDS as u64);
        }
        stream.drawn = drawn;
        Some(stream)
    }

    /// The seed this stream began at.
    pub(crate) fn seed(&self) -> u32 {
        self.seed
    }

    /// 32-bit words drawn so far.
    pub(crate) fn drawn(&self) -> u64 {
        self.drawn
    }

    /// The next 32-bit word.
    pub(crate) fn word(&mut self) -> u32 {
        if self.used == WORDS {
            self.twist();
        }
        let mut word = self.block[self.used];
        self.used += 1;
        self.drawn += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// A uniform integer in `0..=max`, like `randint(0, max + 1, dtype=int64)`: the smallest covering bit mask, again
    /// until it fits. One word at a time up to 2^32 − 1, above that two words, the high one first. Nothing is drawn
    /// when `max` is 0.
    pub(crate) fn at_most(&mut self, max: u64) -> u64 {
        if max == 0 {
            return 0;
        }
        let mask = u64::MAX >> max.leading_zeros();
        loop {
            let bits = if u32::try_from(max).is_ok() {
                u64::from(self.word())
            } else {
                let high = u64::from(self.word());
                (high << 32) | u64::from(self.word())
            };
            if bits & mask <= max {
                return bits & mask;
            }
        }
    }

    /// A uniform real in `[0, 1)` of 53 bits (27 from one word, 26 from the next), like `random_sample()`.
    pub(crate) fn unit(&mut self) -> f64 {
        let high = f64::from(self.word() >> 5);
        let low = f64::from(self.word() >> 6);
        (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0
    }

    /// A uniform real in `[min, max)`, like `uniform(min, max)`. `max - min` must be finite.
    pub(crate) fn uniform(&mut self, min: f64, max: f64) -> f64 {
        // Not `mul_add`: its single rounding would leave NumPy's stream in the last bit.
        min + (max - min) * self.unit()
    }

    /// Sixteen bytes, each word low byte first, like `bytes(16)`.
    pub(crate) fn bytes16(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for four in bytes.chunks_exact_mut(4) {
            four.copy_from_slice(&self.word().to_le_bytes());
        }
        bytes
    }

    /// Computes the next block of words.
    fn twist(&mut self) {
        for i in 0..WORDS {
            let joined = (self.block[i] & UPPER_BIT) | (self.block[(i + 1) % WORDS] & LOWER_BITS);
            let odd = if joined & 1 == 1 { MATRIX } else { 0 };
            self.block[i] = self.block[(i + MIDDLE) % WORDS] ^ (joined >> 1) ^ odd;
        }
        self.used = 0;
    }
}

impl std::fmt::Debug for Mt19937 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mt19937")
            .field("seed", &self.seed)
            .field("drawn", &self.drawn)
            .finish_non_exhaustive()
    }
}

/// The vectors below were printed by `NumPy` 2.4.6 from `numpy.random.RandomState(seed)`. `randint` with the default
/// or a 64-bit `dtype` is the masked rejection of [`Mt19937::at_most`]; with 8- or 16-bit types `NumPy` splits words,
/// which this stream never does.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_numpy() {
        for (seed, first, word_2000) in [
            (
                0,
                [2_357_136_044, 2_546_248_239, 3_071_714_933, 3_626_093_760],
                3_856_691_381,
            ),
            (
                42,
                [1_608_637_542, 3_421_126_067, 4_083_286_876, 787_846_414],
                2_238_969_328,
            ),
            (
                u32::MAX,
                [419_326_371, 479_346_978, 3_918_654_476, 2_416_749_639],
                1_762_272_365,
            ),
            (
                1_700_000_000,
                [1_001_043_830, 3_810_162_480, 1_554_111_734, 3_716_153_620],
                1_141_720_713,
            ),
        ] {
            let mut stream = Mt19937::new(seed);
            let words: Vec<u32> = (0..2000).map(|_| stream.word()).collect();
            assert_eq!(words[..4], first, "seed {seed}");
            assert_eq!(words[1999], word_2000, "seed {seed}");
        }
    }

    #[test]
    fn bytes_are_those_of_numpy() {
        let text = |seed| {
            uuid::Uuid::from_bytes(Mt19937::new(seed).bytes16())
                .simple()
                .to_string()
        };
        assert_eq!(text(0), "ac0a7f8c2faac49775a616b7c0cc21d8");
        assert_eq!(text(42), "66dce15fb33deacb5c0362f30e95f52e");
        assert_eq!(text(u32::MAX), "a369fe182241921c0cec91e947ac0c90");
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the stream is compared bit for bit")]
    fn reals_are_those_of_numpy() {
        for (seed, expected) in [
            (
                0,
                [
                    0x3fe1_8fe1_565f_12a8,
                    0x3fe6_e2d4_cf60_8733,
                    0x3fe3_49d6_6b6e_894b,
                ],
            ),
            (
                42,
                [
                    0x3fd7_f877_1e5f_51ec,
                    0x3fee_6c40_68bb_d654,
                    0x3fe7_6c7e_8f1e_6751,
                ],
            ),
            (
                u32::MAX,
                [
                    0x3fb8_fe69_a392_4820,
                    0x3fed_323d_8240_32b1,
                    0x3fe9_3fc6_f61a_f3f9,
                ],
            ),
        ] {
            let mut stream = Mt19937::new(seed);
            let bits = [stream.unit(), stream.unit(), stream.unit()].map(f64::to_bits);
            assert_eq!(bits, expected, "seed {seed}");
        }
        let mut stream = Mt19937::new(42);
        assert_eq!(stream.uniform(-4.0, -1.0), -2.876_379_643_457_912_7);
        assert_eq!(stream.uniform(-4.0, -1.0), -1.147_857_080_770_251_5);
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn bounded_integers_are_those_of_numpy_and_draw_as_many_words() {
        let table: [(u32, u64, [u64; 5], u32); 13] = [
            (0, 0, [0, 0, 0, 0, 0], 2_357_136_044),
            (0, 1, [0, 1, 1, 0, 1], 3_684_848_379),
            (0, 2, [0, 1, 0, 1, 1], 1_650_906_866),
            (0, 9, [5, 0, 3, 3, 7], 1_819_583_497),
            (42, 9, [6, 3, 7, 4, 6], 1_914_837_113),
            (42, 999, [102, 435, 860, 270, 106], 3_348_747_335),
            (u32::MAX, 999, [419, 290, 12, 71, 948], 2_260_532_800),
            (
                42,
                (1 << 31) - 1,
                [
                    1_608_637_542,
                    1_273_642_419,
                    1_935_803_228,
                    787_846_414,
                    996_406_378,
                ],
                3_348_747_335,
            ),
            (
                42,
                (1 << 32) - 2,
                [
                    1_608_637_542,
                    3_421_126_067,
                    4_083_286_876,
                    787_846_414,
                    3_143_890_026,
                ],
                3_348_747_335,
            ),
            (
                42,
                (1 << 32) - 1,
                [
                    1_608_637_542,
                    3_421_126_067,
                    4_083_286_876,
                    787_846_414,
                    3_143_890_026,
                ],
                3_348_747_335,
            ),
            (
                42,
                1 << 32,
                [
                    3_421_126_067,
                    787_846_414,
                    3_348_747_335,
                    2_563_451_924,
                    1_914_837_113,
                ],
                669_991_378,
            ),
            (
                42,
                (1 << 40) + 6,
                [
                    441_507_790_259,
                    458_615_280_711,
                    810_017_303_572,
                    440_001_501_305,
                    375_095_422_324,
                ],
                2_581_769_315,
            ),
            (
                42,
                (1 << 63) - 2,
                [
                    6_909_045_637_428_952_499,
                    8_314_211_556_539_077_902,
                    4_279_532_810_384_561_223,
                    1_819_927_849_474_927_636,
                    2_878_035_897_379_592_313,
                ],
                669_991_378,
            ),
        ];
        for (seed, max, expected, next_word) in table {
            let mut stream = Mt19937::new(seed);
            let drawn: Vec<u64> = (0..5).map(|_| stream.at_most(max)).collect();
            assert_eq!(drawn, expected, "seed {seed}, max {max}");
            assert_eq!(
                stream.word(),
                next_word,
                "word after seed {seed}, max {max}"
            );
        }
        let mut stream = Mt19937::new(42);
        assert_eq!(stream.at_most(u64::MAX), 6_909_045_637_428_952_499);
        assert_eq!(stream.at_most(u64::MAX), 17_537_583_593_393_853_710);
    }

    #[test]
    fn a_stream_goes_on_from_any_position() {
        let mut whole = Mt19937::new(7);
        for drawn in 0..2000 {
            let mut resumed = Mt19937::at(7, drawn).expect("short stream");
            assert_eq!(resumed.drawn(), drawn);
            assert_eq!(resumed.word(), whole.word(), "after {drawn} words");
        }
        assert!(Mt19937::at(7, u64::MAX).is_none());
    }
}
