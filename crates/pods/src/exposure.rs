//! What has services of tasks reached from outside of the network of pods: a Service of the pod that offers them, at ports
//! of nodes or behind listeners of a Gateway. All of it belongs to the Job, and goes with it.

use std::collections::BTreeSet;

use det_ids::{AllocationId, ClusterId};
use serde_json::{Value, json};

use crate::gateway::{GATEWAY_GROUP, GatewayName, ListenerHome, TcpRouteApi, listener_name};
use crate::json;
use crate::names::{CLUSTER_LABEL, SELECTOR_LABEL, label_value};
use crate::objects::owner_patch;

/// Annotation of the Job of an allocation's chief with the ports of its services, separated by commas.
pub(crate) const SERVICE_PORTS_ANNOTATION: &str = "determined.ai/service_ports";
/// Annotation of what is made for services of an allocation with the name of its Job.
const JOB_ANNOTATION: &str = "determined.ai/job-name";

/// The ports of the services that the pod of a Job offers; none where it is not the chief's, or offers none.
pub fn service_ports(job: &Value) -> BTreeSet<u16> {
    let ports = json::text(job, &["metadata", "annotations", SERVICE_PORTS_ANNOTATION]);
    let ports = ports.unwrap_or_default().split(',');
    ports.filter_map(|port| port.trim().parse().ok()).collect()
}

/// The value of [`SERVICE_PORTS_ANNOTATION`]; `None` = there are no services.
pub(crate) fn service_ports_text(ports: &[u16]) -> Option<String> {
    let ports: BTreeSet<u16> = ports.iter().copied().collect();
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    (!ports.is_empty()).then(|| ports.join(","))
}

/// How a Service is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceType {
    /// In the network of the cluster.
    ClusterIp,
    /// At a port of the node that the pod runs on.
    NodePort,
}

/// What the routes of services are attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteParent<'a> {
    /// Listeners of the Gateway itself.
    Gateway(&'a GatewayName),
    /// Listeners of the allocation's own `ListenerSet`.
    ListenerSet,
}

/// The services of an allocation, which the pod of its chief offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedServices {
    /// Namespace of its Job.
    pub namespace: String,
    /// Name of its Job.
    pub job_name: String,
    /// Identity of its Job.
    pub job_uid: String,
    /// The allocation.
    pub allocation_id: AllocationId,
    /// Identity of the master's cluster.
    pub cluster_id: ClusterId,
    /// The ports that the pod listens on.
    pub ports: BTreeSet<u16>,
}

impl OfferedServices {
    /// Name of the Service, and of the `ListenerSet`: that of the Job has at most 61 characters.
    pub fn name(&self) -> String {
        format!("{}-s", self.job_name)
    }

    /// Name of the route to a port.
    pub fn route_name(&self, port: u16) -> String {
        format!("{}-{port}", self.name())
    }

    fn metadata(&self, name: &str) -> Value {
        let owners = owner_patch(&self.job_uid, &self.job_name);
        json!({
            "name": name,
            "namespace": self.namespace,
            "labels": {
                SELECTOR_LABEL: label_value(self.allocation_id.as_str()),
                CLUSTER_LABEL: label_value(self.cluster_id.as_str()),
            },
            "annotations": {JOB_ANNOTATION: self.job_name},
            "ownerReferences": owners["metadata"]["ownerReferences"],
        })
    }

    /// The Service of the chief's pod.
    pub fn service(&self, kind: ServiceType) -> Value {
        let ports = self.ports.iter();
        let ports: Vec<Value> = ports
            .map(|port| json!({"name": format!("p{port}"), "protocol": "TCP", "port": port, "targetPort": port}))
            .collect();
        let mut spec = json!({
            "type": "ClusterIP",
            // The chief is the first pod of the first Job. The first label is one that no other pod's spec can have.
            "selector": {
                SELECTOR_LABEL: label_value(self.allocation_id.as_str()),
                "batch.kubernetes.io/job-name": self.job_name,
                "batch.kubernetes.io/job-completion-index": "0",
            },
            // Whether a service is ready, the master finds out by itself.
            "publishNotReadyAddresses": true,
            "ports": ports,
        });
        if kind == ServiceType::NodePort {
            spec["type"] = "NodePort".into();
            // The master connects to the node of the pod, and no other node is to forward the port.
            spec["externalTrafficPolicy"] = "Local".into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(&self.name()),
            "spec": spec,
        })
    }

    /// The listeners of a Gateway for the allocation alone, at these ports.
    pub fn listener_set(&self, gateway: &GatewayName, ports: &[u16]) -> Value {
        let listeners: Vec<Value> = ports
            .iter()
            .map(|port| {
                let of = (*port, &self.allocation_id);
                crate::gateway::listener(ListenerHome::ListenerSets, of, &json!({"from": "Same"}))
            })
            .collect();
        json!({
            "apiVersion": format!("{GATEWAY_GROUP}/v1"),
            "kind": "ListenerSet",
            "metadata": self.metadata(&self.name()),
            "spec": {
                "parentRef": {
                    "group": GATEWAY_GROUP,
                    "kind": "Gateway",
                    "name": gateway.name,
                    "namespace": gateway.namespace,
                },
                "listeners": listeners,
            },
        })
    }

    /// The routes from listeners at these ports to the services, in the order of both.
    pub fn routes(&self, parent: RouteParent<'_>, api: TcpRouteApi, ports: &[u16]) -> Vec<Value> {
        let services = self.ports.iter().zip(ports);
        let (home, kind, name, namespace) = match parent {
            RouteParent::Gateway(gateway) => (
                ListenerHome::Gateway,
                "Gateway",
                gateway.name.clone(),
                gateway.namespace.as_str(),
            ),
            RouteParent::ListenerSet => (
                ListenerHome::ListenerSets,
                "ListenerSet",
                self.name(),
                self.namespace.as_str(),
            ),
        };
        services
            .map(|(port, listener)| {
                json!({
                    "apiVersion": format!("{GATEWAY_GROUP}/{}", api.version()),
                    "kind": "TCPRoute",
                    "metadata": self.metadata(&self.route_name(*port)),
                    "spec": {
                        "parentRefs": [{
                            "group": GATEWAY_GROUP,
                            "kind": kind,
                            "name": name,
                            "namespace": namespace,
                            "sectionName": listener_name(home, *listener, &self.allocation_id),
                        }],
                        "rules": [{"backendRefs": [
                            {"group": "", "kind": "Service", "name": self.name(), "port": port, "weight": 1},
                        ]}],
                    },
                })
            })
            .collect()
    }
}

