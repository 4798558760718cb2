-- How many allocations of a task in a row were lost without a fault of its own: what bounds how often it is queued again.
ALTER TABLE tasks ADD COLUMN losses BIGINT NOT NULL DEFAULT 0;
