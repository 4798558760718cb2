//! The job queue as it is now: which jobs hold or want slots, in which order they are served.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use det_config::errors::ConfigErrors;
use det_config::submitted::{Placement, SLOTS_OF_TASK, SLOTS_OF_TRIAL, WorkSize};
use det_ids::{AllocationId, JobId, PriorityOrder, TaskId};
use det_lifecycle::object::ObjectKind;
use det_scheduler::{Policy, Side};
use det_store::allocations::{self, AllocationRow, TaskRow};
use det_store::experiments::{self, ExperimentHead, JobKind, JobRow};
use det_store::{Store, task_documents};
use det_taskspec::TaskKind;

use crate::app::admission::{Admission, Findings};
use crate::app::backfill::HeldUp;
use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::documents::document_error;
use crate::app::homes::KnownHomes;
use crate::app::job_changes::JobChanges;
use crate::app::ownership::Ownership;
use crate::app::pools::Pools;
use crate::app::queue_entry::{JobChange, queue_entry_of};
use crate::auth::{Actor, Auth};
use crate::error::{AppError, AppResult, ErrorKind};
use crate::live::{Live, LiveCache};

/// Instead of the number of jobs ahead, where jobs share a pool or take turns.
const NO_ORDER: i64 = -1;

/// What a job is the entry of.
#[derive(Debug, Clone)]
pub enum JobSubject {
    /// An experiment; its trials ask for slots.
    Experiment(Box<ExperimentHead>),
    /// A task that works for nothing else.
    Task {
        /// Row of the task.
        row: Box<TaskRow>,
        /// User name of its owner.
        username: String,
        /// The name that its owner gave it; `None` = it has none.
        name: Option<String>,
    },
}

impl JobSubject {
    /// The number of an experiment, or a task's id.
    pub fn entity_id(&self) -> String {
        match self {
            Self::Experiment(row) => row.id.to_string(),
            Self::Task { row, .. } => row.id.to_string(),
        }
    }

    /// What it is called in messages: `experiment 3`, `command 0b6c…`.
    pub fn label(&self) -> String {
        match self {
            Self::Experiment(row) => format!("experiment {}", row.id),
            Self::Task { row, .. } => row.label().to_string(),
        }
    }

    /// The name that its owner gave it; where it has none, its [`label`](Self::label).
    pub fn name(&self) -> String {
        match self {
            Self::Experiment(row) => row.name.clone(),
            Self::Task { name, .. } => name.clone().unwrap_or_else(|| self.label()),
        }
    }

    /// User name of its owner.
    pub fn username(&self) -> &str {
        match self {
            Self::Experiment(row) => &row.username,
            Self::Task { username, .. } => username,
        }
    }

    /// How far it is, 0 to 1; 0 where that is not known.
    pub fn progress(&self) -> f64 {
        match self {
            Self::Experiment(row) => row.progress,
            Self::Task { .. } => 0.0,
        }
    }
}

/// A job with live allocations, waiting or placed.
#[derive(Debug, Clone)]
pub struct QueuedJob {
    /// Row of the job: its place in the queue and its share.
    pub job: JobRow,
    /// What it is the entry of.
    pub subject: JobSubject,
    /// Its live allocations, in order of request; never empty.
    pub allocations: Vec<AllocationRow>,
    /// Slots that they hold: containers that have exited have given theirs back.
    pub allocated_slots: i64,
    /// Jobs of the same pool that are served before it; -1 = the pool has no such order.
    pub ahead: i64,
    /// Whether all that has slots fills gaps: it started past a more important request that waits for capacity.
    pub backfilled: bool,
}

impl QueuedJob {
    /// Whether anything of it has slots.
    pub fn is_scheduled(&self) -> bool {
        self.allocations.iter().any(|a| a.placed_at.is_some())
    }

    /// Slots that its allocations ask for, those they have included.
    pub fn requested_slots(&self) -> i64 {
        self.allocations.iter().map(|a| a.slots).sum()
    }

