//! What the scripts of services have in common: each is started with the address to listen on, and options.

use crate::TaskFile;

/// Where what starts a service leaves why it gave up, a text, relative to the run directory: the exit code alone would have
/// users search the log for it.
pub const SERVICE_FAILURE_FILE: &str = "service-failure";

/// Begins every script: `find_python MODULE TITLE PACKAGES` sets `$python` to the interpreter of the environment. Where that
/// has no such module, it installs the packages for this task and sets `$packages` to their directory, which else is empty.
/// Who starts the service puts the directory on its path: nothing that the service starts has it there unasked, because the
/// packages in it may be other versions of what the environment has.
pub(crate) const PYTHON_FINDER: &str = r#"#!/bin/sh
set -eu
if [ "${DET_DEBUG:-}" = true ]; then set -x; fi
address=$1
shift
python=${DET_PYTHON_EXECUTABLE:-python3}
fail() {
    echo "ERROR: $2" >&2
    printf '%s\n' "$2" >/run/determined/service-failure || :
    exit "$1"
}
# Found, not imported: JupyterLab takes more than a second for that, and reports itself what is wrong with it. A directory of
# that name in the working directory is none of it.
has_module() {
    "$python" -c "import importlib.util as u, sys; s = u.find_spec('$1'); sys.exit(not (s and s.origin))" 2>/dev/null
}
find_python() {
    command -v "$python" >/dev/null ||
        fail 127 "$2 needs Python, and there is no \"$python\" on PATH; use an image that has it"
    packages=
    if has_module "$1"; then return; fi
    [ -z "${DET_SKIP_PIP_INSTALL:-}" ] ||
        fail 127 "this environment has no $2, and DET_SKIP_PIP_INSTALL forbids to install it; use an image that has it"
    echo "This environment has no $2: installing it for this task; images that have it start faster"
    packages="$PYTHONUSERBASE/services"
    # A word for each package. They are kept off the path of what the environment has, so conflicts between them are none.
    "$python" -m pip install --quiet --disable-pip-version-check --no-input --no-warn-conflicts --target "$packages" $3 ||
        fail 127 "this environment has no $2, and it could not be installed with pip (see above); use an image that has it"
    PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}" "$python" -c "import $1" ||
        fail 127 "the $2 that pip has installed does not work in this environment (see above); use an image that has it"
}
"#;

/// A file for the container.
pub(crate) fn file(path: &str, mode: u32, content: &str) -> TaskFile {
    TaskFile {
        path: path.to_owned(),
        mode,
        content: content.to_owned(),
    }
}

/// A script made of parts.
pub(crate) fn script(path: &str, parts: &[&str]) -> TaskFile {
    file(path, 0o755, &parts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RUN_DIR;

    #[test]
    fn scripts_leave_why_they_give_up_where_the_supervisor_looks_for_it() {
        let file = format!(">{RUN_DIR}/{SERVICE_FAILURE_FILE} ");
        assert!(PYTHON_FINDER.contains(&file), "{file}");
    }
}
