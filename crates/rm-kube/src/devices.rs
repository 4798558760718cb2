//! The devices of a cluster that pods claim, where they are slots: which there are on each node, and which are taken.

use std::collections::{BTreeMap, BTreeSet};

use det_pods::{
    ClaimApi, ClaimFacts, DeviceFacts, DevicePool, DeviceSelector, SliceFacts, SlotResources,
    claim_facts, device_selector, slice_facts,
};
use serde_json::Value;

use crate::api::{ApiError, Kind, KubeApi};
use crate::books::ObjectKey;
use crate::creating::name;
use crate::observing::{Observer, named};
use crate::placed;

/// How devices are claimed in a cluster whose slots are some.
#[derive(Debug, Clone)]
pub(crate) struct DeviceAccess {
    /// Version of the API in which they are claimed.
    pub(crate) api: ClaimApi,
    /// What each class selects, by the name of the resource that its devices are.
    selectors: BTreeMap<String, DeviceSelector>,
}

impl DeviceAccess {
    /// The kinds of objects by which devices are known, all of which must be.
    pub(crate) fn watched(&self) -> [Kind; 2] {
        [Kind::ResourceSlice(self.api), Kind::ResourceClaim(self.api)]
    }
}

/// How the devices that slots are can be claimed; `None` = slots are none.
///
/// # Errors
/// A sentence: the cluster lacks the API or a class, a class selects by what the master does not read, or the cluster cannot
/// be asked.
pub(crate) async fn found(
    api: &KubeApi,
    slots: &SlotResources,
) -> Result<Option<DeviceAccess>, String> {
    if slots.classes().next().is_none() {
        return Ok(None);
    }
    let version = version(api).await?;
    let mut selectors = BTreeMap::new();
    for class in slots.classes() {
        let name = class.name();
        let object = match api.get(Kind::DeviceClass(version), ("", name)).await {
            Ok(object) => object,
            Err(ApiError::Absent) => {
                return Err(format!(
                    "the cluster has no DeviceClass \"{name}\", which \"device_class\" names: install the driver that \
                     brings it, or name another one (\"kubectl get deviceclasses\" lists them)"
                ));
            }
            Err(error) => {
                return Err(format!(
                    "the DeviceClass \"{name}\" cannot be read: {error}"
                ));
            }
        };
        let selector = device_selector(&object, class.driver()).map_err(|expression| {
            format!(
                "the DeviceClass \"{name}\" selects devices by the expression \"{expression}\", which the master does not \
                 evaluate: set \"device_driver\" to the driver whose devices are slots, or select by comparisons with == of \
                 device.driver and device.attributes, joined by &&"
            )
        })?;
        selectors.insert(class.resource().to_owned(), selector);
    }
    Ok(Some(DeviceAccess {
        api: version,
        selectors,
    }))
}

/// The newest version of the API that the cluster has and the master works with.
async fn version(api: &KubeApi) -> Result<ClaimApi, String> {
    for version in ClaimApi::KNOWN {
        if api
            .serves(version.group_version(), "resourceclaimtemplates")
            .await?
        {
            return Ok(version);
        }
    }
    Err(
        "\"slot_type\" is \"dra\", and the cluster has no dynamic resource allocation, the API group resource.k8s.io in \
         version v1, v1beta2 or v1beta1: it needs Kubernetes 1.34 or later (1.32 and 1.33 with the feature gate \
         DynamicResourceAllocation and that version of the group switched on), or another slot_type"
            .to_owned(),
    )
}

