-- Why files of checkpoints of an experiment that were to be deleted are still there, for users; null = they are gone, or
-- none were to go.
ALTER TABLE experiments ADD COLUMN checkpoint_failure TEXT;
