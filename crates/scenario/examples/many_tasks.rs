//! Plays many tasks and prints how long that took: `cargo run --release -p det-scenario --example many_tasks -- 100000`.

use std::fmt::Write as _;
use std::time::Instant;

use det_scenario::{Options, play, read};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tasks: u32 = match std::env::args().nth(1) {
        Some(number) => number.parse()?,
        None => 100_000,
    };
    for policy in ["priority", "fair_share", "round_robin"] {
        let text = described(policy, tasks);
        let begin = Instant::now();
        let scenario = read(&text)?;
        let read_in = begin.elapsed();
        let begin = Instant::now();
        let report = play(&scenario, Options::default())?;
        let completed: u64 = report.jobs.iter().map(|job| job.completed).sum();
        report_line(&format!(
            "{policy}: {completed} of {tasks} tasks in {} moments; read in {:.2} s, played in {:.2} s",
            report.moments.len(),
            read_in.as_secs_f64(),
            begin.elapsed().as_secs_f64()
        ));
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program for the terminal")]
fn report_line(line: &str) {
    println!("{line}");
}

/// Jobs of a hundred tasks each, of several sizes, priorities and lengths, on a hundred agents of eight slots.
fn described(policy: &str, tasks: u32) -> String {
    let mut text = format!(
        "pool: {{scheduler: {{type: {policy}}}}}\nagents:\n  - {{id: a, count: 100, slots: 8}}\nuntil: rest\nsteps:\n"
    );
    for job in 0..tasks.div_ceil(100) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  - submit: {{job: j{job}, tasks: 100, slots: {}, duration: {}s{}}}",
            [1, 1, 2, 4][job as usize % 4],
            600 + job * 7 % 1_300,
            if policy == "priority" {
                format!(", priority: {}", 40 + job % 3)
            } else {
                String::new()
            },
        );
    }
    text
}
