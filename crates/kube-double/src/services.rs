//! Services: the ports of nodes that they are given.

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::target::{Resource, Target};
use crate::values::{list, number, set, text};

/// The first port of nodes that is given where the test has named none:
/// <https://kubernetes.io/docs/concepts/services-networking/service/#type-nodeport>.
const FIRST: u16 = 30_000;

/// Gives a Service of type `NodePort` the ports of nodes that it lacks. Another one has none.
pub(crate) fn complete(cluster: &mut Cluster, target: &Target, object: &mut Value) {
    if target.resource != Resource::new("", "services") {
        return;
    }
    let is_on_nodes = text(object, "/spec/type") == "NodePort";
    let ports: Vec<Value> = list(object, "/spec/ports")
        .iter()
        .map(|port| {
            let mut port = port.clone();
            match number(&port, "/nodePort") {
                None if is_on_nodes => set(&mut port, &["nodePort"], json!(next(cluster))),
                Some(_) if !is_on_nodes => crate::values::unset(&mut port, &["nodePort"]),
                _ => {}
            }
            port
        })
        .collect();
    if !ports.is_empty() {
        set(object, &["spec", "ports"], ports);
    }
}

fn next(cluster: &mut Cluster) -> u16 {
    if let Some(port) = cluster.node_ports.pop_front() {
        return port;
    }
    let resource = Resource::new("", "services");
    let services = cluster.list(&resource);
    let ports = services.flat_map(|(_, service)| list(service, "/spec/ports"));
    let ports = ports.filter_map(|port| number(port, "/nodePort"));
    let last = ports.filter_map(|port| u16::try_from(port).ok()).max();
    last.map_or(FIRST, |last| last.saturating_add(1).max(FIRST))
}
