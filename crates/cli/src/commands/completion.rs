//! `det completion`: scripts that let a shell complete command lines.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::error::CliError;
use crate::output;

/// Options of `det completion`.
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell to complete in
    shell: Shell,
}

/// Prints the script for the tree of commands `det`.
pub(crate) fn run(args: &CompletionArgs, det: &mut Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, det, "det", &mut script);
    output::for_programs(String::from_utf8_lossy(&script))
}
