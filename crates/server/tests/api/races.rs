//! Edits of one thing that meet: none is lost, whichever comes first.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Cluster};

/// A change, and where a reader finds it afterwards.
struct Edit {
    method: Method,
    path: String,
    body: Value,
    /// Path to read, JSON pointer into the answer, what it contains after the change.
    shown: (String, &'static str, Value),
}

impl Edit {
    fn patch(path: &str, body: Value, pointer: &'static str, after: Value) -> Self {
        Self {
            method: Method::PATCH,
            path: path.to_owned(),
            body,
            shown: (path.to_owned(), pointer, after),
        }
    }

    fn post(mut self, path: String) -> Self {
        self.method = Method::POST;
        self.path = path;
        self
    }

    async fn make(&self, client: &Client) {
        let body = (!self.body.is_null()).then(|| self.body.to_string());
        let reply = client.whole(self.method.clone(), &self.path, body).await;
        assert_eq!(reply.status, 200, "{} {}: {reply:?}", self.path, self.body);
    }
}

/// Makes each two of the edits at once, on what `fresh` makes anew for each pair, and looks for both.
async fn assert_none_is_lost(client: &Client, fresh: impl AsyncFn(usize) -> Vec<Edit>) {
    let count = fresh(0).await.len();
    let mut round = 1;
    for first in 0..count {
        for second in first + 1..count {
            let edits = fresh(round).await;
            round += 1;
            let (first, second) = (&edits[first], &edits[second]);
            tokio::join!(first.make(client), second.make(client));
            for edit in [first, second] {
                let (path, pointer, after) = &edit.shown;
                let answer = client.get(path).await.ok();
                assert_eq!(
                    answer.pointer(pointer),
                    Some(after),
                    "lost: {} {}, made together with {} {} and {} {}",
                    edit.path,
                    edit.body,
                    first.path,
                    first.body,
                    second.path,
                    second.body
                );
            }
        }
    }
}

#[tokio::test]
async fn no_edit_of_a_user_is_lost() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let fresh = async |round: usize| {
        let user = json!({"username": format!("user{round}"), "admin": true, "active": true});
        let made = admin
            .post("/api/v1/users", json!({"user": user}))
            .await
            .ok();
        let path = format!("/api/v1/users/{}", made["user"]["id"]);
        let group = json!({"agentUid": 7, "agentUser": "d", "agentGid": 8, "agentGroup": "g"});
        let named = format!("Name {round}");
        vec![
            // Hashing takes its time: the others come between.
            Edit::patch(
                &path,
                json!({"password": "a new one", "displayName": named}),
                "/user/displayName",
                json!(named),
            ),
            Edit::patch(&path, json!({"admin": false}), "/user/admin", json!(false)),
            Edit::patch(
                &path,
                json!({"active": false}),
                "/user/active",
                json!(false),
            ),
            Edit::patch(
                &path,
                json!({"agentUserGroup": group}),
                "/user/agentUserGroup",
                group,
            ),
            Edit::patch(
                &path,
                json!({"username": format!("renamed{round}")}),
                "/user/username",
                json!(format!("renamed{round}")),
            ),
        ]
    };
    assert_none_is_lost(&admin, fresh).await;
    cluster.stop().await;
}

