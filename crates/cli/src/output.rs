//! Standard output for data, standard error for everything else.
//!
//! What is written has words of others in it, so their control characters are shown ([`crate::printable`]), but where
//! programs read: there it is what it is.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use serde::Serialize;

use crate::error::CliError;
use crate::printable::{printable, printable_json, printable_log};

/// Writes a line of data.
pub(crate) fn line(text: impl Display) -> Result<(), CliError> {
    write(format_args!("{text}\n"))
}

/// Writes data, with control characters shown.
pub(crate) fn write(text: impl Display) -> Result<(), CliError> {
    unchanged(printable(&text.to_string()))
}

/// Writes data in a form for programs that cannot escape control characters: unchanged, unless a terminal would obey it.
pub(crate) fn for_programs(text: impl Display) -> Result<(), CliError> {
    if io::stdout().is_terminal() {
        write(text)
    } else {
        unchanged(text)
    }
}

/// Writes text of a log: unchanged, but for what a terminal would obey beside colours.
pub(crate) fn log(text: &str) -> Result<(), CliError> {
    if io::stdout().is_terminal() {
        unchanged(printable_log(text))
    } else {
        unchanged(text)
    }
}

/// Writes and flushes, so that a follower of a log sees each line at once.
fn unchanged(text: impl Display) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_fmt(format_args!("{text}"))
        .and_then(|()| out.flush())
        .map_err(|error| output_error(&error))
}

/// Writes a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| not_json(&error))?;
    unchanged(format_args!("{}\n", printable_json(&text)))
}

/// Writes a value as JSON in one line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|error| not_json(&error))?;
    unchanged(format_args!("{}\n", printable_json(&text)))
}

fn not_json(error: &serde_json::Error) -> CliError {
    CliError::request(format!("could not write JSON: {error}"))
}

/// Writes a message for the user to standard error. A closed standard error is no failure.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(&text.to_string()));
}

/// Writes a line of a log to standard error, as [`log`] does to standard output.
pub(crate) fn log_note(text: &str) {
    let mut err = io::stderr().lock();
    let _ = if err.is_terminal() {
        writeln!(err, "{}", printable_log(text))
    } else {
        writeln!(err, "{text}")
    };
}

/// Whether standard error is a terminal.
pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether standard output is a terminal.
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes an error and its hint to standard error; returns the exit code.
pub(crate) fn report(error: &CliError) -> ExitCode {
    match error {
        CliError::Failure {
            exit,
            message,
            hint,
        } => {
            note(format_args!("error: {message}"));
            if let Some(hint) = hint {
                note(format_args!("hint: {hint}"));
            }
            (*exit).into()
        }
        CliError::OutputClosed => ExitCode::SUCCESS,
    }
}

fn output_error(error: &io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => CliError::OutputClosed,
        _ => CliError::request(format!("could not write to standard output: {error}")),
    }
}
