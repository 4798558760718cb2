//! Taking on another configuration while the master runs: all of it or nothing.
//!
//! Whether it can be taken on is decided in the transaction that records it, since what is in a pool is in the rows.
//! From then on until the end of that transaction nothing new goes into pools that are about to go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use det_authz::{Kind, Permission};
use det_config::LoadedMaster;
use det_config::errors::{ConfigError, ConfigWarning};
use det_config::explain::ExplainedKey;
use det_config::master::{Change, EffectiveScheduler, MasterConfig, RefusedChange};
use det_config::origin::{Layer, Origin, Source};
use det_ids::{ClusterId, quantity};
use det_lifecycle::record::{ActorName, EventKind, Signal, Subject};
use det_rm::{Manager, Membership, PlaceWord};
use det_store::events::NewEvent;
use det_store::{StoreError, WriteTx, allocations, experiments, places};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::app::completion::complete;
use crate::app::context::Context;
use crate::app::managers::Managers;
use crate::app::pools::{Pools, log_schedulers};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;
use crate::in_force::{Surroundings, UnusableConfig};

/// Jobs and places that a sentence about a pool names at most.
const NAMED: usize = 3;

/// Who asks for a reload.
#[derive(Debug, Clone, Copy)]
pub enum ReloadCaller<'a> {
    /// A request of this actor, whose rights count.
    User(&'a Actor),
    /// A signal to the process.
    Signal,
}

/// Whether a reload is for real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Only report what would change.
    Check,
    /// Take it on.
    Apply,
}

/// What a reload changes.
#[derive(Debug, Clone)]
pub struct ReloadOutcome {
    /// Every key whose value differs.
    pub changes: Vec<Change>,
    /// What to know about the new configuration although it is no error.
    pub warnings: Vec<ConfigWarning>,
}

/// A patch of the configuration, as far as one is possible.
#[derive(Debug)]
pub(crate) struct LogPatch {
    /// Dotted paths of what counts of it; none = all that is given.
    pub(crate) paths: Vec<String>,
    /// `log.level`, a word of the configuration, or why it is none.
    pub(crate) level: Option<AppResult<&'static str>>,
    /// `log.color` of the configuration; `None` = it stays.
    pub(crate) color: Option<bool>,
}

impl LogPatch {
    /// The level and the colour that its mask names.
    fn named(self) -> AppResult<(Option<&'static str>, Option<bool>)> {
        let known = ["log", "log.level", "log.color"];
        let mut paths = self.paths.iter();
        if let Some(other) = paths.find(|path| !known.contains(&path.as_str())) {
            return Err(AppError::invalid(format!(
                "\"{}\" cannot be patched; what can is log.level",
                other.escape_debug()
            ))
            .hint("change the configuration's files and use: det master reload"));
        }
        let counts = |key: &str| {
            let mut paths = self.paths.iter();
            self.paths.is_empty() || paths.any(|path| path == "log" || path == key)
        };
        let level = self.level.filter(|_| counts("log.level"));
        let level = level.transpose()?;
        if level.is_none() && self.color.is_none() {
            return Err(AppError::invalid(
                "there is nothing to change: give log.level",
            ));
        }
        Ok((level, self.color.filter(|_| counts("log.color"))))
    }
}

/// A decision about what was read.
enum ReloadDecision {
    Taken(Vec<Change>),
    Refused(Vec<RefusedChange>),
}

/// Takes on another configuration. Cheap to clone.
#[derive(Clone)]
pub struct Reload {
    context: Context,
    managers: Managers,
    pools: Pools,
    surroundings: Arc<dyn Surroundings>,
    data_dir: PathBuf,
    cluster_id: ClusterId,
    alone: Arc<Mutex<()>>,
}

