//! The `PriorityClasses` of a cluster: which of them exist, and the making of those that all tasks share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use det_pods::PriorityClass;
use tokio::time::Instant;

use crate::api::{ApiError, Kind, KubeApi};
use crate::creating::name;

/// How long what is known of a class is relied on: an administrator may delete it, or give the master the right to make it.
const KNOWN_FOR: Duration = Duration::from_mins(1);

/// What is known of the classes of a cluster. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Classes(Arc<Mutex<BTreeMap<String, PriorityClassState>>>);

#[derive(Debug, Clone)]
struct PriorityClassState {
    /// The class that pods get; `None` = none can be had.
    usable: Option<String>,
    until: Instant,
}

impl Classes {
    /// The name of a class that exists for these pods; `None` = the master may neither read nor make it, and they have none.
    ///
    /// # Errors
    /// It cannot be known now.
    pub(crate) async fn usable(
        &self,
        api: &KubeApi,
        class: &PriorityClass,
    ) -> Result<Option<String>, ApiError> {
        let names = class.existing.iter().copied().chain([name(&class.shared)]);
        let key = names.collect::<Vec<_>>().join(" ");
        let before = self.known(&key);
        let now = Instant::now();
        if let Some(known) = before.as_ref().filter(|known| known.until > now) {
            return Ok(known.usable.clone());
        }
        let usable = match found_or_made(api, class).await {
            Ok(name) => Some(name),
            Err(error @ (ApiError::Forbidden(_) | ApiError::Refused(_))) => {
                if before.is_none_or(|known| known.usable.is_some()) {
                    tracing::warn!(
                        class = name(&class.shared),
                        %error,
                        "pods have no PriorityClass, since there is none for them and it cannot be made"
                    );
                }
                None
            }
            Err(error) => return Err(error),
        };
        let known = PriorityClassState {
            usable: usable.clone(),
            until: now + KNOWN_FOR,
        };
        self.lock().insert(key, known);
        Ok(usable)
    }

    fn known(&self, key: &str) -> Option<PriorityClassState> {
        self.lock().get(key).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, PriorityClassState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn found_or_made(api: &KubeApi, class: &PriorityClass) -> Result<String, ApiError> {
    let shared = name(&class.shared);
    for wanted in class.existing.iter().copied().chain([shared]) {
        match api.get(Kind::PriorityClass, ("", wanted)).await {
            Ok(_) => return Ok(wanted.to_owned()),
            Err(ApiError::Absent) => {}
            Err(error) => return Err(error),
        }
    }
    match api.create(Kind::PriorityClass, "", &class.shared).await {
        Ok(_) | Err(ApiError::Exists) => Ok(shared.to_owned()),
        Err(error) => Err(error),
    }
}
