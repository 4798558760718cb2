//! Namespaces of workspaces in the clusters of resource managers. Whose work runs where, with which service accounts and secrets in reach, and how much
//! of a cluster it may use, is for administrators; every user sees it.
//!
//! A binding is a row, which concerns what is placed later. The cluster is asked before it is stored whether work can run
//! there; what is to be made there follows from the rows, and the resource manager makes it.

use std::collections::{BTreeMap, BTreeSet};

use det_authz::{Kind, Permission};
use det_ids::WorkspaceId;
use det_lifecycle::record::{ActorName, EventKind};
use det_rm::{NamespaceRequest, namespace_fault};
use det_store::WriteTx;
use det_store::namespaces::{self, BindingRow};
use det_store::workspaces::WorkspaceRow;
use serde_json::{Value, json};

use super::{FieldErrors, HomeChanges};
use crate::app::cluster_access::ClusterAccess;
use crate::app::homes::{Homes, require_open_workspace};
use crate::app::managers::Managers;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// What only administrators may do.
const TO_BIND: &str = "bind workspaces to namespaces";
/// What only administrators may do.
const TO_LIMIT: &str = "limit the slots of workspaces";
/// Workspaces at most that one request gives namespaces.
const MOST_AT_ONCE: usize = 1000;

/// The namespace that a workspace is to have in a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceChoice {
    /// Name of a namespace that exists; `None` = see the fields below.
    pub namespace: Option<String>,
    /// Whether the master is to make one.
    pub auto_create: bool,
    /// Whether the master is to make one in each cluster.
    pub in_all_clusters: bool,
    /// The cluster, where the request names it beside the key of the choice.
    pub cluster_name: Option<String>,
    /// Most slots in use at once there; -1 = no limit, `None` = as it is.
    pub quota: Option<i64>,
}

/// Choices by name of the cluster; the empty name is the only one, or the main one.
pub type NamespaceChoices = BTreeMap<String, NamespaceChoice>;

/// What is to be stored for a cluster.
struct WantedBinding {
    cluster: String,
    /// `None` = the master makes one.
    namespace: Option<String>,
    /// See [`NamespaceChoice::quota`]; at most [`u32::MAX`].
    quota: Option<i64>,
}

/// Namespaces of workspaces as administrators bind them. Cheap to clone.
#[derive(Clone)]
pub struct WorkspaceNamespaces {
    managers: Managers,
    changes: HomeChanges,
    clusters: ClusterAccess,
}

impl WorkspaceNamespaces {
    /// Puts the service together.
    pub(crate) fn new(managers: Managers, changes: HomeChanges, clusters: ClusterAccess) -> Self {
        Self {
            managers,
            changes,
            clusters,
        }
    }

    /// The names of the clusters that have namespaces, the main manager's first.
    pub(crate) fn cluster_names(&self) -> Vec<String> {
        let managers = self.managers.list();
        let with_namespaces = managers.iter().filter(|it| it.namespaces.is_some());
        with_namespaces.map(|it| it.name.clone()).collect()
    }

    /// The namespace of work in a cluster whose workspace is not bound there.
    pub(crate) fn default_of(&self, cluster: &str) -> String {
        let managers = self.managers.list();
        let manager = managers.iter().find(|it| it.name == cluster);
        let configured = manager.and_then(|it| it.namespaces.as_ref()?.default.clone());
        let name = configured.or_else(|| self.clusters.default_of(cluster));
        name.unwrap_or_else(|| "default".to_owned())
    }

    /// The limits of workspaces in a cluster, as its quotas leave them, those of others included.
    pub(crate) fn limit(&self, cluster: &str, binding: &BindingRow) -> Option<u32> {
        let stored = binding.quota;
        let stored = stored.map(|most| u32::try_from(most).unwrap_or(u32::MAX));
        let reported = self.managers.limit_of(cluster, binding.workspace_id);
        [stored, reported].into_iter().flatten().min()
    }

    /// Refuses, before a workspace of this name is added, choices that could not be carried out for it.
    pub(crate) async fn require_possible(
        &self,
        actor: &Actor,
        name: &str,
        choices: &NamespaceChoices,
    ) -> AppResult<()> {
        actor.require(Permission::Administer, Kind::Workspace, TO_BIND)?;
        for wanted in self.resolve(choices.clone())? {
            self.check(&wanted, None, (name, WorkspaceId(0))).await?;
        }
        Ok(())
    }

