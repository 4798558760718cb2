//! The writer: groups, refusals, effects, and defects of a single change.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use det_ids::{EventId, ExperimentId};
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_store::{StoreError, events, settings, users};
use tokio::sync::{Notify, mpsc};

use crate::World;
use crate::rows::{newest_event, stored_user, user};

fn refusal() -> StoreError {
    StoreError::Corrupt {
        what: "the scenario".into(),
        message: "refused on purpose".into(),
    }
}

fn is_refusal(error: &StoreError) -> bool {
    matches!(error, StoreError::Corrupt { what, .. } if what == "the scenario")
}

/// Holds the writer with a change that waits, so that what is handed in meanwhile is committed as one group.
async fn with_the_writer_held<T>(world: &World, hand_in: impl AsyncFnOnce() -> T) -> T {
    let release = Arc::new(Notify::new());
    let (started, mut has_started) = mpsc::unbounded_channel();
    let gate = release.clone();
    let holder = world.write(move |_| {
        Box::pin(async move {
            started.send(()).unwrap();
            gate.notified().await;
            Ok(())
        })
    });
    let others = async {
        has_started.recv().await.unwrap();
        let release = async {
            // All others have handed in their change before this is polled: `join!` polls in order.
            tokio::task::yield_now().await;
            release.notify_one();
        };
        futures::join!(hand_in(), release).0
    };
    let (held, outcome) = futures::join!(holder, others);
    held.unwrap();
    outcome
}

pub(crate) async fn a_refused_change_leaves_nothing_and_its_neighbours_stay(world: &World) {
    let write = |name: &'static str, refuse: bool| {
        world.write(move |tx| {
            Box::pin(async move {
                users::insert(&mut tx.conn(), &user(name)).await?;
                if refuse { Err(refusal()) } else { Ok(()) }
            })
        })
    };
    let (before, refused, after) = with_the_writer_held(world, async || {
        futures::join!(
            write("before", false),
            write("refused", true),
            write("after", false)
        )
    })
    .await;
    before.unwrap();
    assert!(is_refusal(&refused.unwrap_err()));
    after.unwrap();
    let names: Vec<String> = read!(world, conn => users::list(conn).await)
        .into_iter()
        .map(|u| u.username)
        .collect();
    assert_eq!(names, ["before", "after"]);
}

pub(crate) async fn many_changes_at_once_are_all_there(world: &World) {
    let changes = (0..600).map(|n| {
        world.write(move |tx| {
            Box::pin(async move { settings::set(&mut tx.conn(), &format!("key-{n}"), "v").await })
        })
    });
    for outcome in futures::future::join_all(changes).await {
        outcome.unwrap();
    }
    for n in [0, 255, 256, 599] {
        let value = read!(world, conn => settings::find(conn, &format!("key-{n}")).await);
        assert_eq!(value.as_deref(), Some("v"), "key-{n}");
    }
}

pub(crate) async fn changes_never_overlap(world: &World) {
    change!(world, conn => settings::set(conn, "counter", "0").await);
    // Each reads, thinks, and writes: with any overlap some additions would be lost.
    let additions = (0..50).map(|_| {
        world.write(|tx| {
            Box::pin(async move {
                let value = settings::find(&mut tx.conn(), "counter")
                    .await?
                    .unwrap_or_default();
                tokio::task::yield_now().await;
                let next = value.parse::<u32>().unwrap() + 1;
                settings::set(&mut tx.conn(), "counter", &next.to_string()).await
            })
        })
    });
    for outcome in futures::future::join_all(additions).await {
        outcome.unwrap();
    }
    let value = read!(world, conn => settings::find(conn, "counter").await);
    assert_eq!(value.as_deref(), Some("50"));
}

pub(crate) async fn effects_run_after_the_commit_and_repairs_after_a_refusal(world: &World) {
    let effects = Arc::new(AtomicUsize::new(0));
    let repairs = Arc::new(AtomicUsize::new(0));
    for (name, refuse) in [("kept", false), ("refused", true)] {
        let (effect, repair) = (effects.clone(), repairs.clone());
        let outcome = world
            .write(move |tx| {
                Box::pin(async move {
                    tx.after_commit(move || {
                        effect.fetch_add(1, Ordering::SeqCst);
                    });
                    tx.on_rollback(move || {
                        repair.fetch_add(1, Ordering::SeqCst);
                    });
                    settings::set(&mut tx.conn(), name, "v").await?;
                    if refuse { Err(refusal()) } else { Ok(()) }
                })
            })
            .await;
        assert_eq!(outcome.is_err(), refuse, "{name}");
        // The answer comes last: its caller finds the effect done.
        let counts = (
            effects.load(Ordering::SeqCst),
            repairs.load(Ordering::SeqCst),
        );
        assert_eq!(counts, if refuse { (1, 1) } else { (1, 0) }, "{name}");
    }
}

