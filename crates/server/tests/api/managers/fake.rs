//! A resource manager that runs nothing: places whose slots are only counted, over [`det_rm::Core`] alone. It is the double of
//! every manager that is not the one of agents.

use det_ids::{ContainerId, PlaceId};
use det_lifecycle::container::Observed;
use det_rm::{Capacity, Core, Joined, Order, PlaceView};
use det_server::app::places::Places;
use det_taskspec::{ContainerSpec, DeviceKind};

use crate::support::{Cluster, within};

/// A place of the manager.
pub(crate) struct FakePlace {
    core: Places,
    place: PlaceId,
    lease: <Places as Core>::Lease,
    changes: <Places as Core>::Changes,
    view: PlaceView,
}

/// What the place is to do.
#[derive(Debug)]
pub(crate) enum Task {
    Start(Box<ContainerSpec>),
    End { grace: bool },
    Forget(ContainerId),
}

impl FakePlace {
    /// Joins with everything it holds.
    pub(crate) async fn join(
        cluster: &Cluster,
        id: &str,
        slots: u32,
        pool: &str,
        containers: Vec<(ContainerId, Observed)>,
    ) -> Self {
        let core = cluster.master().places.clone();
        let place = PlaceId::from(id);
        let changes = core.changes(&place);
        let view = containers.iter().cloned().collect();
        let joined = Joined {
            place: place.clone(),
            resource_pool: pool.to_owned(),
            capacity: Capacity::Count {
                slots,
                kind: DeviceKind::Cuda,
            },
            instance: format!("instance of {id}"),
            containers,
        };
        let lease = core.joined(joined).await.unwrap();
        Self {
            core,
            place,
            lease,
            changes,
            view,
        }
    }

    /// The next thing to do.
    pub(crate) async fn next(&mut self) -> Task {
        let place = self.place.clone();
        within(&format!("something to do at {place}"), async {
            loop {
                let rows = self.core.desired(&self.place).await.unwrap();
                let next = self.view.orders(&rows, None).into_iter().next();
                let Some(order) = next else {
                    self.changes.changed().await;
                    continue;
                };
                if let Some(task) = self.take(order).await {
                    return task;
                }
            }
        })
        .await
    }

    async fn take(&mut self, order: Order) -> Option<Task> {
        let task = match &order {
            Order::Start(id) => {
                let spec = self.core.specification(&self.place, id).await.unwrap()?;
                Some(Task::Start(Box::new(spec)))
            }
            Order::End { grace, .. } => Some(Task::End { grace: *grace }),
            Order::NeverStarted(id) => {
                self.core.never_started(id).await.unwrap();
                None
            }
            Order::Forget(id) => Some(Task::Forget(id.clone())),
        };
        self.view.sent(&order);
        task
    }

    /// Reports what it has observed of a container.
    pub(crate) async fn observes(&mut self, id: &ContainerId, observed: Observed) {
        self.view.received(id, observed.clone());
        let observed = vec![(id.clone(), observed)];
        self.core.observed(&self.place, observed).await.unwrap();
    }

    /// Is away from now on.
    pub(crate) async fn leave(self) {
        self.core.left(&self.place, &self.lease).await.unwrap();
    }
}
