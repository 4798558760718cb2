//! Hyperparameters of a search with one trial.

use super::checks::within_path;
use super::schema::DOCUMENT;
use crate::errors::ConfigWarning;
use crate::hyperparameters::Hyperparameter;
use crate::schema::{Findings, Stage};
use crate::space;
use crate::yaml::Node;

/// A warning for each hyperparameter of a `single` search that is no constant: one value is drawn for it.
pub(crate) fn drawn(root: &Node) -> Vec<ConfigWarning> {
    let single = root.find("searcher.name").and_then(Node::text) == Some("single");
    let Some(hyperparameters) = root.get("hyperparameters").filter(|_| single) else {
        return Vec::new();
    };
    let mut findings = Findings::new(&DOCUMENT, Stage::Sane);
    let parsed = findings.within("hyperparameters", |findings| {
        space::group(findings, hyperparameters)
    });
    // Of warnings of the space itself the check of the document is in charge.
    findings.warnings.clear();
    for (path, leaf) in space::leaves(&parsed) {
        if matches!(leaf, Hyperparameter::Const(_)) {
            continue;
        }
        let at = hyperparameters.find(&path).and_then(|node| node.at.clone());
        findings.within("hyperparameters", |findings| {
            within_path(findings, &path, |findings| {
                findings.warn(
                    at.as_ref(),
                    "is no constant: searcher \"single\" draws one value from it, by \"reproducibility.experiment_seed\"",
                );
            });
        });
    }
    findings.warnings
}
