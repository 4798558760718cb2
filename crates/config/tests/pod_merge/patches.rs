//! Patches by chance, of a pod that there is: keys changed, taken away and added, with every directive.

use det_podspec::{ListMerge, Shape, Type, type_named};
use serde_json::{Map, Value, json};

use crate::generate::{self, Chance};

type Members = Map<String, Value>;

/// A patch of this template.
pub(crate) fn of(chance: &mut Chance, template: &Value) -> Value {
    let mut patch = Map::new();
    for (key, of) in [("metadata", "ObjectMeta"), ("spec", "PodSpec")] {
        let empty = Map::new();
        let members = template[key].as_object().unwrap_or(&empty);
        let changed = changes(chance, members, type_named(of).unwrap());
        patch.insert(key.into(), changed.into());
    }
    patch.into()
}

/// Keys of maps that are never taken away, so that most of what results is a pod.
fn is_needed(of: &Type, key: &str) -> bool {
    let always = [
        "containers",
        "volumes",
        "name",
        "image",
        "mountPath",
        "containerPort",
    ];
    always.contains(&key)
        || !generate::optional_keys(of.name).contains(&key)
        || (of.name == "PodDNSConfig" && key == "nameservers")
}

/// Whether chance makes values of this key.
fn is_made(of: &Type, key: &str) -> bool {
    generate::optional_keys(of.name).contains(&key)
        || matches!(
            (of.name, key),
            ("PodSpec", "containers" | "volumes")
                | ("Container", "image")
                | ("VolumeMount", "name")
                | ("HostPathVolumeSource", "path")
        )
}

/// What changes some members of a map.
fn changes(chance: &mut Chance, members: &Members, of: &Type) -> Members {
    let mut patch = Map::new();
    for (key, value) in members {
        if !chance.one_in(3) {
            continue;
        }
        if chance.one_in(5) && !is_needed(of, key) {
            patch.insert(key.clone(), Value::Null);
        } else {
            change(chance, of, key, value, &mut patch);
        }
    }
    for key in generate::optional_keys(of.name) {
        if !members.contains_key(*key) && chance.one_in(9) {
            patch.insert((*key).into(), generate::member(chance, of.name, key));
        }
    }
    patch
}

/// A change of a member that there is.
fn change(chance: &mut Chance, of: &Type, key: &str, value: &Value, patch: &mut Members) {
    let Some(field) = of.field(key) else { return };
    match (field.shape, value) {
        (Shape::TextMap | Shape::QuantityMap, Value::Object(map)) => {
            let mut change = generate::member(chance, of.name, key);
            for (name, _) in map {
                if chance.one_in(4) {
                    change[name] = Value::Null;
                }
            }
            match chance.below(6) {
                0 => change = json!({"$patch": "delete"}),
                1 => {
                    change = generate::member(chance, of.name, key);
                    change["$patch"] = "replace".into();
                }
                _ => {}
            }
            patch.insert(key.into(), change);
        }
        (Shape::Of(inner), Value::Object(map)) => {
            let inner = type_named(inner).unwrap();
            let can_replace = is_made(of, key);
            let change = match chance.below(8) {
                0 if can_replace && !is_needed(of, key) => json!({"$patch": "delete"}),
                1 if can_replace => {
                    let mut whole = generate::member(chance, of.name, key);
                    whole["$patch"] = "replace".into();
                    whole
                }
                2 if inner.name == "SELinuxOptions" || inner.name == "PodSecurityContext" => {
                    retained(chance, map, inner)
                }
                _ => changes(chance, map, inner).into(),
            };
            patch.insert(key.into(), change);
        }
        (Shape::ListOf(_) | Shape::Texts | Shape::Integers, Value::Array(items)) => {
            change_list(chance, of, key, items, patch);
        }
        _ if is_made(of, key) => {
            patch.insert(key.into(), generate::member(chance, of.name, key));
        }
        _ => {}
    }
}

/// A change that keeps only what it changes and some of the rest.
fn retained(chance: &mut Chance, members: &Members, of: &Type) -> Value {
    let mut change = changes(chance, members, of);
    let mut keys: Vec<String> = Vec::new();
    for (key, value) in &change {
        if !key.starts_with('$') && !value.is_null() {
            keys.push(key.clone());
        }
    }
    for key in members.keys() {
        if !keys.contains(key) && chance.one_in(2) {
            keys.push(key.clone());
        }
    }
    change.insert("$retainKeys".into(), keys.into());
    change.into()
}

