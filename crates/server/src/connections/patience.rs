//! Connections whose clients take nothing of what is sent to them: they are given up.
//!
//! What was answered and is not read waits in the memory of the master, and the connection has a place that other clients
//! may need. A connection that waits to send and has sent nothing for some time is closed. One on which there is nothing to
//! send, as that of a follower of a silent log, waits for as long as it likes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// How long a connection may wait to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waits {
    /// In general. Kernels let a sender know in steps of some 100 KiB that a client has read, so this is what one that
    /// takes some kB/s needs.
    pub(super) ordinary: Duration,
    /// Where the client may be slow or suspended: its connections are counted elsewhere.
    pub(super) slow: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            ordinary: Duration::from_secs(60),
            slow: Duration::from_secs(15 * 60),
        }
    }
}

/// How patient a connection is at present; requests have that of their connection as an extension.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    waits: Waits,
    is_slow: Arc<AtomicBool>,
}

impl Patience {
    pub(super) fn new(waits: Waits) -> Self {
        Self {
            waits,
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
            self.waits.slow
        } else {
            self.waits.ordinary
        }
    }
}

/// Bytes that are sent, until sending makes no progress for too long.
#[derive(Debug)]
pub(super) struct Impatient<S> {
    stream: S,
    patience: Patience,
    /// Since when it waits to send, and when it looks again; `None` = the last write went on.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S> Impatient<S> {
    pub(super) fn new(stream: S, patience: Patience) -> Self {
        Self {
            stream,
            patience,
            waiting: None,
        }
    }

    pub(super) fn stream(&self) -> &S {
        &self.stream
    }

    pub(super) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// What a write comes to, by whether and since when it waits.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let now = Instant::now();
        let wait = self.patience.wait();
        let (since, look) = self
            .waiting
            .get_or_insert_with(|| (now, Box::pin(sleep_until(now + wait))));
        while look.as_mut().poll(cx).is_ready() {
            // The patience may have grown since.
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

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
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

    fn pair(ordinary: Duration, slow: Duration) -> (Impatient<DuplexStream>, DuplexStream) {
        let (inside, outside) = duplex(16);
        let patience = Patience::new(Waits { ordinary, slow });
        (Impatient::new(inside, patience), outside)
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
            assert!(inside.waiting.is_some());
            assert!(inside.write_all(&[0; 1]).now_or_never().is_none());
            outside.read_exact(&mut [0; 1]).await.unwrap();
            inside.write_all(&[0; 1]).await.unwrap();
            assert!(inside.waiting.is_none());
        }
    }

    #[tokio::test]
    async fn a_connection_with_nothing_to_send_waits_for_ever() {
        let (mut inside, mut outside) = pair(Duration::ZERO, NEVER);
        inside.write_all(&[0; 16]).await.unwrap();
        assert!(inside.waiting.is_none());
        assert!(inside.read_exact(&mut [0; 1]).now_or_never().is_none());
        outside.write_all(&[0; 1]).await.unwrap();
        inside.read_exact(&mut [0; 1]).await.unwrap();
    }

    #[tokio::test]
    async fn a_slow_client_of_a_stream_is_waited_for() {
        let (mut inside, mut outside) = pair(AT_ONCE, NEVER);
        let patience = inside.patience().clone();
        assert!(inside.write_all(&[0; 17]).now_or_never().is_none());
        patience.expect_slow_reading();
        let (_, look) = inside.waiting.as_mut().unwrap();
        // Until the time at which it would have been given up has passed.
        look.as_mut().await;
        assert!(inside.write_all(&[0; 1]).now_or_never().is_none());
        outside.read_exact(&mut [0; 16]).await.unwrap();
        inside.write_all(&[0; 16]).await.unwrap();
        patience.expect_reading();
        assert!(inside.write_all(&[0; 1]).await.is_err());
    }

    /// Serves 64 requests that a client sends at once and whose answers it does not read.
    async fn serve_unread(body: fn() -> Body) {
        let (inside, mut outside) = duplex(4096);
        let inside = Impatient::new(
            inside,
            Patience::new(Waits {
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
