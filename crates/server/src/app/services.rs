//! The services of tasks: ports on which their programs listen, reached through the master.
//!
//! A service is named by its task, or by its task and port: `TASK:PORT`. Which services a task has follows from its kind and
//! from `environment.proxy_ports` of its configuration; where they are follows from the container that runs now.

use std::sync::Arc;

use det_authz::{Identity, Permission, Target as AuthzTarget};
use det_config::container::ProxyPort;
use det_ids::{ExperimentId, TaskId, UserId};
use det_lifecycle::container::ObservedState;
use det_lifecycle::task::{Stop, TaskState};
use det_rm::ReachError;
use det_store::allocations::{self, TaskRow};
use det_store::{Conn, experiments, task_documents};
use det_taskspec::TaskDetails;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::configs::{Configs, launched_config};
use crate::app::context::Context;
use crate::app::ownership::Ownership;
use crate::app::reach::{ContainerReach, PortStream, RunningContainer};
use crate::app::specs::service_port;
use crate::app::user_counts::{OfUser, UserCounts};
use crate::auth::{Access, Actor, token_hash};
use crate::error::{AppError, AppResult, ErrorKind};

/// The protocol between the master and a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1, and a web socket where the service opens one.
    Http,
    /// Bytes, which clients send and receive as binary frames of a WebSocket.
    Tcp,
}

/// A service that a task offers, whether it runs now or not.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Port that the service listens on inside the container.
    pub(crate) port: u16,
    /// The protocol that its program speaks on the port.
    pub(crate) protocol: Protocol,
    /// Whether every client that can reach the master may connect.
    pub(crate) unauthenticated: bool,
    /// Whether the task's id alone names it.
    pub(crate) is_default: bool,
    /// What guards it by itself.
    pub(crate) guard: Option<Guard>,
}

/// What guards a service besides the proxy, by its kind. Not printable: it is secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The service asks clients for a token, and shows a certificate.
    Token {
        /// A client that has it may connect to this service.
        token: Arc<str>,
        /// PEM. It is the only one that is trusted.
        certificate: Arc<str>,
    },
    /// The service answers only requests with this key, which no client has: the proxy adds it.
    Key(Arc<str>),
}

impl From<&ProxyPort> for Offer {
    fn from(port: &ProxyPort) -> Self {
        Self {
            port: port.proxy_port,
            protocol: if port.proxy_tcp {
                Protocol::Tcp
            } else {
                Protocol::Http
            },
            unauthenticated: port.unauthenticated,
            is_default: port.default_service_id,
            guard: None,
        }
    }
}

/// A service that can be connected to.
#[derive(Clone)]
pub(crate) struct Service {
    /// Its name, as in the address.
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    pub(crate) unauthenticated: bool,
    task_id: TaskId,
    owner_id: UserId,
    container: RunningContainer,
    host_port: u16,
    guard: Option<Guard>,
}

impl Service {
    /// Whether this actor is its task's owner, or one of the owner's tasks.
    fn is_of(&self, actor: &Actor) -> bool {
        actor.user().id == self.owner_id
    }

    /// Whether a client that has this token may connect.
    fn is_opened_by(&self, offered: &str) -> bool {
        match &self.guard {
            // By their hashes: how long it takes does not depend on the token.
            Some(Guard::Token { token, .. }) => token_hash(offered) == token_hash(token),
            Some(Guard::Key(_)) | None => false,
        }
    }

    /// Id of the task that the service belongs to.
    pub(crate) fn task_id(&self) -> &TaskId {
        &self.task_id
    }

    /// The certificate that it shows, PEM; `None` = it speaks without TLS.
    pub(crate) fn certificate(&self) -> Option<&str> {
        match &self.guard {
            Some(Guard::Token { certificate, .. }) => Some(certificate),
            Some(Guard::Key(_)) | None => None,
        }
    }

    /// The key that the proxy adds to each request; `None` = the service asks for none.
    pub(crate) fn key(&self) -> Option<&str> {
        match &self.guard {
            Some(Guard::Key(key)) => Some(key),
            Some(Guard::Token { .. }) | None => None,
        }
    }
}

/// Connections to the services of one owner at most: each takes descriptors here and on the agent.
const MOST_OF_ONE: usize = 512;
/// Connections to services of all owners at most.
const MOST: usize = 4096;
/// Connections of strangers to the services of one owner at most, beside the owner's own.
const MOST_OF_STRANGERS_TO_ONE: usize = 64;
/// Connections of strangers to services of all owners at most, a part of all.
const MOST_OF_STRANGERS: usize = MOST / 4;

/// On what the right of a caller to connect rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// On a session, a task's token, or the service's own.
    Known,
    /// On nothing: the service is open to every client that reaches the master.
    Stranger,
}

