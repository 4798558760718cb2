//! Who may do what: every operation, asked by every kind of caller, answered as in the table.
//!
//! `authorisation.tsv` has a row for each operation of the API and a column for each kind of caller. `401` and `403` are
//! these statuses; `yes` is any other answer that is no failure of ours. The things asked about belong to the user
//! "ada": `owner` is she, `other` another user, `own_task` the task that the request is about, `other_task` a task of
//! the other user. `Operation+case` is a case of an operation for which others may call: the request is in
//! `World::body`. Each operation must succeed for at least one caller, so that no refusal hides behind a bad request.

use std::collections::{BTreeMap, BTreeSet};

use det_agent_proto::PATH;
use det_config::storage::StorageLocation;
use det_ids::{ExperimentId, TrialId, UserId};
use det_server::http::openapi;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::fake_agent::own_token;
use crate::support::{Client, Cluster, FakeAgent};

const TABLE: &str = include_str!("../authorisation.tsv");

/// The external id of an experiment of the owner's.
const OUTSIDE: &str = "outside";

/// Kinds of callers: the columns.
const CALLERS: [&str; 11] = [
    "nobody",
    "bad",
    "expired",
    "revoked",
    "deactivated",
    "owner",
    "other",
    "admin",
    "own_task",
    "other_task",
    "agent",
];

struct Operation {
    name: String,
    method: Method,
    path: String,
}

fn operations() -> Vec<Operation> {
    let document: Value = serde_json::from_str(&openapi::text()).unwrap();
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            all.push(Operation {
                name: operation["operationId"].as_str().unwrap().to_owned(),
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
            });
        }
    }
    all
}

/// The rows in their order: name and expected answer for each caller.
fn table() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut lines = TABLE
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    assert_eq!(head[1..], CALLERS, "the columns");
    lines
        .map(|cells| {
            assert_eq!(cells.len(), head.len(), "{cells:?}");
            assert!(
                cells[1..]
                    .iter()
                    .all(|cell| matches!(*cell, "yes" | "401" | "403")),
                "{cells:?}"
            );
            (cells[0], cells[1..].to_vec())
        })
        .collect()
}

/// The operation that a row is about.
fn operation_of(row: &str) -> &str {
    row.split_once('+').map_or(row, |(operation, _)| operation)
}

#[test]
fn every_operation_has_its_row_and_every_row_its_operation() {
    let built: BTreeSet<String> = operations().into_iter().map(|o| o.name).collect();
    let rows: Vec<&str> = table().into_iter().map(|(name, _)| name).collect();
    let distinct: BTreeSet<&str> = rows.iter().copied().collect();
    assert_eq!(distinct.len(), rows.len(), "a row exists twice");
    let listed: BTreeSet<String> = rows
        .iter()
        .map(|row| operation_of(row).to_owned())
        .collect();
    assert_eq!(
        built.difference(&listed).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "operations without a row in authorisation.tsv: decide who may call them"
    );
    assert_eq!(
        listed.difference(&built).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "rows of authorisation.tsv without an operation"
    );
}

/// What the requests are about.
struct World {
    cluster: Cluster,
    admin: Client,
    trial: TrialId,
    experiment: ExperimentId,
    task: String,
    allocation: String,
    container: String,
    ada: UserId,
    /// An experiment of the owner's that runs outside the cluster, by its external id, and its trial.
    outside: (ExperimentId, TrialId),
    tokens: BTreeMap<&'static str, String>,
    /// Counts what is made for one request.
    made: i64,
    agents: Vec<FakeAgent>,
}

