//! What is known of a cluster: its nodes, its pods, and the Jobs of allocations. Values only: what is watched goes in, and
//! what has changed for a container or a node comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use det_ids::{AllocationId, ContainerId, PlaceId};
use det_lifecycle::container::ObservedState;
use det_pods::{JobRecord, NodeFacts, PlaceholderRecord, PodFacts, RecordedMember, Resources};
use det_taskspec::ContainerExit;
use serde_json::Value;
use tokio::time::Instant;

use crate::devices::Devices;
use crate::placed::{self, ByContainer, OnPlace};

/// An object of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Why a container ends otherwise than by itself. A later one replaces an earlier one only if it is stronger.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum End {
    /// It is asked to end.
    Asked,
    /// It is killed.
    Killed,
    /// It is given up, for this reason.
    GivenUp(ContainerExit),
}

impl End {
    fn strength(&self) -> u8 {
        match self {
            Self::Asked => 0,
            Self::Killed => 1,
            Self::GivenUp(_) => 2,
        }
    }
}

/// A container for which a Job exists.
#[derive(Debug, Clone)]
pub(crate) struct HeldContainer {
    /// The place that it was started for.
    pub(crate) place: PlaceId,
    /// The node of that place.
    pub(crate) node: String,
    /// Slots that it holds.
    pub(crate) slots: u32,
    /// What its pod takes of a node, as far as that is known before there is one.
    pub(crate) takes: Takes,
    /// Namespace and name of the Job whose pod is the container.
    pub(crate) job: ObjectKey,
    /// What was last observed of it.
    pub(crate) observed: ObservedState,
    /// Whether and how it is to end.
    pub(crate) end: Option<End>,
    /// When its Job was first seen.
    pub(crate) since: Instant,
    /// Why Kubernetes has not made its pod, as it last reported.
    pub(crate) delay: Option<String>,
    /// Digests of the lines about it that users have been shown.
    pub(crate) lines: BTreeSet<u64>,
    /// When its image was first seen to fail.
    pub(crate) fails_since: Option<Instant>,
    /// How it failed when it was last looked at.
    pub(crate) failure: Option<String>,
    /// Whether the core has stored that it has ended.
    pub(crate) stored: bool,
    /// Whether a pod of it has been seen.
    pub(crate) had_pod: bool,
    /// The pod whose gate has been opened, by its identity.
    pub(crate) released: Option<String>,
    /// The pod that has been deleted, by its identity, and with which grace in seconds; `None` = the pod's own.
    pub(crate) deleted: Option<(String, Option<u32>)>,
    /// The last request about it that failed, if none has succeeded since.
    pub(crate) trouble: Option<Trouble>,
}

/// What the pod of a container takes of its node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Takes {
    /// Amounts of each resource of Kubernetes, as the pod requests them.
    pub(crate) resources: Resources,
    /// Its demands as a key, which equal demands have in common; `None` = they are not known, since it was
    /// created before a restart, or something else decides as well where it goes.
    pub(crate) key: Option<String>,
}

/// Requests about a container that fail.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    /// Why the last one failed.
    pub(crate) reason: String,
    /// Pause before the next one.
    pub(crate) pause: Duration,
}

/// A container whose objects are being made.
#[derive(Debug, Clone)]
pub(crate) struct StartingContainer {
    /// The allocation that it is of.
    pub(crate) allocation: AllocationId,
    /// The place that it is started for.
    pub(crate) place: PlaceId,
    /// The node of that place.
    pub(crate) node: String,
    /// Slots that it holds.
    pub(crate) slots: u32,
    /// What its pod will take of the node.
    pub(crate) takes: Takes,
    /// How it is to end as soon as it exists, if it is.
    pub(crate) end: Option<End>,
}

impl HeldContainer {
    /// A container of a Job that was just seen.
    pub(crate) fn new(job: ObjectKey, member: &RecordedMember) -> Self {
        Self {
            place: member.place.clone(),
            node: member.node.clone(),
            slots: member.slots,
            takes: Takes::default(),
            job,
            observed: ObservedState::Assigned,
            end: None,
            since: Instant::now(),
            delay: None,
            lines: BTreeSet::new(),
            fails_since: None,
            failure: None,
            stored: false,
            had_pod: false,
            released: None,
            deleted: None,
            trouble: None,
        }
    }

    /// Wants it to end, unless it is to end more surely already.
    pub(crate) fn want_end(&mut self, end: End) {
        if self
            .end
            .as_ref()
            .is_none_or(|known| known.strength() < end.strength())
        {
            self.end = Some(end);
        }
    }

