//! Places: where containers run, whatever resource manager they belong to. Joining, leaving, what they report, and what
//! they are to run: the master's side of [`det_rm::Core`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use det_config::units::format_duration;
use det_failpoints::failpoint;
use det_ids::{AllocationId, ContainerId, InstanceId, Micros, PlaceId, TaskId, WorkspaceId};
use det_lifecycle::container::{DesiredState, ObservedState};
use det_lifecycle::record::ActorName;
use det_orchestrator::{Absence, Cause, Event, LogLevel, Place};
use det_rm::{
    AttemptOf, ContainerStart, Core, Fit, GrowthCore, GrowthState, Health, JoinedPlace,
    LiveAttempt, NamespaceCore, Namespaces, WaitingGang,
};
use det_store::allocations::{self, AllocationRow, TaskRow};
use det_store::places::{self, PlaceRow};
use det_store::{StoreError, WriteTx, namespaces};
use det_taskspec::ContainerExit;

use crate::app::context::Context;
use crate::app::decisions::CORE;
use crate::app::managers::Managers;
use crate::app::orchestration::{Orchestration, place_of};
use crate::app::pools::Pools;
use crate::app::specs::Specs;
use crate::app::workspaces::HomeChanges;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::{Subscription, Topic};
use crate::leases::{ConnectedPlaces, Lease};
use crate::live::{self, Live, LiveCache};

/// The places of all resource managers. Cheap to clone.
#[derive(Clone)]
pub struct Places {
    context: Context,
    live: Live,
    managers: Managers,
    pools: Pools,
    specs: Specs,
    orchestration: Orchestration,
    homes: HomeChanges,
    /// Which of them are connected now.
    pub connected: ConnectedPlaces,
}

impl Places {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        live: Live,
        (managers, pools): (Managers, Pools),
        specs: Specs,
        orchestration: Orchestration,
        homes: HomeChanges,
    ) -> Self {
        Self {
            homes,
            context,
            live,
            managers,
            pools,
            specs,
            orchestration,
            connected: ConnectedPlaces::default(),
        }
    }

    /// Removes a place and gives up its containers.
    pub(crate) async fn remove(
        &self,
        tx: &mut WriteTx,
        id: &PlaceId,
        reason: &str,
    ) -> AppResult<()> {
        let row = places::find(&mut tx.conn(), id).await?;
        let given_up = Event::PlaceGivenUp {
            place: id.clone(),
            since: None,
            slots: row.map_or(0, |row| row.capacity.devices().len()),
            reason: reason.to_owned(),
        };
        self.orchestration.advance(tx, [given_up]).await
    }

    /// Stores that a place is available, with all its containers.
    pub(crate) async fn join_in(&self, tx: &mut WriteTx, joined: JoinedPlace) -> AppResult<()> {
        // It may have gone since the place was asked in.
        self.pools.require(&joined.resource_pool)?;
        let before = places::find(&mut tx.conn(), &joined.place).await?;
        let row = row_of(&joined, before.as_ref());
        places::save(&mut tx.conn(), &row).await?;
        let joined = Event::PlaceJoined {
            place: joined.place,
            known_instance: before.map(|row| row.instance_id),
            observed: joined.containers,
        };
        self.orchestration.advance(tx, [joined]).await?;
        failpoint!("server::places::join::before_commit");
        Ok(())
    }

    /// Stores that a place is away, unless it is connected again. Its tasks go on; only after the pool's patience are they
    /// given up. What cannot be stored now is stored by the watch over deadlines.
    pub(crate) async fn note_left(&self, place: &PlaceId) -> AppResult<()> {
        let (service, place) = (self.clone(), place.clone());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    if service.connected.has(&place) {
                        return Ok(());
                    }
                    let cause = Cause::actor(ActorName::Master);
                    let left = Event::PlaceLeft { place, cause };
                    service.orchestration.advance(tx, [left]).await
                })
            })
            .await
    }

    /// Stores that every place is away: a master that starts serves none yet.
    pub(crate) async fn note_all_left(&self) -> AppResult<()> {
        let orchestration = self.orchestration.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let rows = places::list(&mut tx.conn()).await?.into_iter();
                    let connected = rows.filter(|row| row.disconnected_at.is_none());
                    let left = connected.map(|row| Event::PlaceLeft {
                        place: row.id,
                        cause: Cause::master("the master has started, and serves no place yet"),
                    });
                    orchestration.advance(tx, left.collect::<Vec<_>>()).await
                })
            })
            .await
    }

    /// Gives up containers of places that have been away longer than their pool's patience. Idempotent; gives the
    /// moment at which to look again.
    pub(crate) async fn give_up_lost(&self) -> AppResult<Option<i64>> {
        let now = Micros(det_store::steady_now());
        let rows = {
            let mut conn = self.context.store.read().await?;
            places::list(&mut conn.conn()).await?
        };
        let mut next: Option<i64> = None;
        for row in rows {
            let is_connected = self.connected.has(&row.id);
            let patience = self.pools.reconnect_patience_micros(&row.resource_pool);
            let since = row.disconnected_at.map(Micros);
            match CORE.absence(since, is_connected, patience, now) {
                Absence::None => {}
                Absence::Unstored => self.note_left(&row.id).await?,
                Absence::Until(at) => next = Some(next.map_or(at.0, |n| n.min(at.0))),
                Absence::TooLong(since) => {
                    let word = self.managers.place_word(&row.resource_pool);
                    let whole = |micros: i64| {
                        let seconds = u64::try_from(micros / 1_000_000).unwrap_or(0);
                        format_duration(Duration::from_secs(seconds))
                    };
                    let reason = format!(
                        "{word} \"{}\" was away for {}, and agent_reconnect_wait of resource pool \"{}\" is {}",
                        row.id,
                        whole(now.0.saturating_sub(since.0)),
                        row.resource_pool,
                        whole(patience),
                    );
                    let given_up = Event::PlaceGivenUp {
                        slots: row.capacity.devices().len(),
                        place: row.id,
                        since: Some(since),
                        reason,
                    };
                    self.orchestration.commit(given_up).await?;
                }
            }
        }
        Ok(next)
    }

    /// Ends a container whose specification cannot be made, and with it its run: other containers of the same place have
    /// nothing to do with it.
    async fn cannot_start(&self, container: &ContainerId, error: &AppError) -> AppResult<()> {
        tracing::error!(
            container.id = container.as_str(),
            %error,
            cause = ?error.cause,
            "a container cannot be started"
        );
        // What the rows contain belongs to its owner; other causes are for the log only.
        let cause = error.cause.as_ref().and_then(|c| c.downcast_ref());
        let why = match cause {
            Some(corrupt @ StoreError::Corrupt { .. }) => corrupt.to_string(),
            _ => error.to_string(),
        };
        let message = format!("the container's specification cannot be made: {why}");
        let id = container.clone();
        let exit = ContainerExit::StartFailed { message };
        self.orchestration
            .commit(Event::ContainerEnded { id, exit })
            .await
    }
}

