//! What a path of the API leads to, and the kinds that Kubernetes itself has.

/// A kind of object, whatever its version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Resource {
    /// The group; empty for the core.
    pub(crate) group: String,
    /// The name in paths, such as `pods`.
    pub(crate) plural: String,
}

impl Resource {
    pub(crate) fn new(group: &str, plural: &str) -> Self {
        Self {
            group: group.to_owned(),
            plural: plural.to_owned(),
        }
    }

    pub(crate) fn pods() -> Self {
        Self::new("", "pods")
    }

    pub(crate) fn nodes() -> Self {
        Self::new("", "nodes")
    }

    pub(crate) fn namespaces() -> Self {
        Self::new("", "namespaces")
    }

    pub(crate) fn jobs() -> Self {
        Self::new("batch", "jobs")
    }

    /// The name with its group, as in messages: `jobs.batch`.
    pub(crate) fn qualified(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// What Kubernetes itself knows of it; `None` for custom resources.
    pub(crate) fn known(&self) -> Option<&'static KnownKind> {
        KNOWN
            .iter()
            .find(|known| known.group == self.group && known.plural == self.plural)
    }
}

/// A kind that every cluster has.
#[derive(Debug)]
pub(crate) struct KnownKind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespaced: bool,
}

const fn known(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
) -> KnownKind {
    KnownKind {
        group,
        version,
        plural,
        kind,
        namespaced,
    }
}

/// The kinds that every cluster has, as far as a test may need them.
pub(crate) const KNOWN: &[KnownKind] = &[
    known("", "v1", "configmaps", "ConfigMap", true),
    known("", "v1", "endpoints", "Endpoints", true),
    known("", "v1", "events", "Event", true),
    known("", "v1", "namespaces", "Namespace", false),
    known("", "v1", "nodes", "Node", false),
    known(
        "",
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        true,
    ),
    known("", "v1", "pods", "Pod", true),
    known("", "v1", "resourcequotas", "ResourceQuota", true),
    known("", "v1", "secrets", "Secret", true),
    known("", "v1", "serviceaccounts", "ServiceAccount", true),
    known("", "v1", "services", "Service", true),
    known("apps", "v1", "deployments", "Deployment", true),
    known("batch", "v1", "jobs", "Job", true),
    known("coordination.k8s.io", "v1", "leases", "Lease", true),
    known(
        "discovery.k8s.io",
        "v1",
        "endpointslices",
        "EndpointSlice",
        true,
    ),
    known("events.k8s.io", "v1", "events", "Event", true),
    known(
        "networking.k8s.io",
        "v1",
        "networkpolicies",
        "NetworkPolicy",
        true,
    ),
    known(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        true,
    ),
    known(
        "rbac.authorization.k8s.io",
        "v1",
        "rolebindings",
        "RoleBinding",
        true,
    ),
    known("rbac.authorization.k8s.io", "v1", "roles", "Role", true),
    known(
        "resource.k8s.io",
        "v1",
        "deviceclasses",
        "DeviceClass",
        false,
    ),
    known(
        "resource.k8s.io",
        "v1",
        "resourceclaims",
        "ResourceClaim",
        true,
    ),
    known(
        "resource.k8s.io",
        "v1",
        "resourceclaimtemplates",
        "ResourceClaimTemplate",
        true,
    ),
    known(
        "resource.k8s.io",
        "v1",
        "resourceslices",
        "ResourceSlice",
        false,
    ),
    known(
        "scheduling.k8s.io",
        "v1",
        "priorityclasses",
        "PriorityClass",
        false,
    ),
];

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) resource: Resource,
    pub(crate) version: String,
    /// The namespace in the path; `None` for cluster-scoped objects, and for lists over all namespaces.
    pub(crate) namespace: Option<String>,
    /// The object; `None` for the collection.
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

impl Target {
    /// What a path leads to; `None` if it is not one of an object or a collection.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
        let (group, version, rest) = match steps.as_slice() {
            ["api", version, rest @ ..] => ("", version, rest),
            ["apis", group, version, rest @ ..] => (*group, version, rest),
            _ => return None,
        };
        let of_namespace = |steps: &[&str]| {
            // What follows a namespace's name and is no collection in it.
            matches!(steps, ["status" | "finalize"])
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, inside @ ..]
                if !(inside.is_empty() || group.is_empty() && of_namespace(inside)) =>
            {
                (Some((*namespace).to_owned()), inside)
            }
            rest => (None, rest),
        };
        let owned = |step: &&str| (*step).to_owned();
        match rest {
            [plural, rest @ ..] if rest.len() <= 2 => Some(Self {
                resource: Resource::new(group, plural),
                version: owned(version),
                namespace,
                name: rest.first().map(owned),
                subresource: rest.get(1).map(owned),
            }),
            _ => None,
        }
    }

    /// The target of a short path of tests, `v1/pods` or `batch/v1/jobs`.
    pub(crate) fn of_kind_path(path: &str, namespace: Option<&str>, name: Option<&str>) -> Self {
        let steps: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, plural) = match steps.as_slice() {
            [group, version, plural] => (*group, *version, *plural),
            [version, plural] => ("", *version, *plural),
            _ => ("", "v1", path),
        };
        let owned = |step: &str| step.to_owned();
        Self {
            resource: Resource::new(group, plural),
            version: owned(version),
            namespace: namespace.filter(|name| !name.is_empty()).map(owned),
            name: name.map(owned),
            subresource: None,
        }
    }

    /// The group and version, as objects have them.
    pub(crate) fn api_version(&self) -> String {
        match self.resource.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The kind of its objects; that of a custom resource is guessed from its plural, `podgroups` is `Podgroup`.
    pub(crate) fn kind(&self) -> String {
        if let Some(known) = self.resource.known() {
            return known.kind.to_owned();
        }
        let plural = &self.resource.plural;
        let singular = plural.strip_suffix('s').unwrap_or(plural);
        let mut letters = singular.chars();
        letters
            .next()
            .map(|first| first.to_uppercase().chain(letters).collect())
            .unwrap_or_default()
    }

    /// The plural with the subresource, as rights name it: `pods/status`.
    pub(crate) fn in_rights(&self) -> String {
        match &self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.resource.plural),
            None => self.resource.plural.clone(),
        }
    }

    /// The key of the object in its collection.
    pub(crate) fn key(&self, name: &str) -> Key {
        Key {
            resource: self.resource.clone(),
            namespace: self.namespace.clone().unwrap_or_default(),
            name: name.to_owned(),
        }
    }
}

/// Which object it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) resource: Resource,
    /// The namespace; empty for cluster-scoped objects.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(resource: Resource, namespace: &str, name: &str) -> Self {
        Self {
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}
