"""Measures figures one after another, writes a file for each, and prints one table."""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from measure import facts
from measure.beside import measure_beside
from measure.cluster import Failed
from measure.figures import Figure, Plan, all_figures
from measure.results import Outcome, Skipped, regressions, table

RESULTS = facts.ROOT / "bench" / "results"
# Cores that other processes may use before a figure is reported as disturbed.
QUIET_CORES = 0.2


def main(arguments: Sequence[str]) -> int:
    figures = all_figures()
    options = _options(figures).parse_args(arguments)
    if options.list:
        for figure in figures.values():
            print(f"{figure.name:16} {figure.title}{' (' + ', '.join(figure.stores) + ')'}")
        return 0
    unknown = [name for name in options.figure if name not in figures]
    if unknown:
        print(f"bench: there is no figure {', '.join(unknown)}; there are {', '.join(figures)}", file=sys.stderr)
        return 2
    det = pathlib.Path(os.environ.get("DET_BIN", ""))
    if not det.is_file():
        print(f'bench: DET_BIN names no executable: "{det}"', file=sys.stderr)
        return 2
    chosen = [figures[name] for name in options.figure] or list(figures.values())
    if options.before and not options.before.is_file():
        print(f'bench: --before names no executable: "{options.before}"', file=sys.stderr)
        return 2
    # Ended from outside it takes its clusters down with it, as it does for Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="det-bench-", dir=options.work) as work:
        os.chmod(work, 0o711)
        plan = Plan(
            det=det.resolve(),
            work=pathlib.Path(work),
            quick=options.quick,
            python=sys.executable,
            image=os.environ.get("DET_BENCH_IMAGE") or None,
            load=_generator(det),
            soak_seconds=options.soak_seconds,
            say=lambda text: print(f"  {text}", flush=True),
        )
        if options.before:
            before = replace(plan, det=options.before.resolve(), load=_generator(options.before))
            return measure_beside(chosen, options.store, before, plan, options.rounds, options.results)
        return _measure(chosen, options.store, plan, options.profile, options.results)


def _generator(det: pathlib.Path) -> pathlib.Path | None:
    """The load generator: named by DET_BENCH_BIN, or in the directory of the measured executable."""
    path = pathlib.Path(os.environ.get("DET_BENCH_BIN") or det.parent / "det-bench")
    return path.resolve() if path.is_file() else None


def _options(figures: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/run.sh",
        description="Measures the product: starts its executables, drives them, writes bench/results/FIGURE.json.",
        epilog="DET_TEST_POSTGRES_URL names a PostgreSQL server to measure on as well, with a role that may create "
        "databases; DET_BENCH_IMAGE an image with a shell for the figure in Docker; DET_BIN an executable to measure "
        "instead of building one. What is missing is skipped, and printed.",
    )
    parser.add_argument("figure", nargs="*", help=f"what to measure, everything by default: {', '.join(figures)}")
    parser.add_argument("--profile", choices=("release", "dev"), default="release", help="what to build and measure")
    parser.add_argument("--quick", action="store_true", help="few and short repeats: to see that it works")
    parser.add_argument("--no-build", action="store_true", help="measure what was built before")
    parser.add_argument("--store", choices=("sqlite", "postgres"), help="only on this store")
    parser.add_argument("--soak-seconds", type=float, default=120.0, help="how long the soak's load is [default: 120]")
    parser.add_argument("--work", help="where clusters keep their files, on the disk to be measured [default: TMPDIR]")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="where result files go")
    parser.add_argument(
        "--before", type=pathlib.Path, metavar="DET", help="measure this older executable too, by turns"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured with --before [default: 3]")
    parser.add_argument("--list", action="store_true", help="name the figures and end")
    return parser


def _measure(figures: Sequence[Figure], only_store: str | None, plan: Plan, profile: str, results: pathlib.Path) -> int:
    build = facts.build(plan.det, profile)
    machine = facts.machine(plan.work)
    if machine["file_system"] in ("tmpfs", "ramfs"):
        print(f"bench: {plan.work} is in memory, where nothing is durable; name a disk with --work", flush=True)
    outcomes: list[Outcome] = []
    skipped: list[str] = []
    failed: list[str] = []
    worse: list[str] = []
    for figure in figures:
        for store in figure.stores:
            if only_store not in (None, store):
                continue
            name = f"{figure.name} on {store}"
            print(f"== {name}: {figure.title}", flush=True)
            began = time.time()
            now = facts.machine(plan.work)
            try:
                outcome = figure.measure(plan, store)
            except Skipped as reason:
                print(f"SKIPPED: {name}: {reason}", flush=True)
                skipped.append(f"{name}: {reason}")
                continue
            except Failed as reason:
                print(f"FAILED: {name}: {reason}", flush=True)
                failed.append(f"{name}: {reason}")
                continue
            except Exception:
                # A defect here must not cost the other figures.
                traceback.print_exc()
                failed.append(f"{name}: a defect of the measurement")
                continue
            outcomes.append(outcome)
            if not plan.quick:
                worse += regressions(outcome, results, now)
            about = {
                "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
                "seconds": round(time.time() - began, 1),
                "quick": plan.quick,
                "build": build,
                "machine": now,
            }
            print(f"  -> {outcome.write(results, about)}", flush=True)
    _report(outcomes, skipped, failed, build, machine, plan.quick)
    for line in worse:
        print(f"WORSE than this machine's earlier result by more than a fifth: {line}")
    return 1 if failed else 0


def _report(
    outcomes: Sequence[Outcome],
    skipped: Sequence[str],
    failed: Sequence[str],
    build: dict[str, Any],
    machine: dict[str, Any],
    quick: bool,
) -> None:
    durable = machine["durable_write_ms"]
    print()
    print(
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_mb']} MB, kernel {machine['kernel']}, "
        f"{machine['file_system']} with {durable['median']:.2f} ms per durable write; busy before: "
        f"{machine['busy_cores_before']:.2f} cores"
    )
    print(
        f"{build['version']}, profile {build['profile']}, {build['executable_bytes']:,} bytes, {build['rustc']}, "
        f"tree at {str(build['tree_commit'])[:12]} with {build['tree_changed_files']} changed files"
    )
    if quick:
        print("--quick: these numbers show that the measurements work, and nothing else")
    print()
    if outcomes:
        print(table(outcomes))
    for outcome in outcomes:
        taken = [cores["other"] for cores in _all_cores(outcome.processors)]
        if taken and max(taken) > QUIET_CORES:
            print(f"DISTURBED: {outcome.figure} ({outcome.store}): others used up to {max(taken):.1f} cores meanwhile")
    for line in skipped:
        print(f"SKIPPED: {line}")
    for line in failed:
        print(f"FAILED: {line}")


def _all_cores(processors: dict[str, Any]) -> list[dict[str, float]]:
    """Every record of who used the processors, however deep."""
    if "other" in processors:
        return [processors]
    found: list[dict[str, float]] = []
    for value in processors.values():
        found += value if isinstance(value, list) else _all_cores(value)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