pub(crate) async fn a_failed_statement_that_is_ignored_costs_only_its_own_change(world: &World) {
    stored_user(world, "ada").await;
    let write = |key: &'static str, clash: bool| {
        world.write(move |tx| {
            Box::pin(async move {
                settings::set(&mut tx.conn(), key, "v").await?;
                if clash {
                    // A careless use case: it goes on although the name is taken.
                    let _ = users::insert(&mut tx.conn(), &user("ada")).await;
                }
                Ok(())
            })
        })
    };
    let (before, careless, after) = with_the_writer_held(world, async || {
        futures::join!(
            write("before", false),
            write("careless", true),
            write("after", false)
        )
    })
    .await;
    before.unwrap();
    after.unwrap();
    // The last one of a group is closed together with the commit.
    let (earlier, careless_last) = with_the_writer_held(world, async || {
        futures::join!(write("earlier", false), write("careless last", true))
    })
    .await;
    earlier.unwrap();
    let careless_alone = write("careless alone", true).await;
    // SQLite forgets the failed statement and keeps the rest; PostgreSQL keeps nothing. Either way the answer is true.
    for (key, outcome) in [
        ("careless", careless),
        ("careless last", careless_last),
        ("careless alone", careless_alone),
    ] {
        let stored = read!(world, conn => settings::find(conn, key).await).is_some();
        assert_eq!(outcome.is_ok(), stored, "{key}: {outcome:?}");
    }
    for key in ["before", "after", "earlier"] {
        assert!(
            read!(world, conn => settings::find(conn, key).await).is_some(),
            "{key}"
        );
    }
}

pub(crate) async fn a_panicking_change_costs_only_itself(world: &World) {
    let outcome: Result<(), _> = world
        .write(|tx| {
            Box::pin(async move {
                settings::set(&mut tx.conn(), "half", "v").await?;
                panic!("a defect, on purpose")
            })
        })
        .await;
    assert!(matches!(outcome, Err(StoreError::Panicked)), "{outcome:?}");
    assert_eq!(
        read!(world, conn => settings::find(conn, "half").await),
        None
    );
    change!(world, conn => settings::set(conn, "next", "v").await);
}

pub(crate) async fn a_change_goes_on_when_its_caller_stops_waiting(world: &World) {
    let release = Arc::new(Notify::new());
    let (started, mut has_started) = mpsc::unbounded_channel();
    let gate = release.clone();
    let change = world.write(move |tx| {
        Box::pin(async move {
            started.send(()).unwrap();
            gate.notified().await;
            settings::set(&mut tx.conn(), "abandoned", "v").await
        })
    });
    tokio::select! {
        outcome = change => panic!("the change cannot be done before it is released: {outcome:?}"),
        Some(()) = has_started.recv() => {}
    }
    release.notify_one();
    // A later change is answered after all earlier ones.
    change!(world, conn => settings::set(conn, "later", "v").await);
    let value = read!(world, conn => settings::find(conn, "abandoned").await);
    assert_eq!(value.as_deref(), Some("v"));
}

pub(crate) async fn readers_see_only_what_is_committed(world: &World) {
    let store = world.store.clone();
    let during = world
        .write(move |tx| {
            Box::pin(async move {
                settings::set(&mut tx.conn(), "draft", "v").await?;
                events::append(
                    tx,
                    events::NewEvent::new(
                        ActorName::Master,
                        Subject::Experiment(ExperimentId(1)),
                        EventKind::Created,
                    ),
                )
                .await?;
                let mut reader = store.read().await?;
                let value = settings::find(&mut reader.conn(), "draft").await?;
                Ok((value, newest_event(&mut reader.conn()).await?))
            })
        })
        .await
        .unwrap();
    assert_eq!(during, (None, EventId::default()));
    assert_eq!(
        read!(world, conn => settings::find(conn, "draft").await).as_deref(),
        Some("v")
    );
    assert_eq!(read!(world, conn => newest_event(conn).await), EventId(1));
}

/// Lets the database refuse what is larger than a page, as on a full disk.
async fn fill_disk(world: &World) {
    let sql = match world.store.kind() {
        // Not below what there is.
        "sqlite" => "PRAGMA max_page_count = 1",
        _ => {
            "CREATE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END $$; \
             CREATE TRIGGER disk_full BEFORE INSERT ON settings FOR EACH ROW WHEN (length(NEW.value) > 8192) \
             EXECUTE FUNCTION disk_full()"
        }
    };
    world
        .write(move |tx| Box::pin(tx.run_script(sql)))
        .await
        .unwrap();
}

async fn free_disk(world: &World) {
    let sql = match world.store.kind() {
        "sqlite" => "PRAGMA max_page_count = 1073741823",
        _ => "DROP TRIGGER disk_full ON settings",
    };
    world
        .write(move |tx| Box::pin(tx.run_script(sql)))
        .await
        .unwrap();
}