    /// Its allocations that wait for slots.
    pub fn waiting(&self) -> impl Iterator<Item = &AllocationRow> {
        self.allocations.iter().filter(|a| a.placed_at.is_none())
    }

    /// Whether all of it can be preempted.
    pub fn is_preemptible(&self) -> bool {
        self.allocations.iter().all(|a| a.preemptible)
    }
}

/// A change of the queue as it was asked for: exactly one of all but the job must be given.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueChange {
    /// Id of the job that is changed.
    pub job_id: JobId,
    /// To be served directly before this job.
    pub ahead_of: Option<JobId>,
    /// To be served directly after this job.
    pub behind_of: Option<JobId>,
    /// New priority, 1 to 99; which goes first is the pool's.
    pub priority: Option<i64>,
    /// New weight in a fair-share pool, finite and above 0.
    pub weight: Option<f64>,
    /// Name of the pool to move the job to.
    pub resource_pool: Option<String>,
}

impl QueueChange {
    /// A change of a job's priority.
    pub(crate) fn of_priority(job_id: JobId, priority: i64) -> Self {
        Self {
            job_id,
            ahead_of: None,
            behind_of: None,
            priority: Some(priority),
            weight: None,
            resource_pool: None,
        }
    }

    /// What it comes to; `index` (from 0) names it in a refusal.
    fn check(self, index: usize) -> AppResult<(JobId, JobChange)> {
        if self.job_id.as_str().is_empty() {
            return Err(AppError::invalid(format!(
                "field \"updates[{index}].jobId\" must name a job"
            )));
        }
        let given = [
            self.priority.map(JobChange::Priority),
            self.weight.map(JobChange::Weight),
            self.resource_pool.map(JobChange::ResourcePool),
            self.ahead_of
                .map(|anchor| JobChange::Move(Side::Ahead, anchor)),
            self.behind_of
                .map(|anchor| JobChange::Move(Side::Behind, anchor)),
        ];
        let mut given = given.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(change), None) => Ok((self.job_id, change)),
            _ => Err(AppError::invalid(format!(
                "field \"updates[{index}]\" must have exactly one of priority, weight, resourcePool, aheadOf and behindOf"
            ))),
        }
    }
}

/// Orders jobs pool by pool, each as it is served; in a pool without such an order (`None`), as they were submitted.
fn in_order(a: &JobRow, b: &JobRow, order: Option<PriorityOrder>) -> Ordering {
    let (first, second) = (queue_entry_of(a), queue_entry_of(b));
    let served = |order| first.key(order).cmp(&second.key(order));
    let submitted = || (a.submitted_at, &a.id).cmp(&(b.submitted_at, &b.id));
    let pools = a.resource_pool.cmp(&b.resource_pool);
    pools.then_with(|| order.map_or_else(submitted, served))
}

/// The queue of jobs, and its changes by users. Cheap to clone.
#[derive(Clone)]
pub struct JobQueue {
    pub(super) context: Context,
    pub(super) auth: Auth,
    pub(super) live: Live,
    pub(super) homes: KnownHomes,
    pub(super) pools: Pools,
    pub(super) configs: Configs,
    pub(super) ownership: Ownership,
    pub(super) admission: Admission,
    pub(super) job_changes: JobChanges,
}

/// The rows of which the queue is made, read at one moment: without configurations and other texts, since every user may
/// ask for the queue, and it may be long.
struct LiveWork {
    allocations: Vec<AllocationRow>,
    experiments: BTreeMap<JobId, ExperimentHead>,
    tasks: BTreeMap<TaskId, TaskRow>,
    /// Names of tasks that have one, for users.
    names: HashMap<TaskId, String>,
    jobs: BTreeMap<JobId, JobRow>,
}

