//! Responses: whole messages and streams of messages.

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use det_api_types::wire::{self, Object};
use futures::StreamExt;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::error::AppResult;
use crate::error::{AppError, ErrorKind};
use crate::http::answers::SharedAnswer;
use crate::http::error::{ApiError, StreamError, before_stream, stream_line};
use crate::http::extract::StreamStart;

/// Result of a handler.
pub type Answer = Result<Response, ApiError>;

/// Result of a handler that answers with a stream.
pub type StreamAnswer = Result<Response, StreamError>;

/// One message; every success is exactly 200.
pub fn message<T: Serialize>(message: &T) -> Answer {
    let body = wire::encode(message).map_err(AppError::internal)?;
    Ok((
        [(header::CONTENT_TYPE, "application/json")],
        Body::from(body),
    )
        .into_response())
}

/// A message that is made already, and kept once for several clients.
pub(crate) fn shared(body: Bytes) -> Response {
    let mut response = (
        [(header::CONTENT_TYPE, "application/json")],
        Body::from(body),
    )
        .into_response();
    response.extensions_mut().insert(SharedAnswer);
    response
}

/// A value that is an object, as a member of a message; any other value is none.
pub(crate) fn object(value: Value) -> Object {
    match value {
        Value::Object(members) => Object(members),
        _ => Object::default(),
    }
}

/// The empty message.
pub fn empty() -> Answer {
    Ok((
        [(header::CONTENT_TYPE, "application/json")],
        Body::from("{}"),
    )
        .into_response())
}

/// A stream of messages, one JSON object a line, each flushed as it comes. `messages` yields encoded lines (see
/// [`line()`]) or the error that ends the stream. Waits for the first message, so that an early failure has its status. Is
/// refused where the caller's user has as many streams as there may be.
pub async fn stream(
    mut messages: mpsc::Receiver<AppResult<Bytes>>,
    streaming: StreamStart,
) -> Response {
    let (counted, shutdown) = match streaming.begin() {
        Ok(begun) => begun,
        Err(error) => return before_stream(error),
    };
    let first = tokio::select! {
        // A follower of something silent gets its headers at once.
        biased;
        first = messages.recv() => first,
        () = tokio::time::sleep(std::time::Duration::from_millis(100)) => Some(Ok(Bytes::new())),
    };
    let first = match first {
        Some(Err(error)) => return before_stream(error),
        Some(Ok(line)) => line,
        None => Bytes::new(),
    };
    let rest = futures::stream::unfold(Some((messages, shutdown, counted)), |state| async move {
        let (mut messages, shutdown, counted) = state?;
        tokio::select! {
            message = messages.recv() => match message? {
                Ok(line) => Some((line, Some((messages, shutdown, counted)))),
                Err(error) => Some((Bytes::from(stream_line(&error)), None)),
            },
            () = shutdown.cancelled() => {
                let error = AppError::new(ErrorKind::Unavailable, "the master is stopping; ask again when it is back");
                Some((Bytes::from(stream_line(&error)), None))
            }
        }
    });
    let lines = futures::stream::once(async move { first })
        .chain(rest)
        .filter(|line| futures::future::ready(!line.is_empty()))
        .map(Ok::<_, std::convert::Infallible>);
    // `identity` keeps the compression layer away: it would hold lines back.
    (
        [
            (header::CONTENT_TYPE, "application/json"),
            (header::CONTENT_ENCODING, "identity"),
        ],
        Body::from_stream(lines),
    )
        .into_response()
}

/// A message as a line of a stream.
pub fn line<T: Serialize>(message: &T) -> AppResult<Bytes> {
    wire::encode_line(message)
        .map(Bytes::from)
        .map_err(AppError::internal)
}

/// Indents the answer of a `GET` with `?pretty`, for users of curl. Streams stay as they are.
pub async fn pretty(request: Request, next: Next) -> Response {
    let wanted = request.method() == Method::GET
        && request.uri().query().is_some_and(|q| {
            q.split('&')
                .any(|p| p == "pretty" || p.starts_with("pretty="))
        });
    let response = next.run(request).await;
    let is_message = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|t| t == "application/json")
        && !response.headers().contains_key(header::CONTENT_ENCODING);
    // What is made while it is sent stays as it is: it would have to be whole in memory.
    let is_whole = response.body().size_hint().exact().is_some();
    if !wanted || !is_message || !is_whole {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // Messages are whole in memory already.
    let Ok(bytes) = axum::body::to_bytes(body, usize::MAX).await else {
        return ApiError(AppError::internal(anyhow::anyhow!(
            "an answer could not be read back"
        )))
        .into_response();
    };
    let indented = serde_json::from_slice::<serde_json::Value>(&bytes)
        .ok()
        .and_then(|v| wire::encode_pretty(&v).ok());
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(
        parts,
        indented.map_or_else(|| Body::from(bytes), Body::from),
    )
}
