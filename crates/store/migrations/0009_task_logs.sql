-- What log policies found in a log, and how long it is kept, are a task's, whatever its kind. A trial's tasks have what their
-- trial had.
ALTER TABLE tasks ADD COLUMN log_findings TEXT;
ALTER TABLE tasks ADD COLUMN log_retention_days BIGINT;
UPDATE tasks SET log_findings = (SELECT r.log_findings FROM trials r WHERE r.id = tasks.trial_id),
    log_retention_days = (SELECT r.log_retention_days FROM trials r WHERE r.id = tasks.trial_id)
WHERE trial_id IS NOT NULL;
ALTER TABLE trials DROP COLUMN log_findings;
ALTER TABLE trials DROP COLUMN log_retention_days;
