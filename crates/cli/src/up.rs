//! `det up`: master and agents on this machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::args::RuntimeArg;
use crate::error::CliError;

/// Options of `det up`.
#[derive(Debug, Clone, Args)]
pub(crate) struct UpArgs {
    /// Port to listen on, on this machine only
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    /// Where the cluster keeps its data [default: a directory under the person's own]
    #[arg(long, value_name = "PATH")]
    pub(crate) data_dir: Option<PathBuf>,
    /// How many agents to run
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) agents: u32,
    /// Slots of each agent, in place of the devices found
    #[arg(long, value_name = "M")]
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

/// Runs a cluster until it is told to stop.
pub(crate) async fn run(args: UpArgs) -> Result<ExitCode, CliError> {
    Err(CliError::request(format!(
        "this build of det cannot run a cluster (port {}): the master is not linked in yet",
        args.port
    )))
}
