#!/bin/sh
# Runs lanes of the end-to-end tests: e2e/run.sh core client kills docker postgres hostile
# Ends with pytest's summary line and its exit code. What is skipped is named with the reason.
set -eu
here=$(dirname "$(realpath "$0")")
[ $# -gt 0 ] || set -- core
expression=""
for lane in "$@"; do
    case $lane in
    core | client | kills | docker | podman | postgres | hostile | torch | gpu | kubernetes | node) expression="${expression:+$expression or }$lane" ;;
    *)
        echo "e2e/run.sh: there is no lane \"$lane\"; lanes are core, client, kills, docker, podman, postgres, hostile, torch, gpu, kubernetes, node" >&2
        exit 2
        ;;
    esac
done
cd "$here"
# DET_E2E_PYTEST_ARGS is a list of words without blanks in them.
# shellcheck disable=SC2086
PYTHONDONTWRITEBYTECODE=1 exec "${DET_E2E_PYTEST_PYTHON:-python3}" -m pytest -m "$expression" --durations=10 ${DET_E2E_PYTEST_ARGS:-}
