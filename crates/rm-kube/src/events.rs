//! Events of Kubernetes about our Jobs and pods, as lines for the logs of their tasks.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use det_ids::{AllocationId, ContainerId};
use det_taskspec::ContainerExit;
use serde_json::Value;

use crate::books::{Books, End, ObjectKey};
use crate::creating::uid;
use crate::observing::Observer;

/// Events of objects that are not known yet, which are kept at most.
const MOST_EARLY: usize = 256;
/// Different lines about one container at most.
const MOST_LINES: usize = 64;
/// Longest text of an event, in bytes.
const LONGEST: usize = 2_048;

/// An event of a Job or a pod.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    of: Subject,
    object: ObjectKey,
    /// Identity of the object: another one with the same name has another.
    uid: String,
    /// A word of Kubernetes: `FailedScheduling`.
    reason: String,
    message: String,
    is_warning: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Job,
    Pod,
}

/// Reads an event; `None` = it is not of a Job or a pod.
pub(crate) fn note(event: &Value) -> Option<Note> {
    let text = |path: &str| event.pointer(path).and_then(Value::as_str);
    let of = match text("/involvedObject/kind")? {
        "Job" => Subject::Job,
        "Pod" => Subject::Pod,
        _ => return None,
    };
    let cut = |path: &str, most: usize| {
        let mut text = text(path).unwrap_or_default().trim().to_owned();
        text.truncate(text.floor_char_boundary(most));
        text
    };
    let message = cut("/message", LONGEST);
    Some(Note {
        of,
        object: ObjectKey {
            namespace: text("/involvedObject/namespace")?.to_owned(),
            name: text("/involvedObject/name")
                .filter(|name| name.len() <= 253)?
                .to_owned(),
        },
        uid: text("/involvedObject/uid")
            .filter(|uid| uid.len() <= 64)?
            .to_owned(),
        reason: cut("/reason", 128),
        message,
        is_warning: text("/type") == Some("Warning"),
    })
}

impl Note {
    /// The container that it is about; that of a Job is the first one. `None` = it is not known, or not ours.
    fn container(&self, books: &Books) -> Option<ContainerId> {
        match self.of {
            Subject::Pod => {
                let pod = books
                    .pods
                    .get(&self.object)
                    .filter(|pod| pod.uid == self.uid)?;
                pod.container.clone()
            }
            Subject::Job => {
                let job = books
                    .jobs
                    .get(&self.object)
                    .filter(|job| job.uid == self.uid)?;
                let first = job.recorded.members.first()?;
                Some(first.container_id.clone())
            }
        }
    }

    /// The allocation that it is about, where it is of its placeholders.
    fn placeholder(&self, books: &Books) -> Option<AllocationId> {
        match self.of {
            Subject::Pod => {
                let pod = books.pods.get(&self.object);
                pod.filter(|pod| pod.uid == self.uid)?.placeholder.clone()
            }
            Subject::Job => {
                let job = books.placeholders.get(&self.object);
                let job = job.filter(|job| job.uid == self.uid)?;
                Some(job.recorded.allocation_id.clone())
            }
        }
    }

    /// Why placeholders get no nodes, a clause; `None` = it reports nothing of that.
    fn no_growth(&self) -> Option<String> {
        let message = &self.message;
        match (self.of, self.reason.as_str()) {
            // Of the autoscaler of Kubernetes: the pod would not fit a node that may be added.
            (Subject::Pod, "NotTriggerScaleUp") => {
                Some(format!("the autoscaler adds no node: {message}"))
            }
            (Subject::Job, "FailedCreate") => Some(format!(
                "Kubernetes refuses pods that ask for nodes: {message}"
            )),
            _ => None,
        }
    }

    /// Why the pods of a Job are refused for good; `None` = they are not, or may be made later, as when a quota is exceeded.
    fn refusal(&self) -> Option<String> {
        let is_lasting = [
            "is forbidden: violates PodSecurity",
            "denied the request",
            "is invalid",
        ];
        let refused = self.of == Subject::Job
            && self.reason == "FailedCreate"
            && is_lasting.iter().any(|text| self.message.contains(text));
        refused.then(|| format!("Kubernetes refuses the task's pod: {}", self.message))
    }

    /// Whether a pod waits for a Secret of this name, which does not exist.
    fn misses(&self, secret: &str) -> bool {
        self.of == Subject::Pod
            && self.reason == "FailedMount"
            && self
                .message
                .contains(&format!("secret \"{secret}\" not found"))
    }

    /// Why pods of a Job are not made now, such as a quota.
    fn delay(&self) -> Option<&str> {
        (self.of == Subject::Job && self.reason == "FailedCreate").then_some(self.message.as_str())
    }

    fn line(&self) -> String {
        let kind = match self.of {
            Subject::Job => "Job",
            Subject::Pod => "Pod",
        };
        let name = &self.object.name;
        if self.is_warning && !self.reason.is_empty() {
            format!("{kind} {name}: {} ({})", self.message, self.reason)
        } else {
            format!("{kind} {name}: {}", self.message)
        }
    }
}

/// Events that came before the objects that they are about.
#[derive(Debug, Default)]
pub(crate) struct EarlyNotes(VecDeque<Note>);

impl Observer {
    /// An event of Kubernetes was seen.
    pub(crate) fn event_is(&mut self, event: &Value) {
        let Some(note) = note(event) else { return };
        // Those of others would push ours out.
        if !self.namespaces.contains(&note.object.namespace) {
            return;
        }
        if !notice(self, &note) {
            if self.early.0.len() >= MOST_EARLY {
                self.early.0.pop_front();
            }
            self.early.0.push_back(note);
        }
    }

    /// An object is known now: events that came before it are applied.
    pub(crate) fn notice_early(&mut self, object: &Value) {
        if self.early.0.is_empty() {
            return;
        }
        let uid = uid(object);
        let early = std::mem::take(&mut self.early.0);
        let (now, later) = early.into_iter().partition(|note: &Note| note.uid == uid);
        self.early.0 = later;
        let now: VecDeque<Note> = now;
        for note in &now {
            notice(self, note);
        }
    }
}

/// By which a line is known again: texts of all containers would take too much memory.
fn digest(line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}

/// Applies an event; whether it is about something that is known.
fn notice(observer: &mut Observer, note: &Note) -> bool {
    if let Some(allocation) = note.placeholder(&observer.books) {
        if let Some(reason) = note.no_growth() {
            observer.agenda.ungrown.push((allocation, reason));
        }
        return true;
    }
    let Some(id) = note.container(&observer.books) else {
        return false;
    };
    let Some(held) = observer
        .books
        .held
        .get_mut(&id)
        .filter(|held| !held.has_ended())
    else {
        return true;
    };
    let job = observer.books.jobs.get(&held.job);
    if let Some(secret) = job.and_then(|job| job.secret.as_deref())
        && held.end.is_none()
        && note.misses(secret)
    {
        let at = (held.job.namespace.as_str(), secret);
        observer.requests.find_secret(&id, at);
    }
    if let Some(delay) = note.delay() {
        held.delay = Some(delay.to_owned());
    }
    let line = note.line();
    if held.lines.len() < MOST_LINES && held.lines.insert(digest(&line)) {
        observer
            .agenda
            .notes
            .push((held.place.clone(), id.clone(), line));
    }
    // Anyone who may create events can write one: it ends nothing that has a pod.
    let has_none = !held.had_pod;
    if let Some(message) = note.refusal().filter(|_| has_none) {
        held.want_end(End::GivenUp(ContainerExit::StartFailed { message }));
        observer.agenda.containers.insert(id);
    }
    true
}
