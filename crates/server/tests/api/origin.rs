//! Requests that a browser sends for pages of other sites.

use serde_json::json;

use crate::support::Cluster;

/// A name that an attacker made to resolve to 127.0.0.1 reaches the port, and nothing behind it.
#[tokio::test]
async fn a_page_that_rebinds_its_name_reaches_nothing() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    let rebound = client.and("Host", "attacker.example:8080");
    for path in ["/", "/info", "/api/v1/master", "/api/v1/me"] {
        let refusal = rebound.get(path).await.refused(403);
        assert!(refusal.contains("\"attacker.example:8080\""), "{refusal}");
    }
    let login = json!({"username": "admin", "password": "", "isHashed": true});
    rebound
        .post("/api/v1/auth/login", login.clone())
        .await
        .refused(403);
    client
        .and("Host", "localhost:8080")
        .post("/api/v1/auth/login", login)
        .await
        .ok();
    cluster.stop().await;
}

/// Behind a proxy on the same machine the name is another one; it is configured, also while the master runs.
#[tokio::test]
async fn configured_names_are_accepted() {
    let cluster =
        Cluster::start_with(&[("security.host_names", "[det.example, Other.example]")]).await;
    for name in ["det.example", "DET.EXAMPLE:443", "other.example"] {
        cluster.client().and("Host", name).get("/info").await.ok();
    }
    cluster
        .client()
        .and("Host", "third.example")
        .get("/info")
        .await
        .refused(403);
    cluster.stop().await;
}

/// A cookie is sent along with whatever a page of another site asks for, so it does not count there.
#[tokio::test]
async fn a_cookie_counts_only_for_pages_of_this_master() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    let login = json!({"username": "admin", "password": "", "isHashed": true});
    let token = client.post("/api/v1/auth/login", login.clone()).await.ok()["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let browser = client.with("Cookie", format!("auth={token}"));
    let new_user = |name: &str| json!({"user": {"username": name, "active": true}});
    let foreign = [
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
        ("Origin", "http://127.0.0.1:1"),
        ("Origin", "null"),
    ];
    for (header, value) in foreign {
        let page = browser.and(header, value);
        let refusal = page
            .post("/api/v1/users", new_user("planted"))
            .await
            .refused(403);
        assert!(refusal.contains("another site"), "{refusal}");
        // Nor does a page log a browser in as a user.
        client
            .and(header, value)
            .post("/api/v1/auth/login", login.clone())
            .await
            .refused(403);
        // A token in a header is something that no page of another site can add.
        client
            .and(header, value)
            .with("Authorization", format!("Bearer {token}"))
            .get("/api/v1/me")
            .await
            .ok();
    }
    browser
        .post("/api/v1/users", new_user("planted"))
        .await
        .refused(403);
    browser
        .and("Authorization", "Basic YTpi")
        .post("/api/v1/users", new_user("planted"))
        .await
        .refused(403);
    browser
        .and("Sec-Fetch-Site", "same-origin")
        .post("/api/v1/users", new_user("invited"))
        .await
        .ok();
    let users = browser.get("/api/v1/users").await.ok().to_string();
    assert!(
        users.contains("invited") && !users.contains("planted"),
        "{users}"
    );
    cluster.stop().await;
}

/// With `enable_cors` pages of other sites log users in for a token. A form of such a page, which needs no permission of the
/// browser, must not make the browser another user's: no login of theirs sets a cookie.
#[tokio::test]
async fn a_page_of_another_site_gets_a_token_and_leaves_no_session_in_the_browser() {
    let cluster = Cluster::start_with(&[("enable_cors", "true")]).await;
    let client = cluster.client();
    let login = json!({"username": "admin", "password": "", "isHashed": true});
    let logins = ["/api/v1/auth/login", "/login?cookie=true"];
    for (header, value) in [
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
        ("Origin", "http://127.0.0.1:1"),
        ("Origin", "null"),
    ] {
        let page = client.and(header, value);
        for path in logins {
            let answer = page.post(path, login.clone()).await;
            assert!(answer.ok()["token"].is_string(), "{path} {value}");
            assert!(
                !answer.headers.contains_key("set-cookie"),
                "{path} {header}: {value}"
            );
        }
        let answer = page.post("/det/login", json!({})).await;
        assert_eq!(answer.status, 403, "{value}");
        assert!(!answer.headers.contains_key("set-cookie"));
    }
    let own = client.and("Sec-Fetch-Site", "same-origin");
    for path in logins {
        let answer = own.post(path, login.clone()).await;
        assert!(answer.headers.contains_key("set-cookie"), "{path}");
    }
    cluster.stop().await;
}
