//! Reads descriptions from text.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_ids::PriorityOrder;
use det_scheduler::{Fitting, Policy, PoolSettings, Provisionable};
use det_taskspec::TaskKind;

use crate::description::{
    AgentDescription, EndCondition, JobSettings, KindDefaults, Operation, Pool, Scenario, Service,
    ServiceTarget, Start, Step, StepTime, Submission, WorkspaceSettings,
};
use crate::fields::{DescriptionErrors, Fields, Reader, Value, read_with};
use crate::read_expect::expectation;
use det_ids::quantity;

/// Default number of zero-slot tasks of an agent.
const AUX: u32 = 100;
/// Default time for which an agent may be disconnected.
const RECONNECT_WAIT: Duration = Duration::from_mins(10);
/// The most agents, tasks of a submission, and slots of an agent.
const MOST: u32 = 100_000;

/// Reads a description in YAML or JSON.
///
/// # Errors
/// All errors, with path and line, in the order of the text.
pub fn read(text: &str) -> Result<Scenario, DescriptionErrors> {
    read_with(text, document)
}

fn document(reader: &mut Reader, root: &Value<'_>) -> Option<Scenario> {
    let mut fields = reader.fields(root)?;
    let mut text = |fields: &mut Fields<'_>, key| {
        let value = fields.take(key)?;
        reader.text(&value)
    };
    let name = text(&mut fields, "name").unwrap_or_default();
    let about = text(&mut fields, "about").unwrap_or_default();
    let (settings, reconnect_wait) = match fields.take("pool") {
        Some(value) => pool(reader, &value).unwrap_or_default(),
        None => <(PoolSettings, Option<Duration>)>::default(),
    };
    let agents = fields
        .take("agents")
        .map(|value| agents(reader, &value))
        .unwrap_or_default();
    let mut workspaces = BTreeMap::new();
    if let Some(value) = fields.take("workspaces") {
        for (workspace, value) in reader.members(&value) {
            if let Some(mut fields) = reader.fields(&value) {
                let settings = workspace_settings(reader, &mut fields);
                workspaces.insert(workspace.to_owned(), settings);
                reader.finish(fields);
            }
        }
    }
    let mut jobs = BTreeMap::new();
    if let Some(value) = fields.take("jobs") {
        for (job, value) in reader.members(&value) {
            if let Some(mut fields) = reader.fields(&value) {
                jobs.insert(job.to_owned(), job_settings(reader, &mut fields));
                reader.finish(fields);
            }
        }
    }
    let steps = fields
        .take("steps")
        .map(|value| reader.list(&value))
        .unwrap_or_default()
        .iter()
        .filter_map(|value| step(reader, value))
        .collect();
    let until = match fields.take("until") {
        None => EndCondition::LastStep,
        Some(value) if value.text() == Some("rest") => EndCondition::Rest,
        Some(value) => reader
            .duration(&value)
            .map_or(EndCondition::LastStep, EndCondition::Time),
    };
    reader.finish(fields);
    Some(Scenario {
        name,
        about,
        pool: Pool {
            settings,
            reconnect_wait: reconnect_wait.unwrap_or(RECONNECT_WAIT),
            agents,
        },
        workspaces,
        jobs,
        steps,
        initial_steps: 0,
        until,
    })
}

fn pool(reader: &mut Reader, value: &Value<'_>) -> Option<(PoolSettings, Option<Duration>)> {
    let mut fields = reader.fields(value)?;
    let mut settings = PoolSettings::default();
    if let Some(value) = fields.take("scheduler") {
        scheduler(reader, &value, &mut settings);
    }
    if let Some(value) = fields.take("reserve_after") {
        settings.reserve_after = if value.text() == Some("never") {
            None
        } else {
            reader.duration(&value)
        };
    }
    if let Some(value) = fields.take("priority_order") {
        let words = [
            ("lower_first", PriorityOrder::LowerFirst),
            ("higher_first", PriorityOrder::HigherFirst),
        ];
        if let Some(order) = reader.choice(&value, &words) {
            settings.priority_order = order;
        }
    }
    if let Some(value) = fields.take("provisionable") {
        settings.provisionable = provisionable(reader, &value);
    }
    let reconnect_wait = fields
        .take("agent_reconnect_wait")
        .and_then(|value| reader.duration(&value));
    reader.finish(fields);
    Some((settings, reconnect_wait))
}

