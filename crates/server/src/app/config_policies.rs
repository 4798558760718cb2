//! Policies that administrators lay over configurations, of the cluster and of workspaces: invariants, which no document
//! can change, and constraints, which the result must keep.

use det_authz::{Kind, Permission, Target};
use det_config::errors::{ConfigError, ConfigErrors};
use det_config::policies::{Policies, Workload, fixed_pool};
use det_config::yaml;
use det_ids::WorkspaceId;
use det_lifecycle::record::{EventKind, Subject};
use det_store::config_policies::{self, ConfigPolicyRow, PolicyWorkload};
use det_store::events::NewEvent;
use det_store::experiments::JobRow;
use serde_json::{Map, Value, json};

use crate::app::context::Context;
use crate::app::documents::{document_error, masked_for, require_real_secrets};
use crate::app::homes::{Homes, KnownHomes, require_unarchived_workspace};
use crate::app::pools::Pools;
use crate::app::queue_entry::JobChange;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};

/// The workspace or the cluster that policies belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Policies of the cluster, which bind the work in every workspace.
    Cluster,
    /// Policies of this workspace, which bind the work in it.
    Workspace(WorkspaceId),
}

impl Scope {
    fn stored(self) -> WorkspaceId {
        match self {
            Self::Cluster => config_policies::CLUSTER,
            Self::Workspace(id) => id,
        }
    }

    /// Fails when it is a workspace that is put away, or is not there any more.
    fn require_unarchived(self, homes: &Homes) -> AppResult<()> {
        match self {
            Self::Cluster => Ok(()),
            Self::Workspace(id) => {
                require_unarchived_workspace(homes.workspace(id)?, "its policies cannot be changed")
            }
        }
    }

    /// The name of it in error messages. Errs when there is no such workspace.
    fn name(self, homes: &Homes) -> AppResult<String> {
        Ok(match self {
            Self::Cluster => "the cluster".to_owned(),
            Self::Workspace(id) => format!("workspace \"{}\"", homes.workspace(id)?.name),
        })
    }
}

fn stored_workload(workload: Workload) -> PolicyWorkload {
    match workload {
        Workload::Experiment => PolicyWorkload::Experiment,
        Workload::Tasks => PolicyWorkload::Ntsc,
    }
}

/// The kind of work that an address names.
pub fn workload(text: &str) -> AppResult<Workload> {
    match text.to_ascii_uppercase().as_str() {
        "EXPERIMENT" => Ok(Workload::Experiment),
        "NTSC" => Ok(Workload::Tasks),
        _ => Err(AppError::invalid(format!(
            "\"{}\" is no kind of work that has policies: it must be EXPERIMENT or NTSC (notebooks, TensorBoards, shells and commands)",
            text.escape_debug()
        ))),
    }
}

/// Policies of workspaces and of the cluster over configurations. Cheap to clone.
#[derive(Clone)]
pub struct ConfigPolicies {
    context: Context,
    homes: KnownHomes,
    pools: Pools,
}

impl ConfigPolicies {
    /// Puts the service together.
    pub(crate) fn new(context: Context, homes: KnownHomes, pools: Pools) -> Self {
        Self {
            context,
            homes,
            pools,
        }
    }

    /// The policies of a scope for showing; empty when there are none. Secrets are hidden, and from others than
    /// administrators variables that look like it.
    pub async fn get(
        &self,
        actor: &Actor,
        scope: Scope,
        workload: Workload,
    ) -> AppResult<Map<String, Value>> {
        actor.require(Permission::Read, Kind::ConfigPolicy, "read config policies")?;
        scope.name(&self.homes.get())?;
        Ok(match self.stored(scope, workload).await? {
            Some(document) => shown(document, actor),
            None => Map::new(),
        })
    }

