//! Bytes between a client and a service, in both directions, until both have ended.
//!
//! The two directions of a connection end apart: a client that has sent all its bytes still waits for the answer. What is
//! left of a connection goes on as long as it carries something now and then ([`IDLE`]).

use std::io;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket};
use futures::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The WebSocket protocol of clients whose directions end apart: an empty message ends the direction in which it goes.
/// Without it the end of a direction is that of the WebSocket, which ends both. `docs/contract/http-api.md`, "Services".
pub(super) const ENDS_APART: &str = "det.ends-apart";
/// Bytes that one direction of a connection holds at most.
const BUFFER_BYTES: usize = 64 << 10;
/// How long one side of a connection may take nothing before it is cut: what waits for it is held in memory.
const STALL: Duration = Duration::from_mins(5);
/// How long one direction may carry nothing when the other has ended. A service may need time for its answer; a side that
/// has gone without closing it holds a connection no longer than this.
const IDLE: Duration = Duration::from_mins(5);
/// How long it may take to pass on the end of a direction.
const ENDING: Duration = Duration::from_secs(10);

/// How one direction of a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its reader has no more, or its writer takes no more; the other direction may go on.
    Done,
    /// Its writer took nothing for too long, and the connection is given up.
    Stalled,
}

/// Carries bytes between two connections.
pub(super) async fn carry(one: impl AsyncRead + AsyncWrite, other: impl AsyncRead + AsyncWrite) {
    carry_within(one, other, || sleep(IDLE)).await;
}

/// Carries bytes between the binary messages of a WebSocket and a raw service.
pub(super) async fn carry_bytes(socket: WebSocket, service: impl AsyncRead + AsyncWrite) {
    let ends_apart = socket.protocol().is_some_and(|name| name == ENDS_APART);
    let (to_client, from_client) = socket.split();
    carry_messages(to_client, from_client, service, ends_apart, || sleep(IDLE)).await;
}

/// [`carry`], where what is left may carry nothing until a future of `quiet` is ready.
async fn carry_within<Q: Future<Output = ()>>(
    one: impl AsyncRead + AsyncWrite,
    other: impl AsyncRead + AsyncWrite,
    quiet: impl Fn() -> Q,
) {
    let (mut from_one, mut to_one) = split(one);
    let (mut from_other, mut to_other) = split(other);
    let flow = Notify::new();
    let there = pump(&mut from_one, &mut to_other, &flow);
    let back = pump(&mut from_other, &mut to_one, &flow);
    tokio::pin!(there, back);
    tokio::select! {
        end = &mut there => if end == End::Done { while_it_flows(back, &flow, quiet).await },
        end = &mut back => if end == End::Done { while_it_flows(there, &flow, quiet).await },
    }
}

/// Copies until the reader ends, or the writer takes no more.
async fn pump(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    flow: &Notify,
) -> End {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(read @ 1..) = reader.read(&mut buffer).await {
        match timeout(STALL, deliver(writer, &buffer[..read])).await {
            Ok(Ok(())) => flow.notify_one(),
            Ok(Err(_)) => return End::Done,
            Err(_) => return End::Stalled,
        }
    }
    // The other side may be gone already.
    let _ = timeout(ENDING, writer.shutdown()).await;
    End::Done
}

/// Writes bytes, and what a stream that encrypts them holds back until it is flushed.
async fn deliver(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    writer.write_all(bytes).await?;
    writer.flush().await
}

/// Waits for the end of a direction whose other one has ended, or until it has carried nothing for the time that a future
/// of `quiet` takes.
async fn while_it_flows<Q: Future<Output = ()>>(
    rest: impl Future<Output = End>,
    flow: &Notify,
    quiet: impl Fn() -> Q,
) {
    tokio::pin!(rest);
    loop {
        tokio::select! {
            biased;
            _ = &mut rest => return,
            () = flow.notified() => {}
            () = quiet() => return,
        }
    }
}

