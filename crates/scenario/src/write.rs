//! Converts descriptions to values, to write them to a file.

use std::time::Duration;

use det_config::units::format_duration;
use det_ids::PriorityOrder;
use det_scheduler::{Fitting, Policy, PoolSettings};
use serde_json::{Map, Value, json};

use crate::description::{
    AgentDescription, EndCondition, Expectation, JobSettings, KindDefaults, Operation,
    RunExpectation, Scenario, Service, ServiceTarget, Start, Step, StepTime, Submission,
    WaitExpectation, WorkspaceSettings,
};

impl Scenario {
    /// The description as a value; [`crate::read()`] reads the same description from its text.
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        if !self.name.is_empty() {
            out.insert("name".to_owned(), json!(self.name));
        }
        if !self.about.is_empty() {
            out.insert("about".to_owned(), json!(self.about));
        }
        let mut pool = pool(&self.pool.settings);
        let wait = format_duration(self.pool.reconnect_wait);
        pool.insert("agent_reconnect_wait".to_owned(), json!(wait));
        out.insert("pool".to_owned(), pool.into());
        let agents: Vec<Value> = self.pool.agents.iter().map(agent).collect();
        out.insert("agents".to_owned(), agents.into());
        if !self.workspaces.is_empty() {
            let workspaces: Map<String, Value> = self
                .workspaces
                .iter()
                .map(|(name, settings)| (name.clone(), workspace_settings(*settings).into()))
                .collect();
            out.insert("workspaces".to_owned(), workspaces.into());
        }
        if !self.jobs.is_empty() {
            let jobs: Map<String, Value> = self
                .jobs
                .iter()
                .map(|(name, settings)| (name.clone(), job_settings(settings).into()))
                .collect();
            out.insert("jobs".to_owned(), jobs.into());
        }
        let steps: Vec<Value> = self.steps.iter().map(step).collect();
        out.insert("steps".to_owned(), steps.into());
        match self.until {
            EndCondition::LastStep => {}
            EndCondition::Time(time) => {
                out.insert("until".to_owned(), json!(format_duration(time)));
            }
            EndCondition::Rest => {
                out.insert("until".to_owned(), json!("rest"));
            }
        }
        out.into()
    }
}

fn pool(settings: &PoolSettings) -> Map<String, Value> {
    let mut scheduler = Map::new();
    let kind = match settings.policy {
        Policy::Priority {
            preemption,
            default_priority,
        } => {
            scheduler.insert("preemption".to_owned(), json!(preemption));
            scheduler.insert("default_priority".to_owned(), json!(default_priority));
            "priority"
        }
        Policy::FairShare => "fair_share",
        Policy::RoundRobin => "round_robin",
    };
    scheduler.insert("type".to_owned(), json!(kind));
    let fitting = match settings.fitting {
        Fitting::Best => "best",
        Fitting::Worst => "worst",
    };
    scheduler.insert("fitting_policy".to_owned(), json!(fitting));
    let uneven = json!(settings.allow_heterogeneous_fits);
    scheduler.insert("allow_heterogeneous_fits".to_owned(), uneven);
    let mut pool = Map::new();
    pool.insert("scheduler".to_owned(), scheduler.into());
    let patience = settings.reserve_after.map(format_duration);
    let patience = patience.unwrap_or_else(|| "never".to_owned());
    pool.insert("reserve_after".to_owned(), json!(patience));
    if settings.priority_order == PriorityOrder::HigherFirst {
        pool.insert("priority_order".to_owned(), json!("higher_first"));
    }
    if let Some(added) = settings.provisionable {
        let added = json!({
            "slots_per_instance": added.slots_per_instance,
            "max_instances": added.max_instances,
        });
        pool.insert("provisionable".to_owned(), added);
    }
    pool
}

fn agent(agent: &AgentDescription) -> Value {
    json!({
        "id": agent.id,
        "slots": agent.slots,
        "aux": agent.aux,
        "state": match agent.service {
            Service::Enabled => "enabled",
            Service::Draining => "draining",
            Service::Disabled => "disabled",
        },
    })
}

