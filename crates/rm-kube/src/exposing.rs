//! Has services of tasks reached through a Gateway or at ports of nodes: a task for each cluster compares the allocations
//! whose services are to be reached with the objects that exist for them, and makes and removes what differs.
//!
//! Which allocations these are follows from their Jobs, and which ports are taken from the objects in the cluster, so that a
//! manager that begins goes on with what exists. What belongs to a Job goes with it. A task runs on while its services
//! cannot be reached; its users find the reason in its log, and where they connect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use det_ids::{AllocationId, ClusterId, ContainerId, PlaceId};
use det_pods::{OfferedServices, ServiceType, node_ports};
use det_rm::{ContainerAddress, ReachError};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Exposure;
use crate::api::{ApiError, Kind, KubeApi};
use crate::books::{Books, HeldContainer};
use crate::creating::{is_same_allocation, name, uid};
use crate::gateways::Gateways;
use crate::messages::Message;
use crate::reach::{CONNECT_WITHIN, connect};

/// Pauses before services that cannot be reached yet are looked at again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Pause before services that are reached are looked at again: a controller may report something else of them by now.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Looks at services that wait for a controller before users are shown that they wait.
const PATIENCE: u32 = 3;
/// Connections that failed, at most, which have not been looked at.
const FAILURES: usize = 16;

/// An allocation whose services are to be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OfferingAllocation {
    pub(crate) services: OfferedServices,
    /// The container that offers them.
    pub(crate) container: ContainerId,
    /// The place that the container runs on.
    pub(crate) place: PlaceId,
    /// Address of the node that its pod runs on, once it does.
    pub(crate) node_address: Option<String>,
}

/// The allocations whose services are to be reached.
pub(crate) type OfferingAllocations = BTreeMap<AllocationId, OfferingAllocation>;

/// The allocations whose services are to be reached: those with a Job whose chief has not ended.
fn offering(books: &Books, cluster_id: &ClusterId) -> OfferingAllocations {
    let mut found = OfferingAllocations::new();
    for (key, job) in &books.jobs {
        let chief = job.recorded.members.first();
        let Some(chief) = chief.filter(|chief| chief.rank == 0) else {
            continue;
        };
        let id = &chief.container_id;
        let has_ended = books.held.get(id).is_none_or(HeldContainer::has_ended);
        if !job.exists || has_ended || job.service_ports.is_empty() {
            continue;
        }
        let facts = books.pod(id).and_then(|(_, pod)| pod.facts.as_ref());
        let allocation_id = job.recorded.allocation_id.clone();
        let offering = OfferingAllocation {
            services: OfferedServices {
                namespace: key.namespace.clone(),
                job_name: key.name.clone(),
                job_uid: job.uid.clone(),
                allocation_id: allocation_id.clone(),
                cluster_id: cluster_id.clone(),
                ports: job.service_ports.clone(),
            },
            container: id.clone(),
            place: chief.place.clone(),
            node_address: facts.and_then(|facts| facts.host_ip.clone()),
        };
        found.insert(allocation_id, offering);
    }
    found
}

/// Whether and where services of a container are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServiceAccess {
    /// At these ports of a host, by the port of the container.
    At(String, BTreeMap<u16, u16>),
    /// Not yet, for this reason, which may be over in a moment.
    Waits(String),
    /// Not until something changes, for this reason.
    Refused(String),
}

/// What is known of the services of containers.
type Accesses = BTreeMap<ContainerId, ServiceAccess>;

/// Where services of containers are reached. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ServiceAddresses {
    known: watch::Receiver<Accesses>,
    failures: mpsc::Sender<ContainerId>,
}

impl ServiceAddresses {
    /// Connects to a port of a container, once it is reached.
    pub(crate) async fn connect(
        &self,
        container: &ContainerAddress,
        port: u16,
    ) -> Result<TcpStream, ReachError> {
        let (host, host_port) = self.find(container, port).await?;
        let connected = connect(container, &host, host_port).await;
        if connected.is_err() {
            // Where more wait, one of them will do.
            drop(self.failures.try_send(container.container_id.clone()));
        }
        connected
    }

