CREATE TABLE settings (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
CREATE TABLE users (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
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
CREATE TABLE templates (
    name TEXT PRIMARY KEY,
    workspace_id BIGINT NOT NULL,
    owner_id BIGINT NOT NULL REFERENCES users (id),
    config TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    modified_at BIGINT NOT NULL
);
CREATE TABLE config_policies (
    workspace_id BIGINT NOT NULL,
    workload TEXT NOT NULL,
    document TEXT NOT NULL,
    modified_at BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, workload)
);
CREATE TABLE sessions (
    token_hash BLOB PRIMARY KEY,
    user_id BIGINT NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX sessions_by_user ON sessions (user_id);
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    owner_id BIGINT NOT NULL REFERENCES users (id),
    resource_pool TEXT NOT NULL,
    priority BIGINT NOT NULL,
    weight REAL NOT NULL,
    max_slots BIGINT,
    position BIGINT,
    moved BOOLEAN NOT NULL,
    fallback TEXT,
    submitted_at BIGINT NOT NULL
, workspace_id BIGINT NOT NULL DEFAULT 1, demands TEXT);
CREATE TABLE experiments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
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
    progress REAL NOT NULL,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    trial_count BIGINT NOT NULL,
    best_trial_id BIGINT,
    best_metric REAL,
    checkpoint_count BIGINT NOT NULL,
    checkpoint_bytes BIGINT NOT NULL,
    collected BOOLEAN NOT NULL,
    revision BIGINT NOT NULL
, unmanaged BOOLEAN NOT NULL DEFAULT FALSE, external_id TEXT, checkpoint_failure TEXT);
CREATE INDEX experiments_by_state ON experiments (state);
CREATE INDEX experiments_by_job ON experiments (job_id);
CREATE INDEX experiments_by_revision ON experiments (revision);
CREATE INDEX experiments_uncollected ON experiments (id) WHERE NOT collected;
CREATE TABLE experiment_configs (
    experiment_id BIGINT PRIMARY KEY,
    config TEXT NOT NULL,
    original_config TEXT NOT NULL
);
CREATE TABLE deleted_experiments (
    experiment_id BIGINT PRIMARY KEY,
    revision BIGINT NOT NULL
);
CREATE INDEX deleted_experiments_by_revision ON deleted_experiments (revision);
CREATE TABLE model_definitions (
    experiment_id BIGINT PRIMARY KEY,
    archive BLOB NOT NULL,
    bytes BIGINT NOT NULL
);
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
CREATE TABLE trials (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
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
    progress REAL NOT NULL,
    runner_state TEXT NOT NULL,
    metadata TEXT NOT NULL,
    best_metric REAL,
    best_validation TEXT,
    latest_metric REAL,
    latest_validation TEXT,
    checkpoint_count BIGINT NOT NULL,
    checkpoint_bytes BIGINT NOT NULL,
    notice TEXT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT, unmanaged TEXT,
    UNIQUE (experiment_id, request_id)
);
CREATE INDEX trials_by_experiment ON trials (experiment_id, id);
CREATE INDEX trials_by_state ON trials (state);
CREATE INDEX trials_live ON trials (experiment_id, id) WHERE ended_at IS NULL;
CREATE INDEX trials_warm_started ON trials (warm_start_checkpoint) WHERE warm_start_checkpoint IS NOT NULL;
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
, logs_deleted_at BIGINT, machine TEXT NOT NULL DEFAULT '"suspended"', demand TEXT, log_findings TEXT, log_retention_days BIGINT, losses BIGINT NOT NULL DEFAULT 0);
CREATE INDEX tasks_by_trial ON tasks (trial_id);
CREATE INDEX tasks_by_experiment ON tasks (experiment_id);
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
    single_place BOOLEAN NOT NULL,
    preemptible BOOLEAN NOT NULL,
    requested_at BIGINT NOT NULL,
    placed_at BIGINT,
    started_at BIGINT,
    ended_at BIGINT,
    preempt_deadline BIGINT,
    preempted_for TEXT,
    exit_reason TEXT,
    status_code BIGINT,
    excluded_places TEXT,
    wait_reason TEXT,
    wait_since BIGINT
