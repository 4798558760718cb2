-- Single values of the cluster: its identity, secrets, flags.
CREATE TABLE settings (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- People. password_hash null = blank password. agent_* null = tasks run as the cluster's default user.
CREATE TABLE users (
    id {PK},
    username TEXT NOT NULL UNIQUE,
    display_name TEXT NOT NULL DEFAULT '',
    password_hash TEXT,
    admin BOOLEAN NOT NULL,
    active BOOLEAN NOT NULL,
    agent_uid BIGINT,
    agent_user TEXT,
    agent_gid BIGINT,
    agent_group TEXT,
    modified_at BIGINT NOT NULL,
    last_auth_at BIGINT
);

-- Configurations that others are laid over, as JSON.
CREATE TABLE templates (
    name TEXT PRIMARY KEY,
    workspace_id BIGINT NOT NULL,
    owner_id BIGINT NOT NULL REFERENCES users (id),
    config TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    modified_at BIGINT NOT NULL
);

-- Policies over configurations, as JSON; workspace 0 = the whole cluster; workload EXPERIMENT or NTSC.
CREATE TABLE config_policies (
    workspace_id BIGINT NOT NULL,
    workload TEXT NOT NULL,
    document TEXT NOT NULL,
    modified_at BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, workload)
);

-- Logins. Only the SHA-256 of a token is kept.
CREATE TABLE sessions (
    token_hash {BLOB} PRIMARY KEY,
    user_id BIGINT NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX sessions_by_user ON sessions (user_id);

-- What is queued: one row for each experiment, and for each task that belongs to none.
-- position null = order of submission; set by a move, also of a neighbour. moved = this job was moved, not only a neighbour.
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    owner_id BIGINT NOT NULL REFERENCES users (id),
    resource_pool TEXT NOT NULL,
    priority BIGINT NOT NULL,
    weight {REAL} NOT NULL,
    max_slots BIGINT,
    position BIGINT,
    moved BOOLEAN NOT NULL,
    fallback TEXT,
    submitted_at BIGINT NOT NULL
);

-- machine = the life cycle's state with its data as JSON, of which state is the name that is filtered on. The counters
-- and best_* are updated with the trials in the same transactions, resource_pool with the job. *_folded = in lower case,
-- for searching. revision grows with every change of any of these rows: a reader that has one reads only what is newer.
-- Rows are short, so that all of them are read quickly: long values have a table of their own.
CREATE TABLE experiments (
    id {PK},
    job_id TEXT NOT NULL REFERENCES jobs (id),
    owner_id BIGINT NOT NULL REFERENCES users (id),
    project_id BIGINT NOT NULL,
    parent_id BIGINT,
    name TEXT NOT NULL,
    name_folded TEXT NOT NULL,
    description TEXT NOT NULL,
    description_folded TEXT NOT NULL,
    labels TEXT NOT NULL,
    notes TEXT NOT NULL,
    state TEXT NOT NULL,
    machine TEXT NOT NULL,
    archived BOOLEAN NOT NULL,
    resource_pool TEXT NOT NULL,
    searcher_name TEXT NOT NULL,
    searcher_metric TEXT NOT NULL,
    smaller_is_better BOOLEAN NOT NULL,
    progress {REAL} NOT NULL,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    trial_count BIGINT NOT NULL,
    best_trial_id BIGINT,
    best_metric {REAL},
    checkpoint_count BIGINT NOT NULL,
    checkpoint_bytes BIGINT NOT NULL,
    collected BOOLEAN NOT NULL,
    revision BIGINT NOT NULL
);
CREATE INDEX experiments_by_state ON experiments (state);
CREATE INDEX experiments_by_job ON experiments (job_id);
CREATE INDEX experiments_by_revision ON experiments (revision);
CREATE INDEX experiments_uncollected ON experiments (id) WHERE NOT collected;

-- The long part of an experiment: its effective configuration as JSON, and the text as submitted.
CREATE TABLE experiment_configs (
    experiment_id BIGINT PRIMARY KEY,
    config TEXT NOT NULL,
    original_config TEXT NOT NULL
);

-- What is gone, with the revision that it went at: for those who know an older one.
CREATE TABLE deleted_experiments (
    experiment_id BIGINT PRIMARY KEY,
    revision BIGINT NOT NULL
);
CREATE INDEX deleted_experiments_by_revision ON deleted_experiments (revision);

