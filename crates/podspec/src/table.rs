//! `pod.tsv` as values.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A line for each key: the type that has it, its name, the shape of its value, and how a list merges (`-`, the key whose
/// value makes two elements the same, or `set`; `retain` where each element names one of several sources).
static TABLE: LazyLock<BTreeMap<&'static str, Type>> = LazyLock::new(|| {
    let mut types: BTreeMap<&str, Type> = BTreeMap::new();
    for line in include_str!("pod.tsv").lines() {
        let mut columns = line.split('\t');
        let mut column = || columns.next().unwrap_or_default();
        let (name, key, shape, merge) = (column(), column(), column(), column());
        let of = types.entry(name).or_insert_with(|| Type {
            name,
            fields: BTreeMap::new(),
        });
        let field = Field {
            name: key,
            shape: Shape::read(shape),
            merge: ListMerge::read(merge),
        };
        of.fields.insert(key, field);
    }
    types
});

/// A type of the Kubernetes API that a pod contains, by its name there, such as `Container`.
#[derive(Debug, PartialEq, Eq)]
pub struct Type {
    /// The name without group and version.
    pub name: &'static str,
    fields: BTreeMap<&'static str, Field>,
}

/// A key of a type.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// The key, in camel case.
    pub name: &'static str,
    /// The shape of its value.
    pub shape: Shape,
    /// How it merges if it is a list.
    pub merge: ListMerge,
}

/// The shape of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `true` or `false`.
    Boolean,
    /// A whole number, as JSON has it.
    Integer,
    /// A string, which may be empty.
    Text,
    /// A quantity, such as `500m`: a string or a number.
    Quantity,
    /// A port: an integer or a string.
    IntegerOrText,
    /// A value of any shape.
    Any,
    /// A map of a type, by its name for [`type_named`].
    Of(&'static str),
    /// A list of strings.
    Texts,
    /// A list of integers.
    Integers,
    /// A list of maps of a type, by its name for [`type_named`].
    ListOf(&'static str),
    /// A map from names that users choose to strings.
    TextMap,
    /// A map from names of resources to quantities.
    QuantityMap,
}

impl Shape {
    fn read(text: &'static str) -> Self {
        match text {
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "string" => Self::Text,
            "quantity" => Self::Quantity,
            "integer or string" => Self::IntegerOrText,
            "any" => Self::Any,
            "[string]" => Self::Texts,
            "[integer]" => Self::Integers,
            "{string}" => Self::TextMap,
            "{quantity}" => Self::QuantityMap,
            _ => match text.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
                Some(element) => Self::ListOf(element),
                None => Self::Of(text),
            },
        }
    }

    /// Whether values of this shape are lists.
    pub fn is_list(self) -> bool {
        matches!(self, Self::Texts | Self::Integers | Self::ListOf(_))
    }

    /// Whether values of this shape are maps.
    pub fn is_map(self) -> bool {
        matches!(self, Self::Of(_) | Self::TextMap | Self::QuantityMap)
    }

    /// The type of the map, or of the maps that the list contains. `None` = neither, or the keys are chosen by users.
    pub fn inner(self) -> Option<&'static Type> {
        match self {
            Self::Of(name) | Self::ListOf(name) => type_named(name),
            _ => None,
        }
    }
}

/// How a list of a stronger pod merges over that of a weaker one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListMerge {
    /// The stronger list replaces the weaker one whole.
    Atomic,
    /// Elements are maps, and two with the same value of `key` are one.
    By {
        /// The key whose value identifies an element.
        key: &'static str,
        /// Each element names one of several sources, as a volume does: where the stronger names one, the weaker's of
        /// another kind goes.
        one_source: bool,
    },
    /// Elements are scalars, each of which is contained once.
    Set,
}

impl ListMerge {
    fn read(text: &'static str) -> Self {
        match text {
            "-" => Self::Atomic,
            "set" => Self::Set,
            _ => match text.strip_suffix(" retain") {
                Some(key) => Self::By {
                    key,
                    one_source: true,
                },
                None => Self::By {
                    key: text,
                    one_source: false,
                },
            },
        }
    }
}

impl Type {
    /// Its key of this name, in camel case.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(name)
    }

    /// Its key of this name, in camel case or in snake case.
    pub fn field_spelled(&self, name: &str) -> Option<&Field> {
        self.field(name).or_else(|| {
            let mut fields = self.fields.values();
            fields.find(|field| is_snake_case_of(name, field.name))
        })
    }

    /// Its keys, sorted by name.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.fields.values()
    }
}

