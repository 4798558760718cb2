//! Looks at the cluster: what has changed since the last look, or everything.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::TaskId;
use det_invariants::{
    Allocation, Checkpoint, Container, Event, Experiment, Place, Process, Report, ReportContent,
    Search, Snapshot, Task as Facts, Trial, Violation, Watch, check,
};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::record::Subject;
use det_orchestrator::Task;
use det_searcher::TrialState as SearchTrial;

use super::World;
use super::code::Code;
use super::host::AgentHost;
use super::process::Master;
use super::scene::Scene;
use crate::master::{PATIENCE, PlannerAnswer, core, replay};
use crate::rows::{self, Rows, SECOND, Time};

/// Events after which everything is looked at, and not only what changed.
const WHOLE_EVERY: u64 = 512;
/// The same, in simulated time.
const WHOLE_WITHIN: Time = 300 * SECOND;
/// How late a service that nothing uses may be ended.
const IDLE_SLACK: Time = 5 * SECOND;

/// What was looked at, and what must still exist at the end.
#[derive(Default)]
pub(super) struct Checks {
    /// Reports that the master has acknowledged, in the order of its answers.
    acknowledged: Vec<Report>,
    /// Those of them that were not checked yet.
    fresh: Vec<Report>,
    watch: Watch,
    /// The version of the rows that was checked last.
    checked: u64,
    /// When everything was looked at last.
    whole_at: Time,
}

impl Checks {
    /// Keeps a report that the master has acknowledged; `None` = there is nothing to keep.
    pub(super) fn acknowledge(&mut self, report: Option<Report>) {
        self.fresh.extend(report);
    }

    /// Whether to look now, and then (`true`) at everything.
    pub(super) fn is_due(&mut self, scene: &Scene, version: u64) -> Option<bool> {
        let whole = scene.counts.events.is_multiple_of(WHOLE_EVERY)
            || scene.now >= self.whole_at + WHOLE_WITHIN;
        if whole {
            self.whole_at = scene.now;
        }
        (whole || self.checked != version || !self.fresh.is_empty()).then_some(whole)
    }

    /// What must be stored (all that was acknowledged, or what is new of it), and what of it is.
    fn reports(&self, rows: &Rows, whole: bool) -> (Vec<Report>, Vec<Report>) {
        if whole {
            let mut all = self.acknowledged.clone();
            all.extend(self.fresh.iter().cloned());
            all.retain(|r| rows.trials.contains_key(&r.trial_id));
            return (all, all_stored(rows));
        }
        let stored = self.fresh.iter().filter(|report| is_stored(rows, report));
        (self.fresh.clone(), stored.cloned().collect())
    }
}

/// The rows that a snapshot shows.
struct Subjects<'a> {
    experiments: Vec<&'a rows::Experiment>,
    trials: Vec<&'a rows::Trial>,
    allocations: Vec<&'a rows::Allocation>,
    tasks: Vec<&'a Task>,
}

impl<'a> Subjects<'a> {
    /// All rows, or those that live or were changed since the last snapshot.
    fn of(rows: &'a Rows, whole: bool) -> Self {
        if whole {
            return Self {
                experiments: rows.experiments.values().collect(),
                trials: rows.trials.values().collect(),
                allocations: rows.allocations.values().collect(),
                tasks: rows.tasks.values().collect(),
            };
        }
        let (live, touched) = (&rows.live, &rows.touched);
        let experiments = touched.experiments.iter();
        let trials = live.trials.union(&touched.trials);
        let allocations = live.allocations.union(&touched.allocations);
        let tasks = touched.tasks.iter();
        Self {
            tasks: tasks.filter_map(|id| rows.tasks.get(id)).collect(),
            experiments: experiments
                .filter_map(|id| rows.experiments.get(id))
                .collect(),
            trials: trials.filter_map(|id| rows.trials.get(id)).collect(),
            allocations: allocations
                .filter_map(|id| rows.allocations.get(id))
                .collect(),
        }
    }

    /// Each as events name it.
    fn named(&self) -> BTreeSet<Subject> {
        let experiments = self.experiments.iter();
        let trials = self.trials.iter();
        let allocations = self.allocations.iter();
        experiments
            .map(|e| Subject::Experiment(e.row.id))
            .chain(trials.map(|t| Subject::Trial(t.row.id)))
            .chain(allocations.map(|a| Subject::Allocation(a.row.id.clone())))
            .collect()
    }
}

