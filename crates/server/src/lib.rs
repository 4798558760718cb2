//! The master: HTTP API, use cases and background work.
//!
//! A request comes in through [`http`], which speaks the wire dialect and decides nothing. It calls a use case of
//! [`app`], which loads rows, asks the pure crates, and writes rows and events in one transaction. What is to happen
//! after the commit is done by [`background`] work and by resource managers (`drivers.rs`), which look at the rows and take
//! no input; the [`hub`] wakes them.
//!
//! Read [`start`] first, then [`app::Master`], then [`app::experiments`] and `app/orchestration.rs`: the life of an
//! experiment is in these two.

pub mod app;
pub mod auth;
pub mod background;
pub mod budget;
mod client_network;
mod connections;
mod drivers;
pub mod error;
pub mod http;
pub mod hub;
pub mod in_force;
pub mod leases;
pub mod live;
pub mod master_log;
mod rights;
mod start_error;
mod tls;
pub mod works;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use det_config::LoadedMaster;
use det_config::master::{ManagerKind, MasterConfig};
use det_ids::{ClusterId, UserId};
use det_rm::Manager;
use det_store::users::UserRow;
use det_store::{Store, StoreError, StoreUrl, places, settings, users};
use det_taskspec::PlaceRuntime;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::app::Master;
use crate::app::checkpoints::shared;
use crate::app::completion::complete;
use crate::app::composition::Foundation;
use crate::app::context::Context;
use crate::app::pools::log_schedulers;
use crate::app::ssh_keys::LaunchKeys;
use crate::auth::{Auth, client_hash, new_token, token_hash};
pub use crate::drivers::DRIVERS;
use crate::drivers::Drivers;
use crate::hub::Hub;
use crate::in_force::{InForce, Surroundings};
use crate::master_log::MasterLog;
pub use crate::start_error::StartError;

/// Name of the file below the data directory that holds the token agents join with.
pub const AGENT_TOKEN_FILE: &str = "agent-token";

/// What a master is started with.
pub struct MasterOptions {
    /// The configuration that it runs with, with the origin of each key.
    pub config: LoadedMaster,
    /// Kinds of resource managers that tests drive, in place of their own driver if there is one; empty but in tests.
    pub doubles: Vec<ManagerKind>,
    /// What the process around it does for it.
    pub surroundings: Arc<dyn Surroundings>,
    /// Where it keeps what it keeps: the embedded database, the agents' token, checkpoints unless configured.
    pub data_dir: PathBuf,
    /// Whether a blank `admin` password is allowed although the master listens on more than this machine.
    pub allow_blank_passwords: bool,
    /// The hub that the log below wakes.
    pub hub: Hub,
    /// Where the process's log lines are kept for `det master logs`.
    pub log: MasterLog,
}

/// Pauses between attempts to reach the database at a start.
const FIRST_PAUSE_FOR_DATABASE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE_FOR_DATABASE: Duration = Duration::from_secs(10);

/// The kinds of resource managers that something drives.
fn driven(doubles: &[ManagerKind]) -> Vec<ManagerKind> {
    let others = doubles.iter().filter(|kind| !DRIVERS.contains(kind));
    DRIVERS.iter().chain(others).copied().collect()
}

/// A running master.
pub struct RunningMaster {
    /// The address and port that it listens on.
    pub address: SocketAddr,
    /// The token agents join with.
    pub agent_token: String,
    /// Whether `admin` has a blank password.
    pub blank_password: bool,
    master: Master,
    tasks: JoinSet<()>,
}

impl RunningMaster {
    /// The use cases, for tests and tools in the same process.
    pub fn master(&self) -> &Master {
        &self.master
    }

    /// Waits until it is asked to stop, or ends by itself.
    pub async fn wait(&mut self) {
        self.master.context.shutdown.cancelled().await;
    }

    /// Why the master ended by itself; `None` = it runs, or was asked to stop.
    pub fn failure(&self) -> Option<&str> {
        self.master.context.failure()
    }

    /// Whether all these agents are connected.
    pub fn agents_connected(&self, names: &[String]) -> bool {
        let connected = &self.master.places.connected;
        names
            .iter()
            .all(|name| connected.has(&name.as_str().into()))
    }

