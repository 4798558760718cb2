//! `det config check|explain|schema|keys`: configuration files, without a cluster unless one is asked for.

mod home;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use det_config::container::TaskContainerDefaults;
use det_config::document::{self, CheckOptions, DocumentKind, UnknownKind};
use det_config::errors::{ConfigError, ConfigErrors, ConfigWarning};
use det_config::explain::ExplainedKey;
use det_config::master::Underlay;
use det_config::origin::{Layer, Source};
use det_config::policies::{Policies, Workload};
use det_config::submitted::{CompletionDefaults, Experiment, SubmittedDocument, TaskDefaults};
use det_config::task::LaunchKind;
use det_config::{LoadedAgent, LoadedMaster, Sources, Status};
use serde_json::{Value, json};

use self::home::{Home, HomeArgs};
use crate::context::Context;
use crate::error::CliError;
use crate::model_files::{read_text, shown_name};
use crate::output;
use crate::serve;
use crate::table::{Format, FormatArgs, Listing};

/// Options of `det config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check files; nothing is sent anywhere. Exit code 1 when there are errors
    Check(CheckArgs),
    /// Show every effective key with its value and where that comes from
    Explain(ExplainArgs),
    /// Print the JSON schema of a kind of document, for editors
    Schema(SchemaArgs),
    /// List every key of a kind of document
    Keys(KeysArgs),
}

/// The kind of document that a file contains.
#[derive(Debug, Args)]
struct KindArg {
    /// Kind of document; guessed from what the file holds and its name unless given
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(DocumentKind::NAMES))]
    kind: Option<String>,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Files to check (YAML or JSON); - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    kind: KindArg,
    /// File of a template to build upon; may be repeated, the last one is the strongest
    #[arg(long = "template-file", value_name = "FILE")]
    templates: Vec<PathBuf>,
    /// Value that beats the file's, key.path=VALUE with YAML after the = (may be repeated)
    #[arg(long = "config", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Do not ask for keys that templates or the cluster may bring
    #[arg(long)]
    partial: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    /// File to explain (YAML or JSON); - for standard input
    file: PathBuf,
    #[command(flatten)]
    kind: KindArg,
    #[command(flatten)]
    home: HomeArgs,
    /// File of a template to build upon; may be repeated, the last one is the strongest
    #[arg(long = "template-file", value_name = "FILE")]
    templates: Vec<PathBuf>,
    /// Configuration of the master that the work would be submitted to; may be repeated, or a directory
    #[arg(long, value_name = "FILE")]
    master_config: Vec<PathBuf>,
    /// Pool that the work would run in, when the file names none
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// File of policies over everything; may be repeated, the last one (the cluster's) is the strongest
    #[arg(long = "policies-file", value_name = "FILE")]
    policies: Vec<PathBuf>,
    /// Value that beats the file's, key.path=VALUE with YAML after the = (may be repeated)
    #[arg(long = "config", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct SchemaArgs {
    /// Kind of document
    #[arg(value_parser = PossibleValuesParser::new(DocumentKind::NAMES))]
    kind: String,
}

#[derive(Debug, Args)]
struct KeysArgs {
    /// Kind of document
    #[arg(value_parser = PossibleValuesParser::new(DocumentKind::NAMES))]
    kind: String,
    #[command(flatten)]
    format: FormatArgs,
}

