//! The host of services: how a browser gets there, what it can do there, and when that ends.

use std::collections::BTreeMap;

use det_agent_proto::{TUNNEL_PATH, TUNNEL_PROTOCOL, ToAgent};
use det_taskspec::ContainerSpec;
use reqwest::Method;
use reqwest::header::{LOCATION, SET_COOKIE};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::support::fake_agent::own_token;
use crate::support::{Client, Cluster, FakeAgent, Reply, within};

const API: &str = "det.example";
const SERVICES: &str = "services.example";
const COMMANDS: &str = "/api/v1/commands";

async fn cluster() -> Cluster {
    let hosts = [
        ("security.host_names", "[det.example]"),
        ("security.services_host", SERVICES),
    ];
    Cluster::start_with(&hosts).await
}

/// A user of this name, who is made first.
async fn user(cluster: &Cluster, name: &str) -> Client {
    let new = json!({"user": {"username": name, "active": true}});
    cluster.admin().await.post("/api/v1/users", new).await.ok();
    cluster.user(name).await
}

/// What a service received, and an end of each connection to it that stays open.
struct Program {
    requests: mpsc::UnboundedReceiver<String>,
    ends: mpsc::UnboundedReceiver<()>,
}

impl Program {
    /// Answers whatever arrives at the ports of an agent's containers. A request with `Upgrade` keeps its connection.
    fn behind(mut agent: FakeAgent, base: String) -> Self {
        let (received, requests) = mpsc::unbounded_channel();
        let (ended, ends) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let ToAgent::Dial(dial) = agent.receive().await else {
                    continue;
                };
                let (received, ended) = (received.clone(), ended.clone());
                let url = format!("{base}{TUNNEL_PATH}/{}", dial.tunnel_id);
                tokio::spawn(async move {
                    let tunnel = reqwest::Client::new()
                        .get(url)
                        .bearer_auth(own_token("a1"))
                        .header("Connection", "Upgrade")
                        .header("Upgrade", TUNNEL_PROTOCOL);
                    let mut tunnel = tunnel.send().await.unwrap().upgrade().await.unwrap();
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(tunnel.read_u8().await.unwrap());
                    }
                    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
                    let answer: &[u8] = if head.contains("\r\nupgrade: own") {
                        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n"
                    } else {
                        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhere"
                    };
                    received.send(head).unwrap();
                    tunnel.write_all(answer).await.unwrap();
                    // Until the other side ends it.
                    while let Ok(1..) = tunnel.read(&mut [0; 64]).await {}
                    ended.send(()).unwrap();
                });
            }
        });
        Self { requests, ends }
    }

    async fn next(&mut self) -> String {
        within("a request", self.requests.recv()).await.unwrap()
    }

    async fn end(&mut self) {
        within("the end of a connection", self.ends.recv())
            .await
            .unwrap();
    }
}

/// A task of a user with a service, which runs and listens.
async fn serve(cluster: &Cluster, owner: &Client) -> (String, ContainerSpec, Program) {
    let mut agent = cluster.agent("a1", 2).await;
    let config = json!({
        "entrypoint": ["sleep", "100"],
        "environment": {"proxy_ports": [{"proxy_port": 8080, "default_service_id": true}]},
        "resources": {"slots": 1},
    });
    let made = owner.post(COMMANDS, json!({"config": config})).await.ok();
    let id = made["command"]["id"].as_str().unwrap().to_owned();
    let spec = agent.next_start().await;
    let running = det_agent_proto::ContainerState::Running {
        host_address: "127.0.0.1".into(),
        ports: vec![(8080, 8080)],
        runtime_id: "1".into(),
    };
    agent.report(&spec, running).await;
    let is_running = |answer: &Value| answer["command"]["state"] == "STATE_RUNNING";
    let path = format!("{COMMANDS}/{id}");
    cluster.until(owner, &path, is_running).await;
    let program = Program::behind(agent, format!("http://{}", cluster.address()));
    (id, spec, program)
}

/// A browser: it keeps cookies by host and path, and goes where it is led step by step.
#[derive(Clone)]
struct Browser {
    http: reqwest::Client,
    address: String,
    /// By host, path and name.
    cookies: BTreeMap<(String, String, String), String>,
}

struct Page {
    status: u16,
    to: Option<(String, String)>,
    set: Vec<String>,
    text: String,
}

impl Browser {
    fn new(cluster: &Cluster) -> Self {
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        Self {
            http: http.build().unwrap(),
            address: cluster.address(),
            cookies: BTreeMap::new(),
        }
    }

