//! Random orders of everything that can happen to a manager: tasks that start and are killed, nodes that go, pods that are
//! evicted and deleted by hand, an API that fails, is away, drops watches, or shows things late and twice, and masters that are
//! restarted. When all of that has ended, what rows want is so, nothing was started twice, and nothing is left over.
//!
//! The seeds are played side by side, each over an API of its own. What is done, and in which order, is the seed's; how far
//! the manager has come by then is the machine's. `DET_SCHEDULE_SEEDS=200` plays more of them, `DET_SCHEDULE_SEED=7` only
//! that one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use det_ids::ContainerId;
use det_lifecycle::container::{DesiredState, ObservedState};
use det_rm_contract::TestCore;
use det_taskspec::ContainerExit;
use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::support::{Scene, containers_of, named, running, terminated};

const SEEDS: u64 = 12;
const STEPS: usize = 45;
const NODES: [&str; 4] = ["a", "b", "c", "d"];
const GPUS: u32 = 4;
/// Schedules that are played at a time: they wait for each other's processor, and otherwise for the clock.
const SIDE_BY_SIDE: usize = 24;
/// How long a step waits for a request that may never come.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// How long everything may take to be as it should when all faults have ended: some pauses of the manager are half a minute.
const QUIESCENT_WITHIN: Duration = Duration::from_mins(1);
const RESTART: &str = "the master is restarted";
const WATCHED: [&str; 3] = ["nodes", "pods", "jobs"];

/// Numbers that look random: `SplitMix64`.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let rolled = (z ^ (z >> 31)) % u64::try_from(sides).unwrap();
        usize::try_from(rolled).unwrap()
    }

    fn pick<'t, T>(&mut self, of: &'t [T]) -> Option<&'t T> {
        (!of.is_empty()).then(|| &of[self.roll(of.len())])
    }
}

