//! What only notebooks have: a token, a certificate, and a time after which an idle one ends.

use det_config::MasterConfig;
use det_config::task::{LaunchKind, TaskConfig};
use det_taskspec::{NOTEBOOK_CERTIFICATE_NAME, NotebookDetails};

use super::{idle_seconds, whole_seconds};
use crate::auth::new_token;
use crate::error::{AppError, AppResult};

/// The details of a new notebook, whose port is given to it when it is stored.
pub(super) fn new_details(
    config: &TaskConfig,
    master: &MasterConfig,
) -> AppResult<NotebookDetails> {
    let names = vec![NOTEBOOK_CERTIFICATE_NAME.to_owned()];
    let made = rcgen::generate_simple_self_signed(names);
    let made = made.map_err(|error| {
        AppError::internal(
            anyhow::Error::new(error).context("making the certificate of a notebook"),
        )
    })?;
    Ok(NotebookDetails {
        port: 0,
        token: new_token(),
        certificate: made.cert.pem(),
        private_key: made.signing_key.serialize_pem(),
        idle_timeout: idle_seconds(config, LaunchKind::Notebook, master),
        idle_type: config.notebook_idle_type,
        kernel_idle_timeout: config.effective_kernel_idle_timeout().map(whole_seconds),
    })
}
