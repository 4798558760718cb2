//! Tasks that users launch: their documents, files and families.

use det_ids::{ContainerId, ExperimentId, JobId, TaskId, WorkspaceId};
use det_lifecycle::task::{TaskEnd, TaskState};
use det_store::StoreError;
use det_store::allocations::{self, TaskRow};
use det_store::archives::{self, ArchiveOf, NewArchive};
use det_store::checkpoint_removals;
use det_store::experiments::{self, JobKind, JobRow};
use det_store::task_documents::{self, LaunchedFilter, TaskDocument};
use det_store::task_metrics::{self, TaskMeasurement};
use det_taskspec::{
    CheckpointGcDetails, GenericDetails, RemovalCause, Remover, TaskDetails, TaskKind,
};

use crate::World;
use crate::rows::{job, stored_user, task};

fn document(id: &str, parent: Option<&str>, details: TaskDetails) -> TaskDocument {
    TaskDocument {
        task_id: id.into(),
        parent_id: parent.map(TaskId::from),
        description: format!("{id} of ada"),
        config: r#"{"entrypoint": ["true"]}"#.into(),
        details,
    }
}

/// Stores a launched task with a job and a document of its own.
async fn launched(world: &World, row: TaskRow, document: TaskDocument, workspace: WorkspaceId) {
    let job = JobRow {
        kind: JobKind::Task,
        workspace_id: workspace,
        ..job(row.job_id.as_str(), row.owner_id)
    };
    world
        .write(move |tx| {
            Box::pin(async move {
                experiments::insert_job(&mut tx.conn(), &job).await?;
                tx.live_rows().add_task(row);
                task_documents::insert(&mut tx.conn(), &document).await
            })
        })
        .await
        .unwrap();
}

#[expect(clippy::too_many_lines, reason = "one world, asked in several ways")]
pub(crate) async fn launched_tasks_are_found_with_their_documents(world: &World) {
    let ada = stored_user(world, "ada").await;
    let bob = stored_user(world, "bob").await;
    let (here, there) = (WorkspaceId(1), WorkspaceId(2));
    let generic = TaskDetails::Generic(GenericDetails {
        forked_from: Some("gone".into()),
        no_pause: true,
    });
    for (id, owner_id, kind, created_at, ended_at, workspace) in [
        ("a", ada, TaskKind::Command, 10, None, here),
        ("b", bob, TaskKind::Command, 20, Some(25), there),
        ("c", ada, TaskKind::Generic, 30, None, here),
    ] {
        let row = TaskRow {
            kind,
            job_id: JobId(format!("job-{id}")),
            owner_id,
            created_at,
            ended_at,
            logs_deleted_at: ended_at,
            state: ended_at.map_or(TaskState::Queued, |_| TaskState::Ended(TaskEnd::Completed)),
            ..task(id, None, None)
        };
        let details = match kind {
            TaskKind::Generic => generic.clone(),
            _ => TaskDetails::Command,
        };
        launched(world, row, document(id, None, details), workspace).await;
    }
    let ids = async |filter: LaunchedFilter| -> Vec<String> {
        let rows = read!(world, conn => task_documents::launched(conn, &filter).await);
        rows.into_iter().map(|row| row.id.0).collect()
    };
    let all = LaunchedFilter::default;
    assert_eq!(ids(all()).await, ["c", "b", "a"], "the newest first");
    let kind = Some(TaskKind::Command);
    assert_eq!(ids(LaunchedFilter { kind, ..all() }).await, ["b", "a"]);
    let owners = vec![ada];
    assert_eq!(ids(LaunchedFilter { owners, ..all() }).await, ["c", "a"]);
    let workspace_id = Some(there);
    assert_eq!(
        ids(LaunchedFilter {
            workspace_id,
            ..all()
        })
        .await,
        ["b"]
    );
    let id = Some(TaskId::from("c"));
    assert_eq!(ids(LaunchedFilter { id, ..all() }).await, ["c"]);
    for (at, expected) in [(25, vec!["c", "b", "a"]), (26, vec!["c", "a"])] {
        let ended_after = Some(at);
        assert_eq!(
            ids(LaunchedFilter {
                ended_after,
                ..all()
            })
            .await,
            expected
        );
    }
    let rows = read!(world, conn => task_documents::launched(conn, &all()).await);
    assert_eq!(rows[1].resource_pool, "default");
    assert_eq!(rows[1].state, TaskState::Ended(TaskEnd::Completed));
    let deleted = rows.iter().map(|row| row.logs_deleted_at);
    assert_eq!(deleted.collect::<Vec<_>>(), [None, Some(25), None]);
    let heads = read!(world, conn => task_documents::launched_heads(conn, &all()).await);
    let known = rows
        .iter()
        .map(|row| (&row.id, &row.state, &row.description));
    let same = heads
        .iter()
        .map(|head| (&head.id, &head.state, &head.description));
    assert!(same.eq(known), "{heads:?}");
    let size = |id: &str| {
        heads
            .iter()
            .find(|head| head.id.as_str() == id)
            .unwrap()
            .bytes
    };
    assert!(size("c") > size("a") && size("a") > 0);
    let named = ["a", "gone", "c"].map(TaskId::from);
    let whole = read!(world, conn => task_documents::launched_all(conn, &named).await);
    let whole = whole.iter().map(|row| (row.id.as_str(), row.priority));
    assert_eq!(whole.collect::<Vec<_>>(), [("a", 42), ("c", 42)]);
    let found = read!(world, conn => task_documents::find(conn, &"c".into()).await).unwrap();
    assert!(found == document("c", None, generic));
    let names = [TaskId::from("a"), TaskId::from("unknown")];
    let names = read!(world, conn => task_documents::descriptions(conn, &names).await);
    assert_eq!(names.len(), 1);
    assert_eq!(names[&TaskId::from("a")], "a of ada");
    let none = read!(world, conn => task_documents::find(conn, &"unknown".into()).await);
    assert!(none.is_none());
}

