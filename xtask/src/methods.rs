//! How many methods a type or trait has: more than [`MOST`] and it is several things under one name.
//!
//! A type belongs to the module that defines it, and every `impl` block of the crate that means it counts for it, in
//! whatever file it is.

use std::collections::{BTreeMap, BTreeSet};

use crate::Findings;

/// Methods of a type at most, over all its own `impl` blocks, where those of traits do not count; and of a trait.
const MOST: usize = 20;

/// The steps of a module below its crate: `["http", "views"]`; none for the root.
type Module = Vec<String>;

/// An `impl` block of a type itself, or the definition of a trait.
#[derive(Debug)]
struct Block {
    /// The module that the block is in.
    module: Module,
    /// The path that names the type, as seen from the crate's root: as it is written, or as a `use` of the file has it.
    path: Module,
    methods: usize,
}

/// The definitions and `impl` blocks of one crate.
#[derive(Debug, Default)]
struct Sources {
    /// For each name of a type the modules that define one.
    definitions: BTreeMap<String, BTreeSet<Module>>,
    /// For each name of a type the blocks that carry it.
    blocks: BTreeMap<String, Vec<Block>>,
    /// Names of traits.
    traits: BTreeSet<String>,
}

impl Sources {
    /// For each type, by its module and name, the methods of all its blocks.
    fn counts(&self) -> BTreeMap<(&Module, &str), usize> {
        let mut counts = BTreeMap::new();
        for (name, blocks) in &self.blocks {
            for block in blocks {
                let module = self.definition(name, block);
                *counts.entry((module, name.as_str())).or_default() += block.methods;
            }
        }
        counts
    }

    /// The module that defines the type that a block means: the one nearest to the path in the block's file, which may
    /// lead through a re-export. A type that a macro of another shape makes counts where its block is.
    fn definition<'a>(&'a self, name: &str, block: &'a Block) -> &'a Module {
        let modules = self.definitions.get(name).into_iter().flatten();
        modules
            .max_by_key(|module| (shared(module, &block.path), std::cmp::Reverse(module.len())))
            .unwrap_or(&block.module)
    }
}

/// The steps that two modules have in common at their start.
fn shared(one: &Module, other: &Module) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}

/// Methods of all types, by crate.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    crates: BTreeMap<String, Sources>,
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
        let Some(file) = file.strip_suffix(".rs") else {
            return;
        };
        if path.split('/').any(|step| step.starts_with("tests")) {
            return;
        }
        let module: Module = file
            .split('/')
            .filter(|step| !matches!(*step, "mod" | "lib" | "main"))
            .map(str::to_owned)
            .collect();
        let text = crate::without_tests(text);
        let sources = self.crates.entry(name.to_owned()).or_default();
        for name in text
            .lines()
            .filter_map(|line| defined_type(line.trim_start()))
        {
            let modules = sources.definitions.entry(name.to_owned()).or_default();
            modules.insert(module.clone());
        }
        let used = imports(text, &module);
        for (header, methods) in blocks(text) {
            let owner = match header.strip_prefix(TRAIT) {
                // What a trait requires is behind a colon.
                Some(header) => {
                    own_type(header.split(": ").next().unwrap_or(header)).inspect(|(name, _)| {
                        sources.traits.insert(name.clone());
                    })
                }
                None => own_type(&header),
            };
            if let Some((name, steps)) = owner {
                let path = path_of(&name, &steps, &module, &used);
                let module = module.clone();
                sources.blocks.entry(name).or_default().push(Block {
                    module,
                    path,
                    methods,
                });
            }
        }
    }

    /// Reports types with too many methods.
    pub(crate) fn check(&self, findings: &mut Findings) {
        for (name, sources) in &self.crates {
            for ((module, of), count) in sources.counts() {
                if count > MOST {
                    let place = [&[name.clone()][..], module].concat().join("/");
                    let word = if sources.traits.contains(of) {
                        "trait"
                    } else {
                        "type"
                    };
                    findings.errors.push(format!(
                        "crates/{place}: {word} {of} has {count} methods, and may have {MOST}: make of it the several \
                         things that it is"
                    ));
                }
            }
        }
    }
}

/// How the header of a trait's definition begins.
const TRAIT: &str = "trait ";

