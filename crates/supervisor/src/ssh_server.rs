//! `det-supervisor ssh-server`: the entrypoint of a shell. Puts the task's variables into its authorised keys, so that
//! sessions have them, and becomes the SSH server of the image or host.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use det_taskspec::{
    AUTHORIZED_KEYS_FILE, RUN_DIR, SERVICE_FAILURE_FILE, SHELL_KEY_FILE, SSHD_CONFIG_FILE,
};
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;
use rustix::thread::CapabilitySet;

use crate::signals;

/// Name of the subcommand.
pub(crate) const SUBCOMMAND: &str = "ssh-server";
/// Where the SSH server is in every distribution that is known; it has to be started by an absolute path.
const USUAL_PLACE: &str = "/usr/sbin/sshd";
/// Directory in which a server that runs as root isolates its parts.
pub(crate) const PRIVILEGE_SEPARATION: &str = "/run/sshd";
/// Lowest number of the descriptor by which the supervisor starts itself: hooks use low ones.
const LOWEST_DESCRIPTOR: i32 = 200;
/// Variables of a session that its own shell and terminal set.
const OF_THE_SESSION: [&str; 7] = ["_", "HOME", "TERM", "LANG", "PWD", "OLDPWD", "SHLVL"];

/// The command that becomes the SSH server. `only_here`: it accepts connections from its own machine only, as where the task
/// shares its host's network.
pub(crate) fn command(port: u16, only_here: bool) -> io::Result<Vec<OsString>> {
    let address: &str = if only_here { "127.0.0.1" } else { "" };
    Ok(vec![
        own_executable()?,
        SUBCOMMAND.into(),
        port.to_string().into(),
        address.into(),
    ])
}

