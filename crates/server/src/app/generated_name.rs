//! Names for work whose owner gives it none.

/// A name for work of this kind: `Experiment (adjective-colour-animal)`.
pub(crate) fn generated(kind: &str) -> String {
    const FIRST: [&str; 16] = [
        "brave", "calm", "clever", "eager", "fair", "fond", "gentle", "glad", "keen", "kind",
        "lively", "merry", "neat", "proud", "quick", "wise",
    ];
    const SECOND: [&str; 16] = [
        "amber", "azure", "bronze", "coral", "crimson", "emerald", "golden", "indigo", "ivory",
        "jade", "lilac", "ochre", "pearl", "ruby", "silver", "teal",
    ];
    const THIRD: [&str; 16] = [
        "badger", "crane", "dolphin", "falcon", "fox", "heron", "ibex", "lynx", "marten", "otter",
        "owl", "panda", "raven", "seal", "tern", "wren",
    ];
    let bits: [u8; 3] = rand::random();
    let pick = |words: [&'static str; 16], byte: u8| words[usize::from(byte) % words.len()];
    format!(
        "{kind} ({}-{}-{})",
        pick(FIRST, bits[0]),
        pick(SECOND, bits[1]),
        pick(THIRD, bits[2])
    )
}
