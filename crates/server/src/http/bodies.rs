//! Reading request bodies within bounds: how large, how slow, how many values, and how much of all of them at once.
//!
//! A caller may try to fill the master's memory with a request. The first kilobytes of a body are kept in memory, within
//! the budget of the caller's user; a larger body goes to a file without a name below the data directory. It takes memory
//! only once it has arrived as a whole, so a slow sender keeps nothing from other callers. A body that would become too large a
//! tree of values is refused before it is parsed.

use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use det_api_types::wire;
use futures::StreamExt;
use tokio::time::{Instant, timeout};

use crate::app::Master;
use crate::budget::{Account, Budgets, Reservation};
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::tokens;

const MIB: usize = 1 << 20;

/// Largest body of an operation that brings files: the client's 95 MiB as base64, and some more.
pub const FILES_LIMIT_BYTES: usize = 160 * MIB;
/// Largest body of a report: metrics, log lines, lists of files, what containers exchange. With what it is parsed to and
/// stored from, one takes less than 50 MB.
pub const REPORT_LIMIT_BYTES: usize = 16 * MIB;
/// Largest body of a login, which every caller may send.
pub const LOGIN_LIMIT_BYTES: usize = 64 << 10;
/// Largest body of a report of what a container's processes do; a supervisor's has at most some 500 kB.
pub const DIAGNOSIS_LIMIT_BYTES: usize = MIB;
/// Largest body of anything else.
pub const PLAIN_LIMIT_BYTES: usize = 8 * MIB;

/// Bytes that the values of a body may take as objects, see [`wire::tree_bytes`].
const TREE_BYTES: usize = 24 * MIB;
/// The same for an operation that brings files: each of 100,000 files is an object.
const FILES_TREE_BYTES: usize = 128 * MIB;

/// Bodies up to this size are read without a reservation.
const FREE_BYTES: usize = 8 << 10;
/// Bodies up to this size stay in memory while they arrive.
const MEMORY_BYTES: usize = 256 << 10;
/// A body that is handled takes so many times its size: as text, as what is read from it, and as it is stored.
const HANDLING: usize = 3;
/// Space in the spool is reserved in steps of this size.
const SPOOL_STEP: usize = MIB;

/// How slow a sender may be.
const PACE: Pace = Pace {
    silence: Duration::from_secs(10),
    patience: Duration::from_secs(20),
    bytes_per_second: 32 << 10,
    longest: Duration::from_secs(30 * 60),
};
/// Of a body that is too large, so much is read and thrown away, so that its sender reaches the end and sees the answer.
const DISCARD_BYTES: usize = 512 * MIB;

/// What holds for the body of a request; set by [`bound`], read by [`read`].
#[derive(Debug, Clone)]
struct Bounds {
    limit: usize,
    tree: usize,
    account: Account,
    budgets: Budgets,
    /// Directory for large bodies.
    spool: PathBuf,
    /// What was reserved for the request, until it is answered.
    held: Arc<Mutex<Vec<Reservation>>>,
}

impl Bounds {
    fn hold(&self, reservation: Reservation) {
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(reservation);
    }
}

/// How slow a transfer may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// One without any progress for this long is given up.
    pub(crate) silence: Duration,
    /// It has this long for the whole, and what the transferred bytes earn.
    pub(crate) patience: Duration,
    /// So many bytes earn one second more.
    pub(crate) bytes_per_second: usize,
    /// No transfer takes longer.
    pub(crate) longest: Duration,
}

impl Pace {
    /// How long the next piece may take, counted from `elapsed` after the begin.
    pub(crate) fn rest(&self, received: usize, elapsed: Duration) -> Duration {
        let earned = u64::try_from(received / self.bytes_per_second).unwrap_or(u64::MAX);
        let whole = self
            .patience
            .saturating_add(Duration::from_secs(earned))
            .min(self.longest);
        self.silence.min(whole.saturating_sub(elapsed))
    }
}

/// Whether a path is that of reports of metrics, most of which stay text.
fn is_of_metrics(path: &str) -> bool {
    path.ends_with("/metrics") && path != "/api/v1/trials/profiler/metrics"
}

