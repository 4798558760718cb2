//! What a resource manager can rely on, and what the master relies on it for: the same scenarios for the manager of agents
//! (over its connections) and for one whose places only count their slots (over [`det_rm::Core`]). That the second one
//! passes shows that nothing but the manager of agents knows agents.

mod fake;

use det_agent_proto::{ContainerReport, ContainerState, ToAgent};
use det_ids::{AllocationId, ContainerId};
use det_lifecycle::container::Observed;
use det_taskspec::{ContainerExit, ContainerSpec, Granted};
use serde_json::{Value, json};

use crate::support::{Client, Cluster, FakeAgent};
use fake::{FakePlace, Task};

const POOLS: &str =
    "[{pool_name: default}, {pool_name: two, agent_reconnect_wait: 0s}, {pool_name: three}]";

/// A container that a place holds: its id, its allocation, what was observed.
type Held = (ContainerId, AllocationId, Observed);

/// A place of the manager that is tested. All of it waits for what it expects, and fails when something else comes.
trait Place: Sized {
    /// Whether its slots have names.
    const NAMED: bool;
    /// Joins with two slots and what it holds.
    async fn join(cluster: &Cluster, id: &str, pool: &str, held: Vec<Held>) -> Self;
    /// The next container to start.
    async fn next_start(&mut self) -> ContainerSpec;
    /// The next order to end one; whether it is to be asked first.
    async fn next_end(&mut self) -> bool;
    /// The order to forget this one.
    async fn forgets(&mut self, spec: &ContainerSpec);
    /// Reports on one.
    async fn observes(&mut self, spec: &ContainerSpec, observed: Observed);
    /// Goes away.
    async fn leave(self);
}

impl Place for FakePlace {
    const NAMED: bool = false;

    async fn join(cluster: &Cluster, id: &str, pool: &str, held: Vec<Held>) -> Self {
        let held = held.into_iter().map(|(id, _, observed)| (id, observed));
        Self::join(cluster, id, 2, pool, held.collect()).await
    }

    async fn next_start(&mut self) -> ContainerSpec {
        match self.next().await {
            Task::Start(spec) => *spec,
            other => panic!("expected a start, found {other:?}"),
        }
    }

    async fn next_end(&mut self) -> bool {
        match self.next().await {
            Task::End { grace } => grace,
            other => panic!("expected an end, found {other:?}"),
        }
    }

    async fn forgets(&mut self, spec: &ContainerSpec) {
        match self.next().await {
            Task::Forget(id) => assert_eq!(id, spec.container_id),
            other => panic!("expected to forget, found {other:?}"),
        }
    }

    async fn observes(&mut self, spec: &ContainerSpec, observed: Observed) {
        Self::observes(self, &spec.container_id, observed).await;
    }

    async fn leave(self) {
        Self::leave(self).await;
    }
}

/// What an agent says of a container about which this was observed.
fn state(observed: Observed) -> ContainerState {
    match observed {
        Observed::Assigned => ContainerState::Assigned,
        Observed::Pulling => ContainerState::Pulling,
        Observed::Starting => ContainerState::Starting,
        Observed::Running {
            host_address,
            ports,
            runtime_id,
        } => ContainerState::Running {
            host_address,
            ports,
            runtime_id,
        },
        Observed::Terminated { exit } => ContainerState::Terminated { exit },
    }
}

impl Place for FakeAgent {
    const NAMED: bool = true;

    async fn join(cluster: &Cluster, id: &str, pool: &str, held: Vec<Held>) -> Self {
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
        match self.hear().await {
            ToAgent::Kill { grace, .. } => grace,
            other => panic!("expected an end, found {other:?}"),
        }
    }

    async fn forgets(&mut self, spec: &ContainerSpec) {
        Self::forgets(self, spec).await;
    }

    async fn observes(&mut self, spec: &ContainerSpec, observed: Observed) {
        self.report(spec, state(observed)).await;
    }

    async fn leave(self) {
        drop(self);
    }
}

fn running() -> Observed {
    Observed::Running {
        host_address: "10.0.0.1".into(),
        ports: vec![(1734, 41_734)],
        runtime_id: "4711".into(),
    }
}

fn exited(code: i32) -> Observed {
    Observed::Terminated {
        exit: ContainerExit::Exited { code },
    }
}

/// A master with three pools.
async fn cluster() -> Cluster {
    Cluster::start_with(&[("resource_pools", POOLS), ("launch_error", "false")]).await
}

/// Submits an experiment of one trial with two slots to a pool; gives its number.
async fn submit(client: &Client, pool: &str) -> i64 {
    let config = json!({
        "name": pool,
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 2, "resource_pool": pool},
        "max_restarts": 0,
    });
    let body = json!({"config": config.to_string(), "activate": true,
        "modelDefinition": [{"path": "train.py", "type": 48, "content": "", "mode": 0o644, "mtime": 1_700_000_000}]});
    let created = client.post("/api/v1/experiments", body).await.ok();
    created["experiment"]["id"].as_i64().unwrap()
}

/// Waits until an experiment has this state.
async fn until_state(cluster: &Cluster, client: &Client, id: i64, state: &str) {
    let path = format!("/api/v1/experiments/{id}");
    let wanted = |answer: &Value| answer["experiment"]["state"] == state;
    cluster.until(client, &path, wanted).await;
}

/// Waits until a trial's restarts and state are these.
async fn restarts(client: &Client, experiment: i64) -> i64 {
    let path = format!("/api/v1/experiments/{experiment}/trials");
    let trials = client.get(&path).await.ok();
    trials["trials"][0]["restarts"].as_i64().unwrap()
}

