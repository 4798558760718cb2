//! Pods by chance: what the API server takes, of all kinds of lists and maps that a pod has.

use serde_json::{Map, Value, json};

/// Chance that a seed repeats: `SplitMix64`.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 33).unwrap() % end
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.below(of.len())]
    }
}

/// The keys that are generated of a type: first those that are always there.
#[expect(clippy::too_many_lines, reason = "a table")]
fn keys(of: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match of {
        "PodTemplateSpec" => (&["metadata", "spec"], &[]),
        "ObjectMeta" => (&[], &["labels", "annotations", "finalizers"]),
        "PodSpec" => (
            &["containers", "volumes"],
            &[
                "activeDeadlineSeconds",
                "affinity",
                "automountServiceAccountToken",
                "dnsConfig",
                "enableServiceLinks",
                "hostAliases",
                "hostname",
                "imagePullSecrets",
                "initContainers",
                "nodeSelector",
                "priorityClassName",
                "readinessGates",
                "resourceClaims",
                "runtimeClassName",
                "schedulerName",
                "schedulingGates",
                "securityContext",
                "serviceAccountName",
                "shareProcessNamespace",
                "subdomain",
                "terminationGracePeriodSeconds",
                "tolerations",
                "topologySpreadConstraints",
            ],
        ),
        "Container" => (
            &["name", "image"],
            &[
                "args",
                "command",
                "env",
                "envFrom",
                "imagePullPolicy",
                "lifecycle",
                "livenessProbe",
                "ports",
                "resources",
                "securityContext",
                "stdin",
                "terminationMessagePolicy",
                "tty",
                "volumeMounts",
                "workingDir",
            ],
        ),
        "EnvVar" => (&["name"], &["value"]),
        "EnvFromSource" => (&["secretRef"], &["prefix"]),
        "ContainerPort" => (&["containerPort"], &["hostIP", "protocol"]),
        "VolumeMount" => (&["mountPath", "name"], &["readOnly", "subPath"]),
        "ResourceRequirements" => (&[], &["limits"]),
        "SecurityContext" => (
            &[],
            &[
                "capabilities",
                "privileged",
                "readOnlyRootFilesystem",
                "runAsNonRoot",
                "seLinuxOptions",
            ],
        ),
        "Capabilities" => (&[], &["add", "drop"]),
        "SELinuxOptions" => (&[], &["level", "role", "user"]),
        "Lifecycle" => (&[], &["preStop"]),
        "LifecycleHandler" | "Probe" => (&["exec"], &[]),
        "ExecAction" => (&["command"], &[]),
        "PodSecurityContext" => (
            &[],
            &["fsGroup", "runAsNonRoot", "supplementalGroups", "sysctls"],
        ),
        "Sysctl" => (&["name", "value"], &[]),
        "PodDNSConfig" => (&["nameservers"], &["options", "searches"]),
        "PodDNSConfigOption" => (&["name"], &["value"]),
        "HostAlias" => (&["ip"], &["hostnames"]),
        "LocalObjectReference" | "PodSchedulingGate" => (&["name"], &[]),
        "SecretEnvSource" => (&["name"], &["optional"]),
        "PodReadinessGate" => (&["conditionType"], &[]),
        "PodResourceClaim" => (&["name", "resourceClaimName"], &[]),
        "Toleration" => (&["key", "operator"], &["effect"]),
        "TopologySpreadConstraint" => (
            &["topologyKey", "maxSkew", "whenUnsatisfiable"],
            &["labelSelector"],
        ),
        "LabelSelector" => (&[], &["matchExpressions", "matchLabels"]),
        "LabelSelectorRequirement" => (&["key", "operator"], &[]),
        "Affinity" => (&[], &["nodeAffinity", "podAntiAffinity"]),
        "NodeAffinity" => (&[], &["requiredDuringSchedulingIgnoredDuringExecution"]),
        "PodAntiAffinity" => (&[], &["requiredDuringSchedulingIgnoredDuringExecution"]),
        "NodeSelector" => (&["nodeSelectorTerms"], &[]),
        "NodeSelectorTerm" => (&["matchExpressions"], &[]),
        "NodeSelectorRequirement" => (&["key", "operator"], &[]),
        "PodAffinityTerm" => (&["topologyKey"], &["labelSelector"]),
        "EmptyDirVolumeSource" => (&[], &["medium", "sizeLimit"]),
        "HostPathVolumeSource" => (&["path"], &["type"]),
        "ConfigMapVolumeSource" => (&["name"], &["items", "optional"]),
        "SecretVolumeSource" => (&["secretName"], &["items", "optional"]),
        "KeyToPath" => (&["key", "path"], &[]),
        "PersistentVolumeClaimVolumeSource" => (&["claimName"], &["readOnly"]),
        other => unreachable!("{other} is not generated"),
    }
}

