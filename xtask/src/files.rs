//! Rules on names and contents of files.

use crate::Findings;

/// Names that describe nothing of what is inside.
const EMPTY_NAMES: &[&str] = &["helper", "helpers", "misc", "util", "utils"];

/// A file longer than this is asked what second thing it does.
const LONG: usize = 800;

/// What no file may hold: paths of one developer's machine, hosts that only some machines reach, and who wrote what. Written
/// in two halves, since this file is checked too.
const FORBIDDEN: &[(&str, &str)] = &[
    ("/wo", "rk/main"),
    ("/wo", "rk/shared"),
    ("/ro", "ot/"),
    ("/tmp/", "w/"),
    ("deb.debian", ".org"),
    ("registry.npmjs", ".org"),
    ("files.pythonhosted", ".org"),
    ("artifact", "ory"),
    ("anthro", "pic"),
    ("clau", "de"),
    ("chat", "gpt"),
    ("co-authored", "-by"),
    ("generated ", "with"),
];

/// Generated, or quoted word for word.
const UNCHECKED: &[&str] = &["Cargo.lock", "LICENSE"];

/// Checks one file; `path` is relative to the repository.
pub(crate) fn check(path: &str, text: &str, findings: &mut Findings) {
    if UNCHECKED.contains(&path) {
        return;
    }
    let file = path.rsplit('/').next().unwrap_or(path);
    let (stem, kind) = file.rsplit_once('.').unwrap_or((file, ""));
    for name in EMPTY_NAMES {
        if stem == *name || path.split('/').any(|part| part == *name) {
            findings.errors.push(format!(
                "{path}: \"{name}\" describes nothing: name it after what it does"
            ));
        }
    }
    let lines = text.lines().count();
    if matches!(kind, "rs" | "py") && lines > LONG {
        findings.warnings.push(format!(
            "{path}: {lines} lines: what second thing does it do?"
        ));
    }
    for (number, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        for (head, tail) in FORBIDDEN {
            if line.contains(&format!("{head}{tail}")) {
                findings
                    .errors
                    .push(format!("{path}:{}: holds \"{head}{tail}\"", number + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Findings {
        let mut findings = Findings::default();
        check(path, text, &mut findings);
        findings
    }

    #[test]
    fn ordinary_files_pass() {
        assert_eq!(
            found("crates/store/src/users.rs", "//! Users.\n"),
            Findings::default()
        );
        assert_eq!(
            found("guides/utilities.md", "/run/determined/workdir\n"),
            Findings::default()
        );
    }

    #[test]
    fn empty_names_are_refused_wherever_they_stand() {
        for path in [
            "crates/a/src/utils.rs",
            "python/helpers/x.py",
            "scripts/misc",
        ] {
            assert_eq!(found(path, "").errors.len(), 1, "{path}");
        }
    }

    #[test]
    fn long_files_are_only_warned_about() {
        let long = "x\n".repeat(LONG + 1);
        assert_eq!(found("a.rs", &long).warnings.len(), 1);
        assert!(found("a.rs", &long).errors.is_empty());
        assert_eq!(found("a.yaml", &long), Findings::default());
    }

    #[test]
    fn forbidden_text_is_named_with_its_line() {
        let text = format!("fine\nsee {}{}\n", "/WO", "RK/main/x");
        let findings = found("a.md", &text);
        assert_eq!(findings.errors.len(), 1);
        assert!(
            findings.errors[0].starts_with("a.md:2: "),
            "{:?}",
            findings.errors
        );
        assert_eq!(found("Cargo.lock", &text), Findings::default());
    }
}
