//! A rule on the names of types: a type is named by a noun, alone or at the end (`RefusedField`), never by a participle alone
//! (`Refused`), which leaves open what was refused.

use crate::Findings;

/// Participles that do not end in "ed".
const IRREGULAR: &[&str] = &[
    "Bound",
    "Broken",
    "Built",
    "Chosen",
    "Done",
    "Drawn",
    "Forgotten",
    "Found",
    "Given",
    "Gone",
    "Held",
    "Hidden",
    "Kept",
    "Known",
    "Left",
    "Lost",
    "Made",
    "Met",
    "Read",
    "Seen",
    "Sent",
    "Shown",
    "Spent",
    "Taken",
    "Told",
    "Unknown",
    "Written",
];

/// Nouns that end in "ing"; other names that do are participles.
const NOUNS: &[&str] = &[
    "Autoscaling",
    "Binding",
    "Ceiling",
    "Encoding",
    "Finding",
    "Fitting",
    "Halving",
    "Heading",
    "King",
    "Listing",
    "Mapping",
    "Meaning",
    "Meeting",
    "Nothing",
    "Padding",
    "Paging",
    "Ping",
    "Profiling",
    "Ranking",
    "Reading",
    "Ring",
    "Sampling",
    "Scheduling",
    "Setting",
    "Spelling",
    "String",
    "Thing",
    "Timing",
    "Training",
    "Warning",
    "Wording",
    "Writing",
];

/// Checks the types that a Rust file defines. `path` is relative to the repository.
pub(crate) fn check(path: &str, text: &str, findings: &mut Findings) {
    let is_rust = path.rsplit_once('.').is_some_and(|(_, kind)| kind == "rs");
    if !is_rust {
        return;
    }
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(name) = defined(line)
            && is_participle(name)
        {
            findings.errors.push(format!(
                "{path}:{number}: the type \"{name}\" is named by a participle: name the thing, such as \"{name}…\" with a noun"
            ));
        }
    }
}

/// The type that a line begins to define.
fn defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let mut word = words.next()?;
    if word == "pub" || word.starts_with("pub(") {
        word = words.next()?;
    }
    if !["struct", "enum", "trait", "type", "union"].contains(&word) {
        return None;
    }
    let name = words.next()?;
    name.split(|c: char| !c.is_alphanumeric()).next()
}

/// Whether a name is one word, and that a participle.
fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().filter(char::is_ascii_uppercase).count() == 1;
    let is_regular = name.ends_with("ed") && !name.ends_with("eed");
    let is_present = name.ends_with("ing") && !NOUNS.contains(&name);
    is_one_word && (is_regular || is_present || IRREGULAR.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        check("crates/a/src/b.rs", text, &mut findings);
        findings.errors
    }

    #[test]
    fn a_participle_alone_names_no_type() {
        let found = errors(
            "pub(crate) struct Refused {\n}\nenum Known<T> {\n}\npub trait Stored: Sized {}\nstruct Waiting;\n",
        );
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(
            found[0].starts_with("crates/a/src/b.rs:1: the type \"Refused\""),
            "{found:?}"
        );
        assert!(found[1].starts_with("crates/a/src/b.rs:3:"), "{found:?}");
    }

    #[test]
    fn nouns_and_variants_are_names() {
        let text = "struct RefusedField;\nstruct Seed;\nstruct Setting;\nenum A {\n    Refused,\n}\ntype Need = u8;\n// struct Sent\n";
        assert_eq!(errors(text), Vec::<String>::new());
    }
}
