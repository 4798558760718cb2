//! Rows in memory and rows in the database: random changes with the rows kept in memory end in the same database as the
//! same changes with every row read anew.

use det_ids::{EventId, ExperimentId, LogLineId, PlaceId, RequestId, RunId, TaskId, TrialId};
use det_lifecycle::allocation::{AllocationExit, AllocationState};
use det_lifecycle::container::ObservedState;
use det_lifecycle::log_findings::LogFindings;
use det_lifecycle::place::Capacity;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::trial::TrialState;
use det_scheduler::{Service, Services};
use det_store::events::{self, NewEvent};
use det_store::logs::{self, LogLine};
use det_store::places::{self, PlaceRow};
use det_store::{
    Conn, Store, StoreError, WriteTx, allocations, checkpoints, experiments, searches, trials,
};
use futures::future::join_all;

use crate::World;
use crate::rows::{
    add_allocation, add_container, allocation, checkpoint, container, edit_allocation,
    edit_experiment, edit_task, edit_trial, report_step, some_experiment, start_run, task, trial,
    waits_because,
};

/// Trials that the changes are about.
const TRIALS: u64 = 4;
/// Changes of one history; several are handed in at once.
const CHANGES: u64 = 80;
/// Histories; a seed is one.
const SEEDS: u64 = 4;

/// A small generator of numbers: the same seed gives the same history (`SplitMix64`).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn number(&mut self, bound: u64) -> i64 {
        i64::try_from(self.below(bound)).unwrap()
    }
}

pub(crate) async fn rows_in_memory_never_differ_from_the_stored_ones(world: &World) {
    let experiment = some_experiment(world).await;
    for seed in 0..SEEDS {
        let kept = history(&world.store, experiment, seed * 2, seed, false).await;
        let read_anew = history(&world.store, experiment, seed * 2 + 1, seed, true).await;
        assert_eq!(kept, read_anew, "seed {seed}");
    }
}

/// Plays the history of a seed under names of its own, and returns what the database holds of it then.
async fn history(
    store: &Store,
    experiment: ExperimentId,
    run: u64,
    seed: u64,
    read_anew: bool,
) -> Vec<String> {
    let mut random = Random(seed);
    let mut done = 0;
    while done < CHANGES {
        let batch: Vec<_> = (0..=random.below(6))
            .map(|_| {
                done += 1;
                let mut own = Random(random.below(u64::MAX));
                store.write(move |tx: &mut WriteTx| {
                    Box::pin(async move {
                        for _ in 0..=own.below(5) {
                            if read_anew {
                                tx.read_rows_anew().await?;
                            }
                            act(tx, experiment, run, &mut own).await?;
                        }
                        if own.below(4) == 0 {
                            return Err(StoreError::Closed);
                        }
                        Ok(())
                    })
                })
            })
            .collect();
        for outcome in join_all(batch).await {
            match outcome {
                Ok(()) | Err(StoreError::Closed) => {}
                Err(error) => panic!("seed {seed}: {error:?}"),
            }
        }
    }
    shown(store, experiment, run).await
}

fn names(run: u64, number: u64) -> (RequestId, TaskId) {
    (
        RequestId(format!("r{run}-{number}")),
        TaskId(format!("task-{run}-{number}")),
    )
}

/// One random action on one of the trials; what it needs and does not find makes it do nothing.
async fn act(
    tx: &mut WriteTx,
    experiment: ExperimentId,
    run: u64,
    random: &mut Random,
) -> Result<(), StoreError> {
    let (request, task_id) = names(run, random.below(TRIALS));
    let found = trials::find_by_request(&mut tx.conn(), experiment, &request).await?;
    let Some(row) = found else {
        let mut new = trial(experiment, request.as_str());
        new.task_id.clone_from(&task_id);
        let id = trials::insert(&mut tx.conn(), &new).await?;
        let new = task(task_id.as_str(), Some(experiment), Some(id));
        tx.live_rows().add_task(new);
        return Ok(());
    };
    let n = random.number(1_000);
    let what = random.below(21);
    if what < 10 {
        act_on_allocation(tx, &task_id, row.id, what, n).await
    } else {
        act_on_the_rest(tx, &row, &task_id, experiment, run, what, n).await
    }
}

