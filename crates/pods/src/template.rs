//! The template of a Job's pods: what the system needs, laid over what the user customises.

use std::collections::BTreeSet;

use det_taskspec::sandbox::HOST_NETWORK;
use det_taskspec::{ContainerSpec, EMPTY_IMAGE, Mount, RUN_DIR, pods};
use serde_json::{Value, json};

use crate::admission::DEFAULT_TOLERATIONS;
use crate::affinity::{self, PLACEMENT_GATE};
use crate::devices::CLAIM;
use crate::environment;
use crate::facts::{ClusterFacts, MasterCert, Member, SlotResource, SlotResources};
use crate::json::{self, Object};
use crate::user_spec::{INIT_CONTAINER, TASK_CONTAINER, UserPod, name};

/// Where the init container sees the Secret.
const SECRET_DIR: &str = "/run/determined-secret";
const RUN_VOLUME: &str = "determined-run";
const SECRET_VOLUME: &str = "determined-secret";
const SHM_VOLUME: &str = "det-shm-volume";
const SHM_DIR: &str = "/dev/shm";
/// Seconds in which a supervisor ends and reports after its task was killed.
const REPORT_SECONDS: u32 = 15;

/// Taints of nodes that do not answer, and for how many seconds pods stay there; Kubernetes gives them five minutes.
const AWAY: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];
const AWAY_SECONDS: u32 = 60;
const GRACE: &str = "terminationGracePeriodSeconds";
/// Seconds that pods of preemptible tasks have after SIGTERM, unless their pod spec has others: the time to save a checkpoint,
/// and what autoscalers of clouds wait at most.
const SAVING_GRACE: u64 = 600;

/// The longest such time: a container beside the task's must not keep the pod's devices when its task has ended.
const LONGEST_GRACE: u64 = 3_600;

/// Seconds between SIGTERM and SIGKILL of a member's pod, with this `spec` of its user.
fn grace_seconds(facts: &ClusterFacts, member: &Member, spec: &Object) -> u64 {
    let of_user = spec.get(GRACE).and_then(Value::as_u64);
    let usual = if member.start.origin.preemptible {
        SAVING_GRACE
    } else {
        facts.default_grace_seconds.into()
    };
    let seconds = of_user.unwrap_or(usual).min(LONGEST_GRACE);
    seconds.max(ending_seconds(member))
}

/// Seconds that the supervisor takes at most to end a member's task, and to report that.
fn ending_seconds(member: &Member) -> u64 {
    let grace = member.start.spec.script.grace_seconds;
    u64::from(grace) + u64::from(REPORT_SECONDS)
}

/// Seconds that a member's task has to save and exit by itself when its pod is ended from outside; `None` = it cannot go on
/// later, and there is nothing to save for.
pub(crate) fn save_seconds(facts: &ClusterFacts, member: &Member) -> Option<u32> {
    if !member.start.origin.preemptible {
        return None;
    }
    let spec = UserPod::of(member.start.origin.pod_spec.as_ref()).spec;
    let left = grace_seconds(facts, member, &spec) - ending_seconds(member);
    u32::try_from(left).ok().filter(|seconds| *seconds > 0)
}

/// Fields of the task's container that a user cannot set.
const OWNED: &[&str] = &[
    "name",
    "image",
    "imagePullPolicy",
    "command",
    "args",
    "workingDir",
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "restartPolicy",
    "terminationMessagePath",
    "terminationMessagePolicy",
];

/// What a template is made from.
pub(crate) struct Source<'a> {
    pub(crate) facts: &'a ClusterFacts,
    /// Image of the init container.
    pub(crate) helper_image: &'a str,
    /// Name of the allocation's first Job, its Secret and its Service.
    pub(crate) job_name: &'a str,
    /// The members that get a pod of this template, in the order of their completion indices; the first is the example for
    /// all of them.
    pub(crate) first: &'a Member,
    /// Ranks of these members in the allocation, in the same order.
    pub(crate) ranks: &'a [u32],
    /// Containers of the whole allocation.
    pub(crate) members: usize,
    /// Whether the Secret has a login for the image's registry.
    pub(crate) has_login: bool,
    /// Name of the template of the claims for their slots; `None` = they claim none.
    pub(crate) claim: Option<&'a str>,
}

