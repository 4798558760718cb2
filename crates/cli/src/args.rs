//! The tree of commands, and what carries out each.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};

use crate::commands::{
    agents, checkpoint, command, completion, config, experiment, jobs, masters, notebook, policies,
    pools, preview, projects, proxy_stdio, scheduler, shell, slots, tasks, templates, tensorboard,
    trial, user, version, workspaces,
};
use crate::context::{ConnectionArgs, Context};
use crate::error::CliError;
use crate::{agent, master, up};

/// Runs deep-learning experiments on a cluster, and the cluster itself.
///
/// `det up` starts a cluster on this machine. `det experiment create CONFIG DIR` runs an experiment on the cluster that
/// -m or `DET_MASTER` names.
///
/// Exit codes: 0 done, 1 the request failed, 2 wrong usage, 3 the master could not be reached or trusted, 130 Ctrl-C.
#[derive(Debug, Parser)]
#[command(
    name = "det",
    version,
    disable_version_flag = true,
    infer_long_args = true,
    arg_required_else_help = true,
    subcommand_value_name = "COMMAND",
    max_term_width = 120
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print the version of this program and exit
    #[arg(short = 'v', short_alias = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

/// The commands of the program, in the order of its help.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a cluster on this machine
    Up(up::UpArgs),
    /// Run a master, or ask one about itself
    Master(MasterCommand),
    /// Run an agent, or manage the agents of a cluster
    #[command(visible_alias = "a")]
    Agent(AgentCommand),
    /// Manage experiments
    #[command(visible_alias = "e")]
    Experiment(experiment::ExperimentArgs),
    /// Manage trials
    #[command(visible_alias = "t")]
    Trial(trial::TrialArgs),
    /// Manage checkpoints
    #[command(visible_alias = "c")]
    Checkpoint(checkpoint::CheckpointArgs),
    /// Manage the slots of agents
    #[command(visible_alias = "s")]
    Slot(slots::SlotArgs),
    /// Run commands in the cluster
    #[command(name = "command", visible_alias = "cmd")]
    Cmd(command::CommandArgs),
    /// Start shells in the cluster, and enter them with ssh
    Shell(shell::ShellArgs),
    /// Start notebooks in the cluster, and open them in the browser
    Notebook(notebook::NotebookArgs),
    /// Start TensorBoards over experiments and trials
    Tensorboard(tensorboard::TensorBoardArgs),
    /// Show running tasks and their logs, run generic tasks
    Task(tasks::TaskArgs),
    /// Show the resource pools
    #[command(visible_alias = "rp")]
    ResourcePool(pools::PoolArgs),
    /// Show the job queue, and change it
    #[command(visible_alias = "j")]
    Job(jobs::JobArgs),
    /// Manage what administrators lay over configurations
    #[command(visible_alias = "cp")]
    ConfigPolicies(policies::PoliciesArgs),
    /// Manage templates of configurations
    #[command(visible_alias = "tpl")]
    Template(templates::TemplateArgs),
    /// Log in and out, manage users
    #[command(visible_alias = "u")]
    User(user::UserArgs),
    /// Manage workspaces
    #[command(visible_alias = "w")]
    Workspace(workspaces::WorkspaceArgs),
    /// Manage projects of workspaces
    #[command(visible_alias = "p")]
    Project(projects::ProjectArgs),
    /// Check and explain configuration files, without a cluster
    Config(config::ConfigArgs),
    /// Show which trials a search would run
    PreviewSearch(preview::PreviewArgs),
    /// Play what a resource pool would do, without touching it
    Scheduler(scheduler::SchedulerArgs),
    /// Show the versions of this program and of the master
    Version,
    /// Print a completion script for a shell
    Completion(completion::CompletionArgs),
    /// Carry standard input and output to a service of a task, for ssh
    #[command(hide = true)]
    ProxyStdio(proxy_stdio::ProxyStdioArgs),
}

impl Command {
    /// Whether this runs a master or an agent, rather than being a client's command.
    pub(crate) fn serves(&self) -> bool {
        match self {
            Self::Up(_) => true,
            Self::Master(master) => master.action.is_none(),
            Self::Agent(agent) => agent.action.is_none(),
            _ => false,
        }
    }
}

/// `det master` runs a master; with a subcommand it is a client of one.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct MasterCommand {
    #[command(subcommand)]
    pub(crate) action: Option<masters::MasterAction>,
    #[command(flatten)]
    pub(crate) run: master::MasterArgs,
}

/// `det agent` runs an agent; with a subcommand it manages the agents of a cluster.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AgentCommand {
    #[command(subcommand)]
    pub(crate) action: Option<agents::AgentAction>,
    #[command(flatten)]
    pub(crate) run: agent::AgentArgs,
}