pub(crate) async fn a_task_is_the_root_of_what_belongs_to_it(world: &World) {
    let ada = stored_user(world, "ada").await;
    for (id, parent) in [
        ("root", None),
        ("left", Some("root")),
        ("right", Some("root")),
        ("leaf", Some("left")),
        ("other", None),
    ] {
        let row = TaskRow {
            kind: TaskKind::Generic,
            job_id: JobId(format!("job-{id}")),
            owner_id: ada,
            ..task(id, None, None)
        };
        let details = TaskDetails::Generic(GenericDetails::default());
        launched(world, row, document(id, parent, details), WorkspaceId(1)).await;
    }
    for (root, expected) in [
        ("root", vec!["root", "left", "right", "leaf"]),
        ("left", vec!["left", "leaf"]),
        ("other", vec!["other"]),
        ("unknown", vec!["unknown"]),
    ] {
        let tree = read!(world, conn => task_documents::tree(conn, &root.into()).await);
        assert_eq!(
            tree,
            expected.into_iter().map(TaskId::from).collect::<Vec<_>>()
        );
    }
    let ids = ["root".into(), "other".into()];
    assert!(read!(world, conn => allocations::of_tasks(conn, &ids).await).is_empty());
}

pub(crate) async fn the_files_of_a_task_are_read_in_parts(world: &World) {
    let of = ArchiveOf::Task("task".into());
    let archive: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let stored = NewArchive::Packed(archive.clone());
    change!(world, conn => archives::insert_of_task(conn, &"task".into(), &stored).await);
    assert_eq!(
        read!(world, conn => archives::size(conn, &of).await),
        Some(200_000)
    );
    let whole = read!(world, conn => archives::part(conn, &of, 0, 1_000_000).await);
    assert_eq!(whole, archive);
    let part = read!(world, conn => archives::part(conn, &of, 70_001, 1_000).await);
    assert_eq!(part, archive[70_001..71_001]);
    let end = read!(world, conn => archives::part(conn, &of, 199_999, 1_000).await);
    assert_eq!(end, archive[199_999..]);
    let other = ArchiveOf::Task("other".into());
    assert_eq!(
        read!(world, conn => archives::size(conn, &other).await),
        None
    );
    assert!(read!(world, conn => archives::part(conn, &other, 0, 10).await).is_empty());
    // The database copies it.
    let copy = NewArchive::CopyOf("task".into());
    change!(world, conn => archives::insert_of_task(conn, &"other".into(), &copy).await);
    assert_eq!(
        read!(world, conn => archives::size(conn, &other).await),
        Some(200_000)
    );
    let whole = read!(world, conn => archives::part(conn, &other, 0, 1_000_000).await);
    assert_eq!(whole, archive);
}

