//! How a request is divided over whole places.

use std::collections::BTreeSet;

/// Places of one size: slots of each, and how many there are.
pub(crate) type Group = (u32, u32);

/// Partial sums that the search for unequal sizes visits before it gives up. Pools have a handful of sizes, for which
/// the search is exact long before this; the limit only protects against a pool where every place has a different size.
const MOST_STATES: usize = 20_000;

/// Divides `units` over whole places, given groups **largest first**; returns how many places of each size to take.
///
/// Equal sizes are preferred: the largest size that divides `units` and of which there are enough. Otherwise, if
/// `heterogeneous`, any exact sum of whole places, with as many of the larger ones as possible.
pub(crate) fn divide(groups: &[Group], units: u32, heterogeneous: bool) -> Option<Vec<Group>> {
    if units == 0 {
        return None;
    }
    for &(size, count) in groups {
        if size > 0 && units.is_multiple_of(size) && units / size <= count {
            return Some(vec![(size, units / size)]);
        }
    }
    if !heterogeneous {
        return None;
    }
    let capacity: u64 = groups
        .iter()
        .map(|&(size, count)| u64::from(size) * u64::from(count))
        .sum();
    if capacity < u64::from(units) {
        return None;
    }
    let mut chosen = Vec::new();
    let mut dead = BTreeSet::new();
    sum(groups, units, &mut chosen, &mut dead).then_some(chosen)
}

/// Depth-first exact sum; `dead` contains the states already known to fail.
fn sum(
    groups: &[Group],
    left: u32,
    chosen: &mut Vec<Group>,
    dead: &mut BTreeSet<(usize, u32)>,
) -> bool {
    if left == 0 {
        return true;
    }
    let Some((&(size, count), rest)) = groups.split_first() else {
        return false;
    };
    if dead.contains(&(groups.len(), left)) || dead.len() >= MOST_STATES {
        return false;
    }
    let most = left.checked_div(size).unwrap_or(0).min(count);
    for take in (0..=most).rev() {
        if take > 0 {
            chosen.push((size, take));
        }
        if sum(rest, left - take * size, chosen, dead) {
            return true;
        }
        if take > 0 {
            chosen.pop();
        }
    }
    dead.insert((groups.len(), left));
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_places_come_first_then_exact_sums() {
        type Case = (
            &'static str,
            u32,
            &'static [Group],
            bool,
            Option<&'static [Group]>,
        );
        let cases: &[Case] = &[
            ("two sixes", 12, &[(6, 2), (4, 3)], false, Some(&[(6, 2)])),
            ("nothing divides evenly", 12, &[(8, 2), (4, 2)], false, None),
            (
                "8+4 when uneven is allowed",
                12,
                &[(8, 2), (4, 2)],
                true,
                Some(&[(8, 1), (4, 1)]),
            ),
            (
                "8+4 skips the six",
                12,
                &[(8, 1), (6, 1), (4, 1)],
                true,
                Some(&[(8, 1), (4, 1)]),
            ),
            ("no exact sum", 10, &[(8, 2), (4, 1)], true, None),
            (
                "a sum the greedy walk misses",
                10,
                &[(8, 1), (6, 1), (4, 1)],
                true,
                Some(&[(6, 1), (4, 1)]),
            ),
            ("zero is not a gang", 0, &[(8, 1)], true, None),
        ];
        for (name, units, groups, uneven, expected) in cases {
            assert_eq!(
                divide(groups, *units, *uneven).as_deref(),
                *expected,
                "{name}"
            );
        }
    }
}
