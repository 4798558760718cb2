#!/usr/bin/env bash
# Measures the product: bench/run.sh [--profile release|dev] [--quick] [FIGURE...]   (bench/run.sh --help lists all options)
# Builds what is to be measured first, unless DET_BIN names an executable with det-supervisor in the same directory.
set -euo pipefail
here=$(dirname "$(realpath "$0")")

profile=release
arguments=()
build=yes
while [ $# -gt 0 ]; do
    case $1 in
    --profile)
        profile=${2:?"--profile needs release or dev"}
        shift
        ;;
    --profile=*) profile=${1#*=} ;;
    --no-build) build=no ;;
    -h | --help | --list)
        arguments+=("$1")
        build=no
        ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
case $profile in
release) directory=release ;;
dev) directory=debug ;;
*)
    echo "bench/run.sh: there is no profile \"$profile\"; there are release and dev" >&2
    exit 2
    ;;
esac

if [ -z "${DET_BIN:-}" ]; then
    if [ "$build" = yes ]; then
        make -C "$here/.." build "PROFILE=$profile"
        cargo build --manifest-path "$here/../Cargo.toml" -p det-bench "--profile=$profile"
    fi
    export DET_BIN=${CARGO_TARGET_DIR:-$here/../target}/$directory/det
fi
export PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1
if [ "${arguments[0]:-}" = compare ]; then
    exec "${DET_BENCH_PYTHON:-python3}" -m measure.compare "${arguments[@]:1}"
fi
exec "${DET_BENCH_PYTHON:-python3}" -m measure --profile "$profile" "${arguments[@]}"
