-- System metrics of tasks that work for no experiment, in chunks as their supervisors have reported them.
CREATE TABLE task_metrics (
    task_id TEXT NOT NULL,
    total BIGINT NOT NULL,
    container_id TEXT NOT NULL,
    last_number BIGINT NOT NULL,
    data {BLOB} NOT NULL,
    PRIMARY KEY (task_id, total)
);
CREATE INDEX task_metrics_by_container ON task_metrics (task_id, container_id, last_number);
