//! The resource managers that this master has drivers for: the one file that names them. A driver for another kind is a
//! crate, an entry of [`DRIVERS`] and of [`Drivers`].

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use det_config::master::{ManagerKind, MasterConfig};
use det_ids::TunnelId;
use det_rm::{Core as _, Health};
use det_rm_agents::{Dialect, Refusal, Tunnels};
use det_rm_kube::{ClusterNamespaces, PodReach, Settings};
use tokio::sync::watch;

use crate::app::Master;
use crate::app::cluster_access::ClusterAccess;
use crate::app::demands::Demands;
use crate::app::reach::Reaches;
use crate::auth::new_token;
use crate::error::{AppError, ErrorKind};
use crate::http::error::ApiError;
use crate::http::tokens::session_token;

mod kubernetes;

pub(crate) use det_rm_kube::Seal;
pub(crate) use kubernetes::seal;

/// Kinds of resource managers that have a driver.
pub const DRIVERS: &[ManagerKind] = &[ManagerKind::Agent, ManagerKind::Kubernetes];

/// Pause before a resource manager that ended by a defect begins anew.
const BEGIN_ANEW: Duration = Duration::from_secs(5);

/// What drivers share with the services of a master from its start on.
pub(crate) struct Drivers {
    /// Kinds of resource managers that tests drive in place of a driver.
    doubles: Vec<ManagerKind>,
    tunnels: Tunnels,
    namespaces: ClusterNamespaces,
    pods: PodReach,
    seal: Seal,
}

impl Drivers {
    /// Drivers that serve nothing yet.
    pub(crate) fn new(doubles: Vec<ManagerKind>, seal: Seal) -> Self {
        Self {
            doubles,
            tunnels: Tunnels::new(|| TunnelId(new_token())),
            namespaces: ClusterNamespaces::default(),
            pods: PodReach::default(),
            seal,
        }
    }

    /// How the managers of each kind reach services in containers.
    pub(crate) fn reaches(&self) -> Reaches {
        let reaches = Reaches::default().with(ManagerKind::Agent, self.tunnels.clone());
        if self.doubles.contains(&ManagerKind::Kubernetes) {
            return reaches;
        }
        reaches.with(ManagerKind::Kubernetes, self.pods.clone())
    }

    /// How they read what jobs demand of their places. Tests that drive managers demand the same.
    pub(crate) fn demands() -> Demands {
        Demands::default().with(det_rm_kube::PodDemands)
    }

    /// How they look after the namespaces of their clusters.
    pub(crate) fn clusters(&self) -> ClusterAccess {
        ClusterAccess::new(self.namespaces.clone())
    }

    /// Has them serve the places of a master; returns the routes of what connects to them.
    pub(crate) fn serve(self, master: &Master) -> Router {
        let dialect = Dialect {
            own_token: session_token,
            refuse,
        };
        let shutdown = master.context.shutdown.clone();
        if !self.doubles.contains(&ManagerKind::Kubernetes) {
            let clusters = (self.namespaces, self.pods);
            tokio::spawn(serve_kubernetes(master.clone(), clusters, self.seal));
        }
        det_rm_agents::routes(master.agents.clone(), self.tunnels, shutdown, dialect)
    }
}

/// Serves the Kubernetes clusters of the configuration in force, each in a task of its own that ends with the master, and as
/// they are configured at any time.
async fn serve_kubernetes(master: Master, clusters: (ClusterNamespaces, PodReach), seal: Seal) {
    let mut served: BTreeMap<String, watch::Sender<Settings>> = BTreeMap::new();
    let mut changes = master.context.in_force.changes();
    loop {
        changes.mark_unchanged();
        let config = master.context.config();
        match kubernetes::settings(&config, (&master.identity.cluster_id, &seal)) {
            Ok(managers) => {
                for settings in managers {
                    if let Some(known) = served.get(&settings.manager) {
                        known.send_if_modified(|before| {
                            let is_other = *before != settings;
                            *before = settings;
                            is_other
                        });
                        continue;
                    }
                    let name = settings.manager.clone();
                    let (sender, receiver) = watch::channel(settings);
                    served.insert(name, sender);
                    tokio::spawn(supervised(master.clone(), receiver, clusters.clone()));
                }
            }
            Err(reason) => report_unusable(&master, &config, &served, &reason),
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            () = master.context.shutdown.cancelled() => return,
        }
    }
}

/// Clusters that are served already go on as they were.
fn report_unusable(
    master: &Master,
    config: &MasterConfig,
    served: &BTreeMap<String, watch::Sender<Settings>>,
    reason: &str,
) {
    let managers = config.managers().map(|(manager, _)| manager);
    for manager in managers.filter(|manager| manager.kind() == ManagerKind::Kubernetes) {
        let name = &manager.cluster_name;
        if served.contains_key(name) {
            tracing::warn!(
                manager = name,
                reason,
                "a Kubernetes cluster is served as it was configured before"
            );
        } else {
            let health = Health::Down(reason.to_owned());
            master.places.report_health(name, health);
        }
    }
}

/// Serves one cluster until the master stops, also after a defect that ended its task: rows and the cluster are read anew.
async fn supervised(
    master: Master,
    settings: watch::Receiver<Settings>,
    (namespaces, pods): (ClusterNamespaces, PodReach),
) {
    let shutdown = &master.context.shutdown;
    while !shutdown.is_cancelled() {
        let (places, stop) = (master.places.clone(), shutdown.clone());
        let (desks, reach) = (namespaces.clone(), pods.clone());
        let served = det_rm_kube::serve(places, settings.clone(), desks, reach, stop);
        let served = tokio::spawn(served).await;
        let Err(error) = served else {
            return;
        };
        let manager = settings.borrow().manager.clone();
        tracing::error!(manager, %error, "a resource manager ended by a defect; it begins anew");
        tokio::select! {
            () = tokio::time::sleep(BEGIN_ANEW) => {}
            () = shutdown.cancelled() => {}
        }
    }
}

fn refuse(refusal: Refusal<AppError>) -> Response {
    ApiError(match refusal {
        Refusal::Core(error) => error,
        Refusal::Invalid(message) => AppError::invalid(message),
        Refusal::UnknownTunnel => AppError::new(
            ErrorKind::NotFound,
            "no caller waits for a tunnel with this id",
        ),
    })
    .into_response()
}
