//! Starts and ends the containers of allocations.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_ids::{AllocationId, ContainerId, PlaceId};
use det_lifecycle::container::ObservedState;
use det_pods::{ClusterFacts, Member, Objects};
use det_rm::ContainerStart;
use det_taskspec::ContainerExit;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::books::{End, ObjectKey, StartingContainer, Takes};
use crate::classes::Classes;
use crate::creating::{self, Creation, Turns};
use crate::fitting::key_of;
use crate::gangs::{Complete, Gangs};
use crate::observing::Observer;

/// An allocation whose objects are being made.
struct ObjectCreation {
    /// Ends the creation before it is complete.
    cancel: CancellationToken,
    /// Namespaces and names of the Jobs that are created for it.
    jobs: Vec<ObjectKey>,
    /// Its containers, each with the place that it starts on.
    members: Vec<(PlaceId, ContainerId)>,
    /// How they end if nothing comes into being.
    exit: ContainerExit,
}

/// The allocations that are being started.
pub(crate) struct Starts {
    facts: Arc<ClusterFacts>,
    /// Namespace of pools that have none.
    namespace: String,
    gangs: Gangs,
    classes: Classes,
    turns: Turns,
    creating: BTreeMap<AllocationId, ObjectCreation>,
}

impl Starts {
    pub(crate) fn new(facts: ClusterFacts, namespace: String) -> Self {
        Self {
            facts: Arc::new(facts),
            namespace,
            gangs: Gangs::default(),
            classes: Classes::default(),
            turns: Turns::default(),
            creating: BTreeMap::new(),
        }
    }

    /// Whether a container's objects are being made, or exist and have not ended: it is not to be started again.
    pub(crate) fn has(observer: &Observer, id: &ContainerId) -> bool {
        let held = observer.books.held.get(id);
        observer.books.starting.contains_key(id) || held.is_some_and(|held| !held.has_ended())
    }

    /// Starts a container; its objects are made when its allocation is complete.
    pub(crate) fn start(
        &mut self,
        observer: &mut Observer,
        (place, node): (&PlaceId, String),
        start: ContainerStart,
    ) {
        if let Some(complete) = self.gangs.add(place.clone(), node, start) {
            self.create(observer, complete);
        }
    }

    /// A place is served no more: what waits for it is ordered again when it is back.
    pub(crate) fn remove_place(&mut self, place: &PlaceId) {
        self.gangs.remove_place(place);
    }

    fn create(&mut self, observer: &mut Observer, complete: Complete) {
        let Complete {
            allocation,
            members,
        } = complete;
        let places = |member: &Member| {
            let id = member.start.spec.container_id.clone();
            (member.place.clone(), id)
        };
        let places: Vec<(PlaceId, ContainerId)> = members.iter().map(places).collect();
        let (namespace, is_made) = self.namespace_of(observer, &members);
        // What is seen there from now on may be ours.
        observer.namespaces.insert(namespace.clone());
        let mut objects = match det_pods::objects(&self.facts, &namespace, &members) {
            Ok(objects) => objects,
            Err(error) => {
                let message = error.to_string();
                return end_all(observer, &places, &ContainerExit::StartFailed { message });
            }
        };
        let origin = members.first().map(|member| &member.start.origin);
        let grows = origin.is_some_and(|it| observer.settings.grows(&it.resource_pool));
        if grows {
            objects.keep_nodes();
        }
        for member in &members {
            let starting = StartingContainer {
                allocation: allocation.clone(),
                place: member.place.clone(),
                node: member.node.clone(),
                slots: member.start.spec.slots.count(),
                takes: takes(member, &objects),
                end: None,
            };
            let id = member.start.spec.container_id.clone();
            observer.agenda.nodes.insert(member.node.clone());
            observer.books.starting.insert(id, starting);
        }
        let jobs = objects.jobs.iter().map(|job| ObjectKey {
            namespace: namespace.clone(),
            name: creating::name(job).to_owned(),
        });
        let jobs: Vec<ObjectKey> = jobs.collect();
        observer.books.expected.extend(jobs.iter().cloned());
        let cancel = CancellationToken::new();
        let creation = Creation {
            api: observer.requests.api.clone(),
            allocation: allocation.clone(),
            namespace,
            is_made,
            facts: Arc::clone(&self.facts),
            members,
            at_hand: self.turns.free().map(|turn| (turn, objects)),
            turns: self.turns.clone(),
            classes: self.classes.clone(),
            cancelled: cancel.clone(),
            sender: observer.requests.sender.clone(),
        };
        self.creating.insert(
            allocation,
            ObjectCreation {
                cancel,
                jobs,
                members: places,
                exit: ContainerExit::Killed,
            },
        );
        tokio::spawn(creation.run());
    }

    /// The namespace of an allocation, and whether the manager makes it: that which it was placed in, else its pool's.
    fn namespace_of(&self, observer: &Observer, members: &[Member]) -> (String, bool) {
        let origin = members.first().map(|it| &it.start.origin);
        if let Some(placed) = origin.and_then(|origin| origin.namespace.as_ref()) {
            return (placed.name.clone(), placed.made);
        }
        let of_pool = origin.and_then(|it| observer.settings.namespace_of(&it.resource_pool));
        (of_pool.unwrap_or(&self.namespace).to_owned(), false)
    }

