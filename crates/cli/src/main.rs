//! The `det` executable: the client of a master, and the ways to start one.
//!
//! [`args`] is the tree of commands, a file under [`commands`] carries out each group, and [`up`], [`master`] and
//! [`agent`] start the long-running halves. Everything a command needs to speak to a master comes from
//! [`context::Context`]. Data goes to standard output, all else to standard error; how a run ends is told by the exit
//! code (see [`error::Exit`]).

mod agent;
mod args;
mod commands;
mod context;
mod error;
mod key_flags;
mod master;
mod model_files;
mod output;
mod process_log;
mod prompt;
mod serve;
mod table;
mod unbuilt;
mod unpack;
mod up;
mod values;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::Cli;
use crate::error::CliError;

fn main() -> ExitCode {
    // No runtime and no look at the disk before this: `det --help` is to answer at once.
    let words = args::with_role(std::env::args_os());
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return not_understood(&words, &error),
    };
    match run(cli) {
        Ok(code) => code,
        Err(error) => error::report(&error),
    }
}

/// What a person is told of a command line that is none of ours; also prints help and version, which are asked for so.
fn not_understood(words: &[OsString], error: &clap::Error) -> ExitCode {
    let arguments: Vec<String> = words
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let missing = match error.kind() {
        ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument => unbuilt::asked_for(&arguments),
        _ => None,
    };
    match missing {
        Some(command) => error::report(
            &CliError::usage(format!("`det {command}` is not built yet in this version"))
                .with_hint("`det --help` shows the commands there are"),
        ),
        None => error.exit(),
    }
}

fn run(cli: Cli) -> Result<ExitCode, CliError> {
    det_client::install_crypto_provider();
    let mut builder = if cli.command.serves() {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| CliError::request(format!("could not start: {error}")))?;
    let result = runtime.block_on(commands::run(cli));
    // A question at the terminal may still be open in a thread; the process ends without waiting for it.
    runtime.shutdown_background();
    result
}
