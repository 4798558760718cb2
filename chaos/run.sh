#!/bin/sh
# Faults against a real cluster, and what must hold meanwhile: chaos/run.sh --list
# Release binaries are used where they are built, else the newest build; DET_BIN names others.
set -eu
here=$(dirname "$(realpath "$0")")
root=$(dirname "$here")
if [ -z "${DET_BIN:-}" ] && [ -x "$root/target/release/det" ] && [ -x "$root/target/release/det-supervisor" ]; then
    export DET_BIN="$root/target/release/det"
fi
python=${CHAOS_PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3
PYTHONDONTWRITEBYTECODE=1 exec "$python" "$here/run.py" "$@"
