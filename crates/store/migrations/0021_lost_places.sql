-- Finds the places that were given up, the last ones first.
CREATE INDEX events_of_lost_places ON events (id) WHERE subject_kind = 'agent' AND kind = 'removed';
