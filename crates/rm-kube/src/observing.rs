//! What is watched of a cluster, taken into the books.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use det_ids::{AllocationId, ContainerId, PlaceId};
use det_lifecycle::container::ObservedState;
use det_pods::{
    ClusterFacts, DRAIN_NO_EXECUTE, JobRecord, RecordedMember, drain_label, label_value,
};
use det_rm::LiveAttempt;
use det_taskspec::ContainerExit;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::agenda::Agenda;
use crate::api::Kind;
use crate::books::{Books, End, HeldContainer, Job, ObjectKey, PlaceholderJob, Pod};
use crate::creating::{name, uid};
use crate::events::EarlyNotes;
use crate::foreign::ForeignJobs;
use crate::holding::Holds;
use crate::leftovers;
use crate::messages::Requests;
use crate::{Exposure, Settings};

/// What an object is called.
pub(crate) fn named(object: &Value) -> ObjectKey {
    let namespace = object
        .pointer("/metadata/namespace")
        .and_then(Value::as_str);
    ObjectKey {
        namespace: namespace.unwrap_or_default().to_owned(),
        name: name(object).to_owned(),
    }
}

/// Uid of the object that manages a pod.
fn maker(pod: &Value) -> Option<String> {
    let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    let manages = |owner: &&Value| owner.get("controller") == Some(&Value::Bool(true));
    let uid = owners.iter().find(manages)?.get("uid")?.as_str()?;
    Some(uid.to_owned())
}

/// Whether a Job has ended, whichever way.
fn has_finished(job: &Value) -> bool {
    let conditions = job.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        let is = |key: &str, values: &[&str]| {
            let value = condition.get(key).and_then(Value::as_str);
            value.is_some_and(|value| values.contains(&value))
        };
        is("type", &["Complete", "Failed"]) && is("status", &["True"])
    })
}

/// Whether a Job makes no pods until something resumes it.
fn is_suspended(job: &Value) -> bool {
    job.pointer("/spec/suspend") == Some(&Value::Bool(true))
}

/// The line for users about a Job that is made suspended.
fn waits_suspended(job: &Value) -> String {
    let labels = job.pointer("/metadata/labels");
    let queue = labels.and_then(|labels| labels.get("kueue.x-k8s.io/queue-name")?.as_str());
    let ObjectKey { namespace, name } = named(job);
    let queue = queue.map_or_else(String::new, |queue| {
        format!(" in the LocalQueue \"{queue}\"")
    });
    format!(
        "Job {name}: waits{queue} until Kueue resumes it; \"kubectl -n {namespace} get workloads\" shows why"
    )
}

fn is_own_gate(gate: &Value) -> bool {
    gate.get("name").and_then(Value::as_str) == Some(det_pods::PLACEMENT_GATE)
}

fn annotations(object: &Value) -> BTreeMap<String, String> {
    let found = object
        .pointer("/metadata/annotations")
        .and_then(Value::as_object);
    let found = found.into_iter().flatten();
    found
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The Secret of a Job: it has the name of the allocation's first Job.
fn secret_of(job: &Value) -> Option<String> {
    let volumes = job.pointer("/spec/template/spec/volumes")?.as_array()?;
    let secrets = volumes
        .iter()
        .filter_map(|volume| volume.pointer("/secret/secretName")?.as_str());
    let mut secrets = secrets.filter(|secret| {
        let rest = name(job).strip_prefix(secret);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("-r"))
    });
    secrets.next().map(str::to_owned)
}

/// Whether a Job that is not known yet is one of ours. Users who may create Jobs somewhere can give them our labels and any
/// record, also under the name of one that is about to be made, but not its seal.
///
/// Over an upgrade Jobs go on that were made before records were sealed as they are now: those that exist when the manager
/// begins are ours as well if they have the former seal, or if they are older than any seal, and of an attempt that has not
/// ended, was placed before there were seals, and in that namespace. The time of a Job's creation is the API server's.
fn is_ours(observer: &Observer, (job, name): (&Value, &ObjectKey), recorded: &JobRecord) -> bool {
    let seal = &observer.settings.seal;
    if seal.is_on(job) {
        return true;
    }
    if !observer.adopts {
        return false;
    }
    if seal.was_on(job) {
        return true;
    }
    if !seal.began_after(job) {
        return false;
    }
    let Some(attempt) = observer.attempts.get(&recorded.allocation_id) else {
        return false;
    };
    let is_there = match &attempt.namespace {
        Some(placed_in) => *placed_in == name.namespace,
        None => observer.of_pools.contains(&name.namespace),
    };
    is_there && seal.began_after_placing(attempt.placed_at)
}

