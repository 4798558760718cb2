-- What a task that works for no experiment runs as, and the files that it starts with. A trial's task has its experiment's.
CREATE TABLE task_documents (
    task_id TEXT PRIMARY KEY,
    parent_id TEXT,
    description TEXT NOT NULL,
    config TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE TABLE task_contexts (
    task_id TEXT PRIMARY KEY,
    archive {BLOB} NOT NULL,
    bytes BIGINT NOT NULL
);
CREATE INDEX task_documents_by_parent ON task_documents (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX tasks_launched ON tasks (kind, ended_at) WHERE experiment_id IS NULL;
