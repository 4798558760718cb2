//! Numbers of things in sentences.

/// A number with its noun, in the plural where it belongs: `1 slot`, `4 slots`. `noun` is one that takes an `s`.
pub fn quantity(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_is_singular() {
        assert_eq!(quantity(0, "slot"), "0 slots");
        assert_eq!(quantity(1, "slot"), "1 slot");
        assert_eq!(quantity(2, "slot"), "2 slots");
    }
}
