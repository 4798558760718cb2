//! The life of one container.
//!
//! The actor follows the phases of [`Phase`]. It writes each phase to disk before it acts on it, so that wherever the
//! agent dies, the next one knows what may have been done:
//!
//! | found after a restart | what the actor does |
//! | --- | --- |
//! | `assigned` | nothing was done: starts it |
//! | `launching` | looks for it in the runtime: adopts it if it exists; if it does not and no supervisor ever worked in its directory, starts it; else it is lost |
//! | `started` | waits for its end, also if it ended in the meantime |
//! | `ended` | hands over the rest of its log |
//! | `terminated` | waits until the master lets it be removed |
//!
//! There are never two copies: a container that cannot be proven absent is not started again.

use std::future::Future;
use std::sync::Arc;

use det_agent_proto::ContainerState;
use det_agent_proto::adoption::{Adoption, adoption};
use det_failpoints::failpoint;
use det_ids::{ClusterId, ContainerId, LogLevel, MasterId};
use det_taskspec::{ContainerExit, ContainerSpec, EMPTY_IMAGE};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::container::{Container, ENGINE_RETRY, LOG_GRACE, LaunchError, chain};
use super::exit::{self, RuntimeEnd};
use super::handover;
use super::store::{ContainerDir, KillOrder, Phase, Record, RuntimeKind, StartedContainer};
use super::{Command, Session, SharedState};

/// The task that manages one container; see the module.
pub(super) struct Actor {
    container: Arc<Container>,
    record: Record,
    /// Whether it is to be removed as soon as it has ended.
    remove_at_end: bool,
    /// Whether its directory has not been written yet.
    is_new: bool,
}

type Commands = mpsc::UnboundedReceiver<Command>;

impl Actor {
    /// A container that the master has just asked for.
    pub(super) fn accepted(
        shared: Arc<SharedState>,
        dir: ContainerDir,
        spec: ContainerSpec,
    ) -> Self {
        let record = Record {
            runtime: shared.runtimes.kind,
            phase: Phase::Assigned,
            kill: None,
        };
        Self {
            is_new: true,
            ..Self::recovered(shared, dir, spec, record)
        }
    }

    /// A container that an earlier agent left behind.
    pub(super) fn recovered(
        shared: Arc<SharedState>,
        dir: ContainerDir,
        spec: ContainerSpec,
        record: Record,
    ) -> Self {
        let runtime = record.runtime;
        let container = Container {
            shared,
            dir,
            spec,
            runtime,
        };
        Self {
            container: Arc::new(container),
            record,
            remove_at_end: false,
            is_new: false,
        }
    }

    pub(super) fn container_id(&self) -> &ContainerId {
        &self.container.spec.container_id
    }

    /// Whether it is recorded on disk, and may be reported.
    pub(super) fn is_recorded(&self) -> bool {
        !self.is_new
    }

    /// Whether a process of it may still run.
    pub(super) fn is_live(&self) -> bool {
        self.record.phase.is_live()
    }

    /// Reports the container's state to the master.
    pub(super) fn report_state(&self) {
        self.container.report(self.record.phase.report());
    }

    /// Manages the container until it is removed.
    pub(super) async fn run(mut self, mut commands: Commands) {
        if self.is_new {
            failpoint!("agent::container::accept::before_record");
            let container = &self.container;
            if let Err(error) = container.dir.create(&container.spec, &self.record) {
                self.fail(LaunchError::from(error)).await;
            }
            failpoint!("agent::container::accept::after_record");
            // What is reported to the master must be on disk after a crash.
            self.report_state();
        }
        loop {
            match self.record.phase.clone() {
                Phase::Assigned => self.launch(&mut commands).await,
                Phase::Launching => self.find_launched(&mut commands).await,
                Phase::Started(started) => self.watch(started, &mut commands).await,
                Phase::Ended { exit, cause, .. } => {
                    self.container.shared.not_live(self.container_id());
                    handover::ship_rest(&self.container).await;
                    failpoint!("agent::container::end::after_hand_over");
                    self.enter(Phase::Terminated { exit, cause });
                }
                Phase::Terminated { .. } => {
                    self.container.shared.not_live(self.container_id());
                    while !self.remove_at_end {
                        match commands.recv().await {
                            Some(Command::Remove) => self.remove_at_end = true,
                            // The master did not receive the report of the end.
                            Some(Command::Kill(_)) => self.report_state(),
                            None => return,
                        }
                    }
                    self.container.remove().await;
                    return;
                }
            }
        }
    }

    /// Writes a phase to disk and reports it to the master. A phase that cannot be written is entered anyway: the next
    /// agent will look for the container.
    fn enter(&mut self, phase: Phase) {
        self.record.phase = phase;
        self.save();
        // The end is reported to the master once the log was shipped.
        if !matches!(self.record.phase, Phase::Ended { .. }) {
            self.report_state();
        }
    }

