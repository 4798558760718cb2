//! The `ssh` of this machine, which reaches a shell through the master.

use std::env;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::commands::proxy_stdio;
use crate::context::Context;
use crate::error::CliError;
use crate::private_files;
use crate::values::text;

/// Program that connects, looked for in `PATH`.
const SSH: &str = "ssh";
/// Its exit code when the connection fails, and not what it ran.
pub(super) const FAILED: u8 = 255;
/// Variables by which a printed command finds the master's certificate and this user's settings, wherever it is run later.
const SETTINGS: [(&str, Form); 3] = [
    ("DET_MASTER_CERT_FILE", Form::Path),
    ("DET_MASTER_CERT_NAME", Form::Text),
    ("DET_DEBUG_CONFIG_PATH", Form::Path),
];

/// What the value of a variable is.
#[derive(Clone, Copy)]
enum Form {
    Text,
    /// A path, which must hold in every directory.
    Path,
}

/// Errs when there is no `ssh` on this machine.
pub(super) fn require() -> Result<(), CliError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|dir| dir.join(SSH).is_file());
    if found { Ok(()) } else { Err(missing()) }
}

fn missing() -> CliError {
    CliError::request("shells are entered with the program \"ssh\", and there is none on PATH")
        .with_hint("install an OpenSSH client, such as the package openssh-client")
}

/// The files with the keys of a shell: the private one that opens it, and the public one by which its server is known.
#[derive(Debug)]
pub(super) struct Key {
    directory: PathBuf,
    /// Whether its server is known.
    server_is_known: bool,
    /// Removes the directory in the end; `None` = it is kept.
    _temporary: Option<TempDir>,
}

