//! Questions to a person.

use std::io::{self, BufRead, IsTerminal, Write};

use det_client::Secret;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use crate::error::CliError;

/// Asks for a line on standard error and reads it from standard input.
pub(crate) fn line(question: &str) -> io::Result<String> {
    let mut err = io::stderr().lock();
    write!(err, "{question}")?;
    err.flush()?;
    read_line()
}

/// Asks for a password. At a terminal what is typed stays hidden; otherwise a line of standard input is taken.
pub(crate) fn password(question: &str) -> io::Result<Secret> {
    if !io::stdin().is_terminal() {
        return read_line().map(Secret::new);
    }
    let hidden = HiddenInput::start()?;
    let answer = line(question);
    drop(hidden);
    // The line end that was typed was hidden too.
    crate::output::note("");
    answer.map(Secret::new)
}

/// Asks a question that must be answered by yes or no. Fails when nobody can answer; `yes_flag` names the flag that
/// answers beforehand.
pub(crate) fn confirm(question: &str, yes_flag: &str) -> Result<bool, CliError> {
    loop {
        let answer = line(&format!("{question} [y/n]: ")).map_err(|error| {
            CliError::usage(format!("nobody answered the question ({error})"))
                .with_hint(format!("answer it beforehand with {yes_flag}"))
        })?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => return Ok(true),
            "n" | "no" => return Ok(false),
            _ => crate::output::note("please answer with \"yes\" or \"no\""),
        }
    }
}

fn read_line() -> io::Result<String> {
    let mut text = String::new();
    if io::stdin().lock().read_line(&mut text)? == 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "standard input has ended",
        ));
    }
    let kept = text.trim_end_matches(['\n', '\r']).len();
    text.truncate(kept);
    Ok(text)
}

/// A terminal that does not show what is typed, until dropped.
struct HiddenInput {
    before: Termios,
}

impl HiddenInput {
    fn start() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(io::stdin(), SetArg::TCSADRAIN, &hidden)?;
        Ok(Self { before })
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // If the terminal is gone there is nothing to bring back.
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.before);
    }
}
