//! Which places fit, besides the slots that are free there.

use std::fmt::Debug;
use std::sync::Arc;

use det_scheduler::Misfits;
use serde_json::Value;

/// What a manager knows of its places besides slots, at one moment: it answers the same for ever, and what has changed is in
/// another one.
pub trait Fit: Debug + Send + Sync {
    /// The places of a pool, by its name, that containers with these demands do not fit; `None` = all of them fit.
    /// `demands` = what the job of the containers demands, in the manager's own form. Those who demand the same get the same
    /// object.
    fn misfits(&self, pool: &str, demands: Option<&Value>) -> Option<Arc<Misfits>>;
}
