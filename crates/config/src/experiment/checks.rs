//! Rules between the keys of an experiment: `docs/contract/configuration.md`, "Rules between keys".

use std::collections::BTreeSet;

use crate::errors::ErrorCode;
use crate::hyperparameters::{Hyperparameter, Space};
use crate::limits;
use crate::schema::{Findings, Stage};
use crate::space;
use crate::yaml::{Node, Tree};

/// As many axes of a grid are named when it is too large.
const NAMED_AXES: usize = 4;

/// Rules of the whole document.
pub(super) fn document(findings: &mut Findings, root: &Node) {
    space_for_searcher(findings, root);
    if findings.stage != Stage::Stored {
        crate::container::schema::mounts(findings, root);
    }
    if findings.stage.is_complete() {
        let text = |key| root.get(key).and_then(Node::text).unwrap_or_default();
        for (given, missing) in [("workspace", "project"), ("project", "workspace")] {
            if !text(given).is_empty() && text(missing).is_empty() {
                let message = ErrorCode::Missing.message(format!("is required beside \"{given}\""));
                let at = root.get(given).and_then(|node| node.at.clone());
                findings.error_in(missing, at.as_ref(), message);
            }
        }
        if findings.stage == Stage::Complete {
            epochs_of_trial_class(findings, root);
        }
        return;
    }
    if let Some(description) = root.get("description")
        && let Some(length) = description.text().map(|text| text.chars().count())
        && length > 255
    {
        findings.warn_in(
            "description",
            description.at.as_ref(),
            format!("has {length} characters; lists show 255"),
        );
    }
    entrypoint(findings, root);
}

fn entrypoint(findings: &mut Findings, root: &Node) {
    let Some(entrypoint) = root.get("entrypoint") else {
        return;
    };
    if !entrypoint.text().is_some_and(super::is_trial_class) {
        return;
    }
    findings.warn_in(
        "entrypoint",
        entrypoint.at.as_ref(),
        "names a trial class, which is deprecated; use \"python3 -m determined.launch.torch_distributed\" or a script",
    );
    // Other entrypoints share a batch out as they like.
    if let Some(slots) = root.find("resources.slots_per_trial")
        && slots.integer().is_some_and(|slots| slots > 1)
        && root.find("hyperparameters.global_batch_size").is_none()
    {
        findings.within("resources", |findings| {
            findings.warn_in(
                "slots_per_trial",
                slots.at.as_ref(),
                "is above 1 without \"hyperparameters.global_batch_size\", which distributed training with a trial \
                 class needs",
            );
        });
    }
}

/// The length of an epoch is required of a trial class that counts epochs.
fn epochs_of_trial_class(findings: &mut Findings, root: &Node) {
    let entrypoint = root.get("entrypoint").and_then(Node::text);
    if !entrypoint.is_some_and(super::is_trial_class) {
        return;
    }
    let epochs = |path: &str| {
        root.find(path)
            .is_some_and(|length| length.get("epochs").is_some())
    };
    let used = [
        "searcher.max_length",
        "min_validation_period",
        "min_checkpoint_period",
    ]
    .into_iter()
    .find(|path| epochs(path));
    if let Some(path) = used
        && root
            .get("records_per_epoch")
            .and_then(Node::integer)
            .unwrap_or(0)
            == 0
    {
        findings.error_hint_in(
            "records_per_epoch",
            root.find(path).and_then(|length| length.at.as_ref()),
            ErrorCode::Missing.message(format!("is required: \"{path}\" counts epochs, and a trial class does not know how long one is")),
            "give the number of records in the training data",
        );
    }
}

/// Grid needs points for every axis.
fn space_for_searcher(findings: &mut Findings, root: &Node) {
    if root.find("searcher.name").and_then(Node::text) != Some("grid") {
        return;
    }
    let Some(hyperparameters) = root.get("hyperparameters") else {
        return;
    };
    // Errors inside the space are reported by its own check; here they are only passed over.
    let errors = findings.errors.len();
    let parsed = findings.within("hyperparameters", |findings| {
        space::group(findings, hyperparameters)
    });
    findings.errors.truncate(errors);
    if findings.stage != Stage::Stored {
        grid_size(findings, hyperparameters, &parsed);
    }
    for (path, leaf) in space::leaves(&parsed) {
        if !matches!(
            leaf,
            Hyperparameter::Int { count: None, .. }
                | Hyperparameter::Double { count: None, .. }
                | Hyperparameter::Log { count: None, .. }
        ) {
            continue;
        }
        let at = hyperparameters.find(&path).and_then(|node| node.at.clone());
        findings.within("hyperparameters", |findings| {
            within_path(findings, &path, |findings| {
                findings.error_hint(
                    at.as_ref(),
                    "grid search needs a \"count\" here",
                    "add the number of points, \"count\"",
                );
            });
        });
    }
}

/// A grid of more points than a search holds. The axes are named, since the slip is in one of them.
fn grid_size(findings: &mut Findings, hyperparameters: &Node, parsed: &Space) {
    let Err(points) = limits::grid_points(parsed) else {
        return;
    };
    let mut axes: Vec<(String, u64)> = space::leaves(parsed)
        .into_iter()
        .map(|(path, leaf)| (path, limits::axis_length(leaf)))
        .filter(|(_, length)| *length > 1)
        .collect();
    axes.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
    let mut named: Vec<String> = axes
        .iter()
        .take(NAMED_AXES)
        .map(|(path, length)| format!("\"{path}\" {length}"))
        .collect();
    if axes.len() > NAMED_AXES {
        named.push(format!("{} more", axes.len() - NAMED_AXES));
    }
    findings.error_hint_in(
        "hyperparameters",
        hyperparameters.at.as_ref(),
        format!(
            "make a grid of {points} points, at most {} are allowed: {}",
            limits::MAX_TRIALS,
            named.join(", ")
        ),
        "lower a \"count\", or use searcher \"random\" with \"max_trials\"",
    );
}

