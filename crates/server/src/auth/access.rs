//! The rights by which connections stay open, and what browsers show on the host of services.

use super::{Access, Actor, Auth, SessionName, TaskActor, of_session, token_hash};
use crate::error::AppResult;

/// What sessions and tasks may open, and until when.
#[derive(Clone, Copy)]
pub(crate) struct Accesses<'a>(pub(crate) &'a Auth);

impl Accesses<'_> {
    /// The session of this token with its right to what it opens; `None` = it is none, or its user may not use it.
    pub(crate) async fn of_session(self, token: &str) -> AppResult<Option<(SessionName, Access)>> {
        let name = SessionName(token_hash(token));
        let found = of_session(self.0, &name.0).await?;
        Ok(found.map(|(_, access)| (name, access)))
    }

    /// Who uses a service with this cookie of the host of services; see [`SessionName::services_cookie`].
    pub(crate) async fn of_services_cookie(
        self,
        cookie: &str,
        service: &str,
    ) -> AppResult<Option<(Actor, Access)>> {
        let named = |c: &super::Cache| c.sessions.of_services_cookie(cookie, service);
        match self.0.read(named) {
            Some(name) => of_session(self.0, &name.0).await,
            None => Ok(None),
        }
    }

    /// Whether the session of this name still opens anything.
    pub(crate) async fn lives(self, name: &SessionName) -> AppResult<bool> {
        Ok(of_session(self.0, &name.0).await?.is_some())
    }

    /// The right of a task to what it opens. Its allocation may have ended before this call, which then is not noticed:
    /// ask again afterwards who has the token.
    pub(crate) fn of_task(self, task: &TaskActor) -> Access {
        self.0
            .change(|c| c.task_accesses.open(&task.allocation_id, task.owner.id))
    }
}