/// [`carry_bytes`], over the messages of a client.
async fn carry_messages<E, Q: Future<Output = ()>>(
    mut to_client: impl Sink<Message> + Unpin,
    mut from_client: impl Stream<Item = Result<Message, E>> + Unpin,
    service: impl AsyncRead + AsyncWrite,
    ends_apart: bool,
    quiet: impl Fn() -> Q,
) {
    let (mut from_service, mut to_service) = split(service);
    let flow = Notify::new();
    {
        let up = pump_up(&mut from_client, &mut to_service, ends_apart, &flow);
        let down = pump_down(&mut from_service, &mut to_client, ends_apart, &flow);
        tokio::pin!(up, down);
        tokio::select! {
            end = &mut up => if end == End::Done { while_it_flows(down, &flow, quiet).await },
            end = &mut down => if end == End::Done { while_it_flows(up, &flow, quiet).await },
        }
    }
    // The client may be gone already.
    let _ = timeout(ENDING, to_client.close()).await;
}

/// Copies the messages of a client to a service.
async fn pump_up<E>(
    from_client: &mut (impl Stream<Item = Result<Message, E>> + Unpin),
    to_service: &mut (impl AsyncWrite + Unpin),
    ends_apart: bool,
    flow: &Notify,
) -> End {
    while let Some(Ok(message)) = from_client.next().await {
        let bytes: Bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => break,
            Message::Ping(_) | Message::Pong(_) => continue,
        };
        if bytes.is_empty() && ends_apart {
            break;
        }
        match timeout(STALL, deliver(to_service, &bytes)).await {
            Ok(Ok(())) => flow.notify_one(),
            Ok(Err(_)) => return End::Done,
            Err(_) => return End::Stalled,
        }
    }
    // The service may be gone already.
    let _ = timeout(ENDING, to_service.shutdown()).await;
    End::Done
}