/// The `impl` blocks of a file and the definitions of its traits: the header of each without the word `impl`, and the number
/// of its functions. Those of a macro are one or more steps further in than others.
fn blocks(text: &str) -> Vec<(String, usize)> {
    let mut blocks: Vec<(String, usize)> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        let of_type = code.strip_prefix("impl");
        let of_type = of_type.filter(|rest| rest.starts_with([' ', '<']));
        let of_trait = Some(without_visibility(code)).filter(|code| code.starts_with(TRAIT));
        let Some(start) = of_type.or(of_trait) else {
            continue;
        };
        let indent = &line[..line.len() - code.len()];
        let mut header = start.to_owned();
        while !header.contains('{') {
            let Some(line) = lines.next() else {
                break;
            };
            header.push(' ');
            header.push_str(line.trim());
        }
        let mut methods = 0;
        if !header.ends_with('}') {
            let body = lines
                .by_ref()
                .map_while(|line| match line.strip_prefix(indent) {
                    Some("}") => None,
                    inside => Some(inside.unwrap_or_default()),
                });
            methods = body.filter(|line| is_method(line)).count();
        }
        blocks.push((header, methods));
    }
    blocks
}

/// A line of code without `pub` and its like at its beginning.
fn without_visibility(line: &str) -> &str {
    match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ").map_or("", |(_, rest)| rest),
        None => line.strip_prefix("pub ").unwrap_or(line),
    }
}

/// The name of the type or trait that a line begins to define.
fn defined_type(line: &str) -> Option<&str> {
    let line = without_visibility(line);
    let rest = ["struct ", "enum ", "union ", TRAIT]
        .iter()
        .find_map(|word| line.strip_prefix(word))?;
    let end = rest.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    let name = &rest[..end.unwrap_or(rest.len())];
    name.starts_with(char::is_uppercase).then_some(name)
}

/// The path of the type of a block, from the crate's root and without its name.
fn path_of(
    name: &str,
    steps: &[String],
    module: &Module,
    used: &BTreeMap<String, Module>,
) -> Module {
    let Some(first) = steps.first() else {
        return used.get(name).unwrap_or(module).clone();
    };
    match used.get(first) {
        Some(path) => {
            let mut path = path.clone();
            path.extend(steps.iter().cloned());
            path
        }
        None => absolute(steps, module),
    }
}

/// A path of a file as seen from the crate's root.
fn absolute(steps: &[String], module: &Module) -> Module {
    let mut path = module.clone();
    for (index, step) in steps.iter().enumerate() {
        match step.as_str() {
            "crate" => path.clear(),
            "self" => {}
            "super" => {
                path.pop();
            }
            _ => {
                path.extend(steps[index..].iter().cloned());
                break;
            }
        }
    }
    path
}

/// The names that a file's `use` lines bring in from its own crate, each with the path that it has there.
fn imports(text: &str, module: &Module) -> BTreeMap<String, Module> {
    let mut used = BTreeMap::new();
    for statement in text.split("use ").skip(1) {
        let Some((tree, _)) = statement.split_once(';') else {
            continue;
        };
        let tree: String = tree.split_whitespace().collect();
        if ["crate::", "super::", "self::"]
            .iter()
            .any(|start| tree.starts_with(start))
        {
            leaves(&tree, &mut Vec::new(), &mut |steps| {
                if let Some((name, above)) = steps.split_last() {
                    used.insert(name.clone(), absolute(above, module));
                }
            });
        }
    }
    used
}

/// Calls `found` with the steps of each leaf of a tree of a `use` statement, which has no spaces.
fn leaves(tree: &str, above: &mut Vec<String>, found: &mut impl FnMut(&[String])) {
    let depth = above.len();
    let mut rest = tree;
    while let Some((step, below)) = rest.split_once("::") {
        if step.contains(['{', ',']) {
            break;
        }
        above.push(step.to_owned());
        rest = below;
    }
    match rest
        .strip_prefix('{')
        .and_then(|list| list.strip_suffix('}'))
    {
        Some(list) => {
            let (mut level, mut start) = (0_usize, 0);
            for (at, letter) in list.char_indices().chain([(list.len(), ',')]) {
                match letter {
                    '{' => level += 1,
                    '}' => level = level.saturating_sub(1),
                    ',' if level == 0 => {
                        leaves(&list[start..at], above, found);
                        start = at + 1;
                    }
                    _ => {}
                }
            }
        }
        None if rest.is_empty() => {}
        None => {
            above.push(rest.to_owned());
            found(above);
        }
    }
    above.truncate(depth);
}

/// The type of an `impl` block whose header goes on like this, and the steps of its path before the name; `None` for
/// blocks of a trait.
fn own_type(rest: &str) -> Option<(String, Vec<String>)> {
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
    let path: String = rest[start.0..]
        .chars()
        .take_while(|letter| letter.is_alphanumeric() || matches!(letter, '_' | ':'))
        .collect();
    let mut steps: Vec<String> = path.split("::").map(str::to_owned).collect();
    let name = steps.pop()?;
    Some((name, steps))
}

