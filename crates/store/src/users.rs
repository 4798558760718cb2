//! Users and their sessions.

use det_ids::UserId;

use crate::{Conn, StoreError};

/// A user of the cluster, with the hash of the password.
#[derive(Debug, Clone, crate::Row)]
pub struct UserRow {
    /// Its number, unique over the cluster.
    pub id: UserId,
    /// Login name, unique.
    pub username: String,
    /// Display name; may be empty.
    pub display_name: String,
    /// Argon2id hash of the client's salted hash; `None` = blank password.
    pub password_hash: Option<String>,
    /// Whether the user is an administrator.
    pub admin: bool,
    /// Whether allowed to log in.
    pub active: bool,
    /// Unix identity of this user's tasks; `None` = the cluster's default.
    pub agent_uid: Option<i64>,
    /// Unix user name that belongs to `agent_uid`; `None` = not set.
    pub agent_user: Option<String>,
    /// Numeric group id of the same identity; `None` = not set.
    pub agent_gid: Option<i64>,
    /// Unix group name that belongs to `agent_gid`; `None` = not set.
    pub agent_group: Option<String>,
    /// Last change of this row, microseconds.
    pub modified_at: i64,
    /// Last login, microseconds; `None` = there was none.
    pub last_auth_at: Option<i64>,
}

/// A login of a user, which is over when it expires or its row is deleted.
#[derive(Debug, Clone, crate::Row)]
pub struct SessionRow {
    /// SHA-256 of the token.
    pub token_hash: Vec<u8>,
    /// The user who logged in.
    pub user_id: UserId,
    /// When the session expires, microseconds.
    pub expires_at: i64,
}

/// All users by id.
pub async fn list(conn: &mut Conn<'_>) -> Result<Vec<UserRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        UserRow,
        "SELECT * FROM users ORDER BY id"
    )?)
}

/// The login names of all users in lower case, by id.
pub(crate) async fn names(conn: &mut Conn<'_>) -> Result<Vec<(UserId, String)>, StoreError> {
    Ok(fetch_all!(
        conn,
        (UserId, String),
        "SELECT id, LOWER(username) FROM users"
    )?)
}

/// Adds a user and gives its number.
pub async fn insert(conn: &mut Conn<'_>, user: &UserRow) -> Result<UserId, StoreError> {
    let (id,) = fetch_one!(
        conn,
        (UserId,),
        "INSERT INTO users (username, display_name, password_hash, admin, active, agent_uid, agent_user, agent_gid, \
         agent_group, modified_at, last_auth_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) RETURNING id",
        user.username.as_str(),
        user.display_name.as_str(),
        user.password_hash.as_deref(),
        user.admin,
        user.active,
        user.agent_uid,
        user.agent_user.as_deref(),
        user.agent_gid,
        user.agent_group.as_deref(),
        user.modified_at,
        user.last_auth_at
    )?;
    Ok(id)
}

/// Columns of a user to set; `None` leaves a column as it is.
#[derive(Debug, Clone, Default)]
pub struct UserChange {
    /// New login name, unique; `None` = it stays.
    pub username: Option<String>,
    /// Display name; empty = none.
    pub display_name: Option<String>,
    /// Password hash; `Some(None)` = blank password.
    pub password_hash: Option<Option<String>>,
    /// Whether the user is an administrator; `None` = as before.
    pub admin: Option<bool>,
    /// Whether allowed to log in.
    pub active: Option<bool>,
    /// Unix identity of the user's tasks, as a whole.
    pub identity: Option<IdentityColumns>,
}

/// The columns of a user's Unix identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentityColumns {
    /// Numeric user id; `None` = not set.
    pub uid: Option<i64>,
    /// Unix user name that belongs to `uid`; `None` = not set.
    pub user: Option<String>,
    /// Numeric group id; `None` = not set.
    pub gid: Option<i64>,
    /// Unix group name that belongs to `gid`; `None` = not set.
    pub group: Option<String>,
}

