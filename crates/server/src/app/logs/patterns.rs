//! Lines of a report that log policies match. Knows no rows.

use std::collections::HashSet;
use std::time::Duration;

use det_config::container::{CompiledPolicies, LogAction};
use det_store::StoreError;
use det_store::logs::{LogLine, PackedLines};
use nix::time::{ClockId, clock_gettime};

/// Bytes of a line that are looked at, and of lines that are searched as one text.
const MAX_LOOKED_AT: usize = 16 << 10;
/// Processor time that the lines of one report are searched for at most: only patterns and lines made for it take as long. The
/// clock is looked at between lines, and between the texts of the first look, each of which takes a second at most.
pub(crate) const SEARCH_TIME: Duration = Duration::from_secs(2);
/// Matches that are noted of one report; a match has an origin (allocation, container, agent), which reports may invent.
const MOST_FOUND: usize = 256;

/// A line that a policy matched.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MatchedLine {
    /// The policy's name, or its pattern.
    pub(super) label: String,
    pub(super) pattern: String,
    pub(super) action: Option<LogAction>,
    /// Where the line comes from; its text is left out.
    pub(super) line: LogLine,
}

/// What came of lines that were held against policies.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PatternMatches {
    /// The lines that a policy matches.
    pub(super) found: Vec<MatchedLine>,
    /// How many of the last lines were not looked at, because it had taken too long.
    pub(super) left: usize,
}

impl PatternMatches {
    /// Whether there is nothing to note.
    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty() && self.left == 0
    }
}

/// What matches, once for each policy and origin of lines. Of a long line only the beginning is looked at. `used` is the
/// processor time that this thread has used so far: after [`SEARCH_TIME`] the rest is left.
pub(super) fn find(
    policies: &CompiledPolicies,
    packed: &PackedLines,
    used: impl Fn() -> Duration,
) -> Result<PatternMatches, StoreError> {
    let end = used() + SEARCH_TIME;
    let is_over = || used() >= end;
    let may_match =
        |texts: &[u8]| windows(texts).any(|window| is_over() || policies.are_found_in(window));
    let mut searched = PatternMatches::default();
    if !packed.any_text(may_match)? {
        return Ok(searched);
    }
    let mut seen = HashSet::new();
    let lines = packed.unpack()?;
    let count = lines.len();
    for (index, mut line) in lines.into_iter().enumerate() {
        if is_over() {
            searched.left = count - index;
            break;
        }
        let text = std::mem::take(&mut line.log);
        let looked_at = text.floor_char_boundary(MAX_LOOKED_AT);
        for (number, policy) in policies.matching(&text[..looked_at]) {
            let origin = (
                number,
                line.allocation_id.clone(),
                line.container_id.clone(),
                line.agent_id.clone(),
            );
            if searched.found.len() < MOST_FOUND && seen.insert(origin) {
                searched.found.push(MatchedLine {
                    label: policy.label.clone(),
                    pattern: policy.pattern.clone(),
                    action: policy.action,
                    line: line.clone(),
                });
            }
        }
    }
    Ok(searched)
}

/// Texts one behind the other, in pieces of at most [`MAX_LOOKED_AT`] bytes that begin and end between lines; of a longer
/// line the beginning only.
fn windows(texts: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = texts;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (window, after) = rest.split_at(rest.len().min(MAX_LOOKED_AT));
        if after.is_empty() {
            rest = after;
            return Some(window);
        }
        if let Some(end) = window.iter().rposition(|byte| *byte == b'\n') {
            rest = &rest[end + 1..];
            return Some(&window[..=end]);
        }
        let next = after.iter().position(|byte| *byte == b'\n');
        rest = next.map_or(&[], |next| &after[next + 1..]);
        Some(window)
    })
}

