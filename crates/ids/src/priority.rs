//! Which way priorities point.

use std::fmt;
use std::str::FromStr;

/// Which of two priorities goes first. It is the manager of a pool that decides it, for all of its pools
/// (`docs/contract/scheduling.md`, "Direction of priority").
///
/// Priorities are compared by nothing but this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PriorityOrder {
    /// The lower number is more important, as for agents.
    #[default]
    LowerFirst,
    /// The higher number is more important, as for Kubernetes.
    HigherFirst,
}

impl PriorityOrder {
    /// The rank of a priority: the lower rank goes first, equal ranks are equally important.
    pub fn rank(self, priority: impl Into<i64>) -> i64 {
        let priority = priority.into();
        match self {
            Self::LowerFirst => priority,
            Self::HigherFirst => priority.saturating_neg(),
        }
    }

    /// Whether work of this priority goes before work of the other one.
    pub fn goes_before(self, priority: impl Into<i64>, other: impl Into<i64>) -> bool {
        self.rank(priority) < self.rank(other)
    }

    /// The priorities that are no more important than a limit, 1 to 99, as a range for messages: `20 to 99`.
    pub fn range_from(self, limit: u8) -> String {
        match self {
            Self::LowerFirst => format!("{limit} to 99"),
            Self::HigherFirst => format!("1 to {limit}"),
        }
    }
}

/// Reads what [`PriorityOrder`] is shown as.
impl FromStr for PriorityOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::LowerFirst, Self::HigherFirst];
        let found = known.into_iter().find(|order| order.to_string() == text);
        found.ok_or_else(|| format!("\"{text}\" is none of lower goes first, higher goes first"))
    }
}

/// As users read it: `lower goes first`.
impl fmt::Display for PriorityOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LowerFirst => "lower goes first",
            Self::HigherFirst => "higher goes first",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::PriorityOrder::{HigherFirst, LowerFirst};

    #[test]
    fn each_order_decides_which_of_two_priorities_goes_first() {
        for (order, more_important, less_important) in
            [(LowerFirst, 1_u8, 99_u8), (HigherFirst, 99, 1)]
        {
            assert!(order.goes_before(more_important, less_important));
            assert!(!order.goes_before(less_important, more_important));
            assert!(!order.goes_before(more_important, more_important));
        }
        let mut priorities = [i64::MIN, 1, 42, 99, i64::MAX];
        priorities.sort_by_key(|priority| HigherFirst.rank(*priority));
        assert_eq!(priorities[..4], [i64::MAX, 99, 42, 1]);
    }

    #[test]
    fn a_limit_is_the_most_important_priority_of_its_range() {
        assert_eq!(LowerFirst.range_from(20), "20 to 99");
        assert_eq!(HigherFirst.range_from(20), "1 to 20");
    }
}
