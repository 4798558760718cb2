//! `det up`: master and agents on this machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use clap::Args;
use det_agent::{AgentOptions, RuntimeChoice, Secret};
use det_config::MAX_ARTIFICIAL_SLOTS;
use det_ids::{AgentId, quantity};
use det_server::hub::{Hub, Topic};
use det_server::{MasterOptions, RunningMaster};
use det_taskspec::{PlaceRuntime, RuntimeKind};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::CliError;
use crate::master::{MasterSource, Process};
use crate::output;
use crate::process_log::{self, LogTarget};
use crate::serve::{self, RuntimeArg};

/// Options of `det up`.
#[derive(Debug, Clone, Args)]
pub(crate) struct UpArgs {
    /// Port to listen on, on this machine only
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    /// Where the cluster keeps its data [default: `DET_DATA_DIR`, else a directory of the user's]
    #[arg(long, value_name = "PATH")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration file of the master, or a directory of such, for all that has no option here; may be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) config_file: Vec<PathBuf>,
    /// How many agents to run
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) agents: u32,
    /// Slots of each agent, in place of the devices found; at most 4096
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_ARTIFICIAL_SLOTS)))]
    pub(crate) slots: Option<u32>,
    /// How tasks are run
    #[arg(long, value_enum, default_value_t = RuntimeArg::Auto)]
    pub(crate) runtime: RuntimeArg,
    /// Interpreter that process tasks get as `python3` [default: the first on PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Do not open a browser
    #[arg(long)]
    pub(crate) no_open: bool,
    /// Leave tasks running when the cluster stops
    #[arg(long)]
    pub(crate) keep_tasks: bool,
}

/// Name of the log's file in the data directory.
const LOG_FILE: &str = "det.log";