/// A schedule that is played.
struct Schedule {
    scene: Scene,
    dice: Dice,
    ids: Vec<ContainerId>,
    /// How containers ended, when that was first seen.
    ends: BTreeMap<ContainerId, ContainerExit>,
    foreign: usize,
    /// What was done, for messages.
    done: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_in_whatever_order_ends_as_rows_want() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("DET_SCHEDULE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("DET_SCHEDULE_SEEDS").unwrap_or(SEEDS) + 1,
    };
    let played = futures::stream::iter(seeds).map(|seed| async move {
        let played = tokio::spawn(play(seed)).await;
        let fault = match played {
            Ok(played) => played.err(),
            Err(panic) => Some(panic.to_string()),
        };
        fault.map(|fault| format!("DET_SCHEDULE_SEED={seed}: {fault}"))
    });
    let played: Vec<Option<String>> = played.buffer_unordered(SIDE_BY_SIDE).collect().await;
    let faults: Vec<String> = played.into_iter().flatten().collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

async fn play(seed: u64) -> Result<(), String> {
    let mut schedule = Schedule {
        scene: Scene::start_with(TestCore::default(), |settings| {
            settings.start_within = Duration::from_secs(5);
        })
        .await,
        dice: Dice(seed),
        ids: Vec::new(),
        ends: BTreeMap::new(),
        foreign: 0,
        done: Vec::new(),
    };
    for node in NODES {
        schedule.scene.api.add_node(node, GPUS);
    }
    let played = schedule.run().await;
    let summary = schedule.scene.api.objects().summary();
    schedule.scene.stop().await;
    played.map_err(|fault| format!("{fault}; {}; {summary}", schedule.done.join(", ")))
}

impl Schedule {
    async fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.step().await;
            let times = [0, 1, 2, 6][self.dice.roll(4)];
            self.go_on(times).await;
            self.note_ends()?;
        }
        self.end_faults();
        self.becomes("what is to run runs", Self::runs).await?;
        let live = self.live();
        for id in &live {
            match self.dice.roll(3) {
                0 => self.want_of_gang(id, DesiredState::Kill),
                1 => self.want_of_gang(id, DesiredState::Stop),
                _ => end(&self.scene, id, 0),
            }
        }
        self.becomes("everything has ended", Self::has_ended)
            .await?;
        self.nothing_ran_twice()
    }

    /// The manager goes on for a while: until something has come to the API so many times, unless nothing comes any more.
    async fn go_on(&self, times: usize) {
        let objects = self.scene.api.objects();
        for _ in 0..times {
            let next = objects.next_activity();
            // Nothing comes while the manager waits for the clock, or for the test.
            drop(tokio::time::timeout(LONGEST_WAIT, next).await);
        }
    }

    /// One event of the schedule, drawn by chance.
    async fn step(&mut self) {
        match self.dice.roll(20) {
            0..=3 => self.start(),
            4 => self.start_gang(),
            5 => self.want(),
            6..=8 => self.kubelet(),
            9 => self.lose_node(),
            10 => self.lose_pod(),
            11 => self.delete_by_hand(),
            12 => self.foreign_pod(),
            13 | 14 => self.fail_requests(),
            15 => self.be_away().await,
            16 => self.break_watches(),
            17 => self.show_late_or_twice(),
            18 => self.restart().await,
            _ => self.delay_answers().await,
        }
    }

    fn log(&mut self, what: String) {
        self.done.push(what);
    }

    /// Containers that have not ended, as rows have it.
    fn live(&self) -> Vec<ContainerId> {
        let core = &self.scene.core;
        let live = self.ids.iter().filter(|id| !core.row(id).ended);
        live.cloned().collect()
    }

    /// Slots of a place that no row holds.
    fn free(&self, node: &str) -> u32 {
        let Some(joined) = self.scene.core.served(node) else {
            return 0;
        };
        let all = joined.capacity.slots().len() - joined.capacity.used_by_others(|_| false).len();
        let rows = self.live().into_iter().map(|id| self.scene.core.row(&id));
        let held = rows.filter(|row| row.place.as_str() == node);
        let held: u32 = held.map(|row| row.slots).sum();
        u32::try_from(all).unwrap().saturating_sub(held)
    }

    fn start(&mut self) {
        let slots = 1 + u32::from(self.dice.roll(2) == 1);
        let fitting: Vec<&str> = NODES
            .into_iter()
            .filter(|it| self.free(it) >= slots)
            .collect();
        let Some(node) = self.dice.pick(&fitting).copied() else {
            return;
        };
        let name = format!("t{}", self.ids.len());
        self.log(format!("{name} starts on {node}"));
        self.ids.push(self.scene.core.place(node, &name, slots));
    }

    fn start_gang(&mut self) {
        let fitting: Vec<&str> = NODES.into_iter().filter(|it| self.free(it) > 0).collect();
        if fitting.len() < 2 {
            return;
        }
        let names: Vec<String> = (0..fitting.len())
            .map(|rank| format!("t{}", self.ids.len() + rank))
            .collect();
        let gang = fitting.iter().zip(&names);
        let gang: Vec<(&str, &str, u32)> =
            gang.map(|(node, name)| (*node, name.as_str(), 1)).collect();
        self.log(format!("{} start together", names.join(" ")));
        self.ids.extend(self.scene.core.place_gang(&gang));
    }

    fn want(&mut self) {
        let live = self.live();
        if let Some(id) = self.dice.pick(&live).cloned() {
            let wanted = [DesiredState::Kill, DesiredState::Stop][self.dice.roll(2)];
            self.log(format!("{id} is to {wanted:?}"));
            self.want_of_gang(&id, wanted);
        }
    }

    /// The containers of an allocation are wanted to end together.
    fn want_of_gang(&self, id: &ContainerId, wanted: DesiredState) {
        let core = &self.scene.core;
        let gang = core.row(id).gang;
        for id in self.ids.iter().filter(|id| core.row(id).gang == gang) {
            core.want(id, wanted);
        }
    }

    /// A kubelet does something with one of its pods.
    fn kubelet(&mut self) {
        let pods = self.scene.api.list("v1/pods", "");
        if let Some(pod) = self.dice.pick(&pods) {
            let code = [0, 0, 3][self.dice.roll(3)];
            serve_pod(&self.scene, pod, Some(code));
        }
    }

    fn lose_node(&mut self) {
        let node = NODES[self.dice.roll(NODES.len())];
        let api = &self.scene.api;
        let exists = api.get("v1/nodes", "", node).is_some();
        match (exists, self.dice.roll(3)) {
            (false, _) => api.add_node(node, GPUS),
            (true, 0) => api.remove_node(node),
            (true, is_ready) => api.set_node_ready(node, is_ready == 1),
        }
        self.log(format!("node {node} changes"));
    }

    /// A pod is evicted, or fails for its node.
    fn lose_pod(&mut self) {
        let pods = self.scene.api.list("v1/pods", "");
        let Some(pod) = self.dice.pick(&pods) else {
            return;
        };
        let (namespace, name) = named(pod);
        let reason = [
            "EvictionByEvictionAPI",
            "DeletionByTaintManager",
            "PreemptionByScheduler",
        ];
        let reason = reason[self.dice.roll(reason.len())];
        let condition =
            json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "message": ""});
        let mut status = json!({"conditions": [condition]});
        let fails = self.dice.roll(2) == 1;
        if fails {
            status["phase"] = "Failed".into();
        }
        self.scene.api.set_pod_status(&namespace, &name, &status);
        // What a failed pod leads to may have removed it.
        if !fails && self.scene.api.get("v1/pods", &namespace, &name).is_some() {
            self.scene.api.delete("v1/pods", &namespace, &name);
        }
        self.log(format!("pod {name} is lost"));
    }

    fn delete_by_hand(&mut self) {
        let kind = ["batch/v1/jobs", "v1/pods", "v1/secrets", "v1/services"][self.dice.roll(4)];
        let objects = self.scene.api.list(kind, "");
        if let Some(object) = self.dice.pick(&objects) {
            let (namespace, name) = named(object);
            self.scene.api.delete(kind, &namespace, &name);
            self.log(format!("{kind} {name} is deleted by hand"));
        }
    }

    fn foreign_pod(&mut self) {
        let node = NODES[self.dice.roll(NODES.len())];
        let (api, name) = (&self.scene.api, format!("foreign-{}", self.foreign));
        if self.dice.roll(3) == 0 && api.get("v1/pods", "default", &name).is_some() {
            api.patch(
                "v1/pods",
                "default",
                &name,
                &json!({"status": {"phase": "Succeeded"}}),
            );
        } else {
            self.foreign += 1;
            let name = format!("foreign-{}", self.foreign);
            self.scene.foreign_pod(&name, node, 1);
        }
        self.log(format!("a foreign pod changes on {node}"));
    }

    fn fail_requests(&mut self) {
        let calls = [
            ("POST", "jobs"),
            ("POST", "secrets"),
            ("POST", "services"),
            ("PATCH", "secrets"),
            ("PATCH", "pods"),
            ("DELETE", "jobs"),
            ("DELETE", "pods"),
            ("GET", "secrets"),
            ("WATCH", "pods"),
            ("WATCH", "jobs"),
            ("GET", "pods"),
        ];
        let (method, plural) = calls[self.dice.roll(calls.len())];
        let code = [409, 410, 429, 500, 503][self.dice.roll(5)];
        let times = 1 + self.dice.roll(3);
        self.log(format!("{times} {method} {plural} fail with {code}"));
        self.scene
            .api
            .faults()
            .fail_next(method, plural, code, times);
    }

    async fn be_away(&mut self) {
        self.log("the API is away".to_owned());
        let faults = self.scene.api.faults();
        faults.unreachable(true);
        self.go_on(3).await;
        faults.unreachable(false);
    }

    fn break_watches(&mut self) {
        let faults = self.scene.api.faults();
        if self.dice.roll(2) == 1 {
            faults.compact();
        }
        faults.drop_watches();
        self.log("watches break off".to_owned());
    }

    fn show_late_or_twice(&mut self) {
        let plural = WATCHED[self.dice.roll(WATCHED.len())];
        let (faults, is_on) = (self.scene.api.faults(), self.dice.roll(2) == 1);
        if self.dice.roll(2) == 1 {
            faults.delay_watches(plural, is_on);
            self.log(format!("{plural} are late: {is_on}"));
        } else {
            faults.double_watches(plural, is_on);
            self.log(format!("{plural} are shown twice: {is_on}"));
        }
    }

    async fn restart(&mut self) {
        self.log(RESTART.to_owned());
        self.scene.stop().await;
        self.scene.core.restart();
        self.scene.begin();
    }

    /// Writes are carried out and answered later, or never where the connection is cut.
    async fn delay_answers(&mut self) {
        let faults = self.scene.api.faults();
        faults.delay_writes(true);
        self.go_on(2).await;
        if self.dice.roll(2) == 1 {
            faults.unreachable(true);
            faults.unreachable(false);
        }
        faults.delay_writes(false);
        self.log("answers are late".to_owned());
    }

    /// Nothing is wrong any more, and all nodes exist.
    fn end_faults(&mut self) {
        self.log("faults end".to_owned());
        let faults = self.scene.api.faults();
        faults.fail_no_more();
        for plural in WATCHED {
            faults.delay_watches(plural, false);
            faults.double_watches(plural, false);
        }
        for node in NODES {
            if self.scene.api.get("v1/nodes", "", node).is_none() {
                self.scene.api.add_node(node, GPUS);
            }
            self.scene.api.set_node_ready(node, true);
        }
        for pod in self.scene.api.list("v1/pods", "default") {
            let (namespace, name) = named(&pod);
            if name.starts_with("foreign-") {
                self.scene.api.delete("v1/pods", &namespace, &name);
            }
        }
    }

    /// Kubelets serve all pods until this is so.
    async fn becomes(
        &mut self,
        what: &str,
        is_so: impl Fn(&Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let began = Instant::now();
        loop {
            for pod in self.scene.api.list("v1/pods", "") {
                serve_pod(&self.scene, &pod, None);
            }
            self.go_on(1).await;
            self.note_ends()?;
            match is_so(self) {
                Ok(()) => return Ok(()),
                Err(fault) if began.elapsed() > QUIESCENT_WITHIN => {
                    return Err(format!("{what}, but {fault}"));
                }
                Err(_) => {}
            }
        }
    }

    /// A container ends once, in one way.
    fn note_ends(&mut self) -> Result<(), String> {
        for id in &self.ids {
            let row = self.scene.core.row(id);
            let Some(exit) = row.exit().filter(|_| row.ended) else {
                continue;
            };
            let known = self.ends.entry(id.clone()).or_insert_with(|| exit.clone());
            if known != exit {
                return Err(format!("{id} ended by {known:?} and then by {exit:?}"));
            }
        }
        // As the master does: what is left of an allocation ends with the first of it.
        let rows = self.ids.iter().map(|id| self.scene.core.row(id));
        let ended: BTreeSet<ContainerId> =
            rows.filter(|row| row.ended).map(|row| row.gang).collect();
        for gang in &ended {
            self.want_of_gang(gang, DesiredState::Kill);
        }
        Ok(())
    }

    /// Each container that is to run has one Job, one pod that runs, and is known to; each other one has ended.
    fn runs(&self) -> Result<(), String> {
        let jobs = self.scene.api.list("batch/v1/jobs", "");
        let mut wanted = 0;
        for id in &self.ids {
            let row = self.scene.core.row(id);
            let own: Vec<&Value> = jobs
                .iter()
                .filter(|it| containers_of(it).contains(id))
                .collect();
            if row.ended {
                // Those of its gang may run on.
                continue;
            }
            wanted += 1;
            if row.desired != DesiredState::Run {
                return Err(format!("{id} has not ended: {row:?}"));
            }
            let pod = self.scene.pod_of(id);
            let phase = pod.map(|pod| pod.object["status"]["phase"].clone());
            let is_known = matches!(row.observed, Some(ObservedState::Running { .. }));
            if own.len() != 1 || phase != Some("Running".into()) || !is_known {
                return Err(format!("{id} has {} Jobs, {phase:?}, {row:?}", own.len()));
            }
        }
        let left = jobs.iter().flat_map(containers_of).collect::<BTreeSet<_>>();
        let of_none = left.iter().find(|id| {
            let gang = &self.scene.core.row(id).gang;
            let rows = self.ids.iter().map(|id| self.scene.core.row(id));
            let mut gang = rows.filter(|row| row.gang == *gang);
            gang.all(|row| row.ended)
        });
        match of_none {
            Some(id) => Err(format!(
                "{id} has ended, has a Job, and {wanted} others run"
            )),
            None => Ok(()),
        }
    }

    /// Everything has ended, and nothing of it is left.
    fn has_ended(&self) -> Result<(), String> {
        if let Some(id) = self.live().first() {
            return Err(format!("{id} has not ended: {:?}", self.scene.core.row(id)));
        }
        for kind in ["batch/v1/jobs", "v1/secrets", "v1/services", "v1/pods"] {
            let left = self.scene.api.list(kind, "");
            let mut left = left.iter().filter(|it| !self.may_be_left(it));
            if let Some(left) = left.next() {
                return Err(format!("{kind} {} is left", named(left).1));
            }
        }
        match self.scene.core.health("k") {
            health if health.is_up() => Ok(()),
            health => Err(format!("the manager's health is {health:?}")),
        }
    }

    /// Whether an object is a Secret that has no owner because the master was restarted before it could give it one: if the
    /// next master ends as well, after the task has ended and before it has deleted the Secret, nothing leads to that any more,
    /// and the master has no right to list Secrets.
    fn may_be_left(&self, object: &Value) -> bool {
        let is_secret = object["stringData"].is_object() || object["data"].is_object();
        let has_owner = object["metadata"]["ownerReferences"].is_array();
        is_secret && !has_owner && self.done.iter().any(|it| it == RESTART)
    }

    /// No container has had two Jobs with pods that ran, or two such pods.
    fn nothing_ran_twice(&self) -> Result<(), String> {
        let objects = self.scene.api.objects();
        let made = objects.past("batch/v1/jobs", |job| {
            let is_ours = job["metadata"]["annotations"]["determined.ai/containers"].is_string();
            let uid = job["metadata"]["uid"].as_str().filter(|_| is_ours)?;
            Some((uid.to_owned(), containers_of(job)))
        });
        let made: BTreeMap<String, Vec<ContainerId>> = made.into_iter().collect();
        let ran = objects.past("v1/pods", |pod| {
            let runs = pod["status"]["phase"] == "Running";
            let job = pod["metadata"]["ownerReferences"][0]["uid"].as_str();
            let index = &pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"];
            let index: usize = index.as_str().unwrap_or("0").parse().ok()?;
            let containers = made.get(job.filter(|_| runs)?)?;
            let id = containers.get(index)?.to_string();
            Some((id, pod["metadata"]["uid"].as_str()?.to_owned()))
        });
        let mut pods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (id, uid) in ran {
            pods.entry(id).or_default().insert(uid);
        }
        match pods.into_iter().find(|(_, pods)| pods.len() > 1) {
            Some((id, pods)) => Err(format!("{id} ran in {} pods", pods.len())),
            None => Ok(()),
        }
    }
}