/// By what a caller may connect to a service.
pub(crate) struct Right {
    /// Whether the caller is the owner of the task, or one of the owner's tasks.
    pub(crate) is_own: bool,
    /// The right that the connection ends with; `None` = it rests on no session.
    pub(crate) access: Option<Access>,
    /// Whose connections it counts among.
    pub(crate) standing: Caller,
}

/// A connection to a service.
pub(crate) struct Connection {
    stream: PortStream,
    permit: ConnectionPermit,
}

impl Connection {
    /// The bytes of the service, and what counts for its owner until it is dropped.
    pub(crate) fn into_parts(self) -> (PortStream, ConnectionPermit) {
        (self.stream, self.permit)
    }
}

/// Counts a connection for an owner and for all, as long as one copy of it lives.
#[derive(Clone)]
pub(crate) struct ConnectionPermit {
    _counted: Arc<(OfUser, Vec<OwnedSemaphorePermit>)>,
}

/// Which limit of connections is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    Owner,
    OwnersStrangers,
    Strangers,
    Everyone,
}

/// The connections that there may be. Strangers have few of their own: a client that reaches the master can open as many as
/// there may be, and would keep the owners of services from them.
#[derive(Clone)]
struct ConnectionLimits {
    of_all: Arc<Semaphore>,
    of_strangers: Arc<Semaphore>,
    of_owner: UserCounts,
    of_owners_strangers: UserCounts,
}

impl ConnectionLimits {
    fn new() -> Self {
        Self {
            of_all: Arc::new(Semaphore::new(MOST)),
            of_strangers: Arc::new(Semaphore::new(MOST_OF_STRANGERS)),
            of_owner: UserCounts::at_most(MOST_OF_ONE),
            of_owners_strangers: UserCounts::at_most(MOST_OF_STRANGERS_TO_ONE),
        }
    }

    /// Counts one more connection to a service of this owner.
    fn take(&self, owner_id: UserId, caller: Caller) -> Result<ConnectionPermit, Full> {
        let one_of = |all: &Arc<Semaphore>| all.clone().try_acquire_owned();
        let mut of_all = Vec::new();
        let own = match caller {
            Caller::Known => self.of_owner.take(owner_id).ok_or(Full::Owner)?,
            Caller::Stranger => {
                let own = self.of_owners_strangers.take(owner_id);
                let own = own.ok_or(Full::OwnersStrangers)?;
                of_all.push(one_of(&self.of_strangers).map_err(|_| Full::Strangers)?);
                own
            }
        };
        of_all.push(one_of(&self.of_all).map_err(|_| Full::Everyone)?);
        Ok(ConnectionPermit {
            _counted: Arc::new((own, of_all)),
        })
    }
}

/// Finds services and connects to them. Cheap to clone.
#[derive(Clone)]
pub struct Services {
    limits: ConnectionLimits,
    context: Context,
    configs: Configs,
    ownership: Ownership,
    reach: ContainerReach,
}

fn unknown(name: &str) -> AppError {
    AppError::new(
        ErrorKind::NotFound,
        format!("there is no service \"{}\"", name.escape_debug()),
    )
    .hint(
        "services are those of notebooks, shells and TensorBoards, and the ports that `environment.proxy_ports` of a task's \
         configuration names: TASK:PORT",
    )
}

