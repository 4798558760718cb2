//! A fake master: answers from a table, and records the requests.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary that includes this file uses a part of it"
)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// One request as it was received.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedRequest {
    /// The first line without the version: `METHOD /path?query`.
    pub line: String,
    /// The headers, names in lower case.
    pub headers: HashMap<String, String>,
    /// The body as text.
    pub body: String,
}

impl ReceivedRequest {
    /// The body as JSON; null if there was none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

/// How to answer a request.
#[derive(Debug, Clone)]
pub enum Answer {
    /// A status and a JSON body.
    Json(u16, Value),
    /// A status, a content type and a body.
    Raw(u16, &'static str, Vec<u8>),
    /// Pieces of a chunked body with status 200, then the end; `cut` closes the connection before the end.
    Chunks { pieces: Vec<String>, cut: bool },
    /// The answers to the first, second … request; the last one is repeated.
    InTurn(Vec<Answer>),
}

/// A JSON answer with status 200.
pub fn ok(value: Value) -> Answer {
    Answer::Json(200, value)
}

/// A stream of messages that ends without an error.
pub fn stream(messages: &[Value]) -> Answer {
    Answer::Chunks {
        pieces: messages
            .iter()
            .map(|message| format!("{}\n", serde_json::json!({ "result": message })))
            .collect(),
        cut: false,
    }
}

#[derive(Default)]
struct SharedState {
    /// Keyed by `METHOD /path` without the query.
    answers: HashMap<String, Answer>,
    asked: Vec<ReceivedRequest>,
}

/// The fake master. Listens on a free loopback port until the process ends.
#[derive(Clone)]
pub struct StubMaster {
    address: String,
    shared: Arc<(Mutex<SharedState>, Condvar)>,
}

impl StubMaster {
    /// Starts one that answers the log-in and the request for the current user, and has no launched tasks.
    pub fn start() -> Self {
        let stub = Self::bare();
        stub.on(
            "POST /api/v1/auth/login",
            ok(serde_json::json!({"token": "TOKEN", "user": {"username": "determined", "id": 2}})),
        );
        stub.on(
            "GET /api/v1/me",
            ok(serde_json::json!({"user": {"username": "determined", "id": 2, "admin": false}})),
        );
        for kind in ["commands", "notebooks", "shells", "tensorboards"] {
            stub.on(&format!("GET /api/v1/{kind}"), ok(serde_json::json!({})));
        }
        stub
    }

    /// Starts one that answers every request with 501.
    pub fn bare() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free loopback port");
        let address = listener.local_addr().expect("a bound socket").to_string();
        let shared = Arc::new((Mutex::new(SharedState::default()), Condvar::new()));
        let for_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = Arc::clone(&for_thread);
                thread::spawn(move || serve(connection, &shared));
            }
        });
        Self { address, shared }
    }

    /// Its address, as `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sets the answer to `METHOD /path` with any query.
    pub fn on(&self, route: &str, answer: Answer) {
        self.lock().answers.insert(route.to_owned(), answer);
    }

    /// All requests so far, in order.
    pub fn asked(&self) -> Vec<ReceivedRequest> {
        self.lock().asked.clone()
    }

    /// The request lines so far, without log-ins and requests for the current user.
    pub fn lines(&self) -> Vec<String> {
        self.asked()
            .into_iter()
            .map(|asked| asked.line)
            .filter(|line| line != "GET /api/v1/me" && line != "POST /api/v1/auth/login")
            .collect()
    }

    /// The last request whose line starts with `start`.
    pub fn last(&self, start: &str) -> ReceivedRequest {
        self.asked()
            .into_iter()
            .rev()
            .find(|asked| asked.line.starts_with(start))
            .unwrap_or_else(|| panic!("nothing like {start:?} was asked: {:?}", self.lines()))
    }

    /// Waits until `count` requests have a line that starts with `start`.
    pub fn wait_for(&self, count: usize, start: &str) {
        let end = Instant::now() + Duration::from_mins(1);
        let mut shared = self.lock();
        let enough = |shared: &SharedState| {
            let fitting = shared
                .asked
                .iter()
                .filter(|asked| asked.line.starts_with(start));
            fitting.count() >= count
        };
        while !enough(&shared) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{start:?} was not asked {count} times");
            shared = self
                .shared
                .1
                .wait_timeout(shared, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SharedState> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(connection: TcpStream, shared: &(Mutex<SharedState>, Condvar)) {
    let Ok(reading) = connection.try_clone() else {
        return;
    };
    let mut reader = BufReader::new(reading);
    let mut writer = connection;
    while let Some(asked) = read_request(&mut reader) {
        let route = asked.line.split('?').next().unwrap_or_default().to_owned();
        let answer = {
            let (shared, changed) = shared;
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.asked.push(asked);
            changed.notify_all();
            match shared.answers.get_mut(&route) {
                Some(Answer::InTurn(turns)) if turns.len() > 1 => turns.remove(0),
                Some(Answer::InTurn(turns)) => turns[0].clone(),
                Some(answer) => answer.clone(),
                None => Answer::Json(
                    501,
                    serde_json::json!({"error": {"error": format!("the stub has no answer to {route}")}}),
                ),
            }
        };
        if !write_answer(&mut writer, answer) {
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut first = String::new();
    if reader.read_line(&mut first).ok()? == 0 {
        return None;
    }
    let line = first.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers
        .get("content-length")
        .and_then(|length| length.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(ReceivedRequest {
        line,
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// Writes an answer; false if the connection is to be closed.
fn write_answer(writer: &mut TcpStream, answer: Answer) -> bool {
    match answer {
        Answer::Json(status, value) => write_whole(
            writer,
            status,
            "application/json",
            value.to_string().as_bytes(),
        ),
        Answer::Raw(status, media_type, body) => write_whole(writer, status, media_type, &body),
        Answer::Chunks { pieces, cut } => {
            let mut head = String::from("HTTP/1.1 200 OK\r\n");
            head.push_str("content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n");
            let mut sent = writer.write_all(head.as_bytes()).is_ok();
            for piece in pieces {
                let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
                sent = sent && writer.write_all(chunk.as_bytes()).is_ok();
                sent = sent && writer.flush().is_ok();
            }
            sent && !cut && writer.write_all(b"0\r\n\r\n").is_ok()
        }
        Answer::InTurn(turns) => {
            let last = turns.into_iter().next_back();
            last.is_some_and(|answer| write_answer(writer, answer))
        }
    }
}

fn write_whole(writer: &mut TcpStream, status: u16, media_type: &str, body: &[u8]) -> bool {
    let mut head = String::new();
    let _ = write!(
        head,
        "HTTP/1.1 {status} -\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    writer.write_all(head.as_bytes()).is_ok() && writer.write_all(body).is_ok()
}
