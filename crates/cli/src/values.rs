//! The values of the API as text for users.
//!
//! Answers are JSON objects; a missing member and null mean the same, and are shown as nothing.

use det_scheduler::WaitKind;
use jiff::Timestamp;
use serde_json::Value;

use crate::output;
use crate::table::Format;

/// Which of two priorities goes first, for texts that are made without a request to a master; its answers contain the
/// direction of each pool (`priorityOrder`).
macro_rules! priority_orders {
    () => {
        "lower runs first on agents, higher on Kubernetes"
    };
}
pub(crate) use priority_orders;

/// Parses a weight: a finite number above 0, since JSON has neither infinity nor NaN.
pub(crate) fn weight(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|weight: &f64| weight.is_finite() && *weight > 0.0)
        .ok_or_else(|| "a weight is a number above 0".to_owned())
}

/// A member as text: strings as they are, other values as JSON, nothing for null. Booleans are written as the `PyPI`
/// client writes them, so that scripts that read CSV work with both.
pub(crate) fn text(object: &Value, member: &str) -> String {
    plain(&object[member])
}

/// A value as text (see [`text`]).
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A point in time, in UTC: `2026-11-21 19:28:00+0000`. Text that is no time stays as it is.
pub(crate) fn time(object: &Value, member: &str) -> String {
    let text = text(object, member);
    match text.parse::<Timestamp>() {
        Ok(timestamp) => timestamp.strftime("%Y-%m-%d %H:%M:%S+0000").to_string(),
        Err(_) => text,
    }
}

/// A state without the prefix that it has on the wire.
pub(crate) fn state(object: &Value, member: &str) -> String {
    let text = text(object, member);
    text.strip_prefix("STATE_").unwrap_or(&text).to_owned()
}

/// How far an experiment is, from 0 to 1; `None` where nothing is known: the master writes 0 until something was reported.
pub(crate) fn fraction_done(experiment: &Value) -> Option<f64> {
    number(&experiment["progress"])
        .filter(|fraction| fraction.is_finite() && *fraction > 0.0)
        .map(|fraction| fraction.min(1.0))
}

/// The progress of an experiment as per cent with one decimal; nothing where it is not known.
pub(crate) fn progress(experiment: &Value) -> String {
    fraction_done(experiment)
        .map_or_else(String::new, |fraction| format!("{:.1}%", fraction * 100.0))
}

/// An object or list as indented JSON; nothing for null.
pub(crate) fn indented(value: &Value) -> String {
    if value.is_null() {
        return String::new();
    }
    format!("{value:#}")
}

/// The elements of a list, joined by a comma and a blank.
pub(crate) fn joined(object: &Value, member: &str) -> String {
    items(&object[member])
        .map(plain)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The elements of a list; none for anything else.
pub(crate) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The members of an object; none for anything else.
pub(crate) fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// A number, also where the wire writes it as a string (64-bit integers, and numbers that are not finite).
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// The last part of a path, which is the id of an agent or a slot.
pub(crate) fn last_part(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or(text)
}

/// A metric rounded to four significant digits.
pub(crate) fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// A number of bytes with one decimal and a unit: `1.5KB`.
pub(crate) fn size(bytes: f64) -> String {
    // The sum of no numbers is minus zero.
    let mut value = bytes + 0.0;
    for unit in ["", "K", "M", "G", "T"] {
        if value < 1024.0 {
            return format!("{value:.1}{unit}B");
        }
        value /= 1024.0;
    }
    format!("{value:.1}PB")
}

/// Why something waits: the message of its `waitReason`, and since when; nothing when it does not wait.
pub(crate) fn wait_reason(object: &Value) -> String {
    let reason = &object["waitReason"];
    let message = match reason {
        Value::String(message) => message.clone(),
        other => text(other, "message"),
    };
    if message.is_empty() {
        return message;
    }
    match time(reason, "since") {
        since if since.is_empty() => message,
        since => format!("{message} (since {since})"),
    }
}

/// Why something waits: in few words in a table, in full in the other formats.
pub(crate) fn wait_reason_in(format: Format, object: &Value) -> String {
    match format {
        Format::Table => short_reason(&object["waitReason"]),
        Format::Csv | Format::Json => wait_reason(object),
    }
}

/// Names the command with the full explanation, when a table has shown short reasons.
pub(crate) fn note_whole_reasons<'a>(format: Format, objects: impl IntoIterator<Item = &'a Value>) {
    let mut objects = objects.into_iter();
    if format == Format::Table && objects.any(|object| !wait_reason(object).is_empty()) {
        output::note(
            "det job why ID explains why a job or an experiment waits, and what would help",
        );
    }
}

/// Most characters of a reason in a table.
const SHORT: usize = 40;

