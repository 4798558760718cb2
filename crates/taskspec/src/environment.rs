//! The master's part of a task's environment: a table of variables with their values.

use std::collections::HashMap;

use serde_json::json;

use crate::build::SpecError;
use crate::facts::{KindFacts, PlaceFacts, PoolDefaults, TaskFacts, TrialFacts};
use crate::ports::TrainingPort;
use crate::variables as v;
use crate::{PYTHON_USER_BASE, RUN_DIR, TaskKind};

/// Characters of a name that an error shows.
const MAX_NAME_SHOWN: usize = 64;

/// What the variables of every task are made from.
struct Source<'a> {
    task: &'a TaskFacts,
    place: &'a PlaceFacts,
    token: &'a str,
}

impl Source<'_> {
    fn pool(&self) -> &PoolDefaults {
        &self.task.defaults
    }
}

/// The value of a variable of every task; `None` = the variable is left out.
type TaskValue = fn(&Source<'_>) -> Option<String>;
/// The same of a variable that only trials have.
type TrialValue = fn(&TrialFacts) -> Option<String>;

/// The variables of every task.
const OF_EVERY_TASK: &[(&str, TaskValue)] = &[
    (v::DET_CLUSTER_ID, |s| some(&s.task.cluster.cluster_id)),
    (v::DET_MASTER_ID, |s| some(&s.task.cluster.master_id)),
    (v::DET_TASK_ID, |s| some(&s.task.task_id)),
    (v::DET_ALLOCATION_ID, |s| some(&s.task.allocation_id)),
    (v::DET_RESOURCES_ID, |s| some(&s.place.container_id)),
    (v::DET_CONTAINER_ID, |s| some(&s.place.container_id)),
    (v::DET_RESOURCES_TYPE, |s| {
        some(s.place.runs_in.resources_type())
    }),
    (v::DET_SLOT_IDS, |s| some(&slot_list(s.place))),
    (v::DET_SESSION_TOKEN, |s| some(s.token)),
    // The client inside a task acts as the owner, but as this task: no login of its own outlives it.
    (v::DET_USER_TOKEN, |s| some(s.token)),
    (v::DET_USER, |s| some(&s.task.owner_name)),
    (v::DET_TASK_TYPE, |s| some(s.task.kind.kind().name())),
    (v::DET_RUN_DIR, |_| some(RUN_DIR)),
    (v::DET_TASK_LOGGING_METADATA, |s| some(&log_fields(s.task))),
    (v::PYTHONUSERBASE, |_| some(PYTHON_USER_BASE)),
    (v::PYTHONUNBUFFERED, |_| some("1")),
    (v::DET_SEGMENT_ENABLED, |_| some(&false)),
    (v::DET_DEBUG, |s| {
        s.task.request.debug.then(|| true.to_string())
    }),
    (v::DET_INTER_NODE_NETWORK_INTERFACE, |s| {
        s.pool().network_interface.clone()
    }),
    (v::GLOO_PORT_RANGE, |s| s.pool().gloo_port_range.clone()),
    (v::NCCL_PORT_RANGE, |s| s.pool().nccl_port_range.clone()),
    (v::PACHD_ADDRESS, |s| {
        s.task.cluster.pachyderm_address.clone()
    }),
];

/// The variables that only trials have, besides their training ports.
const OF_TRIALS: &[(&str, TrialValue)] = &[
    (v::DET_EXPERIMENT_ID, |t| some(&t.experiment_id)),
    (v::DET_TRIAL_ID, |t| some(&t.trial_id)),
    (v::DET_TRIAL_RUN_ID, |t| some(&t.run_id)),
    (v::DET_TRIAL_SEED, |t| some(&t.seed)),
    (v::DET_EXPERIMENT_CONFIG, |t| some(&t.experiment_config)),
    (v::DET_HPARAMS, |t| some(&t.hparams)),
    (v::DET_STEPS_COMPLETED, |t| some(&t.steps_completed())),
    (v::DET_LATEST_CHECKPOINT, |t| {
        t.start_checkpoint().map(ToString::to_string)
    }),
];

/// A value that is always known.
#[expect(
    clippy::unnecessary_wraps,
    reason = "rows with and without a value have one type"
)]
fn some<T: ToString + ?Sized>(value: &T) -> Option<String> {
    Some(value.to_string())
}

/// The environment of one container as far as the master knows it. No name appears twice.
///
/// The user's variables come first and win, except that reserved names ([`v::is_reserved`]) are the platform's.
///
/// # Errors
/// See [`users_variables`].
pub(crate) fn environment(
    task: &TaskFacts,
    trial: Option<&TrialFacts>,
    place: &PlaceFacts,
    training_ports: &[TrainingPort],
    token: &str,
) -> Result<Vec<(String, String)>, SpecError> {
    let mut env = users_variables(task.request.variables.get(place.device_kind))?;
    let source = Source { task, place, token };
    let of_every_task = OF_EVERY_TASK
        .iter()
        .filter_map(|(name, value)| Some((*name, value(&source)?)));
    let of_trial = trial.into_iter().flat_map(|trial| {
        OF_TRIALS
            .iter()
            .filter_map(|(name, value)| Some((*name, value(trial)?)))
    });
    let ports = training_ports
        .iter()
        .map(|(name, port)| (*name, port.to_string()));
    let of_kind = match &task.kind {
        KindFacts::Trial(_) => Vec::new(),
        KindFacts::Launched(details) => details.variables(),
    };
    let document = task.request.document.clone().filter(|document| {
        let is_notebook = task.kind.kind() == TaskKind::Notebook;
        is_notebook && document.len() <= MOST_DOCUMENT_BYTES
    });
    let document = document.map(|document| (v::NOTEBOOK_CONFIG, document));
    let all = of_every_task.chain(of_trial).chain(ports).chain(of_kind);
    let all = all.chain(document);
    for (name, value) in all {
        if !env.iter().any(|(taken, _)| taken == name) {
            env.push((name.to_owned(), value));
        }
    }
    Ok(env)
}

