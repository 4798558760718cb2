//! Calls to the master.

use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::typestate::WithBody;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector as _, TcpConnector};
use ureq::{Agent, Body, RequestBuilder};

use crate::tls::TlsConnector;

/// The most bytes of a response; the largest is a context directory.
const MAX_ANSWER_BYTES: u64 = 512 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The master's address and certificate settings, from a task's environment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Address {
    /// Address of the master: the value of `DET_MASTER`.
    pub(crate) url: String,
    /// `DET_MASTER_CERT_FILE`: certificates to trust, or `noverify`.
    pub(crate) cert_file: Option<String>,
    /// `DET_MASTER_CERT_NAME`: the name on the master's certificate, if it is not the one in the address.
    pub(crate) cert_name: Option<String>,
}

/// The master, with the task's token. Clones share their connections.
#[derive(Debug, Clone)]
pub(crate) struct Master {
    agent: Agent,
    base: String,
    /// The header with the credentials.
    header: &'static str,
    credentials: String,
}

/// Why a call of the master's API failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MasterError {
    /// The master could not be reached, or did not answer.
    #[error("could not reach the master at {url:?}: {cause}")]
    Unreachable {
        /// Address that was called.
        url: String,
        /// The error of the network or of the parser.
        cause: String,
    },
    /// The response has an error status.
    #[error("the master answered {status} to {url:?}: {message}")]
    Status {
        /// Address that was called.
        url: String,
        /// HTTP status of the answer.
        status: u16,
        /// The message of the master's error.
        message: String,
    },
    /// The response could not be parsed.
    #[error("could not read the master's answer to {url:?}: {cause}")]
    Answer {
        /// Address that was called.
        url: String,
        /// The error of the network or of the parser.
        cause: String,
    },
}

impl MasterError {
    /// Whether the same call may succeed later: the master is unreachable, busy, or being restarted.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => *status >= 500 || matches!(status, 408 | 429),
            Self::Answer { .. } => false,
        }
    }
}

impl Master {
    /// Prepares calls; connects to nothing yet. The error is what is wrong with the address or its certificates.
    pub(crate) fn new(address: &Address, token: &str) -> Result<Self, String> {
        if address.url.trim_end_matches('/').is_empty() {
            return Err(
                "the address of the master is missing from the task's environment (DET_MASTER)"
                    .into(),
            );
        }
        Self::at(address, TOKEN_HEADER, format!("Bearer {token}"))
    }

    /// Prepares calls of another server, which asks for a header of its own.
    pub(crate) fn at(
        address: &Address,
        header: &'static str,
        credentials: String,
    ) -> Result<Self, String> {
        let base = address.url.trim_end_matches('/');
        let base = if base.contains("://") {
            base.to_owned()
        } else {
            format!("http://{base}")
        };
        let secure = base.starts_with("https://");
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            // Proxies in a task's environment are not for the master.
            .proxy(None)
            .user_agent(concat!("det-supervisor/", env!("CARGO_PKG_VERSION")))
            .build();
        let tcp = ().chain(TcpConnector::default());
        let resolver = DefaultResolver::default();
        let agent = if secure {
            let (file, name) = (address.cert_file.as_deref(), address.cert_name.as_deref());
            let connector = tcp.chain(TlsConnector::new(file, name)?);
            Agent::with_parts(config, connector, resolver)
        } else {
            Agent::with_parts(config, tcp, resolver)
        };
        Ok(Self {
            agent,
            base,
            header,
            credentials,
        })
    }

