//! What a configuration may hold, as data, and the walks over it: check, merge, fill in defaults, hide secrets, describe.
//!
//! Keeping the keys as data instead of code is what allows hints ("did you mean"), environment names for every leaf,
//! one place for each default and each rule of merging, and the JSON schemas and tables of keys that are made from it.

mod check;
mod declare;
mod json;
mod keys;
mod merge;
mod pod_merge;
mod walk;

use serde_json::Value;

use crate::yaml::Node;

pub(crate) use check::{
    Findings, LayerErrors, Misplacement, Segment, Stage, Walk, check_document, closest, push_key,
    snake,
};
pub(crate) use declare::{about, keys};
pub(crate) use json::{document_schema, duration_schema, template_schema};
pub(crate) use keys::keys as keys_of;
pub use keys::{Key, Requirement, Status, env_name};
pub(crate) use merge::{Merge, merge_documents};
pub(crate) use pod_merge::without_directives;
#[cfg(test)]
pub(crate) use walk::assert_defaults_are_json;
pub(crate) use walk::{
    Leaf, default_value, fill_defaults, is_as_absent, leaves, leaves_of, mask, mask_all,
};

/// What a value may be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Bool,
    /// An integer within these bounds, both included.
    Int(i64, i64),
    /// A number above the bound.
    Above(f64),
    /// A number of at least the bound.
    AtLeast(f64),
    /// Any text, the empty one included.
    Text,
    /// A text that is one of these words.
    Choice(&'static [&'static str]),
    /// A duration as text with units, such as `1h30m`.
    Duration,
    /// Anything, kept as it is.
    Any,
    /// A map with any content, kept as it is.
    AnyMap,
    List(&'static Kind),
    /// A map with free keys.
    Map(&'static Kind),
    Section(&'static Section),
    Union(&'static Union),
    /// A shape with a rule of its own.
    Special(&'static Special),
}

/// A shape with a rule of its own.
#[derive(Debug)]
pub(crate) struct Special {
    /// What is accepted, for users: `size in bytes, or text like "4 GiB"`.
    pub(crate) shows: &'static str,
    /// Whether it is text, which a variable or flag gives as it is.
    pub(crate) is_text: bool,
    /// What it is made of in its normal form, when that has keys.
    pub(crate) inner: Option<Kind>,
    /// Name of its definition in JSON schemas, when it occurs more than once.
    pub(crate) name: Option<&'static str>,
    /// What is accepted as JSON schema. Checks that it cannot express are left out.
    pub(crate) json: fn() -> Value,
    /// Checks the value and brings it into its normal form.
    pub(crate) check: fn(&mut Walk, &mut Node),
}

/// Text with a rule of its own.
pub(crate) const fn text_by(
    shows: &'static str,
    json: fn() -> Value,
    check: fn(&mut Walk, &mut Node),
) -> Special {
    Special {
        shows,
        is_text: true,
        inner: None,
        name: None,
        json,
        check,
    }
}

/// A shape that is not only text.
pub(crate) const fn special(
    shows: &'static str,
    json: fn() -> Value,
    check: fn(&mut Walk, &mut Node),
) -> Special {
    Special {
        shows,
        is_text: false,
        inner: None,
        name: None,
        json,
        check,
    }
}

impl Special {
    /// The same with a definition of its own in JSON schemas.
    pub(crate) const fn named(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    /// The same, made of this.
    pub(crate) const fn of(mut self, inner: Kind) -> Self {
        self.inner = Some(inner);
        self
    }
}

impl Kind {
    fn holds_secrets(self) -> bool {
        let any = |fields: &[Field]| fields.iter().any(Field::holds_secrets);
        match self {
            Self::Section(section) => any(section.fields),
            Self::Union(union) => {
                any(union.common) || union.variants.iter().any(|variant| any(variant.fields))
            }
            Self::List(item) | Self::Map(item) => item.holds_secrets(),
            Self::Special(special) => special.inner.is_some_and(Self::holds_secrets),
            _ => false,
        }
    }
}

/// Old or alternative names: `(old, new, whether to warn)`.
pub(crate) type Aliases = &'static [(&'static str, &'static str, bool)];

/// A key of an older form, which is translated before the check.
#[derive(Debug)]
pub(crate) struct OldKey {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// JSON schema of its value.
    pub(crate) json: &'static str,
}

/// A map with known keys.
#[derive(Debug)]
pub(crate) struct Section {
    /// Name of its definition in JSON schemas, when it occurs more than once.
    pub(crate) name: Option<&'static str>,
    pub(crate) fields: &'static [Field],
    pub(crate) aliases: Aliases,
    pub(crate) old: &'static [OldKey],
    /// Rules between fields; runs when the fields themselves have been looked at.
    pub(crate) check: Option<fn(&mut Findings, &Node)>,
}

/// A map whose `tag` key chooses further keys.
#[derive(Debug)]
pub(crate) struct Union {
    /// Name of its definition in JSON schemas, when it occurs more than once.
    pub(crate) name: Option<&'static str>,
    pub(crate) tag: &'static str,
    pub(crate) tag_about: &'static str,
    /// What an absent tag means once everything is merged; `None` = the tag is needed.
    pub(crate) default_tag: Option<&'static str>,
    pub(crate) common: &'static [Field],
    pub(crate) variants: &'static [Variant],
    pub(crate) check: Option<fn(&mut Findings, &Node)>,
    pub(crate) aliases: Aliases,
    pub(crate) old: &'static [OldKey],
    /// Keys that belong together: a stronger layer that gives one of the first two brings all of them.
    pub(crate) blocks: &'static [Block],
}

/// Keys of a union that travel together when layers are merged.
#[derive(Debug)]
pub(crate) struct Block {
    /// A stronger layer with one of these …
    pub(crate) when: &'static [&'static str],
    /// … hides all of these in the weaker ones.
    pub(crate) hides: &'static [&'static str],
}

/// A union without rules of its own.
pub(crate) const fn union(
    tag: &'static str,
    tag_about: &'static str,
    common: &'static [Field],
    variants: &'static [Variant],
) -> Union {
    Union {
        name: None,
        tag,
        tag_about,
        default_tag: None,
        common,
        variants,
        check: None,
        aliases: &[],
        old: &[],
        blocks: &[],
    }
}

impl Union {
    pub(crate) const fn named(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    pub(crate) const fn default_tag(mut self, tag: &'static str) -> Self {
        self.default_tag = Some(tag);
        self
    }

    pub(crate) const fn aliases(mut self, aliases: Aliases) -> Self {
        self.aliases = aliases;
        self
    }

    pub(crate) const fn old(mut self, old: &'static [OldKey]) -> Self {
        self.old = old;
        self
    }

    pub(crate) const fn blocks(mut self, blocks: &'static [Block]) -> Self {
        self.blocks = blocks;
        self
    }

    pub(crate) const fn check(mut self, check: fn(&mut Findings, &Node)) -> Self {
        self.check = Some(check);
        self
    }

    /// The variant of this name.
    pub(crate) fn variant(&self, name: &str) -> Option<&'static Variant> {
        self.variants.iter().find(|variant| variant.name == name)
    }
}

#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [Field],
    pub(crate) note: Note,
    /// Whether any other key is taken as well.
    pub(crate) open: bool,
}

/// When a field must be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Optional,
    /// Wherever its section is given.
    Always,
    /// Once all layers are merged.
    Finally,
}

/// What a user who gives a field is warned of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    Nothing,
    /// Kept, but nothing acts on it yet.
    Kept,
    /// Accepted for old files, with this explanation.
    Warn(&'static str),
    /// Removed: refused in new documents with this advice, read in stored ones. For variants only.
    Retired(&'static str),
}

/// A key of a section.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// What it means, as a sentence without its full stop.
    pub(crate) about: &'static str,
    pub(crate) kind: Kind,
    pub(crate) need: Need,
    /// JSON; filled in where the key is missing.
    pub(crate) default: Option<&'static str>,
    /// JSON; applied where the value is used, since a missing key has a meaning of its own until then.
    pub(crate) built_in: Option<&'static str>,
    pub(crate) secret: bool,
    pub(crate) note: Note,
    pub(crate) merge: Merge,
    /// Whether a null takes away what a weaker layer gives.
    pub(crate) clears: bool,
    /// JSON schema of an older shape that is translated before the check.
    pub(crate) also: Option<&'static str>,
}

/// An optional key without default.
pub(crate) const fn field(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field {
        name,
        about,
        kind,
        need: Need::Optional,
        default: None,
        built_in: None,
        secret: false,
        note: Note::Nothing,
        merge: Merge::Deep,
        clears: false,
        also: None,
    }
}

impl Field {
    /// Whether it is a secret, or has one somewhere below it.
    pub(crate) fn holds_secrets(&self) -> bool {
        self.secret || self.kind.holds_secrets()
    }

    pub(crate) const fn or(mut self, json: &'static str) -> Self {
        self.default = Some(json);
        self
    }

    pub(crate) const fn built_in(mut self, json: &'static str) -> Self {
        self.built_in = Some(json);
        self
    }

    pub(crate) const fn always(mut self) -> Self {
        self.need = Need::Always;
        self
    }

    pub(crate) const fn finally(mut self) -> Self {
        self.need = Need::Finally;
        self
    }

    pub(crate) const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    pub(crate) const fn kept(mut self) -> Self {
        self.note = Note::Kept;
        self
    }

    pub(crate) const fn warn(mut self, why: &'static str) -> Self {
        self.note = Note::Warn(why);
        self
    }

    pub(crate) const fn merged(mut self, merge: Merge) -> Self {
        self.merge = merge;
        self
    }

    pub(crate) const fn also(mut self, json: &'static str) -> Self {
        self.also = Some(json);
        self
    }

    pub(crate) const fn clears(mut self) -> Self {
        self.clears = true;
        self
    }
}

pub(crate) const fn section(fields: &'static [Field]) -> Section {
    Section {
        name: None,
        fields,
        aliases: &[],
        old: &[],
        check: None,
    }
}

impl Section {
    pub(crate) const fn named(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    pub(crate) const fn aliases(mut self, aliases: Aliases) -> Self {
        self.aliases = aliases;
        self
    }

    pub(crate) const fn old(mut self, old: &'static [OldKey]) -> Self {
        self.old = old;
        self
    }

    pub(crate) const fn check(mut self, check: fn(&mut Findings, &Node)) -> Self {
        self.check = Some(check);
        self
    }

    /// The field of this name.
    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

pub(crate) const fn variant(name: &'static str, fields: &'static [Field]) -> Variant {
    Variant {
        name,
        fields,
        note: Note::Nothing,
        open: false,
    }
}

impl Variant {
    pub(crate) const fn kept(mut self) -> Self {
        self.note = Note::Kept;
        self
    }

    pub(crate) const fn retired(mut self, advice: &'static str) -> Self {
        self.note = Note::Retired(advice);
        self
    }

    pub(crate) const fn open(mut self) -> Self {
        self.open = true;
        self
    }

    pub(crate) fn is_retired(&self) -> bool {
        matches!(self.note, Note::Retired(_))
    }
}

/// An integer from 0 on.
pub(crate) const NATURAL: Kind = Kind::Int(0, i64::MAX);
/// An integer from 1 on.
pub(crate) const POSITIVE: Kind = Kind::Int(1, i64::MAX);
/// What fits in 32 bits.
pub(crate) const NATURAL_32: Kind = Kind::Int(0, u32::MAX as i64);
/// What fits in 32 bits, from 1 on.
pub(crate) const POSITIVE_32: Kind = Kind::Int(1, u32::MAX as i64);
/// A TCP port, 0 included where it means "choose".
pub(crate) const PORT: Kind = Kind::Int(0, 65_535);
/// A TCP port that can be listened on, 1 to 65535.
pub(crate) const REAL_PORT: Kind = Kind::Int(1, 65_535);

/// What a kind of document consists of, and how its old forms are read.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) root: &'static Section,
    /// Keys that users misplace: `(where they put it, where it belongs)`. A key without a dot means itself
    /// wherever it is found; one that begins with a dot only at the top.
    pub(crate) places: &'static [(&'static str, &'static str)],
    /// The key that asks for slots, for advice.
    pub(crate) slots_key: &'static str,
    /// Rewrites older forms of one layer before it is checked.
    pub(crate) translate: fn(&mut Findings, &mut Node),
}