impl Key {
    /// In a private directory that is removed with this value.
    pub(super) fn for_now(shell: &Value) -> Result<Self, CliError> {
        let temporary = tempfile::Builder::new()
            .prefix("det-shell-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir();
        let temporary = temporary.map_err(|error| {
            CliError::file("make a directory for the key in", &env::temp_dir(), &error)
        })?;
        let directory = temporary.path().to_owned();
        Self::write(shell, directory, Some(temporary))
    }

    /// In the user's cache, for a command that is run later.
    pub(super) fn kept(shell: &Value) -> Result<Self, CliError> {
        let directory = private_files::kept("shell", &text(shell, "id"))?;
        Self::write(shell, directory, None)
    }

    fn write(
        shell: &Value,
        directory: PathBuf,
        temporary: Option<TempDir>,
    ) -> Result<Self, CliError> {
        let public = text(shell, "publicKey");
        let server_is_known = !public.is_empty();
        let known_host = format!("{} {}\n", text(shell, "id"), public.trim());
        let key = Self {
            directory,
            server_is_known,
            _temporary: temporary,
        };
        for (path, content) in [
            (key.identity(), text(shell, "privateKey")),
            (key.known_hosts(), known_host),
        ] {
            private_files::write(&path, &content)?;
        }
        Ok(key)
    }

    fn identity(&self) -> PathBuf {
        self.directory.join("key")
    }

    fn known_hosts(&self) -> PathBuf {
        self.directory.join("known_hosts")
    }
}

/// The command that enters a shell, `ssh` first. The user's own options and command come after its host, where ssh takes
/// both.
pub(super) fn words(
    context: &Context,
    shell: &Value,
    key: &Key,
    ssh_opts: &[String],
) -> Result<Vec<String>, CliError> {
    let user = match text(&shell["agentUserGroup"], "user") {
        user if user.is_empty() => "root".to_owned(),
        user => user,
    };
    let mut words = vec![SSH.to_owned()];
    let mut option = |name: &str, value: &str| {
        words.push("-o".to_owned());
        words.push(format!("{name}={value}"));
    };
    option("ProxyCommand", &proxy_command(context)?);
    if key.server_is_known {
        option("StrictHostKeyChecking", "yes");
        option("UserKnownHostsFile", &in_option(&key.known_hosts()));
        option("UpdateHostKeys", "no");
    } else {
        option("StrictHostKeyChecking", "no");
    }
    option("IdentitiesOnly", "yes");
    words.push("-i".to_owned());
    // `-i` knows the signs of `%` as options do.
    words.push(key.identity().display().to_string().replace('%', "%%"));
    words.push(format!("{user}@{}", text(shell, "id")));
    words.extend(with_whole_words(ssh_opts));
    Ok(words)
}

/// Options of ssh that take a value, which may be a word of its own.
const WITH_VALUE: &str = "BbcDEeFIiJLlmOopQRSWw";

/// Where the command begins in the options and the command that a user gave.
fn command_at(ssh_opts: &[String]) -> usize {
    let mut start = 0;
    while let Some(flags) = ssh_opts.get(start).and_then(|word| word.strip_prefix('-')) {
        start += 1;
        if flags == "-" {
            break;
        }
        let value = flags.find(|flag| WITH_VALUE.contains(flag));
        if value.is_some_and(|at| at + 1 == flags.len()) {
            start += 1;
        }
    }
    start.min(ssh_opts.len())
}

/// Whether a user gave a command, in place of entering the shell.
pub(super) fn has_command(ssh_opts: &[String]) -> bool {
    command_at(ssh_opts) < ssh_opts.len()
}

/// The options and the command that a user gave, so that words of the command stay words: ssh sends them joined by blanks to
/// a shell, which would read `sh -c 'exit 3'` as `sh -c exit 3`. A command of one word is a text for that shell, as ever;
/// so is a word without blanks (`&&`), and one that is quoted already.
fn with_whole_words(ssh_opts: &[String]) -> Vec<String> {
    let (options, command) = ssh_opts.split_at(command_at(ssh_opts));
    let mut words = options.to_vec();
    if command.len() < 2 {
        words.extend_from_slice(command);
        return words;
    }
    let is_quoted = |word: &str| {
        let around = |quote| word.len() > 1 && word.starts_with(quote) && word.ends_with(quote);
        around('\'') || around('"')
    };
    words.extend(command.iter().map(|word| {
        let is_split = word.is_empty() || word.contains(char::is_whitespace);
        if is_split && !is_quoted(word) {
            quoted(word)
        } else {
            word.clone()
        }
    }));
    words
}

/// A path as the value of an option that names files: several are divided by blanks.
fn in_option(path: &Path) -> String {
    let path = path.display().to_string().replace('%', "%%");
    format!("\"{path}\"")
}

/// This program as the connection of ssh. It contains no secret: the key opens the shell, and the login of this user is where
/// it always is.
fn proxy_command(context: &Context) -> Result<String, CliError> {
    let program = env::current_exe().map_err(|error| {
        CliError::request(format!("could not find this program's own file: {error}"))
    })?;
    let mut words = vec!["env".to_owned()];
    for (name, form) in SETTINGS {
        let Some(value) = env::var(name).ok().filter(|value| !value.is_empty()) else {
            continue;
        };
        let path = match form {
            Form::Path if !value.eq_ignore_ascii_case("noverify") => std::path::absolute(&value),
            _ => Ok(PathBuf::from(&value)),
        };
        let path = path.map_err(|error| CliError::file("find", Path::new(&value), &error))?;
        words.push(format!("{name}={}", path.display()));
    }
    words.push(program.display().to_string());
    words.extend(["-m".to_owned(), context.master.to_string()]);
    if let Some(user) = &context.user {
        words.extend(["-u".to_owned(), user.clone()]);
    }
    words.push(proxy_stdio::SUBCOMMAND.to_owned());
    // A sign of `%` is one of ssh's own, but for the host that it fills in.
    Ok(format!("{} %h", shown(&words).replace('%', "%%")))
}

/// A command as a shell reads it.
pub(super) fn shown(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    quoted.join(" ")
}

/// A word as a shell reads it: in single quotes where it has other signs than those of names.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@,+".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Runs ssh to its end, with this process's terminal; returns its exit code. Signals that end this process end ssh, so that
/// the key is removed in every case that can be helped.
pub(super) async fn run(words: &[String]) -> Result<ExitCode, CliError> {
    let failed = |what: &str, error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => missing(),
        _ => CliError::request(format!("could not {what} ssh: {error}")),
    };
    let Some((program, arguments)) = words.split_first() else {
        return Err(missing());
    };
    let mut command = Command::new(program);
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        // A terminal for commands too, so that `det shell open ID htop` works.
        command.arg("-tt");
    }
    command.args(arguments.iter().map(OsStr::new));
    let mut signals = Vec::new();
    for (kind, sent) in [
        (SignalKind::interrupt(), Signal::SIGINT),
        (SignalKind::terminate(), Signal::SIGTERM),
        (SignalKind::hangup(), Signal::SIGHUP),
    ] {
        signals.push((
            signal(kind).map_err(|error| failed("watch over", error))?,
            sent,
        ));
    }
    let mut child = command.spawn().map_err(|error| failed("start", error))?;
    loop {
        let any = futures::future::select_all(signals.iter_mut().map(|(received, sent)| {
            Box::pin(async move {
                received.recv().await;
                *sent
            })
        }));
        tokio::select! {
            status = child.wait() => {
                return Ok(exit_code(status.map_err(|error| failed("wait for", error))?));
            }
            (sent, ..) = any => pass_on(&child, sent),
        }
    }
}