impl World {
    /// Holds the invariants against what changed, or (`whole`) against everything.
    pub(super) fn check(&mut self, whole: bool) {
        self.checks.checked = self.master.rows().version;
        self.scene.counts.checks += 1;
        let quiescent = self.is_quiescent();
        self.scene.counts.quiescent += u64::from(quiescent);
        let planned = quiescent.then(|| {
            let rows = self.master.rows();
            PlannerAnswer::of(core(None), rows, self.history.rule, self.scene.now)
        });
        let snapshot = self.snapshot(whole, planned.as_ref());
        let mut found = check(&snapshot);
        found.extend(self.checks.watch.observe(&snapshot));
        found.extend(planned.as_ref().and_then(idle_although));
        found.extend(waits_too_long(&self.master, self.scene.now));
        found.extend(idle_too_long(&self.master, &self.code, self.scene.now));
        let fresh = std::mem::take(&mut self.checks.fresh);
        self.checks.acknowledged.extend(fresh);
        self.master.store.refusals.clear();
        self.master.store.rows.touched = rows::TouchedRows::default();
        if let Some(first) = found.into_iter().next() {
            self.scene.violated(first);
        }
    }

    /// Whether nothing is under way between rows, memory and agents.
    fn is_quiescent(&self) -> bool {
        let now = self.scene.now;
        self.master.is_quiescent(now)
            && self.network.is_quiescent(now)
            && self.hosts.iter().all(AgentHost::is_quiescent)
    }

    /// `planned` = what the planner returns just now, when nothing is under way.
    fn snapshot(&mut self, whole: bool, planned: Option<&PlannerAnswer>) -> Snapshot {
        let processes = if whole {
            self.process_facts()
        } else {
            Vec::new()
        };
        let rows = self.master.rows();
        let subjects = Subjects::of(rows, whole);
        let named = subjects.named();
        let Subjects {
            experiments,
            trials,
            allocations,
            tasks,
        } = subjects;
        let reasons = planned.map(PlannerAnswer::reasons);
        let containers = allocations
            .iter()
            .flat_map(|a| rows.members(&a.row.id))
            .chain(
                rows.live
                    .containers
                    .iter()
                    .filter_map(|id| rows.containers.get(id))
                    .filter(|c| !rows.allocations.contains_key(&c.row.allocation_id)),
            )
            .map(container)
            .collect();
        let events = named.iter().flat_map(|s| events_of(rows, s)).collect();
        let (acknowledged, stored) = self.checks.reports(rows, whole);
        Snapshot {
            experiments: experiments.into_iter().map(experiment).collect(),
            trials: trials.into_iter().map(trial).collect(),
            tasks: tasks.into_iter().map(|it| task(rows, it)).collect(),
            allocations: allocations
                .into_iter()
                .map(|a| {
                    let reason = reasons.as_ref().and_then(|r| r.get(&a.row.id).cloned());
                    allocation(a, reason)
                })
                .collect(),
            containers,
            places: self.place_facts(),
            checkpoints: if whole {
                checkpoints(rows, &self.code)
            } else {
                Vec::new()
            },
            searches: if whole {
                searches(&self.master)
            } else {
                Vec::new()
            },
            events: Some(events),
            acknowledged,
            stored,
            processes,
            refusals: self.master.store.refusals.clone(),
            quiescent: planned.is_some(),
        }
    }

    fn place_facts(&self) -> Vec<Place> {
        let connections = self.master.memory.as_ref().map(|m| &m.connections);
        let rows = self.master.rows().agents.values();
        rows.map(|row| {
            let host = self.hosts.iter().find(|h| h.id == row.id);
            Place {
                id: row.id.clone(),
                slots: row.slots().collect(),
                connected: row.is_connected(),
                connection: connections.map(|known| known.contains_key(&row.id)),
                holds: host.map(|h| h.records.keys().cloned().collect()),
            }
        })
        .collect()
    }

