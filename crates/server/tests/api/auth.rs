//! Logging in and out, and who one is.

use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::json;

use crate::support::{Client, Cluster, Reply, within};

#[tokio::test]
async fn a_user_logs_in_asks_and_logs_out() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    let login = client
        .post(
            "/api/v1/auth/login",
            json!({"username": "admin", "password": "", "isHashed": true}),
        )
        .await;
    let body = login.ok();
    assert_eq!(body["user"]["username"], "admin");
    assert_eq!(body["user"]["admin"], true);
    assert!(body["user"]["lastAuthAt"].is_string(), "{body}");
    let token = body["token"].as_str().unwrap().to_owned();
    let cookie = login.headers["set-cookie"].to_str().unwrap().to_owned();
    assert!(
        cookie.starts_with(&format!("auth={token}; Path=/; Max-Age=604800; HttpOnly")),
        "{cookie}"
    );

    let admin = client.with("Authorization", format!("Bearer {token}"));
    let browser = client.with("Cookie", format!("theme=dark; auth={token}"));
    for path in ["/api/v1/me", "/api/v1/auth/user"] {
        assert_eq!(admin.get(path).await.ok()["user"]["username"], "admin");
        assert_eq!(browser.get(path).await.ok()["user"]["username"], "admin");
    }

    let logout = admin.post("/api/v1/auth/logout", json!(null)).await;
    assert_eq!(logout.ok(), json!({}));
    assert!(
        logout.headers["set-cookie"]
            .to_str()
            .unwrap()
            .starts_with("auth=; Path=/; Max-Age=0")
    );
    admin.get("/api/v1/me").await.refused(401);
    cluster.stop().await;
}

#[tokio::test]
async fn wrong_credentials_are_refused_alike() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    let login = "/api/v1/auth/login";
    for body in [
        json!({"username": "admin", "password": "x"}),
        json!({"username": "nobody", "password": ""}),
    ] {
        assert!(
            client
                .post(login, body)
                .await
                .refused(401)
                .starts_with("invalid credentials")
        );
    }
    assert!(
        client
            .post(login, json!({"password": "x"}))
            .await
            .refused(400)
            .contains("username")
    );
    assert!(
        client
            .post(login, json!({"username": 7}))
            .await
            .refused(400)
            .contains("username")
    );
    assert!(
        client
            .post(login, json!({"username": "admin", "password": {}}))
            .await
            .refused(400)
            .contains("password")
    );

    let admin = cluster.admin().await;
    let determined =
        admin.get("/api/v1/users/determined/by-username").await.ok()["user"]["id"].clone();
    admin
        .patch(
            &format!("/api/v1/users/{determined}"),
            json!({"active": false}),
        )
        .await
        .ok();
    assert!(
        client
            .post(login, json!({"username": "determined"}))
            .await
            .refused(403)
            .contains("user is not active")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_token_is_needed() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    for path in ["/api/v1/me", "/api/v1/auth/user"] {
        client.assert_needs_token(Method::GET, path).await;
    }
    client
        .assert_needs_token(Method::POST, "/api/v1/auth/logout")
        .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_task_is_its_owner_but_cannot_log_out() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let task = cluster.client().as_task(&spec.script.token);
    assert_eq!(
        task.get("/api/v1/me").await.ok()["user"]["username"],
        "admin"
    );
    assert!(
        task.post("/api/v1/auth/logout", json!(null))
            .await
            .refused(400)
            .contains("task")
    );
    assert_eq!(task.get("/api/v1/me").await.status, 200);
    cluster.stop().await;
}

