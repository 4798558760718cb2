//! Users: who there is, adding and changing them.

use std::sync::Arc;

use det_authz::{Kind, Permission};
use det_config::ConfigError;
use det_ids::UserId;
use det_lifecycle::object::ObjectKind;
use det_store::users::{IdentityColumns, UserChange, UserRow};

use crate::app::existing;
use crate::auth::{Actor, Auth, User, UserEdit, client_hash};
use crate::error::{AppError, AppResult, ErrorKind};

/// Longest user or display name, in characters.
const LONGEST_NAME: usize = 255;
/// Length of the client's hash of a password: SHA-512 in hexadecimal.
const CLIENT_HASH_LENGTH: usize = 128;
/// The largest number of a Unix user or group: the one after it means "as before" to the calls that set them.
const MOST_UNIX_ID: i64 = u32::MAX as i64 - 1;

/// A password as it was sent.
#[derive(Clone)]
pub struct NewPassword {
    /// The text; empty = a blank password.
    pub text: String,
    /// Whether the client has applied its hash to it already.
    pub is_hashed: bool,
}

impl NewPassword {
    /// The client's hash of it.
    fn client_hash(self) -> AppResult<String> {
        if !self.is_hashed {
            return Ok(client_hash(&self.text));
        }
        let is_hash = self.text.len() == CLIENT_HASH_LENGTH
            && self.text.bytes().all(|b| b.is_ascii_hexdigit());
        if self.text.is_empty() || is_hash {
            return Ok(self.text.to_ascii_lowercase());
        }
        Err(AppError::invalid(format!(
            "field \"password\" must be {CLIENT_HASH_LENGTH} hexadecimal digits when \"isHashed\" is true"
        ))
        .hint("send the password itself with \"isHashed\" false"))
    }
}

/// Unix identity of a user's tasks; all parts unset = the cluster's default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnixIdentity {
    /// Numeric user id; `None` = not set.
    pub uid: Option<i64>,
    /// Unix user name that belongs to `uid`; `None` = not set.
    pub user: Option<String>,
    /// Numeric group id; `None` = not set.
    pub gid: Option<i64>,
    /// Unix group name that belongs to `gid`; `None` = not set.
    pub group: Option<String>,
}

impl UnixIdentity {
    /// Blank names are the same as none; ids must be ids; all parts or none. An error names the field of a request that it
    /// is about.
    pub(crate) fn checked(self) -> Result<Self, ConfigError> {
        let identity = self.checked_halves()?;
        if identity.uid.is_some() != identity.gid.is_some() {
            let message = "must have a user, a group and the number of each, or none of these";
            let hint = "agentUid, agentUser, agentGid and agentGroup belong together";
            let error = ConfigError::new("agentUserGroup", None, message);
            return Err(error.with_hint(hint));
        }
        Ok(identity)
    }

    /// As [`Self::checked`], but a user without a group and a group without a user are taken too: the other half comes
    /// from elsewhere.
    pub(crate) fn checked_halves(self) -> Result<Self, ConfigError> {
        let wrong = |field: &str, message: String| {
            ConfigError::new(format!("agentUserGroup{field}"), None, message)
        };
        for (field, id) in [(".agentUid", self.uid), (".agentGid", self.gid)] {
            if let Some(id) = id.filter(|id| !(0..=MOST_UNIX_ID).contains(id)) {
                let message = format!("must be 0 to {MOST_UNIX_ID}, found {id}");
                return Err(wrong(field, message));
            }
        }
        let name = |text: Option<String>| text.filter(|t| !t.is_empty());
        let (user, group) = (name(self.user), name(self.group));
        for (field, text) in [(".agentUser", &user), (".agentGroup", &group)] {
            if text
                .as_ref()
                .is_some_and(|t| t.contains([':', '/', '\n', '\0']))
            {
                let message = "must be a Unix name without \":\", \"/\" and line ends";
                return Err(wrong(field, message.to_owned()));
            }
        }
        // Ids without names, or the other way round, cannot be used to start a process.
        let identity = Self {
            uid: self.uid,
            user,
            gid: self.gid,
            group,
        };
        for (what, number, name) in [
            ("agentUid and agentUser", identity.uid, &identity.user),
            ("agentGid and agentGroup", identity.gid, &identity.group),
        ] {
            if number.is_some() != name.is_some() {
                let message = "must have a number with every name, and a name with every number";
                let hint = format!("{what} belong together");
                return Err(wrong("", message.to_owned()).with_hint(hint));
            }
        }
        Ok(identity)
    }

