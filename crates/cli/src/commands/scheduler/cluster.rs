//! Makes the start of a scenario from a cluster and its queue, as the API returns them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_client::{Client, ClientError, Query, api_path};
use det_config::units::format_duration;
use det_ids::PriorityOrder;
use det_scenario::{
    AgentDescription, EndCondition, JobSettings, KindDefaults, Operation, Pool, Scenario, Service,
    ServiceTarget, Start, Step, StepTime, Submission, WorkspaceSettings,
};
use det_scheduler::{Fitting, Policy, PoolSettings};
use det_taskspec::TaskKind;
use jiff::Timestamp;
use serde_json::Value;

use crate::commands::lookup;
use crate::context::Context;
use crate::error::CliError;
use crate::kinds;
use crate::values::{items, last_part, members, number, text};

/// Jobs in one page of the queue.
const PAGE: u32 = 500;

/// A master's answers about one pool.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The entry of the pool in `GET /api/v1/resource-pools`.
    pub(super) pool: Value,
    /// `GET /api/v1/agents`, of every pool.
    pub(super) agents: Vec<Value>,
    /// `GET /api/v1/job-queues-v2` of the pool, in order.
    pub(super) jobs: Vec<Value>,
    /// `GET /api/v1/tasks`: live allocations of every pool.
    pub(super) allocations: Vec<Value>,
    /// `resources` of the configurations of its experiments, by number.
    pub(super) resources: BTreeMap<String, Value>,
    /// States of its experiments, by number.
    pub(super) states: BTreeMap<String, String>,
    /// The master's configuration; null for those who may not see it.
    pub(super) master: Value,
    /// The workspaces that have a limit of slots, by number: their names, and what they use.
    pub(super) limited: BTreeMap<i64, (String, WorkspaceSettings)>,
}

/// Asks a master about a pool, by default the one for computing.
pub(super) async fn ask(context: &Context, pool: Option<&str>) -> Result<Answers, CliError> {
    let client = context.session().await?.client;
    let none = Query::new();
    let pools = client.get(&api_path(["resource-pools"]), &none).await?;
    let pool = lookup::pool(&pools, pool)?.clone();
    let name = text(&pool, "name");
    let agents = client.get(&api_path(["agents"]), &none).await?;
    let tasks = client.get(&api_path(["tasks"]), &none).await?;
    let jobs = jobs(&client, &name).await?;
    let (mut resources, mut states) = (BTreeMap::new(), BTreeMap::new());
    let seen = jobs.iter().map(|job| &job["full"]);
    for job in seen.filter(|job| !job.is_null()) {
        if kinds::of_job(job)? == TaskKind::Trial {
            let id = text(job, "entityId");
            let answer = client
                .get(&api_path(["experiments", id.as_str()]), &none)
                .await?;
            states.insert(id.clone(), text(&answer["experiment"], "state"));
            resources.insert(id, answer["config"]["resources"].clone());
        }
    }
    let master = match client.get(&api_path(["master", "config"]), &none).await {
        Ok(answer) => answer["config"].clone(),
        Err(ClientError::Forbidden { .. }) => Value::Null,
        Err(error) => return Err(error.into()),
    };
    let limited = limited(&client, &pools, &name).await?;
    Ok(Answers {
        pool,
        limited,
        agents: items(&agents["agents"]).cloned().collect(),
        jobs,
        allocations: members(&tasks["allocationIdToSummary"])
            .map(|(_, allocation)| allocation.clone())
            .collect(),
        resources,
        states,
        master,
    })
}

