-- Where each run of a trial's group begins: its lowest step, -1 as long as it has reported none. What the chunks say,
-- without going through them.
CREATE TABLE metric_runs (
    trial_id BIGINT NOT NULL,
    group_name TEXT NOT NULL,
    run_id BIGINT NOT NULL,
    first_step BIGINT NOT NULL,
    PRIMARY KEY (trial_id, group_name, run_id)
);
INSERT INTO metric_runs (trial_id, group_name, run_id, first_step)
SELECT trial_id, group_name, run_id, COALESCE(MIN(CASE WHEN first_step >= 0 THEN first_step END), -1)
FROM metric_chunks GROUP BY trial_id, group_name, run_id;