/// Copies what a service sends into messages to a client.
async fn pump_down(
    from_service: &mut (impl AsyncRead + Unpin),
    to_client: &mut (impl Sink<Message> + Unpin),
    ends_apart: bool,
    flow: &Notify,
) -> End {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(read @ 1..) = from_service.read(&mut buffer).await {
        let message = Message::Binary(Bytes::copy_from_slice(&buffer[..read]));
        match timeout(STALL, to_client.send(message)).await {
            Ok(Ok(())) => flow.notify_one(),
            Ok(Err(_)) => return End::Done,
            Err(_) => return End::Stalled,
        }
    }
    // The client may be gone already.
    if ends_apart {
        let _ = timeout(ENDING, to_client.send(Message::Binary(Bytes::new()))).await;
    } else {
        let _ = timeout(ENDING, to_client.close()).await;
    }
    End::Done
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use futures::channel::mpsc;
    use tokio::io::{BufStream, DuplexStream, duplex};
    use tokio::sync::oneshot;

    use super::*;

    /// Times of quiet that pass when the test ends them.
    #[derive(Clone, Default)]
    struct Quiet(Arc<Mutex<Vec<oneshot::Sender<()>>>>);

    impl Quiet {
        fn begin(&self) -> impl Future<Output = ()> + use<> {
            let (over, waits) = oneshot::channel();
            self.0.lock().unwrap().push(over);
            async move { drop(waits.await) }
        }

        /// Lets the first ones pass that have begun; returns how many of them still were waited for.
        fn pass(&self, count: usize) -> usize {
            let begun = self.0.lock().unwrap().drain(..count).collect::<Vec<_>>();
            begun
                .into_iter()
                .filter_map(|over| over.send(()).ok())
                .count()
        }

        fn begun(&self) -> usize {
            self.0.lock().unwrap().len()
        }
    }

    /// Sends bytes one by one and receives them at the other end; each begins the time of quiet anew.
    async fn trickle(from: &mut DuplexStream, quiet: &Quiet, mut receive: impl AsyncFnMut() -> u8) {
        for byte in 0..100 {
            from.write_u8(byte).await.unwrap();
            assert_eq!(receive().await, byte);
            let earlier = quiet.begun() - 1;
            assert!(earlier > 0, "none has begun for this byte");
            assert_eq!(quiet.pass(earlier), 0, "byte {byte}");
        }
    }

    #[tokio::test]
    async fn what_is_left_of_a_connection_goes_on_as_long_as_it_flows() {
        let (mut client, client_side) = duplex(1024);
        let (mut service, service_side) = duplex(1024);
        let quiet = Quiet::default();
        let counted = quiet.clone();
        let carried = tokio::spawn(carry_within(client_side, service_side, move || {
            counted.begin()
        }));
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        let mut request = Vec::new();
        service.read_to_end(&mut request).await.unwrap();
        assert_eq!(request, b"request");
        trickle(&mut service, &quiet, async || {
            client.read_u8().await.unwrap()
        })
        .await;
        // When nothing comes for the whole time, it is cut.
        assert_eq!(quiet.pass(1), 1);
        carried.await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_stream_that_holds_bytes_back_is_flushed() {
        let (mut client, client_side) = duplex(1024);
        let (mut service, service_side) = duplex(1024);
        let held_back = BufStream::new(service_side);
        let carried = tokio::spawn(carry(client_side, held_back));
        client.write_u8(1).await.unwrap();
        assert_eq!(service.read_u8().await.unwrap(), 1);
        drop((client, service));
        carried.await.unwrap();

        let (mut service, service_side) = duplex(1024);
        let held_back = BufStream::new(service_side);
        let (client, carried) = over_messages(held_back, true, &Quiet::default());
        client.send(b"x");
        assert_eq!(service.read_u8().await.unwrap(), b'x');
        drop((client, service));
        carried.await.unwrap();
    }

    /// A client's messages, and the answers.
    struct Messages {
        send: mpsc::UnboundedSender<Result<Message, Infallible>>,
        receive: mpsc::UnboundedReceiver<Message>,
    }

    impl Messages {
        fn send(&self, bytes: &'static [u8]) {
            let message = Message::Binary(Bytes::from_static(bytes));
            self.send.unbounded_send(Ok(message)).unwrap();
        }

        async fn next(&mut self) -> Option<Bytes> {
            match self.receive.next().await? {
                Message::Binary(bytes) => Some(bytes),
                other => panic!("{other:?}"),
            }
        }
    }

    fn over_messages(
        service_side: impl AsyncRead + AsyncWrite + Send + 'static,
        ends_apart: bool,
        quiet: &Quiet,
    ) -> (Messages, tokio::task::JoinHandle<()>) {
        let (send, from_client) = mpsc::unbounded();
        let (to_client, receive) = mpsc::unbounded();
        let counted = quiet.clone();
        let carried = tokio::spawn(carry_messages(
            to_client,
            from_client,
            service_side,
            ends_apart,
            move || counted.begin(),
        ));
        (Messages { send, receive }, carried)
    }

    #[tokio::test]
    async fn an_empty_message_ends_one_direction_alone() {
        let quiet = Quiet::default();
        let (mut service, service_side) = duplex(1024);
        let (mut client, carried) = over_messages(service_side, true, &quiet);
        client.send(b"request");
        client.send(b"");
        let mut request = Vec::new();
        service.read_to_end(&mut request).await.unwrap();
        assert_eq!(request, b"request");
        trickle(&mut service, &quiet, async || {
            client.next().await.unwrap()[0]
        })
        .await;
        drop(service);
        assert_eq!(client.next().await.unwrap(), "", "the end of the answer");
        assert_eq!(client.next().await, None);
        carried.await.unwrap();
    }

    #[tokio::test]
    async fn the_end_of_a_service_leaves_its_client_what_it_sends() {
        let quiet = Quiet::default();
        let (mut service, service_side) = duplex(1024);
        let (mut client, carried) = over_messages(service_side, true, &quiet);
        service.shutdown().await.unwrap();
        assert_eq!(client.next().await.unwrap(), "", "the end of the service");
        for _ in 0..100 {
            client.send(b"x");
            assert_eq!(service.read_u8().await.unwrap(), b'x');
            let earlier = quiet.begun() - 1;
            assert_eq!(quiet.pass(earlier), 0);
        }
        client.send(b"");
        assert_eq!(service.read(&mut [0]).await.unwrap(), 0);
        carried.await.unwrap();
    }

    #[tokio::test]
    async fn for_other_clients_the_end_of_one_direction_is_that_of_the_websocket() {
        let quiet = Quiet::default();
        let (mut service, service_side) = duplex(1024);
        let (mut client, carried) = over_messages(service_side, false, &quiet);
        client.send(b"");
        client.send(b"x");
        assert_eq!(service.read_u8().await.unwrap(), b'x');
        service.shutdown().await.unwrap();
        assert_eq!(client.next().await, None);
        drop(client);
        carried.await.unwrap();
    }
}
