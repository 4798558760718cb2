//! Creates the objects of one allocation: its Secret, its Jobs, and its Service.

use std::sync::Arc;
use std::time::Duration;

use det_ids::AllocationId;
use det_pods::{ClaimApi, ClusterFacts, Member, Objects, RECORD_ANNOTATION, Seal, owner_patch};
use det_taskspec::ContainerExit;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::api::{ApiError, Kind, KubeApi};
use crate::classes::Classes;
use crate::messages::{Delay, Message};

/// The first pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Pauses from this one on are noted in the manager's health.
const LONG_PAUSE: Duration = Duration::from_secs(3);

/// Allocations whose objects are in memory at a time, in one cluster: twice as many as requests that may be made.
const AT_ONCE: usize = 64;

/// The turns in which allocations of one cluster have their objects made. Thousands may be started at once, and the objects
/// of each are large: they are made when a turn has come, and let go with it.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Turns {
    /// A turn that is free now.
    pub(crate) fn free(&self) -> Option<Turn> {
        let permit = Arc::clone(&self.0).try_acquire_owned().ok()?;
        Some(Turn { _permit: permit })
    }

    /// Waits for a turn; `None` = it was cancelled first.
    async fn next(&self, cancelled: &CancellationToken) -> Option<Turn> {
        let permit = cancelled
            .run_until_cancelled(Arc::clone(&self.0).acquire_owned())
            .await?;
        Some(Turn {
            _permit: permit.ok()?,
        })
    }
}

/// A turn to have an allocation's objects in memory.
#[derive(Debug)]
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
}

/// The creation of one allocation's objects, as a task of its own.
pub(crate) struct Creation {
    pub(crate) api: KubeApi,
    pub(crate) allocation: AllocationId,
    pub(crate) namespace: String,
    /// Whether the manager makes the namespace, which may not exist yet.
    pub(crate) is_made: bool,
    /// What the objects are made from.
    pub(crate) facts: Arc<ClusterFacts>,
    /// The containers, in the order of their ranks.
    pub(crate) members: Vec<Member>,
    /// The first turn, with the objects, where one was free.
    pub(crate) at_hand: Option<(Turn, Objects)>,
    pub(crate) turns: Turns,
    /// The `PriorityClasses` of the cluster.
    pub(crate) classes: Classes,
    /// Ends it. A request that has been sent is waited for, since it may be carried out later than any that comes after.
    pub(crate) cancelled: CancellationToken,
    pub(crate) sender: mpsc::Sender<Message>,
}