fn workspace_settings(settings: WorkspaceSettings) -> Map<String, Value> {
    let mut out = Map::new();
    let max_slots = settings.max_slots.map_or(json!("none"), |most| json!(most));
    out.insert("max_slots".to_owned(), max_slots);
    if settings.in_other_pools > 0 {
        out.insert("in_other_pools".to_owned(), json!(settings.in_other_pools));
    }
    out
}

fn job_settings(settings: &JobSettings) -> Map<String, Value> {
    let mut out = Map::new();
    if let Some(priority) = settings.priority {
        out.insert("priority".to_owned(), json!(priority));
    }
    if let Some(weight) = settings.weight {
        out.insert("weight".to_owned(), json!(weight));
    }
    if let Some(max_slots) = settings.max_slots {
        let max_slots = max_slots.map_or(json!("none"), |most| json!(most));
        out.insert("max_slots".to_owned(), max_slots);
    }
    if let Some(concurrent) = settings.concurrent {
        out.insert("concurrent".to_owned(), json!(concurrent));
    }
    if let Some(workspace) = &settings.workspace {
        out.insert("workspace".to_owned(), json!(workspace));
    }
    out
}

fn step(step: &Step) -> Value {
    let mut out = Map::new();
    match step.when {
        StepTime::Now => {}
        StepTime::After(wait) => {
            out.insert("after".to_owned(), json!(format_duration(wait)));
        }
        StepTime::At(time) => {
            out.insert("at".to_owned(), json!(format_duration(time)));
        }
    }
    if !step.note.is_empty() {
        out.insert("note".to_owned(), json!(step.note));
    }
    let operations: Vec<(&str, Value)> = step.operations.iter().map(operation).collect();
    match &operations[..] {
        [] => {}
        [(key, value)] => {
            out.insert((*key).to_owned(), value.clone());
        }
        many => {
            let list: Vec<Value> = many
                .iter()
                .map(|(key, value)| json!({*key: value}))
                .collect();
            out.insert("do".to_owned(), list.into());
        }
    }
    if !step.expect.is_empty() {
        out.insert("expect".to_owned(), expectation(&step.expect));
    }
    out.into()
}

fn operation(operation: &Operation) -> (&'static str, Value) {
    match operation {
        Operation::Submit(submission) => ("submit", submit(submission)),
        Operation::Finish(names) => ("finish", json!(names)),
        Operation::Fail(names) => ("fail", json!(names)),
        Operation::Kill(names) => ("kill", json!(names)),
        Operation::Leave(names) => ("leave", json!(names)),
        Operation::Pause(names) => ("pause", json!(names)),
        Operation::Activate(names) => ("activate", json!(names)),
        Operation::Set { job, settings } => {
            let mut out = job_settings(settings);
            out.insert("job".to_owned(), json!(job));
            ("set", out.into())
        }
        Operation::Limit {
            workspace,
            settings,
        } => {
            let mut out = workspace_settings(*settings);
            out.insert("workspace".to_owned(), json!(workspace));
            ("limit", out.into())
        }
        Operation::Move { job, anchor, ahead } => {
            let side = if *ahead { "ahead_of" } else { "behind_of" };
            ("move", json!({"job": job, side: anchor}))
        }
        Operation::Exclude { tasks, agent } => ("exclude", json!({"tasks": tasks, "agent": agent})),
        Operation::Serve { places, service } => {
            let key = match service {
                Service::Enabled => "enable",
                Service::Draining => "drain",
                Service::Disabled => "disable",
            };
            let name = |place: &ServiceTarget| match place.slot {
                Some(slot) => format!("{}/{slot}", place.agent),
                None => place.agent.clone(),
            };
            (key, places.iter().map(name).collect())
        }
        Operation::Lose(names) => ("lose", json!(names)),
        Operation::Return(names) => ("return", json!(names)),
        Operation::Join(agents) => ("join", agents.iter().map(agent).collect()),
        Operation::Remove(names) => ("remove", json!(names)),
        Operation::RestartMaster => ("restart_master", json!(true)),
    }
}