/// The largest body of an operation.
fn limit_of(method: &Method, path: &str) -> usize {
    let is_report = is_of_metrics(path)
        || path.ends_with("/all_gather")
        || matches!(
            path,
            "/api/v1/task/logs" | "/task-logs" | "/api/v1/checkpoints" | "/api/v1/checkpoints/rm"
        );
    match path {
        "/api/v1/experiments"
        | "/api/v1/commands"
        | "/api/v1/shells"
        | "/api/v1/notebooks"
        | "/api/v1/tensorboards"
        | "/api/v1/generic-tasks"
            if method == Method::POST =>
        {
            FILES_LIMIT_BYTES
        }
        "/api/v1/auth/login" | "/login" | "/det/login" => LOGIN_LIMIT_BYTES,
        _ if path.ends_with("/diagnosis") => DIAGNOSIS_LIMIT_BYTES,
        _ if is_report => REPORT_LIMIT_BYTES,
        _ => PLAIN_LIMIT_BYTES,
    }
}

/// Most bytes that the values of a body may take as objects.
fn tree_limit(limit: usize, path: &str) -> usize {
    match limit {
        FILES_LIMIT_BYTES => FILES_TREE_BYTES,
        // Metrics of single batches stay text; what does not is counted where it is read.
        _ if is_of_metrics(path) || path.ends_with("/all_gather") => usize::MAX,
        _ => TREE_BYTES,
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

/// Gives each request its bounds, and releases what was reserved for it once it is answered.
pub(crate) async fn bound(
    State(master): State<Master>,
    mut request: Request,
    next: Next,
) -> Response {
    let limit = limit_of(request.method(), request.uri().path());
    let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let small = declared_length(request.headers()).map_or(!chunked, |bytes| bytes <= FREE_BYTES);
    let account = if small {
        None
    } else {
        Tokens::of(request.headers()).account(&master).await
    };
    let bounds = Bounds {
        limit,
        tree: tree_limit(limit, request.uri().path()),
        account,
        budgets: master.budgets.clone(),
        spool: master.data_dir.clone(),
        held: Arc::default(),
    };
    let held = bounds.held.clone();
    request.extensions_mut().insert(bounds);
    let response = next.run(request).await;
    drop(held);
    response
}

/// The tokens of a request that identify its caller.
#[derive(Debug)]
pub(crate) struct Tokens {
    session: Option<String>,
    allocation: Option<String>,
}

impl Tokens {
    /// The tokens that a request with these headers has.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        Self {
            session: tokens::session_token(headers),
            allocation: tokens::allocation_token(headers),
        }
    }

    /// The user whom the request is counted for.
    pub(crate) async fn account(self, master: &Master) -> Account {
        // Should the database not answer, the handler reports it; until then the caller is unknown.
        if let Some(token) = &self.session
            && let Ok(Some(actor)) = master.auth.by_session(token).await
        {
            return Some(actor.user().id);
        }
        for token in [self.allocation, self.session].into_iter().flatten() {
            if let Ok(Some(actor)) = master.auth.by_allocation_token(&token).await {
                return Some(actor.user().id);
            }
        }
        None
    }
}

/// The whole body, within the bounds of its request.
pub(crate) async fn read(request: Request) -> AppResult<Vec<u8>> {
    let Some(bounds) = request.extensions().get::<Bounds>().cloned() else {
        return Err(AppError::internal(anyhow::anyhow!(
            "a route has no bounds for its bodies"
        )));
    };
    let declared = declared_length(request.headers());
    let pieces = Pieces::new(request.into_body(), PACE);
    let body = read_within(&bounds, declared, pieces).await?;
    check_tree(&body, bounds.tree)?;
    Ok(body)
}

async fn read_within(
    bounds: &Bounds,
    declared: Option<usize>,
    mut pieces: Pieces,
) -> AppResult<Vec<u8>> {
    let limit = bounds.limit;
    if declared.is_some_and(|bytes| bytes > limit) {
        pieces.discard().await;
        return Err(too_large(limit));
    }
    let mut reserved = None;
    let mut body = Vec::with_capacity(declared.unwrap_or(0).min(FREE_BYTES));
    while let Some(piece) = pieces.next().await? {
        let bytes = body.len() + piece.len();
        if bytes > limit {
            drop((body, reserved));
            pieces.discard().await;
            return Err(too_large(limit));
        }
        if bytes > FREE_BYTES && reserved.is_none() {
            // At once for what may stay in memory: holding a part while waiting for more would be a deadlock of many.
            let wanted = declared
                .unwrap_or(MEMORY_BYTES)
                .clamp(bytes, MEMORY_BYTES.max(bytes));
            let requests = &bounds.budgets.requests;
            match requests.reserve(bounds.account, wanted).await {
                Ok(reservation) => reserved = Some(reservation),
                Err(busy) => {
                    drop(body);
                    pieces.discard().await;
                    return Err(busy);
                }
            }
        }
        body.extend_from_slice(&piece);
        if body.len() > MEMORY_BYTES {
            return read_spooled(bounds, body, pieces).await;
        }
    }
    if let Some(reservation) = reserved {
        bounds.hold(reservation);
    }
    Ok(body)
}

