//! `det-bench load`: reports and log batches over kept connections, in bytes made ready beforehand.
//!
//! The generator shares its cores with what it measures, so a request costs it little more than the system calls: raw
//! HTTP/1.1, `TCP_NODELAY`, one request under way for each connection. Each connection speaks for one running trial,
//! with that trial's own token; the list of trials comes as JSON on standard input.

use std::io::Read as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Different values to draw from: a column of one number would compress as no real one does.
const DIFFERENT_VALUES: usize = 4096;
/// Bytes of different reports that a connection keeps ready.
const READY_BYTES: usize = 65_536;
/// Batches of log lines that a connection keeps ready.
const READY_BATCHES: usize = 8;
/// Answers still under way at the end are waited for so long, so that one window does not disturb the next.
const DRAIN: Duration = Duration::from_secs(30);
/// Steps are written with nine digits, so that the length of a request is known beforehand.
const STEPS: std::ops::Range<u64> = 100_000_000..990_000_000;
const STEP_DIGITS: usize = 9;

/// Loads a master and prints what came of it: answers in the window, latencies in milliseconds.
#[derive(Debug, Args)]
pub(crate) struct Load {
    /// Port of the master on 127.0.0.1
    #[arg(long)]
    port: u16,
    /// Length of the window that is counted
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Load before the window that is not counted
    #[arg(long, default_value_t = 0.5)]
    warm_up: f64,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Training reports with steps that grow; a report is one call
    Reports(Reports),
    /// Batches of log lines of some 70 characters; a batch is one call
    LogBatches {
        /// Lines of a batch
        #[arg(long, default_value_t = 1000)]
        lines: usize,
    },
}

#[derive(Debug, Args)]
struct Reports {
    /// Metric names of a report
    #[arg(long, default_value_t = 1)]
    names: usize,
    /// Values of single batches of a report
    #[arg(long, default_value_t = 0)]
    batches: usize,
    /// The first step; each window over the same trials needs steps of its own, so that no report is a repeat
    #[arg(long, default_value_t = STEPS.start)]
    first_step: u64,
    /// Reports per second over all trials, sent at fixed moments whether answers come or not; a latency counts from
    /// the moment at which the report was due. Without it each connection sends its next report when the last was
    /// answered
    #[arg(long)]
    rate: Option<f64>,
    /// Use so many of the trials; 0 = all
    #[arg(long, default_value_t = 0)]
    trials: usize,
}

/// A running trial, and what it reports with.
#[derive(Debug, Clone, Deserialize)]
struct Reporter {
    trial: i64,
    run: i64,
    task: String,
    allocation: String,
    container: String,
    token: String,
}

/// Runs the load.
pub(crate) async fn run(load: Load) -> anyhow::Result<Value> {
    let mut reporters = reporters()?;
    let mut schedule = None;
    if let What::Reports(reports) = &load.what {
        ensure!(
            STEPS.contains(&reports.first_step),
            "--first-step {} must be from {} to {}",
            reports.first_step,
            STEPS.start,
            STEPS.end - 1
        );
        if reports.trials > 0 {
            ensure!(
                reports.trials <= reporters.len(),
                "--trials {}: standard input has only {}",
                reports.trials,
                reporters.len()
            );
            reporters.truncate(reports.trials);
        }
        if let Some(rate) = reports.rate {
            ensure!(rate > 0.0, "--rate must be more than 0");
            schedule = Some(Duration::try_from_secs_f64(1.0 / rate).context("--rate")?);
        }
    }
    let requests: Vec<Requests> = reporters
        .iter()
        .map(|reporter| match &load.what {
            What::Reports(reports) => Ok(report_requests(reporter, reports)),
            What::LogBatches { lines } => log_requests(reporter, *lines),
        })
        .collect::<anyhow::Result<_>>()?;
    let start = Instant::now() + Duration::from_millis(50);
    let begin = start + Duration::try_from_secs_f64(load.warm_up).context("--warm-up")?;
    let end = begin + Duration::try_from_secs_f64(load.seconds).context("--seconds")?;
    let count = u32::try_from(requests.len()).context("too many trials")?;
    let mut connections = JoinSet::new();
    for (number, requests) in (0..count).zip(requests) {
        let pace = schedule.map(|gap| Pace {
            first: start + gap * number,
            gap: gap * count,
        });
        connections.spawn(drive(
            load.port,
            requests,
            pace,
            Window { start, begin, end },
        ));
    }
    let mut all = 0;
    let mut late = Duration::ZERO;
    let mut latencies = Vec::new();
    while let Some(outcome) = connections.join_next().await {
        let report = outcome.context("a connection of the load generator ended unexpectedly")??;
        all += report.answered;
        late = late.max(report.latest_start);
        latencies.extend(report.latencies);
    }
    ensure!(
        !latencies.is_empty(),
        "not one answer came within {} s",
        load.seconds
    );
    latencies.sort_unstable();
    let mut result = json!({
        "requests": latencies.len(),
        "seconds": load.seconds,
        "all_requests": all,
        "connections": count,
        "p50_ms": percentile(&latencies, 50),
        "p99_ms": percentile(&latencies, 99),
        "max_ms": percentile(&latencies, 100),
    });
    if schedule.is_some() {
        // How far the generator itself fell behind its schedule when it could have sent.
        result["latest_start_ms"] = json!(late.as_secs_f64() * 1e3);
    }
    Ok(result)
}

