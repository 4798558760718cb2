//! Log policies as they are held against lines: patterns compiled once for each experiment. Knows no rows.

use std::collections::HashSet;

use det_config::container::{LogAction, LogPolicy, compile_patterns};
use det_store::StoreError;
use det_store::logs::{LogLine, Packed};
use regex::bytes::RegexSet;

use crate::error::{AppError, AppResult};

/// Bytes of a line that are looked at.
const MAX_LOOKED_AT: usize = 64 << 10;
/// Bytes of lines that are searched as one text at most; more have a long line among them.
const MAX_TEXTS: usize = 512 << 10;

/// The policies of an experiment, ready to be held against lines.
#[derive(Debug)]
pub(crate) struct CompiledPolicies {
    /// Whether a text has any match at all: one look for all policies.
    any: RegexSet,
    policies: Vec<Compiled>,
}

#[derive(Debug)]
struct Compiled {
    /// The policy's name, or its pattern.
    label: String,
    pattern: String,
    action: Option<LogAction>,
}

/// A line that a policy matched.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    /// The policy's name, or its pattern.
    pub(super) label: String,
    pub(super) pattern: String,
    pub(super) action: Option<LogAction>,
    /// Where the line comes from; its text is left out.
    pub(super) line: LogLine,
}

impl CompiledPolicies {
    /// `None`: no policy has a pattern.
    pub(crate) fn of(policies: &[LogPolicy]) -> AppResult<Option<Self>> {
        let (mut compiled, mut patterns) = (Vec::new(), Vec::new());
        for policy in policies {
            let Some(pattern) = &policy.pattern else {
                continue;
            };
            patterns.push(pattern.as_str());
            compiled.push(Compiled {
                label: policy.name.clone().unwrap_or_else(|| pattern.clone()),
                pattern: pattern.clone(),
                action: policy.action,
            });
        }
        if compiled.is_empty() {
            return Ok(None);
        }
        let any = compile_patterns(patterns).map_err(AppError::internal)?;
        Ok(Some(Self {
            any,
            policies: compiled,
        }))
    }

    /// What matches, once for each policy and origin of lines. Of a long line only the beginning is looked at.
    pub(crate) fn find(&self, packed: &Packed) -> Result<Vec<Found>, StoreError> {
        if !packed.any_text(|texts| texts.len() > MAX_TEXTS || self.any.is_match(texts))? {
            return Ok(Vec::new());
        }
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        for mut line in packed.unpack()? {
            let text = std::mem::take(&mut line.log);
            let looked_at = text.floor_char_boundary(MAX_LOOKED_AT);
            let text = &text[..looked_at];
            for number in &self.any.matches(text.as_bytes()) {
                let policy = &self.policies[number];
                if policy.is_echoed_by(text) {
                    continue;
                }
                let origin = (
                    number,
                    line.allocation_id.clone(),
                    line.container_id.clone(),
                    line.agent_id.clone(),
                );
                if seen.insert(origin) {
                    found.push(Found {
                        label: policy.label.clone(),
                        pattern: policy.pattern.clone(),
                        action: policy.action,
                        line: line.clone(),
                    });
                }
            }
        }
        Ok(found)
    }
}

impl Compiled {
    /// Whether a line shows the policy itself: code that prints its configuration must not trip over it.
    fn is_echoed_by(&self, line: &str) -> bool {
        line.contains("pattern") && line.contains(&self.pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use det_store::logs;

    fn policy(name: Option<&str>, pattern: Option<&str>, action: Option<LogAction>) -> LogPolicy {
        LogPolicy {
            name: name.map(str::to_owned),
            pattern: pattern.map(str::to_owned),
            action,
        }
    }

    fn labels(policies: &[LogPolicy], lines: &[&str]) -> Vec<String> {
        let lines: Vec<LogLine> = lines
            .iter()
            .map(|line| LogLine {
                log: format!("{line}\n"),
                ..LogLine::default()
            })
            .collect();
        let packed = logs::pack(&lines).unwrap();
        let policies = CompiledPolicies::of(policies).unwrap().unwrap();
        let found = policies.find(&packed).unwrap();
        found.into_iter().map(|found| found.label).collect()
    }

    #[test]
    fn a_pattern_is_searched_anywhere_in_a_line_and_never_beyond_it() {
        let policies = [
            policy(Some("oom"), Some(".*CUDA out of memory.*"), None),
            policy(Some("start"), Some("^fatal: .*$"), None),
            policy(None, Some("ECC|parity"), Some(LogAction::ExcludeNode)),
            policy(Some("off"), None, None),
        ];
        let lines = [
            "all is well",
            "RuntimeError: CUDA out of memory. Tried to allocate",
            "not fatal: at the start",
            "fatal: at the start",
            "CUDA out of",
            "memory: parity error",
        ];
        assert_eq!(labels(&policies, &lines), ["oom", "start", "ECC|parity"]);
    }

    #[test]
    fn a_policy_is_found_once_for_each_origin_without_the_text() {
        let policies = [policy(Some("oom"), Some("out of memory"), None)];
        let line = |agent: &str| LogLine {
            log: "out of memory\n".to_owned(),
            agent_id: Some(agent.into()),
            ..LogLine::default()
        };
        let packed = logs::pack(&[line("a"), line("a"), line("b")]).unwrap();
        let policies = CompiledPolicies::of(&policies).unwrap().unwrap();
        let found = policies.find(&packed).unwrap();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|found| found.line.log.is_empty()));
    }

    #[test]
    fn of_a_long_line_the_beginning_is_looked_at() {
        let policies = [policy(Some("oom"), Some("out of memory"), None)];
        let long = "ü".repeat(MAX_TEXTS);
        let (late, early) = (
            format!("{long}out of memory"),
            format!("out of memory{long}"),
        );
        assert!(labels(&policies, &[&late]).is_empty());
        assert_eq!(labels(&policies, &[&early]), ["oom"]);
    }

    #[test]
    fn a_line_that_shows_the_policy_is_no_match() {
        let policies = [policy(Some("dead"), Some("link is dead"), None)];
        let echo = r#"{"log_policies": [{"name": "dead", "pattern": "link is dead"}]}"#;
        assert!(labels(&policies, &[echo, "  pattern: link is dead"]).is_empty());
        assert_eq!(labels(&policies, &["the link is dead"]), ["dead"]);
    }

    #[test]
    fn without_patterns_there_is_nothing_to_look_for() {
        assert!(
            CompiledPolicies::of(&[policy(Some("off"), None, None)])
                .unwrap()
                .is_none()
        );
    }
}
