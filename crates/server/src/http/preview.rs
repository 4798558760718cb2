//! Preview of a hyperparameter search.

use det_api_types::searcher::{
    PreviewHpSearchRequest, PreviewHpSearchResponse, SearchSummary, SearchUnit, TrialSummary,
};
use det_api_types::wire::Object;
use det_searcher::{TrialLength, TrialShape};

use crate::error::AppError;
use crate::http::extract::{Caller, WireBody};
use crate::http::respond::{Answer, message};
use crate::http::routes::{Routes, routes};

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new().routes(routes!(preview_hp_search))
}

/// What a search would do, without running it.
#[utoipa::path(post, path = "/api/v1/preview-hp-search", operation_id = "PreviewHPSearch", tag = "experiments",
    request_body = PreviewHpSearchRequest, responses((status = 200, body = PreviewHpSearchResponse)))]
async fn preview_hp_search(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<PreviewHpSearchRequest>,
) -> Answer {
    let seed = u32::try_from(body.seed).map_err(|_| {
        AppError::invalid(format!(
            "field \"seed\" must be 0 to {}, found {}",
            u32::MAX,
            body.seed
        ))
    })?;
    let previewed = master
        .preview
        .preview_search(&actor, body.config.into_value(), seed)
        .await?;
    let trials = previewed.preview.shapes.iter().map(trial_summary).collect();
    message(&PreviewHpSearchResponse {
        summary: SearchSummary {
            config: Object(previewed.searcher),
            trials,
        },
    })
}

fn trial_summary(shape: &TrialShape) -> TrialSummary {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let unit = match &shape.length {
        TrialLength::ToEnd => SearchUnit {
            name: None,
            value: None,
            max_length: true,
        },
        TrialLength::Units { time_metric, units } => SearchUnit {
            name: Some(time_metric.clone()),
            value: Some(number(*units)),
            max_length: false,
        },
    };
    TrialSummary {
        count: number(shape.trials),
        unit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_to_their_end_have_no_length() {
        let summary = trial_summary(&TrialShape {
            trials: 3,
            length: TrialLength::ToEnd,
        });
        assert_eq!(
            (summary.count, summary.unit.max_length, summary.unit.value),
            (3, true, None)
        );
        let length = TrialLength::Units {
            time_metric: "batches".into(),
            units: 62,
        };
        let summary = trial_summary(&TrialShape { trials: 30, length });
        assert_eq!(
            (summary.unit.name.as_deref(), summary.unit.value),
            (Some("batches"), Some(62))
        );
    }
}
