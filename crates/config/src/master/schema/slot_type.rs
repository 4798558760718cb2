//! What a slot of a cluster is that another system manages.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::schema::{Kind, Special, Walk, text_by};
use crate::yaml::{Node, Tree};

/// What a slot of a cluster is that another system manages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotType {
    /// A GPU by NVIDIA.
    Cuda,
    /// A GPU by AMD.
    Rocm,
    /// Processors, as many as its manager requests for it.
    Cpu,
}

pub(super) static SLOT_TYPE: Special = text_by(
    "`cuda`, `rocm`, `cpu`; older: `gpu`",
    || json!({"enum": ["cuda", "rocm", "cpu", "gpu"]}),
    slot_type,
);

/// `gpu` is the old name of `cuda`.
fn slot_type(walk: &mut Walk, node: &mut Node) {
    if node.text() == Some("gpu") {
        walk.findings
            .warn(node.at.as_ref(), "\"gpu\" is the old name of \"cuda\"");
        node.tree = Tree::Text("cuda".into());
    }
    walk.value(node, Kind::Choice(&["cuda", "rocm", "cpu"]));
}
