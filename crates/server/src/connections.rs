//! Connections within bounds: how many at once, and how long one may take to send its request, or to read its answer.
//!
//! A connection costs a descriptor and some kilobytes. A client that opens thousands of them and sends nothing, or sends
//! a header a minute, or reads no answer, must not keep others away.
//!
//! Who holds what: a [`ConnectionLimit`], of which each listening port has a clone, holds the permits of all connections
//! ([`shares`]); a [`CountedConnection`] holds one of them, and its stream with the time for which it may be stalled
//! ([`stalls`]). A connection is, one after the other:
//!
//! ```text
//! accepted  the kernel has it; without a permit it is closed at once
//! admitted  it has a permit; on a port that speaks TLS, plain HTTP is answered and ends it
//! served    one request after the other, each of which has come within a time
//! ended     by either side, or because it stalled or sent no request: the permit is given back
//! ```

mod shares;
mod stalls;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::middleware::AddExtension;
use axum_server::accept::Accept;
use det_api_types::error::{Code, ErrorBody};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use nix::sys::resource::{Resource, getrlimit};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, copy, sink};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::Layer as _;

use crate::auth::Ends;
use crate::connections::shares::{ConnectionShares, SharePermit};
pub(crate) use crate::connections::stalls::StallLimit;
use crate::connections::stalls::{StallGuard, StallTimes};

/// A request's line and headers must have come within this time. Counts from the end of the request before, so that a
/// connection on which nothing happens is closed as well; clients open another one.
const HEADERS: Duration = Duration::from_secs(30);
/// The first byte of a handshake must have come within this time, and the answer to what is none have left.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// Bytes of a request's line and headers.
const HEADERS_BYTES: usize = 64 << 10;
/// Descriptors that are kept for the database, files and agents that come back.
const RESERVED: u64 = 256;
/// Fewest connections that are let in, whatever the limit on descriptors.
const FEWEST: usize = 64;
/// Bytes that the kernel takes for a client before it has taken what came earlier. Without a bound it is megabytes for
/// each follower of a log that does not read on, encoded for no reader.
const UNSENT: u32 = 128 << 10;
/// Connections that are let in where descriptors are not limited.
const MOST: usize = 1 << 20;

/// HTTP/1.1 with time limits. HTTP/2 is left out: no client of this API speaks it without TLS, and with TLS it is not
/// offered.
pub(crate) fn bounded_http(builder: &mut Builder<TokioExecutor>) {
    let mut bounded = Builder::new(TokioExecutor::new()).http1_only();
    bounded
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(HEADERS_BYTES);
    *builder = bounded;
}

/// Streams of one user at most, where there are descriptors for many more.
const MOST_STREAMS_OF_ONE: usize = 512;

/// Streams that one user may have open: a third of the connections at most.
pub(crate) fn streams_of_one() -> usize {
    MOST_STREAMS_OF_ONE.min(connections_with(open_files()) / 3)
}

/// This process's limit on open files.
fn open_files() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

/// Lets in as many connections as there are descriptors for, and closes those beyond.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimit {
    shares: ConnectionShares,
}

impl ConnectionLimit {
    /// As many as this process's limit on open files allows.
    pub(crate) fn new() -> Self {
        Self::at_most(connections_with(open_files()))
    }

    fn at_most(connections: usize) -> Self {
        Self {
            shares: ConnectionShares::new(connections),
        }
    }
}

/// Connections for a limit on open files.
fn connections_with(files: u64) -> usize {
    usize::try_from(files.saturating_sub(RESERVED))
        .unwrap_or(MOST)
        .clamp(FEWEST, MOST)
}

impl ConnectionLimit {
    fn admit(&self, stream: TcpStream) -> io::Result<CountedConnection> {
        let client = stream.peer_addr()?;
        let permit = self.shares.take(client.ip()).map_err(|why| {
            tracing::warn!(%client, "a connection was refused: {why}");
            io::Error::other(why)
        })?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT)?;
        Ok(CountedConnection {
            stream: StallGuard::new(stream, StallLimit::new(StallTimes::default())),
            _permit: permit,
        })
    }
}

/// A service whose requests have as extensions both [`Ends`] of their connection (logins are slowed down by the address
/// that they come from, and a blank password is for users of this machine), and its [`StallLimit`].
type WithEnds<S> = AddExtension<AddExtension<S, Ends>, StallLimit>;

impl<S> Accept<TcpStream, S> for ConnectionLimit {
    type Stream = CountedConnection;
    type Service = WithEnds<S>;
    type Future = std::future::Ready<io::Result<(CountedConnection, WithEnds<S>)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let accepted = self.admit(stream).and_then(|admitted| {
            let ends = admitted.ends()?;
            let limit = admitted.stream.limit().clone();
            let service = Extension(limit).layer(Extension(ends).layer(service));
            Ok((admitted, service))
        });
        std::future::ready(accepted)
    }
}

