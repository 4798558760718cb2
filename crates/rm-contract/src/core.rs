//! A core whose rows are in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::{
    AllocationId, ContainerId, InstanceId, JobId, Micros, PlaceId, RunId, SlotId, TaskId, UserId,
    WorkspaceId,
};
use det_lifecycle::container::{DesiredState, ObservedState};
use det_rm::{
    AttemptOf, Capacity, Changes, ContainerStart, Core, Fit, GrowthCore, GrowthState, Health,
    JoinedPlace, Lease, LeaseId, Leases, LiveAttempt, NamespaceCore, Namespaces, Origin,
    PlacedNamespace, WaitingGang,
};
use det_taskspec::{
    ClusterFacts, ContainerExit, ContainerRequest, ContainerSpec, DeviceKind, KindFacts,
    PlaceFacts, PoolDefaults, RunsIn, SlotGrant, TaskDetails, TaskFacts, TaskKind, TaskUser,
    container_spec,
};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::growth::TestGrowth;
use crate::within;

/// Why a [`TestCore`] did not do something: a scenario cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(String);

/// A container in the core.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The place that it runs on.
    pub place: PlaceId,
    /// How many slots it holds.
    pub slots: u32,
    /// What is wanted of it.
    pub desired: DesiredState,
    /// What was last observed of it.
    pub observed: Option<ObservedState>,
    /// Whether it holds its slots no more: it has ended, is lost, or was never started.
    pub ended: bool,
    /// How often its specification was handed out.
    pub starts: u32,
    /// The first container of its allocation.
    pub gang: ContainerId,
    /// Its rank in the allocation.
    pub member: u32,
    /// Containers of the allocation.
    pub members: usize,
}

impl Row {
    /// How it ended, if it was observed to.
    pub fn exit(&self) -> Option<&ContainerExit> {
        match &self.observed {
            Some(ObservedState::Terminated { exit, .. }) => Some(exit),
            _ => None,
        }
    }
}

#[derive(Default)]
struct State {
    leases: Leases<CancellationToken>,
    /// The last join of each place.
    joined: BTreeMap<PlaceId, JoinedPlace>,
    rows: BTreeMap<ContainerId, Row>,
    /// The containers that each place has rows of.
    of_place: BTreeMap<PlaceId, BTreeSet<ContainerId>>,
    /// Containers whose specification cannot be made.
    withdrawn: BTreeSet<ContainerId>,
    health: BTreeMap<String, Health>,
    limits: BTreeMap<String, BTreeMap<WorkspaceId, u32>>,
    fits: BTreeMap<String, Arc<dyn Fit>>,
    notes: BTreeMap<ContainerId, Vec<String>>,
    namespaces: Namespaces,
    /// Namespaces of containers that were placed in one.
    placed_in: BTreeMap<ContainerId, PlacedNamespace>,
    /// Priority and pod spec of containers whose job names them.
    customised: BTreeMap<ContainerId, (u8, Option<Value>)>,
    /// Ports of the services of containers that offer some.
    services: BTreeMap<ContainerId, Vec<u16>>,
}

/// A core whose rows are in memory. What a place reports changes them as the master's own rows change: backward never, an
/// end once, what a place that joins does not hold is lost. Cheap to clone.
#[derive(Clone)]
pub struct TestCore {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
    /// Changes of the rows of each place that is followed.
    of_places: Arc<Mutex<BTreeMap<PlaceId, watch::Sender<()>>>>,
    of_namespaces: watch::Sender<()>,
    /// What waits for the cluster to grow.
    pub growing: TestGrowth,
}

/// The task of these containers offers services at these ports. To be called before they are placed.
pub fn offer_services(core: &TestCore, containers: &[&str], ports: &[u16]) {
    core.change(|state| {
        for container in containers {
            let container = ContainerId::from(*container);
            state.services.insert(container, ports.to_vec());
        }
    });
}

impl Default for TestCore {
    fn default() -> Self {
        let changed = watch::Sender::new(());
        Self {
            state: Arc::default(),
            growing: TestGrowth::new(changed.clone()),
            changed,
            of_places: Arc::default(),
            of_namespaces: watch::Sender::new(()),
        }
    }
}

