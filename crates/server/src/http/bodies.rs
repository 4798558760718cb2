//! Reading request bodies within bounds: how large, how slow, how many values, and how many large ones at once.
//!
//! Whoever may send a request may try to fill the master's memory with it. A body is therefore read into one buffer that
//! never grows past the operation's limit, a sender that stalls is given up, a body with more values than any client
//! sends is refused before they become objects, and large requests wait for their turn.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::error::ApiError;

const MIB: usize = 1 << 20;

/// Largest body of an operation that brings files: the client's 95 MiB as base64, with room to spare.
pub const FILES_LIMIT_BYTES: usize = 160 * MIB;
/// Largest body of a report: metrics, log lines, lists of files, what containers exchange.
pub const REPORT_LIMIT_BYTES: usize = 64 * MIB;
/// Largest body of a login, which anybody may send.
pub const LOGIN_LIMIT_BYTES: usize = 64 << 10;
/// Largest body of anything else.
pub const PLAIN_LIMIT_BYTES: usize = 8 * MIB;

/// Most JSON values in a body. Each takes 32 bytes as an object, a member of a map some 100: this bounds what a body of
/// the densest kind (`[0,0,0`) becomes to about half a gigabyte.
pub const VALUES_LIMIT: usize = 4_000_000;
/// Bodies below this size cannot hold too many values: each takes a byte at least.
const COUNTED_BYTES: usize = VALUES_LIMIT;

/// Bytes of large bodies that are read and handled at once; what comes beyond waits.
const LARGE_BUDGET_BYTES: usize = 2 * FILES_LIMIT_BYTES;
/// Bodies up to this size do not count.
const LARGE_BYTES: usize = MIB;

/// How slow a sender may be.
const PACE: Pace = Pace {
    silence: Duration::from_secs(10),
    patience: Duration::from_secs(20),
    bytes_per_second: 32 << 10,
};
/// Of a body that is too large, so much is read and thrown away, so that its sender reaches the end and sees the answer.
const DISCARD_BYTES: usize = 512 * MIB;

/// The limit that holds for a request; set by [`bound`], read by [`read`].
#[derive(Debug, Clone, Copy)]
struct Limit(usize);

/// How slow a sender may be.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// One that gives nothing for this long is given up.
    silence: Duration,
    /// It has this long for the whole, and what the bytes earn that have come.
    patience: Duration,
    /// So many bytes earn one second more.
    bytes_per_second: usize,
}

impl Pace {
    /// How long the next piece may take, counted from `elapsed` after the begin.
    fn rest(&self, received: usize, elapsed: Duration) -> Duration {
        let earned = u64::try_from(received / self.bytes_per_second).unwrap_or(u64::MAX);
        let whole = self.patience.saturating_add(Duration::from_secs(earned));
        self.silence.min(whole.saturating_sub(elapsed))
    }
}

/// Turns of large requests. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Semaphore>);

impl Turns {
    /// As many as the budget allows.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_BUDGET_BYTES / LARGE_BYTES)))
    }
}

/// The largest body of an operation.
fn limit_of(method: &Method, path: &str) -> usize {
    let is_report = path.ends_with("/metrics")
        || path.ends_with("/all_gather")
        || matches!(
            path,
            "/api/v1/task/logs" | "/task-logs" | "/api/v1/checkpoints" | "/api/v1/checkpoints/rm"
        );
    match path {
        "/api/v1/experiments" if method == Method::POST => FILES_LIMIT_BYTES,
        "/api/v1/auth/login" | "/login" => LOGIN_LIMIT_BYTES,
        _ if is_report => REPORT_LIMIT_BYTES,
        _ => PLAIN_LIMIT_BYTES,
    }
}

fn declared_length(headers: &HeaderMap) -> Option<usize> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// Gives each request its limit, and a large one its turn, which it keeps until it is answered.
pub(crate) async fn bound(
    State(turns): State<Turns>,
    mut request: Request,
    next: Next,
) -> Response {
    let limit = limit_of(request.method(), request.uri().path());
    request.extensions_mut().insert(Limit(limit));
    let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let expected = match declared_length(request.headers()) {
        Some(length) => length.min(limit),
        None if chunked => limit,
        None => 0,
    };
    if expected <= LARGE_BYTES {
        return next.run(request).await;
    }
    let share = u32::try_from(expected.div_ceil(LARGE_BYTES)).unwrap_or(u32::MAX);
    match turns.0.acquire_many(share).await {
        Ok(_turn) => next.run(request).await,
        Err(closed) => ApiError(AppError::internal(closed)).into_response(),
    }
}

/// The whole body, within the limit of its request.
pub(crate) async fn read(request: Request) -> AppResult<Vec<u8>> {
    let limit = request
        .extensions()
        .get()
        .map_or(PLAIN_LIMIT_BYTES, |Limit(limit)| *limit);
    let declared = declared_length(request.headers()).unwrap_or(0);
    let mut pieces = Pieces::new(request.into_body(), PACE);
    if declared > limit {
        pieces.discard().await;
        return Err(too_large(limit));
    }
    // What is declared is a promise: the buffer grows with what comes.
    let mut body = Vec::with_capacity(declared.min(LARGE_BYTES));
    while let Some(piece) = pieces.next().await? {
        if body.len() + piece.len() > limit {
            drop(body);
            pieces.discard().await;
            return Err(too_large(limit));
        }
        body.extend_from_slice(&piece);
    }
    check_values(&body)?;
    Ok(body)
}

