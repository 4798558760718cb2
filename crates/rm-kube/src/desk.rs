//! What the master asks about the namespaces of clusters: whether work can run there, and that what rows want of them is
//! done now.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use det_ids::{ClusterId, WorkspaceId};
use det_pods::{SlotResource, is_made, is_terminating, least_slots, made_namespace_name};
use det_rm::{ClassValue, NamespaceAccess, NamespaceError, NamespaceRequest};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::api::{ApiError, Kind, KubeApi};

/// What pods of the master's tasks need in a namespace: verbs with kinds of objects.
const NEEDED: [(&str, Kind); 9] = [
    ("create", Kind::Job),
    ("delete", Kind::Job),
    ("create", Kind::Secret),
    ("get", Kind::Secret),
    ("patch", Kind::Secret),
    ("delete", Kind::Secret),
    ("create", Kind::Service),
    ("patch", Kind::Pod),
    ("delete", Kind::Pod),
];
/// What to do where the master may not do something with namespaces.
const GRANT: &str = "grant it, with Helm by `rbac.workspaceBindings: true` (docs/kubernetes.md, \"Workspaces and namespaces\")";

/// Has what rows want of a namespace done.
pub(crate) struct DeskRequest {
    pub(crate) namespace: String,
    /// Is sent what has failed of it, or that nothing is known of the cluster.
    pub(crate) answer: oneshot::Sender<Result<(), String>>,
}

/// The namespaces of a master's clusters, as far as they are connected. Cheap to clone.
#[derive(Clone, Default)]
pub struct ClusterNamespaces {
    /// By name of the manager.
    desks: Arc<Mutex<BTreeMap<String, Desk>>>,
}

/// A connected cluster, as far as its namespaces are concerned.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) api: KubeApi,
    pub(crate) cluster_id: ClusterId,
    pub(crate) slots: SlotResource,
    /// Namespace of tasks whose workspace and pool have none.
    pub(crate) default: String,
    pub(crate) carry_out: mpsc::Sender<DeskRequest>,
    /// Whether the master alone decides when pods start, so that its queue goes by their classes.
    pub(crate) goes_by_classes: bool,
}

impl ClusterNamespaces {
    /// Notes that the cluster of a manager can be asked about namespaces from now on.
    pub(crate) fn connected(&self, manager: &str, desk: Desk) {
        let mut desks = self.desks.lock().unwrap_or_else(PoisonError::into_inner);
        desks.insert(manager.to_owned(), desk);
    }

    fn desk(&self, manager: &str) -> Result<Desk, NamespaceError> {
        let desks = self.desks.lock().unwrap_or_else(PoisonError::into_inner);
        desks.get(manager).cloned().ok_or_else(|| {
            NamespaceError::Unavailable(format!(
                "resource manager \"{manager}\" has no access to its cluster yet"
            ))
        })
    }
}

impl NamespaceAccess for ClusterNamespaces {
    fn name_for(
        &self,
        manager: &str,
        workspace: (&str, WorkspaceId),
    ) -> Result<String, NamespaceError> {
        let desk = self.desk(manager)?;
        let release = desk.api.own_namespace();
        Ok(made_namespace_name(workspace, release, &desk.cluster_id))
    }

    fn default_of(&self, manager: &str) -> Option<String> {
        Some(self.desk(manager).ok()?.default)
    }

    async fn check(&self, request: &NamespaceRequest) -> Result<(), NamespaceError> {
        let desk = self.desk(&request.manager)?;
        let check = Check { desk, request };
        check.existence().await?;
        check.rights().await?;
        check.quotas().await
    }

    async fn carry_out(&self, manager: &str, namespace: &str) -> Result<(), NamespaceError> {
        let desk = self.desk(manager)?;
        let (sender, answer) = oneshot::channel();
        let request = DeskRequest {
            namespace: namespace.to_owned(),
            answer: sender,
        };
        let ended = || {
            NamespaceError::Unavailable(format!(
                "resource manager \"{manager}\" is being restarted"
            ))
        };
        desk.carry_out.send(request).await.map_err(|_| ended())?;
        let carried_out = answer.await.map_err(|_| ended())?;
        carried_out.map_err(NamespaceError::Unavailable)
    }

    async fn value_of_class(
        &self,
        manager: &str,
        class: &str,
    ) -> Result<ClassValue, NamespaceError> {
        let desk = self.desk(manager)?;
        if !desk.goes_by_classes {
            return Ok(ClassValue::Unused);
        }
        // What is no name is part of a path otherwise.
        if !is_object_name(class) {
            return Ok(ClassValue::Missing);
        }
        match desk.api.get(Kind::PriorityClass, ("", class)).await {
            Ok(found) => {
                // The API server completes it with 0.
                let value = found.get("value").and_then(Value::as_i64);
                Ok(ClassValue::Value(value.unwrap_or(0)))
            }
            Err(ApiError::Absent) => Ok(ClassValue::Missing),
            Err(error) => Err(NamespaceError::Unavailable(error.to_string())),
        }
    }
}

/// Whether a text can be the name of an object of Kubernetes: up to 253 lower-case letters, digits, `-` and `.`, the first and
/// the last one of them a letter or a digit.
fn is_object_name(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 253
        && text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(|c| is_end(c) || c == '-' || c == '.')
}