    /// The address of a port of a container, which is waited for as long as it may take to connect.
    async fn find(
        &self,
        container: &ContainerAddress,
        port: u16,
    ) -> Result<(String, u16), ReachError> {
        let mut known = self.known.clone();
        let mut waits = format!(
            "resource manager \"{}\" has not made a way to it yet",
            container.manager
        );
        let found = async {
            loop {
                match known.borrow_and_update().get(&container.container_id) {
                    Some(ServiceAccess::At(host, ports)) => {
                        let host_port = ports.get(&port).copied();
                        let host_port = host_port.ok_or_else(|| {
                            format!("port {port} is none of the services that it was started with")
                        })?;
                        return Ok((host.clone(), host_port));
                    }
                    Some(ServiceAccess::Refused(reason)) => return Err(reason.clone()),
                    Some(ServiceAccess::Waits(reason)) => waits.clone_from(reason),
                    None => {}
                }
                if known.changed().await.is_err() {
                    let manager = &container.manager;
                    return Err(format!("resource manager \"{manager}\" is being restarted"));
                }
            }
        };
        let found = timeout(CONNECT_WITHIN, found).await;
        let found = found.unwrap_or(Err(waits));
        found.map_err(ReachError::Unreachable)
    }
}

/// What has services of a cluster's tasks reached, as the task that owns what is known of the cluster has it.
pub(crate) struct ServiceExposure {
    offering: watch::Sender<Option<Arc<OfferingAllocations>>>,
    cluster_id: ClusterId,
    task: JoinHandle<()>,
}

impl Drop for ServiceExposure {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ServiceExposure {
    /// Begins, where services are reached by objects of their own, and gives where they are.
    pub(crate) fn begin(
        exposure: &Exposure,
        (manager, cluster_id): (&str, &ClusterId),
        api: &KubeApi,
        messages: &mpsc::Sender<Message>,
    ) -> Option<(Self, ServiceAddresses)> {
        let way = match exposure {
            Exposure::PodIp | Exposure::PortForward { .. } => return None,
            Exposure::NodePort => Way::NodePorts(NodePorts::default()),
            Exposure::Gateway(gateway) => {
                let owner = format!("{cluster_id}/{manager}");
                Way::Gateway(Box::new(Gateways::new(gateway.clone(), owner)))
            }
        };
        let (offering, offered) = watch::channel(None);
        let (accesses, known) = watch::channel(Accesses::new());
        let (failures, failed) = mpsc::channel(FAILURES);
        let exposer = Exposer {
            api: api.clone(),
            way,
            offered,
            accesses,
            failed,
            messages: messages.clone(),
            notes: BTreeMap::new(),
            troubled: 0,
            trouble: None,
        };
        let exposing = Self {
            offering,
            cluster_id: cluster_id.clone(),
            task: tokio::spawn(exposer.run()),
        };
        Some((exposing, ServiceAddresses { known, failures }))
    }

