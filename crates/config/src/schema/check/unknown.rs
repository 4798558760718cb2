//! Keys that are not known: what they most likely meant, and where they belong.

use super::{Checker, Segment, push_key, quoted};
use crate::errors::{MAX_TOLD, edit_distance};
use crate::schema::{Union, leaves};
use crate::yaml::Node;

impl Checker {
    /// Refuses keys that are not in `names`; `of` names the variant they would have to belong to, and `elsewhere` says
    /// where a key belongs instead.
    pub(super) fn unknown_keys(
        &mut self,
        node: &Node,
        names: &[&'static str],
        of: &str,
        elsewhere: impl Fn(&str) -> Option<String>,
    ) {
        for (key, member) in node.members().into_iter().flatten() {
            if names.contains(&key.as_str()) {
                continue;
            }
            // A text that is none of ours has thousands of them, and only the first mistakes are told.
            if self.errors.len() >= MAX_TOLD {
                let message = format!("is not a known key{of}");
                self.error_in(key, member.at.as_ref(), message);
                continue;
            }
            let hint = elsewhere(key).or_else(|| {
                let meant = self.meaning(key, names)?;
                if let Some(place) = meant.place(key) {
                    self.belongs_at(key, &place);
                    self.meant.push(place);
                }
                if let Meant::Sibling(sibling) = meant {
                    self.meant.push(self.path_to(sibling));
                }
                Some(meant.hint(key, &self.path()))
            });
            match hint {
                Some(hint) => {
                    let message = format!("is not a known key{of}");
                    self.error_hint_in(key, member.at.as_ref(), message, hint);
                }
                None => {
                    let message = format!("is not a known key{of}; known are {}", quoted(names));
                    self.error_in(key, member.at.as_ref(), message);
                }
            }
        }
    }

    /// Where a key at the current path that is not known there belongs, by what people are known to misplace.
    pub(crate) fn known_place(&self, key: &str) -> Option<&'static str> {
        let here = self.path_to(key);
        let places = self.document.places;
        places
            .iter()
            .find(|(from, _)| match from.strip_prefix('.') {
                Some(top) => top == here,
                None => *from == here || (!from.contains('.') && *from == key),
            })
            .map(|(_, to)| *to)
            .filter(|to| *to != here)
    }

    fn path_to(&self, key: &str) -> String {
        let mut here = self.path();
        push_key(&mut here, key);
        here
    }

    /// Where the key would stand with less indentation, as far as no list is on the way.
    fn outer_paths(&self, key: &str) -> Vec<String> {
        let mut outer = Vec::new();
        let mut prefix = String::new();
        for segment in &self.path {
            let mut place = prefix.clone();
            push_key(&mut place, key);
            outer.push(place);
            match segment {
                Segment::Key(step) => push_key(&mut prefix, step),
                Segment::Index(_) | Segment::Named(_) => return outer,
            }
        }
        outer
    }

    /// What an unknown key may have meant.
    fn meaning(&self, key: &str, siblings: &[&'static str]) -> Option<Meant> {
        if let Some(place) = self.known_place(key) {
            return Some(Meant::Place(place.to_owned()));
        }
        let plain = snake(key);
        if let Some(sibling) = closest(&plain, siblings.iter().copied()) {
            return Some(Meant::Sibling(sibling));
        }
        let here = self.path_to(key);
        let known = leaves(self.document.root);
        if self.path.is_empty() && key.contains('.') && known.iter().any(|leaf| leaf.path == key) {
            return Some(Meant::Flat);
        }
        let places: Vec<String> = known
            .into_iter()
            .map(|leaf| leaf.path)
            .filter(|path| path.rsplit('.').next() == Some(&*plain) && *path != here)
            .collect();
        let outer = self.outer_paths(key);
        if places.len() <= 3
            && let Some(place) = places.iter().find(|place| outer.contains(place))
        {
            return Some(Meant::Outside(place.clone()));
        }
        match &places[..] {
            [place] if self.path.is_empty() => Some(Meant::Place(place.clone())),
            // A leaf name that occurs all over the schema says nothing.
            [_, ..] if places.len() <= 3 => Some(Meant::OneOf(places)),
            _ => None,
        }
    }
}

/// What an unknown key may have meant.
enum Meant {
    /// This key beside it.
    Sibling(&'static str),
    /// A key elsewhere, by its dotted path.
    Place(String),
    /// The key of this name further out, by its dotted path.
    Outside(String),
    /// One of several elsewhere.
    OneOf(Vec<String>),
    /// The dotted path that it is.
    Flat,
}

impl Meant {
    /// Where its value belongs, when that is certain enough to be shown; a flat key belongs where it says.
    fn place(&self, key: &str) -> Option<String> {
        match self {
            Self::Place(place) | Self::Outside(place) => Some(place.clone()),
            Self::Flat => Some(key.to_owned()),
            Self::Sibling(_) | Self::OneOf(_) => None,
        }
    }

    /// `around` is the path of the map that the key was found in.
    fn hint(&self, key: &str, around: &str) -> String {
        match self {
            Self::Sibling(sibling) => format!("did you mean \"{sibling}\"?"),
            Self::Place(place) => format!("did you mean \"{place}\"?"),
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

/// The candidate nearest to `word`, at most two edits away and not a wholly different word.
pub(crate) fn closest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .filter_map(|candidate| Some((edit_distance(word, candidate, 2)?, candidate)))
        .filter(|(distance, candidate)| *distance < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}