    /// Stores the policies of a scope, in place of those there were. What exists already stays as it is.
    pub async fn set(
        &self,
        actor: &Actor,
        scope: Scope,
        workload: Workload,
        text: &str,
    ) -> AppResult<Map<String, Value>> {
        actor.require(
            Permission::Administer,
            Kind::ConfigPolicy,
            "set config policies",
        )?;
        let scope_name = scope.name(&self.homes.get())?;
        if text.trim().is_empty() {
            return Err(AppError::invalid(
                "field \"configPolicies\" is missing: the policies, as YAML or JSON text",
            ));
        }
        let policies = Policies::parse(workload, &scope_name, None, text)
            .map_err(|errors| unusable(&errors))?;
        let pool = fixed_pool(std::slice::from_ref(&policies));
        self.require_known_pools(&policies)?;
        let order = self.pools.priority_order_of_policies(pool.as_deref());
        let consistent = policies.with_order(order).check_priority();
        consistent.map_err(|errors| unusable(&errors))?;
        let document = yaml::parse(text)
            .map_err(|errors| unusable(&errors))?
            .to_value();
        require_real_secrets(&document)?;
        let row = ConfigPolicyRow {
            workspace_id: scope.stored(),
            workload: stored_workload(workload),
            document: document.to_string(),
            modified_at: det_store::now(),
        };
        let (service, name) = (self.clone(), actor.name());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    scope.require_unarchived(&Homes::load(&mut tx.conn()).await?)?;
                    config_policies::set(&mut tx.conn(), &row).await?;
                    let event = NewEvent::new(
                        &name,
                        Subject::ConfigPolicies(row.workspace_id, row.workload),
                        EventKind::Changed,
                    );
                    service.context.record(tx, event).await?;
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        Ok(shown(document, actor))
    }