/// The keys of a type that chance may add.
pub(crate) fn optional_keys(of: &str) -> &'static [&'static str] {
    match of {
        "Volume" => &[],
        of => keys(of).1,
    }
}

/// A template of pods.
pub(crate) fn template(chance: &mut Chance) -> Value {
    object(chance, "PodTemplateSpec")
}

/// A map of this type.
pub(crate) fn object(chance: &mut Chance, of: &str) -> Value {
    if of == "Volume" {
        let name = chance.pick(&["v0", "v1", "v2", "v3", "v4"]);
        let mut volume = source(chance);
        volume.insert("name".into(), name.into());
        return volume.into();
    }
    let (always, sometimes) = keys(of);
    let mut members = Map::new();
    for key in always {
        members.insert((*key).into(), member(chance, of, key));
    }
    for key in sometimes {
        let rarely = if sometimes.len() > 9 { 4 } else { 2 };
        if chance.one_in(rarely) {
            members.insert((*key).into(), member(chance, of, key));
        }
    }
    members.into()
}

/// One source of a volume, as a map of its only key.
pub(crate) fn source(chance: &mut Chance) -> Map<String, Value> {
    let (key, of) = [
        ("emptyDir", "EmptyDirVolumeSource"),
        ("hostPath", "HostPathVolumeSource"),
        ("configMap", "ConfigMapVolumeSource"),
        ("secret", "SecretVolumeSource"),
        ("persistentVolumeClaim", "PersistentVolumeClaimVolumeSource"),
    ][chance.below(5)];
    let value = object(chance, of);
    [(key.to_owned(), value)].into_iter().collect()
}

/// Some elements; of those with the same value of `key` one.
fn list(chance: &mut Chance, of: &str, key: &str, least: usize) -> Value {
    let count = least + chance.below(4);
    let mut items: Vec<Value> = Vec::new();
    for _ in 0..count {
        let item = object(chance, of);
        if key.is_empty() || !items.iter().any(|other| other[key] == item[key]) {
            items.push(item);
        }
    }
    items.into()
}

fn texts(chance: &mut Chance, of: &[&str]) -> Value {
    let count = chance.below(4);
    (0..count).map(|_| Value::from(chance.pick(of))).collect()
}

/// Some of the texts, each at most once, in their order.
fn set(chance: &mut Chance, of: &[&str]) -> Value {
    of.iter()
        .filter(|_| chance.one_in(2))
        .map(|text| Value::from(*text))
        .collect()
}

fn text_map(chance: &mut Chance, keys: &[&str], values: &[&str]) -> Value {
    let mut map = Map::new();
    for key in keys {
        if chance.one_in(2) {
            map.insert((*key).into(), chance.pick(values).into());
        }
    }
    map.into()
}