/// A lease of a [`TestCore`].
#[derive(Debug, Clone)]
pub struct TestLease {
    id: LeaseId,
    lost: CancellationToken,
}

impl Lease for TestLease {
    async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

/// A subscription to changes of a [`TestCore`].
pub struct TestChanges(watch::Receiver<()>);

impl Changes for TestChanges {
    async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The core is gone, and nothing changes any more.
            std::future::pending::<()>().await;
        }
    }
}

impl TestCore {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.send_replace(());
        changed
    }

    /// Places a container with so many slots, which is to run.
    pub fn place(&self, place: &str, container: &str, slots: u32) -> ContainerId {
        let mut ids = self.place_gang(&[(place, container, slots)]);
        ids.remove(0)
    }

    /// Places the containers of one allocation, each with so many slots, in the order of their ranks. They are to run.
    pub fn place_gang(&self, containers: &[(&str, &str, u32)]) -> Vec<ContainerId> {
        let ids = containers.iter().map(|(_, id, _)| ContainerId::from(*id));
        let ids: Vec<ContainerId> = ids.collect();
        self.change(|state| {
            for (member, (place, _, slots)) in (0..).zip(containers) {
                let row = Row {
                    place: (*place).into(),
                    slots: *slots,
                    desired: DesiredState::Run,
                    observed: None,
                    ended: false,
                    starts: 0,
                    gang: ids[0].clone(),
                    member,
                    members: ids.len(),
                };
                let id = &ids[member as usize];
                let here = state.of_place.entry(row.place.clone()).or_default();
                here.insert(id.clone());
                state.rows.insert(id.clone(), row);
            }
        });
        for (place, _, _) in containers {
            wake(self, &PlaceId::from(*place));
        }
        ids
    }

    /// Wants something else of the namespaces of workspaces. Attempts that it names are as it describes them.
    pub fn want_namespaces(&self, change: impl FnOnce(&mut Namespaces)) {
        self.change(|state| change(&mut state.namespaces));
        self.of_namespaces.send_replace(());
    }

    /// The namespaces of workspaces, as they are wanted now.
    pub fn wanted_namespaces(&self) -> Namespaces {
        self.lock().namespaces.clone()
    }

    /// Containers that are placed are in this namespace. To be called before they are placed.
    pub fn put_in_namespace(&self, container: &str, namespace: PlacedNamespace) {
        self.change(|state| {
            let container = ContainerId::from(container);
            state.placed_in.insert(container, namespace);
        });
    }

    /// The job of these containers has this priority, and this pod spec. To be called before they are placed.
    pub fn customise(&self, containers: &[&str], priority: u8, pod_spec: Option<&Value>) {
        self.change(|state| {
            for container in containers {
                let container = ContainerId::from(*container);
                let of_job = (priority, pod_spec.cloned());
                state.customised.insert(container, of_job);
            }
        });
    }

    /// Wants something else of a container.
    pub fn want(&self, container: &ContainerId, desired: DesiredState) {
        change_row(self, container, |state| {
            if let Some(row) = state.rows.get_mut(container) {
                row.desired = desired;
            }
        });
    }

    /// The specification of a container cannot be made: it ends when it is asked for.
    pub fn withdraw(&self, container: &ContainerId) {
        change_row(self, container, |state| {
            state.withdrawn.insert(container.clone());
        });
    }

    /// The row of a container goes, whatever it does.
    pub fn remove(&self, container: &ContainerId) {
        change_row(self, container, |state| {
            if let Some(row) = state.rows.remove(container)
                && let Some(here) = state.of_place.get_mut(&row.place)
            {
                here.remove(container);
            }
        });
    }

    /// The master ends and starts again: no driver serves a place.
    pub fn restart(&self) {
        self.change(|state| {
            let places: Vec<PlaceId> = state.joined.keys().cloned().collect();
            for place in places {
                if let Some(lost) = state.leases.take_away(&place) {
                    lost.cancel();
                }
            }
        });
    }

    /// Stores that a place is available, by a driver that has taken it.
    pub fn join(&self, joined: JoinedPlace) {
        let place = joined.place.clone();
        change_at(self, &joined.place.clone(), |state| {
            let held: BTreeSet<_> = joined.containers.iter().map(|(id, _)| id).collect();
            let same = (state.joined.get(&place)).is_none_or(|it| it.instance == joined.instance);
            for id in state.of_place.get(&place).into_iter().flatten() {
                let row = state.rows.get_mut(id).filter(|row| row.place == place);
                if let Some(row) = row.filter(|row| row.observed.is_some())
                    && !(same && held.contains(id))
                {
                    row.ended = true;
                }
            }
            for (id, observed) in joined.containers.iter().cloned() {
                state.observe(&place, &id, observed);
            }
            state.joined.insert(place, joined);
        });
    }

    /// The row of a container.
    ///
    /// # Panics
    /// There is none.
    pub fn row(&self, container: &ContainerId) -> Row {
        let row = self.lock().rows.get(container).cloned();
        row.unwrap_or_else(|| panic!("container {container} has no row"))
    }

    /// What a place has last joined with, if it is served now.
    pub fn served(&self, place: &str) -> Option<JoinedPlace> {
        let (state, place) = (self.lock(), PlaceId::from(place));
        let is_served = state.leases.is_served(&place);
        state.joined.get(&place).filter(|_| is_served).cloned()
    }

    /// What was last reported of a manager; of one of which nothing was, that it is up.
    pub fn health(&self, manager: &str) -> Health {
        self.lock().health.get(manager).cloned().unwrap_or_default()
    }

    /// What a manager has last reported of its places besides slots.
    pub fn fit(&self, manager: &str) -> Option<Arc<dyn Fit>> {
        self.lock().fits.get(manager).cloned()
    }

    /// The lines that were added to the log of a container's task.
    pub fn notes(&self, id: &ContainerId) -> Vec<String> {
        self.lock().notes.get(id).cloned().unwrap_or_default()
    }

    /// The limits of workspaces that a manager has last reported.
    pub fn limits(&self, manager: &str) -> BTreeMap<WorkspaceId, u32> {
        self.lock().limits.get(manager).cloned().unwrap_or_default()
    }

    /// Waits until this is true.
    pub async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let mut changes = self.changed.subscribe();
        within(what, async {
            while !is_so(self) {
                assert!(changes.changed().await.is_ok(), "{what}: the core is gone");
            }
        })
        .await;
    }
}