    /// What these agents start containers with, each runtime once. Errs where the database cannot be read.
    pub async fn runtimes_of(
        &self,
        names: &[String],
    ) -> Result<BTreeSet<PlaceRuntime>, StoreError> {
        let mut conn = self.master.context.store.read().await?;
        let rows = places::list(&mut conn.conn()).await?.into_iter();
        let named = rows.filter(|row| names.iter().any(|name| name == row.id.as_str()));
        Ok(named.map(|row| row.runtime).collect())
    }

    /// The images of work that names none, on agents of these names: of that without slots, and for each kind of slot there.
    pub async fn default_images_of(
        &self,
        names: &[String],
    ) -> Result<BTreeSet<String>, StoreError> {
        let mut conn = self.master.context.store.read().await?;
        let rows = places::list(&mut conn.conn()).await?.into_iter();
        let named = rows.filter(|row| names.iter().any(|name| name == row.id.as_str()));
        let mut found = BTreeSet::new();
        for row in named {
            let images = self.master.pools.container_defaults(&row.resource_pool);
            let images = images.images();
            let kinds = row.capacity.devices().into_iter().map(|slot| slot.kind);
            found.extend(kinds.map(|kind| images.get(kind).clone()));
            found.insert(images.cpu);
        }
        Ok(found)
    }

    /// Homes nothing any more: what is about to end with its agents is not started again before the next start.
    pub fn stop_scheduling(&self) {
        self.master.placing.cancel();
    }

    /// Stops: no new requests, what is under way is finished, everything durable.
    pub async fn stop(mut self) {
        self.master.context.shutdown.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.master.context.store.close().await;
    }
}

/// Starts a master: opens the database, loads what it keeps in memory, listens, and starts its background work.
pub async fn start(mut options: MasterOptions) -> Result<RunningMaster, StartError> {
    complete(&mut options.config.config, &options.data_dir)?;
    let config = &options.config.config;
    log_schedulers(&Manager::of(config, &driven(&options.doubles)));
    let url = match config.db.postgres_url() {
        Some(url) => StoreUrl::Postgres(url),
        None => StoreUrl::Sqlite(options.data_dir.join("det.db")),
    };
    let store = open_store(&url).await?;
    let started = start_on(store.clone(), options).await;
    if started.is_err() {
        // A further start may follow at once, in this process or in another.
        store.close().await;
    }
    started
}

/// Opens the database. A server that does not answer is waited for, as long as that takes: where both are started together,
/// the database is often ready later.
async fn open_store(url: &StoreUrl) -> Result<Store, StoreError> {
    let mut pause = FIRST_PAUSE_FOR_DATABASE;
    loop {
        match Store::open(url).await {
            Err(StoreError::Unavailable(reason)) if reason.is_absence() => {
                tracing::warn!(%reason, "the database does not answer; the master waits for it");
            }
            opened => return opened,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE_FOR_DATABASE);
    }
}

/// The rest of a start, once the database is open.
async fn start_on(store: Store, options: MasterOptions) -> Result<RunningMaster, StartError> {
    let MasterOptions {
        config: loaded,
        doubles,
        surroundings,
        data_dir,
        allow_blank_passwords,
        hub,
        log,
    } = options;
    let config = loaded.config.clone();
    let Bootstrap {
        cluster_id,
        launch_keys,
        seal,
    } = bootstrap(&store, &config).await?;
    shared::prepare(&config, &data_dir, &cluster_id);
    let listener = listen(&config).await?;
    let address = listener.local_addr().map_err(|source| StartError::Listen {
        address: config.host.clone(),
        source,
    })?;
    let blank_passwords = address.ip().is_loopback() || allow_blank_passwords;
    let auth = load_users(&store, &config, address, blank_passwords).await?;
    let blank_password = auth
        .user_by_name("admin")
        .is_some_and(|u| u.active && u.password_hash.is_none());
    let agent_token = agent_token(&config, &data_dir)?;
    let homes = app::homes::KnownHomes::load(&store).await?;
    let live = live::Live::default();
    let notified = hub.clone();
    live.follow(&store, move || notified.notify(&hub::Topic::Events));
    let tls = tls::acceptor(&config)?;
    if tls.is_none() {
        warn_of_services_host(&config);
    }
    let context = Context::new(store, hub, InForce::new(loaded, driven(&doubles)));
    let drivers = Drivers::new(doubles, seal);
    let master = Master::new(Foundation {
        context,
        auth,
        homes,
        live,
        reaches: drivers.reaches(),
        clusters: drivers.clusters(),
        demands: Drivers::demands(),
        surroundings,
        data_dir,
        cluster_id,
        launch_keys,
        agent_token_hash: token_hash(&agent_token),
        log,
        tls: tls.is_some(),
        loopback: address.ip().is_loopback(),
        blank_passwords,
    });
    master
        .places
        .note_all_left()
        .await
        .map_err(|error| StartError::of(&error))?;
    master.reload.warn_of_stranded_jobs().await?;
    let mut tasks = works(&master);
    let serving = tls::serve(
        listener,
        tls,
        http::service(master.clone(), drivers.serve(&master)),
        master.context.shutdown.clone(),
    );
    tasks.spawn(background::essential(master.clone(), "serving", serving));
    Ok(RunningMaster {
        address,
        agent_token,
        blank_password,
        master,
        tasks,
    })
}

