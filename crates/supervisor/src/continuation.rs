//! The level of lines that have none of their own and continue an error: those of a Python traceback, and indented ones.
//!
//! `docs/logs.md` describes this to users. Each stream and each rank is followed by itself, as their lines come mixed.

use std::collections::BTreeMap;

use det_spool::LogLevel;

use crate::lines::Line;

/// Ranks of a stream that are in the middle of an error at once; of more the lines keep no level.
const MOST_RANKS: usize = 4096;

/// What the last line of a rank was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    /// A line with this level, or the last one of a traceback.
    Error(LogLevel),
    /// A line of a traceback before its last one.
    Traceback(LogLevel),
}

/// Follows the lines of one stream.
#[derive(Debug, Default)]
pub(crate) struct Continuations {
    ranks: BTreeMap<Option<u32>, Within>,
}

impl Continuations {
    /// The level of the next line: its own, or that of the error that it continues.
    pub(crate) fn level(&mut self, line: &Line) -> Option<LogLevel> {
        let before = self.ranks.get(&line.rank_id).copied();
        let (level, now) = match line.level {
            Some(own) => (
                Some(own),
                matches!(own, LogLevel::Error | LogLevel::Critical).then_some(Within::Error(own)),
            ),
            None => continued(before, &line.text),
        };
        match now {
            None => {
                self.ranks.remove(&line.rank_id);
            }
            Some(now) if before.is_some() || self.ranks.len() < MOST_RANKS => {
                self.ranks.insert(line.rank_id, now);
            }
            Some(_) => {}
        }
        level
    }
}

/// The level of a line without one of its own, and what it leaves its rank in.
fn continued(before: Option<Within>, text: &str) -> (Option<LogLevel>, Option<Within>) {
    let text = text.trim_end();
    // Exception groups draw a margin: `  | Traceback (most recent call last):`.
    let begins = text.ends_with("raceback (most recent call last):");
    let (of_error, is_open) = match before {
        None if begins => (LogLevel::Error, true),
        None => return (None, None),
        Some(Within::Traceback(level)) => (level, true),
        Some(Within::Error(level)) => (level, false),
    };
    let is_indented = text.starts_with([' ', '\t']);
    let is_link = text.starts_with("During handling of the above exception")
        || text.starts_with("The above exception was the direct cause");
    let now = match (begins, is_open, is_indented) {
        (true, _, _) | (_, true, true) => Within::Traceback(of_error),
        // An empty line belongs to what comes next, if that goes on.
        _ if text.is_empty() => return (None, before),
        // The first line that is not indented names the exception. More of its message may follow, indented.
        (_, true, false) | (_, false, true) => Within::Error(of_error),
        (_, false, false) if is_link => Within::Error(of_error),
        (_, false, false) => return (None, None),
    };
    (Some(of_error), Some(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::classify;

    /// The levels of these lines, which come one after the other.
    fn levels(lines: &[&str]) -> Vec<Option<LogLevel>> {
        let mut continuations = Continuations::default();
        let level = |line: &&str| continuations.level(&classify(line.as_bytes()));
        lines.iter().map(level).collect()
    }

    const ERROR: Option<LogLevel> = Some(LogLevel::Error);

    #[test]
    fn a_traceback_is_an_error_to_its_last_line() {
        let lines = [
            "step 1",
            "Traceback (most recent call last):",
            "  File \"train.py\", line 4, in <module>",
            "    f()",
            "KeyError: 'lr'",
            "",
            "During handling of the above exception, another exception occurred:",
            "",
            "Traceback (most recent call last):",
            "  File \"train.py\", line 6, in <module>",
            "RuntimeError: no rate",
            "step 2",
            "  indented",
        ];
        let found = levels(&lines);
        let errors: Vec<&str> = lines
            .iter()
            .zip(&found)
            .filter(|(_, level)| **level == ERROR)
            .map(|(line, _)| *line)
            .collect();
        assert_eq!(errors.len(), 8, "{errors:?}");
        assert!(!errors.contains(&"step 1") && !errors.contains(&"step 2"));
        assert_eq!(found[12], None);
    }

    #[test]
    fn what_an_error_logs_below_it_has_its_level() {
        let critical = Some(LogLevel::Critical);
        assert_eq!(
            levels(&[
                "CRITICAL: it failed",
                "Traceback (most recent call last):",
                "  File \"x.py\", line 1",
                "OSError: gone",
                "    with more of its message",
                "INFO: next",
                "  indented",
            ]),
            [
                critical,
                critical,
                critical,
                critical,
                critical,
                Some(LogLevel::Info),
                None
            ]
        );
        assert_eq!(levels(&["WARNING: w", "  indented"])[1], None);
        assert_eq!(levels(&["ERROR: e", "step 2"])[1], None);
    }

    #[test]
    fn ranks_do_not_continue_each_other() {
        assert_eq!(
            levels(&[
                "[rank=1] Traceback (most recent call last):",
                "[rank=0] step 7",
                "[rank=1]   File \"x.py\", line 1",
                "[rank=0]   indented",
                "[rank=1] ValueError: boom",
                "[rank=1] step 8",
            ]),
            [ERROR, None, ERROR, None, ERROR, None]
        );
    }
}
