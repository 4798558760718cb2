//! Flags and variables that reach into lists and free maps: `resource_pools[gpu].scheduler.type` as a flag,
//! `DET_RESOURCE_POOLS__GPU__SCHEDULER_TYPE` as a variable. They change what weaker layers gave, so they are laid over the
//! merged tree.

use super::is_single_value;
use crate::errors::edit_distance;
use crate::origin::Position;
use crate::schema::{Field, Kind, Leaf, Section, default_value, env_name, leaves, leaves_of};
use crate::yaml::{Node, Tree};

/// As many elements of a list are named when none fits.
const NAMED_ELEMENTS: usize = 10;

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// A member of a map.
    Key(String),
    /// An element by its number, from 0.
    At(usize),
    /// An element by its name.
    Named(String),
    /// A number as it was written, which may be a name: that of an element wins.
    NumberOrName(usize, String),
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathError {
    /// As far as it was followed, with the step that failed.
    pub(super) path: String,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl PathError {
    fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
            hint: None,
        }
    }

    fn hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }
}

/// Reads `a.b[0].c[name].d`. What is quoted in brackets is a name; a number without quotes is one if an element has it,
/// else a position.
pub(super) fn steps(path: &str) -> Result<Vec<Step>, PathError> {
    let wrong = |message: &str| PathError::new(path, message);
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let quote = inner.chars().next().filter(|c| matches!(c, '"' | '\''));
            let closing = quote.map_or_else(|| "]".to_owned(), |quote| format!("{quote}]"));
            let inner = quote.map_or(inner, |_| &inner[1..]);
            let Some((element, after)) = inner.split_once(closing.as_str()) else {
                return Err(wrong("has a \"[\" without its \"]\""));
            };
            if element.is_empty() {
                return Err(wrong("has empty brackets; give a number or a name"));
            }
            steps.push(match element.parse() {
                Ok(number) if quote.is_none() => Step::NumberOrName(number, element.to_owned()),
                _ => Step::Named(element.to_owned()),
            });
            rest = after;
            if !(rest.is_empty() || rest.starts_with(['.', '['])) {
                return Err(wrong("needs a \".\" between \"]\" and the next key"));
            }
            rest = rest.strip_prefix('.').unwrap_or(rest);
            if rest.is_empty() && path.ends_with('.') {
                return Err(wrong("ends with a \".\""));
            }
            continue;
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (key, after) = rest.split_at(end);
        if key.is_empty() || after == "." {
            return Err(wrong("has an empty key"));
        }
        steps.push(Step::Key(key.to_owned()));
        rest = after.strip_prefix('.').unwrap_or(after);
    }
    Ok(steps)
}

/// The place in a tree that a path leads to, and what may be at it. Maps are made on the way, elements of lists are
/// not; a list that no layer gave is the default one. `at` is written where something is made.
pub(super) fn reach<'n>(
    root: &'n mut Node,
    section: &'static Section,
    steps: &[Step],
    at: &Position,
) -> Result<(&'n mut Node, Kind), PathError> {
    let mut node = root;
    let mut place = WalkPosition {
        kind: Kind::Section(section),
        default: None,
        path: String::new(),
    };
    for step in steps {
        node = match step {
            Step::Key(key) => place.member(node, key, at)?,
            Step::At(_) | Step::Named(_) | Step::NumberOrName(..) => place.element(node, step)?,
        };
    }
    Ok((node, place.kind))
}

/// The position of a walk along a path.
struct WalkPosition {
    kind: Kind,
    /// JSON text of the key's default; `None` = it has none.
    default: Option<&'static str>,
    path: String,
}

