//! Errors of requests to the master.

use std::error::Error;
use std::io;

use serde_json::Value;

use crate::address::MasterUrl;

/// Why a request has no result. Each message is a sentence for the user who made the request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection: nothing listens at the address, the name is unknown, or the network does not reach it.
    #[error("could not reach a master at {master}: {reason}")]
    Unreachable {
        /// The address that was tried.
        master: MasterUrl,
        /// The cause, in a few words.
        reason: String,
    },
    /// A master answered, but its certificate is not trusted.
    #[error("the certificate of the master at {master} is not trusted: {reason}")]
    Untrusted {
        /// The address that was tried.
        master: MasterUrl,
        /// The cause, in a few words.
        reason: String,
    },
    /// The settings for the connection cannot be used.
    #[error("could not prepare the connection to {master}: {reason}")]
    Setup {
        /// The address of the master.
        master: MasterUrl,
        /// The cause, in a few words.
        reason: String,
    },
    /// The master did not accept the credentials, or there were none (401).
    #[error("the master did not accept the log-in: {message}")]
    Unauthenticated {
        /// The master's message.
        message: String,
    },
    /// The user may not do this (403).
    #[error("{message}")]
    Forbidden {
        /// The master's message.
        message: String,
    },
    /// The object does not exist, or the user may not know of it (404).
    #[error("{message}")]
    NotFound {
        /// The master's message.
        message: String,
        /// What to do; `None` if the master gave no hint.
        hint: Option<String>,
    },
    /// The master refused the request, or failed to handle it.
    #[error("{message}")]
    Failed {
        /// The HTTP status.
        status: u16,
        /// The master's message.
        message: String,
        /// What to do; `None` if the master gave no hint.
        hint: Option<String>,
        /// The errors of a submitted document, each with path, message, line and so on; empty if there are none.
        document_errors: Vec<Value>,
    },
    /// A stream ended with an error line.
    #[error("the master ended the stream: {message}")]
    StreamFailed {
        /// The master's message.
        message: String,
    },
    /// The connection was lost before the response was complete.
    #[error("the connection to {master} was lost in the middle of an answer: {reason}")]
    Interrupted {
        /// The address of the master.
        master: MasterUrl,
        /// The cause, in a few words.
        reason: String,
    },
    /// The response is not one of a master.
    #[error("{url} gave an answer that is not a master's: {reason}")]
    BadAnswer {
        /// The full URL of the request.
        url: String,
        /// What is wrong with the response.
        reason: String,
    },
}

impl ClientError {
    /// Whether the master could not be reached or not be trusted, so that the request itself was never handled.
    pub fn is_connection(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::Setup { .. }
            | Self::Interrupted { .. }
            | Self::BadAnswer { .. } => true,
            Self::Unauthenticated { .. }
            | Self::Forbidden { .. }
            | Self::NotFound { .. }
            | Self::Failed { .. }
            | Self::StreamFailed { .. } => false,
        }
    }

    /// Whether the same request may succeed a moment later: the master is away, is stopping or starts.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Interrupted { .. } => true,
            Self::Failed { status, .. } => (502..=504).contains(status),
            Self::Untrusted { .. }
            | Self::Setup { .. }
            | Self::Unauthenticated { .. }
            | Self::Forbidden { .. }
            | Self::NotFound { .. }
            | Self::StreamFailed { .. }
            | Self::BadAnswer { .. } => false,
        }
    }

    /// The error for a response with a status of 300 or above.
    pub(crate) fn from_status(status: u16, body: &str) -> Self {
        let (message, hint) = explain(status, body);
        match status {
            401 => Self::Unauthenticated { message },
            403 => Self::Forbidden { message },
            404 => Self::NotFound { message, hint },
            _ => Self::Failed {
                status,
                message,
                hint,
                document_errors: document_errors(body),
            },
        }
    }

    /// The error for a request without a response.
    pub(crate) fn from_transport(master: &MasterUrl, url: &str, error: &reqwest::Error) -> Self {
        let master = master.clone();
        match find_tls_error(error) {
            Some(rustls::Error::InvalidCertificate(problem)) => {
                return Self::Untrusted {
                    master,
                    reason: det_tls::explain(problem, "DET_MASTER_CERT_NAME"),
                };
            }
            Some(rustls::Error::InvalidMessage(_)) => {
                return Self::Unreachable {
                    master,
                    reason: "it does not speak TLS (is its address http:// ?)".to_owned(),
                };
            }
            Some(other) => {
                return Self::Unreachable {
                    master,
                    reason: format!("the TLS handshake failed ({other})"),
                };
            }
            None => {}
        }
        if error.is_connect() || error.is_timeout() {
            return Self::Unreachable {
                master,
                reason: connection_problem(error),
            };
        }
        if error.is_body() || error.is_decode() || io_kind(error).is_some() {
            return Self::Interrupted {
                master,
                reason: connection_problem(error),
            };
        }
        Self::BadAnswer {
            url: url.to_owned(),
            reason: innermost(error),
        }
    }

    /// The same where the master has never answered: what answers may speak TLS, which looks like a connection that is cut
    /// or like no HTTP to a client that does not.
    pub(crate) fn of_first_request(mut self, master: &MasterUrl) -> Self {
        if let (false, Self::Interrupted { reason, .. } | Self::BadAnswer { reason, .. }) =
            (master.is_https(), &mut self)
        {
            reason.push_str("; if the port speaks TLS, use https:// in the master's address");
        }
        self
    }
}

