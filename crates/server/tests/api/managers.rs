//! What a resource manager can rely on of the master: the same scenarios for the manager of agents
//! (over its connections) and for one whose places only count their slots (over [`det_rm::Core`]). That the second one
//! passes shows that nothing but the manager of agents knows agents.

mod containers;
mod direction;
mod fake;
mod growth;
mod side_by_side;

use det_agent_proto::{ContainerReport, ContainerState, ToAgent};
use det_ids::{AllocationId, ContainerId, ExperimentId};
use det_lifecycle::container::ObservedState;
use det_taskspec::{ContainerExit, ContainerSpec, SlotGrant};
use serde_json::{Value, json};

use crate::pools;
use crate::support::{Client, Cluster, FakeAgent};
use fake::{FakePlace, Task};

const POOLS: &str =
    "[{pool_name: default}, {pool_name: two, agent_reconnect_wait: 0s}, {pool_name: three}]";

/// A container that a place holds: its id, its allocation, what was observed.
type HeldContainer = (ContainerId, AllocationId, ObservedState);

/// A place of the manager that is tested. All of it waits for what it expects, and fails when something else comes.
trait Place: Sized {
    /// Whether its slots have names.
    const NAMED: bool;
    /// Joins with two slots and what it holds.
    async fn join(cluster: &Cluster, id: &str, pool: &str, held: Vec<HeldContainer>) -> Self;
    /// The next container to start.
    async fn next_start(&mut self) -> ContainerSpec;
    /// The next order to end one; whether it is to be asked first.
    async fn next_end(&mut self) -> bool;
    /// The order to forget this one.
    async fn forgets(&mut self, spec: &ContainerSpec);
    /// Reports on one.
    async fn observes(&mut self, spec: &ContainerSpec, observed: ObservedState);
    /// The place goes away, as when its machine or its node is lost.
    async fn leave(self);
}

impl Place for FakePlace {
    const NAMED: bool = false;

    async fn join(cluster: &Cluster, id: &str, pool: &str, held: Vec<HeldContainer>) -> Self {
        let held = held.into_iter().map(|(id, _, observed)| (id, observed));
        Self::join(cluster, id, 2, pool, held.collect()).await
    }

    async fn next_start(&mut self) -> ContainerSpec {
        match self.next().await {
            Task::Start(start) => start.spec,
            other => panic!("expected a start, found {other:?}"),
        }
    }

    async fn next_end(&mut self) -> bool {
        match self.next().await {
            Task::End { grace, .. } => grace,
            other => panic!("expected an end, found {other:?}"),
        }
    }

    async fn forgets(&mut self, spec: &ContainerSpec) {
        match self.next().await {
            Task::Forget(id) => assert_eq!(id, spec.container_id),
            other => panic!("expected to forget, found {other:?}"),
        }
    }

    async fn observes(&mut self, spec: &ContainerSpec, observed: ObservedState) {
        (**self).observes(&spec.container_id, observed).await;
    }

    async fn leave(self) {
        Self::leave(self).await;
    }
}

/// What an agent reports of a container about which this was observed.
fn state(observed: ObservedState) -> ContainerState {
    match observed {
        ObservedState::Assigned => ContainerState::Assigned,
        ObservedState::Pulling => ContainerState::Pulling,
        ObservedState::Starting => ContainerState::Starting,
        ObservedState::Running {
            host_address,
            ports,
            runtime_id,
        } => ContainerState::Running {
            host_address,
            ports,
            runtime_id,
        },
        ObservedState::Terminated { exit, cause } => ContainerState::Terminated { exit, cause },
    }
}

impl Place for FakeAgent {
    const NAMED: bool = true;

    async fn join(cluster: &Cluster, id: &str, pool: &str, held: Vec<HeldContainer>) -> Self {
        if held.is_empty() {
            return cluster.agent_in(pool, id, 2).await;
        }
        let held = held
            .into_iter()
            .map(|(container_id, allocation_id, observed)| ContainerReport {
                container_id,
                allocation_id,
                state: state(observed),
            });
        Self::back(cluster, id, 2, pool, held.collect()).await
    }

    async fn next_start(&mut self) -> ContainerSpec {
        Self::next_start(self).await
    }

    async fn next_end(&mut self) -> bool {
        match self.receive().await {
            ToAgent::Kill { grace, .. } => grace,
            other => panic!("expected an end, found {other:?}"),
        }
    }

    async fn forgets(&mut self, spec: &ContainerSpec) {
        Self::forgets(self, spec).await;
    }

    async fn observes(&mut self, spec: &ContainerSpec, observed: ObservedState) {
        self.report(spec, state(observed)).await;
    }