, port_step BIGINT, service_port BIGINT, namespace TEXT, not_before BIGINT);
CREATE INDEX allocations_by_task ON allocations (task_id);
CREATE INDEX allocations_live ON allocations (ended_at, id);
CREATE INDEX allocations_due ON allocations (preempt_deadline) WHERE ended_at IS NULL AND preempt_deadline IS NOT NULL;
CREATE TABLE queue_days (
    resource_pool TEXT NOT NULL,
    day BIGINT NOT NULL,
    placed BIGINT NOT NULL,
    waited BIGINT NOT NULL,
    PRIMARY KEY (resource_pool, day)
);
CREATE TABLE containers (
    id TEXT PRIMARY KEY,
    allocation_id TEXT NOT NULL REFERENCES allocations (id),
    place_id TEXT NOT NULL,
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
CREATE TABLE container_tokens (
    token_hash BLOB PRIMARY KEY,
    allocation_id TEXT NOT NULL,
    expires_at BIGINT
);
CREATE INDEX container_tokens_by_allocation ON container_tokens (allocation_id);
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
, slot_faults TEXT NOT NULL DEFAULT '{}', fault TEXT);
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
, storage_id BIGINT, owner_uid BIGINT, removing TEXT);
CREATE INDEX checkpoints_by_trial ON checkpoints (trial_id, steps);
CREATE INDEX checkpoints_by_experiment ON checkpoints (experiment_id, reported_at);
CREATE TABLE metric_journal (
    id INTEGER PRIMARY KEY,
    data BLOB NOT NULL
);
CREATE TABLE metric_chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    trial_id BIGINT NOT NULL,
    group_name TEXT NOT NULL,
    run_id BIGINT NOT NULL,
    first_step BIGINT NOT NULL,
    last_step BIGINT NOT NULL,
    reports BIGINT NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX metric_chunks_by_trial ON metric_chunks (trial_id, group_name, run_id, id, first_step, last_step);
