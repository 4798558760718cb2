//! Templates: configurations that experiments and tasks are laid over. What is made of one keeps what it contained then.

use std::collections::BTreeSet;

use det_authz::{Kind, Permission, Target};
use det_config::origin::{Layer, Source};
use det_config::template::Template;
use det_ids::WorkspaceId;
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_store::events::NewEvent;
use det_store::templates::{self, TemplateRow};
use det_store::workspaces::{self, UNCATEGORIZED_WORKSPACE};
use det_store::{Conn, StoreError, WriteTx};
use serde_json::{Map, Value, json};

use crate::app::context::Context;
use crate::app::documents::{require_real_secrets, takes_long};
use crate::app::homes::{require_open_workspace, require_unarchived_workspace};
use crate::app::ownership::Ownership;
use crate::app::reads::templates::{TemplateView, shown, stored};
use crate::app::{offload, reads};
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};

/// Characters of a name at most.
const LONGEST_NAME: usize = 128;

/// A template as a user submits it.
#[derive(Debug, Clone)]
pub struct NewTemplate {
    /// Name of the template, unique over the cluster: one line without slashes.
    pub name: String,
    /// Its workspace; `None` = Uncategorized.
    pub workspace_id: Option<WorkspaceId>,
    /// The keys that it sets, with their values.
    pub config: Map<String, Value>,
}

/// Templates and what is laid over them. Cheap to clone.
#[derive(Clone)]
pub struct Templates {
    context: Context,
    ownership: Ownership,
}

impl Templates {
    /// Puts the service together.
    pub(crate) fn new(context: Context, ownership: Ownership) -> Self {
        Self { context, ownership }
    }

    /// Adds a template; its name must be free.
    pub(crate) async fn create(&self, actor: &Actor, new: NewTemplate) -> AppResult<TemplateView> {
        let row = checked(actor, new).await?;
        let actor = actor.clone();
        self.write(move |service, tx| {
            Box::pin(async move {
                require_workspace(&mut tx.conn(), row.workspace_id).await?;
                if !templates::insert(&mut tx.conn(), &row).await? {
                    return Err(taken(&row.name));
                }
                service
                    .record(tx, &actor.name(), EventKind::Created, &row.name, None)
                    .await?;
                shown(&row, &actor)
            })
        })
        .await
    }

