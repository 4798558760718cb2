//! Why a trial makes no progress: asks the supervisors of its containers what their processes do, and compares the
//! answers.
//!
//! A request goes through the resource manager of the container to its supervisor, whose answer is a call of the task's own. Nothing of it is
//! stored but what a silent trial's record and log contain.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_authz::Kind;
use det_ids::{AllocationId, ContainerId, ExperimentId, LogLineId, TrialId};
use det_lifecycle::container::ObservedState;
use det_lifecycle::object::ObjectKind;
use det_orchestrator::hang::{self, Finding};
use det_orchestrator::{Event, RunningTrial};
use det_store::allocations::{self, AllocationRow, ContainerRow};
use det_store::{experiments, logs};
use det_taskspec::diagnosis::Diagnosis;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::existing;
use crate::app::orchestration::Orchestration;
use crate::app::ownership::{Ownership, ReportSubject};
use crate::app::reach::{ContainerReach, RunningContainer};
use crate::app::reads;
use crate::app::silences::Silences;
use crate::app::turns::Turns;
use crate::app::user_counts::UserCounts;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;
use crate::live::{Live, TrialAttempt, running_trials};

/// How long supervisors have to answer: a second of watching, and their stacks.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// The longest that a caller may have them.
const LONGEST: Duration = Duration::from_secs(60);
/// Trials that are examined at once, at most: on request, and, beside those, because they are silent.
const MOST_AT_ONCE: usize = 8;
/// Trials of these that are examined at once for one user, or of one owner, at most: the others are left to others.
const MOST_OF_ONE: usize = 2;
/// Callers that wait for one container's answer, at most.
const MOST_WAITING: usize = 16;
/// Chunks of a log in which the last lines of containers are looked for.
const CHUNKS: i64 = 4;

/// What was found of a trial's attempt.
#[derive(Debug, Clone)]
pub struct Examination {
    /// Number of the trial that was examined.
    pub trial_id: TrialId,
    /// The attempt that was looked at.
    pub allocation_id: AllocationId,
    /// How long it has been silent; `None` = not counted yet.
    pub silent: Option<Duration>,
    /// When it last reported, since this master has started.
    pub last_report: Option<i64>,
    /// The conclusion from what the ranks do.
    pub finding: Finding,
    /// The containers by their numbers in the allocation.
    pub containers: BTreeMap<u32, ContainerId>,
    /// When containers last wrote into the log, of those of which a line is among its newest.
    pub last_lines: HashMap<ContainerId, i64>,
}

/// How long running attempts may be silent by their experiments' own configurations; `None` = as the master has it.
type OwnTimeouts = HashMap<AllocationId, Option<Duration>>;

/// Those who wait for what containers answer.
type DiagnosisRequests = HashMap<ContainerId, Vec<oneshot::Sender<Diagnosis>>>;

/// Examines trials. Cheap to clone.
#[derive(Clone)]
pub struct Doctor {
    context: Context,
    configs: Configs,
    ownership: Ownership,
    live: Live,
    reach: ContainerReach,
    orchestration: Orchestration,
    silences: Silences,
    waiting: Arc<Mutex<DiagnosisRequests>>,
    /// What [`Doctor::look`] has read: only an experiment that does not run can be given another configuration.
    own_timeouts: Arc<Mutex<OwnTimeouts>>,
    rounds: Arc<Semaphore>,
    of_user: UserCounts,
    /// Turns of looking at silent trials, by the owners of the trials.
    alarms: Turns,
}

/// A trial that has been silent for too long.
pub(crate) struct Alarm {
    attempt: TrialAttempt,
    timeout: Duration,
}

/// One who waits for a container's answer; dropped, it waits no more.
struct PendingDiagnosis<'a> {
    doctor: &'a Doctor,
    container: &'a ContainerId,
    answer: Option<oneshot::Receiver<Diagnosis>>,
}

impl Drop for PendingDiagnosis<'_> {
    fn drop(&mut self) {
        drop(self.answer.take());
        let mut waiting = self.doctor.lock();
        if let Some(senders) = waiting.get_mut(self.container) {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                waiting.remove(self.container);
            }
        }
    }
}

