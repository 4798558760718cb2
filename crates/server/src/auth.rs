//! Who is asking: users, passwords, sessions, tokens of tasks.
//!
//! Users and sessions are served from memory, since nearly every request asks; the rows are written first. A password
//! reaches us as the client's salted SHA-512 of it (`docs/contract/http-api.md`, "Passwords") and is kept under Argon2id.

mod access;
mod neighbour;
mod passwords;
mod sessions;
mod throttle;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use det_ids::{AllocationId, ExperimentId, RunId, TaskId, TrialId, UserId};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_orchestrator::require_current_run;
use det_store::users::{SessionRow, UserChange, UserRow};
use det_store::{Conn, Store, StoreError, WriteTx, allocations, users};
use det_taskspec::TaskKind;
use futures::future::BoxFuture;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

pub(crate) use self::access::Accesses;
pub use self::neighbour::Ends;
use self::neighbour::Neighbour;
pub use self::passwords::client_hash;
use self::passwords::{Hashers, decoy_hash};
pub(crate) use self::sessions::{Access, SessionName};
use self::sessions::{Sessions, TaskAccesses};
use self::throttle::{Origin, Throttle, too_many};
use crate::error::{AppError, AppResult, ErrorKind};

/// How long a session of a user lives: seven days, in microseconds.
const SESSION_MICROS: i64 = 7 * 24 * 3600 * 1_000_000;
/// Logins under way at once, waiting ones included: more are refused.
const LOGINS: usize = 256;
/// How long what memory holds of a session is used before the rows are asked again. Changes made by this master take effect at
/// once; this bounds how long a right lasts that another process took away in the database.
const TRUSTED: Duration = Duration::from_secs(1);

/// A user as the rest of the master sees it.
pub type User = Arc<UserRow>;

/// The caller of a request: a user by session, or a task by its container's token.
#[derive(Debug, Clone)]
pub enum Actor {
    /// A user with a session.
    User(User),
    /// A task, acting for its owner.
    Task(TaskActor),
}

/// A task that asks with its own token.
#[derive(Debug, Clone)]
pub struct TaskActor {
    /// User who owns the task, and with whose rights it acts.
    pub owner: User,
    /// Id of the allocation whose token it is.
    pub allocation_id: AllocationId,
    /// Id of the task that acts.
    pub task_id: TaskId,
    /// Kind of the task.
    pub kind: TaskKind,
    /// Number of the trial's experiment; `None` = the task is no trial's.
    pub experiment_id: Option<ExperimentId>,
    /// Number of the trial that it runs; `None` = the task is no trial's.
    pub trial_id: Option<TrialId>,
    /// Which run of the trial its allocation is; 0 without a trial.
    pub run_id: RunId,
    /// Whether its allocation has ended. For a short time it may still report what happened before.
    pub ended: bool,
}

impl Actor {
    /// The user behind the request.
    pub fn user(&self) -> &User {
        match self {
            Self::User(user) => user,
            Self::Task(task) => &task.owner,
        }
    }

    /// How events name this actor.
    pub fn name(&self) -> ActorName {
        match self {
            Self::User(user) => ActorName::user(&user.username),
            Self::Task(task) => ActorName::Task(task.task_id.clone()),
        }
    }