async fn act_on_allocation(
    tx: &mut WriteTx,
    task_id: &TaskId,
    trial_id: TrialId,
    what: u64,
    n: i64,
) -> Result<(), StoreError> {
    let Some(mut live) = allocations::live_of_task(&mut tx.conn(), task_id).await? else {
        let mut attempt = 0;
        edit_task(tx, task_id, |row| {
            row.attempts += 1;
            row.ended_at = None;
            attempt = row.attempts;
        })
        .await?;
        let row = allocation(
            &format!("{task_id}.{attempt}"),
            task_id.as_str(),
            Some(trial_id),
        );
        start_run(tx, trial_id, RunId(attempt), n).await?;
        return add_allocation(tx, row).await;
    };
    let members = allocations::containers(&mut tx.conn(), &live.id).await?;
    match (what, members.last().cloned()) {
        (0..=2, _) if members.len() < 3 => {
            let member = i64::try_from(members.len()).unwrap();
            let id = format!("{}-{member}", live.id);
            add_container(tx, container(&id, live.id.as_str(), "agent", member)).await?;
            allocations::insert_token(&mut tx.conn(), id.as_bytes(), &live.id).await
        }
        (0..=4, Some(known)) => {
            let conn = &mut tx.conn();
            let found = allocations::find_container(conn, &known.id).await?;
            let mut row = found.expect("it was listed");
            row.observed = Some(ObservedState::Running {
                host_address: format!("10.0.0.{n}"),
                ports: Vec::new(),
                runtime_id: "1".into(),
            });
            row.joined = n % 2 == 0;
            row.ended_at = (n % 5 == 0).then_some(n);
            allocations::update_container(conn, &row).await
        }
        (5 | 6, _) => {
            edit_allocation(tx, &live.id, |row| {
                row.wait_reason = Some(waits_because("others hold all slots"));
                row.wait_since = Some(n);
            })
            .await
        }
        (7, _) => {
            live.ended_at = Some(n);
            let conn = &mut tx.conn();
            allocations::update(conn, &live).await?;
            allocations::expire_tokens(conn, &live.id, n).await
        }
        (8, _) => allocations::live_containers_of_place(&mut tx.conn(), &"agent".into())
            .await
            .map(|_| ()),
        _ => {
            live.state = AllocationState::Killing {
                exit: AllocationExit::Failed {
                    reason: format!("exit code {n}"),
                },
            };
            live.preempt_deadline = (n % 3 == 0).then_some(n);
            allocations::update(&mut tx.conn(), &live).await
        }
    }
}

#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn act_on_the_rest(
    tx: &mut WriteTx,
    row: &trials::TrialRow,
    task_id: &TaskId,
    experiment: ExperimentId,
    run: u64,
    what: u64,
    n: i64,
) -> Result<(), StoreError> {
    let id = row.id;
    match what {
        10 => {
            let end = (n % 2 == 0).then_some(n);
            edit_trial(tx, id, |row| {
                (row.state, row.restarts, row.ended_at) = (TrialState::Pausing, n, end);
            })
            .await?;
            edit_task(tx, task_id, |row| row.ended_at = end).await
        }
        11 => {
            // The count is part of what is compared, as a trial's progress.
            let live = trials::count_live(&mut tx.conn(), experiment).await?;
            let all = trials::live_of_experiment(&mut tx.conn(), experiment).await?;
            assert_eq!(live, i64::try_from(all.len()).unwrap());
            trials::set_metadata(&mut tx.conn(), id, &format!("{{\"k\":{n}}}")).await
        }
        12 => {
            report_step(&mut tx.conn(), id, row.run_id, n).await?;
            let (best, text) = (Some(0.5), Some("{}"));
            trials::set_validations(&mut tx.conn(), id, (best, text), (None, None)).await
        }
        13 => {
            let line = LogLine {
                log: format!("own {n}\n"),
                ..LogLine::default()
            };
            logs::append_line(&mut tx.conn(), task_id, line)
        }
        14 => {
            let line = LogLine {
                log: format!("shipped {n}\n"),
                ..LogLine::default()
            };
            let packed = logs::pack(&[line.clone(), line])?;
            logs::append(&mut tx.conn(), task_id, &packed)
                .await
                .map(|_| ())
        }
        15 => {
            let mut new = checkpoint(&format!("c-{run}-{id}-{n}"), experiment, id, n);
            new.bytes = n;
            checkpoints::insert(&mut tx.conn(), &new).await?;
            trials::recount_checkpoints(&mut tx.conn(), id).await?;
            experiments::recount_checkpoints(&mut tx.conn(), experiment).await
        }
        16 => {
            edit_experiment(tx, experiment, |row| row.trial_count += 1).await?;
            experiments::set_texts(&mut tx.conn(), experiment, "name", "text", "[]", "").await?;
            experiments::set_progress(&mut tx.conn(), experiment, 0.25).await
        }
        17 => {
            let search = ExperimentId(i64::try_from(run).unwrap() + 1_000);
            let known = searches::find(&mut tx.conn(), search).await?;
            let Some(known) = known else {
                return searches::save_snapshot(&mut tx.conn(), search, 0, "{}").await;
            };
            let seq = known.events.last().map_or(known.through, |(seq, _)| *seq) + 1;
            searches::append_event(&mut tx.conn(), search, seq, &format!("{n}")).await
        }
        18 => {
            let subject = Subject::Task(format!("run {run}").into());
            let event = NewEvent::new(ActorName::user("ada"), subject, EventKind::State)
                .detail(serde_json::json!(n));
            events::append(tx, event).await
        }
        19 => {
            allocations::set_log_retention(&mut tx.conn(), task_id, Some(n % 40)).await?;
            let mut findings = LogFindings::default();
            findings.add_match(&format!("policy {n}"));
            tx.load_task(task_id).await?;
            let mut live = tx.live_rows();
            live.edit_task(task_id, |row| row.log_findings = Some(findings));
            logs::retention::delete(&mut tx.conn(), task_id, 2, n)
                .await
                .map(|_| ())
        }
        _ => {
            let agent_id = PlaceId(format!("agent-{run}-{}", n % 2));
            if places::find(&mut tx.conn(), &agent_id).await?.is_some() && n % 3 == 0 {
                return places::delete(&mut tx.conn(), &agent_id).await;
            }
            places::save(&mut tx.conn(), &agent(agent_id.as_str(), n)).await
        }
    }
}

