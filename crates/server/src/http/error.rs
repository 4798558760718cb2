//! The one place that turns failures into statuses and bodies.

use std::any::Any;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use det_api_types::error::{Code, ErrorBody, ErrorItem, StreamErrorBody};
use det_api_types::wire::WireError;

use crate::error::{AppError, ErrorKind};

/// A failure as a response of `/api/v1`.
#[derive(Debug)]
pub struct ApiError(pub AppError);

impl From<AppError> for ApiError {
    fn from(error: AppError) -> Self {
        Self(error)
    }
}

impl From<det_store::StoreError> for ApiError {
    fn from(error: det_store::StoreError) -> Self {
        Self(error.into())
    }
}

impl From<WireError> for ApiError {
    fn from(error: WireError) -> Self {
        Self(AppError::invalid(error.to_string()))
    }
}

/// A failure before a stream's first message.
#[derive(Debug)]
pub struct StreamError(AppError);

impl From<AppError> for StreamError {
    fn from(error: AppError) -> Self {
        Self(error)
    }
}

impl IntoResponse for StreamError {
    fn into_response(self) -> Response {
        before_stream(self.0)
    }
}

/// The HTTP status of an error whose answer is a page.
pub(crate) fn status_of(error: &AppError) -> StatusCode {
    status(error.kind).1
}

/// gRPC code and HTTP status of a kind of failure.
fn status(kind: ErrorKind) -> (Code, StatusCode) {
    match kind {
        ErrorKind::Invalid => (Code::InvalidArgument, StatusCode::BAD_REQUEST),
        ErrorKind::Precondition => (Code::FailedPrecondition, StatusCode::BAD_REQUEST),
        ErrorKind::Unauthenticated => (Code::Unauthenticated, StatusCode::UNAUTHORIZED),
        ErrorKind::Forbidden => (Code::PermissionDenied, StatusCode::FORBIDDEN),
        ErrorKind::NotFound => (Code::NotFound, StatusCode::NOT_FOUND),
        ErrorKind::Conflict => (Code::AlreadyExists, StatusCode::CONFLICT),
        ErrorKind::TooSlow => (Code::Canceled, StatusCode::REQUEST_TIMEOUT),
        ErrorKind::Misdirected => (Code::FailedPrecondition, StatusCode::MISDIRECTED_REQUEST),
        ErrorKind::TooMany => (Code::ResourceExhausted, StatusCode::TOO_MANY_REQUESTS),
        ErrorKind::TooLarge => (Code::InvalidArgument, StatusCode::PAYLOAD_TOO_LARGE),
        ErrorKind::UnsupportedMedia => (Code::InvalidArgument, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ErrorKind::Internal => (Code::Internal, StatusCode::INTERNAL_SERVER_ERROR),
        ErrorKind::NotBuilt => (Code::Unimplemented, StatusCode::NOT_IMPLEMENTED),
        ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Unreachable => {
            (Code::Unavailable, StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.0.log();
        let (code, status) = status(self.0.kind);
        let mut body = ErrorBody::new(code, self.0.message);
        if let Some(hint) = self.0.hint {
            body = body.with_hint(hint);
        }
        if !self.0.details.is_empty() {
            let items = self
                .0
                .details
                .into_iter()
                .filter_map(|d| serde_json::from_value::<ErrorItem>(d).ok());
            body = body.with_errors(items.collect());
        }
        let text = serde_json::to_vec(&body).unwrap_or_default();
        (
            status,
            [(header::CONTENT_TYPE, "application/json")],
            Body::from(text),
        )
            .into_response()
    }
}

/// A failure in mid-stream, as the stream's last line.
pub fn stream_line(error: &AppError) -> Vec<u8> {
    error.log();
    StreamErrorBody::new(status(error.kind).0, error.message.clone())
        .to_line()
        .unwrap_or_default()
}

#[expect(clippy::needless_pass_by_value, reason = "it ends here")]
/// A failure before a stream's first message: the mapped status with the stream's error object.
pub fn before_stream(error: AppError) -> Response {
    let status = status(error.kind).1;
    (
        status,
        [(header::CONTENT_TYPE, "application/json")],
        Body::from(stream_line(&error)),
    )
        .into_response()
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that the layer calls"
)]
/// A defect of ours that showed as a panic: one request fails, the master goes on.
pub fn on_panic(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    ApiError(AppError::internal(anyhow::anyhow!("panic: {text}"))).into_response()
}
