//! What a document most likely is: by its content, and by the name of its file where the content leaves it open.
//!
//! Each key counts for the kinds that have it. Content rarely decides alone: any part of an experiment may be a template
//! or an invariant of policies as well, so the content gives the kinds that it may be, and the name chooses among them.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::DocumentKind;
use crate::policies::Policies;
use crate::schema::{Kind, Section, closest, keys_of};
use crate::task::LaunchKind;
use crate::workload::Workload;
use crate::yaml::{self, Node, Tree};

/// The kind of a document and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guess {
    /// The kind that the document most likely has.
    pub kind: DocumentKind,
    /// Why, as the end of a sentence: `it has "searcher"`.
    pub because: String,
}

/// Neither the content nor the name of a document shows its kind, or it is of no kind that can be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKind {
    /// What was found, as the end of a sentence about the document: `has no key that any kind of document has`.
    pub message: String,
    /// What the caller can do to make the kind known, for users.
    pub hint: String,
}

const POLICIES: DocumentKind = DocumentKind::Policies(Workload::Experiment);
const TASK_POLICIES: DocumentKind = DocumentKind::Policies(Workload::Tasks);

/// Words in names of files, and the kinds that they suggest.
const NAMES: &[(&str, DocumentKind)] = &[
    ("policies", POLICIES),
    ("policy", POLICIES),
    ("template", DocumentKind::Template),
    ("notebook", DocumentKind::TaskOf(LaunchKind::Notebook)),
    ("jupyter", DocumentKind::TaskOf(LaunchKind::Notebook)),
    ("shell", DocumentKind::TaskOf(LaunchKind::Shell)),
    ("tensorboard", DocumentKind::TaskOf(LaunchKind::Tensorboard)),
    ("command", DocumentKind::TaskOf(LaunchKind::Command)),
    ("cmd", DocumentKind::TaskOf(LaunchKind::Command)),
    ("generic", DocumentKind::TaskOf(LaunchKind::Generic)),
    ("task", DocumentKind::Task),
    ("experiment", DocumentKind::Experiment),
    ("master", DocumentKind::Master),
    ("agent", DocumentKind::Agent),
];

/// Keys that only one kind of task has.
const OF_ONE_TASK: &[(&str, LaunchKind)] = &[
    ("tensorboard_args", LaunchKind::Tensorboard),
    ("inherit_mounts", LaunchKind::Tensorboard),
    ("notebook_idle_type", LaunchKind::Notebook),
    ("kernel_idle_timeout", LaunchKind::Notebook),
    ("idle_timeout", LaunchKind::Notebook),
];

/// Keys of the values of charts that install a cluster, as far as no kind of document has them.
const OF_CHARTS: &[&str] = &[
    "agentImage",
    "checkpointStorage",
    "clusterName",
    "createNonNamespacedObjects",
    "defaultAuxResourcePool",
    "defaultComputeResourcePool",
    "defaultImages",
    "defaultPassword",
    "defaultScheduler",
    "detVersion",
    "determinedMasterHost",
    "determinedMasterPort",
    "determinedMasterScheme",
    "enterpriseEdition",
    "externalCaCertSecretName",
    "fullnameOverride",
    "genai",
    "imagePullPolicy",
    "imagePullSecretName",
    "imageRegistry",
    "ingress",
    "initialUserPassword",
    "loadBalancerSourceRanges",
    "logColor",
    "logLevel",
    "masterCpuLimit",
    "masterCpuRequest",
    "masterImage",
    "masterMemLimit",
    "masterMemRequest",
    "masterPort",
    "masterService",
    "maxSlotsPerPod",
    "nameOverride",
    "nodeSelector",
    "notebookTimeout",
    "openshiftRoute",
    "postgresql",
    "replicaCount",
    "resourceManager",
    "resourcePools",
    "retentionPolicy",
    "slotResourceRequests",
    "slotType",
    "taskContainerDefaults",
    "tensorboardTimeout",
    "tlsSecret",
    "trialRunner",
    "useNodePortForMaster",
];

/// What the content is compared with.
const FAMILIES: [DocumentKind; 5] = [
    DocumentKind::Experiment,
    DocumentKind::Task,
    DocumentKind::Master,
    DocumentKind::Agent,
    POLICIES,
];

/// Points of a key that a kind has, with a value of the right shape.
const KNOWN: u32 = 4;
/// Points of a misspelt key, or of one with a value of another shape.
const NEARLY: u32 = 2;
/// Points of a key that a kind has further down only.
const INSIDE: u32 = 1;