/// The values of `scheduler.type` in `master.yaml`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Priority,
    FairShare,
    RoundRobin,
}

fn scheduler(reader: &mut Reader, value: &Value<'_>, settings: &mut PoolSettings) -> Option<()> {
    let mut fields = reader.fields(value)?;
    let types = [
        ("priority", Type::Priority),
        ("fair_share", Type::FairShare),
        ("round_robin", Type::RoundRobin),
    ];
    let kind = fields
        .take("type")
        .and_then(|value| reader.choice(&value, &types));
    let preemption = fields
        .take("preemption")
        .and_then(|value| reader.flag(&value));
    let default_priority = fields
        .take("default_priority")
        .and_then(|value| reader.integer(&value, 1, 99));
    if let Some(value) = fields.take("fitting_policy") {
        let words = [("best", Fitting::Best), ("worst", Fitting::Worst)];
        if let Some(fitting) = reader.choice(&value, &words) {
            settings.fitting = fitting;
        }
    }
    if let Some(value) = fields.take("allow_heterogeneous_fits") {
        settings.allow_heterogeneous_fits = reader.flag(&value).unwrap_or(false);
    }
    reader.finish(fields);
    // As in `master.yaml`: a block without a type is fair share, unless it has a key that only the priority rule has.
    let kind = kind.unwrap_or(if preemption.is_some() || default_priority.is_some() {
        Type::Priority
    } else {
        Type::FairShare
    });
    settings.policy = match kind {
        Type::Priority => Policy::Priority {
            preemption: preemption.unwrap_or(false),
            default_priority: default_priority
                .and_then(|priority| u8::try_from(priority).ok())
                .unwrap_or(42),
        },
        Type::FairShare => Policy::FairShare,
        Type::RoundRobin => Policy::RoundRobin,
    };
    Some(())
}

fn provisionable(reader: &mut Reader, value: &Value<'_>) -> Option<Provisionable> {
    let mut fields = reader.fields(value)?;
    let mut number = |key| {
        let found = fields.take(key);
        if found.is_none() {
            reader.error(value, format!("\"{key}\" is missing"));
        }
        found.and_then(|value| reader.integer(&value, 0, MOST))
    };
    let slots_per_instance = number("slots_per_instance");
    let max_instances = number("max_instances");
    reader.finish(fields);
    Some(Provisionable {
        slots_per_instance: slots_per_instance?,
        max_instances: max_instances?,
    })
}

fn agents(reader: &mut Reader, value: &Value<'_>) -> Vec<AgentDescription> {
    let mut agents: Vec<AgentDescription> = Vec::new();
    for value in Reader::one_or_many(value) {
        for agent in agent(reader, &value).unwrap_or_default() {
            if agents.iter().any(|known| known.id == agent.id) {
                reader.error(&value, format!("agent \"{}\" is defined twice", agent.id));
            } else {
                agents.push(agent);
            }
        }
    }
    agents
}

/// One agent, or with `count` several equal ones.
fn agent(reader: &mut Reader, value: &Value<'_>) -> Option<Vec<AgentDescription>> {
    let mut fields = reader.fields(value)?;
    let id = fields.take("id").and_then(|value| reader.name(&value));
    if id.is_none() {
        reader.error(value, "an agent needs an \"id\"");
    }
    let mut number = |key, default| match fields.take(key) {
        Some(value) => reader.integer(&value, 0, MOST),
        None => Some(default),
    };
    let slots = number("slots", 1);
    let aux = number("aux", AUX);
    let service = match fields.take("state") {
        Some(value) => reader.choice(
            &value,
            &[
                ("enabled", Service::Enabled),
                ("draining", Service::Draining),
                ("disabled", Service::Disabled),
            ],
        ),
        None => Some(Service::Enabled),
    };
    let count = fields
        .take("count")
        .map(|value| reader.integer(&value, 1, 10_000));
    reader.finish(fields);
    let (id, slots, aux, service) = (id?, slots?, aux?, service?);
    let named = |id| AgentDescription {
        id,
        slots,
        aux,
        service,
    };
    Some(match count {
        None => vec![named(id)],
        Some(count) => (1..=count?)
            .map(|number| named(format!("{id}-{number}")))
            .collect(),
    })
}

