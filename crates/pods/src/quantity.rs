//! Amounts of resources, and what a pod holds of one.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::json::{self, Object};

/// An amount of Kubernetes, such as `7910m`, `32Gi`, `1.5` or `1e3`, in thousandths, rounded up; `None` = it is none.
/// Format: <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.
fn thousandths(text: &str) -> Option<u128> {
    let text = text.trim();
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || part.contains('.') {
        return None;
    }
    // More places than these make no difference to any amount.
    let part: String = part.chars().take(18).collect();
    let digits: u128 = format!("0{whole}{part}").parse().ok()?;
    let places = i32::try_from(part.len()).ok()?;
    let (power, factor) = scale(suffix)?;
    scaled(digits.saturating_mul(factor), power - places + 3)
}

/// What a suffix multiplies by: a power of ten, and a factor.
fn scale(suffix: &str) -> Option<(i32, u128)> {
    let binary = |exponent: u32| (0, 1_u128 << (10 * exponent));
    Some(match suffix {
        "" => (0, 1),
        "n" => (-9, 1),
        "u" => (-6, 1),
        "m" => (-3, 1),
        "k" => (3, 1),
        "M" => (6, 1),
        "G" => (9, 1),
        "T" => (12, 1),
        "P" => (15, 1),
        "E" => (18, 1),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            (-30..=30).contains(&exponent).then_some((exponent, 1))?
        }
    })
}

/// A number times a power of ten, rounded up; the greatest number where it is too great.
fn scaled(number: u128, power: i32) -> Option<u128> {
    let factor = 10_u128.checked_pow(power.unsigned_abs())?;
    Some(if power >= 0 {
        number.saturating_mul(factor)
    } else {
        number.div_ceil(factor)
    })
}

/// An amount of a resource, as the API has it (a text or a number), in the unit of the resource: thousandths of `cpu`, else
/// bytes or pieces, rounded up. `None` = it is no amount.
pub fn quantity(resource: &str, value: &Value) -> Option<u64> {
    let amount = match value {
        Value::String(text) => thousandths(text),
        Value::Number(number) => thousandths(&number.to_string()),
        _ => None,
    }?;
    let amount = if resource == "cpu" {
        amount
    } else {
        amount.div_ceil(1000)
    };
    Some(u64::try_from(amount).unwrap_or(u64::MAX))
}

/// What a pod holds of a resource, in the unit of [`quantity`]: requests of its containers, or their limits where they
/// request nothing; at least what any of its init containers needs while it runs. One that has ended holds nothing.
///
/// As Kubernetes counts it: <https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers>,
/// with sidecars, the overhead of the pod's runtime class and requests of the pod as a whole.
pub fn holds(pod: &Value, resource: &str) -> u64 {
    let phase = json::text(pod, &["status", "phase"]);
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return 0;
    }
    requested(pod, resource)
}

/// What a pod that has not ended holds of a resource ([`holds`]).
pub(crate) fn requested(pod: &Value, resource: &str) -> u64 {
    let overhead = json::at(pod, &["spec", "overhead", resource]);
    let overhead = overhead.and_then(|value| quantity(resource, value));
    let whole = json::at(pod, &["spec"]).and_then(|spec| demand(spec, resource));
    let needed = whole.unwrap_or_else(|| of_containers(pod, resource));
    needed.saturating_add(overhead.unwrap_or(0))
}

/// The resources of which a pod requests something, or has a limit.
pub(crate) fn resource_names(pod: &Value) -> BTreeSet<&str> {
    let lists = ["containers", "initContainers"];
    let containers = lists.iter().flat_map(|key| json::list(pod, &["spec", key]));
    let whole = json::at(pod, &["spec"]);
    let amounts = containers.chain(whole).flat_map(|of| {
        let kinds = ["requests", "limits"].iter();
        kinds.filter_map(move |kind| json::at(of, &["resources", kind]))
    });
    let amounts = amounts.chain(json::at(pod, &["spec", "overhead"]));
    let names = amounts.filter_map(Value::as_object).flat_map(Object::keys);
    names.map(String::as_str).collect()
}

