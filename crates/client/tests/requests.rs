//! The client against a fake master.

#![allow(
    clippy::unwrap_used,
    reason = "a helper that fails makes its test fail"
)]

mod support;

use std::io;
use std::sync::Arc;

use det_client::{
    Client, ClientError, ClientOptions, Environment, MasterUrl, Pages, Paging, Query, Secret,
    Session, SessionError, TokenStore, Trust, fingerprint, presented_chain, salted_hash,
};
use serde_json::json;
use support::{Answer, StubMaster, ok, stream};

fn client(stub: &StubMaster) -> Client {
    det_client::install_crypto_provider();
    let master: MasterUrl = stub.address().parse().unwrap();
    Client::new(master, &ClientOptions::default()).unwrap()
}

fn store() -> (tempfile::TempDir, TokenStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = TokenStore::in_directory(directory.path());
    (directory, store)
}

fn no_terminal_asks(user: &str) -> io::Result<Secret> {
    Err(io::Error::other(format!(
        "the password of {user} was asked for"
    )))
}

#[tokio::test]
async fn a_request_carries_query_and_token() {
    let stub = StubMaster::start();
    stub.on("GET /api/v1/agents", ok(json!({"agents": []})));
    let client = client(&stub).with_token(Secret::new("T"));
    let query = Query::new()
        .with("archived", false)
        .with_all("users", ["ada", "b ob"]);
    client.get("/api/v1/agents", &query).await.unwrap();
    let asked = stub.last("GET /api/v1/agents");
    assert_eq!(
        asked.line,
        "GET /api/v1/agents?archived=false&users=ada&users=b+ob"
    );
    assert_eq!(asked.headers["authorization"], "Bearer T");
}

#[tokio::test]
async fn refusals_are_distinguished() {
    let stub = StubMaster::start();
    for status in [401, 403, 404, 409] {
        stub.on(
            "GET /x",
            Answer::Json(status, json!({"error": {"error": "because"}})),
        );
        let error = client(&stub).get("/x", &Query::new()).await.unwrap_err();
        assert!(error.to_string().ends_with("because"), "{error}");
        let fits = match status {
            401 => matches!(error, ClientError::Unauthenticated { .. }),
            403 => matches!(error, ClientError::Forbidden { .. }),
            404 => matches!(error, ClientError::NotFound { .. }),
            _ => matches!(error, ClientError::Failed { status: 409, .. }),
        };
        assert!(fits, "{status} gave {error:?}");
    }
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    det_client::install_crypto_provider();
    let client = Client::new(address.parse().unwrap(), &ClientOptions::default()).unwrap();
    let error = client.get("/info", &Query::new()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("could not reach a master at http://{address}: the connection was refused")
    );
    assert!(error.is_connection());
}

#[tokio::test]
async fn another_kind_of_server_is_recognised() {
    let stub = StubMaster::bare();
    stub.on(
        "GET /info",
        Answer::Raw(200, "text/html", b"<html>".to_vec()),
    );
    let error = client(&stub).get("/info", &Query::new()).await.unwrap_err();
    assert!(matches!(error, ClientError::BadAnswer { .. }), "{error:?}");
}

