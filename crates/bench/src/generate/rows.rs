//! Made-up rows that look like those of real experiments: names that repeat, states that mix, metrics that fall.

use det_ids::{ExperimentId, LogLevel, LogSource, LogStream, RunId, TaskId, UserId};
use det_lifecycle::allocation::{AllocationExit, AllocationState};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::trial::TrialState;
use det_store::archives::NewArchive;
use det_store::bulk::{PastExperiment, PastTrial};
use det_store::checkpoints::{CheckpointRow, CheckpointState};
use det_store::experiments::{JobKind, JobRow, NewExperiment, SearcherKind};
use det_store::logs::LogLine;
use det_store::metrics::{GroupSummary, StoredReport};
use det_store::workspaces::{UNCATEGORIZED_PROJECT, UNCATEGORIZED_WORKSPACE};
use serde_json::{Map, Value, json};

use super::NEEDLE;
use super::draw::Draw;

/// When the first experiment was submitted: 2023-01-01, in microseconds.
pub(super) const EPOCH: i64 = 1_672_531_200_000_000;
const SECOND: i64 = 1_000_000;

const MODELS: [&str; 12] = [
    "resnet50",
    "bert-base",
    "gpt2-small",
    "mnist",
    "cifar10",
    "unet",
    "yolov5",
    "vit-b16",
    "wav2vec2",
    "efficientnet",
    "lstm",
    "mixer",
];
const PURPOSES: [&str; 8] = [
    "baseline",
    "augmentation",
    "learning rate sweep",
    "ablation of the warm-up",
    "mixed precision",
    "larger batches",
    "distillation",
    "regression test",
];
const LABELS: [&str; 10] = [
    "nightly",
    "paper",
    "vision",
    "language",
    "speech",
    "debug",
    "production",
    "gpu-a100",
    "sweep",
    "rerun",
];
const POOLS: [&str; 4] = ["default", "a100", "cpu", "spot"];
const WORDS: [&str; 12] = [
    "loading",
    "shard",
    "epoch",
    "batch",
    "loss",
    "accuracy",
    "norm",
    "checkpoint",
    "saved",
    "worker",
    "throughput",
    "images",
];

/// How much to make.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) experiments: usize,
    pub(super) trials: usize,
    pub(super) largest: usize,
}

impl Shape {
    /// Which experiment, counted from 0, is the largest.
    pub(super) fn largest_number(&self) -> usize {
        self.experiments / 2
    }

    fn trials_of(&self, number: usize, draw: &mut Draw) -> usize {
        if number == self.largest_number() {
            return self.largest;
        }
        // Half of them have one trial, as in life; the others share what is left.
        let others = self.trials.saturating_sub(self.largest) * 2 / self.experiments.max(1);
        if number.is_multiple_of(2) {
            1
        } else {
            1 + draw.below(others.saturating_sub(1) * 2)
        }
    }
}

fn micros(seconds: usize) -> i64 {
    i64::try_from(seconds).unwrap_or(0) * SECOND
}

