//! A fake master that sends what the test requests, and agents that connect to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use det_agent::{AgentError, AgentOptions, RuntimeChoice, Secret, SlotType};
use det_agent_proto::{
    AgentLog, ContainerState, DeviceReport, Hello, HostReport, JOIN_TOKEN_HEADER, PROTOCOL_VERSION,
    ToAgent, ToMaster, Welcome,
};
use det_ids::ContainerId;
use det_taskspec::{ContainerExit, ContainerSpec};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[path = "../../src/testing.rs"]
mod testing;

/// The longest wait for a condition; generous, because the machine may be busy. No test depends on its length.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Everything that the master has received.
#[derive(Debug, Default, Clone)]
pub(crate) struct ReceivedMessages {
    pub(crate) hellos: Vec<Hello>,
    /// All states of each container in the order they came, those in greetings included.
    pub(crate) states: BTreeMap<ContainerId, Vec<ContainerState>>,
    pub(crate) agent_logs: Vec<AgentLog>,
    /// The newest report of devices.
    pub(crate) devices: Vec<DeviceReport>,
    /// Whether its host can start containers, as it has reported last.
    pub(crate) host: Option<HostReport>,
    /// Bodies of log posts.
    pub(crate) posts: Vec<serde_json::Value>,
    /// Whether an agent is connected now.
    pub(crate) connected: bool,
    /// `Authorization` of the latest connection.
    pub(crate) authorization: Option<String>,
    /// The cluster's token, of the latest connection.
    pub(crate) join_token: Option<String>,
}

impl ReceivedMessages {
    pub(crate) fn state(&self, id: &str) -> Option<&ContainerState> {
        self.states.get(&ContainerId::from(id))?.last()
    }

    pub(crate) fn runtime_id(&self, id: &str) -> Option<&str> {
        match self.state(id) {
            Some(ContainerState::Running { runtime_id, .. }) => Some(runtime_id),
            _ => None,
        }
    }

    pub(crate) fn exit(&self, id: &str) -> Option<&ContainerExit> {
        match self.state(id) {
            Some(ContainerState::Terminated { exit, .. }) => Some(exit),
            _ => None,
        }
    }
}

#[derive(Clone)]
struct SharedState {
    received: watch::Sender<ReceivedMessages>,
    /// Sends messages to the connected agent.
    agent: Arc<Mutex<Option<mpsc::UnboundedSender<ToAgent>>>>,
    /// The answer to a greeting.
    answer: Arc<Mutex<ToAgent>>,
    log_status: Arc<Mutex<StatusCode>>,
}

pub(crate) struct FakeMaster {
    pub(crate) url: String,
    address: std::net::SocketAddr,
    shared: SharedState,
    server: JoinHandle<()>,
}

pub(crate) fn welcome() -> ToAgent {
    ToAgent::Welcome(Welcome {
        protocol: PROTOCOL_VERSION,
        version: "0.1.0".into(),
        cluster_id: "cluster-1".into(),
        master_id: "master-1".into(),
    })
}

impl FakeMaster {
    pub(crate) async fn start() -> Self {
        Self::start_with(welcome()).await
    }

