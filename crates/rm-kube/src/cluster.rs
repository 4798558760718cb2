//! The manager of one cluster: one task that owns what is known of it. It compares what rows want with what is watched,
//! and has requests made by tasks of their own, whose outcome comes back to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use det_ids::{AllocationId, ContainerId, PlaceId};
use det_lifecycle::container::ObservedState;
use det_pods::ClusterFacts;
use det_rm::{Changes as _, GrowthCore, LiveAttempt, NamespaceCore, Order};
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::api::{Kind, KubeApi};
use crate::books::ObjectKey;
use crate::containers::secret_is_gone;
use crate::devices::{DeviceAccess, Devices, devices_are};
use crate::exposing::ServiceExposure;
use crate::fitting::Fitting;
use crate::growing::Placeholders;
use crate::health::Troubles;
use crate::leftovers;
use crate::limits::{Bindings, Limits};
use crate::messages::{Delay, Message, Requests, WAITING};
use crate::observing::{Observer, named};
use crate::places::{Change, Places};
use crate::reach::PodReach;
use crate::small_nodes::SmallNodes;
use crate::starting::Starts;
use crate::watches::{WATCHED, WatchEvent, watches};
use crate::{ServingEnd, Settings, changed};

/// An order to end a container is repeated when its end has not been observed for this long.
const REPEAT_ENDS: Duration = Duration::from_secs(30);
/// Pause before what the core refused is tried again.
const CORE_RETRY: Duration = Duration::from_secs(1);
/// Places for which the core stores something at a time.
const STORED_AT_ONCE: usize = 32;
/// What is logged where the master may not read what tasks run without.
const UNREADABLE: &str = "objects of a Kubernetes cluster cannot be read that tasks run without: events are not in their \
    logs then, and what namespaces and quotas do not admit is placed, and refused by Kubernetes";
/// Requests that have failed for this long are noted in the manager's health.
const LONG_PAUSE: Duration = Duration::from_secs(4);

/// What a manager begins with.
pub(crate) struct ClusterState {
    /// Namespace of pools that have none.
    pub(crate) namespace: String,
    /// How devices are claimed; `None` = slots are none.
    pub(crate) claiming: Option<DeviceAccess>,
    /// The attempts that have not ended.
    pub(crate) attempts: BTreeMap<AllocationId, LiveAttempt>,
    /// The namespaces that workspaces are bound to, as the master last announced them.
    pub(crate) bindings: watch::Receiver<Bindings>,
    /// Through which the master reaches its pods.
    pub(crate) reach: PodReach,
}

/// The manager of one cluster.
pub(crate) struct Cluster<C: GrowthCore + NamespaceCore> {
    core: C,
    settings: Arc<Settings>,
    observer: Observer,
    starts: Starts,
    places: Places<C>,
    fitting: Fitting,
    /// What namespaces demand of pods.
    limits: Limits,
    /// Whether that has changed since it was last reported.
    limits_changed: bool,
    /// Whether it is time to look for Secrets that are left of an earlier manager.
    looks_for_leftovers: bool,
    bindings: watch::Receiver<Bindings>,
    growing: Placeholders,
    /// Kinds of objects of which everything must be known.
    watched: Vec<Kind>,
    /// Kinds of objects of which everything is known.
    listed: BTreeSet<Kind>,
    /// Kinds that tasks run without and that cannot be read, which is logged once.
    unreadable: BTreeSet<Kind>,
    troubles: Troubles,
    small_nodes: SmallNodes,
    /// What has services of tasks reached, where that takes objects of their own.
    exposing: Option<ServiceExposure>,
    /// Questions for pods of containers that wait for an answer.
    asked: Vec<(ContainerId, oneshot::Sender<Option<ObjectKey>>)>,
    messages: mpsc::Receiver<Message>,
}

