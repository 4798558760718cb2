//! Rules on the files below `crates/server/src/http`: no queries, no rights, no handler that ignores who asks, and one use
//! case for each handler, of an operation, a page or a layer. And two on use cases: no types of the wire, and the services
//! that they use instead of the whole master.

use crate::Findings;

const HANDLERS: &str = "crates/server/src/http/";

/// Functions of `det_store` that ask no database: the clock, and the packing of log lines.
const WITHOUT_QUERIES: &[&str] = &["now", "pack"];

/// Handlers of operations that are open without a login, and why.
const PUBLIC: &[(&str, &str)] = &[
    ("info", "the first call of every client, before it logs in"),
    ("get_master", "what clients need to know before they log in"),
    ("get_telemetry", "a constant: nothing is reported to anyone"),
    ("health", "asked by what watches the master"),
    ("login", "makes an actor of a name and a password"),
    ("plain_login", "the same, the older way"),
];

/// What is not in a handler, and where it belongs.
const ELSEWHERE: &[(&str, &str)] = &[
    ("store.read(", "reads belong into app/reads"),
    ("store.write(", "changes belong into app"),
    ("det_authz", RIGHTS),
    ("crate::rights", RIGHTS),
    (".ownership.", RIGHTS),
    (".require(", RIGHTS),
    (".require_connect(", RIGHTS),
    (".admit(", RIGHTS),
];
const RIGHTS: &str = "rights are asked for in app, by use cases and readers";

/// Files that use the master in more ways than handlers may: what they do comes before the handler, or carries what it has
/// opened.
const BESIDE_HANDLERS: &[(&str, &str)] = &[
    ("answers.rs", "counts and paces the answers of all handlers"),
    ("bodies.rs", "counts and bounds the bodies of all requests"),
    ("extract.rs", "makes the caller of a request of its tokens"),
    ("mod.rs", "puts routes and layers together"),
    ("proxy.rs", "carries bytes between a caller and a service"),
];

/// What knows sessions behind tokens, and the only file here that asks it.
const SESSIONS: (&str, &str) = ("Accesses(", "extract.rs");

/// Files of use cases that know the whole master: the type itself, and what puts it together.
const OF_THE_MASTER: &[&str] = &["mod.rs", "composition.rs"];

/// Use cases, which know no type of the wire; their readers know those of queries and pages.
const USE_CASES: &str = "crates/server/src/app/";
const READERS: &str = "crates/server/src/app/reads/";

/// Parameters of functions that would do for a handler what a use case does.
const PARTIES: &[&str] = &[": &Master", ": Master", ": &Actor", ": Actor"];

