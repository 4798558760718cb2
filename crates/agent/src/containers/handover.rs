//! Ships the log lines that a task's supervisor did not ship: it was killed, or the master was unreachable for longer
//! than it waits.

use std::time::Duration;

use det_ids::LogLevel;
use det_spool::{
    BatchIds, LOGS_PATH, MAX_BATCH_BYTES, MAX_BATCH_RECORDS, Reader, SpoolError, acknowledge,
    batch_body,
};
use det_taskspec::SPOOL_DIR;
use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use thiserror::Error;
use tokio::time::Instant;

use super::container::Container;

/// How long the master may be unreachable before the rest of a log is dropped.
const PATIENCE: Duration = Duration::from_hours(1);
/// The longest wait for one response.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Why the rest of a log did not reach the master.
#[derive(Debug, Error)]
enum HandoverError {
    #[error("the master does not take the rest of the log: {status} {text}")]
    Refused { status: StatusCode, text: String },
    #[error("the master was not reachable for {} minutes: {reason}", PATIENCE.as_secs() / 60)]
    Unreachable { reason: String },
    #[error("the log spool cannot be read: {0}")]
    Spool(#[from] SpoolError),
    #[error("the log spool is not a directory of its own")]
    NotASpool,
    #[error("lines of the log cannot be written as JSON: {0}")]
    Body(serde_json::Error),
}

/// Ships the log lines of a container that its supervisor did not ship.
pub(super) async fn ship_rest(container: &Container) {
    let container_id = &container.spec.container_id;
    match ship(container).await {
        Ok(0) => {}
        Ok(lines) => {
            tracing::info!(container.id = %container_id, lines, "handed over the rest of a task's log");
        }
        Err(error) => {
            tracing::warn!(container.id = %container_id, "the rest of a task's log is lost: {error}");
            let message = format!("the rest of this container's log is lost: {error}");
            container.log_line(LogLevel::Warning, message);
        }
    }
}

/// Ships the lines that are not acknowledged, in order; returns their number. The spool is complete: its writer has
/// ended.
async fn ship(container: &Container) -> Result<usize, HandoverError> {
    let spool = container.dir.run().join(SPOOL_DIR);
    let ids = BatchIds {
        task_id: container.spec.task_id.clone(),
        allocation_id: container.spec.allocation_id.clone(),
        agent_id: container.shared.options.agent_id.clone(),
        container_id: container.spec.container_id.clone(),
    };
    match std::fs::symlink_metadata(&spool) {
        // The task owns the directory above: a link could lead anywhere.
        Ok(metadata) if !metadata.is_dir() => return Err(HandoverError::NotASpool),
        Ok(_) => {}
        Err(_) => return Ok(0),
    }
    let mut reader = Reader::open(&spool)?;
    let deadline = Instant::now() + PATIENCE;
    let mut shipped = 0;
    loop {
        // On a blocking thread: a batch may be megabytes from a slow disk.
        let (returned, batch) = tokio::task::spawn_blocking(move || {
            let batch = reader.next_batch(MAX_BATCH_RECORDS, MAX_BATCH_BYTES);
            (reader, batch)
        })
        .await
        .map_err(|error| HandoverError::Unreachable {
            reason: error.to_string(),
        })?;
        reader = returned;
        let Some(batch) = batch? else {
            return Ok(shipped);
        };
        let body = batch_body(&batch, &ids).map_err(HandoverError::Body)?;
        post(&body, container, deadline).await?;
        if let Err(error) = acknowledge(&spool, batch.last()) {
            // Disk full: the next attempt sends lines again that the master already has, which is harmless.
            tracing::debug!(%error, "how far a log was handed over cannot be noted");
        }
        shipped += batch.records.len();
    }
}

/// Posts one batch; retries as long as the error is temporary.
async fn post(body: &[u8], of: &Container, deadline: Instant) -> Result<(), HandoverError> {
    let url = format!("{}{LOGS_PATH}", of.shared.master.url());
    let mut pause = Duration::from_millis(100);
    loop {
        let sent = of
            .shared
            .http
            .post(&url)
            .header(
                "Grpc-Metadata-x-allocation-token",
                format!("Bearer {}", of.spec.script.token),
            )
            .timeout(ANSWER_WITHIN)
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_vec())
            .send()
            .await;
        let reason = match sent {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) => {
                let status = answer.status();
                let text = answer.text().await.unwrap_or_default();
                let text: String = text.chars().take(300).collect();
                if !is_passing(status) {
                    return Err(HandoverError::Refused { status, text });
                }
                format!("{status} {text}")
            }
            Err(error) => error.without_url().to_string(),
        };
        if Instant::now() + pause > deadline {
            return Err(HandoverError::Unreachable { reason });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whether the same request may succeed later.
fn is_passing(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_change_is_tried_again() {
        for (status, again) in [
            (500, true),
            (503, true),
            (429, true),
            (400, false),
            (401, false),
            (404, false),
        ] {
            assert_eq!(
                is_passing(StatusCode::from_u16(status).unwrap()),
                again,
                "{status}"
            );
        }
    }
}
