//! A container's directory: the state that the next agent needs.
//!
//! ```text
//! <id>/spec.json        the master's specification; mode 0600, because it contains the task's token
//! <id>/state.json       the agent's state; always written before the step that it announces
//! <id>/det-supervisor   the supervisor's executable
//! <id>/supervisor-place where the container of an engine has that
//! ```
//!
//! The other files are exchanged between agent and supervisor: [`det_taskspec::sandbox`].

use std::io;
use std::path::{Path, PathBuf};

use det_agent_proto::ContainerState;
use det_ids::ContainerId;
use det_taskspec::sandbox::{
    DIAGNOSTICS_FILE, ExitReport, FAILED_RANK_FILE, FailedRank, MOST_OF_FAILED_RANK, RUN_SUBDIR,
    SANDBOX_FILE, SANDBOX_LOG_FILE, STARTED_FILE,
};
use det_taskspec::{ContainerExit, ContainerSpec, EXIT_FILE, ExitCause, SPOOL_DIR};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) use det_taskspec::RuntimeKind;

use crate::data_dir::{make_private_dir, write_atomically};

/// The directory of one container.
#[derive(Debug, Clone)]
pub(crate) struct ContainerDir {
    path: PathBuf,
}

/// The agent's state of a container, as stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The runtime it runs in; does not change if the agent is restarted with another one.
    pub(crate) runtime: RuntimeKind,
    pub(crate) phase: Phase,
    /// The strongest order of the master to end it, if there was one.
    pub(crate) kill: Option<KillOrder>,
}

/// The phase of a container in the agent. It only moves down this list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Accepted; nothing exists outside its directory.
    Assigned,
    /// About to be started, or started: after a restart the agent must look for it.
    Launching,
    /// It was started, and can be found again by what is stored here.
    Started(StartedContainer),
    /// Ended; the rest of its logs is still to be shipped. The end is reported to the master after that; until then
    /// the
    /// last report stays valid.
    Ended {
        exit: ContainerExit,
        #[serde(default)]
        cause: Option<ExitCause>,
        started: Option<StartedContainer>,
    },
    /// Ended and shipped; waits until the master lets it be removed.
    Terminated {
        exit: ContainerExit,
        #[serde(default)]
        cause: Option<ExitCause>,
    },
}

/// A container that was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartedContainer {
    pub(crate) identity: Identity,
    /// Address of this host for the allocation's other containers.
    pub(crate) host_address: String,
    /// Container port and host port.
    pub(crate) ports: Vec<(u16, u16)>,
}

/// What a runtime needs to find a container again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub(crate) enum Identity {
    /// A process. The process id may be used again later, but not with the same start time.
    Process(ProcessIdentity),
    /// A container of an engine, by the engine's id of it.
    Engine { id: String },
}

/// Identifies a process on this host, also after a restart of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: i32,
    /// Start time in clock ticks since the host's start, field 22 of `/proc/<pid>/stat`.
    pub(crate) start_ticks: u64,
    /// Identifies the boot of the host; from `/proc/sys/kernel/random/boot_id`.
    pub(crate) boot_id: String,
}

impl Identity {
    /// An id that shows that this is still the same container, for users and tests.
    pub(crate) fn runtime_id(&self) -> String {
        match self {
            Self::Process(process) => process.pid.to_string(),
            Self::Engine { id } => id.clone(),
        }
    }
}

/// An order to end a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KillOrder {
    /// Ask it, and wait for the script's grace period.
    Gracefully,
    /// Kill it now, but ship its logs.
    AtOnce,
}

impl Phase {
    /// The state to report to the master.
    pub(crate) fn report(&self) -> ContainerState {
        match self {
            Self::Assigned => ContainerState::Assigned,
            Self::Launching | Self::Ended { started: None, .. } => ContainerState::Starting,
            Self::Started(started)
            | Self::Ended {
                started: Some(started),
                ..
            } => running(started),
            Self::Terminated { exit, cause } => ContainerState::Terminated {
                exit: exit.clone(),
                cause: cause.clone(),
            },
        }
    }

    /// Whether a process of it may still run.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self, Self::Assigned | Self::Launching | Self::Started(_))
    }
}

