//! Users.

use axum::extract::Path;
use det_api_types::users::{
    AgentUserGroup, GetUserByUsernameResponse, GetUserResponse, GetUsersQuery, GetUsersResponse,
    PatchUser, PatchUserResponse, PostUserRequest, PostUserResponse, SetUserPasswordResponse,
};
use det_api_types::wire::Secret;
use det_ids::UserId;

use crate::app::reads;
use crate::app::users::{NewPassword, NewUser, UnixIdentity, UserPatch};
use crate::error::AppError;
use crate::http::extract::{Caller, PathId, WireBody, WireQuery};
use crate::http::respond::{Answer, message};
use crate::http::routes::{Routes, routes};
use crate::http::views;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_users, post_user))
        .routes(routes!(get_user, patch_user))
        .routes(routes!(get_user_by_username))
        .routes(routes!(set_user_password))
}

pub(super) fn identity(group: AgentUserGroup) -> UnixIdentity {
    UnixIdentity {
        uid: group.agent_uid,
        user: group.agent_user,
        gid: group.agent_gid,
        group: group.agent_group,
    }
}

/// Users that match.
#[utoipa::path(get, path = "/api/v1/users", operation_id = "GetUsers", tag = "users",
    params(GetUsersQuery), responses((status = 200, body = GetUsersResponse)))]
async fn get_users(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetUsersQuery>,
) -> Answer {
    let (users, pagination) = reads::users::page(&master.auth, &actor, &query)?;
    message(&GetUsersResponse {
        users: users.iter().map(|user| views::users::user(user)).collect(),
        pagination,
    })
}

/// A user by number.
#[utoipa::path(get, path = "/api/v1/users/{userId}", operation_id = "GetUser", tag = "users",
    params(("userId" = i64, Path, description = "the user's number")),
    responses((status = 200, body = GetUserResponse)))]
async fn get_user(Caller(master, actor): Caller, PathId(id): PathId<UserId>) -> Answer {
    message(&GetUserResponse {
        user: views::users::user(&*reads::users::find(&master.auth, &actor, id)?),
    })
}

/// One user by login name.
#[utoipa::path(get, path = "/api/v1/users/{username}/by-username", operation_id = "GetUserByUsername", tag = "users",
    params(("username" = String, Path, description = "the user's login name")),
    responses((status = 200, body = GetUserByUsernameResponse)))]
async fn get_user_by_username(Caller(master, actor): Caller, Path(name): Path<String>) -> Answer {
    message(&GetUserByUsernameResponse {
        user: views::users::user(&*reads::users::named(&master.auth, &actor, &name)?),
    })
}

/// Adds a user. For administrators.
#[utoipa::path(post, path = "/api/v1/users", operation_id = "PostUser", tag = "users",
    request_body = PostUserRequest, responses((status = 200, body = PostUserResponse)))]
async fn post_user(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<PostUserRequest>,
) -> Answer {
    let new = NewUser {
        username: body.user.username,
        display_name: body.user.display_name,
        admin: body.user.admin,
        active: body.user.active,
        identity: body.user.agent_user_group.map(identity).unwrap_or_default(),
        password: NewPassword {
            text: body.password.0,
            is_hashed: body.is_hashed,
        },
        remote: body.user.remote,
    };
    let user = master.users.create(&actor, new).await?;
    message(&PostUserResponse {
        user: views::users::user(&user),
    })
}

/// Changes a user. Users may change their own display name and password, administrators everything of every user.
#[utoipa::path(patch, path = "/api/v1/users/{userId}", operation_id = "PatchUser", tag = "users",
    params(("userId" = i64, Path, description = "the user's number")),
    request_body = PatchUser, responses((status = 200, body = PatchUserResponse)))]
async fn patch_user(
    Caller(master, actor): Caller,
    PathId(id): PathId<UserId>,
    WireBody(body): WireBody<PatchUser>,
) -> Answer {
    let is_hashed = body.is_hashed;
    let patch = UserPatch {
        username: body.username,
        display_name: body.display_name,
        admin: body.admin,
        active: body.active,
        identity: body.agent_user_group.map(identity),
        password: body.password.map(|password| NewPassword {
            text: password.0,
            is_hashed,
        }),
        remote: body.remote,
    };
    let user = master.users.change(&actor, id, patch).await?;
    message(&PatchUserResponse {
        user: views::users::user(&user),
    })
}

/// Changes a password. The body is the password itself as a JSON string.
#[utoipa::path(post, path = "/api/v1/users/{userId}/password", operation_id = "SetUserPassword", tag = "users",
    params(("userId" = i64, Path, description = "the user's number")),
    request_body = Secret, responses((status = 200, body = SetUserPasswordResponse)))]
async fn set_user_password(
    Caller(master, actor): Caller,
    PathId(id): PathId<UserId>,
    WireBody(password): WireBody<Secret>,
) -> Answer {
    if password.0.is_empty() {
        // An empty body reads as an empty text: it must not take a password away by accident.
        return Err(AppError::invalid(
            "the body must be the new password as a JSON string that is not empty",
        )
        .into());
    }
    let password = NewPassword {
        text: password.0,
        is_hashed: false,
    };
    let patch = UserPatch {
        password: Some(password),
        ..UserPatch::default()
    };
    let user = master.users.change(&actor, id, patch).await?;
    message(&SetUserPasswordResponse {
        user: views::users::user(&user),
    })
}
