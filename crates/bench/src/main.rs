//! `det-bench`: what `bench/run.sh` and the chaos runner need that Python is too slow for: load generators, simulated
//! agents, large stores.
//!
//! Each subcommand is a file. It prints one JSON document on standard output when it ends; progress and errors go to
//! standard error. Nothing here asserts a speed: the numbers are for the caller to print.

mod agents;
mod load;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use det_bench::generate;

/// Load generators, simulated agents and large stores.
#[derive(Debug, Parser)]
#[command(name = "det-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fills a database with what a busy cluster leaves behind: experiments, trials, metrics, logs.
    Generate(generate::Arguments),
    /// Simulated agents over the agents' protocol: transitions per second, a reconnect storm, running tasks to hold
    Agents(agents::Options),
    /// Metric reports and log batches over kept connections
    Load(load::Load),
}

#[tokio::main]
async fn main() -> ExitCode {
    finish(match Cli::parse().command {
        Command::Generate(arguments) => generate::run(arguments).await,
        Command::Agents(options) => agents::run(options).await,
        Command::Load(arguments) => load::run(arguments).await,
    })
}

/// Prints the result, or the whole chain of the error.
fn finish(outcome: anyhow::Result<serde_json::Value>) -> ExitCode {
    use std::io::Write as _;
    let written = outcome.and_then(|document| Ok(writeln!(std::io::stdout(), "{document}")?));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "det-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
