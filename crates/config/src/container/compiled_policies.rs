//! Log policies as they are held against lines: all patterns of an experiment, compiled once.

use regex::bytes::RegexSet;

use super::{LogAction, LogPolicy, compile_patterns};

/// Bytes of patterns, none of them with a counted repetition or a class of characters, that are found in little time.
const CHEAP_PATTERNS: usize = 1 << 10;

/// The policies of an experiment that have a pattern, ready to be held against lines.
#[derive(Debug)]
pub struct CompiledPolicies {
    /// Whether a text has any match at all: one look for all policies.
    any: RegexSet,
    policies: Vec<CompiledPolicy>,
}

/// A policy that has a pattern.
#[derive(Debug)]
pub struct CompiledPolicy {
    /// The policy's name; its pattern where it has none.
    pub label: String,
    /// The regular expression as the configuration has it.
    pub pattern: String,
    /// What follows from a match; `None` = the run is only labelled.
    pub action: Option<LogAction>,
}

impl CompiledPolicies {
    /// Compiles policies. `None`: none of them has a pattern.
    ///
    /// # Errors
    /// As those of [`compile_patterns`].
    pub fn of(policies: &[LogPolicy]) -> Result<Option<Self>, regex::Error> {
        let compiled = policies.iter().filter_map(|policy| {
            let pattern = policy.pattern.clone()?;
            Some(CompiledPolicy {
                label: policy.name.clone().unwrap_or_else(|| pattern.clone()),
                pattern,
                action: policy.action,
            })
        });
        let policies: Vec<CompiledPolicy> = compiled.collect();
        if policies.is_empty() {
            return Ok(None);
        }
        let any = compile_patterns(policies.iter().map(|policy| policy.pattern.as_str()))?;
        Ok(Some(Self { any, policies }))
    }

    /// Whether a text is searched for them in little time.
    pub fn are_cheap(&self) -> bool {
        let patterns = || self.policies.iter().map(|policy| &policy.pattern);
        patterns().map(String::len).sum::<usize>() <= CHEAP_PATTERNS
            && !patterns().any(|pattern| pattern.contains('{') || has_class(pattern))
    }

    /// Whether any pattern is found in a text of any number of lines. A line that only shows a policy counts here, see
    /// [`matching`](Self::matching).
    pub fn are_found_in(&self, text: &[u8]) -> bool {
        self.any.is_match(text)
    }

    /// The policies that one line matches, each with its number among them, from 0. A line that shows the policy itself is
    /// no match: code that prints its configuration must not trip over it.
    pub fn matching(&self, line: &str) -> impl Iterator<Item = (usize, &CompiledPolicy)> {
        let found = self.any.matches(line.as_bytes()).into_iter();
        found
            .map(|number| (number, &self.policies[number]))
            .filter(|(_, policy)| !policy.is_shown_by(line))
    }
}

impl CompiledPolicy {
    fn is_shown_by(&self, line: &str) -> bool {
        line.contains("pattern") && line.contains(&self.pattern)
    }
}

/// Whether a pattern has a class such as `\w`, which is very many characters.
fn has_class(pattern: &str) -> bool {
    let mut after_backslash = false;
    pattern.chars().any(|c| {
        let is_class = after_backslash && c.is_ascii_alphabetic();
        after_backslash = c == '\\' && !after_backslash;
        is_class
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: Option<&str>, pattern: Option<&str>) -> LogPolicy {
        LogPolicy {
            name: name.map(str::to_owned),
            pattern: pattern.map(str::to_owned),
            action: None,
        }
    }

    fn compiled(policies: &[LogPolicy]) -> CompiledPolicies {
        CompiledPolicies::of(policies).unwrap().unwrap()
    }

    #[test]
    fn repetitions_and_classes_are_not_cheap() {
        let cheap = |pattern: &str| compiled(&[policy(Some("p"), Some(pattern))]).are_cheap();
        assert!(cheap(".*CUDA out of memory.*") && cheap(r"a\.b") && cheap(r"C:\\windows"));
        assert!(!cheap("a[ab]{400}c") && !cheap(r"step \w+") && !cheap(&"x".repeat(2_000)));
    }

    #[test]
    fn a_line_that_shows_the_policy_is_no_match() {
        let policies = compiled(&[policy(Some("dead"), Some("link is dead"))]);
        let matched = |line: &str| policies.matching(line).count();
        let echo = r#"{"log_policies": [{"name": "dead", "pattern": "link is dead"}]}"#;
        assert_eq!(matched(echo), 0);
        assert_eq!(matched("  pattern: link is dead"), 0);
        assert_eq!(matched("the link is dead"), 1);
        assert!(policies.are_found_in(echo.as_bytes()));
    }

    #[test]
    fn a_policy_without_a_pattern_is_off_and_one_without_a_name_is_called_by_its_pattern() {
        let policies = [
            policy(Some("off"), None),
            policy(None, Some("ECC|parity")),
            policy(Some("oom"), Some("out of memory")),
        ];
        let compiled = compiled(&policies);
        let labels = |line| {
            let found = compiled.matching(line);
            found
                .map(|(number, policy)| (number, policy.label.as_str()))
                .collect::<Vec<_>>()
        };
        assert_eq!(labels("parity error"), [(0, "ECC|parity")]);
        assert_eq!(
            labels("out of memory: ECC"),
            [(0, "ECC|parity"), (1, "oom")]
        );
        assert!(CompiledPolicies::of(&policies[..1]).unwrap().is_none());
    }
}
