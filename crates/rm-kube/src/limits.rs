//! What the namespaces of tasks demand of their pods: nodes with certain labels, and what quotas leave. Without the right to
//! read namespaces and quotas, nothing of it is known, and Kubernetes refuses the pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use det_ids::WorkspaceId;
use det_pods::{
    NamespaceLimits, NamespaceSelector, QuotaDemand, SlotResources, node_selector, quota_limits,
};
use det_rm::FitQuery;
use serde_json::Value;

use crate::Settings;
use crate::api::Kind;
use crate::books::ObjectKey;
use crate::creating::name;
use crate::observing::named;

/// The namespaces that workspaces are bound to.
pub(crate) type Bindings = BTreeMap<WorkspaceId, String>;

/// What is known of the namespaces of a cluster's tasks at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// The namespaces of work whose workspace is bound to none, by pool.
    of_pools: BTreeMap<String, String>,
    of_workspaces: Arc<Bindings>,
    /// Those that limit something, by name: few of a cluster do, and others' may become ones of tasks.
    known: Arc<BTreeMap<String, NamespaceLimits>>,
    slots: SlotResources,
}

/// What namespaces demand of the containers of a request.
#[derive(Debug, Default)]
pub(crate) struct NamespaceDemands<'l> {
    /// The namespace, where it has a node selector.
    pub(crate) selected_by: Option<&'l str>,
    /// Why a quota does not admit them now.
    pub(crate) refusal: Option<Refusal>,
}

/// Why quotas do not admit the containers of a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Refusal {
    /// The quota, the resource, what is used and the limit.
    pub(crate) reason: String,
    /// Whether no node that is added helps.
    pub(crate) outlasts_growth: bool,
}

impl Limits {
    /// Nothing is known yet. `namespace` = that of pools which have none.
    pub(crate) fn new(settings: &Settings, namespace: &str) -> Self {
        let pools = settings.pools.iter().map(|pool| {
            let own = settings.namespace_of(&pool.name).unwrap_or(namespace);
            (pool.name.clone(), own.to_owned())
        });
        Self {
            of_pools: pools.collect(),
            of_workspaces: Arc::default(),
            known: Arc::default(),
            slots: settings.slots.clone(),
        }
    }

    /// Workspaces are bound to these namespaces; whether that may matter.
    pub(crate) fn bound(&mut self, bindings: &Bindings) -> bool {
        let is_news = *self.of_workspaces != *bindings;
        if is_news {
            self.of_workspaces = Arc::new(bindings.clone());
        }
        is_news && !self.known.is_empty()
    }

    /// A namespace or a quota is as this; whether that matters to tasks.
    pub(crate) fn is(&mut self, kind: Kind, object: &Value) -> bool {
        let ObjectKey { namespace, name } = named(object);
        match kind {
            Kind::Namespace => {
                let selector = node_selector(object);
                self.change(&name, |limits| limits.node_selector = selector)
            }
            _ => {
                let quota = quota_limits(object);
                self.change(&namespace, |limits| match quota {
                    Some(quota) => drop(limits.quotas.insert(name, quota)),
                    None => drop(limits.quotas.remove(&name)),
                })
            }
        }
    }

    /// A namespace or a quota is gone; whether that matters to tasks.
    pub(crate) fn is_gone(&mut self, kind: Kind, object: &Value) -> bool {
        match kind {
            Kind::Namespace => self.change(name(object), |limits| {
                *limits = NamespaceLimits::default();
            }),
            _ => {
                let ObjectKey { namespace, name } = named(object);
                self.change(&namespace, |limits| drop(limits.quotas.remove(&name)))
            }
        }
    }

    /// After a list: what was not in it is gone; whether that matters to tasks.
    pub(crate) fn only_present(&mut self, kind: Kind, present: &BTreeSet<ObjectKey>) -> bool {
        let namespaces: Vec<String> = self.known.keys().cloned().collect();
        let mut is_news = false;
        for namespace in namespaces {
            let named = |name: &str, namespace: &str| ObjectKey {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
            is_news |= self.change(&namespace, |limits| match kind {
                Kind::Namespace if present.contains(&named(&namespace, "")) => {}
                Kind::Namespace => limits.node_selector.clear(),
                _ => limits
                    .quotas
                    .retain(|name, _| present.contains(&named(name, &namespace))),
            });
        }
        is_news
    }

    fn change(&mut self, namespace: &str, change: impl FnOnce(&mut NamespaceLimits)) -> bool {
        let before = self.known.get(namespace).cloned().unwrap_or_default();
        let mut now = before.clone();
        change(&mut now);
        if now == before {
            return false;
        }
        let known = Arc::make_mut(&mut self.known);
        if now.is_empty() {
            known.remove(namespace);
        } else {
            known.insert(namespace.to_owned(), now);
        }
        let mut of_tasks = self.of_pools.values().chain(self.of_workspaces.values());
        of_tasks.any(|it| it == namespace)
    }

    /// What the namespace of a request's containers demands of them.
    pub(crate) fn of(&self, query: FitQuery<'_>) -> NamespaceDemands<'_> {
        if self.known.is_empty() {
            return NamespaceDemands::default();
        }
        let (namespace, bound) = self.namespace_of(query.pool, query.workspace);
        let Some(namespace) = namespace else {
            return NamespaceDemands::default();
        };
        let Some(limits) = self.known.get(namespace) else {
            return NamespaceDemands::default();
        };
        let demand = QuotaDemand {
            // The keeper reports how many slots quotas leave to workspaces that are bound.
            slots: (!bound).then_some(query.slots),
            resource: self.slots.of(query.pool),
            demands: query.demands,
        };
        NamespaceDemands {
            selected_by: (!limits.node_selector.is_empty()).then_some(namespace.as_str()),
            // Placeholders are in the namespace of the pool. What its quotas count of them is no reason to delete them: they
            // would be made again as soon as the quota has capacity for them. Kubernetes refuses them, if need be.
            refusal: limits.refuses(namespace, demand).map(|refusal| Refusal {
                reason: refusal.reason,
                outlasts_growth: !refusal.counts_placeholders
                    || self.of_pools.get(query.pool) != Some(namespace),
            }),
        }
    }

    /// The namespace of a task, and whether it is one that its workspace is bound to.
    fn namespace_of(&self, pool: &str, workspace: Option<WorkspaceId>) -> (Option<&String>, bool) {
        let bound = workspace.and_then(|it| self.of_workspaces.get(&it));
        (bound.or_else(|| self.of_pools.get(pool)), bound.is_some())
    }

    /// The nodes that the namespace of a task has its pods on; `None` = all, as far as is known.
    pub(crate) fn selector(
        &self,
        pool: &str,
        workspace: Option<WorkspaceId>,
    ) -> Option<NamespaceSelector<'_>> {
        let namespace = self.namespace_of(pool, workspace).0?;
        let labels = &self.known.get(namespace)?.node_selector;
        (!labels.is_empty()).then_some(NamespaceSelector { namespace, labels })
    }

    /// The limits of a namespace that has some.
    pub(crate) fn of_namespace(&self, namespace: &str) -> Option<&NamespaceLimits> {
        self.known.get(namespace)
    }
}
