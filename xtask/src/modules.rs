//! Circles between the modules of a folder, which is a crate's `src` or one below it: of two modules, one may use the
//! other, directly or through more of them, but not both each other. The file that declares the modules of a crate is above
//! all of them, so that none may use what is defined there.

use std::collections::{BTreeMap, BTreeSet};

use crate::Findings;

/// Crates whose folders are looked at, each by itself.
const CRATES: &[&str] = &["cli", "config", "server"];

/// Which module uses which, in one folder.
#[derive(Debug, Default)]
struct Uses {
    /// For each module those it uses, each with a file in which it does.
    edges: BTreeMap<String, BTreeMap<String, String>>,
    /// Modules that the folder's own file gives names of, by those names.
    names: BTreeMap<String, String>,
    /// What the crate's own file defines itself, with that file; empty for folders below.
    defined: BTreeMap<String, String>,
    /// Paths that are not resolved yet: the module that uses it, the first step of the path, the file.
    found: Vec<(String, String, String)>,
}

impl Uses {
    /// Takes a file of `folder`; `file` is its path in there without the ending.
    fn add(&mut self, folder: &str, file: &str, path: &str, text: &str) {
        let steps: Vec<&str> = file.split('/').filter(|step| *step != "mod").collect();
        if steps.contains(&"tests") {
            return;
        }
        let text = without_comments(text);
        let text = crate::without_tests(&text);
        let module = match steps[..] {
            [] | ["lib" | "main"] => {
                self.names.extend(exported(text));
                if !steps.is_empty() {
                    let defined = defined(text).map(|name| (name.to_owned(), path.to_owned()));
                    self.defined.extend(defined);
                }
                return;
            }
            [module, ..] => module,
        };
        self.edges.entry(module.to_owned()).or_default();
        let (_, below) = folder.split_once("src").unwrap_or_default();
        let from_root = format!("crate{}::", below.replace('/', "::"));
        let from_file = "super::".repeat(steps.len());
        for start in [&from_root, &from_file] {
            for used in first_steps(text, start) {
                self.found.push((module.to_owned(), used, path.to_owned()));
            }
        }
    }
}

/// The sources of the folders that are looked at.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    folders: BTreeMap<String, Uses>,
}

impl Modules {
    /// Takes a file of the repository, by its path from the root. Tests may use what they like and are left out.
    pub(crate) fn add(&mut self, path: &str, text: &str) {
        let inside = path
            .strip_prefix("crates/")
            .and_then(|inside| inside.strip_suffix(".rs"));
        let Some(inside) = inside else {
            return;
        };
        let steps: Vec<&str> = inside.split('/').collect();
        if let [of, "src", ..] = steps[..]
            && CRATES.contains(&of)
        {
            for depth in 2..steps.len() {
                let (folder, file) = (steps[..depth].join("/"), steps[depth..].join("/"));
                let uses = self.folders.entry(folder.clone()).or_default();
                uses.add(&folder, &file, path, text);
            }
        }
    }

    /// Reports every circle, and every use of what a crate's own file defines.
    pub(crate) fn check(mut self, findings: &mut Findings) {
        for (folder, uses) in &mut self.folders {
            for (module, used, file) in std::mem::take(&mut uses.found) {
                // A name that the folder's own file gives of a module means the module.
                let used = match uses.names.get(&used) {
                    Some(of) if !uses.edges.contains_key(&used) => of.clone(),
                    _ => used,
                };
                if let Some(root) = uses
                    .defined
                    .get(&used)
                    .filter(|_| !uses.edges.contains_key(&used))
                {
                    findings.errors.push(format!(
                        "{file} uses \"{used}\", which {root} defines above it; move it to a module of its own"
                    ));
                } else if used != module && uses.edges.contains_key(&used) {
                    let edges = uses.edges.entry(module).or_default();
                    edges.entry(used).or_insert(file);
                }
            }
            for circle in circles(&uses.edges) {
                let edges = circle.iter().flat_map(|from| {
                    let inside = uses.edges[*from].iter();
                    inside
                        .filter(|(to, _)| circle.contains(*to))
                        .map(move |(to, file)| format!("{from} -> {to} in {file}"))
                });
                let edges: Vec<String> = edges.collect();
                let message = format!(
                    "modules of crates/{folder} use each other in a circle: {}; move what both need to a module of its own",
                    edges.join(", ")
                );
                findings.errors.push(message);
            }
        }
    }
}

/// The text without line comments, which may name any module.
fn without_comments(text: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or("").to_owned();
    text.lines().map(code).collect::<Vec<_>>().join("\n")
}

/// The first steps of all paths that begin with `start`, those in braces included.
fn first_steps(text: &str, start: &str) -> Vec<String> {
    let mut steps = Vec::new();
    for (at, _) in text.match_indices(start) {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &text[at + start.len()..];
        match rest.strip_prefix('{') {
            Some(group) => steps.extend(members(group).map(str::to_owned)),
            None => steps.push(word(rest).to_owned()),
        }
    }
    steps.retain(|step| !step.is_empty());
    steps
}

/// The first steps of the members of a group, whose text starts behind its brace.
fn members(group: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let mut is_start = true;
    let mut found = Vec::new();
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            c if is_start && !c.is_whitespace() => {
                found.push(word(&group[at..]));
                is_start = false;
            }
            _ => {}
        }
    }
    found.into_iter()
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    &text[..end.unwrap_or(text.len())]
}

