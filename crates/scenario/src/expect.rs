//! Compares the state of a pool with what a step expects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use det_ids::AllocationId;
use det_scheduler::{PoolSettings, WaitReason};
use serde_json::Value;

use crate::cluster::{Cluster, End, TaskState, task_name};
use crate::description::{Expectation, RunExpectation, WaitExpectation};
use crate::planning::{free_slots, order};
use crate::report::Mismatch;

/// The state that expectations are compared with.
pub(crate) struct PoolState<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) settings: &'a PoolSettings,
    /// Reasons of waiting tasks, by task number.
    pub(crate) reasons: &'a BTreeMap<usize, Arc<WaitReason>>,
    pub(crate) step: usize,
    pub(crate) line: Option<u32>,
}

impl PoolState<'_> {
    /// The expectations that are not met.
    pub(crate) fn compare(&self, expect: &Expectation) -> Vec<Mismatch> {
        let mut found = Vec::new();
        let mut check = |what: String, expected: String, is: String| {
            if expected != is {
                found.push(Mismatch {
                    step: self.step,
                    line: self.line,
                    what,
                    expected,
                    found: is,
                });
            }
        };
        for (name, presence) in &expect.running {
            let (expected, is) = self.presence(name, presence);
            check(format!("running.{name}"), expected, is);
        }
        for (name, waits) in &expect.waiting {
            let (expected, is) = self.waits(name, waits);
            check(format!("waiting.{name}"), expected, is);
        }
        if let Some(expected) = &expect.stopping {
            let is = list(&self.stopping());
            check("stopping".to_owned(), list(expected), is);
        }
        for (name, slots) in &expect.slots {
            let is = self.slots(name).to_string();
            check(format!("slots.{name}"), slots.to_string(), is);
        }
        for (name, parts) in &expect.parts {
            let is = format!("{:?}", self.parts(name));
            check(format!("parts.{name}"), format!("{parts:?}"), is);
        }
        for (name, ahead) in &expect.ahead {
            let expected = ahead.map_or("unknown".to_owned(), |n| n.to_string());
            check(format!("ahead.{name}"), expected, self.ahead(name));
        }
        for (name, completed) in &expect.completed {
            let is = self.completed(name).to_string();
            check(format!("completed.{name}"), completed.to_string(), is);
        }
        if let Some(free) = expect.free {
            let is = free_slots(self.cluster, self.settings).to_string();
            check("free".to_owned(), free.to_string(), is);
        }
        found
    }

    fn tasks(&self, name: &str) -> Vec<usize> {
        self.cluster.names.of(name)
    }

    fn presence(&self, name: &str, presence: &RunExpectation) -> (String, String) {
        let tasks = self.tasks(name);
        let parts: Vec<&Vec<(String, Vec<u32>)>> = tasks
            .iter()
            .filter_map(|number| self.cluster.tasks[*number].running())
            .map(|running| &running.parts)
            .collect();
        match presence {
            RunExpectation::Tasks(number) => (number.to_string(), parts.len().to_string()),
            RunExpectation::On(agents) => {
                let is = parts.iter().flat_map(|parts| parts.iter());
                let is: BTreeSet<String> = is.map(|(agent, _)| agent.clone()).collect();
                (list(agents), list(&is))
            }
            RunExpectation::Slots(slots) => {
                let mut is: BTreeMap<String, u64> = BTreeMap::new();
                for (agent, numbers) in parts.iter().flat_map(|parts| parts.iter()) {
                    *is.entry(agent.clone()).or_default() += numbers.len() as u64;
                }
                (format!("{slots:?}"), format!("{is:?}"))
            }
        }
    }

    fn waits(&self, name: &str, waits: &WaitExpectation) -> (String, String) {
        let reasons: Vec<&WaitReason> = self
            .tasks(name)
            .iter()
            .filter_map(|number| self.reasons.get(number).map(Arc::as_ref))
            .collect();
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        for reason in &reasons {
            *kinds.entry(reason.kind().name().to_owned()).or_default() += 1;
        }
        match waits {
            WaitExpectation::Tasks(number) => (number.to_string(), reasons.len().to_string()),
            WaitExpectation::Because(kind) => {
                let kinds: BTreeSet<String> = kinds.into_keys().collect();
                (kind.clone(), list(&kinds))
            }
            WaitExpectation::Kinds(expected) => {
                let expected = expected.iter().filter(|(_, number)| **number > 0);
                let expected: BTreeMap<&String, &u64> = expected.collect();
                (format!("{expected:?}"), format!("{kinds:?}"))
            }
            WaitExpectation::Reason(fields) => self.fields(fields, &reasons),
        }
    }

    /// The expected fields, and their values in the reasons found.
    fn fields(
        &self,
        fields: &BTreeMap<String, Value>,
        reasons: &[&WaitReason],
    ) -> (String, String) {
        let text = |fields: &BTreeMap<String, Value>| {
            let fields: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{key}: {value}"))
                .collect();
            fields.join(", ")
        };
        let found: BTreeSet<String> = reasons
            .iter()
            .map(|reason| {
                let whole = serde_json::to_value(reason).unwrap_or_default();
                let own = fields
                    .keys()
                    .map(|key| (key.clone(), self.by_task(whole[key].clone())));
                text(&own.collect())
            })
            .collect();
        (text(fields), list(&found))
    }

    /// Allocations are named by their tasks in expectations.
    fn by_task(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(task_name(self.cluster, &AllocationId(text))),
            Value::Array(items) => items.into_iter().map(|item| self.by_task(item)).collect(),
            other => other,
        }
    }

    fn stopping(&self) -> BTreeSet<String> {
        self.cluster
            .live
            .iter()
            .map(|number| &self.cluster.tasks[*number])
            .filter(|task| task.running().is_some_and(|running| running.stop.is_some()))
            .map(|task| task.name.clone())
            .collect()
    }

    fn slots(&self, name: &str) -> u64 {
        self.tasks(name)
            .iter()
            .filter_map(|number| self.cluster.tasks[*number].running())
            .filter(|running| running.stop.is_none())
            .flat_map(|running| &running.parts)
            .map(|(_, slots)| slots.len() as u64)
            .sum()
    }

    fn parts(&self, name: &str) -> Vec<usize> {
        let mut sizes: Vec<usize> = self
            .tasks(name)
            .iter()
            .filter_map(|number| self.cluster.tasks[*number].running())
            .flat_map(|running| &running.parts)
            .map(|(_, slots)| slots.len())
            .collect();
        sizes.sort_unstable();
        sizes.reverse();
        sizes
    }

    fn ahead(&self, name: &str) -> String {
        match order(self.cluster, self.settings) {
            None => "unknown".to_owned(),
            Some(order) => match order.iter().position(|job| *job == name) {
                Some(ahead) => ahead.to_string(),
                None => "not in the queue".to_owned(),
            },
        }
    }

    fn completed(&self, name: &str) -> usize {
        let done = |number: &&usize| {
            matches!(
                self.cluster.tasks[**number].state,
                TaskState::Ended(End::Completed, _)
            )
        };
        self.tasks(name).iter().filter(done).count()
    }
}

fn list(names: &BTreeSet<String>) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().cloned().collect::<Vec<_>>().join(", ")
}