    fn save(&self) {
        if let Err(error) = self.container.dir.save(&self.record) {
            tracing::error!(container.id = %self.container.spec.container_id, "{}", chain(&error));
        }
    }

    /// Ends a container that could not be started. The master puts the reason into the task's log, and this agent nothing.
    async fn fail(&mut self, error: LaunchError) {
        let exit = match error.confirmed(&self.container.shared).await {
            LaunchError::Killed => ContainerExit::Killed,
            LaunchError::Task(message) => ContainerExit::SetupFailed { code: 1, message },
            // The look has turned each suspicion into one of the others.
            LaunchError::Host(message) | LaunchError::Suspected(message) => {
                tracing::error!(container.id = %self.container.spec.container_id, "cannot start a container: {message}");
                ContainerExit::StartFailed { message }
            }
            LaunchError::Fault(message) => {
                tracing::error!(container.id = %self.container.spec.container_id, "this host cannot start containers: {message}");
                not_charged(&message)
            }
        };
        self.enter(Phase::Ended {
            exit,
            cause: None,
            started: None,
        });
    }

    /// Stores a command that cannot be executed yet.
    fn defer(&mut self, command: Command) {
        let order = match command {
            Command::Kill(order) => order,
            Command::Remove => {
                self.remove_at_end = true;
                KillOrder::AtOnce
            }
        };
        if self.record.kill.is_none_or(|earlier| earlier < order) {
            self.record.kill = Some(order);
            self.save();
        }
    }

    /// Waits for `future`, unless the container is to be ended first.
    async fn unless_killed<T>(
        &mut self,
        future: impl Future<Output = T>,
        commands: &mut Commands,
    ) -> Result<T, LaunchError> {
        tokio::pin!(future);
        if self.record.kill.is_some() {
            return Err(LaunchError::Killed);
        }
        tokio::select! {
            result = &mut future => Ok(result),
            Some(command) = commands.recv() => {
                self.defer(command);
                Err(LaunchError::Killed)
            }
        }
    }

    /// The data of the connection; waits for the first connection.
    async fn session(&mut self, commands: &mut Commands) -> Result<Session, LaunchError> {
        let mut sessions = self.container.shared.session.subscribe();
        let session = async {
            match sessions.wait_for(Option::is_some).await {
                Ok(session) => session.clone(),
                Err(_) => None,
            }
        };
        self.unless_killed(session, commands)
            .await?
            .ok_or_else(|| LaunchError::Host("the agent is ending".to_owned()))
    }

    /// Starts a container of which nothing exists yet.
    async fn launch(&mut self, commands: &mut Commands) {
        match self.try_launch(commands).await {
            Ok(started) => {
                failpoint!("agent::container::launch::after_start");
                self.enter(Phase::Started(started));
            }
            Err(error) => {
                // Only a launch can have created a container; there is no wait for an engine that never answered.
                if self.record.runtime == RuntimeKind::Process
                    || self.record.phase == Phase::Launching
                {
                    self.container.sweep().await;
                }
                self.fail(error).await;
            }
        }
    }

    async fn try_launch(
        &mut self,
        commands: &mut Commands,
    ) -> Result<StartedContainer, LaunchError> {
        let session = self.session(commands).await?;
        if self.record.runtime != RuntimeKind::Process {
            self.pull(commands).await?;
        }
        if self.record.kill.is_some() {
            return Err(LaunchError::Killed);
        }
        self.record.phase = Phase::Launching;
        failpoint!("agent::container::launch::before_record");
        self.container.dir.save(&self.record)?;
        failpoint!("agent::container::launch::after_record");
        self.report_state();
        self.container.start(&session).await
    }

    async fn pull(&mut self, commands: &mut Commands) -> Result<(), LaunchError> {
        let container = self.container.clone();
        let spec = &container.spec;
        let engine = self.unless_killed(container.engine(), commands).await?;
        if !spec.force_pull_image && engine.has_image(&spec.image).await? {
            return Ok(());
        }
        if spec.image == EMPTY_IMAGE {
            return Ok(self
                .unless_killed(engine.make_empty_image(), commands)
                .await??);
        }
        container.report(ContainerState::Pulling);
        container.log_line(LogLevel::Info, format!("pulling image \"{}\"", spec.image));
        let pulled = engine.pull(&spec.image, spec.registry_auth.as_ref(), |line| {
            container.log_line(LogLevel::Info, line);
        });
        self.unless_killed(pulled, commands).await??;
        container.log_line(LogLevel::Info, format!("pulled image \"{}\"", spec.image));
        Ok(())
    }