fn workspace_settings(reader: &mut Reader, fields: &mut Fields<'_>) -> WorkspaceSettings {
    WorkspaceSettings {
        max_slots: fields
            .take("max_slots")
            .filter(|value| value.text() != Some("none"))
            .and_then(|value| reader.integer(&value, 0, u32::MAX)),
        in_other_pools: fields
            .take("in_other_pools")
            .and_then(|value| reader.integer(&value, 0, u32::MAX))
            .unwrap_or(0),
    }
}

fn job_settings(reader: &mut Reader, fields: &mut Fields<'_>) -> JobSettings {
    JobSettings {
        priority: fields
            .take("priority")
            .and_then(|value| reader.integer(&value, 1, 99))
            .and_then(|priority| u8::try_from(priority).ok()),
        weight: fields
            .take("weight")
            .and_then(|value| reader.above_zero(&value)),
        max_slots: fields.take("max_slots").and_then(|value| {
            if value.text() == Some("none") {
                Some(None)
            } else {
                reader.integer(&value, 0, u32::MAX).map(Some)
            }
        }),
        concurrent: fields
            .take("concurrent")
            .and_then(|value| reader.integer(&value, 1, MOST)),
        workspace: fields
            .take("workspace")
            .and_then(|value| reader.name(&value)),
    }
}

fn step(reader: &mut Reader, value: &Value<'_>) -> Option<Step> {
    let mut fields = reader.fields(value)?;
    let at = fields
        .take("at")
        .and_then(|value| reader.duration(&value))
        .map(StepTime::At);
    let after = fields
        .take("after")
        .and_then(|value| reader.duration(&value))
        .map(StepTime::After);
    if at.is_some() && after.is_some() {
        reader.error(value, "\"at\" and \"after\" cannot both be given");
    }
    let note = fields
        .take("note")
        .and_then(|value| reader.text(&value))
        .unwrap_or_default();
    let expect = fields
        .take("expect")
        .map(|value| expectation(reader, &value))
        .unwrap_or_default();
    let mut operations = named_operations(reader, value, &mut fields);
    let named = !operations.is_empty();
    if let Some(list) = fields.take("do") {
        if named {
            reader.error(
                &list,
                "operations are either keys of the step or entries of \"do\"",
            );
        }
        for value in reader.list(&list) {
            if let Some(mut fields) = reader.fields(&value) {
                operations.extend(named_operations(reader, &value, &mut fields));
                reader.finish(fields);
            }
        }
    }
    reader.finish(fields);
    Some(Step {
        when: at.or(after).unwrap_or(StepTime::Now),
        note,
        operations,
        expect,
        line: value.line(),
    })
}

/// The one operation of a step, or of an entry of `do`.
fn named_operations(
    reader: &mut Reader,
    value: &Value<'_>,
    fields: &mut Fields<'_>,
) -> Vec<Operation> {
    let mut found: Vec<Vec<Operation>> = Vec::new();
    for (key, make) in OPERATIONS {
        if let Some(value) = fields.take(key) {
            found.push(make(reader, &value));
        }
    }
    if found.len() > 1 {
        reader.error(
            value,
            "several operations have no order here; list them below \"do\"",
        );
    }
    found.into_iter().flatten().collect()
}