#[tokio::test]
async fn no_edit_of_a_workspace_project_template_or_policy_is_lost() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let fresh = async |round: usize| {
        let workspace = json!({"name": format!("w{round}")});
        let made = admin.post("/api/v1/workspaces", workspace).await.ok();
        let id = made["workspace"]["id"].clone();
        let path = format!("/api/v1/workspaces/{id}");
        let project = json!({"name": "p", "workspaceId": id});
        let made = admin.post(&format!("{path}/projects"), project).await.ok();
        let project = format!("/api/v1/projects/{}", made["project"]["id"]);
        let template = format!("/api/v1/templates/t{round}");
        let body = json!({"name": format!("t{round}"), "config": {"max_restarts": 1}});
        admin.post(&template, body).await.ok();
        let policies = |kind: &str| format!("/api/v1/config-policies/workspaces/{id}/{kind}");
        let policy = |kind: &str| Edit {
            method: Method::PUT,
            path: policies(kind),
            body: json!({"configPolicies": "constraints: {priority_limit: 3}"}),
            shown: (
                policies(kind),
                "/configPolicies/constraints/priority_limit",
                json!(3),
            ),
        };
        let name = format!("w{round} renamed");
        vec![
            Edit::patch(&path, json!({"name": name}), "/workspace/name", json!(name)),
            Edit::patch(
                &path,
                json!({"defaultComputePool": "default"}),
                "/workspace/defaultComputePool",
                json!("default"),
            ),
            Edit::patch(
                &path,
                json!({"agentUserGroup": {"agentGid": 9, "agentGroup": "g"}}),
                "/workspace/agentUserGroup/agentGid",
                json!(9),
            ),
            Edit::patch(
                &path,
                json!({"checkpointStorageConfig": {"type": "shared_fs", "host_path": "/mnt/x"}}),
                "/workspace/checkpointStorageConfig/host_path",
                json!("/mnt/x"),
            ),
            Edit::patch(&path, Value::Null, "/workspace/pinned", json!(true))
                .post(format!("{path}/pin")),
            Edit::patch(&project, json!({"name": "q"}), "/project/name", json!("q")),
            Edit::patch(
                &project,
                json!({"description": "d"}),
                "/project/description",
                json!("d"),
            ),
            Edit::patch(
                &project,
                json!({"name": "note", "contents": "text"}),
                "/project/notes/0/name",
                json!("note"),
            )
            .post(format!("{project}/notes")),
            Edit::patch(
                &template,
                json!({"max_restarts": 2}),
                "/template/config/max_restarts",
                json!(2),
            ),
            policy("EXPERIMENT"),
            policy("NTSC"),
        ]
    };
    assert_none_is_lost(&admin, fresh).await;
    cluster.stop().await;
}

#[tokio::test]
async fn no_edit_of_an_experiment_or_agent_is_lost() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let _agent = cluster.agent("a1", 2).await;
    let fresh = async |round: usize| {
        let id = cluster
            .experiment_of("admin", &format!("e{round}"), false)
            .await;
        let path = format!("/api/v1/experiments/{id}");
        let agent = "/api/v1/agents/a1";
        for back in ["/enable", "/slots/0/enable", "/slots/1/enable"] {
            admin
                .post(&format!("{agent}{back}"), Value::Null)
                .await
                .ok();
        }
        let disabled = |what: &str, pointer: &'static str| {
            Edit::patch(agent, json!({}), pointer, json!(false))
                .post(format!("{agent}{what}/disable"))
        };
        vec![
            Edit::patch(&path, json!({"name": "n"}), "/experiment/name", json!("n")),
            Edit::patch(
                &path,
                json!({"description": "d"}),
                "/experiment/description",
                json!("d"),
            ),
            Edit::patch(
                &path,
                json!({"notes": "t"}),
                "/experiment/notes",
                json!("t"),
            ),
            Edit::patch(
                &path,
                json!({"labels": ["l"]}),
                "/experiment/labels",
                json!(["l"]),
            ),
            Edit::patch(
                &path,
                json!({"resources": {"priority": 7}}),
                "/experiment/config/resources/priority",
                json!(7),
            ),
            Edit::patch(
                &path,
                json!({"resources": {"maxSlots": 3}}),
                "/experiment/config/resources/max_slots",
                json!(3),
            ),
            Edit::patch(
                &path,
                json!({"resources": {"weight": 2.5}}),
                "/experiment/config/resources/weight",
                json!(2.5),
            ),
            disabled("/slots/0", "/agent/slots/0/enabled"),
            disabled("/slots/1", "/agent/slots/1/enabled"),
        ]
    };
    assert_none_is_lost(&admin, fresh).await;
    cluster.stop().await;
}

#[tokio::test]
async fn of_two_administrators_who_resign_at_once_one_stays() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let id = |user: &Value| user["user"]["id"].clone();
    let other = admin.get("/api/v1/users/determined/by-username").await.ok();
    let other = format!("/api/v1/users/{}", id(&other));
    let own = admin.get("/api/v1/users/admin/by-username").await.ok();
    let own = format!("/api/v1/users/{}", id(&own));
    admin.patch(&other, json!({"admin": true})).await.ok();
    let determined = cluster.determined().await;
    // Each would leave the other one as the last administrator.
    let resign = || json!({"admin": false, "displayName": ""});
    let (first, second) = tokio::join!(
        admin.patch(&own, resign()),
        determined.patch(&other, resign())
    );
    let mut statuses = [first.status, second.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 400], "{first:?} {second:?}");
    cluster.stop().await;
}