/// The workspaces that have a limit, with the slots that their jobs have in pools other than this one.
async fn limited(
    client: &Client,
    pools: &Value,
    pool: &str,
) -> Result<BTreeMap<i64, (String, WorkspaceSettings)>, CliError> {
    let answer = client.get(&api_path(["workspaces"]), &Query::new()).await?;
    let mut limited: BTreeMap<i64, (String, WorkspaceSettings)> = items(&answer["workspaces"])
        .filter_map(|workspace| {
            let settings = WorkspaceSettings {
                max_slots: Some(small(&workspace["maxSlots"])?),
                in_other_pools: 0,
            };
            Some((
                workspace["id"].as_i64()?,
                (text(workspace, "name"), settings),
            ))
        })
        .collect();
    if limited.is_empty() {
        return Ok(limited);
    }
    let others = items(&pools["resourcePools"]).map(|other| text(other, "name"));
    for other in others.filter(|other| other != pool) {
        for job in jobs(client, &other).await? {
            let seen = if job["full"].is_null() {
                &job["limited"]
            } else {
                &job["full"]
            };
            let workspace = seen["workspaceId"].as_i64();
            if let Some((_, settings)) = workspace.and_then(|id| limited.get_mut(&id)) {
                let slots: u32 = small(&seen["allocatedSlots"]).unwrap_or_default();
                settings.in_other_pools = settings.in_other_pools.saturating_add(slots);
            }
        }
    }
    Ok(limited)
}

/// The whole queue of a pool.
async fn jobs(client: &Client, pool: &str) -> Result<Vec<Value>, CliError> {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let query = Query::new()
            .with("resourcePool", pool)
            .with("offset", all.len())
            .with("limit", PAGE);
        let answer = client.get(&api_path(["job-queues-v2"]), &query).await?;
        let page: Vec<Value> = items(&answer["jobs"]).cloned().collect();
        let last = page.len() < PAGE as usize;
        all.extend(page);
        if last {
            return Ok(all);
        }
    }
}

/// Assumptions about what a master cannot know of its tasks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guesses {
    /// How long each task runs from now on, or from its start.
    pub(super) duration: Duration,
    /// How long it takes to save and leave when it is asked to stop.
    pub(super) stops_in: Duration,
}

/// Makes a scenario from answers, and notes on what it leaves out or assumes.
pub(super) fn scenario(
    answers: &Answers,
    now: Timestamp,
    guesses: Guesses,
) -> Result<(Scenario, Vec<String>), CliError> {
    let mut notes = vec![format!(
        "each task is taken to run for {} from now on, or from its start (--duration), and for {} more when it is asked \
         to stop (--stops-in)",
        format_duration(guesses.duration),
        format_duration(guesses.stops_in)
    )];
    let name = text(&answers.pool, "name");
    let settings = settings(&answers.pool, &answers.master, &mut notes)?;
    let (agents, slots) = agents(answers, &name);
    let mut world = World {
        answers,
        now,
        guesses,
        agents: agents.iter().map(|agent| agent.id.clone()).collect(),
        taken: BTreeSet::new(),
        operations: Vec::new(),
    };
    let mut order: Vec<(u8, i64, String)> = Vec::new();
    let mut hidden = 0;
    for job in &answers.jobs {
        match &job["full"] {
            Value::Null => hidden += 1,
            full => order.extend(world.job(full)?),
        }
    }
    if hidden > 0 {
        let (jobs, are, their) = match hidden {
            1 => ("1 job".to_owned(), "is", "its"),
            many => (format!("{many} jobs"), "are", "their"),
        };
        notes.push(format!(
            "{jobs} of users whose work you may not see {are} left out, and {their} slots count as free"
        ));
    }
    world.others(&name);
    let mut operations = world.operations;
    if matches!(settings.policy, Policy::Priority { .. }) {
        operations.extend(moves(&order));
    }
    operations.extend(slots);
    let scenario = Scenario {
        name: format!("resource pool {name}"),
        about: String::new(),
        pool: Pool {
            settings,
            reconnect_wait: Duration::from_mins(10),
            agents,
        },
        workspaces: answers.limited.values().cloned().collect(),
        jobs: BTreeMap::new(),
        steps: vec![Step {
            when: StepTime::Now,
            note: "the cluster as it is".to_owned(),
            operations,
            ..Step::default()
        }],
        initial_steps: 1,
        until: EndCondition::Rest,
    };
    Ok((scenario, notes))
}