/// Runs a cluster until it receives a signal to stop, or a part of it ends.
pub(crate) async fn run(args: UpArgs) -> Result<ExitCode, CliError> {
    let data_dir = match &args.data_dir {
        Some(dir) => dir.clone(),
        None => serve::default_data_dir()?,
    };
    let data_dir = serve::create_data_dir(&data_dir)?;
    let mut stop_signals = serve::StopSignals::new()?;
    let mut hang_ups = serve::HangUps::new()?;
    let options = master_options(&args, &data_dir)?;
    let supervisor = serve::supervisor_path()?;
    let mut master = tokio::select! {
        started = crate::master::start(options) => started?,
        // The next start continues from whatever this one has done.
        () = stop_signals.next() => {
            output::note("Stopped before the cluster was started.");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let scheme = if master.master().tls { "https" } else { "http" };
    let url = format!("{scheme}://{}", master.address);
    let shutdown = CancellationToken::new();
    let mut agents = JoinSet::new();
    let names = agent_names(args.agents);
    for options in agent_options(&args, &master, &names, &url, &data_dir, &supervisor)? {
        agents.spawn(det_agent::run(options, shutdown.clone()));
    }
    let ended_before = tokio::select! {
        () = stop_signals.next() => Some(Ok(())),
        ended = first_failure(&mut agents) => Some(ended),
        () = agents_joined(&master, &names) => None,
    };
    let outcome = match ended_before {
        None => {
            greet(&args, &url, &data_dir, master.blank_password)?;
            greet_runtimes(&args, &master, &names).await?;
            let reloading = master.master().clone();
            let outcome = tokio::select! {
                () = stop_signals.next() => Ok(()),
                () = hang_ups.reload(&reloading) => Ok(()),
                () = master.wait() => {
                    let why = master.failure().map_or_else(String::new, |why| format!(": {why}"));
                    let log = data_dir.join(LOG_FILE);
                    Err(CliError::request(format!("the master ended{why}; {} has more", log.display())))
                }
                ended = first_failure(&mut agents) => ended,
            };
            output::note("Stopping …");
            outcome
        }
        Some(outcome) => outcome,
    };
    if !args.keep_tasks {
        master.stop_scheduling();
    }
    shutdown.cancel();
    while agents.join_next().await.is_some() {}
    master.stop().await;
    outcome?;
    let what = if args.keep_tasks { "tasks go on; " } else { "" };
    output::note(format!(
        "Stopped; {what}the same command, with its options, goes on where it was."
    ));
    Ok(ExitCode::SUCCESS)
}

/// Reads the configuration of the master and starts the log of the process.
fn master_options(args: &UpArgs, data_dir: &Path) -> Result<MasterOptions, CliError> {
    let source = MasterSource {
        files: args.config_file.clone(),
        default_file: "",
        flags: vec![
            ("host".to_owned(), "127.0.0.1".to_owned()),
            ("port".to_owned(), args.port.to_string()),
            ("data_dir".to_owned(), data_dir.display().to_string()),
        ],
    };
    let loaded = source.load()?;
    let hub = Hub::default();
    let log = process_log::start(
        &loaded.config.log.level,
        loaded.config.log.color,
        &LogTarget::File(&data_dir.join(LOG_FILE)),
        &hub,
    )?;
    for warning in &loaded.warnings {
        tracing::warn!("{}", warning.for_log());
    }
    Ok(MasterOptions {
        config: loaded,
        doubles: Vec::new(),
        surroundings: Arc::new(Process {
            source,
            level: log.level,
        }),
        data_dir: data_dir.to_owned(),
        allow_blank_passwords: false,
        hub,
        log: log.kept,
    })
}

/// The ids of the agents: `local`, or `local-1` and so on if there are several.
fn agent_names(count: u32) -> Vec<String> {
    match count {
        1 => vec!["local".to_owned()],
        _ => (1..=count).map(|n| format!("local-{n}")).collect(),
    }
}

/// The options of an agent of each name, which joins the master at `url`.
fn agent_options(
    args: &UpArgs,
    master: &RunningMaster,
    names: &[String],
    url: &str,
    data_dir: &Path,
    supervisor: &Path,
) -> Result<Vec<AgentOptions>, CliError> {
    let python_package = serve::python_package(data_dir)?;
    // Tasks of this machine may run as the user that the master runs as.
    let mut private = vec![data_dir.to_owned()];
    let files = serve::config_files(&args.config_file, "")?;
    private.extend(files.into_iter().map(|(path, _)| PathBuf::from(path)));
    // Reported once for this machine, not by each agent.
    let isolation = Arc::new(OnceLock::new());
    let configured = master.master().context.config();
    let allowed = &configured.security.allowed_host_paths;
    let mut agents = Vec::new();
    for name in names {
        let agent_dir = data_dir.join("agents").join(name);
        let agent_dir = serve::create_data_dir(&agent_dir)?;
        let mut options = AgentOptions::new(url, AgentId(name.clone()), agent_dir, supervisor);
        options.token = Some(Secret::new(master.agent_token.clone()));
        // Pools may have any names; work that names no pool is placed in this one.
        if let Some(pool) = master.master().pools.default_compute_pool() {
            options.resource_pool = pool;
        }
        options.runtime = match args.runtime {
            // An interpreter of this machine does not exist inside a container's image.
            RuntimeArg::Auto if args.python.is_some() => RuntimeChoice::Process,
            RuntimeArg::Auto => RuntimeChoice::Auto,
            RuntimeArg::Docker => RuntimeChoice::Docker,
            RuntimeArg::Podman => RuntimeChoice::Podman,
            RuntimeArg::Process => RuntimeChoice::Process,
        };
        options.artificial_slots = args.slots.unwrap_or(0);
        options.python.clone_from(&args.python);
        options.python_package_dir = Some(python_package.clone());
        options.allowed_host_paths = allowed.iter().map(PathBuf::from).collect();
        options.keep_tasks_on_shutdown = args.keep_tasks;
        // `det up --slots 4` after `--slots 2` must change the number of slots.
        options.rejoin_when_changed = true;
        options.private_paths.clone_from(&private);
        options.isolation_notice = isolation.clone();
        options.tls.skip_verify = master.master().tls;
        agents.push(options);
    }
    Ok(agents)
}

/// Waits until all agents have joined; each connection is an event in the hub.
async fn agents_joined(master: &RunningMaster, names: &[String]) {
    let mut events = master.master().context.hub.subscribe(Topic::Events);
    while !master.agents_connected(names) {
        events.changed().await;
    }
}

/// Waits for an agent to end with an error; agents that end without one are ignored.
async fn first_failure(
    agents: &mut JoinSet<Result<(), det_agent::AgentError>>,
) -> Result<(), CliError> {
    while let Some(ended) = agents.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(CliError::request(error.to_string())),
            Err(error) => {
                return Err(CliError::request(format!(
                    "an agent ended unexpectedly: {error}"
                )));
            }
        }
    }
    std::future::pending().await
}