fn json_text<T: serde::Serialize>(value: &T) -> String {
    // Values of ours, all with text keys: this cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// The experiment with this number, counted from 0.
pub(super) fn experiment(
    number: usize,
    shape: &Shape,
    owners: &[UserId],
    draw: &mut Draw,
) -> PastExperiment {
    let trial_count = shape.trials_of(number, draw);
    let state = match draw.below(1000) {
        0..=1 => ExperimentState::Paused,
        2..=99 => ExperimentState::Canceled,
        100..=249 => ExperimentState::Errored,
        _ => ExperimentState::Completed,
    };
    let created_at = EPOCH + micros(number * 600) + micros(draw.below(600));
    let ended_at =
        (state != ExperimentState::Paused).then(|| created_at + micros(60 + draw.below(200_000)));
    let model = *draw.one(&MODELS);
    let purpose = *draw.one(&PURPOSES);
    let mut labels: Vec<&str> = (0..draw.below(4)).map(|_| *draw.one(&LABELS)).collect();
    labels.sort_unstable();
    labels.dedup();
    let pool = *draw.one(&POOLS);
    let name = format!("{model} {purpose} {}", draw.below(1000));
    let searcher_name = if trial_count > 1 {
        SearcherKind::AdaptiveAsha
    } else {
        SearcherKind::Single
    };
    let searcher: &str = searcher_name.into();
    let config = config(&name, searcher, pool, &labels, trial_count);
    let checkpoints = i64::try_from(trial_count * 2).unwrap_or(0);
    PastExperiment {
        new: NewExperiment {
            unmanaged: false,
            external_id: None,
            job: JobRow {
                id: draw.uuid().into(),
                kind: JobKind::Experiment,
                owner_id: *draw.one(owners),
                resource_pool: pool.into(),
                priority: 42,
                weight: 1.0,
                max_slots: None,
                position: None,
                moved: false,
                fallback: None,
                demands: None,
                submitted_at: created_at,
                workspace_id: UNCATEGORIZED_WORKSPACE,
            },
            project_id: UNCATEGORIZED_PROJECT,
            parent_id: (number > 10 && draw.below(5) == 0)
                .then(|| ExperimentId(i64::try_from(draw.below(number)).unwrap_or(0) + 1)),
            name: name.clone(),
            description: format!("{purpose} of {model}, try {}", draw.below(100)),
            labels: json_text(&labels),
            state,
            original_config: format!(
                "name: {name}\nentrypoint: python3 train.py\nresources:\n  resource_pool: {pool}\n  slots_per_trial: 1\n\
                 searcher:\n  name: {searcher}\n  metric: validation_loss\n  max_trials: {trial_count}\n"
            ),
            config: config.to_string(),
            searcher_name,
            searcher_metric: "validation_loss".into(),
            smaller_is_better: true,
            model_definition: NewArchive::Packed(Vec::new()),
        },
        archived: draw.below(10) == 0,
        progress: if ended_at.is_some() { 1.0 } else { draw.unit() },
        ended_at,
        trial_count: i64::try_from(trial_count).unwrap_or(0),
        best_metric: (draw.below(20) != 0).then(|| draw.unit() * 2.0),
        checkpoints: (checkpoints, checkpoints * 25_000_000),
    }
}

/// An effective configuration of the usual size.
fn config(name: &str, searcher: &str, pool: &str, labels: &[&str], trials: usize) -> Value {
    json!({
        "name": name,
        "description": null,
        "labels": labels,
        "entrypoint": "python3 train.py --data /data/train --epochs 90 --log-interval 50",
        "searcher": {"name": searcher, "metric": "validation_loss", "smaller_is_better": true, "max_trials": trials,
            "max_concurrent_trials": 16, "max_length": {"batches": 100_000}, "divisor": 4, "max_rungs": 5,
            "mode": "standard", "stop_once": false, "source_trial_id": null, "source_checkpoint_uuid": null},
        "hyperparameters": {
            "learning_rate": {"type": "log", "minval": -5, "maxval": -1, "base": 10, "count": null},
            "batch_size": {"type": "categorical", "vals": [32, 64, 128, 256]},
            "dropout": {"type": "double", "minval": 0.0, "maxval": 0.7, "count": null},
            "layers": {"type": "int", "minval": 2, "maxval": 24, "count": null},
            "optimizer": {"type": "const", "val": "adamw"}
        },
        "resources": {"resource_pool": pool, "slots_per_trial": 1, "weight": 1.0, "priority": null, "max_slots": null,
            "shm_size": null, "devices": [], "native_parallel": false, "is_single_node": null},
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/srv/checkpoints", "storage_path": "det",
            "propagation": "rprivate", "save_experiment_best": 0, "save_trial_best": 1, "save_trial_latest": 1},
        "environment": {"image": {"cpu": "pytorch:2.4-cpu", "cuda": "pytorch:2.4-cuda", "rocm": "pytorch:2.4-rocm"},
            "environment_variables": {"cpu": ["OMP_NUM_THREADS=1"], "cuda": ["NCCL_DEBUG=WARN"], "rocm": []},
            "force_pull_image": false, "pod_spec": null, "proxy_ports": [], "ports": {}, "add_capabilities": [],
            "drop_capabilities": [], "registry_auth": null},
        "bind_mounts": [{"host_path": "/srv/data", "container_path": "/data", "read_only": true,
            "propagation": "rprivate"}],
        "max_restarts": 5,
        "min_validation_period": {"batches": 1000},
        "min_checkpoint_period": {"batches": 10_000},
        "scheduling_unit": 100,
        "records_per_epoch": 0,
        "reproducibility": {"experiment_seed": 1234},
        "optimizations": {"aggregation_frequency": 1, "average_aggregated_gradients": true,
            "average_training_metrics": true, "mixed_precision": "O0", "grad_updates_size_file": null},
        "profiling": {"enabled": false, "begin_on_batch": 0, "end_after_batch": null, "sync_timings": true},
        "data": {"path": "/data/train", "workers": 8}
    })
}

