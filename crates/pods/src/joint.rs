//! Which nodes a pool, a task and the task's namespace all accept: what a pod must demand so that each node it fits does.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::admission::{DEFAULT_TOLERATIONS, holds};
use crate::affinity::REQUIRED;
use crate::json::{self, Object};

/// The most terms that the required node affinities of a pool and a task may have together.
const MOST_TERMS: usize = 1_000;

/// Labels of nodes that a namespace has its pods on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamespaceSelector<'a> {
    /// The name of that namespace.
    pub namespace: &'a str,
    /// Values that nodes must have, by label.
    pub labels: &'a BTreeMap<String, String>,
}

/// Node selector, node affinity and tolerations of pods that fit the nodes which both specs and the namespace accept, and no
/// others. `pool` and `task` are the `spec` of pods, in the names of Kubernetes.
///
/// # Errors
/// There can be no such node: the reason, a clause.
pub(crate) fn joint_demands(
    pool: &Value,
    task: &Value,
    namespace: Option<NamespaceSelector<'_>>,
) -> Result<Object, String> {
    let selector = joint_selector(pool, task, namespace)?;
    let terms = joint_terms(pool, task, &selector)?;
    let mut spec = Object::new();
    if !selector.is_empty() {
        spec.insert("nodeSelector".to_owned(), json!(selector));
    }
    if let Some(terms) = terms {
        spec.insert(
            "affinity".to_owned(),
            json!({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}),
        );
    }
    spec.insert("tolerations".to_owned(), joint_tolerations(pool, task));
    Ok(spec)
}

fn joint_selector(
    pool: &Value,
    task: &Value,
    namespace: Option<NamespaceSelector<'_>>,
) -> Result<BTreeMap<String, String>, String> {
    let of = |spec: &Value| json::texts(spec, &["nodeSelector"]);
    let of_namespace = namespace.map(|it| (format!("namespace \"{}\"", it.namespace), it.labels));
    let (of_pool, of_task) = (of(pool), of(task));
    let all = [
        ("the pool".to_owned(), &of_pool),
        ("the task".to_owned(), &of_task),
    ];
    let mut selector: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (owner, labels) in all.into_iter().chain(of_namespace) {
        for (key, value) in labels {
            let demanded = (value.clone(), owner.clone());
            let (known, by) = selector.entry(key.clone()).or_insert(demanded);
            if known != value {
                return Err(format!(
                    "{owner} demands nodes with the label \"{key}={value}\", and {by} \"{key}={known}\""
                ));
            }
        }
    }
    let selector = selector.into_iter();
    Ok(selector.map(|(key, (value, _))| (key, value)).collect())
}

/// The terms of a required node affinity that selects what those of both specs do; `None` = neither has one.
fn joint_terms(
    pool: &Value,
    task: &Value,
    selector: &BTreeMap<String, String>,
) -> Result<Option<Vec<Value>>, String> {
    let (of_pool, of_task) = match (terms(pool), terms(task)) {
        (None, None) => return Ok(None),
        (Some(terms), None) | (None, Some(terms)) => (terms, vec![Term::default()]),
        (Some(of_pool), Some(of_task)) => (of_pool, of_task),
    };
    if of_pool.len().saturating_mul(of_task.len()) > MOST_TERMS {
        return Err(format!(
            "the required node affinities of the task and the pool have more than {MOST_TERMS} terms together"
        ));
    }
    let mut joint = Vec::new();
    for of_pool in &of_pool {
        for of_task in &of_task {
            let term = of_pool.and(of_task);
            if term.may_select(selector) && !joint.contains(&term) {
                joint.push(term);
            }
        }
    }
    if joint.is_empty() {
        return Err(
            "no node can have all labels that the task, its namespace and the pool demand"
                .to_owned(),
        );
    }
    Ok(Some(joint.into_iter().map(Value::from).collect()))
}

/// A term of a node affinity, which selects nodes for which all of it holds.
#[derive(Debug, Clone, Default, PartialEq)]
struct Term {
    /// Requirements of the labels of nodes, as Kubernetes writes them.
    expressions: Vec<Value>,
    /// Requirements of the fields of nodes, as Kubernetes writes them.
    fields: Vec<Value>,
}

impl From<Term> for Value {
    fn from(term: Term) -> Self {
        let lists = [
            ("matchExpressions", term.expressions),
            ("matchFields", term.fields),
        ];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        json::map(lists).into()
    }
}