/// As [`ConnectionLimit`], for a port that speaks TLS: a client that begins with plain HTTP receives an answer that explains it,
/// instead of the alert of a failed handshake.
#[derive(Debug, Clone)]
pub(crate) struct TlsOnly(pub(crate) ConnectionLimit);

/// What a client that spoke plain HTTP is to know.
const SPEAKS_TLS: &str =
    "this port speaks TLS: use https:// in the address of the master instead of http://";

impl<S: Send + 'static> Accept<TcpStream, S> for TlsOnly {
    type Stream = CountedConnection;
    type Service = WithEnds<S>;
    type Future =
        Pin<Box<dyn Future<Output = io::Result<(CountedConnection, WithEnds<S>)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let accepted = self.0.accept(stream, service);
        Box::pin(async move {
            let (mut admitted, service) = accepted.await?;
            let mut first = [0];
            let begins_with_http = async {
                admitted.stream.stream().peek(&mut first).await?;
                // The first byte of a request is that of its method; that of a handshake is 22.
                Ok::<_, io::Error>(first[0].is_ascii_uppercase())
            };
            if !timeout(FIRST_BYTE, begins_with_http).await?? {
                return Ok((admitted, service));
            }
            if let Ok(peer) = admitted.stream.stream().peer_addr() {
                tracing::info!(%peer, "a client spoke plain HTTP to this port, which speaks TLS; it was answered to use https://");
            }
            let body = ErrorBody::new(Code::InvalidArgument, SPEAKS_TLS.to_owned());
            let body = serde_json::to_string(&body).unwrap_or_default();
            let answer = format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            timeout(FIRST_BYTE, admitted.write_all(answer.as_bytes())).await??;
            admitted.shutdown().await?;
            // With bytes unread the end of the connection would be a reset, which may overtake the answer.
            let mut rest = admitted.take(HEADERS_BYTES as u64);
            let _ = timeout(FIRST_BYTE, copy(&mut rest, &mut sink())).await;
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "plain HTTP where TLS is spoken",
            ))
        })
    }
}

/// A connection that gives its permit back when it ends.
#[derive(Debug)]
pub(crate) struct CountedConnection {
    stream: StallGuard<TcpStream>,
    _permit: SharePermit,
}

impl CountedConnection {
    fn ends(&self) -> io::Result<Ends> {
        Ok(Ends {
            client: self.stream.stream().peer_addr()?,
            master: self.stream.stream().local_addr()?,
        })
    }
}

impl AsyncRead for CountedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for CountedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_kept_for_other_things() {
        for (files, connections) in [
            (0, 64),
            (256, 64),
            (1024, 768),
            (65_536, 65_280),
            (u64::MAX, MOST),
        ] {
            assert_eq!(connections_with(files), connections, "{files} open files");
        }
    }

    #[tokio::test]
    async fn a_permit_is_given_back_at_the_end_of_its_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounded = ConnectionLimit::at_most(1);
        let connect = || async {
            let outside = TcpStream::connect(address).await.unwrap();
            let (inside, _) = listener.accept().await.unwrap();
            (outside, bounded.accept(inside, ()).await)
        };
        let (_a, first) = connect().await;
        assert!(first.is_ok());
        let (_b, second) = connect().await;
        assert!(second.is_err(), "there is one permit");
        drop(first);
        let (_c, third) = connect().await;
        assert!(third.is_ok(), "and it is free again");
    }
    /// What a port that speaks TLS makes of a client that sends this first: whether it goes on, and what it answers.
    async fn first_bytes(sent: &[u8]) -> (bool, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut outside = TcpStream::connect(address).await.unwrap();
        let (inside, _) = listener.accept().await.unwrap();
        outside.write_all(sent).await.unwrap();
        outside.shutdown().await.unwrap();
        let accepted = TlsOnly(ConnectionLimit::at_most(1))
            .accept(inside, ())
            .await;
        let goes_on = accepted.is_ok();
        drop(accepted);
        let mut answer = Vec::new();
        // Where it goes on, what was not read makes the end of the connection a reset.
        let _ = outside.read_to_end(&mut answer).await;
        (goes_on, String::from_utf8(answer).unwrap())
    }

    #[tokio::test]
    async fn plain_http_to_a_port_that_speaks_tls_is_answered() {
        let (goes_on, answer) = first_bytes(b"GET /info HTTP/1.1\r\n\r\n").await;
        assert!(!goes_on);
        assert!(
            answer.starts_with("HTTP/1.1 400 Bad Request\r\n"),
            "{answer}"
        );
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["error"], SPEAKS_TLS);
        assert_eq!(first_bytes(&[22, 3, 1]).await, (true, String::new()));
    }
}
