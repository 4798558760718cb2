-- Tasks have a life of their own, and those that work for no experiment say what they ask for.
ALTER TABLE tasks ADD COLUMN machine TEXT NOT NULL DEFAULT '"suspended"';
ALTER TABLE tasks ADD COLUMN demand TEXT;
UPDATE tasks SET machine = CASE (SELECT a.state FROM allocations a WHERE a.task_id = tasks.id AND a.ended_at IS NULL)
    WHEN 'PENDING' THEN '"queued"' ELSE '"running"' END
WHERE ended_at IS NULL AND EXISTS (SELECT 1 FROM allocations a WHERE a.task_id = tasks.id AND a.ended_at IS NULL);
UPDATE tasks SET machine = CASE (SELECT r.state FROM trials r WHERE r.id = tasks.trial_id)
    WHEN 'STOPPING_KILLED' THEN '{"stopping":"kill"}' ELSE '{"stopping":"suspend"}' END
WHERE ended_at IS NULL AND machine <> '"suspended"'
  AND EXISTS (SELECT 1 FROM trials r WHERE r.id = tasks.trial_id AND r.state <> 'ACTIVE');
UPDATE tasks SET machine = CASE (SELECT r.state FROM trials r WHERE r.id = tasks.trial_id AND r.task_id = tasks.id)
    WHEN 'COMPLETED' THEN '{"ended":"completed"}'
    WHEN 'CANCELED' THEN '{"ended":"canceled"}'
    WHEN 'ERROR' THEN '{"ended":"failed"}'
    ELSE CASE (SELECT a.status_code FROM allocations a WHERE a.id = tasks.id || '.' || tasks.attempts)
        WHEN 0 THEN '{"ended":"completed"}' ELSE '{"ended":"failed"}' END
    END
WHERE ended_at IS NOT NULL;
CREATE INDEX tasks_by_job ON tasks (job_id) WHERE experiment_id IS NULL;
