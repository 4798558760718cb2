//! A whole master on a free port over a store of its own, clients of it, and agents that speak the real protocol.

#![allow(dead_code, reason = "every test binary uses a part of this")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

pub(crate) mod fake_agent;
pub(crate) mod invariants;

pub(crate) use fake_agent::FakeAgent;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use det_agent_proto::{AfterRefusal, ToAgent};
use det_config::LoadedMaster;
use det_config::Sources;
use det_config::master::ManagerKind;
use det_ids::ExperimentId;
use det_server::app::Master;
use det_server::app::model_archive::{ContextFile, FileKind};
use det_server::app::submission::NewExperimentRequest;
use det_server::auth::Actor;
use det_server::hub::Hub;
use det_server::in_force::{Surroundings, UnusableConfig};
use det_server::master_log::MasterLog;
use det_server::{MasterOptions, RunningMaster, StartError};
use det_store::allocations::{self, AllocationRow, TaskRow};
use det_taskspec::ContainerSpec;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Nothing in these tests takes this long; what does has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for something, or fails with its name.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// A master of its own for one test.
pub(crate) struct Cluster {
    running: RunningMaster,
    http: reqwest::Client,
    directory: TempDir,
    /// What its configuration is read from.
    pub(crate) written: Arc<ReplaceableConfig>,
}

/// A configuration that can be written anew while its master runs.
#[derive(Default)]
pub(crate) struct ReplaceableConfig {
    flags: Mutex<Vec<(String, String)>>,
    file: Mutex<String>,
    /// Levels that the log was set to.
    pub(crate) levels: Mutex<Vec<String>>,
}

impl ReplaceableConfig {
    fn set(&self, flags: &[(String, String)]) {
        *self.flags.lock().unwrap() = flags.to_vec();
    }

    /// Writes the file that flags are laid over.
    pub(crate) fn write(&self, file: &str) {
        file.clone_into(&mut self.file.lock().unwrap());
    }
}

impl Surroundings for ReplaceableConfig {
    fn read_config(&self) -> Result<LoadedMaster, UnusableConfig> {
        let files = [("master.yaml".to_owned(), self.file.lock().unwrap().clone())];
        let flags = self.flags.lock().unwrap().clone();
        let sources = Sources {
            files: &files,
            env: &BTreeMap::new(),
            flags: &flags,
        };
        LoadedMaster::load(sources).map_err(|errors| UnusableConfig {
            message: errors.to_string(),
            errors: errors.0,
        })
    }

    fn set_log_level(&self, level: &str) {
        self.levels.lock().unwrap().push(level.to_owned());
    }
}

/// An answer of the master, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The body of a success.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The messages of a stream that has ended.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        self.text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["result"].clone())
            .collect()
    }

    /// The sentence of a refusal with this status, found as clients find it.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        let body = self.json();
        [
            &body["message"],
            &body["error"]["message"],
            &body["error"]["error"],
        ]
        .into_iter()
        .find_map(Value::as_str)
        .unwrap_or_else(|| panic!("no sentence in {self:?}"))
        .to_owned()
    }
}

/// A client with its credential.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    credential: Option<(&'static str, String)>,
    /// Sent beside the credential.
    headers: Vec<(&'static str, String)>,
}

