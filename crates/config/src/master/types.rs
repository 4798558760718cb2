//! The words of the master's configuration.

use std::fmt;

use det_ids::PriorityOrder;
use serde::{Deserialize, Serialize};

/// How a resource manager runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ManagerKind {
    /// On machines with agents.
    Agent,
    /// In pods of a Kubernetes cluster.
    Kubernetes,
    /// As jobs of Slurm. Not built.
    Slurm,
    /// As jobs of PBS. Not built.
    Pbs,
}

impl ManagerKind {
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
        f.write_str(match self {
            Self::Agent => "agent",
            Self::Kubernetes => "kubernetes",
            Self::Slurm => "slurm",
            Self::Pbs => "pbs",
        })
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
