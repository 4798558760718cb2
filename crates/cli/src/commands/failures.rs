//! Why work failed, with the last lines of its code: for the screen.

use det_client::{Client, ClientError, Query, api_path};
use serde_json::Value;

use crate::printable::without_colours;
use crate::values::{items, text};

/// A sentence about a failure, and below it the last lines of the code that failed, each on its own line; those that the
/// sentence has already are moved there from its end.
pub(crate) fn with_last_lines(sentence: &str, last_lines: &Value) -> String {
    let sentence = without_colours(sentence);
    let lines = lines(last_lines);
    let joined = lines.join(" | ");
    if joined.is_empty() {
        return sentence;
    }
    // The failure of a gang has them in its sentence.
    let mut shown = match sentence.strip_suffix(&joined) {
        Some(before) => before.trim_end().to_owned(),
        None if sentence.contains(&joined) => return sentence,
        None => format!("{sentence}; the last lines of its code:"),
    };
    for line in lines {
        shown.push_str("\n    ");
        shown.push_str(&line);
    }
    shown
}

/// Lines of code, without their colours.
pub(crate) fn lines(last_lines: &Value) -> Vec<String> {
    let lines = items(last_lines).filter_map(Value::as_str);
    lines.map(without_colours).collect()
}

/// A trial with why it failed last, which lists of trials do not have; `None` = it is gone.
pub(crate) async fn trial(client: &Client, id: &str) -> Result<Option<Value>, ClientError> {
    match client.get(&api_path(["trials", id]), &Query::new()).await {
        Ok(mut answer) => Ok(Some(answer["trial"].take())),
        Err(ClientError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Why a trial, as the API shows one, failed last: `None` where the master knows of no failure.
pub(crate) fn reason(trial: &Value) -> Option<String> {
    Some(text(&trial["lastFailure"], "reason")).filter(|reason| !reason.is_empty())
}

/// That a trial failed, or was started again after a failure, and of what: `None` where the master knows of none.
pub(crate) fn sentence(trial: &Value) -> Option<String> {
    let id = text(trial, "id");
    let reason = reason(trial)?;
    let sentence = match trial["state"].as_str() {
        Some("STATE_ERROR") => format!("trial {id} failed: {reason}"),
        _ => format!("trial {id} was last started again because it failed: {reason}"),
    };
    Some(with_last_lines(
        &sentence,
        &trial["lastFailure"]["lastLines"],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_failure_has_the_last_lines_of_its_code_once() {
        let mut trial = json!({"id": 7, "state": "STATE_ERROR", "lastFailure": {
            "reason": "the code ended with exit code 1", "lastLines": ["step 1", "ValueError: \u{1b}[31mboom"]}});
        assert_eq!(
            sentence(&trial).as_deref(),
            Some(
                "trial 7 failed: the code ended with exit code 1; the last lines of its code:\n    step 1\n    \
                 ValueError: boom"
            )
        );
        let reason = "rank 1 failed first: …; its last lines: step 1 | ValueError: \u{1b}[31mboom";
        trial["lastFailure"]["reason"] = json!(reason);
        trial["state"] = json!("STATE_RUNNING");
        assert_eq!(
            sentence(&trial),
            Some(
                "trial 7 was last started again because it failed: rank 1 failed first: …; its last lines:\n    step 1\n    \
                 ValueError: boom"
                    .to_owned()
            )
        );
        assert_eq!(sentence(&json!({"id": 7, "lastFailure": null})), None);
    }
}
