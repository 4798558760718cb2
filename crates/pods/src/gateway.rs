//! Listeners of a Gateway for services of tasks: which ports are free, who has which, and whether one works.
//!
//! A Gateway that admits `ListenerSets` has one for each allocation, which belongs to the Job; another one has listeners of
//! its own added and removed, with annotations that record whose they are. Which ports are taken follows from these
//! objects alone. (`Gateway`, `ListenerSet` and `TCPRoute` of <https://gateway-api.sigs.k8s.io/>)

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use det_ids::AllocationId;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::json;

/// The API group of Gateways.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
/// Listeners that a Gateway, or a `ListenerSet`, has at most: `maxItems` of its schema.
pub const MOST_LISTENERS: usize = 64;
/// Beginning of the annotation of a Gateway with the allocation that the listener at a port is of.
const PORT_ANNOTATION: &str = "determined.ai/det-gateway-port-";
/// Beginning of the annotation of a Gateway with the master's cluster and manager that have made the listener at a port.
const OWNER_ANNOTATION: &str = "determined.ai/det-gateway-owner-";

/// Which Gateway it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayName {
    /// Namespace that the Gateway is in.
    pub namespace: String,
    /// Name of the Gateway in that namespace.
    pub name: String,
}

/// The versions of `TCPRoute` that the manager works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TcpRouteApi {
    /// `gateway.networking.k8s.io/v1`, since Gateway API 1.6.
    V1,
    /// `gateway.networking.k8s.io/v1alpha2`, before that.
    V1Alpha2,
}

impl TcpRouteApi {
    /// All of them, the newest first.
    pub const ALL: [Self; 2] = [Self::V1, Self::V1Alpha2];

    /// The version within the group.
    pub fn version(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Alpha2 => "v1alpha2",
        }
    }
}

/// Where the listeners of allocations are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerHome {
    /// In a `ListenerSet` for each allocation.
    ListenerSets,
    /// In the Gateway itself.
    Gateway,
}

/// Where a Gateway takes listeners: it admits `ListenerSets` only if its administrator has it do so.
pub fn listener_home(gateway: &Value, serves_listener_sets: bool) -> ListenerHome {
    let path = ["spec", "allowedListeners", "namespaces", "from"];
    let from = json::text(gateway, &path).unwrap_or("None");
    if serves_listener_sets && from != "None" {
        ListenerHome::ListenerSets
    } else {
        ListenerHome::Gateway
    }
}

/// Name of the listener at a port. That in the Gateway itself contains a hash of the allocation: a route of an allocation that
/// had the port before must not lead from it, and may exist for a moment after its listener.
pub fn listener_name(home: ListenerHome, port: u16, allocation: &AllocationId) -> String {
    match home {
        ListenerHome::ListenerSets => format!("det-{port}"),
        ListenerHome::Gateway => {
            let digest = Sha256::digest(allocation.as_str());
            let hash: String = (digest.iter().take(4))
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("det-{port}-{hash}")
        }
    }
}

