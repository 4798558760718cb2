//! A resource manager that runs nothing: places whose slots are only counted, over [`det_rm::Core`] alone.

use std::collections::BTreeMap;

use det_ids::{ContainerId, PlaceId};
use det_lifecycle::container::ObservedState;
use det_rm::{Changes as _, ContainerStart, Core, JoinedPlace, Order, PlaceDetails, PlaceView};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::core::counted;
use crate::{StartOrder, Subject, TestCore, within};

/// A place that runs nothing.
pub struct FakePlace<C: Core> {
    core: C,
    place: PlaceId,
    lease: C::Lease,
    changes: C::Changes,
    view: PlaceView,
}

/// What a [`FakePlace`] is to do.
#[derive(Debug)]
pub enum Task {
    /// Start a container.
    Start(Box<ContainerStart>),
    /// End a container.
    End {
        /// Id of the container to end.
        container_id: ContainerId,
        /// Whether it is asked first.
        grace: bool,
    },
    /// Forget a container.
    Forget(ContainerId),
}

impl<C: Core> FakePlace<C> {
    /// Joins a pool with so many slots, and everything it holds.
    ///
    /// # Panics
    /// The core does not accept it.
    pub async fn join(
        core: C,
        id: &str,
        slots: u32,
        pool: &str,
        containers: Vec<(ContainerId, ObservedState)>,
    ) -> Self {
        let place = PlaceId::from(id);
        let changes = core.changes(&place);
        let view = containers.iter().cloned().collect();
        let joined = JoinedPlace {
            place: place.clone(),
            resource_pool: pool.to_owned(),
            capacity: counted(slots),
            instance: format!("instance of {id}").into(),
            containers,
            details: PlaceDetails::default(),
        };
        let lease = core.joined(joined).await;
        Self {
            lease: lease.unwrap_or_else(|error| panic!("place {id} could not join: {error}")),
            core,
            place,
            changes,
            view,
        }
    }

    /// The next thing to do.
    ///
    /// # Panics
    /// There is nothing for too long, or the core fails.
    pub async fn next(&mut self) -> Task {
        let what = format!("something to do at {}", self.place);
        within(&what, self.next_task()).await
    }

    /// The next thing to do, however long it takes.
    async fn next_task(&mut self) -> Task {
        let place = self.place.clone();
        loop {
            let rows = self.core.desired(&place).await;
            let rows = rows.unwrap_or_else(|error| panic!("what is wanted of {place}: {error}"));
            let next = self.view.orders(&rows, None).into_iter().next();
            let Some(order) = next else {
                self.changes.changed().await;
                continue;
            };
            if let Some(task) = self.take(order).await {
                return task;
            }
        }
    }

    async fn take(&mut self, order: Order) -> Option<Task> {
        let task = match &order {
            Order::Start(id) => {
                let start = self.core.specification(&self.place, id).await;
                Some(Task::Start(Box::new(
                    start.unwrap_or_else(|error| failed(&order, &error))?,
                )))
            }
            Order::End {
                container_id,
                grace,
            } => Some(Task::End {
                container_id: container_id.clone(),
                grace: *grace,
            }),
            Order::NeverStarted(id) => {
                let stored = self.core.never_started(id).await;
                stored.unwrap_or_else(|error| failed(&order, &error));
                None
            }
            Order::Forget(id) => Some(Task::Forget(id.clone())),
        };
        self.view.sent(&order);
        task
    }

    /// Reports what it has observed of a container.
    ///
    /// # Panics
    /// The core fails.
    pub async fn observes(&mut self, id: &ContainerId, observed: ObservedState) {
        self.view.received(id, observed.clone());
        let observed = vec![(id.clone(), observed)];
        let stored = self.core.observed(&self.place, observed).await;
        stored.unwrap_or_else(|error| panic!("a report on container {id}: {error}"));
    }

    /// Is away from now on.
    ///
    /// # Panics
    /// The core fails.
    pub async fn leave(self) {
        let left = self.core.left(&self.place, &self.lease).await;
        left.unwrap_or_else(|error| panic!("the leaving of place {}: {error}", self.place));
    }
}

fn failed<T>(order: &Order, error: &dyn std::error::Error) -> T {
    panic!("{order:?}: {error}")
}

/// The manager of such places, with an outside world that keeps what they hold.
pub struct FakeManager {
    core: TestCore,
    places: BTreeMap<String, Outside>,
}

