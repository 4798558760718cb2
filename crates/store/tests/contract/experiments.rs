//! Experiments: what is kept, how they are listed, and how one is removed.

use std::collections::HashSet;

use det_ids::{ExperimentId, LogLineId, MetricChunkId, ProjectId, RunId, TrialId};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::state_name::StateName;
use det_store::archives::{self, ArchiveOf, NewArchive};
use det_store::catalogue::Catalogue;
use det_store::experiments::{self, Active, ExperimentRow, Filter, NewExperiment, Sort};
use det_store::logs::{self, LogLine};
use det_store::metrics::{self, GroupSummary};
use det_store::{allocations, checkpoints, searches, trials};

use crate::World;
use crate::rows::{
    checkpoint, edit_experiment, experiment, running_trial, some_experiment, stored_experiment,
    stored_trial, stored_user,
};

/// One page, as a master shows it that has just been started.
async fn listed(
    world: &World,
    filter: &Filter,
    sort: Sort,
    descending: bool,
    offset: i64,
    limit: i64,
) -> (Vec<ExperimentRow>, i64) {
    let catalogue = Catalogue::new();
    experiments::list(
        &world.store,
        &catalogue,
        filter,
        sort,
        descending,
        offset,
        limit,
    )
    .await
    .unwrap()
}

/// The names of the experiments that a filter lets through, by number.
async fn names(world: &World, filter: Filter) -> Vec<String> {
    let (rows, total) = listed(world, &filter, Sort::Id, false, 0, -1).await;
    assert_eq!(
        usize::try_from(total).unwrap(),
        rows.len(),
        "the count and the list disagree"
    );
    rows.into_iter().map(|row| row.name).collect()
}

pub(crate) async fn a_model_definition_is_read_in_parts(world: &World) {
    let owner = stored_user(world, "ada").await;
    let mut new = experiment("large", owner);
    // Over many pages of either database.
    let archive: Vec<u8> = (0..300_000_u32)
        .map(|n| u8::try_from(n.wrapping_mul(2_654_435_761) >> 24).unwrap())
        .collect();
    new.model_definition = NewArchive::Packed(archive.clone());
    let id = stored_experiment(world, new).await;
    let size = read!(world, conn => archives::size(conn, &ArchiveOf::Experiment(id)).await);
    assert_eq!(size, Some(archive.len()));
    let mut read = Vec::new();
    while read.len() < archive.len() {
        let offset = read.len();
        let part = read!(world, conn => archives::part(conn, &ArchiveOf::Experiment(id), offset, 70_001).await);
        assert!(
            (1..=70_001).contains(&part.len()),
            "{} bytes at {offset}",
            part.len()
        );
        read.extend(part);
    }
    assert!(read == archive, "{} bytes came", read.len());
    for (id, offset) in [
        (id, archive.len()),
        (id, usize::MAX),
        (ExperimentId(id.0 + 1), 0),
    ] {
        let part = read!(world, conn => archives::part(conn, &ArchiveOf::Experiment(id), offset, 10).await);
        assert!(part.is_empty(), "experiment {id}, byte {offset}");
    }
    let size = read!(world, conn => archives::size(conn, &ArchiveOf::Experiment(ExperimentId(id.0 + 1))).await);
    assert_eq!(size, None);
}

