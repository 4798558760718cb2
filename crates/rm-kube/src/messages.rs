//! What other tasks send to the manager's, and the requests that they make for it.

use det_ids::{AllocationId, ContainerId, PlaceId};
use det_taskspec::ContainerExit;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::api::{ApiError, Kind, KubeApi};
use crate::books::ObjectKey;
use crate::growing::GrowthOutcome;

/// Messages that wait at most. Their senders are tasks of their own, which wait when there are more: those that follow a
/// place send one message for any number of changes meanwhile, and each request has one outcome.
pub(crate) const WAITING: usize = 256;

/// What other tasks send to the manager's.
#[derive(Debug)]
pub(crate) enum Message {
    /// What is wanted of a place may have changed.
    Wanted(PlaceId),
    /// A place has been taken away from the lease with this number.
    Taken(PlaceId, u64),
    /// All objects of an allocation exist; its Jobs as the API has them.
    Created(AllocationId, Vec<Value>),
    /// The creation of an allocation's objects is delayed, for this reason; whether it is to be noted in the manager's health.
    Delayed(AllocationId, String, Delay),
    /// The creation of an allocation's objects is given up, and what exists of them will be deleted.
    Abandoned(AllocationId, ContainerExit),
    /// Nothing is left of an allocation whose creation was given up, or was cancelled.
    Undone(AllocationId),
    /// A request about a container failed; what it was for is looked at again later.
    Failed(ContainerId, String),
    /// A request about a container succeeded after one had failed.
    Succeeded(ContainerId),
    /// The Secret of a container's pod does not exist, which waits for it; the name of the Secret.
    SecretGone(ContainerId, String),
    /// What has become of a request about the placeholders of an allocation.
    Grown(AllocationId, GrowthOutcome),
    /// Asks for the pod of a container, which is answered once all pods are known; `None` = it has none.
    PodOf(ContainerId, oneshot::Sender<Option<ObjectKey>>),
    /// A line for the log of a container's task.
    Noted(PlaceId, ContainerId, String),
    /// Services of tasks cannot be reached, for this reason, or can again.
    Unexposed {
        reason: Option<String>,
        /// Whether it is another reason than before, and not the same of more or fewer tasks.
        is_new: bool,
    },
    /// Whether objects of a kind can be watched: the reason if not.
    Probed(Kind, Result<(), String>),
}

/// Whether a delay is worth a note in the manager's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delay {
    /// It may be over in a moment.
    Short,
    /// It lasts, or will last until an administrator acts.
    Long,
}

/// Makes requests by tasks of their own, whose outcome is sent to the manager.
#[derive(Clone)]
pub(crate) struct Requests {
    pub(crate) api: KubeApi,
    pub(crate) sender: mpsc::Sender<Message>,
}

impl Requests {
    /// Finds out whether a Secret exists that a container's pod is reported to wait for: users may write such reports.
    pub(crate) fn find_secret(&self, container: &ContainerId, (namespace, name): (&str, &str)) {
        let (api, sender) = (self.api.clone(), self.sender.clone());
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let container = container.clone();
        tokio::spawn(async move {
            let found = api.get(Kind::Secret, (&namespace, &name)).await;
            // What else fails is found out with the next report: the kubelet tries for ever.
            if let Err(ApiError::Absent) = found {
                // The manager has ended.
                drop(sender.send(Message::SecretGone(container, name)).await);
            }
        });
    }

    /// Has a request made about a container. `is_again` = the last one failed.
    pub(crate) fn about<F>(&self, container: &ContainerId, is_again: bool, request: F)
    where
        F: Future<Output = Result<(), ApiError>> + Send + 'static,
    {
        let (sender, container) = (self.sender.clone(), container.clone());
        tokio::spawn(async move {
            let message = match request.await {
                Err(error) => Message::Failed(container, error.to_string()),
                Ok(()) if is_again => Message::Succeeded(container),
                Ok(()) => return,
            };
            // The manager has ended.
            drop(sender.send(message).await);
        });
    }
}