/// Goes on with a body that is too large to stay in memory while it arrives. `start` is what came so far.
async fn read_spooled(bounds: &Bounds, start: Vec<u8>, mut pieces: Pieces) -> AppResult<Vec<u8>> {
    let limit = bounds.limit;
    let Budgets {
        spooled, handled, ..
    } = &bounds.budgets;
    let mut space = spooled.reserve(bounds.account, SPOOL_STEP).await?;
    let mut spool = Spool::create(&bounds.spool)?;
    let mut buffer = start;
    let mut written = 0;
    loop {
        let piece = pieces.next().await?;
        if buffer.len() >= MEMORY_BYTES || piece.is_none() {
            written += buffer.len();
            if written > space.bytes() && !space.try_grow(SPOOL_STEP.max(written - space.bytes())) {
                drop((buffer, spool, space));
                pieces.discard().await;
                return Err(spool_full());
            }
            (spool, buffer) = spool.append(buffer).await?;
        }
        let Some(piece) = piece else { break };
        if written + buffer.len() + piece.len() > limit {
            drop((buffer, spool, space));
            pieces.discard().await;
            return Err(too_large(limit));
        }
        buffer.extend_from_slice(&piece);
    }
    drop(buffer);
    // Never more than there is: the largest body is handled alone.
    let cost = written
        .saturating_mul(HANDLING)
        .min(handled.usage().limits.total);
    let memory = handled.reserve(bounds.account, cost).await?;
    let body = spool.into_bytes(written).await?;
    bounds.hold(memory);
    Ok(body)
}

fn spool_full() -> AppError {
    AppError::new(
        ErrorKind::Busy,
        "too many large requests are being received now, of all users or of this one",
    )
    .hint("try again in a moment, with fewer large requests at once")
}

/// A file without a name: it is gone with its descriptor, also when the process is killed.
struct Spool(std::fs::File);

impl Spool {
    fn create(directory: &Path) -> AppResult<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let path = directory.join(format!(".request-{}", uuid::Uuid::new_v4()));
        let failed = |error: std::io::Error| {
            let context = format!("a file for a large request in \"{}\"", directory.display());
            AppError::internal(anyhow::Error::new(error).context(context))
        };
        let file = std::fs::OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        std::fs::remove_file(&path).map_err(failed)?;
        Ok(Self(file))
    }

    /// Appends; gives the emptied buffer back.
    async fn append(mut self, mut buffer: Vec<u8>) -> AppResult<(Self, Vec<u8>)> {
        tokio::task::spawn_blocking(move || {
            self.0.write_all(&buffer).map_err(Self::failed)?;
            buffer.clear();
            Ok((self, buffer))
        })
        .await
        .map_err(AppError::internal)?
    }

    async fn into_bytes(mut self, bytes: usize) -> AppResult<Vec<u8>> {
        tokio::task::spawn_blocking(move || {
            let mut body = Vec::with_capacity(bytes);
            self.0.rewind().map_err(Self::failed)?;
            self.0.read_to_end(&mut body).map_err(Self::failed)?;
            Ok(body)
        })
        .await
        .map_err(AppError::internal)?
    }

    fn failed(error: std::io::Error) -> AppError {
        let mut failed = AppError::new(
            ErrorKind::Busy,
            "the master's disk could not take a large request",
        )
        .hint("make space on the disk of the master's data directory, or send less at once");
        failed.cause = Some(error.into());
        failed
    }
}

