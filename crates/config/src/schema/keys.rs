//! Every key of a document as data: for tables, tests, flags and variables.

use serde_json::Value;

use super::{Document, Field, Kind, Need, Note, OldKey, Section, leaves};

/// A key of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// Dotted; `[]` for the elements of a list and `*` for a key that users choose: `resource_pools[].pool_name`.
    pub path: String,
    /// The values of the tag that this key goes with (`type s3`); empty = always.
    pub goes_with: String,
    /// What it may be, for users.
    pub kind: String,
    /// Its default; `None` = none, the key is simply not set.
    pub default: Option<Value>,
    /// When it must be given.
    pub required: Requirement,
    /// Whether it is hidden wherever the configuration is shown.
    pub secret: bool,
    /// What is done about it.
    pub status: Status,
    /// What it means, as a sentence without its full stop.
    pub about: &'static str,
    /// How a stronger layer's value is merged over a weaker one's.
    pub merge: &'static str,
    /// The variable that sets it, for documents that are read from the environment too.
    pub variable: Option<String>,
    /// The flag that sets it, likewise.
    pub flag: Option<String>,
}

/// When a key must be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// It may be left out.
    No,
    /// Wherever the section around it is given.
    InSection,
    /// Some layer must give it.
    ByAnyLayer,
}

/// What is done about a key that is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The key has the effect that its text describes.
    Acted,
    /// It is checked and kept, and nothing acts on it yet.
    NotYet,
    /// It is an older form, with what is done about it.
    Old(&'static str),
}

/// The environment variable that sets a key of a process's configuration: `db.ssl_mode` is set by `DET_DB_SSL_MODE`.
pub fn env_name(path: &str) -> String {
    let letter = |letter| match letter {
        '.' | '-' => '_',
        letter => letter.to_ascii_uppercase(),
    };
    "DET_".chars().chain(path.chars().map(letter)).collect()
}

/// The flag that sets a key: `db.ssl_mode` is `--db-ssl-mode`.
fn flag_name(path: &str) -> String {
    format!(
        "--{}",
        path.trim_start_matches('_').replace(['.', '_'], "-")
    )
}

/// Every key, in the order of the schema. `settable` = whether keys have variables and flags.
pub(crate) fn keys(document: &'static Document, settable: bool) -> Vec<Key> {
    let mut walk = Walk {
        keys: Vec::new(),
        settable: if settable {
            let leaves = leaves(document.root);
            leaves.into_iter().map(|leaf| leaf.path).collect()
        } else {
            Vec::new()
        },
    };
    walk.section(document.root, "", "", Status::Acted);
    walk.keys
}

struct Walk {
    keys: Vec<Key>,
    settable: Vec<String>,
}

impl Walk {
    fn section(&mut self, section: &'static Section, prefix: &str, with: &str, status: Status) {
        self.fields(section.fields, prefix, with, status);
        self.old(section.old, prefix, with);
    }

    fn fields(&mut self, fields: &'static [Field], prefix: &str, with: &str, around: Status) {
        for field in fields {
            let path = join(prefix, field.name);
            let status = match (field.note, around) {
                (Note::Warn(why), _) => Status::Old(why),
                (Note::Kept, Status::Acted) => Status::NotYet,
                _ => around,
            };
            let settable = self.settable.contains(&path);
            self.keys.push(Key {
                path: path.clone(),
                goes_with: with.to_owned(),
                kind: shows(field.kind),
                default: field.default.or(field.built_in).map(super::default_value),
                required: match field.need {
                    Need::Optional => Requirement::No,
                    Need::Always => Requirement::InSection,
                    Need::Finally => Requirement::ByAnyLayer,
                },
                secret: field.secret,
                status,
                about: field.about,
                merge: if field.clears {
                    "replaces; null takes the weaker away"
                } else {
                    field.merge.shows()
                },
                variable: settable.then(|| env_name(&path)),
                flag: settable.then(|| flag_name(&path)),
            });
            self.inside(field.kind, &path, with, status);
        }
    }

    fn inside(&mut self, kind: Kind, path: &str, with: &str, status: Status) {
        match kind {
            Kind::Section(section) => self.section(section, path, with, status),
            Kind::List(item) => self.inside(*item, &format!("{path}[]"), with, status),
            Kind::Map(item) => self.inside(*item, &format!("{path}.*"), with, status),
            Kind::Union(union) => {
                let current = || union.variants.iter().filter(|v| !v.is_retired());
                let names: Vec<&str> = current().map(|variant| variant.name).collect();
                let tag = join(path, union.tag);
                let settable = self.settable.contains(&tag);
                self.keys.push(Key {
                    path: tag.clone(),
                    goes_with: with.to_owned(),
                    kind: words(&names),
                    default: union.default_tag.map(Value::from),
                    required: match union.default_tag {
                        Some(_) => Requirement::No,
                        None => Requirement::ByAnyLayer,
                    },
                    secret: false,
                    status,
                    about: union.tag_about,
                    merge: "decides which other keys merge",
                    variable: settable.then(|| env_name(&tag)),
                    flag: settable.then(|| flag_name(&tag)),
                });
                self.fields(union.common, path, with, status);
                for variant in current() {
                    let status = match (variant.note, status) {
                        (Note::Kept, Status::Acted) => Status::NotYet,
                        (_, status) => status,
                    };
                    let with = format!("{} {}", union.tag, variant.name);
                    self.fields(variant.fields, path, &with, status);
                }
                self.old(union.old, path, with);
            }
            Kind::Special(special) => {
                if let Some(inner) = special.inner {
                    self.inside(inner, path, with, status);
                }
            }
            _ => {}
        }
    }

    fn old(&mut self, old: &'static [OldKey], prefix: &str, with: &str) {
        for old in old {
            self.keys.push(Key {
                path: join(prefix, old.name),
                goes_with: with.to_owned(),
                kind: "older form".into(),
                default: None,
                required: Requirement::No,
                secret: false,
                status: Status::Old("is translated"),
                about: old.about,
                merge: "",
                variable: None,
                flag: None,
            });
        }
    }
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}.{name}")
    }
}

fn words(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

/// What a value may be, for users.
fn shows(kind: Kind) -> String {
    match kind {
        Kind::Bool => "boolean".into(),
        Kind::Int(min, max) => match (min, max) {
            (min, max) if max >= i64::from(u32::MAX) => format!("integer, at least {min}"),
            (min, max) => format!("integer, {min} to {max}"),
        },
        Kind::Above(bound) => format!("number above {bound}"),
        Kind::AtLeast(bound) => format!("number, at least {bound}"),
        Kind::Text => "string".into(),
        Kind::Choice(choice) => words(choice),
        Kind::Duration => "duration".into(),
        Kind::Any => "anything".into(),
        Kind::AnyMap | Kind::Section(_) => "map".into(),
        Kind::List(item) => format!("list of {}", plural(*item)),
        Kind::Map(item) => format!("map of {}", plural(*item)),
        Kind::Union(union) => format!("map by `{}`", union.tag),
        Kind::Special(special) => special.shows.into(),
    }
}

fn plural(kind: Kind) -> String {
    match kind {
        Kind::Text => "strings".into(),
        Kind::Section(_) | Kind::AnyMap | Kind::Union(_) => "maps".into(),
        Kind::Int(..) => "integers".into(),
        other => shows(other),
    }
}
