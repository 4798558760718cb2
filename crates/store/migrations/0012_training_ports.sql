-- Which set of training ports the containers of an allocation use: given when it is placed, so that no two on one host meet.
ALTER TABLE allocations ADD COLUMN port_step BIGINT;