/// The terms of the required node affinity of a pod's `spec` that select some nodes; `None` = it has no such affinity.
fn terms(spec: &Value) -> Option<Vec<Term>> {
    let required = json::at(spec, &["affinity", "nodeAffinity", REQUIRED])?;
    let terms = json::list(required, &["nodeSelectorTerms"]).iter();
    let terms = terms.map(|term| Term {
        expressions: json::list(term, &["matchExpressions"]).to_vec(),
        fields: json::list(term, &["matchFields"]).to_vec(),
    });
    // One that demands nothing selects no node.
    Some(terms.filter(|term| *term != Term::default()).collect())
}

impl Term {
    /// What selects the nodes that both do.
    fn and(&self, other: &Self) -> Self {
        let all = |ours: &[Value], others: &[Value]| {
            let mut all = ours.to_vec();
            for requirement in others {
                if !all.contains(requirement) {
                    all.push(requirement.clone());
                }
            }
            all
        };
        Self {
            expressions: all(&self.expressions, &other.expressions),
            fields: all(&self.fields, &other.fields),
        }
    }

    /// Whether a node with these labels may be selected: false only where none can.
    fn may_select(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut by_label: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for requirement in &self.expressions {
            let key = json::text(requirement, &["key"]).unwrap_or_default();
            by_label.entry(key).or_default().push(requirement);
        }
        let mut by_label = by_label.into_iter();
        by_label.all(|(key, requirements)| {
            let known = labels.get(key).map(String::as_str);
            may_hold(&requirements, known)
        })
    }
}

/// Whether requirements of one label can hold together; `known` = its value, where that is known. Ranges of numbers are not
/// compared.
fn may_hold(requirements: &[&Value], known: Option<&str>) -> bool {
    let all_hold = |value| requirements.iter().all(|it| holds(it, value));
    let is = |requirement: &&&Value, operator: &str| {
        json::text(requirement, &["operator"]) == Some(operator)
    };
    let mut all = requirements.iter();
    if known.is_some() {
        all_hold(known)
    } else if let Some(one_of) = all.find(|it| is(it, "In")) {
        let mut values = json::list(one_of, &["values"]).iter();
        values.any(|value| all_hold(value.as_str()))
    } else if requirements.iter().any(|it| is(&it, "DoesNotExist")) {
        all_hold(None)
    } else {
        true
    }
}

/// What pods tolerate of the taints of nodes, as a set: with no key it is of all keys, with no value of all values, with no
/// effect of all effects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Toleration {
    key: Option<String>,
    value: Option<String>,
    effect: Option<String>,
}

/// Tolerations of the taints that both specs tolerate.
fn joint_tolerations(pool: &Value, task: &Value) -> Value {
    let (of_pool, of_task) = (tolerations(pool), tolerations(task));
    let both = of_pool.iter().flat_map(|of_pool| {
        let of_task = of_task.iter();
        of_task.filter_map(|of_task| of_pool.and(of_task))
    });
    let both: BTreeSet<Toleration> = both.collect();
    both.into_iter().map(Value::from).collect()
}

/// The tolerations of a pod's `spec` with those of every pod. What tolerates no taint is left out.
fn tolerations(spec: &Value) -> BTreeSet<Toleration> {
    let own = DEFAULT_TOLERATIONS.map(|key| Toleration {
        key: Some(key.to_owned()),
        value: None,
        effect: Some("NoSchedule".to_owned()),
    });
    let given = json::list(spec, &["tolerations"]).iter();
    let given = given.filter_map(|toleration| {
        let key = json::word(toleration, &["key"]);
        let value = match json::word(toleration, &["operator"]).as_deref() {
            Some("Exists") => None,
            None | Some("Equal") if key.is_some() => {
                Some(json::word(toleration, &["value"]).unwrap_or_default())
            }
            _ => return None,
        };
        Some(Toleration {
            key,
            value,
            effect: json::word(toleration, &["effect"]),
        })
    });
    own.into_iter().chain(given).collect()
}

impl Toleration {
    /// What both tolerate; `None` = nothing.
    fn and(&self, other: &Self) -> Option<Self> {
        let narrower = |ours: &Option<String>, others: &Option<String>| match (ours, others) {
            (None, given) | (given, None) => Some(given.clone()),
            (ours, others) => (ours == others).then(|| ours.clone()),
        };
        Some(Self {
            key: narrower(&self.key, &other.key)?,
            value: narrower(&self.value, &other.value)?,
            effect: narrower(&self.effect, &other.effect)?,
        })
    }
}

