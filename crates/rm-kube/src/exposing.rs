//! Has services of tasks reached through a Gateway or at ports of nodes: a task for each cluster compares the allocations
//! whose services are to be reached with the objects that exist for them, and makes and removes what differs.
//!
//! Which allocations these are follows from their Jobs, and which ports are taken from the objects in the cluster, so that a
//! manager that begins goes on with what exists. What belongs to a Job goes with it. A task runs on while its services
//! cannot be reached; its users find the reason in its log, and where they connect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use det_ids::{AllocationId, ClusterId, ContainerId, PlaceId};
use det_pods::{OfferedServices, ServiceType, node_ports};
use det_rm::{ContainerAddress, ReachError};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

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
/// Pause before services that are reached are looked at again: a controller may report something else of them by now. What
/// exists of an allocation is not asked for again more often than this, however many connections fail.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Looks at services that wait for a controller before users are shown that they wait.
const PATIENCE: u32 = 3;
/// Connections that failed, at most, which have not been looked at.
const FAILURES: usize = 16;
/// Services of an allocation that have ports of nodes, at most; as many as a Gateway takes. All that is in a cluster shares
/// a few thousand such ports.
const MOST_NODE_PORTS: usize = 64;

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

/// The allocations whose services are to be reached, those with a Job whose chief has not ended, and the chiefs whose Jobs
/// do not name any services.
fn offering(books: &Books, cluster_id: &ClusterId) -> (OfferingAllocations, BTreeSet<ContainerId>) {
    let (mut found, mut unnamed) = (OfferingAllocations::new(), BTreeSet::new());
    for (key, job) in &books.jobs {
        let chief = job.recorded.members.first();
        let Some(chief) = chief.filter(|chief| chief.rank == 0) else {
            continue;
        };
        let id = &chief.container_id;
        let has_ended = books.held.get(id).is_none_or(HeldContainer::has_ended);
        if !job.exists || has_ended {
            continue;
        }
        if job.service_ports.is_empty() {
            unnamed.insert(id.clone());
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
    (found, unnamed)
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
    /// Containers whose Jobs name no services.
    unnamed: watch::Receiver<BTreeSet<ContainerId>>,
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
                    None if self.unnamed.borrow().contains(&container.container_id) => {
                        return Err(
                            "its Job names no services, as those that an earlier version of the master made: start it again \
                             to reach them"
                                .to_owned(),
                        );
                    }
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
    unnamed: watch::Sender<BTreeSet<ContainerId>>,
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
        let (unnamed, none_named) = watch::channel(BTreeSet::new());
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
            forgotten: BTreeMap::new(),
            troubled: 0,
            trouble: None,
            cause: None,
        };
        let exposing = Self {
            offering,
            unnamed,
            cluster_id: cluster_id.clone(),
            task: tokio::spawn(exposer.run()),
        };
        let addresses = ServiceAddresses {
            known,
            unnamed: none_named,
            failures,
        };
        Some((exposing, addresses))
    }

    /// The cluster is known as this now, and completely.
    pub(crate) fn update(&self, books: &Books) {
        let (now, unnamed) = offering(books, &self.cluster_id);
        self.unnamed.send_replace(unnamed);
        self.offering.send_if_modified(|before| {
            let is_new = before.as_deref() != Some(&now);
            if is_new {
                *before = Some(Arc::new(now));
            }
            is_new
        });
    }
}

/// What a look at all services has found by now. Users may connect to one while others are still looked at.
pub(crate) struct Findings<'a> {
    pub(crate) offering: &'a OfferingAllocations,
    published: &'a watch::Sender<Accesses>,
    accesses: BTreeMap<AllocationId, ServiceAccess>,
}

impl Findings<'_> {
    /// The services of an allocation are found to be reached like this.
    pub(crate) fn found(&mut self, allocation: &AllocationId, access: ServiceAccess) {
        if let Some(offered) = self.offering.get(allocation) {
            let container = &offered.container;
            self.published.send_if_modified(|known| {
                let is_new = known.get(container) != Some(&access);
                if is_new {
                    known.insert(container.clone(), access.clone());
                }
                is_new
            });
        }
        self.accesses.insert(allocation.clone(), access);
    }

    /// Whether anything has been found of an allocation.
    pub(crate) fn has(&self, allocation: &AllocationId) -> bool {
        self.accesses.contains_key(allocation)
    }
}

/// What a look at all services has found.
struct Look {
    accesses: BTreeMap<AllocationId, ServiceAccess>,
    /// What concerns all of them, or what is left of others; `None` = nothing.
    trouble: Option<ServiceAccess>,
}

/// Why services are looked at again.
enum Reason {
    /// Others are to be reached.
    Change,
    /// It is time to.
    Time,
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
    /// When what was made for an allocation was last asked for again since a connection failed.
    forgotten: BTreeMap<AllocationId, Instant>,
    /// Looks at all services in a row that have failed.
    troubled: u32,
    /// The trouble that was last reported for the manager's health.
    trouble: Option<String>,
    /// The cause of that trouble, in words that stay the same while it lasts.
    cause: Option<String>,
}