/// What a template is of.
pub(crate) struct PodSpec {
    /// `spec` of the pods, as Kubernetes has it.
    pub(crate) spec: Object,
    /// Names of variables that scripts leave out.
    pub(crate) kept: BTreeSet<String>,
}

impl Source<'_> {
    fn container(&self) -> &ContainerSpec {
        &self.first.start.spec
    }

    /// How its slots are asked of Kubernetes.
    fn slots(&self) -> &SlotResource {
        self.facts.slots.of(self.first.pool())
    }

    fn shares_network(&self) -> bool {
        self.container().network_mode == "host"
    }

    /// The `spec` of the pods.
    pub(crate) fn pod_spec(&self, user: UserPod) -> PodSpec {
        let UserPod {
            mut spec,
            mut containers,
            mut init_containers,
            mut task,
            ..
        } = user;
        let variables = environment::combined(
            environment::of_task(
                self.facts,
                self.first,
                self.members,
                containers.len() + init_containers.len() + 2,
            ),
            json::take_list(&mut task, "env"),
        );
        for container in containers.iter_mut().chain(&mut init_containers) {
            without_gpus(container, &self.facts.slots);
        }
        let own = self.own_volumes(&task);
        let task = self.task_container(task, variables.env, &own);
        init_containers.push(self.init_container(&task));
        containers.push(task);
        spec.insert("containers".to_owned(), containers.into());
        spec.insert("initContainers".to_owned(), init_containers.into());
        self.lay_volumes(&mut spec, own);
        if let Some(template) = self.claim {
            let own = json!({"name": CLAIM, "resourceClaimTemplateName": template});
            add_named(&mut spec, "resourceClaims", own);
        }
        if self.has_login {
            let mut secrets = json::take_list(&mut spec, "imagePullSecrets");
            secrets.push(json!({"name": self.job_name}));
            spec.insert("imagePullSecrets".to_owned(), secrets.into());
        }
        self.lay_over(&mut spec);
        self.lay_placement(&mut spec);
        PodSpec {
            spec,
            kept: variables.kept,
        }
    }

    /// What is the system's of a pod, besides containers, volumes and where it goes.
    fn lay_over(&self, spec: &mut Object) {
        spec.insert("restartPolicy".to_owned(), "Never".into());
        spec.entry("automountServiceAccountToken")
            .or_insert(false.into());
        spec.remove("hostNetwork");
        if self.shares_network() {
            spec.insert("hostNetwork".to_owned(), true.into());
            spec.entry("dnsPolicy")
                .or_insert("ClusterFirstWithHostNet".into());
        }
        let grace = grace_seconds(self.facts, self.first, spec);
        spec.insert(GRACE.to_owned(), grace.into());
        // The name of the pod is the name of its host.
        spec.remove("hostname");
        spec.remove("ephemeralContainers");
    }

    /// Where and when the pods are scheduled.
    fn lay_placement(&self, spec: &mut Object) {
        let is_gang = self.members > 1;
        // The master has chosen a node that this pod spec admits.
        spec.remove("nodeName");
        let is_pinned = self.facts.scheduler.uses_chosen_nodes();
        let node = self.first.node.as_str();
        let node = (is_pinned && !is_gang).then_some(node);
        affinity::restrict(spec, &self.facts.cluster_id, node);
        let mut gates = json::take_list(spec, "schedulingGates");
        gates.retain(|gate| name(gate) != Some(PLACEMENT_GATE));
        if is_gang && is_pinned {
            gates.push(json!({"name": PLACEMENT_GATE}));
        }
        if !gates.is_empty() {
            spec.insert("schedulingGates".to_owned(), gates.into());
        }
        if is_gang {
            spec.insert("subdomain".to_owned(), self.job_name.into());
        }
        let mut tolerations = json::take_list(spec, "tolerations");
        for key in DEFAULT_TOLERATIONS {
            let own = json!({"key": key, "operator": "Exists", "effect": "NoSchedule"});
            if !tolerations.contains(&own) {
                tolerations.push(own);
            }
        }
        for key in AWAY {
            let is_of = |toleration: &Value| toleration.get("key").is_none_or(|of| of == key);
            if !tolerations.iter().any(is_of) {
                tolerations.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": AWAY_SECONDS,
                }));
            }
        }
        spec.insert("tolerations".to_owned(), tolerations.into());
        if let Some(scheduler) = self.facts.scheduler.name() {
            spec.entry("schedulerName").or_insert(scheduler.into());
        }
    }

    fn security_context(&self, of_user: Object) -> Object {
        let spec = self.container();
        let mut context = of_user;
        context.insert("runAsUser".to_owned(), spec.user.uid.into());
        context.insert("runAsGroup".to_owned(), spec.user.gid.into());
        let mut capabilities = json::take_object(&mut context, "capabilities");
        let added = spec.add_capabilities.iter();
        for (key, own) in [
            (
                "add",
                added.chain(&spec.default_capabilities).collect::<Vec<_>>(),
            ),
            ("drop", spec.drop_capabilities.iter().collect()),
        ] {
            let mut list = json::take_list(&mut capabilities, key);
            for capability in own {
                // Kubernetes knows them without the prefix only.
                let name = capability.to_ascii_uppercase();
                let name = Value::from(name.strip_prefix("CAP_").unwrap_or(&name));
                if !list.contains(&name) {
                    list.push(name);
                }
            }
            if !list.is_empty() {
                capabilities.insert(key.to_owned(), list.into());
            }
        }
        if !capabilities.is_empty() {
            context.insert("capabilities".to_owned(), capabilities.into());
        }
        context
    }

    fn task_container(&self, of_user: Object, env: Vec<Value>, own: &[OwnVolume]) -> Value {
        let spec = self.container();
        let mut container = of_user;
        for key in OWNED {
            container.remove(*key);
        }
        let mut command = vec![
            format!("{RUN_DIR}/{}", pods::SUPERVISOR_FILE),
            "run".to_owned(),
        ];
        if self.shares_network() {
            command.push(HOST_NETWORK.to_owned());
        }
        let policy = if spec.force_pull_image {
            "Always"
        } else {
            "IfNotPresent"
        };
        let context = json::take_object(&mut container, "securityContext");
        let context = self.security_context(context);
        let resources = json::take_object(&mut container, "resources");
        let resources = self.resources(resources);
        let mounts = json::take_list(&mut container, "volumeMounts");
        let mounts = combined_mounts(own, mounts);
        container.extend(json::map([
            ("name", Value::from(TASK_CONTAINER)),
            ("image", self.image().into()),
            ("imagePullPolicy", policy.into()),
            ("command", command.into()),
            ("env", env.into()),
            ("securityContext", context.into()),
            ("volumeMounts", mounts.into()),
            (
                "terminationMessagePath",
                environment::TERMINATION_LOG.into(),
            ),
            ("terminationMessagePolicy", "File".into()),
        ]));
        if !resources.is_empty() {
            container.insert("resources".to_owned(), resources.into());
        }
        let ports: BTreeSet<u16> = spec.ports.iter().copied().collect();
        // In the network of the host they would be the host's: two tasks that declare the same could not share a node.
        if !ports.is_empty() && !self.shares_network() {
            let ports = ports.into_iter();
            let ports: Vec<Value> = ports.map(|port| json!({"containerPort": port})).collect();
            container.insert("ports".to_owned(), ports.into());
        }
        container.into()
    }

    /// Requests and limits of the task's container: those of its slots, and the user's for everything else.
    fn resources(&self, of_user: Object) -> Object {
        let mut resources = of_user;
        let slots = u64::from(self.first.slots());
        let resource = self.slots();
        let amount = match resource {
            SlotResource::Extended(_) => Some(slots.to_string()),
            SlotResource::Cpu { millis } => Some(format!("{}m", slots.saturating_mul(*millis))),
            SlotResource::Devices(_) => None,
        };
        let amount = amount.filter(|_| slots > 0);
        if self.claim.is_some() {
            add_named(&mut resources, "claims", json!({"name": CLAIM}));
        }
        for kind in ["requests", "limits"] {
            let mut amounts = json::take_object(&mut resources, kind);
            // No pod has devices that it was not given slots for.
            amounts.retain(|name, _| !self.facts.slots.give_alone(name));
            if let Some(amount) = &amount {
                amounts.insert(resource.name().to_owned(), amount.clone().into());
            }
            if !amounts.is_empty() {
                resources.insert(kind.to_owned(), amounts.into());
            }
        }
        resources
    }

    /// The image of the task's container. Where only the supervisor works, which is in every pod, that of the helper will do.
    fn image(&self) -> String {
        match self.container().image.as_str() {
            EMPTY_IMAGE => self.helper_image.to_owned(),
            image => image.to_owned(),
        }
    }

    /// The init container that places supervisor and script; as restricted as `task`, so that a namespace which takes one
    /// takes the other.
    fn init_container(&self, task: &Value) -> Value {
        let context = json::at(task, &["securityContext"]).and_then(Value::as_object);
        let mut context = context.cloned().unwrap_or_default();
        context.remove("privileged");
        if let Some(Value::Object(capabilities)) = context.get_mut("capabilities") {
            capabilities.remove("add");
        }
        if context.get("capabilities") == Some(&json!({})) {
            context.remove("capabilities");
        }
        let mut resources = Object::new();
        for kind in ["requests", "limits"] {
            let amounts = json::at(task, &["resources", kind]).and_then(Value::as_object);
            let mut amounts = amounts.cloned().unwrap_or_default();
            // It needs hardly any, but a quota may demand that every container names them.
            amounts.retain(|name, _| ["cpu", "memory", "ephemeral-storage"].contains(&&**name));
            if !amounts.is_empty() {
                resources.insert(kind.to_owned(), amounts.into());
            }
        }
        let mut container = json!({
            "name": INIT_CONTAINER,
            "image": self.helper_image,
            "imagePullPolicy": "IfNotPresent",
            "command": [pods::SUPERVISOR_FILE, pods::PLACE, "--from", SECRET_DIR, "--to", RUN_DIR],
            "env": environment::of_placement(self.ranks),
            "securityContext": context,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": RUN_VOLUME, "mountPath": RUN_DIR},
                {"name": SECRET_VOLUME, "mountPath": SECRET_DIR, "readOnly": true},
            ],
        });
        if !resources.is_empty()
            && let Value::Object(container) = &mut container
        {
            container.insert("resources".to_owned(), resources.into());
        }
        container
    }

    /// The volumes that the system mounts into the task's container; `task` is what the user has for that.
    fn own_volumes(&self, task: &Object) -> Vec<OwnVolume> {
        let spec = self.container();
        let work_dir = spec.user.work_dir(&spec.script.work_dir);
        let mut volumes = vec![OwnVolume {
            volume: json!({"name": RUN_VOLUME, "emptyDir": {}}),
            mount: json!({"name": RUN_VOLUME, "mountPath": RUN_DIR}),
        }];
        let of_user = task.get("volumeMounts").and_then(Value::as_array);
        let of_user = of_user.into_iter().flatten();
        let has_shm = of_user.into_iter().any(|mount| target(mount) == SHM_DIR);
        if !has_shm {
            let mut memory = json::map([("medium", "Memory")]);
            if spec.shm_size_bytes > 0 {
                let size = spec.shm_size_bytes.to_string();
                memory.insert("sizeLimit".to_owned(), size.into());
            }
            volumes.push(OwnVolume {
                volume: json!({"name": SHM_VOLUME, "emptyDir": memory}),
                mount: json!({"name": SHM_VOLUME, "mountPath": SHM_DIR}),
            });
        }
        let mut taken: BTreeSet<String> = [RUN_DIR, SHM_DIR].map(str::to_owned).into();
        for (number, mount) in spec.mounts.iter().enumerate() {
            let volume = OwnVolume::of_host(number, mount, &work_dir);
            if taken.insert(target(&volume.mount).to_owned()) {
                volumes.push(volume);
            }
        }
        volumes
    }

    /// What pods of this template read of the Secret.
    fn items(&self) -> Vec<Value> {
        let has_certificate = matches!(self.facts.master.cert, MasterCert::Text(_));
        let certificate = has_certificate.then(|| pods::CERTIFICATE_KEY.to_owned());
        let keys = self.ranks.iter().map(|rank| pods::script_key(*rank));
        keys.chain(certificate)
            .map(|key| json!({"key": key, "path": key}))
            .collect()
    }

    fn lay_volumes(&self, spec: &mut Object, own: Vec<OwnVolume>) {
        let mut secret = json!({"secretName": self.job_name, "defaultMode": 0o444});
        if self.has_login {
            // A login may be the pool's: what runs in the pod is not to read it.
            secret["items"] = self.items().into();
        }
        let secret = json!({"name": SECRET_VOLUME, "secret": secret});
        let own = own.into_iter().map(|own| own.volume);
        let own: Vec<Value> = own.chain([secret]).collect();
        let mut volumes = json::take_list(spec, "volumes");
        volumes.retain(|volume| !own.iter().any(|own| name(own) == name(volume)));
        volumes.extend(own);
        spec.insert("volumes".to_owned(), volumes.into());
    }
}