impl World {
    async fn new() -> Self {
        let pools = "[{pool_name: default}, {pool_name: second}]";
        let cluster = Cluster::start_with(&[("resource_pools", pools)]).await;
        let admin = cluster.admin().await;
        for name in ["ada", "bob", "eve"] {
            let user = json!({"user": {"username": name, "active": true}});
            admin.post("/api/v1/users", user).await.ok();
        }
        let id = |name: &str| cluster.master().auth.user_by_name(name).unwrap().id;
        let (ada, eve) = (id("ada"), id("eve"));
        let mut tokens = BTreeMap::from([("bad", "wrong".to_owned())]);
        tokens.insert("agent", cluster.agent_token().to_owned());
        let revoked = cluster.user("ada").await;
        revoked.post("/api/v1/auth/logout", Value::Null).await.ok();
        tokens.insert("revoked", revoked.token().to_owned());
        let auth = &cluster.master().auth;
        tokens.insert("expired", auth.start_session(ada, -1).await.unwrap());
        tokens.insert("deactivated", cluster.user("eve").await.token().to_owned());
        let off = json!({"active": false});
        admin.patch(&format!("/api/v1/users/{eve}"), off).await.ok();

        let mut agents = Vec::new();
        let mut own = None;
        for (id, owner) in [("a1", "ada"), ("a2", "bob")] {
            let mut agent = cluster.agent(id, 1).await;
            let experiment = cluster.experiment_of(owner, "running", true).await;
            let spec = agent.next_start().await;
            agent.runs(&spec).await;
            agents.push(agent);
            let token = spec.script.token.clone();
            tokens.insert(
                if owner == "ada" {
                    "own_task"
                } else {
                    "other_task"
                },
                token,
            );
            own.get_or_insert((experiment, spec));
        }
        let (experiment, spec) = own.unwrap();
        let (row, _) = cluster.task_of(experiment).await;
        let path = format!("/api/v1/trials/{}/metrics", row.trial_id.unwrap());
        let validation = json!({"group": "validation", "metrics": {"trialRunId": 1, "stepsCompleted": 1,
            "metrics": {"avgMetrics": {"loss": 1}}}});
        admin.post(&path, validation).await.ok();
        let outside =
            crate::unmanaged::registered(&cluster.user("ada").await, OUTSIDE, "first").await;
        Self {
            outside,
            admin,
            trial: row.trial_id.unwrap(),
            experiment,
            task: spec.task_id.to_string(),
            allocation: spec.allocation_id.to_string(),
            container: spec.container_id.to_string(),
            ada,
            tokens,
            made: 0,
            agents,
            cluster,
        }
    }

    /// A caller of a kind. Users log in anew: what they do may end their session.
    async fn caller(&self, kind: &str) -> Client {
        let anonymous = self.cluster.client();
        match kind {
            "nobody" => anonymous,
            "owner" => self.cluster.user("ada").await,
            "other" => self.cluster.user("bob").await,
            "admin" => self.cluster.admin().await,
            "own_task" | "other_task" => anonymous.as_task(&self.tokens[kind]),
            _ => anonymous.with("Authorization", format!("Bearer {}", self.tokens[kind])),
        }
    }

    /// A paused experiment of the owner's, made for one request; ended if the operation needs that.
    async fn spare(&mut self, ended: bool) -> ExperimentId {
        self.made += 1;
        let name = format!("spare {}", self.made);
        let id = self.cluster.experiment_of("ada", &name, false).await;
        if ended {
            let path = format!("/api/v1/experiments/{id}/kill");
            self.admin.post(&path, Value::Null).await.ok();
        }
        id
    }

