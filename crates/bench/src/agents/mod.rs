//! Simulated agents: many connections that speak the agents' protocol and start nothing.
//!
//! Each agent has its own connection, its own slots and its own memory of what it holds, as a real one has; what a task
//! would do is a timer. What is measured is therefore the master: placing, starting, storing what agents report.
//!
//! Read [`Options`] first, then [`run`]; one agent is in [`agent`], the calls of its tasks in [`calls`].

mod agent;
mod calls;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;

use calls::Calls;

/// How many agents connect at a time at the start; a storm knows no such limit.
const CONNECTING: usize = 64;

/// What `det-bench agents` is started with.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Host and port of the master, without TLS
    #[arg(long, value_name = "HOST:PORT")]
    master: String,
    /// File with the token that agents join with
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// How many agents
    #[arg(long, default_value_t = 100)]
    agents: usize,
    /// Slots of each
    #[arg(long, default_value_t = 8)]
    slots: u32,
    /// Pool that they join
    #[arg(long, default_value = "default")]
    pool: String,
    /// How long each task runs, in milliseconds
    #[arg(long, default_value_t = 0)]
    task_millis: u64,
    /// Each task meets its peers, as a real one does, before it counts as running
    #[arg(long)]
    rendezvous: bool,
    /// Each task reports validations of `loss` and `batches` at these numbers of batches, one after another
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    report_at: Vec<u64>,
    /// Waits for so many running tasks before anything below
    #[arg(long, default_value_t = 0, value_name = "N")]
    until_running: u64,
    /// Cuts all connections so many times, each time when all agents are registered, and lets them come back at once
    #[arg(long, default_value_t = 0, value_name = "TIMES")]
    reconnect_storm: u32,
    /// Ends when so many tasks have ended and the master has confirmed that their ends are stored; without it, when standard
    /// input ends
    #[arg(long, value_name = "N")]
    until_exits: Option<u64>,
    /// Fails when all this has not come about within so many seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    within: u64,
}

/// What all agents have in common.
pub(crate) struct Fleet {
    options: Options,
    token: String,
    calls: Calls,
    tally: Mutex<Tally>,
    /// Wakes those who wait for the tally to change.
    changed: watch::Sender<()>,
    /// Number of storms so far; a change cuts every connection.
    storm: watch::Sender<u32>,
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    registered: usize,
    starts: u64,
    running: u64,
    exits: u64,
    /// Validations that the master has acknowledged.
    reports: u64,
    refused_reports: u64,
    first_start: Option<Instant>,
    last_exit: Option<Instant>,
}

impl Fleet {
    fn tally(&self) -> Tally {
        *self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, change: impl FnOnce(&mut Tally)) {
        change(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_replace(());
    }

    fn registered(&self) {
        let mut all = false;
        self.note(|tally| {
            tally.registered += 1;
            all = tally.registered == self.options.agents;
        });
        if all {
            let since_1970 = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            print_line(&json!({"registered": self.options.agents, "at": since_1970.as_secs_f64()}));
        }
    }

    async fn until(&self, what: &str, done: impl Fn(&Tally) -> bool) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let within = Duration::from_secs(self.options.within);
        let mut changes = self.changed.subscribe();
        let waiting = async {
            while !done(&self.tally()) {
                // The sender lives as long as the fleet.
                let _ = changes.changed().await;
            }
        };
        match tokio::time::timeout(within, waiting).await {
            Ok(()) => Ok(began.elapsed()),
            Err(_) => bail!(
                "{what} did not come about within {} s: {:?}",
                within.as_secs(),
                self.tally()
            ),
        }
    }
}

/// A line on standard error that a driver can read.
fn print_line(line: &Value) {
    use std::io::Write as _;
    // A driver that has gone away needs no news.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs the agents until what was asked for has come about, and gives the figures.
pub(crate) async fn run(options: Options) -> anyhow::Result<Value> {
    let token = std::fs::read_to_string(&options.token_file)
        .with_context(|| format!("reading \"{}\"", options.token_file.display()))?;
    let count = options.agents;
    let fleet = std::sync::Arc::new(Fleet {
        calls: Calls::new(options.master.clone()),
        token: token.trim().to_owned(),
        options,
        tally: Mutex::default(),
        changed: watch::Sender::default(),
        storm: watch::Sender::default(),
    });
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(CONNECTING));
    let mut agents = tokio::task::JoinSet::new();
    for number in 0..count {
        agents.spawn(agent::live(fleet.clone(), number, gate.clone()));
    }
    let all = |tally: &Tally| tally.registered == count;
    let registered = fleet.until("the registration of all agents", all).await?;
    let wanted = fleet.options.until_running;
    let running = fleet
        .until("the wanted number of running tasks", |t| {
            t.running >= wanted
        })
        .await?;
    let mut storms = Vec::new();
    for _ in 0..fleet.options.reconnect_storm {
        fleet.until("the registration of all agents", all).await?;
        fleet.note(|tally| tally.registered = 0);
        let began = Instant::now();
        fleet.storm.send_modify(|number| *number += 1);
        fleet.until("the return of all agents", all).await?;
        storms.push(began.elapsed().as_secs_f64());
        print_line(&json!({"storm_seconds": storms.last()}));
    }
    match fleet.options.until_exits {
        Some(exits) => {
            fleet
                .until("the wanted number of ended tasks", |t| t.exits >= exits)
                .await?;
        }
        None => {
            // The process that started this one ends it by closing its input.
            let mut ignored = Vec::new();
            tokio::io::stdin().read_to_end(&mut ignored).await?;
        }
    }
    let tally = fleet.tally();
    agents.shutdown().await;
    let seconds = match (tally.first_start, tally.last_exit) {
        (Some(first), Some(last)) => last.duration_since(first).as_secs_f64(),
        _ => 0.0,
    };
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    let rate = |count: u64| {
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    };
    Ok(json!({
        "agents": count,
        "slots": fleet.options.slots,
        "registered_seconds": registered.as_secs_f64(),
        "running_seconds": running.as_secs_f64(),
        "storm_seconds": storms,
        "starts": tally.starts,
        "exits": tally.exits,
        "reports": tally.reports,
        "refused_reports": tally.refused_reports,
        "seconds": seconds,
        // Queued to running and running to done, both stored: the master lets an end be forgotten when it is.
        "transitions_per_second": rate(2 * tally.exits),
        "reports_per_second": rate(tally.reports),
    }))
}