    fn with_session(cluster: &Cluster, client: &Client) -> Self {
        let mut browser = Self::new(cluster);
        let key = (API.to_owned(), "/".to_owned(), "auth".to_owned());
        browser.cookies.insert(key, client.token().to_owned());
        browser
    }

    fn request(&self, method: Method, host: &str, path: &str) -> reqwest::RequestBuilder {
        let sent = self.cookies.iter().filter(|((of, below, _), _)| {
            of == host && path.split('?').next().unwrap().starts_with(below.as_str())
        });
        let cookies: Vec<String> = sent
            .map(|((_, _, name), value)| format!("{name}={value}"))
            .collect();
        let url = format!("http://{}{path}", self.address);
        let request = self.http.request(method, url).header("Host", host);
        if cookies.is_empty() {
            request
        } else {
            request.header("Cookie", cookies.join("; "))
        }
    }

    async fn open(&mut self, host: &str, path: &str) -> Page {
        let request = self.request(Method::GET, host, path);
        let request = request.header("Accept", "text/html,*/*");
        let answer = within(path, request.send()).await.unwrap();
        let text = |name| {
            let values = answer.headers().get_all(name).iter();
            let values = values.map(|value| value.to_str().unwrap().to_owned());
            values.collect::<Vec<String>>()
        };
        let (set, to) = (text(SET_COOKIE), text(LOCATION).pop());
        for cookie in &set {
            let (pair, rest) = cookie.split_once(';').unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            let below = rest.split("Path=").nth(1).unwrap();
            let below = below.split(';').next().unwrap().to_owned();
            self.cookies
                .insert((host.to_owned(), below, name.to_owned()), value.to_owned());
        }
        let to = to.map(|to| match to.strip_prefix("//") {
            Some(to) => {
                let (host, path) = to.split_once('/').unwrap();
                (host.to_owned(), format!("/{path}"))
            }
            None => (host.to_owned(), to),
        });
        Page {
            status: answer.status().as_u16(),
            to,
            set,
            text: within(path, answer.text()).await.unwrap(),
        }
    }

    /// Opens a page and follows where it leads.
    async fn follow(&mut self, host: &str, path: &str) -> (Page, String, String) {
        let (mut host, mut path) = (host.to_owned(), path.to_owned());
        for _ in 0..8 {
            let page = self.open(&host, &path).await;
            match page.to.clone() {
                Some(to) => (host, path) = to,
                None => return (page, host, path),
            }
        }
        panic!("led in a circle at {host}{path}");
    }
}

#[tokio::test]
async fn a_browser_is_led_to_the_host_of_services_and_gets_a_cookie_for_one_service() {
    let cluster = cluster().await;
    let ada = user(&cluster, "ada").await;
    let (id, _, mut program) = serve(&cluster, &ada).await;
    let mut browser = Browser::with_session(&cluster, &ada);
    let (page, host, path) = browser.follow(API, &format!("/proxy/{id}?x=1")).await;
    assert_eq!((page.status, page.text.as_str()), (200, "here"));
    assert_eq!(
        (host.as_str(), path),
        (SERVICES, format!("/proxy/{id}/?x=1"))
    );
    let request = program.next().await;
    assert!(
        request.starts_with(&format!("get /proxy/{id}/?x=1 ")),
        "{request}"
    );
    assert!(!request.contains("cookie"), "{request}");
    assert!(
        request.contains(&format!("\r\nhost: {SERVICES}")),
        "{request}"
    );
    let of_services: Vec<_> = browser
        .cookies
        .keys()
        .filter(|key| key.0 == SERVICES)
        .collect();
    assert!(
        of_services
            .iter()
            .all(|key| key.1 == format!("/proxy/{id}/")),
        "{of_services:?}"
    );
    // From now on it needs no way: nor does what the page itself asks for.
    let page = browser.open(SERVICES, &format!("/proxy/{id}/data")).await;
    assert_eq!(page.status, 200);
    let post = browser
        .request(Method::POST, SERVICES, &format!("/proxy/{id}/data"))
        .header("Sec-Fetch-Site", "same-origin");
    assert_eq!(post.send().await.unwrap().status(), 200);
    // A page of another site sends the cookie as well, and changes nothing.
    let forged = browser.request(Method::POST, SERVICES, &format!("/proxy/{id}/data"));
    let forged = forged.header("Sec-Fetch-Site", "same-site");
    assert_eq!(forged.send().await.unwrap().status(), 403);
    cluster.stop().await;
}

