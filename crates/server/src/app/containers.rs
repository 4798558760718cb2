//! Containers: what agents report of them, and what that means for their allocation.

use std::collections::BTreeMap;

use det_agent_proto::ContainerReport;
use det_failpoints::failpoint;
use det_ids::{AllocationId, ContainerId};
use det_lifecycle::allocation::{AllocationEvent, AllocationState, Member, MemberProgress, Phase};
use det_lifecycle::container::{Desired, Observed};
use det_scheduler::{HandOver, Placement, Preemption};
use det_store::allocations::{AllocationRow, ContainerRow};
use det_store::events::NewEvent;
use det_store::{StoreError, WriteTx, allocations};
use det_taskspec::ContainerExit;

use crate::app::Master;
use crate::app::agents::slot_set;
use crate::app::lifecycle::Cause;
use crate::app::wait_reasons::{WaitText, stored_kind};
use crate::auth::{new_token, token_hash};
use crate::error::{AppError, AppResult};

/// The members of an allocation, as its rows say.
pub fn members(rows: &[ContainerRow]) -> Vec<Member> {
    rows.iter()
        .map(|row| Member {
            container: ContainerId(row.id.clone()),
            daemon: row.daemon,
            progress: MemberProgress::of(row.observed.as_ref()),
        })
        .collect()
}

/// The exit code that an exit is shown with.
fn status_code(exit: &ContainerExit) -> Option<i64> {
    match exit {
        ContainerExit::Exited { code } | ContainerExit::SetupFailed { code, .. } => {
            Some(i64::from(*code))
        }
        ContainerExit::Signaled { signal, .. } => Some(128 + i64::from(*signal)),
        ContainerExit::Killed => Some(137),
        ContainerExit::StartFailed { .. } | ContainerExit::Lost { .. } => None,
    }
}

impl Master {
    /// Stores a placement of the scheduler, if its request still waits and its agents still take work; gives what was placed.
    pub(crate) async fn place_allocation(
        &self,
        tx: &mut WriteTx,
        placement: Placement,
    ) -> AppResult<Option<AllocationRow>> {
        let id = placement.allocation_id.0;
        let Some(mut row) = allocations::find(&mut tx.conn(), &id).await? else {
            return Ok(None);
        };
        if row.placed_at.is_some() || row.ended_at.is_some() {
            return Ok(None);
        }
        let mut held: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (agent, slots) in &placement.parts {
            let Some(agent) = det_store::agents::find(&mut tx.conn(), agent.as_str()).await? else {
                return Ok(None);
            };
            let (disabled, draining) = (
                slot_set(&agent.disabled_slots)?,
                slot_set(&agent.draining_slots)?,
            );
            // The agent, or the request's pool, changed between the plan and now: the change has woken the scheduler for another pass.
            if agent.disconnected_at.is_some()
                || agent.resource_pool != row.resource_pool
                || !agent.enabled
                || slots
                    .iter()
                    .any(|s| disabled.contains(&s.0) || draining.contains(&s.0))
            {
                return Ok(None);
            }
        }
        for (member, (agent, slots)) in placement.parts.iter().enumerate() {
            let numbers: Vec<u32> = slots.iter().map(|s| s.0).collect();
            let container = ContainerRow {
                id: ContainerId::random().0,
                allocation_id: id.clone(),
                agent_id: agent.0.clone(),
                member: i64::try_from(member).unwrap_or(i64::MAX),
                slots: serde_json::to_string(&numbers).map_err(AppError::internal)?,
                desired: Desired::Run,
                observed: None,
                daemon: false,
                joined: false,
                accelerators: None,
                ended_at: None,
            };
            allocations::insert_container(&mut tx.conn(), &container).await?;
            // Its token is stored here, so that telling the agent needs no change of its own.
            let token = new_token();
            allocations::insert_token(&mut tx.conn(), &token_hash(&token), &id).await?;
            let (tokens, container_id) = (self.fresh_tokens.clone(), container.id);
            tx.after_commit(move || tokens.keep(container_id, token));
            held.insert(agent.0.clone(), numbers);
            self.wake_agent(tx, agent.as_str());
        }
        row.placed_at = Some(det_store::now());
        allocations::update(&mut tx.conn(), &row).await?;
        let where_to: Vec<String> = held
            .iter()
            .map(|(agent, slots)| match slots.len() {
                0 => format!("agent {agent}"),
                1 => format!("agent {agent}, slot {}", slots[0]),
                n => format!("agent {agent}, {n} slots"),
            })
            .collect();
        self.log_line(
            tx,
            &row.task_id,
            Some(&id),
            &format!("Assigned to {}", where_to.join("; ")),
        )?;
        self.record(
            tx,
            NewEvent {
                actor: "master",
                subject_kind: "allocation",
                subject_id: id.clone(),
                kind: "placed",
                from: Some(AllocationState::Pending.name()),
                to: Some(AllocationState::Starting(Phase::Assigned).name()),
                detail: Some(serde_json::to_string(&held).map_err(AppError::internal)?),
                ..Default::default()
            },
        )
        .await?;
        self.allocation_event(
            tx,
            &id,
            AllocationEvent::Place,
            &Cause::master("it was given slots"),
        )
        .await?;
        Ok(Some(row))
    }

