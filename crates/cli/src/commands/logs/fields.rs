//! Which allocations, agents, containers, ranks, outputs and sources the lines of a log name, for filters that match none of them.

use std::collections::BTreeSet;

use det_client::{Client, ClientError, Query};

use super::{LogArgs, LogSource};
use crate::output;
use crate::values::{items, plain};

/// Most values that are named.
const NAMED: usize = 20;

/// Prints of each filter that matches no line what there is in its place. For logs of which nothing was printed.
pub(super) async fn note_missing(
    client: &Client,
    source: &LogSource,
    args: &LogArgs,
) -> Result<(), ClientError> {
    let ranks: Vec<String> = args.rank_ids.iter().map(ToString::to_string).collect();
    let filters = [
        ("allocation", &args.allocation_ids, "allocationIds"),
        ("source", &args.sources, "sources"),
        ("output", &args.stdtypes, "stdtypes"),
        ("agent", &args.agent_ids, "agentIds"),
        ("container", &args.container_ids, "containerIds"),
        ("rank", &ranks, "rankIds"),
    ];
    let mut filters = filters
        .into_iter()
        .filter(|(_, asked, _)| !asked.is_empty());
    let Some(first) = filters.next() else {
        return Ok(());
    };
    let path = source.path() + "/fields";
    let mut stream = match client.stream(&path, &Query::new()).await {
        // It is the log itself that there is not, or an older master.
        Err(ClientError::NotFound { .. }) => return Ok(()),
        stream => stream?,
    };
    let mut messages = Vec::new();
    while let Some(message) = stream.next().await? {
        messages.push(message);
    }
    for (what, asked, member) in std::iter::once(first).chain(filters) {
        let found: BTreeSet<String> = messages
            .iter()
            .flat_map(|message| items(&message[member]).map(plain))
            .collect();
        if let Some(missing) = missing(&source.noun(), (what, asked), &found) {
            output::note(missing);
        }
    }
    Ok(())
}

/// What a log has in place of what was asked for; `None` = it has that.
fn missing(
    log: &str,
    (what, asked): (&str, &[String]),
    found: &BTreeSet<String>,
) -> Option<String> {
    if asked.iter().any(|one| found.contains(one)) {
        return None;
    }
    let asked = asked.join(", ");
    let named: Vec<&str> = found.iter().take(NAMED).map(String::as_str).collect();
    let there = match (named.len(), found.len()) {
        (0, _) => format!("its lines name no {what}"),
        (named_count, all) if named_count < all => {
            format!(
                "its lines are from {}, and {} more",
                named.join(", "),
                all - named_count
            )
        }
        _ => format!("its lines are from {}", named.join(", ")),
    };
    Some(format!(
        "no line of the log of {log} is from {what} {asked}: {there}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_log_has_is_named_where_it_lacks_what_was_asked_for() {
        let asked = ["x".to_owned(), "y".to_owned()];
        let missing = |found: &[&str]| {
            let found = found.iter().map(ToString::to_string).collect();
            missing("task t", ("source", &asked), &found)
        };
        assert_eq!(missing(&["a", "y"]), None);
        let begin = "no line of the log of task t is from source x, y: ";
        let expected = |end: &str| Some(format!("{begin}{end}"));
        assert_eq!(missing(&[]), expected("its lines name no source"));
        assert_eq!(missing(&["b", "a"]), expected("its lines are from a, b"));
        let many: Vec<String> = (10..32).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let shown = missing(&many).unwrap_or_default();
        assert!(shown.ends_with("28, 29, and 2 more"), "{shown}");
    }
}