pub(crate) async fn an_experiment_comes_back_as_it_was_stored(world: &World) {
    let owner = stored_user(world, "ada").await;
    let mut new = experiment("digits", owner);
    new.job.priority = 7;
    new.job.weight = 2.5;
    new.job.max_slots = Some(3);
    new.project_id = ProjectId(9);
    new.parent_id = Some(ExperimentId(1234));
    new.description = "some words".into();
    new.labels = r#"["a"]"#.into();
    new.smaller_is_better = false;
    let expected = new.clone();
    let id = stored_experiment(world, new).await;
    let row = read!(world, conn => experiments::find(conn, id).await).unwrap();
    assert_eq!(
        (
            row.job_id.as_str(),
            row.owner_id,
            row.project_id,
            row.parent_id
        ),
        ("job-digits", owner, ProjectId(9), Some(ExperimentId(1234)))
    );
    assert_eq!(
        [&row.name, &row.description, &row.labels, &row.notes],
        [
            &expected.name,
            &expected.description,
            &expected.labels,
            &String::new()
        ]
    );
    assert_eq!(row.state, expected.state);
    assert_eq!(row.searcher_name, expected.searcher_name);
    assert_eq!(
        [&row.config, &row.original_config, &row.searcher_metric],
        [
            &expected.config,
            &expected.original_config,
            &expected.searcher_metric
        ]
    );
    assert!(!row.smaller_is_better && !row.archived && !row.collected);
    assert_eq!(
        (row.created_at, row.ended_at, row.trial_count),
        (1_000, None, 0)
    );
    assert_eq!(
        (
            row.username.as_str(),
            row.resource_pool.as_str(),
            row.priority,
            row.max_slots
        ),
        ("ada", "default", 7, Some(3))
    );
    assert!((row.weight - 2.5).abs() < f64::EPSILON);
    let stored =
        read!(world, conn => archives::part(conn, &ArchiveOf::Experiment(id), 0, 10).await);
    assert_eq!(NewArchive::Packed(stored), expected.model_definition);
    assert!(read!(world, conn => experiments::find(conn, ExperimentId(id.0 + 1)).await).is_none());
    assert!(
        read!(world, conn => archives::size(conn, &ArchiveOf::Experiment(ExperimentId(id.0 + 1))).await)
            .is_none()
    );
}

