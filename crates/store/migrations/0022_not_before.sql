-- The time before which an allocation is not placed, because attempts before it failed for a reason of their places; null =
-- it may be placed at once.
ALTER TABLE allocations ADD COLUMN not_before BIGINT;
