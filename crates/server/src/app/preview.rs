//! What a search would do, without running it.

use det_authz::{Kind, Permission};
use det_config::submitted::{CompletionDefaults, Experiment, SubmittedDocument};
use det_searcher::{Preview, preview};
use serde_json::{Map, Value, json};

use crate::app::context::Context;
use crate::app::documents::config_error;
use crate::app::offload;
use crate::app::pools::Pools;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// A previewed search.
#[derive(Debug, Clone)]
pub struct PreviewedSearch {
    /// The searcher's section of the completed configuration.
    pub searcher: Map<String, Value>,
    /// Which trials it would create, and how long they would train.
    pub preview: Preview,
}

/// Previews of searches. Cheap to clone.
#[derive(Clone)]
pub struct Previews {
    context: Context,
    pools: Pools,
}

impl Previews {
    /// Puts the service together.
    pub(crate) fn new(context: Context, pools: Pools) -> Self {
        Self { context, pools }
    }

    /// Completes a configuration and previews its search. Only what a search needs must be given.
    pub async fn preview_search(
        &self,
        actor: &Actor,
        config: Value,
        seed: u32,
    ) -> AppResult<PreviewedSearch> {
        actor.require(Permission::Create, Kind::Experiment, "preview searches")?;
        let service = self.clone();
        offload(true, move || service.preview(&config, seed)).await?
    }

    fn preview(&self, config: &Value, seed: u32) -> AppResult<PreviewedSearch> {
        let submitted = SubmittedDocument::from_value(Experiment, config).map_err(config_error)?;
        let pool = submitted
            .under(&[])
            .placement()
            .resource_pool
            .or_else(|| self.pools.default_compute_pool())
            .unwrap_or_default();
        let container_defaults = self.pools.container_defaults(&pool);
        let storage = match &self.context.config().checkpoint_storage {
            Some(storage) => serde_json::to_value(storage).map_err(AppError::internal)?,
            // Nothing is stored, so any place will do.
            None => json!({"type": "directory", "container_path": "/"}),
        };
        let defaults = CompletionDefaults {
            name: "preview".into(),
            experiment_seed: seed,
            checkpoint_storage: Some(storage),
            task_container_defaults: &container_defaults,
            default_priority: None,
            // An entrypoint is not needed for a preview.
            managed: false,
        };
        let config = submitted.complete(&defaults).map_err(config_error)?;
        let preview = preview(&config.searcher, &config.hyperparameters, seed)
            .map_err(|e| AppError::invalid(format!("searcher: {e}")))?;
        let searcher = match config.to_json().get_mut("searcher").map(Value::take) {
            Some(Value::Object(members)) => members,
            _ => Map::new(),
        };
        Ok(PreviewedSearch { searcher, preview })
    }
}
