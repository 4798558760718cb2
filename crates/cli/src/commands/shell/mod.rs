//! `det shell`: SSH servers in the cluster, entered with the `ssh` of this machine.

mod ssh;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use det_client::{Client, Query, Session, api_path};
use serde_json::Value;

use crate::commands::launched::{
    self, Launch, LaunchArgs, LaunchedAction, ListArgs, SHELL, until_ready,
};
use crate::commands::publishing::PublishArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::output;
use crate::values::text;

/// Options of `det shell`.
#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    #[command(subcommand)]
    action: Option<ShellAction>,
}

#[derive(Debug, Subcommand)]
enum ShellAction {
    /// Start a shell, and open it when it is ready
    ///
    /// The shell lives on when the session ends: `det shell open ID` enters it again, `det shell kill ID` ends it.
    ///
    /// Exit codes: those of ssh, which are that of the remote command, or 255 if the connection failed; 130 Ctrl-C before
    /// the shell is ready.
    Start(Box<StartArgs>),
    /// Enter a shell
    ///
    /// Exit codes: as those of `det shell start`.
    Open(OpenArgs),
    /// Print the ssh command that enters a shell, for use without this program's help (with -L, in an IDE, by scp)
    ///
    /// The key that it names is kept in this user's cache directory.
    #[command(alias = "show_ssh_command")]
    ShowSshCommand(ShowArgs),
    #[command(flatten)]
    Launched(LaunchedAction),
}

/// What `ssh` is called with.
#[derive(Debug, Args)]
struct SshArgs {
    /// Options of ssh and the command to run, as after its host: `-- -L 8888:localhost:8888`, `-- nvidia-smi`
    #[arg(trailing_var_arg = true, value_name = "SSH_OPTS")]
    ssh_opts: Vec<String>,
}

#[derive(Debug, Args)]
struct StartArgs {
    #[command(flatten)]
    launch: LaunchArgs,
    #[command(flatten)]
    publish: PublishArgs,
    /// Print the ssh command, too, and keep its key
    #[arg(long)]
    show_ssh_command: bool,
    #[command(flatten)]
    ssh: SshArgs,
}

#[derive(Debug, Args)]
struct OpenArgs {
    /// Its id, or enough of its beginning
    id: String,
    #[command(flatten)]
    publish: PublishArgs,
    /// Print the ssh command, too, and keep its key
    #[arg(long)]
    show_ssh_command: bool,
    #[command(flatten)]
    ssh: SshArgs,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Its id, or enough of its beginning
    id: String,
    #[command(flatten)]
    ssh: SshArgs,
}

/// Carries out `det shell …`.
pub(crate) async fn run(args: ShellArgs, context: &Context) -> Result<ExitCode, CliError> {
    let action = match args.action {
        // Errors in the user's files are reported before a master is contacted.
        Some(ShellAction::Start(args)) => return start(*args, context).await,
        Some(ShellAction::Open(args)) => return open(args, context).await,
        Some(ShellAction::ShowSshCommand(args)) => return show(args, context).await,
        Some(ShellAction::Launched(action)) => action,
        None => LaunchedAction::List(ListArgs::default()),
    };
    let session = context.session().await?;
    launched::run(&SHELL, action, &session).await?;
    Ok(ExitCode::SUCCESS)
}