/// Whether a listener has the name of one that a master made at a port, for whatever allocation.
fn is_made_at(port: u16, name: &str) -> bool {
    let rest = name.strip_prefix(&format!("det-{port}"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// A listener at a port for routes of these namespaces.
pub(crate) fn listener(
    home: ListenerHome,
    (port, allocation): (u16, &AllocationId),
    namespaces: &Value,
) -> Value {
    json!({
        "name": listener_name(home, port, allocation),
        "port": port,
        "protocol": "TCP",
        "allowedRoutes": {
            "namespaces": namespaces,
            "kinds": [{"group": GATEWAY_GROUP, "kind": "TCPRoute"}],
        },
    })
}

fn port_of(listener: &Value) -> Option<u16> {
    u16::try_from(listener.get("port")?.as_u64()?).ok()
}

/// The ports of the listeners of a Gateway or a `ListenerSet`, in their order.
pub fn listener_ports(object: &Value) -> Vec<u16> {
    let listeners = json::list(object, &["spec", "listeners"]).iter();
    listeners.filter_map(port_of).collect()
}

/// Whether a `ListenerSet` adds its listeners to a Gateway.
pub fn is_set_of(set: &Value, gateway: &GatewayName) -> bool {
    let of = |key: &str| json::text(set, &["spec", "parentRef", key]);
    let own = json::text(set, &["metadata", "namespace"]);
    of("name") == Some(&gateway.name)
        && of("namespace").or(own) == Some(&gateway.namespace)
        && of("kind").is_none_or(|kind| kind == "Gateway")
}

/// Why an allocation has no listeners. The text is for users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoListener {
    /// All ports that may be given are taken.
    #[error(
        "its services need {needed} ports of the gateway, and fewer of {first} to {last} are free: it gets them when \
         other tasks end; a wider \"gateway_port_range_start\" and \"gateway_port_range_end\" have more"
    )]
    NoPort {
        /// Ports that it needs. How many are free is not in the text, which would be another one after each change.
        needed: usize,
        /// The first that may be given.
        first: u16,
        /// The last that may be given.
        last: u16,
    },
    /// The Gateway has as many listeners as it may have.
    #[error(
        "its services need {needed} listeners of the gateway, which may have {MOST_LISTENERS} and has fewer left: it gets \
         them when other tasks end; a Gateway with \"allowedListeners\" has no such limit"
    )]
    Full {
        /// Listeners that it needs.
        needed: usize,
    },
    /// It has more services than one `ListenerSet` takes.
    #[error(
        "it has {0} services, and at most {MOST_LISTENERS} of a task are reached through a gateway"
    )]
    TooMany(usize),
}

/// Free ports for the services of an allocation. Where the search begins follows from the allocation, so that a port that has
/// just become free is seldom given again at once, and two masters seldom choose the same one.
///
/// # Errors
/// There are not enough.
pub fn free_ports(
    range: &RangeInclusive<u16>,
    taken: &BTreeSet<u16>,
    (allocation, needed): (&AllocationId, usize),
) -> Result<Vec<u16>, NoListener> {
    if needed > MOST_LISTENERS {
        return Err(NoListener::TooMany(needed));
    }
    let (first, last) = (*range.start(), *range.end());
    let count = range.len();
    let offset = allocation
        .as_str()
        .bytes()
        .fold(0_usize, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(byte.into())
        })
        .checked_rem(count)
        .unwrap_or(0);
    let ports = range.clone().skip(offset).chain(range.clone().take(offset));
    let free = ports.filter(|port| !taken.contains(port));
    let mut ports: Vec<u16> = free.take(needed).collect();
    if ports.len() < needed {
        return Err(NoListener::NoPort {
            needed,
            first,
            last,
        });
    }
    ports.sort_unstable();
    Ok(ports)
}

/// An allocation that needs listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenersWanted {
    /// Namespace of its Job, from which routes are admitted.
    pub namespace: String,
    /// How many it needs.
    pub count: usize,
    /// Ports that it does not get, and gives back: a controller has found them in conflict with others.
    pub avoided: BTreeSet<u16>,
}

/// What becomes of the listeners of a Gateway.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListenerPlan {
    /// What is to change, a merge patch that is refused if the Gateway has changed meanwhile; `None` = nothing.
    pub patch: Option<Value>,
    /// The ports of each allocation, ascending.
    pub given: BTreeMap<AllocationId, Vec<u16>>,
    /// The allocations without any, and why.
    pub refused: BTreeMap<AllocationId, NoListener>,
}

/// What a master has in a Gateway: the listeners that it has made, and what is noted of them.
struct OwnListeners {
    /// Ports that have a listener, by the allocation that it is of.
    ports: BTreeMap<AllocationId, BTreeSet<u16>>,
    /// Ports that are noted as its own, whether there is a listener or not.
    noted: BTreeSet<u16>,
}