impl Services {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        configs: Configs,
        ownership: Ownership,
        reach: ContainerReach,
    ) -> Self {
        Self {
            limits: ConnectionLimits::new(),
            context,
            configs,
            ownership,
            reach,
        }
    }

    /// The service of this name, which must run now.
    pub(crate) async fn find(&self, name: &str) -> AppResult<Service> {
        let (task_id, port) = match name.rsplit_once(':') {
            Some((task, port)) => {
                let port: u16 = port.parse().map_err(|_| unknown(name))?;
                (TaskId(task.to_owned()), Some(port))
            }
            None => (TaskId(name.to_owned()), None),
        };
        let mut conn = self.context.store.read().await?;
        let conn = &mut conn.conn();
        let task = allocations::find_task(conn, &task_id).await?;
        let task = task.ok_or_else(|| unknown(name))?;
        let attempt = allocations::live_of_task(conn, &task_id).await?;
        let port_of_kind = attempt.as_ref().and_then(service_port);
        let offers = self
            .offers(conn, &task_id, task.experiment_id, port_of_kind)
            .await?;
        let offer = offers.into_iter().find(|offer| match port {
            Some(port) => offer.port == port,
            None => offer.is_default,
        });
        let offer = offer.ok_or_else(|| unknown(name))?;
        let Some(attempt) = attempt else {
            return Err(not_there(name, &task));
        };
        let containers = allocations::containers(conn, &attempt.id).await?;
        let chief = containers.into_iter().find(|row| row.member == 0);
        let Some(chief) = chief.filter(|row| row.ended_at.is_none()) else {
            return Err(not_there(name, &task));
        };
        let Some(ObservedState::Running {
            ports,
            host_address,
            ..
        }) = chief.observed
        else {
            return Err(not_there(name, &task));
        };
        let mut published = ports.into_iter();
        let Some((_, host_port)) = published.find(|(inside, _)| *inside == offer.port) else {
            return Err(not_there(name, &task));
        };
        Ok(Service {
            name: name.to_owned(),
            protocol: offer.protocol,
            unauthenticated: offer.unauthenticated,
            owner_id: task.owner_id,
            task_id,
            container: RunningContainer {
                resource_pool: attempt.resource_pool,
                place: chief.place_id,
                container_id: chief.id,
                host_address,
            },
            host_port,
            guard: offer.guard,
        })
    }

    /// By what a caller may connect to a service. `key` = what the client offers to the service itself, where that counts.
    ///
    /// # Errors
    /// The caller is not known, or may not connect.
    pub(crate) fn right(
        &self,
        service: &Service,
        caller: AppResult<(Actor, Access)>,
        key: Option<&str>,
    ) -> AppResult<Right> {
        let right = |is_own, access, standing| {
            Ok(Right {
                is_own,
                access,
                standing,
            })
        };
        let has_key = key.is_some_and(|key| service.is_opened_by(key));
        match caller {
            Ok((actor, access)) if service.is_of(&actor) => {
                right(true, Some(access), Caller::Known)
            }
            _ if has_key => right(false, None, Caller::Known),
            Ok((actor, _)) if service.unauthenticated => {
                // A caller who may connect anyway is not kept out by those who may only because the service is open.
                let may = self.require_connect(&actor, service);
                let standing = may.map_or(Caller::Stranger, |()| Caller::Known);
                right(false, None, standing)
            }
            Err(_) if service.unauthenticated => right(false, None, Caller::Stranger),
            Ok((actor, access)) => {
                self.require_connect(&actor, service)?;
                right(false, Some(access), Caller::Known)
            }
            Err(error) => Err(error),
        }
    }

    /// Refuses actors to whom a service is not open, and who may not connect to it otherwise.
    pub(crate) fn admit(&self, actor: &Actor, service: &Service) -> AppResult<()> {
        if service.unauthenticated || service.is_of(actor) {
            return Ok(());
        }
        self.require_connect(actor, service)
    }

    /// Refuses actors who may not connect to a service.
    fn require_connect(&self, actor: &Actor, service: &Service) -> AppResult<()> {
        let identity = Identity::Task(&service.task_id);
        let target = AuthzTarget::identified(identity).owned_by(service.owner_id);
        let to_do = format!("connect to service \"{}\"", service.name);
        self.ownership
            .require_of(actor, Permission::Connect, &target, &to_do)
    }

    /// Connects a caller to a service.
    pub(crate) async fn connect(&self, service: &Service, caller: Caller) -> AppResult<Connection> {
        let permit = self.permit(service, caller)?;
        let opened = self.reach.dial(&service.container, service.host_port).await;
        let stream = opened.map_err(|error| {
            let kind = match error {
                ReachError::Busy(_) => ErrorKind::Busy,
                ReachError::Unreachable(_) => ErrorKind::Unreachable,
            };
            AppError::new(
                kind,
                format!("service \"{}\" cannot be reached: {error}", service.name),
            )
        })?;
        Ok(Connection { stream, permit })
    }

    /// Admits one more connection to a service.
    fn permit(&self, service: &Service, caller: Caller) -> AppResult<ConnectionPermit> {
        let permit = self.limits.take(service.owner_id, caller);
        permit.map_err(|full| {
            let owner = self.ownership.name_of(service.owner_id);
            let what = match full {
                Full::Owner => format!("connections to services of {owner}"),
                Full::OwnersStrangers => {
                    format!("connections to services of {owner} by callers who are not logged in")
                }
                Full::Strangers => {
                    "connections to services by callers who are not logged in".to_owned()
                }
                Full::Everyone => "connections to services of all users".to_owned(),
            };
            AppError::new(
                ErrorKind::Busy,
                format!(
                    "service \"{}\" cannot be reached: the limit of {what} is reached",
                    service.name
                ),
            )
            .hint("close some, or try again later")
        })
    }

    /// What a task offers, which may be one of an experiment. `port_of_kind` is what its live attempt has as [`service_port`].
    pub(crate) async fn offers(
        &self,
        conn: &mut Conn<'_>,
        task_id: &TaskId,
        experiment_id: Option<ExperimentId>,
        port_of_kind: Option<u16>,
    ) -> AppResult<Vec<Offer>> {
        if let Some(id) = experiment_id {
            let experiment = experiments::find(conn, id).await?;
            let Some(experiment) = experiment else {
                return Ok(Vec::new());
            };
            let config = self.configs.of(&experiment)?;
            let ports = &config.environment.proxy_ports;
            return Ok(ports.iter().map(Offer::from).collect());
        }
        let Some(mut document) = task_documents::find(conn, task_id).await? else {
            return Ok(Vec::new());
        };
        if let Some(port) = port_of_kind {
            document.details.give_port(port);
        }
        let config = launched_config(&document)?;
        let ports = &config.environment.proxy_ports;
        let own = of_kind(&document.details);
        Ok(own
            .into_iter()
            .chain(ports.iter().map(Offer::from))
            .collect())
    }
}

