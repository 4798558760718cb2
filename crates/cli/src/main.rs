//! The `det` executable: the client of a master, and the ways to start one.
//!
//! Arrows go down only. At the top, [`args`] is the tree of commands and hands each to the module that carries it out:
//! a file under [`commands`] for each group of the client's commands, and [`up`], [`master`] and [`agent`] for the
//! long-running processes. Below them, [`context::Context`] has what a command needs to reach a master, and [`paging`],
//! [`table`] and [`values`] the flags and forms of lists; [`typed`] puts refusals into the words that were typed. At the bottom, [`output`] writes data to standard output and
//! everything else to standard error, with what a terminal would obey made [`printable`], and [`error`] has the errors and exit codes. The arguments of a command are defined
//! where they are used.

mod agent;
mod args;
mod commands;
mod context;
mod error;
mod key_flags;
mod kinds;
mod master;
mod model_files;
mod output;
mod paging;
mod printable;
mod private_files;
mod process_log;
mod prompt;
mod serve;
mod table;
mod typed;
mod unbuilt;
mod unpack;
mod up;
mod values;

use std::ffi::OsString;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use crate::args::Cli;
use crate::error::CliError;

/// Measured against the allocators of glibc and mimalloc: one minute after the same load a master holds a third of the
/// memory that it holds with glibc's (docs/memory.md). A thread of jemalloc's returns freed memory to the system even
/// while nothing is allocated.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Under load the live heap of a master is some 6 MiB; the rest of its memory is freed memory that the allocator keeps,
/// and the longer it keeps it, the more it is (docs/memory.md): one second rather than the usual ten.
/// jemalloc reads this C string before its first allocation; `_RJEM_MALLOC_CONF` in the environment overrides it.
#[expect(
    unsafe_code,
    reason = "jemalloc finds its settings by the name of a symbol, and nothing else has this one"
)]
#[unsafe(export_name = "_rjem_malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8; 37] = b"dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// Most threads for blocking work: files, hashing, large documents. Each may keep freed memory for a while, so their number
/// is part of the memory of the process.
const BLOCKING_THREADS: usize = 64;

fn main() -> ExitCode {
    // No runtime is started and no file is read before this: `det --help` must answer at once.
    let words = args::with_role(std::env::args_os());
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return report_parse_error(&words, &error),
    };
    match run(cli) {
        Ok(code) => code,
        Err(error) => output::report(&typed::in_typed_words(error, &words)),
    }
}

/// Reports a command line that was not parsed. Help and version are such results too, and are printed here.
fn report_parse_error(words: &[OsString], error: &clap::Error) -> ExitCode {
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
        Some(command) => output::report(
            &CliError::usage(format!("`det {command}` is not built yet in this version"))
                .with_hint("`det --help` shows the commands there are"),
        ),
        None if is_about_slots(error) => {
            // Of the two kinds of configurations, those of experiments have another key.
            let is_experiment = |word: &String| matches!(word.as_str(), "experiment" | "e");
            let key = if arguments.iter().any(is_experiment) {
                "resources.slots_per_trial"
            } else {
                "resources.slots"
            };
            output::report(
                &CliError::usage("there is no option \"--slots\" here").with_hint(format!(
                    "slots are asked for in the configuration: --config {key}=N"
                )),
            )
        }
        None => match number_error(error) {
            Some(error) => error.exit(),
            None => error.exit(),
        },
    }
}

/// Whether an option was given for the slots of what is to run: `det up` alone has one of that name.
fn is_about_slots(error: &clap::Error) -> bool {
    error.kind() == ErrorKind::UnknownArgument
        && matches!(
            error.get(ContextKind::InvalidArg),
            Some(ContextValue::String(argument)) if argument == "--slots"
        )
}

/// The error for a value that must be a number, in place of the message of Rust's parser; `None` for any other error.
fn number_error(error: &clap::Error) -> Option<clap::Error> {
    let source = std::error::Error::source(error)?;
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let argument = context(ContextKind::InvalidArg)?;
    let value = context(ContextKind::InvalidValue)?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let wanted = if let Some(error) = source.downcast_ref::<ParseIntError>() {
        match error.kind() {
            IntErrorKind::PosOverflow => "is too large a number",
            IntErrorKind::NegOverflow => "is too small a number",
            _ if value.strip_prefix('-').is_some_and(digits) => {
                "must be a whole number that is not negative"
            }
            _ => "must be a whole number, such as 12",
        }
    } else if source.is::<ParseFloatError>() {
        "must be a number, such as 12 or 0.5"
    } else {
        return None;
    };
    let message = format!("invalid value '{value}' for '{argument}': {wanted}\n");
    Some(clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(&Cli::command()))
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
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .map_err(|error| CliError::request(format!("could not start: {error}")))?;
    let result = runtime.block_on(args::run(cli));
    // A thread may still wait for an answer at the terminal; the process ends without waiting for it.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_number_has_a_message_of_its_own() {
        for (words, expected) in [
            (
                "det experiment list --limit x",
                "'x' for '--limit <N>': must be a whole number, such as 12",
            ),
            (
                "det experiment set priority 1 x",
                "'x' for '<PRIORITY>': must be a whole number, such as 12",
            ),
            (
                "det experiment list --limit 99999999999999999999",
                "'99999999999999999999' for '--limit <N>': is too large a number",
            ),
        ] {
            let error = Cli::try_parse_from(words.split(' ')).unwrap_err();
            let shown = number_error(&error).unwrap_or_else(|| panic!("{error}"));
            assert!(shown.to_string().contains(expected), "{shown}");
            assert_eq!(shown.exit_code(), error.exit_code());
        }
        let slots = Cli::try_parse_from(["det", "command", "run", "--slots", "2", "x"]);
        assert!(is_about_slots(&slots.unwrap_err()));
        let other = Cli::try_parse_from(["det", "experiment", "list", "--no-such"]).unwrap_err();
        assert!(!is_about_slots(&other));
        assert!(number_error(&other).is_none());
    }
}
