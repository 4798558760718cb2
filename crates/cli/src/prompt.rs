//! Questions to the user, at a terminal or on standard input.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use det_client::Secret;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use crate::error::CliError;
use crate::printable::printable;

/// Asks for a line on standard error and reads it from standard input.
pub(crate) fn line(question: &str) -> io::Result<String> {
    let mut err = io::stderr().lock();
    write!(err, "{}", printable(question))?;
    err.flush()?;
    read_line()
}

/// Asks for a password. At a terminal the input is not shown; otherwise a line of standard input is read.
pub(crate) fn password(question: &str) -> io::Result<Secret> {
    if !io::stdin().is_terminal() {
        return read_line().map(Secret::new);
    }
    let hidden = HiddenInput::start()?;
    let answer = line(question);
    drop(hidden);
    // The line end was not shown either.
    crate::output::note("");
    answer.map(Secret::new)
}

/// Most bytes of a line with a password.
const MAX_PASSWORD: u64 = 4096;

/// The first line of a file, or of standard input for `-`, as a password.
pub(crate) fn password_from(path: &Path) -> Result<Secret, CliError> {
    let read = |input: &mut dyn io::Read| {
        let mut text = String::new();
        io::BufReader::new(input.take(MAX_PASSWORD)).read_line(&mut text)?;
        Ok::<_, io::Error>(text)
    };
    let text = if path == Path::new("-") {
        read(&mut io::stdin().lock())
    } else {
        File::open(path).and_then(|mut file| {
            warn_if_others_read(path, &file.metadata()?);
            read(&mut file)
        })
    };
    let text = text.map_err(|error| CliError::file("read the password from", path, &error))?;
    match text.trim_end_matches(['\n', '\r']) {
        "" => Err(CliError::usage(format!(
            "the first line of \"{}\" is empty: it should be the password",
            path.display()
        ))),
        password => Ok(Secret::new(password)),
    }
}

/// Warns of a file with a secret that more than its owner may read. A pipe or a device is no such file.
fn warn_if_others_read(path: &Path, metadata: &Metadata) {
    let mode = metadata.permissions().mode() & 0o777;
    if metadata.is_file() && mode & 0o077 != 0 {
        let path = path.display();
        crate::output::note(format_args!(
            "warning: others on this machine may read the password in \"{path}\" (its mode is {mode:03o}): chmod 600 \"{path}\""
        ));
    }
}

/// Asks a question until the answer is yes or no. Errs when standard input ends; `yes_flag` names the flag that answers in
/// advance.
pub(crate) fn confirm(question: &str, yes_flag: &str) -> Result<bool, CliError> {
    loop {
        let answer = line(&format!("{question} [y/n]: ")).map_err(|error| {
            CliError::usage(format!("the question was not answered ({error})"))
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
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.before);
    }
}
