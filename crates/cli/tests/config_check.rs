//! `det config check`: the kind of document that a file is read as, and the exit code.

mod support;

use serde_json::{Value, json};
use support::User;

const TASK: &str = "description: notes\nresources: {slots: 1}\nidle_timeout: 10m\n";

fn user() -> User {
    // Nothing is sent anywhere.
    User::at("http://127.0.0.1:1")
}

#[test]
fn content_decides_and_the_name_only_where_it_leaves_the_kind_open() {
    let user = user();
    let entry = "entrypoint: ./run.sh\n";
    user.write("master.yaml", "agent_id: a\nmaster_host: m\n");
    let run = user.det(&["config", "check", "master.yaml"]);
    assert!(
        run.err.contains("read as an agent's configuration"),
        "{run:?}"
    );
    user.write("experiment.yaml", entry);
    let open = user.det(&["config", "check", "experiment.yaml"]);
    assert!(open.err.contains("read as an experiment"), "{open:?}");
    user.write("unnamed.yaml", entry);
    let undecided = user.det(&["config", "check", "unnamed.yaml"]);
    assert_eq!(undecided.code, 1);
    assert!(
        undecided
            .out
            .contains("may be an experiment, a task or a template")
            && undecided.out.contains("--kind experiment"),
        "{undecided:?}"
    );
}

#[test]
fn a_document_of_no_known_kind_is_no_success_and_asks_for_its_kind() {
    let user = user();
    user.write("x.yaml", "foo: 1\n");
    let run = user.det(&["config", "check", "x.yaml"]);
    assert_eq!(run.code, 1);
    assert!(
        run.out.contains("has no key that any kind of document has") && run.out.contains("--kind"),
        "{run:?}"
    );
}

#[test]
fn the_kind_that_is_given_holds_against_content_and_name() {
    let user = user();
    user.write("experiment.yaml", TASK);
    let run = user.det(&["config", "check", "--kind", "notebook", "experiment.yaml"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.out.contains("no errors"), "{run:?}");
    assert!(!run.err.contains("read as"), "nothing was guessed: {run:?}");
    let json = user.det(&[
        "config",
        "check",
        "--json",
        "--kind",
        "notebook",
        "experiment.yaml",
    ]);
    let results: Value = serde_json::from_str(&json.out).expect("JSON was asked for");
    assert_eq!(results[0]["kind"], "notebook", "{results}");
    assert_eq!(results[0]["guessed_because"], Value::Null);
    let other = user.det(&["config", "check", "--kind", "agent", "experiment.yaml"]);
    assert_eq!(other.code, 1, "{other:?}");
    assert!(other.out.contains("idle_timeout"), "{other:?}");
}

#[test]
fn errors_and_warnings_are_lists_of_the_json_result() {
    let user = user();
    user.write("right.yaml", TASK);
    user.write("wrong.yaml", "resources: {slots: many}\n");
    let of_file = |file: &str| -> Value {
        let run = user.det(&["config", "check", "--json", "--kind", "notebook", file]);
        let results: Value = serde_json::from_str(&run.out).expect("JSON was asked for");
        results[0].clone()
    };
    let right = of_file("right.yaml");
    assert_eq!(
        (&right["ok"], &right["errors"]),
        (&json!(true), &json!([])),
        "{right}"
    );
    let wrong = of_file("wrong.yaml");
    assert_eq!(wrong["ok"], false, "{wrong}");
    assert_eq!(wrong["errors"][0]["path"], "resources.slots", "{wrong}");
}

#[test]
fn a_kind_that_does_not_exist_is_answered_with_those_that_do() {
    let user = user();
    user.write("x.yaml", TASK);
    let run = user.det(&["config", "check", "--kind", "note-book", "x.yaml"]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(
        run.err.contains("notebook") && run.err.contains("task-policy"),
        "{run:?}"
    );
}
