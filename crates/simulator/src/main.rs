//! Plays histories by hand.
//!
//! ```text
//! cargo run -p det-simulator -- --seed 7 --hours 8        one history
//! cargo run -p det-simulator -- --seed 7 --seeds 100      and the 99 seeds after it
//! cargo run -p det-simulator -- --replay FILE             one that was kept
//! ```
//!
//! `--mutant NAME` plays with a deliberate defect. A history that fails is made small and written to
//! `regressions/seed-N.json` beside this crate's sources, or at the path of `--keep FILE`.

#![expect(clippy::print_stdout, reason = "a tool for a terminal")]

use std::path::PathBuf;
use std::process::ExitCode;

use det_simulator::{Counts, History, Mutant, ViolationReport, play, shrink};

/// Hours of faults unless asked otherwise.
const HOURS: u32 = 8;

struct Arguments {
    seed: u64,
    seeds: u64,
    hours: u32,
    replay: Option<PathBuf>,
    keep: Option<PathBuf>,
    mutant: Option<Mutant>,
}

fn arguments() -> Result<Arguments, String> {
    let mut given = Arguments {
        seed: 1,
        seeds: 1,
        hours: HOURS,
        replay: None,
        keep: None,
        mutant: None,
    };
    let mut rest = std::env::args().skip(1);
    while let Some(name) = rest.next() {
        let value = rest
            .next()
            .ok_or_else(|| format!("\"{name}\" needs a value"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("\"{name}\" takes a number, found \"{value}\""))
        };
        match name.as_str() {
            "--seed" => given.seed = number()?,
            "--seeds" => given.seeds = number()?,
            "--hours" => given.hours = u32::try_from(number()?).map_err(|e| e.to_string())?,
            "--replay" => given.replay = Some(value.into()),
            "--keep" => given.keep = Some(value.into()),
            "--mutant" => {
                let quoted = format!("\"{value}\"");
                let mutant = serde_json::from_str(&quoted).map_err(|e| e.to_string())?;
                given.mutant = Some(mutant);
            }
            _ => {
                return Err(format!(
                    "\"{name}\" is not known; there are --seed, --seeds, --hours, --replay, --keep and --mutant"
                ));
            }
        }
    }
    Ok(given)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            println!("{message}");
            ExitCode::from(2)
        }
    }
}

/// `false` when something did not hold.
fn run() -> Result<bool, String> {
    let arguments = arguments()?;
    if let Some(path) = &arguments.replay {
        let text =
            std::fs::read_to_string(path).map_err(|e| format!("\"{}\": {e}", path.display()))?;
        let history: History =
            serde_json::from_str(&text).map_err(|e| format!("\"{}\": {e}", path.display()))?;
        let outcome = play(&history, arguments.mutant);
        println!("{}", outcome.counts);
        show(outcome.violation.as_ref());
        return Ok(outcome.violation.is_none());
    }
    let mut counts = Counts::default();
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.seeds) {
        let history = History::of(seed, arguments.hours);
        let outcome = play(&history, arguments.mutant);
        counts += outcome.counts;
        if outcome.violation.is_none() {
            continue;
        }
        println!("seed {seed} fails; making it small");
        let small = shrink(&history, arguments.mutant);
        show(play(&small, arguments.mutant).violation.as_ref());
        for (at, what) in &small.steps {
            println!("  {:>10} s  {what:?}", at / det_simulator::SECOND);
        }
        let path = arguments.keep.unwrap_or_else(|| {
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("regressions/seed-{seed}.json"))
        });
        let text = serde_json::to_string_pretty(&small).map_err(|e| e.to_string())?;
        std::fs::write(&path, text).map_err(|e| format!("\"{}\": {e}", path.display()))?;
        println!("kept as {}", path.display());
        return Ok(false);
    }
    println!("{counts}");
    Ok(true)
}

fn show(found: Option<&ViolationReport>) {
    let Some(found) = found else {
        println!("everything holds");
        return;
    };
    for line in &found.before {
        println!("{line}");
    }
    println!(
        "at {} s: {}",
        found.at / det_simulator::SECOND,
        found.violation
    );
}
