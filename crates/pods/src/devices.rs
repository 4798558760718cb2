//! Slots that are devices of dynamic resource allocation: what drivers publish of the devices of nodes, which of them a
//! class selects, which are claimed, and the templates of the claims of tasks.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/>.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::facts::DeviceClass;
use crate::json;
use crate::names::{CLUSTER_LABEL, SELECTOR_LABEL};

/// Name of the claim for slots in the pods of tasks, and of its request.
pub(crate) const CLAIM: &str = "determined-slots";

/// A version of the API group `resource.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimApi {
    /// `v1`, since Kubernetes 1.34.
    V1,
    /// `v1beta2`, since Kubernetes 1.33.
    V1Beta2,
    /// `v1beta1`, since Kubernetes 1.32.
    V1Beta1,
}

impl ClaimApi {
    /// Those that the master works with, the newest first.
    pub const KNOWN: [Self; 3] = [Self::V1, Self::V1Beta2, Self::V1Beta1];

    /// Its API group and version.
    pub fn group_version(self) -> (&'static str, &'static str) {
        let version = match self {
            Self::V1 => "v1",
            Self::V1Beta2 => "v1beta2",
            Self::V1Beta1 => "v1beta1",
        };
        ("resource.k8s.io", version)
    }
}

/// The value of an attribute of a device that can be compared. Versions are not.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AttributeValue {
    Text(String),
    Bool(bool),
    Int(i64),
}

/// What a class demands of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    /// The driver with this name.
    Driver(String),
    /// An attribute with this value, by its name with its domain, `gpu.example.com/type`.
    Attribute(String, AttributeValue),
}

/// Which devices a class selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSelector(Vec<Condition>);

/// Which devices a `DeviceClass` selects. `driver` = all devices of that driver, whatever the class selects.
///
/// Classes select by expressions in a language of their own (CEL), of which the master reads what drivers ship: comparisons
/// of the driver and of attributes with values, all of which must hold.
///
/// # Errors
/// The expression that the master does not read.
pub fn device_selector(class: &Value, driver: Option<&str>) -> Result<DeviceSelector, String> {
    if let Some(driver) = driver {
        return Ok(DeviceSelector(vec![Condition::Driver(driver.to_owned())]));
    }
    let mut conditions = Vec::new();
    for selector in json::list(class, &["spec", "selectors"]) {
        let expression = json::text(selector, &["cel", "expression"]).unwrap_or_default();
        for part in expression.split("&&") {
            conditions.push(condition(part).ok_or_else(|| expression.to_owned())?);
        }
    }
    Ok(DeviceSelector(conditions))
}

/// One comparison; `None` = it is something else.
fn condition(part: &str) -> Option<Condition> {
    let part = part.trim();
    let inner = part.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
    let (left, right) = inner.unwrap_or(part).split_once("==")?;
    let (left, right) = (left.trim(), value(right.trim())?);
    if left == "device.driver" {
        return match right {
            AttributeValue::Text(driver) => Some(Condition::Driver(driver)),
            AttributeValue::Bool(_) | AttributeValue::Int(_) => None,
        };
    }
    let (domain, name) = left.strip_prefix("device.attributes[")?.split_once("].")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    let name = format!("{}/{name}", quoted(domain)?);
    Some(Condition::Attribute(name, right))
}

fn value(text: &str) -> Option<AttributeValue> {
    match text {
        "true" => Some(AttributeValue::Bool(true)),
        "false" => Some(AttributeValue::Bool(false)),
        _ => match text.parse() {
            Ok(number) => Some(AttributeValue::Int(number)),
            Err(_) => quoted(text).map(|text| AttributeValue::Text(text.to_owned())),
        },
    }
}

/// What is between quotes, without anything that means something else there.
fn quoted(text: &str) -> Option<&str> {
    let inner = ['"', '\''].into_iter().find_map(|quote| {
        let rest = text.strip_prefix(quote)?;
        rest.strip_suffix(quote)
    });
    inner.filter(|inner| !inner.contains(['"', '\'', '\\']))
}

