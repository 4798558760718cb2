-- What the containers of a job demand of places besides slots.
ALTER TABLE jobs ADD COLUMN demands TEXT;
