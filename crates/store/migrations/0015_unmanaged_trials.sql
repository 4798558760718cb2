-- How many trials the unmanaged experiments of a user have, which is asked for before each one more.
CREATE INDEX experiments_unmanaged ON experiments (owner_id, trial_count) WHERE unmanaged;