/// The devices of a driver that are published together; a pool changes as a whole, to another generation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePool {
    /// Name of the driver.
    pub driver: String,
    /// Name of the pool, unique for its driver.
    pub pool: String,
}

/// A `ResourceSlice`: some devices of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceFacts {
    /// The pool that they are of.
    pub pool: DevicePool,
    /// Generation of the pool; slices of earlier ones count no more.
    pub generation: i64,
    /// Slices that the pool has in this generation.
    pub slices: u64,
    /// The devices that it publishes.
    pub devices: Vec<DeviceFacts>,
}

/// A device, as its driver publishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its name, unique in its pool.
    pub name: String,
    /// The only node that reaches it; `None` = several do.
    pub node: Option<String>,
    /// Whether a taint keeps new claims off it.
    pub is_tainted: bool,
    attributes: BTreeMap<String, AttributeValue>,
}

impl DeviceSelector {
    /// Whether it selects a device of a driver.
    pub fn selects(&self, driver: &str, device: &DeviceFacts) -> bool {
        self.0.iter().all(|condition| match condition {
            Condition::Driver(wanted) => wanted == driver,
            Condition::Attribute(name, value) => device.attributes.get(name) == Some(value),
        })
    }
}

/// What is known of a `ResourceSlice`, from the API's object; `None` = it is not one.
pub fn slice_facts(slice: &Value) -> Option<SliceFacts> {
    let spec = slice.get("spec")?;
    let driver = json::text(spec, &["driver"])?;
    let pool = DevicePool {
        driver: driver.to_owned(),
        pool: json::text(spec, &["pool", "name"])?.to_owned(),
    };
    let number = |key: &str| json::at(spec, &["pool", key]).and_then(Value::as_i64);
    let node = json::text(spec, &["nodeName"]).filter(|node| !node.is_empty());
    let devices = json::list(spec, &["devices"]).iter();
    Some(SliceFacts {
        generation: number("generation").unwrap_or(0),
        slices: number("resourceSliceCount")
            .and_then(|it| u64::try_from(it).ok())
            .unwrap_or(1),
        devices: devices.filter_map(|it| device(it, node, driver)).collect(),
        pool,
    })
}

fn device(device: &Value, node: Option<&str>, driver: &str) -> Option<DeviceFacts> {
    let name = json::text(device, &["name"])?.to_owned();
    // `v1beta1` has everything but the name one level below.
    let facts = device.get("basic").unwrap_or(device);
    let own = json::text(facts, &["nodeName"]).filter(|node| !node.is_empty());
    let repels = |taint: &Value| {
        let effect = json::text(taint, &["effect"]);
        matches!(effect, Some("NoSchedule" | "NoExecute"))
    };
    let attributes = facts.get("attributes").and_then(Value::as_object);
    let attributes = attributes.into_iter().flatten();
    Some(DeviceFacts {
        name,
        node: own.or(node).map(str::to_owned),
        is_tainted: json::list(facts, &["taints"]).iter().any(repels),
        attributes: attributes
            .filter_map(|(name, value)| {
                let name = if name.contains('/') {
                    name.clone()
                } else {
                    format!("{driver}/{name}")
                };
                Some((name, attribute(value)?))
            })
            .collect(),
    })
}

fn attribute(value: &Value) -> Option<AttributeValue> {
    let text = value.get("string").and_then(Value::as_str);
    let text = text.map(|text| AttributeValue::Text(text.to_owned()));
    let int = || value.get("int").and_then(Value::as_i64);
    let bool = || value.get("bool").and_then(Value::as_bool);
    text.or_else(|| int().map(AttributeValue::Int))
        .or_else(|| bool().map(AttributeValue::Bool))
}

