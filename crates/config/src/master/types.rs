//! The words of the master's configuration.

use std::fmt;

use det_ids::PriorityOrder;
use serde::{Deserialize, Serialize};

/// How a resource manager runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ManagerKind {
    /// On machines with agents; what a manager is that names no kind.
    #[default]
    Agent,
    /// In pods of a Kubernetes cluster.
    Kubernetes,
    /// As jobs of Slurm. Not built.
    Slurm,
    /// As jobs of PBS. Not built.
    Pbs,
}

impl ManagerKind {
    /// Every kind that a configuration may name.
    const ALL: [Self; 4] = [Self::Agent, Self::Kubernetes, Self::Slurm, Self::Pbs];

    /// The kind of this word of the configuration; `None` = there is none.
    pub(super) fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// The word of the configuration.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Kubernetes => "kubernetes",
            Self::Slurm => "slurm",
            Self::Pbs => "pbs",
        }
    }

    /// Which of two priorities goes first in its pools.
    pub fn priority_order(self) -> PriorityOrder {
        match self {
            Self::Agent | Self::Slurm | Self::Pbs => PriorityOrder::LowerFirst,
            Self::Kubernetes => PriorityOrder::HigherFirst,
        }
    }
}

impl fmt::Display for ManagerKind {
    /// The word of the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How the queue of a pool is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerKind {
    /// Each gets a share by weight and demand.
    FairShare,
    /// By priority; which one goes first is the manager's to decide.
    Priority,
    /// In order of arrival, one task of each job in turn.
    RoundRobin,
}

/// Which agent among those with free slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FittingPolicy {
    /// The one that is then fullest.
    Best,
    /// The one that is then emptiest.
    Worst,
}