impl<C: GrowthCore + NamespaceCore> Cluster<C> {
    pub(crate) fn new(
        core: C,
        settings: Arc<Settings>,
        facts: ClusterFacts,
        begin: ClusterState,
        api: KubeApi,
    ) -> Self {
        let ClusterState {
            namespace,
            claiming,
            attempts,
            bindings,
            reach,
        } = begin;
        let of_devices = claiming.iter().flat_map(DeviceAccess::watched);
        let watched = WATCHED.into_iter().chain(of_devices).collect();
        let (sender, messages) = mpsc::channel(WAITING);
        let identity = (settings.manager.as_str(), &settings.cluster_id);
        let exposing = ServiceExposure::begin(&settings.exposure, identity, &api, &sender);
        let (exposing, addresses) = exposing.unzip();
        reach.connected(&settings, addresses, (&api, &sender));
        let places = Places::new(core.clone(), Arc::clone(&settings), sender.clone());
        let requests = Requests { api, sender };
        let mut observer = Observer::new(
            Arc::clone(&settings),
            (&facts, &namespace),
            attempts,
            requests,
        );
        observer.books.devices = Devices::new(claiming, &observer.cluster);
        Self {
            core,
            observer,
            watched,
            limits: Limits::new(&settings, &namespace),
            limits_changed: false,
            looks_for_leftovers: false,
            bindings,
            growing: Placeholders::new(&settings, &facts, &namespace),
            starts: Starts::new(facts, namespace),
            fitting: Fitting::new(&settings),
            settings,
            places,
            listed: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            troubles: Troubles::default(),
            small_nodes: SmallNodes::default(),
            exposing,
            asked: Vec::new(),
            messages,
        }
    }

    /// Serves the cluster until the master stops, or is to serve it with other settings. Places that are not of those have
    /// left then; the others are joined again by the next one.
    pub(crate) async fn run(
        mut self,
        settings: &mut watch::Receiver<Settings>,
        shutdown: &CancellationToken,
    ) -> ServingEnd {
        let label = format!("{}={}", det_pods::CLUSTER_LABEL, self.observer.cluster);
        let mut watched = watches(&self.observer.requests.api, &self.watched, &label);
        let mut waiting = self.core.waiting_changes(&self.settings.manager);
        let mut repeat = tokio::time::interval(REPEAT_ENDS);
        repeat.reset();
        self.bindings.mark_changed();
        loop {
            let holds = self.observer.holds.next_due();
            let due = self
                .observer
                .agenda
                .next_due()
                .into_iter()
                .chain(holds)
                .chain(self.growing.next_due())
                .min();
            tokio::select! {
                () = shutdown.cancelled() => return ServingEnd::Stopped,
                () = changed(settings) => {
                    let next = settings.borrow().clone();
                    self.places.leave_others(&self.observer, &next).await;
                    return ServingEnd::Replaced;
                }
                seen = watched.next() => match seen {
                    Some(seen) => self.see(seen),
                    None => return ServingEnd::Stopped,
                },
                Some(message) = self.messages.recv() => self.receive(message),
                () = waiting.changed() => self.growing.is_outdated = true,
                _ = repeat.tick() => self.repeat_ends(),
                Ok(()) = self.bindings.changed() => {
                    let bindings = self.bindings.borrow_and_update();
                    self.limits_changed |= self.limits.bound(&bindings);
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.observer.agenda.come_due();
                    let over = self.observer.holds.come_due(Instant::now());
                    self.observer.agenda.nodes.extend(over);
                }
            }
            // What has come meanwhile is handled together, and no more than that: which nodes fit is compared once for all.
            for _ in 0..WAITING {
                let Some(seen) = watched.next().now_or_never() else {
                    break;
                };
                match seen {
                    Some(seen) => self.see(seen),
                    None => return ServingEnd::Stopped,
                }
            }
            for _ in 0..WAITING {
                let Ok(message) = self.messages.try_recv() else {
                    break;
                };
                self.receive(message);
            }
            self.carry_out_what_follows().await;
            if std::mem::take(&mut self.looks_for_leftovers) {
                self.delete_leftovers().await;
            }
            self.grow();
            offer_services(&mut self);
        }
    }