/// Changes rows of a place.
fn change_at<T>(core: &TestCore, place: &PlaceId, change: impl FnOnce(&mut State) -> T) -> T {
    let changed = core.change(change);
    wake(core, place);
    changed
}

/// Changes the row of a container, if it has one.
fn change_row(core: &TestCore, container: &ContainerId, change: impl FnOnce(&mut State)) {
    let place = core.lock().rows.get(container).map(|row| row.place.clone());
    core.change(change);
    if let Some(place) = place {
        wake(core, &place);
    }
}

/// Wakes those who follow a place.
fn wake(core: &TestCore, place: &PlaceId) {
    let followed = core.of_places.lock();
    let followed = followed.unwrap_or_else(PoisonError::into_inner);
    if let Some(followers) = followed.get(place) {
        followers.send_replace(());
    }
}

impl State {
    fn observe(&mut self, place: &PlaceId, id: &ContainerId, observed: ObservedState) {
        let Some(row) = self.rows.get_mut(id).filter(|row| row.place == *place) else {
            return;
        };
        let is_news = (row.observed.as_ref()).is_none_or(|known| known.is_before(&observed));
        if is_news && !row.ended {
            row.ended = matches!(observed, ObservedState::Terminated { .. });
            row.observed = Some(observed);
        }
    }

    fn specification(&mut self, place: &PlaceId, id: &ContainerId) -> Option<Row> {
        let withdrawn = self.withdrawn.contains(id);
        let row = self.rows.get_mut(id)?;
        if withdrawn {
            row.ended = true;
        }
        if row.ended || !row.desired.starts() || row.place != *place {
            return None;
        }
        row.starts += 1;
        Some(row.clone())
    }
}