/// A place in the outside world.
#[derive(Default)]
struct Outside {
    slots: u32,
    connection: Option<Connection>,
    held: BTreeMap<ContainerId, ObservedState>,
}

/// A place that is served by a task of its own.
struct Connection {
    orders: mpsc::UnboundedReceiver<Task>,
    reports: mpsc::UnboundedSender<(ContainerId, ObservedState)>,
    serving: JoinHandle<()>,
}

impl Connection {
    fn of(mut place: FakePlace<TestCore>) -> Self {
        let (given, orders) = mpsc::unbounded_channel();
        let (reports, mut received) = mpsc::unbounded_channel();
        let serving = tokio::spawn(async move {
            loop {
                tokio::select! {
                    task = place.next_task() => {
                        if given.send(task).is_err() {
                            break;
                        }
                    }
                    report = received.recv() => match report {
                        Some((id, observed)) => place.observes(&id, observed).await,
                        None => break,
                    },
                }
            }
            place.leave().await;
        });
        Self {
            orders,
            reports,
            serving,
        }
    }

    /// Its end is stored when this returns.
    async fn end(self) {
        drop((self.orders, self.reports));
        if let Err(error) = self.serving.await {
            panic!("a place was served no more: {error}");
        }
    }
}

impl FakeManager {
    fn place(&mut self, place: &str) -> &mut Outside {
        self.places.entry(place.to_owned()).or_default()
    }

    async fn next(&mut self, place: &str) -> Task {
        let Some(connection) = &mut self.place(place).connection else {
            panic!("place {place} is not connected");
        };
        let what = format!("an order to {place}");
        let order = within(&what, connection.orders.recv()).await;
        order.unwrap_or_else(|| panic!("{what}: its connection has ended"))
    }
}

impl Subject for FakeManager {
    const NAMED: bool = false;

    async fn start(core: TestCore) -> Self {
        Self {
            core,
            places: BTreeMap::new(),
        }
    }

    async fn restart(&mut self) {
        let places: Vec<String> = self.places.keys().cloned().collect();
        for place in places {
            if let Some(connection) = self.place(&place).connection.take() {
                connection.end().await;
                self.returns(&place).await;
            }
        }
    }

    async fn appears(&mut self, place: &str, slots: u32) {
        self.place(place).slots = slots;
        self.returns(place).await;
    }

    async fn leaves(&mut self, place: &str) {
        if let Some(connection) = self.place(place).connection.take() {
            connection.end().await;
        }
    }

    async fn returns(&mut self, place: &str) {
        let core = self.core.clone();
        let outside = self.place(place);
        let held = outside.held.clone().into_iter().collect();
        let joined = FakePlace::join(core, place, outside.slots, "default", held).await;
        let older = outside.connection.replace(Connection::of(joined));
        // The end of the older connection is noticed after the newer one has joined.
        if let Some(older) = older {
            older.end().await;
        }
    }

    async fn next_start(&mut self, place: &str) -> StartOrder {
        match self.next(place).await {
            Task::Start(start) => {
                let id = start.spec.container_id.clone();
                self.observes(place, &id, ObservedState::Assigned).await;
                start.spec.into()
            }
            other => panic!("place {place}: expected a start, found {other:?}"),
        }
    }

    async fn next_end(&mut self, place: &str, container: &ContainerId) -> bool {
        match self.next(place).await {
            Task::End {
                container_id,
                grace,
            } if container_id == *container => grace,
            other => panic!("place {place}: expected the end of {container}, found {other:?}"),
        }
    }

    async fn next_forget(&mut self, place: &str, container: &ContainerId) {
        match self.next(place).await {
            Task::Forget(id) if id == *container => {
                self.place(place).held.remove(container);
            }
            other => panic!("place {place}: expected to forget {container}, found {other:?}"),
        }
    }

    async fn observes(&mut self, place: &str, container: &ContainerId, observed: ObservedState) {
        let outside = self.place(place);
        outside.held.insert(container.clone(), observed.clone());
        if let Some(connection) = &outside.connection
            && connection
                .reports
                .send((container.clone(), observed))
                .is_err()
        {
            panic!("place {place}: its connection has ended");
        }
    }

    async fn loses(&mut self, place: &str, container: &ContainerId) {
        self.place(place).held.remove(container);
    }
}