/// A path by which the processes of the task can start this executable: its own path is hidden from them. The descriptor is
/// inherited and stays open as long as this process. It does not give them the right to change the file: this process was
/// executed from a read-only mount, by [`crate::sandbox`] or by an engine.
pub(crate) fn own_executable() -> io::Result<OsString> {
    let opened = open(
        "/proc/self/exe",
        OFlag::O_RDONLY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let kept = fcntl(&opened, FcntlArg::F_DUPFD(LOWEST_DESCRIPTOR))?;
    Ok(format!("/proc/self/fd/{kept}").into())
}

/// Becomes the SSH server; returns only where that fails.
pub(crate) fn serve(port: &str, address: &str) -> ExitCode {
    let (code, message) = become_server(port, address);
    // For the supervisor; without it the reason is in the log alone.
    drop(fs::write(
        Path::new(RUN_DIR).join(SERVICE_FAILURE_FILE),
        &message,
    ));
    // If standard error is closed, the message is lost.
    drop(writeln!(io::stderr(), "ERROR: {message}"));
    ExitCode::from(code)
}

/// Why this process did not become the server, with its exit code.
fn become_server(port: &str, address: &str) -> (u8, String) {
    if geteuid().is_root() && !may_change_root() {
        return (1, NO_CAPABILITIES.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Some(server) = find(Path::new(USUAL_PLACE), &path) else {
        return (127, NO_SERVER.to_owned());
    };
    let uid = geteuid().as_raw();
    let own = Path::new(RUN_DIR).join("etc/passwd");
    // Users enter by the name that the master asked for. An engine may have made an account with another name.
    let login = name_of(&own, uid);
    let is_served = serves_own_accounts(Path::new(NAME_SERVICES)) && login.is_some();
    if !is_served && !has_account(Path::new(ACCOUNTS), uid, login.as_deref()) {
        // Only a warning: names may also come from elsewhere (nsswitch.conf). If standard error is closed, it is lost.
        let message = no_account(uid, login.as_deref());
        drop(writeln!(io::stderr(), "WARNING: {message}"));
    }
    let written = write_keys(
        Path::new(SHELL_KEY_FILE),
        Path::new(AUTHORIZED_KEYS_FILE),
        std::env::vars_os(),
    );
    if let Err(error) = written {
        return (
            1,
            format!("could not write {AUTHORIZED_KEYS_FILE}: {error}"),
        );
    }
    if geteuid().is_root()
        && let Err(error) = fs::create_dir_all(PRIVILEGE_SEPARATION)
    {
        return (
            1,
            format!("could not create {PRIVILEGE_SEPARATION}: {error}"),
        );
    }
    let mut command = Command::new(&server);
    command.args(["-D", "-e", "-f", SSHD_CONFIG_FILE, "-p", port]);
    if !address.is_empty() {
        command.args(["-o", &format!("ListenAddress={address}")]);
    }
    signals::reset(&mut command);
    let error = command.exec();
    (126, format!("could not start {server:?}: {error}"))
}

const NO_SERVER: &str = "this shell cannot start: there is no SSH server (sshd), neither at /usr/sbin/sshd nor on PATH; install \
    the package openssh-server in the task's image, or on the agent's host where tasks run as processes";
const NO_CAPABILITIES: &str = "this shell cannot start: an SSH server that runs as root needs the capabilities of root, and this \
    task has none; link the user with an account that is not root, or leave CAP_SYS_CHROOT, CAP_SETUID and CAP_SETGID to the \
    container";

/// Where the accounts of an image are.
const ACCOUNTS: &str = "/etc/passwd";

/// Where the sources of accounts are configured.
const NAME_SERVICES: &str = "/etc/nsswitch.conf";

/// Whether the text of nsswitch.conf(5) names the service of images that look for accounts in the run directory.
fn serves_own_accounts(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| {
        let databases = text.lines().filter_map(|line| line.split_once(':'));
        let mut of_accounts = databases.filter(|(name, _)| name.trim() == "passwd");
        of_accounts.any(|(_, services)| services.split_whitespace().any(|s| s == "determined"))
    })
}

/// Whether a file in the format of passwd(5) has an account with this id, and with this name where it is known; also `true`
/// where it cannot be read.
fn has_account(file: &Path, uid: u32, name: Option<&[u8]>) -> bool {
    fs::read(file).map_or(true, |text| {
        let mut names = names_of(&text, uid);
        names.any(|found| name.is_none_or(|name| name == found))
    })
}

/// The first name of an id in a file in the format of passwd(5).
fn name_of(file: &Path, uid: u32) -> Option<Vec<u8>> {
    let text = fs::read(file).ok()?;
    names_of(&text, uid).next().map(<[u8]>::to_vec)
}

/// The names of the accounts with an id in a text in the format of passwd(5).
fn names_of(text: &[u8], uid: u32) -> impl Iterator<Item = &[u8]> {
    let uid = uid.to_string();
    text.split(|byte| *byte == b'\n').filter_map(move |line| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next()?;
        (fields.nth(1) == Some(uid.as_bytes())).then_some(name)
    })
}

fn no_account(uid: u32, login: Option<&[u8]>) -> String {
    let login = login.map(String::from_utf8_lossy);
    let (named, name) = match &login {
        Some(name) => (format!(" named \"{}\"", name.escape_debug()), &**name),
        None => (String::new(), "…"),
    };
    format!(
        "{ACCOUNTS} has no account{named} with user id {uid}, so the SSH server may refuse its logins (\"Permission denied\"); add one to \
         the task's image (useradd --uid {uid} {name})"
    )
}

fn may_change_root() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_CHROOT))
}

/// The SSH server: in its usual place, else in a directory of `path`, the value of `PATH`.
fn find(usual: &Path, path: &OsStr) -> Option<PathBuf> {
    let on_path = std::env::split_paths(path)
        .map(|dir| dir.join("sshd"))
        .filter(|file| file.is_absolute());
    std::iter::once(usual.to_owned())
        .chain(on_path)
        .find(|file| file.is_file())
}