    fn columns(self) -> IdentityColumns {
        IdentityColumns {
            uid: self.uid,
            user: self.user,
            gid: self.gid,
            group: self.group,
        }
    }
}

/// A user to add.
#[derive(Clone)]
pub struct NewUser {
    /// Name for logging in.
    pub username: String,
    /// Name as shown to users; may be empty.
    pub display_name: String,
    /// Whether the user is an administrator.
    pub admin: bool,
    /// Whether allowed to log in.
    pub active: bool,
    /// Unix identity of its tasks.
    pub identity: UnixIdentity,
    /// First password; may be blank where the master allows that.
    pub password: NewPassword,
    /// Whether it may log in only elsewhere; refused, since there is no elsewhere.
    pub remote: bool,
}

/// Changes of a user; `None` leaves things as they are.
#[derive(Clone, Default)]
pub struct UserPatch {
    /// New name for logging in.
    pub username: Option<String>,
    /// Name as shown to users; empty clears it.
    pub display_name: Option<String>,
    /// Whether the user is an administrator from now on.
    pub admin: Option<bool>,
    /// Whether allowed to log in.
    pub active: Option<bool>,
    /// Unix identity of its tasks.
    pub identity: Option<UnixIdentity>,
    /// New password; `None` = it stays.
    pub password: Option<NewPassword>,
    /// Whether it may log in only elsewhere.
    pub remote: Option<bool>,
}

fn checked_username(name: &str) -> AppResult<String> {
    let refuse = |why: &str| {
        Err(AppError::invalid(format!(
            "user name \"{}\" {why}",
            name.escape_debug()
        )))
    };
    if name.trim().is_empty() {
        return Err(AppError::invalid("field \"username\" must not be blank"));
    }
    if name.trim() != name {
        return refuse("must not begin or end with a space");
    }
    if name.chars().count() > LONGEST_NAME {
        return refuse(&format!(
            "is too long: at most {LONGEST_NAME} characters are allowed"
        ));
    }
    // A "/" could not be addressed by any client afterwards.
    if name.contains('/') || name.chars().any(char::is_control) {
        return refuse("must not contain \"/\" or control characters");
    }
    Ok(name.to_owned())
}

fn checked_display_name(name: &str) -> AppResult<String> {
    if name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control) {
        return Err(AppError::invalid(format!(
            "field \"displayName\" must have at most {LONGEST_NAME} characters and no control characters"
        )));
    }
    Ok(name.trim().to_owned())
}

fn refuse_remote(remote: bool) -> AppResult<()> {
    if remote {
        return Err(AppError::invalid(
            "users with an external login are not built: field \"remote\" must be false",
        ));
    }
    Ok(())
}

/// Users as administrators and they themselves change them. Cheap to clone.
#[derive(Clone)]
pub struct Users {
    auth: Auth,
    /// Whether active users may have blank passwords: where the master listens on its own machine only, or was started with
    /// the flag that allows them.
    blank_passwords: bool,
}

impl Users {
    /// Puts the service together.
    pub(crate) fn new(auth: Auth, blank_passwords: bool) -> Self {
        Self {
            auth,
            blank_passwords,
        }
    }

    /// Adds a user.
    pub async fn create(&self, actor: &Actor, new: NewUser) -> AppResult<User> {
        actor.require(Permission::Administer, Kind::User, "add users")?;
        refuse_remote(new.remote)?;
        let identity = new.identity.checked().map_err(unusable)?;
        let row = UserRow {
            id: UserId::default(),
            username: checked_username(&new.username)?,
            display_name: checked_display_name(&new.display_name)?,
            password_hash: self.auth.hash_password(new.password.client_hash()?).await?,
            admin: new.admin,
            active: new.active,
            agent_uid: identity.uid,
            agent_user: identity.user,
            agent_gid: identity.gid,
            agent_group: identity.group,
            modified_at: det_store::now(),
            last_auth_at: None,
        };
        let (asking, blank_allowed) = (actor.user().id, self.blank_passwords);
        let allow = move |new: &UserRow, all: &[UserRow]| {
            require_admin_now(all, asking, "add users")?;
            require_free_username(all, UserId::default(), &new.username)?;
            require_free_display_name(all, UserId::default(), &new.display_name)?;
            require_password(new, blank_allowed)
        };
        self.auth.add_user(row, actor, allow).await
    }