impl LiveWork {
    /// `None` = nothing is live.
    async fn load(store: &Store) -> AppResult<Option<Self>> {
        let mut conn = store.read().await?;
        let allocations = allocations::live(&mut conn.conn()).await?;
        if allocations.is_empty() {
            return Ok(None);
        }
        let others: Vec<TaskId> = allocations
            .iter()
            .filter(|row| row.kind != TaskKind::Trial)
            .map(|row| row.task_id.clone())
            .collect();
        let experiments = experiments::queued(&mut conn.conn()).await?;
        let tasks = allocations::tasks(&mut conn.conn(), &others).await?;
        let jobs = experiments::queued_jobs(&mut conn.conn()).await?;
        Ok(Some(Self {
            allocations,
            experiments: experiments
                .into_iter()
                .map(|e| (e.job_id.clone(), e))
                .collect(),
            tasks: tasks
                .into_iter()
                .map(|task| (task.id.clone(), task))
                .collect(),
            names: task_documents::descriptions(&mut conn.conn(), &others).await?,
            jobs: jobs.into_iter().map(|job| (job.id.clone(), job)).collect(),
        }))
    }
}

impl JobQueue {
    /// The queue of one pool, or of all pools one after the other, each in the order in which it is served.
    pub async fn list(&self, pool: Option<&str>) -> AppResult<Vec<QueuedJob>> {
        let Some(work) = LiveWork::load(&self.context.store).await? else {
            return Ok(Vec::new());
        };
        let held = self
            .live
            .look(&self.context.store, LiveCache::held_by)
            .await?;
        let mut queue = self.entries(work, pool, &held);
        self.put_in_order(&mut queue);
        self.note_backfill(&mut queue);
        Ok(queue)
    }

    /// The entries of the queue of one pool or of all, in no order; `held` = slots that allocations hold.
    fn entries(
        &self,
        mut work: LiveWork,
        pool: Option<&str>,
        held: &BTreeMap<AllocationId, u32>,
    ) -> Vec<QueuedJob> {
        let held_by = |a: &AllocationRow| held.get(&a.id).copied().map_or(0, i64::from);
        // A job without work at present, such as a paused one, is in no queue. One that names several pools may be in
        // the queue of each.
        let mut of_job: BTreeMap<(JobId, String), Vec<AllocationRow>> = BTreeMap::new();
        // Deletions of checkpoints are scheduled, but are no user's work in a queue.
        let shown = |row: &AllocationRow| {
            row.kind != TaskKind::CheckpointGc && pool.is_none_or(|pool| row.resource_pool == pool)
        };
        for allocation in std::mem::take(&mut work.allocations) {
            if shown(&allocation) {
                let key = (allocation.job_id.clone(), allocation.resource_pool.clone());
                of_job.entry(key).or_default().push(allocation);
            }
        }
        let entry =
            |((job_id, resource_pool), allocations): ((JobId, String), Vec<AllocationRow>)| {
                // What is missing has ended since the allocations were read.
                let job = work.jobs.get(&job_id)?.clone();
                let first = allocations.first()?;
                let subject = if job.kind == JobKind::Experiment {
                    JobSubject::Experiment(Box::new(work.experiments.get(&job_id)?.clone()))
                } else {
                    let task = work.tasks.get(&first.task_id)?.clone();
                    self.subject(task, work.names.remove(&first.task_id))
                };
                Some(QueuedJob {
                    job: JobRow {
                        resource_pool,
                        ..job
                    },
                    subject,
                    allocated_slots: allocations.iter().map(held_by).sum(),
                    allocations,
                    ahead: 0,
                    backfilled: false,
                })
            };
        of_job.into_iter().filter_map(entry).collect()
    }

    /// Sorts entries as their pools serve them, and counts for each how many of its pool are ahead of it.
    fn put_in_order(&self, queue: &mut [QueuedJob]) {
        // By pool, where it serves by priority.
        let mut orders: BTreeMap<String, Option<PriorityOrder>> = BTreeMap::new();
        for entry in &*queue {
            let pool = &entry.job.resource_pool;
            if !orders.contains_key(pool) {
                let settings = self.pools.settings(pool);
                let by_priority = matches!(settings.policy, Policy::Priority { .. });
                orders.insert(pool.clone(), by_priority.then_some(settings.priority_order));
            }
        }
        let order_in = |pool: &str| orders.get(pool).copied().flatten();
        queue.sort_by(|a, b| in_order(&a.job, &b.job, order_in(&a.job.resource_pool)));
        let mut before: BTreeMap<String, i64> = BTreeMap::new();
        for entry in queue {
            if order_in(&entry.job.resource_pool).is_none() {
                entry.ahead = NO_ORDER;
                continue;
            }
            let ahead = before.entry(entry.job.resource_pool.clone()).or_default();
            entry.ahead = *ahead;
            *ahead += 1;
        }
    }

