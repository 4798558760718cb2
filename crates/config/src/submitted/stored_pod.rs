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
    let own = json!({"environment": {"pod_spec": config.environment.pod_spec}});
    let own = SubmittedDocument::from_value(Experiment, &own)?;
    let mut asked = own.layers;
    asked.0.extend(given.0.iter().cloned());
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