/// The processor time that this thread has used since its start.
pub(crate) fn thread_time() -> Duration {
    // The clock of a thread exists wherever the master runs.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use det_config::container::LogPolicy;
    use det_store::logs;

    use super::*;

    fn policy(name: Option<&str>, pattern: Option<&str>, action: Option<LogAction>) -> LogPolicy {
        LogPolicy {
            name: name.map(str::to_owned),
            pattern: pattern.map(str::to_owned),
            action,
        }
    }

    fn labels(policies: &[LogPolicy], lines: &[&str]) -> Vec<String> {
        let lines: Vec<LogLine> = lines
            .iter()
            .map(|line| LogLine {
                log: format!("{line}\n"),
                ..LogLine::default()
            })
            .collect();
        let packed = logs::pack(&lines).unwrap();
        let policies = CompiledPolicies::of(policies).unwrap().unwrap();
        let searched = find(&policies, &packed, thread_time).unwrap();
        assert_eq!(searched.left, 0);
        searched
            .found
            .into_iter()
            .map(|found| found.label)
            .collect()
    }

    #[test]
    fn a_pattern_is_searched_anywhere_in_a_line_and_never_beyond_it() {
        let policies = [
            policy(Some("oom"), Some(".*CUDA out of memory.*"), None),
            policy(Some("start"), Some("^fatal: .*$"), None),
            policy(None, Some("ECC|parity"), Some(LogAction::ExcludeNode)),
            policy(Some("off"), None, None),
        ];
        let lines = [
            "all is well",
            "RuntimeError: CUDA out of memory. Tried to allocate",
            "not fatal: at the start",
            "fatal: at the start",
            "CUDA out of",
            "memory: parity error",
        ];
        assert_eq!(labels(&policies, &lines), ["oom", "start", "ECC|parity"]);
    }

    #[test]
    fn a_policy_is_found_once_for_each_origin_without_the_text() {
        let policies = [policy(Some("oom"), Some("out of memory"), None)];
        let line = |agent: &str| LogLine {
            log: "out of memory\n".to_owned(),
            agent_id: Some(agent.into()),
            ..LogLine::default()
        };
        let packed = logs::pack(&[line("a"), line("a"), line("b")]).unwrap();
        let policies = CompiledPolicies::of(&policies).unwrap().unwrap();
        let found = find(&policies, &packed, thread_time).unwrap().found;
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|found| found.line.log.is_empty()));
    }

    #[test]
    fn a_search_that_takes_too_long_leaves_the_rest_and_counts_it() {
        let policies = [policy(Some("oom"), Some("out of memory"), None)];
        let lines = ["a", "b", "c", "d", "e"].map(|agent| LogLine {
            log: "out of memory\n".to_owned(),
            agent_id: Some(agent.into()),
            ..LogLine::default()
        });
        let packed = logs::pack(&lines).unwrap();
        let policies = CompiledPolicies::of(&policies).unwrap().unwrap();
        let searched = |each: Duration| {
            let asked = Cell::new(0);
            let used = || {
                asked.set(asked.get() + 1);
                each * asked.get()
            };
            let searched = find(&policies, &packed, used).unwrap();
            (searched.found.len(), searched.left)
        };
        assert_eq!(searched(Duration::ZERO), (5, 0));
        // The first two looks at the clock are for the start and for all lines as one text.
        assert_eq!(searched(SEARCH_TIME / 4), (2, 3));
        assert_eq!(searched(SEARCH_TIME), (0, 5));
    }

    #[test]
    fn texts_are_searched_in_pieces_of_whole_lines() {
        let line = format!("{}\n", "x".repeat(999));
        let texts = line.repeat(40);
        let pieces: Vec<&[u8]> = windows(texts.as_bytes()).collect();
        assert_eq!(pieces.iter().map(|p| p.len()).sum::<usize>(), texts.len());
        assert!(
            pieces
                .iter()
                .all(|p| p.len() <= MAX_LOOKED_AT && p.len() % 1000 == 0)
        );
        // Of a long line the beginning; the next line is whole again.
        let texts = format!("{}\nlast", "x".repeat(2 * MAX_LOOKED_AT));
        let pieces: Vec<&[u8]> = windows(texts.as_bytes()).collect();
        assert_eq!(pieces.len(), 2);
        assert_eq!((pieces[0].len(), pieces[1]), (MAX_LOOKED_AT, &b"last"[..]));
    }

    #[test]
    fn what_is_noted_of_one_report_is_bounded() {
        let policies = [policy(Some("oom"), Some("out of memory"), None)];
        let lines: Vec<LogLine> = (0..1_000)
            .map(|n| LogLine {
                log: "out of memory\n".to_owned(),
                agent_id: Some(format!("invented-{n}").into()),
                ..LogLine::default()
            })
            .collect();
        let packed = logs::pack(&lines).unwrap();
        let policies = CompiledPolicies::of(&policies).unwrap().unwrap();
        let found = find(&policies, &packed, thread_time).unwrap().found;
        assert_eq!(found.len(), MOST_FOUND);
    }

    #[test]
    fn of_a_long_line_the_beginning_is_looked_at() {
        let policies = [policy(Some("oom"), Some("out of memory"), None)];
        let long = "ü".repeat(MAX_LOOKED_AT);
        let (late, early) = (
            format!("{long}out of memory"),
            format!("out of memory{long}"),
        );
        assert!(labels(&policies, &[&late]).is_empty());
        assert_eq!(labels(&policies, &[&early]), ["oom"]);
    }
}
