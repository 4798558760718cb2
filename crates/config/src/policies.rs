//! Policies that administrators lay over everything: invariants, which no document can change, and constraints, which the
//! result must keep. `docs/contract/configuration.md`, "Policies of administrators".

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use det_ids::PriorityOrder;
use serde_json::Value;

use self::pod_fields::{POD_FIELD, PodFields};
use crate::errors::{ConfigError, ConfigErrors, ConfigWarning, MAX_KEPT};
use crate::layer_text::read_layer;
use crate::origin::{Layer, Position, Source};
use crate::schema::{
    Document, Findings, Kind, NATURAL_32, Section, Stage, check_document, field, section,
};
pub use crate::workload::Workload;
use crate::yaml::{self, Node, Tree};

mod pod_fields;

/// What the result must keep. `None` = no constraint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Constraints {
    /// Most slots of an experiment at once, of a trial, and of a task.
    pub max_slots: Option<u32>,
    /// The best priority that may be asked for.
    pub priority_limit: Option<u8>,
    /// Fields that a pod spec may set otherwise than the pool's.
    pod_spec: PodFields,
}

/// The policies of one scope for one kind of work.
#[derive(Debug, Clone, PartialEq)]
pub struct Policies {
    /// Whose policies these are, as errors name it: `workspace "w"`, or `the cluster`.
    pub scope: String,
    /// What the result must keep.
    pub constraints: Constraints,
    /// What the user should know although it is no error.
    pub warnings: Vec<ConfigWarning>,
    /// Which of two priorities goes first in the pool of the work; that of agents until [`Policies::with_order`] sets it.
    pub priority_order: PriorityOrder,
    /// What is laid over everything.
    invariant_config: Option<Node>,
}

static POLICIES: Section = section(&[
    field(
        "invariant_config",
        Kind::AnyMap,
        "Values that override those of every configuration",
    ),
    field(
        "constraints",
        Kind::Section(&CONSTRAINTS),
        "What every configuration must keep",
    ),
]);

static CONSTRAINTS: Section = section(&[
    field(
        "resources",
        Kind::Section(&RESOURCES),
        "Limits of what can be asked for",
    ),
    field(
        "priority_limit",
        Kind::Int(1, 99),
        "Best priority that may be asked for",
    ),
    field(
        "pod_spec",
        Kind::Section(&POD_SPEC),
        "Fields of Kubernetes pods that may be set",
    ),
]);

static POD_SPEC: Section = section(&[
    field(
        "allow",
        Kind::List(&POD_FIELD),
        "Fields that may be set, and no others",
    ),
    field("deny", Kind::List(&POD_FIELD), "Fields that may not be set"),
]);

static RESOURCES: Section = section(&[field(
    "max_slots",
    NATURAL_32,
    "Most slots of an experiment at once, of a trial, and of a task",
)]);

pub(crate) static DOCUMENT: Document = Document {
    root: &POLICIES,
    places: &[
        ("max_slots", "constraints.resources.max_slots"),
        (".priority_limit", "constraints.priority_limit"),
    ],
    slots_key: "resources.slots_per_trial",
    translate: |_, _| {},
};

impl Policies {
    /// Reads policies, YAML or JSON. `scope` names whose they are, `file` where they were read from, if anywhere.
    ///
    /// # Errors
    /// Every error, those of the invariants included; also invariants that ask for more slots than the constraints of the
    /// same policies allow.
    pub fn parse(
        workload: Workload,
        scope: &str,
        file: Option<&str>,
        text: &str,
    ) -> Result<Self, ConfigErrors> {
        let source = Source::of(Layer::Policy(scope.to_owned()), file.unwrap_or_default());
        let layer = read_layer(text, Some(&Arc::new(source)))?;
        let ambiguous = layer.ambiguous_hyperparameters(Some("invariant_config"));
        let mut policies = Self::from_node(workload, scope, layer.root, layer.errors)?;
        policies.warnings.extend(ambiguous);
        Ok(policies)
    }

    /// Reads policies that are stored as JSON.
    ///
    /// # Errors
    /// As [`Policies::parse`], without lines.
    pub fn from_value(
        workload: Workload,
        scope: &str,
        value: &Value,
    ) -> Result<Self, ConfigErrors> {
        let mut root = yaml::from_value(value)?;
        root.set_source(&Arc::new(Source::layer(Layer::Policy(scope.to_owned()))));
        Self::from_node(workload, scope, root, Vec::new())
    }

