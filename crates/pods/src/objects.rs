//! Everything that is created for one allocation.

use std::collections::BTreeSet;

use det_ids::{AllocationId, ClusterId};
use det_taskspec::{TaskKind, pods};
use serde_json::{Value, json};

use crate::backend::{Gang, GroupApi, Scheduler};
use crate::devices::claim_template;
use crate::environment;
use crate::exposure::{SERVICE_PORTS_ANNOTATION, service_ports_text};
use crate::facts::{ClusterFacts, DeviceClass, MasterCert, Member};
use crate::json::{self, Object};
use crate::login::{self, login};
use crate::names::{
    CLUSTER_LABEL, NameFacts, SELECTOR_LABEL, group_name, is_class_of_a_priority, is_reserved,
    job_name, label_value,
};
use crate::placeholder::keep_nodes;
use crate::priority::{PriorityClass, priority_class};
use crate::record::{PORTS_ANNOTATION, RECORD_ANNOTATION, record};
use crate::seal::SEAL_ANNOTATION;
use crate::template::{PodSpec, Source};
use crate::user_spec::UserPod;

/// Seconds for which an ended Job stays: its exit codes are read by a master that was away.
const KEPT_SECONDS: u32 = 900;
/// Bytes that the API takes of a Secret at most: <https://kubernetes.io/docs/concepts/configuration/secret/>.
const MOST_OF_SECRET: usize = 1 << 20;

/// The objects of an allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct Objects {
    /// Name of the first Job, of the Secret and of the Service.
    pub job_name: String,
    /// The scripts of all ranks, with their tokens, and the master's certificate. Has no owner: see [`owner_patch`].
    pub secret: Value,
    /// Templates of the claims for slots, one for each of [`Self::jobs`] whose pods claim some. Have no owner either.
    pub claim_templates: Vec<Value>,
    /// A Job for each size of pod, that of the lowest rank first.
    pub jobs: Vec<Value>,
    /// For each of [`Self::jobs`], the rank of each completion index.
    pub ranks: Vec<Vec<u32>>,
    /// What gives the pods of several containers names of hosts; `None` = there is only one pod. Has no owner either.
    pub service: Option<Value>,
    /// What makes the pods of a gang a group for a scheduler other than the master; `None` = it needs none. Has no owner.
    pub group: Option<(GroupApi, Value)>,
    /// The `PriorityClass` of the pods, which [`Self::set_priority_class`] gives them; `None` = the user's pod spec names one.
    pub priority: Option<PriorityClass>,
}

impl Objects {
    /// Has all pods belong to a `PriorityClass`, which must exist: Kubernetes makes no pods of one that does not.
    pub fn set_priority_class(&mut self, name: &str) {
        for job in &mut self.jobs {
            let spec = job.pointer_mut("/spec/template/spec");
            if let Some(spec) = spec.and_then(Value::as_object_mut) {
                spec.insert("priorityClassName".to_owned(), name.into());
            }
        }
        if let Some((_, group)) = &mut self.group {
            group["spec"]["priorityClassName"] = name.into();
        }
    }

    /// Has autoscalers of the cluster leave the nodes of the pods alone, unless the user's pod spec has something else.
    pub fn keep_nodes(&mut self) {
        keep_nodes(&mut self.jobs);
    }
}

/// Why there are no objects for an allocation. The text is for users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectsError {
    /// There is no image to take the supervisor from.
    #[error(
        "no helper image is configured for the Kubernetes cluster, and no pod can be started without one: name an image \
         that contains det-supervisor in the configuration of its resource manager"
    )]
    NoHelperImage,
    /// There are no containers.
    #[error("an allocation without containers has no pods; this is a bug")]
    NoMembers,
    /// The containers are not the ranks of one allocation.
    #[error("the containers of allocation \"{0}\" belong to others or share a rank; this is a bug")]
    Members(AllocationId),
    /// The user's pod names an object that is not the user's: it may hold the token of another user, or rights of the master.
    #[error(
        "the pod spec names \"{0}\", and names of this kind are those of the system and of its tasks, with their tokens and \
         rights: use objects of your own"
    )]
    Reserved(String),
    /// The pods have several sizes, and Kueue would admit those of each size by themselves.
    #[error(
        "its pods have {0} sizes, and Kueue, which starts tasks in this cluster, admits those of each size by themselves: use \
         a number of slots that makes all pods the same"
    )]
    SeveralJobs(usize),
    /// The user's pod names a class that the master gives by the priority of a job.
    #[error(
        "the pod spec names the PriorityClass \"{0}\", which tasks get by their priority: set resources.priority instead, or \
         name a class of your administrator's"
    )]
    PriorityClass(String),
    /// The login for the image's registry has no user name and password.
    #[error(
        "environment.registry_auth has a token only, and Kubernetes pulls images with user name and password: give these, or \
         name a Secret in imagePullSecrets of environment.pod_spec"
    )]
    LoginByToken,
    /// All scripts are more than a Secret holds.
    #[error(
        "what the {members} containers of allocation \"{allocation_id}\" need to start has {bytes} bytes together, and \
         Kubernetes keeps at most {most}: make its configuration, its variables or its startup hook smaller, or use fewer \
         and larger pods"
    )]
    SecretTooLarge {
        /// Id of the allocation whose Secret is too large.
        allocation_id: AllocationId,
        /// Number of containers of the allocation.
        members: usize,
        /// Bytes of all scripts and certificates.
        bytes: usize,
        /// Bytes that a Secret may have.
        most: usize,
    },
}

