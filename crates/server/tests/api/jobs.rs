//! The job queue and resource pools.

use det_agent_proto::ContainerState;
use det_taskspec::{ContainerExit, ExitCause};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::Cluster;

fn names(answer: &Value) -> Vec<&str> {
    answer["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|j| j["name"].as_str().unwrap())
        .collect()
}

/// Two jobs that wait for an agent, `first` and `second`.
async fn waiting() -> Cluster {
    // Work larger than the (empty) cluster is taken and waits.
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    cluster.experiment("first", 1).await;
    cluster.experiment("second", 2).await;
    cluster
}

#[tokio::test]
async fn a_queue_is_in_order_and_shows_why_jobs_wait() {
    let cluster = waiting().await;
    let client = cluster.determined().await;
    let path = "/api/v1/job-queues";
    let queue = cluster
        .until(&client, path, |q| q["jobs"][1]["waitReason"].is_object())
        .await;
    assert_eq!(names(&queue), ["first", "second"]);
    let job = &queue["jobs"][1];
    assert_eq!(
        job["summary"],
        json!({"state": "STATE_QUEUED", "jobsAhead": 1})
    );
    assert_eq!(
        (&job["type"], &job["username"], &job["resourcePool"]),
        (
            &json!("TYPE_EXPERIMENT"),
            &json!("admin"),
            &json!("default")
        )
    );
    assert_eq!(
        (
            &job["requestedSlots"],
            &job["allocatedSlots"],
            &job["entityId"]
        ),
        (&json!(2), &json!(0), &json!("2"))
    );
    assert_eq!(job["waitReason"]["kind"], "no_agents");

    let v2 = client
        .get("/api/v1/job-queues-v2?resourcePool=default")
        .await
        .ok();
    assert_eq!(
        (&v2["jobs"][0]["full"]["name"], &v2["jobs"][0]["limited"]),
        (&json!("first"), &json!(null))
    );
    let wanted = [
        ("orderBy=ORDER_BY_DESC", vec!["second", "first"]),
        ("limit=1", vec!["first"]),
        ("offset=1", vec!["second"]),
        ("states=STATE_SCHEDULED", vec![]),
        (
            "states=STATE_QUEUED&states=STATE_SCHEDULED",
            vec!["first", "second"],
        ),
    ];
    for (query, expected) in wanted {
        assert_eq!(
            names(&client.get(&format!("{path}?{query}")).await.ok()),
            expected,
            "{query}"
        );
    }
    assert!(
        client
            .get(&format!("{path}?resourcePool=none"))
            .await
            .refused(404)
            .contains("none")
    );
    assert!(
        client
            .get("/api/v1/job-queues-v2?resourcePool=none")
            .await
            .refused(404)
            .contains("default")
    );
    assert!(
        client
            .get(&format!("{path}?states=STATE_HAPPY"))
            .await
            .refused(400)
            .contains("states")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_job_with_slots_is_scheduled() {
    let cluster = Cluster::start().await;
    let (_agent, _) = cluster.running_task().await;
    let client = cluster.determined().await;
    let job = client.get("/api/v1/job-queues").await.ok()["jobs"][0].clone();
    assert_eq!(
        (&job["summary"]["state"], &job["allocatedSlots"]),
        (&json!("STATE_SCHEDULED"), &json!(1))
    );
    assert!(job["waitReason"].is_null());
    cluster.stop().await;
}

#[tokio::test]
async fn jobs_change_places_by_priority() {
    let cluster = waiting().await;
    let client = cluster.determined().await;
    let jobs = client.get("/api/v1/job-queues").await.ok();
    let second = jobs["jobs"][1]["jobId"].as_str().unwrap();
    // The client sends every member, those not meant as null.
    let update = json!({"updates": [{"jobId": second, "priority": 3, "resourcePool": null, "weight": null}]});
    assert_eq!(
        client.post("/api/v1/job-queues", update).await.ok(),
        json!({})
    );
    let jobs = client.get("/api/v1/job-queues").await.ok();
    assert_eq!(
        (names(&jobs), &jobs["jobs"][0]["priority"]),
        (vec!["second", "first"], &json!(3))
    );
    let weight = json!({"updates": [{"jobId": second, "weight": 2.5}]});
    client.post("/api/v1/job-queues", weight).await.ok();
    assert_eq!(
        client.get("/api/v1/job-queues").await.ok()["jobs"][0]["weight"],
        2.5
    );

    let refused = [
        (
            json!({"jobId": second, "aheadOf": "x", "behindOf": "y"}),
            "exactly one",
        ),
        (json!({"jobId": second}), "exactly one"),
        (
            json!({"jobId": second, "priority": 3, "weight": 1}),
            "exactly one",
        ),
        (json!({"priority": 3}), "jobId"),
        (json!({"jobId": second, "priority": 0}), "priority"),
        (
            json!({"jobId": second, "priority": "high"}),
            "updates[0].priority",
        ),
    ];
    for (update, named) in refused {
        let sentence = client
            .post("/api/v1/job-queues", json!({"updates": [update]}))
            .await
            .refused(400);
        assert!(sentence.contains(named), "{update}: {sentence}");
    }
    // Another pool is for the owner and administrators.
    let update = json!({"updates": [{"jobId": second, "resourcePool": "none"}]});
    client
        .post("/api/v1/job-queues", update.clone())
        .await
        .refused(403);
    let admin = cluster.admin().await;
    let sentence = admin.post("/api/v1/job-queues", update).await.refused(400);
    assert!(sentence.contains("none"), "{sentence}");
    let unknown =
        json!({"updates": [{"jobId": second, "priority": 9}, {"jobId": "nothing", "priority": 3}]});
    assert!(
        client
            .post("/api/v1/job-queues", unknown)
            .await
            .refused(404)
            .contains("nothing")
    );
    // Where one change is refused none is made.
    let jobs = client.get("/api/v1/job-queues").await.ok();
    assert_eq!(jobs["jobs"][0]["priority"], 3);
    cluster.stop().await;
}

#[tokio::test]
async fn jobs_are_moved_ahead_of_and_behind_others() {
    let cluster = waiting().await;
    cluster.experiment("third", 1).await;
    let client = cluster.determined().await;
    let queue = "/api/v1/job-queues";
    let jobs = client.get(queue).await.ok();
    let job = |index: usize| jobs["jobs"][index]["jobId"].clone();
    let moved = async |update: Value| {
        let body = json!({"updates": [update]});
        client.post(queue, body).await.ok();
        let jobs = client.get(queue).await.ok();
        names(&jobs).join(" ")
    };
    let (first, second, third) = (job(0), job(1), job(2));
    let ahead = json!({"jobId": third, "aheadOf": second, "behindOf": null, "priority": null});
    assert_eq!(moved(ahead).await, "first third second");
    let behind = json!({"jobId": first, "behind_of": second});
    assert_eq!(moved(behind).await, "third second first");
    // A job takes the priority of the one that it is moved to, and forgets its place when it gets another one.
    client
        .post(
            queue,
            json!({"updates": [{"jobId": second, "priority": 7}]}),
        )
        .await
        .ok();
    let behind = json!({"jobId": first, "behindOf": second});
    assert_eq!(moved(behind).await, "second first third");
    let jobs = client.get(queue).await.ok();
    assert_eq!(jobs["jobs"][1]["priority"], 7);
    let id = jobs["jobs"][1]["entityId"].as_str().unwrap().to_owned();
    let experiment = client.get(&format!("/api/v1/experiments/{id}")).await.ok();
    assert_eq!(experiment["config"]["resources"]["priority"], 7);
    let back = json!({"jobId": first, "priority": 42});
    assert_eq!(moved(back).await, "second first third");

    let refused = client
        .post(
            queue,
            json!({"updates": [{"jobId": third, "aheadOf": "nothing"}]}),
        )
        .await
        .refused(404);
    assert!(
        refused.contains("\"nothing\"") && refused.contains("\"default\""),
        "{refused}"
    );
    // The place in the queue is kept over a restart.
    let place = json!({"jobId": third, "aheadOf": first});
    assert_eq!(moved(place).await, "second third first");
    let cluster = cluster.restart().await;
    let client = cluster.determined().await;
    assert_eq!(
        names(&client.get(queue).await.ok()),
        ["second", "third", "first"]
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_job_names_the_agent_that_is_away() {
    let pools = "[{pool_name: default, agent_reconnect_wait: 2m}]";
    let cluster =
        Cluster::start_with(&[("launch_error", "false"), ("resource_pools", pools)]).await;
    let (agent, _) = cluster.running_task().await;
    cluster.experiment("waiter", 1).await;
    let client = cluster.determined().await;
    let jobs = client.get("/api/v1/job-queues").await.ok();
    let why = |index: usize| {
        let id = jobs["jobs"][index]["jobId"].as_str().unwrap();
        format!("/api/v1/job-queues/{id}/why")
    };
    drop(agent);
    let is_away = |explanation: &Value| !explanation["pool"]["agentsAway"][0].is_null();
    let explanation = cluster.until(&client, &why(0), is_away).await;
    let pool = &explanation["pool"];
    let away = &pool["agentsAway"][0];
    assert_eq!(
        (
            &away["agent"],
            &away["holds"],
            &pool["reconnectWaitSeconds"]
        ),
        (
            &json!("a1"),
            &json!(["trial 1 of experiment 1"]),
            &json!(120)
        )
    );
    assert!(
        away["since"].as_str() < away["waitedUntil"].as_str(),
        "{away}"
    );
    // A job that has nothing on it waits for it all the same.
    let explanation = cluster.until(&client, &why(1), is_away).await;
    assert_eq!(explanation["pool"]["agentsAway"][0]["holds"], json!([]));
    cluster.stop().await;
}

#[tokio::test]
async fn a_job_that_waits_names_the_agent_that_was_given_up() {
    let pools = "[{pool_name: default, agent_reconnect_wait: 0s}]";
    let cluster =
        Cluster::start_with(&[("launch_error", "false"), ("resource_pools", pools)]).await;
    let client = cluster.determined().await;
    drop(cluster.agent("a1", 4).await);
    let is_gone = |answer: &Value| answer["agents"] == json!([]);
    cluster.until(&client, "/api/v1/agents", is_gone).await;
    cluster.experiment("waiter", 1).await;
    let jobs = client.get("/api/v1/job-queues").await.ok();
    let why = format!(
        "/api/v1/job-queues/{}/why",
        jobs["jobs"][0]["jobId"].as_str().unwrap()
    );
    let explanation = client.get(&why).await.ok();
    let lost = &explanation["pool"]["agentsLost"];
    assert_eq!(lost.as_array().unwrap().len(), 1, "{explanation}");
    assert_eq!(
        (&lost[0]["agent"], &lost[0]["slots"]),
        (&json!("a1"), &json!(4))
    );
    let reason = lost[0]["reason"].as_str().unwrap();
    assert!(reason.contains("agent \"a1\" was away for "), "{reason}");
    // Another one by this name has joined, and does not run the job: nothing is missing of it.
    let _agent = cluster.agent("a1", 0).await;
    let explanation = client.get(&why).await.ok();
    assert_eq!(explanation["pool"]["agentsLost"], json!([]));
    cluster.stop().await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn a_job_explains_why_it_waits() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let (mut agent, spec) = cluster.running_task().await;
    cluster.experiment("waiter", 1).await;
    let client = cluster.determined().await;
    let jobs = client.get("/api/v1/job-queues").await.ok();
    let id = |index: usize| jobs["jobs"][index]["jobId"].as_str().unwrap().to_owned();
    let why = |id: &str| format!("/api/v1/job-queues/{id}/why");
    let waiting = why(&id(1));
    let explained = |explanation: &Value| !explanation["waiting"][0]["waitReason"].is_null();
    let explanation = cluster.until(&client, &waiting, explained).await;
    assert_eq!(explanation["summary"], "waiting: its task has no slots");
    let reason = &explanation["waiting"][0]["waitReason"];
    assert_eq!(
        (
            &reason["kind"],
            &reason["details"]["needed"],
            &reason["details"]["free_total"]
        ),
        (&json!("not_enough_free_slots"), &json!(1), &json!(0))
    );
    assert!(reason["since"].is_string());
    assert_eq!(
        (
            &explanation["pool"]["slots"],
            &explanation["pool"]["freeSlots"]
        ),
        (&json!(1), &json!(0))
    );
    assert_eq!(
        (&explanation["aheadCount"], &explanation["ahead"][0]["name"]),
        (&json!(1), &json!("running"))
    );
    let holder = &explanation["heldBy"][0];
    assert_eq!(
        (
            &holder["allocationId"],
            &holder["agents"],
            &holder["priority"],
            &holder["slots"]
        ),
        (
            &json!(spec.allocation_id.to_string()),
            &json!(["a1"]),
            &json!(42),
            &json!(1)
        )
    );
    assert_eq!(
        (&holder["label"], &explanation["waiting"][0]["label"]),
        (
            &json!("trial 1 of experiment 1"),
            &json!("trial 2 of experiment 2")
        )
    );
    let message = reason["message"].as_str().unwrap();
    assert!(
        message.contains("held by trial 1 of experiment 1 (1 slot"),
        "{message}"
    );
    assert!(explanation["waiting"][0]["estimatedStart"].is_null());
    let basis = explanation["waiting"][0]["estimateBasis"].as_str().unwrap();
    assert!(
        basis.contains("the end of trial 1 of experiment 1 cannot be foreseen:"),
        "{basis}"
    );
    let admin = cluster.admin().await;
    let progress = json!({"progress": 0.5});
    admin.post("/api/v1/trials/1/progress", progress).await.ok();
    let estimated = |explanation: &Value| explanation["waiting"][0]["estimatedStart"].is_string();
    cluster.until(&client, &waiting, estimated).await;
    let explanation = client.get(&why(&id(0))).await.ok();
    assert_eq!(explanation["summary"], "running: its 1 task has slots");
    assert_eq!(
        (&explanation["running"][0]["slots"], &explanation["waiting"]),
        (&json!(1), &json!([]))
    );

    client
        .post("/api/v1/experiments/2/pause", Value::Null)
        .await
        .ok();
    let paused = |explanation: &Value| {
        explanation["summary"]
            .as_str()
            .unwrap()
            .starts_with("paused")
    };
    cluster.until(&client, &waiting, paused).await;
    agent.exits(&spec, 0).await;
    let ended = |explanation: &Value| {
        explanation["summary"]
            .as_str()
            .unwrap()
            .contains("COMPLETED")
    };
    cluster.until(&client, &why(&id(0)), ended).await;
    let refused = client.get(&why("nothing")).await.refused(404);
    assert!(refused.contains("nothing"), "{refused}");
    cluster.stop().await;
}

#[tokio::test]
async fn the_mean_wait_of_a_day_is_known() {
    let cluster = Cluster::start().await;
    let (_agent, _) = cluster.running_task().await;
    let client = cluster.determined().await;
    let stats = client.get("/api/v1/job-queues/stats").await.ok();
    let days = stats["results"][0]["aggregates"].as_array().unwrap();
    assert_eq!(days.len(), 1, "{stats}");
    assert_eq!(
        days[0]["periodStart"].as_str().unwrap().len(),
        "2026-01-31".len()
    );
    assert!(days[0]["seconds"].as_f64().unwrap() > 0.0);
    cluster.stop().await;
}

#[tokio::test]
async fn queues_are_counted() {
    let cluster = waiting().await;
    let client = cluster.determined().await;
    let stats = client.get("/api/v1/job-queues/stats").await.ok();
    let expected = json!({"stats": {"queuedCount": 2, "scheduledCount": 0}, "resourcePool": "default", "aggregates": []});
    assert_eq!(stats["results"], json!([expected]));
    assert!(
        client
            .get("/api/v1/job-queues/stats?resourcePools=none")
            .await
            .refused(404)
            .contains("none")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn pools_show_what_they_hold() {
    let cluster = Cluster::start().await;
    let (_agent, _) = cluster.running_task().await;
    let client = cluster.determined().await;
    let pools = client.get("/api/v1/resource-pools").await.ok();
    let pool = &pools["resourcePools"][0];
    assert_eq!(
        (
            &pool["name"],
            &pool["defaultComputePool"],
            &pool["defaultAuxPool"]
        ),
        (&json!("default"), &json!(true), &json!(true))
    );
    assert_eq!(
        (
            &pool["numAgents"],
            &pool["slotsAvailable"],
            &pool["slotsUsed"]
        ),
        (&json!(1), &json!(1), &json!(1))
    );
    assert_eq!(
        (&pool["slotType"], &pool["schedulerType"]),
        (&json!("TYPE_CPU"), &json!("SCHEDULER_TYPE_PRIORITY"))
    );
    assert_eq!(
        pool["stats"],
        json!({"queuedCount": 0, "scheduledCount": 1})
    );
    assert!(pool["details"]["priorityScheduler"]["defaultPriority"].is_number());
    assert!(pool["maxIdleAgentPeriod"].is_number());
    assert_eq!(
        client.get("/api/v1/resource-pools?offset=5").await.ok()["resourcePools"],
        json!([])
    );
    assert!(
        client
            .get("/api/v1/resource-pools?limit=x")
            .await
            .refused(400)
            .contains("limit")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_token_is_needed() {
    let cluster = Cluster::start().await;
    for path in [
        "/job-queues",
        "/job-queues-v2",
        "/job-queues/stats",
        "/resource-pools",
    ] {
        cluster
            .client()
            .assert_needs_token(Method::GET, &format!("/api/v1{path}"))
            .await;
    }
    cluster
        .client()
        .assert_needs_token(Method::POST, "/api/v1/job-queues")
        .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_failed_experiment_is_explained_by_what_failed_in_it() {
    let cluster = Cluster::start().await;
    let (mut agent, spec) = cluster.running_task().await;
    let client = cluster.determined().await;
    let jobs = client.get("/api/v1/job-queues").await.ok();
    let job = jobs["jobs"][0]["jobId"].as_str().unwrap().to_owned();
    let cause = ExitCause {
        at: 1,
        rank: None,
        exit_code: None,
        last_lines: vec!["step 1".into(), "KeyError: 'lr'".into()],
    };
    let exit = ContainerExit::Exited { code: 3 };
    let cause = Some(cause);
    let ended = ContainerState::Terminated { exit, cause };
    agent.report(&spec, ended).await;
    let failed = |answer: &Value| answer["experiment"]["state"] == "STATE_ERROR";
    cluster
        .until(&client, "/api/v1/experiments/1", failed)
        .await;
    let path = format!("/api/v1/job-queues/{job}/why");
    let why = client.get(&path).await.ok();
    assert_eq!(
        why["summary"],
        "it has ended (ERROR): trial 1 failed: the code ended with exit code 3"
    );
    let lines = json!(["step 1", "KeyError: 'lr'"]);
    assert_eq!(why["lastLines"], lines);
    let trial = client.get("/api/v1/trials/1").await.ok();
    let failure = &trial["trial"]["lastFailure"];
    assert_eq!(failure["reason"], "the code ended with exit code 3");
    assert_eq!(failure["lastLines"], lines);
    assert_eq!(
        failure["allocationId"],
        json!(spec.allocation_id.to_string())
    );
    cluster.stop().await;
}
