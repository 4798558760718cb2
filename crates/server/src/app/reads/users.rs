//! Reading users.

use std::cmp::Ordering;

use det_api_types::page::{OrderBy, Pagination};
use det_api_types::users::{GetUsersQuery, UserSortBy};
use det_authz::Kind;
use det_ids::UserId;
use det_lifecycle::object::ObjectKind;
use det_store::users::UserRow;

use crate::app::reads::paging::{self, by_name};
use crate::app::{existing, reads};
use crate::auth::{Actor, Auth, User};
use crate::error::{AppError, AppResult};

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::User, "users")
}

/// One page of the users that match.
pub(crate) fn page(
    auth: &Auth,
    actor: &Actor,
    query: &GetUsersQuery,
) -> AppResult<(Vec<User>, Pagination)> {
    require(actor)?;
    let wanted = query.name.to_lowercase();
    let mut users = auth.users();
    users.retain(|user| {
        query.active.is_none_or(|active| user.active == active)
            && query.admin.is_none_or(|admin| user.admin == admin)
            && (user.username.to_lowercase().contains(&wanted)
                || user.display_name.to_lowercase().contains(&wanted))
    });
    if !query.role_id_assigned_directly_to_user.is_empty() {
        // No user has a role as long as there are none.
        users.clear();
    }
    users.sort_by(|a, b| {
        // Users who never logged in have no time to be sorted by: they come last either way.
        let never = match query.sort_by {
            UserSortBy::LastAuthTime => a.last_auth_at.is_none().cmp(&b.last_auth_at.is_none()),
            _ => Ordering::Equal,
        };
        let order = compare(query.sort_by, a, b).then_with(|| a.id.cmp(&b.id));
        never.then(if query.order_by == OrderBy::Desc {
            order.reverse()
        } else {
            order
        })
    });
    Ok(paging::slice(users, query.offset, query.limit))
}

fn compare(sort: UserSortBy, a: &UserRow, b: &UserRow) -> Ordering {
    match sort {
        // Users with an external login are not built: there are none.
        UserSortBy::Unspecified | UserSortBy::Remote => Ordering::Equal,
        UserSortBy::DisplayName => by_name(&a.display_name, &b.display_name),
        UserSortBy::UserName => by_name(&a.username, &b.username),
        UserSortBy::Admin => a.admin.cmp(&b.admin),
        UserSortBy::Active => a.active.cmp(&b.active),
        UserSortBy::ModifiedTime => a.modified_at.cmp(&b.modified_at),
        UserSortBy::Name => by_name(shown_name(a), shown_name(b)),
        UserSortBy::LastAuthTime => a.last_auth_at.cmp(&b.last_auth_at),
    }
}

/// What a user is called: the display name where there is one.
fn shown_name(user: &UserRow) -> &str {
    if user.display_name.is_empty() {
        &user.username
    } else {
        &user.display_name
    }
}

/// One user by id.
pub(crate) fn find(auth: &Auth, actor: &Actor, id: UserId) -> AppResult<User> {
    require(actor)?;
    existing::user(auth, id)
}

/// One user by login name.
pub(crate) fn named(auth: &Auth, actor: &Actor, name: &str) -> AppResult<User> {
    require(actor)?;
    auth.user_by_name(name)
        .ok_or_else(|| AppError::not_found(ObjectKind::User, name.escape_debug()))
}
