#!/usr/bin/env bash
# Fuzzes one target, or each in turn, for so many seconds: fuzz/run.sh SECONDS [TARGET...]
# Needs a nightly compiler and nothing else. Findings are in fuzz/artifacts/TARGET/, inputs that reached new code in fuzz/corpus/.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")"

all=(config_yaml request archive log_framing agent_protocol searcher_snapshot)
[[ ${1:-} =~ ^[0-9]+$ ]] || { echo "usage: fuzz/run.sh SECONDS [TARGET...]; targets: ${all[*]}" >&2; exit 2; }
seconds=$1
shift
[ $# -gt 0 ] || set -- "${all[@]}"

# What cargo-fuzz passes, without the address sanitizer: there is no unsafe code to watch.
export RUSTUP_TOOLCHAIN=${RUSTUP_TOOLCHAIN:-nightly} CARGO_TARGET_DIR=$PWD/target
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
 -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
target=$(rustc -vV | sed -n 's/^host: //p')
# A target is named so that build scripts and macros are built without the flags.
cargo build --release --target "$target" ${FUZZ_JOBS:+--jobs "$FUZZ_JOBS"}

failed=()
for name in "$@"; do
    mkdir -p "corpus/$name" "artifacts/$name"
    seeds=()
    [ ! -d "seeds/$name" ] || seeds=("seeds/$name")
    printf '== %s, %s s\n' "$name" "$seconds"
    # 2 GB of memory and 5 s for one input are findings as well.
    "target/$target/release/$name" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=5 -max_len=65536 \
        -artifact_prefix="artifacts/$name/" -print_final_stats=1 "corpus/$name" "${seeds[@]}" \
        >"artifacts/$name/log" 2>&1 || failed+=("$name")
    grep -E 'stat::number_of_executed_units|stat::peak_rss_mb|ERROR|panicked|SUMMARY' "artifacts/$name/log" || true
done
if [ ${#failed[@]} -gt 0 ]; then
    printf 'fuzz: found something: %s; see fuzz/artifacts/\n' "${failed[*]}" >&2
    exit 1
fi