/// What is known of a cluster, and what follows from what is watched.
pub(crate) struct Observer {
    pub(crate) settings: Arc<Settings>,
    pub(crate) books: Books,
    pub(crate) agenda: Agenda,
    pub(crate) holds: Holds,
    pub(crate) early: EarlyNotes,
    pub(crate) requests: Requests,
    /// Namespaces that objects of ours are in.
    pub(crate) namespaces: BTreeSet<String>,
    /// Those of these namespaces that are the pools' own.
    pub(crate) of_pools: BTreeSet<String>,
    /// The attempts that had not ended when the manager began; none any more when all Jobs that existed have been listed.
    attempts: BTreeMap<AllocationId, LiveAttempt>,
    /// Those of them that had no Job then, as far as they may have a Secret that an earlier manager has made.
    pub(crate) unmade: BTreeMap<AllocationId, LiveAttempt>,
    pub(crate) foreign: ForeignJobs,
    /// Whether Jobs that are not expected may be ours: until all that exist have been listed once.
    pub(crate) adopts: bool,
    /// Whether services of allocations may have begun or ended since that was last looked at.
    pub(crate) services_changed: bool,
    /// Value of the label of our objects.
    pub(crate) cluster: String,
    /// Key of the label that keeps our pods off a node.
    pub(crate) drain_label: String,
}

impl Observer {
    /// `namespace` = that of pools which have none; `attempts` = those that have not ended.
    pub(crate) fn new(
        settings: Arc<Settings>,
        (facts, namespace): (&ClusterFacts, &str),
        attempts: BTreeMap<AllocationId, LiveAttempt>,
        requests: Requests,
    ) -> Self {
        let pools = settings
            .pools
            .iter()
            .map(|pool| settings.namespace_of(&pool.name));
        let of_pools = pools.map(|own| own.unwrap_or(namespace).to_owned());
        let of_pools: BTreeSet<String> = of_pools.collect();
        Self {
            namespaces: of_pools
                .iter()
                .chain(attempts.values().filter_map(|it| it.namespace.as_ref()))
                .cloned()
                .collect(),
            of_pools,
            attempts,
            unmade: BTreeMap::new(),
            adopts: true,
            services_changed: true,
            foreign: ForeignJobs::default(),
            settings,
            books: Books::default(),
            agenda: Agenda::default(),
            holds: Holds::default(),
            early: EarlyNotes::default(),
            requests,
            cluster: label_value(facts.cluster_id.as_str()),
            drain_label: drain_label(&facts.cluster_id),
        }
    }

    pub(crate) fn node_is(&mut self, node: &Value) {
        let facts = det_pods::node_facts(node);
        let name = facts.name.clone();
        if facts.labels.get(&self.drain_label).map(String::as_str) == Some(DRAIN_NO_EXECUTE) {
            let message = format!(
                "node \"{name}\" was taken out of service by its label \"{}\"",
                self.drain_label
            );
            let exit = ContainerExit::Lost { message };
            let held = self.books.held.iter_mut();
            for (id, held) in held.filter(|(_, held)| held.node == name && !held.has_ended()) {
                held.want_end(End::GivenUp(exit.clone()));
                self.agenda.containers.insert(id.clone());
            }
        }
        self.agenda.nodes.insert(name.clone());
        self.books.nodes.insert(name, Arc::new(facts));
    }

    pub(crate) fn node_is_gone(&mut self, name: &str) {
        self.books.nodes.remove(name);
        self.holds.forget(name);
        self.agenda.nodes.insert(name.to_owned());
    }

    /// A place is served no more.
    pub(crate) fn has_left(&mut self, place: &PlaceId) {
        self.books.served.remove(place);
        let held = self.books.held.of_place(place);
        let held = held.filter(|(_, held)| held.has_ended());
        let ids = held.map(|(id, _)| id.clone());
        self.agenda.containers.extend(ids);
    }

    /// A Job of ours is as this. `owns` = its Secret is known to go with it.
    pub(crate) fn job_is(&mut self, object: &Value, owns: bool) {
        if det_pods::is_placeholder(object) {
            return placeholders_are(self, object);
        }
        let seen = SeenJob {
            name: named(object),
            observer: self,
            object,
        };
        seen.note(owns);
    }