    /// Adds a template, or gives the one of this name another content, which is for its owner and administrators.
    pub(crate) async fn put(&self, actor: &Actor, new: NewTemplate) -> AppResult<TemplateView> {
        // Rights go before what is wrong with the content.
        match reads::templates::find(&self.context.store, actor, &new.name).await {
            Ok(known) => self.require_own(actor, &known, Permission::Change, "change")?,
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let row = checked(actor, new).await?;
        let actor = actor.clone();
        self.write(move |service, tx| {
            Box::pin(async move {
                require_workspace(&mut tx.conn(), row.workspace_id).await?;
                let kind = if templates::insert(&mut tx.conn(), &row).await? {
                    EventKind::Created
                } else {
                    let known = stored(&mut tx.conn(), &row.name).await?;
                    service.require_own(&actor, &known, Permission::Change, "change")?;
                    require_unarchived(&mut tx.conn(), &known).await?;
                    templates::set_config(&mut tx.conn(), &row.name, &row.config, row.modified_at)
                        .await?;
                    EventKind::Changed
                };
                service
                    .record(tx, &actor.name(), kind, &row.name, None)
                    .await?;
                shown(&stored(&mut tx.conn(), &row.name).await?, &actor)
            })
        })
        .await
    }

    /// Gives a template another content. For its owner and administrators.
    pub(crate) async fn change(
        &self,
        actor: &Actor,
        name: String,
        config: Map<String, Value>,
    ) -> AppResult<TemplateView> {
        let known = reads::templates::find(&self.context.store, actor, &name).await?;
        self.require_own(actor, &known, Permission::Change, "change")?;
        let row = checked(
            actor,
            NewTemplate {
                name,
                workspace_id: None,
                config,
            },
        )
        .await?;
        let actor = actor.clone();
        self.write(move |service, tx| {
            Box::pin(async move {
                let (name, config) = (row.name.as_str(), row.config.as_str());
                let known = stored(&mut tx.conn(), name).await?;
                service.require_own(&actor, &known, Permission::Change, "change")?;
                require_unarchived(&mut tx.conn(), &known).await?;
                templates::set_config(&mut tx.conn(), name, config, row.modified_at).await?;
                service
                    .record(tx, &actor.name(), EventKind::Changed, name, None)
                    .await?;
                shown(&stored(&mut tx.conn(), name).await?, &actor)
            })
        })
        .await
    }

    /// Gives a template another name, which must be free. For its owner and administrators.
    pub(crate) async fn rename(
        &self,
        actor: &Actor,
        from: String,
        to: String,
    ) -> AppResult<TemplateView> {
        actor.require(Permission::Change, Kind::Template, "rename templates")?;
        check_name(&to)?;
        let actor = actor.clone();
        self.write(move |service, tx| {
            Box::pin(async move {
                let known = stored(&mut tx.conn(), &from).await?;
                service.require_own(&actor, &known, Permission::Change, "rename")?;
                require_unarchived(&mut tx.conn(), &known).await?;
                if from != to && templates::find(&mut tx.conn(), &to).await?.is_some() {
                    return Err(taken(&to));
                }
                templates::rename(&mut tx.conn(), &from, &to).await?;
                let detail = json!({"from": from});
                service
                    .record(tx, &actor.name(), EventKind::Renamed, &to, Some(detail))
                    .await?;
                shown(&stored(&mut tx.conn(), &to).await?, &actor)
            })
        })
        .await
    }

    /// Removes a template. What was made of it stays as it is. For its owner and administrators.
    pub async fn delete(&self, actor: &Actor, name: String) -> AppResult<()> {
        actor.require(Permission::Delete, Kind::Template, "delete templates")?;
        let actor = actor.clone();
        self.write(move |service, tx| {
            Box::pin(async move {
                let row = stored(&mut tx.conn(), &name).await?;
                service.require_own(&actor, &row, Permission::Delete, "delete")?;
                require_unarchived(&mut tx.conn(), &row).await?;
                // All users may read events, and a page of them is held in memory: they do not contain what it sets.
                let bytes = row.config.len();
                let detail = json!({"workspaceId": row.workspace_id, "bytes": bytes});
                templates::delete(&mut tx.conn(), &name).await?;
                service
                    .record(tx, &actor.name(), EventKind::Deleted, &name, Some(detail))
                    .await?;
                Ok(())
            })
        })
        .await
    }

    /// A template runs in the name of every user who names it: it is changed by its owner and administrators only. `verb`
    /// completes "may not …".
    fn require_own(
        &self,
        actor: &Actor,
        row: &TemplateRow,
        permission: Permission,
        verb: &str,
    ) -> AppResult<()> {
        let to_do = format!("{verb} template \"{}\"", row.name);
        let target = Target::of(Kind::Template).owned_by(row.owner_id);
        self.ownership
            .require_of(actor, permission, &target, &to_do)
    }

    async fn write<T, F>(&self, change: F) -> AppResult<T>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(
                Self,
                &'t mut WriteTx,
            )
                -> std::pin::Pin<Box<dyn Future<Output = AppResult<T>> + Send + 't>>
            + Send
            + 'static,
    {
        let service = self.clone();
        self.context.write(move |tx| change(service, tx)).await
    }

    async fn record(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        kind: EventKind,
        name: &str,
        detail: Option<Value>,
    ) -> Result<(), StoreError> {
        self.context
            .record(
                tx,
                NewEvent::new(actor, Subject::Template(name.to_owned()), kind).detail(detail),
            )
            .await
    }

    /// The templates of these names, in their order; a refusal names all that are missing.
    async fn named(&self, names: &[String]) -> AppResult<Vec<TemplateRow>> {
        let distinct: BTreeSet<&String> = names.iter().collect();
        if names.len() > MOST_NAMED || distinct.len() < names.len() {
            return Err(AppError::invalid(format!(
                "{} templates are named: a configuration is laid over at most {MOST_NAMED}, each named once",
                names.len()
            )));
        }
        let mut conn = self.context.store.read().await?;
        let (mut rows, mut missing) = (Vec::new(), Vec::new());
        for name in names {
            match templates::find(&mut conn.conn(), name).await? {
                Some(row) => rows.push(row),
                None => missing.push(name.escape_debug().to_string()),
            }
        }
        match missing.as_slice() {
            [] => Ok(rows),
            [one] => Err(AppError::not_found(ObjectKind::Template, one)),
            several => {
                let several: Vec<String> =
                    several.iter().map(|name| format!("\"{name}\"")).collect();
                let message = format!("templates {} not found", several.join(", "));
                Err(AppError::new(ErrorKind::NotFound, message))
            }
        }
    }

    /// Names, no files, and contents of templates, in the order of the names, for a document to be laid over.
    pub(crate) async fn texts(&self, names: &[String]) -> AppResult<Vec<(String, String, String)>> {
        let rows = self.named(names).await?;
        let texts = names.iter().zip(rows);
        let texts = texts.map(|(name, row)| (name.clone(), String::new(), row.config));
        Ok(texts.collect())
    }
}

/// Templates that a configuration is laid over at most.
const MOST_NAMED: usize = 16;

/// What is in an archived workspace stays as it is.
async fn require_unarchived(conn: &mut Conn<'_>, template: &TemplateRow) -> AppResult<()> {
    match workspaces::find(conn, template.workspace_id).await? {
        Some(workspace) => {
            require_unarchived_workspace(&workspace, "its templates cannot be changed")
        }
        None => Ok(()),
    }
}

/// Templates go into workspaces that exist and stay.
async fn require_workspace(conn: &mut Conn<'_>, id: WorkspaceId) -> AppResult<()> {
    let row = workspaces::find(conn, id).await?;
    let row = row.ok_or_else(|| AppError::not_found(ObjectKind::Workspace, id))?;
    require_open_workspace(&row, "no template can be put there")
}

fn taken(name: &str) -> AppError {
    AppError::new(
        ErrorKind::Conflict,
        format!("there is a template \"{name}\" already"),
    )
    .hint("choose another name, or give that one this content with `det template set`")
}

fn check_name(name: &str) -> AppResult<()> {
    let wrong = if name.trim().is_empty() {
        "is blank"
    } else if name.trim() != name {
        "begins or ends with a blank"
    } else if name.chars().count() > LONGEST_NAME {
        "is too long"
    } else if name.contains('/') || name.chars().any(char::is_control) {
        "holds a slash or a control character"
    } else {
        return Ok(());
    };
    Err(AppError::invalid(format!(
        "the name \"{}\" of a template {wrong}: at most {LONGEST_NAME} characters, without slashes",
        name.escape_debug()
    )))
}

/// The row of a template that may be stored.
async fn checked(actor: &Actor, new: NewTemplate) -> AppResult<TemplateRow> {
    actor.require(Permission::Create, Kind::Template, "change templates")?;
    let owner = actor.user().id;
    check_name(&new.name)?;
    let config = Value::Object(new.config);
    require_real_secrets(&config)?;
    let text = config.to_string();
    let source = Source::layer(Layer::Template(new.name.clone()));
    let (long, document) = (takes_long(&text), text.clone());
    offload(long, move || Template::parse(Some(source), &document))
        .await?
        .map_err(|errors| crate::app::documents::document_error("the template", &errors))?;
    let now = det_store::now();
    Ok(TemplateRow {
        name: new.name,
        workspace_id: new.workspace_id.unwrap_or(UNCATEGORIZED_WORKSPACE),
        owner_id: owner,
        config: text,
        created_at: now,
        modified_at: now,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_plain_line() {
        for good in ["base", "gpu 8x", "über-1.2_a"] {
            check_name(good).unwrap();
        }
        let long = "x".repeat(LONGEST_NAME + 1);
        for (bad, why) in [
            ("", "is blank"),
            (" base", "begins or ends"),
            ("a/b", "slash"),
            ("a\nb", "control"),
            (long.as_str(), "too long"),
        ] {
            let error = check_name(bad).unwrap_err();
            assert!(error.message.contains(why), "{}", error.message);
        }
    }
}
