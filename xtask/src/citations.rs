//! Rules on what comments and documents cite: only what a reader of the repository can open.

use std::collections::{BTreeMap, BTreeSet};

use crate::Findings;

/// Words of citations that no reader can follow: notes that are not in the repository. Written in two halves, since this
/// file is checked too.
const OUTSIDE: &[(&str, &str)] = &[
    ("err", "ata e-"),
    ("err", "atum e-"),
    ("settled ", "point"),
    ("-config` ", "reference"),
    ("wire-contract` ", "reference"),
];

/// Places whose files are cited by their path. Code may speak of files of other repositories and of users, so that in it
/// only the first one counts; pages name tests and sources too.
const PLACES: &[&str] = &[
    "docs/", "crates/", "xtask/", "e2e/", "chaos/", "fuzz/", "scripts/",
];

/// What follows the name of a section in a citation, when another section of the same page follows.
const FURTHER: [&str; 2] = [" and \"", ", \""];

/// The files of the repository, and the headings of its pages.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    paths: BTreeSet<String>,
    /// Headings of each page below `docs/`, without the marks.
    headings: BTreeMap<String, BTreeSet<String>>,
}

impl Pages {
    /// Adds a file; `path` is relative to the repository.
    pub(crate) fn add(&mut self, path: &str, text: &str) {
        for (place, _) in path.match_indices('/') {
            self.paths.insert(path[..place].to_owned());
        }
        self.paths.insert(path.to_owned());
        if path.starts_with("docs/") && is_page(path) {
            let headings = text.lines().filter(|line| line.starts_with('#'));
            self.headings.insert(
                path.to_owned(),
                headings
                    .map(|line| line.trim_start_matches('#').trim().to_owned())
                    .collect(),
            );
        }
    }

    /// Checks the citations of one file. A cited page exists, and so does each section that is named in quotes behind it:
    /// `docs/glossary.md, "What users meet"`. In pages links to files lead somewhere.
    pub(crate) fn check(&self, path: &str, text: &str, findings: &mut Findings) {
        let mut error = |message: String| findings.errors.push(format!("{path}: {message}"));
        for line in text.lines() {
            let lower = line.to_lowercase();
            for (head, tail) in OUTSIDE {
                if lower.contains(&format!("{head}{tail}")) {
                    error(format!(
                        "cites \"{head}{tail}\", which is not in the repository"
                    ));
                }
            }
            if line.contains('\u{a7}') && !line.contains("RFC") {
                error(format!(
                    "cites a section of what is not in the repository: {}",
                    line.trim()
                ));
            }
        }
        let flat = without_line_ends(text);
        let roots = if is_page(path) { PLACES } else { &PLACES[..1] };
        for (place, _) in roots.iter().flat_map(|root| flat.match_indices(root)) {
            // Part of a longer path or of an address.
            if flat[..place].ends_with(is_of_a_path) {
                continue;
            }
            let rest = &flat[place..];
            let end = rest.find(|c| !is_of_a_path(c)).unwrap_or(rest.len());
            let cited = rest[..end].trim_end_matches(['.', '/']);
            // Built from a name, or one of many.
            if cited.contains(['{', '<', '*', '$']) || cited.chars().any(char::is_uppercase) {
                continue;
            }
            if !self.paths.contains(cited) {
                error(format!("cites \"{cited}\", which does not exist"));
            } else if let Some(headings) = self.headings.get(cited) {
                for section in sections(rest[end..].trim_start_matches('`')) {
                    if !headings.contains(section) {
                        error(format!(
                            "cites \"{cited}\", which has no section \"{section}\""
                        ));
                    }
                }
            }
        }
        if is_page(path) {
            for link in links(text) {
                if !self.paths.contains(&resolved(path, link)) {
                    error(format!("links to \"{link}\", which does not exist"));
                }
            }
        }
    }
}

fn is_of_a_path(c: char) -> bool {
    c.is_alphanumeric() || "/-_.{}<>*$".contains(c)
}

fn is_page(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, kind)| kind == "md")
}

/// The text in one line, without the marks of comments, since a citation may be broken over two lines.
fn without_line_ends(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.trim();
        ["//!", "///", "//", "#", "--"]
            .iter()
            .find_map(|mark| line.strip_prefix(mark))
            .unwrap_or(line)
            .trim_start()
    });
    lines.collect::<Vec<_>>().join(" ")
}

/// The sections that are named behind a page: `, "One" and "Two"`.
fn sections(mut rest: &str) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some(named) = FURTHER
        .iter()
        .skip(usize::from(found.is_empty()))
        .find_map(|mark| rest.strip_prefix(mark))
    {
        let Some((section, after)) = named.split_once('"') else {
            break;
        };
        found.push(section);
        rest = after;
    }
    found
}

/// The files that a page links to.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link.split('#').next().unwrap_or(link))
        .filter(|link| !link.is_empty() && !link.contains("://") && !link.contains(' '))
}

/// A link as a path from the root of the repository.
fn resolved(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let mut pages = Pages::default();
        pages.add(
            &cited("contract/api.md"),
            "# The API\n\n## Log lines\n\n## Pages\n",
        );
        pages.add("README.md", "");
        let mut findings = Findings::default();
        pages.check(path, text, &mut findings);
        findings.errors
    }

    /// A path that only these tests have, in two halves as above.
    fn cited(tail: &str) -> String {
        format!("{}{tail}", "docs/")
    }

    #[test]
    fn what_exists_may_be_cited() {
        for text in [
            format!("//! Lines: `{}`, \"Log lines\".", cited("contract/api.md")),
            format!(
                "/// See `{}`, \"Log\n/// lines\" and \"Pages\".",
                cited("contract/api.md")
            ),
            format!(
                "See {} and https://x.example/{}.",
                cited("contract/"),
                cited("none.md")
            ),
            "[a](contract/api.md#pages), [b](../README.md), [c](https://x.example), [d](#here)"
                .to_owned(),
        ] {
            assert_eq!(found(&cited("page.md"), &text), [""; 0], "{text}");
        }
    }

    #[test]
    fn what_does_not_exist_is_named() {
        let page = cited("a.md");
        for (path, text, part) in [
            (
                page.as_str(),
                "`crates/none.rs`, `crates/NAME`".to_owned(),
                "crates/none.rs",
            ),
            (
                "a.rs",
                format!("// `{}`", cited("none.md")),
                "none.md\", which does not exist",
            ),
            (
                "a.rs",
                format!("// {}, \"Log\n// files\"", cited("contract/api.md")),
                "no section \"Log files\"",
            ),
            (
                "a.rs",
                format!("// {}, \"Pages\" and \"Files\"", cited("contract/api.md")),
                "no section \"Files\"",
            ),
            (
                page.as_str(),
                "[a](none.md#x)".to_owned(),
                "links to \"none.md\"",
            ),
        ] {
            let errors = found(path, &text);
            assert!(
                errors.len() == 1 && errors[0].contains(part),
                "{text}: {errors:?}"
            );
        }
    }

    #[test]
    fn what_is_outside_of_the_repository_is_not_cited() {
        for (head, tail) in OUTSIDE {
            assert_eq!(
                found("a.rs", &format!("// See {head}{tail}16.")).len(),
                1,
                "{head}"
            );
        }
        assert_eq!(found("a.rs", "// As in \u{a7}8.").len(), 1);
        assert_eq!(found("a.rs", "// RFC 6761 \u{a7}6.3"), [""; 0]);
    }
}