/// Checks one file; `path` is relative to the repository.
pub(crate) fn check(path: &str, text: &str, findings: &mut Findings) {
    let code = code(text);
    let mut breach = |what: String| findings.errors.push(format!("{path}: {what}"));
    if path.starts_with(USE_CASES) && !path.starts_with(READERS) && code.contains("det_api_types") {
        breach("uses det_api_types: http translates from the wire and to it".to_owned());
    }
    if let Some(file) = path.strip_prefix(USE_CASES)
        && !OF_THE_MASTER.contains(&file)
        && imports_the_master(&code)
    {
        breach("uses the whole master: take the services that it needs, or compose them in composition.rs".to_owned());
    }
    let Some(file) = path.strip_prefix(HANDLERS) else {
        return;
    };
    if code.contains(SESSIONS.0) && file != SESSIONS.1 {
        breach(format!("\"{}\": {RIGHTS}", SESSIONS.0));
    }
    for (part, place) in ELSEWHERE {
        if code.contains(part) {
            breach(format!("\"{part}\": {place}"));
        }
    }
    for name in names_of_the_store(&code) {
        breach(format!(
            "uses det_store's \"{name}\": only its types may be named here; reads belong into app/reads"
        ));
    }
    let (handlers, rest) = handlers(text);
    let is_beside = BESIDE_HANDLERS.iter().any(|(beside, _)| *beside == file);
    for party in PARTIES.iter().filter(|_| !is_beside) {
        if rest
            .split(party)
            .skip(1)
            .any(|after| !after.starts_with(char::is_alphanumeric))
        {
            breach(format!(
                "a function takes \"{party}\": only handlers do, and hand it to one use case or reader"
            ));
        }
    }
    for handler in handlers {
        let Handler { name, .. } = &handler;
        for party in ["actor", "master"] {
            let found = count(&handler.body, party);
            if found > 1 && !is_beside {
                breach(format!(
                    "handler {name} uses \"{party}\" {found} times: it calls one use case or reader, which does all that \
                     belongs together"
                ));
            }
        }
        let extracted = ["Caller(", "Reporter(", "caller: Result<Caller"];
        let takes_an_actor = extracted
            .iter()
            .any(|pattern| handler.parameters.contains(pattern));
        if handler.is_operation
            && !takes_an_actor
            && !PUBLIC.iter().any(|(public, _)| public == name)
        {
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

/// Whether a use case imports or names the whole master, or all its parts.
fn imports_the_master(code: &str) -> bool {
    let paths = ["app::", "super::"];
    let mut after = paths.iter().flat_map(|path| code.split(path).skip(1));
    after.any(|rest| {
        let end = if rest.starts_with('{') {
            rest.find(';')
        } else {
            rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))
        };
        let names = &rest[..end.unwrap_or(rest.len())];
        names
            .split([',', '{', '}'])
            .any(|name| ["Master", "Inner"].contains(&name.trim()))
    })
}

/// A handler: of an operation, of a page, or a layer.
#[derive(Debug)]
struct Handler {
    name: String,
    /// Whether it is in the document of the API.
    is_operation: bool,
    parameters: String,
    body: String,
}

/// The handlers, and the text beside them. Goes by the form that rustfmt gives a function. A function that is no operation
/// is a handler if it takes the master or the caller as those do.
fn handlers(text: &str) -> (Vec<Handler>, String) {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut lines = crate::without_tests(text)
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let mut is_operation = false;
    while let Some(line) = lines.next() {
        is_operation |= line.starts_with("#[utoipa::path(");
        let is_function = !line.starts_with(' ') && line.contains("async fn ");
        if !is_function {
            if !is_operation {
                rest.push_str(line);
                rest.push('\n');
            }
            continue;
        }
        let mut parameters = line.to_owned();
        if !line.ends_with('{') {
            for line in lines.by_ref() {
                parameters.push_str(line);
                if line.ends_with('{') {
                    break;
                }
            }
        }
        let is_extracted = ["State<Master>", "Caller"]
            .iter()
            .any(|extracted| parameters.contains(extracted));
        if is_operation || is_extracted {
            let function = parameters.split_once("async fn ").unwrap_or_default().1;
            let body = lines.by_ref().take_while(|line| *line != "}");
            found.push(Handler {
                name: function.split('(').next().unwrap_or_default().to_owned(),
                is_operation,
                body: body.collect::<Vec<_>>().join("\n"),
                parameters,
            });
        } else {
            rest.push_str(&parameters);
            rest.push('\n');
        }
        is_operation = false;
    }
    (found, rest)
}

/// How often a handler uses a variable. Whether TLS is served is a fact about the connection, a module or a field may have
/// the name of the variable, a text contains any word, and a pattern only names it.
fn count(body: &str, variable: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let body: String = body.split('"').step_by(2).collect::<Vec<_>>().join("\"");
    let body = body.replace("Caller(master, actor)", "");
    let uses = body.match_indices(variable).filter(|(at, _)| {
        let (before, after) = (&body[..*at], &body[at + variable.len()..]);
        let is_part =
            before.ends_with(is_word) || before.ends_with('.') || after.starts_with(is_word);
        !is_part && !after.starts_with("::") && !after.starts_with(".tls")
    });
    uses.count()
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
            let now = det_store::now();\n}\n#[utoipa::path(get)]\nasync fn late(Reporter(actor): Reporter) -> Answer {\n}\n\
            #[utoipa::path(get)]\nasync fn info(State(master): State<Master>) -> Answer {\n}\n\
            #[utoipa::path(get)]\nasync fn plain(caller: Result<Caller, ApiError>) -> Response {\n}\n\
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
    fn use_cases_know_no_type_of_the_wire() {
        for (file, expected) in [("projects.rs", 1), ("reads/projects.rs", 0)] {
            let mut findings = Findings::default();
            let path = format!("crates/server/src/app/{file}");
            let text = "// det_api_types translates\nuse det_api_types::page::OrderBy;\n";
            check(&path, text, &mut findings);
            assert_eq!(findings.errors.len(), expected, "{file}");
        }
    }

    #[test]
    fn a_handler_calls_one_use_case() {
        let handler = |body: &str| {
            format!(
                "#[utoipa::path(get)]\nasync fn get_x(Caller(master, actor): Caller) -> Answer {{\n    {body}\n}}\n"
            )
        };
        let one = "let x = reads::master::x(&master, &actor)?;\n    cookie(master.tls, x)";
        assert_eq!(found(&handler(one)), Vec::<String>::new());
        for (more, expected) in [
            (
                "master.xs.change(&actor).await?;\n    show(reads::x(&store, &actor))",
                "\"actor\" 2 times",
            ),
            (
                "master.xs.change(&actor).await?;\n    master.ys.note()",
                "\"master\" 2 times",
            ),
            ("actor.require(Permission::Read)", ".require("),
            (
                "master.services.require_connect(caller, service)",
                ".require_connect(",
            ),
        ] {
            let errors = found(&handler(more));
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains(expected), "{errors:?}");
        }
        let helper = "async fn show(master: &Master, id: i64) -> Answer {\n}\n";
        for text in [helper.to_owned(), format!("{}{helper}", handler(one))] {
            let errors = found(&text);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains(": &Master"), "{errors:?}");
        }
        let mut findings = Findings::default();
        check("crates/server/src/http/proxy.rs", helper, &mut findings);
        assert_eq!(findings, Findings::default());
    }

    #[test]
    fn pages_and_layers_decide_no_more_than_operations() {
        let page = |body: &str| {
            format!(
                "pub(crate) async fn show(\n    State(master): State<Master>,\n) -> Response {{\n    {body}\n}}\n"
            )
        };
        assert_eq!(
            found(&page("of(master.log.tail(master.tls))")),
            Vec::<String>::new()
        );
        let errors = found(&page("master.xs.find();\n    master.ys.note()"));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].contains("show uses \"master\" 2 times"),
            "{errors:?}"
        );
        let errors = found(&page("Accesses(&master.auth).lives(session)"));
        assert_eq!(errors.len(), 1, "{errors:?}");
    }

    #[test]
    fn use_cases_take_the_services_that_they_need() {
        for (file, text, expected) in [
            ("reads/agents.rs", "use crate::app::{Master, reads};\n", 1),
            ("changes.rs", "use crate::app::Master;\n", 1),
            ("logs/intake.rs", "use super::super::Master;\n", 1),
            ("actions.rs", "fn act(master: &crate::app::Master) {\n", 1),
            ("reads/master.rs", "use crate::app::reads::Sources;\n", 0),
            ("composition.rs", "use crate::app::{Inner, Master};\n", 0),
            (
                "clean_up.rs",
                "const ACTOR: ActorName = ActorName::Master;\n",
                0,
            ),
        ] {
            let mut findings = Findings::default();
            check(
                &format!("crates/server/src/app/{file}"),
                text,
                &mut findings,
            );
            assert_eq!(findings.errors.len(), expected, "{file}");
        }
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