impl Client {
    /// Sends a request; the body goes without a content type, as clients send it.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> reqwest::Response {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some((name, value)) = &self.credential {
            request = request.header(*name, value);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        within(path, request.send()).await.unwrap()
    }

    pub(crate) async fn whole(&self, method: Method, path: &str, body: Option<String>) -> Reply {
        let response = self.send(method, path, body).await;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = within(path, response.text()).await.unwrap();
        Reply {
            status,
            headers,
            text,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.whole(Method::GET, path, None).await
    }

    /// A POST with a body, or without any when it is null.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        let body = (!body.is_null()).then(|| body.to_string());
        self.whole(Method::POST, path, body).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Reply {
        self.whole(Method::PATCH, path, Some(body.to_string()))
            .await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Reply {
        self.whole(Method::PUT, path, Some(body.to_string())).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.whole(Method::DELETE, path, None).await
    }

    /// Opens a stream.
    pub(crate) async fn follow(&self, path: &str) -> Follower {
        let response = self.send(Method::GET, path, None).await;
        assert_eq!(response.status().as_u16(), 200, "{path}");
        Follower {
            response,
            rest: String::new(),
        }
    }

    /// The token that this client shows.
    pub(crate) fn token(&self) -> &str {
        self.credential
            .as_ref()
            .unwrap()
            .1
            .strip_prefix("Bearer ")
            .unwrap()
    }

    /// The same service, asked with another credential.
    pub(crate) fn with(&self, name: &'static str, value: impl Into<String>) -> Self {
        Self {
            credential: Some((name, value.into())),
            ..self.clone()
        }
    }

    /// The same service, asked with one header more.
    pub(crate) fn and(&self, name: &'static str, value: impl Into<String>) -> Self {
        let mut headers = self.headers.clone();
        headers.push((name, value.into()));
        Self {
            headers,
            ..self.clone()
        }
    }

    /// The same service, asked with the token of a task.
    pub(crate) fn as_task(&self, token: &str) -> Self {
        self.with(
            "Grpc-Metadata-x-allocation-token",
            format!("Bearer {token}"),
        )
    }

    /// The same service, asked without a token.
    pub(crate) fn anonymous(&self) -> Self {
        Self {
            credential: None,
            ..self.clone()
        }
    }

    /// What every endpoint that needs a token answers without one, and with a wrong one.
    pub(crate) async fn assert_needs_token(&self, method: Method, path: &str) {
        for client in [
            self.anonymous(),
            self.with("Authorization", "Bearer wrong"),
            self.as_task("wrong"),
        ] {
            let reply = client.whole(method.clone(), path, None).await;
            assert!(
                reply.refused(401).contains("token"),
                "{method} {path}: {reply:?}"
            );
        }
    }
}

/// A stream that is still open.
pub(crate) struct Follower {
    response: reqwest::Response,
    rest: String,
}

impl Follower {
    /// The next message; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        Some(self.next_line().await?["result"].clone())
    }

    /// The next line as it is, an error as well.
    pub(crate) async fn next_line(&mut self) -> Option<Value> {
        loop {
            if let Some((line, rest)) = self.rest.split_once('\n') {
                let message: Value = serde_json::from_str(line).unwrap();
                self.rest = String::from(rest);
                return Some(message);
            }
            let chunk = within("a message of a stream", self.response.chunk())
                .await
                .unwrap()?;
            self.rest.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// A master with these configuration keys.
    pub(crate) async fn start_with(flags: &[(&str, &str)]) -> Self {
        Self::start_in(TempDir::new().unwrap(), flags, &[]).await
    }

    /// As [`Self::start_with`]; the test drives the places of managers of this kind.
    pub(crate) async fn start_driving(kind: ManagerKind, flags: &[(&str, &str)]) -> Self {
        Self::start_in(TempDir::new().unwrap(), flags, &[kind]).await
    }

    /// Starts with the configuration of a file; the test drives managers of these kinds.
    pub(crate) async fn start_reading(doubles: &[ManagerKind], file: &str) -> Self {
        Self::start_from(TempDir::new().unwrap(), &[], doubles, file).await
    }

    /// Why a master with these configuration keys does not start.
    pub(crate) async fn refusal(flags: &[(&str, &str)]) -> StartError {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = TempDir::new().unwrap();
        let (options, _) = options(&directory, flags, 1);
        match Box::pin(det_server::start(options)).await {
            Ok(_) => panic!("it started"),
            Err(error) => error,
        }
    }

    /// Starts that others could reach, in one data directory: the first without a password for the first users, which is
    /// refused, the second with these keys.
    pub(crate) async fn second_start(flags: &[(&str, &str)]) -> Result<(), StartError> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = TempDir::new().unwrap();
        let everywhere = ("host", "0.0.0.0");
        let start = async |flags: &[(&str, &str)]| {
            let (mut options, _) = options(&directory, flags, 0);
            options.allow_blank_passwords = false;
            Box::pin(det_server::start(options)).await
        };
        match start(&[everywhere]).await {
            Err(StartError::BlankPassword { .. }) => {}
            Err(error) => panic!("another error: {error}"),
            Ok(_) => panic!("it started"),
        }
        let running = start(&[&[everywhere], flags].concat()).await?;
        within("the master to stop", running.stop()).await;
        Ok(())
    }

    /// A master that is started right after a start that found its port taken.
    pub(crate) async fn start_after_refusal() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = TempDir::new().unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (options, _) = options(&directory, &[], taken.local_addr().unwrap().port());
        match Box::pin(det_server::start(options)).await {
            Err(StartError::Listen { .. }) => {}
            Err(error) => panic!("another error: {error}"),
            Ok(_) => panic!("it started"),
        }
        Self::start_in(directory, &[], &[]).await
    }

    /// Stops the master and starts another one on what it left.
    pub(crate) async fn restart(self) -> Self {
        self.restart_with(&[]).await
    }

    /// The same with these configuration keys.
    pub(crate) async fn restart_with(self, flags: &[(&str, &str)]) -> Self {
        let Self {
            running, directory, ..
        } = self;
        within("the master to stop", running.stop()).await;
        Self::start_in(directory, flags, &[]).await
    }

    async fn start_in(directory: TempDir, flags: &[(&str, &str)], doubles: &[ManagerKind]) -> Self {
        Self::start_from(directory, flags, doubles, "").await
    }

    async fn start_from(
        directory: TempDir,
        flags: &[(&str, &str)],
        doubles: &[ManagerKind],
        file: &str,
    ) -> Self {
        // Of several tests in one process the first one installs it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (running, written) = loop {
            let port = std::net::TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let (mut options, written) = options(&directory, flags, port);
            options.doubles = doubles.to_vec();
            written.write(file);
            options.config = written.read_config().unwrap();
            match Box::pin(det_server::start(options)).await {
                Ok(running) => break (running, written),
                // Another process took the port between the look and the start.
                Err(StartError::Listen { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        Self {
            running,
            http: reqwest::Client::new(),
            directory,
            written,
        }
    }

    pub(crate) fn master(&self) -> &Master {
        self.running.master()
    }

    /// Host and port of the master.
    pub(crate) fn address(&self) -> String {
        self.running.address.to_string()
    }

    pub(crate) fn client(&self) -> Client {
        Client {
            http: self.http.clone(),
            base: format!("http://{}", self.running.address),
            credential: None,
            headers: Vec::new(),
        }
    }

    /// A logged-in user with a blank password.
    pub(crate) async fn user(&self, name: &str) -> Client {
        let client = self.client();
        let login = client
            .post(
                "/api/v1/auth/login",
                json!({"username": name, "isHashed": true}),
            )
            .await
            .ok();
        client.with(
            "Authorization",
            format!("Bearer {}", login["token"].as_str().unwrap()),
        )
    }

    pub(crate) async fn admin(&self) -> Client {
        self.user("admin").await
    }

    /// The user that is no administrator.
    pub(crate) async fn determined(&self) -> Client {
        self.user("determined").await
    }

    /// Submits an experiment of one trial that asks for `slots`; gives its number.
    pub(crate) async fn experiment(&self, name: &str, slots: u32) -> ExperimentId {
        self.submitted("admin", name, slots, true).await
    }

    /// Submits an experiment of one trial with one slot for a user, paused unless it is to be active.
    pub(crate) async fn experiment_of(
        &self,
        owner: &str,
        name: &str,
        active: bool,
    ) -> ExperimentId {
        self.submitted(owner, name, 1, active).await
    }

    async fn submitted(&self, owner: &str, name: &str, slots: u32, activate: bool) -> ExperimentId {
        let config = json!({
            "name": name,
            "entrypoint": "python3 train.py",
            "searcher": {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": slots},
            "max_restarts": 0,
        });
        let owner = self.master().auth.user_by_name(owner).unwrap();
        let file = ContextFile {
            path: "train.py".into(),
            kind: FileKind::File,
            content: b"print('hello')\n".to_vec(),
            mode: 0o644,
            mtime: 1_700_000_000,
        };
        let request = NewExperimentRequest {
            config: config.to_string(),
            files: vec![file],
            activate,
            ..NewExperimentRequest::default()
        };
        let created = self
            .master()
            .experiments
            .create(&Actor::User(owner), request)
            .await
            .unwrap();
        created.id.unwrap()
    }

    /// The only trial's task of an experiment, and its newest allocation.
    pub(crate) async fn task_of(&self, experiment: ExperimentId) -> (TaskRow, AllocationRow) {
        let mut conn = self.master().context.store.read().await.unwrap();
        let trials = det_store::trials::of_experiment(&mut conn.conn(), experiment)
            .await
            .unwrap();
        let task = allocations::find_task(&mut conn.conn(), &trials[0].task_id)
            .await
            .unwrap()
            .unwrap();
        let allocation = allocations::of_task(&mut conn.conn(), &task.id)
            .await
            .unwrap()
            .remove(0);
        (task, allocation)
    }

    /// The only trial's task of an experiment that was never active.
    pub(crate) async fn task_of_paused(&self, experiment: ExperimentId) -> TaskRow {
        let mut conn = self.master().context.store.read().await.unwrap();
        let trials = det_store::trials::of_experiment(&mut conn.conn(), experiment)
            .await
            .unwrap();
        allocations::find_task(&mut conn.conn(), &trials[0].task_id)
            .await
            .unwrap()
            .unwrap()
    }

    /// Asks until the answer is as wanted.
    pub(crate) async fn until(
        &self,
        client: &Client,
        path: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        // Every change that clients see is an event.
        let mut changes = self
            .master()
            .context
            .hub
            .subscribe(det_server::hub::Topic::Events);
        within(path, async {
            loop {
                let answer = client.get(path).await.ok();
                if wanted(&answer) {
                    return answer;
                }
                // Some changes, such as those of containers, make no event of their own: look again now and then.
                let _ = tokio::time::timeout(Duration::from_millis(50), changes.changed()).await;
            }
        })
        .await
    }

    /// An agent with so many CPU slots.
    pub(crate) async fn agent(&self, id: &str, slots: u32) -> FakeAgent {
        self.agent_in("default", id, slots).await
    }

    /// The same in a pool.
    pub(crate) async fn agent_in(&self, pool: &str, id: &str, slots: u32) -> FakeAgent {
        FakeAgent::connect(self, id, slots, pool).await
    }

    /// What the master answers to an agent that it does not welcome: the reason, and whether the agent has changed.
    pub(crate) async fn refused_agent(&self, pool: &str, id: &str, slots: u32) -> (String, bool) {
        match FakeAgent::send_hello(self, id, slots, pool).await.1 {
            ToAgent::Refused {
                reason,
                then: then @ (AfterRefusal::End | AfterRefusal::Rejoin),
            } => (reason, then == AfterRefusal::Rejoin),
            other => panic!("not refused: {other:?}"),
        }
    }

    /// A running container of a fresh experiment on a fresh agent with one slot.
    pub(crate) async fn running_task(&self) -> (FakeAgent, ContainerSpec) {
        let mut agent = self.agent("a1", 1).await;
        self.experiment("running", 1).await;
        let spec = agent.next_start().await;
        agent.runs(&spec).await;
        (agent, spec)
    }

    pub(crate) fn master_address(&self) -> std::net::SocketAddr {
        self.running.address
    }

    pub(crate) fn agent_token(&self) -> &str {
        &self.running.agent_token
    }

    /// Stops the master: nothing may hang, what it held in memory must be what the rows contain, and every invariant holds.
    pub(crate) async fn stop(self) {
        let master = self.running.master().clone();
        let agreed = async {
            // What is under way when the rows are read shows up as a difference, and is gone the next time.
            while let Some(difference) = master.live.compare(&master.context.store).await.unwrap() {
                tracing::debug!(difference, "memory and rows differ");
                tokio::task::yield_now().await;
            }
        };
        within("memory and rows to agree", agreed).await;
        invariants::assert_hold(self.master()).await;
        self.end().await;
    }

    /// The same where what it left cannot be looked at.
    pub(crate) async fn stop_unchecked(self, reason: WhyUnchecked) {
        tracing::debug!(?reason, "what the master left is not checked");
        self.end().await;
    }

    async fn end(self) {
        let Self {
            running,
            http,
            directory,
            ..
        } = self;
        drop(http);
        within("the master to stop", running.stop()).await;
        drop(directory);
    }
}

/// Why nothing is checked where a test ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WhyUnchecked {
    /// The test has closed the store.
    StoreClosed,
    /// The master has ended by itself, in the middle of what it did.
    MasterEnded,
    /// The test has written a row that no life cycle makes.
    RowOfTheTest,
}

/// What a master of a test is started with, and what it reads its configuration from.
fn options(
    directory: &TempDir,
    flags: &[(&str, &str)],
    port: u16,
) -> (MasterOptions, Arc<ReplaceableConfig>) {
    let mut all: Vec<(String, String)> = flags
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    if !all.iter().any(|(key, _)| key == "host") {
        all.push(("host".into(), "127.0.0.1".into()));
    }
    all.push(("port".into(), port.to_string()));
    let written = Arc::new(ReplaceableConfig::default());
    written.set(&all);
    let hub = Hub::default();
    let options = MasterOptions {
        config: written.read_config().unwrap(),
        doubles: Vec::new(),
        surroundings: written.clone(),
        data_dir: directory.path().to_owned(),
        allow_blank_passwords: true,
        log: MasterLog::new(hub.clone()),
        hub,
    };
    (options, written)
}