/// What a `ResourceClaim` holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimFacts {
    /// The devices that are allocated to it and to no other claim, each with its pool and its name there.
    pub devices: Vec<(DevicePool, String)>,
    /// Name and uid of the pod that it was made for; `None` = it was made by hand.
    pub pod: Option<(String, String)>,
    /// Value of the label with the cluster's identity, which claims for slots have; `None` = it is none of those.
    pub cluster: Option<String>,
    /// Value of the label with the allocation's id, which those have too.
    pub allocation: Option<String>,
}

/// What a `ResourceClaim` holds, from the API's object.
pub fn claim_facts(claim: &Value) -> ClaimFacts {
    let path = ["status", "allocation", "devices", "results"];
    let results = json::list(claim, &path).iter().filter(|result| {
        // A device may be looked at for administration while another claim has it.
        result.get("adminAccess") != Some(&Value::Bool(true))
    });
    let devices = results.filter_map(|result| {
        let pool = DevicePool {
            driver: json::text(result, &["driver"])?.to_owned(),
            pool: json::text(result, &["pool"])?.to_owned(),
        };
        Some((pool, json::text(result, &["device"])?.to_owned()))
    });
    let owners = json::list(claim, &["metadata", "ownerReferences"]).iter();
    let mut pods = owners.filter(|owner| json::text(owner, &["kind"]) == Some("Pod"));
    let pod = pods.next().and_then(|pod| {
        let text = |key| json::text(pod, &[key]).map(str::to_owned);
        Some((text("name")?, text("uid")?))
    });
    let label = |key| json::text(claim, &["metadata", "labels", key]).map(str::to_owned);
    ClaimFacts {
        devices: devices.collect(),
        pod,
        cluster: label(CLUSTER_LABEL),
        allocation: label(SELECTOR_LABEL),
    }
}