/// The port of nodes at which each port of a Service is reached, by that port; those that have none yet are not in it.
pub fn node_ports(service: &Value) -> std::collections::BTreeMap<u16, u16> {
    let ports = json::list(service, &["spec", "ports"]).iter();
    let number = |port: &Value, key: &str| {
        let number = port.get(key).and_then(Value::as_u64)?;
        u16::try_from(number).ok().filter(|number| *number != 0)
    };
    ports
        .filter_map(|port| Some((number(port, "port")?, number(port, "nodePort")?)))
        .collect()
}

/// Whether a route that exists leads from the same listener to the same port.
pub fn is_same_route(ours: &Value, found: &Value) -> bool {
    let of = |route: &Value, path: &str, keys: &[&str]| {
        let part = route.pointer(path).cloned().unwrap_or_default();
        let values = keys.iter().map(|key| part.get(*key).cloned());
        values.collect::<Vec<_>>()
    };
    let parent = |route: &Value| {
        let keys = ["kind", "name", "namespace", "sectionName"];
        of(route, "/spec/parentRefs/0", &keys)
    };
    let backend = |route: &Value| {
        of(
            route,
            "/spec/rules/0/backendRefs/0",
            &["kind", "name", "port"],
        )
    };
    parent(ours) == parent(found) && backend(ours) == backend(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered() -> OfferedServices {
        OfferedServices {
            namespace: "tasks".to_owned(),
            job_name: "det-0a1b2c3d-cmd-x".to_owned(),
            job_uid: "uid".to_owned(),
            allocation_id: "x.1".into(),
            cluster_id: "0a1b2c3d-0000".into(),
            ports: BTreeSet::from([8888, 6006]),
        }
    }

    #[test]
    fn ports_of_services_are_read_as_they_are_written() {
        let text = service_ports_text(&[8888, 6006, 8888]).unwrap();
        let job = json!({"metadata": {"annotations": {SERVICE_PORTS_ANNOTATION: text}}});
        assert_eq!(service_ports(&job), BTreeSet::from([6006, 8888]));
        assert_eq!(service_ports_text(&[]), None);
        assert_eq!(service_ports(&json!({})), BTreeSet::new());
        let other = json!({"metadata": {"annotations": {SERVICE_PORTS_ANNOTATION: "a,-1,7"}}});
        assert_eq!(service_ports(&other), BTreeSet::from([7]));
    }

    #[test]
    fn a_service_at_ports_of_nodes_is_answered_by_the_node_of_its_pod_alone() {
        let service = offered().service(ServiceType::NodePort);
        assert_eq!(service["spec"]["externalTrafficPolicy"], "Local");
        let inside = offered().service(ServiceType::ClusterIp);
        assert_eq!(inside["spec"].get("externalTrafficPolicy"), None);
        assert_eq!(node_ports(&service), [].into());
        let mut given = service;
        given["spec"]["ports"][0]["nodePort"] = 30_001.into();
        assert_eq!(node_ports(&given), [(6006, 30_001)].into());
    }

    #[test]
    fn routes_lead_from_each_listener_to_its_port() {
        let offered = offered();
        let routes = offered.routes(RouteParent::ListenerSet, TcpRouteApi::V1, &[40_000, 40_001]);
        let port = |route: &Value| route["spec"]["rules"][0]["backendRefs"][0]["port"].clone();
        let from = |route: &Value| route["spec"]["parentRefs"][0]["sectionName"].clone();
        let found: Vec<_> = routes.iter().map(|it| (from(it), port(it))).collect();
        let expected = [("det-40000", 6006), ("det-40001", 8888)];
        assert_eq!(found, expected.map(|(from, to)| (json!(from), json!(to))));
        let mut stored = routes[0].clone();
        stored["spec"]["rules"][0]["name"] = "added".into();
        assert!(is_same_route(&routes[0], &stored));
        assert!(!is_same_route(&routes[0], &routes[1]));
        let gateway = GatewayName {
            namespace: "infra".to_owned(),
            name: "shared".to_owned(),
        };
        let parent = RouteParent::Gateway(&gateway);
        let others = offered.routes(parent, TcpRouteApi::V1Alpha2, &[40_000, 40_001]);
        let of = &offered.allocation_id;
        let name = listener_name(ListenerHome::Gateway, 40_000, of);
        assert_eq!(from(&others[0]), name.as_str());
        assert!(!is_same_route(&routes[0], &others[0]));
        assert_eq!(
            others[0]["apiVersion"],
            "gateway.networking.k8s.io/v1alpha2"
        );
    }
}