fn reporters() -> anyhow::Result<Vec<Reporter>> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("reading the list of trials from standard input")?;
    let reporters: Vec<Reporter> = serde_json::from_str(&text).context(
        "standard input must be a JSON list of objects with trial, run, task, allocation, container, token",
    )?;
    ensure!(!reporters.is_empty(), "standard input names no trial");
    Ok(reporters)
}

/// The nearest-rank percentile in milliseconds; always one of the samples.
fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted
        .get(rank - 1)
        .map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
}

/// The requests of one connection: heads and tails made ready, the step put between.
struct Requests {
    /// What is before and behind the step.
    parts: Vec<(Vec<u8>, Vec<u8>)>,
    /// `None` where requests carry no step and repeat.
    next_step: Option<u64>,
    sent: usize,
}

impl Requests {
    fn next(&mut self, into: &mut Vec<u8>) {
        let (head, tail) = &self.parts[self.sent % self.parts.len()];
        self.sent += 1;
        into.clear();
        into.extend_from_slice(head);
        if let Some(step) = &mut self.next_step {
            into.extend_from_slice(step.to_string().as_bytes());
            *step += 1;
        }
        into.extend_from_slice(tail);
    }
}

/// All of a request but its body.
fn head(path: &str, token: &str, length: usize) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nGrpc-Metadata-x-allocation-token: Bearer {token}\r\n\
         Content-Length: {length}\r\n\r\n"
    )
    .into_bytes()
}

/// Numbers that differ from trial to trial and are the same in every run (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn of(reporter: &Reporter) -> Self {
        Self((reporter.trial.unsigned_abs().wrapping_add(1) << 20) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 0 to 1, with all the digits that a float has.
    fn fraction(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let bits = (self.next() >> 11) as f64;
        bits / 9_007_199_254_740_992.0
    }
}

