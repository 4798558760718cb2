//! Faults, and what a test can ask.

use det_kube_double::ApiDouble;
use serde_json::json;

use crate::client::{CONFIG_MAPS, Client, JOBS, config_map, job, read, text};

#[tokio::test]
async fn the_next_requests_fail() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.faults().fail_next("POST", "jobs", 429, 2);
    double.faults().fail_next("WATCH", "jobs", 500, 1);
    let body = job("one", &json!({}));
    for _ in 0..2 {
        let sent = client
            .send("POST", JOBS, "application/json", Some(&body))
            .await
            .unwrap();
        assert_eq!(sent.headers()["retry-after"], "1");
        let (code, refused) = read(sent).await;
        assert_eq!(
            (code, text(&refused, "/reason")),
            (429, "TooManyRequests".to_owned())
        );
        assert_eq!(refused["details"]["retryAfterSeconds"], 1);
    }
    assert_eq!(client.get(JOBS).await.0, 200);
    assert_eq!(
        client
            .post(CONFIG_MAPS, &config_map("one", &json!({})))
            .await
            .0,
        201
    );
    assert_eq!(client.post(JOBS, &body).await.0, 201);
    let (code, refused) = client.get(&format!("{JOBS}?watch=true")).await;
    assert_eq!(
        (code, text(&refused, "/reason")),
        (500, "InternalError".to_owned())
    );
}

#[tokio::test]
async fn an_unreachable_double_closes_every_connection() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let mut watch = client.watch(CONFIG_MAPS, "").await;
    double.faults().unreachable(true);
    assert!(watch.next().await.is_err());
    for _ in 0..3 {
        assert!(client.send("GET", CONFIG_MAPS, "", None).await.is_err());
    }
    double.faults().unreachable(false);
    assert_eq!(client.get(CONFIG_MAPS).await.0, 200);
    // However short it is, no connection outlives it.
    let mut watch = client.watch(CONFIG_MAPS, "").await;
    double.faults().unreachable(true);
    double.faults().unreachable(false);
    assert!(watch.next().await.is_err());
}

#[tokio::test]
async fn watches_are_dropped_and_can_go_on() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let mut watch = client.watch(CONFIG_MAPS, "").await;
    client
        .post(CONFIG_MAPS, &config_map("one", &json!({})))
        .await;
    let one = watch.next().await.unwrap().unwrap();
    double.faults().drop_watches();
    assert!(watch.next().await.is_err());
    client
        .post(CONFIG_MAPS, &config_map("two", &json!({})))
        .await;
    let version = text(&one, "/object/metadata/resourceVersion");
    let mut watch = client
        .watch(CONFIG_MAPS, &format!("resourceVersion={version}"))
        .await;
    assert_eq!(watch.named().await, ("ADDED".to_owned(), "two".to_owned()));
}

#[tokio::test]
async fn an_answer_can_be_lost_although_the_write_is_done() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    double.faults().delay_writes(true);
    let writer = client.clone();
    let write = tokio::spawn(async move {
        writer
            .post(CONFIG_MAPS, &config_map("one", &json!({})))
            .await
    });
    double
        .until("the object is stored", |objects| {
            objects.get("v1/configmaps", "default", "one").is_some()
        })
        .await;
    // Reads are answered meanwhile.
    assert_eq!(client.get(CONFIG_MAPS).await.0, 200);
    assert!(!write.is_finished());
    double.faults().delay_writes(false);
    assert_eq!(write.await.unwrap().0, 201);
}

#[tokio::test]
async fn a_test_sees_the_requests_and_waits_for_objects() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let writer = client.clone();
    let write = tokio::spawn(async move { writer.post(JOBS, &job("one", &json!({}))).await });
    double
        .until("the Job has a pod", |objects| {
            objects.list("v1/pods", "default").len() == 1
        })
        .await;
    write.await.unwrap();
    client.get(&format!("{JOBS}?limit=1")).await;
    let requests = double.requests();
    let last = requests.last().unwrap();
    assert_eq!(requests.len(), 2);
    assert_eq!((last.method.as_str(), last.path.as_str()), ("GET", JOBS));
    assert_eq!(
        (last.query.as_str(), last.user_agent.as_str()),
        ("limit=1", "plain/1")
    );
}