impl Core for Places {
    type Error = AppError;
    type Changes = Subscription;
    type Lease = Lease;

    fn report_health(&self, manager: &str, health: Health) {
        self.managers.note_health(manager, health);
    }

    fn report_limits(&self, manager: &str, limits: BTreeMap<WorkspaceId, u32>) {
        self.managers.note_limits(manager, limits);
        self.context.hub.notify(&Topic::Schedule);
    }

    fn report_fit(&self, manager: &str, fit: Arc<dyn Fit>) {
        self.live.set_fit(self.managers.pools_of(manager), &fit);
        self.context.hub.notify(&Topic::Schedule);
    }

    fn changes(&self, place: &PlaceId) -> Subscription {
        self.context.hub.subscribe(Topic::Place(place.clone()))
    }

    async fn desired(&self, place: &PlaceId) -> AppResult<BTreeMap<ContainerId, DesiredState>> {
        let look = self
            .live
            .look(&self.context.store, |cache| cache.desired(place));
        Ok(look.await?)
    }

    async fn specification(
        &self,
        place: &PlaceId,
        container: &ContainerId,
    ) -> AppResult<Option<ContainerStart>> {
        match self.specs.of(place, container).await {
            Ok(start) => Ok(start),
            // The database is away: later it is the same container as any other.
            Err(error) if error.kind == ErrorKind::Unavailable => Err(error),
            Err(error) => {
                self.cannot_start(container, &error).await?;
                Ok(None)
            }
        }
    }

    fn take(&self, place: &PlaceId, instance: &InstanceId) -> Option<Lease> {
        self.connected.take(place, instance)
    }

    fn give_back(&self, lease: &Lease) -> bool {
        self.connected.give_back(lease)
    }

    async fn joined(&self, joined: JoinedPlace) -> AppResult<Lease> {
        let (place, service) = (joined.place.clone(), self.clone());
        let lease = self.connected.take(&place, &joined.instance);
        let lease = lease.ok_or_else(|| {
            let message = format!("another place with the id \"{place}\" is connected");
            AppError::new(ErrorKind::Conflict, message)
        })?;
        let stored = self
            .context
            .write(move |tx| Box::pin(async move { service.join_in(tx, joined).await }));
        let stored = stored.await;
        if stored.is_err() {
            self.connected.give_back(&lease);
        }
        stored.map(|()| lease)
    }

    async fn left(&self, place: &PlaceId, lease: &Lease) -> AppResult<()> {
        if self.connected.give_back(lease) {
            self.note_left(place).await?;
        }
        Ok(())
    }

    async fn observed(
        &self,
        place: &PlaceId,
        observed: Vec<(ContainerId, ObservedState)>,
    ) -> AppResult<()> {
        let (orchestration, place) = (self.orchestration.clone(), place.clone());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let events =
                        observed
                            .into_iter()
                            .map(|(container_id, observed)| Event::Observed {
                                place: place.clone(),
                                container_id,
                                observed,
                            });
                    orchestration.advance(tx, events).await?;
                    failpoint!("server::containers::report::before_commit");
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        failpoint!("server::containers::report::after_commit");
        Ok(())
    }