fn greet(args: &UpArgs, url: &str, data_dir: &Path, blank: bool) -> Result<(), CliError> {
    let slots = match args.slots {
        Some(n) => format!("{} each", quantity(n.into(), "slot")),
        None => "the devices of this machine".to_owned(),
    };
    output::line(format!(
        "The cluster runs at {url}  ({}, {slots})",
        quantity(args.agents.into(), "agent")
    ))?;
    output::line(format!("  data       {}", data_dir.display()))?;
    output::line(client_lines(url, blank).join("\n"))?;
    output::line("  try it     det experiment create CONFIG.yaml DIRECTORY --follow")?;
    Ok(())
}

/// What a user types first, in this order: a login is one to the master that the variable names. `blank` = the password of
/// the default user is blank.
fn client_lines(url: &str, blank: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if !url.ends_with(":8080") || url.starts_with("https") {
        lines.push(format!("  client     export DET_MASTER={url}"));
    }
    let why = if blank {
        "        (blank password; only this machine can reach it, tasks cannot use it)"
    } else {
        ""
    };
    lines.push(format!("  log in     det user login determined{why}"));
    lines
}

/// Prints in what tasks run, and what that limits.
async fn greet_runtimes(
    args: &UpArgs,
    master: &RunningMaster,
    names: &[String],
) -> Result<(), CliError> {
    let runtimes = master.runtimes_of(names).await;
    let runtimes = runtimes.map_err(|error| CliError::request(error.to_string()))?;
    let images = master.default_images_of(names).await;
    let images = images.map_err(|error| CliError::request(error.to_string()))?;
    for line in runtime_lines(&runtimes, &images, args.python.as_deref()) {
        output::line(line)?;
    }
    output::line("  stop       Ctrl-C")
}

/// The lines about what tasks run in. `images` = those of work that names none, `python` = the interpreter that was named for
/// tasks.
fn runtime_lines(
    runtimes: &BTreeSet<PlaceRuntime>,
    images: &BTreeSet<String>,
    python: Option<&Path>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for runtime in runtimes {
        let text = match runtime {
            PlaceRuntime::Agent(RuntimeKind::Docker) => {
                "in containers of Docker, from the image of their configuration".to_owned()
            }
            PlaceRuntime::Agent(RuntimeKind::Podman) => {
                "in containers of Podman, from the image of their configuration".to_owned()
            }
            PlaceRuntime::Agent(RuntimeKind::Process) => {
                let python = match python {
                    Some(python) => format!("python3 is {}", python.display()),
                    None => "python3 is the first on PATH".to_owned(),
                };
                format!(
                    "as processes of this machine, each in a sandbox (runtime \"process\"); {python}"
                )
            }
            PlaceRuntime::Named(other) => format!("in runtime \"{other}\""),
        };
        lines.push(format!("  tasks run  {text}"));
        if matches!(
            runtime,
            PlaceRuntime::Agent(RuntimeKind::Docker | RuntimeKind::Podman)
        ) {
            let images: Vec<&str> = images.iter().map(String::as_str).collect();
            lines.push(format!(
                "             where it names none: {} (task_container_defaults.image)",
                images.join(", ")
            ));
        }
        if *runtime == PlaceRuntime::Agent(RuntimeKind::Process) {
            lines.push(
                "             images are not used, the network is that of this machine: --runtime docker or podman has both"
                    .to_owned(),
            );
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_names_the_master_before_the_login_to_it() {
        let lines = client_lines("http://127.0.0.1:8090", true);
        assert_eq!(
            lines[0],
            "  client     export DET_MASTER=http://127.0.0.1:8090"
        );
        assert!(lines[1].contains("det user login determined  ") && lines[1].contains("blank"));
        let lines = client_lines("http://127.0.0.1:8080", false);
        assert_eq!(lines, ["  log in     det user login determined"]);
    }

    #[test]
    fn the_banner_names_the_runtime_and_what_it_limits() {
        let lines = |runtime: &str, python| {
            let images = BTreeSet::from(["registry/image:1".to_owned()]);
            runtime_lines(&BTreeSet::from([runtime.into()]), &images, python).join("\n")
        };
        let process = lines("process", Some(Path::new("/opt/venv/bin/python")));
        assert!(
            process.contains("in a sandbox")
                && process.contains("python3 is /opt/venv/bin/python")
                && process.contains("images are not used"),
            "{process}"
        );
        assert!(lines("process", None).contains("first on PATH"));
        assert!(!lines("process", None).contains("registry/image"));
        let docker = lines("docker", None);
        assert!(
            docker.contains("where it names none: registry/image:1 "),
            "{docker}"
        );
        assert!(docker.contains("containers of Docker") && !docker.contains("sandbox"));
        assert!(lines("podman", None).contains("containers of Podman"));
    }
}
