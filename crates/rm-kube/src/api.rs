//! The requests that change objects of a cluster.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use det_pods::{ClaimApi, GATEWAY_GROUP, GroupApi, TcpRouteApi};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
    PropagationPolicy, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::Value;
use tokio::sync::Semaphore;

/// Most requests that change something at a time.
const WRITES: usize = 32;
/// How long the API may take to answer. A request without an answer may have been carried out.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);

/// A connection to the API server that is not HTTP any more.
pub(crate) type Upgrade = TokioIo<Upgraded>;

/// A kind of objects that the manager works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Node,
    Pod,
    Job,
    Secret,
    Service,
    Event,
    Namespace,
    Quota,
    PriorityClass,
    PodGroup(GroupApi),
    Gateway,
    ListenerSet,
    TcpRoute(TcpRouteApi),
    DeviceClass(ClaimApi),
    ResourceSlice(ClaimApi),
    ResourceClaim(ClaimApi),
    ResourceClaimTemplate(ClaimApi),
}

impl Kind {
    pub(crate) fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = match self {
            Self::Node => ("", "v1", "Node", "nodes"),
            Self::Pod => ("", "v1", "Pod", "pods"),
            Self::Job => ("batch", "v1", "Job", "jobs"),
            Self::Secret => ("", "v1", "Secret", "secrets"),
            Self::Service => ("", "v1", "Service", "services"),
            Self::Event => ("", "v1", "Event", "events"),
            Self::Namespace => ("", "v1", "Namespace", "namespaces"),
            Self::Quota => ("", "v1", "ResourceQuota", "resourcequotas"),
            Self::PriorityClass => (
                "scheduling.k8s.io",
                "v1",
                "PriorityClass",
                "priorityclasses",
            ),
            Self::PodGroup(api) => {
                let (group, version) = api.group_version();
                (group, version, "PodGroup", "podgroups")
            }
            Self::Gateway => (GATEWAY_GROUP, "v1", "Gateway", "gateways"),
            Self::ListenerSet => (GATEWAY_GROUP, "v1", "ListenerSet", "listenersets"),
            Self::TcpRoute(api) => (GATEWAY_GROUP, api.version(), "TCPRoute", "tcproutes"),
            Self::DeviceClass(api) => of_claims(api, "DeviceClass", "deviceclasses"),
            Self::ResourceSlice(api) => of_claims(api, "ResourceSlice", "resourceslices"),
            Self::ResourceClaim(api) => of_claims(api, "ResourceClaim", "resourceclaims"),
            Self::ResourceClaimTemplate(api) => {
                of_claims(api, "ResourceClaimTemplate", "resourceclaimtemplates")
            }
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// What several of it are called, for users.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::Job => "Jobs",
            Self::Secret => "Secrets",
            Self::Service => "Services",
            Self::Event => "Events",
            Self::Namespace => "namespaces",
            Self::Quota => "ResourceQuotas",
            Self::PriorityClass => "PriorityClasses",
            Self::PodGroup(_) => "PodGroups",
            Self::Gateway => "Gateways",
            Self::ListenerSet => "ListenerSets",
            Self::TcpRoute(_) => "TCPRoutes",
            Self::DeviceClass(_) => "DeviceClasses",
            Self::ResourceSlice(_) => "ResourceSlices",
            Self::ResourceClaim(_) => "ResourceClaims",
            Self::ResourceClaimTemplate(_) => "ResourceClaimTemplates",
        }
    }
}

fn of_claims(
    api: ClaimApi,
    kind: &'static str,
    plural: &'static str,
) -> (&'static str, &'static str, &'static str, &'static str) {
    let (group, version) = api.group_version();
    (group, version, kind, plural)
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// The same request may succeed later.
    #[error("{0}")]
    Passing(String),
    /// The master lacks a right, or something that looks at requests refuses this one: see [`KubeApi::may`].
    #[error("{0}")]
    Forbidden(String),
    /// The API refuses the request, which is wrong.
    #[error("{0}")]
    Refused(String),
    /// An object of this name exists.
    #[error("an object of this name exists")]
    Exists,
    /// The object does not exist, or is another one than was meant.
    #[error("the object does not exist")]
    Absent,
}