    /// Has the cluster asked for nodes for what waits now.
    fn grow(&mut self) {
        if !self.is_complete() {
            return;
        }
        let manager = &self.settings.manager;
        if self.growing.is_outdated && self.growing.is_used() {
            self.growing.wait(self.core.waiting(manager));
        }
        if let Some(growth) = self.growing.look(&mut self.observer, &self.limits) {
            self.core.report_growth(manager, growth);
        }
    }

    /// Deletes Secrets that are left of an earlier manager.
    async fn delete_leftovers(&mut self) {
        if !leftovers::may_be_left(&mut self.observer, &self.starts) {
            return;
        }
        match self.core.namespaces(&self.settings.manager).await {
            Ok(known) => leftovers::delete(&mut self.observer, &known.in_use),
            // It is tried again with the repeated orders.
            Err(error) => {
                let manager = &self.settings.manager;
                tracing::warn!(manager, %error, "which attempts have not ended could not be read");
            }
        }
    }

    /// Everything that is to be done after something has changed. Nothing is done while what is known is not complete.
    async fn carry_out_what_follows(&mut self) {
        if !self.is_complete() {
            return;
        }
        for (container, answer) in self.asked.drain(..) {
            let pod = self.observer.books.pod_of.get(&container).cloned();
            // Who asked may have given up.
            drop(answer.send(pod));
        }
        loop {
            for container in std::mem::take(&mut self.observer.agenda.containers) {
                self.observer.look_at(&container);
                if self.has_ended(&container) && self.troubles.request(&container, None) {
                    self.report_health();
                }
            }
            self.store_reports().await;
            self.store_notes().await;
            let nodes = std::mem::take(&mut self.observer.agenda.nodes);
            // Before a place joins: what does not fit it is not placed there.
            let limits = (&self.limits, std::mem::take(&mut self.limits_changed));
            if let Some(fit) = self.fitting.update(&self.observer, &nodes, limits) {
                self.core.report_fit(&self.settings.manager, fit);
            }
            self.look_for_slots(&nodes);
            for node in nodes {
                self.serve_node(&node).await;
            }
            for place in std::mem::take(&mut self.observer.agenda.places) {
                self.reconcile(&place).await;
            }
            let agenda = &self.observer.agenda;
            if agenda.is_empty() || agenda.retry_at.is_some() {
                return;
            }
        }
    }

    /// Whether everything is known of the kinds that matter.
    fn is_complete(&self) -> bool {
        self.watched.iter().all(|kind| self.listed.contains(kind))
    }

    fn has_ended(&self, id: &ContainerId) -> bool {
        let held = self.observer.books.held.get(id);
        held.is_none_or(crate::books::HeldContainer::has_ended)
    }