    /// Why the last request about it failed, if none has succeeded since.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.trouble.as_ref().map(|trouble| trouble.reason.as_str())
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.observed, ObservedState::Terminated { .. })
    }
}

impl OnPlace for HeldContainer {
    fn node(&self) -> &str {
        &self.node
    }

    fn place(&self) -> &PlaceId {
        &self.place
    }
}

impl OnPlace for StartingContainer {
    fn node(&self) -> &str {
        &self.node
    }

    fn place(&self) -> &PlaceId {
        &self.place
    }
}

/// The slots of a place that a container holds.
pub(crate) struct Share<'a> {
    pub(crate) container: &'a ContainerId,
    pub(crate) place: &'a PlaceId,
    pub(crate) slots: u32,
}

/// A Kubernetes Job of ours, as it is known here.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about the object"
)]
pub(crate) struct Job {
    pub(crate) uid: String,
    pub(crate) recorded: JobRecord,
    /// Containers that the core has let go.
    pub(crate) forgotten: BTreeSet<ContainerId>,
    /// Whether it has been asked to be deleted.
    pub(crate) deleting: bool,
    /// Whether the API has it.
    pub(crate) exists: bool,
    /// Whether it makes no pods until something resumes it.
    pub(crate) suspended: bool,
    /// When it was first seen to have ended.
    pub(crate) finished: Option<Instant>,
    /// Its Secret, and whether the Secret goes with it. That of a Job which was found after a restart may have no owner.
    pub(crate) secret: Option<String>,
    pub(crate) owns: bool,
    /// Ports of the services that the pod of its first container offers.
    pub(crate) service_ports: BTreeSet<u16>,
}

/// A pod, ours or not.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) node: Option<String>,
    /// All that it takes of its node.
    pub(crate) takes: Resources,
    /// Its Job, and its number there, if it is one of ours.
    pub(crate) job: Option<(ObjectKey, usize)>,
    /// Uid of what made it.
    pub(crate) maker: Option<String>,
    /// Its container, if it is one of ours and its Job is known.
    pub(crate) container: Option<ContainerId>,
    /// The allocation that it asks for a node for, if it is a placeholder of ours.
    pub(crate) placeholder: Option<AllocationId>,
    /// What its status means, if it is one of ours.
    pub(crate) facts: Option<PodFacts>,
    /// The parts of the pod that opening its gate changes, while it waits for that.
    pub(crate) gated: Option<Value>,
}

/// A Job of placeholders of ours.
#[derive(Debug, Clone)]
pub(crate) struct PlaceholderJob {
    pub(crate) uid: String,
    pub(crate) recorded: PlaceholderRecord,
    /// Whether it has ended by itself.
    pub(crate) finished: bool,
}

/// Everything that is known of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) nodes: BTreeMap<String, Arc<NodeFacts>>,
    /// The devices that pods claim, where slots are some.
    pub(crate) devices: Devices,
    pub(crate) pods: BTreeMap<ObjectKey, Pod>,
    /// The pods of each node.
    pods_on: BTreeMap<String, BTreeSet<ObjectKey>>,
    pub(crate) jobs: BTreeMap<ObjectKey, Job>,
    pub(crate) placeholders: BTreeMap<ObjectKey, PlaceholderJob>,
    /// The Jobs of each allocation.
    jobs_of: BTreeMap<AllocationId, BTreeSet<ObjectKey>>,
    /// The pods that name each Job of this cluster, whether it is known or not.
    pods_of: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    pub(crate) held: ByContainer<HeldContainer>,
    /// The places that are served.
    pub(crate) served: BTreeSet<PlaceId>,
    /// The pod of each container, while there is one.
    pub(crate) pod_of: BTreeMap<ContainerId, ObjectKey>,
    /// Containers whose objects are being made.
    pub(crate) starting: ByContainer<StartingContainer>,
    /// The Jobs that are being made: their pods may be seen before them.
    pub(crate) expected: BTreeSet<ObjectKey>,
    /// Those of them that are gone already, by their identity: the answer to their creation may come later than that.
    pub(crate) gone: BTreeSet<String>,
}

impl Books {
    /// The containers that a place holds, as last observed.
    pub(crate) fn held_by(&self, place: &PlaceId) -> Vec<(ContainerId, ObservedState)> {
        let is_forgotten = |id: &ContainerId, held: &HeldContainer| {
            let job = self.jobs.get(&held.job);
            job.is_some_and(|job| job.forgotten.contains(id))
        };
        let held = self.held.of_place(place);
        let held = held.filter(|(id, held)| !is_forgotten(id, held));
        held.map(|(id, held)| (id.clone(), held.observed.clone()))
            .collect()
    }