    pub(crate) fn job_is_gone(&mut self, name: &ObjectKey) {
        self.foreign.gone(name);
        self.books.placeholders.remove(name);
        let Some(job) = self.books.jobs.get_mut(name) else {
            return;
        };
        job.exists = false;
        self.services_changed |= !job.service_ports.is_empty();
        let secret = job.secret.clone().filter(|_| !job.owns);
        let members = job.recorded.members.iter();
        let members = members.map(|member| member.container_id.clone());
        self.agenda.containers.extend(members);
        if self.books.expected.contains(name) {
            self.books.gone.insert(job.uid.clone());
        } else if let Some(secret) = secret {
            // An earlier manager may have ended before it made the Job its owner.
            leftovers::delete_of_job(self, name, &secret);
        }
        self.let_go(name);
    }

    /// Lets go of a Job that does not exist any more, when its pods are gone as well and its ends are reported.
    pub(crate) fn let_go(&mut self, name: &ObjectKey) {
        let Some(job) = self.books.jobs.get(name).filter(|job| !job.exists) else {
            return;
        };
        let is_over = |id: &ContainerId| {
            let has_ended = self.books.held.get(id).is_none_or(HeldContainer::has_ended);
            has_ended && self.books.pod(id).is_none()
        };
        let mut members = job.recorded.members.iter();
        if members.all(|member| is_over(&member.container_id)) {
            let nodes = job.recorded.members.iter().map(|it| it.node.clone());
            self.agenda.nodes.extend(nodes);
            self.books.drop_job(name);
        }
    }

    pub(crate) fn pod_is(&mut self, pod: &Value) {
        let name = named(pod);
        let now = self.pod_of(pod);
        let before = self.books.put_pod(name.clone(), now);
        let now = self.books.pods.get(&name).cloned();
        let is_ours = |pod: &Pod| pod.container.is_some() || pod.placeholder.is_some();
        if before.is_none() && now.as_ref().is_some_and(is_ours) {
            self.notice_early(pod);
        }
        self.note_pod(before.as_ref(), now.as_ref());
    }

    /// A pod is gone; its last state may hold how it ended.
    pub(crate) fn pod_is_gone(&mut self, name: &ObjectKey) {
        let container = self.books.pods.get(name);
        let container = container.and_then(|pod| pod.container.clone());
        if let Some(id) = container.filter(|id| self.books.pod_of.get(id) == Some(name)) {
            self.look_at_gone(&id);
        }
        let before = self.books.drop_pod(name);
        self.note_pod(before.as_ref(), None);
    }

    /// What is to be looked at again when a pod has changed.
    fn note_pod(&mut self, before: Option<&Pod>, now: Option<&Pod>) {
        for pod in [before, now].into_iter().flatten() {
            if let Some(id) = &pod.container {
                self.agenda.containers.insert(id.clone());
            }
        }
        let address = |pod: Option<&Pod>| pod?.facts.as_ref()?.host_ip.clone();
        self.services_changed |=
            self.settings.exposure == Exposure::NodePort && address(before) != address(now);
        let share = |pod: Option<&Pod>| {
            let pod = pod.filter(|pod| pod.placeholder.is_none());
            pod.map(|pod| (pod.node.clone(), pod.takes.clone()))
        };
        if share(before) != share(now) {
            let nodes = [before, now].into_iter().flatten();
            let nodes = nodes.filter_map(|pod| pod.node.clone());
            self.agenda.nodes.extend(nodes);
        }
    }

    fn pod_of(&self, pod: &Value) -> Pod {
        let label = |name: &str| {
            let labels = pod
                .pointer("/metadata/labels")
                .and_then(|labels| labels.get(name));
            labels.and_then(Value::as_str)
        };
        let is_ours = label(det_pods::CLUSTER_LABEL) == Some(self.cluster.as_str());
        let facts = is_ours.then(|| det_pods::pod_facts(pod));
        let index = label("batch.kubernetes.io/job-completion-index");
        let index = index.and_then(|index| index.parse().ok()).unwrap_or(0);
        let job = label("batch.kubernetes.io/job-name").filter(|_| is_ours);
        let job = job.map(|job| ObjectKey {
            namespace: named(pod).namespace,
            name: job.to_owned(),
        });
        let node = pod.pointer("/spec/nodeName").and_then(Value::as_str);
        let gates = pod
            .pointer("/spec/schedulingGates")
            .and_then(Value::as_array);
        Pod {
            uid: uid(pod).to_owned(),
            node: node.map(str::to_owned),
            takes: det_pods::requests(pod),
            maker: job.as_ref().and_then(|_| maker(pod)),
            job: job.map(|job| (job, index)),
            container: None,
            placeholder: None,
            facts,
            gated: (is_ours && gates.is_some_and(|gates| gates.iter().any(is_own_gate))).then(|| {
                let of = |key: &str| pod["spec"].get(key).cloned().unwrap_or_default();
                json!({"spec": {"schedulingGates": of("schedulingGates"), "affinity": of("affinity")}})
            }),
        }
    }