pub(crate) async fn files_that_are_gone_are_not_copied(world: &World) {
    let copy = NewArchive::CopyOf("gone".into());
    let refused: Result<(), StoreError> = world
        .write(move |tx| {
            Box::pin(async move {
                archives::insert_of_task(&mut tx.conn(), &"task".into(), &copy).await
            })
        })
        .await;
    let gone = ArchiveOf::Task("gone".into());
    assert!(
        matches!(&refused, Err(StoreError::NoArchive(of)) if *of == gone),
        "{refused:?}"
    );
}

pub(crate) async fn removals_of_checkpoints_are_open_until_they_are_finished(world: &World) {
    let ada = stored_user(world, "ada").await;
    let details = || {
        TaskDetails::CheckpointGc(CheckpointGcDetails {
            experiment_id: ExperimentId(7),
            checkpoints: vec!["one".into()],
            globs: vec!["**/*".into()],
            cause: RemovalCause::Policy,
            remover: Remover::Supervisor {
                directory: "/storage".into(),
                tensorboard: None,
            },
            mounts: Vec::new(),
        })
    };
    for (id, ended_at) in [("lives", None), ("ended", Some(25))] {
        let state = match ended_at {
            Some(_) => TaskState::Ended(TaskEnd::Completed),
            None => TaskState::Queued,
        };
        let row = TaskRow {
            kind: TaskKind::CheckpointGc,
            job_id: JobId(format!("job-{id}")),
            owner_id: ada,
            state,
            ended_at,
            ..task(id, None, None)
        };
        launched(world, row, document(id, None, details()), WorkspaceId(1)).await;
        let id = TaskId::from(id);
        world
            .write(move |tx| {
                Box::pin(async move {
                    checkpoint_removals::insert(&mut tx.conn(), &id, ExperimentId(7)).await
                })
            })
            .await
            .unwrap();
    }
    let open = read!(world, conn => checkpoint_removals::open(conn).await);
    let open: Vec<_> = open
        .iter()
        .map(|removal| (removal.task_id.as_str(), removal.state.is_terminal()))
        .collect();
    assert_eq!(open, [("ended", true), ("lives", false)]);
    world
        .write(|tx| {
            Box::pin(
                async move { checkpoint_removals::finish(&mut tx.conn(), &"ended".into()).await },
            )
        })
        .await
        .unwrap();
    let (ended, lives) = (TaskId::from("ended"), TaskId::from("lives"));
    let found = read!(world, conn => checkpoint_removals::of_task(conn, &ended).await);
    assert_eq!(found, None);
    let found = read!(world, conn => checkpoint_removals::of_task(conn, &lives).await);
    assert_eq!(found, Some(ExperimentId(7)));
}

