-- Tasks that delete checkpoints where the master does not reach, from their launch until the master has settled what came of
-- them. Which checkpoints and why is in their documents.
CREATE TABLE checkpoint_removals (
    task_id TEXT PRIMARY KEY,
    experiment_id BIGINT NOT NULL
);