#[tokio::test]
async fn a_master_that_comes_back_is_not_noticed() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/tasks",
        Answer::InTurn(vec![
            ok(json!({"n": 1})),
            Answer::Json(503, json!({"message": "restarting"})),
            ok(json!({"n": 2})),
        ]),
    );
    let client = client(&stub);
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let answer = client.get("/api/v1/tasks", &Query::new()).await.unwrap();
        numbers.push(answer["n"].as_i64().unwrap());
    }
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test]
async fn pages_are_read_to_the_end() {
    let stub = StubMaster::start();
    let page = |start: i64, end: i64| {
        let items: Vec<i64> = (start..end).collect();
        ok(json!({"items": items, "pagination": {"offset": start, "endIndex": end, "total": 5}}))
    };
    stub.on(
        "GET /list",
        Answer::InTurn(vec![page(0, 2), page(2, 4), page(4, 5)]),
    );
    let client = client(&stub);
    let all = client
        .list("/list", &Query::new().with("x", 1), "items", Paging::all(2))
        .await
        .unwrap();
    assert_eq!(json!(all), json!([0, 1, 2, 3, 4]));
    assert_eq!(
        stub.lines(),
        [
            "GET /list?x=1&limit=2&offset=0",
            "GET /list?x=1&limit=2&offset=2",
            "GET /list?x=1&limit=2&offset=4"
        ]
    );
    stub.on("GET /list", page(0, 2));
    let one = Paging {
        pages: Pages::One,
        ..Paging::all(2)
    };
    let first = client
        .list("/list", &Query::new(), "items", one)
        .await
        .unwrap();
    assert_eq!(json!(first), json!([0, 1]));
}

#[tokio::test]
async fn a_page_that_does_not_advance_ends_the_list() {
    let stub = StubMaster::start();
    stub.on(
        "GET /list",
        ok(json!({"items": [], "pagination": {"endIndex": 0, "total": 5}})),
    );
    let all = client(&stub)
        .list("/list", &Query::new(), "items", Paging::all(2))
        .await
        .unwrap();
    assert!(all.is_empty());
}

#[tokio::test]
async fn a_stream_gives_its_messages_and_ends() {
    let stub = StubMaster::start();
    let mut answer = stream(&[json!({"n": 1}), json!({"n": 2})]);
    if let Answer::Chunks { pieces, .. } = &mut answer {
        // The same bytes, split elsewhere.
        let whole = pieces.concat();
        *pieces = whole
            .as_bytes()
            .chunks(5)
            .map(|piece| String::from_utf8_lossy(piece).into_owned())
            .collect();
    }
    stub.on("GET /logs", answer);
    let mut messages = client(&stub).stream("/logs", &Query::new()).await.unwrap();
    assert_eq!(messages.next().await.unwrap(), Some(json!({"n": 1})));
    assert_eq!(messages.next().await.unwrap(), Some(json!({"n": 2})));
    assert_eq!(messages.next().await.unwrap(), None);
}

#[tokio::test]
async fn an_error_line_ends_a_stream_with_its_words() {
    let stub = StubMaster::start();
    let pieces = vec![
        "{\"result\":{\"n\":1}}\n".to_owned(),
        "{\"error\":{\"grpcCode\":5,\"message\":\"trial is gone\"}}\n".to_owned(),
    ];
    stub.on("GET /logs", Answer::Chunks { pieces, cut: false });
    let mut messages = client(&stub).stream("/logs", &Query::new()).await.unwrap();
    messages.next().await.unwrap();
    let error = messages.next().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the master ended the stream: trial is gone"
    );
}

