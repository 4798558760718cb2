-- What runs outside the cluster and only reports. external_id = the name by which its code finds an experiment again; the
-- name of a trial is its request_id. unmanaged of a trial = what is known of its code, as JSON; null = the master runs it.
ALTER TABLE experiments ADD COLUMN unmanaged BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE experiments ADD COLUMN external_id TEXT;
CREATE UNIQUE INDEX experiments_by_external_id ON experiments (external_id) WHERE external_id IS NOT NULL;
ALTER TABLE trials ADD COLUMN unmanaged TEXT;
CREATE INDEX trials_unmanaged ON trials (id) WHERE unmanaged IS NOT NULL AND ended_at IS NULL;