/// Bytes of a configuration that a notebook is shown: well below what a variable may have.
const MOST_DOCUMENT_BYTES: usize = 64 << 10;
/// Bytes of one variable, name and value, at most: what the kernel lets a process be given (`MAX_ARG_STRLEN`, with the
/// sign between them and the end).
const MAX_VARIABLE_BYTES: usize = (128 << 10) - 2;
/// Bytes of all variables of a configuration at most, well below what a process can be given in all.
const MAX_ALL_BYTES: usize = 1 << 20;

/// The variables of a configuration, `NAME=VALUE` each, with the values of earlier ones in them. A name appears once, where
/// it was last set; names of the platform are left out.
///
/// # Errors
/// A value is too long once earlier ones are in it, or all of them are: values that refer to each other can double with
/// each variable.
pub fn users_variables(variables: &[String]) -> Result<Vec<(String, String)>, SpecError> {
    let mut values: HashMap<&str, (usize, String)> = HashMap::new();
    let mut bytes = 0;
    for (place, variable) in variables.iter().enumerate() {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        if v::is_reserved(name) {
            continue;
        }
        let most = MAX_VARIABLE_BYTES.saturating_sub(name.len());
        let value = expand(value, &values, most).ok_or_else(|| SpecError::VariableTooLong {
            name: name.chars().take(MAX_NAME_SHOWN).collect(),
            most: MAX_VARIABLE_BYTES,
        })?;
        bytes += name.len() + value.len();
        if let Some((_, earlier)) = values.insert(name, (place, value)) {
            bytes -= name.len() + earlier.len();
        }
        if bytes > MAX_ALL_BYTES {
            return Err(SpecError::VariablesTooLong {
                most: MAX_ALL_BYTES,
            });
        }
    }
    let mut env: Vec<_> = values.into_iter().collect();
    env.sort_unstable_by_key(|(_, (place, _))| *place);
    Ok(env
        .into_iter()
        .map(|(name, (_, value))| (name.to_owned(), value))
        .collect())
}

/// Replaces `$NAME` and `${NAME}` by earlier variables; an unknown one stays as it is. `None` = the value gets longer than
/// `most` bytes.
fn expand(value: &str, earlier: &HashMap<&str, (usize, String)>, most: usize) -> Option<String> {
    let mut out = String::new();
    let mut rest = value;
    let mut push = |text: &str| {
        out.push_str(text);
        (out.len() <= most).then_some(())
    };
    while let Some(at) = rest.find('$') {
        push(&rest[..at])?;
        let after = &rest[at + 1..];
        let (name, length) = match after.strip_prefix('{').and_then(|a| a.split_once('}')) {
            Some((name, _)) => (name, name.len() + 2),
            None => {
                let end = after
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(after.len());
                (&after[..end], end)
            }
        };
        match earlier.get(name) {
            Some((_, value)) => push(value)?,
            None => push(&rest[at..=at + length])?,
        }
        rest = &after[length..];
    }
    push(rest)?;
    Some(out)
}

fn slot_list(place: &PlaceFacts) -> String {
    let slots: Vec<String> = place
        .slots
        .numbers()
        .iter()
        .map(ToString::to_string)
        .collect();
    format!("[{}]", slots.join(","))
}

fn log_fields(task: &TaskFacts) -> String {
    json!({"task_id": task.task_id, "allocation_id": task.allocation_id}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_refer_to_earlier_ones() {
        let earlier = HashMap::from([("A", (0, "2".to_owned()))]);
        for (given, expected) in [
            ("$A", "2"),
            ("${A}x", "2x"),
            ("$B", "$B"),
            ("a$", "a$"),
            ("$A$A-", "22-"),
            ("${B}", "${B}"),
            ("plain", "plain"),
        ] {
            assert_eq!(
                expand(given, &earlier, 9).as_deref(),
                Some(expected),
                "{given}"
            );
        }
    }

    #[test]
    fn a_name_appears_once_where_it_was_last_set() {
        let given = [
            "A=1",
            "B=$A",
            "A=$A$B",
            "DET_X=1",
            "C",
            "DET_LOG_LEVEL=INFO",
        ]
        .map(str::to_owned);
        let env = users_variables(&given).unwrap();
        let expected = [
            ("B", "1"),
            ("A", "11"),
            ("C", ""),
            ("DET_LOG_LEVEL", "INFO"),
        ];
        assert_eq!(env, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
    }

    #[test]
    fn variables_that_double_each_other_are_refused() {
        let mut doubling = vec!["A0=12345678".to_owned()];
        doubling.extend((1..60).map(|n| format!("A{n}=$A{0}$A{0}", n - 1)));
        let error = users_variables(&doubling).unwrap_err().to_string();
        assert!(error.starts_with("variable \"A14\""), "{error}");
        let long = "x".repeat(100 << 10);
        let many: Vec<String> = (0..20).map(|n| format!("B{n}={long}")).collect();
        let error = users_variables(&many).unwrap_err();
        assert!(
            matches!(error, SpecError::VariablesTooLong { .. }),
            "{error}"
        );
        // Set again, it counts once.
        let again: Vec<String> = (0..20).map(|_| format!("B={long}")).collect();
        assert_eq!(users_variables(&again).unwrap().len(), 1);
    }
}
