//! What a notebook has in its container: the settings of its Jupyter server, a certificate, and a port.
//! `docs/contract/task-environment.md`, "Notebooks".

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};

use crate::service::{PYTHON_FINDER, file, script};
use crate::variables as v;
use crate::{Entrypoint, TaskFile};

/// Ports that notebooks listen on: in the process runtime, all notebooks of a machine share its ports.
pub const NOTEBOOK_PORTS: RangeInclusive<u16> = 2900..=3199;
/// The name on the certificate of a notebook. No name of a host: who connects knows the certificate itself.
pub const NOTEBOOK_CERTIFICATE_NAME: &str = "notebook.determined";
/// The certificate of a notebook in its container.
pub const NOTEBOOK_CERTIFICATE_FILE: &str = "/run/determined/jupyter/jupyterCert.pem";

const PRIVATE_KEY_FILE: &str = "/run/determined/jupyter/jupyterKey.key";
const CONFIG_FILE: &str = "/run/determined/jupyter/config/jupyter_server_config.py";
const SCRIPT_FILE: &str = "/run/determined/jupyter/notebook-entrypoint.sh";

/// What the server writes a moment before it accepts connections.
pub(crate) const RUNNING: &str = "is running at:";
/// Longest time between two looks at whether a notebook is in use, in seconds.
const LONGEST_CHECK: u32 = 30;
/// Longest time between two looks of the server at its kernels, in seconds.
const LONGEST_KERNEL_CHECK: u32 = 60;

/// Everything is in variables, so that it appears on no command line.
const CONFIG: &str = r#"import os

from jupyter_server.serverapp import ServerApp

c = get_config()  # noqa: F821

c.IdentityProvider.token = os.environ["DET_NOTEBOOK_TOKEN"]
c.ServerApp.port = int(os.environ["NOTEBOOK_PORT"])
# The master's proxy knows this port only.
c.ServerApp.port_retries = 0
c.ServerApp.base_url = "/proxy/" + os.environ["DET_TASK_ID"] + "/"
c.ServerApp.certfile = "/run/determined/jupyter/jupyterCert.pem"
c.ServerApp.keyfile = "/run/determined/jupyter/jupyterKey.key"
c.ServerApp.open_browser = False
c.ServerApp.allow_root = True
# Requests come through the proxy: they name the master's host, and carry the client's address.
c.ServerApp.allow_remote_access = True
c.ServerApp.trust_xheaders = True
c.ServerApp.root_dir = "/"
c.ServerApp.preferred_dir = os.getcwd()
c.ServerApp.terminado_settings = {"shell_command": [os.environ.get("SHELL") or "/bin/sh"]}
# Its log would show the address at which only the master's proxy reaches it.
ServerApp.display_url = property(
    lambda app: f"{app.base_url} of the master; `det notebook open {os.environ['DET_TASK_ID']}` opens it"
)
"#;

/// A `JupyterLab` that is installed for the task alone is used by its server: programs of the notebook import what the
/// environment has. A kernel finds what it needs itself, where the environment has none, at the end of its path.
const START: &str = r#"
find_python jupyterlab JupyterLab jupyterlab
run=/run/determined/jupyter
export JUPYTER_CONFIG_DIR="$run/config" JUPYTER_DATA_DIR="$run/data" JUPYTER_RUNTIME_DIR="$run/runtime"
mkdir -p "$JUPYTER_CONFIG_DIR" "$JUPYTER_DATA_DIR" "$JUPYTER_RUNTIME_DIR"
# Terminals start the shell of the account; where that forbids logins, or there is no account, the one that is installed.
shell=$(getent passwd "$(id -u)" 2>/dev/null | cut -d : -f 7) || shell=
case $shell in
'' | */nologin | */false) shell=$(command -v bash || command -v sh) ;;
esac
export SHELL="$shell"
set -- --config "$run/config/jupyter_server_config.py" --ServerApp.ip="$address"
if [ -z "$packages" ]; then
    exec "$python" -m jupyterlab "$@"
fi
# JupyterLab looks for its pages, its extensions and its kernels where the environment's would be.
export JUPYTERLAB_DIR="${JUPYTERLAB_DIR:-$packages/share/jupyter/lab}"
export JUPYTER_PATH="$packages/share/jupyter${JUPYTER_PATH:+:$JUPYTER_PATH}"
export JUPYTER_CONFIG_PATH="$packages/etc/jupyter${JUPYTER_CONFIG_PATH:+:$JUPYTER_CONFIG_PATH}"
kernels="$packages/share/jupyter/kernels"
if has_module ipykernel; then
    # The kernel is the environment's own, with its own description.
    rm -rf "$kernels"
else
    order=last
    "$python" -c 'import sys; sys.path.append(sys.argv[1]); import ipykernel.kernelapp' "$packages" 2>/dev/null || {
        order=first
        echo "WARNING: the kernel that pip has installed does not work with the versions of this environment: notebooks" \
            "import the versions in $packages first; install ipykernel in the environment to have its own"
    }
    "$python" - "$packages" "$order" "$kernels/python3/kernel.json" <<'END'
import json
import sys

packages, order, path = sys.argv[1:]
place = {"last": "len(sys.path)", "first": "1"}[order]
code = (
    f"import runpy, sys; sys.path.insert({place}, {packages!r}); "
    "runpy.run_module('ipykernel_launcher', run_name='__main__')"
)
with open(path) as file:
    spec = json.load(file)
spec["argv"] = [sys.executable, "-c", code, "-f", "{connection_file}"]
with open(path, "w") as file:
    json.dump(spec, file)
END
fi
exec "$python" -c 'import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("jupyterlab", run_name="__main__", alter_sys=True)' "$packages" "$@"
"#;

