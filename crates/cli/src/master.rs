//! `det master`: a master on its own. (Questions to a master stand in `commands/masters.rs`.)

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use det_config::master::MasterConfig;
use det_server::hub::Hub;
use det_server::{MasterOptions, Running};

use crate::error::CliError;
use crate::serve::{self, LogTarget};

/// Where the configuration lies unless told otherwise.
const DEFAULT_CONFIG: &str = "/etc/determined/master.yaml";
/// Where a master that runs as a service keeps its data.
const DEFAULT_DATA_DIR: &str = "/var/lib/determined/master";

/// Options of `det master`. What is absent comes from the environment, the file or the defaults, in that order.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MasterArgs {
    /// Configuration file [default: /etc/determined/master.yaml if it exists]
    #[arg(long, env = "DET_CONFIG_FILE", value_name = "PATH")]
    pub(crate) config_file: Option<PathBuf>,
    /// Address to listen on
    #[arg(long)]
    pub(crate) host: Option<String>,
    /// Port to listen on
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// Where the embedded store and files are kept
    #[arg(long, value_name = "PATH")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Database server to use in place of the embedded store
    #[arg(long, value_name = "URL")]
    pub(crate) db_url: Option<String>,
    /// Listen on more than this machine although the administrator's password is blank
    #[arg(long)]
    pub(crate) allow_blank_passwords: bool,
    /// Set any other key of the configuration: KEY=VALUE with a dotted key; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// Runs a master until it is told to stop.
pub(crate) async fn run(args: MasterArgs) -> Result<ExitCode, CliError> {
    let files = serve::config_files(args.config_file.as_deref(), DEFAULT_CONFIG)?;
    let environment = serve::config_environment(&MasterConfig::environment_names())?;
    let mut flags: Vec<(String, String)> = Vec::new();
    let mut flag =
        |key: &str, value: Option<String>| flags.extend(value.map(|v| (key.to_owned(), v)));
    flag("host", args.host);
    flag("port", args.port.map(|p| p.to_string()));
    flag("data_dir", args.data_dir.map(|p| p.display().to_string()));
    flag("db.url", args.db_url);
    for pair in &args.set {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(CliError::usage(format!(
                "--set \"{pair}\" is not KEY=VALUE"
            )));
        };
        flags.push((key.to_owned(), value.to_owned()));
    }
    let (config, warnings) =
        MasterConfig::load(&files, &environment, &flags).map_err(|errors| {
            CliError::usage(format!(
                "the master's configuration cannot be used:\n{errors}"
            ))
        })?;
    let hub = Hub::default();
    let log = serve::start_logging(
        &config.log.level,
        config.log.color,
        &LogTarget::Stderr,
        &hub,
    )?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if files.is_empty() {
        tracing::warn!("there is no {DEFAULT_CONFIG}: defaults, environment and flags are used");
    }
    let data_dir = match &config.data_dir {
        Some(dir) => PathBuf::from(dir),
        None if std::env::var_os("DET_DATA_DIR").is_none() && nix::unistd::geteuid().is_root() => {
            PathBuf::from(DEFAULT_DATA_DIR)
        }
        None => serve::default_data_dir()?,
    };
    let data_dir = serve::create_data_dir(&data_dir)?;
    tracing::info!(config = %config.to_masked_json(), data_dir = %data_dir.display(), "starting");
    let options = MasterOptions {
        config,
        data_dir: data_dir.clone(),
        allow_blank_passwords: args.allow_blank_passwords,
        hub,
        log,
    };
    let mut running = start(options).await?;
    tracing::info!(address = %running.address, store = running.master().store.kind(), "the master listens");
    if running.blank_password {
        tracing::warn!("the user \"admin\" has a blank password: det user change-password");
    }
    tracing::info!(
        "agents join with: det agent --master-host HOST --master-port {} --agent-token-file {}",
        running.address.port(),
        data_dir.join(det_server::AGENT_TOKEN_FILE).display()
    );
    tokio::select! {
        stopped = serve::stop_signal() => stopped?,
        () = running.wait() => {}
    }
    tracing::info!("stopping");
    running.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// Starts a master; a refusal is one sentence.
pub(crate) async fn start(options: MasterOptions) -> Result<Running, CliError> {
    det_server::start(options).await.map_err(|error| {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            let text = inner.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = inner.source();
        }
        CliError::request(message)
    })
}
