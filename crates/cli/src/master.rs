//! `det master`: a master on its own. (`commands/masters.rs` has the client's commands about a master.)

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use det_config::{ConfigErrors, LoadedMaster, Sources};
use det_server::hub::Hub;
use det_server::in_force::{Surroundings, UnusableConfig};
use det_server::{MasterOptions, RunningMaster};

use crate::error::CliError;
use crate::key_flags::{KeyFlags, MasterKeys};
use crate::process_log::{self, Level, LogTarget};
use crate::serve;

/// The configuration file that is read, if it exists, when no other is named.
const DEFAULT_CONFIG: &str = "/etc/determined/master.yaml";
/// The data directory of a master that runs as root, as services do, and names no other.
pub(crate) const DEFAULT_DATA_DIR: &str = "/var/lib/determined/master";

/// Options of `det master`. What is absent comes from the environment, the files or the defaults, in that order. Every key
/// of the configuration is a flag as well, `db.ssl_mode` as `--db-ssl-mode`, and a variable, `DET_DB_SSL_MODE`:
/// `det config keys master` lists them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MasterArgs {
    /// Configuration file, or a directory of such; may be repeated, later ones beat earlier ones [default:
    /// /etc/determined/master.yaml if it exists]
    #[arg(long, env = "DET_CONFIG_FILE", value_name = "PATH")]
    pub(crate) config_file: Vec<PathBuf>,
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
    /// Listen on more than this machine although active users have blank passwords
    #[arg(long)]
    pub(crate) allow_blank_passwords: bool,
    /// Set any other key of the configuration: KEY=VALUE with a dotted key, `pools[0].key` or `pools[NAME].key` inside
    /// lists; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) keys: KeyFlags<MasterKeys>,
}

/// Where a master's configuration comes from.
#[derive(Debug, Clone)]
pub(crate) struct MasterSource {
    /// Files and directories, later ones stronger.
    pub(crate) files: Vec<PathBuf>,
    /// File that is read, if it exists, when `files` is empty; an empty path = none.
    pub(crate) default_file: &'static str,
    /// Values of flags: `(dotted key, value)`.
    pub(crate) flags: Vec<(String, String)>,
}

impl MasterSource {
    /// Reads files, environment and flags. Errs with all errors of the configuration at once.
    pub(crate) fn load(&self) -> Result<LoadedMaster, CliError> {
        self.read().map_err(|error| match error {
            ReadError::Source(error) => error,
            ReadError::Content(errors) => CliError::usage(unusable(&errors)),
        })
    }

    fn read(&self) -> Result<LoadedMaster, ReadError> {
        let files =
            serve::config_files(&self.files, self.default_file).map_err(ReadError::Source)?;
        let environment =
            serve::config_environment(&LoadedMaster::value_names(), LoadedMaster::file_variables)
                .map_err(ReadError::Source)?;
        let sources = Sources {
            files: &files,
            env: &environment.values,
            flags: &self.flags,
        };
        LoadedMaster::load(sources)
            .map(|loaded| loaded.variables_named(&environment.names))
            .map_err(|errors| ReadError::Content(errors.variables_named(&environment.names)))
    }

    /// Whether no configuration file exists: only defaults, environment and flags are used.
    fn has_no_file(&self) -> bool {
        self.files.is_empty() && !Path::new(self.default_file).exists()
    }
}

/// Why a configuration could not be read.
enum ReadError {
    /// A file or a variable cannot be read.
    Source(CliError),
    /// The content has errors.
    Content(ConfigErrors),
}

fn unusable(errors: &ConfigErrors) -> String {
    format!("the master's configuration cannot be used:\n{errors}")
}

/// The process that a master runs in: the source of its configuration and its log.
pub(crate) struct Process {
    /// Where the configuration is read from, at the start and at each reload.
    pub(crate) source: MasterSource,
    /// Sets the level of the process's log.
    pub(crate) level: Level,
}

impl Surroundings for Process {
    fn read_config(&self) -> Result<LoadedMaster, UnusableConfig> {
        self.source.read().map_err(|error| match error {
            ReadError::Source(error) => UnusableConfig {
                message: error.to_string(),
                errors: Vec::new(),
            },
            ReadError::Content(errors) => UnusableConfig {
                message: unusable(&errors),
                errors: errors.0,
            },
        })
    }

    fn set_log_level(&self, level: &str) {
        self.level.set(level);
    }
}

impl MasterArgs {
    fn source(&self) -> Result<MasterSource, CliError> {
        let mut flags = self.keys.given.clone();
        let mut flag =
            |key: &str, value: Option<String>| flags.extend(value.map(|v| (key.to_owned(), v)));
        flag("host", self.host.clone());
        flag("port", self.port.map(|p| p.to_string()));
        flag(
            "data_dir",
            self.data_dir.as_ref().map(|p| p.display().to_string()),
        );
        flag("db.url", self.db_url.clone());
        flags.extend(serve::set_flags(&self.set)?);
        Ok(MasterSource {
            files: self.config_file.clone(),
            default_file: DEFAULT_CONFIG,
            flags,
        })
    }
}

/// Runs a master until it receives a signal to stop, or ends by itself.
pub(crate) async fn run(args: MasterArgs) -> Result<ExitCode, CliError> {
    let source = args.source()?;
    let mut stop_signals = serve::StopSignals::new()?;
    let mut hang_ups = serve::HangUps::new()?;
    let loaded = source.load()?;
    let config = &loaded.config;
    let hub = Hub::default();
    let log = process_log::start(
        &config.log.level,
        config.log.color,
        &LogTarget::Stderr,
        &hub,
    )?;
    for warning in &loaded.warnings {
        tracing::warn!("{}", warning.for_log());
    }
    serve::warn_of_secrets(&source.flags);
    if source.has_no_file() {
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
    tracing::info!(config = %config.to_logged_json(), data_dir = %data_dir.display(), "starting");
    let options = MasterOptions {
        config: loaded,
        doubles: Vec::new(),
        surroundings: Arc::new(Process {
            source,
            level: log.level,
        }),
        data_dir: data_dir.clone(),
        allow_blank_passwords: args.allow_blank_passwords,
        hub,
        log: log.kept,
    };
    let mut running = tokio::select! {
        started = start(options) => started?,
        // The next start continues from whatever this one has done.
        () = stop_signals.next() => {
            tracing::info!("stopped before the master listened");
            return Ok(ExitCode::SUCCESS);
        }
    };
    tracing::info!(address = %running.address, store = running.master().context.store.kind(), "the master listens");
    if running.blank_password {
        tracing::warn!("the user \"admin\" has a blank password: det user change-password");
    }
    tracing::info!(
        "agents join with: det agent --master-host HOST --master-port {} --agent-token-file {}",
        running.address.port(),
        data_dir.join(det_server::AGENT_TOKEN_FILE).display()
    );
    let master = running.master().clone();
    tokio::select! {
        () = stop_signals.next() => {}
        () = hang_ups.reload(&master) => {}
        () = running.wait() => {}
    }
    tracing::info!("stopping");
    let failure = running.failure().map(str::to_owned);
    running.stop().await;
    match failure {
        Some(why) => Err(CliError::request(format!("the master ended: {why}"))),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Starts a master. An error has its causes in one message.
pub(crate) async fn start(options: MasterOptions) -> Result<RunningMaster, CliError> {
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