/// The state to report of a running container.
pub(crate) fn running(started: &StartedContainer) -> ContainerState {
    ContainerState::Running {
        host_address: started.host_address.clone(),
        ports: started.ports.clone(),
        runtime_id: started.identity.runtime_id(),
    }
}

/// Why a container's directory cannot be used.
#[derive(Debug, Error)]
pub(crate) enum StoreError {
    #[error(
        "container id \"{id}\" cannot name a directory; letters, digits, \"-\" and \"_\" are allowed"
    )]
    Id { id: String },
    #[error("cannot {action} \"{}\"", path.display())]
    Access {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("\"{}\" does not hold what was written there: {reason}", path.display())]
    Content { path: PathBuf, reason: String },
}

/// The content of a directory left by an earlier agent.
#[derive(Debug)]
pub(crate) enum StoredContainer {
    Container(Box<(ContainerSpec, Record)>),
    /// Nothing was started: the specification is not complete.
    Nothing {
        reason: StoreError,
    },
}

impl ContainerDir {
    /// The directory of `id` below `containers`. Refuses ids that are not plain names: they come from the network.
    pub(crate) fn new(containers: &Path, id: &ContainerId) -> Result<Self, StoreError> {
        let plain = !id.as_str().is_empty()
            && id.as_str().len() <= 128
            && id
                .as_str()
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        if !plain {
            return Err(StoreError::Id {
                id: id.as_str().to_owned(),
            });
        }
        Ok(Self {
            path: containers.join(id.as_str()),
        })
    }

    /// Path of the container's directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the task's run directory, below the container's.
    pub(crate) fn run(&self) -> PathBuf {
        self.path.join(RUN_SUBDIR)
    }

    /// Path on this host of the supervisor's executable that the container is started with.
    pub(crate) fn supervisor(&self) -> PathBuf {
        self.path.join("det-supervisor")
    }