impl Creation {
    /// Creates what does not exist yet, until all exists, the API refuses it, or it is cancelled. May be repeated: objects
    /// of the same allocation are found again. What exists of them is deleted where it does not succeed.
    pub(crate) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        let mut has_begun = false;
        let mut made = Jobs::default();
        while !self.cancelled.is_cancelled() {
            // The manager has ended, and another one goes on with what exists.
            if self.sender.is_closed() {
                return;
            }
            let (turn, objects) = match self.at_hand.take() {
                Some((turn, objects)) => (turn, Some(objects)),
                None => match self.turns.next(&self.cancelled).await {
                    Some(turn) => (turn, None),
                    None => continue,
                },
            };
            has_begun = true;
            // The state of requests is large, and thousands may wait for their turn.
            let outcome = Box::pin(self.attempt(objects, &mut made)).await;
            drop(turn);
            match outcome {
                Ok(jobs) => {
                    let created = Message::Created(self.allocation.clone(), jobs);
                    return self.send(created).await;
                }
                Err(ApiError::Refused(reason)) => {
                    let message = format!("Kubernetes refuses the task's objects: {reason}");
                    let exit = ContainerExit::StartFailed { message };
                    self.send(Message::Abandoned(self.allocation.clone(), exit))
                        .await;
                    break;
                }
                Err(error) => {
                    let is_long = pause >= LONG_PAUSE || matches!(error, ApiError::Forbidden(_));
                    let delay = if is_long { Delay::Long } else { Delay::Short };
                    let reason = error.to_string();
                    self.send(Message::Delayed(self.allocation.clone(), reason, delay))
                        .await;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.cancelled.cancelled() => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        if has_begun {
            Box::pin(self.undo()).await;
        }
        self.send(Message::Undone(self.allocation.clone())).await;
    }

    /// All objects, as they were made before: they follow from what is kept of the containers.
    fn objects(&self) -> Result<Objects, ApiError> {
        let objects = det_pods::objects(&self.facts, &self.namespace, &self.members);
        objects.map_err(|error| ApiError::Refused(error.to_string()))
    }

    async fn send(&self, message: Message) {
        // The manager has ended, and another one will find what exists.
        drop(self.sender.send(message).await);
    }

    /// `objects` = those that are made already.
    async fn attempt(
        &self,
        objects: Option<Objects>,
        made: &mut Jobs,
    ) -> Result<Vec<Value>, ApiError> {
        let mut objects = objects.map_or_else(|| self.objects(), Ok)?;
        // Jobs that exist have the class that they were made with.
        if made.jobs.is_empty()
            && let Some(class) = &objects.priority
        {
            made.class = self.classes.usable(&self.api, class).await?;
        }
        if let Some(name) = &made.class {
            objects.set_priority_class(name);
        }
        let secret = &objects.secret;
        // Pods of a Job that exists have the Secret, or have had it.
        if made.jobs.is_empty()
            && let CreatedObject::Found(_) = self.create(Kind::Secret, secret).await?
        {
            // Of an earlier attempt, whose tokens may be older: nothing of it is kept.
            let renewed = json!({"data": null, "stringData": secret["stringData"]});
            self.patch(Kind::Secret, secret, &renewed).await?;
        }
        // Before their pods: those would wait for them, and have an event of that.
        if made.jobs.is_empty() {
            for template in &objects.claim_templates {
                self.create_template(template).await?;
            }
        }
        for job in objects.jobs.iter().skip(made.jobs.len()) {
            made.jobs.push(match self.create(Kind::Job, job).await? {
                CreatedObject::New(job) => job,
                CreatedObject::Found(found) => same_record(&self.facts.seal, job, found)?,
            });
        }
        let owners = owners(&made.jobs);
        for (kind, object) in dependents(&objects) {
            let mut object = object.clone();
            if let Some(metadata) = object.get_mut("metadata") {
                metadata["ownerReferences"] = owners["metadata"]["ownerReferences"].clone();
            }
            if let CreatedObject::Found(found) = self.create(kind, &object).await?
                && found.pointer("/metadata/ownerReferences")
                    != owners.pointer("/metadata/ownerReferences")
            {
                self.patch(kind, &object, &owners).await?;
            }
        }
        for (kind, object) in unowned(&objects, self.facts.claims) {
            self.patch(kind, object, &owners).await?;
        }
        Ok(std::mem::take(&mut made.jobs))
    }

    async fn create(&self, kind: Kind, object: &Value) -> Result<CreatedObject, ApiError> {
        self.go_on()?;
        match self.api.create(kind, &self.namespace, object).await {
            Ok(created) => Ok(CreatedObject::New(created)),
            Err(ApiError::Exists) => {
                let at = (self.namespace.as_str(), name(object));
                let found = self.api.get(kind, at).await?;
                if is_same_allocation(object, &found) {
                    return Ok(CreatedObject::Found(found));
                }
                Err(ApiError::Refused(format!(
                    "\"{}\" exists among {}, and is not of this allocation; delete it, or start the task again",
                    name(object),
                    kind.word(),
                )))
            }
            Err(ApiError::Forbidden(text)) => Err(self.forbidden("create", kind, text).await),
            Err(ApiError::Refused(text)) if self.is_made && !self.has_namespace().await => {
                Err(ApiError::Passing(text))
            }
            Err(error) => Err(error),
        }
    }

    /// Creates a template of claims. One that is found with another request is made again: its spec cannot be changed, and who
    /// may create objects there would decide what devices the task gets.
    async fn create_template(&self, template: &Value) -> Result<(), ApiError> {
        let kind = Kind::ResourceClaimTemplate(self.facts.claims);
        let CreatedObject::Found(found) = self.create(kind, template).await? else {
            return Ok(());
        };
        // The rest of the metadata is what API servers add there.
        let is_same = |path: &str| template.pointer(path) == found.pointer(path);
        if is_same("/spec/spec") && is_same("/spec/metadata/labels") {
            return Ok(());
        }
        let at = (self.namespace.as_str(), name(template));
        self.api.delete(kind, at, uid(&found), None).await?;
        match self.create(kind, template).await? {
            CreatedObject::New(_) => Ok(()),
            CreatedObject::Found(_) => Err(ApiError::Passing(format!(
                "ResourceClaimTemplate \"{}\" was made by another with other devices",
                name(template)
            ))),
        }
    }

    async fn patch(&self, kind: Kind, object: &Value, patch: &Value) -> Result<(), ApiError> {
        self.go_on()?;
        let at = (self.namespace.as_str(), name(object));
        match self.api.patch(kind, at, patch).await {
            Err(ApiError::Forbidden(text)) => Err(self.forbidden("patch", kind, text).await),
            // It was deleted meanwhile.
            Err(ApiError::Absent) => Ok(()),
            patched => patched,
        }
    }

    /// Distinguishes a right that the master lacks, and may be given, from a refusal of these objects.
    async fn forbidden(&self, verb: &str, kind: Kind, text: String) -> ApiError {
        match self.api.may(verb, kind, &self.namespace).await {
            Ok(true) => ApiError::Refused(text),
            Ok(false) => ApiError::Forbidden(text),
            Err(_) => ApiError::Passing(text),
        }
    }

    /// Whether its namespace exists, or cannot be known to be missing.
    async fn has_namespace(&self) -> bool {
        let found = self.api.get(Kind::Namespace, ("", &self.namespace)).await;
        !matches!(found, Err(ApiError::Absent))
    }

    /// Errs when it was cancelled.
    fn go_on(&self) -> Result<(), ApiError> {
        if self.cancelled.is_cancelled() || self.sender.is_closed() {
            return Err(ApiError::Passing("its start was cancelled".to_owned()));
        }
        Ok(())
    }

    /// Deletes what exists of the objects, however long that takes. The Jobs go last: a master that is restarted meanwhile
    /// finds them again, and goes on.
    async fn undo(&self) {
        // Those that could not be made have not been created either.
        let Ok(objects) = self.objects() else { return };
        let jobs = objects.jobs.iter().map(|job| (Kind::Job, job));
        let all = unowned(&objects, self.facts.claims);
        let all = all.chain(dependents(&objects)).chain(jobs);
        let all: Vec<(Kind, Value)> = all.map(|(kind, it)| (kind, identity(it))).collect();
        drop(objects);
        for (kind, object) in &all {
            let mut pause = FIRST_PAUSE;
            while let Err(error) = self.delete(*kind, object).await {
                let reason = format!("{} cannot be deleted: {error}", kind.word());
                let delay = if pause >= LONG_PAUSE {
                    Delay::Long
                } else {
                    Delay::Short
                };
                self.send(Message::Delayed(self.allocation.clone(), reason, delay))
                    .await;
                if self.sender.is_closed() {
                    return;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    async fn delete(&self, kind: Kind, object: &Value) -> Result<(), ApiError> {
        let at = (self.namespace.as_str(), name(object));
        let found = match self.api.get(kind, at).await {
            Err(ApiError::Absent | ApiError::Refused(_)) => return Ok(()),
            found => found?,
        };
        if !is_same_allocation(object, &found) {
            return Ok(());
        }
        self.api.delete(kind, at, uid(&found), None).await
    }
}

/// The Jobs that exist by now. One that has been made is not made again: it may have been deleted since.
#[derive(Default)]
struct Jobs {
    jobs: Vec<Value>,
    /// The `PriorityClass` that they are made with, if any.
    class: Option<String>,
}

/// What is made before the Jobs, and has no owner until they are made.
fn unowned(objects: &Objects, claims: ClaimApi) -> impl Iterator<Item = (Kind, &Value)> {
    let templates = objects.claim_templates.iter();
    let templates = templates.map(move |it| (Kind::ResourceClaimTemplate(claims), it));
    templates.chain([(Kind::Secret, &objects.secret)])
}

/// What is made after the Jobs, which own it.
fn dependents(objects: &Objects) -> impl Iterator<Item = (Kind, &Value)> {
    let group = objects.group.iter();
    let group = group.map(|(api, group)| (Kind::PodGroup(*api), group));
    let service = objects.service.iter();
    group.chain(service.map(|service| (Kind::Service, service)))
}

/// The part of an object by which it is found again.
fn identity(object: &Value) -> Value {
    let of = |key: &str| object["metadata"][key].clone();
    json!({"metadata": {"name": of("name"), "labels": of("labels")}})
}

/// An object that exists now.
enum CreatedObject {
    New(Value),
    /// It existed before, in this form.
    Found(Value),
}

/// The patch that makes all Jobs the owners of an object: it goes when the last of them goes.
fn owners(jobs: &[Value]) -> Value {
    let references = jobs.iter().flat_map(|job| {
        let patch = owner_patch(uid(job), name(job));
        let references = patch.pointer("/metadata/ownerReferences");
        references
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    });
    let references: Vec<Value> = references.collect();
    json!({"metadata": {"ownerReferences": references}})
}

/// Whether an object that exists is of the same allocation of the same installation.
pub(crate) fn is_same_allocation(ours: &Value, found: &Value) -> bool {
    let label = |object: &Value, label: &str| {
        let labels = object.pointer("/metadata/labels");
        let label = labels.and_then(|labels| labels.get(label));
        label.and_then(Value::as_str).map(str::to_owned)
    };
    [det_pods::SELECTOR_LABEL, det_pods::CLUSTER_LABEL]
        .iter()
        .all(|key| label(ours, key).is_some() && label(ours, key) == label(found, key))
}

/// A Job that exists is used only if it was made for the same containers. One with the seal is not another's under the name
/// of ours; what an earlier version made before it ended may have the former one.
fn same_record(seal: &Seal, ours: &Value, found: Value) -> Result<Value, ApiError> {
    let record = |job: &Value| {
        let annotations = job.pointer("/metadata/annotations");
        annotations.and_then(|it| it.get(RECORD_ANNOTATION).cloned())
    };
    if record(ours) == record(&found) && (seal.is_on(&found) || seal.was_on(&found)) {
        return Ok(found);
    }
    Err(ApiError::Refused(format!(
        "a Job \"{}\" of this allocation exists that was made for other containers",
        name(ours)
    )))
}

pub(crate) fn name(object: &Value) -> &str {
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    name.unwrap_or_default()
}

pub(crate) fn uid(object: &Value) -> &str {
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
    uid.unwrap_or_default()
}