    /// The pods of a node.
    pub(crate) fn on(&self, node: &str) -> impl Iterator<Item = &Pod> {
        let names = self.pods_on.get(node).into_iter().flatten();
        names.filter_map(|name| self.pods.get(name))
    }

    /// The pods of a Job.
    pub(crate) fn of_job(&self, job: &ObjectKey) -> impl Iterator<Item = &Pod> {
        let names = self.pods_of.get(job).into_iter().flatten();
        names.filter_map(|name| self.pods.get(name))
    }

    /// Whether a container of ours is about to be on a node: its pod, if there is one, has no node yet.
    pub(crate) fn awaits(&self, node: &str) -> bool {
        let is_coming = |id: &ContainerId| {
            let pod = self.pod(id);
            pod.is_none_or(|(_, pod)| pod.node.is_none())
        };
        let mut held = self.held.on_node(node);
        held.any(|(id, held)| !held.has_ended() && is_coming(id))
            || self.starting.on_node(node).next().is_some()
    }

    /// All that pods take of a node, those included that are about to be there. Placeholders take nothing.
    pub(crate) fn used_on(&self, node: &str) -> Resources {
        let is_coming = |id: &ContainerId| {
            let pod = self.pod(id);
            pod.is_none_or(|(_, pod)| pod.node.is_none())
        };
        let held = self.held.on_node(node);
        let held = held.filter(|(id, held)| !held.has_ended() && is_coming(id));
        let held = held.map(|(_, held)| &held.takes.resources);
        let starting = self.starting.on_node(node);
        let starting = starting.filter(|(id, _)| !self.held.contains_key(*id));
        let starting = starting.map(|(_, starting)| &starting.takes.resources);
        let mut used = Resources::new();
        let stay = self.on(node).filter(|pod| pod.placeholder.is_none());
        for takes in stay.map(|pod| &pod.takes).chain(held).chain(starting) {
            for (resource, amount) in takes {
                let sum = used.entry(resource.clone()).or_insert(0_u64);
                *sum = sum.saturating_add(*amount);
            }
        }
        used
    }

