//! Patterns of checkpoint files, as the command line documents them: those of Python's `glob` with `recursive`.
//!
//! `*` and `?` match within one name, `[abc]` and `[!abc]` one character of a set, and `**` as a whole part any number
//! of directories. A name that begins with a point is only matched by a pattern that spells the point.

/// A checked pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<String>,
}

impl Pattern {
    /// Reads a pattern; `Err` says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.trim().is_empty() {
            return Err("is empty");
        }
        if text.starts_with('/') {
            return Err("is absolute; it must be relative to the checkpoint");
        }
        if text.contains('\0') {
            return Err("has a character that is not allowed");
        }
        let parts: Vec<String> = text
            .trim()
            .split('/')
            .filter(|p| !p.is_empty() && *p != ".")
            .map(str::to_owned)
            .collect();
        if parts.iter().any(|p| p == "..") {
            return Err("leads out of the checkpoint with \"..\"");
        }
        if parts.is_empty() {
            return Err("names nothing");
        }
        Ok(Self { parts })
    }

    /// Whether it means everything: then the whole directory goes.
    pub fn is_everything(&self) -> bool {
        self.parts == ["**", "*"] || self.parts == ["**"]
    }

    /// Whether a path below the checkpoint (its names in order) is meant.
    pub fn matches(&self, path: &[&str]) -> bool {
        path_matches(&self.parts, path)
    }
}

fn path_matches(parts: &[String], path: &[&str]) -> bool {
    let Some((part, later)) = parts.split_first() else {
        return path.is_empty();
    };
    if part == "**" {
        // Any number of visible directories; at the end of a pattern also files.
        return path_matches(later, path)
            || path
                .split_first()
                .is_some_and(|(name, rest)| !name.starts_with('.') && path_matches(parts, rest));
    }
    path.split_first()
        .is_some_and(|(name, rest)| name_matches(part, name) && path_matches(later, rest))
}

fn name_matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    // The place to go back to when a star took too little: linear memory, quadratic time at worst.
    let (mut p, mut n, mut back) = (0, 0, None);
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                back = Some((p, n));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => match set(&pattern[p..], name[n]) {
                Set::Unclosed => (name[n] == '[').then_some(1),
                Set::Holds(length) => Some(length),
                Set::Lacks => None,
            },
            Some(c) => (*c == name[n]).then_some(1),
            None => None,
        };
        match (step, back) {
            (Some(length), _) => {
                p += length;
                n += 1;
            }
            (None, Some((star, from))) => {
                back = Some((star, from + 1));
                p = star + 1;
                n = from + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// What a bracket in a pattern makes of a character.
enum Set {
    /// The bracket is never closed and stands for itself.
    Unclosed,
    /// The set holds the character; the set's length in the pattern.
    Holds(usize),
    /// The set does not hold the character.
    Lacks,
}

/// Looks a character up in the set that `pattern` begins with.
fn set(pattern: &[char], c: char) -> Set {
    let negated = pattern.get(1) == Some(&'!');
    let start = if negated { 2 } else { 1 };
    // A closing bracket right at the beginning stands for itself.
    let Some(end) = (start + 1..pattern.len()).find(|i| pattern[*i] == ']') else {
        return Set::Unclosed;
    };
    let members = &pattern[start..end];
    let mut found = false;
    let mut i = 0;
    while i < members.len() {
        if i + 2 < members.len() && members[i + 1] == '-' {
            found |= (members[i]..=members[i + 2]).contains(&c);
            i += 3;
        } else {
            found |= members[i] == c;
            i += 1;
        }
    }
    if found == negated {
        Set::Lacks
    } else {
        Set::Holds(end + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').collect();
        Pattern::parse(pattern).unwrap().matches(&names)
    }

    #[test]
    fn patterns_match_as_documented() {
        for (pattern, path, expected) in [
            ("*.pt", "model.pt", true),
            ("*.pt", "sub/model.pt", false),
            ("**/*.pt", "model.pt", true),
            ("**/*.pt", "a/b/model.pt", true),
            ("**/*", "a/b", true),
            ("sub/*", "sub/x", true),
            ("sub/*", "sub", false),
            ("sub", "sub", true),
            ("m?del.pt", "model.pt", true),
            ("[lm]odel.pt", "model.pt", true),
            ("[!lm]odel.pt", "model.pt", false),
            ("part-[0-9]", "part-7", true),
            ("part-[0-9]", "part-x", false),
            ("[", "[", true),
            ("*", ".hidden", false),
            (".*", ".hidden", true),
            ("**/*", ".git/config", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("./x", "x", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn patterns_that_lead_out_are_refused() {
        for (text, why) in [
            ("", "empty"),
            ("  ", "empty"),
            ("../x", ".."),
            ("a/../../b", ".."),
            ("/etc", "absolute"),
            (".", "nothing"),
        ] {
            let error = Pattern::parse(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn everything_is_known() {
        assert!(Pattern::parse("**/*").unwrap().is_everything());
        assert!(!Pattern::parse("*").unwrap().is_everything());
    }
}
