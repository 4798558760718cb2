//! Users.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Cluster};

async fn id_of(client: &Client, name: &str) -> i64 {
    client
        .get(&format!("/api/v1/users/{name}/by-username"))
        .await
        .ok()["user"]["id"]
        .as_i64()
        .unwrap()
}

fn names(answer: &Value) -> Vec<&str> {
    answer["users"]
        .as_array()
        .unwrap()
        .iter()
        .map(|u| u["username"].as_str().unwrap())
        .collect()
}

async fn add(admin: &Client, name: &str) -> i64 {
    let body = json!({"user": {"username": name, "admin": false, "active": true, "agentUserGroup": null}, "password": ""});
    admin.post("/api/v1/users", body).await.ok()["user"]["id"]
        .as_i64()
        .unwrap()
}

#[tokio::test]
async fn users_are_listed_filtered_sorted_and_paged() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    for name in ["zoe", "Ada", "bob"] {
        add(&admin, name).await;
    }
    let bob = id_of(&admin, "bob").await;
    admin
        .patch(
            &format!("/api/v1/users/{bob}"),
            json!({"active": false, "displayName": "Robert"}),
        )
        .await
        .ok();

    let all = admin.get("/api/v1/users").await.ok();
    assert_eq!(names(&all), ["admin", "determined", "zoe", "Ada", "bob"]);
    assert_eq!(
        all["pagination"],
        json!({"offset": 0, "limit": 0, "startIndex": 0, "endIndex": 5, "total": 5})
    );
    let wanted = [
        (
            "active=true&offset=0",
            vec!["admin", "determined", "zoe", "Ada"],
        ),
        ("active=false", vec!["bob"]),
        ("admin=true", vec!["admin"]),
        ("name=ROB", vec!["bob"]),
        (
            "sortBy=SORT_BY_USER_NAME",
            vec!["Ada", "admin", "bob", "determined", "zoe"],
        ),
        (
            "sortBy=2&orderBy=ORDER_BY_DESC&limit=2",
            vec!["zoe", "determined"],
        ),
        ("offset=-2", vec!["Ada", "bob"]),
        ("offset=99", vec![]),
        ("sortBy=SORT_BY_LAST_AUTH_TIME&limit=1", vec!["admin"]),
        (
            "sort_by=SORT_BY_LAST_AUTH_TIME&order_by=ORDER_BY_DESC&limit=1",
            vec!["admin"],
        ),
        ("roleIdAssignedDirectlyToUser=1", vec![]),
    ];
    for (query, expected) in wanted {
        assert_eq!(
            names(&admin.get(&format!("/api/v1/users?{query}")).await.ok()),
            expected,
            "{query}"
        );
    }
    let beyond = admin.get("/api/v1/users?offset=99").await.ok();
    assert_eq!(
        beyond["pagination"]["endIndex"],
        beyond["pagination"]["total"]
    );
    assert!(
        admin
            .get("/api/v1/users?active=perhaps")
            .await
            .refused(400)
            .contains("active")
    );
    assert!(
        admin
            .get("/api/v1/users?sortBy=SORT_BY_AGE")
            .await
            .refused(400)
            .contains("sortBy")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn one_user_is_found_by_number_and_by_name() {
    let cluster = Cluster::start().await;
    let determined = cluster.determined().await;
    let id = id_of(&determined, "admin").await;
    let user = determined.get(&format!("/api/v1/users/{id}")).await.ok()["user"].clone();
    assert_eq!(
        (user["username"].as_str(), user["remote"].as_bool()),
        (Some("admin"), Some(false))
    );
    assert!(user["agentUserGroup"].is_null());
    assert!(
        determined
            .get("/api/v1/users/999")
            .await
            .refused(404)
            .contains("999")
    );
    assert!(
        determined
            .get("/api/v1/users/nobody/by-username")
            .await
            .refused(404)
            .contains("nobody")
    );
    assert!(
        determined
            .get("/api/v1/users/x")
            .await
            .refused(400)
            .contains("number")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn an_administrator_adds_users_and_no_other_user_does() {
    let cluster = Cluster::start().await;
    let (admin, determined) = (cluster.admin().await, cluster.determined().await);
    let group = json!({"agentUid": 7, "agentUser": "ada", "agentGid": 8, "agentGroup": "staff"});
    let body = json!({
        "user": {"username": "ada", "admin": false, "active": true, "displayName": "Ada L.", "agentUserGroup": group},
        "password": "secret", "isHashed": false,
    });
    let user = admin.post("/api/v1/users", body.clone()).await.ok()["user"].clone();
    assert_eq!(
        (user["displayName"].as_str(), &user["agentUserGroup"]),
        (Some("Ada L."), &group)
    );
    let login = json!({"username": "ada", "password": "secret", "isHashed": false});
    cluster
        .client()
        .post("/api/v1/auth/login", login)
        .await
        .ok();

    assert!(
        admin
            .post("/api/v1/users", body.clone())
            .await
            .refused(409)
            .contains("exists already")
    );
    assert!(
        determined
            .post("/api/v1/users", body)
            .await
            .refused(403)
            .contains("administrator")
    );
    let refused = [
        (json!({}), "username"),
        (json!({"user": {"username": " "}}), "username"),
        (json!({"user": {"username": "a/b"}}), "a/b"),
        (json!({"user": {"username": 7}}), "user.username"),
        (json!({"user": {"username": "x", "remote": true}}), "remote"),
        (
            json!({"user": {"username": "x"}, "password": "short", "isHashed": true}),
            "isHashed",
        ),
        (
            json!({"user": {"username": "x", "agentUserGroup": {"agentUid": 7}}}),
            "agentUserGroup",
        ),
    ];
    for (body, named) in refused {
        let sentence = admin.post("/api/v1/users", body.clone()).await.refused(400);
        assert!(sentence.contains(named), "{body}: {sentence}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn users_change_themselves_a_little_and_administrators_every_user() {
    let cluster = Cluster::start().await;
    let (admin, determined) = (cluster.admin().await, cluster.determined().await);
    let own = format!("/api/v1/users/{}", id_of(&admin, "determined").await);
    let other = format!("/api/v1/users/{}", id_of(&admin, "admin").await);

    let nulls = json!({"displayName": "D", "admin": null, "active": null, "username": null, "password": null});
    assert_eq!(
        determined.patch(&own, nulls).await.ok()["user"]["displayName"],
        "D"
    );
    // What stays as it is needs no right to change it.
    determined
        .patch(
            &own,
            json!({"displayName": "", "admin": false, "username": "determined"}),
        )
        .await
        .ok();
    assert!(
        determined
            .patch(&own, json!({"admin": true}))
            .await
            .refused(403)
            .contains("administrator flag")
    );
    assert!(
        determined
            .patch(&own, json!({"username": "boss"}))
            .await
            .refused(403)
            .contains("user name")
    );
    assert!(
        determined
            .patch(&other, json!({"displayName": "x"}))
            .await
            .refused(403)
            .contains("admin")
    );

    let group = json!({"agentUid": 7, "agentUser": "d", "agentGid": 8, "agentGroup": "g"});
    let body = json!({"username": "dora", "admin": true, "agentUserGroup": group});
    let changed = admin.patch(&own, body).await.ok()["user"].clone();
    assert_eq!(
        (changed["username"].as_str(), changed["admin"].as_bool()),
        (Some("dora"), Some(true))
    );
    assert_eq!(changed["agentUserGroup"], group);
    assert!(
        admin.patch(&own, json!({"agentUserGroup": {}})).await.ok()["user"]["agentUserGroup"]
            .is_null()
    );
    assert!(
        admin
            .patch(&own, json!({"username": "admin"}))
            .await
            .refused(409)
            .contains("exists already")
    );
    assert!(
        admin
            .patch(&own, json!({"username": ""}))
            .await
            .refused(400)
            .contains("username")
    );
    assert!(
        admin
            .patch(&own, json!({"active": "yes"}))
            .await
            .refused(400)
            .contains("active")
    );
    assert!(
        admin
            .patch("/api/v1/users/999", json!({}))
            .await
            .refused(404)
            .contains("999")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn the_last_administrator_stays() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let own = format!("/api/v1/users/{}", id_of(&admin, "admin").await);
    for body in [json!({"admin": false}), json!({"active": false})] {
        assert!(
            admin
                .patch(&own, body)
                .await
                .refused(400)
                .contains("last active administrator")
        );
    }
    let determined = format!("/api/v1/users/{}", id_of(&admin, "determined").await);
    admin.patch(&determined, json!({"admin": true})).await.ok();
    admin.patch(&own, json!({"admin": false})).await.ok();
    assert_eq!(admin.get("/api/v1/me").await.ok()["user"]["admin"], false);
    cluster.stop().await;
}

#[tokio::test]
async fn a_new_password_ends_all_sessions() {
    let cluster = Cluster::start().await;
    let (admin, first, second) = (
        cluster.admin().await,
        cluster.determined().await,
        cluster.determined().await,
    );
    let own = format!("/api/v1/users/{}", id_of(&admin, "determined").await);
    first
        .patch(&own, json!({"password": "a new one", "isHashed": false}))
        .await
        .ok();
    for client in [&first, &second] {
        client.get("/api/v1/me").await.refused(401);
    }
    let login =
        |password: &str| json!({"username": "determined", "password": password, "isHashed": false});
    cluster
        .client()
        .post("/api/v1/auth/login", login(""))
        .await
        .refused(401);
    cluster
        .client()
        .post("/api/v1/auth/login", login("a new one"))
        .await
        .ok();

    admin
        .post(&format!("{own}/password"), json!("another"))
        .await
        .ok();
    let third = cluster
        .client()
        .post("/api/v1/auth/login", login("another"))
        .await
        .ok();
    let third = cluster.client().with(
        "Authorization",
        format!("Bearer {}", third["token"].as_str().unwrap()),
    );
    assert!(
        admin
            .post(&format!("{own}/password"), json!(null))
            .await
            .refused(400)
            .contains("password")
    );
    assert!(
        admin
            .post(&format!("{own}/password"), json!({"password": "x"}))
            .await
            .refused(400)
            .contains("string")
    );
    assert!(
        third
            .post("/api/v1/users/1/password", json!("x"))
            .await
            .refused(403)
            .contains("administrator")
    );
    assert!(
        admin
            .post("/api/v1/users/999/password", json!("x"))
            .await
            .refused(404)
            .contains("999")
    );

    admin.patch(&own, json!({"active": false})).await.ok();
    third.get("/api/v1/me").await.refused(401);
    assert_eq!(admin.get("/api/v1/me").await.status, 200);
    cluster.stop().await;
}

#[tokio::test]
async fn a_task_cannot_change_its_owner() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let task = cluster.client().as_task(&spec.script.token);
    let own = format!("/api/v1/users/{}", id_of(&task, "admin").await);
    assert!(
        task.patch(&own, json!({"password": "mine"}))
            .await
            .refused(403)
            .contains("only users")
    );
    assert!(
        task.post(&format!("{own}/password"), json!("mine"))
            .await
            .refused(403)
            .contains("only users")
    );
    assert!(
        task.post("/api/v1/users", json!({"user": {"username": "x"}}))
            .await
            .refused(403)
            .contains("only users")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_token_is_needed() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    for path in [
        "/api/v1/users",
        "/api/v1/users/1",
        "/api/v1/users/admin/by-username",
    ] {
        client.assert_needs_token(Method::GET, path).await;
    }
    client
        .assert_needs_token(Method::POST, "/api/v1/users")
        .await;
    client
        .assert_needs_token(Method::PATCH, "/api/v1/users/1")
        .await;
    client
        .assert_needs_token(Method::POST, "/api/v1/users/1/password")
        .await;
    cluster.stop().await;
}

#[tokio::test]
async fn no_user_is_displayed_with_the_name_of_another() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let own = format!("/api/v1/users/{}", id_of(&admin, "determined").await);
    let ada = add(&admin, "ada").await;
    let named = json!({"displayName": "Countess"});
    admin
        .patch(&format!("/api/v1/users/{ada}"), named)
        .await
        .ok();
    for taken in ["Admin", "admin", " ADMIN ", "Ada", "countess"] {
        let body = json!({"displayName": taken});
        let refused = client.patch(&own, body).await.refused(409);
        assert!(refused.contains("display name"), "{refused}");
        let user = json!({"user": {"username": "new", "displayName": taken}});
        admin.post("/api/v1/users", user).await.refused(409);
    }
    // A user's own login name, and none at all, are no other user's.
    for (given, kept) in [("Determined", "Determined"), ("", "")] {
        let changed = client.patch(&own, json!({"displayName": given})).await.ok();
        assert_eq!(changed["user"]["displayName"], kept);
    }
    cluster.stop().await;
}