/// What keeps a notebook from being idle, besides traffic through the master.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, EnumString, IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum NotebookIdleType {
    /// A kernel or a terminal that exists.
    #[default]
    KernelsOrTerminals,
    /// A client that is connected to a kernel.
    KernelConnections,
    /// A kernel that executes, or output of a kernel or terminal since the last look.
    Activity,
}

/// What only a notebook has. Not printable: it contains secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotebookDetails {
    /// Port that its server listens on, one of [`NOTEBOOK_PORTS`].
    pub port: u16,
    /// What its server asks clients for. A secret of its owner.
    pub token: String,
    /// The certificate of its server, PEM. Nothing else signs it: the proxy trusts this one only.
    pub certificate: String,
    /// The key of the certificate, PEM. A secret.
    pub private_key: String,
    /// Seconds that it may be idle; `None` = for ever.
    pub idle_timeout: Option<u32>,
    /// What keeps it from being idle.
    pub idle_type: NotebookIdleType,
    /// Seconds that a kernel may execute nothing until the server shuts it down; `None` = for ever.
    #[serde(default)]
    pub kernel_idle_timeout: Option<u32>,
}

/// How the supervisor finds out whether a notebook is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleCheck {
    /// Which activity counts as use.
    pub idle_type: NotebookIdleType,
    /// Port of the server, in the container.
    pub port: u16,
    /// Seconds between two looks at the server.
    pub every_seconds: u32,
}

impl NotebookDetails {
    /// The command of its container.
    pub(crate) fn entrypoint() -> Entrypoint {
        Entrypoint::Service {
            script: SCRIPT_FILE.to_owned(),
            args: Vec::new(),
        }
    }

    /// The files of its container.
    pub(crate) fn files(&self) -> Vec<TaskFile> {
        vec![
            file(NOTEBOOK_CERTIFICATE_FILE, 0o600, &self.certificate),
            file(PRIVATE_KEY_FILE, 0o600, &self.private_key),
            file(
                CONFIG_FILE,
                0o600,
                &format!("{CONFIG}{}", self.kernel_settings()),
            ),
            script(SCRIPT_FILE, &[PYTHON_FINDER, START]),
        ]
    }

    /// Settings of the server by which it shuts kernels down that execute nothing. Kernels to which a page is connected are
    /// among them, since a page that was left open is what keeps most; those that execute never are. Empty = all stay.
    /// <https://jupyter-server.readthedocs.io/en/latest/other/full-config.html>
    fn kernel_settings(&self) -> String {
        self.kernel_idle_timeout
            .map_or_else(String::new, |seconds| {
                let every = (seconds / 3).clamp(1, LONGEST_KERNEL_CHECK);
                format!(
                    "c.MappingKernelManager.cull_idle_timeout = {seconds}\n\
                     c.MappingKernelManager.cull_interval = {every}\n\
                     c.MappingKernelManager.cull_connected = True\n\
                     c.MappingKernelManager.cull_busy = False\n"
                )
            })
    }

    /// The variables of its container.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let idle_type: &'static str = self.idle_type.into();
        vec![
            (v::NOTEBOOK_PORT, self.port.to_string()),
            (v::NOTEBOOK_IDLE_TYPE, idle_type.to_owned()),
            (v::DET_NOTEBOOK_TOKEN, self.token.clone()),
        ]
    }

    /// How its use is watched; `None` = it may be idle for ever.
    pub(crate) fn idle_check(&self) -> Option<IdleCheck> {
        let timeout = self.idle_timeout?;
        Some(IdleCheck {
            idle_type: self.idle_type,
            port: self.port,
            // Use is seen before the time is over.
            every_seconds: (timeout / 3).clamp(1, LONGEST_CHECK),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(idle_timeout: Option<u32>, kernel_idle_timeout: Option<u32>) -> NotebookDetails {
        NotebookDetails {
            port: 2900,
            token: String::new(),
            certificate: String::new(),
            private_key: String::new(),
            idle_timeout,
            idle_type: NotebookIdleType::Activity,
            kernel_idle_timeout,
        }
    }

    #[test]
    fn kernels_are_shut_down_where_a_time_is_given() {
        let settings = |timeout| {
            let files = details(None, timeout).files();
            let config = files.into_iter().find(|file| file.path == CONFIG_FILE);
            config.map(|file| file.content).unwrap_or_default()
        };
        assert_eq!(settings(None), CONFIG);
        let with = settings(Some(600));
        for line in [
            "c.MappingKernelManager.cull_idle_timeout = 600\n",
            "c.MappingKernelManager.cull_interval = 60\n",
            "c.MappingKernelManager.cull_connected = True\n",
            "c.MappingKernelManager.cull_busy = False\n",
        ] {
            assert!(with.contains(line), "{line} in {with}");
        }
        assert!(settings(Some(2)).contains("cull_interval = 1\n"));
    }

    #[test]
    fn details_that_an_earlier_version_has_stored_are_read() {
        let stored = r#"{"port": 2900, "token": "t", "certificate": "c", "private_key": "k", "idle_timeout": null,
                         "idle_type": "activity"}"#;
        let details: NotebookDetails = serde_json::from_str(stored).unwrap();
        assert_eq!(details.kernel_idle_timeout, None);
    }

    #[test]
    fn the_use_of_a_notebook_is_looked_at_well_before_its_time_is_over() {
        let with = |idle_timeout| details(idle_timeout, None);
        let every = |timeout| with(timeout).idle_check().map(|check| check.every_seconds);
        assert_eq!(every(None), None);
        assert_eq!(every(Some(1)), Some(1));
        assert_eq!(every(Some(30)), Some(10));
        assert_eq!(every(Some(3600)), Some(LONGEST_CHECK));
    }
}