    /// Binds a workspace. Returns its bindings in the clusters of the choices.
    pub async fn bind(
        &self,
        actor: &Actor,
        id: WorkspaceId,
        choices: NamespaceChoices,
    ) -> AppResult<Vec<BindingRow>> {
        actor.require(Permission::Administer, Kind::Workspace, TO_BIND)?;
        let mut wanted = self.resolve(choices)?;
        self.store_checked(actor, id, &mut wanted).await
    }

    /// Gives workspaces namespaces of their own in every cluster where they have none.
    pub async fn make_for_all(&self, actor: &Actor, ids: BTreeSet<WorkspaceId>) -> AppResult<()> {
        actor.require(Permission::Administer, Kind::Workspace, TO_BIND)?;
        if ids.len() > MOST_AT_ONCE {
            let text = format!(
                "{} workspaces are named, at most {MOST_AT_ONCE} are allowed at once",
                ids.len()
            );
            return Err(AppError::invalid(text));
        }
        let homes = self.changes.known();
        for id in &ids {
            require_open_workspace(homes.workspace(*id)?, "it cannot be bound")?;
        }
        for id in ids {
            let clusters = self.some_cluster()?.into_iter();
            let unbound = clusters.filter(|cluster| homes.binding(id, cluster).is_none());
            let mut wanted: Vec<WantedBinding> = unbound
                .map(|cluster| WantedBinding {
                    cluster,
                    namespace: None,
                    quota: None,
                })
                .collect();
            self.store_checked(actor, id, &mut wanted).await?;
        }
        Ok(())
    }

    /// Takes bindings of a workspace away. What runs goes on where it is.
    pub async fn unbind(
        &self,
        actor: &Actor,
        id: WorkspaceId,
        clusters: Vec<String>,
    ) -> AppResult<()> {
        actor.require(Permission::Administer, Kind::Workspace, TO_BIND)?;
        let clusters = if clusters.is_empty() {
            vec![String::new()]
        } else {
            clusters
        };
        let homes = self.changes.known();
        let row = homes.workspace(id)?;
        let mut named = BTreeSet::new();
        for cluster in clusters {
            // A cluster that is not configured any more may have left bindings.
            let cluster = if homes.binding(id, &cluster).is_some() {
                cluster
            } else {
                self.cluster(&cluster).map_err(AppError::invalid)?
            };
            if homes.binding(id, &cluster).is_none() {
                return Err(AppError::precondition(format!(
                    "workspace \"{}\" is not bound to a namespace in cluster \"{cluster}\"",
                    row.name
                ))
                .hint("the default namespace, which work without a binding runs in, cannot be taken away"));
            }
            named.insert(cluster);
        }
        let actor = actor.name();
        self.changes
            .write(self.clone(), move |service, tx, homes| {
                Box::pin(async move {
                    let row = homes.workspace(id)?;
                    for cluster in &named {
                        namespaces::unbind(&mut tx.conn(), id, cluster).await?;
                    }
                    let detail = named.iter().map(|cluster| (cluster.clone(), Value::Null));
                    service.record(tx, &actor, row, detail.collect()).await
                })
            })
            .await
    }

    /// Limits the slots of a workspace in clusters, in the namespaces that the master makes for it there.
    pub async fn set_quotas(
        &self,
        actor: &Actor,
        id: WorkspaceId,
        quotas: BTreeMap<String, i64>,
    ) -> AppResult<()> {
        actor.require(Permission::Administer, Kind::Workspace, TO_LIMIT)?;
        let homes = self.changes.known();
        let row = homes.workspace(id)?;
        let mut choices = NamespaceChoices::new();
        for (cluster, quota) in quotas {
            let name = self.cluster(&cluster).map_err(AppError::invalid)?;
            if !homes.binding(id, &name).is_some_and(|row| row.auto_create) {
                return Err(AppError::precondition(format!(
                    "workspace \"{}\" has no namespace of its own in cluster \"{name}\", whose quota could be set",
                    row.name
                ))
                .hint(format!(
                    "have one made with `det workspace bindings set \"{0}\" --auto-create-namespace`, set a ResourceQuota \
                     in the namespace by hand, or limit all work in the workspace with `det workspace edit \"{0}\" \
                     --max-slots N`",
                    row.name
                )));
            }
            let choice = NamespaceChoice {
                auto_create: true,
                quota: Some(quota),
                ..NamespaceChoice::default()
            };
            choices.insert(cluster, choice);
        }
        let mut wanted = self.resolve(choices)?;
        self.store_checked(actor, id, &mut wanted).await?;
        Ok(())
    }

