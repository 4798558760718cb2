//! Connections whose clients take nothing of what is sent to them: they are ended.
//!
//! What was answered and is not read is in the memory of the master, and the connection holds a permit that other clients
//! may need. A connection is in one of these states:
//!
//! ```text
//! open     there is nothing to send, or the last write went on: as long as the client likes
//! stalled  it waits to send and has sent nothing since; a write that goes on makes it open
//! ended    it was stalled for longer than its limit: the write fails, and the connection is closed
//! ```
//!
//! The [`StallGuard`] is the connection with its state. Its [`StallLimit`] is held by the guard and, as an extension, by each
//! request on it, which raises or lowers it: a follower of a log may be slower than the reader of one answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// How long a connection may be stalled.
#[derive(Debug, Clone, Copy)]
pub(super) struct StallTimes {
    /// In general. Kernels let a sender know in steps of some 100 KiB that a client has read, so this is what one that
    /// takes some kB/s needs.
    pub(super) ordinary: Duration,
    /// Where the client may be slow or suspended: its connections are counted elsewhere.
    pub(super) slow: Duration,
}

impl Default for StallTimes {
    fn default() -> Self {
        Self {
            ordinary: Duration::from_secs(60),
            slow: Duration::from_secs(15 * 60),
        }
    }
}

/// How long a connection may be stalled at present; requests have that of their connection as an extension.
#[derive(Debug, Clone)]
pub(crate) struct StallLimit {
    times: StallTimes,
    is_slow: Arc<AtomicBool>,
}

impl StallLimit {
    pub(super) fn new(times: StallTimes) -> Self {
        Self {
            times,
            is_slow: Arc::default(),
        }
    }

    /// The client must read what it is sent.
    pub(crate) fn expect_reading(&self) {
        self.is_slow.store(false, Ordering::Relaxed);
    }

    /// The client may be as slow as it likes: for what is counted, such as the streams of a user.
    pub(crate) fn expect_slow_reading(&self) {
        self.is_slow.store(true, Ordering::Relaxed);
    }

    fn wait(&self) -> Duration {
        if self.is_slow.load(Ordering::Relaxed) {
            self.times.slow
        } else {
            self.times.ordinary
        }
    }
}

/// A connection that fails once it was stalled for too long.
#[derive(Debug)]
pub(super) struct StallGuard<S> {
    stream: S,
    limit: StallLimit,
    /// Since when it is stalled, and when that is looked at again; `None` = it is open.
    stalled: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S> StallGuard<S> {
    pub(super) fn new(stream: S, limit: StallLimit) -> Self {
        Self {
            stream,
            limit,
            stalled: None,
        }
    }

    pub(super) fn stream(&self) -> &S {
        &self.stream
    }

    pub(super) fn limit(&self) -> &StallLimit {
        &self.limit
    }

    /// What a write comes to, by whether and since when the connection is stalled.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let now = Instant::now();
        let wait = self.limit.wait();
        let (since, look) = self
            .stalled
            .get_or_insert_with(|| (now, Box::pin(sleep_until(now + wait))));
        while look.as_mut().poll(cx).is_ready() {
            // The limit may have been raised since.
            let end = *since + wait;
            if end <= Instant::now() {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client does not read what it is sent",
                )));
            }
            look.as_mut().reset(end);
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Sends nothing by itself, so it is no progress either.
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::{Body, Bytes};
    use axum::response::Response;
    use futures::FutureExt as _;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::server::conn::auto::Builder;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;
    use crate::connections::bounded_http;

    const NEVER: Duration = Duration::from_secs(3600);
    const AT_ONCE: Duration = Duration::from_millis(1);

    fn pair(ordinary: Duration, slow: Duration) -> (StallGuard<DuplexStream>, DuplexStream) {
        let (inside, outside) = duplex(16);
        let limit = StallLimit::new(StallTimes { ordinary, slow });
        (StallGuard::new(inside, limit), outside)
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_given_up() {
        let (mut inside, _outside) = pair(AT_ONCE, NEVER);
        let error = inside.write_all(&[0; 17]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_client_that_reads_a_little_has_the_whole_time_again() {
        let (mut inside, mut outside) = pair(NEVER, NEVER);
        for _ in 0..3 {
            assert!(inside.write_all(&[0; 17]).now_or_never().is_none());
            assert!(inside.stalled.is_some());
            assert!(inside.write_all(&[0; 1]).now_or_never().is_none());
            outside.read_exact(&mut [0; 1]).await.unwrap();
            inside.write_all(&[0; 1]).await.unwrap();
            assert!(inside.stalled.is_none());
        }
    }

    #[tokio::test]
    async fn a_connection_with_nothing_to_send_waits_for_ever() {
        let (mut inside, mut outside) = pair(Duration::ZERO, NEVER);
        inside.write_all(&[0; 16]).await.unwrap();
        assert!(inside.stalled.is_none());
        assert!(inside.read_exact(&mut [0; 1]).now_or_never().is_none());
        outside.write_all(&[0; 1]).await.unwrap();
        inside.read_exact(&mut [0; 1]).await.unwrap();
    }

    #[tokio::test]
    async fn a_slow_client_of_a_stream_is_waited_for() {
        let (mut inside, mut outside) = pair(AT_ONCE, NEVER);
        let limit = inside.limit().clone();
        assert!(inside.write_all(&[0; 17]).now_or_never().is_none());
        limit.expect_slow_reading();
        let (_, look) = inside.stalled.as_mut().unwrap();
        // Until the time at which it would have been given up has passed.
        look.as_mut().await;
        assert!(inside.write_all(&[0; 1]).now_or_never().is_none());
        outside.read_exact(&mut [0; 16]).await.unwrap();
        inside.write_all(&[0; 16]).await.unwrap();
        limit.expect_reading();
        assert!(inside.write_all(&[0; 1]).await.is_err());
    }

    /// Serves 64 requests that a client sends at once and whose answers it does not read.
    async fn serve_unread(body: fn() -> Body) {
        let (inside, mut outside) = duplex(4096);
        let inside = StallGuard::new(
            inside,
            StallLimit::new(StallTimes {
                ordinary: AT_ONCE,
                slow: NEVER,
            }),
        );
        outside
            .write_all("GET / HTTP/1.1\r\nHost: m\r\n\r\n".repeat(64).as_bytes())
            .await
            .unwrap();
        let mut builder = Builder::new(TokioExecutor::new());
        bounded_http(&mut builder);
        let answer = hyper::service::service_fn(move |_: hyper::Request<_>| {
            std::future::ready(Ok::<_, Infallible>(Response::new(body())))
        });
        let served = builder.serve_connection(TokioIo::new(inside), answer).await;
        assert!(served.is_err(), "it was cut off");
        drop(outside);
    }

    #[tokio::test]
    async fn answers_that_are_not_read_end_with_their_connection() {
        serve_unread(|| Body::from("small")).await;
        serve_unread(|| Body::from(vec![0; 250 << 10])).await;
        serve_unread(|| {
            let endless = futures::stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from("line")));
            Body::from_stream(endless)
        })
        .await;
    }
}
