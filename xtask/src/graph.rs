//! Which crate may depend on which.

use std::collections::{BTreeMap, BTreeSet};

/// Crates of values in, values out: nothing beneath them does I/O.
const PURE: &[&str] = &[
    "det-agent-proto",
    "det-api-types",
    "det-authz",
    "det-config",
    "det-ids",
    "det-invariants",
    "det-lifecycle",
    "det-orchestrator",
    "det-pods",
    "det-podspec",
    "det-rm",
    "det-scenario",
    "det-scheduler",
    "det-searcher",
    "det-simulator",
    "det-taskspec",
];

/// Crates that act, each with the other acting crates it may use. A new one is added here with a reason in its review.
const SHELLS: &[(&str, &[&str])] = &[
    (
        "det-agent",
        &["det-failpoints", "det-host-paths", "det-spool", "det-tls"],
    ),
    // Writes stores of any size directly, and plays agents.
    ("det-bench", &["det-client", "det-store"]),
    // Opens and deletes files below the directories that its callers pass.
    ("det-checkpoint-files", &[]),
    ("det-cli", &["det-agent", "det-client", "det-server"]),
    ("det-client", &["det-tls"]),
    // Nothing at all, unless a test arms it.
    ("det-failpoints", &[]),
    // Opens and creates the directories that its callers pass.
    ("det-host-paths", &[]),
    // The Kubernetes API in tests of managers; of ours it knows how pods merge.
    ("det-kube-double", &[]),
    // The connections of agents; the master is a trait to it.
    ("det-rm-agents", &["det-failpoints", "det-tls"]),
    // Requests to Kubernetes; the master is a trait to it.
    ("det-rm-kube", &[]),
    // Tests of managers, which such crates run on themselves.
    ("det-rm-contract", &[]),
    (
        "det-server",
        &[
            "det-checkpoint-files",
            "det-failpoints",
            "det-host-paths",
            "det-rm-agents",
            "det-rm-kube",
            "det-store",
        ],
    ),
    ("det-spool", &[]),
    ("det-store", &["det-failpoints", "det-store-derive"]),
    // A derive: runs in the compiler.
    ("det-store-derive", &[]),
    (
        "det-supervisor",
        &[
            "det-checkpoint-files",
            "det-host-paths",
            "det-spool",
            "det-tls",
        ],
    ),
    // Judges certificates; reads and opens nothing.
    ("det-tls", &[]),
    ("xtask", &[]),
];

/// Crates that reach for the world. A pure crate with one of them beneath it is not pure.
const WORLDLY: &[&str] = &[
    "async-std",
    "axum",
    "bollard",
    "hyper",
    "kube",
    "mio",
    "reqwest",
    "rusqlite",
    "rustls",
    "sqlx",
    "sqlx-core",
    "tokio",
    "ureq",
];

/// Crates that must not know each other's types: what is stored and decided does not change with the wire.
const APART: &[(&str, &str)] = &[
    ("det-store", "det-agent-proto"),
    ("det-store", "det-api-types"),
    ("det-lifecycle", "det-agent-proto"),
    ("det-lifecycle", "det-api-types"),
    ("det-api-types", "det-lifecycle"),
];

/// What the sources of a pure crate do not mention: time, randomness, files, the environment, the network.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "Instant::now",
    "SystemTime",
    "new_v4",
    "OsRng",
    "rand::random",
    "rand::rng",
    "thread_rng",
];

/// Whether a file is a source of a pure crate. The main file of a program acts.
fn is_pure_source(path: &str) -> bool {
    PURE.iter().any(|name| {
        path.strip_prefix("crates/")
            .and_then(|path| path.strip_prefix(name.trim_start_matches("det-")))
            .and_then(|path| path.strip_prefix("/src/"))
            .is_some_and(|file| file != "main.rs")
    })
}

/// Each place where the source of a pure crate reaches for the world.
pub(crate) fn impure(path: &str, text: &str) -> Vec<String> {
    if !is_pure_source(path) {
        return Vec::new();
    }
    let lines = text.lines().zip(1..);
    lines
        .flat_map(|(line, number)| {
            let found = IMPURE.iter().filter(move |word| line.contains(**word));
            found.map(move |word| {
                format!("{path}:{number}: a pure crate uses \"{word}\": take it as an argument")
            })
        })
        .collect()
}

/// The workspace's crates and what each crate, ours or not, depends on outside its tests and build scripts.
#[derive(Debug, Default)]
pub(crate) struct Crates {
    /// Names of our crates.
    pub(crate) ours: BTreeSet<String>,
    /// Direct dependencies by name.
    pub(crate) below: BTreeMap<String, BTreeSet<String>>,
}