    /// Changes a user. Users may change their own display name and password; everything else is for administrators.
    /// A new password, and a deactivation, end the user's sessions. Who may do it, and what it changes, is decided in the
    /// transaction, from the rows as it reads them: hashing a password takes long enough for other edits to come between.
    pub async fn change(&self, actor: &Actor, id: UserId, patch: UserPatch) -> AppResult<User> {
        actor.require(Permission::Change, Kind::User, "change users")?;
        let asking = actor.user().id;
        if let Some(remote) = patch.remote {
            refuse_remote(remote)?;
        }
        let wanted = UserChange {
            username: match patch.username {
                // A name that this version would refuse can still be sent back as it is.
                Some(name) if existing::user(&self.auth, id)?.username == name => None,
                Some(name) => Some(checked_username(&name)?),
                None => None,
            },
            display_name: patch
                .display_name
                .map(|name| checked_display_name(&name))
                .transpose()?,
            password_hash: None,
            admin: patch.admin,
            active: patch.active,
            identity: patch
                .identity
                .map(|identity| identity.checked().map_err(unusable))
                .transpose()?
                .map(UnixIdentity::columns),
        };
        // Refused before the password costs anything; the transaction decides again.
        decide(&self.rows(), asking, id, wanted.clone(), true)?;
        let password_hash = match patch.password {
            Some(password) => Some(self.auth.hash_password(password.client_hash()?).await?),
            None => None,
        };
        let wanted = UserChange {
            password_hash,
            ..wanted
        };
        let blank_allowed = self.blank_passwords;
        let decide = move |all: &[UserRow]| decide(all, asking, id, wanted, blank_allowed);
        self.auth.change_user(id, actor, Box::new(decide)).await
    }

    fn rows(&self) -> Vec<UserRow> {
        let users = self.auth.users();
        users.iter().map(|user| UserRow::clone(user)).collect()
    }
}

/// What a change of user `id` that user `asking` wants comes to, given all users.
fn decide(
    all: &[UserRow],
    asking: UserId,
    id: UserId,
    wanted: UserChange,
    blank_allowed: bool,
) -> AppResult<UserEdit> {
    let before = all
        .iter()
        .find(|user| user.id == id)
        .ok_or_else(|| AppError::not_found(ObjectKind::User, id))?;
    if asking != id {
        let to_do = format!("change user \"{}\"", before.username);
        require_admin_now(all, asking, &to_do)?;
    }
    let identity = IdentityColumns {
        uid: before.agent_uid,
        user: before.agent_user.clone(),
        gid: before.agent_gid,
        group: before.agent_group.clone(),
    };
    // Clients send whole objects back: what is as it was is no change, and needs no right.
    let change = UserChange {
        username: wanted.username.filter(|name| *name != before.username),
        display_name: wanted
            .display_name
            .filter(|name| *name != before.display_name),
        password_hash: wanted.password_hash,
        admin: wanted.admin.filter(|admin| *admin != before.admin),
        active: wanted.active.filter(|active| *active != before.active),
        identity: wanted.identity.filter(|wanted| *wanted != identity),
    };
    let for_administrators: Vec<&str> = [
        ("user name", change.username.is_some()),
        ("administrator flag", change.admin.is_some()),
        ("activity", change.active.is_some()),
        ("Unix identity", change.identity.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, changes)| changes.then_some(name))
    .collect();
    if !for_administrators.is_empty() {
        let what = for_administrators.join(" and ");
        let to_do = format!("change the {what} of user \"{}\"", before.username);
        require_admin_now(all, asking, &to_do)?;
    }
    let after = UserRow {
        username: change.username.clone().unwrap_or(before.username.clone()),
        admin: change.admin.unwrap_or(before.admin),
        active: change.active.unwrap_or(before.active),
        password_hash: change
            .password_hash
            .clone()
            .unwrap_or(before.password_hash.clone()),
        ..before.clone()
    };
    if let Some(name) = &change.username {
        require_free_username(all, id, name)?;
    }
    if let Some(name) = &change.display_name {
        require_free_display_name(all, id, name)?;
    }
    if change.password_hash.is_some() || change.active == Some(true) {
        require_password(&after, blank_allowed)?;
    }
    keep_an_administrator(all, before, &after)?;
    Ok(UserEdit {
        end_sessions: change.password_hash.is_some() || (before.active && !after.active),
        change,
    })
}