    pub(crate) async fn start_with(answer: ToAgent) -> Self {
        let shared = SharedState {
            received: watch::Sender::default(),
            agent: Arc::default(),
            answer: Arc::new(Mutex::new(answer)),
            log_status: Arc::new(Mutex::new(StatusCode::OK)),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self {
            url: format!("http://{address}"),
            address,
            server: Self::serve(listener, shared.clone()),
            shared,
        }
    }

    fn serve(listener: tokio::net::TcpListener, shared: SharedState) -> JoinHandle<()> {
        let app = Router::new()
            .route(det_agent_proto::PATH, any(agents))
            .route(det_spool::LOGS_PATH, post(logs))
            .with_state(shared);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() })
    }

    /// Stops: all connections break and no new ones are accepted.
    pub(crate) async fn stop(&mut self) {
        self.server.abort();
        // Dropping the sender ends the connection's task.
        *self.shared.agent.lock().unwrap() = None;
        self.wait("the connection to break", |received| {
            (!received.connected).then_some(())
        })
        .await;
    }

    /// Starts again at the same address.
    pub(crate) async fn restart(&mut self) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let listener = loop {
            match tokio::net::TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
            }
            tokio::task::yield_now().await;
        };
        self.server = Self::serve(listener, self.shared.clone());
    }

    /// Answers the next agents that connect with this.
    pub(crate) fn answer(&self, answer: ToAgent) {
        *self.shared.answer.lock().unwrap() = answer;
    }

    pub(crate) fn answer_logs_with(&self, status: StatusCode) {
        *self.shared.log_status.lock().unwrap() = status;
    }

    pub(crate) fn log_line(&self, message: ToAgent) {
        let agent = self.shared.agent.lock().unwrap();
        agent
            .as_ref()
            .expect("an agent is connected")
            .send(message)
            .expect("the connection lives");
    }

    /// Sends a message if an agent is connected.
    #[cfg(feature = "failpoints")]
    pub(crate) fn try_send(&self, message: ToAgent) -> bool {
        let agent = self.shared.agent.lock().unwrap();
        agent.as_ref().is_some_and(|a| a.send(message).is_ok())
    }

    pub(crate) fn kill(&self, id: &str, grace: bool) {
        self.log_line(ToAgent::Kill {
            container_id: id.into(),
            grace,
        });
    }

    pub(crate) fn received(&self) -> ReceivedMessages {
        self.shared.received.borrow().clone()
    }

    /// Waits until `test` returns a value.
    pub(crate) async fn wait<T>(
        &self,
        what: &str,
        mut test: impl FnMut(&ReceivedMessages) -> Option<T>,
    ) -> T {
        let mut received = self.shared.received.subscribe();
        let mut found = None;
        let waited = tokio::time::timeout(
            PATIENCE,
            received.wait_for(|received| {
                found = test(received);
                found.is_some()
            }),
        )
        .await
        .is_ok();
        assert!(waited, "waited for {what}; received {:#?}", self.received());
        found.unwrap()
    }

    pub(crate) async fn connected(&self) {
        self.wait("an agent", |received| received.connected.then_some(()))
            .await;
    }

    pub(crate) async fn running(&self, id: &str) -> String {
        self.wait(&format!("{id} to run"), |received| {
            received.runtime_id(id).map(str::to_owned)
        })
        .await
    }

    pub(crate) async fn exit(&self, id: &str) -> ContainerExit {
        self.wait(&format!("{id} to end"), |received| {
            received.exit(id).cloned()
        })
        .await
    }

    /// Lets the agent forget a container and waits until its directory is removed.
    pub(crate) async fn forget(&self, id: &str, data_dir: &Path) {
        self.log_line(ToAgent::Forget {
            container_id: id.into(),
        });
        let dir = data_dir.join("containers").join(id);
        until(&format!("{} to go", dir.display()), || !dir.exists()).await;
    }
}

async fn agents(
    State(shared): State<SharedState>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let header = |name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.map(str::to_owned)
    };
    let (authorization, join_token) = (header("authorization"), header(JOIN_TOKEN_HEADER));
    upgrade.on_upgrade(|socket| async move {
        shared.received.send_modify(|received| {
            received.authorization = authorization;
            received.join_token = join_token;
        });
        serve_agent(shared, socket).await;
    })
}

async fn serve_agent(shared: SharedState, mut socket: WebSocket) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    *shared.agent.lock().unwrap() = Some(sender);
    loop {
        tokio::select! {
            message = receiver.recv() => match message {
                None => break,
                Some(message) => {
                    let text = serde_json::to_string(&message).unwrap();
                    if socket.send(Message::Text(text.into())).await.is_err() {
                        break;
                    }
                }
            },
            message = socket.recv() => match message {
                None | Some(Err(_) | Ok(Message::Close(_))) => break,
                Some(Ok(Message::Text(text))) => {
                    let message: ToMaster = serde_json::from_str(&text).unwrap();
                    if matches!(message, ToMaster::Hello(_)) {
                        let answer = shared.answer.lock().unwrap().clone();
                        let text = serde_json::to_string(&answer).unwrap();
                        if socket.send(Message::Text(text.into())).await.is_err() {
                            break;
                        }
                    }
                    shared.received.send_modify(|received| note(received, message));
                }
                Some(Ok(_)) => {}
            },
        }
    }
    shared
        .received
        .send_modify(|received| received.connected = false);
}

fn note(received: &mut ReceivedMessages, message: ToMaster) {
    let mut reports = Vec::new();
    match message {
        ToMaster::Hello(hello) => {
            received.connected = true;
            reports.clone_from(&hello.containers);
            received.hellos.push(hello);
        }
        ToMaster::Container(report) => reports.push(report),
        ToMaster::Log(log) => received.agent_logs.push(log),
        ToMaster::Devices(report) => received.devices = report.devices,
        ToMaster::Host(report) => received.host = Some(report),
    }
    for report in reports {
        received
            .states
            .entry(report.container_id)
            .or_default()
            .push(report.state);
    }
}

