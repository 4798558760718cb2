//! Watches: where they start, what they contain, and how they end.

use det_kube_double::ApiDouble;
use serde_json::json;

use crate::client::{CONFIG_MAPS, Client, config_map, text};

fn event(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test]
async fn a_watch_contains_what_changes_after_its_version() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    client
        .post(CONFIG_MAPS, &config_map("old", &json!({})))
        .await;
    let (_, list) = client.get(CONFIG_MAPS).await;
    client
        .post(CONFIG_MAPS, &config_map("new", &json!({})))
        .await;
    let version = text(&list, "/metadata/resourceVersion");
    let mut watch = client
        .watch(CONFIG_MAPS, &format!("resourceVersion={version}"))
        .await;
    assert_eq!(watch.named().await, event("ADDED", "new"));
    let changed = json!({"data": {"a": "2"}});
    client
        .patch(&format!("{CONFIG_MAPS}/old"), "merge-patch+json", &changed)
        .await;
    assert_eq!(watch.named().await, event("MODIFIED", "old"));
    client
        .delete(&format!("{CONFIG_MAPS}/new"), &json!({}))
        .await;
    let deleted = watch.next().await.unwrap().unwrap();
    assert_eq!(text(&deleted, "/type"), "DELETED");
    assert_eq!(text(&deleted, "/object/kind"), "ConfigMap");
    let (_, list) = client.get(CONFIG_MAPS).await;
    assert_eq!(
        deleted["object"]["metadata"]["resourceVersion"],
        list["metadata"]["resourceVersion"]
    );
}

#[tokio::test]
async fn a_watch_without_a_version_starts_with_what_exists() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    client
        .post(CONFIG_MAPS, &config_map("one", &json!({})))
        .await;
    let mut watch = client.watch(CONFIG_MAPS, "resourceVersion=0").await;
    assert_eq!(watch.named().await, event("ADDED", "one"));
    client
        .post(CONFIG_MAPS, &config_map("two", &json!({})))
        .await;
    assert_eq!(watch.named().await, event("ADDED", "two"));
}

#[tokio::test]
async fn what_leaves_the_selection_is_deleted_for_the_watch() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let mut watch = client.watch(CONFIG_MAPS, "labelSelector=a%3D1").await;
    client
        .post(CONFIG_MAPS, &config_map("other", &json!({})))
        .await;
    client
        .post(CONFIG_MAPS, &config_map("one", &json!({"a": "1"})))
        .await;
    assert_eq!(watch.named().await, event("ADDED", "one"));
    for (value, kind) in [("2", "DELETED"), ("1", "ADDED")] {
        let labels = json!({"metadata": {"labels": {"a": value}}});
        let path = format!("{CONFIG_MAPS}/one");
        client.patch(&path, "merge-patch+json", &labels).await;
        assert_eq!(watch.named().await, event(kind, "one"));
    }
}

#[tokio::test]
async fn bookmarks_go_to_watches_that_allow_them() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let mut watch = client.watch(CONFIG_MAPS, "allowWatchBookmarks=true").await;
    let mut without = client.watch(CONFIG_MAPS, "").await;
    double.create("v1/pods", "default", crate::client::pod("other", 0));
    double.faults().send_bookmarks();
    let bookmark = watch.next().await.unwrap().unwrap();
    assert_eq!(text(&bookmark, "/type"), "BOOKMARK");
    assert_eq!(text(&bookmark, "/object/kind"), "ConfigMap");
    client
        .post(CONFIG_MAPS, &config_map("one", &json!({})))
        .await;
    assert_eq!(watch.named().await, event("ADDED", "one"));
    assert_eq!(without.named().await, event("ADDED", "one"));
    // A watch that ends by its own time leaves a bookmark as well.
    let mut short = client
        .watch(
            CONFIG_MAPS,
            "allowWatchBookmarks=true&timeoutSeconds=0&resourceVersion=1",
        )
        .await;
    assert_eq!(short.named().await, event("ADDED", "one"));
    assert_eq!(
        text(&short.next().await.unwrap().unwrap(), "/type"),
        "BOOKMARK"
    );
    assert_eq!(short.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_watch_can_be_a_list_that_goes_on() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    client
        .post(CONFIG_MAPS, &config_map("one", &json!({})))
        .await;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = client.watch(CONFIG_MAPS, query).await;
    assert_eq!(watch.named().await, event("ADDED", "one"));
    let end = watch.next().await.unwrap().unwrap();
    assert_eq!(text(&end, "/type"), "BOOKMARK");
    assert_eq!(
        end["object"]["metadata"]["annotations"],
        json!({"k8s.io/initial-events-end": "true"})
    );
    client
        .post(CONFIG_MAPS, &config_map("two", &json!({})))
        .await;
    assert_eq!(watch.named().await, event("ADDED", "two"));
    let (code, _) = client
        .get(&format!("{CONFIG_MAPS}?watch=true&sendInitialEvents=true"))
        .await;
    assert_eq!(code, 422);
}

#[tokio::test]
async fn a_version_before_the_compaction_has_expired() {
    let double = ApiDouble::start().await;
    let client = Client::new(&double);
    let (_, list) = client.get(CONFIG_MAPS).await;
    let version = text(&list, "/metadata/resourceVersion");
    let mut open = client
        .watch(CONFIG_MAPS, &format!("resourceVersion={version}"))
        .await;
    client
        .post(CONFIG_MAPS, &config_map("one", &json!({})))
        .await;
    double.faults().compact();
    let mut late = client
        .watch(CONFIG_MAPS, &format!("resourceVersion={version}"))
        .await;
    let error = late.next().await.unwrap().unwrap();
    assert_eq!(text(&error, "/type"), "ERROR");
    assert_eq!(error["object"]["code"], 410);
    assert_eq!(text(&error, "/object/reason"), "Expired");
    assert_eq!(late.next().await.unwrap(), None);
    // One that was open goes on.
    assert_eq!(open.named().await, event("ADDED", "one"));
}
