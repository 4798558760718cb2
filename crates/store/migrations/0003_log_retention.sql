-- How long the logs of a trial's tasks are kept after their end, in days: -1 = for ever, null = as the cluster says.
-- Trials that are there already have what their experiments were submitted with.
ALTER TABLE trials ADD COLUMN log_retention_days BIGINT;
UPDATE trials SET log_retention_days =
        (SELECT {CONFIGURED_RETENTION} FROM experiment_configs c WHERE c.experiment_id = trials.experiment_id)
    WHERE experiment_id IN (SELECT experiment_id FROM experiment_configs WHERE config LIKE '%log_retention_days%');

-- When the log of a task was deleted because it had been kept long enough; null = it was not, or lines came since.
ALTER TABLE tasks ADD COLUMN logs_deleted_at BIGINT;
CREATE INDEX tasks_with_old_logs ON tasks (ended_at, id) WHERE ended_at IS NOT NULL AND logs_deleted_at IS NULL;
