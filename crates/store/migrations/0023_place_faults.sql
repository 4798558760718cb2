-- What keeps an agent's host from starting containers, as it reports it; null = nothing.
ALTER TABLE agents ADD COLUMN fault TEXT;
