//! Experiments and trials that run outside the cluster.

use det_ids::{ExperimentId, Micros, TrialId};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::unmanaged::{TrialCounts, UnmanagedState};
use det_store::experiments::{self, NewExperiment};
use det_store::trials::{self, NewTrial, UnmanagedTrial};

use crate::rows::{
    experiment, some_experiment, stored_experiment, stored_trial, stored_user, trial,
};
use crate::{WITHOUT_PLACES, World};

/// An unmanaged experiment of this name, which is its external id too.
async fn unmanaged(world: &World, name: &str) -> ExperimentId {
    let owner = stored_user(world, &format!("owner of {name}")).await;
    let new = NewExperiment {
        unmanaged: true,
        external_id: Some(name.into()),
        state: ExperimentState::Paused,
        ..experiment(name, owner)
    };
    stored_experiment(world, new).await
}

async fn registered(world: &World, experiment_id: ExperimentId, name: &str) -> TrialId {
    let state = UnmanagedState::Awaited;
    let new = NewTrial {
        unmanaged: Some(state),
        state: state.trial_state(),
        ..trial(experiment_id, name)
    };
    change!(world, conn => trials::insert(conn, &new).await)
}

/// Stores what is known of the code of a trial, as decisions do.
async fn is_now(world: &World, id: TrialId, state: UnmanagedState) {
    change_live!(world, tx => {
        tx.load_trial(id).await?;
        tx.live_rows().edit_trial(id, |row| {
            row.unmanaged = Some(state);
            row.state = state.trial_state();
            row.ended_at = row.state.is_terminal().then_some(9_000);
        });
        Ok::<_, det_store::StoreError>(())
    });
}

pub(crate) async fn an_experiment_is_found_by_its_external_id_until_it_is_deleted(world: &World) {
    let managed = some_experiment(world).await;
    let id = unmanaged(world, "sweep 7").await;
    let find = async |name: &'static str| read!(world, conn => experiments::find_by_external_id(conn, &name.into()).await);
    let found = find("sweep 7").await.unwrap();
    assert_eq!(found.id, id);
    assert!(found.unmanaged && found.collected);
    assert_eq!(found.external_id, Some("sweep 7".into()));
    assert!(find("Sweep 7").await.is_none(), "it is exact");
    let other = read!(world, conn => experiments::find(conn, managed).await).unwrap();
    assert!(!other.unmanaged && !other.collected);
    assert_eq!(other.external_id, None);
    let owner = found.owner_id;
    let managed = stored_experiment(world, experiment("managed, of the same owner", owner)).await;
    let count = async || read!(world, conn => experiments::unmanaged_trials_of(conn, owner).await);
    assert_eq!(count().await, 0);
    change_live!(world, tx => {
        for (id, trials) in [(id, 3), (managed, 5)] {
            tx.load_experiment(id).await?;
            tx.live_rows().edit_experiment(id, |row| row.trial_count = trials);
        }
        Ok::<_, det_store::StoreError>(())
    });
    assert_eq!(count().await, 3, "those of managed ones count for no limit");

    // Two writers at once cannot both have it; the caller looks in the same change.
    let twice = NewExperiment {
        unmanaged: true,
        external_id: Some("sweep 7".into()),
        ..experiment("twice", other.owner_id)
    };
    let refused = world
        .write(move |tx| Box::pin(async move { experiments::insert(&mut tx.conn(), &twice).await }))
        .await;
    assert!(refused.is_err());

    change!(world, conn => experiments::delete(conn, id).await);
    assert!(find("sweep 7").await.is_none());
    let again = NewExperiment {
        unmanaged: true,
        external_id: Some("sweep 7".into()),
        ..experiment("again", other.owner_id)
    };
    let again = stored_experiment(world, again).await;
    assert_eq!(find("sweep 7").await.unwrap().id, again);
}

pub(crate) async fn the_code_of_trials_is_waited_for_until_they_end(world: &World) {
    let managed = some_experiment(world).await;
    stored_trial(world, managed, "r").await;
    let id = unmanaged(world, "x").await;
    let (first, second) = (
        registered(world, id, "first").await,
        registered(world, id, "second").await,
    );
    let waited_for = async || read!(world, conn => trials::unmanaged(conn).await);
    let row = |id, state| UnmanagedTrial { id, state };
    assert_eq!(
        waited_for().await,
        [
            row(first, UnmanagedState::Awaited),
            row(second, UnmanagedState::Awaited)
        ]
    );
    let running = UnmanagedState::Running {
        until: Micros(1 << 50),
    };
    is_now(world, first, running).await;
    is_now(world, second, UnmanagedState::Lost).await;
    assert_eq!(waited_for().await, [row(first, running)]);
    let reopened = world.reopened().await;
    let stored = read!(reopened, conn => trials::find(conn, second).await).unwrap();
    assert_eq!(stored.unmanaged, Some(UnmanagedState::Lost));
    assert_eq!(stored.ended_at, Some(9_000));
    let stored = read!(reopened, conn => trials::find_by_request(conn, id, &"first".into()).await);
    assert_eq!(stored.unwrap().unmanaged, Some(running));
}

pub(crate) async fn the_trials_of_an_experiment_are_counted_by_state(world: &World) {
    let id = unmanaged(world, "x").await;
    let counts = async || read!(world, conn => trials::counts(conn, id).await);
    assert_eq!(counts().await, TrialCounts::default());
    let other = unmanaged(world, "y").await;
    let elsewhere = registered(world, other, "a").await;
    is_now(world, elsewhere, UnmanagedState::Completed).await;
    let states = [
        UnmanagedState::Awaited,
        UnmanagedState::Running { until: Micros(5) },
        UnmanagedState::Running { until: Micros(6) },
        UnmanagedState::Lost,
        UnmanagedState::Failed,
        UnmanagedState::Completed,
    ];
    for (number, state) in states.into_iter().enumerate() {
        let trial = registered(world, id, &number.to_string()).await;
        is_now(world, trial, state).await;
    }
    let expected = TrialCounts {
        running: 2,
        completed: 1,
        failed: 2,
    };
    assert_eq!(counts().await, expected);

    assert!(read!(world, conn => experiments::unmanaged_running(conn).await).is_empty());
    change_live!(world, tx => {
        tx.load_experiment(id).await?;
        tx.live_rows().edit_experiment(id, |row| row.state = ExperimentState::Active);
        Ok::<_, det_store::StoreError>(())
    });
    assert_eq!(
        read!(world, conn => experiments::unmanaged_running(conn).await),
        [id]
    );
}

pub(crate) async fn an_older_store_has_nothing_unmanaged(world: &World) {
    let experiment_id = some_experiment(world).await;
    let trial_id = stored_trial(world, experiment_id, "r").await;
    let older = "DELETE FROM schema_versions WHERE version >= 7;";
    world.older(&[WITHOUT_PLACES, older].concat()).await;
    let world = world.reopened().await;
    let row = read!(world, conn => experiments::find(conn, experiment_id).await).unwrap();
    assert!(!row.unmanaged);
    assert_eq!(row.external_id, None);
    let row = read!(world, conn => trials::find(conn, trial_id).await).unwrap();
    assert_eq!(row.unmanaged, None);
}