    /// Removes the policies of a scope.
    pub async fn delete(&self, actor: &Actor, scope: Scope, workload: Workload) -> AppResult<()> {
        actor.require(
            Permission::Administer,
            Kind::ConfigPolicy,
            "delete config policies",
        )?;
        scope.name(&self.homes.get())?;
        let (service, actor) = (self.clone(), actor.name());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    scope.require_unarchived(&Homes::load(&mut tx.conn()).await?)?;
                    let (id, kind) = (scope.stored(), stored_workload(workload));
                    if !config_policies::delete(&mut tx.conn(), id, kind).await? {
                        return Ok(());
                    }
                    let event = NewEvent::new(
                        &actor,
                        Subject::ConfigPolicies(id, kind),
                        EventKind::Deleted,
                    );
                    service.context.record(tx, event).await?;
                    Ok::<_, AppError>(())
                })
            })
            .await
    }

    /// The policies that are laid over work in a workspace, the weakest first.
    pub(crate) async fn over(
        &self,
        workspace_id: WorkspaceId,
        workload: Workload,
    ) -> AppResult<Vec<Policies>> {
        let homes = self.homes.get();
        let mut all = Vec::new();
        for scope in [Scope::Workspace(workspace_id), Scope::Cluster] {
            if let Some(document) = self.stored(scope, workload).await? {
                let policies = Policies::from_value(workload, &scope.name(&homes)?, &document);
                all.push(policies.map_err(|errors| unusable(&errors))?);
            }
        }
        Ok(all)
    }

    /// Refuses a change of a job's resources that its policies do not allow.
    pub(crate) async fn require_allowed(
        &self,
        job: &JobRow,
        workload: Workload,
        change: &JobChange,
    ) -> AppResult<()> {
        let (path, value) = match change {
            JobChange::Priority(priority) => ("resources.priority", json!(priority)),
            JobChange::Weight(weight) => ("resources.weight", json!(weight)),
            JobChange::MaxSlots(slots) => ("resources.max_slots", json!(slots)),
            JobChange::ResourcePool(pool) => ("resources.resource_pool", json!(pool)),
            JobChange::Move(..) => return Ok(()),
        };
        let policies = self
            .require_unfixed(job.workspace_id, workload, path, &value)
            .await?;
        let refused = |scope: &str, why: String| locked(workload, path, &value, scope, &why);
        // The last policy that has a limit has it.
        let limits = || policies.iter().rev();
        match change {
            JobChange::Priority(priority) => {
                let limit = limits().find_map(|p| Some((p, p.constraints.priority_limit?)));
                let order = self.pools.priority_order(&job.resource_pool);
                if let Some((policy, limit)) = limit
                    && order.goes_before(*priority, limit)
                {
                    let range = order.range_from(limit);
                    return Err(refused(&policy.scope, format!("allow {range} ({order})")));
                }
            }
            JobChange::MaxSlots(slots) => {
                let limit = limits().find_map(|p| Some((p, p.constraints.max_slots?)));
                if let Some((policy, limit)) = limit
                    && slots.is_none_or(|slots| slots > i64::from(limit))
                {
                    return Err(refused(
                        &policy.scope,
                        format!("allow {limit} slots at most"),
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Refuses a change of an experiment's key to which its policies give another value. Gives the policies.
    pub(crate) async fn require_unfixed(
        &self,
        workspace_id: WorkspaceId,
        workload: Workload,
        path: &str,
        value: &Value,
    ) -> AppResult<Vec<Policies>> {
        let policies = self.over(workspace_id, workload).await?;
        let fixing = |policies: &Policies| {
            let fixed = policies.fixes_otherwise(path, value)?;
            let why = format!("fix it to {fixed}");
            Some(locked(workload, path, value, &policies.scope, &why))
        };
        match policies.iter().rev().find_map(fixing) {
            Some(refusal) => Err(refusal),
            None => Ok(policies),
        }
    }

    /// Refuses policies that fix a pool in which nothing can run: every submission under them would be refused.
    fn require_known_pools(&self, policies: &Policies) -> AppResult<()> {
        let errors: Vec<ConfigError> = policies
            .pools()
            .into_iter()
            .filter_map(|(path, pool)| {
                let why = self.pools.unusable(&pool)?;
                let message = format!("pool \"{}\" {why}", pool.escape_debug());
                let known = self.pools.serving().join(", ");
                let error = ConfigError::new(path, None, message);
                Some(error.with_hint(format!("choose one of: {known}")))
            })
            .collect();
        if errors.is_empty() {
            return Ok(());
        }
        Err(unusable(&ConfigErrors::together(errors)))
    }

    async fn stored(&self, scope: Scope, workload: Workload) -> AppResult<Option<Value>> {
        let row = {
            let mut conn = self.context.store.read().await?;
            let kind = stored_workload(workload);
            config_policies::find(&mut conn.conn(), scope.stored(), kind).await?
        };
        row.map(|row| serde_json::from_str(&row.document).map_err(AppError::internal))
            .transpose()
    }
}

/// The refusal of a value that policies do not allow.
pub(crate) fn locked(
    workload: Workload,
    path: &str,
    value: &Value,
    scope: &str,
    why: &str,
) -> AppError {
    let described = match workload {
        Workload::Experiment => "experiment",
        Workload::Tasks => "tasks",
    };
    AppError::new(
        ErrorKind::Forbidden,
        format!("{path} cannot be {value}: the policies of {scope} {why}"),
    )
    .hint(format!(
        "`det config-policies describe {described}` shows them; administrators change them"
    ))
}

fn unusable(errors: &ConfigErrors) -> AppError {
    document_error("the policies", errors)
}

/// Policies as `actor` may see them: secrets are hidden, and variables too from those who may not read them.
fn shown(mut document: Value, actor: &Actor) -> Map<String, Value> {
    let keeps_it = actor.may(Permission::ReadUnmasked, &Target::of(Kind::ConfigPolicy));
    if let Some(invariants) = document.get_mut("invariant_config") {
        *invariants = masked_for(keeps_it, invariants);
    }
    match document {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}
