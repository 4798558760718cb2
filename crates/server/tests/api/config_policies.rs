//! Policies over configurations.

use serde_json::{Value, json};

use crate::support::{Client, Cluster};

const GLOBAL: &str = "/api/v1/config-policies/global/EXPERIMENT";
const WORKSPACE: &str = "/api/v1/config-policies/workspaces/1/EXPERIMENT";

async fn set(client: &Client, path: &str, policies: Value) -> Value {
    let body = json!({"configPolicies": policies.to_string(), "workloadType": "EXPERIMENT"});
    client.put(path, body).await.ok()["configPolicies"].take()
}

fn submission(resources: &Value) -> Value {
    let config = json!({
        "name": "ruled", "entrypoint": "true", "max_restarts": 3, "resources": resources,
        "searcher": {"name": "single", "metric": "loss"},
    });
    json!({"config": config.to_string(), "validateOnly": true})
}

#[tokio::test]
async fn policies_are_set_shown_and_removed() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    assert_eq!(admin.get(GLOBAL).await.ok()["configPolicies"], json!({}));
    let policies =
        json!({"invariant_config": {"max_restarts": 1}, "constraints": {"priority_limit": 10}});
    assert_eq!(set(&admin, GLOBAL, policies.clone()).await, policies);
    let reader = cluster.determined().await;
    assert_eq!(reader.get(GLOBAL).await.ok()["configPolicies"], policies);
    for (body, named) in [
        (
            json!({"configPolicies": "constraints: {priority_limits: 3}"}),
            "the policies cannot be used:",
        ),
        (
            json!({"configPolicies": "invariant_config: {max_restart: 3}"}),
            "invariant_config.max_restart",
        ),
        (json!({"configPolicies": ""}), "configPolicies"),
        (
            json!({"configPolicies": "invariant_config: {resources: {resource_pool: gone}}"}),
            "invariant_config.resources.resource_pool: pool \"gone\" does not exist",
        ),
        (
            json!({"configPolicies": "invariant_config: {resources: {resource_pools: [default, gone]}}"}),
            "invariant_config.resources.resource_pools[1]: pool \"gone\" does not exist",
        ),
    ] {
        let refused = admin.put(GLOBAL, body).await.refused(400);
        assert!(refused.contains(named), "{refused}");
    }
    let body = json!({"configPolicies": "{}"});
    let path = "/api/v1/config-policies/global/NOTEBOOKS";
    assert!(
        admin
            .put(path, body.clone())
            .await
            .refused(400)
            .contains("NTSC")
    );
    let path = "/api/v1/config-policies/workspaces/9/NTSC";
    admin.put(path, body.clone()).await.refused(404);
    reader.put(GLOBAL, body).await.refused(403);
    let cluster = cluster.restart().await;
    let admin = cluster.admin().await;
    assert_eq!(admin.get(GLOBAL).await.ok()["configPolicies"], policies);
    admin.delete(GLOBAL).await.ok();
    assert_eq!(admin.get(GLOBAL).await.ok()["configPolicies"], json!({}));
    cluster.stop().await;
}

#[tokio::test]
async fn variables_in_policies_are_for_administrators() {
    let cluster = Cluster::start().await;
    let (admin, reader) = (cluster.admin().await, cluster.determined().await);
    let variables = |value: &str| json!({"environment": {"environment_variables": [value]}});
    let policies = json!({"invariant_config": variables("HF_TOKEN=swordfish")});
    assert_eq!(set(&admin, GLOBAL, policies.clone()).await, policies);
    assert_eq!(admin.get(GLOBAL).await.ok()["configPolicies"], policies);
    let shown = reader.get(GLOBAL).await.ok()["configPolicies"].take();
    assert_eq!(shown["invariant_config"], variables("HF_TOKEN=********"));
    let body = json!({"configPolicies": shown.to_string()});
    let refused = admin.put(GLOBAL, body).await.refused(400);
    assert!(
        refused.contains("invariant_config.environment.environment_variables[0]"),
        "{refused}"
    );
    cluster.stop().await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn policies_are_laid_over_submissions_and_changes() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let admin = cluster.admin().await;
    let experiments = "/api/v1/experiments";
    set(
        &admin,
        GLOBAL,
        json!({"invariant_config": {"max_restarts": 1}, "constraints": {"priority_limit": 10}}),
    )
    .await;
    set(
        &admin,
        WORKSPACE,
        json!({"invariant_config": {"max_restarts": 2, "debug": true, "resources": {"weight": 2}},
            "constraints": {"resources": {"max_slots": 4}}}),
    )
    .await;
    let made = admin
        .post(experiments, submission(&json!({"weight": 5})))
        .await
        .ok();
    let messages = made["messages"].to_string();
    for replaced in [
        "max_restarts: 3 was replaced by 1 by the policy of the cluster",
        "resources.weight: 5 was replaced by 2 by the policy of workspace \\\"Uncategorized\\\"",
    ] {
        assert!(messages.contains(replaced), "{messages}");
    }
    let config = &made["config"];
    assert_eq!(
        (
            &config["max_restarts"],
            &config["debug"],
            &config["resources"]["weight"]
        ),
        (&json!(1), &json!(true), &json!(2))
    );
    let refused = admin
        .post(
            experiments,
            submission(&json!({"priority": 5, "slots_per_trial": 8})),
        )
        .await
        .refused(400);
    for number in ["5", "10", "8", "4"] {
        assert!(refused.contains(number), "{refused}");
    }

    let id = cluster.experiment("ruled", 1).await;
    let path = format!("{experiments}/{id}");
    for (change, named) in [
        (json!({"resources": {"priority": 5}}), "allow 10"),
        (json!({"resources": {"maxSlots": 9}}), "4 slots at most"),
        (json!({"resources": {"maxSlots": null}}), "4 slots at most"),
        (json!({"resources": {"weight": 3.0}}), "fix it to 2"),
    ] {
        let refused = admin.patch(&path, change).await.refused(403);
        assert!(refused.contains(named), "{refused}");
    }
    admin
        .patch(&path, json!({"resources": {"priority": 11}}))
        .await
        .ok();
    // A move beside a job that existed before is no way around them.
    let job = |answer: Value| answer["experiment"]["jobId"].clone();
    let ruled = job(admin.get(&path).await.ok());
    admin.delete(GLOBAL).await.ok();
    let other = format!("{experiments}/{}", cluster.experiment("other", 1).await);
    admin
        .patch(&other, json!({"resources": {"priority": 5}}))
        .await
        .ok();
    let other = job(admin.get(&other).await.ok());
    set(
        &admin,
        GLOBAL,
        json!({"constraints": {"priority_limit": 10}}),
    )
    .await;
    let ahead = json!({"updates": [{"jobId": ruled, "aheadOf": other}]});
    let refused = admin.post("/api/v1/job-queues", ahead).await.refused(403);
    assert!(refused.contains("allow 10"), "{refused}");
    let still = admin.get(&path).await.ok()["config"]["resources"]["priority"].clone();
    assert_eq!(still, 11);
    cluster.stop().await;
}
