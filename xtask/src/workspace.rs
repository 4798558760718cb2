//! What `cargo` and `git` know of this repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::graph::Crates;

/// The repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

fn output(program: &str, arguments: &[&str], directory: &Path) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output()
        .with_context(|| format!("could not start {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} did not print UTF-8"))
}

/// What `git` prints for these arguments in the repository.
pub(crate) fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    output("git", arguments, root)
}

/// Paths of all files that are tracked or about to be: what git does not ignore.
pub(crate) fn files(root: &Path) -> anyhow::Result<Vec<String>> {
    let listed = output(
        "git",
        &[
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        root,
    )?;
    Ok(listed
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect())
}

/// The crates of the workspace and everything beneath them.
pub(crate) fn crates(root: &Path) -> anyhow::Result<Crates> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let text = output(
        &cargo,
        &["metadata", "--format-version", "1", "--locked"],
        root,
    )?;
    read(&serde_json::from_str(&text).context("cargo metadata did not print JSON")?)
}

fn read(metadata: &Value) -> anyhow::Result<Crates> {
    let list = |value: &Value, key: &str| -> anyhow::Result<Vec<Value>> {
        let list = value.get(key).and_then(Value::as_array);
        list.cloned()
            .with_context(|| format!("cargo metadata has no list \"{key}\""))
    };
    let text = |value: &Value, key: &str| -> anyhow::Result<String> {
        let text = value.get(key).and_then(Value::as_str);
        Ok(text
            .with_context(|| format!("cargo metadata has no text \"{key}\""))?
            .to_owned())
    };
    let mut names = BTreeMap::new();
    for package in list(metadata, "packages")? {
        names.insert(text(&package, "id")?, text(&package, "name")?);
    }
    let name = |id: &str| {
        names
            .get(id)
            .cloned()
            .with_context(|| format!("no package has the id {id}"))
    };
    let mut crates = Crates::default();
    for member in list(metadata, "workspace_members")? {
        crates
            .ours
            .insert(name(member.as_str().context("a member's id is not text")?)?);
    }
    let resolve = metadata
        .get("resolve")
        .context("cargo metadata has no \"resolve\"")?;
    for node in list(resolve, "nodes")? {
        // Two versions of a crate are one here: the rules are about names.
        let below = crates.below.entry(name(&text(&node, "id")?)?).or_default();
        for dependency in list(&node, "deps")? {
            // `null` is an ordinary dependency, others are `dev` and `build`.
            if list(&dependency, "dep_kinds")?
                .iter()
                .any(|kind| kind.get("kind").is_some_and(Value::is_null))
            {
                below.insert(name(&text(&dependency, "pkg")?)?);
            }
        }
    }
    Ok(crates)
}
