//! Requests and answers.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER, USER_AGENT, WARNING};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use crate::deletion::{self, Deletion};
use crate::failure::Failure;
use crate::selectors::Filter;
use crate::shared::{DoubleState, RecordedRequest};
use crate::target::{Resource, Target};
use crate::values::{set, set_condition, text};
use crate::watches;
use crate::writes::{self, Mode, PatchKind};
use crate::{access, discovery, forwards, lists};

/// Bytes of a request at most, as of the API by default.
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// The one handler: paths are read by [`Target`].
pub(crate) fn router(shared: Arc<DoubleState>) -> Router {
    Router::new().fallback(handle).with_state(shared)
}

/// The parameters of a query.
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let Self(all) = self;
        all.iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or_default()
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        matches!(self.get(key), Some("true" | "1"))
    }

    /// A version; `None` if it is not named.
    pub(crate) fn version(&self, key: &str) -> Result<Option<u64>, Failure> {
        match self.text(key) {
            "" => Ok(None),
            version => version
                .parse()
                .map(Some)
                .map_err(|_| Failure::bad_request(format!("invalid resource version {version:?}"))),
        }
    }
}

/// A request as far as it has been read.
struct Call {
    method: Method,
    path: String,
    query: Parameters,
    headers: HeaderMap,
    body: Value,
}

async fn handle(State(shared): State<Arc<DoubleState>>, request: Request) -> Response {
    if forwards::is_one(request.uri().path()) {
        return forwards::answer(&shared, request)
            .await
            .unwrap_or_else(|failure| refusal(&failure));
    }
    let is_write = request.method() != Method::GET;
    let response = match read(&shared, request).await {
        Ok(call) => answer(&shared, call).unwrap_or_else(|failure| refusal(&failure)),
        Err(failure) => refusal(&failure),
    };
    if is_write {
        let mut delayed = shared.delayed.subscribe();
        // The sender is in `shared`, so that it exists.
        let _ = delayed.wait_for(|is_delayed| !is_delayed).await;
    }
    response
}

/// Reads a request, and records it.
async fn read(shared: &DoubleState, request: Request) -> Result<Call, Failure> {
    let (parts, body) = request.into_parts();
    record(shared, &parts);
    let Query(query) =
        Query::try_from_uri(&parts.uri).map_err(|error| Failure::bad_request(error.to_string()))?;
    let bytes = to_bytes(body, BODY_LIMIT)
        .await
        .map_err(|error| Failure::bad_request(error.to_string()))?;
    let body = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&bytes).map_err(|error| {
            Failure::bad_request(format!(
                "couldn't get version/kind; json parse error: {error}"
            ))
        })?
    };
    Ok(Call {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: Parameters(query),
        headers: parts.headers,
        body,
    })
}

/// Notes that a request has arrived.
pub(crate) fn record(shared: &DoubleState, parts: &Parts) {
    let header = parts.headers.get(USER_AGENT);
    let recorded = RecordedRequest {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        user_agent: header
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned(),
    };
    shared.control().requests.push(recorded);
    shared.wake();
}