    /// Where the container of an engine has the supervisor: chosen by chance at the first call, and recorded.
    ///
    /// Engines follow links of an image to the place of a mount. An image that knew the place of the supervisor could lead a
    /// mount of the task there, and what that shows would be started in place of the supervisor and of all that it checks.
    /// It is in the root directory, since any other could be covered in the same way.
    pub(crate) fn supervisor_in_container(&self) -> io::Result<String> {
        let file = self.path.join("supervisor-place");
        match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let place = format!("/det-supervisor-{}", uuid::Uuid::new_v4().simple());
                write_atomically(&file, place.as_bytes(), 0o600)?;
                Ok(place)
            }
            known => known,
        }
    }

    /// File with the output of a process's supervisor before its sandbox is set up.
    pub(crate) fn sandbox_log(&self) -> PathBuf {
        self.path.join(SANDBOX_LOG_FILE)
    }

    /// The sandbox of a process.
    pub(crate) fn sandbox(&self) -> PathBuf {
        self.path.join(SANDBOX_FILE)
    }

    /// The last output of the supervisor, for messages about an end without a report. Empty if there is none.
    pub(crate) fn last_words(&self) -> String {
        let text = [self.run().join(DIAGNOSTICS_FILE), self.sandbox_log()]
            .iter()
            .find_map(|path| {
                // A supervisor writes no more than this.
                let text = det_spool::read_plain(path, 2 << 20).ok()?;
                let text = String::from_utf8_lossy(&text).trim().to_owned();
                (!text.is_empty()).then_some(text)
            })
            .unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(3)..].join(" / ")
    }

    /// Creates the directory and writes the specification.
    pub(crate) fn create(&self, spec: &ContainerSpec, record: &Record) -> Result<(), StoreError> {
        make_private_dir(&self.path).map_err(self.access("create"))?;
        self.write("spec.json", spec)?;
        self.save(record)
    }

    /// Stores what the agent knows of the container in place of what it knew before.
    pub(crate) fn save(&self, record: &Record) -> Result<(), StoreError> {
        self.write("state.json", record)
    }

    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), StoreError> {
        let path = self.path.join(name);
        let text = serde_json::to_vec_pretty(value).map_err(|error| StoreError::Content {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        write_atomically(&path, &text, 0o600).map_err(|source| StoreError::Access {
            action: "write",
            path,
            source,
        })
    }

    /// Reads what an earlier agent stored.
    ///
    /// If the record is missing or damaged while the specification is complete, the phase is [`Phase::Launching`],
    /// which assumes nothing and looks for the container.
    pub(crate) fn load(&self, runtime: RuntimeKind) -> StoredContainer {
        let spec: ContainerSpec = match self.read("spec.json") {
            Ok(spec) => spec,
            Err(reason) => return StoredContainer::Nothing { reason },
        };
        let record = self.read("state.json").unwrap_or_else(|reason: StoreError| {
            tracing::warn!(container.id = %spec.container_id, "{reason}; looking for the container instead");
            Record {
                runtime,
                phase: Phase::Launching,
                kill: None,
            }
        });
        StoredContainer::Container(Box::new((spec, record)))
    }

    fn read<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<T, StoreError> {
        let path = self.path.join(name);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(source) => {
                return Err(StoreError::Access {
                    action: "read",
                    path,
                    source,
                });
            }
        };
        serde_json::from_slice(&text).map_err(|error| StoreError::Content {
            path,
            reason: error.to_string(),
        })
    }

    /// The supervisor's exit report, if it wrote one.
    pub(crate) fn exit_report(&self) -> Option<ExitReport> {
        let path = self.run().join(EXIT_FILE);
        let text = match det_spool::read_plain(&path, 64 << 10) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "an exit report cannot be read");
                return None;
            }
        };
        match serde_json::from_slice::<ExitReport>(&text) {
            Ok(report) => Some(report),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "an exit report is not understood");
                None
            }
        }
    }

    /// What the launcher of a training has left about the process that failed first; also of a container that was killed.
    pub(crate) fn failed_rank(&self) -> Option<ExitCause> {
        let path = self.run().join(FAILED_RANK_FILE);
        let text = det_spool::read_plain(&path, MOST_OF_FAILED_RANK).ok()?;
        let failed: FailedRank = serde_json::from_slice(&text).ok()?;
        Some(failed.into())
    }

    /// Whether the task's code has begun to run, as its supervisor has noted.
    pub(crate) fn has_started(&self) -> bool {
        std::fs::symlink_metadata(self.run().join(STARTED_FILE)).is_ok()
    }

    /// Whether a supervisor has ever worked in the run directory.
    pub(crate) fn has_run(&self) -> bool {
        let run = self.run();
        run.join(EXIT_FILE).exists() || run.join(SPOOL_DIR).exists()
    }

    /// Moves the directory to `trash` and deletes it there. A crash in between leaves either a whole directory or
    /// one that is in the trash.
    pub(crate) fn remove(&self, trash: &Path) -> Result<(), StoreError> {
        crate::mounts::detach_below(&self.path).map_err(self.access("unmount what is below"))?;
        let name = self.path.file_name().unwrap_or_default();
        let gone = trash.join(name);
        match std::fs::rename(&self.path, &gone) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(self.access("remove")(source)),
        }
        std::fs::remove_dir_all(&gone).map_err(self.access("remove"))
    }

    fn access(&self, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        let path = self.path.clone();
        move |source| StoreError::Access {
            action,
            path,
            source,
        }
    }
}

