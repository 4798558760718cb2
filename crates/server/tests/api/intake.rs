//! Taking in metrics: whatever happens between a report and the moment when a client reads, the same is seen.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::experiments::{config, create};
use crate::support::{Client, Cluster};
use crate::trials::{metrics, running};

const PATH: &str = "/api/v1/trials/1/metrics";
const NAMES: [&str; 3] = ["loss", "accuracy", "epoch"];

/// Numbers that are the same for the same seed (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What was acknowledged, kept in the simplest way: by group, the values of each step.
#[derive(Default)]
struct Oracle {
    groups: BTreeMap<&'static str, BTreeMap<i64, Map<String, Value>>>,
    latest: BTreeMap<(&'static str, String), Value>,
}

impl Oracle {
    /// Whether the values contradict what is stored.
    fn contradicted_by(&self, group: &str, step: i64, values: &Map<String, Value>) -> bool {
        self.groups
            .get(group)
            .and_then(|steps| steps.get(&step))
            .is_some_and(|known| {
                values
                    .iter()
                    .any(|(name, value)| known.get(name).is_some_and(|k| k != value))
            })
    }

    fn take(&mut self, group: &'static str, step: i64, values: Map<String, Value>) {
        let known = self
            .groups
            .entry(group)
            .or_default()
            .entry(step)
            .or_default();
        for (name, value) in values {
            if !known.contains_key(&name) {
                self.latest.insert((group, name.clone()), value.clone());
                known.insert(name, value);
            }
        }
    }

