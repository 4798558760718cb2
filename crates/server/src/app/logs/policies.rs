//! Log policies: what a line in a task's log means for its trial (`docs/contract/configuration.md`).
//!
//! Lines are matched as they come in, before they are stored; what was found is noted in the transaction that stores
//! them. Noting the same twice changes nothing, so a batch that is sent again does no harm.

use std::collections::BTreeSet;
use std::sync::Arc;

use det_config::container::{LogAction, LogPolicy};

use det_store::events::NewEvent;
use det_store::logs::{LogLine, Packed};
use det_store::trials::TrialRow;
use det_store::{StoreError, WriteTx, allocations, experiments, trials};
use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::app::Master;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;

/// The policies of an experiment, ready to be held against lines.
#[derive(Debug)]
pub(crate) struct LogPolicies {
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
    regex: Regex,
}

/// A line that a policy matched.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    label: String,
    pattern: String,
    action: Option<LogAction>,
    line: LogLine,
}

/// What a trial's logs have come to; stored with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LogFindings {
    /// Policies that matched, the first one first.
    pub(crate) matched: Vec<String>,
    /// Places that the trial's later runs avoid.
    #[serde(rename = "excluded_agents")]
    pub(crate) excluded_places: BTreeSet<String>,
    /// Agent and pattern for each exclusion that was made: each is told once.
    exclusions: BTreeSet<(String, String)>,
    /// The policy after whose match the trial is not restarted.
    pub(crate) retries_canceled_by: Option<String>,
}

impl LogFindings {
    /// Of a trial.
    pub(crate) fn of(trial: &TrialRow) -> Result<Self, StoreError> {
        match &trial.log_findings {
            None => Ok(Self::default()),
            Some(text) => serde_json::from_str(text).map_err(|error| StoreError::Corrupt {
                what: format!("the log findings of trial {}", trial.id),
                message: error.to_string(),
            }),
        }
    }
}

impl LogPolicies {
    /// `None`: no policy has a pattern.
    pub(crate) fn of(policies: &[LogPolicy]) -> AppResult<Option<Self>> {
        let mut compiled = Vec::new();
        for policy in policies {
            let Some(pattern) = &policy.pattern else {
                continue;
            };
            let regex = RegexBuilder::new(without_wildcards(pattern))
                .multi_line(true)
                .build()
                .map_err(AppError::internal)?;
            compiled.push(Compiled {
                label: policy.name.clone().unwrap_or_else(|| pattern.clone()),
                pattern: pattern.clone(),
                action: policy.action,
                regex,
            });
        }
        if compiled.is_empty() {
            return Ok(None);
        }
        let any = RegexSetBuilder::new(compiled.iter().map(|policy| policy.regex.as_str()))
            .multi_line(true)
            .build()
            .map_err(AppError::internal)?;
        Ok(Some(Self {
            any,
            policies: compiled,
        }))
    }