CREATE TABLE metric_series (
    trial_id BIGINT NOT NULL,
    group_name TEXT NOT NULL,
    name TEXT NOT NULL,
    through BIGINT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (trial_id, group_name, name)
);
CREATE TABLE metric_summaries (
    trial_id BIGINT NOT NULL,
    group_name TEXT NOT NULL,
    last_step BIGINT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (trial_id, group_name)
);
CREATE TABLE log_chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id TEXT NOT NULL,
    first_line BIGINT NOT NULL,
    lines BIGINT NOT NULL,
    first_at BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    data BLOB NOT NULL
);
CREATE UNIQUE INDEX log_chunks_by_task ON log_chunks (task_id, first_line);
CREATE TABLE log_spools (
    spool_id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL,
    next_sequence BIGINT NOT NULL
);
CREATE INDEX log_spools_by_task ON log_spools (task_id);
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
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
CREATE TABLE workspaces (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    owner_id BIGINT REFERENCES users (id),
    immutable BOOLEAN NOT NULL,
    archived BOOLEAN NOT NULL,
    agent_uid BIGINT,
    agent_user TEXT,
    agent_gid BIGINT,
    agent_group TEXT,
    checkpoint_storage TEXT,
    default_compute_pool TEXT,
    default_aux_pool TEXT,
    max_slots BIGINT,
    state TEXT,
    error TEXT,
    created_at BIGINT NOT NULL
);
CREATE TABLE projects (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    workspace_id BIGINT NOT NULL REFERENCES workspaces (id),
    name TEXT NOT NULL,
    key TEXT NOT NULL UNIQUE,
    owner_id BIGINT REFERENCES users (id),
    immutable BOOLEAN NOT NULL,
    archived BOOLEAN NOT NULL,
    description TEXT NOT NULL,
    notes TEXT NOT NULL,
    state TEXT,
    error TEXT,
    created_at BIGINT NOT NULL,
    UNIQUE (workspace_id, name)
);
CREATE TABLE workspace_pins (
    user_id BIGINT NOT NULL,
    workspace_id BIGINT NOT NULL,
    pinned_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, workspace_id)
);
CREATE INDEX experiments_by_project ON experiments (project_id);
CREATE INDEX tasks_with_old_logs ON tasks (ended_at, id) WHERE ended_at IS NOT NULL AND logs_deleted_at IS NULL;
CREATE TABLE checkpoint_storages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    location TEXT NOT NULL UNIQUE
);
CREATE INDEX checkpoints_in_removal ON checkpoints (uuid) WHERE removing IS NOT NULL;
CREATE TABLE agent_tokens (
    agent_id TEXT PRIMARY KEY,
    token_hash BLOB NOT NULL UNIQUE,
    joined_at BIGINT NOT NULL,
    revoked_at BIGINT
);
CREATE TABLE metric_runs (
    trial_id BIGINT NOT NULL,
    group_name TEXT NOT NULL,
    run_id BIGINT NOT NULL,
    first_step BIGINT NOT NULL,
    PRIMARY KEY (trial_id, group_name, run_id)
);
CREATE INDEX containers_by_place ON containers (place_id, ended_at);
CREATE INDEX tasks_by_job ON tasks (job_id) WHERE experiment_id IS NULL;
CREATE TABLE task_documents (
    task_id TEXT PRIMARY KEY,
    parent_id TEXT,
    description TEXT NOT NULL,
    config TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE TABLE task_contexts (
    task_id TEXT PRIMARY KEY,
    archive BLOB NOT NULL,
    bytes BIGINT NOT NULL
);
CREATE INDEX task_documents_by_parent ON task_documents (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX tasks_launched ON tasks (kind, ended_at) WHERE experiment_id IS NULL;
CREATE UNIQUE INDEX experiments_by_external_id ON experiments (external_id) WHERE external_id IS NOT NULL;
CREATE INDEX trials_unmanaged ON trials (id) WHERE unmanaged IS NOT NULL AND ended_at IS NULL;
CREATE TABLE checkpoint_removals (
    task_id TEXT PRIMARY KEY,
    experiment_id BIGINT NOT NULL
);
CREATE INDEX experiments_unmanaged ON experiments (owner_id, trial_count) WHERE unmanaged;
CREATE TABLE task_metrics (
    task_id TEXT NOT NULL,
    total BIGINT NOT NULL,
    container_id TEXT NOT NULL,
    last_number BIGINT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (task_id, total)
);
CREATE INDEX task_metrics_by_container ON task_metrics (task_id, container_id, last_number);
CREATE TABLE workspace_namespace_bindings (
    workspace_id BIGINT NOT NULL REFERENCES workspaces (id),
    cluster_name TEXT NOT NULL,
    namespace TEXT NOT NULL,
    auto_create BOOLEAN NOT NULL,
    quota BIGINT,
    PRIMARY KEY (workspace_id, cluster_name)
);
CREATE TABLE made_namespaces (
    cluster_name TEXT NOT NULL,
    namespace TEXT NOT NULL,
    workspace_id BIGINT NOT NULL,
    removed BOOLEAN NOT NULL,
    PRIMARY KEY (cluster_name, namespace)
);
CREATE INDEX events_of_lost_places ON events (id) WHERE subject_kind = 'agent' AND kind = 'removed';
INSERT INTO workspaces (name, immutable, archived, created_at) VALUES ('Uncategorized', TRUE, FALSE, 0);
INSERT INTO projects (workspace_id, name, key, immutable, archived, description, notes, created_at)
    VALUES (1, 'Uncategorized', 'UNCAT', TRUE, FALSE, '', '[]', 0);
