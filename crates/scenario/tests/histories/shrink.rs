//! Smaller histories that still fail.

use std::time::Duration;

use det_scenario::{KindDefaults, Operation, Scenario, StepTime};

/// The most attempts.
const MOST: usize = 3_000;

/// Removes from a history everything that is not needed for it to fail.
pub(crate) fn shrink(scenario: Scenario, fails: &dyn Fn(&Scenario) -> bool) -> Scenario {
    let mut best = scenario;
    let mut attempts = 0;
    loop {
        let smaller = candidates(&best).into_iter().find(|candidate| {
            attempts += 1;
            attempts < MOST && fails(candidate)
        });
        match smaller {
            Some(smaller) => best = smaller,
            None => return best,
        }
    }
}

/// Histories that are smaller by one item, the largest items first.
fn candidates(from: &Scenario) -> Vec<Scenario> {
    let mut found = Vec::new();
    let mut with = |change: &dyn Fn(&mut Scenario)| {
        let mut candidate = from.clone();
        change(&mut candidate);
        if candidate != *from {
            found.push(candidate);
        }
    };
    with(&|scenario| scenario.until = det_scenario::EndCondition::LastStep);
    for step in (0..from.steps.len()).rev() {
        with(&|scenario| drop(scenario.steps.remove(step)));
    }
    for job in jobs(from) {
        with(&|scenario| without_job(scenario, &job));
    }
    for agent in 0..from.pool.agents.len() {
        with(&|scenario| drop(scenario.pool.agents.remove(agent)));
        with(&|scenario| scenario.pool.agents[agent].aux = 100);
    }
    for (step, known) in from.steps.iter().enumerate() {
        for operation in 0..known.operations.len() {
            with(&|scenario| drop(scenario.steps[step].operations.remove(operation)));
        }
        with(&|scenario| scenario.steps[step].when = StepTime::Now);
        for operation in 0..known.operations.len() {
            for change in SIMPLER {
                with(&|scenario| {
                    if let Operation::Submit(submission) =
                        &mut scenario.steps[step].operations[operation]
                    {
                        change(submission);
                    }
                });
            }
        }
    }
    with(&|scenario| scenario.pool.settings.provisionable = None);
    with(&|scenario| scenario.pool.settings.allow_heterogeneous_fits = false);
    with(&|scenario| scenario.pool.settings.fitting = det_scheduler::Fitting::Best);
    found
}

type Simpler = fn(&mut det_scenario::Submission);

const SIMPLER: [Simpler; 11] = [
    |submission| submission.tasks = 1,
    |submission| submission.tasks -= u32::from(submission.tasks > 1),
    |submission| submission.duration = None,
    |submission| submission.stops_in = Some(Duration::ZERO),
    |submission| submission.restarts = KindDefaults::of(submission.kind).restarts,
    |submission| submission.waited = Duration::ZERO,
    |submission| submission.exclude.clear(),
    |submission| submission.on = None,
    |submission| submission.settings.weight = None,
    |submission| submission.settings.max_slots = None,
    |submission| submission.settings.priority = None,
];

fn jobs(scenario: &Scenario) -> Vec<String> {
    let mut jobs: Vec<String> = scenario
        .steps
        .iter()
        .flat_map(|step| &step.operations)
        .filter_map(|operation| match operation {
            Operation::Submit(submission) => Some(submission.job.clone()),
            _ => None,
        })
        .collect();
    jobs.sort();
    jobs.dedup();
    jobs
}

fn without_job(scenario: &mut Scenario, job: &str) {
    for step in &mut scenario.steps {
        step.operations.retain(|operation| match operation {
            Operation::Submit(submission) => submission.job != job,
            _ => true,
        });
    }
}
