//! Runs the real executable against a stand-in for the master.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test binary that includes this file uses a part of it, and a helper that fails makes its test fail"
)]

#[path = "../../../client/tests/support/mod.rs"]
pub mod stub;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use stub::StubMaster;
use tempfile::TempDir;

/// A user with an empty directory of settings, in an empty working directory.
pub struct User {
    master: String,
    home: TempDir,
}

/// How a run ended.
#[derive(Debug)]
pub struct CommandResult {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl User {
    /// A user of the stand-in.
    pub fn using(stub: &StubMaster) -> Self {
        Self::at(stub.address())
    }

    /// A user of the master at an address.
    pub fn at(master: &str) -> Self {
        Self {
            master: master.to_owned(),
            home: tempfile::tempdir().unwrap(),
        }
    }

    /// The working directory.
    pub fn directory(&self) -> &Path {
        self.home.path()
    }

    /// The file of tokens.
    pub fn tokens(&self) -> std::path::PathBuf {
        self.home.path().join("settings/auth.json")
    }

    /// Writes a file into the working directory.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The command, ready to be started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_det"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("DET_MASTER", &self.master)
            .env("DET_DEBUG_CONFIG_PATH", self.home.path().join("settings"))
            .current_dir(self.home.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command with an empty standard input.
    pub fn det(&self, arguments: &[&str]) -> CommandResult {
        CommandResult::from(self.command(arguments).output().unwrap())
    }

    /// Runs a command and types lines into it.
    pub fn det_typing(&self, arguments: &[&str], typed: &str) -> CommandResult {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(typed.as_bytes()).unwrap();
        drop(input);
        CommandResult::from(child.wait_with_output().unwrap())
    }
}

impl From<Output> for CommandResult {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl CommandResult {
    /// The output of a run that must have worked.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// The errors of a run that must have ended with a code.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        self.err
    }
}