/// What a document most likely is.
///
/// # Errors
/// What was found instead, when neither content nor name decide.
pub fn guess(file: &str, text: &str) -> Result<Guess, UnknownKind> {
    let name = file
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let root = yaml::read(text).map_or_else(|_| outline(text), |reading| reading.root);
    let content = compare(&root);
    let best = content.iter().map(|found| found.points).max().unwrap_or(0);
    if let Some(chart) = values_of_chart(&root, best) {
        return Err(chart);
    }
    let families: Vec<&Comparison> = content
        .iter()
        .filter(|found| best > 0 && found.points == best)
        .collect();
    let open: Vec<DocumentKind> = families
        .iter()
        .flat_map(|found| may_be(found.kind, &root))
        .collect();
    let by_name = NAMES.iter().find(|(word, _)| name.contains(word));
    if let Some((word, kind)) = by_name
        && (best == 0 || open.contains(kind))
    {
        return Ok(decided(
            &name,
            text,
            *kind,
            &format!("its name has \"{word}\" in it"),
        ));
    }
    match families[..] {
        [] => Err(unknown(&root)),
        [found] => {
            let kind = of_one_task(found.kind, &root);
            Ok(decided(
                &name,
                text,
                kind,
                &format!("it has \"{}\"", found.key),
            ))
        }
        _ => {
            let nouns: Vec<&str> = families.iter().map(|found| found.kind.noun()).collect();
            let message = format!("may be {} or a template", nouns.join(", "));
            let hint = format!("name what it is with --kind {}", names_of(&open));
            Err(UnknownKind { message, hint })
        }
    }
}