/// Sets the columns of one user that `change` names, and no others. Returns the row after the change; `None` when there is
/// no such user. `at` becomes the time of the last change, in microseconds.
pub async fn change(
    conn: &mut Conn<'_>,
    id: UserId,
    change: &UserChange,
    at: i64,
) -> Result<Option<UserRow>, StoreError> {
    let sets_password = change.password_hash.is_some();
    let password = change.password_hash.as_ref().and_then(Option::as_deref);
    let sets_identity = change.identity.is_some();
    let identity = change.identity.clone().unwrap_or_default();
    Ok(fetch_optional!(
        conn,
        UserRow,
        "UPDATE users SET username = COALESCE($1, username), display_name = COALESCE($2, display_name), \
         password_hash = CASE WHEN $3 THEN $4 ELSE password_hash END, admin = COALESCE($5, admin), \
         active = COALESCE($6, active), agent_uid = CASE WHEN $7 THEN $8 ELSE agent_uid END, \
         agent_user = CASE WHEN $7 THEN $9 ELSE agent_user END, agent_gid = CASE WHEN $7 THEN $10 ELSE agent_gid END, \
         agent_group = CASE WHEN $7 THEN $11 ELSE agent_group END, modified_at = $12 WHERE id = $13 RETURNING *",
        change.username.as_deref(),
        change.display_name.as_deref(),
        sets_password,
        password,
        change.admin,
        change.active,
        sets_identity,
        identity.uid,
        identity.user.as_deref(),
        identity.gid,
        identity.group.as_deref(),
        at,
        id
    )?)
}

/// One user by number.
pub async fn find(conn: &mut Conn<'_>, id: UserId) -> Result<Option<UserRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        UserRow,
        "SELECT * FROM users WHERE id = $1",
        id
    )?)
}

/// One user by login name.
pub async fn find_by_name(
    conn: &mut Conn<'_>,
    username: &str,
) -> Result<Option<UserRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        UserRow,
        "SELECT * FROM users WHERE username = $1",
        username
    )?)
}

/// One session by the SHA-256 of its token.
pub async fn find_session(
    conn: &mut Conn<'_>,
    token_hash: &[u8],
) -> Result<Option<SessionRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        SessionRow,
        "SELECT token_hash, user_id, expires_at FROM sessions WHERE token_hash = $1",
        token_hash
    )?)
}

/// Stores the time of a user's last login, microseconds.
pub async fn note_login(conn: &mut Conn<'_>, user_id: UserId, at: i64) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE users SET last_auth_at = $1 WHERE id = $2",
        at,
        user_id
    )?;
    Ok(())
}

/// All sessions that have not expired at `at`.
pub async fn sessions(conn: &mut Conn<'_>, at: i64) -> Result<Vec<SessionRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        SessionRow,
        "SELECT token_hash, user_id, expires_at FROM sessions WHERE expires_at > $1",
        at
    )?)
}

/// Adds a session.
pub async fn insert_session(conn: &mut Conn<'_>, session: &SessionRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO sessions (token_hash, user_id, created_at, expires_at) VALUES ($1, $2, $3, $4)",
        session.token_hash.as_slice(),
        session.user_id,
        crate::now(),
        session.expires_at
    )?;
    Ok(())
}

/// Ends one session.
pub async fn delete_session(conn: &mut Conn<'_>, token_hash: &[u8]) -> Result<(), StoreError> {
    execute!(
        conn,
        "DELETE FROM sessions WHERE token_hash = $1",
        token_hash
    )?;
    Ok(())
}

/// Ends all sessions of a user.
pub async fn delete_sessions_of(conn: &mut Conn<'_>, user_id: UserId) -> Result<(), StoreError> {
    execute!(conn, "DELETE FROM sessions WHERE user_id = $1", user_id)?;
    Ok(())
}

/// Removes sessions that expired before `at`.
pub async fn delete_expired_sessions(conn: &mut Conn<'_>, at: i64) -> Result<u64, StoreError> {
    Ok(execute!(
        conn,
        "DELETE FROM sessions WHERE expires_at <= $1",
        at
    )?)
}
