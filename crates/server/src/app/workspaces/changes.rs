//! Changes of workspaces and projects, and how the copy in memory follows them.

use std::sync::Arc;

use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_store::WriteTx;
use det_store::events::NewEvent;
use det_store::workspaces::{ProjectRow, WorkspaceRow};
use futures::future::BoxFuture;
use serde_json::Value;

use crate::app::context::Context;
use crate::app::homes::{Homes, KnownHomes};
use crate::error::AppResult;
use crate::hub::Topic;

/// Makes changes of workspaces and projects. Cheap to clone.
#[derive(Clone)]
pub struct HomeChanges {
    pub(super) context: Context,
    homes: KnownHomes,
}

impl HomeChanges {
    /// Changes of workspaces and projects, which the copy `homes` follows.
    pub(crate) fn new(context: Context, homes: KnownHomes) -> Self {
        Self { context, homes }
    }

    /// Changes workspaces or projects in one transaction, which is given `service` and them as they are; the copy in memory follows
    /// with the commit.
    pub(crate) async fn write<S, T, F>(&self, service: S, change: F) -> AppResult<T>
    where
        S: Send + 'static,
        T: Send + 'static,
        F: for<'t> FnOnce(S, &'t mut WriteTx, Homes) -> BoxFuture<'t, AppResult<T>>
            + Send
            + 'static,
    {
        let changes = self.clone();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let homes = Homes::load(&mut tx.conn()).await?;
                    let outcome = change(service, tx, homes).await?;
                    changes.reload(tx).await?;
                    Ok(outcome)
                })
            })
            .await
    }

    /// Loads the copy in memory again, with the commit, where this transaction has changed rows.
    pub(crate) async fn reload(&self, tx: &mut WriteTx) -> AppResult<()> {
        let homes = Homes::load(&mut tx.conn()).await?;
        let changes = self.clone();
        tx.once_stored(move || {
            changes.homes.set(homes);
            // Not before: a pass would see the old limits.
            changes.context.hub.notify(&Topic::Schedule);
            changes.context.hub.notify(&Topic::Namespaces);
        });
        Ok(())
    }

    /// Workspaces and projects as they are now.
    pub(crate) fn known(&self) -> Arc<Homes> {
        self.homes.get()
    }

    /// Records a change of a workspace.
    pub(super) async fn record_workspace(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        kind: EventKind,
        row: &WorkspaceRow,
        detail: Option<Value>,
    ) -> AppResult<()> {
        let (id, error) = (row.id, row.error.as_deref());
        self.record(tx, actor, Subject::Workspace(id), kind, error, detail)
            .await
    }

    /// Records a change of a project.
    pub(crate) async fn record_project(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        kind: EventKind,
        row: &ProjectRow,
        detail: Option<Value>,
    ) -> AppResult<()> {
        let (id, error) = (row.id, row.error.as_deref());
        self.record(tx, actor, Subject::Project(id), kind, error, detail)
            .await
    }

    /// Records that something happened (`kind`) to what has this kind and number.
    async fn record(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        subject: Subject,
        kind: EventKind,
        error: Option<&str>,
        detail: Option<Value>,
    ) -> AppResult<()> {
        let event = NewEvent::new(actor, subject, kind)
            .reason(error)
            .detail(detail);
        Ok(self.context.record(tx, event).await?)
    }
}