/// Whether `name` is a key of Kubernetes in snake case: in small letters, with a line before what is a capital there. Of
/// several capitals in a row, not each needs one: `hostIPC` is `host_ipc`.
pub fn is_snake_case_of(name: &str, key: &str) -> bool {
    let mut letters = key.chars();
    let mut is_after_line = false;
    let mut has_line = false;
    for c in name.chars() {
        if c == '_' {
            if is_after_line {
                return false;
            }
            (is_after_line, has_line) = (true, true);
            continue;
        }
        let is_it = letters.next().is_some_and(|letter| {
            letter.to_ascii_lowercase() == c && (!is_after_line || letter.is_ascii_uppercase())
        });
        if !is_it {
            return false;
        }
        is_after_line = false;
    }
    has_line && !is_after_line && letters.next().is_none()
}

/// The type of a whole pod, without its status.
///
/// # Panics
/// Never: the table is compiled in, and a test reads it.
pub fn pod() -> &'static Type {
    type_named("Pod").expect("the table has the type of a pod; a test reads it")
}

/// The type of this name, such as `PodSpec`; `None` = no pod contains one.
pub fn type_named(name: &str) -> Option<&'static Type> {
    TABLE.get(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_that_the_table_names_is_in_it() {
        for of in TABLE.values() {
            for field in of.fields() {
                let named = matches!(field.shape, Shape::Of(_) | Shape::ListOf(_));
                let place = format!("{}.{}: {:?}", of.name, field.name, field.shape);
                assert_eq!(named, field.shape.inner().is_some(), "{place}");
                match field.merge {
                    ListMerge::Atomic => {}
                    ListMerge::Set => assert!(matches!(field.shape, Shape::Texts), "{place}"),
                    ListMerge::By { key, .. } => {
                        let Shape::ListOf(element) = field.shape else {
                            panic!("{place}");
                        };
                        assert!(type_named(element).unwrap().field(key).is_some(), "{place}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_line_is_only_where_kubernetes_has_a_capital() {
        for (name, key) in [
            ("node_selector", "nodeSelector"),
            ("host_ipc", "hostIPC"),
            ("set_hostname_as_fqdn", "setHostnameAsFQDN"),
            ("target_ww_ns", "targetWWNs"),
            ("target_wwns", "targetWWNs"),
        ] {
            assert!(is_snake_case_of(name, key), "{name}");
        }
        for (name, key) in [
            ("n_ame", "name"),
            ("name_", "name"),
            ("_name", "name"),
            ("name", "name"),
            ("node__selector", "nodeSelector"),
            ("Node_Selector", "nodeSelector"),
            ("node_selectors", "nodeSelector"),
            ("node_select", "nodeSelector"),
            ("nodesel_ector", "nodeSelector"),
        ] {
            assert!(!is_snake_case_of(name, key), "{name}");
        }
    }

    #[test]
    fn lists_merge_by_the_keys_that_kubernetes_documents() {
        let merges = |of: &str, key: &str| type_named(of).unwrap().field(key).unwrap().merge;
        let by = |key, one_source| ListMerge::By { key, one_source };
        for (of, key, expected) in [
            ("PodSpec", "containers", by("name", false)),
            ("PodSpec", "volumes", by("name", true)),
            (
                "PodSpec",
                "topologySpreadConstraints",
                by("topologyKey", false),
            ),
            ("PodSpec", "tolerations", ListMerge::Atomic),
            ("Container", "ports", by("containerPort", false)),
            ("Container", "volumeMounts", by("mountPath", false)),
            ("Container", "args", ListMerge::Atomic),
            ("ResourceRequirements", "claims", ListMerge::Atomic),
            ("ObjectMeta", "finalizers", ListMerge::Set),
        ] {
            assert_eq!(merges(of, key), expected, "{of}.{key}");
        }
        assert_eq!(
            pod().field_spelled("spec").unwrap().shape,
            Shape::Of("PodSpec")
        );
        let spec = type_named("PodSpec").unwrap();
        for (given, expected) in [
            ("nodeSelector", Some("nodeSelector")),
            ("node_selector", Some("nodeSelector")),
            ("host_ipc", Some("hostIPC")),
            ("set_hostname_as_f_q_d_n", Some("setHostnameAsFQDN")),
            ("nodeselector", None),
            ("node", None),
        ] {
            assert_eq!(
                spec.field_spelled(given).map(|it| it.name),
                expected,
                "{given}"
            );
        }
    }
}