/// A value for this key of a type.
pub(crate) fn member(chance: &mut Chance, of: &str, key: &str) -> Value {
    match (of, key) {
        ("PodTemplateSpec", "metadata") => object(chance, "ObjectMeta"),
        ("PodTemplateSpec", "spec") => object(chance, "PodSpec"),
        ("PodSpec", _) => member_of_spec(chance, key),
        ("Container", _) => member_of_container(chance, key),
        ("ObjectMeta", "labels" | "annotations") | ("LabelSelector", "matchLabels") => {
            text_map(chance, &["team", "stage", "app", "tier"], &["a", "b", "c"])
        }
        ("ObjectMeta", "finalizers") => set(chance, &["x.io/a", "x.io/b", "x.io/c", "x.io/d"]),
        ("EnvVar", "name") => chance.pick(&["A", "B", "C", "D", "E"]).into(),
        ("EnvFromSource", "secretRef") => object(chance, "SecretEnvSource"),
        ("ContainerPort", "containerPort") => [80, 81, 82, 83][chance.below(4)].into(),
        ("ContainerPort", "hostIP") => chance.pick(&["10.0.0.1", "10.0.0.2"]).into(),
        ("ContainerPort", "protocol") => chance.pick(&["TCP", "UDP"]).into(),
        ("VolumeMount", "mountPath") => chance.pick(&["/a", "/b", "/c", "/d"]).into(),
        ("VolumeMount", "name") => chance.pick(&["v0", "v1", "v2"]).into(),
        ("ResourceRequirements", "limits") => {
            text_map(chance, &["cpu", "memory", "x.io/device"], &["1", "2", "4"])
        }
        ("SecurityContext", "capabilities") => object(chance, "Capabilities"),
        ("SecurityContext", "seLinuxOptions") => object(chance, "SELinuxOptions"),
        ("Capabilities", _) => texts(chance, &["NET_ADMIN", "SYS_PTRACE", "KILL"]),
        ("Lifecycle", _) => object(chance, "LifecycleHandler"),
        ("LifecycleHandler" | "Probe", "exec") => object(chance, "ExecAction"),
        ("ExecAction", _) => json!([chance.pick(&["true", "false"])]),
        ("PodSecurityContext", "fsGroup") => chance.below(100).into(),
        ("PodSecurityContext", "supplementalGroups") => json!([chance.below(9), chance.below(9)]),
        ("PodSecurityContext", "sysctls") => list(chance, "Sysctl", "name", 0),
        ("Sysctl", "name") => chance.pick(&["net.a", "net.b"]).into(),
        ("PodDNSConfig", "nameservers") => json!([chance.pick(&["10.0.0.1", "10.0.0.2"])]),
        ("PodDNSConfig", "options") => list(chance, "PodDNSConfigOption", "name", 0),
        ("PodDNSConfig", "searches") => set(chance, &["a.example", "b.example"]),
        ("HostAlias", "ip") => chance.pick(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]).into(),
        ("HostAlias", "hostnames") => set(chance, &["a", "b"]),
        ("PodSchedulingGate", "name") => chance.pick(&["x.io/a", "x.io/b", "x.io/c"]).into(),
        ("Toleration", "operator") => "Exists".into(),
        ("Toleration", "effect") => chance.pick(&["NoSchedule", "NoExecute"]).into(),
        ("TopologySpreadConstraint" | "PodAffinityTerm", "topologyKey") => {
            chance.pick(&["zone", "rack", "host"]).into()
        }
        ("TopologySpreadConstraint", "maxSkew") => (1 + chance.below(3)).into(),
        ("TopologySpreadConstraint", "whenUnsatisfiable") => "DoNotSchedule".into(),
        (_, "labelSelector") => object(chance, "LabelSelector"),
        ("LabelSelector", "matchExpressions") => list(chance, "LabelSelectorRequirement", "", 0),
        ("LabelSelectorRequirement" | "NodeSelectorRequirement", "operator") => {
            chance.pick(&["Exists", "DoesNotExist"]).into()
        }
        ("Affinity", "nodeAffinity") => object(chance, "NodeAffinity"),
        ("Affinity", "podAntiAffinity") => object(chance, "PodAntiAffinity"),
        ("NodeAffinity", _) => object(chance, "NodeSelector"),
        ("PodAntiAffinity", _) => list(chance, "PodAffinityTerm", "", 0),
        ("NodeSelector", _) => list(chance, "NodeSelectorTerm", "", 1),
        ("NodeSelectorTerm", _) => list(chance, "NodeSelectorRequirement", "", 1),
        ("EmptyDirVolumeSource", "medium") => "Memory".into(),
        ("EmptyDirVolumeSource", "sizeLimit") => chance.pick(&["1Gi", "2Gi"]).into(),
        ("HostPathVolumeSource", "path") => chance.pick(&["/x", "/y"]).into(),
        ("HostPathVolumeSource", "type") => chance.pick(&["Directory", "File"]).into(),
        (_, "items") => list(chance, "KeyToPath", "path", 1),
        (_, "readOnly" | "optional" | "privileged" | "readOnlyRootFilesystem" | "runAsNonRoot") => {
            chance.one_in(2).into()
        }
        _ => chance.pick(&["a", "b", "c", "d"]).into(),
    }
}