    /// Whether the cluster of a name has namespaces; the empty name is the main one.
    pub(crate) fn has_namespaces(&self, cluster: &str) -> bool {
        let managers = self.managers.list();
        let found = match cluster {
            "" => managers.first(),
            name => managers.iter().find(|it| it.name == name),
        };
        found.is_some_and(|it| it.namespaces.is_some())
    }

    /// The clusters that have namespaces, of which there must be one.
    fn some_cluster(&self) -> AppResult<Vec<String>> {
        let clusters = self.cluster_names();
        if clusters.is_empty() {
            return Err(AppError::precondition(
                "no resource manager of this master is a Kubernetes cluster, and others have no namespaces",
            )
            .hint("a limit of slots needs no namespace: `det workspace edit WORKSPACE --max-slots N`"));
        }
        Ok(clusters)
    }

    /// The cluster with namespaces that a request names, or why there is none. Users know such clusters as Kubernetes.
    fn cluster(&self, given: &str) -> Result<String, String> {
        let names = self.cluster_names();
        let known = || format!("the Kubernetes clusters are: {}", names.join(", "));
        match (given, names.as_slice()) {
            (_, []) => Err("this master has no Kubernetes cluster".to_owned()),
            ("", [only]) => Ok(only.clone()),
            ("", [main, ..]) if self.has_namespaces("") => Ok(main.clone()),
            ("", _) => Err(format!("the cluster must be named; {}", known())),
            (name, names) if names.iter().any(|it| it == name) => Ok(name.to_owned()),
            (name, _) => Err(format!(
                "\"{}\" is no Kubernetes cluster; {}",
                name.escape_debug(),
                known()
            )),
        }
    }

    /// What choices come to, one for each cluster.
    fn resolve(&self, choices: NamespaceChoices) -> AppResult<Vec<WantedBinding>> {
        let all = self.some_cluster()?;
        let mut errors = FieldErrors::default();
        let mut by_cluster: BTreeMap<String, WantedBinding> = BTreeMap::new();
        for (key, choice) in choices {
            let field = format!("clusterNamespaceMeta[\"{}\"]", key.escape_debug());
            let given = choice.cluster_name.as_deref().filter(|it| !it.is_empty());
            let given = given.unwrap_or(&key);
            let ways = [
                choice.namespace.is_some(),
                choice.auto_create,
                choice.in_all_clusters,
            ];
            if ways.iter().filter(|way| **way).count() != 1 {
                errors.add(
                    &field,
                    "must have one of: namespace, autoCreateNamespace, autoCreateNamespaceAllClusters",
                );
                continue;
            }
            if choice.in_all_clusters && !given.is_empty() {
                errors.add(&field, "must name no cluster, where all are meant");
            }
            if choice.namespace.is_some() && choice.quota.is_some() {
                errors.add(
                    &field,
                    "sets a quota in a namespace that exists: only those that the master makes have one of its",
                );
            }
            if let Some(fault) = choice.namespace.as_deref().and_then(namespace_fault) {
                errors.add(&format!("{field}.namespace"), fault);
            }
            if let Some(slots) = choice.quota {
                errors.limit(&format!("{field}.resourceQuota"), slots);
            }
            let clusters = if choice.in_all_clusters {
                all.clone()
            } else {
                match self.cluster(given) {
                    Ok(cluster) => vec![cluster],
                    Err(why) => {
                        errors.add(&field, why);
                        continue;
                    }
                }
            };
            for cluster in clusters {
                let wanted = WantedBinding {
                    cluster: cluster.clone(),
                    namespace: choice.namespace.clone(),
                    quota: choice.quota,
                };
                if by_cluster.insert(cluster, wanted).is_some() {
                    errors.add(&field, "names a cluster that is named twice");
                }
            }
        }
        errors.refuse("the namespaces")?;
        Ok(by_cluster.into_values().collect())
    }

