-- Tokens of agents: each agent makes one and shows it with every connection. Rows outlive the agent's, so that an agent
-- that was forgotten comes back with its token. revoked_at = the token is refused since then; null = it is accepted.
CREATE TABLE agent_tokens (
    agent_id TEXT PRIMARY KEY,
    token_hash {BLOB} NOT NULL UNIQUE,
    joined_at BIGINT NOT NULL,
    revoked_at BIGINT
);