/// Sends a signal to ssh. It may have ended, or have received the signal from the terminal as well.
fn pass_on(child: &Child, sent: Signal) {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(id) = id {
        let _ = nix::sys::signal::kill(Pid::from_raw(id), sent);
    }
}

/// The exit code of a process as a shell has it: 128 and the number of the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|number| 128 + number));
    let code = code.and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(u8::MAX).into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use serde_json::json;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_command_is_shown_as_a_shell_reads_it() {
        let words = ["ssh", "a b", "it's", "", "--x=/y", "$HOME", "%h"].map(str::to_owned);
        assert_eq!(shown(&words), r"ssh 'a b' 'it'\''s' '' --x=/y '$HOME' '%h'");
    }

    #[test]
    fn words_of_a_command_with_blanks_stay_words() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            with_whole_words(&words).join(" ")
        };
        for (words, sent) in [
            (&["sh", "-c", "exit 3"][..], "sh -c 'exit 3'"),
            (
                &["-v", "-L", "1:h:2", "-p22", "sh", "-c", "a b"],
                "-v -L 1:h:2 -p22 sh -c 'a b'",
            ),
            (&["--", "echo", "", "b"], "-- echo '' b"),
            (&["cd x && ls"], "cd x && ls"),
            (&["cd", "x", "&&", "ls"], "cd x && ls"),
            (&["sh", "-c", "'exit 3'"], "sh -c 'exit 3'"),
            (&["-L"], "-L"),
            (&[], ""),
        ] {
            assert_eq!(of(words), sent);
        }
    }

    #[test]
    fn options_of_ssh_are_no_command() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            has_command(&words)
        };
        for words in [&["nvidia-smi"][..], &["-p", "22", "ls"], &["--", "ls"]] {
            assert!(of(words), "{words:?}");
        }
        for words in [&[][..], &["-L", "1:h:2"], &["-N"], &["--"]] {
            assert!(!of(words), "{words:?}");
        }
    }

    #[test]
    fn a_key_is_its_owners_alone_and_goes() {
        let shell = json!({"id": "s", "privateKey": "PRIVATE\n", "publicKey": "ssh-ed25519 A\n"});
        let key = Key::for_now(&shell).unwrap();
        let directory = key.directory.clone();
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&key.identity()), 0o600);
        assert_eq!(fs::read_to_string(key.identity()).unwrap(), "PRIVATE\n");
        assert_eq!(
            fs::read_to_string(key.known_hosts()).unwrap(),
            "s ssh-ed25519 A\n"
        );
        drop(key);
        assert!(!directory.exists());
    }

    #[test]
    fn the_exit_code_is_that_of_the_command() {
        for (status, code) in [(0, 0), (7 << 8, 7), (255 << 8, 255), (15, 143)] {
            let found = exit_code(ExitStatus::from_raw(status));
            assert_eq!(format!("{found:?}"), format!("{:?}", ExitCode::from(code)));
        }
    }
}