fn answer(shared: &Arc<DoubleState>, call: Call) -> Result<Response, Failure> {
    if call.method == Method::GET
        && let Some(found) = discovery::answer(&call.path)
            .or_else(|| discovery::custom(&call.path, &shared.control().custom))
    {
        return Ok(success(StatusCode::OK, &found));
    }
    let Some(target) = Target::of_path(&call.path) else {
        return Err(Failure::no_such_path());
    };
    let verb = verb(&call, &target)?;
    fail_if_planned(shared, &call.method, verb, &target)?;
    if target.resource.group == "authorization.k8s.io" && verb == "create" {
        let rules = &shared.control().forbidden;
        let review = match target.resource.plural.as_str() {
            "selfsubjectaccessreviews" => access::review_access(rules, call.body),
            "selfsubjectrulesreviews" => access::review_rules(rules, call.body),
            _ => return Err(Failure::no_such_path()),
        };
        return Ok(success(StatusCode::CREATED, &review));
    }
    access::check(&shared.control().forbidden, verb, &target)?;
    match target.subresource.as_deref() {
        None | Some("status") => {}
        Some("eviction") if verb == "create" => return evict(shared, &target),
        Some(_) => return Err(Failure::no_such_path()),
    }
    let mode = match call.query.text("dryRun") {
        "All" => Mode::Check,
        _ => Mode::Store,
    };
    match verb {
        "get" => get(shared, &target),
        "list" => {
            let list = lists::list(&shared.cluster(), &target, &call.query)?;
            Ok(success(StatusCode::OK, &list))
        }
        "watch" => watch(shared, target, &call.query),
        "create" => {
            let created =
                shared.change(|cluster| writes::create(cluster, &target, call.body, mode))?;
            Ok(success(StatusCode::CREATED, &shown(&target, &created)))
        }
        "update" => {
            let updated =
                shared.change(|cluster| writes::replace(cluster, &target, call.body, mode))?;
            Ok(success(StatusCode::OK, &shown(&target, &updated)))
        }
        "patch" => {
            let kind = patch_kind(&call.headers)?;
            let patched =
                shared.change(|cluster| writes::patch(cluster, &target, kind, call.body, mode))?;
            Ok(success(StatusCode::OK, &shown(&target, &patched)))
        }
        "delete" => delete(shared, &target, &call, mode),
        _ => delete_all(shared, &target, &call),
    }
}

/// The verb of a request, as rights name it.
fn verb(call: &Call, target: &Target) -> Result<&'static str, Failure> {
    let is_watch = call.query.flag("watch");
    Ok(match (call.method.as_str(), &target.name) {
        ("GET", None) if is_watch => "watch",
        ("GET", None) => "list",
        ("GET", Some(_)) => "get",
        ("POST", None) => "create",
        ("POST", Some(_)) if target.subresource.is_some() => "create",
        ("PUT", Some(_)) => "update",
        ("PATCH", Some(_)) => "patch",
        ("DELETE", Some(_)) => "delete",
        ("DELETE", None) => "deletecollection",
        _ => return Err(Failure::method_not_allowed()),
    })
}

pub(crate) fn fail_if_planned(
    shared: &DoubleState,
    method: &Method,
    verb: &str,
    target: &Target,
) -> Result<(), Failure> {
    let method = match verb {
        "watch" => "WATCH",
        _ => method.as_str(),
    };
    let mut control = shared.control();
    let planned = control.planned.iter_mut().find(|planned| {
        planned.left > 0 && planned.method == method && planned.plural == target.resource.plural
    });
    match planned {
        Some(planned) => {
            planned.left -= 1;
            Err(Failure::injected(planned.code))
        }
        None => Ok(()),
    }
}

/// An object as it is shown under the version of the request.
fn shown(target: &Target, object: &Value) -> Value {
    let mut object = object.clone();
    set(&mut object, &["apiVersion"], target.api_version());
    object
}

fn get(shared: &DoubleState, target: &Target) -> Result<Response, Failure> {
    let name = target.name.as_deref().unwrap_or_default();
    let key = target.key(name);
    match shared.cluster().get(&key) {
        Some(object) => Ok(success(StatusCode::OK, &shown(target, object))),
        None => Err(Failure::not_found(&target.resource, name)),
    }
}