    /// How long each process has been unwanted, while its agent could know of it.
    fn process_facts(&mut self) -> Vec<Process> {
        let mut facts = Vec::new();
        let now = self.scene.now;
        let reachable = self.master.memory.is_some() && !self.master.store.is_away(now);
        let live = &self.master.rows().live.containers;
        for (id, process) in self.code.alive() {
            let host = &self.hosts[process.agent];
            let reachable =
                reachable && host.is_connected() && !self.network.is_cut(now, process.agent);
            process.unwanted_since = match (live.contains(id), reachable) {
                (true, _) | (false, false) => None,
                (false, true) => process.unwanted_since.or(Some(now)),
            };
            facts.push(Process {
                place_id: host.id.clone(),
                container_id: id.clone(),
                unwanted_micros: process.unwanted_since.map_or(0, |since| now - since),
            });
        }
        facts
    }
}

/// An agent that stays away is given up in time, if the master could do so.
fn waits_too_long(master: &Master, now: Time) -> Option<Violation> {
    let memory = master.memory.as_ref().filter(|_| master.is_quiet(now))?;
    let mut agents = master.rows().agents.values();
    let unnoticed = |a: &&rows::Agent| a.is_connected() && !memory.connections.contains_key(&a.id);
    if let Some(agent) = agents.clone().find(unnoticed) {
        return Some(Violation {
            number: 8,
            what: format!(
                "agent {} is not connected, and its row does not know it",
                agent.id
            ),
        });
    }
    let late = |a: &&rows::Agent| {
        a.row
            .disconnected_at
            .is_some_and(|since| since.0 + PATIENCE + SECOND < now)
    };
    let agent = agents.find(late)?;
    Some(Violation {
        number: 4,
        what: format!(
            "agent {} has been away since {:?} and is still waited for",
            agent.id, agent.row.disconnected_at
        ),
    })
}

fn events_of(rows: &Rows, subject: &Subject) -> Vec<Event> {
    let Some((to, happened)) = rows.recorded.get(subject) else {
        return Vec::new();
    };
    happened
        .iter()
        .map(|kind| Event {
            subject: subject.clone(),
            kind: *kind,
            to: to.clone(),
        })
        .collect()
}

fn is_stored(rows: &Rows, report: &Report) -> bool {
    // An experiment may be deleted between the change and its answer.
    if !rows.trials.contains_key(&report.trial_id) {
        return true;
    }
    match &report.what {
        ReportContent::Metric { step, .. } => rows
            .steps
            .get(&(report.trial_id, report.run_id))
            .is_some_and(|steps| steps.contains(step)),
        ReportContent::Checkpoint { uuid } => rows.checkpoints.contains_key(uuid),
        ReportContent::Control { .. } => true,
        ReportContent::Line { spool, sequence } => {
            rows.spools.get(spool).is_some_and(|next| next > sequence)
        }
    }
}

fn all_stored(rows: &Rows) -> Vec<Report> {
    let report = |trial_id, run_id, what| Report {
        trial_id,
        run_id,
        newest_run: run_id,
        what,
    };
    let metrics = rows.metrics.iter().map(|m| {
        let what = ReportContent::Metric {
            step: m.step,
            value: m.value,
        };
        report(m.trial_id, m.run_id, what)
    });
    let checkpoints = rows.checkpoints.values().map(|c| {
        let uuid = c.uuid.clone();
        report(c.trial_id, c.run_id, ReportContent::Checkpoint { uuid })
    });
    let lines = rows.lines.iter().map(|l| {
        let what = ReportContent::Line {
            spool: l.spool.clone(),
            sequence: l.sequence,
        };
        report(l.trial_id, l.run_id, what)
    });
    metrics.chain(checkpoints).chain(lines).collect()
}

fn checkpoints(rows: &Rows, code: &Code) -> Vec<Checkpoint> {
    rows.checkpoints
        .values()
        .map(|row| Checkpoint {
            uuid: row.uuid.clone(),
            trial_id: Some(row.trial_id),
            complete: true,
            manifest: row.files.clone(),
            files: Some(code.files(&row.uuid)),
        })
        .collect()
}