    /// After a list: what was not in it is gone.
    pub(crate) fn only_present(&mut self, kind: Kind, present: &BTreeSet<ObjectKey>) {
        match kind {
            Kind::Node => {
                let names: BTreeSet<&str> = present.iter().map(|it| it.name.as_str()).collect();
                let nodes = self.books.nodes.keys();
                let gone = nodes.filter(|name| !names.contains(name.as_str()));
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.node_is_gone(&name);
                }
            }
            Kind::Pod => {
                let pods = self.books.pods.keys();
                let gone = pods.filter(|name| !present.contains(name));
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.pod_is_gone(&name);
                }
            }
            Kind::Job => {
                self.foreign.only_present(present);
                let jobs = self.books.jobs.keys();
                let gone = jobs.filter(|name| !present.contains(name));
                let placeholders = self.books.placeholders.keys();
                let gone = gone.chain(placeholders.filter(|name| !present.contains(name)));
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.job_is_gone(&name);
                }
                // All that existed when the manager began have been listed.
                self.adopts = false;
                let attempts = std::mem::take(&mut self.attempts).into_iter();
                let unmade = attempts.filter(|(id, _)| !self.books.has_job_of(id));
                self.unmade.extend(unmade);
            }
            Kind::ResourceSlice(_) => {
                let nodes = self.books.devices.only_slices(present);
                self.agenda.nodes.extend(nodes);
            }
            Kind::ResourceClaim(_) => {
                let nodes = self.books.devices.only_claims(present);
                self.agenda.nodes.extend(nodes);
            }
            Kind::Secret
            | Kind::DeviceClass(_)
            | Kind::ResourceClaimTemplate(_)
            | Kind::Service
            | Kind::Event
            | Kind::Namespace
            | Kind::Quota
            | Kind::PriorityClass
            | Kind::PodGroup(_)
            | Kind::Gateway
            | Kind::ListenerSet
            | Kind::TcpRoute(_) => {}
        }
    }

    /// Notes what was observed of a container, if that is news.
    pub(crate) fn observe(&mut self, id: &ContainerId, observed: ObservedState) {
        let Some(held) = self.books.held.get_mut(id) else {
            return;
        };
        if !held.observed.is_before(&observed) {
            return;
        }
        held.observed = observed.clone();
        held.fails_since = None;
        let place = held.place.clone();
        if held.has_ended() {
            self.agenda.nodes.insert(held.node.clone());
            let job = self.books.jobs.get(&held.job);
            self.services_changed |= job.is_some_and(|job| !job.service_ports.is_empty());
        }
        self.agenda.report(&place, id, observed);
    }

    /// Ends a container for which nothing exists.
    pub(crate) fn ended_without_pod(
        &mut self,
        place: &PlaceId,
        id: &ContainerId,
        exit: ContainerExit,
    ) {
        let ended = ObservedState::Terminated { exit, cause: None };
        self.agenda.report(place, id, ended);
    }
}

/// A Job of placeholders is as this.
fn placeholders_are(observer: &mut Observer, object: &Value) {
    let name = named(object);
    // It is as good as gone, with its pods.
    if det_pods::is_terminating(object) {
        observer.books.placeholders.remove(&name);
        return;
    }
    let Some(recorded) = det_pods::recorded_placeholder(&observer.settings.seal, object) else {
        if observer.namespaces.contains(&name.namespace) {
            let reason = "a Job has the label of placeholders of this cluster, and was not made by its master";
            observer.foreign.seen(&name, uid(object), reason);
        }
        return;
    };
    let job = PlaceholderJob {
        uid: uid(object).to_owned(),
        recorded,
        finished: has_finished(object),
    };
    if observer
        .books
        .placeholders
        .insert(name.clone(), job)
        .is_none()
    {
        observer.notice_early(object);
    }
    observer.books.link_pods(&name);
    let nodes = observer
        .books
        .of_job(&name)
        .filter_map(|pod| pod.node.clone());
    observer.agenda.nodes.extend(nodes);
}

/// A Job as a watch shows it.
struct SeenJob<'a> {
    observer: &'a mut Observer,
    name: ObjectKey,
    object: &'a Value,
}