fn change_list(chance: &mut Chance, of: &Type, key: &str, items: &[Value], patch: &mut Members) {
    let Some(field) = of.field(key) else { return };
    match field.merge {
        ListMerge::Atomic if is_made(of, key) => {
            let scalars = !items.is_empty() && items.iter().all(Value::is_string);
            if scalars && chance.one_in(3) {
                let gone = json!([items[chance.below(items.len())]]);
                patch.insert(format!("$deleteFromPrimitiveList/{key}"), gone);
            } else {
                patch.insert(key.into(), generate::member(chance, of.name, key));
            }
        }
        ListMerge::Atomic => {}
        ListMerge::Set => {
            let added = generate::member(chance, of.name, key);
            let mut gone = items.to_vec();
            gone.retain(|item| {
                chance.one_in(2) && added.as_array().is_none_or(|it| !it.contains(item))
            });
            if !gone.is_empty() {
                patch.insert(format!("$deleteFromPrimitiveList/{key}"), gone.into());
            }
            patch.insert(key.into(), added);
        }
        ListMerge::By { key: by, .. } => {
            let list = KeyedList { of, key, by };
            let replaced = chance.one_in(7).then(|| list.replaced(chance));
            // A server takes no order of a list that is replaced.
            let has_order = replaced.is_none() && chance.one_in(4);
            let elements = replaced.unwrap_or_else(|| list.elements(chance, items));
            if has_order {
                patch.insert(
                    format!("$setElementOrder/{key}"),
                    list.order(chance, &elements, items),
                );
            }
            // A list without elements is put in order alone.
            if !elements.is_empty() {
                patch.insert(key.into(), elements.into());
            }
        }
    }
}

/// A list that merges by a key.
struct KeyedList<'a> {
    of: &'a Type,
    key: &'a str,
    by: &'static str,
}

impl KeyedList<'_> {
    fn inner(&self) -> &'static Type {
        self.of.field(self.key).unwrap().shape.inner().unwrap()
    }

    /// A list in place of the weaker one.
    fn replaced(&self, chance: &mut Chance) -> Vec<Value> {
        let list = generate::member(chance, self.of.name, self.key);
        let mut elements = list.as_array().unwrap().clone();
        let at = chance.below(elements.len() + 1);
        elements.insert(at, json!({"$patch": "replace"}));
        elements
    }

    fn elements(&self, chance: &mut Chance, items: &[Value]) -> Vec<Value> {
        let mut elements = Vec::new();
        for item in items {
            if !chance.one_in(2) {
                continue;
            }
            let id = &item[self.by];
            let keeps = ["v0", "v1", "v2", "main", "first"]
                .iter()
                .any(|name| id == name);
            let element = match item.as_object() {
                _ if chance.one_in(4) && !keeps => json!({self.by: id, "$patch": "delete"}),
                Some(members) => self.changed(chance, members),
                None => continue,
            };
            let at = chance.below(elements.len() + 1);
            elements.insert(at, element);
        }
        for _ in 0..chance.below(3) {
            let new = generate::object(chance, self.inner().name);
            let is_there = |other: &Value| other[self.by] == new[self.by];
            if !items.iter().any(is_there) && !elements.iter().any(is_there) {
                let at = chance.below(elements.len() + 1);
                elements.insert(at, new);
            }
        }
        elements
    }

    fn changed(&self, chance: &mut Chance, members: &Members) -> Value {
        let mut changed = if self.inner().name == "Volume" && chance.one_in(2) {
            generate::source(chance)
        } else {
            changes(chance, members, self.inner())
        };
        changed.insert(self.by.into(), members[self.by].clone());
        changed.into()
    }

    /// An order that has the elements of the patch in their order, and others.
    fn order(&self, chance: &mut Chance, elements: &[Value], items: &[Value]) -> Value {
        let only = |item: &Value| json!({self.by: item[self.by]});
        let named = |item: &&Value| item.get(self.by).is_some() && item.get("$patch").is_none();
        let mut order: Vec<Value> = elements.iter().filter(named).map(only).collect();
        for item in items {
            let gone = elements.iter().any(|it| it[self.by] == item[self.by]);
            if !gone && chance.one_in(2) {
                let at = chance.below(order.len() + 1);
                order.insert(at, only(item));
            }
        }
        order.into()
    }
}

/// The patch for the server: where an element names one of several sources, as volumes do, with the directive by which
/// `kubectl apply` takes the other sources away. Ours does without being asked to.
pub(crate) fn with_kept_keys(patch: &Value) -> Value {
    let mut patch = patch.clone();
    let spec = type_named("PodSpec").unwrap();
    for field in spec.fields() {
        let ListMerge::By {
            key,
            one_source: true,
        } = field.merge
        else {
            continue;
        };
        let items = patch["spec"]
            .get_mut(field.name)
            .and_then(Value::as_array_mut);
        for item in items.into_iter().flatten().filter_map(Value::as_object_mut) {
            let keys: Vec<String> = item.keys().cloned().collect();
            let names_source = keys.iter().any(|it| it != key);
            if !item.contains_key("$patch") && names_source {
                item.insert("$retainKeys".into(), keys.into());
            }
        }
    }
    patch
}
