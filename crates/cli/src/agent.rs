//! `det agent`: an agent on its own. (`commands/agents.rs` manages the agents of a cluster.)

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use det_agent::{
    AgentOptions, ClientIdentity, DebugServer, EndedContainers, Isolation, Limits, ProxyOptions,
    RuntimeChoice, Secret, TaskLimits, TlsOptions, TunnelServer, Ulimit, WarmStartOptions,
};
use det_config::agent::{AgentConfig, RootTasks, Runtime, SlotType, WarmStart};
use det_config::{LoadedAgent, Sources};
use det_ids::{AgentId, quantity};
use det_server::hub::Hub;
use tokio_util::sync::CancellationToken;

use crate::error::CliError;
use crate::key_flags::{AgentKeys, KeyFlags};
use crate::process_log::{self, LogTarget};
use crate::serve::{self, RuntimeArg};
use crate::table::{Format, Listing};

/// The configuration file that is read, if it exists, when no other is named.
const DEFAULT_CONFIG: &str = "/etc/determined/agent.yaml";
/// The data directory of an agent that runs as root, as services do, and names no other.
const DEFAULT_DATA_DIR: &str = "/var/lib/determined/agent";
/// The file in which a master on the same machine keeps the token that agents join with.
const DEFAULT_TOKEN_FILE: &str = "/var/lib/determined/master/agent-token";

/// Options of `det agent`. What is absent comes from the environment, the files or the defaults, in that order. Every key
/// of the configuration is a flag as well, `security.tls.enabled` as `--security-tls-enabled`, and a variable,
/// `DET_SECURITY_TLS_ENABLED`: `det config keys agent` lists them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AgentArgs {
    /// Configuration file, or a directory of such; may be repeated, later ones beat earlier ones [default:
    /// /etc/determined/agent.yaml if it exists]
    #[arg(long, env = "DET_CONFIG_FILE", value_name = "PATH")]
    pub(crate) config_file: Vec<PathBuf>,
    /// Host of the master
    #[arg(long, value_name = "HOST")]
    pub(crate) master_host: Option<String>,
    /// Port of the master
    #[arg(long, value_name = "PORT")]
    pub(crate) master_port: Option<u16>,
    /// Name of this agent [default: the host's name]
    #[arg(long, value_name = "ID")]
    pub(crate) agent_id: Option<String>,
    /// Resource pool to join
    #[arg(long, value_name = "POOL")]
    pub(crate) resource_pool: Option<String>,
    /// Kind of devices to offer as slots
    #[arg(long, value_name = "TYPE")]
    pub(crate) slot_type: Option<String>,
    /// Offer this many slots without devices, for tests
    #[arg(long, value_name = "N")]
    pub(crate) artificial_slots: Option<u32>,
    /// How tasks are run
    #[arg(long, value_enum)]
    pub(crate) runtime: Option<RuntimeArg>,
    /// Interpreter that process tasks get as `python3` [default: the first on PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Where the agent keeps its tasks
    #[arg(long, value_name = "PATH")]
    pub(crate) data_dir: Option<PathBuf>,
    /// File with the token that the cluster's agents join with; not needed once this agent has joined
    #[arg(long, value_name = "PATH")]
    pub(crate) agent_token_file: Option<PathBuf>,
    /// End the tasks when the agent is stopped
    #[arg(long)]
    pub(crate) stop_tasks: bool,
    /// Set any other key of the configuration: KEY=VALUE with a dotted key, `pools[0].key` or `pools[NAME].key` inside
    /// lists; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) keys: KeyFlags<AgentKeys>,
}

/// Reads the configuration: files, environment and these flags.
fn load(files: &[(String, String)], flags: &[(String, String)]) -> Result<LoadedAgent, CliError> {
    let environment =
        serve::config_environment(&LoadedAgent::value_names(), LoadedAgent::file_variables)?;
    let sources = Sources {
        files,
        env: &environment.values,
        flags,
    };
    let loaded = LoadedAgent::load(sources).map_err(|errors| {
        let errors = errors.variables_named(&environment.names);
        CliError::usage(format!(
            "the agent's configuration cannot be used:\n{errors}"
        ))
    })?;
    Ok(loaded.variables_named(&environment.names))
}