    async fn noted(&self, place: &PlaceId, lines: Vec<(ContainerId, String)>) -> AppResult<()> {
        let tasks = |cache: &LiveCache| {
            let lines = lines.into_iter();
            let lines =
                lines.filter_map(|(id, line)| Some((live::holder(cache, place, &id)?, line)));
            lines.collect::<Vec<_>>()
        };
        let lines = self.live.look(&self.context.store, tasks).await?;
        if lines.is_empty() {
            return Ok(());
        }
        let context = self.context.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    for (row, line) in lines {
                        context.write_line(
                            tx,
                            &row.task_id,
                            Some(&row.id),
                            (LogLevel::Info, &line),
                        )?;
                    }
                    Ok(())
                })
            })
            .await
    }

    async fn never_started(&self, container: &ContainerId) -> AppResult<()> {
        let id = container.clone();
        self.orchestration.commit(Event::NeverStarted { id }).await
    }
}

impl Places {
    /// Live allocations with what they are attempts of.
    async fn attempts_of(
        &self,
        live: Vec<Arc<AllocationRow>>,
    ) -> AppResult<BTreeMap<AllocationId, LiveAttempt>> {
        let task_ids: Vec<TaskId> = live.iter().map(|row| row.task_id.clone()).collect();
        let tasks = {
            let mut conn = self.context.store.read().await?;
            allocations::tasks(&mut conn.conn(), &task_ids).await?
        };
        let tasks: HashMap<&TaskId, &TaskRow> = tasks.iter().map(|task| (&task.id, task)).collect();
        let attempts = live.iter().map(|row| {
            let task = tasks.get(&row.task_id).copied();
            (row.id.clone(), live_attempt(row, task))
        });
        Ok(attempts.collect())
    }
}

impl GrowthCore for Places {
    fn waiting_changes(&self, _: &str) -> Subscription {
        self.context.hub.subscribe(Topic::Growth)
    }

    fn waiting(&self, manager: &str) -> Vec<WaitingGang> {
        let pools = self.managers.pools_of(manager);
        self.managers.growth.waiting(&pools)
    }

    fn report_growth(&self, manager: &str, growth: BTreeMap<AllocationId, GrowthState>) {
        self.managers.growth.report(manager, growth);
        self.context.hub.notify(&Topic::Schedule);
    }
}

impl NamespaceCore for Places {
    fn namespace_changes(&self) -> Subscription {
        self.context.hub.subscribe(Topic::Namespaces)
    }

    async fn namespaces(&self, manager: &str) -> AppResult<Namespaces> {
        let managers = self.managers.list();
        let pools = managers.iter().filter(|it| it.name == manager);
        let pools = pools.flat_map(|it| it.pools.iter().map(|pool| pool.name.clone()));
        let pools: BTreeSet<String> = pools.collect();
        let live = self.live.look(&self.context.store, |cache| {
            live::allocations_of_pools(cache, |pool| pools.contains(pool))
        });
        let in_use = self.attempts_of(live.await?).await?;
        Ok(self.homes.known().namespaces(manager, in_use))
    }

    async fn namespace_removed(&self, manager: &str, namespace: &str) -> AppResult<()> {
        let (manager, namespace) = (manager.to_owned(), namespace.to_owned());
        self.homes
            .write((), move |(), tx, _| {
                Box::pin(async move {
                    namespaces::delete_removed(&mut tx.conn(), &manager, &namespace).await?;
                    Ok(())
                })
            })
            .await
    }
}

/// An allocation with what it is an attempt of. `task` = its task; with an older allocation than the task's newest, which is
/// the one that lives, that is not known.
fn live_attempt(row: &AllocationRow, task: Option<&TaskRow>) -> LiveAttempt {
    let attempt = task.and_then(|task| u32::try_from(task.attempts).ok());
    let attempt = attempt.filter(|attempt| row.task_id.allocation(*attempt) == row.id);
    LiveAttempt {
        namespace: row.namespace.clone(),
        placed_at: row.placed_at.map(Micros),
        of: attempt.map(|attempt| AttemptOf {
            kind: row.kind,
            task_id: row.task_id.clone(),
            experiment_id: row.experiment_id,
            trial_id: row.trial_id,
            run_id: row.run_id,
            attempt,
        }),
    }
}

/// The row of a place that joins.
fn row_of(joined: &JoinedPlace, before: Option<&PlaceRow>) -> PlaceRow {
    // What the database cannot hold must not keep a place from joining.
    let instance_id = InstanceId(joined.instance.as_str().replace('\0', ""));
    let known = before.map(place_of);
    let details = &joined.details;
    let place = Place::joined(known.as_ref(), joined.resource_pool.clone(), instance_id);
    PlaceRow {
        id: joined.place.clone(),
        resource_pool: place.resource_pool,
        instance_id: place.instance,
        services: place.services,
        capacity: joined.capacity.clone(),
        addresses: details.addresses.clone(),
        version: details.version.replace('\0', ""),
        runtime: details.runtime.as_str().replace('\0', "").into(),
        registered_at: before.map_or_else(det_store::now, |b| b.registered_at),
        disconnected_at: place.disconnected_at.map(|at| at.0),
    }
}