/// Refuses what a user wants who is no active administrator in these rows, whatever the request began with.
fn require_admin_now(all: &[UserRow], asking: UserId, to_do: &str) -> AppResult<()> {
    let user = all
        .iter()
        .find(|user| user.id == asking && user.active)
        .ok_or_else(|| {
            AppError::new(
                ErrorKind::Unauthenticated,
                "the user of this request's token is not active any more",
            )
        })?;
    Actor::User(Arc::new(user.clone())).require(Permission::Administer, Kind::User, to_do)
}

fn require_free_username(all: &[UserRow], id: UserId, name: &str) -> AppResult<()> {
    if all
        .iter()
        .any(|other| other.id != id && other.username == name)
    {
        return Err(AppError::new(
            ErrorKind::Conflict,
            format!("user \"{name}\" exists already"),
        ));
    }
    Ok(())
}

/// Lists show display names: with another user's name a user would pass for that one.
fn require_free_display_name(all: &[UserRow], id: UserId, name: &str) -> AppResult<()> {
    let wanted = name.to_lowercase();
    let is_taken = |other: &&UserRow| {
        other.username.to_lowercase() == wanted || other.display_name.to_lowercase() == wanted
    };
    let other = all.iter().filter(|other| other.id != id).find(is_taken);
    match other {
        Some(other) if !wanted.is_empty() => Err(AppError::new(
            ErrorKind::Conflict,
            format!(
                "display name \"{name}\" is the name or display name of user \"{}\", without regard to letter case",
                other.username
            ),
        )
        .hint("choose another display name, or an empty one for none")),
        _ => Ok(()),
    }
}

/// Refuses active users with blank passwords where the master can be reached from other machines.
fn require_password(user: &UserRow, blank_allowed: bool) -> AppResult<()> {
    if blank_allowed || !user.active || user.password_hash.is_some() {
        return Ok(());
    }
    Err(AppError::precondition(format!(
        "user \"{}\" must have a password while active: this master listens on more than its own machine",
        user.username
    ))
    .hint("give the password in the same request"))
}

/// Refuses to leave the cluster without an administrator: no user could make one again.
fn keep_an_administrator(all: &[UserRow], before: &UserRow, after: &UserRow) -> AppResult<()> {
    let serves = |user: &UserRow| user.admin && user.active;
    if !serves(before) || serves(after) || all.iter().any(|u| u.id != after.id && serves(u)) {
        return Ok(());
    }
    Err(AppError::precondition(format!(
        "user \"{}\" is the last active administrator and must stay one",
        before.username
    ))
    .hint("make another user an administrator first"))
}

/// An error in a Unix identity as the refusal of a request.
fn unusable(error: ConfigError) -> AppError {
    let refusal = AppError::invalid(format!("field \"{}\" {}", error.path, error.message));
    match error.hint {
        Some(hint) => refusal.hint(hint),
        None => refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_client_could_address_are_refused() {
        assert_eq!(checked_username("ada lovelace").unwrap(), "ada lovelace");
        for bad in ["", "  ", " ada", "ada ", "a/b", "a\nb", &"x".repeat(256)] {
            assert!(checked_username(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_hashed_password_must_be_a_hash() {
        let hashed = |text: &str| {
            NewPassword {
                text: text.into(),
                is_hashed: true,
            }
            .client_hash()
        };
        assert_eq!(hashed("").unwrap(), "");
        assert_eq!(hashed(&"AB".repeat(64)).unwrap(), "ab".repeat(64));
        assert!(hashed("secret").is_err());
        assert_eq!(
            NewPassword {
                text: "secret".into(),
                is_hashed: false
            }
            .client_hash()
            .unwrap()
            .len(),
            128
        );
    }

    #[test]
    fn a_unix_identity_is_whole_or_absent() {
        let whole = UnixIdentity {
            uid: Some(7),
            user: Some("ada".into()),
            gid: Some(8),
            group: Some("staff".into()),
        };
        assert_eq!(whole.clone().checked().unwrap(), whole);
        let blank = UnixIdentity {
            user: Some(String::new()),
            ..UnixIdentity::default()
        };
        assert_eq!(blank.checked().unwrap(), UnixIdentity::default());
        assert!(
            UnixIdentity {
                uid: Some(7),
                ..UnixIdentity::default()
            }
            .checked()
            .is_err()
        );
        assert!(
            UnixIdentity {
                uid: Some(-1),
                ..whole.clone()
            }
            .checked()
            .is_err()
        );
        assert!(
            UnixIdentity {
                user: Some("a:b".into()),
                ..whole
            }
            .checked()
            .is_err()
        );
    }
}
