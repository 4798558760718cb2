-- The Kubernetes namespaces that the work in workspaces runs in, by cluster, and how many slots it may have there at once.
CREATE TABLE workspace_namespace_bindings (
    workspace_id BIGINT NOT NULL REFERENCES workspaces (id),
    cluster_name TEXT NOT NULL,
    namespace TEXT NOT NULL,
    auto_create BOOLEAN NOT NULL,
    quota BIGINT,
    PRIMARY KEY (workspace_id, cluster_name)
);
-- Namespaces that the master makes for workspaces, until those that are removed are gone from their cluster.
CREATE TABLE made_namespaces (
    cluster_name TEXT NOT NULL,
    namespace TEXT NOT NULL,
    workspace_id BIGINT NOT NULL,
    removed BOOLEAN NOT NULL,
    PRIMARY KEY (cluster_name, namespace)
);
-- The namespace that an attempt was placed in; null = that of its pool.
ALTER TABLE allocations ADD COLUMN namespace TEXT;
