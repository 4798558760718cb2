//! Users, sessions, settings.

use det_ids::UserId;
use det_store::users::{self, IdentityColumns, SessionRow, UserChange, UserRow};
use det_store::{StoreError, settings};

use crate::World;
use crate::rows::{stored_user, user};

pub(crate) async fn users_keep_every_field(world: &World) {
    let row = UserRow {
        display_name: "Ada L.".into(),
        password_hash: Some("$argon2id$x".into()),
        admin: true,
        active: false,
        agent_uid: Some(1000),
        agent_user: Some("ada".into()),
        agent_gid: Some(100),
        agent_group: Some("users".into()),
        modified_at: 17,
        last_auth_at: Some(18),
        ..user("ada")
    };
    let new = row.clone();
    let id = change!(world, conn => users::insert(conn, &new).await);
    let stored = read!(world, conn => users::list(conn).await);
    assert_eq!(
        crate::shown(&stored),
        crate::shown(&vec![UserRow { id, ..row.clone() }])
    );

    // Each change sets what it names and leaves the rest, which is why two of them cannot undo each other.
    let mut expected = UserRow { id, ..row };
    let changes = [
        UserChange {
            username: Some("grace".into()),
            display_name: Some(String::new()),
            ..UserChange::default()
        },
        UserChange {
            password_hash: Some(None),
            ..UserChange::default()
        },
        UserChange {
            admin: Some(false),
            active: Some(true),
            ..UserChange::default()
        },
        UserChange {
            identity: Some(IdentityColumns::default()),
            ..UserChange::default()
        },
    ];
    expected.last_auth_at = Some(99);
    change!(world, conn => users::note_login(conn, id, 99).await);
    for (at, change) in (100..).zip(changes) {
        if let Some(name) = &change.username {
            expected.username.clone_from(name);
            expected.display_name.clear();
        }
        if let Some(hash) = &change.password_hash {
            expected.password_hash.clone_from(hash);
        }
        expected.admin = change.admin.unwrap_or(expected.admin);
        expected.active = change.active.unwrap_or(expected.active);
        if change.identity.is_some() {
            expected.agent_uid = None;
            expected.agent_user = None;
            expected.agent_gid = None;
            expected.agent_group = None;
        }
        expected.modified_at = at;
        let changed = change!(world, conn => users::change(conn, id, &change, at).await);
        assert_eq!(
            crate::shown(&changed),
            crate::shown(&Some(expected.clone()))
        );
    }
    let stored = read!(world, conn => users::list(conn).await);
    assert_eq!(crate::shown(&stored), crate::shown(&vec![expected]));
    let by_name = read!(world, conn => users::find_by_name(conn, "grace").await);
    assert_eq!(by_name.map(|found| found.id), Some(id));
    let none = UserChange::default();
    let absent = change!(world, conn => users::change(conn, UserId(id.0 + 1), &none, 1).await);
    assert!(absent.is_none());
}

pub(crate) async fn two_users_cannot_share_a_name(world: &World) {
    stored_user(world, "ada").await;
    let outcome = world
        .write(|tx| Box::pin(async move { users::insert(&mut tx.conn(), &user("ada")).await }))
        .await;
    let Err(StoreError::Query(error)) = outcome else {
        panic!("the second ada was taken: {outcome:?}");
    };
    assert!(error.is_unique_violation(), "{error:?}");
    // Case makes another name.
    stored_user(world, "Ada").await;
}

pub(crate) async fn sessions_end_one_by_one_all_together_or_by_time(world: &World) {
    let (ada, grace) = (
        stored_user(world, "ada").await,
        stored_user(world, "grace").await,
    );
    for (token, user_id, expires_at) in [
        (1_u8, ada, 100),
        (2, ada, 200),
        (3, ada, 300),
        (4, grace, 400),
    ] {
        let session = SessionRow {
            // Bytes, with a zero among them.
            token_hash: vec![token, 0, 255],
            user_id,
            expires_at,
        };
        change!(world, conn => users::insert_session(conn, &session).await);
    }
    let live = async |at: i64| {
        let mut tokens: Vec<u8> = read!(world, conn => users::sessions(conn, at).await)
            .into_iter()
            .map(|s| s.token_hash[0])
            .collect();
        tokens.sort_unstable();
        tokens
    };
    assert_eq!(live(0).await, [1, 2, 3, 4]);
    assert_eq!(live(200).await, [3, 4]);
    assert_eq!(
        change!(world, conn => users::delete_expired_sessions(conn, 100).await),
        1
    );
    change!(world, conn => users::delete_session(conn, &[2, 0, 255]).await);
    assert_eq!(live(0).await, [3, 4]);
    change!(world, conn => users::delete_sessions_of(conn, ada).await);
    assert_eq!(live(0).await, [4]);
}

pub(crate) async fn settings_are_replaced(world: &World) {
    assert_eq!(read!(world, conn => settings::find(conn, "k").await), None);
    change!(world, conn => settings::set(conn, "k", "one").await);
    change!(world, conn => settings::set(conn, "k", "two").await);
    assert_eq!(
        read!(world, conn => settings::find(conn, "k").await).as_deref(),
        Some("two")
    );
}
