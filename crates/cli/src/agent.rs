//! `det agent`: an agent on its own. (Managing the agents of a cluster stands in `commands/agents.rs`.)

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::args::RuntimeArg;
use crate::error::CliError;

/// Options of `det agent`. What is absent comes from the environment, the file or the defaults, in that order.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AgentArgs {
    /// Configuration file [default: /etc/determined/agent.yaml if it exists]
    #[arg(long, value_name = "PATH")]
    pub(crate) config_file: Option<PathBuf>,
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
}

/// Runs an agent until it is told to stop.
pub(crate) async fn run(args: AgentArgs) -> Result<ExitCode, CliError> {
    let name = args.agent_id.unwrap_or_else(|| "unnamed".to_owned());
    Err(CliError::request(format!(
        "this build of det cannot run an agent ({name}): it is not linked in yet"
    )))
}
