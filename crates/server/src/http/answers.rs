//! Sending large answers within bounds: how much of them waits to be read, and how slow a reader may be.
//!
//! An answer that is larger than a socket takes at once stays in memory until its client has read it. It is counted in
//! the budget of the client's user from then on, and a client that does not read is cut off: the rest is dropped at
//! once, not when the connection ends some day.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::app::Master;
use crate::budget::Reservation;
use crate::connections::StallLimit;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::bodies::{self, Pace};
use crate::http::error::ApiError;

/// Answers up to this size are left to the connection, which has some 64 KiB for what waits to be sent anyway.
const SMALL_BYTES: u64 = 32 << 10;
/// Bytes of an answer that are handed to the connection at once.
const PIECE_BYTES: usize = 64 << 10;

/// How slow a reader may be.
const PACE: Pace = Pace {
    silence: Duration::from_secs(30),
    patience: Duration::from_secs(60),
    bytes_per_second: 32 << 10,
    longest: Duration::from_secs(60 * 60),
};

/// The same for what has no size that could be expected.
const STREAM_PACE: Pace = Pace {
    longest: Duration::MAX,
    ..PACE
};

/// Marks an answer that several clients share: it is counted where it is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedAnswer;

/// Counts large answers and paces them.
pub(crate) async fn bound(State(master): State<Master>, request: Request, next: Next) -> Response {
    let tokens = bodies::Tokens::of(request.headers());
    // A request before this one on the same connection may have been for a stream.
    if let Some(stall_limit) = request.extensions().get::<StallLimit>() {
        stall_limit.expect_reading();
    }
    let response = next.run(request).await;
    let large = response.body().size_hint().exact();
    if large.is_none_or(|bytes| bytes <= SMALL_BYTES)
        || response.extensions().get::<SharedAnswer>().is_some()
    {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // Messages are whole in memory already.
    let Ok(whole) = axum::body::to_bytes(body, usize::MAX).await else {
        let lost = anyhow::anyhow!("an answer could not be read back");
        return ApiError(AppError::internal(lost)).into_response();
    };
    let account = tokens.account(&master).await;
    let held = match master.budgets.answers.reserve(account, whole.len()).await {
        Ok(held) => held,
        Err(busy) => return ApiError(busy).into_response(),
    };
    let size = whole.len();
    parts.headers.insert(header::CONTENT_LENGTH, size.into());
    let pieces = in_pieces(whole, PIECE_BYTES).map(|piece| Ok(Bytes::from(piece)));
    Response::from_parts(parts, paced(pieces, held))
}

/// A whole in pieces of a size. They are copies: a piece that waits in the connection must not keep the whole.
pub(crate) fn in_pieces(
    whole: impl AsRef<[u8]> + Send + 'static,
    bytes: usize,
) -> impl Stream<Item = Vec<u8>> + Send + 'static {
    let size = whole.as_ref().len();
    futures::stream::iter((0..size).step_by(bytes)).map(move |start| {
        let end = (start + bytes).min(size);
        whole.as_ref()[start..end].to_vec()
    })
}

/// A body of pieces that are made as the client reads. Ends with an error, so that the client sees that something is
/// missing, when the client is too slow. What `pieces` and `held` have is released then, or at the end.
pub(crate) fn paced(
    pieces: impl Stream<Item = AppResult<Bytes>> + Send + 'static,
    held: Reservation,
) -> Body {
    paced_with(PACE, pieces, held)
}

/// The same for an answer of any size, such as a checkpoint, which takes as long as it takes.
pub(crate) fn paced_stream(
    pieces: impl Stream<Item = AppResult<Bytes>> + Send + 'static,
    held: Arc<Reservation>,
) -> Body {
    paced_with(STREAM_PACE, pieces, held)
}

fn paced_with(
    pace: Pace,
    pieces: impl Stream<Item = AppResult<Bytes>> + Send + 'static,
    held: impl Send + 'static,
) -> Body {
    let (sender, receiver) = mpsc::channel(1);
    let finished = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let whole = finished.clone();
    // Ends with the pieces, with the connection, or when the client is too slow.
    tokio::spawn(async move {
        if feed(pieces, &sender, pace).await {
            whole.store(true, std::sync::atomic::Ordering::Release);
        }
        drop(held);
    });
    let sent = futures::stream::unfold((receiver, finished), |(mut receiver, finished)| async {
        match receiver.recv().await {
            Some(piece) => Some((Ok(piece), (receiver, finished))),
            None if finished.swap(true, std::sync::atomic::Ordering::AcqRel) => None,
            None => {
                let cut = std::io::Error::other("the answer was cut off");
                Some((Err(cut), (receiver, finished)))
            }
        }
    });
    // Layers above, such as the one that compresses, ask again after the end.
    Body::from_stream(sent.fuse())
}