fn submit(submission: &Submission) -> Value {
    let mut out = job_settings(&submission.settings);
    let mut put = |key: &str, value: Value| {
        out.insert(key.to_owned(), value);
    };
    put("job", json!(submission.job));
    if let Some(name) = &submission.name {
        put("name", json!(name));
    }
    if submission.tasks != 1 {
        put("tasks", json!(submission.tasks));
    }
    let defaults = KindDefaults::of(submission.kind);
    put("kind", json!(submission.kind.word()));
    put("slots", json!(submission.slots));
    if submission.preemptible != defaults.preemptible {
        put("preemptible", json!(submission.preemptible));
    }
    if submission.single_node != defaults.single_node {
        put("single_node", json!(submission.single_node));
    }
    if !submission.exclude.is_empty() {
        put("exclude", json!(submission.exclude));
    }
    if let Some(duration) = submission.duration {
        put("duration", json!(format_duration(duration)));
    }
    match submission.stops_in {
        Some(Duration::ZERO) => {}
        Some(wait) => put("stops_in", json!(format_duration(wait))),
        None => put("stops_in", json!("never")),
    }
    if submission.restarts != defaults.restarts {
        put("restarts", json!(submission.restarts));
    }
    if !submission.waited.is_zero() {
        put("waited", json!(format_duration(submission.waited)));
    }
    if let Some(age) = submission.job_age {
        put("job_age", json!(format_duration(age)));
    }
    if let Some(on) = &submission.on {
        put("on", starts(on));
    }
    if submission.stopping {
        put("stopping", json!(true));
    }
    out.into()
}

fn starts(on: &[Start]) -> Value {
    if on.iter().any(|start| start.slots.is_some()) {
        let slots = on
            .iter()
            .map(|start| (start.agent.clone(), json!(start.slots.unwrap_or(0))));
        return slots.collect::<Map<_, _>>().into();
    }
    on.iter().map(|start| json!(start.agent)).collect()
}

fn expectation(expect: &Expectation) -> Value {
    let mut out = Map::new();
    let mut put = |key: &str, value: Map<String, Value>| {
        if !value.is_empty() {
            out.insert(key.to_owned(), value.into());
        }
    };
    let running = expect.running.iter().map(|(name, presence)| {
        let presence = match presence {
            RunExpectation::Tasks(number) => json!(number),
            RunExpectation::On(agents) => json!(agents),
            RunExpectation::Slots(slots) => json!(slots),
        };
        (name.clone(), presence)
    });
    put("running", running.collect());
    let waiting = expect.waiting.iter().map(|(name, waits)| {
        let waits = match waits {
            WaitExpectation::Tasks(number) => json!(number),
            WaitExpectation::Because(kind) => json!(kind),
            WaitExpectation::Kinds(kinds) => json!(kinds),
            WaitExpectation::Reason(fields) => json!(fields),
        };
        (name.clone(), waits)
    });
    put("waiting", waiting.collect());
    let numbers = |numbers: &std::collections::BTreeMap<String, u64>| {
        let values = numbers.iter().map(|(name, n)| (name.clone(), json!(n)));
        values.collect::<Map<_, _>>()
    };
    put("slots", numbers(&expect.slots));
    put("completed", numbers(&expect.completed));
    let parts = expect.parts.iter();
    put(
        "parts",
        parts
            .map(|(name, sizes)| (name.clone(), json!(sizes)))
            .collect(),
    );
    let ahead = expect.ahead.iter().map(|(name, ahead)| {
        let ahead = ahead.map_or(json!("unknown"), |ahead| json!(ahead));
        (name.clone(), ahead)
    });
    put("ahead", ahead.collect());
    if let Some(stopping) = &expect.stopping {
        out.insert("stopping".to_owned(), json!(stopping));
    }
    if let Some(free) = expect.free {
        out.insert("free".to_owned(), json!(free));
    }
    out.into()
}