    async fn leave(self) {
        drop(self);
    }
}

fn running() -> ObservedState {
    ObservedState::Running {
        host_address: "10.0.0.1".into(),
        ports: vec![(1734, 41_734)],
        runtime_id: "4711".into(),
    }
}

fn exited(code: i32) -> ObservedState {
    ObservedState::Terminated {
        exit: ContainerExit::Exited { code },
        cause: None,
    }
}

/// A master with three pools.
async fn cluster() -> Cluster {
    Cluster::start_with(&[("resource_pools", POOLS), ("launch_error", "false")]).await
}

/// Submits an experiment of one trial with two slots to a pool; gives its number.
async fn submit(client: &Client, pool: &str) -> ExperimentId {
    let resources = json!({"slots_per_trial": 2, "resource_pool": pool});
    let created = pools::submit(client, pool, resources).await;
    ExperimentId(created["experiment"]["id"].as_i64().unwrap())
}

/// Waits until an experiment has this state.
async fn until_state(cluster: &Cluster, client: &Client, id: ExperimentId, state: &str) {
    let path = format!("/api/v1/experiments/{id}");
    let wanted = |answer: &Value| answer["experiment"]["state"] == state;
    cluster.until(client, &path, wanted).await;
}

/// A place in a pool of a master of its own, with the container of an experiment's only trial.
struct RunningTrial<P> {
    cluster: Cluster,
    client: Client,
    place: P,
    experiment: ExperimentId,
    spec: ContainerSpec,
}

impl<P: Place> RunningTrial<P> {
    /// A container that was started and is reported to run.
    async fn container_in(pool: &str) -> Self {
        let cluster = cluster().await;
        let client = cluster.determined().await;
        let mut place = P::join(&cluster, "p", pool, Vec::new()).await;
        let experiment = submit(&client, pool).await;
        let spec = place.next_start().await;
        place.observes(&spec, running()).await;
        Self {
            cluster,
            client,
            place,
            experiment,
            spec,
        }
    }

    /// The container, as a place holds it of which this was observed.
    fn held(&self, observed: ObservedState) -> Vec<HeldContainer> {
        let spec = &self.spec;
        vec![(
            spec.container_id.clone(),
            spec.allocation_id.clone(),
            observed,
        )]
    }

    /// Waits until the master knows that the container runs.
    async fn is_known(&self) {
        let (task, _) = self.cluster.task_of(self.experiment).await;
        let path = format!("/api/v1/tasks/{}", task.id);
        let runs = |answer: &Value| answer["task"]["allocations"][0]["state"] == "STATE_RUNNING";
        self.cluster.until(&self.client, &path, runs).await;
    }

    /// Waits until the experiment has this state, without a restart charged.
    async fn ends_as(cluster: Cluster, client: &Client, experiment: ExperimentId, state: &str) {
        let path = format!("/api/v1/experiments/{experiment}");
        let wanted = |answer: &Value| answer["experiment"]["state"] == state;
        cluster.until(client, &path, wanted).await;
        let trials = client.get(&format!("{path}/trials")).await.ok();
        assert_eq!(trials["trials"][0]["restarts"], 0);
        cluster.stop().await;
    }
}

async fn each_pool_starts_its_own<P: Place>() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    for pool in ["default", "two", "three"] {
        let mut place = P::join(&cluster, &format!("place-of-{pool}"), pool, Vec::new()).await;
        let id = submit(&client, pool).await;
        let spec = place.next_start().await;
        let granted = match &spec.slots {
            SlotGrant::Devices(slots) => (true, slots.len()),
            SlotGrant::Count(count) => (false, *count as usize),
        };
        assert_eq!(granted, (P::NAMED, 2));
        let env = &spec.script.env;
        let slots = env.iter().find(|(name, _)| name == "DET_SLOT_IDS").unwrap();
        assert_eq!(slots.1, "[0,1]");
        place.observes(&spec, running()).await;
        place.observes(&spec, exited(0)).await;
        place.forgets(&spec).await;
        until_state(&cluster, &client, id, "STATE_COMPLETED").await;
    }
    cluster.stop().await;
}

async fn what_is_reported_twice_or_late_changes_nothing<P: Place>() {
    let mut it = RunningTrial::<P>::container_in("default").await;
    for observed in [running(), ObservedState::Pulling, ObservedState::Assigned] {
        it.place.observes(&it.spec, observed).await;
    }
    it.is_known().await;
    it.place.observes(&it.spec, exited(0)).await;
    it.place.forgets(&it.spec).await;
    // Of a container that is forgotten it may still report.
    it.place.observes(&it.spec, exited(1)).await;
    let RunningTrial {
        cluster,
        client,
        experiment,
        ..
    } = it;
    RunningTrial::<P>::ends_as(cluster, &client, experiment, "STATE_COMPLETED").await;
}