-- Model definitions apart from the rows that are listed: gzip tar archives.
CREATE TABLE model_definitions (
    experiment_id BIGINT PRIMARY KEY,
    archive {BLOB} NOT NULL,
    bytes BIGINT NOT NULL
);

-- A search is its last snapshot plus the events since. Dropped when the experiment ends.
CREATE TABLE search_snapshots (
    experiment_id BIGINT PRIMARY KEY,
    through BIGINT NOT NULL,
    snapshot TEXT NOT NULL
);
CREATE TABLE search_events (
    experiment_id BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (experiment_id, seq)
);

-- run_id counts allocations of the trial; an older run's reports are refused. best_* and latest_* are validations by the
-- searcher's metric; metric_sign orders any searcher alike: the signed metric, smaller is better.
CREATE TABLE trials (
    id {PK},
    experiment_id BIGINT NOT NULL REFERENCES experiments (id),
    request_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    state TEXT NOT NULL,
    machine TEXT NOT NULL,
    hparams TEXT NOT NULL,
    seed BIGINT NOT NULL,
    run_id BIGINT NOT NULL,
    restarts BIGINT NOT NULL,
    warm_start_checkpoint TEXT,
    latest_checkpoint TEXT,
    latest_checkpoint_steps BIGINT,
    total_batches BIGINT NOT NULL,
    progress {REAL} NOT NULL,
    runner_state TEXT NOT NULL,
    metadata TEXT NOT NULL,
    best_metric {REAL},
    best_validation TEXT,
    latest_metric {REAL},
    latest_validation TEXT,
    checkpoint_count BIGINT NOT NULL,
    checkpoint_bytes BIGINT NOT NULL,
    notice TEXT,
    log_findings TEXT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    UNIQUE (experiment_id, request_id)
);
CREATE INDEX trials_by_experiment ON trials (experiment_id, id);
CREATE INDEX trials_by_state ON trials (state);
CREATE INDEX trials_live ON trials (experiment_id, id) WHERE ended_at IS NULL;
CREATE INDEX trials_warm_started ON trials (warm_start_checkpoint) WHERE warm_start_checkpoint IS NOT NULL;

-- What runs containers. log_lines counts the lines of its log; it is the id of the newest one.
CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    job_id TEXT NOT NULL,
    owner_id BIGINT NOT NULL,
    experiment_id BIGINT,
    trial_id BIGINT,
    attempts BIGINT NOT NULL,
    log_lines BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE INDEX tasks_by_trial ON tasks (trial_id);
CREATE INDEX tasks_by_experiment ON tasks (experiment_id);

-- One attempt's claim on slots. ended_at null = live. wait_* = why it is not placed yet. preempted_for = the allocation
-- that its room goes to.
CREATE TABLE allocations (
    id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES tasks (id),
    job_id TEXT NOT NULL,
    trial_id BIGINT,
    run_id BIGINT NOT NULL,
    state TEXT NOT NULL,
    machine TEXT NOT NULL,
    resource_pool TEXT NOT NULL,
    slots BIGINT NOT NULL,
    single_agent BOOLEAN NOT NULL,
    preemptible BOOLEAN NOT NULL,
    requested_at BIGINT NOT NULL,
    placed_at BIGINT,
    started_at BIGINT,
    ended_at BIGINT,
    preempt_deadline BIGINT,
    preempted_for TEXT,
    exit_reason TEXT,
    status_code BIGINT,
    excluded_agents TEXT,
    wait_reason TEXT,
    wait_since BIGINT
);
CREATE INDEX allocations_by_task ON allocations (task_id);
CREATE INDEX allocations_live ON allocations (ended_at, id);
CREATE INDEX allocations_due ON allocations (preempt_deadline) WHERE ended_at IS NULL AND preempt_deadline IS NOT NULL;

-- What tasks waited for slots, by the day (since 1970) on which they got them; waited in microseconds.
CREATE TABLE queue_days (
    resource_pool TEXT NOT NULL,
    day BIGINT NOT NULL,
    placed BIGINT NOT NULL,
    waited BIGINT NOT NULL,
    PRIMARY KEY (resource_pool, day)
);

