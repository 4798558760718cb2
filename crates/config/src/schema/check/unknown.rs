//! Keys that are not known: what they most likely meant, and where they belong.

use super::Walk;
use super::findings::DocumentPosition;
use crate::errors::{ErrorCode, MAX_REPORTED, edit_distance};
use crate::quote::quoted;
use crate::schema::{Document, Field, Kind, Note, Union, keys_of, leaves};
use crate::yaml::{Node, Tree};

impl Walk<'_> {
    /// Refuses keys that are not in `names`, and checks what is below those that most likely mean another one. `fields`
    /// gives the field of a name, where it is certain; `of` names the variant that keys would have to belong to, and
    /// `elsewhere` returns where a key belongs instead.
    pub(super) fn unknown_keys(
        &mut self,
        node: &Node,
        names: &[&'static str],
        fields: impl Fn(&str) -> Option<&'static Field>,
        of: &str,
        elsewhere: impl Fn(&str) -> Option<String>,
    ) {
        let of_old_form = |name: &&str| match fields(name).map(|field| field.note) {
            Some(Note::Warn(why)) => Some(why),
            _ => None,
        };
        let (old, live): (Vec<&'static str>, Vec<&'static str>) =
            names.iter().partition(|name| of_old_form(name).is_some());
        for (key, member) in node.members().into_iter().flatten() {
            if names.contains(&key.as_str()) {
                continue;
            }
            let at = member.at.as_ref();
            let text = format!("is not a known key{of}");
            // A text that is none of ours has thousands of them, and only the first errors are reported.
            if self.findings.errors.len() >= MAX_REPORTED {
                let message = ErrorCode::UnknownKey.message(text);
                self.findings.error_in(key, at, message);
                continue;
            }
            let hint = elsewhere(key).or_else(|| {
                let meant = Guess {
                    document: self.findings.document,
                    place: &self.findings.place,
                }
                .meaning(key, member, (&live, &old))?;
                self.check_as_meant(key, member, &meant, node, &fields);
                if let Some(place) = meant.place(key) {
                    self.findings.belongs_at(key, &place);
                    self.findings.meant.push(place);
                }
                if let Suggestion::Sibling(sibling) = meant {
                    let path = self.findings.place.path_to(sibling);
                    self.findings.meant.push(path);
                }
                let hint = meant.hint(key, &self.findings.place.path());
                Some(match &meant {
                    Suggestion::Sibling(sibling) => match of_old_form(sibling) {
                        Some(why) => format!("{hint} It {why}"),
                        None => hint,
                    },
                    _ => hint,
                })
            });
            let text = match &hint {
                Some(_) => text,
                None => format!("{text}; known are {}", quoted(names)),
            };
            let message = ErrorCode::UnknownKey.message(text);
            match hint {
                Some(hint) => self.findings.error_hint_in(key, at, message, hint),
                None => self.findings.error_in(key, at, message),
            }
        }
    }

    /// Checks the value of an unknown key as that of the key that it means, unless that one is given as well.
    fn check_as_meant(
        &mut self,
        key: &str,
        member: &Node,
        meant: &Suggestion,
        around: &Node,
        fields: &impl Fn(&str) -> Option<&'static Field>,
    ) {
        let (kind, secret) = match meant {
            Suggestion::Sibling(sibling) if around.get(sibling).is_none() => {
                match fields(sibling) {
                    Some(field) => (field.kind, field.secret),
                    None => return,
                }
            }
            Suggestion::DocumentPosition(path) | Suggestion::Outside(path) => {
                match &fields_at(Kind::Section(self.findings.document.root), path)[..] {
                    [field] => (field.kind, field.holds_secrets()),
                    _ => return,
                }
            }
            _ => return,
        };
        let misplaced = self.findings.misplaced.len();
        // What is found is about the value as it is written, so the value is left as it is.
        let mut value = member.clone();
        self.member(key, &mut value, kind, secret);
        // The section itself is in the wrong place, which moving its members does not mend.
        self.findings.misplaced.truncate(misplaced);
    }
}

