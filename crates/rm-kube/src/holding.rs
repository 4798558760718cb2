//! Nodes that pods are kept off for a while, because Kubernetes did not assign such pods to them.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long a node is first kept from pods of the same demands; each further time twice as long.
const FIRST: Duration = Duration::from_mins(1);
const LONGEST: Duration = Duration::from_mins(10);
/// How long after a hold the next one is longer.
const REMEMBERED: Duration = Duration::from_mins(20);

/// Nodes that pods with some demands are kept off.
#[derive(Debug, Default)]
pub(crate) struct Holds(BTreeMap<String, BTreeMap<String, Hold>>);

#[derive(Debug)]
struct Hold {
    /// When such a pod may be tried there again; `None` = it may now.
    until: Option<Instant>,
    /// When it is forgotten, if no such pod has failed again by then.
    forgotten_at: Instant,
    /// How long the last hold was.
    length: Duration,
    /// Why Kubernetes did not assign it.
    reason: String,
}

impl Holds {
    /// Kubernetes did not assign a pod with these demands to a node, for this reason.
    pub(crate) fn failed(&mut self, node: &str, demands: &str, reason: &str, now: Instant) {
        let of_node = self.0.entry(node.to_owned()).or_default();
        let before = of_node.get(demands);
        // Several pods may fail together.
        if before.is_some_and(|hold| hold.until.is_some()) {
            return;
        }
        let length = before.map_or(FIRST, |hold| (hold.length * 2).min(LONGEST));
        let hold = Hold {
            until: Some(now + length),
            forgotten_at: now + length + REMEMBERED,
            length,
            reason: reason.to_owned(),
        };
        of_node.insert(demands.to_owned(), hold);
    }

    /// Kubernetes has assigned such a pod to the node.
    pub(crate) fn succeeded(&mut self, node: &str, demands: &str) {
        if let Some(of_node) = self.0.get_mut(node) {
            of_node.remove(demands);
            if of_node.is_empty() {
                self.0.remove(node);
            }
        }
    }

    /// Removes a node that is gone.
    pub(crate) fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// Why pods are kept off a node, by their demands.
    pub(crate) fn on(&self, node: &str) -> BTreeMap<String, String> {
        let of_node = self.0.get(node).into_iter().flatten();
        let held = of_node.filter(|(_, hold)| hold.until.is_some());
        held.map(|(demands, hold)| {
            let reason = format!(
                "Kubernetes did not assign such a pod there: {}",
                hold.reason
            );
            (demands.clone(), reason)
        })
        .collect()
    }

    /// When the next hold ends.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let holds = self.0.values().flat_map(BTreeMap::values);
        holds
            .map(|hold| hold.until.unwrap_or(hold.forgotten_at))
            .min()
    }

    /// Ends the holds that have lasted long enough; gives their nodes.
    pub(crate) fn come_due(&mut self, now: Instant) -> Vec<String> {
        let mut nodes = Vec::new();
        for of_node in self.0.values_mut() {
            of_node.retain(|_, hold| hold.forgotten_at > now);
        }
        self.0.retain(|_, of_node| !of_node.is_empty());
        for (node, of_node) in &mut self.0 {
            for hold in of_node.values_mut() {
                if hold.until.is_some_and(|until| until <= now) {
                    hold.until = None;
                    nodes.push(node.clone());
                }
            }
        }
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_held_longer_each_time_until_it_takes_such_a_pod() {
        let (mut holds, mut now) = (Holds::default(), Instant::now());
        for minutes in [1, 2, 4, 8, 10, 10] {
            holds.failed("n1", "gpu", "no", now);
            // A second pod of the same attempt.
            holds.failed("n1", "gpu", "no", now);
            assert_eq!(holds.on("n1").len(), 1);
            assert_eq!(holds.next_due(), Some(now + Duration::from_mins(minutes)));
            assert!(holds.come_due(now).is_empty());
            now += Duration::from_mins(minutes);
            assert_eq!(holds.come_due(now), ["n1"]);
            assert!(holds.on("n1").is_empty());
        }
        holds.succeeded("n1", "gpu");
        holds.failed("n1", "gpu", "no", now);
        assert_eq!(holds.next_due(), Some(now + FIRST));
        assert!(holds.on("n2").is_empty());
        assert!(holds.come_due(now + FIRST + REMEMBERED).is_empty());
        assert!(holds.0.is_empty(), "it is forgotten");
        holds.failed("n1", "gpu", "no", now);
        holds.forget("n1");
        assert_eq!(holds.next_due(), None);
    }
}