impl WalkPosition {
    fn member<'n>(
        &mut self,
        node: &'n mut Node,
        key: &str,
        at: &Position,
    ) -> Result<&'n mut Node, PathError> {
        if item_of(self.kind).is_some() {
            let message = format!(
                "is a list; name the element, {0}[0] or {0}[NAME]",
                self.path
            );
            return Err(PathError::new(&self.path, message));
        }
        let above = std::mem::take(&mut self.path);
        self.path = match above.as_str() {
            "" => key.to_owned(),
            above => format!("{above}.{key}"),
        };
        let Some((kind, default)) = member_of(self.kind, key) else {
            let near = leaves_of(self.kind)
                .into_iter()
                .find(|leaf| edit_distance(key, &leaf.path, 2).is_some())
                .map(|leaf| format!("did you mean \"{}\"?", joined(&above, &leaf.path)));
            return Err(
                PathError::new(&self.path, "is not a key that a flag or variable can set")
                    .hint(near),
            );
        };
        (self.kind, self.default) = (kind, default);
        if node.members().is_none() {
            node.tree = Tree::Map(std::collections::BTreeMap::new());
            node.at = Some(at.clone());
        }
        let members = node
            .members_mut()
            .expect("it was made a map where it was none");
        Ok(members.entry(key.to_owned()).or_insert_with(|| Node {
            tree: Tree::Null,
            at: Some(at.clone()),
        }))
    }

    fn element<'n>(&mut self, node: &'n mut Node, step: &Step) -> Result<&'n mut Node, PathError> {
        let item = item_of(self.kind)
            .ok_or_else(|| PathError::new(&self.path, "is no list, so it has no elements"))?;
        fill_list(node, self.default);
        let kind = node.kind();
        let items = match &mut node.tree {
            Tree::List(items) => items,
            Tree::Null => {
                let message = "is not given, so it has no elements; give the list whole";
                return Err(PathError::new(&self.path, message));
            }
            _ => {
                let message = format!("is {kind}, so it has no elements");
                return Err(PathError::new(&self.path, message));
            }
        };
        let list = std::mem::take(&mut self.path);
        let named = |name: &str| items.iter().position(|item| name_of(item) == Some(name));
        let index = match step {
            Step::At(index) => {
                self.path = format!("{list}[{index}]");
                *index
            }
            Step::Named(name) => {
                self.path = format!("{list}[{name}]");
                named(name).unwrap_or(items.len())
            }
            Step::NumberOrName(number, text) => {
                self.path = format!("{list}[{text}]");
                let named = named(text);
                if let (Some(other), Some(at)) =
                    (named.filter(|at| at != number), items.get(*number))
                {
                    return Err(can_be_both(&list, (*number, at), (other, text)));
                }
                named.unwrap_or(*number)
            }
            Step::Key(_) => unreachable!("keys are members"),
        };
        if index >= items.len() {
            let what = match step {
                Step::At(_) | Step::NumberOrName(..) => "there is no such element",
                _ => "no element has this name",
            };
            let near = items.iter().filter_map(name_of).find(|known| {
                matches!(step, Step::Named(name) if edit_distance(name, known, 2).is_some())
            });
            let near = near.map(|near| format!("did you mean \"{near}\"?"));
            let message = format!("{what}; {}", what_there_is(items));
            return Err(PathError::new(&self.path, message).hint(near));
        }
        (self.kind, self.default) = (item, None);
        Ok(&mut items[index])
    }
}

/// A number that is the place of one element and the name of another.
fn can_be_both(
    list: &str,
    (number, at): (usize, &Node),
    (other, name): (usize, &str),
) -> PathError {
    let message =
        format!("can be element {number} and the one named \"{name}\", which is element {other}");
    let by_name = format!("write {list}[\"{name}\"] for the name");
    let hint = match name_of(at) {
        Some(at) => format!("{by_name}, {list}[\"{at}\"] for element {number}"),
        None => by_name,
    };
    PathError::new(format!("{list}[{name}]"), message).hint(Some(hint))
}

fn joined(above: &str, path: &str) -> String {
    if above.is_empty() {
        path.to_owned()
    } else {
        format!("{above}.{path}")
    }
}

/// A list that no layer gave becomes its default.
fn fill_list(node: &mut Node, default: Option<&'static str>) {
    if let (Tree::Null, Some(default)) = (&node.tree, default) {
        *node = Node::from(&default_value(default));
    }
}

/// What elements of a list are; `None` = it is no list.
fn item_of(kind: Kind) -> Option<Kind> {
    match kind {
        Kind::List(item) => Some(*item),
        Kind::Special(special) => special.inner.and_then(item_of),
        _ => None,
    }
}

/// The kind of a key's value, and its default.
fn member_of(kind: Kind, key: &str) -> Option<(Kind, Option<&'static str>)> {
    let among = |fields: &'static [Field], aliases: crate::schema::Aliases| {
        let alias = aliases.iter().find(|(old, _, _)| *old == key);
        let name = alias.map_or(key, |(_, new, _)| new);
        let found = fields.iter().find(|field| field.name == name);
        found.map(|field| (field.kind, field.default))
    };
    match kind {
        Kind::Section(section) => among(section.fields, section.aliases),
        Kind::Union(union) if union.tag == key => Some((Kind::Text, None)),
        Kind::Union(union) => among(union.common, union.aliases).or_else(|| {
            let mut variants = union.variants.iter();
            variants.find_map(|variant| among(variant.fields, &[]))
        }),
        Kind::Map(item) => Some((*item, None)),
        Kind::AnyMap | Kind::Any => Some((Kind::Any, None)),
        Kind::Special(special) => member_of(special.inner?, key),
        _ => None,
    }
}