fn measured(number: i64, filler: usize) -> TaskMeasurement {
    // What does not compress.
    let noise = |n: usize| uuid::Uuid::new_v4().simple().to_string() + &n.to_string();
    let values: Vec<String> = (0..filler).map(noise).collect();
    let groups = serde_json::json!({"cpu": {"cpu_util_simple": number, "filler": values}});
    TaskMeasurement {
        number,
        at: 10 * number,
        agent_id: "a1".into(),
        groups: groups.as_object().unwrap().clone(),
    }
}

pub(crate) async fn what_was_measured_of_a_task_is_kept_once_in_order_and_within_its_bound(
    world: &World,
) {
    let (task_id, other) = (TaskId::from("measured"), TaskId::from("other"));
    let (one, two) = (ContainerId::from("c-1"), ContainerId::from("c-2"));
    let reports = [measured(1, 0), measured(2, 0), measured(3, 0)];
    for (task, container, reports) in [
        (&task_id, &one, &reports[..2]),
        (&task_id, &two, &reports[..1]),
        // It comes again, with another.
        (&task_id, &one, &reports[1..]),
        (&task_id, &one, &reports[..]),
        (&other, &one, &reports[..1]),
    ] {
        let (task, container, reports) = (task.clone(), container.clone(), reports.to_vec());
        change!(world, conn => task_metrics::append(conn, &task, &container, &reports).await);
    }
    let chunks = read!(world, conn => task_metrics::after(conn, &task_id, 0, 10).await);
    let found: Vec<(&str, Vec<i64>)> = chunks
        .iter()
        .map(|chunk| {
            let numbers = chunk.unpack().unwrap();
            let numbers = numbers.iter().map(|one| one.number).collect();
            (chunk.container_id.as_str(), numbers)
        })
        .collect();
    assert_eq!(
        found,
        [("c-1", vec![1, 2]), ("c-2", vec![1]), ("c-1", vec![3])]
    );
    assert_eq!(chunks[2].unpack().unwrap(), [reports[2].clone()]);
    let rest = read!(world, conn => task_metrics::after(conn, &task_id, chunks[0].total, 1).await);
    assert_eq!(rest, chunks[1..2]);

    // A chunk of some eight megabytes each: the oldest make way.
    for number in 4..10 {
        let (task, container) = (task_id.clone(), one.clone());
        let large = vec![measured(number, 240_000)];
        change!(world, conn => task_metrics::append(conn, &task, &container, &large).await);
    }
    let kept = read!(world, conn => task_metrics::after(conn, &task_id, 0, 10).await);
    // The bound falls into the first of them.
    let bytes: usize = kept[1..].iter().map(|chunk| chunk.data.len()).sum();
    assert!(
        bytes <= usize::try_from(task_metrics::MOST_BYTES).unwrap() && kept.len() >= 3,
        "{} chunks of {bytes} bytes",
        kept.len()
    );
    assert_eq!(kept.last().unwrap().unpack().unwrap()[0].number, 9);
    // What packs to next to nothing counts by what it is unpacked.
    let (repeats, container) = (TaskId::from("repeats"), one.clone());
    let mut same = measured(1, 0);
    same.groups.insert(
        "cpu".to_owned(),
        serde_json::json!({"x": "y".repeat(1 << 20)}),
    );
    change!(world, conn => task_metrics::append(conn, &repeats, &container, &[same]).await);
    let repeats = TaskId::from("repeats");
    let found = read!(world, conn => task_metrics::after(conn, &repeats, 0, 10).await);
    let counted = usize::try_from(found[0].total).unwrap();
    assert!(
        counted >= (1 << 20) / task_metrics::USUAL_RATIO && found[0].data.len() < counted,
        "{counted}"
    );
    change!(world, conn => task_metrics::delete(conn, &task_id).await);
    let gone = read!(world, conn => task_metrics::after(conn, &"measured".into(), 0, 10).await);
    assert_eq!(gone, []);
    let stays = read!(world, conn => task_metrics::after(conn, &other, 0, 10).await);
    assert_eq!(stays.len(), 1);
}
