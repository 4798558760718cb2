//! Determines the user from the flags, the environment and the token store, and logs in.

use std::env;
use std::io;

use serde_json::{Value, json};

use crate::address::MasterUrl;
use crate::client::Client;
use crate::error::ClientError;
use crate::files::StoreError;
use crate::password::{password_weaknesses, salted_hash};
use crate::query::Query;
use crate::secret::Secret;
use crate::token_store::TokenStore;

/// The default user, if none is named and none is logged in.
pub const DEFAULT_USER: &str = "determined";

/// The user's settings in the process environment.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `DET_USER`: name of the user to log in as; `None` = not set.
    pub user: Option<String>,
    /// `DET_PASS`: password of that user; `None` = not set.
    pub password: Option<Secret>,
    /// `DET_USER_TOKEN`, set inside tasks.
    pub user_token: Option<Secret>,
}

impl Environment {
    /// Reads this process's environment. A password that is set but empty counts: an empty password is a password.
    pub fn from_process() -> Self {
        let read = |name| env::var(name).ok();
        Self {
            user: read("DET_USER").filter(|user| !user.is_empty()),
            password: read("DET_PASS").map(Secret::new),
            user_token: read("DET_USER_TOKEN").map(Secret::new),
        }
    }
}

/// The user to log in as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Name of the user.
    pub user: String,
    /// The password, if it is known without a prompt.
    pub password: Option<Secret>,
    /// What names the user.
    pub named_by: NamedBy,
}

/// What names the user to log in as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBy {
    /// The caller, with a flag.
    Caller,
    /// `DET_USER`.
    Environment,
    /// The last login on this machine.
    LastLogin,
    /// Nothing, so that the default user is tried.
    Nothing,
}

impl Candidate {
    /// The order of precedence: the named user, with `DET_PASS` unless `DET_USER` names another, then `DET_USER`, then the
    /// active user of the token store, then `determined` with a blank password. Where there is a `DET_USER_TOKEN`, `DET_USER`
    /// without `DET_PASS` does not count: tasks always have both, and a log-in inside a task must override them.
    pub fn choose(
        requested: Option<&str>,
        environment: &Environment,
        active: Option<&str>,
    ) -> Self {
        if let Some(user) = requested {
            let is_theirs = environment.user.as_ref().is_none_or(|named| named == user);
            let password = environment.password.clone().filter(|_| is_theirs);
            return Self::named(user, password, NamedBy::Caller);
        }
        let is_of_a_task = environment.user_token.is_some() && environment.password.is_none();
        if let Some(user) = environment.user.as_ref().filter(|_| !is_of_a_task) {
            return Self::named(user, environment.password.clone(), NamedBy::Environment);
        }
        if let Some(user) = active {
            return Self::named(user, None, NamedBy::LastLogin);
        }
        Self {
            user: DEFAULT_USER.to_owned(),
            password: Some(Secret::new("")),
            named_by: NamedBy::Nothing,
        }
    }

    fn named(user: &str, password: Option<Secret>, named_by: NamedBy) -> Self {
        Self {
            user: user.to_owned(),
            password,
            named_by,
        }
    }
}

/// How the user of a session was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The user is named, on the command line, in the environment or by the last login.
    Chosen,
    /// No user is named, and no one has logged in: the default user, with a token of an earlier command.
    Default,
    /// The same, logged in for this session.
    DefaultLoggedIn,
}

/// A client that is logged in.
#[derive(Debug, Clone)]
pub struct Session {
    /// The client, with the user's token on every request.
    pub client: Client,
    /// The user's name.
    pub user: String,
    /// How that user was chosen.
    pub identity: Identity,
    /// What the password lacks, if a weak password was just used; else empty.
    pub weak_password: Vec<&'static str>,
}

/// Why the log-in failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The request itself failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The token store could not be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No user was named, none is logged in, and the default user needs a password.
    #[error("you are not logged in to {master}; log in with `det user login USERNAME`")]
    NotLoggedIn {
        /// The master concerned.
        master: MasterUrl,
    },
    /// The user name or the password is wrong.
    #[error("user \"{user}\" could not log in to {master}: wrong user name or password")]
    WrongCredentials {
        /// The user who tried.
        user: String,
        /// The master concerned.
        master: MasterUrl,
    },
    /// `DET_USER` names the user, and nothing has the user's password or a valid login.
    #[error(
        "DET_USER names user \"{user}\", of whom there is no login to {master} here, and DET_PASS is not set"
    )]
    NoPassword {
        /// The user named.
        user: String,
        /// The master concerned.
        master: MasterUrl,
    },
    /// The prompt for the password failed.
    #[error("could not read the password of user \"{user}\": {source}")]
    Prompt {
        /// The user who tried.
        user: String,
        /// The error of the terminal.
        source: io::Error,
    },
}

