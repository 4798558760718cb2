//! How a refusal looks on the wire.
//!
//! Clients search an error body for `message`, then `error.message`, then `error.error`, and print it unchanged.
//! [`ErrorBody`] answers API calls, [`StreamErrorBody`] the streaming ones (before or amid the stream),
//! [`PlainErrorBody`] routes outside `/api/v1`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{Bytes, WireError};

/// What kind of refusal: the codes of gRPC, which is what clients of the old product know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Code {
    /// The caller closed the connection before there was an answer.
    Canceled,
    /// An error of the master of unknown kind.
    #[default]
    Unknown,
    /// The request is wrong in itself.
    InvalidArgument,
    /// The work took longer than the request or the master allows.
    DeadlineExceeded,
    /// Not there, or the caller may not know.
    NotFound,
    /// What was to be created exists already: the name or id is in use.
    AlreadyExists,
    /// The caller is known, but may not do this.
    PermissionDenied,
    /// A limit of size, number or rate is reached; a smaller or later request may succeed.
    ResourceExhausted,
    /// The thing is in the wrong state.
    FailedPrecondition,
    /// Another request changed it meanwhile.
    Aborted,
    /// The request asks for a part beyond the end of what there is.
    OutOfRange,
    /// The operation is part of the API, but this master does not have it.
    Unimplemented,
    /// An error of the master.
    Internal,
    /// Something we depend on is down.
    Unavailable,
    /// Stored data are damaged or lost.
    DataLoss,
    /// It is not known who calls: no token was sent, or it is not valid.
    Unauthenticated,
}

impl Code {
    /// Every code, ascending by its number in gRPC.
    pub const ALL: [Self; 16] = [
        Self::Canceled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The number that gRPC gives to this code, 1 to 16.
    pub const fn number(self) -> i32 {
        match self {
            Self::Canceled => 1,
            Self::Unknown => 2,
            Self::InvalidArgument => 3,
            Self::DeadlineExceeded => 4,
            Self::NotFound => 5,
            Self::AlreadyExists => 6,
            Self::PermissionDenied => 7,
            Self::ResourceExhausted => 8,
            Self::FailedPrecondition => 9,
            Self::Aborted => 10,
            Self::OutOfRange => 11,
            Self::Unimplemented => 12,
            Self::Internal => 13,
            Self::Unavailable => 14,
            Self::DataLoss => 15,
            Self::Unauthenticated => 16,
        }
    }

    /// The HTTP status. 503 and 504 make clients try again for a quarter of a minute: keep them for what may pass.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => 400,
            Self::Unauthenticated => 401,
            Self::PermissionDenied => 403,
            Self::NotFound => 404,
            Self::Canceled => 408,
            Self::AlreadyExists | Self::Aborted => 409,
            Self::ResourceExhausted => 429,
            Self::Unknown | Self::Internal | Self::DataLoss => 500,
            Self::Unimplemented => 501,
            Self::Unavailable => 503,
            Self::DeadlineExceeded => 504,
        }
    }

    /// The name, as the `reason` of an error body.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Canceled => "Canceled",
            Self::Unknown => "Unknown",
            Self::InvalidArgument => "InvalidArgument",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::PermissionDenied => "PermissionDenied",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::FailedPrecondition => "FailedPrecondition",
            Self::Aborted => "Aborted",
            Self::OutOfRange => "OutOfRange",
            Self::Unimplemented => "Unimplemented",
            Self::Internal => "Internal",
            Self::Unavailable => "Unavailable",
            Self::DataLoss => "DataLoss",
            Self::Unauthenticated => "Unauthenticated",
        }
    }

    /// The standard phrase of [`Code::http_status`].
    pub const fn http_phrase(self) -> &'static str {
        match self.http_status() {
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            408 => "Request Timeout",
            409 => "Conflict",
            429 => "Too Many Requests",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            504 => "Gateway Timeout",
            _ => "Internal Server Error",
        }
    }

    /// The code with this number in gRPC; `None` for 0 (success) and numbers that are none.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.number() == number)
    }
}

/// Body of an error of an API call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorBody {
    /// What went wrong, as a text for users and a code for programs.
    pub error: ErrorDetail,
}

/// An error of an API call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorDetail {
    /// Number of the code in gRPC, 1 to 16: [`Code::number`].
    pub code: i32,
    /// Name of the code, such as `NotFound`: [`Code::reason`].
    pub reason: String,
    /// What was tried, on what, what is allowed. Clients print it as it is.
    pub error: String,
    /// What to do about it (an addition of ours).
    pub hint: Option<String>,
    /// Each error separately, if there are several (an addition to the original API).
    pub errors: Vec<ErrorItem>,
}

/// One of several errors that were found in the same request, with its place.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorItem {
    /// Where: a field of the request or a path in the configuration; empty = the whole.
    pub path: String,
    /// What is wrong and what is allowed.
    pub message: String,
    /// Line of the configuration's text, from 1; `None` = it does not come from the text.
    pub line: Option<u32>,
    /// Column of the configuration's text, from 1.
    pub column: Option<u32>,
    /// What to do instead, when there is a good guess.
    pub hint: Option<String>,
    /// The template or other layer that it comes from; `None` = the configuration that was sent.
    pub source: Option<String>,
    /// For a configuration that is broken in a well-known way: its parts in the correct form, as YAML. One error of
    /// several carries it for all.
    pub repaired: Option<String>,
}

