//! `det config explain`, with a master that is asked and without.

mod support;

use serde_json::{Value, json};
use support::User;
use support::stub::{Answer, StubMaster, ok};

const TRAIN: &str = "name: n\nentrypoint: ./run.sh\nsearcher: {name: single, metric: loss, max_length: {batches: 1}}\n";

fn master() -> StubMaster {
    let stub = StubMaster::start();
    let workspace = json!({"workspace": {"id": 1, "name": "Uncategorized"}});
    stub.on("GET /api/v1/workspaces/1", ok(workspace));
    for scope in ["workspaces/1", "global"] {
        let path = format!("GET /api/v1/config-policies/{scope}/EXPERIMENT");
        stub.on(&path, ok(json!({"configPolicies": {}})));
    }
    let pools = json!({"resourcePools": [{"name": "cpu"}, {"name": "gpu"}]});
    stub.on("GET /api/v1/resource-pools", ok(pools));
    stub
}

/// The value and the origin of a key.
fn row(user: &User, key: &str, more: &[&str]) -> (Value, Value) {
    let arguments = [&["config", "explain", "train.yaml", "--json"], more].concat();
    let rows: Value = serde_json::from_str(&user.det(&arguments).ok()).expect("JSON was asked for");
    let mut rows = rows.as_array().into_iter().flatten();
    let row = rows.find(|row| row["path"] == key).expect("the key exists");
    (row["value"].clone(), row["origin"].clone())
}

#[test]
fn the_storage_of_a_master_is_its_own_or_not_known() {
    let stub = master();
    let user = User::using(&stub);
    user.write("train.yaml", TRAIN);
    let path = "checkpoint_storage.host_path";
    let assumed = (
        json!("/var/lib/determined/master/checkpoints"),
        json!({"layer": "assumed_storage"}),
    );
    assert_eq!(row(&user, path, &[]), assumed);
    let refusal = json!({"error": {"code": 403, "message": "only administrators may read it"}});
    stub.on("GET /api/v1/master/config", Answer::Json(403, refusal));
    assert_eq!(row(&user, path, &["--ask-master"]), assumed);
    let storage = json!({"type": "shared_fs", "host_path": "/mnt/shared"});
    stub.on(
        "GET /api/v1/master/config",
        ok(json!({"config": {"checkpoint_storage": storage}})),
    );
    let known = (json!("/mnt/shared"), json!({"layer": "checkpoint_storage"}));
    assert_eq!(row(&user, path, &["--ask-master"]), known);
    user.write("master.yaml", "data_dir: /srv/det\n");
    let configured = (
        json!("/srv/det/checkpoints"),
        json!({"layer": "checkpoint_storage"}),
    );
    let own = ["--ask-master", "--master-config", "master.yaml"];
    assert_eq!(row(&user, path, &own), configured);
}

#[test]
fn a_pool_that_is_tried_is_one_of_the_master() {
    let stub = master();
    stub.on("GET /api/v1/master/config", ok(json!({"config": {}})));
    let user = User::using(&stub);
    user.write("train.yaml", TRAIN);
    let tried = (json!("gpu"), json!({"layer": "flag", "source": "--pool"}));
    let pool = "resources.resource_pool";
    assert_eq!(row(&user, pool, &["--ask-master", "--pool", "gpu"]), tried);
    let err = user
        .det(&[
            "config",
            "explain",
            "train.yaml",
            "--ask-master",
            "--pool",
            "nope",
        ])
        .fails(1);
    assert!(
        err.contains("no pool \"nope\"") && err.contains("cpu, gpu"),
        "{err}"
    );
}
