//! Averages of samples.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

/// A group of system metrics; the PyPI package's profiler has the same ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    Gpu,
    Cpu,
    Memory,
    Disk,
    Network,
}

impl Group {
    /// Its name among the trial's metric groups.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Network => "network",
        }
    }
}

/// Sum and number of the values of one metric.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    sum: f64,
    count: u32,
}

/// What was measured since the last report.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Averages {
    /// By group, label (a GPU, a path; empty = none) and name.
    sums: BTreeMap<(Group, String, &'static str), Sum>,
}

impl Averages {
    /// Adds a value of a metric that has no label.
    pub(crate) fn add(&mut self, group: Group, name: &'static str, value: f64) {
        self.add_of(group, "", name, value);
    }

    /// Adds a value of the GPU or path `label`.
    pub(crate) fn add_of(&mut self, group: Group, label: &str, name: &'static str, value: f64) {
        if value.is_finite() {
            let sum = self
                .sums
                .entry((group, label.to_owned(), name))
                .or_default();
            sum.sum += value;
            sum.count += 1;
        }
    }

    /// How many GPUs or paths there are values of, at most.
    pub(crate) fn labels(&self) -> usize {
        self.sums.len() / 2
    }

    /// The averages by group, in the form of the PyPI package below the agent's id: `{name: value}`, or
    /// `{label: {name: value}}`.
    pub(crate) fn document(&self) -> Map<String, Value> {
        let mut groups: Map<String, Value> = Map::new();
        for ((group, label, name), sum) in &self.sums {
            let average = Number::from_f64(sum.sum / f64::from(sum.count));
            let Some(average) = average else { continue };
            let mut place = groups.entry(group.name()).or_insert_with(object);
            if !label.is_empty() {
                let Value::Object(map) = place else { continue };
                place = map.entry(label.as_str()).or_insert_with(object);
            }
            if let Value::Object(map) = place {
                map.insert((*name).to_owned(), Value::Number(average));
            }
        }
        groups
    }
}

fn object() -> Value {
    Value::Object(Map::new())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn samples_are_averaged_in_the_form_of_the_profiler() {
        let mut averages = Averages::default();
        for value in [10.0, 20.0] {
            averages.add(Group::Cpu, "cpu_util_simple", value);
            averages.add_of(Group::Gpu, "GPU-1", "gpu_util", value * 2.0);
        }
        averages.add_of(Group::Disk, "/", "disk_util", 50.0);
        averages.add(Group::Disk, "disk_iops", f64::NAN);
        averages.add(Group::Disk, "disk_throughput_read", 1.5);
        assert_eq!(
            Value::Object(averages.document()),
            json!({
                "cpu": {"cpu_util_simple": 15.0},
                "gpu": {"GPU-1": {"gpu_util": 30.0}},
                "disk": {"/": {"disk_util": 50.0}, "disk_throughput_read": 1.5},
            })
        );
    }
}