    /// What containers hold that have not ended, those included whose objects are being made.
    pub(crate) fn shares<'s>(
        &'s self,
        held: impl Iterator<Item = (&'s ContainerId, &'s HeldContainer)>,
        starting: impl Iterator<Item = (&'s ContainerId, &'s StartingContainer)>,
    ) -> impl Iterator<Item = Share<'s>> {
        let held = held.filter(|(_, held)| !held.has_ended());
        let held = held.map(|(container, held)| Share {
            container,
            place: &held.place,
            slots: held.slots,
        });
        let starting = starting.filter(|(id, _)| !self.held.contains_key(*id));
        held.chain(starting.map(|(container, starting)| Share {
            container,
            place: &starting.place,
            slots: starting.slots,
        }))
    }

    /// Slots that containers of a place hold.
    pub(crate) fn used(&self, place: &PlaceId) -> u32 {
        let here = self.shares(self.held.of_place(place), self.starting.of_place(place));
        here.map(|share| share.slots).fold(0, u32::saturating_add)
    }

    /// The pod of a container, if it has one.
    pub(crate) fn pod(&self, container: &ContainerId) -> Option<(&ObjectKey, &Pod)> {
        let name = self.pod_of.get(container)?;
        Some((name, self.pods.get(name)?))
    }

    /// The other containers of an allocation.
    pub(crate) fn siblings(&self, container: &ContainerId) -> Vec<ContainerId> {
        let Some(allocation) = self.allocation_of(container) else {
            return Vec::new();
        };
        let jobs = self.jobs_of.get(&allocation).into_iter().flatten();
        let jobs = jobs.filter_map(|name| self.jobs.get(name));
        let members = jobs.flat_map(|job| &job.recorded.members);
        members
            .map(|member| member.container_id.clone())
            .filter(|id| id != container)
            .collect()
    }

    /// The allocation of a container, while a Job of it is known or is being made.
    pub(crate) fn allocation_of(&self, container: &ContainerId) -> Option<AllocationId> {
        let Some(held) = self.held.get(container) else {
            return Some(self.starting.get(container)?.allocation.clone());
        };
        Some(self.jobs.get(&held.job)?.recorded.allocation_id.clone())
    }

    /// A pod is as this; gives what it was before. Its container is found by its Job.
    pub(crate) fn put_pod(&mut self, name: ObjectKey, mut pod: Pod) -> Option<Pod> {
        // A pod that is known stays what it is: a Job that goes without its pods leaves them without a maker.
        let known = self.pods.get(&name).filter(|known| known.uid == pod.uid);
        let (container, placeholder) = known.map_or((None, None), |known| {
            (known.container.clone(), known.placeholder.clone())
        });
        pod.container = container.or_else(|| self.container_of(&pod));
        pod.placeholder = placeholder.or_else(|| self.placeholder_of(&pod));
        if let Some(container) = &pod.container {
            // Of two pods of one container, the later one counts; Jobs of ours make no second one.
            self.pod_of.insert(container.clone(), name.clone());
            if let Some(held) = self.held.get_mut(container) {
                held.had_pod = true;
            }
        }
        let known = self.pods.get(&name);
        // A pod keeps its labels, unless a user changes them.
        if let Some((job, _)) = known.and_then(|pod| pod.job.clone()) {
            placed::take(&mut self.pods_of, &job, &name);
        }
        if let Some((job, _)) = &pod.job {
            placed::add(&mut self.pods_of, job.clone(), &name);
        }
        let before = self.pods.get(&name).and_then(|pod| pod.node.clone());
        if let Some(before) = before.filter(|before| pod.node.as_ref() != Some(before)) {
            placed::take(&mut self.pods_on, before.as_str(), &name);
        }
        if let Some(node) = &pod.node {
            placed::add(&mut self.pods_on, node.clone(), &name);
        }
        self.pods.insert(name, pod)
    }

    fn container_of(&self, pod: &Pod) -> Option<ContainerId> {
        let (job, index) = pod.job.as_ref()?;
        let job = self.jobs.get(job)?;
        // Users who may create pods can give them any label.
        if pod.maker.as_ref() != Some(&job.uid) {
            return None;
        }
        let member = job.recorded.members.get(*index)?;
        Some(member.container_id.clone())
    }

    fn placeholder_of(&self, pod: &Pod) -> Option<AllocationId> {
        let (job, _) = pod.job.as_ref()?;
        let job = self.placeholders.get(job)?;
        let is_its = pod.maker.as_ref() == Some(&job.uid);
        is_its.then(|| job.recorded.allocation_id.clone())
    }

    /// Finds the containers of a Job's pods, which may have been seen before the Job.
    pub(crate) fn link_pods(&mut self, job: &ObjectKey) {
        let pods = self.pods_of.get(job).into_iter().flatten();
        let pods = pods.filter_map(|name| self.pods.get_key_value(name));
        let pods: Vec<(ObjectKey, Pod)> = pods
            .map(|(name, pod)| (name.clone(), pod.clone()))
            .collect();
        for (name, pod) in pods {
            self.put_pod(name, pod);
        }
    }

    /// Removes a pod that is gone, and gives what was known of it; `None` = nothing was.
    pub(crate) fn drop_pod(&mut self, name: &ObjectKey) -> Option<Pod> {
        let pod = self.pods.remove(name)?;
        if let Some((job, _)) = &pod.job {
            placed::take(&mut self.pods_of, job, name);
        }
        if let Some(node) = &pod.node {
            placed::take(&mut self.pods_on, node.as_str(), name);
        }
        if let Some(container) = &pod.container
            && self.pod_of.get(container) == Some(name)
        {
            self.pod_of.remove(container);
        }
        Some(pod)
    }

    /// A Job is known from now on; its containers are held already.
    pub(crate) fn put_job(&mut self, name: &ObjectKey, job: Job) {
        let allocation = job.recorded.allocation_id.clone();
        placed::add(&mut self.jobs_of, allocation.clone(), name);
        let before = self.jobs.insert(name.clone(), job);
        // Another Job of this name.
        let before = before.map(|before| before.recorded.allocation_id);
        if let Some(before) = before.filter(|before| *before != allocation) {
            placed::take(&mut self.jobs_of, &before, name);
        }
    }

    /// Whether a Job of an allocation is known.
    pub(crate) fn has_job_of(&self, allocation: &AllocationId) -> bool {
        self.jobs_of.contains_key(allocation)
    }

    /// Lets go of a Job with its containers.
    pub(crate) fn drop_job(&mut self, name: &ObjectKey) {
        if let Some(job) = self.jobs.remove(name) {
            placed::take(&mut self.jobs_of, &job.recorded.allocation_id, name);
            for member in &job.recorded.members {
                self.held.remove(&member.container_id);
                self.pod_of.remove(&member.container_id);
            }
        }
    }
}