/// Guesses what an unknown key at a place meant.
struct Guess<'a> {
    document: &'static Document,
    place: &'a DocumentPosition,
}

impl Guess<'_> {
    /// What an unknown key may have meant, of the keys that its section has: first of those of today, then of those of older
    /// forms.
    fn meaning(
        &self,
        key: &str,
        member: &Node,
        (live, old): (&[&'static str], &[&'static str]),
    ) -> Option<Suggestion> {
        if let Some(place) = self.place.known_in(self.document, key) {
            return Some(Suggestion::DocumentPosition(place.to_owned()));
        }
        let plain = snake(key);
        let near = |names: &[&'static str]| closest(&plain, names.iter().copied());
        if let Some(sibling) = near(live).or_else(|| near(old)) {
            return Some(Suggestion::Sibling(sibling));
        }
        let here = self.place.path_to(key);
        let known = leaves(self.document.root);
        if self.place.steps.is_empty()
            && key.contains('.')
            && known.iter().any(|leaf| leaf.path == key)
        {
            return Some(Suggestion::Flat);
        }
        let places: Vec<String> = known
            .into_iter()
            .filter(|leaf| may_be(member, leaf.kind))
            .map(|leaf| leaf.path)
            .filter(|path| path.rsplit('.').next() == Some(&*plain) && *path != here)
            .collect();
        let outer = self.place.outer_paths(key);
        if places.len() <= 3
            && let Some(place) = places.iter().find(|place| outer.contains(place))
        {
            return Some(Suggestion::Outside(place.clone()));
        }
        match &places[..] {
            [place] if self.place.steps.is_empty() => {
                Some(Suggestion::DocumentPosition(place.clone()))
            }
            // A leaf name that occurs all over the schema is no evidence.
            [_, ..] if places.len() <= 3 => Some(Suggestion::OneOf(places)),
            [] => self.meaning_within_lists(&plain, live),
            _ => None,
        }
    }

    /// As [`Self::meaning`], of keys that only elements of lists have, or else a sibling whose last word it is.
    fn meaning_within_lists(&self, plain: &str, siblings: &[&'static str]) -> Option<Suggestion> {
        let here = self.place.path_to(plain);
        let mut places: Vec<String> = keys_of(self.document, false)
            .into_iter()
            .map(|key| key.path)
            .filter(|path| {
                path.contains("[].")
                    && path.rsplit('.').next() == Some(plain)
                    && path.replace("[]", "") != here
            })
            .collect();
        places.dedup();
        if (1..=3).contains(&places.len()) {
            return Some(Suggestion::OneOf(places));
        }
        let mut ending = siblings.iter().filter(|sibling| {
            sibling
                .strip_suffix(plain)
                .is_some_and(|before| before.ends_with('_'))
        });
        match (ending.next(), ending.next()) {
            (Some(sibling), None) if plain.len() >= 3 => Some(Suggestion::Sibling(sibling)),
            _ => None,
        }
    }
}

/// Whether a value has the shape of a kind, as far as that shows without looking into it.
fn may_be(node: &Node, kind: Kind) -> bool {
    match (&node.tree, kind) {
        (Tree::Null, _) => true,
        (Tree::Map(_), kind) => !matches!(
            kind,
            Kind::Bool
                | Kind::Int(..)
                | Kind::Above(_)
                | Kind::AtLeast(_)
                | Kind::Text
                | Kind::Choice(_)
                | Kind::Duration
                | Kind::List(_)
        ),
        (Tree::List(_), kind) => matches!(kind, Kind::List(_) | Kind::Any | Kind::Special(_)),
        (_, kind) => !matches!(
            kind,
            Kind::List(_) | Kind::Map(_) | Kind::AnyMap | Kind::Section(_) | Kind::Union(_)
        ),
    }
}

/// The fields at a dotted path; several where variants of a union have one each.
fn fields_at(kind: Kind, path: &str) -> Vec<&'static Field> {
    let (name, rest) = match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    };
    let here: Vec<&'static Field> = match kind {
        Kind::Section(section) => section.field(name).into_iter().collect(),
        Kind::Union(union) => union
            .common
            .iter()
            .chain(union.variants.iter().flat_map(|variant| variant.fields))
            .filter(|field| field.name == name)
            .collect(),
        Kind::Special(special) => {
            return special
                .inner
                .map_or_else(Vec::new, |inner| fields_at(inner, path));
        }
        _ => Vec::new(),
    };
    match rest {
        None => here,
        Some(rest) => here
            .into_iter()
            .flat_map(|field| fields_at(field.kind, rest))
            .collect(),
    }
}