    /// Refuses a report of a task for a run that is not its own, whatever number it gives; users may report for any run.
    pub fn require_run(&self, trial_id: TrialId, run_id: RunId) -> AppResult<()> {
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

    /// Fences reports of an older run: once another allocation has taken its place it changes nothing any more.
    /// `current` is the trial's run as read in the transaction that would make the change.
    pub fn require_current_run(&self, trial_id: TrialId, current: RunId) -> AppResult<()> {
        require_current_run(trial_id, current, self.run())
            .map_err(|refused| AppError::precondition(refused.to_string()))
    }

    /// The run of its trial that a task is; `None` for a user.
    pub(crate) fn run(&self) -> Option<RunId> {
        match self {
            Self::Task(task) => Some(task.run_id),
            Self::User(_) => None,
        }
    }
}

/// Refuses a blank password to what runs in containers and sandboxes of this machine. Tasks reach the master over the
/// machine's own network; code that one user submits must not become another one, or an administrator. Of an administrator it
/// is refused from elsewhere too, since tasks on other machines cannot be distinguished from users there.
async fn refuse_contained(username: &str, admin: bool, ends: Ends) -> AppResult<()> {
    let found = tokio::task::spawn_blocking(move || Neighbour::of(ends)).await;
    match found.map_err(AppError::internal)? {
        Ok(Neighbour::Beside) => Ok(()),
        Ok(Neighbour::Remote) if !admin => Ok(()),
        Ok(Neighbour::Remote) => Err(AppError::new(
            ErrorKind::Forbidden,
            format!(
                "administrator \"{username}\" has a blank password, with which an administrator logs in on the master's \
                 machine only"
            ),
        )
        .hint(format!(
            "log in there and set a password: det user change-password {username}"
        ))),
        Ok(Neighbour::Contained) => Err(AppError::new(
            ErrorKind::Forbidden,
            format!(
                "user \"{username}\" has a blank password, with which no login is accepted from inside a container or a task, \
                 or from a process of another user that the master cannot look at"
            ),
        )
        .hint(format!(
            "a task acts with its own token (DET_USER_TOKEN); elsewhere set a password first: \
             det user change-password {username}"
        ))),
        Err(error) => Err(AppError::internal(error)),
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

/// Users and sessions in memory, written through to the rows.
#[derive(Clone)]
pub struct Auth {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    cache: RwLock<Cache>,
    hashers: Hashers,
    logins: Semaphore,
    throttle: Throttle,
}

#[derive(Default)]
struct Cache {
    users: HashMap<UserId, User>,
    by_name: HashMap<String, UserId>,
    sessions: Sessions,
    tasks: HashMap<Vec<u8>, TaskIdentity>,
    task_accesses: TaskAccesses,
    /// The cached tokens of each allocation.
    tokens_of: HashMap<AllocationId, Vec<Vec<u8>>>,
    /// Counts ended allocations: a token that was read before one of them ended is not cached afterwards.
    ends: u64,
    /// Grows with every change of a user or session by this master: rows that were read before it are older than the
    /// memory, and must not replace it.
    generation: u64,
}

#[derive(Clone)]
struct TaskIdentity {
    allocation_id: AllocationId,
    task_id: TaskId,
    kind: TaskKind,
    experiment_id: Option<ExperimentId>,
    trial_id: Option<TrialId>,
    run_id: RunId,
    owner_id: UserId,
    /// When the rows were asked last.
    checked: Instant,
}

/// A change of one user, with what else its transaction has to check and write.
pub(crate) struct UserEdit {
    /// What to change in the user's row.
    pub change: UserChange,
    /// Whether all sessions of the user end.
    pub end_sessions: bool,
}

/// Decides a change of a user in the transaction that makes it: given all users as the transaction reads them.
pub(crate) type DecideUser =
    Box<dyn for<'u> FnOnce(&'u [UserRow]) -> AppResult<UserEdit> + Send + 'static>;

impl Auth {
    /// Loads users and sessions.
    pub async fn load(store: Store) -> Result<Self, StoreError> {
        let mut conn = store.read().await?;
        let mut cache = Cache::default();
        for user in users::list(&mut conn.conn()).await? {
            cache.put_user(user);
        }
        for session in users::sessions(&mut conn.conn(), det_store::earliest_now()).await? {
            cache.sessions.put(session);
        }
        drop(conn);
        Ok(Self {
            inner: Arc::new(Inner {
                store,
                cache: RwLock::new(cache),
                hashers: Hashers::new(),
                logins: Semaphore::new(LOGINS),
                throttle: Throttle::new(),
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

    /// The user who owns what is the cluster's own: the first administrator.
    pub(crate) fn cluster_owner(&self) -> Option<User> {
        let users = self.users();
        let admin = users.iter().find(|user| user.admin);
        admin.or(users.first()).cloned()
    }

    /// All users by id.
    pub fn users(&self) -> Vec<User> {
        let mut all: Vec<User> = self.read(|c| c.users.values().cloned().collect());
        all.sort_by_key(|u| u.id);
        all
    }

    /// A user by number.
    pub fn user(&self, id: UserId) -> Option<User> {
        self.read(|c| c.users.get(&id).cloned())
    }

    /// A user by login name.
    pub fn user_by_name(&self, name: &str) -> Option<User> {
        self.read(|c| c.by_name.get(name).and_then(|id| c.users.get(id)).cloned())
    }

    /// Who holds this session token. What memory holds is checked against the rows once in a second.
    pub async fn by_session(&self, token: &str) -> AppResult<Option<Actor>> {
        let found = of_session(self, &token_hash(token)).await?;
        Ok(found.map(|(actor, _)| actor))
    }

    /// Brings a session and its user in memory up to the rows, which another process may have changed.
    async fn check_session(&self, hash: &[u8]) -> AppResult<()> {
        let generation = self.read(|c| c.generation);
        let (session, user) = {
            let mut conn = self.inner.store.read().await?;
            match users::find_session(&mut conn.conn(), hash).await? {
                Some(session) => {
                    let user = users::find(&mut conn.conn(), session.user_id).await?;
                    (Some(session), user)
                }
                None => (None, None),
            }
        };
        self.change(|c| {
            // This master changed something meanwhile: what was read may be older than that. The next request asks again.
            if c.generation != generation {
                return;
            }
            match (session, user) {
                (Some(session), Some(user)) => {
                    c.sessions.put(session);
                    c.put_user(user);
                }
                _ => {
                    c.sessions.remove(hash);
                }
            }
        });
        Ok(())
    }

    /// Brings a user in memory up to the row, which another process may have changed.
    async fn check_user(&self, id: UserId) -> AppResult<()> {
        let generation = self.read(|c| c.generation);
        let user = {
            let mut conn = self.inner.store.read().await?;
            users::find(&mut conn.conn(), id).await?
        };
        self.change(|c| match user {
            Some(user) if c.generation == generation => c.put_user(user),
            None if c.generation == generation => c.drop_user(id),
            _ => {}
        });
        Ok(())
    }

    /// Which task holds this allocation token.
    pub async fn by_allocation_token(&self, token: &str) -> AppResult<Option<Actor>> {
        let hash = token_hash(token);
        let now = det_store::steady_now();
        let (known, ends) = self.read(|c| (c.tasks.get(&hash).cloned(), c.ends));
        // Like a session's, a task's right is asked of the rows again once in a while.
        let known = known.filter(|known| known.checked.elapsed() < TRUSTED);
        let (identity, expires_at) = match known {
            Some(known) => (known, None),
            None => {
                let mut conn = self.inner.store.read().await?;
                let Some(owner) = allocations::find_token(&mut conn.conn(), &hash).await? else {
                    drop(conn);
                    self.change(|c| c.tasks.remove(&hash));
                    return Ok(None);
                };
                drop(conn);
                self.check_user(owner.owner_id).await?;
                let identity = TaskIdentity {
                    allocation_id: owner.allocation_id,
                    task_id: owner.task_id,
                    kind: owner.kind,
                    experiment_id: owner.experiment_id,
                    trial_id: owner.trial_id,
                    run_id: owner.run_id,
                    owner_id: owner.owner_id,
                    checked: Instant::now(),
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
                        if !tokens.contains(&hash) {
                            tokens.push(hash.clone());
                        }
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
                    kind: identity.kind,
                    experiment_id: identity.experiment_id,
                    trial_id: identity.trial_id,
                    run_id: identity.run_id,
                    ended: expires_at.is_some(),
                })
            }))
    }

    /// Evicts cached tokens of an allocation whose expiry has changed.
    pub fn evict_allocation(&self, allocation_id: &AllocationId) {
        self.change(|c| {
            c.ends += 1;
            c.task_accesses.end(allocation_id);
            for hash in c.tokens_of.remove(allocation_id).unwrap_or_default() {
                c.tasks.remove(&hash);
            }
        });
    }

    /// Logs a user in: the token, and who it is. `password` is the client's hash, or plain when `hashed` is false;
    /// `address` is where the request comes from, for slowing down after wrong passwords.
    pub async fn login(
        &self,
        username: &str,
        password: &str,
        hashed: bool,
        ends: Ends,
    ) -> AppResult<(String, User)> {
        if username.is_empty() {
            return Err(AppError::invalid("field \"username\" must name a user"));
        }
        let given = if hashed {
            password.to_owned()
        } else {
            client_hash(password)
        };
        let origin = Origin::new(username, ends.client.ip());
        let _place = self.inner.logins.try_acquire().map_err(|_| too_many())?;
        let known = {
            let mut conn = self.inner.store.read().await?;
            users::find_by_name(&mut conn.conn(), username).await?
        };
        // An unknown user's password is compared as well: how long it takes must not show who has an account.
        let stored = match &known {
            Some(user) => user.password_hash.clone(),
            None => Some(decoy_hash()),
        };
        let throttle = &self.inner.throttle;
        let right = self
            .inner
            .hashers
            .verify_slowed(stored, given, throttle, &origin)
            .await?;
        let Some(user) = known.filter(|_| right) else {
            throttle.failed(&origin, Instant::now());
            // Word for word what clients look for: no hint.
            return Err(AppError::new(
                ErrorKind::Unauthenticated,
                "invalid credentials",
            ));
        };
        if user.password_hash.is_none() {
            refuse_contained(&user.username, user.admin, ends).await?;
        }
        throttle.succeeded(&origin);
        let token = new_token();
        let user = self
            .insert_session(user.id, SESSION_MICROS, &token, move |now| {
                if !now.active {
                    return Err(inactive(&now.username));
                }
                // Between the comparison and this transaction the password may have been changed.
                if now.password_hash != user.password_hash {
                    return Err(AppError::new(
                        ErrorKind::Unauthenticated,
                        "invalid credentials",
                    ));
                }
                Ok(())
            })
            .await?;
        Ok((token, user))
    }

    /// Starts a session for a user that lasts for `lifetime` microseconds, and gives its token. Nothing is asked of the
    /// user; with a lifetime below 0 the session has expired from the start.
    pub async fn start_session(&self, user_id: UserId, lifetime: i64) -> AppResult<String> {
        let token = new_token();
        self.insert_session(user_id, lifetime, &token, |_| Ok(()))
            .await?;
        Ok(token)
    }

    /// Stores a session unless `allow` refuses the user as it is in the transaction. Returns the user after it.
    async fn insert_session(
        &self,
        user_id: UserId,
        lifetime: i64,
        token: &str,
        allow: impl FnOnce(&UserRow) -> AppResult<()> + Send + 'static,
    ) -> AppResult<User> {
        let now = det_store::now();
        let session = SessionRow {
            token_hash: token_hash(token),
            user_id,
            expires_at: det_store::latest_now().saturating_add(lifetime),
        };
        let auth = self.clone();
        let row = self
            .inner
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let mut user = found(&mut tx.conn(), user_id).await?;
                    allow(&user)?;
                    users::insert_session(&mut tx.conn(), &session).await?;
                    users::note_login(&mut tx.conn(), user_id, now).await?;
                    user.last_auth_at = Some(now);
                    let cached = user.clone();
                    tx.once_stored(move || {
                        auth.change(|c| {
                            c.generation += 1;
                            c.sessions.put(session);
                            c.put_user(cached);
                        });
                    });
                    Ok::<_, AppError>(user)
                })
            })
            .await?;
        Ok(Arc::new(row))
    }

    /// Ends the session of a user by the token that their request came with.
    pub async fn logout(&self, actor: &Actor, token: Option<&str>) -> AppResult<()> {
        let (Actor::User(_), Some(token)) = (actor, token) else {
            return Err(AppError::invalid(
                "only the session of a user can be ended: this request came with a task's token",
            ));
        };
        let hash = token_hash(token);
        let auth = self.clone();
        self.inner
            .store
            .write(move |tx| {
                Box::pin(async move {
                    users::delete_session(&mut tx.conn(), &hash).await?;
                    tx.after_commit(move || {
                        auth.change(|c| {
                            c.generation += 1;
                            c.sessions.remove(&hash);
                        });
                    });
                    Ok::<_, AppError>(())
                })
            })
            .await
    }

    /// Adds a user (id ignored) unless `allow` refuses it, given all users as they are in the transaction.
    pub(crate) async fn add_user(
        &self,
        user: UserRow,
        actor: &Actor,
        allow: impl FnOnce(&UserRow, &[UserRow]) -> AppResult<()> + Send + 'static,
    ) -> AppResult<User> {
        let actor = actor.name();
        self.write_user(move |tx| {
            Box::pin(async move {
                let all = users::list(&mut tx.conn()).await?;
                allow(&user, &all)?;
                let id = users::insert(&mut tx.conn(), &user).await?;
                let user = UserRow { id, ..user };
                record(tx, &actor, &user.username, EventKind::Created).await?;
                Ok((user, false))
            })
        })
        .await
    }

    /// Changes the columns of a user that `decide` names, given all users as they are in the transaction.
    pub(crate) async fn change_user(
        &self,
        id: UserId,
        actor: &Actor,
        decide: DecideUser,
    ) -> AppResult<User> {
        let actor = actor.name();
        self.write_user(move |tx| {
            Box::pin(async move {
                let all = users::list(&mut tx.conn()).await?;
                let edit = decide(&all)?;
                let now = det_store::now();
                let user = users::change(&mut tx.conn(), id, &edit.change, now)
                    .await?
                    .ok_or_else(|| AppError::not_found(ObjectKind::User, id))?;
                if edit.end_sessions {
                    users::delete_sessions_of(&mut tx.conn(), id).await?;
                }
                record(tx, &actor, &user.username, EventKind::Changed).await?;
                Ok((user, edit.end_sessions))
            })
        })
        .await
    }

    /// Writes a user in one transaction; memory follows with the commit. `write` returns the row as it then is, and whether
    /// the user's sessions have ended.
    async fn write_user<F>(&self, write: F) -> AppResult<User>
    where
        F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, AppResult<(UserRow, bool)>>
            + Send
            + 'static,
    {
        let auth = self.clone();
        let row = self
            .inner
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let (user, sessions_end) = write(tx).await?;
                    let cached = user.clone();
                    tx.once_stored(move || {
                        auth.change(|c| {
                            c.generation += 1;
                            if sessions_end {
                                c.sessions.remove_of(cached.id);
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
        self.inner.hashers.hash(client_hash).await
    }
}

/// Who has the session with this hash of its token, and the right to what it opens. What memory holds is checked against the
/// rows once in a second.
async fn of_session(auth: &Auth, hash: &[u8]) -> AppResult<Option<(Actor, Access)>> {
    let Some(checked) = auth.read(|c| c.sessions.get(hash).map(|session| session.checked)) else {
        return Ok(None);
    };
    if checked.elapsed() >= TRUSTED {
        auth.check_session(hash).await?;
    }
    let now = det_store::earliest_now();
    Ok(auth.read(|c| {
        let session = c.sessions.get(hash)?;
        let user = c.users.get(&session.user_id)?;
        (session.expires_at > now && user.active)
            .then(|| (Actor::User(user.clone()), session.access()))
    }))
}

/// A user's row.
async fn found(conn: &mut Conn<'_>, id: UserId) -> AppResult<UserRow> {
    users::find(conn, id)
        .await?
        .ok_or_else(|| AppError::not_found(ObjectKind::User, id))
}

async fn record(
    tx: &mut WriteTx,
    actor: &ActorName,
    username: &str,
    kind: EventKind,
) -> AppResult<()> {
    let event = det_store::events::NewEvent::new(actor, Subject::User(username.to_owned()), kind);
    Ok(det_store::events::append(tx, event).await?)
}

/// Scripts look for "user is not active".
fn inactive(username: &str) -> AppError {
    AppError::new(
        ErrorKind::Forbidden,
        format!("user is not active: \"{username}\" was deactivated"),
    )
    .hint("an administrator can activate it with: det user activate")
}

impl Cache {
    fn put_user(&mut self, user: UserRow) {
        if let Some(old) = self.users.get(&user.id) {
            self.by_name.remove(&old.username);
        }
        if !user.active {
            self.sessions.interrupt(user.id);
            self.task_accesses.end_of(user.id);
        }
        self.by_name.insert(user.username.clone(), user.id);
        self.users.insert(user.id, Arc::new(user));
    }

    fn drop_user(&mut self, id: UserId) {
        if let Some(old) = self.users.remove(&id) {
            self.by_name.remove(&old.username);
        }
        self.sessions.remove_of(id);
        self.task_accesses.end_of(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_different() {
        let (a, b) = (new_token(), new_token());
        assert_ne!(a, b);
        assert_eq!(a.len(), 43);
        assert_eq!(token_hash(&a).len(), 32);
    }
}