/// Writes the authorised keys: the public key in `from`, with the variables of sessions.
fn write_keys(
    from: &Path,
    to: &Path,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> io::Result<()> {
    let key = fs::read_to_string(from)?;
    let line = authorized_key(key.trim(), variables);
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(to)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(&line)
}

/// A line of `authorized_keys`: <https://man.openbsd.org/sshd.8#AUTHORIZED_KEYS_FILE_FORMAT>.
fn authorized_key(key: &str, variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<u8> {
    let mut line = Vec::new();
    for (name, value) in variables.filter(|(name, value)| is_for_sessions(name, value)) {
        if !line.is_empty() {
            line.push(b',');
        }
        line.extend_from_slice(b"environment=\"");
        line.extend_from_slice(name.as_bytes());
        line.push(b'=');
        for byte in value.as_bytes() {
            if *byte == b'"' {
                line.push(b'\\');
            }
            line.push(*byte);
        }
        line.push(b'"');
    }
    if !line.is_empty() {
        line.push(b' ');
    }
    line.extend_from_slice(key.as_bytes());
    line.push(b'\n');
    line
}

/// Whether sessions get a variable. One bad option makes the server ignore the whole key, so what cannot be written is left
/// out: other names than those of a shell's variables, exported functions among them, values of several lines, and a
/// backslash at the end, which would escape the quote.
fn is_for_sessions(name: &OsStr, value: &OsStr) -> bool {
    let is_name = |name: &str| {
        !name.is_empty()
            && !OF_THE_SESSION.contains(&name)
            && !name.starts_with("LC_")
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let value = value.as_bytes();
    name.to_str().is_some_and(is_name)
        && !value.iter().any(|byte| matches!(byte, b'\n' | b'\r' | 0))
        && !value.ends_with(b"\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(variables: &[(&str, &str)]) -> String {
        let variables = variables
            .iter()
            .map(|(n, v)| (OsString::from(n), OsString::from(v)));
        String::from_utf8(authorized_key("ssh-ed25519 AAAA", variables)).unwrap()
    }

    #[test]
    fn accounts_are_found_by_their_ids_and_by_the_name_of_the_login() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        fs::write(
            &file,
            "root:x:0:0:root:/root:/bin/sh\n1234:x:99:1234::/:\nodd\n",
        )
        .unwrap();
        let has = |uid: u32| has_account(&file, uid, None);
        assert!(has(0) && has(99));
        assert!(!has(1234) && !has(9));
        assert!(has_account(&dir.path().join("none"), 7, None));
        // As Podman names the account of an id that the image does not have.
        assert!(has_account(&file, 99, Some(b"1234")));
        assert!(!has_account(&file, 99, Some(b"ada")));
        assert_eq!(name_of(&file, 99).as_deref(), Some(&b"1234"[..]));
        assert_eq!(name_of(&file, 7), None);
        let warning = no_account(99, Some(b"ada"));
        assert!(
            warning.contains("no account named \"ada\" with user id 99")
                && warning.contains("useradd --uid 99 ada"),
            "{warning}"
        );
        fs::write(&file, "group: files determined\npasswd:  files\n").unwrap();
        assert!(!serves_own_accounts(&file));
        fs::write(&file, "passwd:  files determined\n").unwrap();
        assert!(serves_own_accounts(&file));
        assert!(!serves_own_accounts(&dir.path().join("none")));
    }

    #[test]
    fn sessions_get_the_variables_of_the_task_before_the_key() {
        assert_eq!(line(&[]), "ssh-ed25519 AAAA\n");
        assert_eq!(
            line(&[("A", "1 2"), ("B", "x \"y\""), ("C", "")]),
            "environment=\"A=1 2\",environment=\"B=x \\\"y\\\"\",environment=\"C=\" ssh-ed25519 AAAA\n"
        );
    }

    #[test]
    fn what_would_spoil_the_key_or_is_the_sessions_own_is_left_out() {
        for (name, value) in [
            ("_", "x"),
            ("HOME", "/root"),
            ("TERM", "xterm"),
            ("LANG", "C"),
            ("LC_ALL", "C"),
            ("PWD", "/"),
            ("BASH_FUNC_x%%", "() { :; }"),
            ("a.b", "1"),
            ("TWO_LINES", "a\nb"),
            ("BACKSLASH", "a\\"),
        ] {
            assert_eq!(line(&[(name, value)]), "ssh-ed25519 AAAA\n", "{name}");
        }
    }

    #[test]
    fn the_server_is_found_in_its_usual_place_and_then_on_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let (usual, other) = (dir.path().join("usual"), dir.path().join("bin"));
        let path = std::env::join_paths([Path::new("relative"), other.as_path()]).unwrap();
        assert_eq!(find(&usual, &path), None);
        fs::create_dir(&other).unwrap();
        fs::write(other.join("sshd"), "").unwrap();
        assert_eq!(find(&usual, &path), Some(other.join("sshd")));
        fs::write(&usual, "").unwrap();
        assert_eq!(find(&usual, &path), Some(usual));
    }

    #[test]
    fn the_keys_are_for_the_task_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("key"), dir.path().join("authorized_keys"));
        fs::write(&from, "ssh-ed25519 AAAA\n").unwrap();
        fs::write(
            &to,
            "old and longer than what takes its place, with a looser mode",
        )
        .unwrap();
        let variables = [(OsString::from("A"), OsString::from("1"))];
        write_keys(&from, &to, variables.into_iter()).unwrap();
        let text = fs::read_to_string(&to).unwrap();
        assert_eq!(text, "environment=\"A=1\" ssh-ed25519 AAAA\n");
        assert_eq!(
            fs::metadata(&to).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}
