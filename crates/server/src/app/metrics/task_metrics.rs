//! System metrics of launched tasks: what the supervisors of their containers measure where the configuration asks for it.
//!
//! They have no steps, no runs and no statistics, so that they are kept apart from metrics of trials
//! ([`crate::app::metrics`]): in chunks as they come, of which a task keeps the newest ones.

use det_ids::{AgentId, ContainerId, ContainerReportId, ReportId, TaskId};
use det_store::task_metrics::{self, MeasurementChunk, TaskMeasurement};
use det_taskspec::TaskKind;
use serde_json::{Map, Value};

use crate::app::context::Context;
use crate::app::existing;
use crate::app::metrics::system::{MeasuredReport, check_measured};
use crate::app::ownership::{Ownership, ReportSubject};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// Reports of one request at most.
const MOST_REPORTS: usize = 100;
/// Bytes of the values in one request at most, as JSON.
const MOST_BYTES: usize = 1 << 20;
/// Chunks of one page at most.
const PAGE: i64 = 200;
/// Bytes of one page about which no further chunk is added to it.
const PAGE_BYTES: usize = 1 << 20;

/// System metrics of launched tasks. Cheap to clone.
#[derive(Clone)]
pub struct TaskMetrics {
    context: Context,
    ownership: Ownership,
}

impl TaskMetrics {
    pub(crate) fn new(context: Context, ownership: Ownership) -> Self {
        Self { context, ownership }
    }

    /// Ingests what the supervisor of a container has measured; answers when it is durable.
    ///
    /// # Errors
    /// The actor may not report for the task, the task is a trial's, or the report is larger than reports may be.
    pub async fn report(
        &self,
        actor: &Actor,
        task_id: &TaskId,
        agent_id: &AgentId,
        reports: Vec<MeasuredReport>,
    ) -> AppResult<()> {
        self.ownership
            .require_reporter(actor, ReportSubject::Task(task_id))
            .await?;
        if reports.len() > MOST_REPORTS {
            return Err(AppError::invalid(format!(
                "a request may have at most {MOST_REPORTS} reports, found {}",
                reports.len()
            )));
        }
        let (container, measured) = measured(agent_id, reports)?;
        let Some(container) = container else {
            return Ok(());
        };
        {
            let mut conn = self.context.store.read().await?;
            let task = existing::task(&mut conn.conn(), task_id).await?;
            if task.logs_deleted_at.is_some() {
                return Err(AppError::precondition(format!(
                    "task \"{task_id}\" has ended, and its log is deleted: its metrics went with it"
                )));
            }
            if task.kind == TaskKind::Trial {
                let trial = existing::trial_of(&task.id, task.trial_id)?;
                return Err(AppError::invalid(format!(
                    "task \"{task_id}\" is that of trial {trial}, whose system metrics are metrics of the trial"
                )));
            }
        }
        let task_id = task_id.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    task_metrics::append(&mut tx.conn(), &task_id, &container, &measured).await?;
                    Ok::<_, AppError>(())
                })
            })
            .await
    }

    /// A page of what was measured behind `after` ([`MeasurementChunk::total`]), and where to go on; `None` = there is no more.
    pub(crate) async fn page(
        &self,
        task_id: &TaskId,
        after: i64,
    ) -> AppResult<(Vec<MeasurementChunk>, Option<i64>)> {
        let mut conn = self.context.store.read().await?;
        existing::task(&mut conn.conn(), task_id).await?;
        let mut found = task_metrics::after(&mut conn.conn(), task_id, after, PAGE).await?;
        let whole = i64::try_from(found.len()).unwrap_or(i64::MAX) < PAGE;
        let mut bytes = 0;
        let fits = found.iter().take_while(|chunk| {
            let more = bytes < PAGE_BYTES;
            bytes += chunk.unpacked_size();
            more
        });
        let fits = fits.count();
        let next = (fits < found.len() || !whole)
            .then(|| found.get(fits.saturating_sub(1)).map(|last| last.total))
            .flatten();
        found.truncate(fits);
        Ok((found, next))
    }
}

/// Reports as they are stored, and the container that all of them are of.
fn measured(
    agent_id: &AgentId,
    reports: Vec<MeasuredReport>,
) -> AppResult<(Option<ContainerId>, Vec<TaskMeasurement>)> {
    let (mut container, mut measured, mut bytes) = (None, Vec::new(), 0);
    for report in reports {
        let id = report.report_id.as_ref().map_or("", ReportId::as_str);
        let id: ContainerReportId = id
            .parse()
            .map_err(|error| AppError::invalid(format!("field \"reportId\" {error}")))?;
        let (of, number) = (id.container_id, id.number);
        if container.get_or_insert_with(|| of.clone()) != &of {
            return Err(AppError::invalid(
                "the reports of a request must be of one container",
            ));
        }
        check_measured(agent_id.as_str(), &report.groups)?;
        bytes += json_bytes(&report.groups);
        if bytes > MOST_BYTES {
            return Err(AppError::invalid(format!(
                "the values of a request may have at most {MOST_BYTES} bytes, found more"
            )));
        }
        measured.push(TaskMeasurement {
            number,
            at: report.at,
            agent_id: agent_id.clone(),
            groups: report.groups,
        });
    }
    Ok((container, measured))
}

fn json_bytes(groups: &Map<String, Value>) -> usize {
    serde_json::to_string(groups).map_or(usize::MAX, |text| text.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(id: &str, groups: &Value) -> MeasuredReport {
        MeasuredReport {
            report_id: Some(id.into()),
            at: 1,
            groups: groups.as_object().cloned().unwrap_or_default(),
        }
    }

    #[test]
    fn reports_are_of_one_container_and_numbered() {
        let cpu = json!({"cpu": {"cpu_util_simple": 1}});
        let of = |ids: &[&str]| {
            measured(
                &"a1".into(),
                ids.iter().map(|id| report(id, &cpu)).collect(),
            )
        };
        let (container, found) = of(&["c-x-1", "c-x-2"]).ok().unwrap_or_default();
        assert_eq!(container, Some("c-x".into()));
        assert_eq!(
            found.iter().map(|one| one.number).collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!(of(&[]).ok().unwrap_or_default(), (None, Vec::new()));
        for ids in [
            &["c-x-1", "c-y-2"][..],
            &["7"],
            &["-7"],
            &["c-0"],
            &["c--1x"],
            &["c-99999999999999999999"],
        ] {
            assert!(of(ids).is_err(), "{ids:?}");
        }
    }

    #[test]
    fn what_is_no_group_of_the_machine_or_too_long_is_refused() {
        for groups in [
            json!({"training": {"loss": 1}}),
            json!({"cpu": 5}),
            json!({"cpu": {"x": "y".repeat(MOST_BYTES)}}),
        ] {
            assert!(measured(&"a1".into(), vec![report("c-1", &groups)]).is_err());
        }
        assert!(measured(&"".into(), vec![report("c-1", &json!({"cpu": {}}))]).is_err());
    }
}