    /// The cluster is known as this now, and completely.
    pub(crate) fn update(&self, books: &Books) {
        let now = offering(books, &self.cluster_id);
        self.offering.send_if_modified(|before| {
            let is_new = before.as_deref() != Some(&now);
            if is_new {
                *before = Some(Arc::new(now));
            }
            is_new
        });
    }
}

/// What a look at all services has found.
pub(crate) struct Look {
    pub(crate) accesses: BTreeMap<AllocationId, ServiceAccess>,
    /// What concerns all of them, or what is left of others; `None` = nothing.
    pub(crate) trouble: Option<ServiceAccess>,
}

/// How services are reached.
enum Way {
    Gateway(Box<Gateways>),
    NodePorts(NodePorts),
}

/// What users have been shown of an allocation's services.
#[derive(Default)]
struct ShownReason {
    /// How often they were found to wait.
    looks: u32,
    /// The last reason that was shown.
    reason: Option<String>,
}

/// The task that has services reached.
struct Exposer {
    api: KubeApi,
    way: Way,
    offered: watch::Receiver<Option<Arc<OfferingAllocations>>>,
    accesses: watch::Sender<Accesses>,
    /// Containers to which a connection failed.
    failed: mpsc::Receiver<ContainerId>,
    messages: mpsc::Sender<Message>,
    notes: BTreeMap<ContainerId, ShownReason>,
    /// Looks at all services in a row that have failed.
    troubled: u32,
    /// The trouble that was last reported for the manager's health.
    trouble: Option<String>,
}

impl Exposer {
    /// Looks whenever something has changed, and again while something is missing, until the manager ends.
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let offering = self.offered.borrow_and_update().clone();
            let mut wait = LOOK_AGAIN;
            if let Some(offering) = offering {
                // Another manager may go on meanwhile, with what is true then.
                let Some(look) = self.look(&offering).await else {
                    return;
                };
                let works = |it: &ServiceAccess| matches!(it, ServiceAccess::At(..));
                if look.trouble.is_some() || !look.accesses.values().all(works) {
                    wait = pause;
                }
                self.publish(&offering, look).await;
            }
            tokio::select! {
                changed = self.offered.changed() => match changed {
                    Ok(()) => pause = FIRST_PAUSE,
                    Err(_) => return,
                },
                Some(container) = self.failed.recv() => self.make_again(&container),
                () = tokio::time::sleep(wait) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    /// `None` = the manager has ended.
    async fn look(&mut self, offering: &OfferingAllocations) -> Option<Look> {
        let ended = self.messages.clone();
        let look = async {
            match &mut self.way {
                Way::Gateway(gateways) => gateways.look(&self.api, offering).await,
                Way::NodePorts(ports) => ports.look(&self.api, offering).await,
            }
        };
        tokio::select! {
            look = look => Some(look),
            () = ended.closed() => None,
        }
    }

    /// What was made for a container is to be looked at again, and made where it is gone.
    fn make_again(&mut self, container: &ContainerId) {
        let offered = self.offered.borrow().clone();
        let offered = offered.iter().flat_map(|all| all.iter());
        for (allocation, _) in offered.filter(|(_, it)| it.container == *container) {
            match &mut self.way {
                Way::Gateway(gateways) => gateways.forget(allocation),
                Way::NodePorts(ports) => {
                    ports.made.remove(allocation);
                }
            }
        }
    }

    async fn publish(&mut self, offering: &OfferingAllocations, look: Look) {
        let mut refused = Vec::new();
        let found = look.accesses.into_iter();
        let found = found.filter_map(|(id, access)| Some((offering.get(&id)?, access)));
        let found: Vec<(&OfferingAllocation, ServiceAccess)> = found.collect();
        let accesses = found.iter();
        let accesses =
            accesses.map(|(offered, access)| (offered.container.clone(), access.clone()));
        let accesses: Accesses = accesses.collect();
        self.notes.retain(|id, _| accesses.contains_key(id));
        self.accesses.send_replace(accesses);
        for (offered, access) in found {
            self.show(offered, &access).await;
            if let ServiceAccess::Refused(reason) = access {
                refused.push((&offered.services.allocation_id, reason));
            }
        }
        self.troubled = look.trouble.as_ref().map_or(0, |_| self.troubled + 1);
        let of_all = look.trouble.and_then(|trouble| match trouble {
            ServiceAccess::Refused(reason) => Some(reason),
            // A request may fail for a moment.
            ServiceAccess::Waits(reason) => (self.troubled >= PATIENCE).then_some(reason),
            ServiceAccess::At(..) => None,
        });
        let trouble = of_all.or_else(|| {
            let (allocation, reason) = refused.first()?;
            let count = refused.len();
            Some(format!(
                "services of {count} allocations cannot be reached, such as of \"{allocation}\": {reason}"
            ))
        });
        if trouble != self.trouble {
            self.trouble.clone_from(&trouble);
            self.send(Message::Unexposed(trouble)).await;
        }
    }

    /// Shows users in the log of a task why its services cannot be reached, and that they can.
    async fn show(&mut self, offered: &OfferingAllocation, access: &ServiceAccess) {
        let shown = self.notes.entry(offered.container.clone()).or_default();
        let reason = match access {
            ServiceAccess::Waits(reason) => {
                shown.looks += 1;
                (shown.looks >= PATIENCE).then(|| reason.clone())
            }
            ServiceAccess::Refused(reason) => Some(reason.clone()),
            ServiceAccess::At(..) => None,
        };
        let line = match (&reason, &shown.reason) {
            (Some(reason), before) if before.as_ref() != Some(reason) => {
                format!("services of the task cannot be reached: {reason}")
            }
            (None, Some(_)) if matches!(access, ServiceAccess::At(..)) => {
                shown.looks = 0;
                "services of the task are reached now".to_owned()
            }
            _ => return,
        };
        shown.reason = reason;
        let (place, container) = (offered.place.clone(), offered.container.clone());
        self.send(Message::Noted(place, container, line)).await;
    }

    async fn send(&self, message: Message) {
        // The manager has ended.
        drop(self.messages.send(message).await);
    }
}

/// Services at ports of nodes.
#[derive(Default)]
struct NodePorts {
    /// The ports of nodes of each allocation, with the identity of its Job.
    made: BTreeMap<AllocationId, (String, BTreeMap<u16, u16>)>,
}

impl NodePorts {
    async fn look(&mut self, api: &KubeApi, offering: &OfferingAllocations) -> Look {
        self.made.retain(|id, (uid, _)| {
            let offered = offering.get(id);
            offered.is_some_and(|offered| offered.services.job_uid == *uid)
        });
        let mut accesses = BTreeMap::new();
        for (allocation, offered) in offering {
            let access = match self.ports(api, allocation, &offered.services).await {
                Err(access) => access,
                Ok(ports) => match &offered.node_address {
                    Some(address) => ServiceAccess::At(address.clone(), ports),
                    None => ServiceAccess::Waits("its pod does not run yet".to_owned()),
                },
            };
            accesses.insert(allocation.clone(), access);
        }
        Look {
            accesses,
            trouble: None,
        }
    }