-- One container of an allocation. desired: run, stop, kill. observed = last report of the agent as JSON.
CREATE TABLE containers (
    id TEXT PRIMARY KEY,
    allocation_id TEXT NOT NULL REFERENCES allocations (id),
    agent_id TEXT NOT NULL,
    member BIGINT NOT NULL,
    slots TEXT NOT NULL,
    desired TEXT NOT NULL,
    observed TEXT,
    daemon BOOLEAN NOT NULL,
    joined BOOLEAN NOT NULL,
    accelerators TEXT,
    ended_at BIGINT
);
CREATE INDEX containers_by_allocation ON containers (allocation_id);
CREATE INDEX containers_by_agent ON containers (agent_id, ended_at);

-- Tokens of running containers, hashed; several when a start was repeated. Expire after the allocation's end.
CREATE TABLE container_tokens (
    token_hash {BLOB} PRIMARY KEY,
    allocation_id TEXT NOT NULL,
    expires_at BIGINT
);
CREATE INDEX container_tokens_by_allocation ON container_tokens (allocation_id);

-- Agents as last seen. disabled_slots = JSON list of slot numbers; draining_slots likewise.
CREATE TABLE agents (
    id TEXT PRIMARY KEY,
    resource_pool TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    draining BOOLEAN NOT NULL,
    disabled_slots TEXT NOT NULL,
    draining_slots TEXT NOT NULL,
    devices TEXT NOT NULL,
    addresses TEXT NOT NULL,
    version TEXT NOT NULL,
    runtime TEXT NOT NULL,
    registered_at BIGINT NOT NULL,
    disconnected_at BIGINT
);

CREATE TABLE checkpoints (
    uuid TEXT PRIMARY KEY,
    experiment_id BIGINT,
    trial_id BIGINT,
    task_id TEXT NOT NULL,
    allocation_id TEXT,
    state TEXT NOT NULL,
    steps BIGINT NOT NULL,
    metadata TEXT NOT NULL,
    resources TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    reported_at BIGINT NOT NULL
);
CREATE INDEX checkpoints_by_trial ON checkpoints (trial_id, steps);
CREATE INDEX checkpoints_by_experiment ON checkpoints (experiment_id, reported_at);

-- Reports of all trials as they came, a row for each commit; folded into chunks and summaries within seconds.
CREATE TABLE metric_journal (
    id {KEY},
    data {BLOB} NOT NULL
);

-- Metric reports of one trial, group and run, in order of arrival.
CREATE TABLE metric_chunks (
    id {PK},
    trial_id BIGINT NOT NULL,
    group_name TEXT NOT NULL,
    run_id BIGINT NOT NULL,
    first_step BIGINT NOT NULL,
    last_step BIGINT NOT NULL,
    reports BIGINT NOT NULL,
    data {BLOB} NOT NULL
);
CREATE INDEX metric_chunks_by_trial ON metric_chunks (trial_id, group_name, run_id, id, first_step, last_step);

-- A metric of a trial and group in some two thousand points, with its lowest and highest ones: made of the chunks
-- through one of them, and made anew from them if it is lost.
CREATE TABLE metric_series (
    trial_id BIGINT NOT NULL,
    group_name TEXT NOT NULL,
    name TEXT NOT NULL,
    through BIGINT NOT NULL,
    data {BLOB} NOT NULL,
    PRIMARY KEY (trial_id, group_name, name)
);

-- Statistics of each metric name of a trial and group, as one document.
CREATE TABLE metric_summaries (
    trial_id BIGINT NOT NULL,
    group_name TEXT NOT NULL,
    last_step BIGINT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (trial_id, group_name)
);

-- Lines of one task in order of arrival; ids are counted from 1 for each task.
CREATE TABLE log_chunks (
    id {PK},
    task_id TEXT NOT NULL,
    first_line BIGINT NOT NULL,
    lines BIGINT NOT NULL,
    first_at BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    data {BLOB} NOT NULL
);
CREATE UNIQUE INDEX log_chunks_by_task ON log_chunks (task_id, first_line);

-- How far each spool has been taken, so that a repeated batch is stored once.
CREATE TABLE log_spools (
    spool_id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL,
    next_sequence BIGINT NOT NULL
);
CREATE INDEX log_spools_by_task ON log_spools (task_id);

-- Everything that happened, in order, written in the transaction that made it happen.
CREATE TABLE events (
    id {PK},
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    subject_kind TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    from_state TEXT,
    to_state TEXT,
    reason TEXT,
    detail TEXT
);
CREATE INDEX events_by_subject ON events (subject_kind, subject_id, id);