async fn logs(
    State(shared): State<SharedState>,
    headers: HeaderMap,
    Json(mut body): Json<serde_json::Value>,
) -> Response {
    let status = *shared.log_status.lock().unwrap();
    if status.is_success() {
        body["token"] = headers
            .get("grpc-metadata-x-allocation-token")
            .and_then(|value| value.to_str().ok())
            .into();
        shared
            .received
            .send_modify(|received| received.posts.push(body));
    }
    status.into_response()
}

/// An agent of this process.
pub(crate) struct Agent {
    pub(crate) shutdown: CancellationToken,
    task: JoinHandle<Result<(), AgentError>>,
}

impl Agent {
    pub(crate) fn start(options: AgentOptions) -> Self {
        let shutdown = CancellationToken::new();
        Self {
            task: tokio::spawn(det_agent::run(options, shutdown.clone())),
            shutdown,
        }
    }

    /// Stops it as a kill would, at once and without cleanup.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let ended = self.task.await;
        assert!(
            ended.is_err_and(|error| error.is_cancelled()),
            "it ran until now"
        );
    }

    pub(crate) async fn ended(self) -> Result<(), AgentError> {
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .expect("the agent ends")
            .unwrap()
    }

    pub(crate) async fn shut_down(self) -> Result<(), AgentError> {
        self.shutdown.cancel();
        self.ended().await
    }
}

/// Waits for something outside of the agent.
pub(crate) async fn until(what: &str, mut test: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !test() {
        assert!(tokio::time::Instant::now() < deadline, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) fn options(master: &FakeMaster, root: &Path, supervisor: &Path) -> AgentOptions {
    options_for(&master.url, root, supervisor)
}

/// The same, of a master elsewhere.
pub(crate) fn options_for(master: &str, root: &Path, supervisor: &Path) -> AgentOptions {
    let mut options = AgentOptions::new(master, "agent-1".into(), root.join("data"), supervisor);
    options.runtime = RuntimeChoice::Process;
    options.slot_type = SlotType::None;
    options.token = Some(Secret::new("agent-token"));
    options
}

/// A zero-slot command with a port of its own and without a context directory.
pub(crate) fn spec(id: &str, shell: &str) -> ContainerSpec {
    let mut spec = testing::container_spec(id, shell);
    spec.ports = vec![1734];
    spec.script.context = false;
    spec.script.grace_seconds = 5;
    spec
}

pub(crate) fn start(spec: ContainerSpec) -> ToAgent {
    ToAgent::Start(Box::new(spec))
}

/// A stand-in for the supervisor, so that the agent's part can be tested alone: runs the script's shell text, kills it on
/// SIGQUIT, passes SIGTERM on, and writes the exit report. Command texts must hold no double quotes.
pub(crate) fn stub_supervisor(root: &Path) -> PathBuf {
    const TEXT: &str = r#"#!/bin/sh
dir=$2
script=$dir/run/task.json
text=$(sed -n 's/.*"entrypoint":{"shell":"\([^"]*\)"}.*/\1/p' "$script")
DET_CONTAINER_ID=$(sed -n 's/.*"container_id":"\([^"]*\)".*/\1/p' "$script")
export DET_CONTAINER_ID
report() {
    printf '{"ended_at":1,%s}' "$1" > "$dir/run/exit.json.new"
    mv "$dir/run/exit.json.new" "$dir/run/exit.json"
}
cd "$dir/run" || exit 1
killed() { kill -KILL "$child"; report '"kind":"signaled","signal":9,"out_of_memory":false'; exit 0; }
asked() { kill -TERM "$child"; wait "$child"; report "\"kind\":\"exited\",\"code\":$?"; exit 0; }
trap killed QUIT
trap asked TERM
sh -c "$text" &
child=$!
echo "$child" > "$dir/run/child"
wait "$child"
report "\"kind\":\"exited\",\"code\":$?"
"#;
    let path = root.join("stub-supervisor");
    std::fs::write(&path, TEXT).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// Processes that carry this container's id.
pub(crate) fn processes_of(id: &str) -> Vec<String> {
    let variable = format!("DET_CONTAINER_ID={id}");
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(Result::ok)
        .filter(|entry| {
            std::fs::read(entry.path().join("environ")).is_ok_and(|environment| {
                environment
                    .split(|byte| *byte == 0)
                    .any(|one| one == variable.as_bytes())
            })
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