/// The files of the agent's configuration, which tasks must not see.
fn private_files(files: &[(String, String)], config: &AgentConfig) -> Vec<PathBuf> {
    let tls = &config.security.tls;
    let token = config.agent_token_file.iter().map(String::as_str);
    let named = files.iter().map(|(path, _)| path.as_str());
    named
        .chain(token)
        .chain([
            tls.client_key.as_str(),
            config.tls_key.as_str(),
            DEFAULT_TOKEN_FILE,
        ])
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .collect()
}

/// Carries out `det agent check-isolation`. Errs when a task could reach something that it must not.
pub(crate) async fn check_isolation(args: AgentArgs, format: Format) -> Result<(), CliError> {
    let files = serve::config_files(&args.config_file, DEFAULT_CONFIG)?;
    let mut flags = flags(&args)?;
    // No master is contacted, but a configuration must name one.
    flags.push(("master_host".to_owned(), "localhost".to_owned()));
    let config = load(&files, &flags)?.config;
    let mut options = options(&config)?;
    options.private_paths.extend(private_files(&files, &config));
    let rows = det_agent::check_isolation(&options)
        .await
        .map_err(|reason| {
            CliError::request(format!("tasks cannot run as processes here: {reason}"))
        })?;
    let mut listing = Listing::new(["What", "Isolated", "Seen"]);
    for row in &rows {
        let outcome = match row.outcome {
            Isolation::Isolated => "yes",
            Isolation::Shared => "no, by design",
            Isolation::Open => "NO",
        };
        listing.push([row.what.clone(), outcome.to_owned(), row.detail.clone()]);
    }
    listing.print(format, &rows)?;
    let open = rows.iter().filter(|row| row.outcome == Isolation::Open);
    match open.count() {
        0 => Ok(()),
        count => Err(CliError::request(format!(
            "{count} of {} not isolated; docs/security.md explains each",
            quantity(rows.len() as u64, "row")
        ))),
    }
}

/// Runs an agent until it receives a signal to stop, or ends by itself.
pub(crate) async fn run(args: AgentArgs) -> Result<ExitCode, CliError> {
    let mut stop_signals = serve::StopSignals::new()?;
    let files = serve::config_files(&args.config_file, DEFAULT_CONFIG)?;
    let flags = flags(&args)?;
    let LoadedAgent {
        config, warnings, ..
    } = load(&files, &flags)?;
    process_log::start(
        &config.log.level,
        config.log.color,
        &LogTarget::Stderr,
        &Hub::default(),
    )?;
    for warning in warnings {
        tracing::warn!("{}", warning.for_log());
    }
    serve::warn_of_secrets(&flags);
    tracing::info!(config = %config.to_masked_json(), "starting");
    let mut options = options(&config)?;
    options.token = token(&config, &options.data_dir)?;
    if let (None, Some(named)) = (&options.token, &config.agent_token_file) {
        tracing::warn!(
            "the file \"{named}\" of agent_token_file does not exist: the agent uses the token of its own that it joined with"
        );
        options.missing_token_file = Some(PathBuf::from(named));
    }
    options.private_paths.extend(private_files(&files, &config));
    options.keep_tasks_on_shutdown = !args.stop_tasks;
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let agent = tokio::spawn(det_agent::run(options, shutdown));
    tokio::pin!(agent);
    let ended = tokio::select! {
        () = stop_signals.next() => {
            stop.cancel();
            agent.await
        }
        ended = &mut agent => ended,
    };
    match ended {
        Ok(Ok(())) => Ok(ExitCode::SUCCESS),
        Ok(Err(error)) => Err(CliError::request(error.to_string())),
        Err(error) => Err(CliError::request(format!(
            "the agent ended unexpectedly: {error}"
        ))),
    }
}

fn flags(args: &AgentArgs) -> Result<Vec<(String, String)>, CliError> {
    let mut flags = args.keys.given.clone();
    let mut flag =
        |key: &str, value: Option<String>| flags.extend(value.map(|v| (key.to_owned(), v)));
    flag("master_host", args.master_host.clone());
    flag("master_port", args.master_port.map(|p| p.to_string()));
    flag("agent_id", args.agent_id.clone());
    flag("resource_pool", args.resource_pool.clone());
    flag("slot_type", args.slot_type.clone());
    flag(
        "artificial_slots",
        args.artificial_slots.map(|n| n.to_string()),
    );
    flag("runtime", args.runtime.map(|r| r.name().to_owned()));
    flag(
        "python",
        args.python.as_ref().map(|p| p.display().to_string()),
    );
    flag(
        "data_dir",
        args.data_dir.as_ref().map(|p| p.display().to_string()),
    );
    flag(
        "agent_token_file",
        args.agent_token_file
            .as_ref()
            .map(|p| p.display().to_string()),
    );
    flags.extend(serve::set_flags(&args.set)?);
    Ok(flags)
}

