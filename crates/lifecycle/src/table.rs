//! Printing transition tables, and comparing them with the ones in the module comments.

use std::collections::BTreeMap;
use std::fmt::Debug;

/// One state's lines: an event that leads somewhere has a line of its own, the others share one.
pub(crate) fn print<S, E, R>(
    states: &[(&str, S)],
    events: &[(&str, E)],
    name: impl Fn(&S) -> String,
    on: impl Fn(&S, &E) -> R,
) -> String
where
    R: Outcome<S>,
    S: PartialEq,
{
    let mut out = String::new();
    for (title, state) in states {
        out.push_str(&format!("{title}\n"));
        let mut gathered: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (event_name, event) in events {
            match on(state, event).get() {
                None => gathered.entry("refuses").or_default().push(event_name),
                Some((next, effects)) if next == *state && effects.is_empty() => {
                    gathered.entry("stays").or_default().push(event_name);
                }
                Some((next, effects)) => {
                    let does = if effects.is_empty() {
                        String::new()
                    } else {
                        format!(": {}", effects.join(", "))
                    };
                    out.push_str(&format!("  {event_name} -> {}{does}\n", name(&next)));
                }
            }
        }
        for what in ["stays", "refuses"] {
            if let Some(events) = gathered.get(what) {
                out.push_str(&format!("  {what}: {}\n", events.join(", ")));
            }
        }
    }
    out
}

/// A step or a refusal, for printing.
pub(crate) trait Outcome<S> {
    /// The next state and the names of the effects; `None` for a refusal.
    fn get(self) -> Option<(S, Vec<String>)>;
}

impl<S, E: Debug> Outcome<S> for crate::Step<S, E> {
    fn get(self) -> Option<(S, Vec<String>)> {
        Some((
            self.state,
            self.effects.iter().map(|e| format!("{e:?}")).collect(),
        ))
    }
}

impl<S, E: Debug> Outcome<S> for Result<crate::Step<S, E>, crate::Refusal> {
    fn get(self) -> Option<(S, Vec<String>)> {
        self.ok().and_then(Outcome::get)
    }
}

/// Compares the printed table with the one between "```text" and "```" in the module comment of `source`.
pub(crate) fn assert_in_comment(source: &str, printed: &str) {
    let documented: String = source
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .skip_while(|line| !line.contains("```text"))
        .skip(1)
        .take_while(|line| !line.contains("```"))
        .map(|line| {
            format!(
                "{}\n",
                line.trim_start_matches("//!")
                    .strip_prefix(' ')
                    .unwrap_or("")
            )
        })
        .collect();
    assert!(
        documented == printed,
        "the table in the module comment is not what the code does; it should be:\n{}",
        printed
            .lines()
            .map(|line| format!("//! {line}\n"))
            .collect::<String>()
    );
}