#[tokio::test]
async fn the_older_routes_answer_in_their_own_form() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    let login = client
        .post(
            "/login?cookie=true",
            json!({"username": "admin", "password": ""}),
        )
        .await;
    let token = login.ok()["token"].as_str().unwrap().to_owned();
    assert!(login.headers.contains_key("set-cookie"));
    let plain = client.post("/login", json!({"username": "admin"})).await;
    assert!(plain.ok()["token"].is_string() && !plain.headers.contains_key("set-cookie"));

    let browser = client.with("Cookie", format!("auth={token}"));
    let me = browser.get("/users/me").await.ok();
    assert_eq!(
        (me["username"].as_str(), me["display_name"].as_str()),
        (Some("admin"), Some(""))
    );
    // A cookie alone changes nothing: the browser must send that a page of this master asks.
    assert_eq!(browser.post("/logout", json!(null)).await.status, 403);
    let page = browser.and("Sec-Fetch-Site", "same-origin");
    assert_eq!(page.post("/logout", json!(null)).await.ok(), json!({}));

    let refused = browser.get("/users/me").await;
    assert_eq!(refused.status, 401);
    assert!(refused.json()["message"].is_string());
    let wrong = client
        .post("/login", json!({"username": "admin", "password": "x"}))
        .await;
    assert_eq!(wrong.status, 403);
    assert!(
        wrong.json()["message"]
            .as_str()
            .unwrap()
            .starts_with("invalid credentials")
    );
    assert!(
        client
            .post("/login", json!({}))
            .await
            .refused(400)
            .contains("username")
    );
    assert_eq!(client.post("/logout", json!(null)).await.status, 401);
    cluster.stop().await;
}

#[tokio::test]
async fn wrong_passwords_from_one_address_fill_a_short_queue_and_no_more() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    let wrong = json!({"username": "admin", "password": "x", "isHashed": false});
    let attempts = (0..40).map(|_| client.post("/api/v1/auth/login", wrong.clone()));
    let replies = futures::future::join_all(attempts).await;
    let with = |status: u16| {
        replies
            .iter()
            .filter(|reply| reply.status == status)
            .count()
    };
    assert_eq!(with(401) + with(429), 40, "{replies:?}");
    // Five without delay, what was being compared then, and those of the queue.
    assert!(with(401) <= 14, "{}", with(401));
    let refused = replies.iter().find(|reply| reply.status == 429).unwrap();
    assert!(refused.refused(429).contains("too many logins"));
    // A right password still gets in, if later.
    cluster.admin().await;
    cluster.stop().await;
}

#[tokio::test]
async fn rights_end_that_another_process_takes_away_in_the_database() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let change = async |sql: &'static str| {
        let store = &cluster.master().context.store;
        store
            .write(move |tx| Box::pin(async move { tx.run_script(sql).await }))
            .await
            .unwrap();
    };
    let until = async |client: &Client, wanted: &dyn Fn(&Reply) -> bool| {
        within("a right to end", async {
            while !wanted(&client.get("/api/v1/me").await) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    };
    change("UPDATE users SET admin = NOT admin WHERE username = 'admin'").await;
    until(&admin, &|me| me.ok()["user"]["admin"] == false).await;
    let new = json!({"user": {"username": "x"}});
    admin.post("/api/v1/users", new).await.refused(403);
    change("UPDATE users SET active = NOT active WHERE username = 'determined'").await;
    until(&client, &|me| me.status == 401).await;
    change("DELETE FROM sessions").await;
    until(&admin, &|me| me.status == 401).await;
    cluster.stop().await;
}

/// The files below a directory that contain a text.
fn files_with(directory: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if std::fs::read(&path)
            .unwrap()
            .windows(text.len())
            .any(|window| window == text.as_bytes())
        {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn tokens_of_sessions_and_containers_are_in_no_file() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let login = json!({"username": "admin", "password": ""});
    let login = cluster.client().post("/api/v1/auth/login", login).await;
    let session = login.ok()["token"].as_str().unwrap().to_owned();
    let directory = cluster.master().data_dir.clone();
    // What is stored of the task can be found.
    assert_ne!(
        files_with(&directory, spec.task_id.as_str()),
        [] as [PathBuf; 0]
    );
    for token in [&session, &spec.script.token] {
        assert_eq!(files_with(&directory, token), [] as [PathBuf; 0]);
    }
    cluster.stop().await;
}
