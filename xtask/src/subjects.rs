//! Messages of commits: a subject of an area, a colon and what the commit does, in one short line and in the field's words,
//! and a body that explains why.

use std::path::Path;

use crate::{Findings, words, workspace};

/// Characters of a subject at most, so that lists of commits show it whole.
const LONGEST: usize = 72;

/// Commits that are looked at where there is no branch to compare with.
const NEWEST: usize = 10;

/// Commits that were written before this moment, in seconds since 1970, need no body and are free in their words: the rules
/// began at 2026-11-27 07:30 UTC. The date of the author counts, which a rebase keeps.
const EXPLAINED_SINCE: i64 = 1_795_764_600;

/// Branches that commits are compared with; the first one that exists counts.
const BASES: &[&str] = &["@{upstream}", "origin/HEAD", "origin/main"];

/// Checks the commits that are not on the branch to compare with, or without such a branch the newest ones. Errs with the
/// reason when the history cannot be read: there is no `git`, the files are no clone, or it has no commit.
pub(crate) fn check(root: &Path) -> anyhow::Result<Findings> {
    // Fields end with %x1f and commits with %x1e, so that a body may have lines of its own.
    let format = "--format=%h%x1f%at%x1f%s%x1f%b%x1e";
    let log = |which: &str| workspace::git(root, &["log", "--no-merges", format, which]);
    let own = BASES
        .iter()
        .find_map(|base| log(&format!("{base}..HEAD")).ok());
    let log = match own {
        Some(own) => own,
        None => log(&format!("-{NEWEST}"))?,
    };
    let mut findings = Findings::default();
    for entry in log.split('\x1e').map(str::trim_start) {
        let mut fields = entry.splitn(4, '\x1f');
        let mut field = || fields.next().unwrap_or_default();
        let (commit, written, subject, body) = (field(), field(), field(), field());
        if commit.is_empty() {
            continue;
        }
        if let Some(problem) = problem(subject) {
            findings
                .errors
                .push(format!("commit {commit}: {problem}: \"{subject}\""));
        }
        if written.parse().is_ok_and(|at: i64| at < EXPLAINED_SINCE) {
            continue;
        }
        if !explains(body) {
            findings.errors.push(format!(
                "commit {commit}: it has no body: explain why, and what was tried: \"{subject}\""
            ));
        }
        words::check_subject(commit, subject, &mut findings);
    }
    Ok(findings)
}

/// Whether a body has a line that is no trailer.
fn explains(body: &str) -> bool {
    let mut lines = body.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.any(|line| !is_trailer(line))
}

/// Whether a line is of the form `Signed-off-by: a user`: it records something of the commit, and explains nothing.
fn is_trailer(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(key, _)| {
        key.contains('-') && key.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
    })
}

/// What is wrong with a subject; `None` = nothing.
fn problem(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > LONGEST {
        return Some(format!(
            "the subject has {length} characters, and may have {LONGEST}"
        ));
    }
    let is_area = |area: &str| {
        area.starts_with(|first: char| first.is_ascii_lowercase())
            && area.chars().all(|letter| {
                letter.is_ascii_lowercase()
                    || letter.is_ascii_digit()
                    || matches!(letter, '-' | '_' | '/' | '.')
            })
    };
    let has_area = subject
        .split_once(": ")
        .is_some_and(|(areas, text)| areas.split(", ").all(is_area) && !text.trim().is_empty());
    (!has_area).then(|| {
        "the subject does not begin with its area, as in \"scheduler: keep a gang on one switch\"".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_an_area_and_one_short_line() {
        for good in [
            "scheduler: keep a gang on one switch when it fits",
            "config, cli, store: one TaskKind",
            "e2e: wait for the master",
            "xtask/words: read messages",
        ] {
            assert_eq!(problem(good), None, "{good}");
        }
        for bad in [
            "keep a gang on one switch",
            "Scheduler: keep a gang on one switch",
            "scheduler:",
            "scheduler:keep a gang",
            "work of today: much",
            "scheduler,config: keep a gang",
            "scheduler: \u{20}",
            "",
        ] {
            assert!(problem(bad).is_some(), "{bad}");
        }
        let long = format!("cli: {}", "x".repeat(LONGEST));
        assert!(problem(&long).unwrap().contains("77 characters"));
    }

    /// A moment at which a body is needed.
    const LATER: i64 = EXPLAINED_SINCE;
    /// A moment at which it was not.
    const EARLIER: i64 = EXPLAINED_SINCE - 1;

    /// A repository with these commits, each with its moment and its message, of which the first `shared` are on
    /// `origin/main` too.
    fn repository(commits: &[(i64, &str)], shared: usize) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| workspace::git(directory.path(), arguments).unwrap();
        git(&["init", "--quiet", "--initial-branch", "main"]);
        for (number, (at, message)) in (1..).zip(commits) {
            git(&[
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@example.org",
                "-c",
                "commit.gpgsign=false",
                "commit",
                "--quiet",
                "--allow-empty",
                "--no-verify",
                "--date",
                &format!("{at} +0000"),
                "-m",
                message,
            ]);
            if number == shared {
                git(&["update-ref", "refs/remotes/origin/main", "HEAD"]);
            }
        }
        directory
    }

    #[test]
    fn only_commits_that_are_on_no_other_branch_are_checked() {
        let commits = ["no area", "cli: good", "also none"].map(|subject| (EARLIER, subject));
        let directory = repository(&commits, 2);
        let findings = check(directory.path()).unwrap();
        assert_eq!(findings.errors.len(), 1, "{findings:?}");
        assert!(findings.errors[0].contains("\"also none\""), "{findings:?}");
    }

    #[test]
    fn without_a_branch_to_compare_with_the_newest_are_checked() {
        let directory = repository(&[(EARLIER, "no area"), (EARLIER, "cli: good")], 0);
        let findings = check(directory.path()).unwrap();
        assert!(findings.errors[0].contains("\"no area\""), "{findings:?}");
    }

    #[test]
    fn a_commit_explains_why_in_its_body_since_the_rule_exists() {
        let commits = [
            (EARLIER, "cli: before the rule"),
            (
                LATER,
                "cli: explained\n\nThe old way\nfailed.\n\nSigned-off-by: a",
            ),
            (
                LATER,
                "cli: signed only\n\nSigned-off-by: a <a@example.org>",
            ),
            (LATER, "cli: no body"),
        ];
        let findings = check(repository(&commits, 0).path()).unwrap();
        assert_eq!(findings.errors.len(), 2, "{findings:?}");
        assert!(findings.errors[0].contains("no body: explain why"));
        assert!(findings.errors[0].contains("\"cli: no body\""));
        assert!(findings.errors[1].contains("\"cli: signed only\""));
    }

    /// A word that comments and messages must not have.
    const SPEECH: &str = "says";

    #[test]
    fn a_subject_has_the_words_of_the_field() {
        let earlier = format!("cli: print what it {SPEECH}");
        let later = format!("cli: print {SPEECH}, and no `{SPEECH}`\n\nWhy.");
        let commits = [(EARLIER, earlier.as_str()), (LATER, later.as_str())];
        let findings = check(repository(&commits, 0).path()).unwrap();
        assert_eq!(findings.errors.len(), 1, "{findings:?}");
        let refused = format!("its subject uses \"{SPEECH}\": write");
        assert!(findings.errors[0].contains(&refused), "{findings:?}");
    }

    #[test]
    fn files_without_a_history_are_an_error_with_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        let error = check(directory.path()).unwrap_err().to_string();
        assert!(error.contains("git"), "{error}");
    }
}
