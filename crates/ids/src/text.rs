//! Texts of others, as parts of a sentence or a table.

/// A text in one line: with a blank in place of each control character, the ends of lines among them.
pub fn one_line(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_other_controls_become_blanks() {
        assert_eq!(one_line("a\nb\u{1b}[1m\tc\r\n"), "a b [1m c  ");
    }
}
