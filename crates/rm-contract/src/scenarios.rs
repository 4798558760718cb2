//! What every resource manager must do. Each scenario ends with an order that only follows if nothing else was ordered
//! before.

use det_ids::ContainerId;
use det_lifecycle::container::{DesiredState, ObservedState};
use det_taskspec::{ContainerExit, SlotGrant};

use crate::{StartOrder, Subject, TestCore};

const PLACE: &str = "p";

/// What is observed of a container that runs.
fn running() -> ObservedState {
    ObservedState::Running {
        host_address: "10.0.0.1".to_owned(),
        ports: vec![(1734, 41_734)],
        runtime_id: "4711".to_owned(),
    }
}

/// What is observed of a container that ended by itself.
fn exited(code: i32) -> ObservedState {
    ended(ContainerExit::Exited { code })
}

fn ended(exit: ContainerExit) -> ObservedState {
    ObservedState::Terminated { exit, cause: None }
}

/// Whether two observations are the same. Where a container that runs is reached is its manager's.
fn same(one: &ObservedState, other: &ObservedState) -> bool {
    let run = |it: &ObservedState| matches!(it, ObservedState::Running { .. });
    one == other || (run(one) && run(other))
}

/// A manager with one place of two slots.
struct Scene<S> {
    core: TestCore,
    it: S,
}

impl<S: Subject> Scene<S> {
    async fn begin() -> Self {
        let core = TestCore::default();
        let it = S::start(core.clone()).await;
        let mut scene = Self { core, it };
        scene.joins(PLACE, 2).await;
        scene
    }

    async fn joins(&mut self, place: &str, slots: u32) {
        self.it.appears(place, slots).await;
        self.is_served(place).await;
    }

    async fn is_served(&self, place: &str) {
        let is_served = |core: &TestCore| core.served(place).is_some();
        self.core.until("the place joins", is_served).await;
    }

    async fn leaves(&mut self) {
        self.it.leaves(PLACE).await;
        let has_left = |core: &TestCore| core.served(PLACE).is_none();
        self.core.until("the place leaves", has_left).await;
    }

    async fn returns(&mut self) {
        self.it.returns(PLACE).await;
        self.is_served(PLACE).await;
    }

    /// The master ends and starts again.
    async fn restarts(&mut self) {
        self.core.restart();
        self.it.restart().await;
        self.is_served(PLACE).await;
    }

    /// A container that has been ordered to start.
    async fn starting(&mut self, name: &str) -> ContainerId {
        let id = self.core.place(PLACE, name, 2);
        let started = self.it.next_start(PLACE).await;
        assert_eq!(started.container_id, id);
        id
    }

    /// A container that runs, and the core knows it.
    async fn running(&mut self, name: &str) -> ContainerId {
        let id = self.starting(name).await;
        self.it.observes(PLACE, &id, running()).await;
        self.is_known(&id, &running()).await;
        id
    }

    async fn is_known(&self, id: &ContainerId, observed: &ObservedState) {
        let is_known =
            |core: &TestCore| (core.row(id).observed.as_ref()).is_some_and(|it| same(it, observed));
        let what = format!("{observed:?} of container {id}");
        self.core.until(&what, is_known).await;
    }

    /// It ends as observed, and its place forgets it.
    async fn ends(&mut self, id: &ContainerId, observed: ObservedState) {
        self.it.observes(PLACE, id, observed.clone()).await;
        self.is_known(id, &observed).await;
        assert!(self.core.row(id).ended);
        self.it.next_forget(PLACE, id).await;
    }

    /// Nothing is ordered that was not expected: the next order is the start of another container.
    async fn nothing_else_is_ordered(&mut self) {
        let id = self.running("another").await;
        self.ends(&id, exited(0)).await;
    }
}