fn settings(
    pool: &Value,
    master: &Value,
    notes: &mut Vec<String>,
) -> Result<PoolSettings, CliError> {
    let kind = text(pool, "schedulerType");
    let priority = &pool["details"]["priorityScheduler"];
    let policy = match kind.as_str() {
        "SCHEDULER_TYPE_PRIORITY" => Policy::Priority {
            preemption: priority["preemption"] == true,
            default_priority: small(&priority["defaultPriority"]).unwrap_or(42),
        },
        "SCHEDULER_TYPE_FAIR_SHARE" => Policy::FairShare,
        "SCHEDULER_TYPE_ROUND_ROBIN" => Policy::RoundRobin,
        other => {
            return Err(CliError::request(format!(
                "resource pool \"{}\" is served by \"{other}\", which cannot be simulated",
                text(pool, "name")
            )));
        }
    };
    if master.is_null() {
        notes.push(
            "only administrators see whether tasks may span agents of different sizes: taken as not"
                .to_owned(),
        );
    }
    let unknown = |what: &str, word: &str| {
        CliError::request(format!(
            "resource pool \"{}\" has {what} \"{word}\", which cannot be simulated: use the `det` of the master's version",
            text(pool, "name")
        ))
    };
    let priority_order = match text(pool, "priorityOrder").as_str() {
        "" => PriorityOrder::default(),
        order => order
            .parse()
            .map_err(|_| unknown("the order of priorities", order))?,
    };
    Ok(PoolSettings {
        policy,
        priority_order,
        fitting: match text(pool, "schedulerFittingPolicy").as_str() {
            "FITTING_POLICY_WORST" => Fitting::Worst,
            "FITTING_POLICY_BEST" | "FITTING_POLICY_UNSPECIFIED" | "" => Fitting::Best,
            other => return Err(unknown("the fitting policy", other)),
        },
        allow_heterogeneous_fits: scheduler_block(pool, master)["allow_heterogeneous_fits"] == true,
        ..PoolSettings::default()
    })
}

/// The configuration of the scheduler of a pool: its own, else its manager's.
fn scheduler_block<'v>(pool: &Value, master: &'v Value) -> &'v Value {
    let managers = std::iter::once(master).chain(items(&master["additional_resource_managers"]));
    for manager in managers {
        let lists = [
            &manager["resource_pools"],
            &manager["resource_manager"]["resource_pools"],
        ];
        let mut pools = lists.into_iter().flat_map(items);
        if let Some(known) = pools.find(|known| known["pool_name"] == pool["name"]) {
            return match &known["scheduler"] {
                Value::Null => &manager["resource_manager"]["scheduler"],
                own => own,
            };
        }
    }
    &master["resource_manager"]["scheduler"]
}

/// The agents of a pool, and the operations that set the state of single slots.
fn agents(answers: &Answers, pool: &str) -> (Vec<AgentDescription>, Vec<Operation>) {
    let aux = small(&answers.pool["auxContainerCapacityPerAgent"]).unwrap_or(100);
    let mut agents = Vec::new();
    let mut operations = Vec::new();
    let here = |agent: &&Value| items(&agent["resourcePools"]).any(|name| name == pool);
    for agent in answers.agents.iter().filter(here) {
        let id = last_part(&text(agent, "id")).to_owned();
        let mut slots: Vec<(u32, &Value)> = members(&agent["slots"])
            .filter_map(|(key, slot)| Some((last_part(key).parse().ok()?, slot)))
            .collect();
        slots.sort_unstable_by_key(|(number, _)| *number);
        let service = service_of(agent);
        for (place, (_, slot)) in (0..).zip(&slots) {
            let own = service_of(slot);
            if service == Service::Enabled && own != Service::Enabled {
                // A container on a slot that is out of service is about to end, and may do so.
                let held = !slot["container"].is_null();
                operations.push(Operation::Serve {
                    places: vec![ServiceTarget {
                        agent: id.clone(),
                        slot: Some(place),
                    }],
                    service: if held { Service::Draining } else { own },
                });
            }
        }
        agents.push(AgentDescription {
            id,
            slots: u32::try_from(slots.len()).unwrap_or(u32::MAX),
            aux,
            service,
        });
    }
    (agents, operations)
}

fn service_of(place: &Value) -> Service {
    if place["draining"] == true {
        Service::Draining
    } else if place["enabled"] == true {
        Service::Enabled
    } else {
        Service::Disabled
    }
}

