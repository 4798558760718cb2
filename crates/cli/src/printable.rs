//! Text of others that a terminal shows and does not obey.
//!
//! Names, descriptions, labels, messages and log lines come from every user and every program of a cluster. Terminals take
//! control characters in them for commands: to change the title, to clear the screen, to write to the clipboard (ECMA-48, and
//! xterm's "Operating System Commands"). [`crate::output`] passes everything through here that is not for programs.

use std::fmt::Write as _;

/// The text with its control characters, those of C1 (U+0080 to U+009F) included, written as `\x1b`; tabs and line ends stay.
pub(crate) fn printable(text: &str) -> String {
    shown(text, |c| matches!(c, '\t' | '\n'), Colours::Shown)
}

/// The same of a log: what moves the cursor back in its line stays as well, for progress bars, and so do the colours and
/// styles of text.
pub(crate) fn printable_log(text: &str) -> String {
    let kept = |c| matches!(c, '\t' | '\n' | '\r' | '\u{8}');
    shown(text, kept, Colours::Kept)
}

/// The same as [`printable`], without colours and carriage returns, for lines of a log that are parts of a sentence.
pub(crate) fn without_colours(text: &str) -> String {
    let text = text.replace('\r', "");
    shown(&text, |c| matches!(c, '\t' | '\n'), Colours::Removed)
}

/// JSON with the control characters that need no escape in it written as one: U+007F and those of C1. JSON has them in
/// strings only.
pub(crate) fn printable_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && !c.is_ascii_whitespace() {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// What is made of sequences that set colours and styles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colours {
    Shown,
    Kept,
    Removed,
}

fn shown(text: &str, kept: impl Fn(char) -> bool, colours: Colours) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let sequence = match colours {
            Colours::Shown => None,
            Colours::Kept | Colours::Removed => colour_sequence(rest),
        };
        if let Some(sequence) = sequence {
            if colours == Colours::Kept {
                out.push_str(sequence);
            }
            rest = &rest[sequence.len()..];
            continue;
        }
        if c.is_control() && !kept(c) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{:02x}", u32::from(c));
        } else {
            out.push(c);
        }
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// The sequence that sets colours and styles at the beginning of a text ("Select Graphic Rendition" of ECMA-48). With
/// other parameters than numbers it would be a private one, with other effects.
fn colour_sequence(text: &str) -> Option<&str> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && !matches!(c, ';' | ':'))?;
    parameters[end..].starts_with('m').then(|| {
        let length = "\u{1b}[".len() + end + "m".len();
        &text[..length]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_terminals_are_shown() {
        for (given, printed) in [
            ("a\u{1b}]0;title\u{7}b", "a\\x1b]0;title\\x07b"),
            ("\u{1b}[2J\u{1b}[31mred", "\\x1b[2J\\x1b[31mred"),
            ("\u{1b}]52;c;cm0=\u{1b}\\", "\\x1b]52;c;cm0=\\x1b\\"),
            // The same commands in one character of C1.
            ("\u{9b}2J\u{9d}0;x\u{9c}", "\\x9b2J\\x9d0;x\\x9c"),
            (
                "over\rwritten\u{8}\u{7f}\0",
                "over\\x0dwritten\\x08\\x7f\\x00",
            ),
            ("a\tb\nc é 漢 🦀 \\x1b", "a\tb\nc é 漢 🦀 \\x1b"),
        ] {
            assert_eq!(printable(given), printed);
            assert_eq!(printable(printed), printed);
        }
    }

    #[test]
    fn logs_keep_colours_and_progress_bars() {
        let kept = "\u{1b}[1;38;5;196mred\u{1b}[0m\u{1b}[m\u{1b}[4:3m 10%|#  |\r 20%|## |\u{8}\u{8}\tend\n";
        assert_eq!(printable_log(kept), kept);
        for (given, printed) in [
            (
                "\u{1b}]0;title\u{7}\u{1b}[31mred",
                "\\x1b]0;title\\x07\u{1b}[31mred",
            ),
            (
                "\u{1b}[2J\u{1b}[>4;2m\u{1b}[?1049h",
                "\\x1b[2J\\x1b[>4;2m\\x1b[?1049h",
            ),
            ("\u{1b}[3\u{1b}[1m", "\\x1b[3\u{1b}[1m"),
            ("\u{9b}31m", "\\x9b31m"),
            ("cut off \u{1b}[31", "cut off \\x1b[31"),
            ("\u{1b}", "\\x1b"),
        ] {
            assert_eq!(printable_log(given), printed);
        }
    }

    #[test]
    fn parts_of_sentences_have_no_colours() {
        assert_eq!(
            without_colours("\u{1b}[1;31mValueError\u{1b}[0m: \u{1b}[2Jboom"),
            "ValueError: \\x1b[2Jboom"
        );
    }

    #[test]
    fn json_means_the_same() {
        let value = serde_json::json!({"name\u{9d}": "\u{1b}]0;x\u{7}\u{7f}\u{9b}2J\n é"});
        let text = printable_json(&format!("{value:#}"));
        assert!(
            !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }
}
