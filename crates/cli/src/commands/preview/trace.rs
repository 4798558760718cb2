//! `det preview-search --trace`: a search driven event by event, without a master.

use std::path::Path;

use det_config::submitted::{Experiment, SubmittedDocument};
use det_scenario::{
    StepReport, TraceConfig, TraceReport, completed, config_file_of, play_trace, read_trace,
};

use crate::error::CliError;
use crate::model_files::{read_text, shown_name};
use crate::output;
use crate::table::{Format, Listing};

/// Plays a trace and prints the answers of the search. Errs when an answer differs from what the trace expects.
pub(super) fn run(file: &Path, format: Format) -> Result<(), CliError> {
    let name = shown_name(file);
    let unusable = |errors: &dyn std::fmt::Display| {
        CliError::request(format!("the trace \"{name}\" cannot be played:\n{errors}"))
    };
    let text = read_text(file)?;
    let read = read_trace(&text);
    let from_file = match config_file_of(&text) {
        Some(config) => {
            // Relative to the directory of the trace.
            let path = file.parent().unwrap_or(Path::new("")).join(config);
            let text = read_text(&path)?;
            let none: &[&str] = &[];
            Some(SubmittedDocument::read_file(
                Experiment,
                &shown_name(&path),
                &text,
                none,
            ))
        }
        None => None,
    };
    // All errors at once: those of the trace, then those of the file with its configuration.
    let seed = read.as_ref().ok().and_then(|trace| trace.seed).unwrap_or(0);
    let mut errors: Vec<String> = read
        .as_ref()
        .err()
        .map(ToString::to_string)
        .into_iter()
        .collect();
    if let Some(config) = &from_file {
        let checked = match config {
            Ok(config) => completed(config.clone(), seed).err(),
            Err(errors) => Some(errors.clone()),
        };
        errors.extend(checked.map(|errors| errors.to_string()));
    }
    let (trace, config) = match (read, from_file) {
        (Ok(trace), Some(Ok(config))) if errors.is_empty() => (trace, config),
        (Ok(trace), None) => {
            let TraceConfig::Inline(config) = &trace.config else {
                return Err(unusable(&"\"config\" names a file with an empty name"));
            };
            let config = SubmittedDocument::from_value(Experiment, config)
                .map_err(|errors| unusable(&errors))?;
            (trace, config)
        }
        _ => return Err(unusable(&errors.join("\n"))),
    };
    let report = play_trace(&trace, config).map_err(|errors| unusable(&errors))?;
    print(&report, format)?;
    if report.mismatches.is_empty() {
        return Ok(());
    }
    let mismatches: Vec<String> = report.mismatches.iter().map(ToString::to_string).collect();
    let differences = match mismatches.len() {
        1 => "1 difference".to_owned(),
        n => format!("{n} differences"),
    };
    Err(CliError::request(format!(
        "the search does not answer as \"{name}\" expects ({differences}):\n{}",
        mismatches.join("\n")
    )))
}

fn print(report: &TraceReport, format: Format) -> Result<(), CliError> {
    if format == Format::Table {
        let name = if report.name.is_empty() {
            "A search"
        } else {
            &report.name
        };
        output::line(format_args!("{name} (seed {})", report.seed))?;
    }
    let mut listing = Listing::new(["#", "Event", "Answer", "Progress"]);
    for (number, step) in report.steps.iter().enumerate() {
        listing.push([
            number.to_string(),
            happened(step),
            answer(step),
            format!("{:.1} %", step.progress * 100.0),
        ]);
    }
    let report = serde_json::to_value(report)
        .map_err(|error| CliError::request(format!("the answer cannot be printed: {error}")))?;
    listing.print(format, &report)
}

fn happened(step: &StepReport) -> String {
    if step.note.is_empty() {
        step.event.clone()
    } else {
        format!("{} ({})", step.event, step.note)
    }
}

fn answer(step: &StepReport) -> String {
    let actions: Vec<String> = step.actions.iter().map(ToString::to_string).collect();
    if actions.is_empty() {
        "-".to_owned()
    } else {
        actions.join("; ")
    }
}
