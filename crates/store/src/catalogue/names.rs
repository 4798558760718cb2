//! Texts that many entries have, by number.

use std::collections::HashMap;

/// A text that repeats, by number.
pub(super) type Name = u32;

/// Texts that repeat, each kept once.
#[derive(Debug, Default)]
pub(super) struct Names {
    numbers: HashMap<String, Name>,
    pub(super) texts: Vec<String>,
}

impl Names {
    pub(super) fn number(&mut self, text: &str) -> Name {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = Name::try_from(self.texts.len()).unwrap_or(Name::MAX);
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    pub(super) fn find(&self, text: &str) -> Option<Name> {
        self.numbers.get(text).copied()
    }

    pub(super) fn text(&self, number: Name) -> &str {
        usize::try_from(number)
            .ok()
            .and_then(|n| self.texts.get(n))
            .map_or("", String::as_str)
    }
}
