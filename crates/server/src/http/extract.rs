//! Extractors for the wire dialect: no content type, empty bodies, nulls, both spellings.

use std::borrow::Cow;
use std::str::{FromStr, Utf8Error};

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use det_api_types::wire;
use det_ids::UserId;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::app::Master;
use crate::app::user_counts::{OfUser, UserCounts};
use crate::auth::{Access, Accesses, Actor};
use crate::connections::StallLimit;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::bodies;
use crate::http::error::ApiError;
use crate::http::tokens::{allocation_token, session_token};

/// A request body in the wire dialect.
#[derive(Debug)]
pub struct WireBody<T>(pub T);

/// Bodies from this size on are decoded on a blocking thread, not between the requests of others.
const LARGE_BYTES: usize = 256 << 10;

impl<T: DeserializeOwned + Default + Send + 'static> FromRequest<Master> for WireBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _master: &Master) -> Result<Self, ApiError> {
        let body = bodies::read(request).await?;
        if body.len() < LARGE_BYTES {
            return Ok(Self(wire::decode(&body)?));
        }
        let decoded = tokio::task::spawn_blocking(move || wire::decode(&body))
            .await
            .map_err(AppError::internal)?;
        Ok(Self(decoded?))
    }
}

/// A request body as it came, for handlers that have a decoder of their own.
#[derive(Debug)]
pub struct RawBody(Vec<u8>);

impl FromRequest<Master> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _master: &Master) -> Result<Self, ApiError> {
        Ok(Self(bodies::read(request).await?))
    }
}

impl RawBody {
    /// Length of the body in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Decodes it, and gives its memory back: a large one on a blocking thread, as [`WireBody`].
    pub(crate) async fn decode<T: Send + 'static>(
        self,
        decode: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Self(body) = self;
        // Read in one step, so much more is still a short time.
        if body.len() < 4 * LARGE_BYTES {
            return decode(&body);
        }
        tokio::task::spawn_blocking(move || decode(&body))
            .await
            .map_err(AppError::internal)?
    }
}

/// A query string in the wire dialect.
#[derive(Debug)]
pub struct WireQuery<T>(pub T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequestParts<S> for WireQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        Ok(Self(wire::decode_query(parts.uri.query().unwrap_or(""))?))
    }
}

/// The master and who asks it; a request without a valid token is refused, and so is that of a task that has ended.
pub struct Caller(pub Master, pub Actor);

impl FromRequestParts<Master> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, master: &Master) -> Result<Self, ApiError> {
        let actor = caller_of(parts, master).await?;
        Ok(Self(master.clone(), actor))
    }
}

/// Who asks; see [`Caller`].
async fn caller_of(parts: &Parts, master: &Master) -> AppResult<Actor> {
    let actor = actor(parts, master).await.map_err(|error| error.0)?;
    actor.require_access()?;
    Ok(actor)
}

/// Who asks, and the right by which what is opened now stays open; see [`Caller`].
pub(crate) async fn caller_with_access(
    parts: &Parts,
    master: &Master,
) -> AppResult<(Actor, Access)> {
    let accesses = Accesses(&master.auth);
    match caller_of(parts, master).await? {
        Actor::User(user) => {
            let session = match session_token(&parts.headers) {
                Some(token) => accesses.of_session(&token).await?,
                None => None,
            };
            let (_, access) = session.ok_or_else(not_valid)?;
            Ok((Actor::User(user), access))
        }
        Actor::Task(task) => {
            let access = accesses.of_task(&task);
            // Its allocation may have ended before it was noted that this right ends with it.
            let actor = caller_of(parts, master).await?;
            Ok((actor, access))
        }
    }
}

fn not_valid() -> AppError {
    unauthenticated("the token of this request is not valid: it may have expired or been revoked")
}

fn unauthenticated(message: &str) -> AppError {
    AppError::new(ErrorKind::Unauthenticated, message).hint("log in with: det user login")
}

/// As [`Caller`], also a task that ended a short time ago: for its late logs, reports and checkpoints.
pub struct Reporter(pub Master, pub Actor);

impl FromRequestParts<Master> for Reporter {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, master: &Master) -> Result<Self, ApiError> {
        Ok(Self(master.clone(), actor(parts, master).await?))
    }
}

