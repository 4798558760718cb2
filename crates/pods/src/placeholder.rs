//! Placeholders: pods that ask a cluster's autoscaler for nodes on behalf of a task that waits. They hold what the task's
//! pods would hold of each node, and do nothing.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use det_ids::{AllocationId, Micros};
use det_rm::Share;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::affinity;
use crate::demands::requests;
use crate::facts::{ClusterFacts, SlotResources};
use crate::joint::{NamespaceSelector, joint_demands};
use crate::json::{self, Object};
use crate::names::{CLUSTER_LABEL, begin_of, label_value};
use crate::priority::PriorityClass;
use crate::record::RECORD_ANNOTATION;
use crate::seal::{SEAL_ANNOTATION, Seal};
use crate::user_spec::UserPod;

/// Label of placeholders and of their Jobs, with the allocation that they are for.
pub const PLACEHOLDER_LABEL: &str = "determined.ai/placeholder";
/// By which the autoscaler of Kubernetes knows whether a pod may be moved so that its node can be removed:
/// <https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md>.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// The same for Karpenter: <https://karpenter.sh/docs/concepts/disruption/>.
const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// The `PriorityClass` of placeholders.
const CLASS: &str = "determined-placeholder";
/// The lowest priority of pods that autoscalers add nodes for, unless they are configured otherwise.
const PRIORITY: i64 = -10;
/// Seconds after which an ended Job of placeholders is deleted.
const KEPT_SECONDS: u32 = 60;
/// User and group that placeholders run as: that of the image `pause`.
const UNPRIVILEGED_USER: u32 = 65_535;

/// What placeholders are made from.
#[derive(Debug, Clone, PartialEq)]
pub struct PlaceholderRequest<'a> {
    /// The allocation that waits.
    pub allocation_id: &'a AllocationId,
    /// Name of the task's resource pool.
    pub resource_pool: &'a str,
    /// The namespace that they are in.
    pub namespace: &'a str,
    /// What the task takes of each node.
    pub shares: &'a [Share],
    /// What each of its containers demands besides slots, as [`demands`](crate::demands()) has it.
    pub demands: Option<&'a Value>,
    /// The pod by which nodes belong to its pool ([`admits`](crate::admits)); `None` = all nodes do.
    pub pool: Option<&'a Value>,
    /// The nodes that its namespace has its pods on; `None` = all.
    pub selected: Option<NamespaceSelector<'a>>,
    /// Names of nodes that it must not run on.
    pub excluded_nodes: &'a BTreeSet<String>,
    /// Image that their containers run, such as `pause`.
    pub image: &'a str,
    /// Since when nodes are asked for.
    pub since: Micros,
    /// Seconds after which they end by themselves.
    pub deadline_seconds: u64,
}

/// What a Job of placeholders records, read back after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceholderRecord {
    /// The allocation that they are for.
    pub allocation_id: AllocationId,
    /// Since when nodes are asked for, in microseconds.
    pub since: Micros,
    /// By which equal requests are known: a hash of what the pods are.
    pub pods: String,
}

/// The Jobs of the placeholders of a task, one for each size of pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Placeholders {
    /// The Jobs, one for each size of pod, as Kubernetes reads them.
    pub jobs: Vec<Value>,
    /// What [`PlaceholderRecord::pods`] of all of them is.
    pub pods: String,
}

/// The class of placeholders. They end no pods, and others may end them.
pub fn placeholder_class() -> PriorityClass {
    PriorityClass {
        existing: Vec::new(),
        shared: json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {
                "name": CLASS,
                "labels": {"app.kubernetes.io/managed-by": "determined-master"},
            },
            "value": PRIORITY,
            "preemptionPolicy": "Never",
            "globalDefault": false,
            "description": "Pods of Determined that ask for nodes, and give way to all others",
        }),
    }
}