    /// Determines the result of a start that an earlier agent recorded as intended.
    async fn find_launched(&mut self, commands: &mut Commands) {
        let session = match self.session(commands).await {
            Ok(session) => Some(session),
            // It may run although it is to be ended: find it first; its address does not matter any more.
            Err(LaunchError::Killed) => self.container.shared.session.borrow().clone(),
            Err(error) => return self.fail(error).await,
        };
        let session = session.unwrap_or_else(|| Session {
            welcome: det_agent_proto::Welcome {
                protocol: det_agent_proto::PROTOCOL_VERSION,
                version: String::new(),
                cluster_id: ClusterId::default(),
                master_id: MasterId::default(),
            },
            host_address: String::new(),
        });
        match self.container.find(&session).await {
            Ok(Some(started)) => self.enter(Phase::Started(started)),
            Ok(None) => {
                match adoption(
                    false,
                    self.container.dir.has_run(),
                    self.record.kill.is_some(),
                    None,
                ) {
                    Adoption::NameEnd => self.end(self.container.ended().await, None).await,
                    Adoption::NeverRan => self.fail(LaunchError::Killed).await,
                    // What is not found is not adopted.
                    Adoption::Launch | Adoption::TakeUp => self.launch(commands).await,
                }
            }
            // It may run: nothing may be reported, and it must not be started again, before that is
            // known.
            Err(error) => {
                if let LaunchError::Host(message)
                | LaunchError::Fault(message)
                | LaunchError::Suspected(message)
                | LaunchError::Task(message) = error
                {
                    tracing::warn!(container.id = %self.container.spec.container_id, "{message}; asking again");
                }
                sleep(ENGINE_RETRY).await;
            }
        }
    }

    /// Waits for the end of a started container and ends it when asked to.
    async fn watch(&mut self, started: StartedContainer, commands: &mut Commands) {
        let container = self.container.clone();
        let identity = started.identity.clone();
        let ended = container.wait(&identity);
        tokio::pin!(ended);
        // An order of an earlier agent, or one that came while the container started, is executed now.
        let mut force_at = match self.record.kill {
            Some(order) => Some(container.ask_to_end(&identity, order).await),
            None => None,
        };
        let end = loop {
            let force = async {
                match force_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                end = &mut ended => break end,
                () = force => {
                    container.force(&identity).await;
                    force_at = Some(Instant::now() + LOG_GRACE);
                }
                Some(command) = commands.recv() => {
                    let earlier = self.record.kill;
                    self.defer(command);
                    if let Some(order) = self.record.kill
                        && earlier != Some(order)
                    {
                        let at = container.ask_to_end(&identity, order).await;
                        force_at = Some(force_at.map_or(at, |earlier| earlier.min(at)));
                    }
                }
            }
        };
        self.end(end, Some(started)).await;
    }

    /// A start that failed inside the container is no failure of its task where this host cannot start anything at present,
    /// which a look at the host decides: what the supervisor has reported is in a file that the task's user can write. Where
    /// the code has run, no fault of the host kept it from starting.
    async fn judged(&self, exit: ContainerExit) -> ContainerExit {
        let message = match exit {
            ContainerExit::StartFailed { message } if !self.container.dir.has_started() => message,
            exit => return exit,
        };
        match LaunchError::Suspected(message.clone())
            .confirmed(&self.container.shared)
            .await
        {
            LaunchError::Fault(message) => not_charged(&message),
            _ => ContainerExit::StartFailed { message },
        }
    }

    /// Determines the exit reason, after making sure that nothing runs any more.
    async fn end(&mut self, end: RuntimeEnd, started: Option<StartedContainer>) {
        if self.record.runtime == RuntimeKind::Process {
            let identity = started.as_ref().map(|started| &started.identity);
            self.container.sweep_processes(identity).await;
        }
        let report = self.container.dir.exit_report();
        let words = if report.is_none() {
            self.container.dir.last_words()
        } else {
            String::new()
        };
        let (report, cause) = report.map_or((None, None), |it| (Some(it.exit), it.cause));
        let cause = cause.or_else(|| self.container.dir.failed_rank());
        let exit = exit::name(report, self.record.kill, &end, &words);
        let exit = self.judged(exit).await;
        tracing::info!(container.id = %self.container.spec.container_id, exit = ?exit, "a container ended");
        failpoint!("agent::container::end::before_record");
        self.enter(Phase::Ended {
            exit,
            cause,
            started,
        });
    }
}

/// The end of a container that this host could not start at present: its task is not charged for it.
fn not_charged(message: &str) -> ContainerExit {
    ContainerExit::Lost {
        message: format!("its host could not start it: {message}"),
    }
}
