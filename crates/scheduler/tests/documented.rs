//! What users read of the reasons to wait is all that there are.

use std::collections::BTreeSet;

use det_scheduler::WaitKind;

/// The page that lists the kinds of reasons.
const PAGE: &str = include_str!("../../../docs/queue.md");

#[test]
fn the_page_of_the_queue_lists_every_kind_of_reason() {
    let (_, list) = PAGE.split_once("Every reason has a stable `kind`").unwrap();
    let (_, list) = list.split_once(":\n").unwrap();
    let list = list.split("\n\n").next().unwrap();
    let listed: BTreeSet<&str> = list.split('`').skip(1).step_by(2).collect();
    // A paused trial is in no queue, and no scheduler gives its reason.
    let kinds = WaitKind::NAMES.iter().copied().chain(["paused"]);
    assert_eq!(listed, kinds.collect());
}