fn report_requests(reporter: &Reporter, reports: &Reports) -> Requests {
    let mut numbers = Numbers::of(reporter);
    let values: Vec<String> = (0..DIFFERENT_VALUES)
        .map(|_| (numbers.fraction() * 10.0).to_string())
        .collect();
    let width = reports.names.max(reports.batches).max(1);
    let different = (READY_BYTES / width).clamp(1, 64);
    let path = format!("/api/v1/trials/{}/metrics", reporter.trial);
    let before = format!(
        r#"{{"group":"training","metrics":{{"trialId":{},"trialRunId":{},"stepsCompleted":"#,
        reporter.trial, reporter.run
    );
    let mut parts = Vec::with_capacity(different);
    for number in 0..different {
        let value = |index: usize| values[(number * 131 + index) % DIFFERENT_VALUES].as_str();
        let names: Vec<String> = (0..reports.names)
            .map(|index| match reports.names {
                1 => format!(r#""loss":{}"#, value(index)),
                _ => format!(r#""metric_{index:03}":{}"#, value(index)),
            })
            .collect();
        let single = match reports.batches {
            0 => "null".to_owned(),
            count => {
                let batches: Vec<String> = (0..count)
                    .map(|index| format!(r#"{{"loss":{}}}"#, value(index)))
                    .collect();
                format!("[{}]", batches.join(","))
            }
        };
        let behind = format!(
            r#","reportTime":null,"metrics":{{"avgMetrics":{{{}}},"batchMetrics":{single}}}}}}}"#,
            names.join(",")
        );
        let mut start = head(
            &path,
            &reporter.token,
            before.len() + STEP_DIGITS + behind.len(),
        );
        start.extend_from_slice(before.as_bytes());
        parts.push((start, behind.into_bytes()));
    }
    Requests {
        parts,
        next_step: Some(reports.first_step),
        sent: 0,
    }
}

fn log_requests(reporter: &Reporter, lines: usize) -> anyhow::Result<Requests> {
    const WORDS: [&str; 13] = [
        "loading",
        "shard",
        "epoch",
        "batch",
        "loss",
        "accuracy",
        "gradient",
        "norm",
        "checkpoint",
        "saved",
        "worker",
        "throughput",
        "images",
    ];
    ensure!(lines > 0, "--lines must be at least 1");
    let mut numbers = Numbers::of(reporter);
    let mut parts = Vec::with_capacity(READY_BATCHES);
    for batch in 0..READY_BATCHES {
        let logs: Vec<Value> = (0..lines)
            .map(|line| {
                let mut text = format!("step {}:", batch * lines + line);
                for _ in 0..6 {
                    let word = usize::try_from(numbers.next() % 13).unwrap_or(0);
                    text.push(' ');
                    text.push_str(WORDS[word]);
                }
                text.push_str(&format!(" {:.6}\n", numbers.fraction()));
                json!({
                    "taskId": reporter.task,
                    "allocationId": reporter.allocation,
                    "agentId": "bench",
                    "containerId": reporter.container,
                    "timestamp": format!(
                        "2026-01-01T00:{batch:02}:{:02}.{:06}Z", line % 60, numbers.next() % 1_000_000
                    ),
                    "log": text,
                    "source": "task",
                    "stdtype": "stdout",
                })
            })
            .collect();
        let body = serde_json::to_vec(&json!({ "logs": logs }))?;
        parts.push((head("/api/v1/task/logs", &reporter.token, body.len()), body));
    }
    Ok(Requests {
        parts,
        next_step: None,
        sent: 0,
    })
}

/// When an open loop sends.
#[derive(Debug, Clone, Copy)]
struct Pace {
    first: Instant,
    gap: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    start: Instant,
    begin: Instant,
    end: Instant,
}

#[derive(Debug, Default)]
struct Report {
    answered: u64,
    latencies: Vec<Duration>,
    latest_start: Duration,
}

async fn drive(
    port: u16,
    mut requests: Requests,
    pace: Option<Pace>,
    window: Window,
) -> anyhow::Result<Report> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))
        .await
        .with_context(|| format!("connecting to the master on port {port}"))?;
    stream.set_nodelay(true)?;
    tokio::time::sleep_until(window.start.into()).await;
    let mut report = Report::default();
    let mut request = Vec::new();
    let mut received = Vec::new();
    let mut due = pace.map(|pace| pace.first);
    loop {
        requests.next(&mut request);
        let counts_from = match due {
            None => Instant::now(),
            Some(due) => {
                let could = Instant::now();
                tokio::time::sleep_until(due.into()).await;
                report.latest_start = report.latest_start.max(due.max(could).elapsed());
                due
            }
        };
        if counts_from >= window.end {
            return Ok(report);
        }
        let exchange = async {
            stream.write_all(&request).await?;
            answer(&mut stream, &mut received).await
        };
        tokio::time::timeout(DRAIN + (window.end - window.begin), exchange)
            .await
            .context("an answer did not come")??;
        report.answered += 1;
        let now = Instant::now();
        if counts_from >= window.begin && now < window.end {
            report.latencies.push(now - counts_from);
        }
        if let (Some(due), Some(pace)) = (&mut due, pace) {
            *due += pace.gap;
        }
    }
}

/// Reads one answer to its end; anything but a success is an error.
async fn answer(stream: &mut TcpStream, received: &mut Vec<u8>) -> anyhow::Result<()> {
    received.clear();
    loop {
        let read = stream.read_buf(received).await?;
        ensure!(read > 0, "the master closed a connection");
        let Some(head) = received.windows(4).position(|w| w == b"\r\n\r\n") else {
            continue;
        };
        let text = std::str::from_utf8(&received[..head]).context("the head of an answer")?;
        if !text.starts_with("HTTP/1.1 200") {
            bail!(
                "the master answered {}",
                String::from_utf8_lossy(&received[..received.len().min(600)])
            );
        }
        let length: usize = text
            .lines()
            .find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.trim().parse().ok())?
            })
            .with_context(|| format!("an answer without a length: {text}"))?;
        if received.len() >= head + 4 + length {
            return Ok(());
        }
    }
}