    fn from_node(
        workload: Workload,
        scope: &str,
        mut root: Node,
        errors: Vec<ConfigError>,
    ) -> Result<Self, ConfigErrors> {
        let mut findings = Findings::new(&DOCUMENT, Stage::Sane);
        findings.errors = errors;
        check_document(&mut findings, &mut root);
        let mut invariant_config = root.take("invariant_config");
        if let Some(invariants) = &mut invariant_config {
            let mut inner = Findings::new(workload.document(), Stage::Sane);
            check_document(&mut inner, invariants);
            for mut error in inner.errors {
                error.path = below("invariant_config", &error.path);
                findings.errors.push(error);
            }
            for mut warning in inner.warnings {
                warning.path = below("invariant_config", &warning.path);
                findings.warnings.push(warning);
            }
        }
        let integer = |path: &str| root.find(path).and_then(Node::integer);
        let pod_fields = |list: &str| {
            let list = root.find(&format!("constraints.pod_spec.{list}"));
            pod_fields::patterns(list)
        };
        let constraints = Constraints {
            max_slots: integer("constraints.resources.max_slots")
                .and_then(|slots| u32::try_from(slots).ok()),
            priority_limit: integer("constraints.priority_limit")
                .and_then(|limit| u8::try_from(limit).ok()),
            pod_spec: PodFields {
                allow: pod_fields("allow"),
                deny: pod_fields("deny").unwrap_or_default(),
            },
        };
        let mut policies = Self {
            scope: scope.to_owned(),
            constraints,
            warnings: Vec::new(),
            priority_order: PriorityOrder::default(),
            invariant_config,
        };
        if let Some(mut invariants) = policies.invariant_config.clone() {
            findings.within("invariant_config", |findings| {
                let own = std::slice::from_ref(&policies);
                slots(findings, &mut invariants, own, workload);
            });
        }
        policies.warnings = findings.finish()?;
        Ok(policies)
    }

    /// The same over work in a pool where priorities have this order.
    #[must_use]
    pub fn with_order(mut self, order: PriorityOrder) -> Self {
        self.priority_order = order;
        self
    }

    /// [`Self::with_order`] for the policies of all scopes.
    #[must_use]
    pub fn all_with_order(all: Vec<Self>, order: PriorityOrder) -> Vec<Self> {
        all.into_iter()
            .map(|policies| policies.with_order(order))
            .collect()
    }

    /// The same without constraints of pods: for work whose pod has been admitted before.
    #[must_use]
    pub fn without_pod_constraints(mut self) -> Self {
        self.constraints.pod_spec = PodFields::default();
        self
    }

    /// Checks the invariants' own priority against the limit of the same policies, by [`Self::priority_order`]. Apart
    /// from the rest, because the policies may fix the pool, which decides the order.
    ///
    /// # Errors
    /// The invariants ask for a more important priority than the limit allows.
    pub fn check_priority(&self) -> Result<(), ConfigErrors> {
        let Some(mut invariants) = self.invariant_config.clone() else {
            return Ok(());
        };
        let mut findings = Findings::new(&DOCUMENT, Stage::Sane);
        findings.within("invariant_config", |findings| {
            priority(findings, &mut invariants, std::slice::from_ref(self));
        });
        findings.finish().map(|_| ())
    }

    /// What is laid over everything, in its normal form.
    pub fn invariant_config(&self) -> Option<Value> {
        self.invariant_config.as_ref().map(Node::to_value)
    }

    /// What is laid over everything.
    pub(crate) fn invariants(&self) -> Option<&Node> {
        self.invariant_config.as_ref()
    }

    /// The pools that the invariants name, each with its path.
    pub fn pools(&self) -> Vec<(String, String)> {
        let invariants = self.invariant_config.as_ref();
        let named = |path: &str| invariants.and_then(|node| node.find(path));
        let mut pools = Vec::new();
        let mut add = |path: String, node: &Node| {
            if let Some(pool) = node.text().filter(|pool| !pool.is_empty()) {
                pools.push((path, pool.to_owned()));
            }
        };
        if let Some(node) = named(ONE_POOL) {
            add(format!("invariant_config.{ONE_POOL}"), node);
        }
        if let Some(Tree::List(items)) = named(SEVERAL_POOLS).map(|node| &node.tree) {
            for (index, node) in items.iter().enumerate() {
                add(format!("invariant_config.{SEVERAL_POOLS}[{index}]"), node);
            }
        }
        pools
    }

    /// What an invariant fixes `path` to, if that is not `value`; such a change is refused.
    pub fn fixes_otherwise(&self, path: &str, value: &Value) -> Option<Value> {
        let fixed = self.invariant_config.as_ref()?.find(path)?.to_value();
        (fixed != *value).then_some(fixed)
    }