    /// The lines that match, each once for each policy.
    pub(crate) fn find(&self, packed: &Packed) -> Result<Vec<Found>, StoreError> {
        if !packed.any_text(|texts| self.any.is_match(texts))? {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for line in packed.unpack()? {
            let numbers = self.any.matches(line.log.as_bytes());
            for policy in numbers.iter().map(|number| &self.policies[number]) {
                if !policy.is_echoed_by(&line.log) {
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

/// A pattern without `.*` at its ends: it is searched for anywhere in a line all the same, and is found much faster.
fn without_wildcards(pattern: &str) -> &str {
    let mut rest = pattern;
    while let Some(shorter) = rest.strip_prefix(".*")
        && !shorter.starts_with(['?', '*', '+', '{'])
        && !shorter.is_empty()
    {
        rest = shorter;
    }
    while let Some(shorter) = rest.strip_suffix(".*")
        && !shorter.ends_with('\\')
        && !shorter.is_empty()
    {
        rest = shorter;
    }
    rest
}

impl Master {
    /// Lines that the log policies of an experiment match.
    pub(crate) async fn match_log(
        &self,
        experiment_id: i64,
        packed: &Packed,
    ) -> AppResult<Vec<Found>> {
        match self.log_policies_of(experiment_id).await? {
            Some(policies) => Ok(policies.find(packed)?),
            None => Ok(Vec::new()),
        }
    }

    async fn log_policies_of(&self, experiment_id: i64) -> AppResult<Option<Arc<LogPolicies>>> {
        if let Some(known) = self.configs.log_policies(experiment_id) {
            return Ok(known);
        }
        let row = {
            let mut conn = self.context.store.read().await?;
            experiments::find(&mut conn.conn(), experiment_id).await?
        };
        let Some(row) = row else { return Ok(None) };
        let config = self.configs.of(&row)?;
        let policies = LogPolicies::of(&config.log_policies)?.map(Arc::new);
        self.configs.keep_log_policies(&row, policies.clone());
        Ok(policies)
    }

    /// Notes what was found in a task's log, and does what the policies say.
    pub(crate) async fn note_found(
        &self,
        tx: &mut WriteTx,
        task_id: &str,
        found: Vec<Found>,
    ) -> AppResult<()> {
        let Some(trial_id) = allocations::find_task(&mut tx.conn(), task_id)
            .await?
            .and_then(|task| task.trial_id)
        else {
            return Ok(());
        };
        let Some(trial) = trials::find(&mut tx.conn(), trial_id).await? else {
            return Ok(());
        };
        let before = LogFindings::of(&trial)?;
        let mut findings = before.clone();
        for found in found {
            if !findings.matched.contains(&found.label) {
                findings.matched.push(found.label.clone());
                self.record_match(tx, trial_id, &found).await?;
            }
            match found.action {
                None => {}
                // A trial that was continued has a new task: what its earlier ones printed and shipped late is forgiven.
                Some(LogAction::CancelRetries)
                    if findings.retries_canceled_by.is_some() || trial.task_id != task_id => {}
                Some(LogAction::CancelRetries) => {
                    let text = format!(
                        "The log policy \"{}\" matched: this trial is not restarted after a failure",
                        found.label
                    );
                    crate::app::logs::intake::write_line(
                        &self.context.hub,
                        tx,
                        task_id,
                        found.line.allocation_id.as_deref(),
                        &text,
                    )?;
                    findings.retries_canceled_by = Some(found.label);
                }
                Some(LogAction::ExcludeNode) => {
                    for agent in agents_of(tx, task_id, &found.line).await? {
                        let pair = (agent.clone(), found.pattern.clone());
                        if !findings.exclusions.insert(pair) {
                            continue;
                        }
                        let text = format!(
                            "The log policy \"{}\" matched on agent {agent}, therefore will not schedule on {agent}: later runs \
                             of this trial avoid that agent",
                            found.label
                        );
                        crate::app::logs::intake::write_line(
                            &self.context.hub,
                            tx,
                            task_id,
                            found.line.allocation_id.as_deref(),
                            &text,
                        )?;
                        findings.excluded_places.insert(agent);
                    }
                }
            }
        }
        if findings == before {
            return Ok(());
        }
        let text = serde_json::to_string(&findings).map_err(AppError::internal)?;
        trials::set_log_findings(&mut tx.conn(), trial_id, &text).await?;
        if findings.excluded_places != before.excluded_places {
            self.exclude_from_waiting(tx, &trial, &findings).await?;
        }
        Ok(())
    }

    /// A run that waits already avoids the agents as well: lines can come later than the end of the run that wrote them.
    async fn exclude_from_waiting(
        &self,
        tx: &mut WriteTx,
        trial: &TrialRow,
        findings: &LogFindings,
    ) -> AppResult<()> {
        if let Some(mut live) = allocations::live_of_task(&mut tx.conn(), &trial.task_id).await?
            && live.placed_at.is_none()
        {
            live.excluded_places = excluded_text(findings)?;
            allocations::update(&mut tx.conn(), &live).await?;
            self.context.wake(tx, Topic::Schedule);
        }
        Ok(())
    }

    async fn record_match(
        &self,
        tx: &mut WriteTx,
        trial_id: i64,
        found: &Found,
    ) -> Result<(), StoreError> {
        let detail = json!({
            "policy": found.label,
            "pattern": found.pattern,
            "action": found.action,
            "agent": found.line.agent_id,
        });
        self.context
            .record(
                tx,
                NewEvent {
                    actor: "master",
                    subject_kind: "trial",
                    subject_id: trial_id.to_string(),
                    kind: "log_policy_matched",
                    detail: Some(detail.to_string()),
                    ..Default::default()
                },
            )
            .await
    }
}

/// The agents that a line can come from: the one it names, else those of its attempt.
async fn agents_of(
    tx: &mut WriteTx,
    task_id: &str,
    line: &LogLine,
) -> Result<Vec<String>, StoreError> {
    if let Some(agent) = &line.agent_id {
        return Ok(vec![agent.clone()]);
    }
    let allocation = match &line.allocation_id {
        Some(id) => allocations::find(&mut tx.conn(), id).await?,
        None => allocations::live_of_task(&mut tx.conn(), task_id).await?,
    };
    let Some(allocation) = allocation else {
        return Ok(Vec::new());
    };
    let containers = allocations::containers(&mut tx.conn(), &allocation.id).await?;
    let agents = containers
        .iter()
        .filter(|container| {
            line.container_id
                .as_ref()
                .is_none_or(|id| *id == container.id)
        })
        .map(|container| container.place_id.clone());
    Ok(agents.collect())
}

/// A trial that goes on counts its restarts anew: what its earlier runs printed does not forbid them any more. Places that
/// it avoids stay avoided.
pub(crate) async fn allow_restarts(tx: &mut WriteTx, trial: &TrialRow) -> Result<(), StoreError> {
    let mut findings = LogFindings::of(trial)?;
    if findings.retries_canceled_by.take().is_none() {
        return Ok(());
    }
    let text = serde_json::to_string(&findings).map_err(|error| StoreError::Corrupt {
        what: format!("the log findings of trial {}", trial.id),
        message: error.to_string(),
    })?;
    trials::set_log_findings(&mut tx.conn(), trial.id, &text).await
}

/// Places that the next allocation of a trial avoids, as its row has them.
pub(crate) fn excluded_text(findings: &LogFindings) -> AppResult<Option<String>> {
    if findings.excluded_places.is_empty() {
        return Ok(None);
    }
    serde_json::to_string(&findings.excluded_places)
        .map(Some)
        .map_err(AppError::internal)
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
        let policies = LogPolicies::of(policies).unwrap().unwrap();
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
    fn a_line_that_shows_the_policy_is_no_match() {
        let policies = [policy(Some("dead"), Some("link is dead"), None)];
        let echo = r#"{"log_policies": [{"name": "dead", "pattern": "link is dead"}]}"#;
        assert!(labels(&policies, &[echo, "  pattern: link is dead"]).is_empty());
        assert_eq!(labels(&policies, &["the link is dead"]), ["dead"]);
    }

    #[test]
    fn wildcards_at_the_ends_are_left_out_and_nothing_else() {
        for (pattern, shorter) in [
            (".*a.*", "a"),
            (".*.*a", "a"),
            ("a\\.*", "a\\.*"),
            (".*?a", ".*?a"),
            (".*", ".*"),
            ("(.*a|b.*)", "(.*a|b.*)"),
        ] {
            assert_eq!(without_wildcards(pattern), shorter);
        }
    }

    #[test]
    fn without_patterns_there_is_nothing_to_look_for() {
        assert!(
            LogPolicies::of(&[policy(Some("off"), None, None)])
                .unwrap()
                .is_none()
        );
    }
}