/// Whether a label or an annotation is the system's, by its key.
fn is_systems(key: &str) -> bool {
    key == SELECTOR_LABEL || key.starts_with("determined.ai/") || key == "determined-system"
}

/// A text in a user's pod that is like the name of an object that is not the user's.
fn reserved_name<'v>(value: &'v Value, cluster_id: &ClusterId) -> Option<&'v str> {
    match value {
        Value::String(text) => Some(text.as_str()).filter(|text| is_reserved(text, cluster_id)),
        Value::Array(items) => items.iter().find_map(|it| reserved_name(it, cluster_id)),
        Value::Object(members) => members
            .values()
            .find_map(|it| reserved_name(it, cluster_id)),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Everything that is created for one allocation, from all its members in the order of their ranks.
///
/// # Errors
/// The facts do not give objects; the text is for the task's owner.
pub fn objects(
    facts: &ClusterFacts,
    namespace: &str,
    members: &[Member],
) -> Result<Objects, ObjectsError> {
    let helper_image = facts.helper_image.as_deref();
    let helper_image = helper_image.filter(|image| !image.is_empty());
    let helper_image = helper_image.ok_or(ObjectsError::NoHelperImage)?;
    let first = members.first().ok_or(ObjectsError::NoMembers)?;
    let allocation_id = &first.start.spec.allocation_id;
    let ranks: BTreeSet<u32> = members.iter().map(Member::rank).collect();
    let same = |member: &Member| member.start.spec.allocation_id == *allocation_id;
    if ranks.len() != members.len() || !members.iter().all(same) {
        return Err(ObjectsError::Members(allocation_id.clone()));
    }
    let mut specs = members
        .iter()
        .filter_map(|it| it.start.origin.pod_spec.as_ref());
    if let Some(name) = specs.find_map(|spec| reserved_name(spec, &facts.cluster_id)) {
        return Err(ObjectsError::Reserved(name.to_owned()));
    }
    let mut specs = members
        .iter()
        .filter_map(|it| it.start.origin.pod_spec.as_ref());
    let named = |spec: &&Value| {
        json::text(spec, &["spec", "priorityClassName"]).is_some_and(is_class_of_a_priority)
    };
    if let Some(spec) = specs.find(named) {
        let name = json::text(spec, &["spec", "priorityClassName"]).unwrap_or_default();
        return Err(ObjectsError::PriorityClass(name.to_owned()));
    }
    let groups = groups(members);
    if groups.len() > 1 && matches!(facts.scheduler, Scheduler::Kueue { .. }) {
        return Err(ObjectsError::SeveralJobs(groups.len()));
    }
    let allocation = Allocation {
        facts,
        namespace,
        members,
        first,
        helper_image,
        job_name: job_name(
            &facts.cluster_id,
            NameFacts::of(&first.start),
            groups.len(),
            members.len(),
        ),
    };
    let mut data = allocation.certificate();
    let auth = first.start.spec.registry_auth.as_ref();
    let login = auth.map(|auth| login(auth, &first.start.spec.image));
    if let Some(login) = login.transpose()?.flatten() {
        data.insert(login::KEY.to_owned(), login.into());
    }
    let mut jobs = Vec::new();
    let mut claim_templates = Vec::new();
    let mut ranks = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let (job, kept) = allocation.job(number, group, &data);
        for member in group {
            let script = environment::script(allocation.facts, member, &kept);
            // Texts and numbers always become JSON.
            let script = serde_json::to_string(&script).unwrap_or_default();
            data.insert(pods::script_key(member.rank()), script.into());
        }
        claim_templates.extend(allocation.claim_template(number, group));
        jobs.push(job);
        ranks.push(group.iter().map(|member| member.rank()).collect());
    }
    Ok(Objects {
        secret: allocation.secret(&data)?,
        service: allocation.service(),
        group: allocation.group(&jobs),
        priority: allocation.priority(),
        claim_templates,
        job_name: allocation.job_name,
        jobs,
        ranks,
    })
}