/// The placeholders of a task that waits. Their class must exist ([`placeholder_class`]).
///
/// # Errors
/// No node that is added can be of use: the reason, a clause.
pub fn placeholders(
    facts: &ClusterFacts,
    request: &PlaceholderRequest<'_>,
) -> Result<Placeholders, String> {
    let nothing = Value::Null;
    let demands = request.demands.unwrap_or(&nothing);
    if let Some(node) = json::text(demands, &["spec", "nodeName"]) {
        return Err(format!("the task names node \"{node}\""));
    }
    if facts.slots.of(request.resource_pool).class().is_some() {
        return Err(
            "its slots are devices that pods claim, and nodes are not asked for these".to_owned(),
        );
    }
    let nodes = nodes_of(request, demands)?;
    let sizes: BTreeSet<Share> = request.shares.iter().copied().collect();
    let mut specs = Vec::new();
    for share in sizes.into_iter().rev() {
        let pods = request.shares.iter().filter(|it| **it == share).count();
        specs.push((pods, pod_spec(facts, request, (share, demands), &nodes)));
    }
    let text = Value::from(
        specs
            .iter()
            .map(|(pods, spec)| json!([pods, spec]))
            .collect::<Vec<_>>(),
    );
    let pods = digest(&text.to_string());
    let record = PlaceholderRecord {
        allocation_id: request.allocation_id.clone(),
        since: request.since,
        pods: pods.clone(),
    };
    let jobs = specs.into_iter().enumerate();
    let jobs =
        jobs.map(|(number, (pods, spec))| job(facts, request, &record, (number, pods, spec)));
    Ok(Placeholders {
        jobs: jobs.collect(),
        pods,
    })
}

/// What a Job of placeholders records; `None` = it is none of this master, which alone can seal a record.
pub fn recorded_placeholder(seal: &Seal, job: &Value) -> Option<PlaceholderRecord> {
    if !is_placeholder(job) || !seal.is_on(job) {
        return None;
    }
    let mut annotations = json::texts(job, &["metadata", "annotations"]);
    serde_json::from_str(&annotations.remove(RECORD_ANNOTATION)?).ok()
}

/// Whether a Job or a pod has the label of placeholders.
pub fn is_placeholder(object: &Value) -> bool {
    json::text(object, &["metadata", "labels", PLACEHOLDER_LABEL]).is_some()
}

/// Has autoscalers leave the nodes of these Jobs' pods alone, unless the user's pod spec has something else.
pub(crate) fn keep_nodes(jobs: &mut [Value]) {
    for job in jobs {
        let Some(Value::Object(template)) = job.pointer_mut("/spec/template") else {
            continue;
        };
        let annotations = json::object(json::object(template, "metadata"), "annotations");
        for (key, value) in [(SAFE_TO_EVICT, "false"), (DO_NOT_DISRUPT, "true")] {
            annotations.entry(key).or_insert(value.into());
        }
    }
}

fn job(
    facts: &ClusterFacts,
    request: &PlaceholderRequest<'_>,
    record: &PlaceholderRecord,
    (number, pods, spec): (usize, usize, Value),
) -> Value {
    let id = request.allocation_id.as_str();
    let begin = begin_of(&facts.cluster_id);
    let name = format!("det-{begin}-nodes-x{}-{number}", digest(id));
    let record = json!(record).to_string();
    let seal = facts.seal.of((request.namespace, &name), &record);
    let labels = json!({
        CLUSTER_LABEL: label_value(facts.cluster_id.as_str()),
        PLACEHOLDER_LABEL: label_value(id),
    });
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": request.namespace,
            "labels": labels,
            "annotations": {RECORD_ANNOTATION: record, SEAL_ANNOTATION: seal},
        },
        "spec": {
            "parallelism": pods,
            "completions": pods,
            // Pods that give way are made again, for as long as nodes are asked for.
            "backoffLimit": i32::MAX,
            "activeDeadlineSeconds": request.deadline_seconds,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {SAFE_TO_EVICT: "true"},
                },
                "spec": spec,
            },
        },
    })
}

/// By what placeholders choose their nodes. A node that the task accepts and the pool does not would be no place of the pool:
/// it would be of no use to the task, and no limit of the pool would count it.
fn nodes_of(request: &PlaceholderRequest<'_>, demands: &Value) -> Result<Object, String> {
    let pool = Value::from(UserPod::of(request.pool).spec);
    if let Some(node) = json::text(&pool, &["nodeName"]) {
        return Err(format!("the pool consists of node \"{node}\" alone"));
    }
    let task = demands.get("spec").unwrap_or(&Value::Null);
    joint_demands(&pool, task, request.selected)
}