/// A container that is placed is started once, with what it is granted, and its exit code reaches the core.
pub async fn what_is_placed_starts_once_and_ends_with_its_exit_code<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.core.place(PLACE, "c", 2);
    let StartOrder {
        slots, slot_ids, ..
    } = scene.it.next_start(PLACE).await;
    let granted = match slots {
        SlotGrant::Devices(devices) => (true, devices.len()),
        SlotGrant::Count(count) => (false, count as usize),
    };
    assert_eq!(granted, (S::NAMED, 2));
    assert_eq!(slot_ids, "[0,1]");
    scene.it.observes(PLACE, &id, running()).await;
    scene.is_known(&id, &running()).await;
    scene.ends(&id, exited(3)).await;
    let row = scene.core.row(&id);
    assert_eq!(row.exit(), Some(&ContainerExit::Exited { code: 3 }));
    assert_eq!(row.starts, 1);
    scene.nothing_else_is_ordered().await;
}

/// Reports may come twice, late and in the wrong order.
pub async fn what_is_reported_twice_late_or_out_of_order_changes_nothing<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.running("c").await;
    for observed in [
        running(),
        ObservedState::Pulling,
        ObservedState::Assigned,
        running(),
    ] {
        scene.it.observes(PLACE, &id, observed).await;
    }
    scene.ends(&id, exited(0)).await;
    // Of a container that is forgotten a place may still report; it is to be forgotten again.
    scene.it.observes(PLACE, &id, exited(1)).await;
    scene.it.next_forget(PLACE, &id).await;
    let row = scene.core.row(&id);
    assert_eq!(row.exit(), Some(&ContainerExit::Exited { code: 0 }));
    scene.nothing_else_is_ordered().await;
}

/// A container that is to be killed is not asked first.
pub async fn what_is_killed_is_ended_at_once<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.running("c").await;
    scene.core.want(&id, DesiredState::Kill);
    assert!(!scene.it.next_end(PLACE, &id).await, "it is asked first");
    scene.ends(&id, ended(ContainerExit::Killed)).await;
    scene.nothing_else_is_ordered().await;
}

/// A container that is to stop is asked first, and is killed when that is wanted later.
pub async fn what_is_stopped_is_asked_first_and_killed_later<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.running("c").await;
    scene.core.want(&id, DesiredState::Stop);
    assert!(scene.it.next_end(PLACE, &id).await, "it is not asked");
    scene.core.want(&id, DesiredState::Kill);
    assert!(!scene.it.next_end(PLACE, &id).await, "it is asked again");
    scene.ends(&id, ended(ContainerExit::Killed)).await;
    scene.nothing_else_is_ordered().await;
}

/// What a place cannot start ends with the place's reason.
pub async fn a_start_that_the_place_refuses_ends_with_the_reason<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.starting("c").await;
    let exit = ContainerExit::StartFailed {
        message: "there is no such image".to_owned(),
    };
    scene.ends(&id, ended(exit.clone())).await;
    assert_eq!(scene.core.row(&id).exit(), Some(&exit));
    scene.nothing_else_is_ordered().await;
}

/// What the core does not give a specification of is not started, and keeps nothing else from its start.
pub async fn a_start_that_the_core_withdraws_reaches_no_place<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = ContainerId::from("c");
    scene.core.withdraw(&id);
    scene.core.place(PLACE, "c", 2);
    let has_ended = |core: &TestCore| core.row(&id).ended;
    scene.core.until("the container ends", has_ended).await;
    assert_eq!(scene.core.row(&id).starts, 0);
    scene.nothing_else_is_ordered().await;
}

/// What is placed at a place that is away and is killed before it comes back never starts.
pub async fn what_is_not_wanted_before_it_has_started_never_starts<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    scene.leaves().await;
    let id = scene.core.place(PLACE, "c", 2);
    scene.core.want(&id, DesiredState::Kill);
    scene.returns().await;
    let has_ended = |core: &TestCore| core.row(&id).ended;
    scene.core.until("the container ends", has_ended).await;
    assert_eq!(scene.core.row(&id).starts, 0);
    scene.nothing_else_is_ordered().await;
}

