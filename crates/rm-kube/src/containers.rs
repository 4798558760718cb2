//! What follows from what is known of a container: what is reported of it, and what is requested.

use std::time::Duration;

use det_ids::ContainerId;
use det_lifecycle::container::ObservedState;
use det_pods::PodFacts;
use det_taskspec::ContainerExit;
use tokio::time::Instant;

use crate::api::Kind;
use crate::books::{End, HeldContainer, ObjectKey, Pod, Trouble};
use crate::observing::Observer;

/// How long after the end of its Job a container without a pod is held to have had none.
const FINISHED_WITHOUT_POD: Duration = Duration::from_secs(10);
/// Grace of a pod that is killed: its supervisor still ships what the task has printed.
const KILL_GRACE_SECONDS: u32 = 5;
/// Pauses before a request about a container that failed is made again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Namespace and name of an object.
fn at(named: &ObjectKey) -> (&str, &str) {
    (&named.namespace, &named.name)
}

impl Observer {
    /// Looks at a container: what its pod's status means, what it waits for, and what is to be done about its end.
    pub(crate) fn look_at(&mut self, id: &ContainerId) {
        let mut container = Container { observer: self, id };
        container.look_at();
    }

    /// The pod of a container is gone, and is still in the books.
    pub(crate) fn look_at_gone(&mut self, id: &ContainerId) {
        let mut container = Container { observer: self, id };
        container.look_at_gone();
    }

    /// A request about a container failed: what it was for is to be asked again. Returns how long it has failed before.
    pub(crate) fn ask_again(&mut self, id: &ContainerId, reason: String) -> Duration {
        let Some(held) = self.books.held.get_mut(id) else {
            return Duration::ZERO;
        };
        let before = held.trouble.as_ref();
        let pause = before.map_or(FIRST_PAUSE, |it| (it.pause * 2).min(LONGEST_PAUSE));
        held.trouble = Some(Trouble { reason, pause });
        held.deleted = None;
        held.released = None;
        if let Some(job) = self.books.jobs.get_mut(&held.job) {
            job.deleting = false;
        }
        self.agenda.look_at(id, Instant::now() + pause);
        pause
    }

    /// Orders to end containers that have not ended are to be given again.
    pub(crate) fn repeat_ends(&mut self) {
        for (id, held) in self.books.held.iter_mut() {
            if held.end.is_some() && !held.has_ended() {
                held.deleted = None;
                self.agenda.containers.insert(id.clone());
            }
        }
    }
}

/// The Secret of a container's pod does not exist: if the pod waits for it, the container is given up.
pub(crate) fn secret_is_gone(observer: &mut Observer, id: &ContainerId, secret: &str) {
    let Some(held) = observer.books.held.get_mut(id) else {
        return;
    };
    let has_run = matches!(
        held.observed,
        ObservedState::Running { .. } | ObservedState::Terminated { .. }
    );
    if held.end.is_some() || has_run {
        return;
    }
    let message = format!(
        "its Secret \"{secret}\" was deleted before its pod could read it, and not by the master"
    );
    held.want_end(End::GivenUp(ContainerExit::Lost { message }));
    observer.agenda.containers.insert(id.clone());
}

/// A container that is looked at.
struct Container<'a> {
    observer: &'a mut Observer,
    id: &'a ContainerId,
}

