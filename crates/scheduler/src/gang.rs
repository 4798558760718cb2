//! How a request is divided over places: over whole ones, or, where none add up to it, over parts of them.

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

/// Over how many places a request is divided that takes parts of them: as few as hold it when nothing else runs.
///
/// `None` if it takes whole places or one place, or fits the places in no way. `groups` are all places that it may use,
/// as if they were empty, **largest first**. A size that whole places add up to never takes parts: it keeps to whole
/// places, and waits for them.
pub(crate) fn places_in_part(groups: &[Group], units: u32, heterogeneous: bool) -> Option<u32> {
    let largest = groups.first().map_or(0, |(size, _)| *size);
    if !heterogeneous || units <= largest || divide(groups, units, true).is_some() {
        return None;
    }
    fewest(groups, units)
}

/// How few places hold `units`; groups come **largest first**. `None` = all of them do not.
fn fewest(groups: &[Group], units: u32) -> Option<u32> {
    let (mut left, mut places) = (units, 0_u32);
    for &(size, count) in groups.iter().filter(|(size, _)| *size > 0) {
        let more = left.div_ceil(size).min(count);
        places = places.saturating_add(more);
        left = left.saturating_sub(more.saturating_mul(size));
        if left == 0 {
            return Some(places);
        }
    }
    None
}

/// Whether some `most` places, of the given free units, hold `units`. Groups come **largest first**.
pub(crate) fn holds_on(groups: impl Iterator<Item = Group>, units: u32, most: u32) -> bool {
    let (mut units, mut most) = (units, most);
    for (size, count) in groups {
        let places = count.min(most);
        units = units.saturating_sub(places.saturating_mul(size));
        most -= places;
        if units == 0 || most == 0 {
            break;
        }
    }
    units == 0
}

/// Divides `units` over places with so many free units as evenly as these allow. The parts are in the order of the
/// places; where two places can take equal parts and one unit more is left, the later one gets it if they come in
/// ascending order. `None` = they have too few.
pub(crate) fn even_parts(free: &[u32], units: u32) -> Option<Vec<u32>> {
    let mut ascending: Vec<usize> = (0..free.len()).collect();
    ascending.sort_by_key(|at| free[*at]);
    let mut parts = vec![0; free.len()];
    let (mut rest, mut places) = (units, u32::try_from(free.len()).ok()?);
    for at in ascending {
        // What a small place cannot take goes to the larger ones, which come later.
        parts[at] = (rest / places).min(free[at]);
        places -= 1;
        if places == 0 {
            parts[at] = rest.min(free[at]);
        }
        rest -= parts[at];
    }
    (rest == 0).then_some(parts)
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

    #[test]
    fn only_what_whole_places_never_add_up_to_takes_parts_of_few_places() {
        type Case = (&'static str, u32, &'static [Group], bool, Option<u32>);
        let cases: &[Case] = &[
            ("seven over two fours", 7, &[(4, 2)], true, Some(2)),
            (
                "whole places of two sizes",
                7,
                &[(4, 3), (3, 1)],
                true,
                None,
            ),
            ("nine need three fours", 9, &[(4, 5)], true, Some(3)),
            (
                "a large one and a small one",
                9,
                &[(8, 1), (2, 3)],
                true,
                Some(2),
            ),
            ("whole places add up", 8, &[(4, 2)], true, None),
            ("one place holds it", 3, &[(4, 2)], true, None),
            ("only equal places", 7, &[(4, 2)], false, None),
            ("too many", 9, &[(4, 2)], true, None),
            ("no places", 2, &[], true, None),
        ];
        for (name, units, groups, uneven, expected) in cases {
            assert_eq!(places_in_part(groups, *units, *uneven), *expected, "{name}");
        }
    }

    #[test]
    fn parts_are_as_even_as_the_places_allow() {
        type Case = (&'static [u32], u32, Option<&'static [u32]>);
        let cases: &[Case] = &[
            (&[4, 4], 7, Some(&[3, 4])),
            (&[4, 4], 6, Some(&[3, 3])),
            (&[4, 2], 6, Some(&[4, 2])),
            (&[5, 3, 3], 11, Some(&[5, 3, 3])),
            (&[8, 1, 8], 12, Some(&[5, 1, 6])),
            (&[4, 4], 9, None),
            (&[], 1, None),
        ];
        for (free, units, expected) in cases {
            assert_eq!(even_parts(free, *units).as_deref(), *expected, "{free:?}");
        }
    }

    #[test]
    fn parts_of_all_small_pools_add_up_and_cannot_be_more_even() {
        for code in 0..6_u32.pow(4) {
            let free: Vec<u32> = (0..4).map(|at| code / 6_u32.pow(at) % 6).collect();
            let all: u32 = free.iter().sum();
            for units in 1..=all + 1 {
                let Some(parts) = even_parts(&free, units) else {
                    assert!(units > all, "{units} on {free:?}");
                    continue;
                };
                assert_eq!(parts.iter().sum::<u32>(), units, "{free:?}");
                assert!(parts.iter().zip(&free).all(|(part, free)| part <= free));
                let most = parts.iter().max().copied().unwrap_or_default();
                let full_or_even = |(part, free): (&u32, &u32)| part == free || part + 1 >= most;
                assert!(
                    parts.iter().zip(&free).all(full_or_even),
                    "{units} on {free:?}: {parts:?}"
                );
            }
        }
    }

    #[test]
    fn a_number_of_places_holds_what_their_largest_ones_do() {
        let groups = [(4, 1), (3, 2), (1, 9)];
        for (units, most, holds) in [(7, 2, true), (8, 2, false), (10, 3, true), (11, 3, false)] {
            assert_eq!(
                holds_on(groups.into_iter(), units, most),
                holds,
                "{units} on {most}"
            );
        }
    }
}
