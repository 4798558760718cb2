//! The keys of a Kubernetes pod: their shapes, their spellings and how they merge.
//!
//! `pod.tsv` is the only list of them. It is made from the `OpenAPI` document that every Kubernetes API server serves at
//! `/openapi/v2`, whose extensions `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key` have what the API
//! documents for a strategic merge patch; `crates/config/tests/pod_merge` compares it with that of a real one. The crate knows no
//! configuration and no cluster. Read [`Type`] first: [`pod`] is the one of a whole pod.

mod names;
mod table;

pub use names::camel_case_keys;
pub use table::{Field, ListMerge, Shape, Type, is_snake_case_of, pod, type_named};