fn own_listeners(gateway: &Value, owner: &str) -> OwnListeners {
    let notes = json::texts(gateway, &["metadata", "annotations"]);
    let listeners = json::list(gateway, &["spec", "listeners"]).iter();
    let names: BTreeSet<&str> = listeners
        .filter_map(|it| json::text(it, &["name"]))
        .collect();
    let mut own = OwnListeners {
        ports: BTreeMap::new(),
        noted: BTreeSet::new(),
    };
    for (key, value) in &notes {
        let port = key.strip_prefix(OWNER_ANNOTATION);
        let Some(port) = port.and_then(|port| port.parse::<u16>().ok()) else {
            continue;
        };
        if value != owner {
            continue;
        }
        own.noted.insert(port);
        if let Some(allocation) = notes.get(&format!("{PORT_ANNOTATION}{port}")) {
            let of = AllocationId::from(allocation.as_str());
            let name = listener_name(ListenerHome::Gateway, port, &of);
            if names.contains(name.as_str()) {
                own.ports.entry(of).or_default().insert(port);
            }
        }
    }
    own
}

/// Decides on the listeners of a Gateway: those of allocations that are not wanted any more go, and those that are wanted
/// and have none get ports that nothing has. `owner` = the master's cluster and manager; `taken` = ports that are taken by
/// others than the Gateway's own listeners. Listeners of others stay as they are.
pub fn plan_listeners(
    gateway: &Value,
    owner: &str,
    (range, taken): (&RangeInclusive<u16>, &BTreeSet<u16>),
    wanted: &BTreeMap<AllocationId, ListenersWanted>,
) -> ListenerPlan {
    let own = own_listeners(gateway, owner);
    let mut plan = ListenerPlan::default();
    let mut kept = BTreeSet::new();
    for (allocation, ports) in &own.ports {
        let has_all = |wanted: &ListenersWanted| {
            wanted.count == ports.len() && wanted.avoided.is_disjoint(ports)
        };
        if wanted.get(allocation).is_some_and(has_all) {
            kept.extend(ports.iter().copied());
            let ports = ports.iter().copied().collect();
            plan.given.insert(allocation.clone(), ports);
        }
    }
    let dropped: BTreeSet<u16> = own.noted.difference(&kept).copied().collect();
    let is_dropped = |listener: &Value| {
        let name = json::text(listener, &["name"]).unwrap_or_default();
        let mut dropped = dropped.iter();
        dropped.any(|port| is_made_at(*port, name))
    };
    let present = json::list(gateway, &["spec", "listeners"]);
    let mut listeners: Vec<Value> = present
        .iter()
        .filter(|listener| !is_dropped(listener))
        .cloned()
        .collect();
    let mut notes = Map::new();
    for port in &dropped {
        notes.insert(format!("{PORT_ANNOTATION}{port}"), Value::Null);
        notes.insert(format!("{OWNER_ANNOTATION}{port}"), Value::Null);
    }
    let mut taken: BTreeSet<u16> = taken.clone();
    taken.extend(listeners.iter().filter_map(port_of));
    for (allocation, wanted) in wanted {
        if plan.given.contains_key(allocation) {
            continue;
        }
        let needed = wanted.count;
        let not_free = &taken | &wanted.avoided;
        let ports = match free_ports(range, &not_free, (allocation, needed)) {
            Ok(_) if listeners.len() + needed > MOST_LISTENERS => Err(NoListener::Full { needed }),
            ports => ports,
        };
        let ports = match ports {
            Ok(ports) => ports,
            Err(reason) => {
                plan.refused.insert(allocation.clone(), reason);
                continue;
            }
        };
        let namespaces = json!({
            "from": "Selector",
            "selector": {"matchLabels": {"kubernetes.io/metadata.name": wanted.namespace}},
        });
        for port in &ports {
            let of = (*port, allocation);
            listeners.push(listener(ListenerHome::Gateway, of, &namespaces));
            let of = Value::from(allocation.as_str());
            notes.insert(format!("{PORT_ANNOTATION}{port}"), of);
            notes.insert(format!("{OWNER_ANNOTATION}{port}"), owner.into());
        }
        taken.extend(ports.iter().copied());
        plan.given.insert(allocation.clone(), ports);
    }
    // A Gateway has at least one listener, so that the last one of the master stays where there is no other.
    if !notes.is_empty() && !listeners.is_empty() {
        let version = json::text(gateway, &["metadata", "resourceVersion"]);
        plan.patch = Some(json!({
            "metadata": {"resourceVersion": version, "annotations": notes},
            "spec": {"listeners": listeners},
        }));
    }
    plan
}