impl ApiError {
    /// What an answer about an object of a kind means. Texts about Secrets may contain what is in them, and are left out.
    fn of(kind: Kind, error: &kube::Error) -> Self {
        let is_secret = kind == Kind::Secret;
        let status = match error {
            kube::Error::Api(status) => status,
            kube::Error::SerdeError(_) if is_secret => {
                return Self::Passing("the answer about a Secret cannot be read".to_owned());
            }
            _ => return Self::Passing(chain(error)),
        };
        let code = format!("{} {}", status.code, status.reason);
        let is_of_namespace = kind != Kind::Namespace
            && status
                .details
                .as_ref()
                .is_some_and(|details| details.kind == "namespaces");
        let is_over_quota = status.message.contains("exceeded quota");
        let text = if is_secret && !is_of_namespace {
            let hint = if is_over_quota {
                ", a quota is exceeded"
            } else {
                ""
            };
            format!("a request for a Secret failed: {code}{hint}")
        } else {
            format!("{} ({code})", status.message)
        };
        match (status.code, status.reason.as_str()) {
            (409, "AlreadyExists") => Self::Exists,
            (404, _) if is_of_namespace => Self::Refused(text),
            (404, _) => Self::Absent,
            // Credentials may be renewed, and what was in the way may be over.
            (401 | 408 | 409 | 410 | 429, _) => Self::Passing(text),
            (403, _) if is_over_quota => Self::Passing(text),
            (403, _) => Self::Forbidden(text),
            (400..=499, _) => Self::Refused(text),
            _ => Self::Passing(text),
        }
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Access to the API of a cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct KubeApi {
    /// For reading. It tries again by itself what may pass.
    client: Client,
    /// For writing: what has failed is for the caller to decide on.
    writer: Client,
    writes: Arc<Semaphore>,
}

impl KubeApi {
    /// Reads the access: a kubeconfig, or what Kubernetes gives the pod that the master runs in.
    pub(crate) async fn connect(kubeconfig: Option<&Path>) -> Result<Self, String> {
        let config = match kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| {
                    format!(
                        "the kubeconfig \"{}\" cannot be used: {}",
                        path.display(),
                        chain(&error)
                    )
                })?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options)
                    .await
                    .map_err(|error| {
                        format!(
                            "the kubeconfig \"{}\" cannot be used: {}",
                            path.display(),
                            chain(&error)
                        )
                    })?
            }
            None => Config::incluster().map_err(|error| {
                format!(
                    "the master does not run in a pod with access to the API ({}); name a file in \
                     \"resource_manager.kubeconfig_path\"",
                    chain(&error)
                )
            })?,
        };
        let mut for_writing = config.clone();
        for_writing.default_retry = false;
        let client = |config| Client::try_from(config).map_err(|error| chain(&error));
        Ok(Self {
            client: client(config)?,
            writer: client(for_writing)?,
            writes: Arc::new(Semaphore::new(WRITES)),
        })
    }

    /// The namespace of the access.
    pub(crate) fn own_namespace(&self) -> &str {
        self.client.default_namespace()
    }

    fn of(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        let (writer, resource) = (self.writer.clone(), kind.resource());
        if namespace.is_empty()
            || matches!(
                kind,
                Kind::Namespace | Kind::PriorityClass | Kind::DeviceClass(_)
            )
        {
            return Api::all_with(writer, &resource);
        }
        Api::namespaced_with(writer, namespace, &resource)
    }

    /// Whether the API has a kind of objects, by its group, version and plural.
    pub(crate) async fn serves(
        &self,
        (group, version): (&str, &str),
        plural: &str,
    ) -> Result<bool, String> {
        let of = format!("{group}/{version}");
        let request = self.writer.list_api_group_resources(&of);
        match tokio::time::timeout(ANSWER_WITHIN, request).await {
            Ok(Ok(found)) => Ok(found.resources.iter().any(|it| it.name == plural)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(false),
            Ok(Err(error)) => Err(format!(
                "what the API has cannot be read: {}",
                chain(&error)
            )),
            Err(_) => Err("the API does not answer".to_owned()),
        }
    }

    /// All objects of a kind in all namespaces.
    pub(crate) fn all(&self, kind: Kind) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &kind.resource())
    }

    pub(crate) async fn get(
        &self,
        kind: Kind,
        (namespace, name): (&str, &str),
    ) -> Result<Value, ApiError> {
        let api = self.of(kind, namespace);
        to_value(&answered(kind, api.get(name)).await?)
    }

    /// All objects of a kind in a namespace; empty = in all of them.
    pub(crate) async fn list(&self, kind: Kind, namespace: &str) -> Result<Vec<Value>, ApiError> {
        let api = self.of(kind, namespace);
        let found = answered(kind, api.list(&ListParams::default())).await?;
        found.items.iter().map(to_value).collect()
    }

    pub(crate) async fn create(
        &self,
        kind: Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<Value, ApiError> {
        // No copy is made before its turn.
        let _turn = self.turn().await?;
        let object: DynamicObject = serde_json::from_value(object.clone())
            .map_err(|error| ApiError::Refused(format!("an object cannot be written: {error}")))?;
        let (api, params) = (self.of(kind, namespace), PostParams::default());
        to_value(&answered(kind, api.create(&params, &object)).await?)
    }

    /// A merge patch.
    pub(crate) async fn patch(
        &self,
        kind: Kind,
        (namespace, name): (&str, &str),
        patch: &Value,
    ) -> Result<(), ApiError> {
        let _turn = self.turn().await?;
        let (api, params) = (self.of(kind, namespace), PatchParams::default());
        answered(kind, api.patch(name, &params, &Patch::Merge(patch))).await?;
        Ok(())
    }

    /// Deletes the object with this identity; one that is gone, or has another identity by now, is no error.
    pub(crate) async fn delete(
        &self,
        kind: Kind,
        (namespace, name): (&str, &str),
        uid: &str,
        grace_seconds: Option<u32>,
    ) -> Result<(), ApiError> {
        let params = DeleteParams {
            grace_period_seconds: grace_seconds,
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let _turn = self.turn().await?;
        let api = self.of(kind, namespace);
        let error = match answered(kind, api.delete(name, &params)).await {
            Ok(_) | Err(ApiError::Absent) => return Ok(()),
            Err(error) => error,
        };
        // A conflict may be with another object of this name, which is to stay, or with another request.
        match self.get(kind, (namespace, name)).await {
            Err(ApiError::Absent) => Ok(()),
            Ok(found) if crate::creating::uid(&found) != uid => Ok(()),
            _ => Err(error),
        }
    }

    /// Deletes an object that this Job does not own: the master stopped before it could make it the owner. `job_uid` `None` =
    /// there is no Job, and one with any owner stays.
    pub(crate) async fn delete_unowned(
        &self,
        kind: Kind,
        at: (&str, &str),
        (cluster, job_uid): (&str, Option<&str>),
    ) -> Result<(), ApiError> {
        let found = match self.get(kind, at).await {
            Err(ApiError::Absent) => return Ok(()),
            found => found?,
        };
        let owners = found.pointer("/metadata/ownerReferences");
        let owners = owners.and_then(Value::as_array);
        let is_owner = |owner: &Value| {
            let uid = owner.get("uid").and_then(Value::as_str);
            job_uid.is_none_or(|job_uid| uid == Some(job_uid))
        };
        let labels = found.pointer("/metadata/labels");
        let label = |key| labels.and_then(|labels| labels.get(key)?.as_str());
        // A Job that is not the master's may name any Secret.
        let is_ours = label(det_pods::CLUSTER_LABEL) == Some(cluster)
            && label(det_pods::SELECTOR_LABEL).is_some();
        if !is_ours || owners.into_iter().flatten().any(is_owner) {
            return Ok(());
        }
        let uid = crate::creating::uid(&found).to_owned();
        self.delete(kind, at, &uid, None).await
    }

    /// Whether the master has a right in a namespace.
    pub(crate) async fn may(
        &self,
        verb: &str,
        kind: Kind,
        namespace: &str,
    ) -> Result<bool, ApiError> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            "authorization.k8s.io",
            "v1",
            "SelfSubjectAccessReview",
        ));
        let of = kind.resource();
        let mut review = DynamicObject::new("", &resource);
        review.metadata.name = None;
        review.data = serde_json::json!({"spec": {"resourceAttributes": {
            "verb": verb, "group": of.group, "resource": of.plural, "namespace": namespace,
        }}});
        let api: Api<DynamicObject> = Api::all_with(self.writer.clone(), &resource);
        let params = PostParams::default();
        let answer = answered(kind, api.create(&params, &review)).await?;
        let allowed = answer.data.pointer("/status/allowed");
        Ok(allowed.and_then(Value::as_bool).unwrap_or(false))
    }

    /// Begins to forward a port of a pod: a WebSocket to the API server, on which nothing has been read.
    pub(crate) async fn forward(
        &self,
        (namespace, pod): (&str, &str),
        port: u16,
    ) -> Result<Upgrade, ApiError> {
        let path = Api::<DynamicObject>::namespaced_with(
            self.writer.clone(),
            namespace,
            &Kind::Pod.resource(),
        );
        let request = kube::core::Request::new(path.resource_url());
        let request = request.portforward(pod, &[port]);
        let request = request.map_err(|error| ApiError::Refused(chain(&error)))?;
        let connection = answered(Kind::Pod, self.writer.connect(request)).await?;
        Ok(connection.into_stream().into_inner())
    }

    /// Whether objects of a kind can be listed and watched.
    pub(crate) async fn probe(&self, kind: Kind) -> Result<(), ApiError> {
        let api: Api<DynamicObject> = Api::all_with(self.writer.clone(), &kind.resource());
        let one = ListParams::default().limit(1);
        let list = answered(kind, api.list(&one)).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let params = WatchParams::default().timeout(1);
        drop(answered(kind, api.watch(&params, &version)).await?);
        Ok(())
    }

    async fn turn(&self) -> Result<tokio::sync::SemaphorePermit<'_>, ApiError> {
        let turn = self.writes.acquire().await;
        turn.map_err(|_| ApiError::Passing("the master is stopping".to_owned()))
    }
}

/// Waits for the answer to a request, though not for ever.
async fn answered<T>(
    kind: Kind,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(ANSWER_WITHIN, request).await {
        Ok(answer) => answer.map_err(|error| ApiError::of(kind, &error)),
        Err(_) => Err(ApiError::Passing(format!(
            "the API has not answered a request about {} within {} s",
            kind.word(),
            ANSWER_WITHIN.as_secs()
        ))),
    }
}

pub(crate) fn to_value(object: &DynamicObject) -> Result<Value, ApiError> {
    serde_json::to_value(object)
        .map_err(|error| ApiError::Refused(format!("an object cannot be read: {error}")))
}
