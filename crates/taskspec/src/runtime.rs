//! What containers are started with.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of an agent's container runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeKind {
    /// Containers of Docker.
    Docker,
    /// Containers of Podman.
    Podman,
    /// Processes of the machine, each in a sandbox.
    Process,
}

impl RuntimeKind {
    /// Every kind, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Docker, Self::Podman, Self::Process];

    /// The name in reports to the master and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Process => "process",
        }
    }
}

/// What a place starts containers with, as it reports it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlaceRuntime {
    /// One of the runtimes of our agents.
    Agent(RuntimeKind),
    /// Any other by its name: that of a node (`containerd://2.1`), or one of agents of another version. Empty where the
    /// manager names none.
    Named(String),
}

impl PlaceRuntime {
    /// Its name, as it was reported.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Agent(kind) => kind.name(),
            Self::Named(name) => name,
        }
    }
}

impl Default for PlaceRuntime {
    /// The empty name: the manager names no runtime.
    fn default() -> Self {
        Self::Named(String::new())
    }
}

impl From<String> for PlaceRuntime {
    fn from(name: String) -> Self {
        let kind = RuntimeKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name);
        kind.map_or(Self::Named(name), Self::Agent)
    }
}

impl From<&str> for PlaceRuntime {
    fn from(name: &str) -> Self {
        name.to_owned().into()
    }
}

impl fmt::Display for PlaceRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_read_as_they_are_reported() {
        for kind in RuntimeKind::ALL {
            assert_eq!(PlaceRuntime::from(kind.name()), PlaceRuntime::Agent(kind));
        }
        for name in ["", "containerd://2.1", "Docker"] {
            let named = PlaceRuntime::from(name);
            assert_eq!(named, PlaceRuntime::Named(name.to_owned()));
            assert_eq!(named.to_string(), name);
        }
        assert_eq!(PlaceRuntime::default(), PlaceRuntime::from(""));
    }
}