fn pod_spec(
    facts: &ClusterFacts,
    request: &PlaceholderRequest<'_>,
    (share, demands): (Share, &Value),
    nodes: &Object,
) -> Value {
    let mut spec = nodes.clone();
    affinity::restrict(&mut spec, &facts.cluster_id, None);
    affinity::avoid(&mut spec, request.excluded_nodes);
    spec.extend(json::map([
        ("priorityClassName", Value::from(CLASS)),
        ("restartPolicy", "Never".into()),
        ("automountServiceAccountToken", false.into()),
        ("enableServiceLinks", false.into()),
        // Devices are free again only when the kubelet has ended the pod, which it reports where there is any grace.
        ("terminationGracePeriodSeconds", 1.into()),
        (
            "securityContext",
            json!({
                "runAsNonRoot": true, "runAsUser": UNPRIVILEGED_USER, "runAsGroup": UNPRIVILEGED_USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            }),
        ),
        (
            "containers",
            json!([{
                "name": "placeholder",
                "image": request.image,
                "imagePullPolicy": "IfNotPresent",
                "resources": resources((&facts.slots, request.resource_pool), share, demands),
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
            }]),
        ),
    ]));
    spec.into()
}

/// What the containers of a share hold together.
fn resources((all, pool): (&SlotResources, &str), share: Share, demands: &Value) -> Value {
    let resource = all.of(pool);
    let mut amounts = requests(demands);
    amounts.retain(|name, _| !all.give_alone(name) && name != crate::demands::PODS);
    for amount in amounts.values_mut() {
        *amount = amount.saturating_mul(share.containers.into());
    }
    let slots = u64::from(share.slots).saturating_mul(resource.per_slot());
    if slots > 0 {
        // Processors that are slots are all that the task's container has of them.
        let amount = amounts.entry(resource.name().to_owned()).or_insert(0);
        *amount = slots.max(*amount);
    }
    let written = |name: &String, amount: u64| {
        let unit = if name == "cpu" { "m" } else { "" };
        (name.clone(), Value::from(format!("{amount}{unit}")))
    };
    let requested: Object = amounts
        .iter()
        .map(|(name, amount)| written(name, *amount))
        .collect();
    // Of devices and huge pages nothing may be requested that is not the limit.
    let is_whole = |name: &str| name.contains('/') || name.starts_with("hugepages-");
    let limits = requested.iter().filter(|(name, _)| is_whole(name));
    let limits: Object = limits
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    json!({"requests": requested, "limits": limits})
}

