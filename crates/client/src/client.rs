//! The HTTP client: a connection pool to one master, and its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

use crate::address::MasterUrl;
use crate::error::ClientError;
use crate::query::Query;
use crate::secret::Secret;
use crate::stream::LineStream;
use crate::trust::Trust;

/// How often a failed request is repeated after the master has been reached once.
const RETRIES: u32 = 5;
/// The pause before the first repetition; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Settings of a [`Client`].
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// How long to wait for a connection, including the look-up of the name and the TLS handshake.
    pub connect_timeout: Duration,
    /// Which certificates of the master are trusted.
    pub trust: Trust,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_millis(900),
            trust: Trust::default(),
        }
    }
}

/// A client of one master. Cheap to clone; clones share the connections.
///
/// The first request fails at once when the master cannot be reached, so that a wrong address is reported quickly.
/// After a first response, a request without a connection is repeated for some seconds, and so is a reading one that a
/// proxy answered with 502, 503 or 504: a restart of the master does not interrupt a running command.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    master: MasterUrl,
    token: Option<Secret>,
    reached: Arc<AtomicBool>,
}

impl Client {
    /// A client without credentials. Fails if the certificate settings cannot be used.
    pub fn new(master: MasterUrl, options: &ClientOptions) -> Result<Self, ClientError> {
        let tls = options
            .trust
            .tls_config(&master)
            .map_err(|reason| ClientError::Setup {
                master: master.clone(),
                reason,
            })?;
        Ok(Self {
            http: build_http(&master, options, tls)?,
            master,
            token: None,
            reached: Arc::new(AtomicBool::new(false)),
        })
    }

    /// The same client with a user's token on every request.
    #[must_use]
    pub fn with_token(mut self, token: Secret) -> Self {
        self.token = Some(token);
        self
    }

    /// The token on every request, if there is one.
    pub fn token(&self) -> Option<Secret> {
        self.token.clone()
    }

    /// The address of this client's master.
    pub fn master(&self) -> &MasterUrl {
        &self.master
    }

    /// Reads what is at `path` with `GET`.
    pub async fn get(&self, path: &str, query: &Query) -> Result<Value, ClientError> {
        self.call(Method::GET, path, query, None).await
    }

    /// Posts `body` to `path`; `None` sends no body.
    pub async fn post(&self, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        self.call(Method::POST, path, &Query::new(), body).await
    }

    /// Changes what `path` names.
    pub async fn patch(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.call(Method::PATCH, path, &Query::new(), Some(body))
            .await
    }

