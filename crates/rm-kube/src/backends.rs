//! Whether a cluster has what is to start the pods of gangs together.

use det_pods::{GroupApi, Scheduler};

use crate::api::KubeApi;

/// Versions of the API group of Kueue, any of which the manager works with: it only labels Jobs.
const KUEUE: [&str; 3] = ["v1beta2", "v1beta1", "v1"];

/// The configured scheduler, with the version of its objects that the cluster has.
///
/// # Errors
/// A sentence: the cluster does not have it, or cannot be asked.
pub(crate) async fn found(api: &KubeApi, wanted: &Scheduler) -> Result<Scheduler, String> {
    match wanted {
        Scheduler::Native | Scheduler::Coscheduler | Scheduler::None => return Ok(wanted.clone()),
        Scheduler::PodGroup(_) => {
            for group in GroupApi::NATIVE {
                if api.serves(group.group_version(), "podgroups").await? {
                    return Ok(Scheduler::PodGroup(group));
                }
            }
        }
        Scheduler::Volcano { .. } => {
            let version = GroupApi::Volcano.group_version();
            if api.serves(version, "podgroups").await? {
                return Ok(wanted.clone());
            }
        }
        Scheduler::Kueue { .. } => {
            for version in KUEUE {
                if api
                    .serves(("kueue.x-k8s.io", version), "localqueues")
                    .await?
                {
                    return Ok(wanted.clone());
                }
            }
        }
    }
    Err(missing(wanted).to_owned())
}

fn missing(wanted: &Scheduler) -> &'static str {
    match wanted {
        Scheduler::Volcano { .. } => {
            "\"default_scheduler\" is \"volcano\", and the cluster has no PodGroup of scheduling.volcano.sh/v1beta1: install \
             Volcano there, or remove the key, and the master itself starts gangs whole"
        }
        Scheduler::Kueue { .. } => {
            "\"default_scheduler\" is \"kueue\", and the cluster has no LocalQueue of kueue.x-k8s.io: install Kueue there, or \
             remove the key, and the master itself starts gangs whole"
        }
        _ => {
            "\"default_scheduler\" is \"podgroup\", and the cluster has no PodGroup of scheduling.k8s.io/v1beta1 or /v1alpha2: \
             switch on its feature gates GenericWorkload and GangScheduling and that version of the group (Kubernetes 1.36 \
             and later), or remove the key, and the master itself starts gangs whole"
        }
    }
}