/// Works at a dotted path below the current one.
pub(super) fn within_path(findings: &mut Findings, path: &str, work: impl FnOnce(&mut Findings)) {
    match path.split_once('.') {
        Some((key, rest)) => findings.within(key, |findings| within_path(findings, rest, work)),
        None => findings.within(path, work),
    }
}

/// At most one warm start, and no more rungs than a search keeps.
pub(super) fn searcher(findings: &mut Findings, node: &Node) {
    if findings.stage != Stage::Stored {
        rungs(findings, node);
    }
    if let (Some(_), Some(uuid)) = (
        node.get("source_trial_id"),
        node.get("source_checkpoint_uuid"),
    ) {
        findings.error_in(
            "source_checkpoint_uuid",
            uuid.at.as_ref(),
            ErrorCode::Conflict.message("cannot be combined with \"source_trial_id\"; choose one"),
        );
    }
}

/// The brackets of an adaptive search.
fn rungs(findings: &mut Findings, node: &Node) {
    let most = usize::try_from(limits::MAX_RUNGS).unwrap_or(usize::MAX);
    if let Some(given) = node.get("bracket_rungs")
        && let Tree::List(items) = &given.tree
        && !items.is_empty()
    {
        if items.len() > most {
            let message = format!("is a list of {}, at most {most} are allowed", items.len());
            findings.error_in("bracket_rungs", given.at.as_ref(), message);
        }
        return;
    }
    // Another layer may still bring the brackets, or a larger divisor.
    if !findings.stage.is_complete() {
        return;
    }
    let whole = |key| {
        let number = node.get(key).and_then(Node::integer)?;
        u64::try_from(number).ok()
    };
    let divisor = match node.get("divisor").map(|divisor| &divisor.tree) {
        Some(Tree::Number(number)) => number.as_f64().filter(|divisor| *divisor > 1.0),
        _ => None,
    };
    let (Some(divisor), Some(max_rungs), Some(max_time), Some(max_trials)) = (
        divisor,
        whole("max_rungs"),
        whole("max_time"),
        whole("max_trials"),
    ) else {
        return;
    };
    let rungs = |of| limits::floor_log(divisor, of, limits::MAX_RUNGS) + 1;
    if max_rungs.min(rungs(max_time)).min(rungs(max_trials)) > limits::MAX_RUNGS {
        findings.error_hint_in(
            "max_rungs",
            node.get("max_rungs").and_then(|node| node.at.as_ref()),
            format!(
                "is {max_rungs}; with divisor {divisor} that gives more than {} rungs",
                limits::MAX_RUNGS
            ),
            format!(
                "choose a larger \"divisor\", or at most {}",
                limits::MAX_RUNGS
            ),
        );
    }
}

pub(super) fn resources(findings: &mut Findings, node: &Node) {
    let (slots, max) = (node.get("slots_per_trial"), node.get("max_slots"));
    if let (Some(slots), Some(max)) = (
        slots.and_then(|slots| Some((slots, slots.integer()?))),
        max.and_then(Node::integer),
    ) && slots.1 > max
    {
        let message = format!(
            "is {}, more than the {max} of \"max_slots\": no trial could ever start",
            slots.1
        );
        findings.error_in("slots_per_trial", slots.0.at.as_ref(), message);
    }
    let one = node
        .get("resource_pool")
        .and_then(Node::text)
        .filter(|pool| !pool.is_empty());
    // A complete configuration names the pool that was chosen of them.
    if let Some(several) = node.get("resource_pools")
        && let Tree::List(items) = &several.tree
        && let Some(one) = one
        && !items.is_empty()
        && items.iter().all(|item| item.text() != Some(one))
    {
        findings.error_in(
            "resource_pools",
            several.at.as_ref(),
            ErrorCode::Conflict.message(
                "cannot be combined with \"resource_pool\"; put that pool first in the list",
            ),
        );
    }
    if let Some(Tree::List(items)) = node.get("resource_pools").map(|several| &several.tree) {
        let mut earlier = BTreeSet::new();
        for item in items {
            if let Some(pool) = item.text()
                && !earlier.insert(pool)
            {
                let message = format!("names \"{pool}\" twice");
                findings.error_in("resource_pools", item.at.as_ref(), message);
            }
        }
    }
}

pub(super) fn reproducibility(findings: &mut Findings, node: &Node) {
    if let Some(seed) = node.get("experiment_seed")
        && seed.integer().is_some_and(|seed| seed >= 1 << 31)
    {
        findings.warn_in(
            "experiment_seed",
            seed.at.as_ref(),
            "is 2147483648 or more, which some libraries refuse as a seed",
        );
    }
}

pub(super) fn profiling(findings: &mut Findings, node: &Node) {
    if let (Some(begin), Some(end)) = (
        node.get("begin_on_batch").and_then(Node::integer),
        node.get("end_after_batch"),
    ) && end.integer().is_some_and(|end| begin > end)
    {
        findings.error_in(
            "end_after_batch",
            end.at.as_ref(),
            ErrorCode::OutOfRange.message(format!(
                "must not be below \"begin_on_batch\", which is {begin}"
            )),
        );
    }
}