    /// A checkpoint of the running trial, made for one request.
    async fn checkpoint(&mut self) -> String {
        let (uuid, report) = self.checkpoint_report();
        self.admin.post("/api/v1/checkpoints", report).await.ok();
        let storage = self
            .cluster
            .master()
            .context
            .config()
            .checkpoint_storage
            .clone();
        let Some(StorageLocation::SharedFs { host_path, .. }) = storage.map(|s| s.location) else {
            panic!("a test's checkpoints are in a directory");
        };
        let directory = std::path::Path::new(&host_path).join(&uuid);
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("weights"), "x").unwrap();
        uuid
    }

    /// An agent made for one request: those of the world send nothing, and are given up after a while.
    async fn agent(&mut self) -> String {
        self.made += 1;
        let id = format!("agent-{}", self.made);
        self.agents.push(self.cluster.agent(&id, 1).await);
        id
    }

    /// The name of a template of the owner's, made for one request; `free` = there is none of that name yet.
    async fn template(&mut self, free: bool) -> String {
        self.made += 1;
        let name = format!("template-{}", self.made);
        if !free {
            let template = json!({"config": {"max_restarts": 1}});
            let path = format!("/api/v1/templates/{name}");
            self.cluster
                .user("ada")
                .await
                .post(&path, template)
                .await
                .ok();
        }
        name
    }

    /// A task of the owner's that waits, launched for one request.
    async fn launched(&mut self, path: &str) -> String {
        let ada = self.cluster.user("ada").await;
        let config = json!({"entrypoint": ["true"], "resources": {"slots": 0}});
        let config = match path {
            "generic-tasks" => json!(config.to_string()),
            _ => config,
        };
        let path = format!("/api/v1/{path}");
        let shown = json!([self.experiment]);
        let body = json!({"config": config, "experimentIds": shown});
        let body = if path.ends_with("tensorboards") {
            body
        } else {
            json!({"config": config})
        };
        let made = ada.post(&path, body).await.ok();
        let id = [
            &made["taskId"],
            &made["command"]["id"],
            &made["shell"]["id"],
            &made["notebook"]["id"],
            &made["tensorboard"]["id"],
        ];
        id.into_iter().find_map(Value::as_str).unwrap().to_owned()
    }

    /// A workspace of the owner's, and a project in it, made for one request.
    async fn workspace(&mut self) -> (i64, i64) {
        self.made += 1;
        let ada = self.cluster.user("ada").await;
        let new = json!({"name": format!("workspace {}", self.made)});
        let made = ada.post("/api/v1/workspaces", new).await.ok();
        let workspace = made["workspace"]["id"].as_i64().unwrap();
        let path = format!("/api/v1/workspaces/{workspace}/projects");
        let new = json!({"name": format!("project {}", self.made)});
        let made = ada.post(&path, new).await.ok();
        (workspace, made["project"]["id"].as_i64().unwrap())
    }

    fn checkpoint_report(&mut self) -> (String, Value) {
        self.made += 1;
        let uuid = format!("00000000-0000-4000-8000-{:012}", self.made);
        let report = json!({
            "uuid": uuid, "taskId": self.task, "allocationId": self.allocation, "state": "STATE_COMPLETED",
            "resources": {"weights": 1}, "metadata": {"steps_completed": 1},
        });
        (uuid, report)
    }

    /// The address and body of a request that succeeds for a user who may send it.
    #[expect(clippy::too_many_lines, reason = "a table of requests")]
    async fn request(&mut self, row: &str, operation: &Operation) -> (String, Value) {
        let name = operation.name.as_str();
        let steers = name.ends_with("Experiment")
            || name.ends_with("Experiments")
            || name.starts_with("PutExperiment");
        let is_about_one = steers && operation.method != Method::GET && name != "CreateExperiment";
        let experiment = if is_about_one && name != "PatchExperiment" {
            let needs_end = ["Archive", "Unarchive", "Delete", "Continue"];
            self.spare(needs_end.iter().any(|verb| name.starts_with(verb)))
                .await
        } else {
            self.experiment
        };
        let trial = match name {
            "KillTrial" => {
                let spare = self.spare(false).await;
                self.cluster.task_of_paused(spare).await.trial_id.unwrap()
            }
            "StartTrial" | "PatchTrial" => self.outside.1,
            _ => self.trial,
        };
        let checkpoint = if operation.path.contains("checkpoint") && !name.starts_with("Report") {
            self.checkpoint().await
        } else {
            String::new()
        };
        let id = match operation.path.split('/').nth(3) {
            Some("experiments") => experiment.0,
            Some("trials") => trial.0,
            _ => 1,
        };
        // What is only read is Uncategorized; experiments are in it too.
        let (workspace, project) = match operation.path.split('/').nth(3) {
            Some("workspaces" | "projects") if operation.method != Method::GET && !steers => {
                self.workspace().await
            }
            _ => (1, 1),
        };
        let id = match operation.path.split('/').nth(3) {
            Some("workspaces") => workspace,
            Some("projects") => project,
            _ => id,
        };
        let agent = if operation.path.contains("{agentId}") {
            self.agent().await
        } else {
            String::new()
        };
        let template = if operation.path.contains("{templateName}") {
            let free = name == "PostTemplate" || row == "PutTemplate+new";
            self.template(free).await
        } else {
            String::new()
        };
        let command = if operation.path.contains("{commandId}") {
            self.launched("commands").await
        } else {
            String::new()
        };
        let shell = if operation.path.contains("{shellId}") {
            self.launched("shells").await
        } else {
            String::new()
        };
        let notebook = if operation.path.contains("{notebookId}") {
            self.launched("notebooks").await
        } else {
            String::new()
        };
        let tensorboard = if operation.path.contains("{tensorboardId}") {
            self.launched("tensorboards").await
        } else {
            String::new()
        };
        let task = if name.contains("GenericTask") {
            self.launched("generic-tasks").await
        } else {
            self.task.clone()
        };
        let external = match row {
            "PutExperiment" => {
                self.made += 1;
                format!("new {}", self.made)
            }
            _ => OUTSIDE.to_owned(),
        };
        let job = self.cluster.task_of(self.experiment).await.0.job_id;
        let path = operation
            .path
            .replace("{templateName}", &template)
            .replace("{externalExperimentId}", &external)
            .replace("{externalTrialId}", "first")
            .replace("{jobId}", job.as_str())
            .replace("{workloadType}", "NTSC")
            .replace("{workspaceId}", &workspace.to_string())
            .replace("{key}", "UNCAT")
            .replace("{agentId}", &agent)
            .replace("{slotId}", "0")
            .replace("{allocationId}", &self.allocation)
            .replace("{resourcesId}", &self.container)
            .replace("{checkpointUuid}", &checkpoint)
            .replace("{experimentId}", &experiment.to_string())
            .replace("{trialId}", &trial.to_string())
            .replace("{runId}", &trial.to_string())
            .replace("{commandId}", &command)
            .replace("{shellId}", &shell)
            .replace("{notebookId}", &notebook)
            .replace("{tensorboardId}", &tensorboard)
            .replace("{taskId}", &task)
            .replace("{userId}", &self.ada.to_string())
            .replace("{username}", "ada")
            .replace("{projectId}", &project.to_string())
            .replace("{id}", &id.to_string());
        let query = match name {
            "AllocationPreemptionSignal" => "?timeoutSeconds=0".to_owned(),
            "DownloadModelDefFile" => "?path=train.py".to_owned(),
            "CompareTrials" => {
                format!("?trialIds={trial}&metricNames=loss&group=validation")
            }
            "GetMetrics" | "GetTrainingMetrics" | "GetValidationMetrics" => {
                format!("?trialIds={trial}")
            }
            _ => String::new(),
        };
        let body = self.body(row, experiment, &checkpoint).await;
        (format!("{path}{query}"), body)
    }

    #[expect(clippy::too_many_lines, reason = "one match over the operations")]
    async fn body(&mut self, row: &str, experiment: ExperimentId, checkpoint: &str) -> Value {
        let log = json!({"taskId": self.task, "allocationId": self.allocation, "log": "line"});
        match row {
            "ContinueExperiment+override" => {
                return json!({"id": experiment, "overrideConfig": "entrypoint: id\n"});
            }
            "PatchExperiment+checkpoint_policy" => {
                return json!({"checkpointStorage": {"saveTrialLatest": 2}});
            }
            "CreateGenericTask+parent" => {
                let parent = self.launched("generic-tasks").await;
                return json!({"config": "entrypoint: ['true']", "parentId": parent});
            }
            "UpdateJobQueue+pool" => {
                let spare = self.spare(false).await;
                let job = self.cluster.task_of_paused(spare).await.job_id;
                return json!({"updates": [{"jobId": job, "resourcePool": "second"}]});
            }
            _ => {}
        }
        match operation_of(row) {
            "Login" | "PlainLogin" => json!({"username": "admin", "isHashed": true}),
            "CreateExperiment" => json!({"config": configuration("made").to_string()}),
            "PutExperiment" => {
                json!({"config": configuration("made").to_string(), "unmanaged": true})
            }
            "CreateTrial" => json!({"experimentId": self.outside.0, "unmanaged": true}),
            "PutTrial" => {
                json!({"externalTrialId": "first",
                    "createTrialRequest": {"experimentId": self.outside.0, "unmanaged": true}})
            }
            "StartTrial" => json!({"resume": true}),
            "PatchTrial" => json!({"state": "STATE_RUNNING"}),
            "LaunchCommand" => json!({"config": {"entrypoint": ["true"]}}),
            "LaunchShell" | "LaunchNotebook" => json!({"config": {}}),
            "LaunchTensorboard" => json!({"config": {}, "experimentIds": [self.experiment]}),
            "CreateGenericTask" => json!({"config": "entrypoint: ['true']"}),
            "SetCommandPriority"
            | "SetShellPriority"
            | "SetNotebookPriority"
            | "SetTensorboardPriority" => json!({"priority": 7}),
            "ContinueExperiment" => json!({"id": experiment}),
            "PatchExperiment" => json!({"notes": "changed"}),
            "MoveExperiment" | "MoveExperiments" => {
                let (_, project) = self.workspace().await;
                json!({"experimentIds": [experiment], "destinationProjectId": project})
            }
            "PostWorkspace" | "PostProject" => {
                self.made += 1;
                json!({"name": format!("new {}", self.made)})
            }
            "PatchWorkspace" | "PatchProject" => {
                self.made += 1;
                json!({"name": format!("renamed {}", self.made)})
            }
            "MoveProject" => json!({"destinationWorkspaceId": self.workspace().await.0}),
            "SetResourceQuotas" => json!({"clusterQuotaPairs": {"": 4}}),
            "AddProjectNote" => json!({"name": "n", "contents": "c"}),
            "PutProjectNotes" => json!({"notes": []}),
            "PutExperimentRetainLogs" | "PutExperimentsRetainLogs" | "PutTrialRetainLogs" => {
                json!({"experimentIds": [experiment], "numDays": 3})
            }
            name if name.ends_with("Experiments") => json!({"experimentIds": [experiment]}),
            "GetModelDefFile" => json!({"path": "train.py"}),
            "PatchMasterConfig" => json!({"config": {"log": {"level": "LOG_LEVEL_DEBUG"}}}),
            "PreviewHPSearch" => json!({"config": configuration("seen")}),
            "UpdateJobQueue" => {
                let spare = self.spare(false).await;
                let job = self.cluster.task_of_paused(spare).await.job_id;
                json!({"updates": [{"jobId": job, "priority": 7}]})
            }
            "PutGlobalConfigPolicies" | "PutWorkspaceConfigPolicies" => {
                json!({"configPolicies": "constraints: {priority_limit: 3}"})
            }
            "PostTemplate" | "PutTemplate" => json!({"config": {"max_restarts": 2}}),
            "PatchTemplateConfig" => json!({"max_restarts": 3}),
            "PatchTemplateName" => {
                let old = self.template(false).await;
                json!({"oldName": old, "newName": self.template(true).await})
            }
            "ReportCheckpoint" => self.checkpoint_report().1,
            "DeleteCheckpoints" => json!({"checkpointUuids": [checkpoint]}),
            "CheckpointsRemoveFiles" => {
                json!({"checkpointUuids": [checkpoint], "checkpointGlobs": ["weights"]})
            }
            "PatchCheckpoints" => {
                json!({"checkpoints": [{"uuid": checkpoint, "resources": {"resources": {}}}]})
            }
            "PostCheckpointMetadata" => json!({"checkpoint": {"metadata": {"a": 1}}}),
            "PostTaskLogs" => json!({"logs": [log]}),
            "PostUnmanagedLogs" => json!([log]),
            "ReportTrialMetrics" => {
                self.made += 1;
                json!({"group": "training", "metrics": {"trialRunId": 1, "stepsCompleted": self.made,
                    "metrics": {"avgMetrics": {"loss": 1}}}})
            }
            "ReportTaskSystemMetrics" => json!({"agentId": "a", "reports": []}),
            "ReportSystemMetrics" => json!({"trialRunId": 1, "agentId": "a", "reports": [
                {"time": "2026-01-01T00:00:00Z", "groups": {"cpu": {"cpu_util_simple": 1}}}]}),
            "PostTrialProfilerMetricsBatch" => json!({"batches": [{
                "values": [1], "batches": [1], "timestamps": ["2026-01-01T00:00:00Z"],
                "labels": {"trialId": self.trial, "name": "gpu_util", "agentId": "a",
                    "metricType": "PROFILER_METRIC_TYPE_SYSTEM"}}]}),
            "ReportTrialProgress" => json!({"progress": 0.1}),
            // No supervisor answers here.
            "DiagnoseTrial" => json!({"timeoutSeconds": 0}),
            "ReportTrialSearcherEarlyExit" => {
                json!({"reason": "EXITED_REASON_USER_REQUESTED_STOP"})
            }
            "PostTrialRunnerMetadata" => json!({"state": "training"}),
            "PostRunMetadata" => json!({"metadata": {"a": 1}}),
            "RunPrepareForReporting" => json!({"runId": self.trial}),
            "AllocationAllGather" | "NotifyContainerRunning" => {
                json!({"requestUuid": self.made.to_string(), "numPeers": 1, "data": {}})
            }
            "PostAllocationAcceleratorData" => {
                json!({"acceleratorData": {"containerId": self.container}})
            }
            "PostAllocationProxyAddress" => json!({"proxyAddress": "127.0.0.1"}),
            "DisableAgent" | "DisableSlot" => json!({"drain": true}),
            "PostUser" => {
                self.made += 1;
                json!({"user": {"username": format!("user {}", self.made), "active": true}})
            }
            "PatchUser" => json!({"displayName": "Ada"}),
            "SetUserPassword" => json!("a long new password"),
            _ => Value::Null,
        }
    }
}