impl Core for TestCore {
    type Error = Unavailable;
    type Changes = TestChanges;
    type Lease = TestLease;

    fn report_health(&self, manager: &str, health: Health) {
        self.change(|state| state.health.insert(manager.to_owned(), health));
    }

    fn report_limits(&self, manager: &str, limits: BTreeMap<WorkspaceId, u32>) {
        self.change(|state| state.limits.insert(manager.to_owned(), limits));
    }

    fn report_fit(&self, manager: &str, fit: Arc<dyn Fit>) {
        self.change(|state| state.fits.insert(manager.to_owned(), fit));
    }

    fn changes(&self, place: &PlaceId) -> TestChanges {
        let followed = self.of_places.lock();
        let mut followed = followed.unwrap_or_else(PoisonError::into_inner);
        let of_place = followed.entry(place.clone());
        TestChanges(
            of_place
                .or_insert_with(|| watch::Sender::new(()))
                .subscribe(),
        )
    }

    async fn desired(
        &self,
        place: &PlaceId,
    ) -> Result<BTreeMap<ContainerId, DesiredState>, Unavailable> {
        let state = self.lock();
        let here = state.of_place.get(place).into_iter().flatten();
        let here = here.filter_map(|id| Some((id, state.rows.get(id)?)));
        let here = here.filter(|(_, row)| row.place == *place && !row.ended);
        Ok(here.map(|(id, row)| (id.clone(), row.desired)).collect())
    }

    async fn specification(
        &self,
        place: &PlaceId,
        container: &ContainerId,
    ) -> Result<Option<ContainerStart>, Unavailable> {
        let found = change_at(self, place, |state| {
            let row = state.specification(place, container)?;
            let joined = state.joined.get(place);
            let named = joined.is_some_and(|joined| joined.capacity.is_named());
            let namespace = state.placed_in.get(&row.gang).cloned();
            let of_job = state.customised.get(container).cloned();
            let service_ports = state.services.get(container).cloned().unwrap_or_default();
            let of_job = of_job.unwrap_or((42, None));
            Some((row, named, namespace, of_job, service_ports))
        });
        let Some((row, named, namespace, (priority, pod_spec), service_ports)) = found else {
            return Ok(None);
        };
        let spec = spec_of(container, &row, named).map_err(|e| Unavailable(e.to_string()))?;
        let origin = Origin {
            job_id: JobId::from("job"),
            priority,
            resource_pool: "default".to_owned(),
            workspace_id: WorkspaceId(1),
            namespace,
            workspace_name: "Uncategorized".to_owned(),
            owner_name: "determined".to_owned(),
            experiment_id: None,
            trial_id: None,
            run_id: RunId::default(),
            attempt: 1,
            preemptible: false,
            service_ports,
            member: row.member,
            members: row.members,
            pod_spec,
        };
        Ok(Some(ContainerStart { spec, origin }))
    }

    fn take(&self, place: &PlaceId, instance: &InstanceId) -> Option<TestLease> {
        let lost = CancellationToken::new();
        let taken = self.change(|state| state.leases.take(place, instance, lost.clone()));
        let (id, earlier) = taken?;
        if let Some(earlier) = earlier {
            earlier.cancel();
        }
        Some(TestLease { id, lost })
    }

    fn give_back(&self, lease: &TestLease) -> bool {
        self.change(|state| state.leases.give_back(&lease.id))
    }

    async fn joined(&self, joined: JoinedPlace) -> Result<TestLease, Unavailable> {
        let lease = self.take(&joined.place, &joined.instance);
        let lease = lease.ok_or_else(|| {
            Unavailable(format!(
                "another place with the id \"{}\" is served",
                joined.place
            ))
        })?;
        self.join(joined);
        Ok(lease)
    }

    async fn left(&self, _place: &PlaceId, lease: &TestLease) -> Result<(), Unavailable> {
        self.give_back(lease);
        Ok(())
    }