/// Names of the items that a file defines at its top level.
fn defined(root: &str) -> impl Iterator<Item = &str> {
    const KINDS: &[&str] = &[
        "fn", "struct", "enum", "union", "trait", "const", "static", "type",
    ];
    root.lines()
        .filter(|line| !line.starts_with(char::is_whitespace))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let found = words.by_ref().any(|word| KINDS.contains(&word));
            // `const fn` and `async fn` have the name behind the last of these words.
            let name = words.find(|word| !KINDS.contains(word)).filter(|_| found)?;
            Some(word(name)).filter(|name| !name.is_empty())
        })
}

/// Names that a folder's own file gives of its modules, each with the module.
fn exported(root: &str) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for line in root.split(';') {
        let Some((_, path)) = line.split_once("use ") else {
            continue;
        };
        let Some((module, rest)) = path.trim().split_once("::") else {
            continue;
        };
        let of_module: Vec<&str> = match rest.strip_prefix('{') {
            Some(group) => members(group).collect(),
            None => vec![word(rest)],
        };
        names.extend(
            of_module
                .into_iter()
                .map(|name| (name.to_owned(), module.to_owned())),
        );
    }
    names
}

/// The sets of modules that reach each other.
fn circles(edges: &BTreeMap<String, BTreeMap<String, String>>) -> Vec<BTreeSet<&String>> {
    let reached = |from| {
        let mut seen: BTreeSet<&String> = BTreeSet::new();
        let mut next = vec![from];
        while let Some(used) = next.pop().and_then(|module| edges.get(module)) {
            next.extend(used.keys().filter(|module| seen.insert(*module)));
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        edges.keys().map(|from| (from, reached(from))).collect();
    let mut found: Vec<BTreeSet<&String>> = Vec::new();
    for (from, seen) in &reach {
        if seen.contains(from) && !found.iter().any(|circle| circle.contains(from)) {
            let back = seen.iter().filter(|to| reach[**to].contains(from));
            found.push(back.copied().collect());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut modules = Modules::default();
        for (path, text) in files {
            modules.add(path, text);
        }
        let mut findings = Findings::default();
        modules.check(&mut findings);
        findings.errors
    }

    #[test]
    fn a_circle_is_named_with_the_files_that_make_it() {
        let one_way = [
            ("crates/config/src/a.rs", "use crate::b::B;\n"),
            ("crates/config/src/a/deep.rs", "use crate::{c, b::{X, Y}};"),
            ("crates/config/src/b.rs", "// crate::a is above\n"),
            ("crates/config/src/c/mod.rs", "use super::b;"),
        ];
        assert_eq!(found(&one_way), Vec::<String>::new());
        for (file, text) in [
            ("crates/config/src/b/x.rs", "fn f() { crate::a::f() }"),
            ("crates/config/src/b/x.rs", "use super::super::a::f;"),
            ("crates/config/src/b/x.rs", "use crate::{d::D, c::{C}, a};"),
            ("crates/config/src/b/x.rs", "use crate::OfA;"),
        ] {
            let mut files = one_way.to_vec();
            files.push((
                "crates/config/src/lib.rs",
                "mod a;\nuse crate::b;\npub use a::{OfA, More};",
            ));
            files.push((file, text));
            let errors = found(&files);
            assert_eq!(errors.len(), 1, "{text}");
            assert!(
                errors[0].contains("b -> a in crates/config/src/b/x.rs"),
                "{}",
                errors[0]
            );
        }
    }

    #[test]
    fn modules_use_nothing_that_the_file_above_them_defines() {
        let root = "mod a;\npub use crate::a::A;\npub(crate) const fn made() {\n    fn a() {}\n}\n\
                    pub struct Options {\n    a: A,\n}\nuse x as type_of;\n";
        let own = [
            ("crates/server/src/lib.rs", root),
            ("crates/server/src/a.rs", "use crate::A;"),
            ("crates/server/src/a/b.rs", "use super::super::a;"),
        ];
        assert_eq!(found(&own), Vec::<String>::new());
        for (text, name) in [
            ("fn f() { crate::made() }", "made"),
            ("use crate::{A, Options};", "Options"),
            ("use super::super::made;", "made"),
        ] {
            let mut files = own.to_vec();
            files.push(("crates/server/src/a/c.rs", text));
            let errors = found(&files);
            assert_eq!(errors.len(), 1, "{text}: {errors:?}");
            let expected = format!("crates/server/src/a/c.rs uses \"{name}\"");
            assert!(errors[0].starts_with(&expected), "{}", errors[0]);
        }
    }

    #[test]
    fn modules_of_a_folder_below_the_root_are_checked_too() {
        let mut files = vec![
            ("crates/cli/src/commands/mod.rs", "mod a;\nmod b;"),
            ("crates/cli/src/commands/a/mod.rs", "use super::super::x;"),
            ("crates/cli/src/commands/a/c.rs", "use crate::commands::b;"),
            ("crates/cli/src/x.rs", "use crate::y;"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
        files.push(("crates/cli/src/commands/b.rs", "use super::a::A;"));
        let errors = found(&files);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].contains("b -> a in crates/cli/src/commands/b.rs"),
            "{}",
            errors[0]
        );
    }

    #[test]
    fn tests_and_other_crates_are_not_looked_at() {
        let files = [
            ("crates/config/src/a.rs", "use crate::b::B;"),
            (
                "crates/config/src/b.rs",
                "#[cfg(test)]\nmod tests {\n use crate::a;\n}",
            ),
            ("crates/config/src/b/tests.rs", "use crate::a;"),
            ("crates/ids/src/a.rs", "use crate::b;"),
            ("crates/ids/src/b.rs", "use crate::a;"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }
}