type Make = fn(&mut Reader, &Value<'_>) -> Vec<Operation>;

const OPERATIONS: [(&str, Make); 19] = [
    ("submit", submissions),
    ("finish", |reader, value| {
        vec![Operation::Finish(reader.names(value))]
    }),
    ("fail", |reader, value| {
        vec![Operation::Fail(reader.names(value))]
    }),
    ("kill", |reader, value| {
        vec![Operation::Kill(reader.names(value))]
    }),
    ("leave", |reader, value| {
        vec![Operation::Leave(reader.names(value))]
    }),
    ("pause", |reader, value| {
        vec![Operation::Pause(reader.names(value))]
    }),
    ("activate", |reader, value| {
        vec![Operation::Activate(reader.names(value))]
    }),
    ("set", set),
    ("limit", limit),
    ("move", moves),
    ("exclude", exclude),
    ("enable", |reader, value| {
        serve(reader, value, Service::Enabled)
    }),
    ("drain", |reader, value| {
        serve(reader, value, Service::Draining)
    }),
    ("disable", |reader, value| {
        serve(reader, value, Service::Disabled)
    }),
    ("lose", |reader, value| {
        vec![Operation::Lose(reader.names(value))]
    }),
    ("return", |reader, value| {
        vec![Operation::Return(reader.names(value))]
    }),
    ("join", |reader, value| {
        vec![Operation::Join(agents(reader, value))]
    }),
    ("remove", |reader, value| {
        vec![Operation::Remove(reader.names(value))]
    }),
    ("restart_master", |reader, value| match reader.flag(value) {
        Some(true) => vec![Operation::RestartMaster],
        _ => Vec::new(),
    }),
];

fn submissions(reader: &mut Reader, value: &Value<'_>) -> Vec<Operation> {
    Reader::one_or_many(value)
        .iter()
        .filter_map(|value| submission(reader, value))
        .map(|submission| Operation::Submit(Box::new(submission)))
        .collect()
}

fn submission(reader: &mut Reader, value: &Value<'_>) -> Option<Submission> {
    let mut fields = reader.fields(value)?;
    let job = fields.take("job").and_then(|value| reader.name(&value));
    if job.is_none() {
        reader.error(value, "a submission needs the name of its \"job\"");
    }
    let settings = job_settings(reader, &mut fields);
    let name = fields.take("name").and_then(|value| reader.name(&value));
    let kinds = TaskKind::ALL.map(|kind| (kind.word(), kind));
    let kind = fields
        .take("kind")
        .and_then(|value| reader.choice(&value, &kinds))
        .unwrap_or(TaskKind::Trial);
    let defaults = KindDefaults::of(kind);
    let mut number = |reader: &mut Reader, key, least, default| {
        let value = fields.take(key);
        value
            .and_then(|value| reader.integer(&value, least, MOST))
            .unwrap_or(default)
    };
    let tasks = number(reader, "tasks", 1, 1);
    let slots = number(reader, "slots", 0, defaults.slots);
    let restarts = number(reader, "restarts", 0, defaults.restarts);
    let mut flag = |reader: &mut Reader, key, default| {
        let value = fields.take(key);
        value
            .and_then(|value| reader.flag(&value))
            .unwrap_or(default)
    };
    let preemptible = flag(reader, "preemptible", defaults.preemptible);
    let single_node = flag(reader, "single_node", defaults.single_node);
    let exclude: BTreeSet<String> = fields
        .take("exclude")
        .map(|value| reader.names(&value).into_iter().collect())
        .unwrap_or_default();
    let duration = fields
        .take("duration")
        .and_then(|value| reader.duration(&value));
    let stops_in = match fields.take("stops_in") {
        None => Some(Duration::ZERO),
        Some(value) if value.text() == Some("never") => None,
        Some(value) => reader.duration(&value),
    };
    let waited = fields
        .take("waited")
        .and_then(|value| reader.duration(&value))
        .unwrap_or_default();
    let job_age = fields
        .take("job_age")
        .and_then(|value| reader.duration(&value));
    let on = fields.take("on").map(|value| starts(reader, &value));
    let stopping = fields
        .take("stopping")
        .and_then(|value| reader.flag(&value))
        .unwrap_or(false);
    reader.finish(fields);
    let is_named = job.is_some();
    let submission = Submission {
        job: job.unwrap_or_default(),
        settings,
        name,
        tasks,
        kind,
        slots,
        preemptible,
        single_node,
        exclude,
        duration,
        stops_in,
        restarts,
        waited,
        job_age,
        on,
        stopping,
    };
    check_submission(reader, value, &submission);
    is_named.then_some(submission)
}

/// Reports what does not fit together in a submission.
fn check_submission(reader: &mut Reader, value: &Value<'_>, submission: &Submission) {
    if submission.stopping && submission.on.is_none() {
        reader.error(
            value,
            "only tasks that run can have been asked to stop: give where they run, \"on\"",
        );
    }
    if submission.name.is_some() && submission.tasks != 1 {
        reader.error(value, "only a single task can have a \"name\" of its own");
    }
    if let Some(Some(max_slots)) = submission.settings.max_slots
        && submission.slots > max_slots
    {
        // Experiments of this kind are refused at submission; others get there only if the cap is changed.
        reader.error(
            value,
            format!(
                "each task needs {}, and max_slots is {max_slots}",
                quantity(submission.slots.into(), "slot")
            ),
        );
    }
}

/// Where tasks already run: agents, or agents with numbers of slots.
fn starts(reader: &mut Reader, value: &Value<'_>) -> Vec<Start> {
    if value.node.members().is_some() {
        return reader
            .members(value)
            .into_iter()
            .filter_map(|(agent, value)| {
                Some(Start {
                    agent: agent.to_owned(),
                    slots: Some(reader.integer(&value, 0, MOST)?),
                })
            })
            .collect();
    }
    let named = |agent| Start { agent, slots: None };
    reader.names(value).into_iter().map(named).collect()
}

fn set(reader: &mut Reader, value: &Value<'_>) -> Vec<Operation> {
    let one = |reader: &mut Reader, value: &Value<'_>| {
        let mut fields = reader.fields(value)?;
        let job = fields.take("job").and_then(|value| reader.name(&value));
        if job.is_none() {
            reader.error(value, "a change needs the name of its \"job\"");
        }
        let settings = job_settings(reader, &mut fields);
        reader.finish(fields);
        if settings == JobSettings::default() {
            reader.error(
                value,
                "changes nothing: give a priority, a weight, max_slots, concurrent or a workspace",
            );
        }
        Some(Operation::Set {
            job: job?,
            settings,
        })
    };
    Reader::one_or_many(value)
        .iter()
        .filter_map(|value| one(reader, value))
        .collect()
}

