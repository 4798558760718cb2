//! The query parameters of a request.

/// The parameters of a request in the order they were added. A parameter that is not set is left out, because the API
/// treats a missing one and null alike.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// A query without any parameter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one parameter.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers hand in numbers and texts as they have them"
    )]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.0.push((name.to_owned(), value.to_string()));
        self
    }

    /// Adds a parameter if it has a value.
    #[must_use]
    pub fn with_some<T: ToString>(self, name: &str, value: Option<T>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds a list: the name is repeated for each value.
    #[must_use]
    pub fn with_all<T: ToString>(
        mut self,
        name: &str,
        values: impl IntoIterator<Item = T>,
    ) -> Self {
        for value in values {
            self = self.with(name, value);
        }
        self
    }

    /// The parameters, name and value.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }
}
