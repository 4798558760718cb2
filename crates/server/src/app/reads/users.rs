//! Reading users.

use det_authz::Kind;

use crate::app::Master;
use crate::app::reads;
use crate::app::users::UserFilter;
use crate::auth::{Actor, User};
use crate::error::AppResult;

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::User, "users")
}

/// The users that match.
pub(crate) fn list(master: &Master, actor: &Actor, filter: &UserFilter) -> AppResult<Vec<User>> {
    require(actor)?;
    Ok(master.list_users(filter))
}

/// One user by id.
pub(crate) fn find(master: &Master, actor: &Actor, id: i64) -> AppResult<User> {
    require(actor)?;
    master.user(id)
}

/// One user by login name.
pub(crate) fn named(master: &Master, actor: &Actor, name: &str) -> AppResult<User> {
    require(actor)?;
    master.user_by_name(name)
}