    /// Asks the cluster whether work can run in the namespace; returns its name. `known` = that which was made for the
    /// workspace before.
    async fn check(
        &self,
        wanted: &WantedBinding,
        known: Option<&str>,
        workspace: (&str, WorkspaceId),
    ) -> AppResult<String> {
        let namespace = match (&wanted.namespace, known) {
            (Some(namespace), _) => namespace.clone(),
            (None, Some(made)) => made.to_owned(),
            (None, None) => self.clusters.name_for(&wanted.cluster, workspace)?,
        };
        let homes = self.changes.known();
        let others = homes.bound_to(&wanted.cluster, &namespace);
        let shared = others.into_iter().any(|other| other != workspace.1);
        let request = NamespaceRequest {
            manager: wanted.cluster.clone(),
            namespace,
            shared,
            made: wanted.namespace.is_none(),
            quota: wanted.quota.and_then(|slots| u32::try_from(slots).ok()),
        };
        self.clusters.check(&request).await?;
        Ok(request.namespace)
    }

    /// Stores bindings once their clusters have been asked, and has made what is to be made.
    async fn store_checked(
        &self,
        actor: &Actor,
        id: WorkspaceId,
        wanted: &mut [WantedBinding],
    ) -> AppResult<Vec<BindingRow>> {
        let homes = self.changes.known();
        let row = homes.workspace(id)?;
        require_open_workspace(row, "it cannot be bound")?;
        let mut rows = Vec::new();
        for wanted in wanted.iter() {
            // In another cluster the one that is made has the same name.
            let known = homes.made_for(id).map(str::to_owned);
            let known = known.or_else(|| first_made(&rows));
            let namespace = self
                .check(wanted, known.as_deref(), (&row.name, id))
                .await?;
            let before = homes.binding(id, &wanted.cluster);
            let before = before.filter(|row| row.auto_create && wanted.namespace.is_none());
            rows.push(BindingRow {
                workspace_id: id,
                cluster_name: wanted.cluster.clone(),
                namespace,
                auto_create: wanted.namespace.is_none(),
                quota: match wanted.quota {
                    Some(slots) => Some(slots).filter(|slots| *slots >= 0),
                    None => before.and_then(|row| row.quota),
                },
            });
        }
        if rows.is_empty() {
            return Ok(rows);
        }
        self.store(actor, id, rows.clone()).await?;
        let made = rows.iter().filter(|row| row.auto_create);
        for row in made {
            let carried_out = self
                .clusters
                .carry_out(&row.cluster_name, &row.namespace)
                .await;
            carried_out.map_err(|error| {
                let text = format!(
                    "the workspace is bound to namespace \"{}\" of cluster \"{}\", which is not as wanted yet: {error}",
                    row.namespace, row.cluster_name
                );
                AppError::new(error.kind, text).hint("the master goes on trying; its log has what it tries")
            })?;
        }
        Ok(rows)
    }

    async fn store(&self, actor: &Actor, id: WorkspaceId, rows: Vec<BindingRow>) -> AppResult<()> {
        let actor = actor.name();
        self.changes
            .write(self.clone(), move |service, tx, homes: Homes| {
                Box::pin(async move {
                    let workspace = homes.workspace(id)?;
                    require_open_workspace(workspace, "it cannot be bound")?;
                    let news: Vec<&BindingRow> = rows
                        .iter()
                        .filter(|row| homes.binding(id, &row.cluster_name) != Some(*row))
                        .collect();
                    if news.is_empty() {
                        return Ok(());
                    }
                    let mut detail = serde_json::Map::new();
                    for row in news {
                        namespaces::bind(&mut tx.conn(), row).await?;
                        let shown = json!({"namespace": row.namespace, "autoCreate": row.auto_create, "quota": row.quota});
                        detail.insert(row.cluster_name.clone(), shown);
                    }
                    service.record(tx, &actor, workspace, detail).await
                })
            })
            .await
    }

    async fn record(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        row: &WorkspaceRow,
        namespaces: serde_json::Map<String, Value>,
    ) -> AppResult<()> {
        let detail = Some(json!({"namespaces": namespaces}));
        self.changes
            .record_workspace(tx, actor, EventKind::Changed, row, detail)
            .await
    }
}

/// The name of a namespace that is made, among bindings.
fn first_made(rows: &[BindingRow]) -> Option<String> {
    let mut made = rows.iter().filter(|row| row.auto_create);
    made.next().map(|row| row.namespace.clone())
}
