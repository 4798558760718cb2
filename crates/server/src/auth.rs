//! Who is asking: users, passwords, sessions, tokens of tasks.
//!
//! Users and sessions are served from memory, since nearly every request asks; the rows are written first. A password
//! reaches us as the client's salted SHA-512 of it (`wire-contract` reference §4.1) and is kept under Argon2id.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use det_store::users::{SessionRow, UserRow};
use det_store::{Store, StoreError, allocations, users};
use sha2::{Digest, Sha256, Sha512};
use tokio::sync::Semaphore;

use crate::error::{AppError, AppResult, ErrorKind};

/// The fixed salt of the client's hash; part of the protocol, no secret.
const CLIENT_SALT: &str = "GubPEmmotfiK9TMD6Zdw";
/// Sessions of people live for seven days.
const SESSION_MICROS: i64 = 7 * 24 * 3600 * 1_000_000;
/// Argon2id: memory in KiB, passes, lanes (OWASP's first recommendation of that size).
const ARGON_MEMORY_KIB: u32 = 19 * 1024;
const ARGON_PASSES: u32 = 2;
/// Passwords hashed at once: each takes 19 MiB and a core.
const HASHERS: usize = 2;

/// A user as the rest of the master sees it.
pub type User = Arc<UserRow>;

/// Who asks.
#[derive(Debug, Clone)]
pub enum Actor {
    /// A person with a session.
    User(User),
    /// A task, acting for its owner.
    Task(TaskActor),
}

/// A task that asks with its own token.
#[derive(Debug, Clone)]
pub struct TaskActor {
    /// Its owner.
    pub owner: User,
    /// Its allocation.
    pub allocation_id: String,
    /// The task.
    pub task_id: String,
    /// Its trial.
    pub trial_id: Option<i64>,
    /// Which run of the trial its allocation is; 0 without a trial.
    pub run_id: i64,
    /// Whether its allocation has ended. For a short time it may still report what happened before.
    pub ended: bool,
}

impl Actor {
    /// The person behind the request.
    pub fn user(&self) -> &User {
        match self {
            Self::User(user) => user,
            Self::Task(task) => &task.owner,
        }
    }

    /// How events name this actor.
    pub fn name(&self) -> String {
        match self {
            Self::User(user) => format!("user:{}", user.username),
            Self::Task(task) => format!("task:{}", task.task_id),
        }
    }