/// The names of kinds, each once: `experiment, template or task`.
fn names_of(kinds: &[DocumentKind]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for kind in kinds {
        if !names.contains(&kind.name()) {
            names.push(kind.name());
        }
    }
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

fn unknown(root: &Node) -> UnknownKind {
    let found = match &root.tree {
        Tree::Map(members) if members.is_empty() => "is empty".to_owned(),
        Tree::Null => "is empty".to_owned(),
        Tree::Map(_) => "has no key that any kind of document has".to_owned(),
        _ => format!("is {}, not a map", root.kind()),
    };
    UnknownKind {
        message: format!("{found}, and its name does not show what it is"),
        hint: format!(
            "name what it is with --kind {}",
            DocumentKind::NAMES.join(", ")
        ),
    }
}

/// That these are the values of a chart, where they have more of its keys than of a document's; `best` are the points of
/// the document that they are most like.
fn values_of_chart(root: &Node, best: u32) -> Option<UnknownKind> {
    let mut known = OF_CHARTS.iter().filter(|key| root.get(key).is_some());
    let first = known.next()?;
    let count = u32::try_from(known.count() + 1).unwrap_or(u32::MAX);
    (count.saturating_mul(2 * KNOWN) > best).then(|| UnknownKind {
        message: format!(
            "looks like the values of a Helm chart, because it has \"{first}\"; those are not checked here"
        ),
        hint: "check them with `helm lint`; if it is a configuration, name its kind with --kind".into(),
    })
}

/// The kinds that a document of this family may be. A whole experiment is no policy.
fn may_be(family: DocumentKind, root: &Node) -> Vec<DocumentKind> {
    match family {
        DocumentKind::Experiment => {
            let is_whole = root.get("searcher").is_some() && root.get("entrypoint").is_some();
            let mut kinds = vec![DocumentKind::Experiment, DocumentKind::Template];
            if !is_whole {
                kinds.extend([POLICIES, TASK_POLICIES]);
            }
            kinds
        }
        DocumentKind::Task => {
            let one = of_one_task(DocumentKind::Task, root);
            let mut kinds = vec![DocumentKind::Task, DocumentKind::Template];
            if one == DocumentKind::Task {
                kinds.extend(LaunchKind::ALL.map(DocumentKind::TaskOf));
            } else {
                kinds.push(one);
            }
            kinds.extend([POLICIES, TASK_POLICIES]);
            kinds
        }
        DocumentKind::Policies(_) => vec![POLICIES, TASK_POLICIES],
        other => vec![other],
    }
}

/// A task of one kind, where a key decides which.
fn of_one_task(kind: DocumentKind, root: &Node) -> DocumentKind {
    let of_one = OF_ONE_TASK
        .iter()
        .find(|(key, _)| kind == DocumentKind::Task && root.get(key).is_some());
    of_one.map_or(kind, |(_, task)| DocumentKind::TaskOf(*task))
}

/// The guess; policies as those over experiments or over tasks, by the name, else by which of the two they suit better.
fn decided(name: &str, text: &str, kind: DocumentKind, because: &str) -> Guess {
    let of = |kind, because: &str| Guess {
        kind,
        because: because.to_owned(),
    };
    if !matches!(kind, DocumentKind::Policies(_)) {
        return of(kind, because);
    }
    if let Some(word) = ["task", "ntsc"].iter().find(|word| name.contains(*word)) {
        return of(TASK_POLICIES, &format!("its name has \"{word}\" in it"));
    }
    let errors = |workload| {
        Policies::parse(workload, "", None, text).map_or_else(|errors| errors.0.len(), |_| 0)
    };
    if errors(Workload::Tasks) >= errors(Workload::Experiment) {
        return of(POLICIES, because);
    }
    let root = yaml::read(text).ok().map(|reading| reading.root);
    let invariants = root.as_ref().and_then(|root| root.get("invariant_config"));
    let of_tasks = ["resources.slots", "work_dir"]
        .into_iter()
        .find(|key| invariants.is_some_and(|given| given.find(key).is_some()));
    match of_tasks {
        Some(key) => of(
            TASK_POLICIES,
            &format!("its \"invariant_config\" has \"{key}\""),
        ),
        None => of(
            TASK_POLICIES,
            "as policies over experiments it would have more errors",
        ),
    }
}

/// The keys at the top of a text that cannot be read, as far as its lines show them.
fn outline(text: &str) -> Node {
    let key = |line: &str| {
        let (key, rest) = line.split_once(':')?;
        let is_word = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        (is_word && (rest.is_empty() || rest.starts_with(' '))).then(|| key.to_owned())
    };
    let members = text
        .lines()
        .filter_map(key)
        .take(MAX_KEYS)
        .map(|key| (key, Node::new(Tree::Map([].into()))))
        .collect();
    Node::new(Tree::Map(members))
}

/// How well a document suits a family.
struct Comparison {
    kind: DocumentKind,
    points: u32,
    /// The dotted path that is the strongest evidence for it: that fewest other families have.
    key: String,
}

fn compare(root: &Node) -> Vec<Comparison> {
    let given = upper_keys(root);
    let known = FAMILIES.map(|kind| (kind, KnownKeys::of(kind)));
    // points[key][family]
    let points: Vec<Vec<u32>> = given
        .iter()
        .map(|(path, node)| {
            let of = |(_, names): &(_, KnownKeys)| names.points(path, node);
            known.iter().map(of).collect()
        })
        .collect();
    let comparison = |(family, kind): (usize, DocumentKind)| {
        let telling = points
            .iter()
            .enumerate()
            .filter(|(_, of)| of[family] > 0)
            .max_by_key(|(index, of)| {
                let others = of.iter().filter(|other| **other >= of[family]).count();
                (Reverse(others), of[family], Reverse(*index))
            });
        Comparison {
            kind,
            points: points.iter().map(|of| of[family]).sum(),
            key: telling.map_or_else(String::new, |(index, _)| given[index].0.clone()),
        }
    };
    FAMILIES.into_iter().enumerate().map(comparison).collect()
}

/// Most keys that are looked at, of the document and of each section.
const MAX_KEYS: usize = 200;

/// The keys of the two upper levels, with their dotted paths.
fn upper_keys(root: &Node) -> Vec<(String, &Node)> {
    let mut found = Vec::new();
    for (key, member) in root.members().into_iter().flatten().take(MAX_KEYS) {
        found.push((key.clone(), member));
        // Free keys of a section are no evidence.
        for (inner, node) in member.members().into_iter().flatten().take(MAX_KEYS) {
            found.push((format!("{key}.{inner}"), node));
        }
    }
    found
}

/// What a kind of document knows.
struct KnownKeys {
    root: &'static Section,
    /// Paths of the two upper levels.
    paths: BTreeSet<String>,
    /// Names of keys further down.
    inside: BTreeSet<String>,
}

impl KnownKeys {
    fn of(kind: DocumentKind) -> Self {
        let document = kind.document();
        let aliases = document.root.aliases.iter();
        let mut paths: BTreeSet<String> = aliases.map(|(old, _, _)| (*old).to_owned()).collect();
        let mut inside = BTreeSet::new();
        for key in keys_of(document, false) {
            if let Some((_, name)) = key.path.rsplit_once('.') {
                inside.insert(name.to_owned());
            }
            if key.path.matches('.').count() < 2 {
                paths.insert(key.path);
            }
        }
        Self {
            root: document.root,
            paths,
            inside,
        }
    }

    /// How strong the evidence of a key is for this kind of document.
    fn points(&self, path: &str, node: &Node) -> u32 {
        if self.paths.contains(path) {
            return if self.suits(path, node) {
                KNOWN
            } else {
                NEARLY
            };
        }
        if path.contains('.') || path.len() < 3 {
            return 0;
        }
        let fields = self.root.fields.iter().map(|field| field.name);
        if closest(path, fields.filter(|name| name.len() > 3)).is_some() {
            NEARLY
        } else if self.inside.contains(path) {
            INSIDE
        } else {
            0
        }
    }

    /// Whether the value is no scalar where the key wants a list.
    fn suits(&self, path: &str, node: &Node) -> bool {
        let wants_list = self
            .root
            .field(path)
            .is_some_and(|field| matches!(field.kind, Kind::List(_)));
        !wants_list || !matches!(node.tree, Tree::Text(_) | Tree::Number(_) | Tree::Bool(_))
    }
}
