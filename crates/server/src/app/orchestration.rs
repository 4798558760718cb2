//! Orchestration on the rows of a change: loads what an event needs, lets [`det_orchestrator`] decide, carries out the
//! effects, and goes on with what follows, all in one transaction.

mod effects;
mod loading;
mod rows;

use det_ids::Micros;
use det_orchestrator::{Agenda, Clock, Core, Event, Refused};
use det_store::{StoreError, WriteTx};

pub(crate) use det_orchestrator::Cause;

use crate::app::Master;
use crate::error::{AppError, AppResult};
use loading::Facts;
use rows::TxRows;

/// A restart replays at most this many events of a search.
const CORE: Core = Core {
    snapshot_every: 4096,
    mutant: None,
};

/// A request that was placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlacedRequest {
    pub(crate) resource_pool: String,
    pub(crate) requested_at: Micros,
    pub(crate) placed_at: Micros,
}

/// Decides on an event, with everything that follows from it, in a transaction of its own.
pub(crate) async fn commit(master: &Master, event: Event) -> AppResult<()> {
    let handler = master.clone();
    master
        .context
        .store
        .write(move |tx| Box::pin(async move { advance(&handler, tx, [event]).await }))
        .await
}

/// Decides on events in their order, each with everything that follows from it. On an error the whole change is to be
/// undone.
pub(crate) async fn advance(
    master: &Master,
    tx: &mut WriteTx,
    events: impl IntoIterator<Item = Event>,
) -> AppResult<()> {
    advance_counting(master, tx, events).await.map(|_| ())
}

/// [`advance`], and the requests that were placed on the way.
pub(crate) async fn advance_counting(
    master: &Master,
    tx: &mut WriteTx,
    events: impl IntoIterator<Item = Event>,
) -> AppResult<Vec<PlacedRequest>> {
    let mut agenda = Agenda::new(events);
    let mut facts = Facts::default();
    let mut placed = Vec::new();
    while let Some(event) = agenda.next_event() {
        facts.load(master, tx, &event).await?;
        let clock = Clock {
            wall: Micros(det_store::now()),
            steady: Micros(det_store::steady_now()),
        };
        let mut rows = TxRows {
            live: tx.live_rows(),
            facts: &mut facts,
            now: clock.wall,
        };
        let outcome = CORE.decide(&mut rows, clock, event).map_err(refusal)?;
        facts.keep_search(master, tx);
        for effect in outcome.effects {
            effects::carry_out(master, tx, effect, &mut facts, &mut placed).await?;
        }
        agenda.follow(outcome.then);
    }
    Ok(placed)
}

fn refusal(refused: Refused) -> AppError {
    match refused {
        Refused::NotFound { what, id } => AppError::not_found(what, id.escape_debug()),
        Refused::Precondition(message) => AppError::precondition(message),
        Refused::Unreadable(unreadable) => StoreError::Corrupt {
            what: unreadable.what,
            message: unreadable.message,
        }
        .into(),
    }
}
