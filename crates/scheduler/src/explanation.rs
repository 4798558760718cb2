//! Why a request waits, as it is stored and shown.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::reason::{WaitKind, WaitReason};

/// A reason as the row of a waiting allocation has it: its kind and its sentence apart from the numbers, so that rows of
/// other versions, which have other numbers, can be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitExplanation {
    /// Kind of the reason, which programs can compare.
    pub kind: WaitKind,
    /// A sentence that users read, with the names of allocations and workspaces.
    pub message: String,
    /// The numbers that make it true, under the names of the fields of [`WaitReason`].
    #[serde(flatten)]
    pub details: Map<String, Value>,
}

impl WaitExplanation {
    /// A reason with its sentence.
    ///
    /// # Errors
    /// The reason cannot be serialised.
    pub fn new(reason: &WaitReason, message: String) -> Result<Self, serde_json::Error> {
        let mut details = match serde_json::to_value(reason)? {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        details.remove("kind");
        Ok(Self {
            kind: reason.kind(),
            message,
            details,
        })
    }
}
