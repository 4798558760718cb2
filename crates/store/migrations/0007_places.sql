-- What an attempt runs on is a place: an agent's machine is one of them.
ALTER TABLE containers RENAME COLUMN agent_id TO place_id;
ALTER TABLE allocations RENAME COLUMN single_agent TO single_place;
ALTER TABLE allocations RENAME COLUMN excluded_agents TO excluded_places;
DROP INDEX containers_by_agent;
CREATE INDEX containers_by_place ON containers (place_id, ended_at);
