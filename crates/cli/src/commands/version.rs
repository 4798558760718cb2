//! `det version`.

use det_client::Query;
use det_config::yaml::to_yaml;
use serde_json::json;

use crate::context::Context;
use crate::error::CliError;
use crate::output;

/// Prints the versions of this program and of the master. The former is printed even when the master cannot be reached,
/// which is then the error.
pub(crate) async fn run(context: &Context) -> Result<(), CliError> {
    let client = context.client().await;
    let info = match client {
        Ok(client) => client
            .get("/info", &Query::new())
            .await
            .map_err(CliError::from),
        Err(error) => Err(error),
    };
    let master = info.as_ref().map_or_else(
        |_| json!({"version": "", "master_id": "", "cluster_id": ""}),
        |info| {
            json!({
                "version": info["version"],
                "master_id": info["master_id"],
                "cluster_id": info["cluster_id"],
                "cluster_name": info["cluster_name"],
            })
        },
    );
    let versions = json!({
        "client": {"version": env!("CARGO_PKG_VERSION")},
        "master": master,
        "master_address": context.master.as_str(),
    });
    output::write(to_yaml(&versions))?;
    info.map(drop)
}
