//! The ports of the services that kinds of tasks bring, given to tasks in the transactions that store them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use det_store::WriteTx;
use det_store::task_documents::{self, LaunchedFilter, TaskDocument};
use rand::seq::IteratorRandom as _;

use crate::app::configs::launched_config;
use crate::error::{AppError, AppResult, ErrorKind};

/// Gives a service a port that no other live task's service has: in the process runtime they share a machine's ports.
pub(super) async fn give_port(
    tx: &mut WriteTx,
    document: &mut TaskDocument,
    reserved: &[u16],
) -> AppResult<()> {
    let Some(ports) = document.details.service_ports() else {
        return Ok(());
    };
    let own = launched_config(document)?.container_request().ports;
    let live = LaunchedFilter {
        ended_after: Some(i64::MAX),
        ..LaunchedFilter::default()
    };
    let others = task_documents::launched(&mut tx.conn(), &live).await?;
    let others = others.iter().filter_map(|task| task.details.service_port());
    let taken: BTreeSet<u16> = others.chain(own).chain(reserved.iter().copied()).collect();
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
        format!("no port is left for another {kind}: tasks of this kind have {first} to {last}, and live ones or \
                 \"reserved_ports\" of the master's configuration take all of them"),
    )
    .hint("end tasks that are not used any more, or reserve fewer ports")
}