/// The operations that are made from the answers, job by job.
struct World<'a> {
    answers: &'a Answers,
    now: Timestamp,
    guesses: Guesses,
    agents: BTreeSet<String>,
    /// Allocations that belong to a job of the queue.
    taken: BTreeSet<String>,
    operations: Vec<Operation>,
}

impl World<'_> {
    /// Adds the tasks of a job; returns the key of its position in the queue, if it has tasks. Errs for a job of an unknown
    /// kind.
    fn job(&mut self, job: &Value) -> Result<Option<(u8, i64, String)>, CliError> {
        let name = text(job, "entityId");
        let pool = text(job, "resourcePool");
        let mut own: Vec<&Value> = self
            .answers
            .allocations
            .iter()
            .filter(|allocation| {
                allocation["resourcePool"] == pool.as_str() && allocation["jobId"] == job["jobId"]
            })
            .collect();
        own.sort_by_key(|allocation| text(allocation, "registeredTime"));
        let (kind, resources) = (kinds::of_job(job)?, self.answers.resources.get(&name));
        let defaults = KindDefaults::of(kind);
        let resources = resources.unwrap_or(&Value::Null);
        let submitted = text(job, "submissionTime");
        let settings = JobSettings {
            priority: small(&job["priority"]).filter(|priority| (1..=99).contains(priority)),
            weight: number(&job["weight"]).filter(|weight| weight.is_finite() && *weight > 0.0),
            max_slots: small(&resources["max_slots"]).map(Some),
            concurrent: None,
            workspace: job["workspaceId"]
                .as_i64()
                .and_then(|id| self.answers.limited.get(&id))
                .map(|(name, _)| name.clone()),
        };
        let single_node = match &resources["is_single_node"] {
            Value::Bool(single) => *single,
            _ => defaults.single_node,
        };
        for (number, allocation) in own.iter().enumerate() {
            self.taken.insert(text(allocation, "allocationId"));
            let new = number == 0;
            let operation = self.submission(
                allocation,
                Submission {
                    job: name.clone(),
                    settings: if new {
                        settings.clone()
                    } else {
                        JobSettings::default()
                    },
                    name: None,
                    tasks: 1,
                    kind,
                    slots: 0,
                    preemptible: job["isPreemptible"] == true || defaults.preemptible,
                    single_node,
                    exclude: BTreeSet::new(),
                    duration: Some(self.guesses.duration),
                    stops_in: Some(self.guesses.stops_in),
                    restarts: defaults.restarts,
                    waited: Duration::ZERO,
                    job_age: new.then(|| self.since(&submitted)),
                    on: None,
                    stopping: false,
                },
            );
            self.operations.push(operation);
        }
        if self.state(&name) == "STATE_PAUSED" && !own.is_empty() {
            self.operations.push(Operation::Pause(vec![name.clone()]));
        }
        let age = i64::try_from(self.since(&submitted).as_micros()).unwrap_or(i64::MAX);
        Ok((!own.is_empty()).then(|| (settings.priority.unwrap_or(42), -age, name)))
    }

    /// Adds the allocations of no job, such as those that delete checkpoints, which hold slots or places too.
    fn others(&mut self, pool: &str) {
        for allocation in &self.answers.allocations {
            let id = text(allocation, "allocationId");
            if allocation["resourcePool"] != pool || self.taken.contains(&id) {
                continue;
            }
            let kind = TaskKind::CheckpointGc;
            let submission = Submission {
                job: text(allocation, "taskId"),
                settings: JobSettings::default(),
                name: None,
                tasks: 1,
                kind,
                slots: 0,
                preemptible: false,
                single_node: KindDefaults::of(kind).single_node,
                exclude: BTreeSet::new(),
                duration: Some(self.guesses.duration),
                stops_in: Some(self.guesses.stops_in),
                restarts: 0,
                waited: Duration::ZERO,
                job_age: None,
                on: None,
                stopping: false,
            };
            let operation = self.submission(allocation, submission);
            self.operations.push(operation);
        }
    }

    /// A submission like its job's, with the slots and the age of an allocation.
    fn submission(&self, allocation: &Value, like: Submission) -> Operation {
        let slots = small(&allocation["slotsNeeded"]).unwrap_or(0);
        let mut on: BTreeMap<String, u32> = BTreeMap::new();
        for resources in items(&allocation["resources"]) {
            for (agent, part) in members(&resources["agentDevices"]) {
                let devices = items(&part["devices"]).count();
                let held = on.entry(last_part(agent).to_owned()).or_default();
                *held += u32::try_from(devices).unwrap_or(u32::MAX);
            }
        }
        on.retain(|agent, _| self.agents.contains(agent));
        let starts = on.into_iter().map(|(agent, held)| Start {
            agent,
            slots: Some(held.min(slots)),
        });
        let starts: Vec<Start> = starts.collect();
        // A task whose first containers have exited holds less than it asked for.
        let held: u32 = starts.iter().filter_map(|start| start.slots).sum();
        let waits = starts.is_empty();
        let stopping = !waits && allocation["isStopping"] == true;
        // A task that ends for good when it has stopped is not queued again.
        let ends =
            stopping && (!like.preemptible || self.state(&like.job).starts_with("STATE_STOPPING_"));
        Operation::Submit(Box::new(Submission {
            slots: if waits { slots } else { held },
            duration: if ends { like.stops_in } else { like.duration },
            stopping: stopping && !ends,
            // How long it waited before it started is not known here, and no longer matters.
            waited: if waits {
                self.since(&text(allocation, "registeredTime"))
            } else {
                Duration::ZERO
            },
            on: (!waits).then_some(starts),
            ..like
        }))
    }

    /// The state of an experiment; empty if the name is not of one.
    fn state(&self, name: &str) -> &str {
        self.answers.states.get(name).map_or("", String::as_str)
    }

    /// The time since a moment of the cluster; zero for moments in the future.
    fn since(&self, time: &str) -> Duration {
        let Ok(time) = time.parse::<Timestamp>() else {
            return Duration::ZERO;
        };
        Duration::try_from(self.now.duration_since(time)).unwrap_or_default()
    }
}

