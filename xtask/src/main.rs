//! House rules as checks: `cargo run -p xtask -- check`. The tests of this crate run them too.
//!
//! [`graph`] holds the rules on which crate may depend on which, [`modules`] which modules may use each other, [`files`] the
//! rules on the files of the repository, [`citations`] those on what comments and documents cite, [`words`] those on the
//! words in comments, names and messages, [`names`] those on the names of types, [`handlers`] those on the handlers of requests, [`methods`] how many methods a
//! type may have, [`absent`] what certain crates do not contain. All are functions of data; only [`workspace`] asks `cargo` and `git`.
//!
//! `cargo run -p xtask -- subjects` checks the messages of commits ([`subjects`]), which is apart because not every copy
//! of the files has a history.

mod absent;
mod citations;
mod files;
mod graph;
mod handlers;
mod methods;
mod modules;
mod names;
mod subjects;
mod words;
mod workspace;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;

/// What the rules found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    /// Breaches: the check fails.
    errors: Vec<String>,
    /// Worth a look: the check passes.
    warnings: Vec<String>,
}

fn check() -> anyhow::Result<Findings> {
    let root = workspace::root();
    let crates = workspace::crates(&root)?;
    let mut findings = Findings {
        errors: graph::breaches(&crates),
        warnings: Vec::new(),
    };
    let mut texts = Vec::new();
    let mut pages = citations::Pages::default();
    let mut methods = methods::Methods::default();
    let mut modules = modules::Modules::default();
    for path in workspace::files(&root)? {
        let text = match std::fs::read(root.join(&path)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            // Removed from the working tree and not yet from the index.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("could not read {path}")),
        };
        pages.add(&path, &text);
        methods.add(&path, &text);
        modules.add(&path, &text);
        texts.push((path, text));
    }
    for (path, text) in &texts {
        absent::check(path, text, &mut findings);
        files::check(path, text, &mut findings);
        handlers::check(path, text, &mut findings);
        findings.errors.extend(graph::impure(path, text));
        pages.check(path, text, &mut findings);
        names::check(path, text, &mut findings);
        words::check(path, text, &mut findings);
    }
    methods.check(&mut findings);
    modules.check(&mut findings);
    Ok(findings)
}

/// The text of a Rust file up to its inline tests. A single item for tests only does not end it.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default()
}

fn main() -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (what, findings) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => ("house rules", check()?),
        ["subjects"] => match subjects::check(&workspace::root()) {
            Ok(findings) => ("subjects of commits", findings),
            Err(reason) => {
                writeln!(out, "SKIPPED: subjects of commits: {reason:#}")?;
                return Ok(ExitCode::SUCCESS);
            }
        },
        _ => {
            writeln!(out, "usage: cargo run -p xtask -- check|subjects")?;
            return Ok(ExitCode::from(2));
        }
    };
    for warning in &findings.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    for error in &findings.errors {
        writeln!(out, "error: {error}")?;
    }
    writeln!(
        out,
        "{what}: {} breaches, {} warnings",
        findings.errors.len(),
        findings.warnings.len()
    )?;
    Ok(ExitCode::from(u8::from(!findings.errors.is_empty())))
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_repository_keeps_the_house_rules() {
        let findings = super::check().unwrap();
        assert!(findings.errors.is_empty(), "{}", findings.errors.join("\n"));
    }
}
