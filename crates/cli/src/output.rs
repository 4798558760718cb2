//! Standard output for data, standard error for everything else.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use serde::Serialize;

use crate::error::CliError;

/// Writes a line of data.
pub(crate) fn line(text: impl Display) -> Result<(), CliError> {
    write(format_args!("{text}\n"))
}

/// Writes data unchanged and flushes it, so that a follower of a log sees each line at once.
pub(crate) fn write(text: impl Display) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_fmt(format_args!("{text}"))
        .and_then(|()| out.flush())
        .map_err(|error| output_error(&error))
}

/// Writes a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| CliError::request(format!("could not write JSON: {error}")))?;
    line(text)
}

/// Writes a message for the user to standard error. A closed standard error is no failure.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
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