/// The code of a container ends, if it runs.
fn end(scene: &Scene, id: &ContainerId, code: i32) {
    if let Some(pod) = scene.pod_of(id)
        && pod.object["status"]["phase"] == "Running"
    {
        scene.set_status(&pod, &terminated(&ContainerExit::Exited { code }));
    }
}

/// What a kubelet does with a pod next: it runs it, ends it with this code, or ends its deletion.
fn serve_pod(scene: &Scene, pod: &Value, code: Option<i32>) {
    let (namespace, name) = named(pod);
    let is_ours = pod["metadata"]["labels"]["determined.ai/cluster_id"].is_string();
    // What was done to another pod meanwhile may have removed this one.
    let Some(pod) = scene.api.get("v1/pods", &namespace, &name) else {
        return;
    };
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    let node = scene.api.get("v1/nodes", "", node);
    let is_ready = node.is_some_and(|node| {
        let conditions = node["status"]["conditions"].as_array().cloned();
        let mut conditions = conditions.unwrap_or_default().into_iter();
        conditions.any(|it| it["type"] == "Ready" && it["status"] == "True")
    });
    if !is_ready {
        return;
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return scene.api.finish_deletion(&namespace, &name);
    }
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let status = match (phase, code) {
        _ if !is_ours => return,
        ("Pending" | "", _) => running(),
        ("Running", Some(code)) => terminated(&ContainerExit::Exited { code }),
        _ => return,
    };
    scene.api.set_pod_status(&namespace, &name, &status);
}