fn searches(master: &Master) -> Vec<Search> {
    let rows = master.rows();
    let mut all = Vec::new();
    for (id, stored) in &rows.searches {
        let Some(experiment) = rows.experiments.get(id) else {
            continue;
        };
        // What cannot be replayed differs from everything.
        let (replayed, asked_for) = match replay(&experiment.submission, stored) {
            Ok(state) => {
                let trials = state.search.trials().map(|(name, state)| {
                    let ended = matches!(state, SearchTrial::Ended(_));
                    (name.clone(), ended)
                });
                (state.search.snapshot().to_string(), trials.collect())
            }
            Err(error) => (error, BTreeMap::new()),
        };
        let loaded = master.memory.as_ref().and_then(|m| m.searches.get(id));
        all.push(Search {
            experiment_id: *id,
            remembered: loaded.map(|l| l.search.snapshot().to_string()),
            replayed,
            asked_for,
        });
    }
    all
}

/// When nothing is under way the planner has nothing left to decide.
fn idle_although(planned: &PlannerAnswer) -> Option<Violation> {
    let plan = &planned.plan;
    let idle = plan.placements.is_empty() && plan.preempt.is_empty();
    (!idle).then(|| Violation {
        number: 4,
        what: format!(
            "nothing is under way although the planner would place {:?} and preempt {:?}",
            plan.placements, plan.preempt
        ),
    })
}

fn experiment(of: &rows::Experiment) -> Experiment {
    let row = &of.row;
    Experiment {
        id: row.id,
        state: row.state,
        ended: row.ended_at.is_some(),
        trial_count: row.trial_count,
        unmanaged: row.unmanaged,
    }
}

fn trial(of: &rows::Trial) -> Trial {
    let row = &of.row;
    Trial {
        id: row.id,
        experiment_id: row.experiment_id,
        request_id: row.request_id.clone(),
        task_id: row.task_id.clone(),
        run_id: row.run_id,
        restarts: row.restarts.into(),
        state: row.state,
        ended: row.ended_at.is_some(),
        latest_checkpoint: of.latest_checkpoint.as_ref().map(|(uuid, _)| uuid.clone()),
        unmanaged: row.unmanaged,
    }
}

fn allocation(of: &rows::Allocation, true_reason: Option<String>) -> Allocation {
    let row = &of.row;
    Allocation {
        id: row.id.clone(),
        task_id: row.task_id.clone(),
        trial_id: row.trial_id,
        run_id: row.run_id,
        slots: row.slots.into(),
        state: row.state.clone(),
        preemptible: row.preemptible,
        asked: row.preempt_deadline.is_some() || row.preempted_for.is_some(),
        port_step: row.port_step,
        service_port: row.service_port,
        placed: row.placed_at.is_some(),
        ended: row.ended_at.is_some(),
        wait_reason: (row.wait_reason.as_ref()).map(|reason| reason.message.clone()),
        true_reason,
    }
}

fn container(of: &rows::Container) -> Container {
    let row = &of.row;
    Container {
        id: row.id.clone(),
        allocation_id: row.allocation_id.clone(),
        place_id: row.place.clone(),
        slots: of.slots.iter().copied().collect(),
        ended: row.ended_at.is_some(),
    }
}

fn task(rows: &Rows, of: &Task) -> Facts {
    let launched = rows.launched.get(&of.id);
    Facts {
        id: of.id.clone(),
        state: of.state,
        parent: launched.and_then(|launched| launched.parent.clone()),
        policy: of.policy(),
        losses: of.losses,
        ended: of.ended_at.is_some(),
        started_attempts: launched.map(|launched| launched.started),
    }
}

/// A service that nothing uses is ended in time, if the master can, and none before its time.
fn idle_too_long(master: &Master, code: &Code, now: Time) -> Option<Violation> {
    let rows = master.rows();
    master.memory.as_ref().filter(|_| master.is_quiet(now))?;
    let live = rows.live.allocations.iter();
    let live = live.filter_map(|id| Some(&rows.allocations.get(id)?.row));
    let mut ready = live.filter(|row| row.state == AllocationState::Ready);
    let late = |task: &TaskId| {
        let timeout = rows.launched.get(task)?.launch.idle_timeout?;
        let since = code.last_use(task)?.max(master.work.started_at);
        (since + Time::from(timeout) * SECOND + IDLE_SLACK < now).then_some(since)
    };
    let (row, since) = ready.find_map(|row| Some((row, late(&row.task_id)?)))?;
    Some(Violation {
        number: 4,
        what: format!(
            "the service of task {} has not been used since {since}, and it still runs",
            row.task_id
        ),
    })
}