/// Moves that put jobs into the order of the queue. `order` has each job's priority, negative age and name, in that order.
fn moves(order: &[(u8, i64, String)]) -> Vec<Operation> {
    let mut found = Vec::new();
    for class in order.chunk_by(|a, b| a.0 == b.0) {
        let mut sorted = class.to_vec();
        sorted.sort_by_key(|(_, age, _)| *age);
        if sorted == class {
            continue;
        }
        // Each is moved behind the one before it: at the end they are in the order listed.
        for pair in class.windows(2) {
            found.push(Operation::Move {
                job: pair[1].2.clone(),
                anchor: pair[0].2.clone(),
                ahead: false,
            });
        }
    }
    found
}

/// A number that is not negative and fits `T`, also where the wire writes it as text.
fn small<T: TryFrom<u64>>(value: &Value) -> Option<T> {
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    T::try_from(number?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HOUR: Guesses = Guesses {
        duration: Duration::from_hours(1),
        stops_in: Duration::ZERO,
    };

    fn now() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    fn answers() -> Answers {
        let slot = |enabled: bool, draining: bool, held: bool| {
            let container = if held {
                json!({"id": "c"})
            } else {
                Value::Null
            };
            json!({"enabled": enabled, "draining": draining, "container": container})
        };
        let job = |id: &str, kind: &str, time: &str, priority: u8| {
            json!({"full": {"jobId": format!("job-{id}"), "entityId": id, "type": kind, "submissionTime": time, "resourcePool": "p",
                            "isPreemptible": kind == "TYPE_EXPERIMENT", "priority": priority, "weight": 2.0}})
        };
        let allocation = |task: &str, time: &str, slots: u32, resources: Value| {
            let (job, _) = task.split_once('.').unwrap_or((task, ""));
            json!({"taskId": task, "allocationId": format!("{task}.1"), "jobId": format!("job-{job}"),
                   "registeredTime": time, "resourcePool": "p", "slotsNeeded": slots, "resources": resources})
        };
        Answers {
            limited: BTreeMap::new(),
            pool: json!({"name": "p", "schedulerType": "SCHEDULER_TYPE_PRIORITY",
                         "schedulerFittingPolicy": "FITTING_POLICY_WORST", "auxContainerCapacityPerAgent": 3,
                         "details": {"priorityScheduler": {"preemption": true, "defaultPriority": 50}}}),
            agents: vec![
                json!({"id": "/agents/a", "resourcePools": ["p"], "enabled": true, "draining": false,
                       "slots": {"0": slot(true, false, true), "1": slot(false, false, false),
                                 "10": slot(false, true, true), "2": slot(true, false, false)}}),
                json!({"id": "b", "resourcePools": ["p"], "enabled": true, "draining": true, "slots": {}}),
                json!({"id": "c", "resourcePools": ["p"], "enabled": false, "draining": false, "slots": {}}),
                json!({"id": "d", "resourcePools": ["q"], "enabled": true, "draining": false, "slots": {}}),
            ],
            jobs: vec![
                job("nb", "TYPE_NOTEBOOK", "2026-11-21T11:30:00Z", 10),
                // Moved ahead of the one that was submitted before it.
                job("12", "TYPE_EXPERIMENT", "2026-11-21T11:00:00Z", 42),
                job("1", "TYPE_EXPERIMENT", "2026-11-21T10:00:00Z", 42),
                json!({"limited": {"jobId": "hidden"}}),
            ],
            allocations: vec![
                allocation("12.b", "2026-11-21T11:20:00Z", 2, json!([])),
                allocation(
                    "12.a",
                    "2026-11-21T11:10:00Z",
                    1,
                    json!([{"agentDevices": {"/agents/a": {"devices": [{}]}}}]),
                ),
                allocation("1.x", "2026-11-21T10:00:00Z", 4, json!([])),
                allocation("nb", "2026-11-21T11:30:00Z", 1, json!([])),
                allocation(
                    "gc",
                    "2026-11-21T11:59:00Z",
                    0,
                    json!([{"agentDevices": {"a": {}}}]),
                ),
            ],
            resources: BTreeMap::from([
                (
                    "12".to_owned(),
                    json!({"max_slots": 8, "is_single_node": true}),
                ),
                ("1".to_owned(), json!({})),
            ]),
            states: BTreeMap::new(),
            master: json!({
                "resource_manager": {"scheduler": {"allow_heterogeneous_fits": false}},
                "resource_pools": [{"pool_name": "p", "scheduler": {"allow_heterogeneous_fits": true}}],
            }),
        }
    }

    fn submissions(scenario: &Scenario) -> Vec<&Submission> {
        scenario.steps[0]
            .operations
            .iter()
            .filter_map(|operation| match operation {
                Operation::Submit(submission) => Some(&**submission),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_pool_keeps_its_settings_agents_and_slots() {
        let (scenario, notes) = scenario(&answers(), now(), HOUR).unwrap();
        let settings = &scenario.pool.settings;
        assert_eq!(
            settings.policy,
            Policy::Priority {
                preemption: true,
                default_priority: 50
            }
        );
        assert_eq!(settings.fitting, Fitting::Worst);
        assert!(settings.allow_heterogeneous_fits);
        let agents: Vec<(&str, u32, u32, Service)> = scenario
            .pool
            .agents
            .iter()
            .map(|agent| (agent.id.as_str(), agent.slots, agent.aux, agent.service))
            .collect();
        assert_eq!(
            agents,
            [
                ("a", 4, 3, Service::Enabled),
                ("b", 0, 3, Service::Draining),
                ("c", 0, 3, Service::Disabled),
            ]
        );
        let served: Vec<(Option<u32>, Service)> = scenario.steps[0]
            .operations
            .iter()
            .filter_map(|operation| match operation {
                Operation::Serve { places, service } => Some((places[0].slot, *service)),
                _ => None,
            })
            .collect();
        // The slots in order of their numbers: 0, 1, 2, 10.
        assert_eq!(
            served,
            [(Some(1), Service::Disabled), (Some(3), Service::Draining)]
        );
        assert!(
            notes
                .iter()
                .any(|note| note.contains("1 job of users whose work you may not see is left out")),
            "{notes:?}"
        );
    }

    #[test]
    fn jobs_keep_their_tasks_settings_and_ages() {
        let (scenario, _) = scenario(&answers(), now(), HOUR).unwrap();
        let found = submissions(&scenario);
        let shown: Vec<(&str, u32, TaskKind, Option<&str>, u64)> = found
            .iter()
            .map(|submission| {
                let on = submission.on.as_ref().map(|on| on[0].agent.as_str());
                let waited = submission.waited.as_secs() / 60;
                (
                    submission.job.as_str(),
                    submission.slots,
                    submission.kind,
                    on,
                    waited,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("nb", 1, TaskKind::Notebook, None, 30),
                ("12", 1, TaskKind::Trial, Some("a"), 0),
                ("12", 2, TaskKind::Trial, None, 40),
                ("1", 4, TaskKind::Trial, None, 120),
                ("gc", 0, TaskKind::CheckpointGc, Some("a"), 0),
            ]
        );
        assert_eq!(found[1].settings.max_slots, Some(Some(8)));
        assert_eq!(found[1].settings.weight, Some(2.0));
        assert_eq!(found[1].job_age, Some(HOUR.duration));
        assert_eq!(found[2].settings, JobSettings::default());
        assert!(found[1].single_node && !found[3].single_node);
        assert!(found[1].preemptible && !found[0].preemptible);
    }

    #[test]
    fn what_was_asked_to_stop_holds_its_slots_until_it_has() {
        let mut answers = answers();
        for allocation in &mut answers.allocations {
            allocation["isStopping"] = json!(true);
        }
        let shown = |answers: &Answers| -> Vec<(String, bool, Option<Duration>)> {
            let (scenario, _) = scenario(answers, now(), HOUR).unwrap();
            let found = submissions(&scenario);
            let running = found.iter().filter(|submission| submission.on.is_some());
            running
                .map(|s| (s.job.clone(), s.stopping, s.duration))
                .collect()
        };
        assert_eq!(
            shown(&answers),
            [
                ("12".to_owned(), true, Some(HOUR.duration)),
                ("gc".to_owned(), false, Some(HOUR.stops_in)),
            ]
        );
        answers
            .states
            .insert("12".to_owned(), "STATE_STOPPING_CANCELED".to_owned());
        assert_eq!(
            shown(&answers)[0],
            ("12".to_owned(), false, Some(HOUR.stops_in))
        );
        answers
            .states
            .insert("12".to_owned(), "STATE_PAUSED".to_owned());
        let (paused, _) = scenario(&answers, now(), HOUR).unwrap();
        let pause = Operation::Pause(vec!["12".to_owned()]);
        assert!(paused.steps[0].operations.contains(&pause));
    }

    #[test]
    fn a_job_that_was_moved_has_its_new_position() {
        let (scenario, _) = scenario(&answers(), now(), HOUR).unwrap();
        let options = det_scenario::Options {
            detail: det_scenario::Detail::Everything,
            ..det_scenario::Options::default()
        };
        let report = det_scenario::play(&scenario, options).unwrap();
        let queue: Vec<&str> = report.moments[0]
            .queue
            .iter()
            .flatten()
            .map(|entry| entry.job.as_str())
            .collect();
        assert_eq!(queue[..3], ["nb", "12", "1"]);
    }

    #[test]
    fn a_job_of_an_unknown_kind_is_refused_and_not_taken_for_an_experiment() {
        let mut answers = answers();
        answers.jobs[0]["full"]["type"] = json!("TYPE_AGENT");
        let error = scenario(&answers, now(), HOUR).unwrap_err();
        assert!(error.to_string().contains("TYPE_AGENT"), "{error}");
    }

    #[test]
    fn pools_of_other_schedulers_are_refused_by_name() {
        let mut answers = answers();
        answers.pool["schedulerType"] = json!("SCHEDULER_TYPE_KUBERNETES");
        let refused = scenario(&answers, now(), HOUR).unwrap_err();
        assert!(refused.to_string().contains("KUBERNETES"), "{refused}");
    }
}
