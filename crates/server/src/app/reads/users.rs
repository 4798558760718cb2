//! Reading users.

use det_authz::Kind;

use crate::app::reads;
use crate::auth::{Actor, Auth, User};
use crate::error::{AppError, AppResult};

/// Which users to list.
#[derive(Debug, Clone, Default)]
pub(crate) struct UserFilter {
    /// Part of the user or display name, in any letter case; empty = all.
    pub(crate) name: String,
    /// Only active ones, or only others.
    pub(crate) active: Option<bool>,
    /// Only administrators, or only others.
    pub(crate) admin: Option<bool>,
}

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::User, "users")
}

/// The users that match, by id.
pub(crate) fn list(auth: &Auth, actor: &Actor, filter: &UserFilter) -> AppResult<Vec<User>> {
    require(actor)?;
    let wanted = filter.name.to_lowercase();
    let mut users = auth.users();
    users.retain(|user| {
        filter.active.is_none_or(|active| user.active == active)
            && filter.admin.is_none_or(|admin| user.admin == admin)
            && (user.username.to_lowercase().contains(&wanted)
                || user.display_name.to_lowercase().contains(&wanted))
    });
    Ok(users)
}

/// One user by id.
pub(crate) fn find(auth: &Auth, actor: &Actor, id: i64) -> AppResult<User> {
    require(actor)?;
    auth.user(id).ok_or_else(|| AppError::not_found("user", id))
}

/// One user by login name.
pub(crate) fn named(auth: &Auth, actor: &Actor, name: &str) -> AppResult<User> {
    require(actor)?;
    auth.user_by_name(name)
        .ok_or_else(|| AppError::not_found("user", name.escape_debug()))
}
