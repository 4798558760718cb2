//! Listing and downloading checkpoints, and the metrics of trials.

#![allow(
    clippy::unwrap_used,
    reason = "a helper that fails makes its test fail"
)]

mod support;

use std::fs;

use serde_json::{Value, json};
use support::User;
use support::stub::{Answer, StubMaster, ok};

const UUID: &str = "0b6c8d1e-0000-4000-8000-000000000001";

fn checkpoint(state: &str) -> Value {
    json!({"uuid": UUID, "state": format!("STATE_{state}"), "reportTime": "2026-11-21T10:00:00Z",
           "metadata": {"steps_completed": 10}, "resources": {"weights": "1024", "d/": "0"},
           "training": {"trialId": 11, "experimentId": 7, "experimentConfig": {"searcher": {"metric": "loss"}},
                        "validationMetrics": {"avgMetrics": {"loss": 0.5}}}})
}

fn archive(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn stub(state: &str, entries: &[(&str, &str)]) -> StubMaster {
    let stub = StubMaster::start();
    let mut described = checkpoint(state);
    let sizes = entries
        .iter()
        .map(|(name, content)| ((*name).to_owned(), content.len().to_string().into()));
    described["resources"] = Value::Object(sizes.collect());
    stub.on(
        &format!("GET /api/v1/checkpoints/{UUID}"),
        ok(json!({ "checkpoint": described })),
    );
    stub.on(
        &format!("GET /checkpoints/{UUID}"),
        Answer::Raw(200, "application/x-tar", archive(entries)),
    );
    stub
}

#[test]
fn checkpoints_are_listed() {
    let stub = StubMaster::start();
    let answer = || ok(json!({"checkpoints": [checkpoint("COMPLETED")]}));
    stub.on("GET /api/v1/experiments/7/checkpoints", answer());
    stub.on("GET /api/v1/trials/11/checkpoints", answer());
    let user = User::using(&stub);
    let expected = format!(
        "Trial ID,# of Batches,State,Validation Metric,UUID,Resources,Size\n\
         11,10,COMPLETED,0.5,{UUID},\"d/\nweights\",1.0KB\n"
    );
    for words in [
        vec!["e", "list-checkpoints", "7", "--csv"],
        vec!["e", "lc", "7", "--best", "3", "--csv"],
        vec!["c", "list", "7", "--csv"],
        vec!["c", "ls", "--trial-id", "11", "--csv"],
    ] {
        assert_eq!(user.det(&words).ok(), expected, "{words:?}");
    }
    let lines = stub.lines();
    assert_eq!(
        lines[0],
        "GET /api/v1/experiments/7/checkpoints?sortByAttr=SORT_BY_END_TIME"
    );
    assert_eq!(
        lines[1],
        "GET /api/v1/experiments/7/checkpoints?limit=3&sortByAttr=SORT_BY_SEARCHER_METRIC&states=STATE_COMPLETED"
    );
    user.det(&["c", "list"]).fails(2);
    let objects: Value = serde_json::from_str(&user.det(&["c", "ls", "7", "--json"]).ok()).unwrap();
    assert_eq!(objects[0]["uuid"], UUID);
}

#[test]
fn checkpoints_and_files_of_them_are_deleted_after_a_question() {
    const OTHER: &str = "0b6c8d1e-0000-4000-8000-000000000002";
    let stub = StubMaster::start();
    stub.on("DELETE /api/v1/checkpoints", ok(json!({})));
    stub.on("POST /api/v1/checkpoints/rm", ok(json!({})));
    let user = User::using(&stub);
    let both = format!("{UUID},{OTHER}");
    let run = user.det_typing(&["checkpoint", "delete", &both], "n\n");
    assert!(run.err.contains("nothing was deleted"), "{run:?}");
    run.ok();
    let run = user.det_typing(&["c", "rm", UUID, "--glob", "*.bin"], "no\n");
    assert!(run.err.contains("nothing was deleted"), "{run:?}");
    run.ok();
    assert!(stub.lines().iter().all(|line| line.starts_with("GET")));

    let out = user
        .det_typing(&["checkpoint", "delete", &both], "y\n")
        .ok();
    assert!(
        out.contains(&format!("Deletion of checkpoints {both} is in progress")),
        "{out}"
    );
    let sent = stub.last("DELETE /api/v1/checkpoints").json();
    assert_eq!(sent, json!({"checkpointUuids": [UUID, OTHER]}));

    let words = [
        "c", "rm", &both, "--glob", "*.bin", "--glob", "d/*", "--yes",
    ];
    let out = user.det(&words).ok();
    assert_eq!(
        out,
        format!("Removal of files from checkpoints {both} is in progress.\n")
    );
    let sent = stub.last("POST /api/v1/checkpoints/rm").json();
    assert_eq!(
        sent,
        json!({"checkpointUuids": [UUID, OTHER], "checkpointGlobs": ["*.bin", "d/*"]})
    );
    // Without a pattern nothing is deleted, so nothing is asked.
    let out = user.det(&["c", "rm", UUID]).ok();
    assert!(out.contains("refreshing resources"), "{out}");
    let sent = stub.last("POST /api/v1/checkpoints/rm").json();
    assert_eq!(sent["checkpointGlobs"], json!([]));
}

#[test]
fn a_checkpoint_is_downloaded_once() {
    let stub = stub(
        "COMPLETED",
        &[("weights", "123"), ("d/more", "4"), ("metadata.json", "{}")],
    );
    let user = User::using(&stub);
    let out = user.det(&["checkpoint", "download", UUID]).ok();
    assert!(
        out.starts_with(&format!("Local checkpoint path:\ncheckpoints/{UUID}")),
        "{out}"
    );
    let directory = user.directory().join("checkpoints").join(UUID);
    assert_eq!(
        fs::read_to_string(directory.join("weights")).unwrap(),
        "123"
    );
    assert_eq!(fs::read_to_string(directory.join("d/more")).unwrap(), "4");
    assert_eq!(
        stub.last("GET /checkpoints/").headers["accept"],
        "application/x-tar"
    );

    let before = stub.lines().len();
    let run = user.det(&["c", "download", UUID, "-q"]);
    assert!(run.err.contains("already"), "{run:?}");
    assert_eq!(run.ok(), format!("checkpoints/{UUID}\n"));
    assert_eq!(
        stub.lines().len(),
        before + 1,
        "only asked about, not fetched"
    );
}

#[test]
fn a_checkpoint_without_metadata_gets_it() {
    let stub = stub("PARTIALLY_DELETED", &[("weights", "123")]);
    let user = User::using(&stub);
    user.det(&["c", "download", UUID, "-o", "out", "-q"]).ok();
    let metadata = fs::read_to_string(user.directory().join("out/metadata.json")).unwrap();
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    assert_eq!(metadata, json!({"steps_completed": 10}));
}

#[test]
fn files_that_a_download_lacks_are_downloaded_again() {
    let metadata = r#"{"steps_completed": 10}"#;
    let whole = stub(
        "COMPLETED",
        &[("weights", "123"), ("metadata.json", metadata)],
    );
    let user = User::using(&whole);
    let words = ["c", "download", UUID, "--output-dir", "here", "-q"];
    user.det(&words).ok();
    let weights = user.directory().join("here/weights");
    for damage in [
        (|path| fs::remove_file(path).unwrap()) as fn(&std::path::Path),
        |path| fs::write(path, "12").unwrap(),
    ] {
        damage(&weights);
        user.det(&words).ok();
        assert_eq!(fs::read_to_string(&weights).unwrap(), "123");
    }
    // Another checkpoint's files are not mixed with them.
    fs::write(user.directory().join("here/metadata.json"), "{}").unwrap();
    fs::write(&weights, "of another").unwrap();
    let err = user.det(&words).fails(1);
    assert!(
        err.contains("holds another checkpoint: it lacks 1 file of")
            && err.contains("--output-dir"),
        "{err}"
    );
    assert_eq!(fs::read_to_string(&weights).unwrap(), "of another");
}

#[test]
fn an_archive_that_leads_out_is_refused() {
    let stub = stub("COMPLETED", &[("../evil", "x")]);
    let user = User::using(&stub);
    let err = user
        .det(&["c", "download", UUID, "-o", "deep/out"])
        .fails(1);
    assert!(
        err.contains("\"../evil\" leads out of the directory"),
        "{err}"
    );
    assert!(!user.directory().join("deep/evil").exists());
}

#[test]
fn what_is_gone_is_not_downloaded() {
    let stub = stub("DELETED", &[]);
    let err = User::using(&stub).det(&["c", "download", UUID]).fails(1);
    assert!(err.contains("is in state DELETED"), "{err}");
    let err = User::using(&stub)
        .det(&["c", "download", UUID, "--mode", "direct"])
        .fails(2);
    assert!(err.contains("through the master only"), "{err}");
}

#[test]
fn the_checkpoint_of_a_trial_is_chosen() {
    let weights = "w".repeat(1024);
    let stub = stub(
        "COMPLETED",
        &[("weights", &weights), ("metadata.json", "{}")],
    );
    stub.on(
        "GET /api/v1/trials/11/checkpoints",
        ok(json!({"checkpoints": [
            {"uuid": "gone", "state": "STATE_DELETED"},
            checkpoint("COMPLETED"),
        ]})),
    );
    let user = User::using(&stub);
    for (flags, query) in [
        (
            vec!["--latest"],
            "sortByAttr=SORT_BY_BATCH_NUMBER&orderBy=ORDER_BY_DESC",
        ),
        (vec!["--best"], "sortByAttr=SORT_BY_SEARCHER_METRIC"),
        (
            vec!["--best", "--sort-by", "acc", "--smaller-is-better", "false"],
            "sortByMetric=acc&orderBy=ORDER_BY_DESC",
        ),
    ] {
        let mut words = vec!["trial", "download", "11", "-q"];
        words.extend(flags);
        assert_eq!(user.det(&words).ok(), format!("checkpoints/{UUID}\n"));
        assert_eq!(
            stub.last("GET /api/v1/trials/11/checkpoints").line,
            format!("GET /api/v1/trials/11/checkpoints?{query}")
        );
    }
    user.det(&["t", "download", "11", "--uuid", UUID, "-q"])
        .ok();
    user.det(&["t", "download", "11"]).fails(2);
    user.det(&["t", "download", "11", "--best", "--latest"])
        .fails(2);
    user.det(&["t", "download", "11", "--best", "--sort-by", "acc"])
        .fails(2);
    stub.on(
        "GET /api/v1/trials/12/checkpoints",
        ok(json!({"checkpoints": []})),
    );
    let err = user.det(&["t", "download", "12", "--best"]).fails(1);
    assert!(
        err.contains("no checkpoint that can be downloaded"),
        "{err}"
    );
}

#[test]
fn the_best_checkpoints_of_an_experiment_are_downloaded() {
    let stub = stub("COMPLETED", &[("metadata.json", "{}")]);
    stub.on(
        "GET /api/v1/experiments/7/checkpoints",
        ok(json!({"checkpoints": [checkpoint("COMPLETED"), checkpoint("COMPLETED")]})),
    );
    let user = User::using(&stub);
    let out = user.det(&["e", "download", "7", "-q", "-o", "best"]).ok();
    assert_eq!(out, format!("best/{UUID}\n"));
    assert!(
        user.directory()
            .join("best")
            .join(UUID)
            .join("metadata.json")
            .exists()
    );
}

#[test]
fn a_checkpoint_is_described() {
    let stub = stub("COMPLETED", &[]);
    let user = User::using(&stub);
    let csv = user.det(&["c", "describe", UUID, "--csv"]).ok();
    assert!(
        csv.contains(&format!(
            "7,11,10,2026-11-21 10:00:00+0000,{UUID},COMPLETED,"
        )),
        "{csv}"
    );
}

#[test]
fn metrics_of_a_trial_and_of_its_machines_are_shown_in_one_table() {
    let stub = StubMaster::start();
    let report = |group: &str, steps: u32, metrics: Value| json!({"group": group, "totalBatches": steps, "endTime": "2026-01-01T00:00:01Z", "metrics": metrics});
    let training = |loss: f64, steps| {
        let metrics = json!({"avg_metrics": {"loss": loss}, "batch_metrics": null});
        report("training", steps, metrics)
    };
    let gpu = json!({"avg_metrics": {"a1": {"GPU-1": {"gpu_util": 50, "gpu_free_memory": 1_073_741_824}}}});
    let message = json!({"result": {"metrics": [training(0.5, 1), training(0.25, 2), report("gpu", 0, gpu)]}});
    stub.on(
        "GET /api/v1/trials/metrics/trial_metrics",
        Answer::Chunks {
            pieces: vec![format!("{message}\n")],
            cut: false,
        },
    );
    let user = User::using(&stub);
    let table = user.det(&["trial", "metrics", "11"]).ok();
    for part in ["1.0GB", "50.0%", "a1 GPU-1", "0.375"] {
        assert!(table.contains(part), "{part} is missing in {table}");
    }
    assert_eq!(
        user.det(&["t", "metrics", "11", "--metric", "loss", "--csv"])
            .ok(),
        "Group,Metric,Of,Count,Min,Mean,Max,Last\ntraining,loss,,2,0.25,0.375,0.5,0.25\n"
    );
    let values = user.det(&[
        "t", "metrics", "11", "--group", "gpu", "--metric", "gpu_util", "--values", "--json",
    ]);
    let values: Value = serde_json::from_str(&values.ok()).unwrap();
    assert_eq!(
        values,
        json!([{"time": "2026-01-01 00:00:01+0000", "batches": 0, "group": "gpu", "metric": "gpu_util",
            "of": "a1 GPU-1", "value": 50}])
    );
    assert_eq!(
        stub.last("GET /api/v1/trials/metrics/trial_metrics").line,
        "GET /api/v1/trials/metrics/trial_metrics?trialIds=11&group=gpu"
    );
    stub.on(
        "GET /api/v1/trials/11",
        ok(json!({"trial": {"id": 11, "experimentId": 7}})),
    );
    stub.on(
        "GET /api/v1/experiments/7",
        ok(json!({"experiment": {"id": 7}})),
    );
    let none = user.det(&["t", "metrics", "11", "--metric", "nothing"]);
    let error = none.fails(1);
    assert!(
        error.contains("trial 11 has no metric of this name")
            && error.contains("it has: gpu_free_memory, gpu_util, loss"),
        "{error}"
    );
}
