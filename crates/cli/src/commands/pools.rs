//! `det resource-pool list`: the pools of a cluster.

use clap::{Args, Subcommand};
use det_client::{Query, api_path};
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::CliError;
use crate::table::{FormatArgs, Listing};
use crate::values::{items, plain, text};

/// Options of `det resource-pool`.
#[derive(Debug, Args)]
pub(crate) struct PoolArgs {
    #[command(subcommand)]
    action: PoolAction,
}

#[derive(Debug, Subcommand)]
enum PoolAction {
    /// List resource pools: how each decides, what it has, and how much waits in it
    #[command(visible_alias = "ls")]
    List(FormatArgs),
}

/// Carries out `det resource-pool …`.
pub(crate) async fn run(args: PoolArgs, context: &Context) -> Result<(), CliError> {
    let PoolAction::List(format) = args.action;
    let client = context.session().await?.client;
    let answer = client
        .get(&api_path(["resource-pools"]), &Query::new())
        .await?;
    let columns = [
        ("name", "Name"),
        ("default", "Default For"),
        ("scheduler", "Scheduler"),
        ("fitting_policy", "Fitting"),
        ("agents", "Agents"),
        ("slots_used", "Slots Used"),
        ("slots", "Slots"),
        ("aux_used", "Aux Used"),
        ("aux", "Aux"),
        ("jobs_waiting", "Jobs Waiting"),
        ("jobs_running", "Jobs Running"),
    ];
    let mut listing = Listing::new(columns.map(|(_, header)| header));
    let mut objects = Vec::new();
    for pool in items(&answer["resourcePools"]) {
        let cells = cells(pool);
        listing.push(cells.iter().map(plain));
        objects.push(
            columns
                .iter()
                .map(|(name, _)| (*name).to_owned())
                .zip(cells)
                .collect::<serde_json::Map<_, _>>(),
        );
    }
    listing.print(format.format(), &objects)
}

fn cells(pool: &Value) -> [Value; 11] {
    let number = |value: &Value| json!(value.as_i64().unwrap_or(0));
    let word = |member: &str, prefix: &str| {
        json!(text(pool, member).trim_start_matches(prefix).to_lowercase())
    };
    let defaults: Vec<&str> = [("defaultComputePool", "compute"), ("defaultAuxPool", "aux")]
        .into_iter()
        .filter(|(member, _)| pool[*member] == true)
        .map(|(_, what)| what)
        .collect();
    [
        pool["name"].clone(),
        json!(defaults.join(", ")),
        word("schedulerType", "SCHEDULER_TYPE_"),
        word("schedulerFittingPolicy", "FITTING_POLICY_"),
        number(&pool["numAgents"]),
        number(&pool["slotsUsed"]),
        number(&pool["slotsAvailable"]),
        number(&pool["auxContainersRunning"]),
        number(&pool["auxContainerCapacity"]),
        number(&pool["stats"]["queuedCount"]),
        number(&pool["stats"]["scheduledCount"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_shown_by_what_it_has_and_how_it_decides() {
        let pool = json!({
            "name": "gpu", "defaultComputePool": true, "defaultAuxPool": false,
            "schedulerType": "SCHEDULER_TYPE_FAIR_SHARE", "schedulerFittingPolicy": "FITTING_POLICY_BEST",
            "numAgents": 2, "slotsUsed": 3, "slotsAvailable": 8, "auxContainersRunning": 1,
            "auxContainerCapacity": 200, "stats": {"queuedCount": 4, "scheduledCount": 5},
        });
        assert_eq!(
            json!(cells(&pool)),
            json!([
                "gpu",
                "compute",
                "fair_share",
                "best",
                2,
                3,
                8,
                1,
                200,
                4,
                5
            ])
        );
        let bare = json!({"name": "new"});
        assert_eq!(
            json!(cells(&bare)),
            json!(["new", "", "", "", 0, 0, 0, 0, 0, 0, 0])
        );
    }
}
