//! Workspaces, projects, pins, and what is in a project.

use det_ids::{ProjectId, UserId, WorkspaceId};
use det_store::experiments;
use det_store::namespaces::{self, BindingRow, MadeRow};
use det_store::workspaces::{
    self, PinRow, ProjectRow, ProjectTexts, UNCATEGORIZED_PROJECT, UNCATEGORIZED_WORKSPACE,
    WorkspaceRow,
};

use crate::rows::{experiment, stored_experiment, stored_user};
use crate::{WITHOUT_PLACES, World};

fn workspace(name: &str, owner_id: UserId) -> WorkspaceRow {
    WorkspaceRow {
        name: name.into(),
        owner_id: Some(owner_id),
        created_at: 5,
        ..WorkspaceRow::default()
    }
}

fn project(workspace_id: WorkspaceId, name: &str, key: &str) -> ProjectRow {
    ProjectRow {
        workspace_id,
        name: name.into(),
        key: key.into(),
        created_at: 6,
        ..ProjectRow::default()
    }
}

pub(crate) async fn everything_begins_uncategorized(world: &World) {
    everything_begins_uncategorized_in(world).await;
    // The next ones get other numbers.
    let owner = stored_user(world, "ada").await;
    let row = workspace("w", owner);
    let id = change!(world, conn => workspaces::insert(conn, &row).await);
    let row = project(id, "p", "P");
    let project = change!(world, conn => workspaces::insert_project(conn, &row, "").await);
    assert!(
        id > UNCATEGORIZED_WORKSPACE && project > UNCATEGORIZED_PROJECT,
        "{id} {project}"
    );
}

async fn everything_begins_uncategorized_in(world: &World) {
    let all = read!(world, conn => workspaces::list(conn).await);
    let projects = read!(world, conn => workspaces::projects(conn).await);
    let [first] = &all[..] else {
        panic!("one workspace: {all:?}");
    };
    assert_eq!(
        (first.id, first.name.as_str()),
        (UNCATEGORIZED_WORKSPACE, "Uncategorized")
    );
    assert_eq!((first.immutable, first.owner_id), (true, None));
    let [only] = &projects[..] else {
        panic!("one project: {projects:?}");
    };
    assert_eq!(
        (only.id, only.workspace_id, only.name.as_str()),
        (
            UNCATEGORIZED_PROJECT,
            UNCATEGORIZED_WORKSPACE,
            "Uncategorized"
        )
    );
    assert!(only.immutable);
}

