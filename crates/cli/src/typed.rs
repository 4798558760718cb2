//! Refusals of the master in the words of the command line.
//!
//! The master names a field of a request as `field "searchText"` (docs/contract/http-api.md, "Errors"). A user has typed
//! `--search`: the name of an option or argument has the words of the field, or its first or its last ones, and what was
//! typed is in the parsed command line. That holds for all commands, so none has a list of its own.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory};

use crate::args::Cli;
use crate::error::CliError;

/// What comes before the name of a field in a message, and what after it.
const FIELD: (&str, &str) = ("field \"", "\"");

/// Fields that options set under names with other words.
const OTHER_WORDS: &[(&str, &[&str])] = &[("limit", &["head", "tail"])];

/// The error with fields of the request named as the user typed them; fields that the user has not set keep their names.
pub(crate) fn in_typed_words(error: CliError, command_line: &[OsString]) -> CliError {
    match error {
        CliError::Failure {
            exit,
            message,
            hint,
        } if message.contains(FIELD.0) => CliError::Failure {
            exit,
            message: translated(&message, &typed(command_line)),
            hint,
        },
        other => other,
    }
}

/// An option or argument that was typed.
struct TypedArgument {
    /// What it is called in a message: `--search`, `argument UUID`.
    shown: String,
    words: Vec<String>,
}

/// What was typed after the last word that is a command.
fn typed(command_line: &[OsString]) -> Vec<TypedArgument> {
    let mut command = Cli::command();
    let Ok(matches) = command.try_get_matches_from_mut(command_line) else {
        return Vec::new();
    };
    let (mut command, mut matches) = (&command, &matches);
    while let Some((name, below)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else {
            break;
        };
        (command, matches) = (found, below);
    }
    let given = command.get_arguments().filter(|arg| is_given(arg, matches));
    given.map(TypedArgument::of).collect()
}

fn is_given(arg: &Arg, matches: &ArgMatches) -> bool {
    matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
}

impl TypedArgument {
    fn of(arg: &Arg) -> Self {
        let value = arg.get_value_names().and_then(|names| names.first());
        let name = match (arg.get_long(), value) {
            (Some(long), _) => long.to_owned(),
            (None, Some(value)) => value.to_string(),
            (None, None) => arg.get_id().to_string(),
        };
        let shown = if arg.is_positional() {
            format!("argument {name}")
        } else {
            format!("--{name}")
        };
        Self {
            shown,
            words: words(&name),
        }
    }

    /// How well it fits the name of a field: the number of words that are the same; `None` = it is another.
    fn fit(&self, field: &[String]) -> Option<usize> {
        let is_part = field.starts_with(&self.words) || field.ends_with(&self.words);
        is_part.then_some(self.words.len())
    }
}

/// A message with the names of its fields replaced.
fn translated(message: &str, typed: &[TypedArgument]) -> String {
    let mut parts = message.split(FIELD.0);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let replaced = part.split_once(FIELD.1).and_then(|(field, rest)| {
            let shown = shown_as(field, typed)?;
            Some((shown, rest))
        });
        match replaced {
            Some((shown, rest)) => {
                out.push_str(shown);
                out.push_str(rest);
            }
            None => {
                out.push_str(FIELD.0);
                out.push_str(part);
            }
        }
    }
    out
}

/// What was typed for a field of the request.
fn shown_as<'t>(field: &str, typed: &'t [TypedArgument]) -> Option<&'t str> {
    let field = field.split('[').next().unwrap_or(field);
    let field_words = words(field);
    let other = OTHER_WORDS.iter().find(|(name, _)| *name == field);
    let other = other.map_or(&[][..], |(_, words)| words);
    let is_other =
        |one: &&TypedArgument| one.words.len() == 1 && other.contains(&one.words[0].as_str());
    let best = typed
        .iter()
        .filter_map(|one| Some((one.fit(&field_words)?, one)))
        .max_by_key(|(fit, _)| *fit)
        .map(|(_, one)| one);
    let found = best.or_else(|| typed.iter().find(is_other))?;
    Some(&found.shown)
}

/// The words of a name in any of the ways in which fields, options and arguments are written, in the singular and in lower
/// case: `checkpointUuids` and `CHECKPOINT_UUID` have the same.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before_is_lower = false;
    let mut begins = true;
    for letter in name.chars() {
        if matches!(letter, '-' | '_' | '.' | ' ') {
            begins = true;
            continue;
        }
        if begins || (letter.is_uppercase() && before_is_lower) {
            words.push(String::new());
        }
        begins = false;
        before_is_lower = letter.is_lowercase() || letter.is_ascii_digit();
        if let Some(word) = words.last_mut() {
            word.extend(letter.to_lowercase());
        }
    }
    for word in &mut words {
        if word.len() > 2 && word.ends_with('s') && !word.ends_with("ss") {
            word.pop();
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(command_line: &str, message: &str) -> String {
        let words: Vec<OsString> = command_line.split(' ').map(OsString::from).collect();
        in_typed_words(CliError::request(message), &words).to_string()
    }

    #[test]
    fn a_refusal_names_what_the_user_typed() {
        for (command_line, field, expected) in [
            ("det trial logs 1 --search [", "searchText", "--search"),
            (
                "det t logs 1 --timestamp-after x",
                "timestampAfter",
                "--timestamp-after",
            ),
            (
                "det task logs t --rank-id 3 --tail 2",
                "rankIds[0]",
                "--rank-id",
            ),
            ("det task logs t --tail 2", "limit", "--tail"),
            ("det e list --limit -3", "limit", "--limit"),
            (
                "det checkpoint describe x",
                "checkpointUuid",
                "argument UUID",
            ),
            (
                "det c rm x y --glob *",
                "checkpointUuids[1]",
                "argument UUIDS",
            ),
            ("det c rm x y --glob *", "checkpointGlobs[0]", "--glob"),
            ("det e set log-retention 1 --days 9", "numDays", "--days"),
            (
                "det trial doctor 1 --timeout 9",
                "timeoutSeconds",
                "--timeout",
            ),
            ("det e label add 1 x", "labels", "argument LABEL"),
            (
                "det user edit ada --display-name x",
                "displayName",
                "--display-name",
            ),
            (
                "det e set gc-policy 1 --save-experiment-best 1 --save-trial-best 1 --save-trial-latest 1",
                "checkpointStorage.saveTrialBest",
                "--save-trial-best",
            ),
        ] {
            assert_eq!(
                shown(
                    command_line,
                    &format!("field \"{field}\" must be 0, found \"x\"")
                ),
                format!("{expected} must be 0, found \"x\""),
                "{command_line}"
            );
        }
    }

    #[test]
    fn what_was_not_typed_keeps_its_name() {
        for (command_line, message) in [
            (
                "det trial logs 1",
                "field \"searchText\" is not a regular expression",
            ),
            ("det trial logs 1 --search x", "field \"limit\" must be 0"),
            ("det trial logs 1 --search x", "field \"search"),
            ("det trial logs 1 --search x", "trial 1 not found"),
        ] {
            assert_eq!(shown(command_line, message), message);
        }
    }
}