fn digest(text: &str) -> String {
    let mut digits = String::new();
    for byte in Sha256::digest(text).iter().take(8) {
        // A `String` takes every text.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ClaimApi, MasterCert, MasterUrl, Scheduler, SlotResource, holds};

    fn facts(slots: SlotResource) -> ClusterFacts {
        ClusterFacts {
            cluster_id: "0a1b2c3d-0000-0000-0000-000000000000".into(),
            seal: Seal::new("secret", ""),
            master: MasterUrl {
                scheme: "http".to_owned(),
                host: "m".to_owned(),
                port: 8080,
                cert: MasterCert::Usual,
                cert_name: None,
            },
            helper_image: None,
            slots: slots.into(),
            claims: ClaimApi::V1,
            scheduler: Scheduler::Native,
            preempts: false,
            default_grace_seconds: 60,
        }
    }

    fn gpus() -> SlotResource {
        SlotResource::Extended("nvidia.com/gpu".to_owned())
    }

    fn made(
        facts: &ClusterFacts,
        shares: &[Share],
        demands: Option<&Value>,
    ) -> Result<Placeholders, String> {
        made_in(facts, shares, demands, (None, None))
    }

    fn made_in(
        facts: &ClusterFacts,
        shares: &[Share],
        demands: Option<&Value>,
        (pool, selected): (Option<&Value>, Option<NamespaceSelector<'_>>),
    ) -> Result<Placeholders, String> {
        let excluded = BTreeSet::from(["bad".to_owned()]);
        let request = PlaceholderRequest {
            allocation_id: &"7.t.1".into(),
            resource_pool: "default",
            namespace: "tasks",
            shares,
            demands,
            pool,
            selected,
            excluded_nodes: &excluded,
            image: "pause",
            since: Micros(5),
            deadline_seconds: 960,
        };
        placeholders(facts, &request)
    }

    fn share(slots: u32, containers: u32) -> Share {
        Share { slots, containers }
    }

    #[test]
    fn a_gang_asks_for_nodes_that_its_pods_would_fit() {
        let demands = json!({"spec": {
            "nodeSelector": {"pool": "a100"},
            "tolerations": [{"key": "team", "operator": "Exists"}],
            "containers": [{"resources": {
                "requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": 64},
            }}],
        }});
        let facts = facts(gpus());
        let made = made(&facts, &[share(8, 2), share(8, 2)], Some(&demands)).unwrap();
        let [job] = &made.jobs[..] else {
            panic!("one size of pod is one Job: {made:?}");
        };
        assert_eq!(job["spec"]["parallelism"], 2);
        assert_eq!(job["spec"]["activeDeadlineSeconds"], 960);
        let spec = &job["spec"]["template"]["spec"];
        assert_eq!(spec["nodeSelector"], json!({"pool": "a100"}));
        // Nodes with the taint of the team would be none of the pool.
        assert_eq!(spec["tolerations"].as_array().map(Vec::len), Some(2));
        assert_eq!(spec["priorityClassName"], "determined-placeholder");
        assert_eq!(
            spec["containers"][0]["resources"],
            json!({
                "requests": {"cpu": "3000m", "memory": (2_u64 << 30).to_string(), "nvidia.com/gpu": "8"},
                "limits": {"nvidia.com/gpu": "8"},
            })
        );
        let terms = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        assert_eq!(
            spec.pointer(terms).unwrap(),
            &json!([{
                "matchExpressions": [
                    {"key": "determined.ai/cluster-id-0a1b2c3d-0000-0000-0000-000000000000", "operator": "DoesNotExist"},
                ],
                "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}],
            }])
        );
        // Nothing of a user or of the system is in it.
        for absent in ["volumes", "serviceAccountName", "env", "Secret"] {
            assert!(!job.to_string().contains(absent), "{absent}");
        }
        let record = recorded_placeholder(&facts.seal, job).unwrap();
        assert_eq!(
            (record.allocation_id.as_str(), record.since),
            ("7.t.1", Micros(5))
        );
        assert_eq!(record.pods, made.pods);
    }

    #[test]
    fn unequal_parts_are_jobs_of_their_own() {
        let made = made(
            &facts(gpus()),
            &[share(8, 1), share(8, 1), share(3, 1)],
            None,
        )
        .unwrap();
        let sizes = made
            .jobs
            .iter()
            .map(|job| job["spec"]["completions"].clone());
        assert_eq!(sizes.collect::<Vec<_>>(), [2, 1]);
        let names: BTreeSet<&str> = made
            .jobs
            .iter()
            .filter_map(|job| json::text(job, &["metadata", "name"]))
            .collect();
        assert_eq!(names.len(), 2);
        assert!(names.iter().all(|name| name.len() <= 57), "{names:?}");
    }

    #[test]
    fn what_no_new_node_can_hold_asks_for_none() {
        let demands = json!({"spec": {"nodeName": "n1"}});
        let why = made(&facts(gpus()), &[share(1, 1)], Some(&demands)).unwrap_err();
        assert_eq!(why, "the task names node \"n1\"");
    }

    #[test]
    fn a_task_that_leaves_out_what_its_pool_demands_grows_no_other_node_group() {
        let pool = json!({"spec": {
            "node_selector": {"gpu": "a100"},
            "tolerations": [{"key": "dedicated", "value": "a100"}],
        }});
        // As it is after `nodeSelector: {$patch: replace}`.
        let other = json!({"spec": {
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"operator": "Exists"}],
        }});
        let in_pool = (Some(&pool), None);
        let made = |demands| made_in(&facts(gpus()), &[share(1, 1)], Some(demands), in_pool);
        let why = made(&other).unwrap_err();
        assert_eq!(
            why,
            "the task demands nodes with the label \"gpu=h100\", and the pool \"gpu=a100\""
        );
        let tolerant = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        let made = made(&tolerant).unwrap();
        let spec = &made.jobs[0]["spec"]["template"]["spec"];
        assert_eq!(spec["nodeSelector"], json!({"gpu": "a100"}));
        let tolerated = spec["tolerations"].as_array().unwrap();
        let keys: BTreeSet<&str> = tolerated
            .iter()
            .filter_map(|it| it["key"].as_str())
            .collect();
        assert_eq!(
            keys,
            BTreeSet::from(["amd.com/gpu", "dedicated", "nvidia.com/gpu"])
        );
        assert_eq!(tolerated.len(), 3);
    }

    #[test]
    fn nodes_that_the_namespace_of_the_task_does_not_select_are_not_asked_for() {
        let labels = [("team".to_owned(), "x".to_owned())].into();
        let selected = NamespaceSelector {
            namespace: "team",
            labels: &labels,
        };
        let in_pool = |pool| made_in(&facts(gpus()), &[share(1, 1)], None, (pool, Some(selected)));
        let made = in_pool(None).unwrap();
        let spec = &made.jobs[0]["spec"]["template"]["spec"];
        assert_eq!(spec["nodeSelector"], json!({"team": "x"}));
        let others = json!({"spec": {"nodeSelector": {"team": "y"}}});
        let why = in_pool(Some(&others)).unwrap_err();
        assert!(why.starts_with("namespace \"team\" demands"), "{why}");
        let one = json!({"spec": {"nodeName": "n1"}});
        let why = in_pool(Some(&one)).unwrap_err();
        assert_eq!(why, "the pool consists of node \"n1\" alone");
    }

    #[test]
    fn a_copy_of_a_placeholder_elsewhere_is_not_the_masters() {
        let facts = facts(gpus());
        let made = made(&facts, &[share(1, 1)], None).unwrap();
        let mut copy = made.jobs[0].clone();
        copy["metadata"]["namespace"] = "others".into();
        assert_eq!(recorded_placeholder(&facts.seal, &copy), None);
        let mut unlabelled = made.jobs[0].clone();
        unlabelled["metadata"]["labels"] = json!({});
        assert_eq!(recorded_placeholder(&facts.seal, &unlabelled), None);
    }

    #[test]
    fn task_pods_hold_their_nodes_unless_their_spec_has_something_else() {
        let mut jobs = [
            json!({"spec": {"template": {"spec": {}}}}),
            json!({"spec": {"template": {"metadata": {"annotations": {SAFE_TO_EVICT: "true"}}}}}),
        ];
        keep_nodes(&mut jobs);
        let of = |job: &Value| job["spec"]["template"]["metadata"]["annotations"].clone();
        assert_eq!(
            of(&jobs[0]),
            json!({SAFE_TO_EVICT: "false", DO_NOT_DISRUPT: "true"})
        );
        assert_eq!(
            of(&jobs[1]),
            json!({SAFE_TO_EVICT: "true", DO_NOT_DISRUPT: "true"})
        );
    }

    #[test]
    fn nodes_are_not_asked_for_where_slots_are_claimed() {
        let class = crate::DeviceClass::new("gpu.example.com", None);
        let facts = facts(SlotResource::Devices(class));
        let refused = made(&facts, &[share(1, 1)], None).unwrap_err();
        assert!(refused.contains("devices that pods claim"), "{refused}");
    }

    proptest! {
        /// A node that holds the placeholders of a share holds the pods of the task, of whatever they consist.
        #[test]
        fn placeholders_hold_what_the_pods_of_the_task_hold(
            slots in 0_u32..64, containers in 1_u32..8, parts in 1_usize..5,
            (millis, memory) in (0_u64..20_000, 0_u64..1 << 40), by_processor in any::<bool>(),
        ) {
            let slot = if by_processor { SlotResource::Cpu { millis: 700 } } else { gpus() };
            let facts = facts(slot);
            let demands = json!({"spec": {"containers": [{"resources": {"requests": {
                "cpu": format!("{millis}m"), "memory": memory,
            }}}]}});
            let shares = vec![share(slots, containers); parts];
            let made = made(&facts, &shares, Some(&demands)).unwrap();
            prop_assert_eq!(made.jobs.len(), 1);
            let pod = &made.jobs[0]["spec"]["template"];
            prop_assert_eq!(&made.jobs[0]["spec"]["parallelism"], &json!(parts));
            prop_assert_eq!(holds(pod, "memory"), memory * u64::from(containers));
            let processors = millis * u64::from(containers);
            let of_slots = u64::from(slots) * facts.slots.usual().per_slot();
            if by_processor {
                prop_assert_eq!(holds(pod, "cpu"), processors.max(of_slots));
            } else {
                prop_assert_eq!(holds(pod, "cpu"), processors);
                prop_assert_eq!(holds(pod, "nvidia.com/gpu"), of_slots);
            }
            let again = self::made(&facts, &shares, Some(&demands)).unwrap();
            prop_assert_eq!(&again, &made);
        }
    }
}