impl Reload {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        (managers, pools): (Managers, Pools),
        surroundings: Arc<dyn Surroundings>,
        data_dir: PathBuf,
        cluster_id: ClusterId,
        alone: Arc<Mutex<()>>,
    ) -> Self {
        Self {
            context,
            managers,
            pools,
            surroundings,
            data_dir,
            cluster_id,
            alone,
        }
    }

    /// Reads the configuration again and takes it on, or, as a check, reports what would change.
    ///
    /// # Errors
    /// All errors of what was read, or every change that needs a restart with the reason. The configuration in force
    /// stays as it is, whole.
    pub async fn take_on(&self, asking: ReloadCaller<'_>, mode: Mode) -> AppResult<ReloadOutcome> {
        let actor = match asking {
            ReloadCaller::User(actor) => {
                actor.require(
                    Permission::Administer,
                    Kind::MasterConfig,
                    "reload the master's configuration",
                )?;
                actor.name()
            }
            ReloadCaller::Signal => ActorName::Signal(Signal::Hup),
        };
        let _alone = self.alone.lock().await;
        let (surroundings, data_dir) = (self.surroundings.clone(), self.data_dir.clone());
        let read = tokio::task::spawn_blocking(move || {
            let mut loaded = surroundings.read_config()?;
            complete(&mut loaded.config, &data_dir).map_err(|error| UnusableConfig {
                message: error.to_string(),
                errors: Vec::new(),
            })?;
            Ok(loaded)
        });
        let loaded = match read.await.map_err(AppError::internal)? {
            Ok(loaded) => loaded,
            Err(unusable) => {
                let error = unusable_error(&unusable);
                self.report_refusal(&actor, mode, &error).await?;
                return Err(error);
            }
        };
        let warnings = loaded.warnings.clone();
        match self.decide(&actor, mode, loaded).await? {
            ReloadDecision::Taken(changes) => {
                if mode == Mode::Apply {
                    Self::report_changes(&changes, &warnings);
                    self.warn_of_stranded_jobs().await?;
                }
                Ok(ReloadOutcome { changes, warnings })
            }
            ReloadDecision::Refused(refused) => {
                let error = refusal(&refused);
                self.report_refusal(&actor, mode, &error).await?;
                Err(error)
            }
        }
    }

    /// Changes of the configuration what the mask of a patch names: the level of the master's log, until it starts again or
    /// reads its configuration again. Its colour is chosen at start: another one than it has is refused.
    pub(crate) async fn patch_log(&self, actor: &Actor, patch: LogPatch) -> AppResult<()> {
        let (level, color) = patch.named()?;
        self.change_log(actor, level, color).await
    }

    async fn change_log(
        &self,
        actor: &Actor,
        level: Option<&str>,
        color: Option<bool>,
    ) -> AppResult<()> {
        let to_do = "change the master's configuration";
        actor.require(Permission::Administer, Kind::MasterConfig, to_do)?;
        if color.is_some_and(|color| color != self.context.config().log.color) {
            return Err(AppError::precondition(
                "log.color cannot change while the master runs: the form of the log is chosen at start",
            )
            .hint("set it in the configuration and start the master again"));
        }
        let Some(level) = level else {
            return Ok(());
        };
        let _alone = self.alone.lock().await;
        let mut config = MasterConfig::clone(&self.context.config());
        if config.log.level == level {
            return Ok(());
        }
        let change = Change {
            path: "log.level".to_owned(),
            from: config.log.level.as_str().into(),
            to: level.into(),
            acts: true,
        };
        level.clone_into(&mut config.log.level);
        let mut origins = self.context.in_force.origins().as_ref().clone();
        for key in origins.iter_mut().filter(|key| key.path == change.path) {
            key.value = change.to.clone();
            key.origin = Origin::of(Source::of(Layer::Override, "det master config set"));
        }
        let (service, actor) = (self.clone(), actor.name());
        let reported = change.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    service.record_changes(tx, &actor, &[change]).await?;
                    let put = service.clone();
                    tx.once_stored(move || put.put_in_force(config, origins));
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        Self::report_changes(&[reported], &[]);
        Ok(())
    }

    async fn record_changes(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        changes: &[Change],
    ) -> Result<(), StoreError> {
        let changes: Vec<Value> = changes.iter().map(Change::to_json).collect();
        let event = NewEvent::new(
            actor,
            Subject::Master(self.cluster_id.clone()),
            EventKind::Configuration,
        )
        .detail(json!({"changes": changes}));
        self.context.record(tx, event).await
    }

    /// Compares, and takes the configuration on if that is asked and possible.
    async fn decide(
        &self,
        actor: &ActorName,
        mode: Mode,
        loaded: LoadedMaster,
    ) -> AppResult<ReloadDecision> {
        let (service, actor) = (self.clone(), actor.to_owned());
        let decided = self
            .context
            .write(move |tx| {
                Box::pin(async move { service.decide_in(tx, &actor, mode, loaded).await })
            })
            .await;
        // Pools that were about to go stay unless the change is stored.
        self.context.in_force.stay();
        decided
    }

    async fn decide_in(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        mode: Mode,
        loaded: LoadedMaster,
    ) -> AppResult<ReloadDecision> {
        let in_force = self.context.config();
        let going = in_force.gone_in(&loaded.config).into_iter();
        let going: BTreeSet<String> = going.map(|pool| pool.name).collect();
        let occupied = self.occupied(tx, &going).await?;
        let occupied = |pool: &str| occupied.get(pool).cloned();
        let origins = loaded.origins();
        let reload = match in_force.reload(loaded.config, occupied) {
            Ok(reload) => reload,
            Err(refused) => return Ok(ReloadDecision::Refused(refused)),
        };
        if mode == Mode::Check {
            return Ok(ReloadDecision::Taken(reload.changes));
        }
        if !reload.changes.is_empty() {
            self.record_changes(tx, actor, &reload.changes).await?;
        }
        self.context.in_force.leave(going);
        let (service, config) = (self.clone(), reload.config);
        tx.once_stored(move || service.put_in_force(config, origins));
        Ok(ReloadDecision::Taken(reload.changes))
    }

    /// What is in these pools, in words; pools with nothing in them are left out.
    async fn occupied(
        &self,
        tx: &mut WriteTx,
        pools: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, String>, StoreError> {
        if pools.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut in_pool: BTreeMap<&str, (Vec<String>, BTreeSet<String>)> = BTreeMap::new();
        let now = det_store::steady_now();
        for place in places::list(&mut tx.conn()).await? {
            // One that stayed away for longer than its tasks were waited for is not expected any more.
            let patience = self.pools.reconnect_patience_micros(&place.resource_pool);
            let stays = match self.managers.membership(&place.resource_pool) {
                Membership::Joins => true,
                // They leave a pool with its configuration.
                Membership::Selected => false,
            };
            let expected = place
                .disconnected_at
                .is_none_or(|since| now.saturating_sub(since) < patience)
                && stays;
            if let Some(pool) = pools.get(&place.resource_pool).filter(|_| expected) {
                in_pool.entry(pool).or_default().0.push(place.id.0);
            }
        }
        for job in experiments::live_jobs(&mut tx.conn()).await? {
            let others = job.fallback.iter().flat_map(|fallback| &fallback.pools);
            for name in std::iter::once(&job.resource_pool).chain(others) {
                if let Some(pool) = pools.get(name) {
                    in_pool.entry(pool).or_default().1.insert(job.id.0.clone());
                }
            }
        }
        for row in allocations::live(&mut tx.conn()).await? {
            if let Some(pool) = pools.get(&row.resource_pool) {
                in_pool.entry(pool).or_default().1.insert(row.job_id.0);
            }
        }
        Ok(in_pool
            .into_iter()
            .map(|(pool, (places, jobs))| {
                let word = self.managers.place_word(pool);
                (pool.to_owned(), in_words(pool, word, &places, &jobs))
            })
            .collect())
    }

    /// Every read from now on gets this configuration; work that acts by itself is woken.
    fn put_in_force(&self, config: MasterConfig, origins: Vec<ExplainedKey>) {
        let before = self.context.config();
        let schedulers = |managers: &[Manager]| -> Vec<(String, EffectiveScheduler)> {
            let pools = managers.iter().flat_map(|manager| &manager.pools);
            pools
                .map(|pool| (pool.name.clone(), pool.scheduler))
                .collect()
        };
        let scheduled = schedulers(&self.managers.list());
        let level = config.log.level.clone();
        self.context.in_force.replace(config, origins);
        let managers = self.managers.list();
        if schedulers(&managers) != scheduled {
            log_schedulers(&managers);
        }
        if before.log.level != level {
            self.surroundings.set_log_level(&level);
        }
        for topic in [
            Topic::Schedule,
            Topic::Deadlines,
            Topic::CleanUp,
            Topic::LogSweep,
        ] {
            self.context.hub.notify(&topic);
        }
    }

    fn report_changes(changes: &[Change], warnings: &[ConfigWarning]) {
        if changes.is_empty() {
            tracing::info!("the configuration was read again: nothing differs");
            return;
        }
        for warning in warnings {
            tracing::warn!("{}", warning.for_log());
        }
        for change in changes {
            tracing::info!("the configuration changes while the master runs: {change}");
        }
    }

    /// Logs which jobs wait in pools that are not configured: nothing of them can start. A running master refuses to let an
    /// occupied pool go, but it may be started with another configuration than before.
    pub(crate) async fn warn_of_stranded_jobs(&self) -> Result<(), StoreError> {
        for warning in self.stranded_jobs().await? {
            tracing::warn!("{warning}");
        }
        Ok(())
    }

    /// A sentence for each pool that is not configured and has jobs.
    pub async fn stranded_jobs(&self) -> Result<Vec<String>, StoreError> {
        let jobs = {
            let mut conn = self.context.store.read().await?;
            experiments::live_jobs(&mut conn.conn()).await?
        };
        let mut in_pool: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for job in &jobs {
            let others = job.fallback.iter().flat_map(|fallback| &fallback.pools);
            let mut pools = std::iter::once(&job.resource_pool).chain(others);
            // What runs outside the cluster is in none.
            let is_outside = job.resource_pool.is_empty();
            if !is_outside && !pools.any(|pool| self.pools.is_configured(pool)) {
                let stranded = in_pool.entry(&job.resource_pool).or_default();
                stranded.push(job.id.as_str());
            }
        }
        let sentences = in_pool.into_iter().map(|(pool, jobs)| {
            let more = if jobs.len() > NAMED { ", …" } else { "" };
            format!(
                "resource pool \"{pool}\" is not configured, and {} of its jobs can never start ({}{more}): configure it \
                 again, or move them: det job update JOB --resource-pool POOL",
                jobs.len(),
                jobs[..jobs.len().min(NAMED)].join(", ")
            )
        });
        Ok(sentences.collect())
    }

    async fn report_refusal(
        &self,
        actor: &ActorName,
        mode: Mode,
        error: &AppError,
    ) -> AppResult<()> {
        if mode == Mode::Check {
            return Ok(());
        }
        tracing::warn!("the configuration in force stays: {error}");
        let (service, actor) = (self.clone(), actor.to_owned());
        let (reason, detail) = (error.message.clone(), json!({"refused": error.details}));
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let event = NewEvent::new(
                        &actor,
                        Subject::Master(service.cluster_id.clone()),
                        EventKind::ConfigurationRefused,
                    )
                    .reason(&*reason)
                    .detail(detail);
                    service.context.record(tx, event).await?;
                    Ok::<_, AppError>(())
                })
            })
            .await
    }
}

