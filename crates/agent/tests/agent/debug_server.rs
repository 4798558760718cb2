//! The agent's debug server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use det_agent::{ClientIdentity, DebugServer};
use rustls::RootCertStore;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::common::{Agent, FakeMaster, PATIENCE, options, spec, start, stub_supervisor};

/// An address of this machine that is free now.
fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// A client that trusts these certificates.
fn client(trusted: RootCertStore) -> reqwest::ClientBuilder {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let client = reqwest::Client::builder().tls_backend_preconfigured(tls);
    client.no_proxy().timeout(PATIENCE)
}

async fn get(client: &reqwest::Client, url: &str) -> (u16, String) {
    let answer = client.get(url).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// What a connection gives until its end that has sent this.
async fn raw(address: SocketAddr, sent: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut answer = Vec::new();
    let exchanged = async {
        // The answer may come before all is sent, and the end before all is read.
        let _ = stream.write_all(sent.as_bytes()).await;
        let _ = stream.read_to_end(&mut answer).await;
    };
    tokio::time::timeout(PATIENCE, exchanged).await.unwrap();
    String::from_utf8(answer).unwrap()
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn the_debug_server_shows_ids_and_states_and_nothing_of_what_runs() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let mut options = options(&master, root.path(), &stub_supervisor(root.path()));
    let address = free_address();
    let identity = None;
    options.debug_server = Some(DebugServer { address, identity });
    let agent = Agent::start(options);
    master.connected().await;
    let id = uuid::Uuid::new_v4().to_string();
    let mut secret = spec(&id, "sleep 600");
    let hidden = "hunter2";
    secret.script.env.push(("PASSWORD".into(), hidden.into()));
    let allocation = secret.allocation_id.to_string();
    master.log_line(start(secret));
    master.running(&id).await;

    let client = client(RootCertStore::empty()).build().unwrap();
    let url = |path: &str| format!("http://{address}{path}");
    let (_, health) = get(&client, &url("/health")).await;
    assert_eq!(read(&health), json!({"status": "ok", "connected": true}));
    let (_, version) = get(&client, &url("/version")).await;
    let expected = json!({"version": env!("CARGO_PKG_VERSION"), "agentId": "agent-1"});
    assert_eq!(read(&version), expected);
    let (_, containers) = get(&client, &url("/containers")).await;
    let expected = json!([{"id": id, "allocationId": allocation, "state": "running"}]);
    assert_eq!(read(&containers), expected);
    let (_, metrics) = get(&client, &url("/metrics")).await;
    for line in [
        "# TYPE det_agent_containers gauge",
        "det_agent_connected 1",
        "det_agent_slots 0",
        "det_agent_containers{state=\"running\"} 1",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
    for shown in [&health, &version, &containers, &metrics] {
        for secret in [hidden, "agent-token", "sleep"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
    assert_eq!(get(&client, &url("/debug")).await.0, 404);
    let refused = client.post(url("/containers")).send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 405);
    for (sent, status) in [
        ("no words of HTTP\r\n\r\n", "HTTP/1.1 400 "),
        (
            &format!(
                "GET /health HTTP/1.1\r\nLong: {}\r\n\r\n",
                "x".repeat(16 << 10)
            ),
            "HTTP/1.1 431 ",
        ),
    ] {
        let answer = raw(address, sent).await;
        assert!(answer.starts_with(status), "{answer}");
    }
    // One request of a connection is served.
    let twice = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2);
    let answer = raw(address, &twice).await.to_ascii_lowercase();
    assert!(answer.ends_with(&health), "{answer}");
    assert_eq!(answer.matches("http/1.1 200 ok").count(), 1, "{answer}");
    for header in ["connection: close", "cache-control: no-store"] {
        assert!(answer.contains(header), "{answer}");
    }
    let head = client.head(url("/health")).send().await.unwrap();
    assert_eq!(head.status().as_u16(), 200);
    assert_eq!(head.headers()["content-length"], health.len().to_string());
    assert_eq!(head.text().await.unwrap(), "");
    master.kill(&id, false);
    master.exit(&id).await;
    agent.shut_down().await.unwrap();
}

#[tokio::test]
async fn the_debug_server_speaks_tls_with_its_own_certificate() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    let mut options = options(&master, root.path(), &stub_supervisor(root.path()));
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap();
    let certificate = certificate.self_signed(&key).unwrap();
    let files = ["debug.pem", "debug.key"].map(|name| root.path().join(name));
    std::fs::write(&files[0], certificate.pem()).unwrap();
    std::fs::write(&files[1], key.serialize_pem()).unwrap();
    let address = free_address();
    let [of_certificate, of_key] = files;
    let identity = Some(ClientIdentity {
        certificate: of_certificate,
        key: of_key,
    });
    options.debug_server = Some(DebugServer { address, identity });
    let agent = Agent::start(options);
    master.connected().await;
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate.der().clone()).unwrap();
    let client = client(trusted)
        .resolve("localhost", address)
        .build()
        .unwrap();
    let url = format!("https://localhost:{}/health", address.port());
    assert_eq!(get(&client, &url).await.0, 200);
    // A client that does not speak TLS gets nothing.
    let plain = client.get(format!("http://{address}/health")).send().await;
    assert!(plain.is_err(), "{plain:?}");
    agent.shut_down().await.unwrap();
}

#[tokio::test]
async fn an_agent_whose_debug_address_is_taken_runs_and_serves_later() {
    let root = tempfile::tempdir().unwrap();
    let master = FakeMaster::start().await;
    // Ports of tasks are those of the host: one may hold it while the agent starts again.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut options = options(&master, root.path(), &stub_supervisor(root.path()));
    let identity = None;
    options.debug_server = Some(DebugServer { address, identity });
    let agent = Agent::start(options);
    master.connected().await;
    drop(taken);
    let client = client(RootCertStore::empty()).build().unwrap();
    let url = format!("http://{address}/health");
    let served = async {
        while client.get(&url).send().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), served)
        .await
        .unwrap();
    agent.shut_down().await.unwrap();
}