/// Deletes what an earlier agent was deleting.
pub(crate) fn empty_trash(trash: &Path) {
    let Ok(entries) = std::fs::read_dir(trash) else {
        return;
    };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let removed =
            crate::mounts::detach_below(&path).and_then(|()| std::fs::remove_dir_all(&path));
        if let Err(error) = removed {
            tracing::warn!(path = %path.display(), %error, "cannot delete the rest of an ended container");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::container_spec;

    fn started() -> Phase {
        Phase::Started(StartedContainer {
            identity: Identity::Process(ProcessIdentity {
                pid: 42,
                start_ticks: 1_234_567,
                boot_id: "b".into(),
            }),
            host_address: "10.0.0.9".into(),
            ports: vec![(1734, 1734)],
        })
    }

    #[test]
    fn what_one_agent_wrote_the_next_one_reads() {
        let root = tempfile::tempdir().unwrap();
        let spec = container_spec("c1", "true");
        let dir = ContainerDir::new(root.path(), &spec.container_id).unwrap();
        let mut record = Record {
            runtime: RuntimeKind::Process,
            phase: Phase::Assigned,
            kill: None,
        };
        dir.create(&spec, &record).unwrap();
        for phase in [
            Phase::Launching,
            started(),
            Phase::Ended {
                exit: ContainerExit::Exited { code: 3 },
                cause: None,
                started: None,
            },
            Phase::Terminated {
                exit: ContainerExit::Killed,
                cause: None,
            },
        ] {
            record.phase = phase;
            record.kill = Some(KillOrder::Gracefully);
            dir.save(&record).unwrap();
            let StoredContainer::Container(found) = dir.load(RuntimeKind::Docker) else {
                panic!("the container is stored");
            };
            assert_eq!(*found, (spec.clone(), record.clone()));
        }
    }

    #[test]
    fn a_broken_record_means_look_for_it() {
        let root = tempfile::tempdir().unwrap();
        let spec = container_spec("c1", "true");
        let dir = ContainerDir::new(root.path(), &spec.container_id).unwrap();
        let record = Record {
            runtime: RuntimeKind::Process,
            phase: started(),
            kill: None,
        };
        dir.create(&spec, &record).unwrap();
        std::fs::write(dir.path().join("state.json"), "").unwrap();
        let StoredContainer::Container(found) = dir.load(RuntimeKind::Process) else {
            panic!("the container is stored");
        };
        assert_eq!(found.1.phase, Phase::Launching);
    }

    #[test]
    fn a_directory_without_a_description_holds_nothing() {
        let root = tempfile::tempdir().unwrap();
        let dir = ContainerDir::new(root.path(), &"c1".into()).unwrap();
        std::fs::create_dir(dir.path()).unwrap();
        assert!(matches!(
            dir.load(RuntimeKind::Process),
            StoredContainer::Nothing { .. }
        ));
    }

    #[test]
    fn ids_that_lead_elsewhere_are_refused() {
        let root = Path::new("/data");
        for id in ["", "..", "a/b", "/etc", "a b", "a\n", &"x".repeat(200)] {
            assert!(
                ContainerDir::new(root, &ContainerId::from(id)).is_err(),
                "{id:?}"
            );
        }
        assert!(ContainerDir::new(root, &"0b6c-A_9".into()).is_ok());
    }

    #[test]
    fn removing_twice_is_harmless() {
        let root = tempfile::tempdir().unwrap();
        let trash = root.path().join("trash");
        std::fs::create_dir(&trash).unwrap();
        let dir = ContainerDir::new(root.path(), &"c1".into()).unwrap();
        std::fs::create_dir_all(dir.run()).unwrap();
        dir.remove(&trash).unwrap();
        dir.remove(&trash).unwrap();
        assert!(!dir.path().exists());
        assert_eq!(std::fs::read_dir(&trash).unwrap().count(), 0);
    }

    #[test]
    fn an_exit_report_is_read_and_proves_that_it_ran() {
        let root = tempfile::tempdir().unwrap();
        let dir = ContainerDir::new(root.path(), &"c1".into()).unwrap();
        std::fs::create_dir_all(dir.run()).unwrap();
        assert!(!dir.has_run());
        assert_eq!(dir.exit_report(), None);
        let report = ExitReport {
            exit: ContainerExit::Exited { code: 7 },
            ended_at: 1,
            cause: None,
        };
        let path = dir.run().join(EXIT_FILE);
        std::fs::write(&path, serde_json::to_string(&report).unwrap()).unwrap();
        assert!(dir.has_run());
        assert_eq!(dir.exit_report(), Some(report));
    }

    #[test]
    fn a_link_left_by_the_task_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let dir = ContainerDir::new(root.path(), &"c1".into()).unwrap();
        std::fs::create_dir_all(dir.run()).unwrap();
        let elsewhere = root.path().join("secret");
        std::fs::write(
            &elsewhere,
            "{\"kind\":\"exited\",\"code\":0,\"ended_at\":1}",
        )
        .unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir.run().join(EXIT_FILE)).unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir.run().join(DIAGNOSTICS_FILE)).unwrap();
        assert_eq!(dir.exit_report(), None);
        assert_eq!(dir.last_words(), "");
    }
}