/// Whether tasks can run in a namespace.
struct Check<'a> {
    desk: Desk,
    request: &'a NamespaceRequest,
}

impl Check<'_> {
    fn refused(&self, what: &str, hint: String) -> NamespaceError {
        let NamespaceRequest {
            manager, namespace, ..
        } = self.request;
        NamespaceError::Refused {
            message: format!("namespace \"{namespace}\" of cluster \"{manager}\" {what}"),
            hint,
        }
    }

    fn failed(&self, error: &ApiError) -> NamespaceError {
        let manager = &self.request.manager;
        NamespaceError::Unavailable(format!("cluster \"{manager}\" cannot be asked: {error}"))
    }

    /// One that is to be made must not be another's; any other must exist.
    async fn existence(&self) -> Result<(), NamespaceError> {
        let name = &self.request.namespace;
        let found = self.desk.api.get(Kind::Namespace, ("", name)).await;
        match (found, self.request.made) {
            (Ok(found), _) if is_terminating(&found) => Err(self.refused(
                "is being deleted",
                "wait until it is gone, or choose another one".to_owned(),
            )),
            (Ok(found), true) if !is_made(&found, &self.desk.cluster_id) => Err(self.refused(
                "exists, and was not made by this master",
                "bind the workspace to it with `--namespace`, if that is meant".to_owned(),
            )),
            (Ok(_), _) | (Err(ApiError::Absent), true) => Ok(()),
            (Err(ApiError::Absent), false) => Err(self.refused(
                "does not exist",
                format!(
                    "create it with `kubectl create namespace {name}`, or have the master make one with \
                     `--auto-create-namespace`"
                ),
            )),
            (Err(ApiError::Forbidden(_)), _) => Err(self.refused(
                "cannot be looked at: the master may not read namespaces",
                GRANT.to_owned(),
            )),
            (Err(error), _) => Err(self.failed(&error)),
        }
    }

    /// What the master needs there, so that no task is placed where it could not start.
    async fn rights(&self) -> Result<(), NamespaceError> {
        let there = self.request.namespace.as_str();
        let mut needed: Vec<(&str, Kind, &str)> = NEEDED
            .iter()
            .map(|(verb, kind)| (*verb, *kind, there))
            .collect();
        if self.request.made {
            needed.extend(["create", "watch"].map(|verb| (verb, Kind::Namespace, "")));
            needed.push(("watch", Kind::Quota, ""));
        }
        if self.request.quota.is_some() {
            needed.extend(["create", "patch"].map(|verb| (verb, Kind::Quota, there)));
        }
        let reviews = needed.iter().map(|(verb, kind, namespace)| async move {
            (
                *verb,
                *kind,
                self.desk.api.may(verb, *kind, namespace).await,
            )
        });
        for (verb, kind, allowed) in futures::future::join_all(reviews).await {
            if allowed.map_err(|error| self.failed(&error))? {
                continue;
            }
            let what = format!(
                "cannot be used: the master may not {verb} {}",
                match kind {
                    Kind::Namespace => "namespaces".to_owned(),
                    kind => format!("{} there", kind.word()),
                }
            );
            let hint = match kind {
                Kind::Namespace | Kind::Quota => GRANT.to_owned(),
                _ => "give its service account the rights of its role in this namespace, too \
                      (docs/kubernetes.md, \"Workspaces and namespaces\")"
                    .to_owned(),
            };
            return Err(self.refused(&what, hint));
        }
        Ok(())
    }

    /// A limit above one that others have set there would have no effect, and one that several workspaces share could not be
    /// divided among them.
    async fn quotas(&self) -> Result<(), NamespaceError> {
        let (wanted, is_shared) = (self.request.quota, self.request.shared);
        if wanted.is_none() && !is_shared {
            return Ok(());
        }
        let there = &self.request.namespace;
        let found = match self.desk.api.list(Kind::Quota, there).await {
            Ok(found) => found,
            Err(ApiError::Absent) => return Ok(()),
            Err(error) => return Err(self.failed(&error)),
        };
        if is_shared {
            let all = found.iter().map(|quota| (there.as_str(), quota));
            let least = least_slots(all, &self.desk.slots).get(there).copied();
            return match [least, wanted].into_iter().flatten().min() {
                Some(slots) => Err(self.refused(
                    &format!(
                        "has a quota for {slots} slots, and other workspaces are bound to it: their work would be refused by \
                         Kubernetes after it was placed"
                    ),
                    "give each workspace a namespace of its own, as with `--auto-create-namespace`, or limit them with \
                     `det workspace edit WORKSPACE --max-slots N` and without a quota there"
                        .to_owned(),
                )),
                None => Ok(()),
            };
        }
        let Some(wanted) = wanted else {
            return Ok(());
        };
        let of_others = found.iter();
        let of_others = of_others.filter(|quota| !is_made(quota, &self.desk.cluster_id));
        let of_others = of_others.map(|quota: &Value| (there.as_str(), quota));
        match least_slots(of_others, &self.desk.slots).get(there) {
            Some(least) if *least < wanted => Err(self.refused(
                &format!("has a quota of another owner for {least} slots, fewer than {wanted}"),
                format!("set at most {least}, or have that quota raised"),
            )),
            _ => Ok(()),
        }
    }
}