    async fn observed(
        &self,
        place: &PlaceId,
        observed: Vec<(ContainerId, ObservedState)>,
    ) -> Result<(), Unavailable> {
        change_at(self, place, |state| {
            for (id, observed) in observed {
                state.observe(place, &id, observed);
            }
        });
        Ok(())
    }

    async fn noted(
        &self,
        place: &PlaceId,
        lines: Vec<(ContainerId, String)>,
    ) -> Result<(), Unavailable> {
        self.change(|state| {
            for (id, line) in lines {
                if state.rows.get(&id).is_some_and(|row| row.place == *place) {
                    state.notes.entry(id).or_default().push(line);
                }
            }
        });
        Ok(())
    }

    async fn never_started(&self, container: &ContainerId) -> Result<(), Unavailable> {
        change_row(self, container, |state| {
            if let Some(row) = state.rows.get_mut(container) {
                row.ended = true;
            }
        });
        Ok(())
    }
}

/// The task of a container, of which it is the first attempt.
fn task_of(row: &Row) -> TaskId {
    TaskId::from(format!("task of {}", row.gang))
}

/// What a container runs: a command.
fn spec_of(
    container: &ContainerId,
    row: &Row,
    named: bool,
) -> Result<ContainerSpec, det_taskspec::SpecError> {
    let task_id = task_of(row);
    let allocation_id: AllocationId = task_id.allocation(1);
    let task = TaskFacts {
        task_id,
        allocation_id,
        kind: KindFacts::Launched(TaskDetails::Command),
        description: format!("container {container}"),
        owner_id: UserId(2),
        owner_name: "determined".to_owned(),
        user: TaskUser::default(),
        request: ContainerRequest {
            entrypoint: Some(det_taskspec::Entrypoint::Shell("true".to_owned())),
            ..ContainerRequest::default()
        },
        defaults: PoolDefaults::default(),
        storage: None,
        cluster: ClusterFacts::default(),
    };
    let slots = (0..row.slots).map(SlotId).collect();
    let place = PlaceFacts {
        container_id: container.clone(),
        slots: SlotGrant::new(slots, named),
        device_kind: DeviceKind::Cpu,
        members: row.members,
        runs_in: RunsIn::Machine,
    };
    container_spec(&task, &place, "token")
}

/// What a place with so many slots offers.
pub(crate) fn counted(slots: u32) -> Capacity {
    Capacity::Count {
        slots,
        kind: DeviceKind::Cuda,
        others: 0,
    }
}

impl GrowthCore for TestCore {
    fn waiting_changes(&self, _: &str) -> TestChanges {
        TestChanges(self.growing.waits.subscribe())
    }

    fn waiting(&self, _: &str) -> Vec<WaitingGang> {
        self.growing.lock().0.clone()
    }

    fn report_growth(&self, _: &str, growth: BTreeMap<AllocationId, GrowthState>) {
        self.growing.lock().1 = growth;
        self.growing.changed.send_replace(());
    }
}

impl NamespaceCore for TestCore {
    fn namespace_changes(&self) -> TestChanges {
        TestChanges(self.of_namespaces.subscribe())
    }

    async fn namespaces(&self, _manager: &str) -> Result<Namespaces, Unavailable> {
        let state = self.lock();
        let mut namespaces = state.namespaces.clone();
        let live = state.rows.iter().filter(|(_, row)| !row.ended);
        for (id, row) in live {
            let attempt = LiveAttempt {
                namespace: state.placed_in.get(id).map(|placed| placed.name.clone()),
                placed_at: Some(Micros(0)),
                of: Some(AttemptOf {
                    kind: TaskKind::Command,
                    task_id: task_of(row),
                    experiment_id: None,
                    trial_id: None,
                    run_id: RunId(0),
                    attempt: 1,
                }),
            };
            let known = namespaces.in_use.entry(task_of(row).allocation(1));
            known.or_insert(attempt);
        }
        Ok(namespaces)
    }

    async fn namespace_removed(&self, _manager: &str, namespace: &str) -> Result<(), Unavailable> {
        self.change(|state| state.namespaces.removed.remove(namespace));
        self.of_namespaces.send_replace(());
        Ok(())
    }
}
