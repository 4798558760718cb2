//! What is asked about the clusters of resource managers, through their driver.

use std::sync::Arc;
use std::time::Duration;

use det_ids::WorkspaceId;
use det_rm::{ClassValue, NamespaceAccess, NamespaceError, NamespaceRequest};
use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::error::{AppError, AppResult, ErrorKind};

/// How long a cluster may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// [`NamespaceAccess`], whichever driver it is.
trait AnyAccess: Send + Sync {
    fn name_for(
        &self,
        manager: &str,
        workspace: (&str, WorkspaceId),
    ) -> Result<String, NamespaceError>;

    fn default_of(&self, manager: &str) -> Option<String>;

    fn check<'a>(
        &'a self,
        request: &'a NamespaceRequest,
    ) -> BoxFuture<'a, Result<(), NamespaceError>>;

    fn carry_out<'a>(
        &'a self,
        manager: &'a str,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<(), NamespaceError>>;

    fn value_of_class<'a>(
        &'a self,
        manager: &'a str,
        class: &'a str,
    ) -> BoxFuture<'a, Result<ClassValue, NamespaceError>>;
}

impl<A: NamespaceAccess> AnyAccess for A {
    fn name_for(
        &self,
        manager: &str,
        workspace: (&str, WorkspaceId),
    ) -> Result<String, NamespaceError> {
        NamespaceAccess::name_for(self, manager, workspace)
    }

    fn default_of(&self, manager: &str) -> Option<String> {
        NamespaceAccess::default_of(self, manager)
    }

    fn check<'a>(
        &'a self,
        request: &'a NamespaceRequest,
    ) -> BoxFuture<'a, Result<(), NamespaceError>> {
        NamespaceAccess::check(self, request).boxed()
    }

    fn carry_out<'a>(
        &'a self,
        manager: &'a str,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<(), NamespaceError>> {
        NamespaceAccess::carry_out(self, manager, namespace).boxed()
    }

    fn value_of_class<'a>(
        &'a self,
        manager: &'a str,
        class: &'a str,
    ) -> BoxFuture<'a, Result<ClassValue, NamespaceError>> {
        NamespaceAccess::value_of_class(self, manager, class).boxed()
    }
}

/// The clusters whose managers have namespaces. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ClusterAccess {
    driver: Arc<dyn AnyAccess>,
}

impl ClusterAccess {
    /// Through this driver.
    pub(crate) fn new<A: NamespaceAccess>(driver: A) -> Self {
        Self {
            driver: Arc::new(driver),
        }
    }

    /// The name of the namespace that would be made for a workspace.
    pub(crate) fn name_for(
        &self,
        manager: &str,
        workspace: (&str, WorkspaceId),
    ) -> AppResult<String> {
        self.driver.name_for(manager, workspace).map_err(refused)
    }

    /// The namespace of work whose workspace is not bound and whose pool has none; `None` = it is not known yet.
    pub(crate) fn default_of(&self, manager: &str) -> Option<String> {
        self.driver.default_of(manager)
    }

    /// Refuses a namespace in which tasks cannot run.
    pub(crate) async fn check(&self, request: &NamespaceRequest) -> AppResult<()> {
        in_time(&request.manager, self.driver.check(request)).await
    }

    /// Has a manager do now what rows want of a namespace; fails if something of that has failed, which is tried again.
    pub(crate) async fn carry_out(&self, manager: &str, namespace: &str) -> AppResult<()> {
        in_time(manager, self.driver.carry_out(manager, namespace)).await
    }

    /// The value of a class of priorities in a cluster. It is the caller's to decide how long the answer may take.
    pub(crate) async fn value_of_class(
        &self,
        manager: &str,
        class: &str,
    ) -> Result<ClassValue, NamespaceError> {
        self.driver.value_of_class(manager, class).await
    }
}

async fn in_time(
    manager: &str,
    answer: BoxFuture<'_, Result<(), NamespaceError>>,
) -> AppResult<()> {
    match tokio::time::timeout(ANSWER_WITHIN, answer).await {
        Ok(answer) => answer.map_err(refused),
        Err(_) => Err(AppError::new(
            ErrorKind::Unreachable,
            format!(
                "cluster \"{manager}\" has not answered within {} s",
                ANSWER_WITHIN.as_secs()
            ),
        )),
    }
}

fn refused(error: NamespaceError) -> AppError {
    match error {
        NamespaceError::Refused { message, hint } => AppError::precondition(message).hint(hint),
        NamespaceError::Unavailable(message) => AppError::new(ErrorKind::Unreachable, message),
    }
}