impl SeenJob<'_> {
    /// `owns` = its Secret is known to go with it.
    fn note(mut self, owns: bool) {
        let known = self.observer.books.jobs.get(&self.name);
        if known.is_some_and(|known| known.uid == uid(self.object)) {
            self.update(owns);
            return;
        }
        let Some(recorded) = self.claimed() else {
            return;
        };
        // Its pool may have been in another namespace when it was made.
        let namespace = self.name.namespace.clone();
        self.observer.namespaces.insert(namespace);
        for member in &recorded.members {
            self.hold(member);
        }
        let job = Job {
            suspended: is_suspended(self.object),
            uid: uid(self.object).to_owned(),
            secret: secret_of(self.object),
            owns,
            service_ports: det_pods::service_ports(self.object),
            recorded,
            forgotten: BTreeSet::new(),
            deleting: false,
            exists: true,
            finished: has_finished(self.object).then(Instant::now),
        };
        self.observer.services_changed |= !job.service_ports.is_empty();
        self.observer.books.put_job(&self.name, job);
        self.observer.books.link_pods(&self.name);
        self.observer.notice_early(self.object);
    }

    /// Notes what has changed of a Job that is known.
    fn update(&mut self, owns: bool) {
        let (books, agenda) = (&mut self.observer.books, &mut self.observer.agenda);
        let Some(known) = books.jobs.get_mut(&self.name) else {
            return;
        };
        known.owns |= owns;
        let is_resumed = known.suspended && !is_suspended(self.object);
        known.suspended = is_suspended(self.object);
        if is_resumed {
            let members = known.recorded.members.iter();
            for id in members.map(|member| &member.container_id) {
                // Its pods are late from now on.
                if let Some(held) = books.held.get_mut(id) {
                    held.since = Instant::now();
                }
                agenda.containers.insert(id.clone());
            }
        }
        if known.finished.is_none() && has_finished(self.object) {
            known.finished = Some(Instant::now());
            let members = known.recorded.members.iter();
            let members = members.map(|member| member.container_id.clone());
            agenda.containers.extend(members);
        }
    }

    /// The containers of a Job that this master has made; `None` = another has, and it is left alone.
    fn claimed(&mut self) -> Option<JobRecord> {
        let recorded = det_pods::recorded(&annotations(self.object));
        let (observer, name) = (&*self.observer, &self.name);
        let ours = recorded.filter(|recorded| is_ours(observer, (self.object, name), recorded));
        let reason = match ours {
            None if !observer.namespaces.contains(&name.namespace) => return None,
            None => "a Job has the label of this cluster, and was not made by its master",
            Some(recorded) if self.is_claimed_by_others(&recorded) => {
                "a Job names containers of another one"
            }
            Some(recorded) => return Some(recorded),
        };
        let uid = uid(self.object);
        self.observer.foreign.seen(&self.name, uid, reason);
        None
    }

    /// Whether containers of a record are those of another Job.
    fn is_claimed_by_others(&self, recorded: &JobRecord) -> bool {
        let (observer, name) = (&*self.observer, &self.name);
        let books = &observer.books;
        let is_of_another = |id: &ContainerId| {
            let held = books.held.get(id).filter(|held| held.job != *name);
            let known = held.and_then(|held| books.jobs.get(&held.job));
            known.is_some_and(|job| job.exists)
        };
        // One that is made again while the manager runs is made again by others, with a copy of the record and its seal.
        let is_copy = |id: &ContainerId| {
            let is_known = books.held.contains_key(id) || books.starting.contains_key(id);
            is_known && !observer.adopts && !books.expected.contains(name)
        };
        let mut members = recorded.members.iter();
        members.any(|it| is_of_another(&it.container_id) || is_copy(&it.container_id))
    }

    /// Holds a container of a Job that was not known.
    fn hold(&mut self, member: &RecordedMember) {
        let id = &member.container_id;
        let (books, agenda) = (&mut self.observer.books, &mut self.observer.agenda);
        let mut held = HeldContainer::new(self.name.clone(), member);
        if let Some(starting) = books.starting.get(id) {
            held.takes = starting.takes.clone();
            if let Some(end) = starting.end.clone() {
                held.want_end(end);
            }
        }
        agenda.nodes.insert(member.node.clone());
        if books.held.insert(id.clone(), held).is_none() {
            agenda.report(&member.place, id, ObservedState::Assigned);
        }
        if is_suspended(self.object) && member.rank == 0 {
            let (place, line) = (member.place.clone(), waits_suspended(self.object));
            agenda.notes.push((place, id.clone(), line));
        }
        agenda.containers.insert(id.clone());
    }
}
