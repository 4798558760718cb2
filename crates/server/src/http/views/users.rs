//! Users as clients see them.

use det_api_types::users::{AgentUserGroup, User};
use det_api_types::wire::Timestamp;
use det_store::users::UserRow;

/// A user. The password stays behind.
pub fn user(row: &UserRow) -> User {
    let has_identity = row.agent_uid.is_some()
        || row.agent_user.is_some()
        || row.agent_gid.is_some()
        || row.agent_group.is_some();
    User {
        id: row.id,
        username: row.username.clone(),
        admin: row.admin,
        active: row.active,
        agent_user_group: has_identity.then(|| AgentUserGroup {
            agent_uid: row.agent_uid,
            agent_user: row.agent_user.clone(),
            agent_gid: row.agent_gid,
            agent_group: row.agent_group.clone(),
        }),
        display_name: row.display_name.clone(),
        modified_at: Some(Timestamp(row.modified_at)),
        remote: false,
        last_auth_at: row.last_auth_at.map(Timestamp),
    }
}
