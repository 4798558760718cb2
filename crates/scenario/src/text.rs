//! Formats values as text for users.

use std::collections::BTreeMap;
use std::time::Duration;

/// The most names shown of a long list.
const SHOWN: usize = 8;

/// A duration in microseconds.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A time from the start as `h:mm:ss`, with as many decimals as it needs.
pub(crate) fn clock(micros: i64) -> String {
    let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let decimals = if rest == 0 {
        String::new()
    } else {
        format!(".{rest:06}").trim_end_matches('0').to_owned()
    };
    format!("{hours}:{minutes:02}:{seconds:02}{decimals}")
}

/// Names in one line: consecutive numbers as a range, and at most [`SHOWN`] of them.
pub(crate) fn names<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut numbered: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    for name in names {
        match name.rsplit_once('.') {
            Some((job, number)) if number.parse::<u32>().is_ok() => {
                let numbers = numbered.entry(job).or_insert_with(|| {
                    order.push(job);
                    Vec::new()
                });
                numbers.extend(number.parse::<u32>());
            }
            _ => order.push(name),
        }
    }
    for name in order {
        match numbered.get_mut(name) {
            None => shown.push(name.to_owned()),
            Some(numbers) => {
                numbers.sort_unstable();
                shown.extend(ranges(name, numbers));
            }
        }
    }
    let more = shown.len().saturating_sub(SHOWN);
    shown.truncate(SHOWN);
    let shown = shown.join(", ");
    if more == 0 {
        shown
    } else {
        format!("{shown} and {more} more")
    }
}

fn ranges(job: &str, numbers: &[u32]) -> Vec<String> {
    numbers
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [first, _, .., last] => format!("{job}.{first}\u{2026}{last}"),
            [first, last] => format!("{job}.{first}, {job}.{last}"),
            [first] => format!("{job}.{first}"),
            [] => String::new(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_follow_each_other_are_a_range() {
        let shown = names(["a.1", "a.2", "a.3", "b", "a.5", "c.1", "c.2", "v1.0"]);
        assert_eq!(shown, "a.1\u{2026}3, a.5, b, c.1, c.2, v1.0");
        let many: Vec<String> = (0..20).map(|n| format!("job{n}")).collect();
        assert!(names(many.iter().map(String::as_str)).ends_with("and 12 more"));
    }

    #[test]
    fn times_read_as_on_a_clock() {
        assert_eq!(clock(0), "0:00:00");
        assert_eq!(clock(3_723_000_000), "1:02:03");
        assert_eq!(clock(1_500_000), "0:00:01.5");
    }
}