    fn see(&mut self, seen: WatchEvent) {
        let Some(seen) = self.see_limits(seen) else {
            return;
        };
        let observer = &mut self.observer;
        match seen {
            WatchEvent::Applied(Kind::Node, node) => observer.node_is(&node),
            WatchEvent::Applied(Kind::Pod, pod) => observer.pod_is(&pod),
            WatchEvent::Applied(Kind::Job, job) => observer.job_is(&job, false),
            WatchEvent::Gone(Kind::Node, node) => {
                observer.node_is_gone(crate::creating::name(&node));
            }
            WatchEvent::Gone(Kind::Pod, pod) => {
                // Its last state may hold how it ended.
                observer.pod_is(&pod);
                observer.pod_is_gone(&named(&pod));
            }
            WatchEvent::Gone(Kind::Job, job) => observer.job_is_gone(&named(&job)),
            WatchEvent::Applied(kind @ (Kind::ResourceSlice(_) | Kind::ResourceClaim(_)), it) => {
                devices_are(observer, kind, &it, true);
            }
            WatchEvent::Gone(kind @ (Kind::ResourceSlice(_) | Kind::ResourceClaim(_)), it) => {
                devices_are(observer, kind, &it, false);
            }
            WatchEvent::Applied(Kind::Event, event) => {
                // What the first list contains has happened before this manager began, and was noted then.
                if self.listed.contains(&Kind::Event) {
                    observer.event_is(&event);
                }
            }
            WatchEvent::Listing(Kind::Event) => {}
            WatchEvent::Listed(Kind::Event, _) => {
                self.unreadable.remove(&Kind::Event);
                self.listed.insert(Kind::Event);
            }
            WatchEvent::Listing(kind) => {
                self.listed.remove(&kind);
            }
            WatchEvent::Listed(kind, present) => {
                observer.only_present(kind, &present);
                self.listed.insert(kind);
                if self.is_complete() {
                    self.report_health();
                }
            }
            WatchEvent::Failed(Kind::Event, reason) => self.cannot_read(Kind::Event, &reason),
            WatchEvent::Failed(kind, reason) => {
                tracing::warn!(
                    manager = self.settings.manager,
                    kind = kind.word(),
                    reason,
                    "a watch of a Kubernetes cluster was broken off"
                );
                let requests = &observer.requests;
                self.troubles
                    .watch_failed(kind, &requests.api, &requests.sender);
            }
            WatchEvent::Applied(..) | WatchEvent::Gone(..) => {}
        }
    }

    /// Applies what concerns namespaces and quotas; gives back what concerns something else.
    fn see_limits(&mut self, seen: WatchEvent) -> Option<WatchEvent> {
        let has_changed = match seen {
            WatchEvent::Applied(kind @ (Kind::Namespace | Kind::Quota), object) => {
                self.limits.is(kind, &object)
            }
            WatchEvent::Gone(kind @ (Kind::Namespace | Kind::Quota), object) => {
                self.limits.is_gone(kind, &object)
            }
            WatchEvent::Listing(Kind::Namespace | Kind::Quota) => false,
            WatchEvent::Listed(kind @ (Kind::Namespace | Kind::Quota), present) => {
                self.unreadable.remove(&kind);
                self.limits.only_present(kind, &present)
            }
            WatchEvent::Failed(kind @ (Kind::Namespace | Kind::Quota), reason) => {
                self.cannot_read(kind, &reason);
                false
            }
            other => return Some(other),
        };
        self.limits_changed |= has_changed;
        None
    }

    /// Objects cannot be read that tasks run without.
    fn cannot_read(&mut self, kind: Kind, reason: &str) {
        if self.unreadable.insert(kind) {
            let (manager, kind) = (&self.settings.manager, kind.word());
            tracing::warn!(manager, kind, reason, "{UNREADABLE}");
        }
    }

    fn report_health(&self) {
        let health = self.troubles.health();
        self.core.report_health(&self.settings.manager, health);
    }