async fn each_pool_starts_its_own<P: Place>() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    for pool in ["default", "two", "three"] {
        let mut place = P::join(&cluster, &format!("place-of-{pool}"), pool, Vec::new()).await;
        let id = submit(&client, pool).await;
        let spec = place.next_start().await;
        let granted = match &spec.slots {
            Granted::Devices(slots) => (true, slots.len()),
            Granted::Count(count) => (false, *count as usize),
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

async fn what_is_said_twice_or_late_changes_nothing<P: Place>() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut place = P::join(&cluster, "p", "default", Vec::new()).await;
    let id = submit(&client, "default").await;
    let spec = place.next_start().await;
    for observed in [
        Observed::Starting,
        running(),
        running(),
        Observed::Pulling,
        Observed::Assigned,
    ] {
        place.observes(&spec, observed).await;
    }
    let (task, _) = cluster.task_of(id).await;
    let path = format!("/api/v1/tasks/{}", task.id);
    let runs = |answer: &Value| answer["task"]["allocations"][0]["state"] == "STATE_RUNNING";
    cluster.until(&client, &path, runs).await;
    place.observes(&spec, exited(0)).await;
    place.forgets(&spec).await;
    // Of a container that is forgotten it may still hear.
    place.observes(&spec, exited(1)).await;
    until_state(&cluster, &client, id, "STATE_COMPLETED").await;
    cluster.stop().await;
}

async fn what_is_killed_is_ended_at_once<P: Place>() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut place = P::join(&cluster, "p", "default", Vec::new()).await;
    let id = submit(&client, "default").await;
    let spec = place.next_start().await;
    place.observes(&spec, running()).await;
    client
        .post(&format!("/api/v1/experiments/{id}/kill"), Value::Null)
        .await
        .ok();
    assert!(!place.next_end().await, "it is asked first");
    let exit = ContainerExit::Killed;
    place.observes(&spec, Observed::Terminated { exit }).await;
    place.forgets(&spec).await;
    until_state(&cluster, &client, id, "STATE_CANCELED").await;
    cluster.stop().await;
}

async fn a_place_comes_back_with_what_it_holds<P: Place>() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut place = P::join(&cluster, "p", "default", Vec::new()).await;
    let id = submit(&client, "default").await;
    let spec = place.next_start().await;
    place.observes(&spec, running()).await;
    place.leave().await;
    let held = vec![(
        spec.container_id.clone(),
        spec.allocation_id.clone(),
        running(),
    )];
    let mut place = P::join(&cluster, "p", "default", held).await;
    // No second start: the next that it is asked for is to forget what has ended.
    place.observes(&spec, exited(0)).await;
    place.forgets(&spec).await;
    until_state(&cluster, &client, id, "STATE_COMPLETED").await;
    assert_eq!(restarts(&client, id).await, 0);
    cluster.stop().await;
}

async fn what_a_place_ended_while_it_was_away_has_ended<P: Place>() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut place = P::join(&cluster, "p", "default", Vec::new()).await;
    let id = submit(&client, "default").await;
    let spec = place.next_start().await;
    place.observes(&spec, running()).await;
    place.leave().await;
    let held = vec![(
        spec.container_id.clone(),
        spec.allocation_id.clone(),
        exited(0),
    )];
    let mut place = P::join(&cluster, "p", "default", held).await;
    place.forgets(&spec).await;
    until_state(&cluster, &client, id, "STATE_COMPLETED").await;
    cluster.stop().await;
}

async fn what_a_place_does_not_hold_any_more_is_lost<P: Place>() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut place = P::join(&cluster, "p", "default", Vec::new()).await;
    let id = submit(&client, "default").await;
    let spec = place.next_start().await;
    place.observes(&spec, running()).await;
    let (task, _) = cluster.task_of(id).await;
    let path = format!("/api/v1/tasks/{}", task.id);
    let runs = |answer: &Value| answer["task"]["allocations"][0]["state"] == "STATE_RUNNING";
    cluster.until(&client, &path, runs).await;
    place.leave().await;
    let mut place = P::join(&cluster, "p", "default", Vec::new()).await;
    // It is not started again, which could make two; another attempt is, and is not charged.
    let again = place.next_start().await;
    assert_ne!(again.container_id, spec.container_id);
    place.observes(&again, exited(0)).await;
    place.forgets(&again).await;
    until_state(&cluster, &client, id, "STATE_COMPLETED").await;
    assert_eq!(restarts(&client, id).await, 0);
    cluster.stop().await;
}

async fn a_place_that_stays_away_is_given_up<P: Place>() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut place = P::join(&cluster, "p", "two", Vec::new()).await;
    let id = submit(&client, "two").await;
    let spec = place.next_start().await;
    place.observes(&spec, running()).await;
    place.leave().await;
    // Elsewhere, and not charged: there is no restart to spare.
    let mut other = P::join(&cluster, "q", "two", Vec::new()).await;
    let again = other.next_start().await;
    assert_ne!(again.allocation_id, spec.allocation_id);
    other.observes(&again, running()).await;
    other.observes(&again, exited(0)).await;
    other.forgets(&again).await;
    until_state(&cluster, &client, id, "STATE_COMPLETED").await;
    assert_eq!(restarts(&client, id).await, 0);
    cluster.stop().await;
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
    what_is_said_twice_or_late_changes_nothing
    what_is_killed_is_ended_at_once
    a_place_comes_back_with_what_it_holds
    what_a_place_ended_while_it_was_away_has_ended
    what_a_place_does_not_hold_any_more_is_lost
    a_place_that_stays_away_is_given_up
}