fn configuration(name: &str) -> Value {
    json!({
        "name": name,
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 0,
    })
}

/// The answer in the words of the table. Operations on many things answer 200 with a refusal for each.
fn class(status: u16, body: &Value) -> String {
    let refused_inside = body["results"][0]["error"]
        .as_str()
        .is_some_and(|text| text.contains("may not"));
    let dropped_inside = body["stored"] == 0 && body["dropped"] == 1;
    match status {
        200 if refused_inside || dropped_inside => "403".to_owned(),
        200 | 400 | 404 | 409 => "yes".to_owned(),
        other => other.to_string(),
    }
}

/// Operations that succeed only where there is a Kubernetes cluster: `namespaces.rs` shows that.
const IN_KUBERNETES: &[&str] = &[
    "DeleteWorkspaceNamespaceBindings",
    "SetWorkspaceNamespaceBindings",
];

#[tokio::test]
async fn every_caller_may_do_what_the_table_allows_and_no_more() {
    let mut world = World::new().await;
    let operations: BTreeMap<String, Operation> = operations()
        .into_iter()
        .map(|operation| (operation.name.clone(), operation))
        .collect();
    let mut wrong = Vec::new();
    for (name, expected) in table() {
        let operation = &operations[operation_of(name)];
        let mut answered = Vec::new();
        // Refusals first: what is done after all changes the world.
        let mut callers: Vec<(&str, &str)> = CALLERS.into_iter().zip(expected).collect();
        callers.sort_by_key(|(_, expected)| *expected == "yes");
        for (caller, expected) in callers {
            let client = world.caller(caller).await;
            let (path, body) = world.request(name, operation).await;
            let body = (!body.is_null()).then(|| body.to_string());
            let reply = client.whole(operation.method.clone(), &path, body).await;
            let body = serde_json::from_str(&reply.text).unwrap_or_default();
            let found = class(reply.status, &body);
            if found == "403" && reply.status == 403 && !reply.text.contains("forbidden") {
                wrong.push(format!("{name}, {caller}: no word of it in {reply:?}"));
            }
            if found != expected {
                wrong.push(format!("{name}, {caller}: {expected} expected, {reply:?}"));
            }
            if expected == "yes" {
                answered.push(reply);
            }
        }
        let is_possible = !IN_KUBERNETES.contains(&name);
        if is_possible && !answered.iter().any(|reply| reply.status == 200) {
            wrong.push(format!("{name} never succeeded: {answered:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} answers:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[tokio::test]
async fn only_agents_reach_the_agents_connection() {
    let world = World::new().await;
    for caller in CALLERS {
        // Nor does the token that all agents join with, on its own.
        let status = world.caller(caller).await.get(PATH).await.status;
        assert_eq!(status, 401, "{caller}");
    }
    let own = format!("Bearer {}", own_token("a1"));
    let agent = world.cluster.client().with("Authorization", own);
    // Without a WebSocket it goes no further than this.
    assert_eq!(agent.get(PATH).await.status, 400);
    // An agent's own token is no token of the API.
    assert_eq!(agent.get("/api/v1/me").await.status, 401);
    world.cluster.stop().await;
}

#[tokio::test]
async fn an_administrators_task_has_not_the_administrators_powers() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let task = cluster.client().as_task(&spec.script.token);
    for path in ["/api/v1/master/config", "/api/v1/master/logs"] {
        assert!(
            task.get(path).await.refused(403).contains("only users may"),
            "{path}"
        );
    }
    let path = "/api/v1/agents/a1/disable";
    assert!(
        task.post(path, json!({}))
            .await
            .refused(403)
            .contains("only users may")
    );
    cluster.stop().await;
}
