//! How many slots each job is entitled to.
//!
//! A job's share is proportional to its weight times its demand: at most what it asks for, at least what it holds and
//! cannot give back, and at least one slot as long as there are enough for all jobs. Whole slots are handed out by
//! largest remainder.
//!
//! The factor between `weight × demand` and share is the root of a monotonic sum of clamped lines. It is found without
//! sorting: the median of the points where a line starts or ends to be clamped halves the remaining search range, so
//! the cost is linear in the number of jobs (the continuous quadratic knapsack by breakpoint search; Brucker 1984,
//! doi:10.1016/0167-6377(84)90010-5).

/// A job's claim to slots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Claim {
    /// Share weight, above 0 and finite.
    pub(crate) weight: f64,
    /// Slots that it could use at one time.
    pub(crate) demand: u64,
    /// Slots that it holds and cannot be asked to give back.
    pub(crate) fixed: u64,
}

/// Resolution, in parts of a slot, with which remainders are compared: smaller differences are rounding errors.
const PARTS: f64 = 1e7;

/// Slopes are clamped to this value and its inverse, so that no sum of them overflows.
const STEEPEST: f64 = 1e250;

/// A claim with its bounds, in real numbers of slots.
#[derive(Debug, Clone, Copy)]
struct Line {
    slope: f64,
    low: f64,
    high: f64,
}

impl Line {
    fn at(&self, factor: f64) -> f64 {
        (factor * self.slope).clamp(self.low, self.high)
    }

    /// The factor at which it starts to rise.
    fn leaves_low(&self) -> f64 {
        self.low / self.slope
    }

    /// The factor at which it stops rising.
    fn meets_high(&self) -> f64 {
        self.high / self.slope
    }
}

/// Divides `capacity` slots among claims, which are in the order in which ties are decided.
///
/// The shares add up to the capacity, or to all that is asked for if that is less; they exceed it only if the fixed
/// slots do.
pub(crate) fn divide(claims: &[Claim], capacity: u64) -> Vec<u64> {
    let bounds = bounds(claims, capacity);
    let least: u64 = bounds.iter().map(|(low, _)| *low).sum();
    let most: u64 = bounds.iter().map(|(_, high)| *high).sum();
    let total = capacity.min(most);
    if least >= total {
        return bounds.into_iter().map(|(low, _)| low).collect();
    }
    if total == most {
        return bounds.into_iter().map(|(_, high)| high).collect();
    }
    let lines: Vec<Line> = claims
        .iter()
        .zip(&bounds)
        .map(|(claim, (low, high))| Line {
            slope: if claim.demand == 0 {
                0.0
            } else {
                (claim.weight * real(claim.demand)).clamp(1.0 / STEEPEST, STEEPEST)
            },
            low: real(*low),
            high: real(*high),
        })
        .collect();
    let factor = factor(&lines, real(total));
    round(&lines, &bounds, factor, total)
}

/// The least and the most that each claim may get.
fn bounds(claims: &[Claim], capacity: u64) -> Vec<(u64, u64)> {
    let at_least_one = |claim: &Claim| claim.fixed.max(claim.demand.min(1));
    let enough = claims.iter().map(at_least_one).sum::<u64>() <= capacity;
    claims
        .iter()
        .map(|claim| {
            let low = if enough {
                at_least_one(claim)
            } else {
                claim.fixed
            };
            (low, claim.demand.max(claim.fixed))
        })
        .collect()
}

/// The factor at which the lines add up to `total`, which is between their least and their greatest sum.
fn factor(lines: &[Line], total: f64) -> f64 {
    // A line without slope, and one whose bounds meet, is constant.
    let rises = |line: &&Line| line.slope > 0.0 && line.low < line.high;
    let constant = |line: &Line| if rises(&line) { 0.0 } else { line.low };
    let mut fixed: f64 = lines.iter().map(constant).sum();
    let mut open: Vec<Line> = lines.iter().filter(rises).copied().collect();
    let mut slope = 0.0;
    let (mut below, mut above) = (0.0, f64::INFINITY);
    loop {
        let mut points: Vec<f64> = open
            .iter()
            .flat_map(|line| [line.leaves_low(), line.meets_high()])
            .filter(|point| *point > below && *point < above)
            .collect();
        if points.is_empty() {
            break;
        }
        let middle = points.len() / 2;
        let (_, point, _) = points.select_nth_unstable_by(middle, f64::total_cmp);
        let point = *point;
        let open_sum: f64 = open.iter().map(|line| line.at(point)).sum();
        if fixed + slope * point + open_sum < total {
            below = point;
        } else {
            above = point;
        }
        // Lines without a bend between the two are known in that range.
        open.retain(|line| {
            if line.meets_high() <= below {
                fixed += line.high;
            } else if line.leaves_low() >= above {
                fixed += line.low;
            } else if line.leaves_low() <= below && line.meets_high() >= above {
                slope += line.slope;
            } else {
                return true;
            }
            false
        });
    }
    // The lines still open have no bend in this range.
    slope += open.iter().map(|line| line.slope).sum::<f64>();
    if slope > 0.0 {
        ((total - fixed) / slope).clamp(below, above)
    } else {
        above
    }
}