/// Whether a listener works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenerState {
    /// Connections to its port reach what its route leads to.
    Works,
    /// It works, as far as it is known, and has no route.
    HasNoRoute,
    /// It is not known to work yet; what is missing.
    Waits(String),
    /// It does not work; what is reported of it.
    Refused(String),
    /// It does not work, since something else has its port; what is reported of it.
    Conflicted(String),
}

/// What a Gateway or a `ListenerSet` reports of a listener. What was reported of an earlier generation of the object is out
/// of date.
pub fn listener_state(object: &Value, name: &str) -> ListenerState {
    let generation = generation_of(object);
    let of_object = json::list(object, &["status", "conditions"]);
    if let Some(why) = refusal(of_object, generation, &["Accepted"]) {
        return ListenerState::Refused(why);
    }
    let mut listeners = json::list(object, &["status", "listeners"]).iter();
    let reported = listeners.find(|it| json::text(it, &["name"]) == Some(name));
    let Some(reported) = reported else {
        return ListenerState::Waits("no controller has reported on it yet".to_owned());
    };
    let conditions = json::list(reported, &["conditions"]);
    let is = |kind: &str| {
        let mut conditions = conditions.iter();
        conditions.find(|it| {
            json::text(it, &["type"]) == Some(kind)
                && json::text(it, &["status"]) == Some("True")
                && !is_older(it, generation)
        })
    };
    // A listener in conflict is not accepted or not programmed either.
    if let Some(conflict) = is("Conflicted") {
        return ListenerState::Conflicted(described(conflict));
    }
    let needed = ["Accepted", "ResolvedRefs", "Programmed"];
    if let Some(why) = refusal(conditions, generation, &needed) {
        return ListenerState::Refused(why);
    }
    if is("Programmed").is_none() {
        return ListenerState::Waits("it is not programmed yet".to_owned());
    }
    let routes = reported.get("attachedRoutes").and_then(Value::as_i64);
    if routes == Some(0) {
        return ListenerState::HasNoRoute;
    }
    ListenerState::Works
}

/// What the parents of a route report against it; `None` = nothing.
pub fn route_refusal(route: &Value) -> Option<String> {
    let generation = generation_of(route);
    let parents = json::list(route, &["status", "parents"]).iter();
    let mut refusals = parents.filter_map(|it| {
        let conditions = json::list(it, &["conditions"]);
        refusal(conditions, generation, &["Accepted", "ResolvedRefs"])
    });
    refusals.next()
}

fn generation_of(object: &Value) -> Option<i64> {
    json::at(object, &["metadata", "generation"]).and_then(Value::as_i64)
}

/// Whether a condition is of an earlier generation of its object.
fn is_older(condition: &Value, generation: Option<i64>) -> bool {
    let of = condition.get("observedGeneration").and_then(Value::as_i64);
    of.zip(generation).is_some_and(|(of, now)| of < now)
}

/// The first of these conditions that does not hold of the object as it is, in words. One that is `Pending` may hold soon.
fn refusal(conditions: &[Value], generation: Option<i64>, kinds: &[&str]) -> Option<String> {
    let mut conditions = conditions.iter();
    let refused = conditions.find(|it| {
        let of = |key: &str| json::text(it, &[key]).unwrap_or_default();
        kinds.contains(&of("type"))
            && of("status") == "False"
            && of("reason") != "Pending"
            && !is_older(it, generation)
    });
    refused.map(described)
}

fn described(condition: &Value) -> String {
    let of = |key: &str| json::text(condition, &[key]).unwrap_or_default();
    let text = format!("{} is {}, {}", of("type"), of("status"), of("reason"));
    match of("message") {
        "" => text,
        message => format!("{text}: {message}"),
    }
}

#[cfg(test)]
mod tests;