impl Session {
    /// Logs in, preferably with a stored token. A stored token is checked with the master and removed if it is not
    /// valid any more. If no password is known, `ask` (which gets the user's name) prompts for it.
    pub async fn open(
        client: Client,
        store: &TokenStore,
        environment: &Environment,
        requested: Option<&str>,
        ask: &mut dyn FnMut(&str) -> io::Result<Secret>,
    ) -> Result<Self, SessionError> {
        let master = client.master().clone();
        let entry = store.entry(&master)?;
        let candidate = Candidate::choose(requested, environment, entry.active_user());
        let is_default = candidate.named_by == NamedBy::Nothing;
        if let Some(token) = entry.token(&candidate.user) {
            let client = client.clone().with_token(token);
            match client.get("/api/v1/me", &Query::new()).await {
                Ok(_) => {
                    let mut session = Self::with(client, candidate.user);
                    if is_default {
                        session.identity = Identity::Default;
                    }
                    return Ok(session);
                }
                Err(
                    ClientError::Unauthenticated { .. }
                    | ClientError::Forbidden { .. }
                    | ClientError::NotFound { .. },
                ) => store.drop_user(&master, &candidate.user)?,
                Err(other) => return Err(other.into()),
            }
        }
        if let (Some(user), Some(token)) = (&environment.user, &environment.user_token)
            && requested.is_none_or(|requested| requested == user)
        {
            return Ok(Self::with(client.with_token(token.clone()), user.clone()));
        }
        let password = match candidate.password {
            Some(password) => password,
            None if candidate.named_by == NamedBy::Environment => {
                return Err(SessionError::NoPassword {
                    user: candidate.user,
                    master,
                });
            }
            None => ask(&candidate.user).map_err(|source| SessionError::Prompt {
                user: candidate.user.clone(),
                source,
            })?,
        };
        match Self::log_in(client, &candidate.user, &password).await {
            Ok(mut session) => {
                store.set_token(&master, &session.user, &session.token())?;
                if is_default {
                    session.identity = Identity::DefaultLoggedIn;
                }
                Ok(session)
            }
            Err(
                SessionError::WrongCredentials { .. }
                | SessionError::Client(ClientError::Forbidden { .. }),
            ) if is_default => Err(SessionError::NotLoggedIn { master }),
            Err(other) => Err(other),
        }
    }

    /// Logs in with a password, without reading or changing the token store.
    pub async fn log_in(
        client: Client,
        user: &str,
        password: &Secret,
    ) -> Result<Self, SessionError> {
        let body = json!({
            "username": user,
            "password": salted_hash(password.reveal()),
            "isHashed": true,
        });
        let master = client.master().clone();
        let answer = match client.post("/api/v1/auth/login", Some(&body)).await {
            Ok(answer) => answer,
            Err(ClientError::Unauthenticated { .. }) => {
                return Err(SessionError::WrongCredentials {
                    user: user.to_owned(),
                    master,
                });
            }
            Err(ClientError::NotFound { .. }) => {
                // A master always has this route.
                return Err(SessionError::Client(ClientError::BadAnswer {
                    url: master.join("/api/v1/auth/login"),
                    reason: "no user can log in there".to_owned(),
                }));
            }
            Err(other) => return Err(other.into()),
        };
        let Some(token) = answer["token"].as_str().filter(|token| !token.is_empty()) else {
            return Err(SessionError::Client(ClientError::BadAnswer {
                url: master.join("/api/v1/auth/login"),
                reason: "it has no token".to_owned(),
            }));
        };
        let name = answer["user"]["username"].as_str().unwrap_or(user);
        let mut session = Self::with(client.with_token(Secret::new(token)), name.to_owned());
        session.weak_password = password_weaknesses(password.reveal());
        Ok(session)
    }

    /// The user as the master describes it.
    pub async fn me(&self) -> Result<Value, ClientError> {
        let mut answer = self.client.get("/api/v1/me", &Query::new()).await?;
        Ok(answer["user"].take())
    }

    /// The token of this session.
    pub fn token(&self) -> Secret {
        self.client
            .token()
            .expect("a session is made from a client with a token")
    }

    fn with(client: Client, user: String) -> Self {
        Self {
            client,
            user,
            identity: Identity::Chosen,
            weak_password: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(user: Option<&str>, password: Option<&str>) -> Environment {
        Environment {
            user: user.map(str::to_owned),
            password: password.map(Secret::new),
            user_token: None,
        }
    }

    #[test]
    fn the_order_of_identity() {
        let both = environment(Some("env"), Some("pw"));
        let chosen = Candidate::choose(Some("flag"), &both, Some("active"));
        assert_eq!((chosen.user.as_str(), chosen.password), ("flag", None));
        let password_only = environment(None, Some("pw"));
        for given in [&password_only, &environment(Some("flag"), Some("pw"))] {
            let chosen = Candidate::choose(Some("flag"), given, Some("active"));
            assert_eq!(chosen.password, Some(Secret::new("pw")));
        }

        let chosen = Candidate::choose(None, &both, Some("active"));
        assert_eq!(chosen.user, "env");
        assert_eq!(chosen.password, Some(Secret::new("pw")));

        let name_only = environment(Some("env"), None);
        for active in [None, Some("active")] {
            let chosen = Candidate::choose(None, &name_only, active);
            assert_eq!(chosen.named_by, NamedBy::Environment);
            assert_eq!((chosen.user.as_str(), chosen.password), ("env", None));
        }

        let of_a_task = Environment {
            user_token: Some(Secret::new("t")),
            ..name_only
        };
        let chosen = Candidate::choose(None, &of_a_task, Some("active"));
        assert_eq!(chosen.named_by, NamedBy::LastLogin);
        assert_eq!(chosen.user, "active");

        let chosen = Candidate::choose(None, &of_a_task, None);
        assert_eq!(chosen.user, "determined");
        assert_eq!(chosen.password, Some(Secret::new("")));
        assert_eq!(chosen.named_by, NamedBy::Nothing);
    }
}
