//! Streams of JSON messages, one per line.

use reqwest::Response;
use serde_json::Value;

use crate::address::MasterUrl;
use crate::error::ClientError;

/// The longest line that is read. A message of the API is far below it; without a limit a faulty server could fill the
/// memory.
const MAX_LINE: usize = 64 << 20;
/// The `httpCode` of an error line that passes: the master is stopping, or does not reach its database.
const UNAVAILABLE: u16 = 503;

/// A stream of messages: each line is `{"result": …}`, and a last line `{"error": …}` means that the master failed, or is
/// stopping: that is [`ClientError::Interrupted`], as for a connection that was lost.
#[derive(Debug)]
pub struct LineStream {
    master: MasterUrl,
    response: Response,
    lines: LineBuffer,
    ended: bool,
}

impl LineStream {
    pub(crate) fn new(master: MasterUrl, response: Response) -> Self {
        Self {
            master,
            response,
            lines: LineBuffer::default(),
            ended: false,
        }
    }

    /// The next message (the value of `result`); `None` if the stream ended without an error.
    pub async fn next(&mut self) -> Result<Option<Value>, ClientError> {
        loop {
            while let Some(line) = self.lines.take() {
                if let Some(message) = self.message(&line)? {
                    return Ok(Some(message));
                }
            }
            if self.ended {
                return Ok(None);
            }
            let url = self.response.url().to_string();
            let piece = self
                .response
                .chunk()
                .await
                .map_err(|error| ClientError::from_transport(&self.master, &url, &error))?;
            if let Some(piece) = piece {
                self.lines.push(&piece);
            } else {
                self.ended = true;
                self.lines.end();
            }
            if self.lines.unfinished() > MAX_LINE {
                return Err(self.bad("a line of the stream has no end"));
            }
        }
    }

    fn message(&mut self, line: &[u8]) -> Result<Option<Value>, ClientError> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let mut value: Value = match serde_json::from_slice(line) {
            Ok(value) => value,
            Err(_) if self.ended => {
                return Err(ClientError::Interrupted {
                    master: self.master.clone(),
                    reason: "the last line is not complete".to_owned(),
                });
            }
            Err(_) => return Err(self.bad("a line of the stream is not JSON")),
        };
        if let Some(error) = value.get("error") {
            let message = error["message"]
                .as_str()
                .or_else(|| error.as_str())
                .unwrap_or("it gives no reason")
                .to_owned();
            // A master that stops ends its streams so; what they are of goes on.
            if error["httpCode"] == UNAVAILABLE {
                return Err(ClientError::Interrupted {
                    master: self.master.clone(),
                    reason: message,
                });
            }
            return Err(ClientError::StreamFailed { message });
        }
        match value.get_mut("result") {
            Some(result) => Ok(Some(result.take())),
            None => Err(self.bad("a line of the stream has no result")),
        }
    }

    fn bad(&self, reason: &str) -> ClientError {
        ClientError::BadAnswer {
            url: self.response.url().to_string(),
            reason: reason.to_owned(),
        }
    }
}

/// Assembles lines from pieces of any length.
#[derive(Debug, Default)]
struct LineBuffer {
    bytes: Vec<u8>,
    /// How many bytes at the start of `bytes` contain no line end.
    searched: usize,
    ended: bool,
}

impl LineBuffer {
    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// Marks the end of the input: the rest is the last line.
    fn end(&mut self) {
        self.ended = true;
    }

    fn unfinished(&self) -> usize {
        self.bytes.len()
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let found = self.bytes[self.searched..]
            .iter()
            .position(|byte| *byte == b'\n');
        match found {
            Some(offset) => {
                let end = self.searched + offset;
                let rest = self.bytes.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.bytes, rest);
                line.truncate(end);
                self.searched = 0;
                Some(line)
            }
            None if self.ended && !self.bytes.is_empty() => {
                self.searched = 0;
                Some(std::mem::take(&mut self.bytes))
            }
            None => {
                self.searched = self.bytes.len();
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines_of(pieces: &[&[u8]]) -> Vec<String> {
        let mut buffer = LineBuffer::default();
        let mut lines = Vec::new();
        for piece in pieces {
            buffer.push(piece);
            while let Some(line) = buffer.take() {
                lines.push(String::from_utf8(line).unwrap());
            }
        }
        buffer.end();
        while let Some(line) = buffer.take() {
            lines.push(String::from_utf8(line).unwrap());
        }
        lines
    }

    #[test]
    fn a_line_is_whole_however_it_was_cut() {
        assert_eq!(
            lines_of(&[b"ab", b"c\nd", b"\n", b"\ne"]),
            ["abc", "d", "", "e"]
        );
    }

    proptest! {
        #[test]
        fn cutting_anywhere_changes_nothing(text in "[ab\n]{0,40}", cuts in prop::collection::vec(0usize..41, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut start = 0;
            for cut in cuts {
                pieces.push(&text.as_bytes()[start..cut]);
                start = cut;
            }
            pieces.push(&text.as_bytes()[start..]);
            let expected: Vec<String> = text.split_terminator('\n').map(str::to_owned).collect();
            prop_assert_eq!(lines_of(&pieces), expected);
        }
    }
}