    /// The host path that an invariant mounts at this path of containers, if that is not `host_path`.
    pub fn mounts_otherwise(&self, container_path: &str, host_path: &str) -> Option<String> {
        let Tree::List(mounts) = &self.invariant_config.as_ref()?.get("bind_mounts")?.tree else {
            return None;
        };
        let text = |mount: &Node, key: &str| mount.get(key).and_then(Node::text).map(str::to_owned);
        mounts
            .iter()
            .filter(|mount| text(mount, "container_path").as_deref() == Some(container_path))
            .find_map(|mount| text(mount, "host_path").filter(|fixed| fixed != host_path))
    }
}

/// The pool that invariants fix; the last policy's beats the others'.
pub fn fixed_pool(policies: &[Policies]) -> Option<String> {
    let fixed = policies.iter().rev().find_map(|policies| {
        let pool = policies.invariant_config.as_ref()?;
        let pool = pool.find("resources.resource_pool")?.text()?;
        (!pool.is_empty()).then_some(pool)
    });
    fixed.map(str::to_owned)
}

/// Where an experiment names one pool, and where it names several.
pub(crate) const ONE_POOL: &str = "resources.resource_pool";
pub(crate) const SEVERAL_POOLS: &str = "resources.resource_pools";

/// Whether there is a value at a path that is neither an empty text nor an empty list.
pub(crate) fn has_value(node: &Node, path: &str) -> bool {
    match node.find(path).map(|found| &found.tree) {
        None | Some(Tree::Null) => false,
        Some(Tree::List(items)) => !items.is_empty(),
        Some(_) => node.find(path).and_then(Node::text) != Some(""),
    }
}

/// A warning for each single value and each list of the document of which invariants replace something. `whole` is the
/// document under the invariants; `shown` hides secrets.
pub(crate) fn replaced(
    written: &Node,
    whole: &Node,
    policies: &[Policies],
    shown: impl Fn(&Value) -> Value,
) -> Vec<ConfigWarning> {
    let mut warnings: Vec<ConfigWarning> = Vec::new();
    let mut reported = BTreeSet::new();
    let shown_written = Node::from(&shown(&written.to_value()));
    let shown_whole = Node::from(&shown(&whole.to_value()));
    let text = |node: &Node, path: &str| node.find(path).map_or(Value::Null, Node::to_value);
    for policy in policies.iter().rev() {
        let Some(invariants) = &policy.invariant_config else {
            continue;
        };
        let mut pairs: Vec<(String, String)> = Vec::new();
        values_and_lists(invariants, "", &mut pairs);
        for (one, other) in [(ONE_POOL, SEVERAL_POOLS), (SEVERAL_POOLS, ONE_POOL)] {
            if has_value(invariants, one) && has_value(written, other) && !has_value(whole, other) {
                pairs.push((other.to_owned(), one.to_owned()));
            }
        }
        for (path, by) in pairs {
            let (Some(was), Some(is)) = (written.find(&path), whole.find(&by)) else {
                continue;
            };
            // Of pools the first one is meant, and no other.
            let kept = if path == SEVERAL_POOLS {
                was.to_value() == is.to_value()
            } else {
                survives(was, is)
            };
            if kept || !reported.insert(path.clone()) {
                continue;
            }
            let key = if by == path {
                String::new()
            } else {
                format!("\"{by}\" ")
            };
            let message = format!(
                "{} was replaced by {key}{} by the policy of {}",
                text(&shown_written, &path),
                text(&shown_whole, &by),
                policy.scope
            );
            warnings.push(ConfigWarning::new(path, was.at.as_ref(), message));
        }
    }
    warnings
}

/// Whether all that was written is still in force: the value, or each element of a list. Of variables of one name the last
/// one counts.
fn survives(was: &Node, is: &Node) -> bool {
    let (was, is) = (was.to_value(), is.to_value());
    let (Value::Array(were), Value::Array(are)) = (&was, &is) else {
        return was == is;
    };
    let key = |element: &Value| match element.as_str().and_then(|text| text.split_once('=')) {
        Some((name, _)) => name.to_owned(),
        None => element.to_string(),
    };
    let in_force: HashMap<String, &Value> = are.iter().map(|one| (key(one), one)).collect();
    were.iter()
        .all(|one| in_force.get(&key(one)).is_some_and(|found| *found == one))
}

/// The paths of all values that are no maps, each twice; keys that a dotted path cannot name are left out.
fn values_and_lists(node: &Node, path: &str, found: &mut Vec<(String, String)>) {
    match &node.tree {
        Tree::Map(members) => {
            for (key, member) in members.iter().filter(|(key, _)| !key.contains('.')) {
                values_and_lists(member, &below_dotted(path, key), found);
            }
        }
        Tree::Null => {}
        _ => found.push((path.to_owned(), path.to_owned())),
    }
}

