//! Services of tasks behind listeners of a Gateway: what a look at them does.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::AllocationId;
use det_pods::{
    GATEWAY_GROUP, GatewayName, ListenerHome, ListenerState, ListenersWanted, OfferedServices,
    RouteParent, ServiceType, TcpRouteApi, free_ports, is_same_route, is_set_of, listener_home,
    listener_name, listener_ports, listener_state, plan_listeners, route_refusal,
};
use serde_json::Value;

use crate::GatewaySettings;
use crate::api::{ApiError, Kind, KubeApi};
use crate::creating::name;
use crate::exposing::{
    Look, OfferingAllocations, ServiceAccess, ensure, failed, patch_of, service,
};

/// How often listeners are decided on anew at once where the Gateway has changed meanwhile.
const ATTEMPTS: u32 = 8;

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
    /// Whether they were found to work.
    work: bool,
}

/// The Gateway through which services of a cluster's tasks are reached.
pub(crate) struct Gateways {
    settings: GatewaySettings,
    /// What notes at the Gateway name as the owner of its listeners.
    owner: String,
    served: Option<ServedKinds>,
    /// The allocations of which all objects exist.
    made: BTreeMap<AllocationId, KnownListeners>,
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
        }
    }

    /// What was made for an allocation is to be made again where it is gone.
    pub(crate) fn forget(&mut self, allocation: &AllocationId) {
        self.made.remove(allocation);
    }

    /// Makes what is missing, removes what is left, and finds out what works.
    pub(crate) async fn look(&mut self, api: &KubeApi, offering: &OfferingAllocations) -> Look {
        self.made.retain(|id, made| {
            let offered = offering.get(id);
            offered.is_some_and(|offered| offered.services.job_uid == made.job_uid)
        });
        match self.compare(api, offering).await {
            Ok(accesses) => Look {
                accesses,
                trouble: None,
            },
            Err(access) => {
                // The cluster may be given what it lacks.
                self.served = None;
                // What works goes on, though the API may be away.
                let mut accesses = BTreeMap::new();
                for (id, offered) in offering {
                    let works = self.made.get(id).filter(|made| made.work);
                    let works = works.map(|made| self.at(&offered.services, &made.ports));
                    accesses.insert(id.clone(), works.unwrap_or_else(|| access.clone()));
                }
                Look {
                    accesses,
                    trouble: Some(access),
                }
            }
        }
    }

    fn at(&self, services: &OfferedServices, ports: &[u16]) -> ServiceAccess {
        let by_port = services.ports.iter().copied().zip(ports.iter().copied());
        ServiceAccess::At(self.settings.address.clone(), by_port.collect())
    }

    /// Errs with what concerns all services.
    async fn compare(
        &mut self,
        api: &KubeApi,
        offering: &OfferingAllocations,
    ) -> Result<BTreeMap<AllocationId, ServiceAccess>, ServiceAccess> {
        let served = self.find_served(api).await?;
        let mut accesses = BTreeMap::new();
        let (mut present, mut given) = (self.present(api, served).await?, BTreeMap::new());
        let home = listener_home(&present.gateway, served.listener_sets);
        for attempt in 1.. {
            let in_gateway = match home {
                ListenerHome::Gateway => wanted(offering),
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
                        accesses.insert(id, ServiceAccess::Refused(reason.to_string()));
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
            if accesses.contains_key(id) {
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
                        Err(access) => access,
                    }
                }
                Err(access) => access,
            };
            accesses.insert(id.clone(), access);
        }
        Ok(accesses)
    }

    /// What the cluster has of the Gateway API, which is not asked again once it has all.
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
        self.served = Some(served);
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
        let ports = match own_set_of(present, services) {
            // It is looked at again as one that exists.
            Some(set) => listener_ports(set),
            None => {
                let of = (&services.allocation_id, services.ports.len());
                let free = free_ports(&self.settings.ports, taken, of);
                free.map_err(|reason| ServiceAccess::Refused(reason.to_string()))?
            }
        };
        taken.extend(ports.iter().copied());
        if self.has_made(services, &ports, ListenerHome::ListenerSets) {
            return Ok(ports);
        }
        let ours = services.listener_set(&self.settings.gateway, &ports);
        let found = ensure(api, Kind::ListenerSet, services, &ours).await?;
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
        made.is_some_and(|made| made.ports == ports && made.home == home)
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
            work: false,
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
                own_set_of(present, services),
                format!(
                    "the ListenerSet \"{}\" in namespace \"{}\"",
                    services.name(),
                    services.namespace
                ),
            ),
        };
        let known = self.made.get(allocation).is_some_and(|made| made.work);
        for (service, port) in services.ports.iter().zip(ports) {
            let listener = listener_name(*port);
            let unknown = || ListenerState::Waits("it has just been made".to_owned());
            let state = object.map_or_else(unknown, |object| listener_state(object, &listener));
            let in_words = |why: &str| format!("listener \"{listener}\" of {of}: {why}");
            match state {
                ListenerState::Works => {}
                // Any change of the Gateway makes what is reported of it older than it is.
                ListenerState::Waits(_) if known => {}
                ListenerState::Waits(why) => return ServiceAccess::Waits(in_words(&why)),
                ListenerState::Refused(why) => {
                    let hint = "see what the Gateway must admit in docs/kubernetes.md, \"Through a Gateway\"";
                    return ServiceAccess::Refused(format!("{}; {hint}", in_words(&why)));
                }
                ListenerState::HasNoRoute => {
                    let route = services.route_name(*service);
                    let at = (services.namespace.as_str(), route.as_str());
                    let found = api.get(Kind::TcpRoute(version), at).await;
                    let refusal = found.as_ref().ok().and_then(route_refusal);
                    if found.is_err() {
                        self.made.remove(allocation);
                    }
                    return match refusal {
                        Some(why) => ServiceAccess::Refused(format!(
                            "its route \"{route}\" in namespace \"{}\" is refused: {why}",
                            services.namespace
                        )),
                        None => ServiceAccess::Waits(in_words("it has no route yet")),
                    };
                }
            }
        }
        if let Some(made) = self.made.get_mut(allocation) {
            made.work = true;
        }
        self.at(services, ports)
    }
}

/// Whether a change of the Gateway was made.
enum PatchOutcome {
    Applied,
    /// No: it is another one by now.
    Changed,
}

/// What allocations need where the Gateway itself has the listeners.
fn wanted(offering: &OfferingAllocations) -> BTreeMap<AllocationId, ListenersWanted> {
    let wanted = offering.iter().map(|(id, offered)| {
        let services = &offered.services;
        let wanted = ListenersWanted {
            namespace: services.namespace.clone(),
            count: services.ports.len(),
        };
        (id.clone(), wanted)
    });
    wanted.collect()
}

/// The `ListenerSet` of an allocation, if it has been listed.
fn own_set_of<'p>(present: &'p Present, services: &OfferedServices) -> Option<&'p Value> {
    let own = services.name();
    let is_own = |set: &&Value| {
        let namespace = set.pointer("/metadata/namespace").and_then(Value::as_str);
        name(set) == own && namespace == Some(&services.namespace)
    };
    present.sets.iter().find(is_own)
}