/// Whether a line of an `impl` block begins a method.
fn is_method(line: &str) -> bool {
    let Some(code) = line
        .strip_prefix("    ")
        .filter(|code| !code.starts_with(' '))
    else {
        return false;
    };
    let code = without_visibility(code);
    let words = ["const ", "async ", "unsafe "];
    let code = words
        .iter()
        .fold(code, |code, word| code.strip_prefix(word).unwrap_or(code));
    code.starts_with("fn ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn methods(count: usize) -> String {
        let method = |number| {
            format!(
                "    pub(crate) async fn m{number}(&self) {{\n        fn inner() {{}}\n    }}\n"
            )
        };
        (0..count).map(method).collect()
    }

    fn findings(files: &[(&str, String)]) -> Vec<String> {
        let mut all = Methods::default();
        for (path, text) in files {
            all.add(path, text);
        }
        let mut found = Findings::default();
        all.check(&mut found);
        found.errors
    }

    /// A file with one block of the type, and a block of a trait.
    fn alone(count: usize) -> Vec<String> {
        let text = format!(
            "pub struct Things<'a, T>(&'a T);\n\nimpl<'a, T: Into<X>> Things<'a, T> {{\n{}}}\n\nimpl Display for Things \
             {{\n    fn fmt() {{}}\n}}\n",
            methods(count)
        );
        findings(&[
            ("crates/x/src/things.rs", text.clone()),
            ("crates/x/tests/things.rs", text),
        ])
    }

    #[test]
    fn only_methods_of_the_type_itself_count() {
        assert_eq!(alone(MOST), Vec::<String>::new());
        let errors = alone(MOST + 1);
        assert!(
            errors[0].contains("crates/x/things: type Things has 21 methods"),
            "{errors:?}"
        );
    }

    #[test]
    fn methods_of_a_trait_count_where_it_is_defined() {
        let text = |count| {
            format!(
                "pub(crate) trait Things: Send {{\n{}}}\n\npub trait All: Things {{}}\n\nimpl Things for X {{\n{}}}\n",
                methods(count),
                methods(count)
            )
        };
        let of = |count| findings(&[("crates/x/src/things.rs", text(count))]);
        assert_eq!(of(MOST), Vec::<String>::new());
        let errors = of(MOST + 1);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].starts_with("crates/x/things: trait Things has 21 methods"),
            "{errors:?}"
        );
    }

    #[test]
    fn blocks_in_other_files_of_the_crate_count_for_the_type() {
        let definition = format!(
            "pub(crate) struct Things;\n\nimpl Things {{\n{}}}\n",
            methods(10)
        );
        let more = format!(
            "use crate::things::Things;\n\nimpl Things {{\n{}}}\n",
            methods(7)
        );
        let by_path = format!(
            "impl<T> super::things::Things<T>\nwhere\n    T: X,\n{{\n{}}}\n",
            methods(4)
        );
        let files = [
            ("crates/x/src/things.rs", definition),
            ("crates/x/src/more.rs", more),
            ("crates/x/src/deep/er.rs", by_path),
        ];
        assert_eq!(
            findings(&files),
            [
                "crates/x/things: type Things has 21 methods, and may have 20: make of it the several things that it is"
            ]
        );
        assert_eq!(findings(&files[..2]), Vec::<String>::new());
    }

    #[test]
    fn types_of_the_same_name_in_different_modules_stay_apart() {
        let text = |count| format!("struct Things;\n\nimpl Things {{\n{}}}\n", methods(count));
        let two = [
            ("crates/x/src/a/things.rs", text(15)),
            ("crates/x/src/a/others.rs", text(15)),
            ("crates/y/src/a/things.rs", text(15)),
        ];
        assert_eq!(findings(&two), Vec::<String>::new());
        // A `use` of the file decides which one a block means, however far away it is.
        let far = "use crate::a::{self, others::{Other, Things}};\n\n";
        let more = format!("{far}impl Things {{\n{}}}\n", methods(6));
        let files: Vec<_> = two
            .into_iter()
            .chain([("crates/x/src/b/more.rs", more)])
            .collect();
        let errors = findings(&files);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].starts_with("crates/x/a/others: type Things has 21 methods"),
            "{errors:?}"
        );
    }

    #[test]
    fn a_type_that_a_macro_declares_has_its_methods_too() {
        let text = format!(
            "macro_rules! unit {{\n    () => {{\n        pub struct Unit {{}}\n\n        impl Unit {{\n            fn \
             first(&self) {{}}\n        }}\n    }};\n}}\n\nimpl Unit {{\n{}}}\n",
            methods(MOST)
        );
        let errors = findings(&[("crates/x/src/unit.rs", text)]);
        assert!(errors[0].contains("type Unit has 21 methods"), "{errors:?}");
    }
}
