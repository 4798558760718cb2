-- Workspaces. owner_id null = the cluster's own. agent_* null = tasks run as their user's identity. checkpoint_storage =
-- JSON, laid over the cluster's; default_*_pool null = the cluster's. max_slots = most slots in use at once by all work in
-- it, null = no limit. state null = there; DELETING, DELETE_FAILED (error says why).
CREATE TABLE workspaces (
    id {PK},
    name TEXT NOT NULL UNIQUE,
    owner_id BIGINT REFERENCES users (id),
    immutable BOOLEAN NOT NULL,
    archived BOOLEAN NOT NULL,
    agent_uid BIGINT,
    agent_user TEXT,
    agent_gid BIGINT,
    agent_group TEXT,
    checkpoint_storage TEXT,
    default_compute_pool TEXT,
    default_aux_pool TEXT,
    max_slots BIGINT,
    state TEXT,
    error TEXT,
    created_at BIGINT NOT NULL
);

-- Projects. key = short name, unique over the cluster; notes = JSON list of {name, contents}; the rest as of workspaces.
CREATE TABLE projects (
    id {PK},
    workspace_id BIGINT NOT NULL REFERENCES workspaces (id),
    name TEXT NOT NULL,
    key TEXT NOT NULL UNIQUE,
    owner_id BIGINT REFERENCES users (id),
    immutable BOOLEAN NOT NULL,
    archived BOOLEAN NOT NULL,
    description TEXT NOT NULL,
    notes TEXT NOT NULL,
    state TEXT,
    error TEXT,
    created_at BIGINT NOT NULL,
    UNIQUE (workspace_id, name)
);

-- Which workspaces a person has pinned, and since when.
CREATE TABLE workspace_pins (
    user_id BIGINT NOT NULL,
    workspace_id BIGINT NOT NULL,
    pinned_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, workspace_id)
);

-- Number 1 of both: where everything is that was put nowhere else. Without a number of ours, so that the next one is 2.
INSERT INTO workspaces (name, immutable, archived, created_at) VALUES ('Uncategorized', TRUE, FALSE, 0);
INSERT INTO projects (workspace_id, name, key, immutable, archived, description, notes, created_at)
    VALUES (1, 'Uncategorized', 'UNCAT', TRUE, FALSE, '', '[]', 0);

-- The workspace of a job; kept in step with the project of its experiment.
ALTER TABLE jobs ADD COLUMN workspace_id BIGINT NOT NULL DEFAULT 1;

CREATE INDEX experiments_by_project ON experiments (project_id);