    /// Asks an allocation to make room, as the scheduler decided.
    pub(crate) async fn preempt_for_scheduler(
        &self,
        tx: &mut WriteTx,
        preemption: Preemption,
    ) -> AppResult<()> {
        let id = preemption.allocation_id.0;
        let Some(mut row) = allocations::find(&mut tx.conn(), &id).await? else {
            return Ok(());
        };
        if row.ended_at.is_some() {
            return Ok(());
        }
        row.preempted_for = preemption.for_allocation.map(|a| a.0);
        allocations::update(&mut tx.conn(), &row).await?;
        let reason = preemption.reason.to_string();
        self.allocation_event(tx, &id, AllocationEvent::Preempt, &Cause::master(reason))
            .await
    }

    /// The room of a stopping allocation goes to another request than the one it was asked to stop for.
    pub(crate) async fn hand_over(&self, tx: &mut WriteTx, hand_over: HandOver) -> AppResult<()> {
        let Some(mut row) =
            allocations::find(&mut tx.conn(), hand_over.allocation_id.as_str()).await?
        else {
            return Ok(());
        };
        if row.ended_at.is_none() {
            row.preempted_for = Some(hand_over.for_allocation.0);
            allocations::update(&mut tx.conn(), &row).await?;
        }
        Ok(())
    }

    /// Stores why an allocation waits; a reason of another kind than before is also a line in the task's log.
    pub(crate) async fn note_waiting(
        &self,
        tx: &mut WriteTx,
        id: &AllocationId,
        reason: &WaitText,
    ) -> AppResult<()> {
        let Some(row) = allocations::find(&mut tx.conn(), id.as_str()).await? else {
            return Ok(());
        };
        if row.placed_at.is_some() || row.ended_at.is_some() {
            return Ok(());
        }
        // One that cannot be read is replaced like one of another kind.
        let same_kind = stored_kind(&row).is_ok_and(|before| before == Some(reason.kind));
        let since = if same_kind {
            row.wait_since
        } else {
            Some(det_store::now())
        };
        allocations::set_wait(&mut tx.conn(), id.as_str(), Some(&reason.stored), since).await?;
        if !same_kind {
            self.log_line(
                tx,
                &row.task_id,
                Some(&row.id),
                &format!("Waiting: {}", reason.message),
            )?;
        }
        Ok(())
    }

    /// Stores an agent's reports on containers: all that came meanwhile in one transaction.
    pub(crate) async fn containers_reported(
        &self,
        agent_id: &str,
        reports: Vec<ContainerReport>,
    ) -> AppResult<()> {
        let master = self.clone();
        let agent_id = agent_id.to_owned();
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    for report in reports {
                        master.apply_container_report(tx, &agent_id, report).await?;
                    }
                    failpoint!("server::containers::report::before_commit");
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        failpoint!("server::containers::report::after_commit");
        Ok(())
    }

