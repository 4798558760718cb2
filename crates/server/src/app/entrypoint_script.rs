//! Whether the script that an entrypoint starts is among the files that come with it: a warning, no refusal.
//!
//! Only what can be read off without running anything is judged: `python3 train.py --lr 1`. Of everything else (several
//! commands, variables, modules, trial classes) nothing is assumed.

use det_config::errors::edit_distance;
use det_config::experiment::{Entrypoint, ExperimentConfig};

use crate::app::model_archive::{ContextFile, FileKind};

/// Where the files of an experiment are in its containers.
const WORKDIR: &str = "/run/determined/workdir";
/// The script that runs before the entrypoint, and may bring files.
const HOOK: &str = "startup-hook.sh";
/// Files that are compared with the name of a script that is missing.
const MOST_COMPARED: usize = 1_000;
/// The most bytes of a path that is compared or shown; file systems allow names of no more.
const LONGEST: usize = 255;
/// What shells do more with than to split words.
const OF_SHELLS: &[char] = &[
    ';', '&', '|', '<', '>', '$', '`', '\n', '(', ')', '*', '?', '[', ']', '{', '}', '"', '\'',
    '\\', '~', '#',
];

/// The warning about an experiment whose entrypoint starts a script that is not among `files`.
pub(crate) fn warning(config: &ExperimentConfig, files: &[ContextFile]) -> Option<String> {
    let script = script_of(config.entrypoint.as_ref()?)?;
    let names = files
        .iter()
        .filter(|file| file.kind == FileKind::File)
        .map(|file| file.path.trim_start_matches("./"));
    let may_come_from_elsewhere = config.bind_mounts.iter().any(|mount| {
        !mount.container_path.starts_with('/') || mount.container_path.starts_with(WORKDIR)
    });
    if may_come_from_elsewhere || names.clone().any(|name| name == script || name == HOOK) {
        return None;
    }
    if script.len() > LONGEST {
        return None;
    }
    let shown = script.escape_debug();
    if files.is_empty() {
        return Some(format!(
            "entrypoint: \"{shown}\" is missing: no files were sent with the experiment"
        ));
    }
    let comparable = names.filter(|name| name.len() <= LONGEST);
    let nearest = nearest(&script, comparable.take(MOST_COMPARED));
    let nearest = nearest.map_or_else(String::new, |name| {
        format!("; did you mean \"{}\"?", name.escape_debug())
    });
    Some(format!(
        "entrypoint: \"{shown}\" is not among the files that were sent with the experiment{nearest}"
    ))
}

/// The file that was probably meant: one of that name elsewhere, else the one whose name differs least.
fn nearest<'f>(script: &str, names: impl Iterator<Item = &'f str> + Clone) -> Option<&'f str> {
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_lowercase();
    let wanted = base(script);
    let elsewhere = names.clone().filter(|name| base(name) == wanted).min();
    elsewhere.or_else(|| {
        let near = names.filter_map(|name| Some((edit_distance(script, name, 2)?, name)));
        // Two edits make any short name of any other.
        let alike = near.filter(|(distance, _)| *distance < wanted.len().saturating_sub(3));
        alike.min().map(|(_, name)| name)
    })
}

/// The script that an entrypoint starts, relative to the working directory; `None` = it starts none, or that is not plain.
fn script_of(entrypoint: &Entrypoint) -> Option<String> {
    let words: Vec<&str> = match entrypoint {
        Entrypoint::Argv(words) => words.iter().map(String::as_str).collect(),
        Entrypoint::Shell(text) if text.trim().contains(OF_SHELLS) => return None,
        Entrypoint::Shell(text) => text.split_whitespace().collect(),
    };
    let script = started(&words)?;
    let script = script.strip_prefix("./").unwrap_or(script);
    let is_inside = !script.starts_with('/') && !script.split('/').any(|part| part == "..");
    (is_inside && !script.is_empty()).then(|| script.to_owned())
}

/// What these words start, if it is a file that they name.
fn started<'w>(words: &[&'w str]) -> Option<&'w str> {
    let (program, arguments) = words.split_first()?;
    if program.starts_with("./") {
        return Some(program);
    }
    let name = program.rsplit('/').next().unwrap_or(program);
    let version = name.strip_prefix("python");
    let is_python = version.is_some_and(|v| v.chars().all(|c| c.is_ascii_digit() || c == '.'));
    if !is_python && !matches!(name, "sh" | "bash") {
        return None;
    }
    // Of options those are passed over that take no value.
    let is_plain =
        |word: &&&str| matches!(**word, "-u" | "-B" | "-O" | "-e" | "-x" | "-ex" | "-eu");
    let skipped = arguments.iter().take_while(is_plain).count();
    match arguments.get(skipped..)? {
        ["-m", module, rest @ ..] if module.starts_with("determined.launch.") => {
            let inner = rest.iter().position(|word| word.starts_with("python"))?;
            started(&rest[inner..])
        }
        [word, ..] if !word.starts_with('-') => Some(word),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_script_that_is_plainly_started_is_looked_for() {
        let of = |text: &str| script_of(&Entrypoint::Shell(text.to_owned()));
        for (entrypoint, script) in [
            ("python3 train.py", Some("train.py")),
            ("python -u ./src/train.py --lr 0.1", Some("src/train.py")),
            ("/opt/venv/bin/python3.11 train.py", Some("train.py")),
            ("bash run.sh", Some("run.sh")),
            ("./run.sh --fast", Some("run.sh")),
            (
                "python3 -m determined.launch.torch_distributed python3 train.py",
                Some("train.py"),
            ),
            (
                "python3 -m determined.launch.torch_distributed -- model:Trial",
                None,
            ),
            ("python3 -m training", None),
            ("python3 -c pass", None),
            ("model_def:Trial", None),
            ("python3 /opt/train.py", None),
            ("python3 ../train.py", None),
            ("git clone x && python3 train.py", None),
            ("python3 $SCRIPT", None),
            ("python3", None),
            ("pythonic train.py", None),
            ("", None),
        ] {
            assert_eq!(of(entrypoint).as_deref(), script, "{entrypoint}");
        }
        let words = ["python3", "my train.py"].map(str::to_owned).to_vec();
        let found = script_of(&Entrypoint::Argv(words));
        assert_eq!(found.as_deref(), Some("my train.py"));
    }

    #[test]
    fn a_missing_script_is_named_with_the_nearest_file() {
        let of = |script: &str, names: &[&'static str]| nearest(script, names.iter().copied());
        let names = ["model.py", "train.py", "src/evaluate.py", "Predict.py"];
        assert_eq!(of("trian.py", &names), Some("train.py"));
        assert_eq!(of("evaluate.py", &names), Some("src/evaluate.py"));
        assert_eq!(of("predict.py", &names), Some("Predict.py"));
        assert_eq!(of("x.py", &["y.py"]), None);
        assert_eq!(of("other.py", &names), None);
    }
}