/// What runs at a place that was away is neither started again nor ended.
pub async fn a_place_comes_back_with_what_it_holds<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.running("c").await;
    scene.leaves().await;
    scene.returns().await;
    scene.ends(&id, exited(0)).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    scene.nothing_else_is_ordered().await;
}

/// The end of a container reaches the core when its place comes back.
pub async fn what_ended_while_its_place_was_away_has_ended<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.running("c").await;
    scene.leaves().await;
    scene.it.observes(PLACE, &id, exited(7)).await;
    scene.returns().await;
    scene.is_known(&id, &exited(7)).await;
    scene.it.next_forget(PLACE, &id).await;
    scene.nothing_else_is_ordered().await;
}

/// What a place does not hold any more is lost; it is not started again, which could make two.
pub async fn what_a_place_does_not_hold_any_more_is_lost<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.running("c").await;
    scene.leaves().await;
    scene.it.loses(PLACE, &id).await;
    scene.returns().await;
    let has_ended = |core: &TestCore| core.row(&id).ended;
    scene.core.until("the container is lost", has_ended).await;
    let row = scene.core.row(&id);
    // A manager that sees more than the place's own reports may have noticed it.
    assert!(matches!(
        row.exit(),
        None | Some(ContainerExit::Lost { .. })
    ));
    assert_eq!(row.starts, 1);
    scene.nothing_else_is_ordered().await;
}

/// What runs at a place and has no row is removed.
pub async fn what_no_row_wants_is_removed<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.running("c").await;
    scene.leaves().await;
    scene.core.remove(&id);
    scene.returns().await;
    scene.it.next_forget(PLACE, &id).await;
    scene.nothing_else_is_ordered().await;
}

/// The end of an older connection, noticed late, does not end the newer one.
pub async fn a_newer_connection_of_a_place_replaces_the_older<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.running("c").await;
    scene.it.returns(PLACE).await;
    scene.ends(&id, exited(0)).await;
    scene.is_served(PLACE).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    scene.nothing_else_is_ordered().await;
}

/// Orders go to the place that they are for.
pub async fn each_place_has_its_own_containers<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    scene.joins("q", 1).await;
    let there = scene.core.place("q", "d", 1);
    let here = scene.running("c").await;
    assert_eq!(scene.it.next_start("q").await.container_id, there);
    scene.core.want(&there, DesiredState::Kill);
    assert!(!scene.it.next_end("q", &there).await);
    let killed = ended(ContainerExit::Killed);
    scene.it.observes("q", &there, killed.clone()).await;
    scene.is_known(&there, &killed).await;
    scene.it.next_forget("q", &there).await;
    assert!(!scene.core.row(&here).ended);
    scene.ends(&here, exited(0)).await;
    scene.nothing_else_is_ordered().await;
}

/// Tasks outlive the master.
pub async fn a_restart_of_the_master_starts_nothing_twice<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.running("c").await;
    scene.restarts().await;
    scene.ends(&id, exited(0)).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    scene.nothing_else_is_ordered().await;
}

/// What rows want and containers do while no manager runs is made up for by the next one.
pub async fn what_is_decided_while_the_master_is_away_is_carried_out<S: Subject>() {
    let mut scene = Scene::<S>::begin().await;
    let id = scene.running("c").await;
    scene.leaves().await;
    scene.core.want(&id, DesiredState::Kill);
    scene.restarts_with_return().await;
    assert!(!scene.it.next_end(PLACE, &id).await);
    scene.ends(&id, ended(ContainerExit::Killed)).await;
    scene.nothing_else_is_ordered().await;
}

impl<S: Subject> Scene<S> {
    /// The master ends and starts again, and then the place comes back.
    async fn restarts_with_return(&mut self) {
        self.core.restart();
        self.it.restart().await;
        self.returns().await;
    }
}