/// Refuses bodies that would become too many objects.
fn check_values(body: &[u8]) -> AppResult<()> {
    if body.len() < COUNTED_BYTES || values(body) <= VALUES_LIMIT {
        return Ok(());
    }
    Err(AppError::new(
        ErrorKind::TooLarge,
        format!(
            "the request holds more than {VALUES_LIMIT} values, which is the most that one may hold"
        ),
    )
    .hint("send it in several requests"))
}

/// Values in a JSON text, roughly: each but the first of a list or map follows a comma.
fn values(text: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

fn too_large(limit: usize) -> AppError {
    AppError::new(
        ErrorKind::TooLarge,
        format!("the request's body is too large: this operation takes at most {limit} bytes"),
    )
    .hint(if limit == FILES_LIMIT_BYTES {
        "leave large files out of the context directory with a .detignore file"
    } else {
        "send it in several requests"
    })
}

/// A body as it comes, as long as it comes fast enough.
struct Pieces {
    stream: BodyDataStream,
    pace: Pace,
    began: Instant,
    received: usize,
}

impl Pieces {
    fn new(body: Body, pace: Pace) -> Self {
        Self {
            stream: body.into_data_stream(),
            pace,
            began: Instant::now(),
            received: 0,
        }
    }

    /// The next piece; `None` at the end.
    async fn next(&mut self) -> AppResult<Option<bytes::Bytes>> {
        let rest = self.pace.rest(self.received, self.began.elapsed());
        match timeout(rest, self.stream.next()).await {
            Ok(Some(Ok(piece))) => {
                self.received += piece.len();
                Ok(Some(piece))
            }
            Ok(None) => Ok(None),
            Ok(Some(Err(_))) => Err(AppError::invalid(
                "the request's body could not be read to its end",
            )),
            Err(_) => Err(AppError::new(
                ErrorKind::TooSlow,
                format!(
                    "the request's body came too slowly: {} bytes had come; it must not pause for {} s, and come with \
                     at least {} bytes a second",
                    self.received,
                    self.pace.silence.as_secs(),
                    self.pace.bytes_per_second
                ),
            )),
        }
    }

    /// Reads on, and forgets it.
    async fn discard(mut self) {
        while self.received < DISCARD_BYTES {
            // An end of any kind is an end.
            let Ok(Some(_)) = self.next().await else {
                return;
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (text, count) in [
            ("", 0),
            ("1", 0),
            ("[1,2,3]", 3),
            (r#"{"a":1,"b":[{}]}"#, 4),
            (r#"["[,{", "\"[,", "\\"]"#, 3),
        ] {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
    }

    #[test]
    fn each_operation_has_the_limit_of_its_kind() {
        let limit = |path: &str| limit_of(&Method::POST, path);
        assert_eq!(limit("/api/v1/experiments"), FILES_LIMIT_BYTES);
        assert_eq!(limit("/api/v1/trials/7/metrics"), REPORT_LIMIT_BYTES);
        assert_eq!(limit("/login"), LOGIN_LIMIT_BYTES);
        assert_eq!(limit("/api/v1/users"), PLAIN_LIMIT_BYTES);
        assert_eq!(
            limit_of(&Method::GET, "/api/v1/experiments"),
            PLAIN_LIMIT_BYTES
        );
    }

    fn request(body: Body, limit: usize, declared: Option<usize>) -> Request {
        let mut request = Request::new(body);
        request.extensions_mut().insert(Limit(limit));
        if let Some(length) = declared {
            request
                .headers_mut()
                .insert(header::CONTENT_LENGTH, length.into());
        }
        request
    }

    #[tokio::test]
    async fn a_body_within_its_limit_is_read_whole() {
        let body = read(request(Body::from("12345"), 5, None)).await.unwrap();
        assert_eq!(body, b"12345");
    }

    #[tokio::test]
    async fn a_body_beyond_its_limit_is_refused_with_the_limit() {
        for declared in [None, Some(6), Some(usize::MAX)] {
            let error = read(request(Body::from("123456"), 5, declared))
                .await
                .unwrap_err();
            assert_eq!(error.kind, ErrorKind::TooLarge);
            assert!(
                error.message.contains("at most 5 bytes"),
                "{}",
                error.message
            );
        }
    }

    #[tokio::test]
    async fn too_many_values_are_refused_before_they_are_read() {
        let dense = format!("[{}0]", "0,".repeat(VALUES_LIMIT));
        let error = read(request(Body::from(dense), usize::MAX, None))
            .await
            .unwrap_err();
        assert!(
            error.message.contains("more than 4000000 values"),
            "{}",
            error.message
        );
    }

    #[tokio::test]
    async fn a_sender_that_stalls_is_given_up() {
        let first = futures::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from("1"))]);
        let body = Body::from_stream(first.chain(futures::stream::pending()));
        let pace = Pace {
            silence: Duration::from_millis(1),
            ..PACE
        };
        let mut pieces = Pieces::new(body, pace);
        assert_eq!(pieces.next().await.unwrap().as_deref(), Some(&b"1"[..]));
        let error = pieces.next().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooSlow);
        assert!(
            error.message.contains("1 bytes had come"),
            "{}",
            error.message
        );
    }

    #[test]
    fn a_sender_of_single_bytes_has_the_whole_time_and_no_more() {
        let seconds = Duration::from_secs;
        for (received, elapsed, rest) in [
            (0, 0, 10),
            (100, 15, 5),
            (100, 20, 0),
            (100, 90, 0),
            (32 << 10, 20, 1),
            (32 << 20, 20, 10),
        ] {
            assert_eq!(
                PACE.rest(received, seconds(elapsed)),
                seconds(rest),
                "{received} bytes, {elapsed} s"
            );
        }
    }
}
