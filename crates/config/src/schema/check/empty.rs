//! Keys that are written without a value: what is missing there is reported at them.

use std::collections::HashMap;

use super::Checker;
use crate::errors::{ErrorCode, MAX_REPORTED};
use crate::origin::Position;
use crate::yaml::{Node, Tree};

impl Checker {
    /// Notes the keys of a map at the current path that have no value.
    pub(super) fn note_empty(&mut self, node: &Node) {
        for (key, member) in node.members().into_iter().flatten() {
            if self.empty.len() < MAX_REPORTED
                && matches!(member.tree, Tree::Null)
                && let Some(at) = member.at.as_ref().filter(|at| at.line > 0)
            {
                let path = self.path_to(key);
                self.empty.push((path, at.clone()));
            }
        }
    }

    /// Moves the errors about missing keys to those that are written without a value.
    pub(super) fn place_missing_at_empty_keys(&mut self) {
        let mut places: HashMap<&str, &Position> = HashMap::new();
        for (path, at) in &self.empty {
            places.entry(path.as_str()).or_insert(at);
        }
        for error in &mut self.errors {
            if let Some(at) = places.get(error.path.as_str())
                && error.code == ErrorCode::Missing
            {
                let mut placed = error.clone().placed(at);
                if placed != *error {
                    let with_reason = "is required and has no value here";
                    placed.message = placed.message.replacen("is required", with_reason, 1);
                    *error = placed;
                }
            }
        }
    }
}