fn watch(
    shared: &Arc<DoubleState>,
    target: Target,
    query: &Parameters,
) -> Result<Response, Failure> {
    let filter = Filter::parse(
        &target.resource,
        target.namespace.as_deref(),
        query.text("labelSelector"),
        query.text("fieldSelector"),
    )?;
    let initial = query.flag("sendInitialEvents");
    let matching = query.text("resourceVersionMatch");
    let refused = match (initial, matching) {
        (true, "NotOlderThan") | (false, "") => None,
        (true, _) => {
            Some("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        }
        (false, _) => {
            Some("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        }
    };
    if let Some(why) = refused {
        let field = "resourceVersionMatch";
        let failure = Failure::invalid(&target, "", "FieldValueForbidden", field, why);
        return Err(failure);
    }
    let timeout = query.text("timeoutSeconds").parse().ok();
    let options = watches::Options {
        filter,
        version: query
            .version("resourceVersion")?
            .filter(|version| *version > 0),
        bookmarks: query.flag("allowWatchBookmarks"),
        initial,
        timeout: timeout.map(Duration::from_secs),
        target,
    };
    let body = watches::open(shared, options)?;
    let json = HeaderValue::from_static("application/json");
    Ok(([(CONTENT_TYPE, json)], body).into_response())
}

fn patch_kind(headers: &HeaderMap) -> Result<PatchKind, Failure> {
    let header = headers.get(CONTENT_TYPE);
    let kind = header
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim() {
        "application/merge-patch+json" => Ok(PatchKind::Merge),
        "application/strategic-merge-patch+json" => Ok(PatchKind::Strategic),
        "application/json-patch+json" => Ok(PatchKind::Json),
        "application/apply-patch+yaml" => Ok(PatchKind::Apply),
        other => Err(Failure::unsupported_media_type(other)),
    }
}

fn delete(
    shared: &DoubleState,
    target: &Target,
    call: &Call,
    mode: Mode,
) -> Result<Response, Failure> {
    let options = deletion::Options::parse(&call.body, |key| call.query.get(key))?;
    let name = target.name.as_deref().unwrap_or_default();
    let key = target.key(name);
    if mode == Mode::Check {
        return get(shared, target);
    }
    let deletion = shared.change(|cluster| deletion::delete(cluster, &key, &options))?;
    let answer = match deletion {
        Deletion::Pending(object) => shown(target, &object),
        Deletion::Gone(object) if target.resource == Resource::pods() => shown(target, &object),
        Deletion::Gone(object) => json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {
                "name": name,
                "group": target.resource.group,
                "kind": target.resource.plural,
                "uid": text(&object, "/metadata/uid"),
            },
        }),
    };
    let mut response = success(StatusCode::OK, &answer);
    if target.resource == Resource::jobs() && options.has_default_propagation() {
        let warning = HeaderValue::from_static(
            "299 - \"child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to \
             remove them or set propagationPolicy=Orphan to suppress this warning\"",
        );
        response.headers_mut().insert(WARNING, warning);
    }
    Ok(response)
}

/// Deletes a collection, as far as it is selected.
fn delete_all(shared: &DoubleState, target: &Target, call: &Call) -> Result<Response, Failure> {
    let options = deletion::Options::parse(&call.body, |key| call.query.get(key))?;
    let list = lists::list(&shared.cluster(), target, &call.query)?;
    shared.change(|cluster| {
        for object in crate::values::list(&list, "/items") {
            let mut target = target.clone();
            let namespace = text(object, "/metadata/namespace");
            target.namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
            let key = target.key(text(object, "/metadata/name"));
            match deletion::delete(cluster, &key, &options) {
                Err(failure) if failure.code != 404 => return Err(failure),
                _ => {}
            }
        }
        Ok(())
    })?;
    Ok(success(StatusCode::OK, &list))
}

/// Evicts a pod, as a drain does; there are no disruption budgets.
fn evict(shared: &DoubleState, target: &Target) -> Result<Response, Failure> {
    let key = target.key(target.name.as_deref().unwrap_or_default());
    if key.resource != Resource::pods() {
        return Err(Failure::no_such_path());
    }
    shared.change(|cluster| {
        cluster.modify(&key, |pod| {
            let message = "Eviction API: evicting";
            let reason = "EvictionByEvictionAPI";
            set_condition(pod, "DisruptionTarget", "True", reason, message);
        });
        deletion::delete(cluster, &key, &deletion::Options::default())
    })?;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    Ok(success(StatusCode::CREATED, &status))
}

fn success(code: StatusCode, answer: &Value) -> Response {
    let mut response = Response::new(Body::from(answer.to_string()));
    *response.status_mut() = code;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn refusal(failure: &Failure) -> Response {
    let code = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = success(code, &failure.status());
    if let Some(seconds) = failure.retry_after() {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