impl Crates {
    fn direct(&self, name: &str) -> impl Iterator<Item = &str> {
        self.below
            .get(name)
            .into_iter()
            .flatten()
            .map(String::as_str)
    }

    /// How `from` comes to depend on `to`, as a chain of names; `None` if it does not.
    fn chain(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut seen = BTreeSet::from([from.to_owned()]);
        let mut open = vec![vec![from.to_owned()]];
        while let Some(chain) = open.pop() {
            for next in self.direct(chain.last()?) {
                let longer = || {
                    chain
                        .iter()
                        .cloned()
                        .chain([next.to_owned()])
                        .collect::<Vec<_>>()
                };
                if next == to {
                    return Some(longer());
                }
                if seen.insert(next.to_owned()) {
                    open.push(longer());
                }
            }
        }
        None
    }
}

/// Everything that breaks a rule, as sentences.
pub(crate) fn breaches(crates: &Crates) -> Vec<String> {
    let mut breaches = Vec::new();
    for name in &crates.ours {
        let allowed = SHELLS
            .iter()
            .find(|(shell, _)| shell == name)
            .map(|(_, allowed)| *allowed);
        let pure = PURE.contains(&name.as_str());
        if !pure && allowed.is_none() {
            breaches.push(format!(
                "{name} is neither a pure crate nor a shell: enter it in xtask/src/graph.rs as one of them"
            ));
        }
        for below in crates
            .direct(name)
            .filter(|below| crates.ours.contains(*below))
        {
            if PURE.contains(&below) || allowed.is_some_and(|allowed| allowed.contains(&below)) {
                continue;
            }
            let kind = if pure { "pure crate" } else { "shell" };
            breaches.push(format!(
                "the {kind} {name} may not depend on {below}: arrows point downward"
            ));
        }
        for (_, other) in APART.iter().filter(|(one, _)| one == name) {
            if let Some(chain) = crates.chain(name, other) {
                breaches.push(format!(
                    "{name} knows the types of {other}: {}",
                    chain.join(" -> ")
                ));
            }
        }
        if pure {
            for worldly in WORLDLY {
                if let Some(chain) = crates.chain(name, worldly) {
                    breaches.push(format!(
                        "the pure crate {name} reaches the world: {}",
                        chain.join(" -> ")
                    ));
                }
            }
        }
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crates(edges: &[(&str, &str)]) -> Crates {
        let mut crates = Crates::default();
        for (from, to) in edges {
            for name in [from, to] {
                if name.starts_with("det-") {
                    crates.ours.insert((*name).to_owned());
                }
            }
            crates
                .below
                .entry((*from).to_owned())
                .or_default()
                .insert((*to).to_owned());
        }
        crates
    }

    #[test]
    fn arrows_downward_are_fine() {
        let crates = crates(&[
            ("det-cli", "det-server"),
            ("det-server", "det-store"),
            ("det-server", "det-lifecycle"),
            ("det-lifecycle", "det-ids"),
            ("det-store", "sqlx"),
            ("det-ids", "serde"),
        ]);
        assert_eq!(breaches(&crates), Vec::<String>::new());
    }

    #[test]
    fn each_breach_is_named() {
        for (edges, expected) in [
            (
                vec![("det-searcher", "det-store")],
                "the pure crate det-searcher may not depend on det-store",
            ),
            (
                vec![("det-store", "det-server")],
                "the shell det-store may not depend on det-server",
            ),
            (
                vec![("det-agent", "det-store")],
                "the shell det-agent may not depend on det-store",
            ),
            (vec![("det-novelty", "det-ids")], "det-novelty is neither"),
            (
                vec![("det-lifecycle", "det-agent-proto")],
                "det-lifecycle knows the types of det-agent-proto",
            ),
            (
                vec![
                    ("det-config", "something"),
                    ("something", "other"),
                    ("other", "tokio"),
                ],
                "the pure crate det-config reaches the world: det-config -> something -> other -> tokio",
            ),
        ] {
            let found = breaches(&crates(&edges));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(expected), "{found:?}");
        }
    }

    #[test]
    fn sources_of_pure_crates_do_not_reach_for_the_world() {
        let text = "fn a() {}\nlet now = std::time::Instant::now();\n";
        let found = impure("crates/scheduler/src/plan.rs", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/scheduler/src/plan.rs:2: "));
        for path in [
            "crates/simulator/src/main.rs",
            "crates/server/src/lib.rs",
            "crates/scheduler/tests/plans.rs",
        ] {
            assert_eq!(impure(path, text), Vec::<String>::new(), "{path}");
        }
    }

    #[test]
    fn a_circle_outside_is_survived() {
        let crates = crates(&[("det-ids", "a"), ("a", "b"), ("b", "a")]);
        assert_eq!(breaches(&crates), Vec::<String>::new());
    }
}