    fn receive(&mut self, message: Message) {
        let observer = &mut self.observer;
        let is_news = match message {
            Message::Wanted(place) => {
                observer.agenda.places.insert(place);
                false
            }
            Message::Taken(place, number) => {
                if let Some(node) = self.places.taken(&place, number) {
                    self.starts.remove_place(&place);
                    observer.has_left(&place);
                    observer.agenda.nodes.insert(node);
                }
                false
            }
            Message::Created(allocation, jobs) => {
                self.starts.created(observer, &allocation, &jobs);
                self.troubles.creation(&allocation, None)
            }
            Message::Delayed(allocation, reason, delay) => {
                tracing::warn!(
                    allocation.id = allocation.as_str(),
                    reason,
                    "the objects of an allocation cannot be created or deleted yet"
                );
                delay == Delay::Long && self.troubles.creation(&allocation, Some(reason))
            }
            Message::Abandoned(allocation, exit) => {
                self.starts.abandoned(observer, &allocation, &exit);
                self.troubles.creation(&allocation, None)
            }
            Message::Undone(allocation) => {
                self.starts.undone(observer, &allocation);
                self.troubles.creation(&allocation, None)
            }
            Message::Failed(container, reason) => {
                tracing::warn!(
                    container.id = container.as_str(),
                    reason,
                    "a request to Kubernetes failed"
                );
                let pause = observer.ask_again(&container, reason.clone());
                pause >= LONG_PAUSE && self.troubles.request(&container, Some(reason))
            }
            Message::Succeeded(container) => {
                if let Some(held) = observer.books.held.get_mut(&container) {
                    held.trouble = None;
                }
                self.troubles.request(&container, None)
            }
            Message::SecretGone(container, secret) => {
                secret_is_gone(observer, &container, &secret);
                false
            }
            Message::Grown(allocation, outcome) => {
                self.growing.requested(observer, &allocation, outcome);
                false
            }
            Message::PodOf(container, answer) => {
                self.asked.retain(|(_, waiting)| !waiting.is_closed());
                self.asked.push((container, answer));
                false
            }
            Message::Noted(place, container, line) => {
                observer.agenda.notes.push((place, container, line));
                false
            }
            Message::Unexposed { reason, is_new } => {
                if let Some(reason) = reason.as_ref().filter(|_| is_new) {
                    let manager = &self.settings.manager;
                    tracing::warn!(manager, reason, "services of tasks cannot be reached");
                }
                self.troubles.unexposed = reason;
                true
            }
            Message::Probed(kind, outcome) => self.troubles.probed(kind, outcome),
        };
        if is_news {
            self.report_health();
        }
    }

    fn repeat_ends(&mut self) {
        self.looks_for_leftovers = true;
        self.observer
            .agenda
            .places
            .extend(self.places.repeat_ends());
        self.observer.repeat_ends();
    }

    fn retry(&mut self, what: &str, error: &C::Error) {
        tracing::warn!(manager = self.settings.manager, %error, "{what}; it is tried again");
        self.observer.agenda.retry_at = Some(Instant::now() + CORE_RETRY);
    }

    /// Stores what was observed, place by place.
    async fn store_reports(&mut self) {
        let mut by_place: BTreeMap<PlaceId, Vec<(ContainerId, ObservedState)>> = BTreeMap::new();
        for (place, id, observed) in std::mem::take(&mut self.observer.agenda.reports) {
            // What is assigned to a place that is not served is reported when it joins.
            if observed == ObservedState::Assigned && self.places.node(&place).is_none() {
                continue;
            }
            self.places.received(&place, &id, &observed);
            by_place.entry(place).or_default().push((id, observed));
        }
        let core = &self.core;
        let stored = by_place.into_iter().map(|(place, reports)| async move {
            let stored = core.observed(&place, reports.clone()).await;
            (place, reports, stored)
        });
        let stored = futures::stream::iter(stored).buffered(STORED_AT_ONCE);
        let stored: Vec<_> = stored.collect().await;
        for (place, reports, outcome) in stored {
            let agenda = &mut self.observer.agenda;
            let Err(error) = outcome else {
                for (id, _) in reports.iter().filter(|(_, observed)| is_end(observed)) {
                    if let Some(held) = self.observer.books.held.get_mut(id) {
                        held.stored = true;
                    }
                    agenda.containers.insert(id.clone());
                }
                agenda.places.insert(place);
                continue;
            };
            for (id, observed) in reports {
                agenda.report(&place, &id, observed);
            }
            self.retry(
                "what was observed of containers could not be stored",
                &error,
            );
        }
    }