    /// The same, in a transaction under way. Reports on containers that nobody wants any more change nothing: the
    /// connection then tells the agent to forget them.
    pub(crate) async fn apply_container_report(
        &self,
        tx: &mut WriteTx,
        agent_id: &str,
        report: ContainerReport,
    ) -> AppResult<()> {
        let Some(mut row) =
            allocations::find_container(&mut tx.conn(), report.container_id.as_str()).await?
        else {
            return Ok(());
        };
        if row.ended_at.is_some() || row.agent_id != agent_id {
            return Ok(());
        }
        let state = Observed::from(report.state);
        if let Observed::Terminated { exit } = state {
            return self.container_ended(tx, row, exit).await;
        }
        // A report of an earlier connection may come after one of a later one: life only moves on.
        let known = row.observed.as_ref();
        if known.is_some_and(|known| *known == state || state.is_before(known)) {
            return Ok(());
        }
        let runs = matches!(state, Observed::Running { .. });
        row.observed = Some(state);
        allocations::update_container(&mut tx.conn(), &row).await?;
        // The allocation of the row: what the agent says of it must not choose the log.
        if runs && let Some(of) = allocations::find(&mut tx.conn(), &row.allocation_id).await? {
            let text = format!("Container started on agent {agent_id}");
            self.log_line(tx, &of.task_id, Some(&of.id), &text)?;
        }
        let (hub, topic) = (
            self.hub.clone(),
            crate::hub::Topic::Allocation(row.allocation_id.clone()),
        );
        tx.after_commit(move || hub.notify(&topic));
        let cause = Cause::actor(format!("agent:{agent_id}"));
        self.allocation_event(
            tx,
            &row.allocation_id,
            AllocationEvent::MembersChanged,
            &cause,
        )
        .await
    }

    /// A container is gone: its slots are free, and its allocation hears of it.
    pub(crate) async fn container_ended(
        &self,
        tx: &mut WriteTx,
        mut row: ContainerRow,
        exit: ContainerExit,
    ) -> AppResult<()> {
        let status_code = status_code(&exit);
        row.observed = Some(Observed::Terminated { exit });
        row.ended_at = Some(det_store::now());
        allocations::update_container(&mut tx.conn(), &row).await?;
        if row.member == 0
            && let Some(mut allocation) =
                allocations::find(&mut tx.conn(), &row.allocation_id).await?
        {
            allocation.status_code = status_code;
            allocations::update(&mut tx.conn(), &allocation).await?;
        }
        self.wake_agent(tx, &row.agent_id);
        self.wake_scheduler(tx);
        let (tokens, container_id) = (self.fresh_tokens.clone(), row.id.clone());
        tx.after_commit(move || {
            tokens.take(&container_id);
        });
        let cause = Cause::actor(format!("agent:{}", row.agent_id));
        self.allocation_event(
            tx,
            &row.allocation_id,
            AllocationEvent::MembersChanged,
            &cause,
        )
        .await
    }

    /// A container that was never started and must not be: its row ends without the agent.
    pub(crate) async fn container_never_started(&self, container_id: &str) -> AppResult<()> {
        let master = self.clone();
        let container_id = container_id.to_owned();
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    let Some(row) =
                        allocations::find_container(&mut tx.conn(), &container_id).await?
                    else {
                        return Ok(());
                    };
                    if row.ended_at.is_some() || row.desired == Desired::Run {
                        return Ok(());
                    }
                    master.container_ended(tx, row, ContainerExit::Killed).await
                })
            })
            .await
    }

    /// Ends a container whose specification cannot be made, and with it its run: other containers of the same agent have
    /// nothing to do with it.
    pub(crate) async fn container_cannot_start(
        &self,
        container_id: &str,
        error: &AppError,
    ) -> AppResult<()> {
        tracing::error!(
            container.id = container_id,
            %error,
            cause = ?error.cause,
            "a container cannot be started"
        );
        // What the rows hold is its owner's own; other causes are for the log only.
        let cause = error.cause.as_ref().and_then(|c| c.downcast_ref());
        let why = match cause {
            Some(corrupt @ StoreError::Corrupt { .. }) => corrupt.to_string(),
            _ => error.to_string(),
        };
        let message = format!("the container's specification cannot be made: {why}");
        let (master, container_id) = (self.clone(), container_id.to_owned());
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    let found = allocations::find_container(&mut tx.conn(), &container_id).await?;
                    let Some(row) = found.filter(|row| row.ended_at.is_none()) else {
                        return Ok(());
                    };
                    let exit = ContainerExit::StartFailed { message };
                    master.container_ended(tx, row, exit).await
                })
            })
            .await
    }

    /// Ends an allocation because the platform cannot go on with it; its trial starts again elsewhere, uncharged.
    pub(crate) async fn end_for_infrastructure(
        &self,
        tx: &mut WriteTx,
        allocation_id: &str,
        reason: &str,
    ) -> AppResult<()> {
        let Some(row) = allocations::find(&mut tx.conn(), allocation_id).await? else {
            return Ok(());
        };
        if row.state.is_terminal() {
            return Ok(());
        }
        let event = AllocationEvent::Infrastructure(reason.to_owned());
        self.allocation_event(tx, allocation_id, event, &Cause::master(reason))
            .await
    }
}
