//! The calls of simulated tasks: as little HTTP as they need, over kept connections.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Calls under way at once; more wait. Each has a connection.
const AT_ONCE: usize = 64;
/// No answer to these calls is longer.
const LONGEST_ANSWER: usize = 1 << 20;

/// Connections to the master, kept for the next call.
pub(crate) struct Calls {
    address: String,
    idle: Mutex<Vec<TcpStream>>,
    permits: tokio::sync::Semaphore,
}

impl Calls {
    pub(crate) fn new(address: String) -> Self {
        Self {
            address,
            idle: Mutex::default(),
            permits: tokio::sync::Semaphore::new(AT_ONCE),
        }
    }

    /// Sends a request of a task and gives the status of the answer.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        token: &str,
        body: &str,
    ) -> anyhow::Result<u16> {
        let _permit = self.permits.acquire().await?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nGrpc-Metadata-x-allocation-token: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let kept = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut stream = match kept {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(&self.address).await?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        stream.write_all(request.as_bytes()).await?;
        let status = answer(&mut stream).await?;
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(stream);
        Ok(status)
    }
}

/// Reads one answer whole.
async fn answer(stream: &mut TcpStream) -> anyhow::Result<u16> {
    let mut data = Vec::with_capacity(1024);
    loop {
        if stream.read_buf(&mut data).await? == 0 {
            bail!("the master closed a connection");
        }
        let Some(head) = data.windows(4).position(|w| w == b"\r\n\r\n") else {
            continue;
        };
        let text = std::str::from_utf8(&data[..head]).context("an answer's head is no text")?;
        let status: u16 = text
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .context("an answer without a status")?;
        let length: usize = text
            .lines()
            .find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.trim().parse().ok())?
            })
            .context("an answer without a length")?;
        if length > LONGEST_ANSWER {
            bail!("an answer of {length} bytes");
        }
        if data.len() >= head + 4 + length {
            return Ok(status);
        }
    }
}
