//! Patterns of checkpoint files, as the command line documents them: those of Python's `glob` with `recursive`.
//!
//! `*` and `?` match within one name, `[abc]` and `[!abc]` one character of a set, and `**` as a whole part any number
//! of directories. A name that begins with a point is only matched by a pattern that spells the point.
//!
//! Matching takes time proportional to the length of the path times [`Pattern::cost`], and the length of a pattern is
//! limited.

/// Longest pattern, in bytes: that of a path.
const LONGEST: usize = 4096;

/// A checked pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
}

/// What is between two slashes of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// `**`: any number of directories.
    Directories,
    /// A pattern of one name, never two stars in a row.
    Name(Vec<char>),
}

impl Pattern {
    /// Parses a pattern. The error is one sentence on what is wrong with it.
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
        if text.len() > LONGEST {
            return Err("is longer than 4096 bytes");
        }
        let mut parts: Vec<Part> = Vec::new();
        for part in text.trim().split('/') {
            match part {
                "" | "." => {}
                ".." => return Err("leads out of the checkpoint with \"..\""),
                // Two in a row mean the same as one.
                "**" if parts.last() == Some(&Part::Directories) => {}
                "**" => parts.push(Part::Directories),
                name => {
                    let mut name: Vec<char> = name.chars().collect();
                    name.dedup_by(|a, b| *a == '*' && *b == '*');
                    parts.push(Part::Name(name));
                }
            }
        }
        if parts.is_empty() {
            return Err("names nothing");
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }

    /// As it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Comparisons per character of a path that matching takes at most.
    pub fn cost(&self) -> usize {
        let cost = |part: &Part| match part {
            Part::Directories => 1,
            // A set is looked up from its beginning to its end.
            Part::Name(name) if name.contains(&'[') => name.len() * name.len(),
            Part::Name(name) => name.len() + 1,
        };
        self.parts.iter().map(cost).sum()
    }

    /// Whether it means everything: then the whole directory goes.
    pub fn is_everything(&self) -> bool {
        match self.parts.as_slice() {
            [Part::Directories] => true,
            [Part::Directories, Part::Name(name)] => name == &['*'],
            _ => false,
        }
    }

    /// Whether a path below the checkpoint (its names in order) is meant.
    pub fn matches(&self, path: &[&str]) -> bool {
        path_matches(&self.parts, path)
    }
}

/// Goes through the path once and keeps, for each number of parts, whether these match the names so far.
fn path_matches(parts: &[Part], path: &[&str]) -> bool {
    let mut matched = vec![false; parts.len() + 1];
    matched[0] = true;
    // `**` also means no directory at all.
    let skip = |matched: &mut Vec<bool>| {
        for (n, part) in parts.iter().enumerate() {
            if *part == Part::Directories && matched[n] {
                matched[n + 1] = true;
            }
        }
    };
    skip(&mut matched);
    for name in path {
        let mut next = vec![false; parts.len() + 1];
        for (n, part) in parts.iter().enumerate() {
            next[n + 1] |= match part {
                // Any number of visible directories; at the end of a pattern also files.
                Part::Directories => matched[n + 1] && !name.starts_with('.'),
                Part::Name(pattern) => matched[n] && name_matches(pattern, name),
            };
        }
        skip(&mut next);
        matched = next;
    }
    matched[parts.len()]
}

fn name_matches(pattern: &[char], name: &str) -> bool {
    if name.starts_with('.') && pattern.first() != Some(&'.') {
        return false;
    }
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
    /// The bracket is never closed and is a plain character.
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
    // A closing bracket right at the beginning is a plain character.
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
    fn many_stars_take_no_longer_than_few() {
        // Tried one after another, the ways to spread sixty directories over thirty parts would take longer than the
        // universe is old.
        let deep = "a/".repeat(60) + "x";
        assert!(!matches(&("**/a/".repeat(30) + "b"), &deep));
        assert!(matches(&("**/a/".repeat(30) + "x"), &deep));
        let long = "a".repeat(250);
        assert!(!matches(&("*a".repeat(100) + "b"), &long));
        assert!(Pattern::parse(&"a".repeat(LONGEST + 1)).is_err());
    }

    #[test]
    fn stars_in_a_row_mean_one() {
        for (pattern, path, expected) in [
            ("**/**/x", "x", true),
            ("**/**/x", "a/b/x", true),
            ("a/**", "a", true),
            ("a/**", "a/b/c", true),
            ("a/**/b/**/c", "a/b/c", true),
            ("a/**/b/**/c", "a/x/b/y/z/c", true),
            ("a/**/b/**/c", "a/x/c", false),
            ("**/.x", ".a/.x", false),
            ("x***y", "xy", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn everything_is_known() {
        assert!(Pattern::parse("**/*").unwrap().is_everything());
        assert!(!Pattern::parse("*").unwrap().is_everything());
    }
}
