//! What exists before the first service.

use std::path::PathBuf;
use std::sync::Arc;

use det_ids::ClusterId;

use crate::app::cluster_access::ClusterAccess;
use crate::app::context::Context;
use crate::app::demands::Demands;
use crate::app::homes::KnownHomes;
use crate::app::reach::Reaches;
use crate::app::ssh_keys::LaunchKeys;
use crate::auth::Auth;
use crate::in_force::Surroundings;
use crate::live::Live;
use crate::master_log::MasterLog;

/// What the services are made of: the store, caches and settings of this start.
pub(crate) struct Foundation {
    pub(crate) context: Context,
    pub(crate) auth: Auth,
    pub(crate) homes: KnownHomes,
    pub(crate) live: Live,
    pub(crate) reaches: Reaches,
    pub(crate) clusters: ClusterAccess,
    pub(crate) demands: Demands,
    pub(crate) surroundings: Arc<dyn Surroundings>,
    pub(crate) data_dir: PathBuf,
    pub(crate) cluster_id: ClusterId,
    pub(crate) launch_keys: LaunchKeys,
    pub(crate) agent_token_hash: Vec<u8>,
    pub(crate) log: MasterLog,
    pub(crate) tls: bool,
    pub(crate) loopback: bool,
    pub(crate) blank_passwords: bool,
}