/// Warns of what a host of services lacks where the master serves without TLS.
fn warn_of_services_host(config: &MasterConfig) {
    if config.security.services_host.is_some() {
        tracing::warn!(
            "\"security.services_host\" is configured and this master serves without TLS: cookies know no ports, so that a task \
             which shares the network of a machine with one of these names is sent the cookies of a browser that visits its \
             port; configure \"security.tls\""
        );
    }
}

/// The users, of whom a new cluster gets its first ones. Where blank passwords are not allowed they are refused.
async fn load_users(
    store: &Store,
    config: &MasterConfig,
    address: SocketAddr,
    blank_passwords: bool,
) -> Result<Auth, StartError> {
    let auth = Auth::load(store.clone()).await?;
    let is_blank = config.security.initial_user_password.is_empty();
    if auth.users().is_empty() && is_blank && !blank_passwords {
        // Nothing is stored, so that the next start is the first one still.
        return Err(StartError::BlankPassword {
            address: address.to_string(),
            users: "\"admin\", \"determined\"".to_owned(),
        });
    }
    create_users(store, &auth, config).await?;
    let auth = Auth::load(store.clone()).await?;
    if !blank_passwords {
        refuse_blank_passwords(&auth, address)?;
    }
    Ok(auth)
}

/// Starts everything that goes on by itself.
fn works(master: &Master) -> JoinSet<()> {
    use background::supervise;
    let mut tasks = JoinSet::new();
    tasks.spawn(background::watch_store(master.clone()));
    let compact = |master: Master| {
        let journal = master.metric_journal.clone();
        until_shutdown(master, async move { journal.run().await })
    };
    let idle = |master: Master| until_shutdown(master.clone(), background::idle::run(master));
    let doctor = |master: Master| until_shutdown(master.clone(), background::doctor::run(master));
    let sweep = |master: Master| until_shutdown(master.clone(), background::log_sweep::run(master));
    tasks.spawn(supervise(master.clone(), "compact_metrics", compact));
    tasks.spawn(supervise(
        master.clone(),
        "schedule",
        background::schedule::run,
    ));
    tasks.spawn(supervise(
        master.clone(),
        "backlog",
        background::backlog::run,
    ));
    tasks.spawn(supervise(
        master.clone(),
        "deadlines",
        background::deadlines::run,
    ));
    tasks.spawn(supervise(master.clone(), "idle", idle));
    tasks.spawn(supervise(master.clone(), "doctor", doctor));
    tasks.spawn(supervise(
        master.clone(),
        "clean_up",
        background::clean_up::run,
    ));
    tasks.spawn(supervise(master.clone(), "log_sweep", sweep));
    tasks
}

async fn until_shutdown(master: Master, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        () = master.context.shutdown.cancelled() => {}
    }
}

/// What is made on the first start.
struct Bootstrap {
    /// The cluster's identity.
    cluster_id: ClusterId,
    /// The secret of its keys.
    launch_keys: LaunchKeys,
    /// What its Jobs in Kubernetes are known by.
    seal: drivers::Seal,
}