async fn what_is_killed_is_ended_at_once<P: Place>() {
    let mut it = RunningTrial::<P>::container_in("default").await;
    let path = format!("/api/v1/experiments/{}/kill", it.experiment);
    it.client.post(&path, Value::Null).await.ok();
    assert!(!it.place.next_end().await, "it is asked first");
    let exit = ContainerExit::Killed;
    it.place
        .observes(&it.spec, ObservedState::Terminated { exit, cause: None })
        .await;
    it.place.forgets(&it.spec).await;
    let RunningTrial {
        cluster,
        client,
        experiment,
        ..
    } = it;
    RunningTrial::<P>::ends_as(cluster, &client, experiment, "STATE_CANCELED").await;
}

async fn a_place_comes_back_with_what_it_holds<P: Place>() {
    let it = RunningTrial::<P>::container_in("default").await;
    let held = it.held(running());
    let RunningTrial {
        cluster,
        client,
        place,
        experiment,
        spec,
    } = it;
    place.leave().await;
    let mut place = P::join(&cluster, "p", "default", held).await;
    // No second start: the next that it is asked for is to forget what has ended.
    place.observes(&spec, exited(0)).await;
    place.forgets(&spec).await;
    RunningTrial::<P>::ends_as(cluster, &client, experiment, "STATE_COMPLETED").await;
}

async fn what_a_place_ended_while_it_was_away_has_ended<P: Place>() {
    let it = RunningTrial::<P>::container_in("default").await;
    let held = it.held(exited(0));
    let RunningTrial {
        cluster,
        client,
        place,
        experiment,
        spec,
    } = it;
    place.leave().await;
    let mut place = P::join(&cluster, "p", "default", held).await;
    place.forgets(&spec).await;
    RunningTrial::<P>::ends_as(cluster, &client, experiment, "STATE_COMPLETED").await;
}

async fn what_a_place_does_not_hold_any_more_is_lost<P: Place>() {
    let it = RunningTrial::<P>::container_in("default").await;
    it.is_known().await;
    let RunningTrial {
        cluster,
        client,
        place,
        experiment,
        spec,
    } = it;
    place.leave().await;
    let mut place = P::join(&cluster, "p", "default", Vec::new()).await;
    // It is not started again, which could make two; another attempt is.
    let again = place.next_start().await;
    assert_ne!(again.container_id, spec.container_id);
    place.observes(&again, exited(0)).await;
    place.forgets(&again).await;
    RunningTrial::<P>::ends_as(cluster, &client, experiment, "STATE_COMPLETED").await;
}

async fn a_driver_that_leaves_late_ends_no_newer_connection<P: Place>() {
    // In this pool a place that is away is given up at once.
    let it = RunningTrial::<P>::container_in("two").await;
    it.is_known().await;
    let held = it.held(running());
    let RunningTrial {
        cluster,
        client,
        place: earlier,
        experiment,
        spec,
    } = it;
    let mut place = P::join(&cluster, "p", "two", held).await;
    earlier.leave().await;
    place.observes(&spec, exited(0)).await;
    place.forgets(&spec).await;
    RunningTrial::<P>::ends_as(cluster, &client, experiment, "STATE_COMPLETED").await;
}

async fn a_place_that_stays_away_is_given_up<P: Place>() {
    let it = RunningTrial::<P>::container_in("two").await;
    let RunningTrial {
        cluster,
        client,
        place,
        experiment,
        spec,
    } = it;
    place.leave().await;
    let mut other = P::join(&cluster, "q", "two", Vec::new()).await;
    let again = other.next_start().await;
    assert_ne!(again.allocation_id, spec.allocation_id);
    other.observes(&again, running()).await;
    other.observes(&again, exited(0)).await;
    other.forgets(&again).await;
    RunningTrial::<P>::ends_as(cluster, &client, experiment, "STATE_COMPLETED").await;
}

/// The scenarios for both managers.
macro_rules! contract {
    ($($scenario:ident)*) => {
        mod agents {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario::<super::FakeAgent>().await;
            })*
        }
        mod counted_places {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario::<super::FakePlace>().await;
            })*
        }
    };
}

contract! {
    each_pool_starts_its_own
    what_is_reported_twice_or_late_changes_nothing
    what_is_killed_is_ended_at_once
    a_place_comes_back_with_what_it_holds
    what_a_place_ended_while_it_was_away_has_ended
    what_a_place_does_not_hold_any_more_is_lost
    a_driver_that_leaves_late_ends_no_newer_connection
    a_place_that_stays_away_is_given_up
}
