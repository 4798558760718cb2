//! Every operation that clients of the API know.
//!
//! A master need not have built them all; it must answer the others plainly (status 501), because clients read 404 as
//! "no such object". The table is also what coverage tests walk.

mod table;

pub use table::OPERATIONS;

use std::fmt;

/// One operation of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Its name, unique: `GetExperiment`.
    pub name: &'static str,
    /// HTTP method that it is called with.
    pub method: Method,
    /// Path with its parameters in braces: `/api/v1/trials/{trialId}`.
    pub path: &'static str,
    /// Name of the body's type in generated clients; empty = no body.
    pub request: &'static str,
    /// Name of the answer's type (of each message, if it streams) in generated clients; empty = the answer is `{}`.
    pub response: &'static str,
    /// Whether the answer is a stream of messages.
    pub streaming: bool,
    /// How much it is used.
    pub tier: Tier,
}

/// HTTP methods in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// `DELETE`; may have a body.
    Delete,
    /// `GET`: reads, changes nothing.
    Get,
    /// `PATCH`: changes what its body contains.
    Patch,
    /// `POST`: creates something, or acts on it.
    Post,
    /// `PUT`: replaces, or creates what is absent.
    Put,
}

/// How much an operation is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Creates, runs, follows and stops an experiment.
    Core,
    /// For everyday work besides experiments, and for tools.
    Common,
    /// For administrators, Kubernetes, or left over from older versions.
    Rare,
}

impl Method {
    /// The method as HTTP writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "DELETE",
            Self::Get => "GET",
            Self::Patch => "PATCH",
            Self::Post => "POST",
            Self::Put => "PUT",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Operation {
    /// Whether a request path (without query) is this operation's. A trailing slash is tolerated; a parameter is one
    /// non-empty segment.
    pub fn matches_path(&self, path: &str) -> bool {
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut given = path.split('/');
        for wanted in self.path.split('/') {
            let Some(segment) = given.next() else {
                return false;
            };
            let fits = if wanted.starts_with('{') {
                !segment.is_empty()
            } else {
                wanted == segment
            };
            if !fits {
                return false;
            }
        }
        given.next().is_none()
    }

    /// Segments of the path that are parameters: the fewer, the more exactly it matches.
    fn parameters(&self) -> usize {
        self.path.matches('{').count()
    }
}

/// The operation with this name.
pub fn by_name(name: &str) -> Option<&'static Operation> {
    OPERATIONS.iter().find(|operation| operation.name == name)
}

/// The operation that a request is for; literal segments win over parameters. `method` as HTTP writes it.
pub fn by_request(method: &str, path: &str) -> Option<&'static Operation> {
    OPERATIONS
        .iter()
        .filter(|operation| operation.method.as_str() == method && operation.matches_path(path))
        .min_by_key(|operation| operation.parameters())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_is_complete_and_names_are_unique() {
        let names: BTreeSet<_> = OPERATIONS.iter().map(|operation| operation.name).collect();
        assert_eq!(OPERATIONS.len(), 261);
        assert_eq!(names.len(), 261);
        let core = OPERATIONS
            .iter()
            .filter(|operation| operation.tier == Tier::Core);
        assert_eq!(core.count(), 40);
    }

    #[test]
    fn every_operation_is_found_by_its_own_path() {
        for operation in OPERATIONS {
            let path = operation.path.replace(['{', '}'], "x");
            let found = by_request(operation.method.as_str(), &path).map(|found| found.name);
            assert_eq!(found, Some(operation.name), "{path}");
        }
    }

    #[test]
    fn literal_segments_win_over_parameters() {
        let name = |method, path| by_request(method, path).map(|operation| operation.name);
        assert_eq!(
            name("GET", "/api/v1/tasks/count"),
            Some("GetActiveTasksCount")
        );
        assert_eq!(name("GET", "/api/v1/tasks/7.0b6c/"), Some("GetTask"));
        assert_eq!(
            name("POST", "/api/v1/experiments/3/kill"),
            Some("KillExperiment")
        );
        assert_eq!(name("GET", "/api/v1/experiments/"), Some("GetExperiments"));
        assert_eq!(name("GET", "/api/v1/nothing"), None);
        assert_eq!(name("PUT", "/api/v1/master"), None);
    }
}
