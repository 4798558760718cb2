//! Label and field selectors.

use serde_json::Value;

use crate::failure::Failure;
use crate::target::Resource;
use crate::values::text;

/// Which objects of a collection a request concerns.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    /// The namespace; `None` for all.
    pub(crate) namespace: Option<String>,
    labels: Vec<Requirement>,
    fields: Vec<(String, bool, String)>,
}

/// One part of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

/// Fields that objects can be selected by, beside those of every object's metadata.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "pods",
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
        ],
    ),
    ("namespaces", &["status.phase"]),
    ("nodes", &["spec.unschedulable"]),
    ("jobs", &["status.successful"]),
    ("secrets", &["type"]),
    (
        "events",
        &[
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "regarding.kind",
            "regarding.name",
            "regarding.namespace",
            "regarding.uid",
            "reason",
            "type",
        ],
    ),
];

impl Filter {
    /// Reads the selectors of a request.
    pub(crate) fn parse(
        resource: &Resource,
        namespace: Option<&str>,
        labels: &str,
        fields: &str,
    ) -> Result<Self, Failure> {
        let labels = parts(labels)
            .into_iter()
            .map(|part| Requirement::parse(&part))
            .collect::<Result<_, _>>()?;
        let fields = fields
            .split(',')
            .filter(|part| !part.trim().is_empty())
            .map(|part| parse_field(resource, part))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            labels,
            fields,
        })
    }

    /// Whether an object is selected.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| text(object, "/metadata/namespace") == namespace)
            && self
                .labels
                .iter()
                .all(|requirement| requirement.matches(object))
            && self.fields.iter().all(|(field, equal, value)| {
                let pointer = format!("/{}", field.replace('.', "/"));
                (text(object, &pointer) == value) == *equal
            })
    }
}

/// The parts between the commas of a label selector that are not in parentheses.
fn parts(selector: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut inside = false;
    for letter in selector.chars() {
        match letter {
            ',' if !inside => parts.push(String::new()),
            _ => {
                inside = (inside || letter == '(') && letter != ')';
                if let Some(part) = parts.last_mut() {
                    part.push(letter);
                }
            }
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    parts
}

impl Requirement {
    fn parse(part: &str) -> Result<Self, Failure> {
        let part = part.trim();
        let one = |key: &str, value: &str| (key.trim().to_owned(), vec![value.trim().to_owned()]);
        let requirement = if let Some((key, values)) = set(part, " notin ") {
            Self::NotIn(key, values)
        } else if let Some((key, values)) = set(part, " in ") {
            Self::In(key, values)
        } else if let Some((key, value)) = part.split_once("!=") {
            let (key, values) = one(key, value);
            Self::NotIn(key, values)
        } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            let (key, values) = one(key, value);
            Self::In(key, values)
        } else if let Some(key) = part.strip_prefix('!') {
            Self::Absent(key.trim().to_owned())
        } else {
            Self::Exists(part.to_owned())
        };
        let (Self::Exists(key) | Self::Absent(key) | Self::In(key, _) | Self::NotIn(key, _)) =
            &requirement;
        let is_key = !key.is_empty()
            && key
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "-_./".contains(letter));
        if is_key {
            Ok(requirement)
        } else {
            let message = format!("unable to parse requirement: {part:?}");
            Err(Failure::bad_request(message))
        }
    }

    fn matches(&self, object: &Value) -> bool {
        let value = |key: &str| {
            let labels = object.pointer("/metadata/labels")?;
            labels.get(key)?.as_str()
        };
        match self {
            Self::Exists(key) => value(key).is_some(),
            Self::Absent(key) => value(key).is_none(),
            Self::In(key, values) => {
                value(key).is_some_and(|value| values.iter().any(|one| one == value))
            }
            Self::NotIn(key, values) => {
                value(key).is_none_or(|value| !values.iter().any(|one| one == value))
            }
        }
    }
}

/// The key and the values of a part such as `key in (a, b)`.
fn set(part: &str, operator: &str) -> Option<(String, Vec<String>)> {
    let spaced = part.replacen('(', " (", 1);
    let (key, values) = spaced.split_once(operator)?;
    let values = values.trim().strip_prefix('(')?.strip_suffix(')')?;
    let values = values.split(',').map(|value| value.trim().to_owned());
    Some((key.trim().to_owned(), values.collect()))
}

/// A part of a field selector: the field, whether it must be equal, and the value.
fn parse_field(resource: &Resource, part: &str) -> Result<(String, bool, String), Failure> {
    let parsed = if let Some((field, value)) = part.split_once("!=") {
        Some((field, false, value))
    } else {
        part.split_once("==")
            .or_else(|| part.split_once('='))
            .map(|(field, value)| (field, true, value))
    };
    let Some((field, equal, value)) = parsed else {
        let message = format!("invalid selector: '{part}'; can't understand '{part}'");
        return Err(Failure::bad_request(message));
    };
    let field = field.trim();
    let of_resource = FIELDS
        .iter()
        .filter(|(plural, _)| *plural == resource.plural)
        .flat_map(|(_, fields)| fields.iter());
    let mut all = ["metadata.name", "metadata.namespace"]
        .iter()
        .chain(of_resource);
    if !all.any(|known| *known == field) {
        let message = format!("field label not supported: {field}");
        return Err(Failure::bad_request(message));
    }
    Ok((field.to_owned(), equal, value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn label_selectors_have_all_their_forms() {
        let object = json!({"metadata": {"labels": {"a": "1", "b.c/d": "x"}}});
        for (selector, expected) in [
            ("", true),
            ("a=1", true),
            ("a==1,b.c/d=x", true),
            ("a=2", false),
            ("a!=2,absent!=1", true),
            ("a", true),
            ("!a", false),
            ("!absent", true),
            ("a in (1, 2),b.c/d", true),
            ("a in(2)", false),
            ("a notin (2,3)", true),
            ("absent notin (2)", true),
            ("a notin (1)", false),
        ] {
            let filter = Filter::parse(&Resource::pods(), None, selector, "").unwrap();
            assert_eq!(filter.matches(&object), expected, "{selector}");
        }
        assert!(Filter::parse(&Resource::pods(), None, "a b", "").is_err());
    }
}