impl From<Toleration> for Value {
    fn from(toleration: Toleration) -> Self {
        let operator = if toleration.value.is_some() {
            "Equal"
        } else {
            "Exists"
        };
        let texts = [
            ("key", toleration.key),
            ("operator", Some(operator.to_owned())),
            ("value", toleration.value),
            ("effect", toleration.effect),
        ];
        let texts = texts.into_iter();
        json::map(texts.filter_map(|(name, text)| Some((name, text?)))).into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::node::{NodeFacts, Taint};
    use crate::{admits, misfit};

    fn joint(pool: &Value, task: &Value) -> Result<Value, String> {
        joint_demands(pool, task, None).map(Value::from)
    }

    fn required(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}})
    }

    fn label(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"key": key, "operator": operator, "values": values})
    }

    #[test]
    fn contradictions_are_found_with_those_who_contradict() {
        let pool = json!({"nodeSelector": {"gpu": "a100"}});
        let why = joint(&pool, &json!({"nodeSelector": {"gpu": "h100"}})).unwrap_err();
        assert_eq!(
            why,
            "the task demands nodes with the label \"gpu=h100\", and the pool \"gpu=a100\""
        );
        let labels = [("zone".to_owned(), "b".to_owned())].into();
        let namespace = NamespaceSelector {
            namespace: "team",
            labels: &labels,
        };
        let task = json!({"nodeSelector": {"zone": "a"}});
        let why = joint_demands(&pool, &task, Some(namespace)).unwrap_err();
        assert_eq!(
            why,
            "namespace \"team\" demands nodes with the label \"zone=b\", and the task \"zone=a\""
        );
        let of_pool = |requirement| required(&json!([{"matchExpressions": [requirement]}]));
        for (scenario, pool, task) in [
            (
                "another value",
                of_pool(label("gpu", "In", &["a100"])),
                json!({"nodeSelector": {"gpu": "h100"}}),
            ),
            (
                "other values",
                of_pool(label("gpu", "In", &["a100", "v100"])),
                of_pool(label("gpu", "In", &["h100"])),
            ),
            (
                "all values but that",
                of_pool(label("gpu", "In", &["a100"])),
                of_pool(label("gpu", "NotIn", &["a100"])),
            ),
            (
                "without the label",
                of_pool(label("gpu", "Exists", &[])),
                of_pool(label("gpu", "DoesNotExist", &[])),
            ),
            (
                "an affinity that selects nothing",
                json!({}),
                required(&json!([{}])),
            ),
        ] {
            let why = joint(&pool, &task).unwrap_err();
            assert!(why.starts_with("no node can have"), "{scenario}: {why}");
        }
    }

    #[test]
    fn terms_that_contradict_go_and_others_are_joined() {
        let pool = required(&json!([
            {"matchExpressions": [label("gpu", "In", &["a100"])]},
            {"matchExpressions": [label("gpu", "In", &["h100"])]},
        ]));
        let task = required(&json!([{"matchExpressions": [label("zone", "Exists", &[])]}, {}]));
        let selected = json!({"nodeSelector": {"gpu": "a100"}, "affinity": task["affinity"]});
        let joint = joint(&pool, &selected).unwrap();
        assert_eq!(
            joint["affinity"],
            required(&json!([
                {"matchExpressions": [label("gpu", "In", &["a100"]), label("zone", "Exists", &[])]},
            ]))["affinity"]
        );
        let many: Vec<Value> = (0..40)
            .map(
                |number| json!({"matchExpressions": [label(&format!("l{number}"), "Exists", &[])]}),
            )
            .collect();
        let many = required(&many.into());
        let why = self::joint(&many, &many).unwrap_err();
        assert!(why.contains("more than 1000 terms"), "{why}");
    }

    #[test]
    fn only_taints_that_both_tolerate_are_tolerated() {
        let spec = |tolerations: Value| json!({"tolerations": tolerations});
        let own = [
            json!({"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}),
            json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}),
        ];
        let team = json!({"key": "team", "value": "x"});
        let every = json!({"operator": "Exists"});
        for (scenario, pool, task, expected) in [
            ("neither", json!([]), json!([]), json!([])),
            ("the task", json!([]), json!([every]), json!([])),
            ("the pool", json!([team]), json!([]), json!([])),
            (
                "all of the task's",
                json!([{"key": "team", "operator": "Exists", "effect": "NoExecute"}]),
                json!([every]),
                json!([{"key": "team", "operator": "Exists", "effect": "NoExecute"}]),
            ),
            (
                "one of the pool's",
                json!([{"key": "team", "operator": "Exists"}]),
                json!([team, {"key": "team", "operator": "Lt", "value": "2"}]),
                json!([{"key": "team", "operator": "Equal", "value": "x"}]),
            ),
        ] {
            let found = joint(&spec(pool), &spec(task)).unwrap();
            let mut found = found["tolerations"].as_array().unwrap().clone();
            found.retain(|it| !own.contains(it));
            assert_eq!(Value::from(found), expected, "{scenario}");
        }
        let all = joint(&spec(json!([every])), &spec(json!([every]))).unwrap();
        assert!(all["tolerations"].as_array().unwrap().contains(&every));
    }

    fn texts(from: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
        prop::sample::select(from)
    }

    fn keys() -> impl Strategy<Value = &'static str> {
        texts(&["a", "b"])
    }

    fn values() -> impl Strategy<Value = &'static str> {
        texts(&["1", "2", "x"])
    }

    fn requirements() -> impl Strategy<Value = Value> {
        let operators = texts(&["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]);
        let values = prop::collection::vec(values(), 1..3);
        (keys(), operators, values)
            .prop_map(|(key, operator, values)| label(key, operator, &values))
    }

    fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
        let owned = |text: &'static str| text.to_owned();
        prop::collection::btree_map(keys().prop_map(owned), values().prop_map(owned), 0..2)
    }

    fn specs() -> impl Strategy<Value = Value> {
        let term = prop::collection::vec(requirements(), 0..3)
            .prop_map(|all| json!({"matchExpressions": all}));
        let terms = prop::option::of(prop::collection::vec(term, 1..3));
        let toleration = (
            prop::option::of(keys()),
            texts(&["Exists", "Equal", ""]),
            values(),
            prop::option::of(texts(&["NoSchedule", "NoExecute"])),
        );
        let toleration = toleration.prop_map(|(key, operator, value, effect)| {
            let value = (operator != "Exists").then_some(value);
            json!({"key": key, "operator": operator, "value": value, "effect": effect})
        });
        let tolerations = prop::collection::vec(toleration, 0..3);
        (labels(), terms, tolerations).prop_map(|(selector, terms, tolerations)| {
            let mut spec = json!({"nodeSelector": selector, "tolerations": tolerations});
            if let Some(terms) = terms {
                spec["affinity"] = required(&terms.into())["affinity"].clone();
            }
            spec
        })
    }

    fn nodes() -> impl Strategy<Value = NodeFacts> {
        let effects = texts(&["NoSchedule", "NoExecute"]);
        let taint = (keys(), values(), effects).prop_map(|(key, value, effect)| Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
        });
        let labels = prop::collection::btree_map(
            keys().prop_map(str::to_owned),
            values().prop_map(str::to_owned),
            0..3,
        );
        let taints = prop::collection::vec(taint, 0..2);
        (labels, taints).prop_map(|(labels, taints)| NodeFacts {
            name: "n".to_owned(),
            ready: true,
            labels,
            taints,
            ..NodeFacts::default()
        })
    }

    proptest! {
        /// A pod with these demands fits exactly the nodes that belong to the pool, fit the task and are selected by its
        /// namespace.
        #[test]
        fn nodes_that_are_asked_for_are_of_the_pool_and_of_use_to_the_task(
            (pool, task) in (specs(), specs()),
            selected in labels(),
            nodes in prop::collection::vec(nodes(), 1..12),
        ) {
            let namespace = NamespaceSelector { namespace: "team", labels: &selected };
            let slots = crate::SlotResource::Extended("nvidia.com/gpu".to_owned()).into();
            let joint = joint_demands(&pool, &task, Some(namespace));
            let joint = joint.map(|spec| json!({"spec": spec}));
            for node in nodes {
                let is_selected = selected.iter().all(|(key, value)| node.labels.get(key) == Some(value));
                let demands = json!({"spec": task});
                let fits = misfit(Some(&demands), &node, &BTreeMap::new(), (&slots, "default")).is_none();
                let is_wanted = is_selected && fits && admits(&json!({"spec": pool}), &node);
                let is_asked_for = joint.as_ref().is_ok_and(|joint| admits(joint, &node));
                prop_assert_eq!(is_asked_for, is_wanted, "{:?} for {:?}", &joint, &node);
            }
        }
    }
}
