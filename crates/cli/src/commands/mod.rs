//! A file per group of commands.

pub(crate) mod agents;
pub(crate) mod checkpoint;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod experiment;
pub(crate) mod jobs;
pub(crate) mod logs;
pub(crate) mod masters;
pub(crate) mod policies;
pub(crate) mod pools;
pub(crate) mod preview;
pub(crate) mod projects;
pub(crate) mod retention;
pub(crate) mod scheduler;
pub(crate) mod slots;
pub(crate) mod tasks;
pub(crate) mod templates;
pub(crate) mod trial;
pub(crate) mod user;
pub(crate) mod version;
pub(crate) mod workspaces;

use std::process::ExitCode;

use crate::args::{Cli, Command};
use crate::context::Context;
use crate::error::CliError;
use crate::{agent, master, up};

/// Carries out a command.
pub(crate) async fn run(cli: Cli) -> Result<ExitCode, CliError> {
    let context = || Context::new(&cli.global);
    match cli.command {
        Command::Up(args) => up::run(args).await,
        Command::Master(command) => match command.ask {
            None => master::run(command.run).await,
            Some(question) => done(masters::run(question, &context()?).await),
        },
        Command::Agent(command) => match command.ask {
            None => agent::run(command.run).await,
            Some(question) => done(agents::run(question, &context()?).await),
        },
        Command::Experiment(args) => experiment::run(args, &context()?).await,
        Command::Trial(args) => done(trial::run(args, &context()?).await),
        Command::Checkpoint(args) => done(checkpoint::run(args, &context()?).await),
        Command::Slot(args) => done(slots::run(args, &context()?).await),
        Command::Task(args) => done(tasks::run(args, &context()?).await),
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
        Command::Completion(args) => done(completion::run(&args)),
    }
}

/// The code of a command that either works or fails.
fn done(result: Result<(), CliError>) -> Result<ExitCode, CliError> {
    result.map(|()| ExitCode::SUCCESS)
}
