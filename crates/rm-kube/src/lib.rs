//! The resource manager of Kubernetes: nodes are its places, and an allocation is an Indexed Job with a Secret.
//!
//! One task for each cluster ([`serve`]) owns what is known of it. It watches nodes, pods and the Jobs of this master's
//! cluster; what rows want and what is watched is compared whenever one of them changes, and nothing is polled
//! but what reaches services of tasks through a Gateway or at ports of nodes, while there are such services. What a Job, a
//! pod or a node means is in the pure crate `det-pods`; this crate makes requests. Rows are the truth: after a
//! restart Jobs are found again by their label, and each has a record of the containers that it was made for.
//!
//! The pods of an allocation are created together, when the specification of each of its containers has arrived. The
//! planner has chosen a node for each: a single pod has it in its affinity, those of a gang wait at a scheduling gate
//! until the manager has added it, since pods of one Job have one template.

mod agenda;
mod api;
mod backends;
mod books;
mod classes;
mod cluster;
mod containers;
mod creating;
mod desk;
mod devices;
mod events;
mod exposing;
mod fitting;
mod foreign;
mod forward;
mod gangs;
mod gateways;
mod growing;
mod health;
mod holding;
mod keeper;
mod leftovers;
mod limits;
mod messages;
mod observing;
mod occupancy;
mod placed;
mod places;
mod reach;
mod settings;
mod small_nodes;
mod starting;
mod watches;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use det_ids::AllocationId;
use det_pods::{ClaimApi, ClusterFacts, MasterUrl};
use det_rm::{GrowthCore, Health, LiveAttempt, NamespaceCore};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::KubeApi;
use crate::cluster::{Cluster, ClusterState};
use crate::devices::DeviceAccess;
use crate::keeper::Keeper;

pub use desk::ClusterNamespaces;
pub use det_pods::{
    DeviceClass, GatewayName, GroupApi, MasterCert, Scheduler, Seal, SlotResource, SlotResources,
};
pub use fitting::PodDemands;
pub use reach::{PodReach, PodStream};
pub use settings::{
    Exposure, GatewaySettings, GrowthSettings, MasterSettings, PoolSettings, Settings,
};

/// Pause before access to a cluster is tried again.
const CONNECT_AGAIN: Duration = Duration::from_secs(10);

/// Serves one cluster until the master stops, its namespaces through `desks`, and ports of its pods through `reach`. A cluster that cannot be accessed is
/// reported as down, and tried again. With other settings rows and the cluster are read anew, as after a restart.
pub async fn serve<C: NamespaceCore + GrowthCore>(
    core: C,
    mut settings: watch::Receiver<Settings>,
    desks: ClusterNamespaces,
    reach: PodReach,
    shutdown: CancellationToken,
) {
    loop {
        let current = Arc::new(settings.borrow_and_update().clone());
        reach.configured(&current.manager, &current.exposure);
        match connected(&core, &current).await {
            Ok(connected) => {
                let ConnectedCluster {
                    api,
                    facts,
                    claiming,
                    namespace,
                    attempts,
                    keeper,
                    desk,
                } = connected;
                desks.connected(&current.manager, desk);
                let begin = ClusterState {
                    namespace,
                    claiming,
                    attempts,
                    bindings: keeper.bindings(),
                    reach: reach.clone(),
                };
                let cluster = Cluster::new(core.clone(), current, facts, begin, api);
                let stopped = shutdown.clone();
                tokio::select! {
                    end = cluster.run(&mut settings, &stopped) => match end {
                        ServingEnd::Stopped => return,
                        ServingEnd::Replaced => continue,
                    },
                    () = keeper.run(stopped.clone()) => return,
                }
            }
            Err(reason) => {
                tracing::warn!(
                    manager = current.manager,
                    reason,
                    "a Kubernetes cluster cannot be used"
                );
                core.report_health(&current.manager, Health::Down(reason));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(CONNECT_AGAIN) => {}
            () = changed(&mut settings) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// Why a cluster is served no more as it was.
pub(crate) enum ServingEnd {
    /// The master stops.
    Stopped,
    /// Other settings take the place of these.
    Replaced,
}

/// Waits for other settings; for ever where none can come any more.
pub(crate) async fn changed(settings: &mut watch::Receiver<Settings>) {
    if settings.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// A cluster that can be accessed.
struct ConnectedCluster<C: GrowthCore + NamespaceCore> {
    api: KubeApi,
    facts: ClusterFacts,
    claiming: Option<DeviceAccess>,
    namespace: String,
    /// The attempts that have not ended.
    attempts: BTreeMap<AllocationId, LiveAttempt>,
    keeper: Keeper<C>,
    desk: desk::Desk,
}

async fn connected<C: GrowthCore + NamespaceCore>(
    core: &C,
    settings: &Settings,
) -> Result<ConnectedCluster<C>, String> {
    let (api, facts, claiming, namespace) = connect(settings).await?;
    let (mut keeper, mut desk) = Keeper::new(
        core.clone(),
        (&settings.manager, &namespace),
        (&facts.cluster_id, facts.slots.usual()),
        &api,
    );
    desk.goes_by_classes = facts.scheduler == Scheduler::Native;
    // Before anything is watched: objects in other namespaces are left alone.
    let attempts = keeper.read().await;
    let attempts = attempts
        .map_err(|error| format!("the namespaces of workspaces could not be read: {error}"))?;
    Ok(ConnectedCluster {
        api,
        facts,
        claiming,
        namespace,
        attempts,
        keeper,
        desk,
    })
}

async fn connect(
    settings: &Settings,
) -> Result<(KubeApi, ClusterFacts, Option<DeviceAccess>, String), String> {
    let api = KubeApi::connect(settings.kubeconfig.as_deref()).await?;
    let namespace = match settings.namespace.as_str() {
        "" => api.own_namespace().to_owned(),
        namespace => namespace.to_owned(),
    };
    let claiming = devices::found(&api, &settings.slots).await?;
    let facts = ClusterFacts {
        cluster_id: settings.cluster_id.clone(),
        seal: settings.seal.clone(),
        master: master_url(&settings.master, api.own_namespace())?,
        helper_image: settings.helper_image.clone(),
        slots: settings.slots.clone(),
        claims: claiming.as_ref().map_or(ClaimApi::V1, |it| it.api),
        scheduler: backends::found(&api, &settings.scheduler).await?,
        preempts: settings.preempts,
        default_grace_seconds: 60,
    };
    Ok((api, facts, claiming, namespace))
}

/// How pods reach the master: as configured, else at its service.
fn master_url(master: &MasterSettings, namespace: &str) -> Result<MasterUrl, String> {
    let of_service = master.service.as_ref();
    let host = match (&master.host, of_service) {
        (Some(host), _) => host.clone(),
        (None, Some(service)) => format!("{service}.{namespace}.svc.cluster.local"),
        (None, None) => {
            return Err(
                "pods do not know how to reach the master: set \"determined_master_host\", or \"master_service_name\" \
                 where the master runs in the cluster, below \"resource_manager\""
                    .to_owned(),
            );
        }
    };
    let scheme = master.scheme.clone();
    Ok(MasterUrl {
        scheme: scheme
            .unwrap_or_else(|| if master.serves_tls { "https" } else { "http" }.to_owned()),
        host,
        port: master.port,
        cert: master.cert.clone(),
        cert_name: master.cert_name.clone(),
    })
}