/// The members by the size of their pods, those of the lowest rank first.
fn groups(members: &[Member]) -> Vec<Vec<&Member>> {
    let mut sorted: Vec<&Member> = members.iter().collect();
    sorted.sort_by_key(|member| member.rank());
    let mut groups: Vec<Vec<&Member>> = Vec::new();
    for member in sorted {
        let known = groups
            .iter_mut()
            .find(|group| group.iter().all(|other| other.slots() == member.slots()));
        match known {
            Some(group) => group.push(member),
            None => groups.push(vec![member]),
        }
    }
    groups
}

/// What all objects of an allocation are made from.
struct Allocation<'a> {
    facts: &'a ClusterFacts,
    namespace: &'a str,
    members: &'a [Member],
    /// Any of its members, for what all have in common.
    first: &'a Member,
    helper_image: &'a str,
    job_name: String,
}

impl Allocation<'_> {
    /// The pod as the user customises it.
    fn user(&self) -> UserPod {
        UserPod::of(self.first.start.origin.pod_spec.as_ref())
    }

    /// Labels that every object of the allocation has.
    fn common_labels(&self) -> Object {
        let allocation_id = self.first.start.spec.allocation_id.as_str();
        json::map([
            (SELECTOR_LABEL, label_value(allocation_id)),
            (CLUSTER_LABEL, label_value(self.facts.cluster_id.as_str())),
        ])
    }

    /// Labels of Jobs and their pods.
    fn labels(&self) -> Object {
        let spec = &self.first.start.spec;
        let origin = &self.first.start.origin;
        let allocation_id = spec.allocation_id.as_str();
        let kind = spec.script.task_type;
        let is_trial = kind == TaskKind::Trial;
        let experiment_id = origin.experiment_id.filter(|_| is_trial);
        let trial_id = origin.trial_id.filter(|_| is_trial);
        let mut labels = self.common_labels();
        let texts = [
            ("allocation_id", allocation_id),
            // Clients know an allocation on Kubernetes by one id.
            ("container_id", allocation_id),
            ("task_id", spec.task_id.as_str()),
            ("task_type", kind.name()),
            ("resource_pool", origin.resource_pool.as_str()),
            ("workspace", origin.workspace_name.as_str()),
            ("user", origin.owner_name.as_str()),
        ];
        let texts = texts.map(|(key, text)| (key, label_value(text)));
        let numbers = [
            ("experiment_id", experiment_id.map(|id| id.to_string())),
            ("trial_id", trial_id.map(|id| id.to_string())),
        ];
        let numbers = numbers
            .into_iter()
            .filter_map(|(key, number)| Some((key, label_value(&number?))));
        for (key, value) in texts.into_iter().chain(numbers) {
            labels.insert(format!("determined.ai/{key}"), value.into());
        }
        labels
    }

    /// A Job, and the names of the variables that scripts leave out.
    fn job(&self, number: usize, group: &[&Member], secret: &Object) -> (Value, BTreeSet<String>) {
        let first = group.first().copied().unwrap_or(self.first);
        let ranks: Vec<u32> = group.iter().map(|member| member.rank()).collect();
        let user = self.user();
        let record = record(group);
        let mut annotations = json::map([(RECORD_ANNOTATION, record.clone())]);
        let labels = self.labels();
        let of_user = |texts: &Object| -> Object {
            let own = texts.iter().filter(|(key, _)| !is_systems(key));
            own.map(|(key, text)| (key.clone(), text.clone())).collect()
        };
        let (mut pod_labels, mut pod_annotations) =
            (of_user(&user.labels), of_user(&user.annotations));
        let job_name = self.job_name_of(number);
        let claims = self.class(first).is_some();
        let source = Source {
            facts: self.facts,
            helper_image: self.helper_image,
            job_name: &self.job_name,
            first,
            ranks: &ranks,
            members: self.members.len(),
            has_login: secret.contains_key(login::KEY),
            claim: claims.then_some(job_name.as_str()),
        };
        let PodSpec { spec, kept } = source.pod_spec(user);
        let ports: BTreeSet<u16> = first.start.spec.ports.iter().copied().collect();
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        pod_annotations.insert(PORTS_ANNOTATION.to_owned(), ports.join(",").into());
        pod_labels.extend(labels.clone());
        let at = (self.namespace, job_name.as_str());
        let seal = self.facts.seal.of(at, &record);
        annotations.insert(SEAL_ANNOTATION.to_owned(), seal.into());
        let description = &first.start.spec.description;
        annotations.insert(
            "determined.ai/description".to_owned(),
            description.clone().into(),
        );
        let origin = &first.start.origin;
        if origin.member == 0
            && let Some(ports) = service_ports_text(&origin.service_ports)
        {
            annotations.insert(SERVICE_PORTS_ANNOTATION.to_owned(), ports.into());
        }
        let mut job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": job_name,
                "namespace": self.namespace,
                "labels": labels,
                "annotations": annotations,
            },
            "spec": {
                "completionMode": "Indexed",
                "completions": group.len(),
                "parallelism": group.len(),
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": KEPT_SECONDS,
                "podReplacementPolicy": "Failed",
                // The reason of the Job's condition distinguishes it from a failure of the code.
                "podFailurePolicy": {"rules": [{
                    "action": "FailJob",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                }]},
                "template": {
                    "metadata": {"labels": pod_labels, "annotations": pod_annotations},
                    "spec": spec,
                },
            },
        });
        self.gang().lay_over(&self.facts.scheduler, &mut job);
        (job, kept)
    }

    /// Name of the Job of a size of pod, by its number.
    fn job_name_of(&self, number: usize) -> String {
        match number {
            0 => self.job_name.clone(),
            number => group_name(&self.job_name, number),
        }
    }

    /// The class of the devices that a member claims; `None` = it claims none.
    fn class(&self, member: &Member) -> Option<&DeviceClass> {
        let class = self.facts.slots.of(member.pool()).class();
        class.filter(|_| member.slots() > 0)
    }

    /// The template of the claims of a size of pod, with the name of its Job; `None` = its pods claim nothing.
    fn claim_template(&self, number: usize, group: &[&Member]) -> Option<Value> {
        let first = group.first()?;
        let at = (self.namespace, &*self.job_name_of(number));
        let labels = self.common_labels();
        let (api, class) = (self.facts.claims, self.class(first)?);
        Some(claim_template(api, class, at, &labels, first.slots()))
    }

    /// What starts its pods together is given this.
    fn gang(&self) -> Gang<'_> {
        Gang {
            name: &self.job_name,
            members: self.members.len(),
            pool: &self.first.start.origin.resource_pool,
        }
    }

    /// What makes its pods a group for a scheduler other than the master.
    fn group(&self, jobs: &[Value]) -> Option<(GroupApi, Value)> {
        let metadata = json!({
            "name": self.job_name,
            "namespace": self.namespace,
            "labels": self.common_labels(),
        });
        let gang = self.gang();
        gang.group(&self.facts.scheduler, jobs.first()?, &metadata)
    }

    /// The master's certificate as data of the Secret.
    fn certificate(&self) -> Object {
        match &self.facts.master.cert {
            MasterCert::Text(text) => json::map([(pods::CERTIFICATE_KEY, text.clone())]),
            MasterCert::Usual | MasterCert::NoVerify => Object::new(),
        }
    }

    fn secret(&self, data: &Object) -> Result<Value, ObjectsError> {
        let sizes = data.values().filter_map(Value::as_str).map(str::len);
        let bytes: usize = sizes.sum();
        if bytes > MOST_OF_SECRET {
            return Err(ObjectsError::SecretTooLarge {
                allocation_id: self.first.start.spec.allocation_id.clone(),
                members: self.members.len(),
                bytes,
                most: MOST_OF_SECRET,
            });
        }
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self.job_name,
                "namespace": self.namespace,
                "labels": self.common_labels(),
            },
            "type": if data.contains_key(login::KEY) { login::TYPE } else { "Opaque" },
            "stringData": data,
        }))
    }

    /// The `PriorityClass` of its pods; one that the user names is better.
    fn priority(&self) -> Option<PriorityClass> {
        let user = self.user();
        let named = user.spec.get("priorityClassName").and_then(Value::as_str);
        let has_none = named.is_none_or(str::is_empty);
        has_none.then(|| priority_class(&self.first.start, self.facts.preempts))
    }

    /// What gives the pods of a gang names of hosts.
    fn service(&self) -> Option<Value> {
        let allocation_id = self.first.start.spec.allocation_id.as_str();
        (self.members.len() > 1).then(|| {
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {
                    "name": self.job_name,
                    "namespace": self.namespace,
                    "labels": self.common_labels(),
                },
                "spec": {
                    "clusterIP": "None",
                    // Ranks find each other before any of them is ready.
                    "publishNotReadyAddresses": true,
                    "selector": {SELECTOR_LABEL: label_value(allocation_id)},
                },
            })
        })
    }
}

/// The patch that makes a Job the owner of a Secret or a Service, which then go with it: the body of a merge patch.
pub fn owner_patch(job_uid: &str, job_name: &str) -> Value {
    json!({"metadata": {"ownerReferences": [{
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job_name,
        "uid": job_uid,
    }]}})
}
