//! Answers that refuse a request: `Status` objects with the code, reason and text that the API gives.

use serde_json::{Map, Value, json};

use crate::target::{Resource, Target};

/// A refusal, which is a `Status` object on the wire.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    /// The HTTP status.
    pub(crate) code: u16,
    reason: &'static str,
    message: String,
    details: Map<String, Value>,
}

impl Failure {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Map::new(),
        }
    }

    /// Adds the object that is concerned to the details.
    fn about(mut self, resource: &Resource, kind: &str, name: &str) -> Self {
        for (key, value) in [("name", name), ("group", &resource.group), ("kind", kind)] {
            if !value.is_empty() {
                self.details.insert(key.to_owned(), value.into());
            }
        }
        self
    }

    fn with_cause(mut self, cause: Value) -> Self {
        self.details
            .insert("causes".to_owned(), Value::Array(vec![cause]));
        self
    }

    /// The object does not exist.
    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified());
        Self::new(404, "NotFound", message).about(resource, &resource.plural, name)
    }

    /// The path leads to nothing.
    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(404, "NotFound", message)
    }

    /// An object of this name exists.
    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(resource, &resource.plural, name)
    }

    /// What the request rests on is not so any more.
    pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            resource.qualified()
        );
        Self::new(409, "Conflict", message).about(resource, &resource.plural, name)
    }

    /// A value of the object is refused. `field` is its path, `kind` one of the API's causes such as `FieldValueInvalid`.
    pub(crate) fn invalid(target: &Target, name: &str, kind: &str, field: &str, why: &str) -> Self {
        let object = match target.resource.group.as_str() {
            "" => target.kind(),
            group => format!("{}.{group}", target.kind()),
        };
        let message = format!("{object} \"{name}\" is invalid: {field}: {why}");
        Self::new(422, "Invalid", message)
            .about(&target.resource, &target.kind(), name)
            .with_cause(json!({"reason": kind, "message": why, "field": field}))
    }

    /// The caller may not.
    pub(crate) fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let object = match name {
            "" => resource.qualified(),
            name => format!("{} \"{name}\"", resource.qualified()),
        };
        Self::new(403, "Forbidden", format!("{object} is forbidden: {why}")).about(
            resource,
            &resource.plural,
            name,
        )
    }

    /// The request cannot be read.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// An operation of a JSON patch does not fit the object, or its test fails.
    pub(crate) fn unprocessable_patch(operation: &str, path: &str) -> Self {
        let message = format!(
            "the server rejected our request due to an error in our request: {operation} operation does not apply: \
             {path}"
        );
        Self::new(422, "Invalid", message)
    }

    /// The method means nothing here.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    /// The content type of a patch is not known.
    pub(crate) fn unsupported_media_type(found: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
             application/apply-patch+yaml (found {found:?})"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// The version is older than what is kept.
    pub(crate) fn expired(asked: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {asked} ({oldest})");
        Self::new(410, "Expired", message)
    }

    /// The version has not been reached yet.
    pub(crate) fn too_large_version(asked: u64, newest: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {newest}");
        let cause =
            json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        let mut failure = Self::new(504, "Timeout", message).with_cause(cause);
        failure
            .details
            .insert("retryAfterSeconds".to_owned(), 1.into());
        failure
    }

    /// The answer that a test has asked for, with the reason that the API has for this code.
    pub(crate) fn injected(code: u16) -> Self {
        let (reason, message) = match code {
            400 => ("BadRequest", "the server rejected our request"),
            401 => ("Unauthorized", "Unauthorized"),
            403 => (
                "Forbidden",
                "the server does not allow access to the requested resource",
            ),
            404 => (
                "NotFound",
                "the server could not find the requested resource",
            ),
            409 => (
                "Conflict",
                "the server reported a conflict; please try again",
            ),
            410 => (
                "Expired",
                "The resourceVersion for the provided list is too old.",
            ),
            422 => ("Invalid", "the server rejected our request"),
            429 => (
                "TooManyRequests",
                "Too many requests, please try again later.",
            ),
            500 => ("InternalError", "Internal error occurred: injected"),
            503 => (
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
            ),
            504 => (
                "Timeout",
                "the server was unable to return a response in time",
            ),
            _ => ("", "unknown"),
        };
        let mut failure = Self::new(code, reason, message);
        if let Some(seconds) = failure.retry_after() {
            failure
                .details
                .insert("retryAfterSeconds".to_owned(), seconds.into());
        }
        failure
    }

    /// The value of the header `Retry-After`, in seconds, for codes that have one.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        matches!(self.code, 429 | 503).then_some(1)
    }

    /// The object on the wire.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if !self.details.is_empty() {
            status["details"] = Value::Object(self.details.clone());
        }
        status
    }
}
