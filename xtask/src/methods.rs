//! How many methods a type has: more than [`MOST`] and it is several things under one name.

use std::collections::BTreeMap;

use crate::Findings;

/// Methods of a type at most, over all its own `impl` blocks. Methods of traits do not count.
const MOST: usize = 20;

/// Methods of all types. Types of the same name differ by the first step of their modules.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    /// By crate with first module, `scheduler/priority`, and type.
    counts: BTreeMap<(String, String), usize>,
}

impl Methods {
    /// Takes a file of the repository, by its path from the root. Tests may have what they like and are left out.
    pub(crate) fn add(&mut self, path: &str, text: &str) {
        let Some((name, file)) = path
            .strip_prefix("crates/")
            .and_then(|path| path.split_once("/src/"))
        else {
            return;
        };
        let first = file.split(['/', '.']).next().unwrap_or_default();
        if path.split('/').any(|step| step.starts_with("tests")) {
            return;
        }
        let mut inside: Option<String> = None;
        for line in crate::without_tests(text).lines() {
            if let Some(rest) = line.strip_prefix("impl") {
                inside = own_type(rest);
            } else if line == "}" {
                inside = None;
            } else if let Some(of) = &inside
                && is_method(line)
            {
                let key = (format!("{name}/{first}"), of.clone());
                *self.counts.entry(key).or_default() += 1;
            }
        }
    }

    /// Reports types with too many methods.
    pub(crate) fn check(&self, findings: &mut Findings) {
        for ((name, of), count) in &self.counts {
            if *count > MOST {
                findings.errors.push(format!(
                    "crates/{name}: type {of} has {count} methods, and may have {MOST}: make of it the several things that \
                     it is"
                ));
            }
        }
    }
}

/// The type of an `impl` block whose line goes on like this; `None` for blocks of a trait.
fn own_type(rest: &str) -> Option<String> {
    if rest.contains(" for ") {
        return None;
    }
    let mut depth = 0_usize;
    // The parameters of the block itself.
    let start = rest.char_indices().find(|(_, letter)| {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && (letter.is_alphabetic())
    })?;
    let name: String = rest[start.0..]
        .chars()
        .take_while(|letter| letter.is_alphanumeric() || matches!(letter, '_' | ':'))
        .collect();
    name.rsplit("::").next().map(str::to_owned)
}

/// Whether a line of an `impl` block begins a method.
fn is_method(line: &str) -> bool {
    let Some(code) = line
        .strip_prefix("    ")
        .filter(|code| !code.starts_with(' '))
    else {
        return false;
    };
    let code = match code.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ").map_or("", |(_, rest)| rest),
        None => code.strip_prefix("pub ").unwrap_or(code),
    };
    let words = ["const ", "async ", "unsafe "];
    let code = words
        .iter()
        .fold(code, |code, word| code.strip_prefix(word).unwrap_or(code));
    code.starts_with("fn ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(methods: usize) -> Vec<String> {
        let method = |number| {
            format!(
                "    pub(crate) async fn m{number}(&self) {{\n        fn inner() {{}}\n    }}\n"
            )
        };
        let body: String = (0..methods).map(method).collect();
        let text = format!(
            "impl<'a, T: Into<X>> Things<'a, T> {{\n{body}}}\n\nimpl Display for Things {{\n    fn fmt() {{}}\n}}\n"
        );
        let mut all = Methods::default();
        all.add("crates/x/src/things.rs", &text);
        all.add("crates/x/tests/things.rs", &text);
        let mut found = Findings::default();
        all.check(&mut found);
        found.errors
    }

    #[test]
    fn only_methods_of_the_type_itself_count() {
        assert_eq!(findings(MOST), Vec::<String>::new());
        let errors = findings(MOST + 1);
        assert!(
            errors[0].contains("type Things has 21 methods"),
            "{errors:?}"
        );
    }
}