fn options(config: &AgentConfig) -> Result<AgentOptions, CliError> {
    let data_dir = match &config.data_dir {
        Some(dir) => PathBuf::from(dir),
        None if nix::unistd::geteuid().is_root() => PathBuf::from(DEFAULT_DATA_DIR),
        None => serve::default_data_dir()?.join("agent"),
    };
    let data_dir = serve::create_data_dir(&data_dir)?;
    let tls = &config.security.tls;
    let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    let mut options = AgentOptions::new(
        master_url(config),
        agent_id(config)?,
        &data_dir,
        serve::supervisor_path()?,
    );
    options.resource_pool.clone_from(&config.resource_pool);
    options.runtime = match config.container_runtime {
        Runtime::Auto => RuntimeChoice::Auto,
        Runtime::Docker => RuntimeChoice::Docker,
        Runtime::Podman => RuntimeChoice::Podman,
        Runtime::Process => RuntimeChoice::Process,
    };
    options.slot_type = match config.slot_type {
        SlotType::Auto => det_agent::SlotType::Auto,
        SlotType::None => det_agent::SlotType::None,
        SlotType::Cuda => det_agent::SlotType::Cuda,
        SlotType::Rocm => det_agent::SlotType::Rocm,
        SlotType::Cpu => det_agent::SlotType::Cpu,
    };
    options.visible_gpus.clone_from(&config.visible_gpus);
    options.artificial_slots = config.artificial_slots;
    options
        .container_master_host
        .clone_from(&config.container_master_host);
    options.container_master_port = config.container_master_port;
    options.tls = TlsOptions {
        skip_verify: tls.skip_verify,
        master_cert: path(&tls.master_cert),
        master_cert_name: filled(&tls.master_cert_name),
        client_identity: path(&tls.client_cert)
            .zip(path(&tls.client_key))
            .map(|(certificate, key)| ClientIdentity { certificate, key }),
    };
    options.proxies = ProxyOptions {
        http: filled(&config.http_proxy),
        https: filled(&config.https_proxy),
        ftp: filled(&config.ftp_proxy),
        no_proxy: filled(&config.no_proxy),
    };
    options.allowed_host_paths = config
        .allowed_host_paths
        .iter()
        .map(PathBuf::from)
        .collect();
    options
        .allowed_capabilities
        .clone_from(&config.allowed_capabilities);
    options.root_tasks = config.root_tasks == RootTasks::Root;
    options.ended_containers = if config.container_auto_remove_disabled {
        EndedContainers::Kept
    } else {
        EndedContainers::Removed
    };
    options.user_directories = config.user_directories.as_ref().map(PathBuf::from);
    options.task_limits = task_limits(config);
    options.ulimits = config.parsed_ulimits().into_iter().map(ulimit).collect();
    options.debug = config.debug;
    options.warm_start = config.warm_start.as_ref().map(warm_start);
    options.debug_server = debug_server(config)?;
    options.tunnel_server = tunnel_server(config);
    options.python = config.python.as_ref().map(PathBuf::from);
    options.python_package_dir = Some(serve::python_package(&data_dir)?);
    options.reconnect_backoff =
        Duration::from_secs(u64::from(config.agent_reconnect_backoff).max(1));
    options
        .on_connection_lost
        .clone_from(&config.hooks.on_connection_lost);
    // The command runs when the attempts are used up; without a command the agent tries for ever.
    options.reconnect_attempts =
        (!config.hooks.on_connection_lost.is_empty()).then_some(config.agent_reconnect_attempts);
    Ok(options)
}

/// Where the master opens tunnels itself, if it is to.
fn tunnel_server(config: &AgentConfig) -> Option<TunnelServer> {
    config.tunnel_port.map(|port| TunnelServer {
        host: config.tunnel_host.clone(),
        port,
    })
}

fn warm_start(config: &WarmStart) -> WarmStartOptions {
    WarmStartOptions {
        python: PathBuf::from(&config.python),
        imports: config.imports.clone(),
    }
}