/// The name of an element of a list.
fn name_of(item: &Node) -> Option<&str> {
    ["pool_name", "name", "cluster_name"]
        .into_iter()
        .find_map(|key| item.get(key).and_then(Node::text))
}

fn what_there_is(items: &[Node]) -> String {
    if items.is_empty() {
        return "the list is empty, give it whole".to_owned();
    }
    let mut shown: Vec<String> = items
        .iter()
        .enumerate()
        .take(NAMED_ELEMENTS)
        .map(|(index, item)| match name_of(item) {
            Some(name) => format!("{index} \"{name}\""),
            None => index.to_string(),
        })
        .collect();
    if items.len() > NAMED_ELEMENTS {
        shown.push(format!("{} more", items.len() - NAMED_ELEMENTS));
    }
    format!("there are: {}", shown.join(", "))
}

/// A name as it is in a variable.
fn spelled(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect()
}

/// The path that a variable `DET_LIST__ELEMENT__KEY` means in this tree: the element by its number, or by its name in
/// capitals with `_` for what is neither letter nor digit. `None` = it names no list.
pub(super) fn steps_of_variable(
    name: &str,
    section: &'static Section,
    root: &Node,
) -> Option<Result<Vec<Step>, PathError>> {
    let rest = name.strip_prefix("DET_")?;
    below(rest, &leaves(section), Some(root), "")
}

fn below(
    rest: &str,
    known: &[Leaf],
    node: Option<&Node>,
    above: &str,
) -> Option<Result<Vec<Step>, PathError>> {
    // The longest name of a list that it begins with.
    let (leaf, after) = known
        .iter()
        .filter(|leaf| item_of(leaf.kind).is_some())
        .filter_map(|leaf| {
            let after = rest.strip_prefix(&env_name(&leaf.path)["DET_".len()..])?;
            Some((leaf, after.strip_prefix("__")?))
        })
        .min_by_key(|(_, after)| after.len())?;
    let mut steps: Vec<Step> = leaf.path.split('.').map(|k| Step::Key(k.into())).collect();
    let path = joined(above, &leaf.path);
    let mut list = node
        .and_then(|node| node.find(&leaf.path))
        .cloned()
        .unwrap_or_else(|| Node::new(Tree::Null));
    fill_list(&mut list, leaf.default);
    let items = match &list.tree {
        Tree::List(items) => items.as_slice(),
        _ => &[],
    };
    Some(element_of(after, items, &path).and_then(|(index, after)| {
        steps.push(Step::At(index));
        let path = format!("{path}[{index}]");
        if after.is_empty() {
            return Ok(steps);
        }
        let item = item_of(leaf.kind).expect("only lists were looked at");
        let inner = leaves_of(item);
        if let Some(key) = inner
            .iter()
            .find(|inner| env_name(&inner.path)["DET_".len()..] == *after)
        {
            steps.extend(key.path.split('.').map(|k| Step::Key(k.into())));
            return Ok(steps);
        }
        match below(after, &inner, items.get(index), &path) {
            Some(more) => {
                steps.extend(more?);
                Ok(steps)
            }
            None => {
                let near = inner.iter().find(|inner| {
                    edit_distance(after, &env_name(&inner.path)["DET_".len()..], 2).is_some()
                });
                let near = near.map(|near| format!("did you mean \"{}\"?", near.path));
                Err(PathError::new(&path, format!("\"{after}\" is no key of it")).hint(near))
            }
        }
    }))
}