impl Container<'_> {
    fn look_at(&mut self) {
        self.look_at_status();
        let Some(held) = self.observer.books.held.get(self.id) else {
            return;
        };
        let job_name = held.job.clone();
        if held.has_ended() {
            self.end_what_is_left();
        } else {
            let pod = self.observer.books.pod(self.id);
            match pod.map(|(name, pod)| (name.clone(), pod.clone())) {
                Some((name, pod)) => self.look_at_pod(&name, &pod),
                None => self.look_at_job(),
            }
        }
        self.delete_forgotten(&job_name);
        self.observer.let_go(&job_name);
    }

    /// Whether it was to end: it was wanted to, or its gang has ended, whose pods Kubernetes ends.
    fn is_ordered(&self, held: &HeldContainer) -> bool {
        let siblings = self.observer.books.siblings(self.id);
        held.end.is_some() || siblings.iter().any(|sibling| self.has_failed(sibling))
    }

    /// Whether another container of its gang has failed. Its pod may have been seen already, and not been looked at.
    fn has_failed(&self, sibling: &ContainerId) -> bool {
        let books = &self.observer.books;
        let known = books.held.get(sibling).map(|held| &held.observed);
        if let Some(ObservedState::Terminated { exit, .. }) = known {
            return *exit != ContainerExit::Exited { code: 0 };
        }
        let facts = books.pod(sibling).and_then(|(_, pod)| pod.facts.as_ref());
        match facts.and_then(|facts| det_pods::observed(facts, false)) {
            // A loss may be a consequence itself.
            Some(ObservedState::Terminated { exit, .. }) => !matches!(
                exit,
                ContainerExit::Exited { code: 0 } | ContainerExit::Lost { .. }
            ),
            _ => false,
        }
    }

    /// What is known of the pod of a container that has not ended, and whether it was to end.
    fn status(&self) -> Option<(&PodFacts, bool)> {
        let books = &self.observer.books;
        let held = books.held.get(self.id).filter(|held| !held.has_ended())?;
        let (_, pod) = books.pod(self.id)?;
        Some((pod.facts.as_ref()?, self.is_ordered(held)))
    }

    /// Notes what the status of its pod means.
    fn look_at_status(&mut self) {
        let status = self.status();
        let observed = status.and_then(|(facts, ordered)| det_pods::observed(facts, ordered));
        if let Some(observed) = observed {
            self.note(observed);
        }
    }

    /// Notes what it means that its pod is gone.
    fn look_at_gone(&mut self) {
        let status = self.status();
        let observed = status.map(|(facts, ordered)| det_pods::observed_gone(facts, ordered));
        if let Some(observed) = observed {
            self.note(observed);
        }
    }

    /// Notes what was observed. The end of a container that was given up has the reason for that, unless its code had
    /// finished by then.
    fn note(&mut self, mut observed: ObservedState) {
        let end = self
            .observer
            .books
            .held
            .get(self.id)
            .and_then(|held| held.end.as_ref());
        if let (ObservedState::Terminated { exit, .. }, Some(End::GivenUp(reason))) =
            (&mut observed, end)
            && *exit != (ContainerExit::Exited { code: 0 })
        {
            exit.clone_from(reason);
        }
        let has_ended = matches!(observed, ObservedState::Terminated { .. });
        self.observer.observe(self.id, observed);
        if has_ended {
            self.observer
                .agenda
                .containers
                .extend(self.observer.books.siblings(self.id));
        }
    }

    /// A container that has a pod and has not ended.
    fn look_at_pod(&mut self, name: &ObjectKey, pod: &Pod) {
        if let Some(facts) = &pod.facts {
            self.look_at_waiting(facts);
        }
        let Some(held) = self.observer.books.held.get_mut(self.id) else {
            return;
        };
        let is_again = held.trouble.is_some();
        let (api, name, uid) = (
            self.observer.requests.api.clone(),
            name.clone(),
            pod.uid.clone(),
        );
        let grace = match &held.end {
            None => {
                if let Some(gated) = &pod.gated
                    && held.released.as_ref() != Some(&uid)
                {
                    let patch = det_pods::release_patch(&held.node, gated);
                    held.released = Some(uid);
                    self.observer.requests.about(self.id, is_again, async move {
                        api.patch(Kind::Pod, at(&name), &patch).await
                    });
                }
                return;
            }
            Some(End::Asked) => None,
            Some(End::Killed | End::GivenUp(_)) => Some(KILL_GRACE_SECONDS),
        };
        let wanted = (uid.clone(), grace);
        if held.deleted.as_ref() == Some(&wanted) {
            return;
        }
        held.deleted = Some(wanted);
        self.observer.requests.about(self.id, is_again, async move {
            api.delete(Kind::Pod, at(&name), &uid, grace).await
        });
    }

    /// Ends the pod of a container that has ended while other containers of it run on, for which Kubernetes waits as long as
    /// the pod's own grace is. Not while others of its gang run: a pod that is deleted ends the Job, and with it theirs.
    fn end_what_is_left(&mut self) {
        let books = &self.observer.books;
        let held = books.held.get(self.id).filter(|held| held.stored);
        let (Some(held), Some((name, pod))) = (held, books.pod(self.id)) else {
            return;
        };
        let wanted = (pod.uid.clone(), Some(KILL_GRACE_SECONDS));
        let runs = |id: &ContainerId| books.held.get(id).is_some_and(|held| !held.has_ended());
        let is_left = pod.facts.as_ref().is_some_and(PodFacts::has_others_running);
        if !is_left
            || held.deleted.as_ref() == Some(&wanted)
            || self.observer.settings.leaves_objects
            || books.siblings(self.id).iter().any(runs)
        {
            return;
        }
        let (api, name, uid) = (
            self.observer.requests.api.clone(),
            name.clone(),
            pod.uid.clone(),
        );
        let is_again = held.trouble.is_some();
        if let Some(held) = self.observer.books.held.get_mut(self.id) {
            held.deleted = Some(wanted);
        }
        self.observer.requests.about(self.id, is_again, async move {
            let grace = Some(KILL_GRACE_SECONDS);
            api.delete(Kind::Pod, at(&name), &uid, grace).await
        });
    }

    /// Gives up a container that cannot start: its image cannot be pulled, a container of its pod cannot be created, or
    /// Kubernetes does not assign its pod.
    fn look_at_waiting(&mut self, facts: &PodFacts) {
        let Some(held) = self.observer.books.held.get_mut(self.id) else {
            return;
        };
        if held.end.is_some() || matches!(held.observed, ObservedState::Running { .. }) {
            return;
        }
        let now = Instant::now();
        let image = facts.image_error();
        let image = image.map(|error| (error.kind.is_lasting(), error.is_attempt, error.message));
        let error = image.or_else(|| Some((false, true, facts.start_error()?)));
        if let Some((is_lasting, is_attempt, message)) = error {
            let fails_since = *held.fails_since.get_or_insert(now);
            let until = fails_since + self.observer.settings.pull_within;
            if is_lasting || until <= now {
                held.want_end(End::GivenUp(ContainerExit::StartFailed { message }));
                return;
            }
            // Between two attempts the kubelet reports that it pauses: each attempt that fails is another report.
            if held.failure.as_ref() != Some(&message) {
                if is_attempt {
                    let left = (until - now).as_secs();
                    let line = format!("{message}; it is tried again, and given up in {left} s");
                    let note = (held.place.clone(), self.id.clone(), line);
                    self.observer.agenda.notes.push(note);
                }
                held.failure = Some(message);
            }
            return self.observer.agenda.look_at(self.id, until);
        }
        let until = held.since + self.observer.settings.start_within;
        if facts.node.is_some() {
            if let Some(key) = &held.takes.key {
                self.observer.holds.succeeded(&held.node, key);
            }
            return;
        }
        if until > now {
            return self.observer.agenda.look_at(self.id, until);
        }
        let scheduler = facts.scheduled.as_ref();
        let scheduler = scheduler.and_then(|scheduled| scheduled.message.as_deref());
        let reason = scheduler.or(held.reason()).unwrap_or("it gives no reason");
        let message = format!(
            "Kubernetes did not assign its pod to node \"{}\" within {} s: {reason}",
            held.node,
            self.observer.settings.start_within.as_secs(),
        );
        if let Some(key) = &held.takes.key {
            self.observer.holds.failed(&held.node, key, reason, now);
            self.observer.agenda.nodes.insert(held.node.clone());
        }
        held.want_end(End::GivenUp(ContainerExit::Lost { message }));
    }

    /// A container that has no pod and has not ended: its Job has made none yet, or it is gone.
    fn look_at_job(&mut self) {
        let Some(held) = self.observer.books.held.get_mut(self.id) else {
            return;
        };
        let Some(job) = self.observer.books.jobs.get_mut(&held.job) else {
            return;
        };
        let now = Instant::now();
        // The watches of Jobs and pods are two: what ended the Job may be seen a little later.
        let finished = job.finished.map(|at| at + FINISHED_WITHOUT_POD);
        let is_over = finished.is_some_and(|at| at <= now);
        if held.had_pod || !job.exists || is_over {
            let exit = match held.end.clone() {
                Some(End::GivenUp(exit)) => exit,
                Some(End::Asked | End::Killed) => ContainerExit::Killed,
                None if job.suspended => ContainerExit::Lost {
                    message: format!(
                        "its Job \"{}\" was suspended, as Kueue does to give its quota to others",
                        held.job.name
                    ),
                },
                None => ContainerExit::Lost {
                    message: format!(
                        "its pod or Job \"{}\" was deleted, and not by the master",
                        held.job.name
                    ),
                },
            };
            return self.note(ObservedState::Terminated { exit, cause: None });
        }
        if let Some(at) = finished {
            self.observer.agenda.look_at(self.id, at);
        }
        let until = held.since + self.observer.settings.start_within;
        let is_waiting = job.suspended && held.end.is_none();
        if is_waiting {
            // What has suspended it decides how long.
        } else if until > now {
            self.observer.agenda.look_at(self.id, until);
        } else if held.end.is_none() {
            let within = self.observer.settings.start_within.as_secs();
            let (namespace, job) = (&held.job.namespace, &held.job.name);
            // Such as a quota of its namespace.
            let why = held.delay.clone();
            let why = why.unwrap_or_else(|| {
                format!("\"kubectl -n {namespace} describe job {job}\" shows why")
            });
            let message = format!("Kubernetes made no pod for it within {within} s: {why}");
            held.want_end(End::GivenUp(ContainerExit::Lost { message }));
        }
        if held.end.is_some() {
            let name = held.job.clone();
            self.delete_job(&name);
        }
    }

    /// Deletes a Job whose containers the core has all let go; Kubernetes deletes what belongs to it.
    fn delete_forgotten(&mut self, name: &ObjectKey) {
        let Some(job) = self.observer.books.jobs.get(name) else {
            return;
        };
        let members = &job.recorded.members;
        let has_ended = |id: &ContainerId| {
            self.observer
                .books
                .held
                .get(id)
                .is_none_or(HeldContainer::has_ended)
        };
        // The core lets go of containers by their place, which may not come back.
        let is_without_place = |id: &ContainerId| {
            let held = self.observer.books.held.get(id);
            held.is_some_and(|held| {
                held.stored && !self.observer.books.served.contains(&held.place)
            })
        };
        let is_let_go = |id: &ContainerId| job.forgotten.contains(id) || is_without_place(id);
        if members.is_empty() || !members.iter().all(|it| is_let_go(&it.container_id)) {
            return;
        }
        let have_ended = members.iter().all(|it| has_ended(&it.container_id));
        if self.observer.settings.leaves_objects && have_ended {
            return;
        }
        self.delete_job(name);
    }

    /// Deletes a Job, and its Secret with it if that may have no owner.
    fn delete_job(&mut self, name: &ObjectKey) {
        let is_again = self
            .observer
            .books
            .held
            .get(self.id)
            .is_some_and(|held| held.trouble.is_some());
        let Some(job) = self.observer.books.jobs.get_mut(name) else {
            return;
        };
        // While its objects are being made, it is deleted when that has ended.
        if job.deleting || !job.exists || self.observer.books.expected.contains(name) {
            return;
        }
        job.deleting = true;
        let (api, name, uid) = (
            self.observer.requests.api.clone(),
            name.clone(),
            job.uid.clone(),
        );
        let secret = job.secret.clone().filter(|_| !job.owns);
        let claims = self.observer.books.devices.api();
        let cluster = self.observer.cluster.clone();
        self.observer.requests.about(self.id, is_again, async move {
            if let Some(secret) = secret {
                let of = (name.namespace.as_str(), secret.as_str());
                let owner = (cluster.as_str(), Some(uid.as_str()));
                api.delete_unowned(Kind::Secret, of, owner).await?;
                if let Some(claims) = claims {
                    let kind = Kind::ResourceClaimTemplate(claims);
                    api.delete_unowned(kind, at(&name), owner).await?;
                }
            }
            api.delete(Kind::Job, at(&name), &uid, None).await
        });
    }
}
