//! The master as a process that ends and is started again, always at the same address and on the same database.

use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use det_config::LoadedMaster;
use det_config::Sources;
use det_failpoints::VARIABLE;
use det_server::hub::Hub;
use det_server::in_force::{Surroundings, UnusableConfig};
use det_server::master_log::MasterLog;
use det_server::{MasterOptions, RunningMaster};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Nothing here takes this long; what does has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const DIRECTORY: &str = "DET_TEST_MASTER_DIRECTORY";
const PORT: &str = "DET_TEST_MASTER_PORT";
/// Set by a user who wants to see what the masters print.
const SHOW: &str = "DET_TEST_SHOW_MASTERS";
const DATABASE: &str = "DET_TEST_MASTER_DATABASE";
/// Agents join with this.
pub(crate) const AGENT_TOKEN: &str = "agents-know-this";

/// The database that the master uses.
#[derive(Clone)]
pub(crate) enum Database {
    Sqlite,
    /// A database of its own on this server.
    Postgres(String),
}

/// A master that comes back.
pub(crate) struct Phoenix {
    directory: TempDir,
    pub(crate) port: u16,
    _keeper: UnixListener,
    database: Option<(PgConnectOptions, String)>,
    child: Child,
    /// Whether it ended at its point.
    pub(crate) was_cut: bool,
}

/// A port that no other test is given while it is kept: a master that was cut leaves its port, and comes back to it. It is
/// none of those that Linux gives to who asks for any, and the name of the socket is the one that `e2e/processes.py` uses.
fn kept_port() -> (u16, UnixListener) {
    let offset = u16::try_from(std::process::id() % 17_000).unwrap();
    (0..17_000)
        .map(|n| 10_000 + (offset + n) % 17_000)
        .find_map(|port| {
            let name = format!("det-test-port-{port}");
            let address = SocketAddr::from_abstract_name(name).unwrap();
            let keeper = UnixListener::bind_addr(&address).ok()?;
            std::net::TcpListener::bind(("127.0.0.1", port)).ok()?;
            Some((port, keeper))
        })
        .expect("a port that nothing uses")
}

async fn on_server(server: &PgConnectOptions, sql: String) {
    let mut connection = server.connect().await.unwrap();
    connection.execute(AssertSqlSafe(sql)).await.unwrap();
}

impl Phoenix {
    pub(crate) async fn start(database: Database, arming: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = TempDir::new().unwrap();
        let (port, keeper) = kept_port();
        let database = match database {
            Database::Sqlite => None,
            Database::Postgres(url) => {
                let server = PgConnectOptions::from_str(&url)
                    .unwrap()
                    .disable_statement_logging();
                let name = format!("failpoint_{}", uuid::Uuid::new_v4().simple());
                let make = format!("CREATE DATABASE {name} TEMPLATE template0");
                on_server(&server, make).await;
                Some((server, name))
            }
        };
        let mut phoenix = Self {
            child: Command::new("true").spawn().unwrap(),
            directory,
            port,
            _keeper: keeper,
            database,
            was_cut: false,
        };
        phoenix.spawn(Some(arming));
        phoenix
    }

    fn database_url(&self) -> Option<String> {
        let (server, name) = self.database.as_ref()?;
        Some(server.clone().database(name).to_url_lossy().to_string())
    }

    fn spawn(&mut self, arming: Option<&str>) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "the_process", "--ignored", "--nocapture"])
            .env(DIRECTORY, self.directory.path())
            .env(PORT, self.port.to_string())
            .env_remove(VARIABLE)
            .env_remove(DATABASE)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(match std::env::var_os(SHOW) {
                Some(_) => Stdio::inherit(),
                None => Stdio::null(),
            })
            .kill_on_drop(true);
        if let Some(arming) = arming {
            command.env(VARIABLE, arming);
        }
        if let Some(url) = self.database_url() {
            command.env(DATABASE, url);
        }
        self.child = command.spawn().unwrap();
    }

    /// Starts it again if it has ended.
    pub(crate) fn rise(&mut self) {
        use std::os::unix::process::ExitStatusExt as _;
        if let Some(status) = self.child.try_wait().unwrap() {
            assert!(
                status.signal() == Some(6) && !self.was_cut,
                "the master ended by itself: {status}"
            );
            self.was_cut = true;
            self.spawn(None);
        }
    }

    /// A task stores a file of a checkpoint.
    pub(crate) fn store_file(&self, checkpoint: &str, name: &str, content: &[u8]) {
        let directory = self.directory.path().join("checkpoints").join(checkpoint);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(name), content).unwrap();
    }

    /// Stops it in good order, opens its database in this process, and holds the invariants against it. Returns whether
    /// it was ever cut.
    pub(crate) async fn stop_and_check(mut self) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        // The end of its input makes it stop.
        drop(self.child.stdin.take());
        let status = tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .expect("the master stops")
            .unwrap();
        self.was_cut |= status.signal() == Some(6);
        let running = open(
            self.directory.path().to_owned(),
            self.port,
            self.database_url(),
        )
        .await;
        crate::invariants::assert_hold(running.master()).await;
        running.stop().await;
        if let Some((server, name)) = &self.database {
            on_server(server, format!("DROP DATABASE {name} WITH (FORCE)")).await;
        }
        self.was_cut
    }
}

async fn open(data_dir: PathBuf, port: u16, database: Option<String>) -> RunningMaster {
    let mut flags = vec![
        ("host".to_owned(), "127.0.0.1".to_owned()),
        ("port".to_owned(), port.to_string()),
        ("security.agent_token".to_owned(), AGENT_TOKEN.to_owned()),
    ];
    if let Some(url) = database {
        flags.push(("db.url".to_owned(), url));
    }
    // Of several scenarios in one process the first one installs it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let sources = Sources {
        files: &[],
        env: &BTreeMap::new(),
        flags: &flags,
    };
    let config = LoadedMaster::load(sources).unwrap();
    let hub = Hub::default();
    let options = MasterOptions {
        config,
        doubles: Vec::new(),
        surroundings: Arc::new(NoReload),
        data_dir,
        allow_blank_passwords: true,
        log: MasterLog::new(hub.clone()),
        hub,
    };
    Box::pin(det_server::start(options)).await.unwrap()
}

/// These masters are never asked to read their configuration again.
struct NoReload;

impl Surroundings for NoReload {
    fn read_config(&self) -> Result<LoadedMaster, UnusableConfig> {
        unreachable!("no scenario reloads the configuration")
    }

    fn set_log_level(&self, _level: &str) {}
}

/// In the master's process: runs until its input ends.
pub(crate) async fn run_here() {
    use tokio::io::AsyncReadExt as _;
    let directory = std::env::var_os(DIRECTORY).expect("started by the tests");
    let port = std::env::var(PORT).unwrap().parse().unwrap();
    let running = open(directory.into(), port, std::env::var(DATABASE).ok()).await;
    let mut rest = Vec::new();
    tokio::io::stdin().read_to_end(&mut rest).await.unwrap();
    running.stop().await;
}