async fn bootstrap(store: &Store, config: &MasterConfig) -> Result<Bootstrap, StoreError> {
    let fixed = config.telemetry.cluster_id.clone();
    store
        .write(move |tx| {
            Box::pin(async move {
                let launch_keys = LaunchKeys::load(&mut tx.conn()).await?;
                let seal = drivers::seal(&mut tx.conn()).await?;
                let known = settings::find(&mut tx.conn(), "cluster_id").await?;
                let cluster_id = match known {
                    Some(id) => ClusterId(id),
                    None => {
                        let id = fixed.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
                        settings::set(&mut tx.conn(), "cluster_id", &id).await?;
                        ClusterId(id)
                    }
                };
                Ok(Bootstrap {
                    cluster_id,
                    launch_keys,
                    seal,
                })
            })
        })
        .await
}

/// The users of a fresh database: `admin` and `determined`.
async fn create_users(store: &Store, auth: &Auth, config: &MasterConfig) -> Result<(), StartError> {
    if !auth.users().is_empty() {
        return Ok(());
    }
    let forbids_blank = |switch: &String| switch == "prevent_blank_password";
    if config.security.initial_user_password.is_empty()
        && config.feature_switches.iter().any(forbids_blank)
    {
        return Err(StartError::NoInitialPassword);
    }
    let hash = auth
        .hash_password(client_hash(&config.security.initial_user_password))
        .await
        .map_err(|error| StartError::of(&error))?;
    store
        .write(move |tx| {
            Box::pin(async move {
                for (username, admin) in [("admin", true), ("determined", false)] {
                    let user = UserRow {
                        id: UserId::default(),
                        username: username.into(),
                        display_name: String::new(),
                        password_hash: hash.clone(),
                        admin,
                        active: true,
                        agent_uid: None,
                        agent_user: None,
                        agent_gid: None,
                        agent_group: None,
                        modified_at: det_store::now(),
                        last_auth_at: None,
                    };
                    users::insert(&mut tx.conn(), &user).await?;
                }
                Ok::<_, StoreError>(())
            })
        })
        .await?;
    Ok(())
}

/// Refuses a start at which others than this machine could log in without a password.
fn refuse_blank_passwords(auth: &Auth, address: SocketAddr) -> Result<(), StartError> {
    const MOST_NAMED: usize = 10;
    let mut names: Vec<String> = auth
        .users()
        .iter()
        .filter(|user| user.active && user.password_hash.is_none())
        .map(|user| format!("\"{}\"", user.username.escape_debug()))
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let more = names.len().saturating_sub(MOST_NAMED);
    names.truncate(MOST_NAMED);
    let mut users = names.join(", ");
    if more > 0 {
        users = format!("{users} and {more} more");
    }
    Err(StartError::BlankPassword {
        address: address.to_string(),
        users,
    })
}

async fn listen(config: &MasterConfig) -> Result<TcpListener, StartError> {
    let address = format!("{}:{}", bracketed(&config.host), config.effective_port());
    TcpListener::bind(&address)
        .await
        .map_err(|source| StartError::Listen { address, source })
}

/// An IPv6 address in brackets, anything else as it is.
fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

/// The token agents join with: configured, or made on the first start and kept in a file that only the owner reads.
fn agent_token(config: &MasterConfig, data_dir: &std::path::Path) -> Result<String, StartError> {
    if let Some(token) = config
        .security
        .agent_token
        .clone()
        .filter(|t| !t.is_empty())
    {
        return Ok(token);
    }
    use std::io::Write;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let path = data_dir.join(AGENT_TOKEN_FILE);
    let failed = |source| StartError::File {
        path: path.clone(),
        source,
    };
    let owner_only = || std::fs::Permissions::from_mode(0o600);
    match std::fs::read_to_string(&path) {
        Ok(token) if !token.trim().is_empty() => {
            // One that an administrator wrote may be open to others.
            std::fs::set_permissions(&path, owner_only()).map_err(failed)?;
            return Ok(token.trim().to_owned());
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    std::fs::create_dir_all(data_dir).map_err(failed)?;
    let token = new_token();
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    file.set_permissions(owner_only()).map_err(failed)?;
    writeln!(file, "{token}")
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    Ok(token)
}
