//! The resource managers that this master has drivers for: the one file that names them. A driver for another kind is a
//! crate, an entry of [`DRIVERS`] and of [`Drivers`].

use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use det_config::master::ManagerKind;
use det_rm::{Core as _, Health};
use det_rm_agents::{Dialect, Refusal, Tunnels};
use det_rm_kube::ClusterNamespaces;

use crate::app::Master;
use crate::app::cluster_access::ClusterAccess;
use crate::app::reach::Reaches;
use crate::auth::new_token;
use crate::error::{AppError, ErrorKind};
use crate::http::error::ApiError;
use crate::http::tokens::session_token;

mod kubernetes;

/// Kinds of resource managers that have a driver.
pub const DRIVERS: &[ManagerKind] = &[ManagerKind::Agent, ManagerKind::Kubernetes];

/// Pause before a resource manager that ended by a defect begins anew.
const BEGIN_ANEW: Duration = Duration::from_secs(5);

/// What drivers share with the services of a master from its start on.
pub(crate) struct Drivers {
    /// Kinds that tests drive.
    doubles: Vec<ManagerKind>,
    tunnels: Tunnels,
    namespaces: ClusterNamespaces,
}

impl Drivers {
    /// Drivers that serve nothing yet.
    pub(crate) fn new(doubles: Vec<ManagerKind>) -> Self {
        Self {
            doubles,
            tunnels: Tunnels::new(new_token),
            namespaces: ClusterNamespaces::default(),
        }
    }

    /// How they reach containers.
    pub(crate) fn reaches(&self) -> Reaches {
        let reaches = Reaches::default().with(ManagerKind::Agent, self.tunnels.clone());
        if self.doubles.contains(&ManagerKind::Kubernetes) {
            return reaches;
        }
        reaches.with(ManagerKind::Kubernetes, det_rm_kube::PodAddresses)
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
            serve_kubernetes(master, &self.namespaces);
        }
        det_rm_agents::routes(master.agents.clone(), self.tunnels, shutdown, dialect)
    }
}

/// Serves the Kubernetes clusters of the configuration, each in a task of its own that ends with the master.
fn serve_kubernetes(master: &Master, namespaces: &ClusterNamespaces) {
    let config = master.context.config();
    match kubernetes::settings(&config, &master.identity.cluster_id) {
        Ok(managers) => {
            for settings in managers {
                let namespaces = namespaces.clone();
                tokio::spawn(supervised(master.clone(), settings, namespaces));
            }
        }
        Err(reason) => {
            let managers = config.managers();
            let kubernetes =
                managers.filter(|(manager, _)| manager.kind == ManagerKind::Kubernetes);
            for (manager, _) in kubernetes {
                let health = Health::Down(reason.clone());
                master.places.report_health(&manager.cluster_name, health);
            }
        }
    }
}

/// Serves one cluster until the master stops, also after a defect that ended its task: rows and the cluster are read anew.
async fn supervised(
    master: Master,
    settings: det_rm_kube::Settings,
    namespaces: ClusterNamespaces,
) {
    let shutdown = &master.context.shutdown;
    while !shutdown.is_cancelled() {
        let (places, stop) = (master.places.clone(), shutdown.clone());
        let desks = namespaces.clone();
        let served = det_rm_kube::serve(places, settings.clone(), desks, stop);
        let served = tokio::spawn(served).await;
        let Err(error) = served else {
            return;
        };
        let manager = &settings.manager;
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
