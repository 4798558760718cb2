//! Checking a launch: its document completed, and held against what this cluster has.

use det_authz::{Kind, Permission, Target};
use det_config::errors::{ConfigError, ConfigErrors};
use det_config::origin::{Layer, Source};
use det_config::policies::{Policies, Workload};
use det_config::secrets::MASK;
use det_config::submitted::{SubmittedTask, TaskDefaults};
use det_config::task::{LaunchKind, TaskConfig, mask_task_for_others};
use det_ids::{TaskId, WorkspaceId};
use det_store::archives::{self, ArchiveOf};
use det_store::task_documents;
use det_store::workspaces::UNCATEGORIZED_WORKSPACE;
use serde_json::Value;

use super::{LaunchRequest, Launches, shell};
use crate::app::admission::Findings;
use crate::app::admission::classes::priority_limit;
use crate::app::documents::{
    check_capabilities, check_variables, document_error, require_real_secrets, require_storable,
    takes_long, warning_of_variables,
};
use crate::app::existing;
use crate::app::generated_name::generated;
use crate::app::homes::require_open_workspace;
use crate::app::offload;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use det_taskspec::TaskKind;

/// A launch that nothing speaks against.
pub(super) struct CheckedLaunch {
    pub(super) config: TaskConfig,
    pub(super) workspace_id: WorkspaceId,
    pub(super) warnings: Vec<String>,
    pub(super) slots_exceeded: bool,
}

/// What a launch begins with: the task that it is forked from, or whose files it inherits.
pub(super) struct Base {
    /// The configuration to lay it over.
    config: Option<Value>,
    /// The task whose files it gets, unless it brings its own; `None` = that one has none.
    pub(super) archive_of: Option<TaskId>,
    workspace_id: WorkspaceId,
}

fn refused(kind: LaunchKind, errors: &ConfigErrors) -> AppError {
    document_error(
        &format!(
            "the configuration of the {}",
            TaskKind::from(kind).task_noun()
        ),
        errors,
    )
}

impl Launches {
    /// Loads what a launch begins with, for an actor who may use it; `None` = it begins with nothing.
    pub(super) async fn base(
        &self,
        actor: &Actor,
        request: &LaunchRequest,
    ) -> AppResult<Option<Base>> {
        let generic = &request.generic;
        if let Some(source) = &generic.forked_from {
            return self.base_of(actor, source, true).await.map(Some);
        }
        match &generic.parent {
            Some(parent) if generic.inherit_context => {
                self.base_of(actor, parent, false).await.map(Some)
            }
            _ if generic.inherit_context => Err(AppError::invalid(
                "field \"inheritContext\" asks for the files of a parent, and field \"parentId\" names none",
            )),
            _ => Ok(None),
        }
    }

    async fn base_of(&self, actor: &Actor, id: &TaskId, forked: bool) -> AppResult<Base> {
        let mut conn = self.context.store.read().await?;
        let conn = &mut conn.conn();
        let task = existing::task(conn, id).await?;
        self.ownership.require_files(actor, &task)?;
        let job = existing::job(conn, &task.job_id).await?;
        let Some(document) = task_documents::find(conn, id).await? else {
            return Err(AppError::invalid(format!(
                "task \"{id}\" is a trial's: it has no configuration of its own to begin with"
            )));
        };
        let config: Value = serde_json::from_str(&document.config).map_err(AppError::internal)?;
        let target = Target::of(Kind::Task).owned_by(task.owner_id);
        let config = if actor.may(Permission::UseSecrets, &target) {
            config
        } else {
            mask_task_for_others(&config)
        };
        Ok(Base {
            config: forked.then_some(config),
            archive_of: archives::size(conn, &ArchiveOf::Task(id.clone()))
                .await?
                .map(|_| id.clone()),
            workspace_id: job.workspace_id,
        })
    }

