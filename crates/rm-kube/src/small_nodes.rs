//! Nodes with fewer processors than one slot, where processors are slots: they have no slots, and users see only that.

use std::collections::BTreeMap;

use det_pods::{NodeFacts, SlotResource};

/// The nodes whose allocatable processors are less than one slot.
#[derive(Debug, Default)]
pub(crate) struct SmallNodes {
    /// Thousandths of a processor, by node.
    small: BTreeMap<String, u64>,
    /// What is wrong, as it was last found; `None` = nothing is.
    trouble: Option<String>,
}

impl SmallNodes {
    /// A node is as this, or gone: one that became too small is logged.
    pub(crate) fn update(&mut self, name: &str, facts: Option<&NodeFacts>, slots: &SlotResource) {
        let SlotResource::Cpu { millis } = *slots else {
            return;
        };
        let processors = facts.and_then(|facts| facts.allocatable.get(slots.name()).copied());
        match processors.filter(|processors| *processors > 0 && *processors < millis) {
            None => {
                self.small.remove(name);
            }
            Some(processors)
                if self.small.insert(name.to_owned(), processors) != Some(processors) =>
            {
                tracing::warn!(
                    node = name,
                    "the node has no slots: {}",
                    sentence(millis, processors)
                );
            }
            Some(_) => {}
        }
    }

    /// What is wrong where not one of the `all` nodes has a slot; `None` = nothing. Whether that is news.
    pub(crate) fn trouble(&mut self, all: usize, slots: &SlotResource) -> (Option<String>, bool) {
        let largest = self.small.iter().max_by_key(|(_, processors)| **processors);
        let trouble = match (slots, largest) {
            (SlotResource::Cpu { millis }, Some((node, processors))) if self.small.len() >= all => {
                let why = sentence(*millis, *processors);
                Some(format!(
                    "no node has a slot; on \"{node}\", the largest, {why}"
                ))
            }
            _ => None,
        };
        let is_news = trouble != self.trouble;
        self.trouble.clone_from(&trouble);
        (trouble, is_news)
    }
}

fn sentence(millis: u64, processors: u64) -> String {
    format!(
        "a slot is {} CPUs (\"slot_resource_requests.cpu\"), and pods can have {} there; at most {} fits",
        cpus(millis),
        cpus(processors),
        cpus(processors)
    )
}

/// Thousandths of a processor in processors.
fn cpus(millis: u64) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(millis: u64) -> NodeFacts {
        NodeFacts {
            allocatable: [("cpu".to_owned(), millis)].into(),
            ..NodeFacts::default()
        }
    }

    #[test]
    fn a_cluster_without_a_node_for_one_slot_is_explained_until_it_has_one() {
        let slots = SlotResource::Cpu { millis: 8000 };
        let mut nodes = SmallNodes::default();
        nodes.update("a", Some(&node(3920)), &slots);
        nodes.update("b", Some(&node(7910)), &slots);
        let (why, is_news) = nodes.trouble(2, &slots);
        assert_eq!(
            why.as_deref(),
            Some(
                "no node has a slot; on \"b\", the largest, a slot is 8 CPUs (\"slot_resource_requests.cpu\"), and pods can have \
                 7.91 there; at most 7.91 fits"
            )
        );
        assert!(is_news && !nodes.trouble(2, &slots).1);
        nodes.update("c", Some(&node(8000)), &slots);
        assert_eq!(nodes.trouble(3, &slots), (None, true));
        nodes.update("c", None, &slots);
        nodes.update("b", None, &slots);
        let (why, _) = nodes.trouble(1, &slots);
        assert!(why.is_some_and(|why| why.contains("\"a\"") && why.contains("3.92")));
    }

    #[test]
    fn nodes_without_devices_are_no_trouble() {
        let slots = SlotResource::Extended("nvidia.com/gpu".to_owned());
        let mut nodes = SmallNodes::default();
        nodes.update("a", Some(&node(1000)), &slots);
        assert_eq!(nodes.trouble(1, &slots), (None, false));
        assert_eq!(cpus(500), "0.5");
    }
}