/// Body of an error of a streaming call: alone with the mapped status before the first message, or the last line of a
/// stream that had begun.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamErrorBody {
    /// What went wrong, as a text for users and a code for programs.
    pub error: StreamError,
}

/// An error of a streaming call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamError {
    /// Number of the code in gRPC, 1 to 16: [`Code::number`].
    pub grpc_code: i32,
    /// The HTTP status that belongs to the code: [`Code::http_status`].
    pub http_code: u16,
    /// What was tried, on what, what is allowed.
    pub message: String,
    /// The same text: clients look for it here when the status is not one that they know.
    pub error: String,
    /// The standard phrase of that status, such as `Not Found`: [`Code::http_phrase`].
    pub http_status: String,
    /// Further particulars; this master gives none.
    pub details: Vec<StreamErrorDetail>,
}

/// A typed particular of a [`StreamError`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamErrorDetail {
    /// Type of the message in `value`, as a URL whose last part is its name in protocol buffers.
    pub type_url: String,
    /// The message, in the binary form of protocol buffers.
    pub value: Bytes,
}

/// Body of an error outside `/api/v1`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlainErrorBody {
    /// What was tried, on what, what is allowed.
    pub message: String,
}

impl ErrorBody {
    /// The body of a refusal; `error` is shown to users.
    pub fn new(code: Code, error: impl Into<String>) -> Self {
        Self {
            error: ErrorDetail {
                code: code.number(),
                reason: code.reason().to_owned(),
                error: error.into(),
                hint: None,
                errors: Vec::new(),
            },
        }
    }

    /// The same refusal with advice on what to do. Clients that know no hints print the error's text only, so the hint
    /// is in it as well, on a line of its own.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        let hint = hint.into();
        self.error.error = format!("{}\nhint: {hint}", self.error.error);
        self.error.hint = Some(hint);
        self
    }

    /// The same refusal with each of its errors listed separately in [`ErrorDetail::errors`].
    #[must_use]
    pub fn with_errors(mut self, errors: Vec<ErrorItem>) -> Self {
        self.error.errors = errors;
        self
    }
}

impl From<&WireError> for ErrorBody {
    fn from(error: &WireError) -> Self {
        Self::new(
            Code::InvalidArgument,
            format!("the request cannot be read: {error}"),
        )
        .with_errors(vec![ErrorItem {
            path: error.path.clone(),
            message: error.message.clone(),
            ..ErrorItem::default()
        }])
    }
}

impl StreamErrorBody {
    /// The body of a refusal; `message` is shown to users.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            error: StreamError {
                grpc_code: code.number(),
                http_code: code.http_status(),
                error: message.clone(),
                message,
                http_status: code.http_phrase().to_owned(),
                details: Vec::new(),
            },
        }
    }

    /// The last line of a stream that ends in this error, with its line feed.
    ///
    /// # Errors
    /// None in practice: the body contains text and numbers only.
    pub fn to_line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_number_of_its_own_and_a_status_clients_know() {
        for (index, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(usize::try_from(code.number()), Ok(index + 1), "{code:?}");
            assert_eq!(Code::from_number(code.number()), Some(code));
            assert!(!code.http_phrase().is_empty());
        }
        assert_eq!(Code::from_number(0), None);
        assert_eq!(Code::NotFound.http_status(), 404);
        assert_eq!(Code::FailedPrecondition.http_status(), 400);
        assert_eq!(Code::Unimplemented.http_status(), 501);
    }

    #[test]
    fn an_error_body_has_the_form_clients_search() {
        let body = ErrorBody::new(Code::NotFound, "experiment 7 not found");
        let json = serde_json::to_value(&body).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"error": {
                "code": 5, "reason": "NotFound", "error": "experiment 7 not found", "hint": null, "errors": [],
            }})
        );
    }

    #[test]
    fn a_hint_reaches_clients_that_print_only_the_text() {
        let body = ErrorBody::new(Code::InvalidArgument, "no pool \"gpu\"")
            .with_hint("choose \"default\"");
        assert_eq!(
            body.error.error,
            "no pool \"gpu\"\nhint: choose \"default\""
        );
        assert_eq!(body.error.hint.as_deref(), Some("choose \"default\""));
    }

    #[test]
    fn a_stream_error_names_both_codes() {
        let json =
            serde_json::to_value(StreamErrorBody::new(Code::NotFound, "no trial 3")).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"error": {
                "grpcCode": 5, "httpCode": 404, "message": "no trial 3", "error": "no trial 3",
                "httpStatus": "Not Found", "details": [],
            }})
        );
    }

    #[test]
    fn a_stream_ends_in_one_line() {
        let line = StreamErrorBody::new(Code::Internal, "two\nlines")
            .to_line()
            .unwrap();
        let (end, text) = line.split_last().unwrap();
        assert_eq!(*end, b'\n');
        assert!(!text.contains(&b'\n'));
    }

    #[test]
    fn a_wire_error_keeps_the_field() {
        let error = WireError {
            path: "logs[3].level".into(),
            message: "expected a name".into(),
        };
        let body = ErrorBody::from(&error);
        assert_eq!(body.error.code, 3);
        assert_eq!(
            body.error.error,
            "the request cannot be read: field \"logs[3].level\": expected a name"
        );
        assert_eq!(body.error.errors[0].path, "logs[3].level");
    }
}