/// Carries out the command.
pub(crate) async fn run(
    args: ConfigArgs,
    context: impl FnOnce() -> Result<Context, CliError>,
) -> Result<ExitCode, CliError> {
    match args.action {
        Action::Check(args) => check(&args),
        Action::Explain(args) => {
            let context = args.home.asks().then(context).transpose()?;
            explain(&args, context.as_ref()).await?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Schema(args) => {
            output::json(&kind_of(&args.kind)?.json_schema()).map(|()| ExitCode::SUCCESS)
        }
        Action::Keys(args) => keys(&args).map(|()| ExitCode::SUCCESS),
    }
}

fn kind_of(name: &str) -> Result<DocumentKind, CliError> {
    DocumentKind::from_name(name).ok_or_else(|| {
        CliError::usage(format!(
            "\"{name}\" is not a kind of document; there are {}",
            DocumentKind::NAMES.join(", ")
        ))
    })
}

/// The kind given, or a guess with its reason; the inner error when neither content nor name decide.
fn kind_for(
    kind: &KindArg,
    file: &str,
    text: &str,
) -> Result<Result<(DocumentKind, Option<String>), UnknownKind>, CliError> {
    if let Some(name) = &kind.kind {
        return Ok(Ok((kind_of(name)?, None)));
    }
    Ok(document::guess(file, text).map(|guess| (guess.kind, Some(guess.because))))
}

/// Why a document was not checked: it cannot be parsed, or its kind is not known.
fn not_checked(file: &str, text: &str, undecided: UnknownKind) -> ConfigErrors {
    match det_config::yaml::parse(text) {
        Err(unreadable) => unreadable.in_file(file),
        Ok(_) => ConfigErrors::one(
            ConfigError::new("", None, undecided.message).with_hint(undecided.hint),
        )
        .in_file(file),
    }
}

fn note_guess(file: &str, kind: DocumentKind, because: &str) {
    output::note(format_args!(
        "{file}: read as {}, because {because}; --kind sets another kind",
        kind.noun()
    ));
}

/// Templates as `(name, file, text)`; the name is that of the file without its ending.
fn read_templates(paths: &[PathBuf]) -> Result<Vec<(String, String, String)>, CliError> {
    paths
        .iter()
        .map(|path| {
            let name = path
                .file_stem()
                .map_or_else(|| shown_name(path), |stem| stem.to_string_lossy().into());
            Ok((name, shown_name(path), read_text(path)?))
        })
        .collect()
}

fn check(args: &CheckArgs) -> Result<ExitCode, CliError> {
    let templates = read_templates(&args.templates)?;
    let options = CheckOptions {
        overrides: &args.overrides,
        templates: &templates,
        partial: args.partial,
    };
    let mut all_good = true;
    let mut results = Vec::new();
    for path in &args.files {
        let file = shown_name(path);
        let text = match read_text(path) {
            Ok(text) => text,
            Err(unreadable) => {
                // The other files are still checked.
                all_good = false;
                if args.json {
                    results.push(
                        json!({"file": file, "ok": false, "unreadable": unreadable.to_string()}),
                    );
                } else {
                    output::line(&unreadable)?;
                }
                continue;
            }
        };
        let (kind, because) = match kind_for(&args.kind, &file, &text)? {
            Ok(found) => found,
            Err(undecided) => {
                all_good = false;
                let errors = not_checked(&file, &text, undecided);
                if args.json {
                    results.push(as_json(&file, None, None, &Err(errors)));
                } else {
                    output::line(&errors)?;
                }
                continue;
            }
        };
        let outcome = document::check(kind, &file, &text, options);
        all_good &= outcome.is_ok();
        if args.json {
            results.push(as_json(&file, Some(kind), because.as_deref(), &outcome));
            continue;
        }
        if let Some(because) = &because {
            note_guess(&file, kind, because);
        }
        match outcome {
            Ok(checked) => {
                print_warnings(&checked.warnings)?;
                let fits = match &checked.fits {
                    Some(fits) => format!(" for {fits}"),
                    None => String::new(),
                };
                let warned = match checked.warnings.len() {
                    0 => String::new(),
                    1 => ", 1 warning".to_owned(),
                    n => format!(", {n} warnings"),
                };
                output::line(format_args!(
                    "{file}: {}{fits}, no errors{warned}",
                    kind.noun()
                ))?;
            }
            Err(errors) => output::line(&errors)?,
        }
    }
    if args.json {
        output::json(&results)?;
    }
    Ok(if all_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print_warnings(warnings: &[ConfigWarning]) -> Result<(), CliError> {
    for warning in warnings {
        output::line(warning.located())?;
    }
    Ok(())
}

fn as_json(
    file: &str,
    kind: Option<DocumentKind>,
    because: Option<&str>,
    outcome: &Result<document::CheckReport, ConfigErrors>,
) -> Value {
    let warnings = |warnings: &[ConfigWarning]| -> Vec<Value> {
        warnings.iter().map(ConfigWarning::to_json).collect()
    };
    let mut result =
        json!({"file": file, "kind": kind.map(DocumentKind::name), "guessed_because": because});
    let rest = match outcome {
        Ok(checked) => json!({
            "ok": true, "errors": [], "warnings": warnings(&checked.warnings), "fits": checked.fits,
            "repaired": null,
        }),
        Err(errors) => json!({
            "ok": false,
            "errors": errors.0.iter().map(ConfigError::to_json).collect::<Vec<_>>(),
            "warnings": [], "fits": null, "repaired": errors.repaired(),
        }),
    };
    if let (Some(result), Value::Object(rest)) = (result.as_object_mut(), rest) {
        result.extend(rest);
    }
    result
}

/// Carries out `det config explain`; `context` is of the master, if one is asked.
async fn explain(args: &ExplainArgs, context: Option<&Context>) -> Result<(), CliError> {
    let (file, text) = (shown_name(&args.file), read_text(&args.file)?);
    let (kind, because) = kind_for(&args.kind, &file, &text)?.map_err(|undecided| {
        CliError::usage(format!("{file} {}; {}", undecided.message, undecided.hint))
    })?;
    if let Some(because) = &because {
        note_guess(&file, kind, because);
    }
    let keys = match kind {
        DocumentKind::Experiment => explain_experiment(args, context, &file, &text).await?,
        DocumentKind::TaskOf(kind) => explain_task(args, context, kind, &file, &text).await?,
        DocumentKind::Task => {
            return Err(CliError::usage(
                "what a task gets depends on its kind: give --kind notebook, shell, command, tensorboard or generic",
            ));
        }
        DocumentKind::Template => {
            return Err(CliError::usage(
                "a template is explained with what builds upon it: det config explain FILE --template-file TEMPLATE",
            ));
        }
        DocumentKind::Policies(_) => {
            return Err(CliError::usage(
                "policies are explained with what they are laid over: det config explain FILE --policies-file POLICIES",
            ));
        }
        DocumentKind::Master | DocumentKind::Agent => explain_process(args, kind, &file, text)?,
    };
    print_keys(&keys, args.format.format())
}

/// Prints every key with its value and origin.
pub(crate) fn print_keys(keys: &[ExplainedKey], format: Format) -> Result<(), CliError> {
    let mut listing = Listing::new(["Key", "Value", "From"]);
    for key in keys {
        let value = match key.origin.layer() {
            // What is generated at submission is not known before.
            Layer::Generated => "-".to_owned(),
            _ => key.value.to_string(),
        };
        listing.push([key.path.clone(), value, key.origin.to_string()]);
    }
    let objects: Vec<Value> = keys.iter().map(ExplainedKey::to_json).collect();
    listing.print(format, &objects)
}

/// The configuration of the master that the work would be submitted to; one of defaults unless files are named.
fn master(args: &ExplainArgs) -> Result<LoadedMaster, CliError> {
    let files = if args.master_config.is_empty() {
        Vec::new()
    } else {
        serve::config_files(&args.master_config, "")?
    };
    let loaded = LoadedMaster::load(Sources {
        files: &files,
        env: &std::collections::BTreeMap::new(),
        flags: &[],
    })?;
    Ok(loaded)
}

/// The defaults of the master for the pool that the document names. `asked` is that pool.
fn underlay(
    args: &ExplainArgs,
    master: &LoadedMaster,
    asked: Option<String>,
    slots: u32,
) -> Result<Underlay, CliError> {
    let config = &master.config;
    let default = if slots == 0 {
        config.default_aux_pool()
    } else {
        config.default_compute_pool()
    };
    let is_tried = asked.is_none() && args.pool.is_some();
    let pool = asked
        .or_else(|| args.pool.clone())
        .or_else(|| default.map(str::to_owned))
        .unwrap_or_default();
    if !args.master_config.is_empty() && config.resource_pool(&pool).is_none() {
        let pools = config.managers().flat_map(|(_, pools)| pools);
        let names: Vec<&str> = pools.map(|pool| pool.pool_name.as_str()).collect();
        return Err(CliError::request(format!(
            "the master's configuration has no pool \"{pool}\"; it has {}",
            names.join(", ")
        )));
    }
    let underlay = master.underlay(&pool);
    Ok(if is_tried {
        underlay.pool_chosen_by(Source::of(Layer::Flag, "--pool"))
    } else {
        underlay
    })
}

/// The checkpoint storage of a master whose file names none, and the layer that it comes from. Such a master stores
/// checkpoints in its data directory.
fn master_storage(
    args: &ExplainArgs,
    master: &LoadedMaster,
    home: Option<&Home>,
) -> (Value, Layer) {
    let in_force = home.and_then(|home| home.master_storage.clone());
    if let (Some(storage), true) = (in_force, args.master_config.is_empty()) {
        return (storage, Layer::CheckpointStorage);
    }
    let data = master.config.data_dir.as_deref();
    let data = data.unwrap_or(crate::master::DEFAULT_DATA_DIR);
    let storage = json!({"type": "shared_fs", "host_path": format!("{data}/checkpoints")});
    let layer = if args.master_config.is_empty() {
        Layer::AssumedStorage
    } else {
        Layer::CheckpointStorage
    };
    (storage, layer)
}

/// The master's policies, if it was asked, and over them those of files.
fn policies(
    args: &ExplainArgs,
    home: Option<&Home>,
    workload: Workload,
) -> Result<Vec<Policies>, CliError> {
    let mut all = home.map_or_else(Vec::new, |home| home.policies.clone());
    for path in &args.policies {
        let (file, text) = (shown_name(path), read_text(path)?);
        let scope = format!("\"{file}\"");
        let read = Policies::parse(workload, &scope, Some(&file), &text);
        all.push(read.map_err(|errors| CliError::document("the policies", &errors))?);
    }
    Ok(all)
}

/// The default pool of the workspace, unless the work or `--pool` names another.
fn pool_of_home<'h>(
    args: &ExplainArgs,
    home: Option<&'h Home>,
    asked: Option<&str>,
    slots: u32,
) -> Option<&'h str> {
    home.filter(|_| asked.is_none() && args.pool.is_none())?
        .pool(slots)
}

/// Loads the workspace from the master, if one is asked; `of_file` are the workspace and the project that the file names.
async fn ask_home(
    args: &ExplainArgs,
    context: Option<&Context>,
    of_file: (Option<&str>, Option<&str>),
    workload: Workload,
) -> Result<Option<Home>, CliError> {
    match (context, of_file.0) {
        (Some(context), _) => {
            let client = context.session().await?.client;
            if let Some(pool) = &args.pool {
                home::require_pool(&client, pool).await?;
            }
            let home = Home::ask(&client, &args.home, of_file, workload).await?;
            Ok(Some(home))
        }
        (None, Some(workspace)) => {
            output::note(format_args!(
                "no master is asked what workspace \"{workspace}\" gives its work; --ask-master does"
            ));
            Ok(None)
        }
        (None, None) => Ok(None),
    }
}

async fn explain_experiment(
    args: &ExplainArgs,
    context: Option<&Context>,
    file: &str,
    text: &str,
) -> Result<Vec<ExplainedKey>, CliError> {
    let templates = read_templates(&args.templates)?;
    let submitted = SubmittedDocument::read_file(Experiment, file, text, &args.overrides)?
        .over_templates(&templates)?;
    let master = master(args)?;
    let placement = submitted.under(&[]).placement();
    let of_file = (placement.workspace.as_deref(), placement.project.as_deref());
    let home = ask_home(args, context, of_file, Workload::Experiment).await?;
    let policies = policies(args, home.as_ref(), Workload::Experiment)?;
    let slots = submitted
        .under(&policies)
        .size()
        .map_or(1, |size| size.slots);
    let placement = submitted.under(&policies).placement();
    let several = placement.resource_pools.into_iter().next();
    let asked = several.or(placement.resource_pool);
    let own_pool = pool_of_home(args, home.as_ref(), asked.as_deref(), slots);
    let asked = asked.or_else(|| own_pool.map(str::to_owned));
    let submitted = match &home {
        Some(home) => home.under(submitted, own_pool),
        None => submitted,
    };
    let (storage, whose) = master_storage(args, &master, home.as_ref());
    let underlay = underlay(args, &master, asked, slots)?.or_storage(&storage, &whose);
    let defaults = CompletionDefaults {
        name: "Experiment (three-random-words)".into(),
        experiment_seed: 0,
        checkpoint_storage: None,
        task_container_defaults: &TaskContainerDefaults::default(),
        default_priority: None,
        managed: true,
    };
    let explained = submitted.under(&policies).explain(&defaults, &underlay)?;
    note_warnings(&explained.warnings);
    Ok(explained.keys)
}

async fn explain_task(
    args: &ExplainArgs,
    context: Option<&Context>,
    kind: LaunchKind,
    file: &str,
    text: &str,
) -> Result<Vec<ExplainedKey>, CliError> {
    let templates = read_templates(&args.templates)?;
    let submitted = SubmittedDocument::read_file(kind, file, text, &args.overrides)?
        .over_templates(&templates)?;
    let master = master(args)?;
    let home = ask_home(args, context, (None, None), Workload::Tasks).await?;
    let policies = policies(args, home.as_ref(), Workload::Tasks)?;
    let governed = submitted.under(&policies);
    let slots = governed.size().map_or(1, |size| size.slots);
    let asked = governed.placement().resource_pool;
    let own_pool = pool_of_home(args, home.as_ref(), asked.as_deref(), slots);
    let pool = asked.or_else(|| own_pool.map(str::to_owned));
    let submitted = match &home {
        Some(home) => home.under_task(kind, submitted, own_pool),
        None => submitted,
    };
    let underlay = underlay(args, &master, pool, slots)?;
    let defaults = TaskDefaults {
        description: format!("{} (three-random-words)", kind.title()),
        task_container_defaults: &TaskContainerDefaults::default(),
        default_priority: None,
        has_context: false,
    };
    let explained = submitted.under(&policies).explain(&defaults, &underlay)?;
    note_warnings(&explained.warnings);
    Ok(explained.keys)
}

/// Explains the configuration of a master or an agent.
fn explain_process(
    args: &ExplainArgs,
    kind: DocumentKind,
    file: &str,
    text: String,
) -> Result<Vec<ExplainedKey>, CliError> {
    let unused = !args.templates.is_empty()
        || !args.overrides.is_empty()
        || !args.policies.is_empty()
        || !args.master_config.is_empty()
        || args.home.asks();
    if unused {
        return Err(CliError::usage(format!(
            "{} has no layers but its own: leave --template-file, --policies-file, --master-config, --config and the workspace away",
            kind.noun()
        )));
    }
    let files = [(file.to_owned(), text)];
    let sources = Sources {
        files: &files,
        ..Sources::default()
    };
    if kind == DocumentKind::Master {
        let loaded = LoadedMaster::load(sources)?;
        note_warnings(&loaded.warnings);
        Ok(loaded.origins())
    } else {
        let loaded = LoadedAgent::load(sources)?;
        note_warnings(&loaded.warnings);
        Ok(loaded.origins())
    }
}

fn note_warnings(warnings: &[ConfigWarning]) {
    for warning in warnings {
        output::note(warning.located());
    }
}

fn keys(args: &KeysArgs) -> Result<(), CliError> {
    let keys = kind_of(&args.kind)?.keys();
    let mut listing = Listing::new(["Key", "What", "Default", "Variable", "Flag", "Meaning"]);
    let mut objects = Vec::new();
    for key in &keys {
        let default = key.default.as_ref().map(Value::to_string);
        let status = match key.status {
            Status::Acted => String::new(),
            Status::NotYet => " (accepted, not acted on yet)".to_owned(),
            Status::Old(why) => format!(" (older: {why})"),
        };
        let with = if key.goes_with.is_empty() {
            String::new()
        } else {
            format!(" [{}]", key.goes_with)
        };
        listing.push([
            format!("{}{with}", key.path),
            key.kind.replace('`', ""),
            default.clone().unwrap_or_default(),
            key.variable.clone().unwrap_or_default(),
            key.flag.clone().unwrap_or_default(),
            format!("{}{status}", key.about),
        ]);
        objects.push(json!({
            "key": key.path,
            "goes_with": key.goes_with,
            "what": key.kind,
            "default": key.default,
            "required": match key.required {
                det_config::Requirement::No => "no",
                det_config::Requirement::InSection => "in its section",
                det_config::Requirement::ByAnyLayer => "by any layer",
            },
            "secret": key.secret,
            "acted_on": key.status == Status::Acted,
            "variable": key.variable,
            "flag": key.flag,
            "merge": key.merge,
            "meaning": key.about,
        }));
    }
    listing.print(args.format.format(), &objects)
}