/// Why a pool cannot go.
fn in_words(pool: &str, word: PlaceWord, places: &[String], jobs: &BTreeSet<String>) -> String {
    let mut what = Vec::new();
    if !places.is_empty() {
        let names: Vec<&str> = places.iter().take(NAMED).map(String::as_str).collect();
        let more = if places.len() > names.len() {
            ", …"
        } else {
            ""
        };
        what.push(format!(
            "{} ({}{more})",
            word.counted(places.len()),
            names.join(", ")
        ));
    }
    if !jobs.is_empty() {
        let counted = quantity(jobs.len() as u64, "job");
        what.push(format!("{counted} (det job list -p {pool})"));
    }
    format!(
        "resource pool \"{pool}\" cannot go while {} in it; stop the {word}s, and move or end the jobs first",
        match (&what[..], places.len() + jobs.len()) {
            ([only], 1) => format!("{only} is"),
            (all, _) => format!("{} are", all.join(" and ")),
        }
    )
}

fn unusable_error(unusable: &UnusableConfig) -> AppError {
    let mut error = AppError::invalid(unusable.message.clone());
    error.details = unusable.errors.iter().map(ConfigError::to_json).collect();
    error.hint("nothing was changed; the configuration in force stays")
}

fn refusal(refused: &[RefusedChange]) -> AppError {
    let lines: Vec<String> = refused.iter().map(ToString::to_string).collect();
    let mut error = AppError::precondition(format!(
        "the running service cannot take on these changes:\n{}",
        lines.join("\n")
    ));
    error.details = refused.iter().map(RefusedChange::to_json).collect();
    let pools = refused.iter().filter(|one| one.is_occupied_pool).count();
    let empty_them = "move or end the work in those pools (det job update JOB --resource-pool POOL) and stop what runs containers there";
    error.hint(match pools {
        0 => "nothing was changed; undo these, or start the master again with all of them".to_owned(),
        all if all == refused.len() => {
            format!("nothing was changed; undo these, or {empty_them}, then reload again")
        }
        _ => format!(
            "nothing was changed; undo these, or {empty_them}; the rest needs a new start of the master"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_pool_is_reported_by_number_and_name() {
        let names = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let jobs =
            |ids: &[&str]| -> BTreeSet<String> { ids.iter().map(|id| (*id).to_owned()).collect() };
        for (agents, jobs, expected) in [
            (names(&["a"]), jobs(&[]), "while 1 agent (a) is in it"),
            (
                names(&["a", "b", "c", "d"]),
                jobs(&["j"]),
                "while 4 agents (a, b, c, …) and 1 job (det job list -p gpu) are in it",
            ),
            (
                names(&[]),
                jobs(&["j", "k"]),
                "while 2 jobs (det job list -p gpu) are in it",
            ),
        ] {
            let text = in_words("gpu", PlaceWord::Agent, &agents, &jobs);
            assert!(text.contains(expected), "{text}");
        }
    }
}
