//! Subjects of commits: an area, a colon and what the commit does, in one short line.

use std::path::Path;

use crate::{Findings, workspace};

/// Characters of a subject at most, so that lists of commits show it whole.
const LONGEST: usize = 72;

/// Commits that are looked at where there is no branch to compare with.
const NEWEST: usize = 10;

/// Branches that commits are compared with; the first one that exists counts.
const BASES: &[&str] = &["@{upstream}", "origin/HEAD", "origin/main"];

/// Checks the commits that are not on the branch to compare with, or without such a branch the newest ones. Errs with the
/// reason when the history cannot be read: there is no `git`, the files are no clone, or it has no commit.
pub(crate) fn check(root: &Path) -> anyhow::Result<Findings> {
    let log = |which: &str| workspace::git(root, &["log", "--no-merges", "--format=%h %s", which]);
    let own = BASES
        .iter()
        .find_map(|base| log(&format!("{base}..HEAD")).ok());
    let log = match own {
        Some(own) => own,
        None => log(&format!("-{NEWEST}"))?,
    };
    let mut findings = Findings::default();
    for line in log.lines() {
        let (commit, subject) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(problem) = problem(subject) {
            findings
                .errors
                .push(format!("commit {commit}: {problem}: \"{subject}\""));
        }
    }
    Ok(findings)
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

    /// A repository with these commits, of which the first `shared` are on `origin/main` too.
    fn repository(subjects: &[&str], shared: usize) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| workspace::git(directory.path(), arguments).unwrap();
        git(&["init", "--quiet", "--initial-branch", "main"]);
        for (number, subject) in (1..).zip(subjects) {
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
                "-m",
                subject,
            ]);
            if number == shared {
                git(&["update-ref", "refs/remotes/origin/main", "HEAD"]);
            }
        }
        directory
    }

    #[test]
    fn only_commits_that_are_on_no_other_branch_are_checked() {
        let directory = repository(&["no area", "cli: good", "also none"], 2);
        let findings = check(directory.path()).unwrap();
        assert_eq!(findings.errors.len(), 1, "{findings:?}");
        assert!(findings.errors[0].contains("\"also none\""), "{findings:?}");
    }

    #[test]
    fn without_a_branch_to_compare_with_the_newest_are_checked() {
        let directory = repository(&["no area", "cli: good"], 0);
        let findings = check(directory.path()).unwrap();
        assert!(findings.errors[0].contains("\"no area\""), "{findings:?}");
    }

    #[test]
    fn files_without_a_history_are_an_error_with_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        let error = check(directory.path()).unwrap_err().to_string();
        assert!(error.contains("git"), "{error}");
    }
}
