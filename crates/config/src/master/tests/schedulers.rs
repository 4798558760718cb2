//! What pools and managers run with for a scheduler.

use super::*;

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn schedulers_follow_the_all_or_nothing_rule() {
    use FittingPolicy::{Best, Worst};
    use SchedulerKind::{FairShare, Priority, RoundRobin};
    for (name, cluster, pool, expected) in [
        (
            "no block at all",
            "null",
            "null",
            (Priority, Best, false, 42, true),
        ),
        (
            "a pool block replaces all",
            "{type: round_robin, fitting_policy: best}",
            "{fitting_policy: worst}",
            (FairShare, Worst, true, 42, false),
        ),
        (
            "a pool block with a type",
            "{type: round_robin, fitting_policy: best}",
            "{type: round_robin, fitting_policy: worst}",
            (RoundRobin, Worst, false, 42, false),
        ),
        (
            "inherited",
            "{type: round_robin, fitting_policy: best}",
            "null",
            (RoundRobin, Best, false, 42, true),
        ),
        (
            "an empty pool block inherits",
            "{type: priority, preemption: true, default_priority: 7}",
            "{}",
            (Priority, Best, true, 7, true),
        ),
        (
            "a dropped default priority",
            "{type: priority, default_priority: 7}",
            "{type: priority}",
            (Priority, Best, false, 42, false),
        ),
        (
            "blank type with a priority key",
            "null",
            "{preemption: true}",
            (Priority, Best, true, 42, false),
        ),
        (
            "blank type",
            "null",
            "{type: \"\"}",
            (FairShare, Best, true, 42, false),
        ),
        (
            "blank type of the cluster",
            "{fitting_policy: worst}",
            "null",
            (FairShare, Worst, true, 42, true),
        ),
        (
            "fair share can always interrupt",
            "{type: fair_share}",
            "null",
            (FairShare, Best, true, 42, true),
        ),
    ] {
        let text = format!(
            "resource_manager: {{scheduler: {cluster}}}\nresource_pools: [{{pool_name: default, scheduler: {pool}}}]"
        );
        let config = config(&text);
        let got = config.effective_scheduler(&config.resource_pools[0]);
        assert_eq!(
            (
                got.kind,
                got.fitting_policy,
                got.preemption,
                got.default_priority,
                got.inherited
            ),
            expected,
            "{name}"
        );
    }
    let (_, warnings) = load("resource_manager: {scheduler: {type: priority, preemption: true}}\nresource_pools: [{pool_name: default, scheduler: {fitting_policy: worst}}]").unwrap();
    let reported: Vec<&str> = warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(
        reported,
        [
            "resource pool \"default\" has a scheduler of its own, so \"resource_manager.scheduler\" does not apply to it, not even its \"type\" (\"priority\"); it runs with scheduler \"fair_share\", fitting policy \"worst\""
        ]
    );
}