/// What an unknown key may have meant.
enum Suggestion {
    /// This key in the section of the given one.
    Sibling(&'static str),
    /// A key elsewhere, by its dotted path.
    DocumentPosition(String),
    /// The key of this name further out, by its dotted path.
    Outside(String),
    /// There are keys of this name at several other places: their dotted paths.
    OneOf(Vec<String>),
    /// The dotted path that it is.
    Flat,
}

impl Suggestion {
    /// Where its value belongs, when that is certain enough to be shown; a flat key belongs where its name points.
    fn place(&self, key: &str) -> Option<String> {
        match self {
            Self::DocumentPosition(place) | Self::Outside(place) => Some(place.clone()),
            Self::Flat => Some(key.to_owned()),
            Self::Sibling(_) | Self::OneOf(_) => None,
        }
    }

    /// `around` is the path of the map that the key was found in.
    fn hint(&self, key: &str, around: &str) -> String {
        match self {
            Self::Sibling(sibling) => format!("did you mean \"{sibling}\"?"),
            Self::DocumentPosition(place) => format!("did you mean \"{place}\"?"),
            Self::Outside(place) => match around.rsplit_once('.') {
                // Where the map around it is itself further in, the place is further than a level away.
                Some((parent, _)) if *place != format!("{parent}.{key}") => {
                    format!("it belongs further out, as \"{place}\"")
                }
                _ => format!("it belongs one level up, beside \"{around}\" and not inside it"),
            },
            Self::OneOf(places) => format!("did you mean {}?", quoted_or(places)),
            Self::Flat => {
                let nested = key.replace('.', ": {");
                let ends = "}".repeat(key.matches('.').count());
                format!("nest the keys: {nested}: …{ends}")
            }
        }
    }
}

/// Which other variants of a union have this key.
pub(super) fn other_variant(union: &'static Union, key: &str) -> Option<String> {
    let having: Vec<String> = union
        .variants
        .iter()
        .filter(|variant| !variant.is_retired())
        .filter(|variant| variant.fields.iter().any(|field| field.name == key))
        .map(|variant| variant.name.to_owned())
        .collect();
    (!having.is_empty()).then(|| format!("it belongs to {} {}", union.tag, quoted_or(&having)))
}

fn quoted_or(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    words.join(" or ")
}

/// A key as this configuration writes its keys: `slotsPerTrial` and `slots-per-trial` are `slots_per_trial`.
pub(crate) fn snake(key: &str) -> String {
    let mut out = String::new();
    let mut before_is_lower = false;
    for c in key.chars() {
        if c.is_ascii_uppercase() && before_is_lower {
            out.push('_');
        }
        before_is_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        out.push(if c == '-' {
            '_'
        } else {
            c.to_ascii_lowercase()
        });
    }
    out
}

/// The candidate nearest to `word`, at most two edits away, of a long word three, of a short one one or the same letters
/// in another order, and not a wholly different word.
pub(crate) fn closest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let limit = if word.len() >= 10 { 3 } else { 2 };
    candidates
        .filter_map(|candidate| Some((edit_distance(word, candidate, limit)?, candidate)))
        .filter(|(distance, candidate)| *distance < candidate.chars().count())
        .filter(|(distance, candidate)| {
            *distance < 2 || word.len() > 4 || sorted(word) == sorted(candidate)
        })
        .min()
        .map(|(_, candidate)| candidate)
}

fn sorted(word: &str) -> Vec<char> {
    let mut letters: Vec<char> = word.chars().collect();
    letters.sort_unstable();
    letters
}