/// Whole slots: the floor of each share, and one more for the largest remainders.
fn round(lines: &[Line], bounds: &[(u64, u64)], factor: f64, total: u64) -> Vec<u64> {
    let mut remainders: Vec<(std::cmp::Reverse<u64>, usize)> = Vec::new();
    let mut shares: Vec<u64> = Vec::with_capacity(lines.len());
    for (number, (line, (low, high))) in lines.iter().zip(bounds).enumerate() {
        let share = line.at(factor);
        let whole_share = whole(share + 1.0 / PARTS).clamp(*low, *high);
        if whole_share < *high {
            let remainder = whole((share - real(whole_share)).max(0.0) * PARTS + 0.5);
            remainders.push((std::cmp::Reverse(remainder), number));
        }
        shares.push(whole_share);
    }
    let given: u64 = shares.iter().sum();
    let left = usize::try_from(total.saturating_sub(given)).unwrap_or(usize::MAX);
    if left > 0 && left < remainders.len() {
        remainders.select_nth_unstable(left);
    }
    for (_, number) in remainders.into_iter().take(left) {
        shares[number] += 1;
    }
    shares
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of slots are far below 2^52"
)]
fn real(slots: u64) -> f64 {
    slots as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is not negative, and the cast saturates"
)]
fn whole(slots: f64) -> u64 {
    slots.floor() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims by demand and weight.
    fn shares(capacity: u64, claims: &[(u64, f64)]) -> Vec<u64> {
        let claims: Vec<Claim> = claims
            .iter()
            .map(|&(demand, weight)| Claim {
                weight,
                demand,
                fixed: 0,
            })
            .collect();
        divide(&claims, capacity)
    }

    #[test]
    fn the_documented_tables() {
        type Case = (&'static str, u64, &'static [(u64, f64)], &'static [u64]);
        let cases: &[Case] = &[
            (
                "ten and thirty on eight",
                8,
                &[(10, 1.0), (30, 1.0)],
                &[2, 6],
            ),
            ("weights three and one", 8, &[(10, 3.0), (30, 1.0)], &[4, 4]),
            ("by demand", 12, &[(6, 1.0), (18, 1.0)], &[3, 9]),
            (
                "weight makes up for demand",
                12,
                &[(6, 2.0), (12, 1.0)],
                &[6, 6],
            ),
            (
                "the slot over goes to the earliest",
                10,
                &[(4, 1.0), (4, 1.0), (4, 1.0)],
                &[4, 3, 3],
            ),
            (
                "every job gets at least one slot",
                10,
                &[(1, 1.0), (99, 1.0)],
                &[1, 9],
            ),
            (
                "demand is capped before it is shared",
                10,
                &[(2, 1.0), (20, 1.0)],
                &[1, 9],
            ),
            ("twelve and six", 8, &[(12, 1.0), (6, 1.0)], &[5, 3]),
            (
                "three gangs of four, twice",
                8,
                &[(8, 1.0), (8, 1.0), (8, 1.0)],
                &[3, 3, 2],
            ),
            ("more jobs than slots", 3, &[(2, 1.0); 5], &[1, 1, 1, 0, 0]),
            ("enough for all", 10, &[(3, 5.0), (4, 1.0)], &[3, 4]),
            ("no claims", 10, &[], &[]),
            ("nothing to share", 0, &[(3, 1.0)], &[0]),
            (
                "what a cap frees is shared again",
                12,
                &[(2, 9.0), (20, 1.0), (20, 1.0)],
                &[2, 5, 5],
            ),
        ];
        for (name, capacity, claims, expected) in cases {
            assert_eq!(shares(*capacity, claims), *expected, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_given_back_is_the_least() {
        let claims = [(10, 6), (10, 0), (10, 0)].map(|(demand, fixed)| Claim {
            weight: 1.0,
            demand,
            fixed,
        });
        assert_eq!(divide(&claims, 10), [6, 2, 2]);
        assert_eq!(divide(&claims, 7), [6, 1, 0]);
        assert_eq!(divide(&claims, 4), [6, 0, 0], "more is fixed than there is");
    }

    #[test]
    fn wild_weights_are_survived() {
        for weights in [[1e-300, 1e300, 1.0], [f64::MIN_POSITIVE, f64::MAX, 1e-9]] {
            let claims = weights.map(|weight| (1_000_000, weight));
            let shares = shares(1_000, &claims);
            assert_eq!(shares.iter().sum::<u64>(), 1_000, "{weights:?}");
            assert!(shares.iter().all(|share| *share >= 1), "{shares:?}");
        }
    }

    #[test]
    fn shares_add_up_and_keep_their_bounds() {
        let mut luck = 1_u64;
        let mut draw = |most: u64| {
            luck = luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (luck >> 33) % most
        };
        for _ in 0..2_000 {
            let capacity = draw(60);
            let claims: Vec<Claim> = (0..draw(12))
                .map(|_| {
                    let demand = draw(40);
                    Claim {
                        weight: [0.25, 0.5, 1.0, 1.0, 2.0, 3.0][usize::try_from(draw(6)).unwrap()],
                        demand,
                        fixed: draw(3).min(demand),
                    }
                })
                .collect();
            let shares = divide(&claims, capacity);
            let asked: u64 = claims.iter().map(|c| c.demand.max(c.fixed)).sum();
            let fixed: u64 = claims.iter().map(|c| c.fixed).sum();
            let case = format!("{capacity} {claims:?} {shares:?}");
            assert_eq!(
                shares.iter().sum::<u64>(),
                capacity.min(asked).max(fixed),
                "{case}"
            );
            for (claim, share) in claims.iter().zip(&shares) {
                assert!(
                    *share >= claim.fixed && *share <= claim.demand.max(claim.fixed),
                    "{case}"
                );
            }
        }
    }
}
