//! What torch's launcher (`torchrun`) writes of the rank that it saw fail first, when it sees that, and at its end:
//!
//! ```text
//! torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 4711) of binary: /usr/bin/python3
//!
//! Root Cause (first observed failure):
//! [0]:
//!   time      : 2026-11-27_13:52:59
//!   host      : node-1
//!   rank      : 3 (local_rank: 1)
//!   exitcode  : -9 (pid: 4711)
//! ```
//!
//! A launcher that is asked to end meanwhile, since another machine's has ended, does not come to the second.
//!
//! See `ProcessFailure` in <https://docs.pytorch.org/docs/stable/elastic/errors.html>.

/// The line that begins the part about the first failure.
const BEGINNING: &str = "Root Cause (first observed failure):";
/// What is before the exit code in the line that is written at once, and between it and the rank.
const FAILED: (&str, &str) = ("failed (exitcode: ", ") local_rank: ");

/// The rank that the launcher saw fail first, as far as its lines have been seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FirstFailure {
    has_begun: bool,
    rank: Option<u32>,
    /// As Python has it: negative = by this signal.
    code: Option<i32>,
    /// Rank among those of the container, and exit code, of the line that is written at once.
    local: Option<(u32, i32)>,
}

impl FirstFailure {
    /// Takes the launcher's next line.
    pub(crate) fn see(&mut self, text: &str) {
        if text.trim() == BEGINNING {
            *self = Self {
                has_begun: true,
                local: self.local,
                ..Self::default()
            };
            return;
        }
        if !self.has_begun {
            self.local = self.local.or_else(|| local_failure(text));
            return;
        }
        let Some((name, value)) = text.split_once(':') else {
            return;
        };
        let number = value.split_whitespace().next().unwrap_or_default();
        match name.trim() {
            "rank" if self.rank.is_none() => self.rank = number.parse().ok(),
            "exitcode" if self.code.is_none() => self.code = number.parse().ok(),
            _ => {}
        }
    }

    /// The rank, and its exit code as shells have it. `first` = the lowest rank of the container, as far as it is known.
    pub(crate) fn found(self, first: Option<u32>) -> Option<(u32, i32)> {
        let of_all = self.rank.zip(self.code);
        let here = |(rank, code): (u32, i32)| Some((first?.checked_add(rank)?, code));
        let (rank, code) = of_all.or_else(|| self.local.and_then(here))?;
        Some((rank, shell_code(code)))
    }
}

/// The rank and exit code of a line that is written when a rank has failed.
fn local_failure(text: &str) -> Option<(u32, i32)> {
    let (_, rest) = text.split_once(FAILED.0)?;
    let (code, rest) = rest.split_once(FAILED.1)?;
    let rank = rest.split_whitespace().next()?;
    Some((rank.parse().ok()?, code.parse().ok()?))
}

/// The exit code as shells have it. The launcher of the PyPI package has a rank end with 256 less the number of the signal that
/// ended it; only the usual ones are taken for that, since programs end with 255 by themselves.
fn shell_code(code: i32) -> i32 {
    match code {
        signal @ -64..=-1 => 128 - signal,
        code @ (241 | 245 | 247 | 249 | 250) => 128 + (256 - code),
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Option<(u32, i32)> {
        let mut failure = FirstFailure::default();
        for line in lines {
            failure.see(line);
        }
        failure.found(Some(4))
    }

    #[test]
    fn the_first_failure_is_read_with_its_exit_code_as_shells_have_it() {
        for (code, expected) in [
            ("9", 9),
            ("1", 1),
            ("-9", 137),
            ("247", 137),
            ("-15", 143),
            ("255", 255),
        ] {
            let exit = format!("  exitcode  : {code} (pid: 4711)");
            let lines = [
                "  rank      : 7 (local_rank: 1)",
                BEGINNING,
                "[0]:",
                "  time      : 2026-11-27_13:52:59",
                "  rank      : 2 (local_rank: 0)",
                &exit,
                "  error_file: <N/A>",
            ];
            assert_eq!(read(&lines), Some((2, expected)), "{code}");
        }
    }

    #[test]
    fn a_launcher_that_is_ended_before_has_named_a_rank_of_its_container() {
        let line = "torch.distributed.elastic.multiprocessing.api:failed (exitcode: 247) local_rank: 1 (pid: 20) of binary: python3";
        assert_eq!(read(&[line]), Some((5, 137)));
        assert_eq!(read(&[line, &line.replace("1 (", "0 (")]), Some((5, 137)));
        let end = [
            "  rank      : 7 (local_rank: 1)",
            "  exitcode  : -9 (pid: 20)",
        ];
        assert_eq!(read(&[line, BEGINNING, end[0], end[1]]), Some((7, 137)));
        let mut failure = FirstFailure::default();
        failure.see(line);
        assert_eq!(failure.found(None), None);
    }

    #[test]
    fn what_is_cut_off_or_something_else_names_no_rank() {
        let whole = [
            "  rank      : 2 (local_rank: 0)",
            "  exitcode  : 9 (pid: 4711)",
        ];
        assert_eq!(read(&whole), None);
        assert_eq!(read(&[BEGINNING, whole[0]]), None);
        assert_eq!(read(&[BEGINNING, "  rank      : x", whole[1]]), None);
    }
}