/// Refuses bodies whose values would take too much memory as objects.
fn check_tree(body: &[u8], most: usize) -> AppResult<()> {
    // The least that a value takes is two bytes of text, the most that such a one becomes is below 400 times as much.
    if body.len() < most / 400 || wire::tree_bytes(body) <= most {
        return Ok(());
    }
    Err(AppError::new(
        ErrorKind::TooLarge,
        format!(
            "the request holds too many values: as objects they may take at most {} MiB of memory",
            most / MIB
        ),
    )
    .hint("send it in several requests"))
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

    /// Reads on, and drops it.
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
    use det_ids::UserId;

    use super::*;

    #[test]
    fn each_operation_has_the_limit_of_its_kind() {
        let limit = |path: &str| limit_of(&Method::POST, path);
        assert_eq!(limit("/api/v1/experiments"), FILES_LIMIT_BYTES);
        assert_eq!(limit("/api/v1/trials/7/metrics"), REPORT_LIMIT_BYTES);
        // Readings of older clients become objects.
        let readings = "/api/v1/trials/profiler/metrics";
        assert_eq!(limit(readings), PLAIN_LIMIT_BYTES);
        assert_eq!(tree_limit(PLAIN_LIMIT_BYTES, readings), TREE_BYTES);
        assert_eq!(limit("/login"), LOGIN_LIMIT_BYTES);
        assert_eq!(limit("/api/v1/users"), PLAIN_LIMIT_BYTES);
        assert_eq!(
            limit_of(&Method::GET, "/api/v1/experiments"),
            PLAIN_LIMIT_BYTES
        );
    }

    fn bounds(limit: usize, spool: &Path) -> Bounds {
        Bounds {
            limit,
            tree: TREE_BYTES,
            account: Some(UserId(1)),
            budgets: Budgets::default(),
            spool: spool.to_owned(),
            held: Arc::default(),
        }
    }

    fn request(body: Body, bounds: &Bounds, declared: Option<usize>) -> Request {
        let mut request = Request::new(body);
        request.extensions_mut().insert(bounds.clone());
        if let Some(length) = declared {
            request
                .headers_mut()
                .insert(header::CONTENT_LENGTH, length.into());
        }
        request
    }

    #[tokio::test]
    async fn a_body_within_its_limit_is_read_whole() {
        let bounds = bounds(5, Path::new("/nowhere"));
        let body = read(request(Body::from("12345"), &bounds, None)).await;
        assert_eq!(body.unwrap(), b"12345");
        assert_eq!(bounds.budgets.requests.usage().peak, 0);
    }

    #[tokio::test]
    async fn a_large_body_waits_in_a_file_and_counts_until_it_is_answered() {
        let directory = tempfile::tempdir().unwrap();
        let bounds = bounds(4 * MIB, directory.path());
        let sent: Vec<u8> = (0..3 * MIB)
            .map(|n| u8::try_from(n % 251).unwrap())
            .collect();
        let pieces: Vec<Result<Vec<u8>, std::io::Error>> = sent
            .chunks(100_000)
            .map(|piece| Ok(piece.to_vec()))
            .collect();
        let body = Body::from_stream(futures::stream::iter(pieces));
        let read = read(request(body, &bounds, None)).await.unwrap();
        assert!(read == sent, "{} bytes came", read.len());
        let budgets = &bounds.budgets;
        assert_eq!(budgets.handled.usage().used, 3 * MIB * HANDLING);
        assert_eq!(budgets.requests.usage().used, 0);
        assert!(budgets.requests.usage().peak <= 2 * MEMORY_BYTES);
        assert_eq!(
            (budgets.spooled.usage().used, budgets.spooled.usage().peak),
            (0, 3 * MIB)
        );
        bounds.held.lock().unwrap().clear();
        assert_eq!(budgets.handled.usage().used, 0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn slow_senders_of_large_bodies_keep_no_memory_from_others() {
        let directory = tempfile::tempdir().unwrap();
        let bounds = bounds(FILES_LIMIT_BYTES, directory.path());
        let slow: Vec<_> = (0..8)
            .map(|_| {
                let start = vec![b'x'; 2 * MEMORY_BYTES];
                let first = futures::stream::iter([Ok::<_, std::io::Error>(start)]);
                let body = Body::from_stream(first.chain(futures::stream::pending()));
                tokio::spawn(read(request(body, &bounds, Some(FILES_LIMIT_BYTES))))
            })
            .collect();
        while bounds.budgets.spooled.usage().used < 8 * SPOOL_STEP {
            tokio::task::yield_now().await;
        }
        let body = Body::from(vec![b'1'; 2 * MIB]);
        let read = read(request(body, &bounds, Some(2 * MIB))).await.unwrap();
        assert_eq!(read.len(), 2 * MIB);
        for sender in slow {
            sender.abort();
        }
    }

    #[tokio::test]
    async fn a_body_beyond_its_limit_is_refused_with_the_limit() {
        let bounds = bounds(5, Path::new("/nowhere"));
        for declared in [None, Some(6), Some(usize::MAX)] {
            let error = read(request(Body::from("123456"), &bounds, declared))
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

    #[test]
    fn too_many_values_are_refused_before_they_are_read() {
        for dense in ["0,".repeat(2 * MIB), "[".repeat(MIB), "{},".repeat(200_000)] {
            let error = check_tree(dense.as_bytes(), TREE_BYTES).unwrap_err();
            assert!(
                error.message.contains("at most 24 MiB"),
                "{}",
                error.message
            );
        }
        let text = format!("\"{}\"", ",".repeat(10 * MIB));
        assert!(check_tree(text.as_bytes(), TREE_BYTES).is_ok());
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