#[expect(clippy::too_many_lines, reason = "one history, step by step")]
pub(crate) async fn filters_narrow_the_list(world: &World) {
    let (ada, grace) = (
        stored_user(world, "ada").await,
        stored_user(world, "grace").await,
    );
    let mut ids = Vec::new();
    for (name, owner, state, project_id, description) in [
        ("one", ada, ExperimentState::Active, 1, "first of all"),
        ("two", grace, ExperimentState::Paused, 1, "50% done"),
        ("three", ada, ExperimentState::Completed, 2, "under_score"),
        ("four", grace, ExperimentState::Active, 2, r"back\slash"),
    ] {
        let new = NewExperiment {
            state,
            project_id: ProjectId(project_id),
            description: description.into(),
            ..experiment(name, owner)
        };
        ids.push(stored_experiment(world, new).await);
    }
    let archived = ids[2];
    change!(world, conn => experiments::set_archived(conn, archived, true).await);

    let all = Filter::default;
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(names(world, all()).await, ["one", "two", "three", "four"]);
    for (filter, expected) in [
        (
            Filter {
                name: some("o"),
                ..all()
            },
            vec!["one", "two", "four"],
        ),
        (
            Filter {
                name: some("THREE"),
                ..all()
            },
            vec!["three"],
        ),
        // Wildcards of the database mean themselves.
        (
            Filter {
                description: some("%"),
                ..all()
            },
            vec!["two"],
        ),
        (
            Filter {
                description: some("_"),
                ..all()
            },
            vec!["three"],
        ),
        (
            Filter {
                description: some(r"\"),
                ..all()
            },
            vec!["four"],
        ),
        (
            Filter {
                owners: Some(vec![ada]),
                ..all()
            },
            vec!["one", "three"],
        ),
        (
            Filter {
                owners: Some(vec![]),
                ..all()
            },
            vec![],
        ),
        (
            Filter {
                archived: Some(true),
                ..all()
            },
            vec!["three"],
        ),
        (
            Filter {
                archived: Some(false),
                ..all()
            },
            vec!["one", "two", "four"],
        ),
        (
            Filter {
                states: Some(vec![StateName::Active, StateName::Paused]),
                ..all()
            },
            vec!["one", "two", "four"],
        ),
        (
            Filter {
                project_id: Some(ProjectId(2)),
                ..all()
            },
            vec!["three", "four"],
        ),
        (
            Filter {
                not_projects: HashSet::from([2, 7].map(ProjectId)),
                ..all()
            },
            vec!["one", "two"],
        ),
        (
            Filter {
                id_below: Some(ids[1]),
                ..all()
            },
            vec!["one"],
        ),
        (
            Filter {
                id_above: Some(ids[2]),
                ..all()
            },
            vec!["four"],
        ),
        (
            Filter {
                ids: Some(vec![ids[3], ids[0]]),
                ..all()
            },
            vec!["one", "four"],
        ),
        (
            Filter {
                not_ids: vec![ids[0], ids[1]],
                ..all()
            },
            vec!["three", "four"],
        ),
        (
            Filter {
                owners: Some(vec![grace]),
                project_id: Some(ProjectId(2)),
                archived: Some(false),
                ..all()
            },
            vec!["four"],
        ),
    ] {
        assert_eq!(names(world, filter.clone()).await, expected, "{filter:?}");
    }
}

pub(crate) async fn names_are_found_in_any_case_and_any_alphabet(world: &World) {
    let owner = stored_user(world, "ada").await;
    let id = stored_experiment(world, experiment("Ärger im Maßstab", owner)).await;
    for text in ["Ärger", "ärger", "ÄRGER", "maßstab", "IM M"] {
        let filter = Filter {
            name: Some(text.into()),
            ..Filter::default()
        };
        assert_eq!(names(world, filter).await, ["Ärger im Maßstab"], "{text}");
    }
    change!(world, conn => experiments::set_texts(conn, id, "Привет", "МИР", "[]", "").await);
    let filter = Filter {
        name: Some("пРИВ".into()),
        description: Some("мир".into()),
        ..Filter::default()
    };
    assert_eq!(names(world, filter).await, ["Привет"]);
}

pub(crate) async fn labels_match_whole_and_exactly(world: &World) {
    let owner = stored_user(world, "ada").await;
    let odd = r#"x","y"#;
    for (name, labels) in [
        ("plain", vec!["red", "big"]),
        ("upper", vec!["Red"]),
        ("longer", vec!["reddish", "not red"]),
        ("odd", vec![odd, "50%", "a_b", r"c\d"]),
    ] {
        let labels = serde_json::to_string(&labels).unwrap();
        stored_experiment(
            world,
            NewExperiment {
                labels,
                ..experiment(name, owner)
            },
        )
        .await;
    }
    for (labels, expected) in [
        (vec!["red"], vec!["plain"]),
        (vec!["Red"], vec!["upper"]),
        (vec!["red", "big"], vec!["plain"]),
        (vec!["red", "Red"], vec![]),
        // A part of a label, even one that ends in a quote, is not a label.
        (vec!["y"], vec![]),
        (vec![odd], vec!["odd"]),
        (vec!["50%"], vec!["odd"]),
        (vec!["a_b"], vec!["odd"]),
        (vec![r"c\d"], vec!["odd"]),
        (vec!["%"], vec![]),
    ] {
        let filter = Filter {
            labels: labels.iter().map(|l| (*l).to_owned()).collect(),
            ..Filter::default()
        };
        assert_eq!(names(world, filter).await, expected, "{labels:?}");
    }
    let catalogue = Catalogue::new();
    catalogue.refresh(&world.store).await.unwrap();
    let all = catalogue.labels(None);
    assert_eq!(
        all,
        [
            "50%", "Red", "a_b", "big", r"c\d", "not red", "red", "reddish", odd
        ]
    );
    assert!(catalogue.labels(Some(ProjectId(77))).is_empty());
}

pub(crate) async fn every_sort_puts_missing_values_last_and_ties_by_number(world: &World) {
    let (bob, zoe) = (
        stored_user(world, "bob").await,
        stored_user(world, "Zoe").await,
    );
    let mut ids = Vec::new();
    // The second experiment is greater in everything; the third lacks what can be missing and else equals the first.
    for (name, owner, parent_id) in [
        ("alpha", bob, Some(ExperimentId(1))),
        ("Beta", zoe, Some(ExperimentId(2))),
        ("alpha", bob, None),
    ] {
        let mut new = NewExperiment {
            parent_id,
            description: name.into(),
            ..experiment(name, owner)
        };
        new.job.id = format!("job-{}", ids.len()).into();
        if name == "Beta" {
            new.project_id = ProjectId(2);
            new.job.resource_pool = "gpu".into();
            new.job.submitted_at = 9_000;
            new.state = ExperimentState::Paused;
        }
        ids.push(stored_experiment(world, new).await);
    }
    let (first, second, third) = (ids[0], ids[1], ids[2]);
    for (id, n) in [(first, 1_i32), (second, 2)] {
        change_live!(world, tx => {
            edit_experiment(tx, id, |row| {
                row.state = if n == 1 { ExperimentState::Active } else { ExperimentState::Paused };
                row.ended_at = Some(i64::from(n));
            })
            .await?;
            experiments::set_best(&mut tx.conn(), id, None, Some(f64::from(n))).await
        });
    }
    let (trial, other) = (
        stored_trial(world, second, "t").await,
        checkpoint("c", second, TrialId(1), 1),
    );
    change_live!(world, tx => edit_experiment(tx, second, |row| row.trial_count += trial.0).await);
    change!(world, conn => {
        experiments::set_progress(conn, second, 0.5).await?;
        checkpoints::insert(conn, &other).await?;
        experiments::recount_checkpoints(conn, second).await
    });

    for sort in [
        Sort::Id,
        Sort::Description,
        Sort::Name,
        Sort::StartTime,
        Sort::EndTime,
        Sort::State,
        Sort::TrialCount,
        Sort::Progress,
        Sort::User,
        Sort::ForkedFrom,
        Sort::ResourcePool,
        Sort::ProjectId,
        Sort::CheckpointSize,
        Sort::CheckpointCount,
        Sort::SearcherMetric,
    ] {
        let order = async |descending: bool| -> Vec<ExperimentId> {
            let filter = Filter::default();
            let (rows, _) = listed(world, &filter, sort, descending, 0, -1).await;
            rows.into_iter().map(|row| row.id).collect()
        };
        let (up, down) = match sort {
            Sort::Id => (vec![first, second, third], vec![third, second, first]),
            Sort::EndTime | Sort::ForkedFrom | Sort::SearcherMetric => {
                (vec![first, second, third], vec![second, first, third])
            }
            _ => (vec![first, third, second], vec![second, third, first]),
        };
        assert_eq!(order(false).await, up, "{sort:?} ascending");
        assert_eq!(order(true).await, down, "{sort:?} descending");
    }
}

pub(crate) async fn pages_cover_the_list_once(world: &World) {
    let owner = stored_user(world, "ada").await;
    for n in 0..7 {
        stored_experiment(world, experiment(&format!("e{n}"), owner)).await;
    }
    let filter = Filter::default();
    let mut seen = Vec::new();
    for offset in [0, 3, 6] {
        let (rows, total) = listed(world, &filter, Sort::Id, true, offset, 3).await;
        assert_eq!(total, 7);
        seen.extend(rows.into_iter().map(|row| row.name));
    }
    assert_eq!(seen, ["e6", "e5", "e4", "e3", "e2", "e1", "e0"]);
    for (offset, limit, expected) in [(0, 0, 0), (5, -1, 2), (7, 3, 0), (-4, 2, 2)] {
        let (rows, total) = listed(world, &filter, Sort::Id, false, offset, limit).await;
        assert_eq!(
            (rows.len(), total),
            (expected, 7),
            "offset {offset}, limit {limit}"
        );
    }
}

pub(crate) async fn changes_of_an_experiment_are_kept(world: &World) {
    let id = some_experiment(world).await;
    change!(world, conn => {
        experiments::set_texts(conn, id, "new name", "words", r#"["l"]"#, "# notes").await?;
        experiments::set_config(conn, id, r#"{"a":1}"#).await?;
        experiments::set_progress(conn, id, 0.25).await?;
        experiments::set_best(conn, id, Some(TrialId(5)), Some(0.125)).await?;
        experiments::set_checkpoint_failure(conn, id, Some("no agent")).await?;
        experiments::set_collected(conn, id, true).await
    });
    change_live!(world, tx => {
        edit_experiment(tx, id, |row| row.trial_count += 3).await?;
        edit_experiment(tx, id, |row| {
            row.trial_count += 1;
            row.state = ExperimentState::Completed;
            row.ended_at = Some(77);
        })
        .await
    });
    let row = read!(world, conn => experiments::find(conn, id).await).unwrap();
    assert_eq!(
        [
            &row.name,
            &row.description,
            &row.labels,
            &row.notes,
            &row.config
        ],
        ["new name", "words", r#"["l"]"#, "# notes", r#"{"a":1}"#]
    );
    assert_eq!(row.state, ExperimentState::Completed);
    assert_eq!((row.progress, row.best_metric), (0.25, Some(0.125)));
    assert_eq!(
        (
            row.best_trial_id,
            row.trial_count,
            row.ended_at,
            row.collected
        ),
        (Some(TrialId(5)), 4, Some(77), true)
    );
    assert_eq!(row.checkpoint_failure.as_deref(), Some("no agent"));
    change!(world, conn => {
        experiments::set_checkpoint_failure(conn, id, None).await?;
        experiments::clear_end(conn, id).await
    });
    let row = read!(world, conn => experiments::find(conn, id).await).unwrap();
    assert_eq!((row.ended_at, row.collected), (None, false));
    assert_eq!(row.checkpoint_failure, None);
}

pub(crate) async fn jobs_follow_their_experiments(world: &World) {
    let owner = stored_user(world, "ada").await;
    let mut late = experiment("late", owner);
    late.job.submitted_at = 2_000;
    let late = stored_experiment(world, late).await;
    let early = stored_experiment(world, experiment("early", owner)).await;
    let ended = NewExperiment {
        state: ExperimentState::Errored,
        ..experiment("ended", owner)
    };
    let ended = stored_experiment(world, ended).await;
    let jobs = read!(world, conn => experiments::live_jobs(conn).await);
    let order: Vec<&str> = jobs.iter().map(|j| j.id.as_str()).collect();
    assert_eq!(order, ["job-early", "job-late"]);
    // Without work that asks for slots or has some, nothing is queued.
    assert!(read!(world, conn => experiments::queued(conn).await).is_empty());
    assert!(read!(world, conn => experiments::queued_jobs(conn).await).is_empty());
    let ids =
        |rows: Vec<experiments::ExperimentRow>| rows.into_iter().map(|r| r.id).collect::<Vec<_>>();
    assert_eq!(
        ids(read!(world, conn => experiments::live(conn).await)),
        [late, early]
    );
    assert_eq!(
        ids(read!(world, conn => experiments::to_clean_up(conn).await)),
        [ended]
    );
    change!(world, conn => experiments::set_collected(conn, ended, true).await);
    assert!(read!(world, conn => experiments::to_clean_up(conn).await).is_empty());

    let mut job = read!(world, conn => experiments::job(conn, &"job-early".into()).await).unwrap();
    (job.priority, job.weight, job.max_slots, job.position) = (1, 8.0, Some(2), Some(-5));
    job.resource_pool = "gpu".into();
    let changed = job.clone();
    change!(world, conn => experiments::update_job(conn, &changed).await);
    let stored = read!(world, conn => experiments::job(conn, &"job-early".into()).await);
    assert_eq!(crate::shown(&stored), crate::shown(&Some(job)));
    let found =
        read!(world, conn => experiments::find_by_job(conn, &"job-early".into()).await).unwrap();
    assert_eq!(
        (found.id, found.priority, found.max_slots),
        (early, 1, Some(2))
    );
    assert!(read!(world, conn => experiments::job(conn, &"job-none".into()).await).is_none());
}

pub(crate) async fn odd_text_survives(world: &World) {
    let id = some_experiment(world).await;
    for text in [
        "",
        " ",
        "'; DROP TABLE users; --",
        "\"quoted\" and \\escaped\\",
        "tab\tand\r\nlines\u{1}\u{7f}",
        "emoji 🦀 and a family 👩‍👩‍👧",
        "combining e\u{301}, right-to-left \u{202e}abc, byte order mark \u{feff}",
        "$1 %s {name} ?",
    ] {
        change!(world, conn => experiments::set_texts(conn, id, text, text, "[]", text).await);
        let row = read!(world, conn => experiments::find(conn, id).await).unwrap();
        assert_eq!([&row.name, &row.description, &row.notes], [text; 3]);
        if !text.is_empty() {
            let filter = Filter {
                name: Some(text.into()),
                ..Filter::default()
            };
            assert_eq!(names(world, filter).await, [text]);
        }
    }
}

pub(crate) async fn deleting_one_experiment_leaves_nothing_of_it_and_all_of_the_other(
    world: &World,
) {
    let owner = stored_user(world, "ada").await;
    let mut all = Vec::new();
    for name in ["gone", "kept"] {
        let id = stored_experiment(world, experiment(name, owner)).await;
        let (trial_id, task_id, allocation_id) = running_trial(world, id, "r").await;
        let (task, allocation, row) = (
            task_id.clone(),
            allocation_id.clone(),
            checkpoint(name, id, trial_id, 1),
        );
        change!(world, conn => {
            let lines = logs::pack(&[LogLine { log: "hello\n".into(), ..LogLine::default() }])?;
            logs::append(conn, &task, &lines).await?;
            logs::advance_spool(conn, &format!("spool-{id}").into(), &task, 1, 1).await?;
            metrics::append(conn, trial_id, "training", RunId::FIRST, &[]).await?;
            metrics::save_summary(conn, trial_id, "training", &GroupSummary::new()).await?;
            allocations::insert_token(conn, format!("hash-{id}").as_bytes(), &allocation).await?;
            checkpoints::insert(conn, &row).await?;
            searches::save_snapshot(conn, id, 0, "{}").await?;
            searches::append_event(conn, id, 1, "{}").await
        });
        all.push((id, trial_id, task_id, allocation_id, name));
    }
    let gone = all[0].0;
    change!(world, conn => experiments::delete(conn, gone).await);
    // Deleting what is not there is no error: the effect of a crash between deletion and answer.
    change!(world, conn => experiments::delete(conn, gone).await);

    for (id, trial_id, task_id, allocation_id, name) in all {
        let left = [
            read!(world, conn => experiments::find(conn, id).await).is_some(),
            read!(world, conn => experiments::job(conn, &format!("job-{name}").into()).await).is_some(),
            read!(world, conn => archives::size(conn, &ArchiveOf::Experiment(id)).await).is_some(),
            read!(world, conn => trials::find(conn, trial_id).await).is_some(),
            read!(world, conn => allocations::find_task(conn, &task_id).await).is_some(),
            read!(world, conn => allocations::find(conn, &allocation_id).await).is_some(),
            !read!(world, conn => allocations::containers(conn, &allocation_id).await).is_empty(),
            read!(world, conn => allocations::find_token(conn, format!("hash-{id}").as_bytes()).await).is_some(),
            !read!(world, conn => logs::chunks_after(conn, &task_id, LogLineId::default(), 10).await).is_empty(),
            !read!(world, conn => metrics::chunks(conn, trial_id, None, MetricChunkId::default(), 10).await).is_empty(),
            !read!(world, conn => metrics::summaries(conn, trial_id).await).is_empty(),
            read!(world, conn => checkpoints::find(conn, &name.into()).await).is_some(),
            read!(world, conn => searches::find(conn, id).await).is_some(),
        ];
        assert_eq!(left, [name == "kept"; 13], "{name}");
    }
    // The spool's counter is gone too: its numbers would start anew.
    let again = change!(world, conn => logs::advance_spool(conn, &format!("spool-{gone}").into(), &"t".into(), 1, 1).await);
    assert_eq!(again, 0);
}

pub(crate) async fn descriptions_are_searched_as_a_whole_and_held_in_part(world: &World) {
    let owner = stored_user(world, "ada").await;
    let long = |end: &str| "ö".repeat(60_000) + end;
    for (name, description) in [
        ("long", long("Needle")),
        ("other", long("hay")),
        ("short", "a NEEDLE".to_owned()),
        ("begin", "needle".to_owned() + &long("")),
    ] {
        let new = NewExperiment {
            description,
            ..experiment(name, owner)
        };
        stored_experiment(world, new).await;
    }
    let described = |text: &str| Filter {
        description: Some(text.to_owned()),
        ..Filter::default()
    };
    let found = names(world, described("needlE")).await;
    assert_eq!(found, ["long", "short", "begin"]);
    let both = Filter {
        name: Some("o".into()),
        ..described("needle")
    };
    assert_eq!(names(world, both.clone()).await, ["long", "short"]);
    assert!(names(world, described("Ö needle")).await.is_empty());
    let catalogue = Catalogue::new();
    let numbers = experiments::numbers(&world.store, &catalogue, &both).await;
    assert_eq!(numbers.unwrap().len(), 2);
    assert!(
        catalogue.text_bytes() < 4 * 300,
        "{}",
        catalogue.text_bytes()
    );
}

pub(crate) async fn what_the_queue_shows_of_experiments(world: &World) {
    let owner = stored_user(world, "ada").await;
    let idle = stored_experiment(world, experiment("idle", owner)).await;
    let mut busy = experiment("busy", owner);
    busy.job.id = "job".into();
    let id = stored_experiment(world, busy).await;
    let (trial, ..) = running_trial(world, id, "r").await;
    let queued = read!(world, conn => experiments::queued(conn).await);
    let [head] = queued.as_slice() else {
        panic!("{queued:?}, not {idle}");
    };
    assert_eq!(
        (head.id, head.name.as_str(), head.username.as_str()),
        (id, "busy", "ada")
    );
    let row = read!(world, conn => experiments::find(conn, id).await).unwrap();
    assert_eq!(*head, row.into());
    let jobs = read!(world, conn => experiments::queued_jobs(conn).await);
    assert_eq!(jobs.len(), 1, "of trial {trial}: {jobs:?}");
    assert_eq!(jobs[0].id, head.job_id);
}

pub(crate) async fn a_list_shows_every_change_that_was_made_before_it(world: &World) {
    let catalogue = Catalogue::new();
    let list = async || -> Vec<(ExperimentId, String)> {
        let all = Filter::default();
        let (rows, total) =
            experiments::list(&world.store, &catalogue, &all, Sort::Name, false, 0, -1)
                .await
                .unwrap();
        assert_eq!(usize::try_from(total).unwrap(), rows.len());
        rows.into_iter().map(|row| (row.id, row.name)).collect()
    };
    assert!(list().await.is_empty());
    let owner = stored_user(world, "ada").await;
    let a = stored_experiment(world, experiment("a", owner)).await;
    let b = stored_experiment(world, experiment("b", owner)).await;
    assert_eq!(list().await, [(a, "a".into()), (b, "b".into())]);
    change!(world, conn => experiments::set_texts(conn, a, "c", "", "[]", "").await);
    assert_eq!(list().await, [(b, "b".into()), (a, "c".into())]);
    // A deletion and a change behind it, both before the next list.
    change!(world, conn => experiments::delete(conn, b).await);
    change!(world, conn => experiments::set_texts(conn, a, "d", "", "[]", "").await);
    assert_eq!(list().await, [(a, "d".into())]);
    change_live!(world, tx => {
        edit_experiment(tx, a, |row| {
            row.state = ExperimentState::Completed;
            row.ended_at = Some(5);
        })
        .await
    });
    let live = Filter {
        states: Some(vec![StateName::Active]),
        active: Some(Active::Not([a].into())),
        ..Filter::default()
    };
    let (none, total) = experiments::list(&world.store, &catalogue, &live, Sort::Id, false, 0, -1)
        .await
        .unwrap();
    assert!(none.is_empty() && total == 0);
    let totals = catalogue.totals();
    assert_eq!(totals.len(), 1);
    assert_eq!(
        (
            totals[&ProjectId(1)].experiments,
            totals[&ProjectId(1)].live
        ),
        (1, 0)
    );
    // The number of what was deleted is not given again, and its revision neither.
    let e = stored_experiment(world, experiment("e", owner)).await;
    assert!(e > b);
    assert_eq!(list().await, [(a, "d".into()), (e, "e".into())]);
    let mut job = read!(world, conn => experiments::live_jobs(conn).await)
        .pop()
        .unwrap();
    job.resource_pool = "elsewhere".into();
    change!(world, conn => experiments::update_job(conn, &job).await);
    list().await;
    let row = read!(world, conn => experiments::find(conn, e).await).unwrap();
    assert_eq!(row.resource_pool, "elsewhere");
}