    /// What the job of a task that works for no experiment is the entry of.
    pub(crate) fn subject(&self, row: TaskRow, name: Option<String>) -> JobSubject {
        let owner = self.auth.user(row.owner_id);
        JobSubject::Task {
            row: Box::new(row),
            username: owner.map(|user| user.username.clone()).unwrap_or_default(),
            name,
        }
    }

    /// Only where work is preempted may less important work pass.
    fn note_backfill(&self, queue: &mut [QueuedJob]) {
        let mut held_up: BTreeMap<String, Option<HeldUp>> = BTreeMap::new();
        for entry in &*queue {
            let pool = &entry.job.resource_pool;
            if !held_up.contains_key(pool) {
                let settings = self.pools.settings(pool);
                let preempts =
                    matches!(settings.policy, Policy::Priority { preemption, .. } if preemption);
                let empty = || HeldUp::new(settings.priority_order);
                held_up.insert(pool.clone(), preempts.then(empty));
            }
            if let Some(Some(held_up)) = held_up.get_mut(pool) {
                for allocation in &entry.allocations {
                    held_up.note(entry.job.priority, allocation);
                }
            }
        }
        for entry in queue.iter_mut().filter(|entry| entry.is_scheduled()) {
            if let Some(Some(held_up)) = held_up.get(&entry.job.resource_pool) {
                let mut placed = entry.allocations.iter().filter(|a| a.placed_at.is_some());
                entry.backfilled = placed.all(|a| held_up.is_passed_by(entry.job.priority, a));
            }
        }
    }

    /// Makes changes of the queue in order: all of them or, if one is refused, none.
    pub async fn change(&self, actor: &Actor, changes: Vec<QueueChange>) -> AppResult<()> {
        let checked: Vec<(JobId, JobChange)> = changes
            .into_iter()
            .enumerate()
            .map(|(index, change)| change.check(index))
            .collect::<AppResult<_>>()?;
        for (job_id, change) in &checked {
            if let JobChange::ResourcePool(pool) = change {
                // Other machines, and what containers are given there.
                let to_do = format!("move job \"{job_id}\" to resource pool \"{pool}\"");
                self.ownership
                    .require_owner_of_job(actor, job_id, &to_do)
                    .await?;
                self.require_fit(job_id, pool).await?;
            } else {
                self.ownership
                    .require_steering_of_job(actor, job_id)
                    .await?;
            }
        }
        self.job_changes.update(actor, checked).await
    }

