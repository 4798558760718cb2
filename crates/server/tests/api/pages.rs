//! Pages that end early, because what is on them is large.

use serde_json::json;

use super::checkpoints;
use super::trials::{metrics, running};
use super::workspaces::{project, workspace};
use crate::support::{Client, Cluster};

#[tokio::test]
async fn pages_of_large_templates_end_early() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    for n in 0..10 {
        let body = json!({"config": {"data": {"x": "x".repeat(1_000_000)}}});
        client
            .post(&format!("/api/v1/templates/t{n}"), body)
            .await
            .ok();
    }
    let page = async |query: &str| {
        let page = client.get(&format!("/api/v1/templates?{query}")).await.ok();
        let names: Vec<String> = page["templates"]
            .as_array()
            .unwrap()
            .iter()
            .map(|template| template["name"].as_str().unwrap().to_owned())
            .collect();
        (
            names,
            page["pagination"]["endIndex"].clone(),
            page["pagination"]["total"].clone(),
        )
    };
    let (first, end, total) = page("orderBy=ORDER_BY_DESC").await;
    assert_eq!(first, ["t9", "t8", "t7", "t6", "t5", "t4", "t3", "t2"]);
    assert_eq!((end, total), (json!(8), json!(10)));
    let (rest, end, _) = page("orderBy=ORDER_BY_DESC&offset=8").await;
    assert_eq!(
        (rest, end),
        (vec!["t1".to_owned(), "t0".to_owned()], json!(10))
    );
    cluster.stop().await;
}

#[tokio::test]
async fn pages_of_large_checkpoints_end_early() {
    let cluster = Cluster::start().await;
    let (_agent, spec, task) = running(&cluster).await;
    for n in 1..=4 {
        let mut large = checkpoints::report(&spec, n, i64::from(n));
        // The second pair is large by its reports.
        let text = "x".repeat(3_000_000);
        if n <= 2 {
            large["metadata"]["text"] = json!(text);
        } else {
            let body = metrics("validation", 1, n.into(), &json!({"text": text, "loss": 1}));
            task.post("/api/v1/trials/1/metrics", body).await.ok();
        }
        task.post(checkpoints::PATH, large).await.ok();
    }
    let admin = cluster.admin().await;
    for path in ["experiments/1", "trials/1"] {
        let (mut found, mut ends) = (Vec::new(), Vec::new());
        let mut offset = 0;
        while offset < 4 {
            let query = format!("sortByAttr=SORT_BY_BATCH_NUMBER&offset={offset}");
            let page = admin
                .get(&format!("/api/v1/{path}/checkpoints?{query}"))
                .await
                .ok();
            assert_eq!(page["pagination"]["total"], 4);
            let uuids = page["checkpoints"].as_array().unwrap().iter();
            found.extend(uuids.map(|checkpoint| checkpoint["uuid"].clone()));
            offset = page["pagination"]["endIndex"].as_i64().unwrap();
            assert_eq!(found.len(), usize::try_from(offset).unwrap());
            ends.push(offset);
        }
        assert_eq!(
            found,
            (1..=4)
                .map(|n| json!(checkpoints::uuid(n)))
                .collect::<Vec<_>>()
        );
        assert!(ends.len() > 1, "{ends:?}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn pages_of_projects_with_large_texts_end_early() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let made = workspace(&client, json!({"name": "w"})).await;
    let long = |n: u32| format!("{n:03}{}", "x".repeat(127 << 10));
    for n in 0..36 {
        let id = project(&client, &made, &format!("p{n:02}")).await;
        let path = format!("/api/v1/projects/{id}");
        let patch = json!({"description": long(100 - n)});
        client.patch(&path, patch).await.ok();
        let note = json!({"name": "n", "contents": long(n)});
        client.post(&format!("{path}/notes"), note).await.ok();
    }
    let (mut found, mut pages) = (Vec::new(), 0);
    while found.len() < 36 {
        let query = format!("sortBy=SORT_BY_DESCRIPTION&offset={}", found.len());
        let path = format!("/api/v1/workspaces/{}/projects?{query}", made["id"]);
        let page = client.get(&path).await.ok();
        found.extend(page["projects"].as_array().unwrap().clone());
        assert_eq!(page["pagination"]["endIndex"], found.len());
        assert_eq!(page["pagination"]["total"], 36);
        pages += 1;
    }
    assert_eq!(pages, 2);
    assert_eq!(found[0]["name"], "p35");
    assert_eq!(found[0]["description"], long(65));
    assert_eq!(found[0]["notes"][0]["contents"], long(35));
    cluster.stop().await;
}

/// Goes through a list without a limit, page by page; gives the sizes of the pages.
async fn unlimited_pages(client: &Client, path: &str, member: &str) -> Vec<usize> {
    let (mut sizes, mut offset) = (Vec::new(), 0);
    loop {
        let page = client
            .get(&format!("{path}?limit=-1&offset={offset}"))
            .await
            .ok();
        let items = page[member].as_array().unwrap().len();
        assert!(page.to_string().len() < 20 << 20);
        sizes.push(items);
        let bounds = &page["pagination"];
        let end = bounds["endIndex"].as_u64().unwrap();
        assert_eq!(end, offset + items as u64, "{bounds}");
        assert!(end > offset, "{bounds}");
        if end == bounds["total"].as_u64().unwrap() {
            return sizes;
        }
        offset = end;
    }
}

/// Whatever a client asks for, the master holds some megabytes of it at once.
#[tokio::test]
async fn pages_of_large_experiments_and_trials_end_early_and_clients_go_on() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let large = "x".repeat(110 << 10);
    let mut first = None;
    for n in 0..50 {
        let config = json!({
            "name": n.to_string(), "data": {"text": large},
            "searcher": {"name": "single", "metric": "loss"},
            "checkpoint_storage": {"type": "directory", "container_path": "/tmp/checkpoints"},
        });
        let body = json!({"config": config.to_string(), "unmanaged": true, "activate": false});
        let path = format!("/api/v1/experiments/by-external-id/{n}");
        let made = client.put(&path, body).await.ok();
        first = first.or(made["experiment"]["id"].as_i64());
    }
    let sizes = unlimited_pages(&client, "/api/v1/experiments", "experiments").await;
    assert_eq!(sizes.iter().sum::<usize>(), 50);
    assert!(sizes.len() > 1, "{sizes:?}");

    let first = first.unwrap();
    for n in 0..100 {
        let trial = json!({"experimentId": first, "hparams": {"text": large}, "unmanaged": true});
        let body = json!({"externalTrialId": n.to_string(), "createTrialRequest": trial});
        client.put("/api/v1/trials", body).await.ok();
    }
    let path = format!("/api/v1/experiments/{first}/trials");
    let sizes = unlimited_pages(&client, &path, "trials").await;
    assert_eq!(sizes.iter().sum::<usize>(), 100);
    assert!(sizes.len() > 1, "{sizes:?}");
    cluster.stop().await;
}
