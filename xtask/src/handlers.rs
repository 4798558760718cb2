//! Rules on the files below `crates/server/src/http`: no queries, and no handler that ignores who asks.

use crate::Findings;

const HANDLERS: &str = "crates/server/src/http/";

/// Functions of `det_store` that ask no database: the clock, and the packing of log lines.
const WITHOUT_QUERIES: &[&str] = &["now", "pack"];

/// Handlers of operations that are open to everybody, and why.
const PUBLIC: &[(&str, &str)] = &[
    ("info", "the first call of every client, before it logs in"),
    ("get_master", "what clients need to know before they log in"),
    (
        "get_telemetry",
        "a constant: nothing is reported to anybody",
    ),
    ("health", "asked by what watches the master"),
    ("login", "makes an actor of a name and a password"),
    ("plain_login", "the same, the older way"),
];

/// Checks one file; `path` is relative to the repository.
pub(crate) fn check(path: &str, text: &str, findings: &mut Findings) {
    if !path.starts_with(HANDLERS) {
        return;
    }
    let code = code(text);
    let mut breach = |what: String| findings.errors.push(format!("{path}: {what}"));
    for query in ["store.read(", "store.write("] {
        if code.contains(query) {
            breach(format!(
                "\"{query}\": reads belong into app/reads, changes into app"
            ));
        }
    }
    for name in names_of_the_store(&code) {
        breach(format!(
            "uses det_store's \"{name}\": only its types may be named here; reads belong into app/reads"
        ));
    }
    for (name, parameters) in handlers(&code) {
        let extracted = ["Caller(", "Reporter(", "caller: Result<Caller"];
        let takes_an_actor = extracted.iter().any(|pattern| parameters.contains(pattern));
        if !takes_an_actor && !PUBLIC.iter().any(|(public, _)| *public == name) {
            breach(format!(
                "handler {name} ignores who asks: take the actor from Caller or Reporter and hand it to what it calls"
            ));
        }
    }
}

/// The text without its tests and comments, in one line; chains of calls without blanks.
fn code(text: &str) -> String {
    crate::without_tests(text)
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//"))
        .collect::<Vec<_>>()
        .join(" ")
        .replace(" .", ".")
}

/// What is named of `det_store` that is neither a type, nor a constant, nor a function without queries.
fn names_of_the_store(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("det_store::") {
        let rest = &code[at..];
        let is_import = code[..at].ends_with("use ");
        let end = if is_import {
            rest.find(';')
        } else {
            rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
        };
        let path = &rest[..end.unwrap_or(rest.len())];
        for item in path.split([',', '{', '}']) {
            let name = item.trim().rsplit("::").next().unwrap_or_default();
            let is_type = name.starts_with(|c: char| c.is_ascii_uppercase());
            if !name.is_empty() && !is_type && !WITHOUT_QUERIES.contains(&name) {
                found.push(name.to_owned());
            }
        }
    }
    found
}

/// The handlers of operations: their names and parameters.
fn handlers(code: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some((_, after)) = rest.split_once("#[utoipa::path(") {
        rest = after;
        let Some((_, function)) = after.split_once("async fn ") else {
            break;
        };
        let Some((name, parameters)) = function.split_once('(') else {
            break;
        };
        let parameters = parameters.split(") ->").next().unwrap_or_default();
        found.push((name, parameters));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        check("crates/server/src/http/x.rs", text, &mut findings);
        findings.errors
    }

    #[test]
    fn types_of_the_store_and_handlers_with_an_actor_pass() {
        let text = "use det_store::experiments::{\n    ExperimentRow,\n};\nuse det_store::{Store, StoreError};\n\
            use det_store::logs::{LogLine, pack};\n/// Calls det_store::trials::find.\n\
            #[utoipa::path(get, responses((status = 200, body = X)))]\nasync fn get_x(\n    Caller(actor): Caller,\n) -> Answer {\n\
            let now = det_store::now();\n#[utoipa::path(get)]\nasync fn late(Reporter(actor): Reporter) -> Answer {\n\
            #[utoipa::path(get)]\nasync fn info(State(master): State<Master>) -> Answer {\n\
            #[utoipa::path(get)]\nasync fn plain(caller: Result<Caller, ApiError>) -> Response {\n\
            #[cfg(test)]\nmod tests {\nuse det_store::trials;\n";
        assert_eq!(found(text), Vec::<String>::new());
    }

    #[test]
    fn queries_are_refused() {
        for text in [
            "use det_store::trials;\n",
            "use det_store::trials::{self, TrialRow};\n",
            "use det_store::{StoreError, trials};\n",
            "let row = det_store::trials::find(conn, id).await?;\n",
            "let mut conn = master\n    .store\n    .read()\n    .await?;\n",
        ] {
            assert_eq!(found(text).len(), 1, "{text}");
        }
        let mut findings = Findings::default();
        let text = "use det_store::trials;\n";
        check("crates/server/src/app/trials.rs", text, &mut findings);
        assert_eq!(findings, Findings::default());
    }

    #[test]
    fn handlers_that_ignore_who_asks_are_refused() {
        for text in [
            "#[utoipa::path(get)]\nasync fn get_x(State(master): State<Master>, _caller: Caller) -> Answer {\n",
            "#[utoipa::path(get)]\nasync fn get_x(State(master): State<Master>) -> Answer {\n",
        ] {
            let errors = found(text);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains("get_x"), "{errors:?}");
        }
    }
}