    /// Adds lines to the logs of containers' tasks.
    async fn store_notes(&mut self) {
        let mut by_place: BTreeMap<PlaceId, Vec<(ContainerId, String)>> = BTreeMap::new();
        for (place, id, line) in std::mem::take(&mut self.observer.agenda.notes) {
            by_place.entry(place).or_default().push((id, line));
        }
        for (place, lines) in by_place {
            if let Err(error) = self.core.noted(&place, lines).await {
                // They are for users only, who find them in Kubernetes too.
                tracing::warn!(manager = self.settings.manager, %error, "events of pods could not be logged");
            }
        }
    }

    /// Finds out why nodes have no slots.
    fn look_for_slots(&mut self, nodes: &BTreeSet<String>) {
        let (known, slots) = (&self.observer.books.nodes, self.settings.slots.usual());
        for node in nodes {
            let facts = known.get(node).map(AsRef::as_ref);
            self.small_nodes.update(node, facts, slots);
        }
        let (trouble, is_news) = self.small_nodes.trouble(known.len(), slots);
        if is_news {
            self.troubles.no_slots = trouble;
            self.report_health();
        }
    }

    /// Has the places of a node joined, left, or joined again with other slots.
    async fn serve_node(&mut self, node: &str) {
        for pool in 0..self.settings.pools.len() {
            for (place, change) in self.places.serve(&self.observer, node, pool).await {
                match change {
                    Change::None => {}
                    Change::Joined => {
                        self.observer.books.served.insert(place.clone());
                        self.observer.agenda.places.insert(place);
                    }
                    Change::Left => {
                        self.starts.remove_place(&place);
                        self.observer.has_left(&place);
                    }
                    Change::Failed(error) => {
                        self.observer.agenda.nodes.insert(node.to_owned());
                        self.retry("a node could not be stored as a place", &error);
                    }
                }
            }
        }
    }

    /// Compares what rows want of a place with what is known of it, and does what is missing.
    async fn reconcile(&mut self, place: &PlaceId) {
        if self.places.node(place).is_none() {
            return;
        }
        let rows = match self.core.desired(place).await {
            Ok(rows) => rows,
            Err(error) => {
                self.observer.agenda.places.insert(place.clone());
                return self.retry("what is wanted of a node could not be read", &error);
            }
        };
        for order in self.places.orders(place, &rows) {
            if let Err(error) = self.carry_out(place, &order).await {
                self.observer.agenda.places.insert(place.clone());
                return self.retry("an order could not be carried out", &error);
            }
        }
    }

    async fn carry_out(&mut self, place: &PlaceId, order: &Order) -> Result<(), C::Error> {
        let observer = &mut self.observer;
        match order {
            // Its objects were being made already when its place was away for a moment.
            Order::Start(id) if Starts::has(observer, id) => {}
            Order::Start(id) => {
                let Some(start) = self.core.specification(place, id).await? else {
                    return Ok(());
                };
                let node = self.places.node(place).unwrap_or_default().to_owned();
                self.starts.start(observer, (place, node), start);
            }
            Order::End {
                container_id,
                grace,
            } => self.starts.end(observer, (place, container_id), *grace),
            Order::NeverStarted(id) if Starts::has(observer, id) => {
                self.starts.end(observer, (place, id), false);
            }
            Order::NeverStarted(id) => {
                self.core.never_started(id).await?;
                self.looks_for_leftovers = true;
            }
            Order::Forget(id) => self.starts.forget(observer, id),
        }
        self.places.sent(place, order);
        Ok(())
    }
}

/// Has services of tasks reached that have begun, and what was made for others removed.
fn offer_services<C: GrowthCore + NamespaceCore>(cluster: &mut Cluster<C>) {
    if let Some(exposing) = &cluster.exposing
        && cluster.is_complete()
        && std::mem::take(&mut cluster.observer.services_changed)
    {
        exposing.update(&cluster.observer.books);
    }
}

fn is_end(observed: &ObservedState) -> bool {
    matches!(observed, ObservedState::Terminated { .. })
}
