//! The ports of the services that kinds of tasks bring: which one a task would like is stored with it, and which one an
//! attempt has is decided when it is placed (`crate::app::scheduling::ports`).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use det_store::task_documents::TaskDocument;
use rand::seq::IteratorRandom as _;

use crate::app::configs::launched_config;
use crate::error::{AppError, AppResult, ErrorKind};

/// Gives a service the port that its attempts get unless it is in use where they are placed. It is drawn by chance: what was
/// there before, and is not quite gone, has another one.
pub(super) fn give_port(document: &mut TaskDocument, reserved: &[u16]) -> AppResult<()> {
    let Some(ports) = document.details.service_ports() else {
        return Ok(());
    };
    let own = launched_config(document)?.container_request().ports;
    let taken: BTreeSet<u16> = own.into_iter().chain(reserved.iter().copied()).collect();
    let free = ports.clone().filter(|port| !taken.contains(port));
    let port = free
        .choose(&mut rand::rng())
        .ok_or_else(|| no_port(document, &ports))?;
    document.details.give_port(port);
    Ok(())
}

fn no_port(document: &TaskDocument, ports: &RangeInclusive<u16>) -> AppError {
    let kind = document.details.kind().name().to_lowercase();
    let (first, last) = (ports.start(), ports.end());
    AppError::new(
        ErrorKind::Busy,
        format!("no port is left for a {kind}: tasks of this kind have {first} to {last}, and \"reserved_ports\" of the \
                 master's configuration or \"environment.proxy_ports\" of the task take all of them"),
    )
    .hint("reserve fewer ports")
}