/// The element that a variable goes on with, and what follows it.
fn element_of<'r>(
    rest: &'r str,
    items: &[Node],
    path: &str,
) -> Result<(usize, &'r str), PathError> {
    let after = |token: &str| match rest.strip_prefix(token)? {
        "" => Some(""),
        after => after.strip_prefix("__").filter(|after| !after.is_empty()),
    };
    let mut meant: Vec<(usize, &str)> = items
        .iter()
        .enumerate()
        .flat_map(|(i, item)| {
            let named = name_of(item).and_then(|name| after(&spelled(name)));
            let numbered = after(&i.to_string());
            [named, numbered].map(|after| Some((i, after?)))
        })
        .flatten()
        .collect();
    meant.dedup();
    match meant.as_slice() {
        [one] => Ok(*one),
        several => {
            let token = rest.split("__").next().unwrap_or(rest);
            let (what, hint) = if several.is_empty() {
                ("no element has this number or name", None)
            } else {
                let elements = several.iter().map(|(index, _)| {
                    let element = match name_of(&items[*index]) {
                        Some(name) => format!("[\"{name}\"]"),
                        None => format!("[{index}]"),
                    };
                    format!("--set '{path}{element}.KEY=VALUE' is element {index}")
                });
                let elements: Vec<String> = elements.collect();
                let hint = format!(
                    "no variable can name an element, a file and --set can: {}",
                    elements.join(", ")
                );
                ("several elements can be meant", Some(hint))
            };
            Err(PathError::new(
                format!("{path}[{token}]"),
                format!("{what}; {}", what_there_is(items)),
            )
            .hint(hint))
        }
    }
}

/// The variable whose value the file holds that `NAME_FILE` names, for keys within elements of lists. Which elements there
/// are does not matter, only that the key is one and holds a single value.
pub(super) fn variable_of_file(name: &str, section: &'static Section) -> Option<String> {
    let rest = name.strip_prefix("DET_")?;
    let value = rest.strip_suffix("_FILE")?;
    let known = leaves(section);
    // A key of its own that ends like that is read as that key.
    (is_within_a_list(value, &known) && !is_within_a_list(rest, &known))
        .then(|| format!("DET_{value}"))
}

/// Whether this is `LIST__ELEMENT__KEY` with a key that holds a single value, whatever the element.
fn is_within_a_list(rest: &str, known: &[Leaf]) -> bool {
    let lists = known.iter().filter_map(|leaf| {
        let after = rest.strip_prefix(&env_name(&leaf.path)["DET_".len()..])?;
        Some((item_of(leaf.kind)?, after.strip_prefix("__")?))
    });
    lists.into_iter().any(|(item, after)| {
        let inner = leaves_of(item);
        after.match_indices("__").any(|(at, _)| {
            let key = &after[at + 2..];
            let is_key = |leaf: &Leaf| {
                is_single_value(leaf.kind) && env_name(&leaf.path)["DET_".len()..] == *key
            };
            at > 0 && (inner.iter().any(is_key) || is_within_a_list(key, &inner))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_with_numbers_names_and_quotes() {
        let key = |key: &str| Step::Key(key.to_owned());
        assert_eq!(
            steps("a.b[0].c[x.y-z][\"7\"]").unwrap(),
            [
                key("a"),
                key("b"),
                Step::NumberOrName(0, "0".into()),
                key("c"),
                Step::Named("x.y-z".into()),
                Step::Named("7".into()),
            ]
        );
        for wrong in ["a[", "a[]", "a..b", "a[0]b", "a.", "a[0].", ".a"] {
            assert!(steps(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn variables_that_name_files_reach_into_lists() {
        let of_file = |name: &str| {
            let found = crate::layers::file_variables(
                &crate::master::schema::MASTER,
                std::iter::once(&name.to_owned()),
            );
            found.into_iter().next().map(|(file, value)| {
                assert_eq!(file, name);
                value
            })
        };
        for name in [
            "DET_DB_PASSWORD",
            "DET_RESOURCE_POOLS__GPU__DESCRIPTION",
            "DET_RESOURCE_POOLS__0__TASK_CONTAINER_DEFAULTS_REGISTRY_AUTH_PASSWORD",
            "DET_RESOURCE_POOLS__A__B__DESCRIPTION",
            "DET_RESOURCE_POOLS__GPU__TASK_CONTAINER_DEFAULTS_BIND_MOUNTS__0__HOST_PATH",
        ] {
            let file = format!("{name}_FILE");
            assert_eq!(of_file(&file).as_deref(), Some(name), "{file}");
        }
        for name in [
            "DET_DB_PASSWORD",
            "DET_RESOURCE_POOLS_FILE",
            "DET_RESOURCE_POOLS__GPU_FILE",
            "DET_RESOURCE_POOLS__GPU__SCHEDULER_FILE",
            "DET_RESOURCE_POOLS__GPU__TASK_CONTAINER_DEFAULTS_BIND_MOUNTS_FILE",
            "DET_RESOURCE_POOLS____DESCRIPTION",
            "DET_RESOURCE_POOLS__GPU__NOTHING_FILE",
            "DET_CONFIG_FILE",
            "DET__FILE",
            "_FILE",
        ] {
            assert_eq!(of_file(name), None, "{name}");
        }
    }
}