/// The template of the claims of pods that have so many slots. `labels` are those of all objects of the allocation: claims
/// have them too.
pub(crate) fn claim_template(
    api: ClaimApi,
    class: &DeviceClass,
    (namespace, name): (&str, &str),
    labels: &json::Object,
    slots: u32,
) -> Value {
    let (group, version) = api.group_version();
    let wanted = json!({
        "deviceClassName": class.name(),
        "allocationMode": "ExactCount",
        "count": slots,
    });
    let request = match api {
        ClaimApi::V1 | ClaimApi::V1Beta2 => json!({"name": CLAIM, "exactly": wanted}),
        ClaimApi::V1Beta1 => {
            let mut request = wanted;
            request["name"] = CLAIM.into();
            request
        }
    };
    json!({
        "apiVersion": format!("{group}/{version}"),
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "metadata": {"labels": labels},
            "spec": {"devices": {"requests": [request]}},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(expressions: &[&str]) -> Value {
        let selectors = expressions.iter();
        let selectors = selectors.map(|it| json!({"cel": {"expression": it}}));
        json!({"spec": {"selectors": selectors.collect::<Vec<_>>()}})
    }

    fn slice(device: &Value) -> Value {
        json!({"spec": {
            "driver": "gpu.example.com", "nodeName": "n1", "devices": [device],
            "pool": {"name": "n1", "generation": 3, "resourceSliceCount": 2},
        }})
    }

    fn first(slice: &Value) -> DeviceFacts {
        slice_facts(slice).unwrap().devices.remove(0)
    }

    #[test]
    fn a_class_selects_by_driver_and_attributes() {
        let attributes = json!({
            "type": {"string": "gpu"}, "other.example.com/shared": {"bool": false}, "index": {"int": 3},
            "driverVersion": {"version": "1.2.3"},
        });
        let device = first(&slice(&json!({"name": "d0", "attributes": attributes})));
        for (expressions, selected) in [
            (vec![], true),
            (vec!["device.driver == \"gpu.example.com\""], true),
            (vec!["(device.driver=='gpu.example.com')"], true),
            (vec!["device.driver == 'other.example.com'"], false),
            (
                vec![
                    "device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].type == 'gpu'",
                ],
                true,
            ),
            (
                vec![
                    "device.driver == 'gpu.example.com'",
                    "device.attributes[\"gpu.example.com\"].type == 'mig'",
                ],
                false,
            ),
            (
                vec!["device.attributes['gpu.example.com'].index == 3"],
                true,
            ),
            (
                vec!["device.attributes['other.example.com'].shared == true"],
                false,
            ),
            (
                vec!["device.attributes['other.example.com'].shared == false"],
                true,
            ),
            (
                vec!["device.attributes['other.example.com'].type == 'gpu'"],
                false,
            ),
        ] {
            let selector = device_selector(&class(&expressions), None).unwrap();
            assert_eq!(
                selector.selects("gpu.example.com", &device),
                selected,
                "{expressions:?}"
            );
        }
    }

    #[test]
    fn an_expression_that_is_not_read_is_named_unless_a_driver_is_configured() {
        for expression in [
            "device.driver == 'a' || device.driver == 'b'",
            "device.driver.endsWith('.example.com')",
            "device.capacity['d'].memory.compareTo(quantity('40Gi')) >= 0",
            "!(device.driver == 'a')",
            "device.driver == \"a\" + \"b\"",
            "device.driver == 1",
            "device.attributes['d'].version.isLessThan(semver('1.0.0'))",
            "",
        ] {
            let class = class(&["device.driver == 'a'", expression]);
            assert_eq!(device_selector(&class, None), Err(expression.to_owned()));
            let selector = device_selector(&class, Some("b")).unwrap();
            let device = first(&slice(&json!({"name": "d0"})));
            assert!(selector.selects("b", &device) && !selector.selects("a", &device));
        }
    }

    #[test]
    fn a_slice_is_read_in_each_version_of_the_api() {
        let facts = json!({
            "attributes": {"type": {"string": "gpu"}}, "taints": [{"key": "k", "effect": "NoSchedule"}],
        });
        let mut flat = facts.clone();
        flat["name"] = "d0".into();
        let nested = json!({"name": "d0", "basic": facts});
        let read = slice_facts(&slice(&flat)).unwrap();
        assert_eq!(slice_facts(&slice(&nested)), Some(read.clone()));
        assert_eq!((read.generation, read.slices), (3, 2));
        assert_eq!(
            (&*read.pool.driver, &*read.pool.pool),
            ("gpu.example.com", "n1")
        );
        let device = &read.devices[0];
        assert_eq!(
            (device.node.as_deref(), device.is_tainted),
            (Some("n1"), true)
        );
        let noted =
            json!({"name": "d0", "nodeName": "n2", "taints": [{"key": "k", "effect": "None"}]});
        let device = first(&slice(&noted));
        assert_eq!(
            (device.node.as_deref(), device.is_tainted),
            (Some("n2"), false)
        );
        assert_eq!(slice_facts(&json!({"spec": {"driver": "d"}})), None);
        assert_eq!(slice_facts(&json!(null)), None);
    }

    #[test]
    fn a_claim_holds_what_is_allocated_to_it_alone() {
        let result = |device: &str, admin: bool| json!({"driver": "gpu.example.com", "pool": "n1", "device": device, "adminAccess": admin});
        let claim = json!({
            "metadata": {
                "labels": {CLUSTER_LABEL: "c", SELECTOR_LABEL: "t.1"},
                "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "u", "controller": true}],
            },
            "status": {"allocation": {"devices": {"results": [result("d0", false), result("d1", true)]}}},
        });
        let pool = DevicePool {
            driver: "gpu.example.com".to_owned(),
            pool: "n1".to_owned(),
        };
        let expected = ClaimFacts {
            devices: vec![(pool, "d0".to_owned())],
            pod: Some(("p".to_owned(), "u".to_owned())),
            cluster: Some("c".to_owned()),
            allocation: Some("t.1".to_owned()),
        };
        assert_eq!(claim_facts(&claim), expected);
        assert_eq!(claim_facts(&json!(null)), ClaimFacts::default());
    }
}