/// Whose token a request brings.
async fn actor(parts: &Parts, master: &Master) -> Result<Actor, ApiError> {
    let session = session_token(&parts.headers);
    if let Some(token) = &session
        && let Some(actor) = master.auth.by_session(token).await?
    {
        return Ok(actor);
    }
    // A client inside a task brings the task's token where users bring theirs.
    let allocation = allocation_token(&parts.headers);
    let nothing_given = session.is_none() && allocation.is_none();
    for token in [allocation, session].into_iter().flatten() {
        if let Some(actor) = master.auth.by_allocation_token(&token).await? {
            return Ok(actor);
        }
    }
    Err(ApiError(if nothing_given {
        unauthenticated("this request has no token")
    } else {
        not_valid()
    }))
}

/// What a stream needs: it is counted among those of the caller's user, its client may read slowly, and it ends when the
/// master stops.
pub struct StreamStart {
    streams: UserCounts,
    user_id: UserId,
    stall_limit: Option<StallLimit>,
    shutdown: CancellationToken,
}

impl FromRequestParts<Master> for StreamStart {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, master: &Master) -> Result<Self, ApiError> {
        let actor = caller_of(parts, master).await?;
        Ok(Self {
            streams: master.streams.clone(),
            user_id: actor.user().id,
            stall_limit: parts.extensions.get().cloned(),
            shutdown: master.context.shutdown.clone(),
        })
    }
}

impl StreamStart {
    /// Begins: what counts until it is dropped, and what is cancelled when the master stops.
    pub(crate) fn begin(self) -> AppResult<(OfUser, CancellationToken)> {
        let Some(counted) = self.streams.take(self.user_id) else {
            let most = self.streams.most();
            return Err(AppError::new(
                ErrorKind::TooMany,
                format!(
                    "{most} streams are open for you, and one user has no more at once; followed logs, metrics and \
                     events are streams"
                ),
            )
            .hint("end some of the commands that follow something, of your tasks as well"));
        };
        if let Some(stall_limit) = self.stall_limit {
            stall_limit.expect_slow_reading();
        }
        Ok((counted, self.shutdown))
    }
}

/// A number in a path; anything else is a bad request that names the segment.
#[derive(Debug, Clone, Copy)]
pub struct PathId<T>(pub T);

impl<S: Send + Sync, T: FromStr> FromRequestParts<S> for PathId<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let axum::extract::Path(text): axum::extract::Path<String> =
            axum::extract::Path::from_request_parts(parts, state)
                .await
                .map_err(|_| {
                    ApiError(AppError::invalid(
                        "the address of this request cannot be read",
                    ))
                })?;
        match text.parse() {
            Ok(id) => Ok(Self(id)),
            Err(_) => Err(ApiError(AppError::invalid(format!(
                "\"{}\" in the request's address must be a number",
                text.escape_debug()
            )))),
        }
    }
}

/// Refuses addresses that no handler could read: not UTF-8 once decoded, or with the character NUL in path or query.
pub async fn readable_address(request: Request, next: Next) -> Response {
    let uri = request.uri();
    let unreadable = match percent_decoded(uri.path()) {
        Err(_) => Some("its path is not UTF-8 text"),
        Ok(path) if path.contains('\0') => Some("its path holds the character NUL"),
        Ok(_) => match percent_decoded(uri.query().unwrap_or("")) {
            Err(_) => Some("its query is not UTF-8 text"),
            Ok(query) if query.contains('\0') => Some("its query holds the character NUL"),
            Ok(_) => None,
        },
    };
    match unreadable {
        Some(why) => ApiError(AppError::invalid(format!(
            "the address of this request cannot be read: {why}"
        )))
        .into_response(),
        None => next.run(request).await,
    }
}

/// Text with its `%XX` replaced. What only looks like an escape stays as it is.
fn percent_decoded(text: &str) -> Result<Cow<'_, str>, Utf8Error> {
    percent_decode_str(text).decode_utf8()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_decoded_once() {
        assert_eq!(percent_decoded("/a%20b%2F%c3%A9").as_deref(), Ok("/a b/é"));
        assert_eq!(percent_decoded("100%").as_deref(), Ok("100%"));
        assert_eq!(percent_decoded("%00").as_deref(), Ok("\0"));
        assert!(percent_decoded("%ff").is_err());
    }
}
