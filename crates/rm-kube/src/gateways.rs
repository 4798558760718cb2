//! Services of tasks behind listeners of a Gateway: what a look at them does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_ids::AllocationId;
use det_pods::{
    GATEWAY_GROUP, GatewayName, ListenerHome, ListenerState, ListenersWanted, OfferedServices,
    RouteParent, ServiceType, TcpRouteApi, free_ports, is_same_route, is_set_of, listener_home,
    listener_name, listener_ports, listener_state, plan_listeners, route_refusal,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::GatewaySettings;
use crate::api::{ApiError, Kind, KubeApi};
use crate::creating::{name, uid};
use crate::exposing::{
    Findings, OfferingAllocations, ServiceAccess, ensure, failed, patch_of, service,
};

/// How often listeners are decided on anew at once where the Gateway has changed meanwhile.
const ATTEMPTS: u32 = 8;
/// How long an allocation does not get a port again that was in conflict with what others have.
const AVOIDED_FOR: Duration = Duration::from_mins(10);

/// What the cluster has of the Gateway API.
#[derive(Debug, Clone, Copy)]
struct ServedKinds {
    routes: TcpRouteApi,
    listener_sets: bool,
}

/// What is known of an allocation's listeners.
struct KnownListeners {
    /// Identity of the Job that they were made for.
    job_uid: String,
    /// The ports, in the order of the services.
    ports: Vec<u16>,
    home: ListenerHome,
    /// Whether all objects are known to exist, and are not asked for again.
    exist: bool,
    /// Whether they were found to work.
    work: bool,
}

/// The Gateway through which services of a cluster's tasks are reached.
pub(crate) struct Gateways {
    settings: GatewaySettings,
    /// What notes at the Gateway name as the owner of its listeners.
    owner: String,
    served: Option<ServedKinds>,
    /// The allocations of which all objects were made.
    made: BTreeMap<AllocationId, KnownListeners>,
    /// The ports that were found in conflict, by the allocation that had them, and when.
    conflicts: BTreeMap<AllocationId, BTreeMap<u16, Instant>>,
}

/// The Gateway as it is, with the `ListenerSets` of all allocations and others.
struct Present {
    gateway: Value,
    sets: Vec<Value>,
}

impl Gateways {
    pub(crate) fn new(settings: GatewaySettings, owner: String) -> Self {
        Self {
            settings,
            owner,
            served: None,
            made: BTreeMap::new(),
            conflicts: BTreeMap::new(),
        }
    }

    /// What was made for an allocation is to be made again where it is gone.
    pub(crate) fn forget(&mut self, allocation: &AllocationId) {
        if let Some(made) = self.made.get_mut(allocation) {
            made.exist = false;
        }
    }

    /// Makes what is missing, removes what is left, and finds out what works; what concerns all services, if anything.
    pub(crate) async fn look(
        &mut self,
        api: &KubeApi,
        findings: &mut Findings<'_>,
    ) -> Option<ServiceAccess> {
        let offering = findings.offering;
        self.made.retain(|id, made| {
            let offered = offering.get(id);
            offered.is_some_and(|offered| offered.services.job_uid == made.job_uid)
        });
        let now = Instant::now();
        self.conflicts.retain(|id, ports| {
            ports.retain(|_, since| now < *since + AVOIDED_FOR);
            offering.contains_key(id)
        });
        let access = self.compare(api, findings).await.err()?;
        // The cluster may be given what it lacks.
        self.served = None;
        // What works goes on, though the API may be away.
        for (id, offered) in offering {
            let works = self.made.get(id).filter(|made| made.work);
            let works = works.map(|made| self.at(&offered.services, &made.ports));
            findings.found(id, works.unwrap_or_else(|| access.clone()));
        }
        Some(access)
    }

    /// The ports that an allocation does not get.
    fn avoided(&self, allocation: &AllocationId) -> BTreeSet<u16> {
        let ports = self.conflicts.get(allocation).into_iter();
        ports.flat_map(|ports| ports.keys().copied()).collect()
    }

    /// What allocations need where the Gateway itself has the listeners.
    fn wanted(&self, offering: &OfferingAllocations) -> BTreeMap<AllocationId, ListenersWanted> {
        let wanted = offering.iter().map(|(id, offered)| {
            let services = &offered.services;
            let wanted = ListenersWanted {
                namespace: services.namespace.clone(),
                count: services.ports.len(),
                avoided: self.avoided(id),
            };
            (id.clone(), wanted)
        });
        wanted.collect()
    }

    fn at(&self, services: &OfferedServices, ports: &[u16]) -> ServiceAccess {
        let by_port = services.ports.iter().copied().zip(ports.iter().copied());
        ServiceAccess::At(self.settings.address.clone(), by_port.collect())
    }

    /// Errs with what concerns all services.
    async fn compare(
        &mut self,
        api: &KubeApi,
        findings: &mut Findings<'_>,
    ) -> Result<(), ServiceAccess> {
        let offering = findings.offering;
        let served = self.find_served(api).await?;
        let (mut present, mut given) = (self.present(api, served).await?, BTreeMap::new());
        let home = listener_home(&present.gateway, served.listener_sets);
        for attempt in 1.. {
            let in_gateway = match home {
                ListenerHome::Gateway => self.wanted(offering),
                // Those of former times go.
                ListenerHome::ListenerSets => BTreeMap::new(),
            };
            let taken = self.taken_by_sets(&present);
            let range = (&self.settings.ports, &taken);
            let plan = plan_listeners(&present.gateway, &self.owner, range, &in_gateway);
            let is_last = attempt >= ATTEMPTS;
            match self.carry_out(api, plan.patch.as_ref(), is_last).await? {
                PatchOutcome::Applied => {
                    for (id, reason) in plan.refused {
                        findings.found(&id, ServiceAccess::Refused(reason.to_string()));
                    }
                    given = plan.given;
                    break;
                }
                PatchOutcome::Changed => present = self.present(api, served).await?,
            }
        }
        let mut taken = self.taken_by_sets(&present);
        taken.extend(listener_ports(&present.gateway));
        for (id, offered) in offering {
            if findings.has(id) {
                continue;
            }
            let services = &offered.services;
            let listeners = match home {
                ListenerHome::Gateway => Ok(given.remove(id).unwrap_or_default()),
                ListenerHome::ListenerSets => {
                    self.own_set(api, services, (&present, &mut taken)).await
                }
            };
            let access = match listeners {
                Ok(ports) => {
                    let of = (id, services, ports.as_slice());
                    let made = self.make(api, of, (home, served.routes)).await;
                    match made {
                        Ok(()) => self.state(api, of, (home, &present), served.routes).await,
                        // A request may fail for a moment, and what works goes on.
                        Err(ServiceAccess::Waits(_)) if self.work(id, &ports, home) => {
                            self.at(services, &ports)
                        }
                        Err(access) => access,
                    }
                }
                Err(access) => access,
            };
            findings.found(id, access);
        }
        Ok(())
    }

    /// What the cluster has of the Gateway API, which is asked for again until it has all.
    async fn find_served(&mut self, api: &KubeApi) -> Result<ServedKinds, ServiceAccess> {
        if let Some(served) = self.served {
            return Ok(served);
        }
        let mut routes = None;
        for version in TcpRouteApi::ALL {
            let of = (GATEWAY_GROUP, version.version());
            if api
                .serves(of, "tcproutes")
                .await
                .map_err(ServiceAccess::Waits)?
            {
                routes = Some(version);
                break;
            }
        }
        let Some(routes) = routes else {
            return Err(ServiceAccess::Refused(format!(
                "the cluster has no TCPRoute of {GATEWAY_GROUP}/v1 or v1alpha2: install the Gateway API with it there, or choose \
                 another \"task_exposure\""
            )));
        };
        let of = (GATEWAY_GROUP, "v1");
        let listener_sets = api.serves(of, "listenersets").await;
        let served = ServedKinds {
            routes,
            listener_sets: listener_sets.map_err(ServiceAccess::Waits)?,
        };
        self.served = served.listener_sets.then_some(served);
        Ok(served)
    }

    async fn present(&self, api: &KubeApi, served: ServedKinds) -> Result<Present, ServiceAccess> {
        let GatewayName { namespace, name } = &self.settings.gateway;
        let at = (namespace.as_str(), name.as_str());
        let gateway = api.get(Kind::Gateway, at).await;
        let gateway = gateway.map_err(|error| match error {
            ApiError::Absent => ServiceAccess::Refused(format!(
                "there is no Gateway \"{name}\" of {GATEWAY_GROUP}/v1 in namespace \"{namespace}\", which \
                 \"internal_task_gateway\" names: create it, or name another one"
            )),
            error => failed("get", Kind::Gateway, at, &error),
        })?;
        let sets = if served.listener_sets {
            let all = api.list(Kind::ListenerSet, "").await;
            all.map_err(|error| failed("list", Kind::ListenerSet, ("", ""), &error))?
        } else {
            Vec::new()
        };
        Ok(Present { gateway, sets })
    }

    /// The ports of the Gateway that `ListenerSets` have.
    fn taken_by_sets(&self, present: &Present) -> BTreeSet<u16> {
        let sets = present.sets.iter();
        let sets = sets.filter(|set| is_set_of(set, &self.settings.gateway));
        sets.flat_map(listener_ports).collect()
    }

    /// Changes the listeners of the Gateway. `is_last` = it is not decided on anew at once.
    async fn carry_out(
        &self,
        api: &KubeApi,
        patch: Option<&Value>,
        is_last: bool,
    ) -> Result<PatchOutcome, ServiceAccess> {
        let Some(patch) = patch else {
            return Ok(PatchOutcome::Applied);
        };
        let GatewayName { namespace, name } = &self.settings.gateway;
        let at = (namespace.as_str(), name.as_str());
        match api.patch(Kind::Gateway, at, patch).await {
            Ok(()) => Ok(PatchOutcome::Applied),
            // Others change it as well, and requests may fail for a moment.
            Err(ApiError::Passing(_)) if !is_last => Ok(PatchOutcome::Changed),
            Err(error) => Err(failed("patch", Kind::Gateway, at, &error)),
        }
    }

    /// The ports of an allocation's own `ListenerSet`, which is made where there is none.
    async fn own_set(
        &self,
        api: &KubeApi,
        services: &OfferedServices,
        (present, taken): (&Present, &mut BTreeSet<u16>),
    ) -> Result<Vec<u16>, ServiceAccess> {
        let gateway = &self.settings.gateway;
        let listed = own_set_of(present, services, gateway);
        let ports = match listed {
            // It is looked at again as one that exists.
            Some(set) => listener_ports(set),
            None => {
                let of = (&services.allocation_id, services.ports.len());
                let not_free = &*taken | &self.avoided(&services.allocation_id);
                let free = free_ports(&self.settings.ports, &not_free, of);
                free.map_err(|reason| ServiceAccess::Refused(reason.to_string()))?
            }
        };
        taken.extend(ports.iter().copied());
        if listed.is_some() && self.has_made(services, &ports, ListenerHome::ListenerSets) {
            return Ok(ports);
        }
        let ours = services.listener_set(gateway, &ports);
        let found = ensure(api, Kind::ListenerSet, services, &ours).await?;
        if !is_set_of(&found, gateway) {
            // The manager was configured otherwise when it was made.
            delete_set(api, services, &found).await?;
            let reason = "its ListenerSet of another Gateway is being deleted";
            return Err(ServiceAccess::Waits(reason.to_owned()));
        }
        let ports = listener_ports(&found);
        taken.extend(ports.iter().copied());
        if ports.len() == services.ports.len() {
            return Ok(ports);
        }
        Err(ServiceAccess::Refused(format!(
            "the ListenerSet \"{}\" in namespace \"{}\" has {} listeners for {} services: delete it, and it is made anew",
            services.name(),
            services.namespace,
            ports.len(),
            services.ports.len(),
        )))
    }

    fn has_made(&self, services: &OfferedServices, ports: &[u16], home: ListenerHome) -> bool {
        let made = self.made.get(&services.allocation_id);
        made.is_some_and(|made| made.exist && made.ports == ports && made.home == home)
    }

    /// Whether the listeners of an allocation at these ports were found to work.
    fn work(&self, allocation: &AllocationId, ports: &[u16], home: ListenerHome) -> bool {
        let made = self.made.get(allocation);
        made.is_some_and(|made| made.work && made.ports == ports && made.home == home)
    }

    /// Makes the Service and the routes of an allocation.
    async fn make(
        &mut self,
        api: &KubeApi,
        (allocation, services, ports): (&AllocationId, &OfferedServices, &[u16]),
        (home, version): (ListenerHome, TcpRouteApi),
    ) -> Result<(), ServiceAccess> {
        if self.has_made(services, ports, home) {
            return Ok(());
        }
        service(api, services, ServiceType::ClusterIp).await?;
        let parent = match home {
            ListenerHome::Gateway => RouteParent::Gateway(&self.settings.gateway),
            ListenerHome::ListenerSets => RouteParent::ListenerSet,
        };
        let kind = Kind::TcpRoute(version);
        for route in services.routes(parent, version, ports) {
            let found = ensure(api, kind, services, &route).await?;
            if !is_same_route(&route, &found) {
                let patch = serde_json::json!({"spec": route["spec"]});
                patch_of(api, kind, services, (&route, &patch)).await?;
            }
        }
        let made = KnownListeners {
            job_uid: services.job_uid.clone(),
            ports: ports.to_vec(),
            home,
            exist: true,
            work: self.work(allocation, ports, home),
        };
        self.made.insert(allocation.clone(), made);
        Ok(())
    }

    /// Whether the listeners of an allocation work, all of whose objects exist.
    async fn state(
        &mut self,
        api: &KubeApi,
        (allocation, services, ports): (&AllocationId, &OfferedServices, &[u16]),
        (home, present): (ListenerHome, &Present),
        version: TcpRouteApi,
    ) -> ServiceAccess {
        let GatewayName { namespace, name } = &self.settings.gateway;
        let (object, of) = match home {
            ListenerHome::Gateway => (
                Some(&present.gateway),
                format!("the Gateway \"{name}\" in namespace \"{namespace}\""),
            ),
            ListenerHome::ListenerSets => (
                own_set_of(present, services, &self.settings.gateway),
                format!(
                    "the ListenerSet \"{}\" in namespace \"{}\"",
                    services.name(),
                    services.namespace
                ),
            ),
        };
        let known = self.work(allocation, ports, home);
        for (service, port) in services.ports.iter().zip(ports) {
            let listener = listener_name(home, *port, allocation);
            let unknown = || ListenerState::Waits("it has just been made".to_owned());
            let state = object.map_or_else(unknown, |object| listener_state(object, &listener));
            let in_words = |why: &str| format!("listener \"{listener}\" of {of}: {why}");
            let refusal = match state {
                ListenerState::Works if known => None,
                // A Gateway counts routes that lead nowhere as attached.
                ListenerState::Works => self.route(api, (services, *service), version).await,
                // Any change of the Gateway makes what is reported of it older than it is.
                ListenerState::Waits(_) if known => None,
                ListenerState::Waits(why) => Some(ServiceAccess::Waits(in_words(&why))),
                ListenerState::Refused(why) => {
                    let hint = "see what the Gateway must admit in docs/kubernetes.md, \"Through a Gateway\"";
                    let reason = format!("{}; {hint}", in_words(&why));
                    Some(ServiceAccess::Refused(reason))
                }
                ListenerState::Conflicted(why) => {
                    let set = object.filter(|_| home == ListenerHome::ListenerSets);
                    let given_back = self.give_back(api, (services, *port), set).await;
                    let again = || {
                        ServiceAccess::Waits(format!("{}; it gets another port", in_words(&why)))
                    };
                    Some(given_back.err().unwrap_or_else(again))
                }
                ListenerState::HasNoRoute => {
                    let refusal = self.route(api, (services, *service), version).await;
                    let none = || ServiceAccess::Waits(in_words("it has no route yet"));
                    Some(refusal.unwrap_or_else(none))
                }
            };
            if let Some(refusal) = refusal {
                return refusal;
            }
        }
        if let Some(made) = self.made.get_mut(allocation) {
            made.work = true;
        }
        self.at(services, ports)
    }

    /// What is wrong with the route to a service; `None` = nothing that is reported.
    async fn route(
        &mut self,
        api: &KubeApi,
        (services, service): (&OfferedServices, u16),
        version: TcpRouteApi,
    ) -> Option<ServiceAccess> {
        let (kind, route) = (Kind::TcpRoute(version), services.route_name(service));
        let at = (services.namespace.as_str(), route.as_str());
        let found = match api.get(kind, at).await {
            Ok(found) => found,
            Err(error) => {
                self.forget(&services.allocation_id);
                return Some(failed("get", kind, at, &error));
            }
        };
        let why = route_refusal(&found)?;
        Some(ServiceAccess::Refused(format!(
            "its route \"{route}\" in namespace \"{}\" is refused: {why}",
            services.namespace
        )))
    }

    /// Has an allocation get other ports than this one, which is in conflict. Those of the Gateway itself are given back when
    /// they are next decided on.
    async fn give_back(
        &mut self,
        api: &KubeApi,
        (services, port): (&OfferedServices, u16),
        set: Option<&Value>,
    ) -> Result<(), ServiceAccess> {
        let allocation = &services.allocation_id;
        let ports = self.conflicts.entry(allocation.clone()).or_default();
        ports.insert(port, Instant::now());
        self.made.remove(allocation);
        match set {
            Some(set) => delete_set(api, services, set).await,
            None => Ok(()),
        }
    }
}

/// Deletes the `ListenerSet` of an allocation, which is made anew.
async fn delete_set(
    api: &KubeApi,
    services: &OfferedServices,
    set: &Value,
) -> Result<(), ServiceAccess> {
    let at = (services.namespace.as_str(), name(set));
    let deleted = api.delete(Kind::ListenerSet, at, uid(set), None).await;
    deleted.map_err(|error| failed("delete", Kind::ListenerSet, at, &error))
}

/// Whether a change of the Gateway was made.
enum PatchOutcome {
    Applied,
    /// No: it is another one by now.
    Changed,
}

/// The `ListenerSet` of an allocation at this Gateway, if it has been listed.
fn own_set_of<'p>(
    present: &'p Present,
    services: &OfferedServices,
    gateway: &GatewayName,
) -> Option<&'p Value> {
    let own = services.name();
    let is_own = |set: &&Value| {
        let namespace = set.pointer("/metadata/namespace").and_then(Value::as_str);
        name(set) == own && namespace == Some(&services.namespace) && is_set_of(set, gateway)
    };
    present.sets.iter().find(is_own)
}