#[tokio::test]
async fn cookies_of_the_way_are_kept_from_scripts_and_other_sites() {
    let cluster = cluster().await;
    let ada = user(&cluster, "ada").await;
    let (id, _, _program) = serve(&cluster, &ada).await;
    let mut browser = Browser::with_session(&cluster, &ada);
    let (mut host, mut path) = (API.to_owned(), format!("/proxy/{id}/"));
    let mut set = Vec::new();
    loop {
        let page = browser.open(&host, &path).await;
        set.extend(page.set);
        match page.to {
            Some(to) => (host, path) = to,
            None => break,
        }
    }
    assert_eq!(set.len(), 2, "{set:?}");
    for cookie in set {
        let below = format!("; Path=/proxy/{id}/;");
        assert!(cookie.contains(&below), "{cookie}");
        assert!(cookie.contains("; HttpOnly; SameSite=Lax"), "{cookie}");
        assert!(!cookie.contains(ada.token()), "{cookie}");
        assert!(!cookie.to_ascii_lowercase().contains("domain"), "{cookie}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn the_host_of_services_has_nothing_else() {
    let cluster = cluster().await;
    let ada = user(&cluster, "ada").await;
    let (id, _, _program) = serve(&cluster, &ada).await;
    let mut browser = Browser::with_session(&cluster, &ada);
    browser.follow(API, &format!("/proxy/{id}/")).await;
    let there = ada.and("Host", SERVICES);
    for path in [
        "/",
        "/api/v1/me",
        "/api/v1/master",
        "/info",
        "/health",
        "/det/login",
        "/proxy",
        "/proxy/",
        "/agents",
        "/%70roxy/x/",
        "//proxy/x/",
    ] {
        let refusal = there.get(path).await.refused(421);
        assert!(refusal.contains("services of tasks alone"), "{refusal}");
    }
    let login = json!({"username": "ada", "isHashed": true});
    there.post("/api/v1/auth/login", login).await.refused(421);
    // The name counts without its case, a final dot and the port.
    let other = ada.and("Host", "SERVICES.example.:99");
    other.get("/api/v1/me").await.refused(421);
    // The cookie of a session opens nothing there, and that of the service nothing here.
    let session = ada.with("Cookie", format!("auth={}", ada.token()));
    let path = format!("/proxy/{id}/");
    session.and("Host", SERVICES).get(&path).await.refused(401);
    let key = (SERVICES.to_owned(), path.clone(), "det-services".to_owned());
    let cookie = format!("det-services={}", browser.cookies[&key]);
    let with_it = cluster.client().with("Cookie", cookie.clone());
    for path in [&path, "/api/v1/me"] {
        with_it.and("Host", API).get(path).await.refused(401);
    }
    let as_session = cookie.replace("det-services=", "auth=");
    let as_session = cluster.client().with("Cookie", as_session);
    as_session
        .and("Host", API)
        .get("/api/v1/me")
        .await
        .refused(401);
    // Nor does it open another service of the same owner.
    let other = ada.post(
        COMMANDS,
        json!({"config": {
            "entrypoint": ["sleep", "100"],
            "environment": {"proxy_ports": [{"proxy_port": 8081, "default_service_id": true}]},
        }}),
    );
    let other = other.await.ok()["command"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let refusal = with_it
        .and("Host", SERVICES)
        .get(&format!("/proxy/{other}/"))
        .await;
    assert!(matches!(refusal.status, 401 | 503), "{refusal:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn programs_with_a_token_stay_on_the_host_of_the_api() {
    let cluster = cluster().await;
    let ada = user(&cluster, "ada").await;
    let (id, spec, mut program) = serve(&cluster, &ada).await;
    let path = format!("/proxy/{id}/");
    let task = cluster.client().as_task(&spec.script.token);
    for client in [&ada, &task] {
        let answer: Reply = client.and("Host", API).get(&path).await;
        assert_eq!((answer.status, answer.text.as_str()), (200, "here"));
        program.next().await;
    }
    // A browser's request that cannot be led anywhere is refused, with what to do.
    let session = ada.with("Cookie", format!("auth={}", ada.token()));
    let session = session
        .and("Host", API)
        .and("Sec-Fetch-Site", "same-origin");
    let refusal = session.post(&path, json!({})).await.refused(421);
    assert!(refusal.contains(SERVICES), "{refusal}");
    cluster.stop().await;
}

#[tokio::test]
async fn no_browser_is_led_back_with_its_mark_to_where_a_task_could_listen() {
    let cluster = cluster().await;
    let ada = user(&cluster, "ada").await;
    let (id, _, _program) = serve(&cluster, &ada).await;
    // The sender chooses what a request names as its host: who receives the hash of a browser's mark could lead that browser
    // into another user's session.
    for host in ["det.example:9999", "localhost:9999"] {
        let mut browser = Browser::with_session(&cluster, &ada);
        let key = (host.to_owned(), "/".to_owned(), "auth".to_owned());
        browser.cookies.insert(key, ada.token().to_owned());
        let page = browser.open(host, &format!("/proxy/{id}/")).await;
        assert_eq!(page.status, 421, "{host}: {}", page.text);
        assert!(page.to.is_none(), "{host}: {:?}", page.to);
    }
}

#[tokio::test]
async fn a_code_is_good_once_and_in_the_browser_that_asked_for_it() {
    let cluster = cluster().await;
    let ada = user(&cluster, "ada").await;
    let (id, _, _program) = serve(&cluster, &ada).await;
    let mut browser = Browser::with_session(&cluster, &ada);
    let start = browser.open(API, &format!("/proxy/{id}/")).await;
    let (host, begin) = start.to.unwrap();
    assert_eq!(host, SERVICES);
    let marked = browser.open(SERVICES, &begin).await;
    let again = browser.open(SERVICES, &begin).await;
    assert_eq!(again.status, 401, "{}", again.text);
    let (_, back) = marked.to.unwrap();
    let (_, enter) = browser.open(API, &back).await.to.unwrap();
    // Another browser has no mark, or one of its own: it is not led into a session of ada's.
    let bob = user(&cluster, "bob").await;
    let mut victim = Browser::with_session(&cluster, &bob);
    let refused = victim.open(SERVICES, &enter).await;
    assert_eq!(refused.status, 401);
    assert!(refused.set.is_empty() && refused.text.contains("another browser"));
    let used = browser.open(SERVICES, &enter).await;
    assert_eq!(used.status, 401, "it was used up: {}", used.text);
    // Bob may not connect to the service of ada at all.
    let forbidden = victim.open(API, &format!("/proxy/{id}/")).await;
    assert_eq!(forbidden.status, 403);
    // Without a session the way leads over the login.
    let login = Browser::new(&cluster)
        .open(API, &format!("/proxy/{id}/"))
        .await;
    assert!(login.to.unwrap().1.starts_with("/det/login"));
    cluster.stop().await;
}

#[tokio::test]
async fn a_cookie_that_was_put_before_the_users_own_leads_into_no_other_session() {
    let cluster = cluster().await;
    let ada = user(&cluster, "ada").await;
    let eve = user(&cluster, "eve").await;
    let with = |cookies: String| cluster.client().with("Cookie", cookies);
    let (own, planted) = (ada.token(), eve.token());
    let same = with(format!("auth={own}; auth={own}"));
    same.and("Host", API).get("/api/v1/me").await.ok();
    let two = with(format!("auth={planted}; auth={own}"));
    let refusal = two.and("Host", API).get("/api/v1/me").await;
    assert_eq!(refusal.status, 401, "{refusal:?}");
    // A token in a header is of no browser's choice.
    let both = two.and("Authorization", format!("Bearer {own}"));
    let me = both.and("Host", API).get("/api/v1/me").await.ok();
    assert_eq!(me["user"]["username"], "ada");
    // The same with a mark: the browser begins anew, and enters nothing.
    let (id, _, _program) = serve(&cluster, &ada).await;
    let mut browser = Browser::with_session(&cluster, &ada);
    let (_, begin) = browser
        .open(API, &format!("/proxy/{id}/"))
        .await
        .to
        .unwrap();
    let (_, back) = browser.open(SERVICES, &begin).await.to.unwrap();
    let (_, enter) = browser.open(API, &back).await.to.unwrap();
    let below = (SERVICES.to_owned(), "/proxy/".to_owned());
    let key = (below.0, below.1, "det-services-mark".to_owned());
    browser.cookies.insert(key, "m".repeat(43));
    let refused = browser.open(SERVICES, &enter).await;
    assert_eq!(refused.status, 401, "{}", refused.text);
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_no_mark_of_this_master_is_none() {
    let cluster = cluster().await;
    let ada = user(&cluster, "ada").await;
    let (id, _, _program) = serve(&cluster, &ada).await;
    for mark in [
        "",
        "short",
        &"m".repeat(44),
        &"m".repeat(4000),
        "%41".repeat(43).as_str(),
    ] {
        let mut browser = Browser::with_session(&cluster, &ada);
        let path = format!("/proxy/{id}/?det-services-mark={mark}");
        let (_, to) = browser.open(API, &path).await.to.unwrap();
        assert!(to.contains("det-services-begin="), "{mark}: {to}");
        // Nor is a cookie.
        let key = (SERVICES.to_owned(), "/".to_owned());
        let key = (key.0, key.1, "det-services-mark".to_owned());
        browser.cookies.insert(key, mark.to_owned());
        let page = browser.open(SERVICES, &to).await;
        assert_eq!(page.set.len(), 1, "{mark}: a new one is set");
        assert!(
            !page.set[0].contains(&format!("={mark};")),
            "{:?}",
            page.set
        );
    }
    cluster.stop().await;
}

/// Opens a connection of another protocol through the proxy; it stays open.
async fn upgraded(request: reqwest::RequestBuilder) -> reqwest::Upgraded {
    let request = request
        .header("Connection", "Upgrade")
        .header("Upgrade", "own");
    let answer = within("an upgrade", request.send()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 101);
    answer.upgrade().await.unwrap()
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_cookies_and_what_it_has_open() {
    let cluster = cluster().await;
    let ada = user(&cluster, "ada").await;
    let (id, _, mut program) = serve(&cluster, &ada).await;
    let path = format!("/proxy/{id}/");
    let mut browser = Browser::with_session(&cluster, &ada);
    browser.follow(API, &path).await;
    program.end().await;
    let socket = browser.request(Method::GET, SERVICES, &path);
    let mut socket = upgraded(socket.header("Sec-Fetch-Site", "same-origin")).await;
    let other = cluster.user("ada").await;
    ada.post("/api/v1/auth/logout", Value::Null).await.ok();
    program.end().await;
    let end = within("the end", socket.read(&mut [0; 8])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    assert_eq!(browser.open(SERVICES, &path).await.status, 401);
    // Another session of the same user goes on.
    let answer = other.and("Host", API).get(&path).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn connections_end_with_the_right_by_which_they_were_opened() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let (id, spec, mut program) = serve(&cluster, &ada).await;
    let url = format!("http://{}/proxy/{id}/", cluster.address());
    let http = reqwest::Client::new();
    let by_session = |client: &Client| http.get(&url).bearer_auth(client.token());
    let first = upgraded(by_session(&ada)).await;
    ada.post("/api/v1/auth/logout", Value::Null).await.ok();
    program.end().await;
    // A user who may not log in any more has nothing open, and neither have the user's tasks.
    let ada = cluster.user("ada").await;
    let second = upgraded(by_session(&ada)).await;
    let token = format!("Bearer {}", spec.script.token);
    let of_task = http
        .get(&url)
        .header("Grpc-Metadata-x-allocation-token", token);
    let third = upgraded(of_task).await;
    let me = ada.get("/api/v1/me").await.ok()["user"]["id"].clone();
    let admin = cluster.admin().await;
    let change = json!({"active": false});
    admin
        .patch(&format!("/api/v1/users/{me}"), change)
        .await
        .ok();
    program.end().await;
    program.end().await;
    drop((first, second, third));
    cluster.stop().await;
}

#[tokio::test]
async fn what_a_task_has_open_ends_with_its_allocation() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut runner = cluster.agent("a2", 1).await;
    let command = json!({"config": {"entrypoint": ["sleep", "100"], "resources": {"slots": 1}}});
    let made = ada.post(COMMANDS, command).await.ok();
    let caller = made["command"]["id"].as_str().unwrap().to_owned();
    let spec = runner.next_start().await;
    runner.runs(&spec).await;
    let (id, _, mut program) = serve(&cluster, &ada).await;
    let request = reqwest::Client::new()
        .get(format!("http://{}/proxy/{id}/", cluster.address()))
        .header(
            "Grpc-Metadata-x-allocation-token",
            format!("Bearer {}", spec.script.token),
        );
    let open = upgraded(request).await;
    runner.exits(&spec, 0).await;
    let ended = |answer: &Value| answer["command"]["state"] == "STATE_TERMINATED";
    cluster
        .until(&ada, &format!("{COMMANDS}/{caller}"), ended)
        .await;
    program.end().await;
    drop(open);
    cluster.stop().await;
}

#[tokio::test]
async fn without_a_host_of_services_browsers_get_them_from_the_api() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let (id, _, mut program) = serve(&cluster, &ada).await;
    let mut browser = Browser::with_session(&cluster, &ada);
    let key = ("localhost".to_owned(), "/".to_owned(), "auth".to_owned());
    browser.cookies.insert(key, ada.token().to_owned());
    let page = browser.open("localhost", &format!("/proxy/{id}/")).await;
    assert_eq!((page.status, page.text.as_str()), (200, "here"));
    assert!(program.next().await.contains("\r\nhost: localhost"));
    cluster.stop().await;
}
