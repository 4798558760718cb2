-- On which port the service of an attempt listens: given when it is placed, unique on its host and not in the whole cluster.
ALTER TABLE allocations ADD COLUMN service_port BIGINT;