/// Whether all pieces went out.
async fn feed(
    pieces: impl Stream<Item = AppResult<Bytes>>,
    sender: &mpsc::Sender<Bytes>,
    pace: Pace,
) -> bool {
    let (began, mut sent) = (Instant::now(), 0);
    let mut pieces = std::pin::pin!(pieces);
    while let Some(piece) = pieces.next().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                tracing::warn!(%error, cause = ?error.cause, bytes = sent, "an answer was cut off");
                return false;
            }
        };
        let bytes = piece.len();
        match timeout(pace.rest(sent, began.elapsed()), sender.send(piece)).await {
            Ok(Ok(())) => sent += bytes,
            // It has gone.
            Ok(Err(_)) => return false,
            Err(_) => {
                tracing::info!(bytes = sent, "a client that read too slowly was cut off");
                return false;
            }
        }
    }
    true
}

/// The refusal of a stream whose client does not read.
pub(crate) fn too_slow() -> AppError {
    AppError::new(
        ErrorKind::TooSlow,
        format!(
            "the stream was not read for {} s and was cut off",
            PACE.silence.as_secs()
        ),
    )
}

/// Sends a message of a stream; `false` = its receiver has gone. A client that does not read it in time is cut off: the
/// stream holds memory meanwhile.
pub(crate) async fn send_in_time(
    out: &mpsc::Sender<AppResult<Bytes>>,
    line: Bytes,
) -> AppResult<bool> {
    match timeout(STREAM_SILENCE, out.send(Ok(line))).await {
        Ok(Ok(())) => Ok(true),
        Ok(Err(_)) => Ok(false),
        Err(_) => Err(too_slow()),
    }
}

/// How long a message of a stream may wait to be read, when the stream holds memory meanwhile.
pub(crate) const STREAM_SILENCE: Duration = PACE.silence;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budgets;

    fn pieces(count: usize) -> impl Stream<Item = AppResult<Bytes>> + Send + 'static {
        futures::stream::iter((0..count).map(|_| Ok(Bytes::from_static(b"12345678"))))
    }

    #[tokio::test]
    async fn an_answer_that_is_read_comes_whole_and_is_released() {
        let budget = Budgets::default().answers;
        let held = budget.try_reserve(None, 1000).unwrap();
        let body = paced(pieces(1000), held);
        let read = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        assert_eq!(read.len(), 8000);
        assert_eq!(budget.usage().used, 0);
    }

    #[tokio::test]
    async fn an_answer_can_be_asked_again_after_its_end() {
        let held = Budgets::default().answers.try_reserve(None, 1000).unwrap();
        let mut body = paced(pieces(2), held).into_data_stream();
        assert!(body.next().await.is_some());
        assert!(body.next().await.is_some());
        assert!(body.next().await.is_none());
        assert!(body.next().await.is_none());
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_is_cut_off() {
        let (sender, mut receiver) = mpsc::channel(1);
        let pace = Pace {
            silence: Duration::from_millis(1),
            ..PACE
        };
        assert!(!feed(pieces(1000), &sender, pace).await);
        drop(sender);
        assert!(receiver.recv().await.is_some());
        assert!(receiver.recv().await.is_none(), "nothing more was kept");
    }

    #[tokio::test]
    async fn a_stream_that_is_not_read_is_released() {
        let budget = Budgets::default().archives;
        let held = Arc::new(budget.try_reserve(None, 1000).unwrap());
        let pace = Pace {
            silence: Duration::from_millis(1),
            ..STREAM_PACE
        };
        let mut body = paced_with(pace, pieces(1000), held).into_data_stream();
        assert!(body.next().await.unwrap().is_ok());
        let released = async {
            while budget.usage().used > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), released).await.unwrap();
        assert!(body.any(async |piece| piece.is_err()).await);
    }

    #[tokio::test]
    async fn what_could_not_be_made_ends_the_answer_with_an_error() {
        let budget = Budgets::default().answers;
        let failing = pieces(3).chain(futures::stream::iter([Err(AppError::invalid("no"))]));
        let body = paced(failing, budget.try_reserve(None, 1000).unwrap());
        assert!(axum::body::to_bytes(body, usize::MAX).await.is_err());
        assert_eq!(budget.usage().used, 0);
    }
}