    /// `GET path`. `timeout`: for the whole call.
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        timeout: Duration,
    ) -> Result<T, MasterError> {
        let url = format!("{}{path}", self.base);
        let answer = self
            .agent
            .get(&url)
            .config()
            .timeout_global(Some(timeout))
            .build()
            .header(self.header, &self.credentials)
            .call();
        let body = read(&url, answer)?;
        parse(url, &body)
    }

    /// `PUT path` with a JSON body; the answer's content does not matter.
    pub(crate) fn put(
        &self,
        path: &str,
        body: &[u8],
        timeout: Duration,
    ) -> Result<(), MasterError> {
        let url = format!("{}{path}", self.base);
        let request = self.agent.put(&url);
        self.send(&url, request, body, timeout).map(drop)
    }

    /// `POST path` with a JSON body; the answer's content does not matter.
    pub(crate) fn post(
        &self,
        path: &str,
        body: &[u8],
        timeout: Duration,
    ) -> Result<(), MasterError> {
        let url = format!("{}{path}", self.base);
        let request = self.agent.post(&url);
        self.send(&url, request, body, timeout).map(drop)
    }

    /// `POST path` with a JSON body, for an answer.
    pub(crate) fn post_for<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &[u8],
        timeout: Duration,
    ) -> Result<T, MasterError> {
        let url = format!("{}{path}", self.base);
        let answer = self.send(&url, self.agent.post(&url), body, timeout)?;
        parse(url, &answer)
    }

    /// `PATCH path` with a JSON body; the answer's content does not matter.
    pub(crate) fn patch(
        &self,
        path: &str,
        body: &[u8],
        timeout: Duration,
    ) -> Result<(), MasterError> {
        let url = format!("{}{path}", self.base);
        let request = self.agent.patch(&url);
        self.send(&url, request, body, timeout).map(drop)
    }

    fn send(
        &self,
        url: &str,
        request: RequestBuilder<WithBody>,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, MasterError> {
        let answer = request
            .config()
            .timeout_global(Some(timeout))
            .build()
            .header(self.header, &self.credentials)
            .header("Content-Type", "application/json")
            .send(body);
        read(url, answer)
    }
}

fn parse<T: DeserializeOwned>(url: String, body: &[u8]) -> Result<T, MasterError> {
    serde_json::from_slice(body).map_err(|error| MasterError::Answer {
        url,
        cause: error.to_string(),
    })
}

const TOKEN_HEADER: &str = "Grpc-Metadata-x-allocation-token";

/// The body of a successful response. It is always read to its end, so that the connection can be reused.
fn read(url: &str, answer: Result<Response<Body>, ureq::Error>) -> Result<Vec<u8>, MasterError> {
    let unreachable = |error: ureq::Error| MasterError::Unreachable {
        url: url.to_owned(),
        cause: error.to_string(),
    };
    let mut answer = answer.map_err(unreachable)?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES);
    let body = body.read_to_vec().map_err(unreachable)?;
    if (200..300).contains(&status) {
        return Ok(body);
    }
    Err(MasterError::Status {
        url: url.to_owned(),
        status,
        message: error_text(&body),
    })
}

/// The message in an error body, in any of its formats.
fn error_text(body: &[u8]) -> String {
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let places = ["/message", "/error/message", "/error/error"];
    let text = places
        .iter()
        .find_map(|place| json.pointer(place)?.as_str());
    match text {
        Some(text) => text.to_owned(),
        None => String::from_utf8_lossy(body)
            .trim()
            .chars()
            .take(300)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Address {
        Address {
            url: url.to_owned(),
            ..Address::default()
        }
    }

    #[test]
    fn addresses_are_taken_as_users_write_them() {
        for (given, base) in [
            ("http://m:8080", "http://m:8080"),
            ("http://m:8080/", "http://m:8080"),
            ("m:8080", "http://m:8080"),
            ("http://m/prefix/", "http://m/prefix"),
        ] {
            assert_eq!(Master::new(&address(given), "t").unwrap().base, base);
        }
        assert!(
            Master::new(&address(""), "t")
                .unwrap_err()
                .contains("DET_MASTER")
        );
    }

    #[test]
    fn the_text_of_an_error_is_found_in_every_shape() {
        for (body, text) in [
            (r#"{"message": "a"}"#, "a"),
            (r#"{"error": {"code": 5, "error": "b"}}"#, "b"),
            (r#"{"error": {"message": "c"}}"#, "c"),
            ("plain", "plain"),
        ] {
            assert_eq!(error_text(body.as_bytes()), text);
        }
    }

    #[test]
    fn temporary_errors_are_retried() {
        let status = |status| MasterError::Status {
            url: String::new(),
            status,
            message: String::new(),
        };
        for (code, passes) in [
            (500, true),
            (503, true),
            (429, true),
            (408, true),
            (404, false),
            (401, false),
        ] {
            assert_eq!(status(code).is_temporary(), passes, "{code}");
        }
    }
}