    /// Compares with what the master shows.
    async fn check(&self, client: &Client, context: &str) {
        let trial = client.get("/api/v1/trials/1").await.ok()["trial"].clone();
        let mut highest = 0;
        for (group, steps) in &self.groups {
            let shown = &trial["summaryMetrics"][match *group {
                "training" => "avg_metrics",
                "validation" => "validation_metrics",
                other => other,
            }];
            for name in NAMES {
                let values: Vec<f64> = steps
                    .values()
                    .filter_map(|v| v.get(name)?.as_f64())
                    .collect();
                let Some(latest) = self.latest.get(&(*group, name.to_owned())) else {
                    assert_eq!(shown[name], Value::Null, "{context}: {group} {name}");
                    continue;
                };
                let summary = &shown[name];
                assert_eq!(summary["count"], values.len(), "{context}: {group} {name}");
                assert_eq!(&summary["last"], latest, "{context}: {group} {name}");
                // Quarters: sums are exact in any order.
                assert_eq!(
                    summary["sum"].as_f64().unwrap().to_bits(),
                    values.iter().sum::<f64>().to_bits(),
                    "{context}: {group} {name}"
                );
            }
            if *group != "mine" {
                highest = highest.max(steps.keys().copied().max().unwrap_or(0));
            }
            let stream = client
                .get(&format!(
                    "/api/v1/trials/metrics/trial_metrics?trialIds=1&group={group}"
                ))
                .await
                .lines();
            let key = if *group == "validation" {
                "validation_metrics"
            } else {
                "avg_metrics"
            };
            let streamed: Vec<(i64, Value)> = stream
                .iter()
                .flat_map(|message| message["metrics"].as_array().unwrap())
                .map(|r| {
                    (
                        r["totalBatches"].as_i64().unwrap(),
                        r["metrics"][key].clone(),
                    )
                })
                .collect();
            let wanted: Vec<(i64, Value)> = steps
                .iter()
                .map(|(step, values)| (*step, Value::Object(values.clone())))
                .collect();
            assert_eq!(streamed, wanted, "{context}: {group}");
        }
        assert_eq!(trial["totalBatchesProcessed"], highest, "{context}");
        let best = self
            .groups
            .get("validation")
            .into_iter()
            .flatten()
            .filter_map(|(_, v)| v["loss"].as_f64());
        let best = best.min_by(f64::total_cmp);
        assert_eq!(
            trial["bestValidation"]["metrics"]["avgMetrics"]["loss"].as_f64(),
            best,
            "{context}"
        );
    }
}

#[tokio::test]
async fn repeats_reads_and_restarts_in_any_order_show_the_same() {
    for seed in 1..=4_u64 {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut oracle = Oracle::default();
        let mut cluster = Cluster::start().await;
        let (mut _agent, spec, mut task) = running(&cluster).await;
        let mut sent: Vec<(&'static str, i64, Map<String, Value>)> = Vec::new();
        for turn in 0..60 {
            let context = format!("seed {seed}, turn {turn}");
            match numbers.below(12) {
                0 => {
                    let client = cluster.determined().await;
                    oracle.check(&client, &context).await;
                }
                1 if turn % 4 == 0 => {
                    cluster = cluster.restart().await;
                    task = cluster.client().as_task(&spec.script.token);
                }
                // A repeat of something earlier, whole.
                2 | 3 if !sent.is_empty() => {
                    let at = usize::try_from(numbers.below(sent.len() as u64)).unwrap();
                    let (group, step, values) = sent[at].clone();
                    task.post(PATH, metrics(group, 1, step, &Value::Object(values)))
                        .await
                        .ok();
                }
                _ => {
                    let group = ["training", "mine", "validation"]
                        [usize::try_from(numbers.below(3)).unwrap()];
                    let step = i32::try_from(numbers.below(12)).unwrap();
                    let mut values = Map::new();
                    for name in NAMES {
                        if name == "loss" && group == "validation" || numbers.below(2) == 0 {
                            // Mostly what the step always reports; now and then something else.
                            let odd = numbers.below(20) == 0;
                            let size = i32::try_from(name.len()).unwrap();
                            let value = f64::from(step * 3 + size) / 4.0 + f64::from(u8::from(odd));
                            values.insert(name.to_owned(), json!(value));
                        }
                    }
                    if values.is_empty() {
                        continue;
                    }
                    let step = i64::from(step);
                    let reply = task
                        .post(
                            PATH,
                            metrics(group, 1, step, &Value::Object(values.clone())),
                        )
                        .await;
                    if oracle.contradicted_by(group, step, &values) {
                        reply.refused(409);
                    } else {
                        reply.ok();
                        sent.push((group, step, values.clone()));
                        oracle.take(group, step, values);
                    }
                }
            }
        }
        let client = cluster.determined().await;
        oracle
            .check(&client, &format!("seed {seed}, at the end"))
            .await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn a_newer_run_outdates_what_has_not_been_read_yet() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut agent = cluster.agent("a1", 1).await;
    let mut restarted = config("restarted");
    restarted["max_restarts"] = json!(1);
    create(&client, &restarted, true).await;
    let spec = agent.next_start().await;
    agent.runs(&spec).await;
    let task = cluster.client().as_task(&spec.script.token);
    for step in 1..=3 {
        for group in ["training", "validation"] {
            let values = json!({"loss": 0.25 * f64::from(step)});
            task.post(PATH, metrics(group, 1, step.into(), &values))
                .await
                .ok();
        }
    }
    agent.exits(&spec, 1).await;
    // It may drop the older container.
    agent.receive().await;
    let spec = agent.next_start().await;
    agent.runs(&spec).await;
    let newer = cluster.client().as_task(&spec.script.token);
    newer
        .post(PATH, metrics("training", 2, 2, &json!({"loss": 8.0})))
        .await
        .ok();
    // The older run is refused, no matter which user speaks for it.
    assert!(
        client
            .post(PATH, metrics("training", 1, 4, &json!({"loss": 9.0})))
            .await
            .refused(400)
            .contains("run 1")
    );
    let trial = client.get("/api/v1/trials/1").await.ok()["trial"].clone();
    assert_eq!(trial["totalBatchesProcessed"], 2);
    let training = &trial["summaryMetrics"]["avg_metrics"]["loss"];
    assert_eq!(
        (&training["count"], &training["sum"]),
        (&json!(2), &json!(8.25))
    );
    let validation = &trial["summaryMetrics"]["validation_metrics"]["loss"];
    assert_eq!(validation["count"], 2, "step 3 is outdated, step 2 is not");
    cluster.stop().await;
}

#[tokio::test]
async fn reports_of_many_connections_are_all_there_once() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let mut reporters = tokio::task::JoinSet::new();
    for reporter in 0..8_i64 {
        let task = task.clone();
        reporters.spawn(async move {
            for step in 0..40 {
                let values = json!({format!("m{reporter}"): 1});
                // Each report twice, as after a lost answer.
                for _ in 0..2 {
                    task.post(PATH, metrics("training", 1, step, &values))
                        .await
                        .ok();
                }
            }
        });
    }
    while let Some(done) = reporters.join_next().await {
        done.unwrap();
    }
    let client = cluster.determined().await;
    let trial = client.get("/api/v1/trials/1").await.ok()["trial"].clone();
    for reporter in 0..8 {
        let summary = &trial["summaryMetrics"]["avg_metrics"][format!("m{reporter}")];
        assert_eq!(
            (&summary["count"], &summary["sum"]),
            (&json!(40), &json!(40.0))
        );
    }
    cluster.stop().await;
}