/// The service that a kind of task brings, before those of its configuration.
fn of_kind(details: &TaskDetails) -> Option<Offer> {
    let http = |port| Offer {
        port,
        protocol: Protocol::Http,
        unauthenticated: false,
        is_default: true,
        guard: None,
    };
    match details {
        TaskDetails::Command | TaskDetails::Generic(_) | TaskDetails::CheckpointGc(_) => None,
        TaskDetails::Shell(shell) => Some(Offer {
            protocol: Protocol::Tcp,
            // The client's tunnel brings no credentials: the shell's key is what opens it.
            unauthenticated: true,
            ..http(shell.port)
        }),
        TaskDetails::Notebook(notebook) => Some(Offer {
            guard: Some(Guard::Token {
                token: notebook.token.as_str().into(),
                certificate: notebook.certificate.as_str().into(),
            }),
            ..http(notebook.port)
        }),
        TaskDetails::Tensorboard(tensorboard) => Some(Offer {
            guard: Some(Guard::Key(tensorboard.key.as_str().into())),
            ..http(tensorboard.port)
        }),
    }
}

/// A task that offers a service does not run it now.
fn not_there(name: &str, task: &TaskRow) -> AppError {
    let name = name.escape_debug();
    if task.ended_at.is_some() {
        return AppError::new(
            ErrorKind::NotFound,
            format!("service \"{name}\" is gone: its task has ended"),
        );
    }
    if let TaskState::Suspended | TaskState::Stopping(Stop::Suspend) = task.state {
        return AppError::new(
            ErrorKind::Unreachable,
            format!("service \"{name}\" does not run: its task is paused"),
        )
        .hint(format!("`{}` lets it go on", task.resume_command()));
    }
    AppError::new(
        ErrorKind::Unreachable,
        format!("service \"{name}\" does not run yet: its task waits or starts"),
    )
    .hint(format!(
        "`det task logs -f {}` shows what it waits for",
        task.id
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_use_up_no_connection_of_the_owner() {
        let limits = ConnectionLimits::new();
        let (ada, bob) = (UserId(1), UserId(2));
        let take = |owner, caller| limits.take(owner, caller);
        let mut held = Vec::new();
        for _ in 0..MOST_OF_STRANGERS_TO_ONE {
            held.push(take(ada, Caller::Stranger).ok().unwrap());
        }
        let full = take(ada, Caller::Stranger).err();
        assert_eq!(full, Some(Full::OwnersStrangers));
        held.push(take(bob, Caller::Stranger).ok().unwrap());
        let mut own = Vec::new();
        for _ in 0..MOST_OF_ONE {
            own.push(take(ada, Caller::Known).ok().unwrap());
        }
        assert_eq!(take(ada, Caller::Known).err(), Some(Full::Owner));
        // A place is free again when its connection ends, for its kind of caller only.
        held.remove(0);
        assert_eq!(take(ada, Caller::Known).err(), Some(Full::Owner));
        held.push(take(ada, Caller::Stranger).ok().unwrap());
        own.clear();
        take(ada, Caller::Known).ok().unwrap();
    }

    #[test]
    fn strangers_to_many_owners_leave_most_connections() {
        let limits = ConnectionLimits::new();
        let mut held = Vec::new();
        for owner in 0.. {
            match limits.take(UserId(owner / 64), Caller::Stranger) {
                Ok(permit) => held.push(permit),
                Err(full) => {
                    assert_eq!(full, Full::Strangers);
                    break;
                }
            }
        }
        assert_eq!(held.len(), MOST / 4);
        for owner in 0..3 * MOST / 4 {
            let owner = UserId(i64::try_from(owner / MOST_OF_ONE).unwrap());
            held.push(limits.take(owner, Caller::Known).ok().unwrap());
        }
        let full = limits.take(UserId(-1), Caller::Known).err();
        assert_eq!(full, Some(Full::Everyone));
    }
}
