//! How messages quote what was written.

use crate::secrets::found_text;

/// Characters of a value that an error quotes.
pub(crate) const MAX_QUOTED: usize = 60;

/// A text for quoting, without its end when it is long, and without what looks secret.
pub(crate) fn cut(text: &str) -> String {
    let text = &*found_text(text);
    let short: String = text.chars().take(MAX_QUOTED).collect();
    if short.len() < text.len() {
        short + "…"
    } else {
        short
    }
}

/// The words in quotes, with commas.
pub(crate) fn quoted(words: &[&str]) -> String {
    quoted_list(words.iter().copied())
}

/// The words in quotes, with commas, as [`quoted`].
pub(crate) fn quoted_list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.map(|word| format!("\"{word}\"")).collect();
    words.join(", ")
}