/// A trial with what belongs to it; the checkpoints' trial is not known yet.
pub(super) struct Trial {
    pub(super) row: PastTrial,
    pub(super) summaries: [(&'static str, i64, String); 2],
    /// Its best and its latest one.
    pub(super) validations: [StoredReport; 2],
    pub(super) checkpoints: Vec<CheckpointRow>,
}

/// The trials of an experiment.
pub(super) fn trials_of(
    experiment_id: ExperimentId,
    past: &PastExperiment,
    draw: &mut Draw,
) -> Vec<Trial> {
    (0..past.trial_count)
        .map(|number| trial(experiment_id, number, past, draw))
        .collect()
}

fn trial(
    experiment_id: ExperimentId,
    number: i64,
    past: &PastExperiment,
    draw: &mut Draw,
) -> Trial {
    let request_id = draw.uuid();
    let task_id = TaskId(format!("{experiment_id}.{request_id}"));
    let state = match draw.below(20) {
        0 => TrialState::Errored,
        1 => TrialState::Canceled,
        _ => TrialState::Completed,
    };
    let created_at = past.new.job.submitted_at + number * SECOND;
    let ended_at = created_at + micros(30 + draw.below(100_000));
    let batches = 100 * (1 + i64::try_from(draw.below(1000)).unwrap_or(0));
    let validations = batches / 100;
    let (mut training, mut validation) = (GroupSummary::new(), GroupSummary::new());
    (training.run_id, validation.run_id) = (RunId::FIRST, RunId::FIRST);
    let latest = 0.2 + draw.unit();
    let best = latest * (0.8 + 0.2 * draw.unit());
    for (step, loss) in [(batches / 2, best), (batches, latest)] {
        training.add(&StoredReport {
            step: Some(step),
            at: ended_at,
            metrics: metrics(&[("loss", loss * 0.9), ("throughput", 800.0 + draw.unit())]),
            batches: None,
            report_id: None,
        });
        validation.add(&validated(step, ended_at, loss));
    }
    for summary in training
        .metrics
        .values_mut()
        .chain(validation.metrics.values_mut())
    {
        summary.count = validations;
    }
    let checkpoints = if state == TrialState::Errored { 0 } else { 2 };
    let allocation = AllocationState::Terminated {
        exit: AllocationExit::Completed,
    };
    let task = task_id.clone();
    Trial {
        row: PastTrial {
            experiment_id,
            job_id: past.new.job.id.clone(),
            owner_id: past.new.job.owner_id,
            request_id: request_id.into(),
            task_id,
            state,
            hparams: json_text(&json!({
                "learning_rate": 10_f64.powf(-5.0 + 4.0 * draw.unit()),
                "batch_size": 32 << draw.below(4),
                "dropout": draw.unit() * 0.7,
                "layers": 2 + draw.below(22),
                "optimizer": "adamw"
            })),
            restarts: i64::from(draw.below(30) == 0),
            total_batches: batches,
            best: Some((best, json_text(&validated(batches / 2, ended_at, best)))),
            latest: Some((latest, json_text(&validated(batches, ended_at, latest)))),
            checkpoints: (checkpoints, checkpoints * 25_000_000),
            resource_pool: past.new.job.resource_pool.clone(),
            allocation,
            created_at,
            ended_at,
        },
        summaries: [
            ("training", batches, json_text(&training)),
            ("validation", batches, json_text(&validation)),
        ],
        validations: [
            validated(batches / 2, ended_at, best),
            validated(batches, ended_at, latest),
        ],
        checkpoints: (0..checkpoints)
            .map(|n| {
                let steps = if n == 0 { batches / 2 } else { batches };
                let reported_at = created_at + (ended_at - created_at) / 2 * (n + 1);
                checkpoint(draw.uuid(), experiment_id, &task, (steps, reported_at))
            })
            .collect(),
    }
}

/// A complete checkpoint of a trial's first attempt, by its steps and when it was reported.
fn checkpoint(
    uuid: String,
    experiment_id: ExperimentId,
    task: &TaskId,
    (steps, reported_at): (i64, i64),
) -> CheckpointRow {
    CheckpointRow {
        uuid: uuid.into(),
        experiment_id: Some(experiment_id),
        trial_id: None,
        task_id: task.clone(),
        allocation_id: Some(task.allocation(1)),
        state: CheckpointState::Completed,
        steps,
        metadata: format!("{{\"steps_completed\":{steps}}}"),
        resources: "{\"model.pt\":24999000,\"metadata.json\":1000}".into(),
        bytes: 25_000_000,
        reported_at,
        storage_id: None,
        owner_uid: None,
        removing: None,
    }
}

fn metrics(values: &[(&str, f64)]) -> Map<String, Value> {
    values
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect()
}

fn validated(step: i64, at: i64, loss: f64) -> StoredReport {
    StoredReport {
        step: Some(step),
        at,
        metrics: metrics(&[("validation_loss", loss), ("accuracy", 1.0 - loss / 2.0)]),
        batches: None,
        report_id: None,
    }
}

/// A report of the long metric: it falls, with noise and now and then a spike.
pub(super) fn report(step: i64, draw: &mut Draw) -> StoredReport {
    #[expect(clippy::cast_precision_loss, reason = "steps stay far below 2^52")]
    let base = 5.0 / (1.0 + step as f64 / 10_000.0);
    let spike = if draw.below(10_000) == 0 { 3.0 } else { 0.0 };
    StoredReport {
        step: Some(step),
        at: EPOCH + step * 20_000,
        metrics: metrics(&[("loss", base + draw.unit() * 0.1 + spike)]),
        batches: None,
        report_id: None,
    }
}

/// A line of the long log.
pub(super) fn line(number: usize, task: &TaskId, draw: &mut Draw) -> LogLine {
    let mut text = format!("step {number}:");
    for _ in 0..6 {
        text.push(' ');
        let word: &str = draw.one::<&str>(&WORDS);
        text.push_str(word);
    }
    if number % 100_000 == 77 {
        text.push(' ');
        text.push_str(NEEDLE);
    }
    LogLine {
        at: EPOCH + i64::try_from(number).unwrap_or(0) * 1000,
        log: format!("{text} {:.6}\n", draw.unit()),
        level: Some(LogLevel::Info),
        stdtype: Some(LogStream::Stdout.into()),
        source: Some(LogSource::Task.into()),
        rank_id: Some(0),
        allocation_id: Some(task.allocation(1)),
        container_id: Some("7d1f1a52-8d0c-4f6a-9a45-3c7d2a0c8f11".into()),
        agent_id: Some("agent-1".into()),
    }
}
