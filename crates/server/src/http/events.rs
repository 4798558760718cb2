//! The ordered record of every change (an addition of ours).

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use det_api_types::events::{Event, GetEventsQuery, GetEventsResponse};
use det_api_types::wire::{Int64, Object, Timestamp};
use det_store::events::EventRow;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::app::reads::events::Events;
use crate::error::AppResult;
use crate::http::error::{ApiError, before_stream};
use crate::http::extract::{Caller, StreamStart, WireQuery};
use crate::http::respond::{line, message, stream};
use crate::http::routes::{Routes, routes};

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new().routes(routes!(get_events))
}

/// Events in the order in which they happened. With `follow` a stream that goes on with further ones as they come, each
/// a line `{"result": event}`. A page can have fewer than `limit`: the next one begins after its `nextAfter`, and the last
/// one is empty. For users, not for tasks.
#[utoipa::path(get, path = "/api/v1/events", operation_id = "GetEvents", tag = "events",
    params(GetEventsQuery), responses((status = 200, body = GetEventsResponse)))]
async fn get_events(
    Caller(master, actor): Caller,
    streaming: StreamStart,
    WireQuery(query): WireQuery<GetEventsQuery>,
) -> Response {
    let follow = query.follow;
    let mut events = match Events::open(&master.context, &actor, &query) {
        Ok(events) => events,
        Err(error) if follow => return before_stream(error),
        Err(error) => return ApiError(error).into_response(),
    };
    if follow {
        let (out, messages) = mpsc::channel(16);
        // Ends when the stream is dropped.
        tokio::spawn(send_events(events, out));
        return stream(messages, streaming).await;
    }
    match events.page().await {
        Ok(rows) => {
            let next_after = Int64(events.after.0);
            let events = rows.into_iter().map(event).collect();
            message(&GetEventsResponse { events, next_after }).into_response()
        }
        Err(error) => ApiError(error).into_response(),
    }
}

async fn send_events(mut events: Events, out: mpsc::Sender<AppResult<Bytes>>) {
    loop {
        let rows = tokio::select! {
            rows = events.next() => rows,
            () = out.closed() => return,
        };
        match rows {
            Ok(rows) => {
                for row in rows {
                    if out.send(line(&event(row))).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                // The reader may be gone already; nothing is lost by that.
                let _ = out.send(Err(error)).await;
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
        id: Int64(row.id.0),
        time: Timestamp(row.at),
        actor: row.actor.to_string(),
        subject_kind: row.subject.kind().to_owned(),
        subject_id: row.subject.to_string(),
        kind: row.kind.name().to_owned(),
        from: row.from.map(|state| state.to_string()),
        to: row.to.map(|state| state.to_string()),
        reason: row.reason,
        detail,
    }
}
