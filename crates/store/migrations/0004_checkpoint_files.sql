-- Checkpoint storages that runs have used. location = JSON of the storage section without secrets and without how many
-- checkpoints are kept.
CREATE TABLE checkpoint_storages (
    id {PK},
    location TEXT NOT NULL UNIQUE
);

-- Which storage holds the files; null = not known (reported before this change).
ALTER TABLE checkpoints ADD COLUMN storage_id BIGINT;
-- Unix user id that the task ran as: the owner of the files; null = as the owner of the experiment is mapped now.
ALTER TABLE checkpoints ADD COLUMN owner_uid BIGINT;
-- While files are being removed: JSON list of the patterns. Such a checkpoint is no start for a trial, and a removal
-- that was cut short is found by it.
ALTER TABLE checkpoints ADD COLUMN removing TEXT;
CREATE INDEX checkpoints_in_removal ON checkpoints (uuid) WHERE removing IS NOT NULL;