/// The text and hint of an error body: `message`, else `error.message`, else `error.error`, else the body itself.
fn explain(status: u16, body: &str) -> (String, Option<String>) {
    let parsed: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    let text = |value: &Value| value.as_str().map(str::to_owned).filter(|t| !t.is_empty());
    let inner = &parsed["error"];
    let message = text(&parsed["message"])
        .or_else(|| text(&inner["message"]))
        .or_else(|| text(&inner["error"]))
        .or_else(|| text(inner))
        .unwrap_or_else(|| plain_body(status, body));
    let hint = text(&parsed["hint"]).or_else(|| text(&inner["hint"]));
    // For clients that know no hints the text repeats it.
    let message = match hint
        .as_ref()
        .and_then(|hint| message.strip_suffix(&format!("\nhint: {hint}")))
    {
        Some(without) => without.to_owned(),
        None => message,
    };
    (message, hint)
}

/// The structured list of an error body.
fn document_errors(body: &str) -> Vec<Value> {
    let mut parsed: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    match parsed["error"]["errors"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

/// A sentence for an error body that is not JSON.
fn plain_body(status: u16, body: &str) -> String {
    let line = body.lines().map(str::trim).find(|line| !line.is_empty());
    match line {
        Some(line) if !line.starts_with('<') && line.chars().count() <= 300 => {
            format!("the master answered with status {status}: {line}")
        }
        _ => format!("the master answered with status {status} and no explanation"),
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn Error + 'static) = *error;
        // An `io::Error` that wraps another error answers `source` with that error's source, leaving it out itself.
        match error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

fn find_tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn io_kind(error: &reqwest::Error) -> Option<io::ErrorKind> {
    chain(error)
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .map(io::Error::kind)
        .find(|kind| *kind != io::ErrorKind::Other)
}

fn innermost(error: &reqwest::Error) -> String {
    chain(error)
        .last()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

fn connection_problem(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    if chain(error).any(|error| error.to_string().contains("dns error")) {
        return "the host name is not known".to_owned();
    }
    match io_kind(error) {
        Some(io::ErrorKind::ConnectionRefused) => "the connection was refused".to_owned(),
        Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            "the connection was cut".to_owned()
        }
        Some(io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable) => {
            "the network does not lead there".to_owned()
        }
        _ => innermost(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(status: u16, body: &str) -> String {
        ClientError::from_status(status, body).to_string()
    }

    #[test]
    fn the_text_of_every_error_shape_is_found() {
        for body in [
            r#"{"message":"no such thing"}"#,
            r#"{"error":{"code":5,"reason":"NotFound","error":"no such thing"}}"#,
            r#"{"error":{"grpcCode":5,"httpCode":404,"message":"no such thing"}}"#,
            r#"{"error":"no such thing"}"#,
        ] {
            assert_eq!(message(404, body), "no such thing", "for {body}");
        }
    }

    #[test]
    fn a_page_of_html_is_not_shown() {
        assert_eq!(
            message(502, "<html><body>Bad Gateway</body></html>"),
            "the master answered with status 502 and no explanation"
        );
        assert_eq!(
            message(500, "broken\n"),
            "the master answered with status 500: broken"
        );
    }

    #[test]
    fn a_hint_is_kept_apart() {
        let error =
            ClientError::from_status(400, r#"{"message":"too big","hint":"make it smaller"}"#);
        let ClientError::Failed { hint, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(hint.as_deref(), Some("make it smaller"));
    }
}