fn of_containers(pod: &Value, resource: &str) -> u64 {
    let of = |container: &Value| demand(container, resource).unwrap_or(0);
    let mut sidecars = 0_u64;
    let mut starting = 0_u64;
    for container in json::list(pod, &["spec", "initContainers"]) {
        let needed = sidecars.saturating_add(of(container));
        starting = starting.max(needed);
        // It runs on beside everything that comes after it.
        if json::text(container, &["restartPolicy"]) == Some("Always") {
            sidecars = needed;
        }
    }
    let containers = json::list(pod, &["spec", "containers"]);
    let running = containers
        .iter()
        .fold(sidecars, |sum, container| sum.saturating_add(of(container)));
    running.max(starting)
}

/// What a container, or a pod as a whole, requests of a resource, else its limit.
fn demand(container: &Value, resource: &str) -> Option<u64> {
    ["requests", "limits"].iter().find_map(|kind| {
        let amount = json::at(container, &["resources", kind, resource])?;
        quantity(resource, amount)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_read_in_every_form() {
        for (resource, amount, expected) in [
            ("cpu", json!("7910m"), Some(7910)),
            ("cpu", json!("8"), Some(8000)),
            ("cpu", json!("7.5"), Some(7500)),
            ("cpu", json!(7.5), Some(7500)),
            ("cpu", json!("1u"), Some(1)),
            ("nvidia.com/gpu", json!("8"), Some(8)),
            ("nvidia.com/gpu", json!(2), Some(2)),
            ("memory", json!("32Gi"), Some(32 << 30)),
            ("memory", json!("1.5Ki"), Some(1536)),
            ("memory", json!("1500m"), Some(2)),
            ("memory", json!("128974848000m"), Some(128_974_848)),
            ("memory", json!("1e3"), Some(1000)),
            ("memory", json!("12E2"), Some(1200)),
            ("memory", json!("1E"), Some(1_000_000_000_000_000_000)),
            ("memory", json!("100k"), Some(100_000)),
            ("cpu", json!("-1"), None),
            ("cpu", json!("1..2"), None),
            ("cpu", json!("."), None),
            ("cpu", json!("many"), None),
            ("cpu", json!(null), None),
        ] {
            assert_eq!(quantity(resource, &amount), expected, "{resource} {amount}");
        }
    }

    #[test]
    fn a_pod_holds_what_kubernetes_counts() {
        let of = |request: &str| json!({"resources": {"requests": {"cpu": request}}});
        let sidecar = json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}});
        let limited = json!({"resources": {"limits": {"cpu": "3"}}});
        for (scenario, spec, expected) in [
            ("two", json!({"containers": [of("1"), of("500m")]}), 1500),
            ("a limit alone", json!({"containers": [limited]}), 3000),
            (
                "a great init container",
                json!({"containers": [of("1")], "initContainers": [of("4"), of("2")]}),
                4000,
            ),
            (
                "a sidecar",
                json!({"containers": [of("2")], "initContainers": [sidecar.clone(), of("1")]}),
                3000,
            ),
            (
                "a sidecar beside an init container",
                json!({"containers": [of("1")], "initContainers": [sidecar, of("4")]}),
                5000,
            ),
            (
                "overhead",
                json!({"containers": [of("1")], "overhead": {"cpu": "250m"}}),
                1250,
            ),
            (
                "the pod as a whole",
                json!({"containers": [of("1")], "resources": {"requests": {"cpu": "6"}}}),
                6000,
            ),
            ("nothing", json!({}), 0),
        ] {
            assert_eq!(holds(&json!({"spec": spec}), "cpu"), expected, "{scenario}");
        }
        let ended = json!({"spec": {"containers": [of("1")]}, "status": {"phase": "Succeeded"}});
        assert_eq!(holds(&ended, "cpu"), 0);
    }
}
