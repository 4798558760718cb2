//! People and their sessions.

use crate::{Conn, StoreError};

/// A user.
#[derive(Debug, Clone, crate::Row)]
pub struct UserRow {
    /// Number.
    pub id: i64,
    /// Login name, unique.
    pub username: String,
    /// Name for people; may be empty.
    pub display_name: String,
    /// Argon2id hash of the client's salted hash; `None` = blank password.
    pub password_hash: Option<String>,
    /// Whether an administrator.
    pub admin: bool,
    /// Whether allowed to log in.
    pub active: bool,
    /// Unix identity of this user's tasks; `None` = the cluster's default.
    pub agent_uid: Option<i64>,
    /// See `agent_uid`.
    pub agent_user: Option<String>,
    /// See `agent_uid`.
    pub agent_gid: Option<i64>,
    /// See `agent_uid`.
    pub agent_group: Option<String>,
    /// Last change of this row, microseconds.
    pub modified_at: i64,
    /// Last login, microseconds.
    pub last_auth_at: Option<i64>,
}

/// A login.
#[derive(Debug, Clone, crate::Row)]
pub struct SessionRow {
    /// SHA-256 of the token.
    pub token_hash: Vec<u8>,
    /// Whose.
    pub user_id: i64,
    /// Until when, microseconds.
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
pub async fn names(conn: &mut Conn<'_>) -> Result<Vec<(i64, String)>, StoreError> {
    Ok(fetch_all!(
        conn,
        (i64, String),
        "SELECT id, LOWER(username) FROM users"
    )?)
}

/// Adds a user and gives its number.
pub async fn insert(conn: &mut Conn<'_>, user: &UserRow) -> Result<i64, StoreError> {
    let (id,) = fetch_one!(
        conn,
        (i64,),
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

/// Stores all of `user` under its number.
pub async fn update(conn: &mut Conn<'_>, user: &UserRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "UPDATE users SET username = $1, display_name = $2, password_hash = $3, admin = $4, active = $5, \
         agent_uid = $6, agent_user = $7, agent_gid = $8, agent_group = $9, modified_at = $10, last_auth_at = $11 \
         WHERE id = $12",
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
        user.last_auth_at,
        user.id
    )?;
    Ok(())
}

/// Notes a login.
pub async fn note_login(conn: &mut Conn<'_>, user_id: i64, at: i64) -> Result<(), StoreError> {
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
pub async fn delete_sessions_of(conn: &mut Conn<'_>, user_id: i64) -> Result<(), StoreError> {
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