impl Doctor {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        (configs, live): (Configs, Live),
        ownership: Ownership,
        (reach, orchestration): (ContainerReach, Orchestration),
        silences: Silences,
    ) -> Self {
        Self {
            context,
            configs,
            ownership,
            live,
            reach,
            orchestration,
            silences,
            waiting: Arc::default(),
            own_timeouts: Arc::default(),
            rounds: Arc::new(Semaphore::new(MOST_AT_ONCE)),
            of_user: UserCounts::at_most(MOST_OF_ONE),
            alarms: Turns::new(MOST_AT_ONCE, MOST_OF_ONE),
        }
    }

    fn lock(&self) -> MutexGuard<'_, DiagnosisRequests> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Examines a trial that runs, for who may read its log. `timeout` = seconds to wait for the answers of its containers.
    pub async fn of_trial(
        &self,
        actor: &Actor,
        id: TrialId,
        timeout: Option<i64>,
    ) -> AppResult<Examination> {
        reads::require(actor, Kind::Trial, "what trials do")?;
        let within = match timeout.map(u64::try_from) {
            None => ANSWER_WITHIN,
            Some(Ok(seconds)) if seconds <= LONGEST.as_secs() => Duration::from_secs(seconds),
            Some(_) => {
                return Err(AppError::invalid(format!(
                    "field \"timeoutSeconds\" must be 0 to {}",
                    LONGEST.as_secs()
                )));
            }
        };
        let attempt = {
            let mut conn = self.context.store.read().await?;
            let trial = existing::trial(&mut conn.conn(), id).await?;
            allocations::live_of_task(&mut conn.conn(), &trial.task_id).await?
        };
        let Some(attempt) = attempt.filter(|attempt| attempt.placed_at.is_some()) else {
            return Err(AppError::precondition(format!(
                "trial {id} does not run, so there is no process to look at"
            ))
            .hint(format!(
                "`det trial describe {id}` shows its state, and `det job why` why one waits"
            )));
        };
        let too_many = |message: String| {
            Err(AppError::new(ErrorKind::TooMany, message).hint("ask again in some seconds"))
        };
        let Some(_own) = self.of_user.take(actor.user().id) else {
            return too_many(format!(
                "{MOST_OF_ONE} trials are being examined for you, and no more are at once for one user"
            ));
        };
        let Ok(_round) = self.rounds.try_acquire() else {
            return too_many(format!(
                "{MOST_AT_ONCE} trials are being examined, and no more are at once"
            ));
        };
        let examined = self.examine(id, &attempt, within).await?;
        let unknown = |rank: &hang::Rank| !rank.problem.is_empty();
        if examined.finding.ranks.iter().all(unknown) && self.is_over(&attempt.id).await? {
            return Err(AppError::precondition(format!(
                "trial {id} ended while it was examined, so there is no process left to look at"
            ))
            .hint(format!("`det trial describe {id}` shows how it ended")));
        }
        Ok(examined)
    }

    async fn is_over(&self, id: &AllocationId) -> AppResult<bool> {
        let mut conn = self.context.store.read().await?;
        let row = allocations::find(&mut conn.conn(), id).await?;
        Ok(row.is_none_or(|row| row.state.is_terminal()))
    }

    /// A container reports what its processes do. Perhaps no caller waits for it any more.
    pub(crate) async fn report(
        &self,
        actor: &Actor,
        allocation_id: &AllocationId,
        container_id: &ContainerId,
        diagnosis: Diagnosis,
    ) -> AppResult<()> {
        reads::allocations::require_form(allocation_id)?;
        self.ownership
            .require_reporter(actor, ReportSubject::Allocation(allocation_id))
            .await?;
        let rows = {
            let mut conn = self.context.store.read().await?;
            allocations::containers(&mut conn.conn(), allocation_id).await?
        };
        if !rows.iter().any(|row| row.id == *container_id) {
            return Err(AppError::not_found(
                ObjectKind::Container,
                container_id.as_str().escape_debug(),
            ));
        }
        let diagnosis = diagnosis.bounded();
        for sender in self.lock().remove(container_id).unwrap_or_default() {
            // Who does not wait any more needs no answer.
            let _ = sender.send(diagnosis.clone());
        }
        Ok(())
    }

    /// Has one container's supervisor look, and waits for its answer; `Err` = why there is none.
    async fn ask(
        &self,
        resource_pool: &str,
        row: &ContainerRow,
        within: Duration,
    ) -> Result<Diagnosis, String> {
        let Some(ObservedState::Running { host_address, .. }) = &row.observed else {
            return Err("its container does not run yet".to_owned());
        };
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.lock();
            let senders = waiting.entry(row.id.clone()).or_default();
            if senders.len() >= MOST_WAITING {
                return Err("too many ask for it at this moment".to_owned());
            }
            senders.push(sender);
        }
        let mut asked = PendingDiagnosis {
            doctor: self,
            container: &row.id,
            answer: Some(receiver),
        };
        let mut changes = self
            .context
            .hub
            .subscribe(Topic::Allocation(row.allocation_id.clone()));
        let running = RunningContainer {
            resource_pool: resource_pool.to_owned(),
            place: row.place_id.clone(),
            container_id: row.id.clone(),
            host_address: host_address.clone(),
        };
        let sent = timeout(within, self.reach.diagnose(&running)).await;
        let Ok(sent) = sent else {
            return Err(unanswered(within));
        };
        sent.map_err(|error| error.to_string())?;
        let Some(answer) = asked.answer.as_mut() else {
            return Err("no caller waits for it".to_owned());
        };
        let ended = async {
            while !self.has_ended(row).await {
                changes.changed().await;
            }
        };
        tokio::select! {
            answered = timeout(within, answer) => match answered {
                Ok(Ok(diagnosis)) => Ok(diagnosis),
                Ok(Err(_)) | Err(_) => Err(unanswered(within)),
            },
            () = ended => Err("its container has ended meanwhile".to_owned()),
        }
    }

    /// Whether a container has ended since its row was read. A store that cannot be read now is asked at the next change.
    async fn has_ended(&self, row: &ContainerRow) -> bool {
        let read = async {
            let mut conn = self.context.store.read().await?;
            allocations::containers(&mut conn.conn(), &row.allocation_id).await
        };
        let rows = read.await.unwrap_or_default();
        rows.iter()
            .any(|now| now.id == row.id && now.ended_at.is_some())
    }

    async fn examine(
        &self,
        trial_id: TrialId,
        attempt: &AllocationRow,
        within: Duration,
    ) -> AppResult<Examination> {
        let (rows, last_lines) = {
            let mut conn = self.context.store.read().await?;
            let rows = allocations::containers(&mut conn.conn(), &attempt.id).await?;
            let chunks =
                logs::chunks_before(&mut conn.conn(), &attempt.task_id, LogLineId::END, CHUNKS)
                    .await?;
            (rows, chunks)
        };
        let mut last = HashMap::new();
        for chunk in &last_lines {
            for (_, line) in chunk.unpack()? {
                if let Some(container) = line.container_id {
                    let at = last.entry(container).or_insert(line.at);
                    *at = line.at.max(*at);
                }
            }
        }
        let alive: Vec<ContainerRow> = rows.into_iter().filter(|r| r.ended_at.is_none()).collect();
        let pool = attempt.resource_pool.as_str();
        let asked = alive.iter().map(|row| self.ask(pool, row, within));
        let answers = futures::future::join_all(asked);
        let answers = answers.await;
        let member = |row: &ContainerRow| u32::try_from(row.member).unwrap_or(0);
        let containers = alive.iter().map(|row| (member(row), row.id.clone()));
        let containers = containers.collect();
        let finding = hang::examine(
            alive
                .iter()
                .zip(answers)
                .map(|(row, answer)| hang::Container {
                    member: member(row),
                    place: row.place_id.to_string(),
                    joined: row.joined,
                    answer,
                })
                .collect(),
        );
        let silent = self.silences.of(&attempt.task_id);
        Ok(Examination {
            trial_id,
            allocation_id: attempt.id.clone(),
            silent: silent.map(|known| known.silent),
            last_report: silent.and_then(|known| known.last_report),
            finding,
            containers,
            last_lines: last,
        })
    }

    /// What has been silent for too long and was not returned before; and how long until another look is due, `None` = until
    /// there is something to watch.
    pub(crate) async fn look(&self) -> AppResult<(Vec<Alarm>, Option<Duration>)> {
        let attempts = self.live.look(&self.context.store, running_trials);
        let attempts = attempts.await?;
        let timeouts = self.own_timeouts_of(&attempts).await?;
        let of_master = self.context.config().silence_timeout;
        let mut running = Vec::new();
        let mut by_task = HashMap::new();
        for attempt in attempts {
            let row = &attempt.row;
            let Some(own) = timeouts.get(&row.id) else {
                continue;
            };
            let timeout = own.unwrap_or(of_master);
            running.push(RunningTrial {
                task: row.task_id.clone(),
                allocation: row.id.clone(),
                timeout,
            });
            by_task.insert(row.task_id.clone(), attempt);
        }
        let (due, next) = self.silences.look(running);
        let due = due.into_iter().filter_map(|(running, _)| {
            Some(Alarm {
                attempt: by_task.remove(&running.task)?,
                timeout: running.timeout,
            })
        });
        Ok((due.collect(), next))
    }

    /// Examines a silent trial when it is its owner's turn.
    pub(crate) async fn examine_silent(&self, alarm: Alarm) {
        let id = &alarm.attempt.row.id;
        if let Err(error) = self.examine_in_turn(&alarm).await {
            tracing::warn!(allocation.id = id.as_str(), %error, cause = ?error.cause, "a silent trial could not be examined");
        }
    }

    async fn examine_in_turn(&self, alarm: &Alarm) -> AppResult<()> {
        let task_id = &alarm.attempt.row.task_id;
        let task = {
            let mut conn = self.context.store.read().await?;
            allocations::find_task(&mut conn.conn(), task_id).await?
        };
        let Some(task) = task else {
            return Ok(());
        };
        let _turn = self.alarms.take(task.owner_id).await?;
        let silent = self.silences.of(task_id);
        match silent.map(|known| known.silent) {
            Some(silent) if silent >= alarm.timeout => self.alarm(alarm, silent).await,
            // It has ended, or has reported something while it waited for its turn.
            _ => Ok(()),
        }
    }

    /// How long these attempts of trials may be silent by their experiments' own configurations; zero = for ever. Each is
    /// read once.
    async fn own_timeouts_of(&self, running: &[TrialAttempt]) -> AppResult<OwnTimeouts> {
        let lock = || {
            let known = self.own_timeouts.lock();
            known.unwrap_or_else(PoisonError::into_inner)
        };
        let known = std::mem::take(&mut *lock());
        let mut read = HashMap::new();
        let mut timeouts = OwnTimeouts::new();
        for attempt in running {
            let (id, experiment_id) = (&attempt.row.id, attempt.experiment_id);
            let own = match known.get(id).or(read.get(&experiment_id)) {
                Some(own) => *own,
                None => self.read_own_timeout(experiment_id).await?,
            };
            read.insert(experiment_id, own);
            timeouts.insert(id.clone(), own);
        }
        lock().clone_from(&timeouts);
        Ok(timeouts)
    }

    async fn read_own_timeout(&self, id: ExperimentId) -> AppResult<Option<Duration>> {
        let row = {
            let mut conn = self.context.store.read().await?;
            experiments::find(&mut conn.conn(), id).await?
        };
        Ok(match row {
            Some(row) => self.configs.of(&row)?.silence_timeout(),
            None => None,
        })
    }

    /// Examines a trial that has been silent for too long; what was found is added to its record and its log.
    async fn alarm(&self, alarm: &Alarm, silent: Duration) -> AppResult<()> {
        let TrialAttempt { trial_id, row, .. } = &alarm.attempt;
        let examined = self.examine(*trial_id, row, ANSWER_WITHIN).await?;
        let found = Event::Silent {
            id: row.id.clone(),
            silent,
            timeout: alarm.timeout,
            finding: examined.finding,
        };
        self.orchestration.commit(found).await
    }
}

fn unanswered(within: Duration) -> String {
    let seconds = within.as_secs();
    format!("its supervisor did not answer within {seconds} s")
}