#[expect(clippy::too_many_lines, reason = "one history, step by step")]
pub(crate) async fn workspaces_and_projects_keep_every_field(world: &World) {
    let owner = stored_user(world, "ada").await;
    let full = WorkspaceRow {
        archived: true,
        agent_uid: Some(1000),
        agent_user: Some("ada".into()),
        agent_gid: Some(100),
        agent_group: Some("users".into()),
        checkpoint_storage: Some(r#"{"type":"s3"}"#.into()),
        default_compute_pool: Some("gpu".into()),
        default_aux_pool: Some("aux".into()),
        max_slots: Some(8),
        state: Some(workspaces::DeletionState::DeleteFailed),
        error: Some("because".into()),
        ..workspace("full", owner)
    };
    let row = full.clone();
    let id = change!(world, conn => workspaces::insert(conn, &row).await);
    let stored = read!(world, conn => workspaces::find(conn, id).await);
    assert_eq!(stored, Some(WorkspaceRow { id, ..full.clone() }));
    let plain = WorkspaceRow {
        id,
        ..workspace("plain", owner)
    };
    let row = plain.clone();
    change!(world, conn => workspaces::update(conn, &row).await);
    assert_eq!(
        read!(world, conn => workspaces::find(conn, id).await),
        Some(plain)
    );

    let full = ProjectRow {
        owner_id: Some(owner),
        archived: true,
        state: Some(workspaces::DeletionState::Deleting),
        error: Some("e".into()),
        ..project(id, "full", "FULL")
    };
    let row = full.clone();
    let project_id = change!(world, conn => workspaces::insert_project(conn, &row, "dä").await);
    let stored = read!(world, conn => workspaces::find_project(conn, project_id).await);
    assert_eq!(
        stored,
        Some(ProjectRow {
            id: project_id,
            ..full
        })
    );
    let moved = ProjectRow {
        id: project_id,
        owner_id: Some(owner),
        ..project(UNCATEGORIZED_WORKSPACE, "moved", "M")
    };
    let row = moved.clone();
    change!(world, conn => workspaces::update_project(conn, &row).await);
    let stored = read!(world, conn => workspaces::find_project(conn, project_id).await);
    assert_eq!(stored, Some(moved));
    let texts = ProjectTexts {
        id: project_id,
        description: "dä".into(),
        notes: "[]".into(),
    };
    let stored =
        read!(world, conn => workspaces::project_texts(conn, &[project_id, ProjectId(99)]).await);
    assert_eq!(stored, [texts], "the description stays as it is");
    let (long, notes) = ("ü".repeat(300), r#"[{"name":"n","contents":"c"}]"#);
    let description = long.clone();
    change!(world, conn => {
        workspaces::set_description(conn, project_id, &description).await?;
        workspaces::set_notes(conn, project_id, notes).await
    });
    let stored = read!(world, conn => workspaces::project_texts(conn, &[project_id]).await);
    assert_eq!(
        (&stored[0].description, stored[0].notes.as_str()),
        (&long, notes)
    );
    let heads =
        read!(world, conn => workspaces::project_text_heads(conn, UNCATEGORIZED_WORKSPACE).await);
    let head = heads.iter().find(|head| head.id == project_id).unwrap();
    assert_eq!(head.beginning, "ü".repeat(200));
    assert_eq!(head.bytes, 600 + i64::try_from(notes.len()).unwrap());
    change!(world, conn => workspaces::delete_project(conn, project_id).await);
    change!(world, conn => workspaces::delete(conn, id).await);
    assert_eq!(read!(world, conn => workspaces::find(conn, id).await), None);
    assert_eq!(read!(world, conn => workspaces::list(conn).await).len(), 1);
}

pub(crate) async fn pins_are_a_persons_own(world: &World) {
    let (ada, grace) = (
        stored_user(world, "ada").await,
        stored_user(world, "grace").await,
    );
    for (user_id, pinned_at) in [(ada, 10), (grace, 20), (ada, 30)] {
        let row = PinRow {
            user_id,
            workspace_id: UNCATEGORIZED_WORKSPACE,
            pinned_at,
        };
        change!(world, conn => workspaces::pin(conn, &row).await);
    }
    change!(world, conn => workspaces::unpin(conn, grace, UNCATEGORIZED_WORKSPACE).await);
    let pins = read!(world, conn => workspaces::pins(conn).await);
    // The second pin of the same thing has changed nothing.
    assert_eq!(
        pins,
        [PinRow {
            user_id: ada,
            workspace_id: UNCATEGORIZED_WORKSPACE,
            pinned_at: 10
        }]
    );
}

pub(crate) async fn a_workspace_has_a_namespace_in_each_cluster(world: &World) {
    let owner = stored_user(world, "ada").await;
    let row = workspace("w", owner);
    let id = change!(world, conn => workspaces::insert(conn, &row).await);
    let made = BindingRow {
        workspace_id: id,
        cluster_name: "hall".into(),
        namespace: "w-det-1234-2".into(),
        auto_create: true,
        quota: Some(4),
    };
    let given = BindingRow {
        cluster_name: "attic".into(),
        namespace: "research".into(),
        auto_create: false,
        quota: None,
        ..made.clone()
    };
    let first = BindingRow {
        namespace: "other".into(),
        ..given.clone()
    };
    for row in [made.clone(), first, given.clone()] {
        change!(world, conn => namespaces::bind(conn, &row).await);
    }
    let stored = read!(world, conn => namespaces::bindings(conn).await);
    assert_eq!(stored, [given, made]);
    change!(world, conn => namespaces::unbind(conn, id, "attic").await);
    change!(world, conn => namespaces::unbind(conn, id, "attic").await);
    let stored = read!(world, conn => namespaces::bindings(conn).await);
    let clusters: Vec<&str> = stored.iter().map(|row| row.cluster_name.as_str()).collect();
    assert_eq!(clusters, ["hall"]);
}

pub(crate) async fn namespaces_that_were_made_outlive_their_workspace(world: &World) {
    let owner = stored_user(world, "ada").await;
    let row = workspace("w", owner);
    let id = change!(world, conn => workspaces::insert(conn, &row).await);
    let bound = |namespace: &str, auto_create| BindingRow {
        workspace_id: id,
        cluster_name: "hall".into(),
        namespace: namespace.into(),
        auto_create,
        quota: None,
    };
    // It is bound to another one, and back again.
    for row in [
        bound("made", true),
        bound("given", false),
        bound("made", true),
    ] {
        change!(world, conn => namespaces::bind(conn, &row).await);
    }
    let made = MadeRow {
        cluster_name: "hall".into(),
        namespace: "made".into(),
        workspace_id: id,
        removed: false,
    };
    let stored = read!(world, conn => namespaces::made(conn).await);
    assert_eq!(stored, std::slice::from_ref(&made));
    // It is not to go, and cannot be forgotten.
    change!(world, conn => namespaces::delete_removed(conn, "hall", "made").await);
    change!(world, conn => workspaces::delete(conn, id).await);
    let stored = read!(world, conn => namespaces::made(conn).await);
    assert_eq!(
        stored,
        [MadeRow {
            removed: true,
            ..made
        }]
    );
    assert_eq!(read!(world, conn => namespaces::bindings(conn).await), []);
    change!(world, conn => namespaces::delete_removed(conn, "hall", "made").await);
    assert_eq!(read!(world, conn => namespaces::made(conn).await), []);
}

pub(crate) async fn experiments_and_their_jobs_go_with_their_project(world: &World) {
    let owner = stored_user(world, "ada").await;
    let row = workspace("w", owner);
    let w = change!(world, conn => workspaces::insert(conn, &row).await);
    let row = project(w, "p", "P");
    let p = change!(world, conn => workspaces::insert_project(conn, &row, "").await);
    let moving = stored_experiment(world, experiment("moving", owner)).await;
    let staying = stored_experiment(world, experiment("staying", owner)).await;
    change!(world, conn => experiments::set_project(conn, moving, p, w).await);
    let members = read!(world, conn => experiments::of_project(conn, p).await);
    assert_eq!(members.iter().map(|m| m.id).collect::<Vec<_>>(), [moving]);
    let members = read!(world, conn => experiments::of_project(conn, UNCATEGORIZED_PROJECT).await);
    assert_eq!(members.iter().map(|m| m.id).collect::<Vec<_>>(), [staying]);
    let members = read!(world, conn => experiments::of_workspace(conn, w).await);
    assert_eq!(members.iter().map(|m| m.id).collect::<Vec<_>>(), [moving]);
    let workspace_of = async |name: &str| {
        let id = format!("job-{name}").into();
        read!(world, conn => experiments::job(conn, &id).await)
            .unwrap()
            .workspace_id
    };
    assert_eq!(
        (workspace_of("moving").await, workspace_of("staying").await),
        (w, UNCATEGORIZED_WORKSPACE)
    );
    // The project goes to another workspace.
    change!(world, conn => experiments::follow_project(conn, p, UNCATEGORIZED_WORKSPACE).await);
    assert_eq!(
        (workspace_of("moving").await, workspace_of("staying").await),
        (UNCATEGORIZED_WORKSPACE, UNCATEGORIZED_WORKSPACE)
    );
}

/// What a store of the first version is missing.
const BEFORE: &str = "DROP TABLE metric_runs; DROP TABLE agent_tokens; DROP TABLE workspace_pins; DROP TABLE projects; DROP TABLE workspaces; \
     DROP INDEX experiments_by_project; ALTER TABLE jobs DROP COLUMN workspace_id; \
     DROP INDEX tasks_with_old_logs; ALTER TABLE tasks DROP COLUMN logs_deleted_at; \
     ALTER TABLE trials DROP COLUMN log_retention_days; \
     DROP TABLE checkpoint_storages; DROP INDEX checkpoints_in_removal; \
     ALTER TABLE checkpoints DROP COLUMN storage_id; ALTER TABLE checkpoints DROP COLUMN owner_uid; \
     ALTER TABLE checkpoints DROP COLUMN removing; \
     DELETE FROM schema_versions WHERE version >= 2;";

pub(crate) async fn an_older_store_comes_up_with_everything_uncategorized(world: &World) {
    let owner = stored_user(world, "ada").await;
    let id = stored_experiment(world, experiment("old", owner)).await;
    world.older(&[WITHOUT_PLACES, BEFORE].concat()).await;
    let world = world.reopened().await;
    everything_begins_uncategorized_in(&world).await;
    let members = read!(world, conn => experiments::of_project(conn, UNCATEGORIZED_PROJECT).await);
    assert_eq!(members.iter().map(|m| m.id).collect::<Vec<_>>(), [id]);
    let job = read!(world, conn => experiments::job(conn, &"job-old".into()).await).unwrap();
    assert_eq!(job.workspace_id, UNCATEGORIZED_WORKSPACE);
    world.store.close().await;
}