/// The devices of a cluster that pods claim, and their claims.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    /// Version of the API in which they are claimed; `None` = slots are none.
    api: Option<ClaimApi>,
    /// Value of the label of our objects.
    cluster: String,
    /// What each class selects, by the name of the resource that its devices are.
    selectors: BTreeMap<String, DeviceSelector>,
    /// Slices by pool and name.
    slices: BTreeMap<DevicePool, BTreeMap<String, SliceFacts>>,
    /// The pool of each slice.
    pool_of: BTreeMap<String, DevicePool>,
    /// Devices of each pool, of the last generation of which all slices were there: one that is being published
    /// does not count yet.
    pools: BTreeMap<DevicePool, Vec<DeviceFacts>>,
    /// Pools with devices that a node alone reaches.
    on_node: BTreeMap<String, BTreeSet<DevicePool>>,
    claims: BTreeMap<ObjectKey, ClaimFacts>,
    /// Claims that hold devices of each pool.
    claims_on: BTreeMap<DevicePool, BTreeSet<ObjectKey>>,
}

impl Devices {
    /// `cluster` = value of the label of our objects.
    pub(crate) fn new(claiming: Option<DeviceAccess>, cluster: &str) -> Self {
        Self {
            api: claiming.as_ref().map(|it| it.api),
            cluster: cluster.to_owned(),
            selectors: claiming.map(|it| it.selectors).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Version of the API in which devices are claimed; `None` = slots are none.
    pub(crate) fn api(&self) -> Option<ClaimApi> {
        self.api
    }

    /// Whether a claim has the label of those for slots of this cluster.
    pub(crate) fn is_own(&self, claim: &ClaimFacts) -> bool {
        claim.cluster.as_deref() == Some(&*self.cluster)
    }

    /// A slice is as this; gives the nodes that may have other slots now.
    pub(crate) fn slice_is(&mut self, slice: &Value) -> BTreeSet<String> {
        let name = name(slice);
        let mut nodes = self.slice_is_gone(name);
        if let Some(facts) = slice_facts(slice) {
            let pool = facts.pool.clone();
            self.pool_of.insert(name.to_owned(), pool.clone());
            let slices = self.slices.entry(pool.clone()).or_default();
            slices.insert(name.to_owned(), facts);
            nodes.extend(self.update_pool(&pool));
        }
        nodes
    }

    /// A slice is gone, by its name; gives the nodes that may have other slots now.
    pub(crate) fn slice_is_gone(&mut self, name: &str) -> BTreeSet<String> {
        let Some(pool) = self.pool_of.remove(name) else {
            return BTreeSet::new();
        };
        if let Some(slices) = self.slices.get_mut(&pool) {
            slices.remove(name);
            if slices.is_empty() {
                self.slices.remove(&pool);
            }
        }
        self.update_pool(&pool)
    }

    /// Gives the nodes with devices of the pool, before and after.
    fn update_pool(&mut self, pool: &DevicePool) -> BTreeSet<String> {
        let slices = self.slices.get(pool).into_iter().flatten();
        let slices: Vec<&SliceFacts> = slices.map(|(_, slice)| slice).collect();
        let newest = slices.iter().map(|slice| slice.generation).max();
        let latest = slices.iter();
        let latest = latest.filter(|slice| Some(slice.generation) == newest);
        let latest: Vec<&&SliceFacts> = latest.collect();
        let wanted = latest.first().map_or(0, |slice| slice.slices);
        if (latest.len() as u64) < wanted {
            return BTreeSet::new();
        }
        let now = latest.iter().flat_map(|slice| slice.devices.iter());
        let now: Vec<DeviceFacts> = now.cloned().collect();
        let nodes_of = |devices: &[DeviceFacts]| -> BTreeSet<String> {
            devices.iter().filter_map(|it| it.node.clone()).collect()
        };
        let mut nodes = nodes_of(&now);
        let before = if now.is_empty() {
            self.pools.remove(pool)
        } else {
            self.pools.insert(pool.clone(), now)
        };
        let before = nodes_of(&before.unwrap_or_default());
        for node in &before {
            placed::take(&mut self.on_node, node.as_str(), pool);
        }
        for node in &nodes {
            placed::add(&mut self.on_node, node.clone(), pool);
        }
        nodes.extend(before);
        nodes
    }

    /// A claim is as this; gives the nodes whose devices it holds, or held.
    pub(crate) fn claim_is(&mut self, claim: &Value) -> BTreeSet<String> {
        let key = named(claim);
        let mut nodes = self.claim_is_gone(&key);
        let facts = claim_facts(claim);
        // Most claims of a cluster wait, or are of others' drivers.
        if facts.devices.is_empty() {
            return nodes;
        }
        for (pool, _) in &facts.devices {
            placed::add(&mut self.claims_on, pool.clone(), &key);
        }
        nodes.extend(self.nodes_of(&facts));
        self.claims.insert(key, facts);
        nodes
    }

    /// A claim is gone; gives the nodes whose devices it held.
    pub(crate) fn claim_is_gone(&mut self, key: &ObjectKey) -> BTreeSet<String> {
        let Some(facts) = self.claims.remove(key) else {
            return BTreeSet::new();
        };
        for (pool, _) in &facts.devices {
            placed::take(&mut self.claims_on, pool, key);
        }
        self.nodes_of(&facts)
    }

    fn nodes_of(&self, claim: &ClaimFacts) -> BTreeSet<String> {
        let pools = claim.devices.iter().filter_map(|(pool, name)| {
            let devices = self.pools.get(pool)?;
            devices.iter().find(|it| it.name == *name)?.node.clone()
        });
        pools.collect()
    }

    /// After a list: what was not in it is gone. Gives the nodes that this may matter to.
    pub(crate) fn only_slices(&mut self, present: &BTreeSet<ObjectKey>) -> BTreeSet<String> {
        let names: BTreeSet<&str> = present.iter().map(|it| it.name.as_str()).collect();
        let known = self.pool_of.keys().cloned();
        let gone: Vec<String> = known.filter(|it| !names.contains(it.as_str())).collect();
        gone.iter().flat_map(|it| self.slice_is_gone(it)).collect()
    }

    /// The same of claims.
    pub(crate) fn only_claims(&mut self, present: &BTreeSet<ObjectKey>) -> BTreeSet<String> {
        let known = self.claims.keys().cloned();
        let gone: Vec<ObjectKey> = known.filter(|it| !present.contains(it)).collect();
        gone.iter().flat_map(|it| self.claim_is_gone(it)).collect()
    }

    /// Devices of a node that are slots of a resource, by the name of that.
    pub(crate) fn offered(&self, node: &str, resource: &str) -> u64 {
        let of_pools = self.selected(node, resource);
        of_pools.map(|(_, devices)| devices.count() as u64).sum()
    }

    /// How many of these no task of the node can have: others hold them, or they have taints. `is_own` = whether a claim is
    /// of a container that runs, whose slots are counted by themselves.
    pub(crate) fn taken(
        &self,
        node: &str,
        resource: &str,
        is_own: impl Fn(&ObjectKey, &ClaimFacts) -> bool,
    ) -> u64 {
        let mut taken = 0;
        for (pool, devices) in self.selected(node, resource) {
            let claims = self.claims_on.get(pool).into_iter().flatten();
            let claims = claims.filter_map(|key| self.claims.get_key_value(key));
            let mut held: BTreeMap<&str, bool> = BTreeMap::new();
            for (key, claim) in claims {
                let own = is_own(key, claim);
                for (_, name) in claim.devices.iter().filter(|(of, _)| of == pool) {
                    held.insert(name, own);
                }
            }
            let is_taken = |device: &&DeviceFacts| {
                let own = held.get(device.name.as_str());
                own.map_or(device.is_tainted, |own| !own)
            };
            taken += devices.filter(is_taken).count() as u64;
        }
        taken
    }

    fn selected(
        &self,
        node: &str,
        resource: &str,
    ) -> impl Iterator<Item = (&DevicePool, impl Iterator<Item = &DeviceFacts>)> {
        let selector = self.selectors.get(resource);
        let pools = self.on_node.get(node).into_iter().flatten();
        let pools = pools.filter_map(|pool| self.pools.get_key_value(pool));
        pools.filter_map(move |(pool, devices)| {
            let selector = selector?;
            let devices = devices.iter().filter(move |device| {
                device.node.as_deref() == Some(node) && selector.selects(&pool.driver, device)
            });
            Some((pool, devices))
        })
    }
}

/// A slice or a claim of devices is as this, or `exists` no more.
pub(crate) fn devices_are(observer: &mut Observer, kind: Kind, object: &Value, exists: bool) {
    let devices = &mut observer.books.devices;
    let nodes = match (kind, exists) {
        (Kind::ResourceSlice(_), true) => devices.slice_is(object),
        (Kind::ResourceSlice(_), false) => devices.slice_is_gone(name(object)),
        (_, true) => devices.claim_is(object),
        (_, false) => devices.claim_is_gone(&named(object)),
    };
    observer.agenda.nodes.extend(nodes);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RESOURCE: &str = "gpus";

    fn devices() -> Devices {
        let class =
            json!({"spec": {"selectors": [{"cel": {"expression": "device.driver == 'd'"}}]}});
        let selector = device_selector(&class, None).unwrap_or_else(|error| panic!("{error}"));
        Devices {
            selectors: [(RESOURCE.to_owned(), selector)].into(),
            ..Devices::default()
        }
    }

    fn slice(name: &str, (generation, slices): (i64, u64), devices: &[&str]) -> Value {
        let devices = devices.iter().map(|name| json!({"name": name}));
        json!({
            "metadata": {"name": name},
            "spec": {
                "driver": "d", "nodeName": "n", "devices": devices.collect::<Vec<_>>(),
                "pool": {"name": "n", "generation": generation, "resourceSliceCount": slices},
            },
        })
    }

    fn claim(name: &str, devices: &[&str]) -> Value {
        let results = devices.iter();
        let results = results.map(|it| json!({"driver": "d", "pool": "n", "device": it}));
        json!({
            "metadata": {"namespace": "x", "name": name},
            "status": {"allocation": {"devices": {"results": results.collect::<Vec<_>>()}}},
        })
    }

    #[test]
    fn a_pool_has_the_devices_of_the_last_generation_that_is_complete() {
        let mut known = devices();
        for (scenario, slice, expected) in [
            ("one of two", slice("s1", (1, 2), &["a", "b"]), 0),
            ("both", slice("s2", (1, 2), &["c"]), 3),
            ("the first of the next", slice("s1", (2, 2), &["a"]), 3),
            ("all of the next", slice("s2", (2, 2), &["c"]), 2),
            ("one of an earlier one", slice("s3", (1, 1), &["z"]), 2),
        ] {
            known.slice_is(&slice);
            assert_eq!(known.offered("n", RESOURCE), expected, "{scenario}");
        }
        let nodes = known.only_slices(&BTreeSet::new());
        assert_eq!(nodes, ["n".to_owned()].into());
        assert_eq!(known.offered("n", RESOURCE), 0);
        assert!(known.pools.is_empty() && known.on_node.is_empty() && known.slices.is_empty());
    }

    #[test]
    fn devices_that_others_hold_or_that_have_taints_are_taken() {
        let mut known = devices();
        let mut published = slice("s", (1, 1), &["a", "b", "c", "e"]);
        published["spec"]["devices"][3]["taints"] = json!([{"key": "k", "effect": "NoExecute"}]);
        known.slice_is(&published);
        let taken = |known: &Devices| known.taken("n", RESOURCE, |key, _| key.name == "own");
        assert_eq!((known.offered("n", RESOURCE), taken(&known)), (4, 1));
        // A device that is tainted while a task has it is the task's.
        let nodes = known.claim_is(&claim("own", &["a", "e"]));
        assert_eq!(nodes, ["n".to_owned()].into());
        assert_eq!(taken(&known), 0);
        known.claim_is(&claim("other", &["b", "unknown"]));
        known.claim_is(&claim("waits", &[]));
        assert_eq!(taken(&known), 1);
        known.only_claims(&[named(&claim("own", &[]))].into());
        assert_eq!((taken(&known), known.claims.len()), (0, 1));
        assert_eq!(known.taken("n", "another", |_, _| false), 0);
        assert_eq!(known.offered("elsewhere", RESOURCE), 0);
    }
}
