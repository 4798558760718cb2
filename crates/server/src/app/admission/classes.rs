//! The priority of work that has its place in the queue by a `PriorityClass` of its pod spec, since its configuration names no
//! priority.

use std::time::Duration;

use det_config::policies::Policies;
use det_ids::PriorityOrder;
use det_rm::ClassValue;

use super::Admission;

/// How long a cluster may take to answer while a submission waits.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The priority that work gets by a class, and what its user should know of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassPriority {
    /// 1 to 99; `None` = that of work which names none.
    pub(crate) priority: Option<u8>,
    /// What is not as the class has it.
    pub(crate) warning: Option<String>,
}

impl Admission {
    /// The priority of work in a pool by the class of its pods. `limit` = that of the policies.
    pub(crate) async fn priority_of_class(
        &self,
        class: &str,
        pool: &str,
        limit: Option<u8>,
    ) -> ClassPriority {
        let managers = self.managers.list();
        let of_pool = self.managers.of_pool(pool);
        let manager = of_pool.and_then(|(name, _)| {
            let mut managers = managers.iter();
            managers.find(|it| it.name == name && it.namespaces.is_some())
        });
        let Some(manager) = manager else {
            return ClassPriority::default();
        };
        let asked = self.clusters.value_of_class(&manager.name, class);
        let answer = match tokio::time::timeout(ANSWER_WITHIN, asked).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!(
                "the cluster has not answered within {} s",
                ANSWER_WITHIN.as_secs()
            )),
        };
        match answer {
            Ok(ClassValue::Unused) => ClassPriority::default(),
            Ok(ClassValue::Value(value)) => {
                by_value(class, value, self.priority_order(pool), limit)
            }
            Ok(ClassValue::Missing) => ClassPriority::warned(format!(
                "environment.pod_spec names the PriorityClass \"{class}\", which cluster \"{}\" does not have: Kubernetes \
                 makes no pods of it until an administrator creates it; \"kubectl get priorityclasses\" lists those that exist",
                manager.name
            )),
            Err(reason) => ClassPriority::warned(format!(
                "environment.pod_spec names the PriorityClass \"{class}\", whose value cannot be read ({reason}): the job has \
                 the priority of one that names none; set resources.priority to choose it"
            )),
        }
    }
}

/// The limit of priorities by policies: the last that has one has it.
pub(crate) fn priority_limit(policies: &[Policies]) -> Option<u8> {
    let mut policies = policies.iter().rev();
    policies.find_map(|policy| policy.constraints.priority_limit)
}

impl ClassPriority {
    fn warned(warning: String) -> Self {
        Self {
            priority: None,
            warning: Some(warning),
        }
    }
}

/// The priority by the value of a class: higher is more important in Kubernetes, whichever way the pool's priorities point.
fn by_value(class: &str, value: i64, order: PriorityOrder, limit: Option<u8>) -> ClassPriority {
    let within = u8::try_from(value.clamp(1, 99)).unwrap_or(1);
    let own = match order {
        PriorityOrder::HigherFirst => within,
        PriorityOrder::LowerFirst => 100 - within,
    };
    let limit = limit.filter(|limit| order.goes_before(own, *limit));
    let priority = limit.unwrap_or(own);
    let why = match limit {
        Some(_) => "the limit of a policy",
        None if i64::from(within) != value => "the nearest that jobs can have",
        None => {
            return ClassPriority {
                priority: Some(priority),
                warning: None,
            };
        }
    };
    ClassPriority {
        priority: Some(priority),
        warning: Some(format!(
            "the PriorityClass \"{class}\" of environment.pod_spec has the value {value}; the job has priority {priority} in \
             the queue, {why}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_gives_the_priority_that_is_nearest_to_its_value_and_allowed() {
        let (higher, lower) = (PriorityOrder::HigherFirst, PriorityOrder::LowerFirst);
        for (value, order, limit, priority, warns) in [
            (60, higher, None, 60, false),
            (60, higher, Some(60), 60, false),
            (60, higher, Some(40), 40, true),
            (1_000_000, higher, None, 99, true),
            (1_000_000, higher, Some(70), 70, true),
            (0, higher, None, 1, true),
            (-5, higher, Some(70), 1, true),
            (60, lower, None, 40, false),
            (60, lower, Some(45), 45, true),
        ] {
            let found = by_value("c", value, order, limit);
            assert_eq!(found.priority, Some(priority), "{value} {order} {limit:?}");
            assert_eq!(found.warning.is_some(), warns, "{value} {order} {limit:?}");
        }
    }
}