fn below_dotted(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn below(prefix: &str, path: &str) -> String {
    match path {
        "" => prefix.to_owned(),
        path if path.starts_with('[') => format!("{prefix}{path}"),
        path => format!("{prefix}.{path}"),
    }
}

/// A limit and whose it is.
struct Limit<'p, T> {
    value: T,
    scope: &'p str,
}

/// The last policy that has a limit has it.
fn limit<T>(policies: &[Policies], of: impl Fn(&Constraints) -> Option<T>) -> Option<Limit<'_, T>> {
    policies.iter().rev().find_map(|policy| {
        Some(Limit {
            value: of(&policy.constraints)?,
            scope: &policy.scope,
        })
    })
}

/// Holds the constraints against a whole configuration; the last policy's beat the others'. A limit of slots becomes the
/// experiment's own where it has none, and a default priority is brought within its limit: only what was asked for is
/// refused.
pub(crate) fn check_constraints(
    findings: &mut Findings,
    root: &mut Node,
    policies: &[Policies],
    workload: Workload,
) {
    slots(findings, root, policies, workload);
    priority(findings, root, policies);
}

/// Refuses each field that `asked`, the pod of a user over that of a pool, has otherwise than `given`, the pool's alone, and
/// that a policy does not let users set. The policies of all scopes count.
pub(crate) fn check_pod(
    findings: &mut Findings,
    asked: Option<&Node>,
    given: Option<&Node>,
    policies: &[Policies],
) {
    for policy in policies {
        let fields = &policy.constraints.pod_spec;
        let most = MAX_KEPT.saturating_sub(findings.errors.len());
        for refused in fields.refused(asked, given).into_iter().take(most) {
            let message = format!("cannot be set under the policy of {}", policy.scope);
            let hint = format!(
                "leave it out, or ask an administrator of {} ({})",
                policy.scope, refused.rule
            );
            let path = format!("{POD_PATH}.{}", refused.path);
            let error = ConfigError::new(path, refused.at, message).with_hint(hint);
            findings.errors.push(error);
        }
    }
}

/// Whether any of the policies constrains pods.
pub(crate) fn constrain_pods(policies: &[Policies]) -> bool {
    let mut constraints = policies.iter().map(|policy| &policy.constraints.pod_spec);
    constraints.any(|fields| *fields != PodFields::default())
}

/// Where a document has its pod.
pub(crate) const POD_PATH: &str = "environment.pod_spec";

fn fixed_by(scope: &str, value: u32) -> Node {
    let mut node = Node::from(&Value::from(value));
    node.at = Some(Position {
        source: Some(Arc::new(Source::layer(Layer::Policy(scope.to_owned())))),
        line: 0,
        column: 0,
    });
    node
}

fn slots(findings: &mut Findings, root: &mut Node, policies: &[Policies], workload: Workload) {
    let Some(Limit {
        value: limit,
        scope,
    }) = limit(policies, |c| c.max_slots)
    else {
        return;
    };
    for path in [workload.document().slots_key, "resources.max_slots"] {
        let Some(node) = root.find(path) else {
            continue;
        };
        if let Some(asked) = node.integer()
            && asked > i64::from(limit)
        {
            let message =
                format!("is {asked}, more than the {limit} that the policy of {scope} allows");
            let at = node.at.clone();
            refuse(findings, path, at.as_ref(), message);
        }
    }
    if workload == Workload::Experiment && root.find("resources.max_slots").is_none() {
        root.put("resources.max_slots", fixed_by(scope, limit));
    }
}

fn priority(findings: &mut Findings, root: &mut Node, policies: &[Policies]) {
    let Some(Limit {
        value: limit,
        scope,
    }) = limit(policies, |c| c.priority_limit)
    else {
        return;
    };
    let order = policies
        .last()
        .map_or(PriorityOrder::default(), |policy| policy.priority_order);
    let Some(node) = root.find("resources.priority") else {
        return;
    };
    let Some(asked) = node.integer() else {
        return;
    };
    if !order.goes_before(asked, limit) {
        return;
    }
    let by_default = node
        .at
        .as_ref()
        .and_then(|at| at.source.as_ref())
        .is_some_and(|source| matches!(source.layer, Layer::PoolPriority(_)));
    if by_default {
        return root.put("resources.priority", fixed_by(scope, u32::from(limit)));
    }
    let at = node.at.clone();
    let range = order.range_from(limit);
    let message = format!("is {asked}; the policy of {scope} allows {range} ({order})");
    refuse(findings, "resources.priority", at.as_ref(), message);
}

fn refuse(findings: &mut Findings, path: &str, at: Option<&Position>, message: String) {
    match path.split_once('.') {
        Some((key, rest)) => {
            findings.within(key, |findings| refuse(findings, rest, at, message));
        }
        None => findings.error_in(path, at, message),
    }
}