    /// Refuses a pool that could never run the trials or the task of a job.
    async fn require_fit(&self, job_id: &JobId, pool: &str) -> AppResult<()> {
        let (experiment, task, job) = {
            let mut conn = self.context.store.read().await?;
            (
                experiments::find_by_job(&mut conn.conn(), job_id).await?,
                allocations::task_of_job(&mut conn.conn(), job_id).await?,
                experiments::job(&mut conn.conn(), job_id).await?,
            )
        };
        let size = match (experiment, task) {
            (Some(row), _) if row.ended_at.is_none() => {
                let resources = &self.configs.of(&row)?.resources;
                WorkSize {
                    slots: resources.slots_per_trial,
                    is_single_node: resources.is_single_node.unwrap_or(false),
                    key: SLOTS_OF_TRIAL,
                    may_spread: true,
                }
            }
            (
                None,
                Some(TaskRow {
                    kind,
                    demand: Some(demand),
                    ended_at: None,
                    ..
                }),
            ) => WorkSize {
                slots: demand.slots,
                is_single_node: demand.single_place,
                key: SLOTS_OF_TASK,
                may_spread: kind.may_spread(),
            },
            // The change itself reports what is wrong.
            _ => return Ok(()),
        };
        let Some(job) = job else { return Ok(()) };
        self.pools.require(pool)?;
        let homes = self.homes.get();
        let workspace = homes.workspace(job.workspace_id)?;
        let placement = Placement {
            workspace: None,
            project: None,
            resource_pool: Some(pool.to_owned()),
            resource_pools: Vec::new(),
            names_image: false,
            priority_class: None,
        };
        let mut findings = Findings::default();
        self.admission
            .admit(&placement, workspace, Some(size), &mut findings)
            .await?;
        if findings.errors.is_empty() {
            return Ok(());
        }
        let what = format!("resource pool \"{pool}\" for job \"{job_id}\"");
        Err(document_error(
            &what,
            &ConfigErrors::together(findings.errors),
        ))
    }

    /// The pool that a listing is about: the one named, else the default one for work with slots.
    pub fn pool_or_default(&self, name: &str) -> AppResult<String> {
        let pools = self.pools.names();
        if name.is_empty() {
            return self
                .pools
                .default_compute_pool()
                .filter(|pool| pools.contains(pool))
                .or_else(|| pools.first().cloned())
                .ok_or_else(|| {
                    AppError::new(ErrorKind::NotFound, "this master has no resource pools")
                });
        }
        if pools.iter().any(|pool| pool == name) {
            return Ok(name.to_owned());
        }
        Err(AppError::not_found(ObjectKind::ResourcePool, name)
            .hint(format!("choose one of: {}", pools.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use det_ids::{UserId, WorkspaceId};

    use super::*;

    fn change() -> QueueChange {
        QueueChange {
            job_id: "j".into(),
            ahead_of: None,
            behind_of: None,
            priority: None,
            weight: None,
            resource_pool: None,
        }
    }

    #[test]
    fn exactly_one_change_is_taken() {
        let priority = QueueChange {
            priority: Some(3),
            ..change()
        };
        assert_eq!(
            priority.clone().check(0).unwrap(),
            ("j".into(), JobChange::Priority(3))
        );
        let ahead = QueueChange {
            ahead_of: Some("k".into()),
            ..change()
        };
        assert_eq!(
            ahead.check(0).unwrap(),
            ("j".into(), JobChange::Move(Side::Ahead, "k".into()))
        );
        let two = QueueChange {
            weight: Some(1.0),
            ..priority
        };
        assert!(two.check(4).unwrap_err().message.contains("updates[4]"));
        assert!(
            change()
                .check(0)
                .unwrap_err()
                .message
                .contains("exactly one")
        );
    }

    #[test]
    fn more_important_priorities_and_earlier_places_go_first() {
        let job = |id: &str, priority, position, submitted_at| JobRow {
            id: id.into(),
            kind: JobKind::Experiment,
            owner_id: UserId(1),
            resource_pool: "default".into(),
            priority,
            weight: 1.0,
            max_slots: None,
            position,
            moved: position.is_some(),
            fallback: None,
            demands: None,
            submitted_at,
            workspace_id: WorkspaceId(1),
        };
        let mut jobs = [
            job("late", 42, None, 30),
            job("moved", 42, Some(5), 40),
            job("early", 42, None, 10),
            job("urgent", 1, None, 50),
        ];
        for (order, expected) in [
            (
                Some(PriorityOrder::LowerFirst),
                ["urgent", "moved", "early", "late"],
            ),
            (
                Some(PriorityOrder::HigherFirst),
                ["moved", "early", "late", "urgent"],
            ),
            (None, ["early", "late", "moved", "urgent"]),
        ] {
            jobs.sort_by(|a, b| in_order(a, b, order));
            let found: Vec<&str> = jobs.iter().map(|j| j.id.as_str()).collect();
            assert_eq!(found, expected, "{order:?}");
        }
    }
}