    /// Puts `body` at `path`.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.call(Method::PUT, path, &Query::new(), Some(body))
            .await
    }

    /// Deletes what `path` names.
    pub async fn delete(&self, path: &str) -> Result<Value, ClientError> {
        self.call(Method::DELETE, path, &Query::new(), None).await
    }

    /// Deletes what `query` chooses of what is at `path`.
    pub async fn delete_chosen(&self, path: &str, query: &Query) -> Result<Value, ClientError> {
        self.call(Method::DELETE, path, query, None).await
    }

    /// Deletes what `body` names of what is at `path`.
    pub async fn delete_listed(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.call(Method::DELETE, path, &Query::new(), Some(body))
            .await
    }

    /// Opens a stream of JSON messages (see [`LineStream`]).
    pub async fn stream(&self, path: &str, query: &Query) -> Result<LineStream, ClientError> {
        let response = self.send(Method::GET, path, query, None, None).await?;
        Ok(LineStream::new(self.master.clone(), response))
    }

    /// Opens a download of raw bytes in the form `accept` (a media type).
    pub async fn download(&self, path: &str, accept: &str) -> Result<Download, ClientError> {
        let response = self
            .send(Method::GET, path, &Query::new(), None, Some(accept))
            .await?;
        Ok(Download {
            master: self.master.clone(),
            response,
        })
    }

    /// Opens a connection at `path` by a request with these headers.
    pub(crate) async fn open(
        &self,
        path: &str,
        headers: HeaderMap,
    ) -> Result<Response, ClientError> {
        let mut request = self.http.get(self.master.join(path)).headers(headers);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.reveal());
        }
        let outcome = request.send().await;
        match outcome {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => Ok(response),
            outcome => self.judge(path, outcome).await,
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        let response = self.send(method, path, query, body, None).await?;
        let url = self.master.join(path);
        let bytes = response
            .bytes()
            .await
            .map_err(|error| ClientError::from_transport(&self.master, &url, &error))?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Object(serde_json::Map::new()));
        }
        serde_json::from_slice(&bytes).map_err(|_| ClientError::BadAnswer {
            url,
            reason: "it is not JSON".to_owned(),
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: Option<&Value>,
        accept: Option<&str>,
    ) -> Result<Response, ClientError> {
        let repeatable = method != Method::POST && method != Method::PATCH;
        let mut pause = FIRST_PAUSE;
        for retries_left in (0..=RETRIES).rev() {
            let outcome = self.send_once(&method, path, query, body, accept).await;
            let may_retry = retries_left > 0 && self.reached.load(Ordering::Relaxed);
            let again = match &outcome {
                Ok(response) => repeatable && is_passing(response.status()),
                // Without a connection nothing was sent, so any method may be repeated.
                Err(error) => error.is_connect(),
            };
            if again && may_retry {
                tokio::time::sleep(pause).await;
                pause *= 2;
                continue;
            }
            return self.judge(path, outcome).await;
        }
        unreachable!("the last round returns")
    }

    async fn send_once(
        &self,
        method: &Method,
        path: &str,
        query: &Query,
        body: Option<&Value>,
        accept: Option<&str>,
    ) -> Result<Response, reqwest::Error> {
        let mut request = self
            .http
            .request(method.clone(), self.master.join(path))
            .query(query.pairs());
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.reveal());
        }
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await
    }

    async fn judge(
        &self,
        path: &str,
        outcome: Result<Response, reqwest::Error>,
    ) -> Result<Response, ClientError> {
        let url = self.master.join(path);
        let response = outcome.map_err(|error| {
            let error = ClientError::from_transport(&self.master, &url, &error);
            if self.reached.load(Ordering::Relaxed) {
                error
            } else {
                error.of_first_request(&self.master)
            }
        })?;
        self.reached.store(true, Ordering::Relaxed);
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_redirection() {
            let target = response
                .headers()
                .get("location")
                .and_then(|value| value.to_str().ok())
                .unwrap_or("an address it does not name");
            return Err(ClientError::BadAnswer {
                reason: format!("it points to {target}; give that address with -m"),
                url,
            });
        }
        let body = response.text().await.unwrap_or_default();
        Err(ClientError::from_status(status.as_u16(), &body))
    }
}

/// Whether a status is temporary. The master itself never uses these statuses for a refusal.
fn is_passing(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The connection pool of a client.
pub(crate) fn build_http(
    master: &MasterUrl,
    options: &ClientOptions,
    tls: rustls::ClientConfig,
) -> Result<reqwest::Client, ClientError> {
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("det/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .redirect(reqwest::redirect::Policy::none())
        .tls_backend_preconfigured(tls);
    if master.is_loopback() {
        // A proxy would look for the master on its own machine.
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| ClientError::Setup {
        master: master.clone(),
        reason: error.to_string(),
    })
}

/// A response body that is read piece by piece.
#[derive(Debug)]
pub struct Download {
    master: MasterUrl,
    response: Response,
}

impl Download {
    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let url = self.response.url().to_string();
        self.response
            .chunk()
            .await
            .map_err(|error| ClientError::from_transport(&self.master, &url, &error))
    }
}

/// A path of the API made of segments, each encoded so that any user input stays one segment: `["agents", "a/b"]` is
/// `/api/v1/agents/a%2Fb`.
pub fn api_path<S: AsRef<str>>(segments: impl IntoIterator<Item = S>) -> String {
    let mut path = String::from("/api/v1");
    for segment in segments {
        path.push('/');
        path.push_str(&path_segment(segment.as_ref()));
    }
    path
}

/// One segment of a path, encoded so that any text stays one segment.
pub(crate) fn path_segment(text: &str) -> String {
    let mut segment = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:@".contains(&byte) {
            segment.push(char::from(byte));
        } else {
            segment.push('%');
            segment.push(char::from(HEX[usize::from(byte >> 4)]));
            segment.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    segment
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_encoded_one_by_one() {
        assert_eq!(api_path(["me"]), "/api/v1/me");
        assert_eq!(
            api_path(["tasks", "7.0b-6c:8", "a/b c?ü"]),
            "/api/v1/tasks/7.0b-6c:8/a%2Fb%20c%3F%C3%BC"
        );
    }
}
