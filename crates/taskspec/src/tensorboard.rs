//! What a TensorBoard has in its container: where the files of its trials are, and a port.
//! `docs/contract/task-environment.md`.

use std::ops::RangeInclusive;

use det_ids::{ExperimentId, TrialId};
use serde::{Deserialize, Serialize};

use crate::service::{PYTHON_FINDER, file, script};
use crate::variables as v;
use crate::{Entrypoint, Mount, TaskFile};

/// Ports that `TensorBoards` listen on: in the process runtime, all `TensorBoards` of a machine share its ports.
pub const TENSORBOARD_PORTS: RangeInclusive<u16> = 2600..=2899;

const SCRIPT_FILE: &str = "/run/determined/tensorboard/tensorboard-entrypoint.sh";
const PROGRAM_FILE: &str = "/run/determined/tensorboard/tensorboard-program.py";
const KEY_FILE: &str = "/run/determined/tensorboard/key";
const SOURCES_FILE: &str = "/run/determined/tensorboard/sources";
/// The message where there is nothing to show; the file exists if all has ended.
const ENDED_FILE: &str = "/run/determined/tensorboard/ended";

/// Header of a request in which the proxy of the master shows a service the key of its details.
pub const SERVICE_KEY_HEADER: &str = "x-det-service-key";

/// Starts TensorBoard with a guard in front.
const PROGRAM: &str = include_str!("tensorboard.py");

/// What TensorBoard writes when it accepts connections.
pub(crate) const RUNNING: &str = "(Press CTRL+C to quit)";

/// One directory has a link to each source, because TensorBoard takes one. It starts when there is something to show: one
/// without data shows nothing but an advice for programmers. Where all has ended, nothing will come.
const START: &str = r#"
run=/run/determined/tensorboard
mkdir -p "$run/logs"
while read -r name path; do
    ln -sfn "$path" "$run/logs/$name"
done <"$run/sources"
has_metrics() { [ -n "$(find -L "$run/logs" -name '*tfevents*' -print 2>/dev/null | head -n 1)" ]; }
if [ -e "$run/ended" ] && ! has_metrics; then
    fail 1 "$(cat "$run/ended")"
fi
find_python tensorboard TensorBoard 'tensorboard setuptools<81'
[ -z "$packages" ] || export PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}"
if ! has_metrics; then
    echo "TensorBoard is waiting for metrics: there are no TensorBoard files yet of what it is to show"
    until has_metrics; do sleep 2; done
fi
echo "TensorBoard contains metrics"
# It needs none.
unset DET_SESSION_TOKEN DET_USER_TOKEN
exec "$python" "$run/tensorboard-program.py" --logdir "$run/logs" --host "$address" --port "$TENSORBOARD_PORT" \
    --path_prefix "/proxy/$DET_TASK_ID" --reload_interval 10 "$@"
"#;

/// What only a TensorBoard has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TensorBoardDetails {
    /// Port that it listens on, one of [`TENSORBOARD_PORTS`].
    pub port: u16,
    /// What the proxy shows it with each request ([`SERVICE_KEY_HEADER`]): it answers no other program that reaches the port.
    /// A secret. Empty where an older master has launched it: it answers requests without a key then.
    #[serde(default)]
    pub key: String,
    /// The experiments that it was asked to show.
    pub experiment_ids: Vec<ExperimentId>,
    /// The trials that it was asked to show.
    pub trial_ids: Vec<TrialId>,
    /// The directories whose files it shows.
    pub sources: Vec<TensorBoardSource>,
    /// The storage that these are in.
    pub mounts: Vec<Mount>,
    /// Further options of its command line.
    pub args: Vec<String>,
    /// Seconds that it may be idle; `None` = for ever.
    pub idle_timeout: Option<u32>,
    /// Whether everything that it shows had ended when it was launched: what it does not find then never comes.
    #[serde(default)]
    pub all_ended: bool,
}

/// A directory with TensorBoard files, which may not exist yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorBoardSource {
    /// What TensorBoard calls it: letters, digits and `_`.
    pub name: String,
    /// Absolute path in the container, without a line end.
    pub path: String,
}

impl TensorBoardDetails {
    /// The command of its container.
    pub(crate) fn entrypoint(&self) -> Entrypoint {
        Entrypoint::Service {
            script: SCRIPT_FILE.to_owned(),
            args: self.args.clone(),
        }
    }

    /// The files of its container.
    pub(crate) fn files(&self) -> Vec<TaskFile> {
        let line = |source: &TensorBoardSource| format!("{} {}\n", source.name, source.path);
        let sources: String = self.sources.iter().map(line).collect();
        let mut files = vec![
            file(SOURCES_FILE, 0o644, &sources),
            file(KEY_FILE, 0o600, &self.key),
            file(PROGRAM_FILE, 0o644, PROGRAM),
            script(SCRIPT_FILE, &[PYTHON_FINDER, START]),
        ];
        if self.all_ended {
            files.push(file(ENDED_FILE, 0o644, &self.nothing_to_show()));
        }
        files
    }

    /// The message where all has ended and there is nothing to show.
    fn nothing_to_show(&self) -> String {
        let experiments = self
            .experiment_ids
            .iter()
            .map(|id| format!("experiment {id}"));
        let trials = self.trial_ids.iter().map(|id| format!("trial {id}"));
        let names: Vec<String> = experiments.chain(trials).collect();
        format!(
            "{} {} ended, and this TensorBoard finds no TensorBoard files of {} that it can read; code writes them into the \
             directory context.train.get_tensorboard_path()\n",
            names.join(", "),
            if names.len() == 1 { "has" } else { "have" },
            if names.len() == 1 { "it" } else { "them" },
        )
    }

    /// The variables of its container.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            (v::TENSORBOARD_PORT, self.port.to_string()),
            // Warnings of TensorFlow, about the machine, are of no use here.
            (v::TF_CPP_MIN_LOG_LEVEL, "3".to_owned()),
        ]
    }
}