    /// The ports of nodes of an allocation's services, which are made where there are none.
    async fn ports(
        &mut self,
        api: &KubeApi,
        allocation: &AllocationId,
        services: &OfferedServices,
    ) -> Result<BTreeMap<u16, u16>, ServiceAccess> {
        if let Some((_, ports)) = self.made.get(allocation) {
            return Ok(ports.clone());
        }
        let service = service(api, services, ServiceType::NodePort).await?;
        let ports = node_ports(&service);
        if ports.len() < services.ports.len() {
            let reason = "Kubernetes has not given its Service ports of nodes yet";
            return Err(ServiceAccess::Waits(reason.to_owned()));
        }
        let made = (services.job_uid.clone(), ports.clone());
        self.made.insert(allocation.clone(), made);
        Ok(ports)
    }
}

/// Has the Service of an allocation exist, and gives it as it is.
pub(crate) async fn service(
    api: &KubeApi,
    services: &OfferedServices,
    kind: ServiceType,
) -> Result<Value, ServiceAccess> {
    let ours = services.service(kind);
    let found = ensure(api, Kind::Service, services, &ours).await?;
    let is_as_wanted = found.pointer("/spec/type") == ours.pointer("/spec/type");
    if is_as_wanted {
        return Ok(found);
    }
    // The manager was configured otherwise when it was made.
    let patch = json!({"spec": {
        "type": ours["spec"]["type"],
        "externalTrafficPolicy": ours["spec"]["externalTrafficPolicy"],
    }});
    patch_of(api, Kind::Service, services, (&ours, &patch)).await?;
    Err(ServiceAccess::Waits("its Service was changed".to_owned()))
}

/// Changes an object of an allocation that exists.
pub(crate) async fn patch_of(
    api: &KubeApi,
    kind: Kind,
    services: &OfferedServices,
    (object, patch): (&Value, &Value),
) -> Result<(), ServiceAccess> {
    let at = (services.namespace.as_str(), name(object));
    let patched = api.patch(kind, at, patch).await;
    patched.map_err(|error| failed("patch", kind, at, &error))
}

/// Has an object of an allocation exist, and gives it as it is.
pub(crate) async fn ensure(
    api: &KubeApi,
    kind: Kind,
    services: &OfferedServices,
    object: &Value,
) -> Result<Value, ServiceAccess> {
    let at = (services.namespace.as_str(), name(object));
    match api.create(kind, &services.namespace, object).await {
        Err(ApiError::Exists) => {}
        created => return created.map_err(|error| failed("create", kind, at, &error)),
    }
    let found = api.get(kind, at).await;
    let found = found.map_err(|error| failed("get", kind, at, &error))?;
    if !is_same_allocation(object, &found) {
        return Err(ServiceAccess::Refused(format!(
            "\"{}\" exists among {} in namespace \"{}\", and is not of this allocation; delete it",
            name(object),
            kind.word(),
            services.namespace,
        )));
    }
    let owner = found.pointer("/metadata/ownerReferences/0/uid");
    if owner.and_then(Value::as_str) == Some(&services.job_uid) {
        return Ok(found);
    }
    // It was another Job's, of the same name, and would go with that.
    let deleted = api.delete(kind, at, uid(&found), None).await;
    deleted.map_err(|error| failed("delete", kind, at, &error))?;
    Err(ServiceAccess::Waits(format!(
        "\"{}\" of an earlier Job is being deleted",
        name(object)
    )))
}

/// What the failure of a request means for who wants to connect.
pub(crate) fn failed(
    verb: &str,
    kind: Kind,
    (namespace, name): (&str, &str),
    error: &ApiError,
) -> ServiceAccess {
    let what = kind.word();
    let of = if name.is_empty() {
        what.to_owned()
    } else {
        format!("\"{name}\" among {what}")
    };
    let at = if namespace.is_empty() {
        "in all namespaces".to_owned()
    } else {
        format!("in namespace \"{namespace}\"")
    };
    match error {
        ApiError::Forbidden(answer) => ServiceAccess::Refused(format!(
            "the master may not {verb} {what} {at}: its service account needs that right (docs/kubernetes.md, \"How \
             services of tasks are reached\"); the API answers: {answer}"
        )),
        ApiError::Refused(answer) => {
            ServiceAccess::Refused(format!("Kubernetes refuses to {verb} {of} {at}: {answer}"))
        }
        error => ServiceAccess::Waits(format!("the request to {verb} {of} {at} failed: {error}")),
    }
}
