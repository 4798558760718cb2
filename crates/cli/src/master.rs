//! `det master`: a master on its own. (Questions to a master stand in `commands/masters.rs`.)

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::error::CliError;

/// Options of `det master`. What is absent comes from the environment, the file or the defaults, in that order.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MasterArgs {
    /// Configuration file [default: /etc/determined/master.yaml if it exists]
    #[arg(long, value_name = "PATH")]
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
}

/// Runs a master until it is told to stop.
pub(crate) async fn run(args: MasterArgs) -> Result<ExitCode, CliError> {
    let file = args
        .config_file
        .map_or_else(|| "no file".to_owned(), |path| path.display().to_string());
    Err(CliError::request(format!(
        "this build of det cannot run a master (configuration: {file}): it is not linked in yet"
    )))
}