#[tokio::test]
async fn the_streams_of_a_stopping_master_are_lost_and_may_be_asked_for_again() {
    let stub = StubMaster::start();
    let pieces = vec![
        "{\"error\":{\"grpcCode\":14,\"httpCode\":503,\"message\":\"the master is stopping\"}}\n"
            .to_owned(),
    ];
    stub.on("GET /logs", Answer::Chunks { pieces, cut: false });
    let mut messages = client(&stub).stream("/logs", &Query::new()).await.unwrap();
    let error = messages.next().await.unwrap_err();
    assert!(
        error.is_passing() && matches!(error, ClientError::Interrupted { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("the master is stopping"));
}

#[tokio::test]
async fn a_cut_stream_is_not_a_good_end() {
    let stub = StubMaster::start();
    let pieces = vec!["{\"result\":{\"n\":1}}\n".to_owned()];
    stub.on("GET /logs", Answer::Chunks { pieces, cut: true });
    let mut messages = client(&stub).stream("/logs", &Query::new()).await.unwrap();
    messages.next().await.unwrap();
    let error = messages.next().await.unwrap_err();
    assert!(
        matches!(error, ClientError::Interrupted { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn no_name_is_the_default_user_with_a_blank_password() {
    let stub = StubMaster::start();
    let (_directory, store) = store();
    let environment = Environment::default();
    let session = Session::open(
        client(&stub),
        &store,
        &environment,
        None,
        &mut no_terminal_asks,
    )
    .await
    .unwrap();
    assert_eq!(session.user, "determined");
    assert_eq!(session.weak_password, ["is blank"]);
    let sent = stub.last("POST /api/v1/auth/login").json();
    assert_eq!(
        sent,
        json!({"username": "determined", "password": "", "isHashed": true})
    );

    // The second time the token is stored, and only checked.
    let session = Session::open(
        client(&stub),
        &store,
        &environment,
        None,
        &mut no_terminal_asks,
    )
    .await
    .unwrap();
    assert!(session.weak_password.is_empty());
    let lines: Vec<_> = stub.asked().into_iter().map(|asked| asked.line).collect();
    assert_eq!(lines, ["POST /api/v1/auth/login", "GET /api/v1/me"]);
}

#[tokio::test]
async fn a_default_user_with_a_password_means_not_logged_in() {
    let stub = StubMaster::start();
    stub.on(
        "POST /api/v1/auth/login",
        Answer::Json(401, json!({"error": {"error": "invalid credentials"}})),
    );
    let (_directory, store) = store();
    let error = Session::open(
        client(&stub),
        &store,
        &Environment::default(),
        None,
        &mut no_terminal_asks,
    )
    .await
    .unwrap_err();
    assert!(matches!(error, SessionError::NotLoggedIn { .. }), "{error}");
}

#[tokio::test]
async fn an_expired_token_is_forgotten_and_the_password_asked_for() {
    let stub = StubMaster::start();
    stub.on("GET /api/v1/me", Answer::Json(401, json!({})));
    let (_directory, store) = store();
    let client = client(&stub);
    store
        .set_token(client.master(), "ada", &Secret::new("OLD"))
        .unwrap();
    store.set_active(client.master(), "ada").unwrap();
    stub.on(
        "POST /api/v1/auth/login",
        ok(json!({"token": "NEW", "user": {"username": "ada"}})),
    );
    let mut asked = Vec::new();
    let session = Session::open(
        client.clone(),
        &store,
        &Environment::default(),
        None,
        &mut |user| {
            asked.push(user.to_owned());
            Ok(Secret::new("Passw0rd"))
        },
    )
    .await
    .unwrap();
    assert_eq!(asked, ["ada"]);
    assert!(session.weak_password.is_empty());
    let sent = stub.last("POST /api/v1/auth/login").json();
    assert_eq!(sent["password"], salted_hash("Passw0rd"));
    let kept = store.entry(client.master()).unwrap();
    assert_eq!(kept.token("ada"), Some(Secret::new("NEW")));
}

#[tokio::test]
async fn a_master_in_trouble_does_not_cost_the_token() {
    let stub = StubMaster::start();
    stub.on(
        "GET /api/v1/me",
        Answer::Json(500, json!({"message": "broken"})),
    );
    let (_directory, store) = store();
    let client = client(&stub);
    store
        .set_token(client.master(), "ada", &Secret::new("GOOD"))
        .unwrap();
    let error = Session::open(
        client.clone(),
        &store,
        &Environment::default(),
        Some("ada"),
        &mut no_terminal_asks,
    )
    .await
    .unwrap_err();
    assert_eq!(error.to_string(), "broken");
    assert!(store.entry(client.master()).unwrap().token("ada").is_some());
}

#[tokio::test]
async fn inside_a_task_the_tasks_token_is_used() {
    let stub = StubMaster::start();
    let (_directory, store) = store();
    let environment = Environment {
        user: Some("owner".to_owned()),
        password: None,
        user_token: Some(Secret::new("TASK")),
    };
    let session = Session::open(
        client(&stub),
        &store,
        &environment,
        None,
        &mut no_terminal_asks,
    )
    .await
    .unwrap();
    assert_eq!(
        (session.user.as_str(), session.token()),
        ("owner", Secret::new("TASK"))
    );
}

/// A TLS listener with a self-signed certificate for `name`, answering every request with `{}`.
async fn tls_master(name: &str) -> (MasterUrl, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    det_client::install_crypto_provider();
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut socket) = acceptor.accept(socket).await else {
                    return;
                };
                let mut buffer = [0; 4096];
                while matches!(socket.read(&mut buffer).await, Ok(read) if read > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    if socket.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address.parse().unwrap(), made.cert.pem())
}

fn trusting(trust: Trust) -> ClientOptions {
    ClientOptions {
        trust,
        ..ClientOptions::default()
    }
}

#[tokio::test]
async fn an_unknown_certificate_is_not_trusted() {
    let (master, _) = tls_master("127.0.0.1").await;
    let client = Client::new(master, &ClientOptions::default()).unwrap();
    let error = client.get("/info", &Query::new()).await.unwrap_err();
    assert!(matches!(error, ClientError::Untrusted { .. }), "{error:?}");
    assert!(error.is_connection());
}

#[tokio::test]
async fn an_accepted_certificate_is_trusted() {
    let (master, pem) = tls_master("127.0.0.1").await;
    let shown = presented_chain(&master).await.unwrap();
    assert_eq!(fingerprint(&shown), fingerprint(&pem));
    let trust = Trust {
        certificates: Some(shown),
        ..Trust::default()
    };
    let client = Client::new(master, &trusting(trust)).unwrap();
    client.get("/info", &Query::new()).await.unwrap();
}

#[tokio::test]
async fn a_certificate_for_another_name_needs_that_name() {
    let (master, pem) = tls_master("det.example.org").await;
    let trust = Trust {
        certificates: Some(pem),
        ..Trust::default()
    };
    let client = Client::new(master.clone(), &trusting(trust.clone())).unwrap();
    let error = client.get("/info", &Query::new()).await.unwrap_err();
    assert!(matches!(error, ClientError::Untrusted { .. }), "{error:?}");

    let named = Trust {
        name: Some("det.example.org".to_owned()),
        ..trust
    };
    let client = Client::new(master, &trusting(named)).unwrap();
    client.get("/info", &Query::new()).await.unwrap();
}

#[tokio::test]
async fn noverify_trusts_every_certificate() {
    let (master, _) = tls_master("elsewhere.example.org").await;
    let trust = Trust {
        any_certificate: true,
        ..Trust::default()
    };
    let client = Client::new(master, &trusting(trust)).unwrap();
    client.get("/info", &Query::new()).await.unwrap();
}

#[tokio::test]
async fn tls_to_a_master_without_it_is_explained() {
    let stub = StubMaster::start();
    det_client::install_crypto_provider();
    let master: MasterUrl = format!("https://{}", stub.address()).parse().unwrap();
    let trust = Trust {
        any_certificate: true,
        ..Trust::default()
    };
    let client = Client::new(master, &trusting(trust)).unwrap();
    let error = client.get("/info", &Query::new()).await.unwrap_err();
    assert!(
        matches!(error, ClientError::Unreachable { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn plain_http_to_a_master_with_tls_is_explained() {
    let (master, _) = tls_master("127.0.0.1").await;
    let plain: MasterUrl = master
        .as_str()
        .replacen("https", "http", 1)
        .parse()
        .unwrap();
    let client = Client::new(plain, &ClientOptions::default()).unwrap();
    let error = client.get("/info", &Query::new()).await.unwrap_err();
    assert!(error.is_connection(), "{error:?}");
    let message = error.to_string();
    assert!(
        message.ends_with("if the port speaks TLS, use https:// in the master's address"),
        "{message}"
    );
}
