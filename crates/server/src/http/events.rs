//! The ordered record of every change (an addition of ours).

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use det_api_types::events::{Event, GetEventsQuery, GetEventsResponse};
use det_api_types::page::OrderBy;
use det_api_types::wire::{Int64, Object, Timestamp};
use det_store::events::EventRow;
use serde_json::Value;
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Master;
use crate::app::reads::events::Events;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::http::error::{ApiError, before_stream};
use crate::http::extract::{Caller, WireQuery};
use crate::http::respond::{line, message, stream};
use crate::hub::Topic;

/// Events in an answer when no limit is given.
const DEFAULT_LIMIT: i64 = 100;
/// Events in an answer at most, and read at once by a stream; fewer where their texts are large.
const LARGEST_PAGE: i64 = 1000;

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new().routes(routes!(get_events))
}

/// Events in the order in which they happened. With `follow` a stream that goes on with further ones as they come, each
/// a line `{"result": event}`. A page can have fewer than `limit`: the next one begins after its `nextAfter`, and the last
/// one is empty. For people, not for tasks.
#[utoipa::path(get, path = "/api/v1/events", operation_id = "GetEvents", tag = "events",
    params(GetEventsQuery), responses((status = 200, body = GetEventsResponse)))]
async fn get_events(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetEventsQuery>,
) -> Response {
    let follow = query.follow;
    let events = match open(&master, &actor, &query) {
        Ok(events) => events,
        Err(error) if follow => return before_stream(error),
        Err(error) => return ApiError(error).into_response(),
    };
    if follow {
        let (out, messages) = mpsc::channel(16);
        let shutdown = master.context.shutdown.clone();
        // Ends when the stream is dropped.
        tokio::spawn(send_events(master, events, query.after, out));
        return stream(messages, shutdown).await;
    }
    let limit = if query.limit <= 0 {
        DEFAULT_LIMIT
    } else {
        query.limit.min(LARGEST_PAGE)
    };
    match events.after(query.after, limit).await {
        Ok(rows) => {
            let next_after = Int64(rows.last().map_or(query.after, |row| row.id));
            let events = rows.into_iter().map(event).collect();
            message(&GetEventsResponse { events, next_after }).into_response()
        }
        Err(error) => ApiError(error).into_response(),
    }
}

/// The events that a request asks for.
fn open(master: &Master, actor: &Actor, query: &GetEventsQuery) -> AppResult<Events> {
    let subject = (!query.subject_kind.is_empty())
        .then(|| (query.subject_kind.clone(), query.subject_id.clone()));
    let events = Events::open(&master.context.store, actor, subject)?;
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
    Ok(events)
}

async fn send_events(
    master: Master,
    events: Events,
    after: i64,
    out: mpsc::Sender<AppResult<Bytes>>,
) {
    let mut changes = master.context.hub.subscribe(Topic::Events);
    let mut after = after;
    loop {
        let rows = match events.after(after, LARGEST_PAGE).await {
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
