//! What this manager asks of the master: the core of all managers, and who its agents are.

use det_agent_proto::{AgentLog, DevicesReport, Hello, HostReport, Welcome};
use det_ids::AgentId;
use det_rm::Core;

/// Why an agent is not admitted, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAdmitted {
    /// Not now, but it may be admitted later.
    Yet(String),
    /// This token belongs to another agent, or to none.
    Stranger(String),
    /// Its token was revoked, and its tasks were given up.
    Revoked(String),
}

/// Why the core could not do it now.
pub(crate) type ErrorOf<R> = <<R as Registry>::Core as Core>::Error;

/// The master's knowledge of its agents: who may connect, and what is stored of those who do. An agent is a place of the
/// same name.
pub trait Registry: Clone + Send + Sync + 'static {
    /// The core that all managers share.
    type Core: Core;
    /// What a connection has shown of itself.
    type Credential: Clone + Send + Sync + 'static;

    /// The core that all managers share.
    fn core(&self) -> &Self::Core;

    /// What the tokens of a request are worth: the agent's own, and the cluster's if the request has it.
    ///
    /// # Errors
    /// No agent may connect with them, or the core cannot find that out now.
    fn credential(
        &self,
        own: Option<String>,
        join: Option<&str>,
    ) -> impl Future<Output = Result<Self::Credential, ErrorOf<Self>>> + Send;

    /// Checks that this is the token of an agent that was asked to open a tunnel.
    ///
    /// # Errors
    /// It is not, or the core cannot find that out now.
    fn require_token_of(
        &self,
        agent: &AgentId,
        own: Option<String>,
    ) -> impl Future<Output = Result<(), ErrorOf<Self>>> + Send;

    /// Whether an agent with this hello may join, as far as its hello shows; else the reason.
    ///
    /// # Errors
    /// The reason, as a sentence.
    fn check(&self, hello: &Hello) -> Result<(), String>;

    /// Decides whether a connection is the agent that it claims to be.
    fn admit(
        &self,
        agent: &AgentId,
        credential: &Self::Credential,
    ) -> impl Future<Output = Result<Result<(), NotAdmitted>, ErrorOf<Self>>> + Send;

    /// Removes what is known of an agent that comes back with other devices or for another pool, and gives why it may
    /// not go on as the same agent; `None` if it is unknown or as it was.
    fn remove_changed(
        &self,
        hello: &Hello,
    ) -> impl Future<Output = Result<Option<String>, ErrorOf<Self>>> + Send;

    /// Stores that an agent is here, with everything it holds.
    fn joined(
        &self,
        hello: Hello,
        credential: &Self::Credential,
    ) -> impl Future<Output = Result<(), ErrorOf<Self>>> + Send;

    /// Stores lines of the agent itself for the log of a task that it has, or had, a container of.
    fn logged(
        &self,
        agent: &AgentId,
        log: AgentLog,
    ) -> impl Future<Output = Result<(), ErrorOf<Self>>> + Send;

    /// Takes note of how much an agent's devices are used and whether they are well; slots whose devices have new faults
    /// take no new work.
    fn devices(
        &self,
        agent: &AgentId,
        report: DevicesReport,
    ) -> impl Future<Output = Result<(), ErrorOf<Self>>> + Send;

    /// Takes note of whether an agent's host can start containers; one that cannot takes no new work.
    fn host(
        &self,
        agent: &AgentId,
        report: HostReport,
    ) -> impl Future<Output = Result<(), ErrorOf<Self>>> + Send;

    /// The end of a connection could not be stored: it is tried again.
    fn left_later(&self);

    /// What an agent needs to know of its master.
    fn welcome(&self) -> Welcome;
}
