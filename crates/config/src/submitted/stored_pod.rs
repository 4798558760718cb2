//! Judging the pods of configurations that were completed before.

use serde_json::json;

use super::{Experiment, Layers, SubmittedDocument, layer_under};
use crate::container::TaskContainerDefaults;
use crate::errors::ConfigErrors;
use crate::experiment::ExperimentConfig;
use crate::policies::{POD_PATH, Policies, check_pod, constrain_pods};
use crate::schema::{Findings, Stage};
use crate::workload::Workload;

/// Compares the pod of an effective configuration with what policies let users set, for work that goes on or whose
/// checkpoints are deleted under other policies than those it was submitted under. `defaults` = those of its pool today:
/// what they and the invariants of the policies give is not judged, though it is part of the configuration.
///
/// # Errors
/// Every field of the pod that a policy does not let users set. One that the pool gave at submission and no longer gives is
/// among them, since nothing shows whose it was.
pub fn check_stored_pod(
    config: &ExperimentConfig,
    defaults: &TaskContainerDefaults,
    policies: &[Policies],
) -> Result<(), ConfigErrors> {
    if !constrain_pods(policies) {
        return Ok(());
    }
    let slots = i64::from(config.resources.slots_per_trial);
    let pool = layer_under(Workload::Experiment, &defaults.to_node(), slots);
    let mut given = Layers(Vec::new()).under(policies);
    given.0.push(pool);
    let mut asked = pod_of(config)?;
    asked.0.extend(given.0.iter().cloned());
    judged(asked, given, policies)
}

/// Compares the pod of a configuration that a user has changed with what it was before and policies let users set: taking
/// away what the pool or a policy gave at submission is a change as well.
///
/// # Errors
/// Every field that differs and that a policy does not let users set.
pub fn check_changed_pod(
    before: &ExperimentConfig,
    changed: &ExperimentConfig,
    policies: &[Policies],
) -> Result<(), ConfigErrors> {
    if !constrain_pods(policies) {
        return Ok(());
    }
    let mut given = Layers(Vec::new()).under(policies);
    given.0.extend(pod_of(before)?.0);
    judged(pod_of(changed)?, given, policies)
}

/// The pod of a configuration as the only thing of a document.
fn pod_of(config: &ExperimentConfig) -> Result<Layers, ConfigErrors> {
    let own = json!({"environment": {"pod_spec": config.environment.pod_spec}});
    Ok(SubmittedDocument::from_value(Experiment, &own)?.layers)
}

fn judged(asked: Layers, given: Layers, policies: &[Policies]) -> Result<(), ConfigErrors> {
    let (asked, given) = (asked.merged::<Experiment>(), given.merged::<Experiment>());
    let mut findings = Findings::new(Workload::Experiment.document(), Stage::Complete);
    check_pod(
        &mut findings,
        asked.find(POD_PATH),
        given.find(POD_PATH),
        policies,
    );
    findings.finish().map(|_| ())
}