impl Exposer {
    /// Looks whenever something has changed, and again while there are services, until the manager ends.
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let offering = self.offered.borrow_and_update().clone();
            let mut wait = None;
            if let Some(offering) = offering {
                // Another manager may go on meanwhile, with what is true then.
                let Some(look) = self.look(&offering).await else {
                    return;
                };
                let works = |it: &ServiceAccess| matches!(it, ServiceAccess::At(..));
                wait = if look.trouble.is_some() || !look.accesses.values().all(works) {
                    Some(pause)
                } else {
                    (!offering.is_empty()).then_some(LOOK_AGAIN)
                };
                self.publish(&offering, look).await;
            }
            match self.wait(wait.map(|wait| Instant::now() + wait)).await {
                Some(Reason::Change) => pause = FIRST_PAUSE,
                Some(Reason::Time) => pause = (pause * 2).min(LONGEST_PAUSE),
                None => return,
            }
        }
    }

    /// Waits for a change, at most until then, and less long if a connection fails; `None` = the manager has ended.
    async fn wait(&mut self, mut until: Option<Instant>) -> Option<Reason> {
        loop {
            let time = async move {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.offered.changed() => return changed.ok().map(|()| Reason::Change),
                Some(container) = self.failed.recv() => {
                    if self.make_again(&container) {
                        let soon = Instant::now() + FIRST_PAUSE;
                        until = Some(until.map_or(soon, |until| until.min(soon)));
                    }
                }
                () = time => return Some(Reason::Time),
            }
        }
    }

    /// `None` = the manager has ended.
    async fn look(&mut self, offering: &OfferingAllocations) -> Option<Look> {
        let ended = self.messages.clone();
        let look = async {
            let mut findings = Findings {
                offering,
                published: &self.accesses,
                accesses: BTreeMap::new(),
            };
            let trouble = match &mut self.way {
                Way::Gateway(gateways) => gateways.look(&self.api, &mut findings).await,
                Way::NodePorts(ports) => {
                    ports.look(&self.api, &mut findings).await;
                    None
                }
            };
            Look {
                accesses: findings.accesses,
                trouble,
            }
        };
        tokio::select! {
            look = look => Some(look),
            () = ended.closed() => None,
        }
    }

    /// What was made for a container is to be looked at again, and made where it is gone; whether it is, since that is not
    /// done again and again while nothing listens there.
    fn make_again(&mut self, container: &ContainerId) -> bool {
        let offered = self.offered.borrow().clone();
        let mut offered = offered.iter().flat_map(|all| all.iter());
        let found = offered.find(|(_, it)| it.container == *container);
        let Some((allocation, _)) = found else {
            return false;
        };
        let now = Instant::now();
        let last = self.forgotten.get(allocation);
        if last.is_some_and(|last| now < *last + LOOK_AGAIN) {
            return false;
        }
        match &mut self.way {
            Way::Gateway(gateways) => gateways.forget(allocation),
            Way::NodePorts(ports) => {
                ports.made.remove(allocation);
            }
        }
        self.forgotten.insert(allocation.clone(), now);
        true
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
        self.forgotten.retain(|id, _| offering.contains_key(id));
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
        let count = refused.len();
        let first = refused.into_iter().next();
        let of_one = first.map(|(allocation, reason)| format!("\"{allocation}\": {reason}"));
        let trouble = of_all.clone().or_else(|| {
            let of_one = of_one.as_ref()?;
            Some(format!(
                "services of {count} allocations cannot be reached, such as of {of_one}"
            ))
        });
        if trouble != self.trouble {
            let cause = of_all.or(of_one);
            let is_new = cause != self.cause;
            self.cause = cause;
            self.trouble.clone_from(&trouble);
            let reason = trouble;
            self.send(Message::Unexposed { reason, is_new }).await;
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
    async fn look(&mut self, api: &KubeApi, findings: &mut Findings<'_>) {
        self.made.retain(|id, (uid, _)| {
            let offered = findings.offering.get(id);
            offered.is_some_and(|offered| offered.services.job_uid == *uid)
        });
        for (allocation, offered) in findings.offering {
            let access = match self.ports(api, allocation, &offered.services).await {
                Err(access) => access,
                Ok(ports) => match &offered.node_address {
                    Some(address) => ServiceAccess::At(address.clone(), ports),
                    None => ServiceAccess::Waits("its pod does not run yet".to_owned()),
                },
            };
            findings.found(allocation, access);
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
        let count = services.ports.len();
        if count > MOST_NODE_PORTS {
            return Err(ServiceAccess::Refused(format!(
                "it has {count} services, and at most {MOST_NODE_PORTS} of a task are reached at ports of nodes: start it \
                 with fewer \"proxy_ports\""
            )));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_of_an_allocation_is_published_before_others_are_looked_at() {
        let of = |id: &str| OfferingAllocation {
            services: OfferedServices {
                namespace: "tasks".to_owned(),
                job_name: format!("det-{id}"),
                job_uid: "uid".to_owned(),
                allocation_id: id.into(),
                cluster_id: "0a1b2c3d".into(),
                ports: [8888].into(),
            },
            container: id.into(),
            place: "a".into(),
            node_address: None,
        };
        let offering = ["a.1", "b.1"].map(|id| (AllocationId::from(id), of(id)));
        let offering = OfferingAllocations::from(offering);
        let (published, mut known) = watch::channel(Accesses::new());
        let mut findings = Findings {
            offering: &offering,
            published: &published,
            accesses: BTreeMap::new(),
        };
        let access = ServiceAccess::At("host".to_owned(), [(8888, 30_000)].into());
        findings.found(&"a.1".into(), access.clone());
        assert_eq!(
            *known.borrow_and_update(),
            [("a.1".into(), access.clone())].into()
        );
        findings.found(&"a.1".into(), access);
        assert!(!known.has_changed().unwrap());
        assert!(!findings.has(&"b.1".into()));
    }
}
