//! Background work that panics, and a store that is not to be used any more.

use det_server::works::Work;
use det_store::{DatabaseAccess, StoreError};
use serde_json::Value;

use crate::support::{Client, Cluster, WhyUnchecked, within};

const WORKS: [&str; 8] = [
    "backlog",
    "clean_up",
    "compact_metrics",
    "deadlines",
    "doctor",
    "idle",
    "log_sweep",
    "schedule",
];

fn work(cluster: &Cluster, name: &str) -> Work {
    let works = cluster.master().background.list();
    let found = works.into_iter().find(|(known, _)| *known == name);
    found.map(|(_, work)| work).unwrap_or_default()
}

/// Waits for a state that no event reports.
async fn until(what: &str, mut reached: impl FnMut() -> bool) {
    within(what, async {
        while !reached() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn health(client: &Client) -> (u16, Value) {
    let reply = client.get("/health").await;
    (reply.status, reply.json())
}

#[tokio::test]
async fn work_that_panics_is_started_again_and_health_reports_it() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    until("all works to run", || {
        WORKS.iter().all(|name| work(&cluster, name).runs)
    })
    .await;
    for name in WORKS {
        cluster.master().background.inject_panic(name);
        until(name, || {
            let work = work(&cluster, name);
            work.runs && work.restarts == 1
        })
        .await;
    }
    let (status, shown) = health(&client).await;
    assert_eq!((status, &shown["status"]), (200, &Value::from("up")));
    let works = shown["background"].as_array().unwrap();
    assert_eq!(works.len(), WORKS.len());
    for (work, name) in works.iter().zip(WORKS) {
        assert_eq!(work["name"], name);
        assert_eq!(
            (&work["status"], &work["restarts"]),
            (&"up".into(), &1.into())
        );
        assert!(
            work["last_panic"].as_str().unwrap().contains(name),
            "{work}"
        );
    }
    // What was started again does its work.
    let (_agent, _spec) = cluster.running_task().await;
    cluster.stop().await;
}

#[tokio::test]
async fn work_that_panics_time_after_time_ends_the_master() {
    let cluster = Cluster::start().await;
    until("the master to end", || {
        if work(&cluster, "schedule").runs {
            cluster.master().background.inject_panic("schedule");
        }
        cluster.master().context.failure().is_some()
    })
    .await;
    let failure = cluster.master().context.failure().unwrap().to_owned();
    assert!(
        failure.contains("\"schedule\" panicked 5 times"),
        "{failure}"
    );
    assert!(cluster.master().context.shutdown.is_cancelled());
    cluster.stop_unchecked(WhyUnchecked::MasterEnded).await;
}

#[tokio::test]
async fn nothing_is_answered_while_the_database_is_lost() {
    let cluster = Cluster::start().await;
    let client = cluster.admin().await;
    let store = cluster.master().context.store.clone();
    store.pretend(&DatabaseAccess::Lost("the connection broke".into()));
    for path in ["/api/v1/me", "/info", "/api/v1/experiments", "/"] {
        let message = client.get(path).await.refused(503);
        assert!(
            message.contains("the connection broke"),
            "{path}: {message}"
        );
    }
    let (status, shown) = health(&client).await;
    assert_eq!((status, &shown["database"]), (503, &Value::from("down")));
    store.pretend(&DatabaseAccess::Held);
    client.get("/api/v1/me").await.ok();
    cluster.stop().await;
}

#[tokio::test]
async fn a_disk_that_does_not_confirm_a_change_ends_the_master() {
    let cluster = Cluster::start().await;
    let failed: Result<(), StoreError> = cluster
        .master()
        .context
        .store
        .write(|tx| {
            Box::pin(async move {
                tx.fail_to_sync();
                Ok(())
            })
        })
        .await;
    assert!(failed.is_err());
    until("the master to end", || {
        cluster.master().context.failure().is_some()
    })
    .await;
    let failure = cluster.master().context.failure().unwrap().to_owned();
    assert!(
        failure.contains("the disk did not confirm a change"),
        "{failure}"
    );
    cluster.stop_unchecked(WhyUnchecked::MasterEnded).await;
}
