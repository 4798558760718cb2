//! Containers: what agents report of them, and those that agents never get.

use det_agent_proto::ContainerReport;
use det_failpoints::failpoint;
use det_ids::{ContainerId, PlaceId};
use det_orchestrator::Event;
use det_store::StoreError;
use det_taskspec::ContainerExit;

use crate::app::Master;

use crate::error::{AppError, AppResult};

/// An agent's report on a container, as an event.
pub(crate) fn observed(agent_id: &str, report: ContainerReport) -> Event {
    Event::Observed {
        place: PlaceId::from(agent_id),
        container_id: report.container_id,
        observed: report.state.into(),
    }
}

impl Master {
    /// Stores an agent's reports on containers: all that came meanwhile in one transaction.
    pub(crate) async fn containers_reported(
        &self,
        agent_id: &str,
        reports: Vec<ContainerReport>,
    ) -> AppResult<()> {
        let master = self.clone();
        let agent_id = agent_id.to_owned();
        self.context
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let events = reports
                        .into_iter()
                        .map(|report| observed(&agent_id, report));
                    master.orchestration.advance(tx, events).await?;
                    failpoint!("server::containers::report::before_commit");
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        failpoint!("server::containers::report::after_commit");
        Ok(())
    }

    /// A container that was never started and must not be: its row ends without the agent.
    pub(crate) async fn container_never_started(&self, container_id: &str) -> AppResult<()> {
        let id = ContainerId::from(container_id);
        self.orchestration.commit(Event::NeverStarted { id }).await
    }

    /// Ends a container whose specification cannot be made, and with it its run: other containers of the same agent have
    /// nothing to do with it.
    pub(crate) async fn container_cannot_start(
        &self,
        container_id: &str,
        error: &AppError,
    ) -> AppResult<()> {
        tracing::error!(
            container.id = container_id,
            %error,
            cause = ?error.cause,
            "a container cannot be started"
        );
        // What the rows hold is its owner's own; other causes are for the log only.
        let cause = error.cause.as_ref().and_then(|c| c.downcast_ref());
        let why = match cause {
            Some(corrupt @ StoreError::Corrupt { .. }) => corrupt.to_string(),
            _ => error.to_string(),
        };
        let message = format!("the container's specification cannot be made: {why}");
        let id = ContainerId::from(container_id);
        let exit = ContainerExit::StartFailed { message };
        self.orchestration
            .commit(Event::ContainerEnded { id, exit })
            .await
    }
}