/// Carries out a command and returns the exit code. Client commands read the flags of the connection only when they start.
pub(crate) async fn run(cli: Cli) -> Result<ExitCode, CliError> {
    let context = || Context::new(&cli.connection);
    match cli.command {
        Command::Up(args) => up::run(args).await,
        Command::Master(command) => match command.action {
            None => master::run(command.run).await,
            Some(action) => done(masters::run(action, &context()?).await),
        },
        Command::Agent(command) => match command.action {
            None => agent::run(command.run).await,
            Some(action) => done(agents::run(action, &context()?).await),
        },
        Command::Experiment(args) => experiment::run(args, &context()?).await,
        Command::Trial(args) => done(trial::run(args, &context()?).await),
        Command::Checkpoint(args) => done(checkpoint::run(args, &context()?).await),
        Command::Slot(args) => done(slots::run(args, &context()?).await),
        Command::Cmd(args) => command::run(args, &context()?).await,
        Command::Shell(args) => shell::run(args, &context()?).await,
        Command::Notebook(args) => notebook::run(args, &context()?).await,
        Command::Tensorboard(args) => tensorboard::run(args, &context()?).await,
        Command::Task(args) => tasks::run(args, &context()?).await,
        Command::ResourcePool(args) => done(pools::run(args, &context()?).await),
        Command::Job(args) => done(jobs::run(args, &context()?).await),
        Command::ConfigPolicies(args) => done(policies::run(args, &context()?).await),
        Command::Template(args) => done(templates::run(args, &context()?).await),
        Command::User(args) => done(user::run(args, &context()?).await),
        Command::Workspace(args) => done(workspaces::run(args, &context()?).await),
        Command::Project(args) => done(projects::run(args, &context()?).await),
        Command::Config(args) => config::run(args, context).await,
        Command::PreviewSearch(args) => done(preview::run(args, &context()?).await),
        Command::Scheduler(args) => scheduler::run(args, context).await,
        Command::Version => done(version::run(&context()?).await),
        Command::Completion(args) => done(completion::run(&args, &mut Cli::command())),
        Command::ProxyStdio(args) => done(proxy_stdio::run(&args, &context()?).await),
    }
}

/// The exit code of a command that has no code of its own for success.
fn done(result: Result<(), CliError>) -> Result<ExitCode, CliError> {
    result.map(|()| ExitCode::SUCCESS)
}

/// The command line with the role that the program's own name gives it: called as `determined-master` it is
/// `det master`, as `determined-agent` it is `det agent`. The subcommand `run` of the older programs is dropped.
pub(crate) fn with_role(command_line: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = command_line.into_iter().collect();
    let role = words
        .first()
        .and_then(|name| Path::new(name).file_name())
        .and_then(|name| match name.to_str() {
            Some("determined-master") => Some("master"),
            Some("determined-agent") => Some("agent"),
            _ => None,
        });
    if let Some(role) = role {
        if words.get(1).is_some_and(|word| word == "run") {
            words.remove(1);
        }
        words.insert(1, role.into());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    fn role(words: &[&str]) -> String {
        with_role(words.iter().map(OsString::from))
            .join(&OsString::from(" "))
            .into_string()
            .unwrap()
    }

    fn parse(words: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(words.split(' '))
    }

    #[test]
    fn the_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_programs_name_gives_it_a_role() {
        assert_eq!(
            role(&["/usr/bin/determined-master", "--port", "80"]),
            "/usr/bin/determined-master master --port 80"
        );
        assert_eq!(role(&["determined-agent", "run"]), "determined-agent agent");
        assert_eq!(role(&["det", "run"]), "det run");
    }

    #[test]
    fn agent_and_master_run_or_ask() {
        for (words, serves) in [
            ("det agent", true),
            ("det agent --agent-id a --artificial-slots 2", true),
            ("det agent list --json", false),
            ("det a ls", false),
            ("det master --port 8080", true),
            ("det master info", false),
            ("det up", true),
            ("det e list", false),
        ] {
            assert_eq!(parse(words).unwrap().command.serves(), serves, "{words}");
        }
        assert!(parse("det agent --agent-id a list").is_err());
    }

    #[test]
    fn slots_of_det_up_have_a_maximum() {
        assert!(parse("det up --slots 4096").is_ok());
        let refused = parse("det up --slots 4097").err().unwrap().to_string();
        assert!(refused.contains("4096"), "{refused}");
    }

    #[test]
    fn flags_may_be_anywhere_and_be_shortened() {
        let cli = parse("det e list -m here:1 -u ada").unwrap();
        assert_eq!(cli.connection.master.as_deref(), Some("here:1"));
        assert_eq!(cli.connection.user.as_deref(), Some("ada"));
        parse("det e create c.yaml . --follow").unwrap();
        parse("det c download u --output x").unwrap();
    }

    /// The help of a command and of all below it.
    fn help_of(command: &mut clap::Command, path: &str, text: &mut String) {
        let name = format!("{path}{}", command.get_name());
        // Writing to a string does not fail.
        let _ = write!(text, "===== {name}\n{}\n", command.render_long_help());
        for below in command.get_subcommands_mut() {
            if below.get_name() != "help" {
                help_of(below, &format!("{name} "), text);
            }
        }
    }

    #[test]
    fn the_help_is_as_committed() {
        let mut command = Cli::command().term_width(100);
        command.build();
        let mut text = String::new();
        help_of(&mut command, "", &mut text);
        insta::assert_snapshot!("help", text);
    }
}
