//! Slots of containers, as rows hold them.

use std::collections::BTreeSet;

use det_store::StoreError;

/// A stored list of slot numbers.
pub fn slot_set(text: &str) -> Result<BTreeSet<u32>, StoreError> {
    serde_json::from_str(text).map_err(|e| StoreError::Corrupt {
        what: "a list of slots".into(),
        message: e.to_string(),
    })
}
