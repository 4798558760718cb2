//! Where values come from: files, flags, templates, the defaults of pools, policies.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// What the value was read from. `None` = the one document at hand.
    pub source: Option<Arc<Source>>,
    /// Line, counted from 1; 0 when the source has no lines (a variable or a flag).
    pub line: u32,
    /// Column, counted from 1; 0 when the source has no lines.
    pub column: u32,
}

/// The layer that a value belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layer {
    /// The document that a user wrote.
    Document,
    /// The option `--config key=value` of a command.
    Override,
    /// A variable of the environment.
    Variable,
    /// A flag of the command line.
    Flag,
    /// A template, by name.
    Template(String),
    /// The `task_container_defaults` of a pool, by its name.
    PoolDefaults(String),
    /// `task_container_defaults` of the master's configuration.
    ClusterDefaults,
    /// `checkpoint_storage` of the master's configuration.
    CheckpointStorage,
    /// The built-in storage of a master without a configured one, where it is not known whether this master has one.
    AssumedStorage,
    /// The settings of a workspace, by its name.
    Workspace(String),
    /// The default priority of a pool, by its name.
    PoolPriority(String),
    /// The master's choice of a pool for work that names none.
    DefaultPool,
    /// The policies of a scope: `cluster`, or a workspace.
    Policy(String),
    /// Made at submission: names and seeds.
    Generated,
    /// No layer has it: the default that is built in.
    BuiltIn,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Document => f.write_str("document"),
            Self::Override => f.write_str("--config"),
            Self::Variable => f.write_str("environment"),
            Self::Flag => f.write_str("flag"),
            Self::Template(name) => write!(f, "template \"{name}\""),
            Self::PoolDefaults(pool) => write!(f, "pool \"{pool}\" defaults"),
            Self::ClusterDefaults => f.write_str("cluster defaults"),
            Self::CheckpointStorage => f.write_str("master's checkpoint storage"),
            Self::AssumedStorage => f.write_str("default; the master's own is not known"),
            Self::Workspace(name) => write!(f, "workspace \"{name}\""),
            Self::PoolPriority(pool) => write!(f, "pool \"{pool}\" default priority"),
            Self::DefaultPool => f.write_str("default pool"),
            Self::Policy(scope) => write!(f, "policy of {scope}"),
            Self::Generated => f.write_str("generated at submission"),
            Self::BuiltIn => f.write_str("default"),
        }
    }
}

impl Layer {
    /// The name of this kind of layer in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Document => "document",
            Self::Override => "override",
            Self::Variable => "variable",
            Self::Flag => "flag",
            Self::Template(_) => "template",
            Self::PoolDefaults(_) => "pool_defaults",
            Self::ClusterDefaults => "cluster_defaults",
            Self::CheckpointStorage => "checkpoint_storage",
            Self::AssumedStorage => "assumed_storage",
            Self::Workspace(_) => "workspace",
            Self::PoolPriority(_) => "pool_priority",
            Self::DefaultPool => "default_pool",
            Self::Policy(_) => "policy",
            Self::Generated => "generated",
            Self::BuiltIn => "default",
        }
    }

    /// The template, pool or scope that this layer belongs to.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Template(name)
            | Self::Workspace(name)
            | Self::PoolDefaults(name)
            | Self::PoolPriority(name)
            | Self::Policy(name) => Some(name),
            _ => None,
        }
    }
}

/// What a text was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The layer that its values belong to.
    pub layer: Layer,
    /// The file, variable or flag; empty when there is none to name.
    pub name: String,
}

impl Source {
    /// A file that a user wrote.
    pub fn document(file: impl Into<String>) -> Self {
        Self::of(Layer::Document, file)
    }

    /// A variable of the environment.
    pub fn variable(name: impl Into<String>) -> Self {
        Self::of(Layer::Variable, name)
    }

    /// A layer with the file (or other thing) that holds it.
    pub fn of(layer: Layer, name: impl Into<String>) -> Self {
        Self {
            layer,
            name: name.into(),
        }
    }

    /// A layer that comes from no text.
    pub fn layer(layer: Layer) -> Self {
        Self::of(layer, "")
    }

    /// How an error names it: the file, variable or flag, else the layer.
    pub fn place(&self) -> String {
        if self.name.is_empty() {
            self.layer.to_string()
        } else {
            self.name.clone()
        }
    }
}

