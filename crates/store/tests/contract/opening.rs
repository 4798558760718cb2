//! Opening, keeping others out, closing, and what is stored after a restart.

use det_ids::EventId;
use det_store::{Store, StoreError, StoreUrl, experiments, places, settings, users};

use crate::rows::{newest_event, some_experiment, stored_user};
use crate::{Kind, World};

pub(crate) async fn an_empty_database_gets_the_whole_schema(world: &World) {
    assert!(read!(world, conn => users::list(conn).await).is_empty());
    assert!(read!(world, conn => places::list(conn).await).is_empty());
    assert!(read!(world, conn => experiments::live(conn).await).is_empty());
    assert_eq!(
        read!(world, conn => newest_event(conn).await),
        EventId::default()
    );
    match (&world.kind, world.store.kind()) {
        (Kind::Sqlite(_), kind) => assert_eq!(kind, "sqlite"),
        (Kind::Postgres { .. }, kind) => assert_eq!(kind, "postgres"),
    }
}

pub(crate) async fn a_second_master_is_kept_out_until_the_first_lets_go(world: &World) {
    let Err(error) = Store::open(&world.url).await else {
        panic!("two masters hold one database");
    };
    match &world.kind {
        Kind::Sqlite(_) => assert!(matches!(error, StoreError::InUse(_)), "{error:?}"),
        Kind::Postgres { .. } => assert!(matches!(error, StoreError::DatabaseInUse), "{error:?}"),
    }
    assert!(
        error.to_string().contains("in use by another master"),
        "{error}"
    );
    world.store.close().await;
    let next = Store::open(&world.url).await.unwrap();
    next.close().await;
}

pub(crate) async fn a_restarted_master_sees_everything_that_was_acknowledged(world: &World) {
    let experiment_id = some_experiment(world).await;
    change!(world, conn => settings::set(conn, "cluster", "c-1").await);
    let before = read!(world, conn => experiments::find(conn, experiment_id).await).unwrap();

    let world = world.reopened().await;
    let after = read!(world, conn => experiments::find(conn, experiment_id).await).unwrap();
    assert_eq!(crate::shown(&after), crate::shown(&before));
    assert_eq!(
        read!(world, conn => settings::find(conn, "cluster").await).as_deref(),
        Some("c-1")
    );
    // Numbers go on where they were; none is given out twice.
    let next = stored_user(&world, "grace").await;
    assert!(next > before.owner_id);
    world.store.close().await;
}

pub(crate) async fn a_store_made_before_a_comment_was_corrected_opens_and_a_changed_schema_does_not(
    world: &World,
) {
    let remember = |checksum: &str| {
        format!("UPDATE schema_versions SET checksum = '{checksum}' WHERE version = 1;")
    };
    let owner = stored_user(world, "ada").await;
    let before_correction = "31a3d19c7d532ccb3fe9d89fe5520e2d94dc049ae005ce7330d91c836206a90f";
    world.older(&remember(before_correction)).await;
    let reopened = world.reopened().await;
    assert_eq!(
        read!(reopened, conn => users::list(conn).await)[0].id,
        owner
    );
    reopened.older(&remember(&"0".repeat(64))).await;
    let Err(error) = Store::open(&world.url).await else {
        panic!("a schema that this program does not know was opened");
    };
    assert!(error.to_string().contains("schema version 1 "), "{error}");
}

pub(crate) async fn a_closed_store_refuses_further_work(world: &World) {
    world.store.close().await;
    let write = world
        .write(|tx| Box::pin(async move { settings::set(&mut tx.conn(), "k", "v").await }))
        .await;
    assert!(matches!(write, Err(StoreError::Closed)), "{write:?}");
    assert!(matches!(
        world.store.read().await,
        Err(StoreError::Unavailable(_) | StoreError::Closed)
    ));
    // Closing twice is closing.
    world.store.close().await;
}

#[test]
fn addresses_are_read_and_passwords_are_never_shown() {
    let secret = "postgres://det:hunter2@db.example:5432/det";
    let url: StoreUrl = secret.parse().unwrap();
    assert_eq!(url, StoreUrl::Postgres(secret.into()));
    assert!(!format!("{url:?}").contains("hunter2"));
    assert_eq!(
        "sqlite:///var/lib/det.db".parse::<StoreUrl>().unwrap(),
        StoreUrl::Sqlite("/var/lib/det.db".into())
    );
    let error = "mysql://det:hunter2@db.example/det"
        .parse::<StoreUrl>()
        .unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("\"mysql\"") && message.contains("postgres://USER"),
        "{message}"
    );
    assert!(!message.contains("hunter2"));
}

#[tokio::test]
async fn only_its_owner_may_read_the_sqlite_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::sqlite().await;
    stored_user(&world, "ada").await;
    let StoreUrl::Sqlite(path) = &world.url else {
        panic!("a SQLite world has a SQLite address");
    };
    let directory = path.parent().unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", entry.path().display());
        seen += 1;
    }
    assert!(seen >= 2, "the database and its lock file");
    world.remove().await;
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    let Err(error) = Store::open(&StoreUrl::Sqlite(file.join("det.db"))).await else {
        panic!("a file cannot be a directory");
    };
    assert!(matches!(error, StoreError::Directory { .. }), "{error:?}");
    assert!(error.to_string().contains("a-file"), "{error}");
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_unavailable() {
    // Port 1 on loopback: no process listens there.
    let url = StoreUrl::Postgres("postgres://nobody@127.0.0.1:1/nothing".into());
    let Err(error) = Store::open(&url).await else {
        panic!("nothing listens on port 1");
    };
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(error.is_transient());
}
