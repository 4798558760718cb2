//! Orchestration on the rows of a change: loads what an event needs, lets [`det_orchestrator`] decide, carries out the
//! effects, and goes on with what follows, all in one transaction.

mod backlog;
mod effects;
mod loading;
mod rows;
pub(crate) mod searched_metric;

use std::sync::Arc;

use det_ids::{Micros, TrialId};
use det_orchestrator::{Agenda, Clock, Event, Refusal};
use det_store::{StoreError, WriteTx};

pub(crate) use det_orchestrator::Cause;

use crate::app::all_gathers::AllGathers;
use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::decisions::CORE;
use crate::app::restarts::Restarts;
use crate::app::searches::Searches;
use crate::app::specs::FreshTokens;
use crate::auth::Auth;
use crate::error::{AppError, AppResult};
use backlog::Backlog;
use loading::Facts;
pub(crate) use loading::place_of;
use rows::TxRows;

/// A request that was placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlacedRequest {
    pub(crate) resource_pool: String,
    pub(crate) requested_at: Micros,
    pub(crate) placed_at: Micros,
}

/// Called when the current run of a trial has changed or ended, within the transaction: what is kept in memory of its
/// reports is out of date.
pub(crate) type RunChanged = Arc<dyn Fn(TrialId) + Send + Sync>;

/// Decides on events and carries out what follows. Cheap to clone.
#[derive(Clone)]
pub struct Orchestration {
    pub(super) context: Context,
    configs: Configs,
    searches: Searches,
    restarts: Restarts,
    run_changed: RunChanged,
    memory: TaskMemory,
    backlog: Backlog,
}

/// What the memory of the master holds of live tasks, dropped with their ends.
#[derive(Clone)]
pub(crate) struct TaskMemory {
    /// Tokens of containers that their places do not know yet.
    pub(crate) fresh_tokens: FreshTokens,
    /// Exchanges between the containers of an allocation.
    pub(crate) all_gathers: AllGathers,
    /// Sessions, tokens of tasks among them.
    pub(crate) auth: Auth,
}

impl Orchestration {
    /// Over the rows of this master.
    pub(crate) fn new(
        context: Context,
        configs: Configs,
        searches: Searches,
        restarts: Restarts,
        run_changed: RunChanged,
        memory: TaskMemory,
    ) -> Self {
        Self {
            context,
            configs,
            searches,
            restarts,
            run_changed,
            memory,
            backlog: Backlog::default(),
        }
    }

    /// Decides on an event, with everything that follows from it, in a transaction of its own.
    pub(crate) async fn commit(&self, event: Event) -> AppResult<()> {
        let service = self.clone();
        self.context
            .write(move |tx| Box::pin(async move { service.advance(tx, [event]).await }))
            .await
    }

    /// Decides on events in their order, each with everything that follows from it. On an error the whole change is to
    /// be undone.
    pub(crate) async fn advance(
        &self,
        tx: &mut WriteTx,
        events: impl IntoIterator<Item = Event>,
    ) -> AppResult<()> {
        self.advance_counting(tx, events).await.map(|_| ())
    }

    /// [`Orchestration::advance`], and the requests that were placed on the way.
    pub(crate) async fn advance_counting(
        &self,
        tx: &mut WriteTx,
        events: impl IntoIterator<Item = Event>,
    ) -> AppResult<Vec<PlacedRequest>> {
        let mut agenda = Agenda::new(events);
        let mut facts = Facts::default();
        let mut placed = Vec::new();
        while let Some(event) = agenda.next_event() {
            facts.load(self, tx, &event).await?;
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
            facts.keep_search(&self.searches, tx);
            for effect in outcome.effects {
                self.carry_out(tx, effect, &mut facts, &mut placed).await?;
            }
            agenda.follow(outcome.then);
        }
        Ok(placed)
    }
}

fn refusal(refused: Refusal) -> AppError {
    match refused {
        Refusal::NotFound { what, id } => AppError::not_found(what, id.escape_debug()),
        Refusal::Precondition(message) => AppError::precondition(message),
        Refusal::Unreadable(unreadable) => StoreError::Corrupt {
            what: unreadable.what,
            message: unreadable.message,
        }
        .into(),
    }
}