/// Where an effective value comes from. `None` as its place = built into the product.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(pub Option<Position>);

impl Origin {
    /// A value that is built into the product.
    pub const DEFAULT: Self = Self(None);

    /// A value that is in no text.
    pub fn of(source: Source) -> Self {
        Self(Some(Position {
            source: Some(Arc::new(source)),
            line: 0,
            column: 0,
        }))
    }

    /// The layer; [`Layer::BuiltIn`] for what is built in.
    pub fn layer(&self) -> Layer {
        match &self.0 {
            None => Layer::BuiltIn,
            Some(position) => position
                .source
                .as_ref()
                .map_or(Layer::Document, |source| source.layer.clone()),
        }
    }

    /// `{"layer", "name", "source", "line", "column"}`, without what there is not.
    pub fn to_json(&self) -> Value {
        let layer = self.layer();
        let mut out = json!({"layer": layer.kind()});
        let mut put = |key: &str, value: Value| {
            if let Some(members) = out.as_object_mut() {
                members.insert(key.to_owned(), value);
            }
        };
        if let Some(name) = layer.name() {
            put("name", name.into());
        }
        if let Some(position) = &self.0 {
            if let Some(source) = position.source.as_ref().filter(|s| !s.name.is_empty()) {
                put("source", source.name.as_str().into());
            }
            if position.line > 0 {
                put("line", position.line.into());
                put("column", position.column.into());
            }
        }
        out
    }
}

impl fmt::Display for Origin {
    /// `train.yaml:7`, `template "base" (base.yaml:3)`, `--config name`, `default`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(position) = &self.0 else {
            return self.layer().fmt(f);
        };
        let line = (position.line > 0).then_some(position.line);
        let Some(source) = &position.source else {
            return match line {
                Some(line) => write!(f, "line {line}"),
                None => f.write_str("document"),
            };
        };
        let plain = matches!(
            source.layer,
            Layer::Document | Layer::Override | Layer::Variable | Layer::Flag
        );
        match (plain, source.name.as_str(), line) {
            (true, "", _) => source.layer.fmt(f),
            (true, name, Some(line)) => write!(f, "{name}:{line}"),
            (true, name, None) => f.write_str(name),
            (false, "", Some(line)) => write!(f, "{}, line {line}", source.layer),
            (false, "", None) => source.layer.fmt(f),
            (false, name, Some(line)) => write!(f, "{} ({name}:{line})", source.layer),
            (false, name, None) => write!(f, "{} ({name})", source.layer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(source: Source, line: u32) -> Origin {
        Origin(Some(Position {
            source: Some(Arc::new(source)),
            line,
            column: line,
        }))
    }

    #[test]
    fn an_origin_reads_as_its_place() {
        for (given, text, json) in [
            (Origin::DEFAULT, "default", json!({"layer": "default"})),
            (
                origin(Source::document("train.yaml"), 7),
                "train.yaml:7",
                json!({"layer": "document", "source": "train.yaml", "line": 7, "column": 7}),
            ),
            (
                origin(Source::of(Layer::Override, "--config name"), 0),
                "--config name",
                json!({"layer": "override", "source": "--config name"}),
            ),
            (
                origin(Source::of(Layer::Template("base".into()), "base.yaml"), 3),
                "template \"base\" (base.yaml:3)",
                json!({"layer": "template", "name": "base", "source": "base.yaml", "line": 3, "column": 3}),
            ),
            (
                origin(Source::layer(Layer::Template("base".into())), 3),
                "template \"base\", line 3",
                json!({"layer": "template", "name": "base", "line": 3, "column": 3}),
            ),
            (
                origin(Source::layer(Layer::Workspace("vision".into())), 0),
                "workspace \"vision\"",
                json!({"layer": "workspace", "name": "vision"}),
            ),
            (
                origin(Source::layer(Layer::AssumedStorage), 0),
                "default; the master's own is not known",
                json!({"layer": "assumed_storage"}),
            ),
            (
                origin(Source::layer(Layer::PoolPriority("gpu".into())), 0),
                "pool \"gpu\" default priority",
                json!({"layer": "pool_priority", "name": "gpu"}),
            ),
        ] {
            assert_eq!(given.to_string(), text);
            assert_eq!(given.to_json(), json, "{text}");
        }
    }
}