async fn start(args: StartArgs, context: &Context) -> Result<ExitCode, CliError> {
    let (detach, preview) = (args.launch.detach, args.launch.preview);
    let mut launch = Launch::prepare(&SHELL, args.launch, &[])?;
    launch.publish(&args.publish)?;
    if preview {
        launch.preview(&context.session().await?.client).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if !detach {
        // A shell that cannot be entered from here need not be started.
        ssh::require()?;
    }
    let session = context.session().await?;
    let (id, description) = launch.send(&session.client).await?;
    if detach {
        output::line(id)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format_args!(
        "Launched shell (id: {id}, name: {description})."
    ))?;
    let visit = Visit {
        context,
        session,
        id,
        print: args.show_ssh_command,
        is_new: true,
    };
    visit.open(&args.publish, &args.ssh.ssh_opts).await
}

async fn open(args: OpenArgs, context: &Context) -> Result<ExitCode, CliError> {
    ssh::require()?;
    let session = context.session().await?;
    let visit = Visit {
        context,
        id: launched::expand(&SHELL, &session.client, &args.id).await?,
        session,
        print: args.show_ssh_command,
        is_new: false,
    };
    if !args.publish.is_empty() {
        let answer = SHELL.get(&visit.session.client, &visit.id).await?;
        let noun = format!("shell {}", visit.id);
        args.publish
            .require_in(&noun, SHELL.group, &answer["config"])?;
    }
    visit.open(&args.publish, &args.ssh.ssh_opts).await
}

async fn show(args: ShowArgs, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.session().await?.client;
    let id = launched::expand(&SHELL, &client, &args.id).await?;
    if let Some(code) = until_ready(&SHELL, &client, &id).await? {
        return Ok(code);
    }
    let shell = get(&client, &id).await?;
    let key = ssh::Key::kept(&shell)?;
    let words = ssh::words(context, &shell, &key, &args.ssh.ssh_opts)?;
    output::line(ssh::shown(&words))?;
    Ok(ExitCode::SUCCESS)
}

/// Entering a shell.
struct Visit<'a> {
    context: &'a Context,
    session: Session,
    id: String,
    /// Whether the ssh command is printed, and its key kept.
    print: bool,
    /// Whether the shell was launched for this; it goes on afterwards.
    is_new: bool,
}

impl Visit<'_> {
    /// Waits until the shell is ready, and runs ssh to its end. The exit code is that of ssh.
    async fn open(&self, publish: &PublishArgs, ssh_opts: &[String]) -> Result<ExitCode, CliError> {
        let client = &self.session.client;
        let published = publish.take().await?;
        if let Some(code) = until_ready(&SHELL, client, &self.id).await? {
            return Ok(code);
        }
        let shell = get(client, &self.id).await?;
        let key = if self.print {
            ssh::Key::kept(&shell)?
        } else {
            ssh::Key::for_now(&shell)?
        };
        let words = ssh::words(self.context, &shell, &key, ssh_opts)?;
        if self.print {
            output::line(ssh::shown(&words))?;
        }
        let task = async || Ok(self.id.clone());
        let code = published.during(client, task, ssh::run(&words)).await?;
        let failed = code == ExitCode::from(ssh::FAILED);
        if failed {
            self.note_accounts().await;
        }
        if failed || self.is_new || !ssh::has_command(ssh_opts) {
            output::note(format_args!(
                "to reconnect, run `det shell open {}`",
                self.id
            ));
        }
        Ok(code)
    }

    /// Shows what the shell's log has of the account that logins need, without which the server refuses every key. The log is
    /// a help: where it cannot be read, the message of ssh is all there is.
    async fn note_accounts(&self) {
        let query = Query::new()
            .with("searchText", REFUSES_LOGINS)
            .with("limit", 1);
        let path = api_path(["tasks", self.id.as_str(), "logs"]);
        if let Ok(mut lines) = self.session.client.stream(&path, &query).await
            && let Ok(Some(line)) = lines.next().await
        {
            output::note(format_args!(
                "the shell's log: {}",
                text(&line, "log").trim()
            ));
        }
    }
}

/// What the line of a shell's log contains that has no account for its user.
const REFUSES_LOGINS: &str = "the SSH server may refuse its logins";

/// The API's object of a shell, with its key.
async fn get(client: &Client, id: &str) -> Result<Value, CliError> {
    let shell = SHELL.get(client, id).await?["shell"].take();
    if text(&shell, "privateKey").is_empty() {
        return Err(CliError::request(format!(
            "shell {id} is for its owner, {}, alone: no other user is given its key",
            text(&shell, "username")
        )));
    }
    Ok(shell)
}