pub(crate) async fn a_full_disk_refuses_changes_and_its_end_is_an_event(world: &World) {
    let large = |key: &'static str| {
        world.write(move |tx| {
            Box::pin(async move {
                settings::set(&mut tx.conn(), key, &"v".repeat(4 << 20)).await?;
                Ok(())
            })
        })
    };
    let recorded = async || {
        let all =
            read!(world, conn => events::list(conn, EventId::default(), None, 100, i64::MAX).await);
        all.into_iter()
            .filter(|event| matches!(event.subject, Subject::Database(_)))
            .collect::<Vec<_>>()
    };
    let since = det_store::now();
    fill_disk(world).await;
    for _ in 0..2 {
        let outcome = large("refused").await;
        assert!(matches!(outcome, Err(StoreError::Full)), "{outcome:?}");
    }
    assert!(recorded().await.is_empty(), "the disk is still full");
    free_disk(world).await;
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    while recorded().await.is_empty() {
        large("taken").await.unwrap();
        assert!(
            tokio::time::Instant::now() < deadline,
            "no event records that changes are accepted again"
        );
    }
    large("taken").await.unwrap();
    let found = recorded().await;
    assert_eq!(found.len(), 1, "{found:?}");
    let event = &found[0];
    assert_eq!(event.subject.to_string(), world.store.kind());
    assert_eq!(
        (&event.actor, event.kind),
        (&ActorName::Master, EventKind::DiskWasFull)
    );
    let detail: serde_json::Value = serde_json::from_str(event.detail.as_deref().unwrap()).unwrap();
    assert_eq!(detail["refused"], 2);
    assert!(detail["since"].as_i64().unwrap() >= since);
    assert!(detail["until"].as_i64().unwrap() >= detail["since"].as_i64().unwrap());
    assert_eq!(
        read!(world, conn => settings::find(conn, "refused").await),
        None
    );
}

/// A change of one setting.
async fn set(world: &World, key: &'static str) -> Result<(), StoreError> {
    world
        .write(move |tx| Box::pin(async move { settings::set(&mut tx.conn(), key, "1").await }))
        .await
}

pub(crate) async fn a_disk_that_does_not_confirm_a_change_ends_all_writing(world: &World) {
    set(world, "before").await.unwrap();
    let failed: Result<(), StoreError> = world
        .write(|tx| {
            Box::pin(async move {
                settings::set(&mut tx.conn(), "lost", "1").await?;
                tx.fail_to_sync();
                Ok(())
            })
        })
        .await;
    let message = failed.unwrap_err().to_string();
    assert!(
        message.contains("the disk did not confirm a change"),
        "{message}"
    );
    // The disk would take the next one.
    let refused = set(world, "after").await;
    assert!(matches!(refused, Err(StoreError::Ended(_))), "{refused:?}");
    assert!(matches!(
        world.store.read().await,
        Err(StoreError::Ended(_))
    ));
    let world = world.reopened().await;
    let stored = read!(world, conn => settings::find(conn, "before").await);
    assert_eq!(
        stored.as_deref(),
        Some("1"),
        "what was acknowledged is stored"
    );
    world.store.close().await;
}

pub(crate) async fn a_panic_after_a_commit_ends_all_writing(world: &World) {
    world
        .write(|tx| {
            Box::pin(async move {
                tx.after_commit(|| panic!("an effect fails"));
                settings::set(&mut tx.conn(), "stored", "1").await
            })
        })
        .await
        .unwrap();
    let refused = set(world, "after").await;
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("ended in a panic"), "{message}");
    let world = world.reopened().await;
    let stored = read!(world, conn => settings::find(conn, "stored").await);
    assert_eq!(
        stored.as_deref(),
        Some("1"),
        "what was acknowledged is stored"
    );
    world.store.close().await;
}

pub(crate) async fn an_event_with_an_unknown_word_is_an_error_that_names_it(world: &World) {
    change_live!(world, tx => {
        let subject = Subject::Experiment(ExperimentId(1));
        events::append(tx, events::NewEvent::new(ActorName::Master, subject, EventKind::Created)).await
    });
    for (change, column, why) in [
        (
            "kind = 'danced'",
            "kind",
            "\"danced\" is none of created, state",
        ),
        (
            "kind = 'created', subject_kind = 'trail'",
            "subject_kind",
            "\"trail\" is none of",
        ),
        (
            "subject_kind = 'experiment', subject_id = 'x'",
            "subject_id",
            "\"x\" does not identify",
        ),
        (
            "subject_id = '1', actor = 'robot:r'",
            "actor",
            "\"robot:r\" does not identify",
        ),
        (
            "actor = 'master', from_state = 'ASLEEP'",
            "from_state",
            "\"ASLEEP\" is none of ACTIVE, PAUSED",
        ),
        (
            // A state of allocations.
            "from_state = NULL, to_state = 'READY'",
            "to_state",
            "\"READY\" is none of ACTIVE, PAUSED",
        ),
        (
            "subject_kind = 'user', to_state = 'ACTIVE'",
            "to_state",
            "a subject of kind \"user\" has no states",
        ),
    ] {
        world.older(&format!("UPDATE events SET {change};")).await;
        let world = world.reopened().await;
        let mut held = world.store.read().await.unwrap();
        let found = events::list(&mut held.conn(), EventId::default(), None, 10, i64::MAX).await;
        match found.unwrap_err() {
            StoreError::Corrupt { what, message } => {
                assert_eq!(what, format!("{column} of event 1"));
                assert!(message.starts_with(why), "{message}");
            }
            other => panic!("{other:?}"),
        }
        drop(held);
        // It is opened again in the next round.
        world.store.close().await;
    }
}
