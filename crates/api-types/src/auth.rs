//! Logging in and out.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::users::User;
use crate::wire::Secret;

/// Body of `Login`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoginRequest {
    /// Name of the user who logs in.
    pub username: String,
    /// The password, hashed by the client when `is_hashed`. Empty for users without a password.
    pub password: Secret,
    /// Whether the client has applied the wire's SHA-512 transformation already.
    pub is_hashed: bool,
}

/// Answer of `Login`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoginResponse {
    /// Bearer token of the new session.
    pub token: Secret,
    /// The user who logged in.
    pub user: User,
}

/// Answer of `CurrentUser`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CurrentUserResponse {
    /// The user who asks.
    pub user: User,
}

/// Answer of `GetMe`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetMeResponse {
    /// The user who asks.
    pub user: User,
}