fn member_of_spec(chance: &mut Chance, key: &str) -> Value {
    match key {
        "activeDeadlineSeconds" | "terminationGracePeriodSeconds" => (1 + chance.below(50)).into(),
        "affinity" => object(chance, "Affinity"),
        "automountServiceAccountToken" | "enableServiceLinks" | "shareProcessNamespace" => {
            chance.one_in(2).into()
        }
        "containers" => containers(chance, &["main", "side", "third", "fourth"]),
        // As sidecars, which may have probes.
        "initContainers" => {
            let mut containers = containers(chance, &["first", "second"]);
            for container in containers.as_array_mut().into_iter().flatten() {
                container["restartPolicy"] = "Always".into();
            }
            containers
        }
        "dnsConfig" => object(chance, "PodDNSConfig"),
        "hostAliases" => list(chance, "HostAlias", "ip", 0),
        "imagePullSecrets" => list(chance, "LocalObjectReference", "name", 0),
        "nodeSelector" => text_map(chance, &["zone", "gpu", "disk"], &["a", "b"]),
        "readinessGates" => list(chance, "PodReadinessGate", "", 0),
        "resourceClaims" => list(chance, "PodResourceClaim", "name", 0),
        "schedulingGates" => list(chance, "PodSchedulingGate", "name", 0),
        "securityContext" => object(chance, "PodSecurityContext"),
        "tolerations" => list(chance, "Toleration", "", 0),
        "topologySpreadConstraints" => list(chance, "TopologySpreadConstraint", "topologyKey", 0),
        "volumes" => volumes(chance),
        _ => chance.pick(&["a", "b", "c"]).into(),
    }
}

/// Those that mounts may name, and some more.
fn volumes(chance: &mut Chance) -> Value {
    let mut volumes = Vec::new();
    for name in ["v0", "v1", "v2", "v3", "v4"] {
        if name < "v3" || chance.one_in(2) {
            let at = chance.below(volumes.len() + 1);
            let mut volume = source(chance);
            volume.insert("name".into(), name.into());
            volumes.insert(at, Value::from(volume));
        }
    }
    volumes.into()
}

fn containers(chance: &mut Chance, names: &[&str]) -> Value {
    let mut containers = Vec::new();
    for name in names {
        if containers.is_empty() || chance.one_in(2) {
            let mut container = object(chance, "Container");
            container["name"] = (*name).into();
            let at = chance.below(containers.len() + 1);
            containers.insert(at, container);
        }
    }
    containers.into()
}

fn member_of_container(chance: &mut Chance, key: &str) -> Value {
    match key {
        "name" => chance.pick(&["main", "side", "third", "fourth"]).into(),
        "args" | "command" => texts(chance, &["x", "y", "z"]),
        "env" => list(chance, "EnvVar", "name", 0),
        "envFrom" => list(chance, "EnvFromSource", "", 0),
        "imagePullPolicy" => chance.pick(&["Always", "Never", "IfNotPresent"]).into(),
        "lifecycle" => object(chance, "Lifecycle"),
        "livenessProbe" => object(chance, "Probe"),
        "ports" => list(chance, "ContainerPort", "containerPort", 0),
        "resources" => object(chance, "ResourceRequirements"),
        "securityContext" => object(chance, "SecurityContext"),
        "stdin" | "tty" => chance.one_in(2).into(),
        "terminationMessagePolicy" => chance.pick(&["File", "FallbackToLogsOnError"]).into(),
        "volumeMounts" => list(chance, "VolumeMount", "mountPath", 0),
        "workingDir" => chance.pick(&["/w", "/z"]).into(),
        _ => chance.pick(&["image:1", "image:2"]).into(),
    }
}