fn agent(id: &str, n: i64) -> PlaceRow {
    PlaceRow {
        id: id.into(),
        resource_pool: "default".into(),
        instance_id: format!("i-{n}").into(),
        services: Services {
            place: Service::of(n % 2 == 0, false),
            ..Services::default()
        },
        capacity: Capacity::Devices(Vec::new()),
        addresses: Vec::new(),
        version: "1".into(),
        runtime: "process".into(),
        registered_at: n,
        disconnected_at: (n % 4 == 0).then_some(n),
    }
}

/// Everything that the database holds of a run, without the run's own names and numbers.
async fn shown(store: &Store, experiment: ExperimentId, run: u64) -> Vec<String> {
    let mut held = store.read().await.unwrap();
    let conn = &mut held.conn();
    let mut lines = Vec::new();
    for number in 0..TRIALS {
        let (request, task_id) = names(run, number);
        let trial = trials::find_by_request(conn, experiment, &request)
            .await
            .unwrap();
        let id = trial.as_ref().map(|row| row.id);
        lines.push((id, format!("{trial:?}")));
        let task = allocations::find_task(conn, &task_id).await.unwrap();
        lines.push((id, format!("{task:?}")));
        let mut claims = allocations::of_task(conn, &task_id).await.unwrap();
        claims.sort_by(|a, b| a.id.cmp(&b.id));
        for row in claims {
            let members = allocations::containers(conn, &row.id).await.unwrap();
            for member in &members {
                let token = allocations::find_token(conn, member.id.as_str().as_bytes())
                    .await
                    .unwrap();
                lines.push((id, format!("{token:?}")));
            }
            lines.push((id, format!("{row:?} {members:?}")));
        }
        lines.push((id, log_text(conn, &task_id).await));
    }
    for number in 0..2 {
        let row = places::find(conn, &format!("agent-{run}-{number}").into())
            .await
            .unwrap();
        lines.push((None, format!("{row:?}")));
    }
    let search = searches::find(conn, ExperimentId(i64::try_from(run).unwrap() + 1_000))
        .await
        .unwrap();
    let search = search.map(|s| (s.through, s.snapshot, s.events));
    lines.push((None, format!("{search:?}")));
    let subject = Subject::Task(format!("run {run}").into());
    let noted = events::list(conn, EventId::default(), Some(&subject), i64::MAX, i64::MAX)
        .await
        .unwrap();
    lines.extend(noted.into_iter().map(|e| (None, format!("{:?}", e.detail))));
    lines
        .into_iter()
        .map(|(id, line)| {
            let line = match id {
                Some(id) => line
                    .replace(&format!("trial_id: Some({id:?})"), "trial")
                    .replace(&format!("TrialRow {{ id: {id:?},"), "trial")
                    .replace(&format!("-{run}-{id}-"), "-trial-"),
                None => line,
            };
            line.replace(&format!("r{run}-"), "r-")
                .replace(&format!("task-{run}-"), "task-")
                .replace(&format!("agent-{run}-"), "agent-")
        })
        .collect()
}

async fn log_text(conn: &mut Conn<'_>, task_id: &TaskId) -> String {
    let mut text = String::new();
    let chunks = logs::chunks_after(conn, task_id, LogLineId::default(), i64::MAX)
        .await
        .unwrap();
    for chunk in chunks {
        for (number, line) in chunk.unpack().unwrap() {
            text.push_str(&format!("{number} {}", line.log));
        }
    }
    text
}

/// The same after a restart of the master, which reads everything anew.
pub(crate) async fn rows_in_memory_are_those_of_a_restarted_master(world: &World) {
    let experiment = some_experiment(world).await;
    let before = history(&world.store, experiment, 0, 99, false).await;
    let reopened = world.reopened().await;
    assert_eq!(shown(&reopened.store, experiment, 0).await, before);
    reopened.store.close().await;
}
