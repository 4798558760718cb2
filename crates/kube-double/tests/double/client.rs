//! A plain client of the API.

use std::time::Duration;

use det_kube_double::ApiDouble;
use reqwest::{Method, Response};
use serde_json::{Value, json};

/// How long anything that is expected may take.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    pub(crate) fn new(double: &ApiDouble) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().user_agent("plain/1");
        Self {
            http: http.build().unwrap(),
            url: double.url(),
        }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> reqwest::Result<Response> {
        let method: Method = method.parse().unwrap();
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.header("content-type", kind).body(body.to_string());
        }
        let sent = tokio::time::timeout(LIMIT, request.send()).await;
        sent.unwrap()
    }

    async fn answer(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let sent = self.send(method, path, "application/json", body).await;
        read(sent.unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.answer("GET", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.answer("POST", path, Some(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        self.answer("PUT", path, Some(body)).await
    }

    pub(crate) async fn patch(&self, path: &str, kind: &str, body: &Value) -> (u16, Value) {
        let kind = format!("application/{kind}");
        read(self.send("PATCH", path, &kind, Some(body)).await.unwrap()).await
    }

    pub(crate) async fn delete(&self, path: &str, options: &Value) -> (u16, Value) {
        self.answer("DELETE", path, Some(options)).await
    }

    /// Opens a watch that must be accepted.
    pub(crate) async fn watch(&self, path: &str, query: &str) -> Watch {
        let path = format!("{path}?watch=true&{query}");
        let response = self.send("GET", &path, "", None).await.unwrap();
        assert_eq!(response.status().as_u16(), 200, "{path}");
        Watch {
            response,
            buffer: Vec::new(),
        }
    }
}

pub(crate) async fn read(response: Response) -> (u16, Value) {
    let code = response.status().as_u16();
    (code, response.json().await.unwrap())
}

/// A watch that is open.
pub(crate) struct Watch {
    response: Response,
    buffer: Vec<u8>,
}

impl Watch {
    /// The next event; `None` at the end, an error if it was broken off.
    pub(crate) async fn next(&mut self) -> reqwest::Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line).unwrap()));
            }
            let chunk = tokio::time::timeout(LIMIT, self.response.chunk()).await;
            match chunk.unwrap()? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }

    /// The next event, as its type and the name of its object.
    pub(crate) async fn named(&mut self) -> (String, String) {
        let event = self.next().await.unwrap().unwrap();
        (text(&event, "/type"), text(&event, "/object/metadata/name"))
    }
}

pub(crate) fn text(value: &Value, pointer: &str) -> String {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}

/// The names of a list.
pub(crate) fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| text(item, "/metadata/name"))
        .collect()
}

pub(crate) fn config_map(name: &str, labels: &Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}})
}

/// A pod that wants so many GPUs, if any.
pub(crate) fn pod(name: &str, gpus: u32) -> Value {
    let mut container = json!({"name": "main", "image": "none"});
    if gpus > 0 {
        container["resources"] = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
    }
    json!({"metadata": {"name": name}, "spec": {"containers": [container], "restartPolicy": "Never"}})
}

/// A Job with `spec` merged over what every Job of these tests has.
pub(crate) fn job(name: &str, spec: &Value) -> Value {
    let mut job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": {"mine": "yes"}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "none"}],
                },
            },
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        job["spec"][key] = value.clone();
    }
    job
}

/// The names of all pods of the namespace `default`.
pub(crate) fn pod_names(double: &ApiDouble) -> Vec<String> {
    let pods = double.list("v1/pods", "default");
    pods.iter().map(|pod| text(pod, "/metadata/name")).collect()
}
