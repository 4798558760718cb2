//! Users and their settings.

use det_ids::UserId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::page::{OrderBy, Pagination};
use crate::wire::{Secret, Timestamp, wire_enum};

/// A user of the cluster.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct User {
    /// Number, counted from 1; 0 in a request that creates one.
    #[schema(value_type = i64)]
    pub id: UserId,
    /// Name for logging in, unique.
    pub username: String,
    /// Whether the user administers the cluster.
    pub admin: bool,
    /// Whether the user may log in.
    pub active: bool,
    /// Unix identity of the user's tasks; `None` = the cluster's default.
    pub agent_user_group: Option<AgentUserGroup>,
    /// Display name; empty = the user name.
    pub display_name: String,
    /// Last change of this record.
    pub modified_at: Option<Timestamp>,
    /// Whether the user logs in only through an external identity provider.
    pub remote: bool,
    /// Last login; `None` = never.
    pub last_auth_at: Option<Timestamp>,
}

/// The Unix user and group that the processes of tasks run as.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentUserGroup {
    /// Numeric user id of their processes; `None` = not set.
    pub agent_uid: Option<i64>,
    /// Unix user name that belongs to that id; `None` = not set.
    pub agent_user: Option<String>,
    /// Numeric group id of their processes; `None` = not set.
    pub agent_gid: Option<i64>,
    /// Unix group name that belongs to that id; `None` = not set.
    pub agent_group: Option<String>,
}

wire_enum! {
    /// Sort keys of `GetUsers`.
    pub enum UserSortBy("SORT_BY_") {
        /// By number of the user; the tie break of all other keys.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By display name.
        DisplayName = 1 => "DISPLAY_NAME",
        /// By user name.
        UserName = 2 => "USER_NAME",
        /// Administrators after all other users.
        Admin = 3 => "ADMIN",
        /// Users who may not log in (inactive ones) before all others.
        Active = 4 => "ACTIVE",
        /// By the time at which the user was last changed.
        ModifiedTime = 5 => "MODIFIED_TIME",
        /// By display name, else user name.
        Name = 6 => "NAME",
        /// By the time of the last login; users who never logged in last.
        LastAuthTime = 7 => "LAST_AUTH_TIME",
        /// Kept for older clients: the same as by number.
        Remote = 8 => "REMOTE",
    }
}

/// Query of `GetUsers`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetUsersQuery {
    /// Attribute to sort by; unspecified = by number of the user.
    pub sort_by: UserSortBy,
    /// Direction of the sort order.
    pub order_by: OrderBy,
    /// Elements to skip; negative counts from the end.
    pub offset: i64,
    /// Elements at most; 0 = all.
    pub limit: i64,
    /// Substring of user or display name.
    pub name: String,
    /// Only active (or only inactive) users.
    pub active: Option<bool>,
    /// Only administrators (or only others).
    pub admin: Option<bool>,
    /// Only users to whom one of these roles is assigned directly.
    pub role_id_assigned_directly_to_user: Vec<i64>,
}

/// Answer of `GetUsers`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetUsersResponse {
    /// The page's users.
    pub users: Vec<User>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Answer of `GetUser`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetUserResponse {
    /// The user whose number is in the path.
    pub user: User,
}

/// Answer of `GetUserByUsername`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetUserByUsernameResponse {
    /// The user whose name is in the path.
    pub user: User,
}

/// Body of `PostUser`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostUserRequest {
    /// The user to create; the number and times in it are not read.
    pub user: User,
    /// First password; empty = none.
    pub password: Secret,
    /// Whether the client has applied the wire's SHA-512 transformation already.
    pub is_hashed: bool,
}

/// Answer of `PostUser`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostUserResponse {
    /// The new user.
    pub user: User,
}

/// Body of `PatchUser`: what is `None` stays.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchUser {
    /// New user name.
    pub username: Option<String>,
    /// Whether the user is an administrator; `None` = as before.
    pub admin: Option<bool>,
    /// May log in or not.
    pub active: Option<bool>,
    /// New display name; empty clears it.
    pub display_name: Option<String>,
    /// New Unix identity; one with all parts unset clears it.
    pub agent_user_group: Option<AgentUserGroup>,
    /// New password, hashed by the client when `is_hashed`; `None` = it stays.
    pub password: Option<Secret>,
    /// Whether the client has applied the wire's SHA-512 transformation already.
    pub is_hashed: bool,
    /// External login only, or not.
    pub remote: Option<bool>,
}

/// Answer of `PatchUser`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchUserResponse {
    /// The user as it is now.
    pub user: User,
}

/// Answer of `SetUserPassword`, whose body is a bare JSON string ([`Secret`]).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SetUserPasswordResponse {
    /// The user as it is now.
    pub user: User,
}
