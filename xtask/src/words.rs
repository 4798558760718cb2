//! Rules on the words in comments and identifiers: the field's terms instead of a dialect of our own.

use crate::Findings;

/// Crates that keep the rules; those that do not yet are missing here.
const CRATES: &[&str] = &[
    "agent",
    "agent-proto",
    "api-types",
    "authz",
    "bench",
    "cli",
    "client",
    "config",
    "failpoints",
    "ids",
    "invariants",
    "lifecycle",
    "orchestrator",
    "rm",
    "rm-agents",
    "scenario",
    "scheduler",
    "searcher",
    "server",
    "simulator",
    "spool",
    "store",
    "store-derive",
    "supervisor",
    "taskspec",
    "tls",
];

/// Words that must not be used, and what to write instead.
const WORDS: &[(&[&str], &str)] = &[
    (
        &["told", "tell", "tells"],
        "\"reported\", \"updated\" or \"notified\"",
    ),
    (&["mistake", "mistakes"], "\"error\""),
    (&["whoever", "somebody"], "\"the caller\" or \"a user\""),
    (&["stands"], "\"is\" or \"is stored\""),
    (&["hears", "heard"], "\"receives\" or \"received\""),
    (&["gathering", "gatherings"], "\"all-gather\""),
    (
        &["story", "stories"],
        "\"explanation\", \"history\" or, for a test, \"scenario\"",
    ),
    (
        &["room", "rooms"],
        "\"capacity\", \"free slots\", \"disk space\" or \"crate\"",
    ),
];

/// Checks the comments and identifiers of one Rust file; `path` is relative to the repository.
pub(crate) fn check(path: &str, text: &str, findings: &mut Findings) {
    let member = path
        .strip_prefix("crates/")
        .and_then(|path| path.split_once('/'));
    let is_rust = path.rsplit_once('.').is_some_and(|(_, kind)| kind == "rs");
    if !is_rust || !member.is_some_and(|(name, _)| CRATES.contains(&name)) {
        return;
    }
    let mut after_comment = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let is_comment = line.starts_with("//");
        let mut report = |message: String| {
            let number = number + 1;
            findings.errors.push(format!("{path}:{number}: {message}"));
        };
        // Outside of comments, text between quotation marks is not checked.
        let step = if is_comment { 1 } else { 2 };
        let checked = line.split('"').step_by(step);
        let words = checked.flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric()));
        for word in words.map(str::to_lowercase) {
            if let Some((_, instead)) = WORDS.iter().find(|(of, _)| of.contains(&word.as_str())) {
                report(format!("uses \"{word}\": write {instead}"));
            }
        }
        if !after_comment && is_single_word(line) {
            report("has a comment of one word: say meaning, unit and range".to_owned());
        }
        after_comment = is_comment;
    }
}

/// Whether a line is a doc comment of one capitalised word.
fn is_single_word(line: &str) -> bool {
    line.strip_prefix("/// ")
        .and_then(|text| text.strip_suffix('.'))
        .is_some_and(|word| {
            word.starts_with(char::is_uppercase) && word.chars().all(char::is_alphabetic)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(path: &str, text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        check(path, text, &mut findings);
        findings.errors
    }

    #[test]
    fn comments_and_identifiers_are_checked_and_strings_are_not() {
        let text = "// Whoever calls.\nfn is_told() {}\nlet x = \"told\";\nRoomBeingFreed\n";
        assert_eq!(
            errors("crates/spool/src/lib.rs", text),
            [
                "crates/spool/src/lib.rs:1: uses \"whoever\": write \"the caller\" or \"a user\"",
                "crates/spool/src/lib.rs:2: uses \"told\": write \"reported\", \"updated\" or \"notified\"",
            ]
        );
    }

    #[test]
    fn a_comment_of_one_word_is_refused_but_not_the_last_word_of_a_longer_one() {
        let found = errors(
            "crates/tls/src/lib.rs",
            "/// Which.\n\n/// The\n/// Name.\n",
        );
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/tls/src/lib.rs:1: "));
    }

    #[test]
    fn other_crates_and_files_are_not_checked() {
        for path in [
            "crates/agentless/src/lib.rs",
            "crates/spool/README.md",
            "a.rs",
        ] {
            assert_eq!(errors(path, "// told\n"), Vec::<String>::new());
        }
    }
}