    /// Parses, completes and checks a launch against the cluster. `under`: what its templates are laid over, with a name.
    pub(super) async fn check(
        &self,
        request: &LaunchRequest,
        base: Option<&Base>,
        under: Option<(String, String)>,
    ) -> AppResult<CheckedLaunch> {
        let kind = request.kind;
        let homes = self.homes.get();
        let of_project = match request.generic.project_id {
            Some(id) => Some(homes.require_open(id)?.1.id),
            None => None,
        };
        let of_base = base.map(|base| base.workspace_id);
        let workspace_id = request.workspace_id.or(of_project).or(of_base);
        let workspace = homes.workspace(workspace_id.unwrap_or(UNCATEGORIZED_WORKSPACE))?;
        require_open_workspace(workspace, "nothing can be launched there")?;
        let (submitted, has_others_image) = self.layered(request, base, under).await?;
        let policies = self.policies.over(workspace.id, Workload::Tasks).await?;
        let mut findings = Findings {
            warnings: submitted.warnings.iter().map(ToString::to_string).collect(),
            ..Findings::default()
        };
        let governed = submitted.under(&policies);
        let mut placement = governed.placement();
        placement.names_image &= !has_others_image;
        let replaced = governed.replaced();
        findings
            .warnings
            .extend(replaced.iter().map(ToString::to_string));
        let admitted = self
            .admission
            .admit(&placement, workspace, governed.size(), &mut findings)
            .await?;
        let pool = admitted.pools.first().cloned().unwrap_or_default();
        let errors = governed.placed(std::mem::take(&mut findings.errors));
        let limit = priority_limit(&policies);
        let has_context =
            !request.files.is_empty() || base.is_some_and(|base| base.archive_of.is_some());
        let completed = self
            .complete(submitted, policies, &pool, has_context)
            .await?;
        let mut config = match completed {
            Ok(config) if errors.is_empty() => config,
            completed => {
                let mut all = completed.err().map_or_else(Vec::new, |errors| errors.0);
                all.extend(errors);
                return Err(refused(kind, &ConfigErrors::together(all)));
            }
        };
        config.resources.resource_pool = pool;
        let document = config.to_json();
        if document.to_string().contains(MASK) {
            require_real_secrets(&document)?;
        }
        check_variables(&config.environment)?;
        check_capabilities(&config.environment)?;
        findings.warnings.extend(warning_of_variables(
            &config.environment.environment_variables,
        ));
        require_storable(&document.to_string())?;
        if kind == LaunchKind::Shell {
            let wanted = self.context.config();
            findings
                .warnings
                .extend(shell::warning_of_key(wanted.security.ssh_key_type()));
        }
        if kind != LaunchKind::Generic && config.preemptible == Some(true) {
            findings.warnings.push(starts_over(&config));
        }
        if let Some(class) = &placement.priority_class {
            let pool = &config.resources.resource_pool;
            let of_class = self.admission.priority_of_class(class, pool, limit).await;
            findings.warnings.extend(of_class.warning);
            config.resources.priority = of_class.priority.or(config.resources.priority);
        }
        Ok(CheckedLaunch {
            config,
            workspace_id: workspace.id,
            warnings: findings.warnings,
            slots_exceeded: admitted.slots_exceeded,
        })
    }

    /// The document over its templates, and over the configuration that it begins with; and whether its image is the one of
    /// that: since that is complete, it may be the cluster's.
    async fn layered(
        &self,
        request: &LaunchRequest,
        base: Option<&Base>,
        under: Option<(String, String)>,
    ) -> AppResult<(SubmittedTask, bool)> {
        let (kind, text) = (request.kind, request.config.clone());
        let long = takes_long(&text);
        let own = offload(long, move || SubmittedTask::read(kind, &text)).await?;
        let own = own.map_err(|errors| refused(kind, &errors))?;
        let forked = base.and_then(|base| base.config.clone());
        let mut has_others_image = false;
        let own = match forked {
            // As clients expect of a fork, each key of the top level is its own or the other's.
            Some(mut config) => {
                let given = own.to_value();
                has_others_image = given.get("environment").is_none();
                if let (Value::Object(config), Value::Object(given)) = (&mut config, given) {
                    config.extend(given);
                }
                let source = Source::layer(Layer::Document);
                let mut whole = SubmittedTask::of_layer(kind, source, &config);
                whole.warnings.extend(own.warnings);
                whole
            }
            None => own,
        };
        let under = under.map(|(name, text)| (name, String::new(), text));
        if request.templates.is_empty() && under.is_none() {
            return Ok((own, has_others_image));
        }
        let named = match request.templates.as_slice() {
            [] => Ok(Vec::new()),
            names => self.templates.texts(names).await,
        };
        match named.map(|named| under.into_iter().chain(named).collect::<Vec<_>>()) {
            Ok(templates) => offload(true, move || own.over_templates(&templates))
                .await?
                .map(|whole| (whole, has_others_image))
                .map_err(|errors| refused(kind, &errors)),
            // What is wrong in the document itself is reported with it.
            Err(missing) => match own.checked() {
                Ok(_) => Err(missing),
                Err(errors) => {
                    let mut first = ConfigError::new("", None, missing.message);
                    first.hint = missing.hint;
                    let all = std::iter::once(first).chain(errors.0).collect();
                    Err(refused(kind, &ConfigErrors::together(all)))
                }
            },
        }
    }

    async fn complete(
        &self,
        submitted: SubmittedTask,
        policies: Vec<Policies>,
        pool: &str,
        has_context: bool,
    ) -> AppResult<Result<TaskConfig, ConfigErrors>> {
        let container_defaults = self.pools.container_defaults(pool);
        let default_priority = Some(self.pools.default_priority(pool));
        let order = self.pools.priority_order(pool);
        offload(true, move || {
            let defaults = TaskDefaults {
                description: generated(submitted.kind().title()),
                task_container_defaults: &container_defaults,
                default_priority,
                has_context,
            };
            let policies = Policies::all_with_order(policies, order);
            submitted.under(&policies).complete(&defaults)
        })
        .await
    }
}

/// What the owner of a preemptible service is to know.
fn starts_over(config: &TaskConfig) -> String {
    let kept = if config.bind_mounts.is_empty() {
        "and nothing that it has written is kept, since \"bind_mounts\" mount no directory"
    } else {
        "and what it has written is kept below \"bind_mounts\" only"
    };
    format!(
        "\"preemptible\" lets more important work take its slots: then it is ended and started again from its beginning, {kept}"
    )
}