/// Takes from a container of the user what only slots give, whichever pool they are of. Images of CUDA ask for all GPUs of the node.
fn without_gpus(container: &mut Value, slots: &SlotResources) {
    let Some(container) = container.as_object_mut() else {
        return;
    };
    for kind in ["requests", "limits"] {
        let amounts = container
            .get_mut("resources")
            .and_then(|resources| resources.get_mut(kind)?.as_object_mut());
        if let Some(amounts) = amounts {
            amounts.retain(|name, _| !slots.give_alone(name));
        }
    }
    let mut env = json::take_list(container, "env");
    environment::hide_gpus(&mut env);
    container.insert("env".to_owned(), env.into());
}

/// Adds an element of the system's to a list of named ones, in place of the user's of that name.
fn add_named(of: &mut Object, key: &str, own: Value) {
    let mut list = json::take_list(of, key);
    list.retain(|element| name(element) != name(&own));
    list.push(own);
    of.insert(key.to_owned(), list.into());
}

/// A volume of the system with its place in the task's container.
struct OwnVolume {
    volume: Value,
    mount: Value,
}

impl OwnVolume {
    fn of_host(number: usize, mount: &Mount, work_dir: &str) -> Self {
        let name = format!("det-host-volume-{number}");
        let mut path = json::map([("path", mount.host_path.clone())]);
        if mount.create {
            path.insert("type".to_owned(), "DirectoryOrCreate".into());
        }
        let propagation = match mount.propagation.as_str() {
            "rshared" | "shared" => "Bidirectional",
            "rslave" | "slave" => "HostToContainer",
            _ => "None",
        };
        Self {
            volume: json!({"name": name, "hostPath": path}),
            mount: json!({
                "name": name,
                "mountPath": mount.target(work_dir),
                "readOnly": mount.read_only,
                "mountPropagation": propagation,
            }),
        }
    }
}

/// The system's mounts and then the user's. A path is mounted once, with what the system has there.
fn combined_mounts(own: &[OwnVolume], of_user: Vec<Value>) -> Vec<Value> {
    let mut mounts: Vec<Value> = own.iter().map(|own| own.mount.clone()).collect();
    for mount in of_user {
        if !mounts.iter().any(|other| target(other) == target(&mount)) {
            mounts.push(mount);
        }
    }
    mounts
}

/// Where a mount is in its container.
fn target(mount: &Value) -> &str {
    let path = json::text(mount, &["mountPath"]).unwrap_or_default();
    let trimmed = path.trim_end_matches('/');
    if trimmed.is_empty() { path } else { trimmed }
}
