//! What a pool cannot offer at present: hosts and devices with faults, agents that are away, and those that were given up.

use serde_json::Value;

use crate::values::{amount, items, joined, plain, text, time};

/// Agents that were given up which are named; the others are counted.
const NAMED_LOST: usize = 5;

/// The lines about what is missing in a pool.
pub(super) fn missing_capacity(pool: &Value) -> Vec<String> {
    [fault_lines(pool), away_lines(pool), lost_lines(pool)].concat()
}

/// The lines about agents of a pool that were given up, so that the master waits for them no more.
fn lost_lines(pool: &Value) -> Vec<String> {
    let lost: Vec<&Value> = items(&pool["agentsLost"]).collect();
    if lost.is_empty() {
        return Vec::new();
    }
    let mut lines =
        vec!["Agents that were given up, whose slots are missing since then:".to_owned()];
    lines.extend(lost.iter().take(NAMED_LOST).map(|lost| {
        format!(
            "  {} with {} at {}: {}",
            text(lost, "agent"),
            amount(&text(lost, "slots"), "slot"),
            time(lost, "at"),
            text(lost, "reason"),
        )
    }));
    if lost.len() > NAMED_LOST {
        lines.push(format!("  and {} more", lost.len() - NAMED_LOST));
    }
    lines
}

/// The lines about agents and devices that faults keep out of service.
fn fault_lines(pool: &Value) -> Vec<String> {
    let faults: Vec<String> = items(&pool["faults"])
        .map(|fault| format!("  {}", plain(fault)))
        .collect();
    if faults.is_empty() {
        return faults;
    }
    let title =
        "Out of service because of faults (slots until they are enabled, agents until it is over):"
            .to_owned();
    [vec![title], faults].concat()
}

/// The lines about agents of a pool that are away.
fn away_lines(pool: &Value) -> Vec<String> {
    let away: Vec<String> = items(&pool["agentsAway"])
        .map(|away| {
            let holds = match joined(away, "holds") {
                holds if holds.is_empty() => String::new(),
                holds => format!(
                    "; it has {holds}, which goes on there if the agent comes back, else starts again elsewhere, unless it was killed"
                ),
            };
            format!(
                "  {} since {}: the master waits for it until {}{holds}",
                text(away, "agent"),
                time(away, "since"),
                time(away, "waitedUntil"),
            )
        })
        .collect();
    if away.is_empty() {
        return away;
    }
    let title = format!(
        "Agents that are not connected (agent_reconnect_wait of the pool is {}):",
        amount(&text(pool, "reconnectWaitSeconds"), "second")
    );
    [vec![title], away].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn agents_that_were_given_up_are_named_with_what_is_missing() {
        let lost = |name: &str| {
            json!({"agent": name, "slots": 4, "at": "2026-11-21T10:00:00Z",
                "reason": format!("agent \"{name}\" was away for 11m")})
        };
        let names = ["a", "b", "c", "d", "e", "f"];
        let lines = missing_capacity(&json!({"agentsLost": names.map(lost)}));
        assert_eq!(lines.len(), 7);
        assert_eq!(
            lines[1],
            "  a with 4 slots at 2026-11-21 10:00:00+0000: agent \"a\" was away for 11m"
        );
        assert_eq!(lines[6], "  and 1 more");
        assert!(missing_capacity(&json!({"agentsLost": []})).is_empty());
    }
}