/// The debug server, if there is to be one.
fn debug_server(config: &AgentConfig) -> Result<Option<DebugServer>, CliError> {
    if !config.api_enabled {
        return Ok(None);
    }
    let ip: IpAddr = config.bind_ip.parse().map_err(|_| {
        CliError::usage(format!(
            "\"bind_ip\" is \"{}\", which is no IP address",
            config.bind_ip
        ))
        .with_hint("127.0.0.1 is for this machine alone, 0.0.0.0 for every network that reaches it")
    })?;
    let identity = config.tls.then(|| ClientIdentity {
        certificate: PathBuf::from(&config.tls_cert),
        key: PathBuf::from(&config.tls_key),
    });
    Ok(Some(DebugServer {
        address: SocketAddr::new(ip, config.bind_port),
        identity,
    }))
}

fn ulimit(limit: det_config::agent::Ulimit) -> Ulimit {
    Ulimit {
        name: limit.name,
        soft: limit.soft,
        hard: limit.hard,
    }
}

fn task_limits(config: &AgentConfig) -> TaskLimits {
    TaskLimits {
        limits: Limits {
            memory_bytes: config.task_limits.memory,
            cpu_millis: config.task_cpu_millis(),
            processes: config.task_limits.processes.map(u64::from),
        },
        required: config.task_limits.required,
    }
}

/// The id of the agent: configured, else the name of this machine.
fn agent_id(config: &AgentConfig) -> Result<AgentId, CliError> {
    let id = match &config.agent_id {
        Some(id) => id.clone(),
        None => nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .filter(|name| !name.is_empty())
            .ok_or_else(|| {
                CliError::usage("this machine has no name")
                    .with_hint("name the agent with --agent-id")
            })?,
    };
    Ok(AgentId(id))
}

/// The URL of the master.
fn master_url(config: &AgentConfig) -> String {
    let scheme = if config.security.tls.enabled {
        "https"
    } else {
        "http"
    };
    let host = if config.master_host.contains(':') {
        format!("[{}]", config.master_host)
    } else {
        config.master_host.clone()
    };
    format!("{scheme}://{host}:{}", config.effective_master_port())
}

/// The token to join with: from the configuration, the file it names, or a master's on this machine. An agent that has a
/// token of its own needs none.
fn token(config: &AgentConfig, data_dir: &Path) -> Result<Option<Secret>, CliError> {
    if let Some(token) = &config.agent_token {
        return Ok(Some(Secret::new(token.clone())));
    }
    let path = match &config.agent_token_file {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(DEFAULT_TOKEN_FILE),
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(Secret::new(text.trim()))),
        Err(error) if error.kind() == ErrorKind::NotFound && has_own_token(data_dir) => Ok(None),
        Err(_) if config.agent_token_file.is_none() && has_own_token(data_dir) => Ok(None),
        Err(_) if config.agent_token_file.is_none() => Err(CliError::usage("the agent has no token for the master")
            .with_hint("copy the file \"agent-token\" from the master's data directory and name it with --agent-token-file")),
        Err(error) => Err(CliError::file("read the agents' token", &path, &error)),
    }
}

/// Whether an agent has run with this data directory, and so may have joined.
fn has_own_token(data_dir: &Path) -> bool {
    data_dir.join(det_agent::TOKEN_FILE).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(flags: &[(&str, &str)]) -> Result<Option<DebugServer>, CliError> {
        let flags = flags.iter().chain([&("master_host", "m")]);
        let flags: Vec<_> = flags
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        debug_server(&load(&[], &flags)?.config)
    }

    #[test]
    fn the_debug_server_is_off_unless_configured() {
        assert!(server(&[("bind_ip", "127.0.0.1")]).unwrap().is_none());
        let plain = server(&[("api_enabled", "true")]).unwrap().unwrap();
        assert_eq!(plain.address.to_string(), "0.0.0.0:9090");
        assert!(plain.identity.is_none());
        let local = [
            ("api_enabled", "true"),
            ("bind_ip", "::1"),
            ("bind_port", "1"),
            ("tls", "true"),
            ("tls_cert", "/c"),
            ("tls_key", "/k"),
        ];
        let local = server(&local).unwrap().unwrap();
        assert_eq!(local.address.to_string(), "[::1]:1");
        assert_eq!(local.identity.unwrap().key, PathBuf::from("/k"));
        let error = server(&[("api_enabled", "true"), ("bind_ip", "lo")]).unwrap_err();
        assert!(error.to_string().contains("no IP address"), "{error}");
    }
}