fn limit(reader: &mut Reader, value: &Value<'_>) -> Vec<Operation> {
    let one = |reader: &mut Reader, value: &Value<'_>| {
        let mut fields = reader.fields(value)?;
        let workspace = fields
            .take("workspace")
            .and_then(|value| reader.name(&value));
        if workspace.is_none() {
            reader.error(value, "a limit needs the name of its \"workspace\"");
        }
        let settings = workspace_settings(reader, &mut fields);
        reader.finish(fields);
        Some(Operation::Limit {
            workspace: workspace?,
            settings,
        })
    };
    Reader::one_or_many(value)
        .iter()
        .filter_map(|value| one(reader, value))
        .collect()
}

fn moves(reader: &mut Reader, value: &Value<'_>) -> Vec<Operation> {
    let one = |reader: &mut Reader, value: &Value<'_>| {
        let mut fields = reader.fields(value)?;
        let mut name = |key| fields.take(key).and_then(|value| reader.name(&value));
        let (job, ahead_of, behind_of) = (name("job"), name("ahead_of"), name("behind_of"));
        reader.finish(fields);
        let (anchor, ahead) = match (ahead_of, behind_of) {
            (Some(anchor), None) => (anchor, true),
            (None, Some(anchor)) => (anchor, false),
            _ => {
                reader.error(value, "needs either \"ahead_of\" or \"behind_of\"");
                return None;
            }
        };
        if job.is_none() {
            reader.error(value, "a move needs the name of its \"job\"");
        }
        Some(Operation::Move {
            job: job?,
            anchor,
            ahead,
        })
    };
    Reader::one_or_many(value)
        .iter()
        .filter_map(|value| one(reader, value))
        .collect()
}

fn exclude(reader: &mut Reader, value: &Value<'_>) -> Vec<Operation> {
    let one = |reader: &mut Reader, value: &Value<'_>| {
        let mut fields = reader.fields(value)?;
        let tasks = fields.take("tasks").map(|value| reader.names(&value));
        let agent = fields.take("agent").and_then(|value| reader.name(&value));
        reader.finish(fields);
        if tasks.is_none() || agent.is_none() {
            reader.error(
                value,
                "needs \"tasks\" and the \"agent\" they are not to run on",
            );
        }
        Some(Operation::Exclude {
            tasks: tasks?,
            agent: agent?,
        })
    };
    Reader::one_or_many(value)
        .iter()
        .filter_map(|value| one(reader, value))
        .collect()
}

/// Agents, or slots as `agent/number`.
fn serve(reader: &mut Reader, value: &Value<'_>, service: Service) -> Vec<Operation> {
    let place = |name: String| match name.rsplit_once('/') {
        Some((agent, slot)) if slot.parse::<u32>().is_ok() => ServiceTarget {
            agent: agent.to_owned(),
            slot: slot.parse().ok(),
        },
        _ => ServiceTarget {
            agent: name,
            slot: None,
        },
    };
    let places = reader.names(value).into_iter().map(place).collect();
    vec![Operation::Serve { places, service }]
}