    /// A task whose allocation has ended may only report, which other extractors than the usual one allow.
    pub fn require_running(&self) -> AppResult<()> {
        match self {
            Self::Task(task) if task.ended => Err(AppError::new(
                ErrorKind::Forbidden,
                format!(
                    "allocation \"{}\" has ended: its token may only report late logs, metrics and checkpoints of its \
                     own",
                    task.allocation_id
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Only people may go on: a task acts for its owner, but must not be able to take over the owner's account or
    /// powers. `to_do` completes "may not …".
    pub fn require_person(&self, to_do: &str) -> AppResult<&User> {
        match self {
            Self::User(user) => Ok(user),
            Self::Task(task) => Err(AppError::new(
                ErrorKind::Forbidden,
                format!("task \"{}\" may not {to_do}: only people may", task.task_id),
            )),
        }
    }

    /// Only administrators may go on, and not the tasks that they own.
    pub fn require_admin(&self, to_do: &str) -> AppResult<()> {
        let user = self.require_person(to_do)?;
        if user.admin {
            Ok(())
        } else {
            Err(AppError::new(
                ErrorKind::Forbidden,
                format!(
                    "user \"{}\" may not {to_do}: it needs an administrator",
                    user.username
                ),
            ))
        }
    }

    /// A task may write only for its own allocation; of people nothing is asked here.
    pub fn require_allocation(&self, allocation_id: &str) -> AppResult<()> {
        match self {
            Self::Task(task) if task.allocation_id != allocation_id => Err(AppError::new(
                ErrorKind::Forbidden,
                format!(
                    "the token of allocation \"{}\" may not act for allocation \"{allocation_id}\"",
                    task.allocation_id
                ),
            )),
            _ => Ok(()),
        }
    }

    /// A task may write only for its own task; of people nothing is asked here.
    pub fn require_task(&self, task_id: &str) -> AppResult<()> {
        match self {
            Self::Task(task) if task.task_id != task_id => Err(AppError::new(
                ErrorKind::Forbidden,
                format!(
                    "the token of task \"{}\" may not act for task \"{task_id}\"",
                    task.task_id
                ),
            )),
            _ => Ok(()),
        }
    }

    /// A task may write only for its own trial; of people nothing is asked here.
    pub fn require_trial(&self, trial_id: i64) -> AppResult<()> {
        match self {
            Self::Task(task) if task.trial_id != Some(trial_id) => Err(AppError::new(
                ErrorKind::Forbidden,
                format!(
                    "the token of task \"{}\" may not act for trial {trial_id}",
                    task.task_id
                ),
            )),
            _ => Ok(()),
        }
    }

    /// A task may speak for its own run only, whatever number it gives; people may for any.
    pub fn require_run(&self, trial_id: i64, run_id: i64) -> AppResult<()> {
        match self {
            Self::Task(task) if task.run_id != run_id => Err(AppError::new(
                ErrorKind::Forbidden,
                format!(
                    "the token of run {} of trial {trial_id} may not report for run {run_id}",
                    task.run_id
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Fences what an older run says: once another allocation has taken its place it changes nothing any more.
    /// `current` is the trial's run as read in the transaction that would make the change.
    pub fn require_current_run(&self, trial_id: i64, current: i64) -> AppResult<()> {
        match self {
            Self::Task(task) if task.run_id != current => Err(AppError::precondition(format!(
                "run {} of trial {trial_id} is over: run {current} has taken its place, and nothing is taken of an \
                     older run any more",
                task.run_id
            ))),
            _ => Ok(()),
        }
    }
}

/// A fresh random token: 256 bits.
pub fn new_token() -> String {
    let bytes: [u8; 32] = rand::random();
    URL_SAFE_NO_PAD.encode(bytes)
}

/// What is stored of a token.
pub fn token_hash(token: &str) -> Vec<u8> {
    Sha256::digest(token.as_bytes()).to_vec()
}

/// The client's salted hash of a password; a blank one stays blank.
pub fn client_hash(password: &str) -> String {
    if password.is_empty() {
        return String::new();
    }
    hex::encode(Sha512::digest(
        format!("{CLIENT_SALT}{password}").as_bytes(),
    ))
}

/// Users and sessions in memory, written through to the rows.
#[derive(Clone)]
pub struct Auth {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    cache: RwLock<Cache>,
    hashers: Semaphore,
}

#[derive(Default)]
struct Cache {
    users: HashMap<i64, User>,
    by_name: HashMap<String, i64>,
    sessions: HashMap<Vec<u8>, (i64, i64)>,
    tasks: HashMap<Vec<u8>, TaskIdentity>,
    /// The cached tokens of each allocation.
    tokens_of: HashMap<String, Vec<Vec<u8>>>,
    /// Counts ended allocations: a token that was read before one of them ended is not cached afterwards.
    ends: u64,
}

#[derive(Clone)]
struct TaskIdentity {
    allocation_id: String,
    task_id: String,
    trial_id: Option<i64>,
    run_id: i64,
    owner_id: i64,
}

impl Auth {
    /// Loads users and sessions.
    pub async fn load(store: Store) -> Result<Self, StoreError> {
        let mut conn = store.read().await?;
        let mut cache = Cache::default();
        for user in users::list(&mut conn.conn()).await? {
            cache.put_user(user);
        }
        for session in users::sessions(&mut conn.conn(), det_store::now()).await? {
            cache
                .sessions
                .insert(session.token_hash, (session.user_id, session.expires_at));
        }
        drop(conn);
        Ok(Self {
            inner: Arc::new(Inner {
                store,
                cache: RwLock::new(cache),
                hashers: Semaphore::new(HASHERS),
            }),
        })
    }

    fn read<T>(&self, look: impl FnOnce(&Cache) -> T) -> T {
        look(
            &self
                .inner
                .cache
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    fn change<T>(&self, change: impl FnOnce(&mut Cache) -> T) -> T {
        change(
            &mut self
                .inner
                .cache
                .write()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// All users by id.
    pub fn users(&self) -> Vec<User> {
        let mut all: Vec<User> = self.read(|c| c.users.values().cloned().collect());
        all.sort_by_key(|u| u.id);
        all
    }

    /// A user by number.
    pub fn user(&self, id: i64) -> Option<User> {
        self.read(|c| c.users.get(&id).cloned())
    }

    /// A user by login name.
    pub fn user_by_name(&self, name: &str) -> Option<User> {
        self.read(|c| c.by_name.get(name).and_then(|id| c.users.get(id)).cloned())
    }

    /// Who holds this session token.
    pub fn by_session(&self, token: &str) -> Option<Actor> {
        let hash = token_hash(token);
        let now = det_store::now();
        self.read(|c| {
            let (user_id, expires_at) = c.sessions.get(&hash)?;
            let user = c.users.get(user_id)?;
            (*expires_at > now && user.active).then(|| Actor::User(user.clone()))
        })
    }

    /// Which task holds this allocation token.
    pub async fn by_allocation_token(&self, token: &str) -> AppResult<Option<Actor>> {
        let hash = token_hash(token);
        let now = det_store::now();
        let (known, ends) = self.read(|c| (c.tasks.get(&hash).cloned(), c.ends));
        let (identity, expires_at) = match known {
            Some(known) => (known, None),
            None => {
                let mut conn = self.inner.store.read().await?;
                let Some(owner) = allocations::find_token(&mut conn.conn(), &hash).await? else {
                    return Ok(None);
                };
                let identity = TaskIdentity {
                    allocation_id: owner.allocation_id,
                    task_id: owner.task_id,
                    trial_id: owner.trial_id,
                    run_id: owner.run_id,
                    owner_id: owner.owner_id,
                };
                // Tokens that are about to expire are few and short-lived: not worth remembering.
                if owner.expires_at.is_none() {
                    self.change(|c| {
                        if c.ends != ends {
                            return;
                        }
                        let tokens = c
                            .tokens_of
                            .entry(identity.allocation_id.clone())
                            .or_default();
                        tokens.push(hash.clone());
                        c.tasks.insert(hash, identity.clone());
                    });
                }
                (identity, owner.expires_at)
            }
        };
        if expires_at.is_some_and(|at| at <= now) {
            return Ok(None);
        }
        Ok(self
            .user(identity.owner_id)
            .filter(|u| u.active)
            .map(|owner| {
                Actor::Task(TaskActor {
                    owner,
                    allocation_id: identity.allocation_id,
                    task_id: identity.task_id,
                    trial_id: identity.trial_id,
                    run_id: identity.run_id,
                    ended: expires_at.is_some(),
                })
            }))
    }

    /// Forgets cached tokens of an allocation whose expiry has changed.
    pub fn forget_allocation(&self, allocation_id: &str) {
        self.change(|c| {
            c.ends += 1;
            for hash in c.tokens_of.remove(allocation_id).unwrap_or_default() {
                c.tasks.remove(&hash);
            }
        });
    }

    /// Logs a person in: the token, and who it is. `password` is the client's hash, or plain when `hashed` is false.
    pub async fn login(
        &self,
        username: &str,
        password: &str,
        hashed: bool,
    ) -> AppResult<(String, User)> {
        let wrong = || {
            // Word for word what clients look for (wire-contract reference §4.1): no hint.
            AppError::new(ErrorKind::Unauthenticated, "invalid credentials")
        };
        let given = if hashed {
            password.to_owned()
        } else {
            client_hash(password)
        };
        let Some(user) = self.user_by_name(username) else {
            // As slow as a wrong password: how long it takes must not tell who has an account.
            self.verify(Some(decoy_hash()), given).await?;
            return Err(wrong());
        };
        if !self.verify(user.password_hash.clone(), given).await? {
            return Err(wrong());
        }
        if !user.active {
            return Err(AppError::new(
                ErrorKind::Forbidden,
                format!("user \"{username}\" is deactivated"),
            )
            .hint("an administrator can activate it with: det user activate"));
        }
        let token = self.start_session(user.id, SESSION_MICROS).await?;
        Ok((token, user))
    }

    /// Starts a session for a user that lasts for `lifetime` microseconds, and gives its token. Nothing is asked of the
    /// user; with a lifetime below 0 the session has expired from the start.
    pub async fn start_session(&self, user_id: i64, lifetime: i64) -> AppResult<String> {
        let token = new_token();
        let now = det_store::now();
        let session = SessionRow {
            token_hash: token_hash(&token),
            user_id,
            expires_at: now.saturating_add(lifetime),
        };
        let auth = self.clone();
        self.inner
            .store
            .write(move |tx| {
                Box::pin(async move {
                    users::insert_session(&mut tx.conn(), &session).await?;
                    users::note_login(&mut tx.conn(), user_id, now).await?;
                    tx.once_stored(move || {
                        auth.change(|c| {
                            c.sessions
                                .insert(session.token_hash, (user_id, session.expires_at));
                            if let Some(user) = c.users.get(&user_id) {
                                let mut user = UserRow::clone(user);
                                user.last_auth_at = Some(now);
                                c.put_user(user);
                            }
                        });
                    });
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        Ok(token)
    }

    /// Ends the session of this token.
    pub async fn logout(&self, token: &str) -> AppResult<()> {
        let hash = token_hash(token);
        let auth = self.clone();
        self.inner
            .store
            .write(move |tx| {
                Box::pin(async move {
                    users::delete_session(&mut tx.conn(), &hash).await?;
                    tx.after_commit(move || {
                        auth.change(|c| c.sessions.remove(&hash));
                    });
                    Ok::<_, AppError>(())
                })
            })
            .await
    }

    /// Adds a user (id ignored) or stores a changed one; `end_sessions` logs it out everywhere.
    pub async fn save_user(
        &self,
        user: UserRow,
        end_sessions: bool,
        actor: &Actor,
    ) -> AppResult<User> {
        let auth = self.clone();
        let actor = actor.name();
        let is_new = user.id == 0;
        if is_new && self.user_by_name(&user.username).is_some() {
            return Err(AppError::new(
                ErrorKind::Conflict,
                format!("user \"{}\" exists already", user.username),
            ));
        }
        let row = self
            .inner
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let mut user = user;
                    if is_new {
                        user.id = users::insert(&mut tx.conn(), &user).await?;
                    } else {
                        users::update(&mut tx.conn(), &user).await?;
                    }
                    if end_sessions {
                        users::delete_sessions_of(&mut tx.conn(), user.id).await?;
                    }
                    det_store::events::append(
                        tx,
                        det_store::events::NewEvent {
                            actor: &actor,
                            subject_kind: "user",
                            subject_id: user.username.clone(),
                            kind: if is_new { "created" } else { "changed" },
                            ..Default::default()
                        },
                    )
                    .await?;
                    let cached = user.clone();
                    tx.once_stored(move || {
                        auth.change(|c| {
                            if end_sessions {
                                c.sessions.retain(|_, (id, _)| *id != cached.id);
                            }
                            c.put_user(cached);
                        });
                    });
                    Ok::<_, AppError>(user)
                })
            })
            .await?;
        Ok(Arc::new(row))
    }

    /// The Argon2id hash of a client hash; `None` for a blank password.
    pub async fn hash_password(&self, client_hash: String) -> AppResult<Option<String>> {
        if client_hash.is_empty() {
            return Ok(None);
        }
        let _permit = self
            .inner
            .hashers
            .acquire()
            .await
            .map_err(AppError::internal)?;
        tokio::task::spawn_blocking(move || {
            let salt: [u8; 16] = rand::random();
            let params = Params::new(ARGON_MEMORY_KIB, ARGON_PASSES, 1, None)
                .map_err(|e| AppError::internal(anyhow::anyhow!("argon2 parameters: {e}")))?;
            let hash = argon(params, &salt, &client_hash)?;
            Ok(Some(format!(
                "$argon2id$v=19$m={ARGON_MEMORY_KIB},t={ARGON_PASSES},p=1${}${}",
                STANDARD_NO_PAD.encode(salt),
                STANDARD_NO_PAD.encode(hash)
            )))
        })
        .await
        .map_err(AppError::internal)?
    }

    async fn verify(&self, stored: Option<String>, client_hash: String) -> AppResult<bool> {
        let Some(stored) = stored else {
            return Ok(client_hash.is_empty());
        };
        if client_hash.is_empty() {
            return Ok(false);
        }
        let _permit = self
            .inner
            .hashers
            .acquire()
            .await
            .map_err(AppError::internal)?;
        tokio::task::spawn_blocking(move || {
            let damaged =
                || AppError::internal(anyhow::anyhow!("a stored password hash cannot be read"));
            let mut parts = stored.split('$').skip(3);
            let (Some(params), Some(salt), Some(hash)) = (parts.next(), parts.next(), parts.next())
            else {
                return Err(damaged());
            };
            let number = |key: &str| -> Option<u32> {
                params
                    .split(',')
                    .find_map(|p| p.strip_prefix(key))
                    .and_then(|v| v.parse().ok())
            };
            let (Some(m), Some(t), Some(p)) = (number("m="), number("t="), number("p=")) else {
                return Err(damaged());
            };
            let params = Params::new(m, t, p, None).map_err(|_| damaged())?;
            let salt = STANDARD_NO_PAD.decode(salt).map_err(|_| damaged())?;
            let hash = STANDARD_NO_PAD.decode(hash).map_err(|_| damaged())?;
            let given = argon(params, &salt, &client_hash)?;
            // Both sides are slow hashes of 32 bytes; the comparison takes the same time wherever they differ.
            Ok(given.len() == hash.len()
                && given.iter().zip(&hash).fold(0, |d, (a, b)| d | (a ^ b)) == 0)
        })
        .await
        .map_err(AppError::internal)?
    }
}

/// What a stored hash looks like that no password has.
fn decoy_hash() -> String {
    let zeros = |length: usize| STANDARD_NO_PAD.encode(vec![0_u8; length]);
    format!(
        "$argon2id$v=19$m={ARGON_MEMORY_KIB},t={ARGON_PASSES},p=1${}${}",
        zeros(16),
        zeros(32)
    )
}

fn argon(params: Params, salt: &[u8], text: &str) -> AppResult<[u8; 32]> {
    let mut out = [0_u8; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(text.as_bytes(), salt, &mut out)
        .map_err(|e| AppError::internal(anyhow::anyhow!("argon2: {e}")))?;
    Ok(out)
}

impl Cache {
    fn put_user(&mut self, user: UserRow) {
        if let Some(old) = self.users.get(&user.id) {
            self.by_name.remove(&old.username);
        }
        self.by_name.insert(user.username.clone(), user.id);
        self.users.insert(user.id, Arc::new(user));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_password_stays_blank_on_the_wire() {
        assert_eq!(client_hash(""), "");
        assert_eq!(client_hash("x").len(), 128);
    }

    #[test]
    fn tokens_are_long_and_different() {
        let (a, b) = (new_token(), new_token());
        assert_ne!(a, b);
        assert_eq!(a.len(), 43);
        assert_eq!(token_hash(&a).len(), 32);
    }
}