/// A number of an answer with its noun, in the plural where it belongs: `1 slot`, `4 slots`.
pub(crate) fn amount(number: &str, noun: &str) -> String {
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// A reason in at most [`SHORT`] characters, with its most important number.
pub(crate) fn short_reason(reason: &Value) -> String {
    let number = |name: &str| text(&reason["details"], name);
    let slots = |name: &str| amount(&number(name), "slot");
    let Ok(kind) = text(reason, "kind").parse() else {
        return first_part(&text(reason, "message"));
    };
    match kind {
        WaitKind::NoPlaces => "the pool has no places".to_owned(),
        WaitKind::AllPlacesExcluded => "all places are excluded".to_owned(),
        WaitKind::PlacesDoNotFit => "places lack what it demands".to_owned(),
        WaitKind::NoPlaceLargeEnough => format!("no place has {}", slots("needed")),
        WaitKind::ContainerTooLarge => format!("a container has at most {}", number("most")),
        WaitKind::PoolTooSmall => {
            format!("the pool has {} of {}", number("capacity"), slots("needed"))
        }
        WaitKind::GangDoesNotDivide => format!("places do not add up to {}", slots("needed")),
        WaitKind::PlacesUnavailable => "places are out of service".to_owned(),
        WaitKind::WaitingForInstances => "waits for new instances".to_owned(),
        WaitKind::OverJobCap => format!("at its max_slots of {}", number("max_slots")),
        WaitKind::OverWorkspaceLimit => {
            format!("its workspace is limited to {}", number("max_slots"))
        }
        WaitKind::OverFairShare => format!("at its fair share of {}", number("share")),
        WaitKind::BehindOwnJob => "behind its own earlier task".to_owned(),
        WaitKind::BehindHigherPriority => format!("behind priority {}", number("priority")),
        WaitKind::ReservedFor => "slots are kept for another".to_owned(),
        WaitKind::WaitingForPreemption => "slots are being freed for it".to_owned(),
        WaitKind::NotEnoughFreeSlots => {
            format!("needs {}, {} free", slots("needed"), number("free_total"))
        }
        WaitKind::PausedAfterFailures => "pauses after failures of agents".to_owned(),
        WaitKind::AuxFull => "no free place without slots".to_owned(),
    }
}

/// The message of a reason that has no short form here, up to its first semicolon.
fn first_part(message: &str) -> String {
    let first = message.split(';').next().unwrap_or_default();
    match first.char_indices().nth(SHORT) {
        Some((end, _)) => format!("{}…", &first[..end]),
        None => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_absent_shows_as_nothing() {
        let object = json!({"a": null});
        for shown in [
            text(&object, "a"),
            text(&object, "b"),
            time(&object, "b"),
            state(&object, "b"),
            progress(&object),
            progress(&json!({"progress": 0.0})),
            progress(&json!({"progress": "NaN"})),
            joined(&object, "b"),
            indented(&object["b"]),
            wait_reason(&object),
        ] {
            assert_eq!(shown, "");
        }
    }

    #[test]
    fn values_have_their_usual_look() {
        let object = json!({
            "state": "STATE_RUNNING", "progress": 0.1234, "at": "2026-11-21T20:28:00.123456789+01:00",
            "labels": ["b", "a"], "archived": false, "n": 3, "infinite": "Infinity",
        });
        assert_eq!(state(&object, "state"), "RUNNING");
        assert_eq!(progress(&object), "12.3%");
        assert_eq!(time(&object, "at"), "2026-11-21 19:28:00+0000");
        assert_eq!(joined(&object, "labels"), "b, a");
        assert_eq!(text(&object, "archived"), "False");
        assert_eq!(text(&object, "n"), "3");
        assert_eq!(number(&object["infinite"]), Some(f64::INFINITY));
        assert_eq!(size(1536.0), "1.5KB");
        assert_eq!(last_part("/agents/a/slots/0"), "0");
    }

    #[test]
    fn a_reason_is_shown_with_its_time() {
        let object = json!({"waitReason": {
            "kind": "noCapacity", "message": "2 more slots are needed", "since": "2026-11-21T19:28:00Z"}});
        assert_eq!(
            wait_reason(&object),
            "2 more slots are needed (since 2026-11-21 19:28:00+0000)"
        );
    }

    #[test]
    fn reasons_in_tables_are_short() {
        let reason = |kind: &str, details: Value| {
            json!({"kind": kind, "details": details,
                "message": "a long sentence on a reason that has not been given a short form; with more"})
        };
        let shown = |kind: &str, details| short_reason(&reason(kind, details));
        assert_eq!(
            shown(
                "not_enough_free_slots",
                json!({"needed": 4, "free_total": 1})
            ),
            "needs 4 slots, 1 free"
        );
        assert_eq!(
            shown("no_agent_large_enough", json!({"needed": 1})),
            "no place has 1 slot"
        );
        assert_eq!(
            shown("news", json!({})),
            "a long sentence on a reason that has not…"
        );
        assert_eq!(short_reason(&Value::Null), "");
        for kind in WaitKind::ALL {
            let text = shown(kind.name(), json!({}));
            assert!(text.chars().count() <= SHORT, "{kind:?}: {text}");
        }
    }
}