    /// All objects of an allocation exist.
    pub(crate) fn created(
        &mut self,
        observer: &mut Observer,
        allocation: &AllocationId,
        jobs: &[Value],
    ) {
        for job in jobs {
            if !observer.books.gone.contains(creating::uid(job)) {
                observer.job_is(job, true);
            }
        }
        self.finish(observer, allocation);
    }

    /// The creation of an allocation's objects is given up.
    pub(crate) fn abandoned(
        &mut self,
        observer: &mut Observer,
        allocation: &AllocationId,
        exit: &ContainerExit,
    ) {
        let Some(creating) = self.creating.get_mut(allocation) else {
            return;
        };
        creating.exit = exit.clone();
        for (_, id) in &creating.members {
            want_end(observer, id, &End::GivenUp(exit.clone()));
        }
    }

    /// Nothing is left of what was created of an allocation. What has been seen of it ends as it is observed to.
    pub(crate) fn undone(&mut self, observer: &mut Observer, allocation: &AllocationId) {
        let Some(creating) = self.finish(observer, allocation) else {
            return;
        };
        for (place, id) in &creating.members {
            if !observer.books.held.contains_key(id) {
                observer.ended_without_pod(place, id, creating.exit.clone());
            }
        }
    }

    /// Whether an allocation's objects are being made.
    pub(crate) fn is_creating(&self, allocation: &AllocationId) -> bool {
        self.creating.contains_key(allocation)
    }

    fn finish(
        &mut self,
        observer: &mut Observer,
        allocation: &AllocationId,
    ) -> Option<ObjectCreation> {
        let creating = self.creating.remove(allocation)?;
        for (_, id) in &creating.members {
            observer.agenda.containers.insert(id.clone());
            if let Some(starting) = observer.books.starting.remove(id) {
                observer.agenda.nodes.insert(starting.node);
            }
        }
        for job in &creating.jobs {
            observer.books.expected.remove(job);
        }
        if self.creating.is_empty() {
            observer.books.gone.clear();
        }
        Some(creating)
    }

    /// Ends a container, wherever its start has come to.
    pub(crate) fn end(
        &mut self,
        observer: &mut Observer,
        (place, id): (&PlaceId, &ContainerId),
        grace: bool,
    ) {
        if self.gangs.remove(id) {
            return observer.ended_without_pod(place, id, ContainerExit::Killed);
        }
        // One that runs is asked, although its Secret may not have its owner yet.
        let held = observer.books.held.get(id);
        let runs = held.is_some_and(|held| matches!(held.observed, ObservedState::Running { .. }));
        if !runs && self.cancel(observer, id) {
            return;
        }
        if observer.books.held.contains_key(id) {
            let end = if grace { End::Asked } else { End::Killed };
            want_end(observer, id, &end);
        } else {
            observer.ended_without_pod(place, id, ContainerExit::Killed);
        }
    }

    /// Ends the creation that a container belongs to; whether there is one.
    fn cancel(&self, observer: &mut Observer, id: &ContainerId) -> bool {
        let is_of =
            |creating: &&ObjectCreation| creating.members.iter().any(|(_, member)| member == id);
        let Some(creating) = self.creating.values().find(is_of) else {
            return false;
        };
        creating.cancel.cancel();
        for (_, id) in &creating.members {
            want_end(observer, id, &End::Killed);
        }
        true
    }

    /// The core has let a container go.
    pub(crate) fn forget(&mut self, observer: &mut Observer, id: &ContainerId) {
        self.gangs.remove(id);
        self.cancel(observer, id);
        let Some(held) = observer.books.held.get_mut(id) else {
            return;
        };
        if !held.has_ended() {
            held.want_end(End::Killed);
        }
        if let Some(job) = observer.books.jobs.get_mut(&held.job) {
            job.forgotten.insert(id.clone());
        }
        observer.agenda.containers.insert(id.clone());
    }
}

/// What the pod of a container takes of its node.
fn takes(member: &Member, objects: &Objects) -> Takes {
    let rank = &member.start.origin.member;
    let mut jobs = objects.jobs.iter().zip(&objects.ranks);
    let job = jobs.find(|(_, ranks)| ranks.contains(rank));
    let template = job.and_then(|(job, _)| job.pointer("/spec/template"));
    let pod_spec = member.start.origin.pod_spec.as_ref();
    Takes {
        resources: template.map(det_pods::requests).unwrap_or_default(),
        key: pod_spec
            .is_none_or(det_pods::demands_everything)
            .then(|| key_of(pod_spec.and_then(det_pods::demands).as_ref())),
    }
}

/// Wants a container to end, or to end as soon as it exists.
fn want_end(observer: &mut Observer, id: &ContainerId, end: &End) {
    if let Some(held) = observer.books.held.get_mut(id) {
        held.want_end(end.clone());
        observer.agenda.containers.insert(id.clone());
    } else if let Some(starting) = observer.books.starting.get_mut(id) {
        starting.end = Some(end.clone());
    }
}

fn end_all(observer: &mut Observer, members: &[(PlaceId, ContainerId)], exit: &ContainerExit) {
    for (place, id) in members {
        observer.ended_without_pod(place, id, exit.clone());
    }
}
