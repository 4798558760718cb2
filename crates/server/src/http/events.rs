//! The ordered record of every change (an addition of ours).

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use det_api_types::events::{Event, GetEventsQuery, GetEventsResponse};
use det_api_types::page::OrderBy;
use det_api_types::wire::{Int64, Object, Timestamp};
use det_store::events::{self, EventRow};
use serde_json::Value;
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Master;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::error::{ApiError, before_stream};
use crate::http::extract::{Caller, WireQuery};
use crate::http::respond::{line, message, stream};
use crate::hub::Topic;

/// Events in an answer when no limit is given.
const DEFAULT_LIMIT: i64 = 100;
/// Events in an answer at most, and read at once by a stream.
const LARGEST_PAGE: i64 = 1000;

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new().routes(routes!(get_events))
}

/// Events in the order in which they happened. With `follow` a stream that goes on with further ones as they come, each
/// a line `{"result": event}`. For people, not for tasks.
#[utoipa::path(get, path = "/api/v1/events", operation_id = "GetEvents", tag = "events",
    params(GetEventsQuery), responses((status = 200, body = GetEventsResponse)))]
async fn get_events(
    State(master): State<Master>,
    Caller(actor): Caller,
    WireQuery(query): WireQuery<GetEventsQuery>,
) -> Response {
    let follow = query.follow;
    if let Err(error) = check(&actor, &query) {
        return if follow {
            before_stream(error)
        } else {
            ApiError(error).into_response()
        };
    }
    let subject =
        (!query.subject_kind.is_empty()).then_some((query.subject_kind, query.subject_id));
    if follow {
        let (out, messages) = mpsc::channel(16);
        let shutdown = master.shutdown.clone();
        // Ends when the stream is dropped.
        tokio::spawn(send_events(master, query.after, subject, out));
        return stream(messages, shutdown).await;
    }
    let limit = if query.limit <= 0 {
        DEFAULT_LIMIT
    } else {
        query.limit.min(LARGEST_PAGE)
    };
    match read(&master, query.after, subject.as_ref(), limit).await {
        Ok(rows) => {
            let next_after = Int64(rows.last().map_or(query.after, |row| row.id));
            let events = rows.into_iter().map(event).collect();
            message(&GetEventsResponse { events, next_after }).into_response()
        }
        Err(error) => ApiError(error).into_response(),
    }
}

fn check(actor: &Actor, query: &GetEventsQuery) -> AppResult<()> {
    if let Actor::Task(task) = actor {
        return Err(AppError::new(
            ErrorKind::Forbidden,
            format!(
                "task \"{}\" may not read events: only people may",
                task.task_id
            ),
        ));
    }
    if query.follow && query.limit > 0 {
        return Err(AppError::invalid(
            "followed events have no limit: leave out \"limit\" or \"follow\"",
        ));
    }
    if query.order_by == OrderBy::Desc {
        return Err(AppError::invalid(
            "events are given oldest first: leave out \"orderBy\", and page with \"after\"",
        ));
    }
    if query.subject_kind.is_empty() != query.subject_id.is_empty() {
        return Err(AppError::invalid(
            "fields \"subjectKind\" and \"subjectId\" belong together, such as subjectKind=trial&subjectId=7",
        ));
    }
    Ok(())
}

async fn read(
    master: &Master,
    after: i64,
    subject: Option<&(String, String)>,
    limit: i64,
) -> AppResult<Vec<EventRow>> {
    let mut conn = master.store.read().await?;
    let subject = subject.map(|(kind, id)| (kind.as_str(), id.as_str()));
    Ok(events::list(&mut conn.conn(), after, subject, limit).await?)
}

async fn send_events(
    master: Master,
    after: i64,
    subject: Option<(String, String)>,
    out: mpsc::Sender<AppResult<Bytes>>,
) {
    let mut changes = master.hub.subscribe(Topic::Events);
    let mut after = after;
    loop {
        let rows = match read(&master, after, subject.as_ref(), LARGEST_PAGE).await {
            Ok(rows) => rows,
            Err(error) => {
                // The reader may be gone already; nothing is lost by that.
                let _ = out.send(Err(error)).await;
                return;
            }
        };
        if rows.is_empty() {
            tokio::select! {
                () = changes.changed() => continue,
                () = out.closed() => return,
            }
        }
        for row in rows {
            after = row.id;
            if out.send(line(&event(row))).await.is_err() {
                return;
            }
        }
    }
}

fn event(row: EventRow) -> Event {
    let detail = row.detail.map(|text| match serde_json::from_str(&text) {
        Ok(Value::Object(members)) => Object(members),
        Ok(other) => Object::from_iter([("value".to_owned(), other)]),
        Err(_) => Object::from_iter([("text".to_owned(), Value::String(text))]),
    });
    Event {
        id: Int64(row.id),
        time: Timestamp(row.at),
        actor: row.actor,
        subject_kind: row.subject_kind,
        subject_id: row.subject_id,
        kind: row.kind,
        from: row.from_state,
        to: row.to_state,
        reason: row.reason,
        detail,
    }
}
