"""The chaos runner. See README.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import platform
import signal
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import Missing, det_executable  # noqa: E402
from postgres import Postgres  # noqa: E402
from stage import Stage  # noqa: E402
from table import ROWS, Row  # noqa: E402

EVIDENCE = HERE.parent / ".cache" / "chaos"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="chaos/run.sh", description="Faults against a real cluster, and what must hold."
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and end")
    parser.add_argument("--scenario", nargs="+", metavar="NAME", default=[], help="only these; all if left out")
    parser.add_argument("--size", choices=("ci", "hand"), default="ci", help="how much of each fault (default: ci)")
    parser.add_argument("--seed", type=int, default=None, help="of everything random (default: of the clock; printed)")
    how_much = parser.add_mutually_exclusive_group()
    how_much.add_argument("--times", type=int, metavar="N", help="how often, in place of the size's number")
    how_much.add_argument("--duration", type=int, metavar="S", help="for how many seconds, in place of the size's")
    parser.add_argument("--store", choices=("sqlite", "postgres"), help="only on this database")
    parser.add_argument("--runtime", choices=("process", "docker"), help="only in this runtime")
    parser.add_argument("--verbose", action="store_true", help="log each step")
    return parser.parse_args()


def listed() -> str:
    lines = []
    for row in ROWS:
        amounts = f"ci {row.ci}, hand {row.hand} {row.unit}"
        lines.append(f"{row.name:20} {amounts:28} {'/'.join(row.stores)}, {'/'.join(row.runtimes)}")
        lines.append(f"{'':20} load: {row.load}")
        lines.append(f"{'':20} fault: {row.fault}")
    return "\n".join(lines)


def chosen(asked: argparse.Namespace) -> list[tuple[Row, str, str]]:
    """Rows with their store and runtime."""
    known = {row.name: row for row in ROWS}
    unknown = [name for name in asked.scenario if name not in known]
    if unknown:
        sys.exit(f"chaos: there is no scenario {', '.join(unknown)}; there are {', '.join(known)}")
    rows = [known[name] for name in asked.scenario] or list(ROWS)
    found = []
    for row in rows:
        for runtime in row.runtimes:
            for store in row.stores:
                kept = asked.size != "ci" or not row.ci_only or f"{store} {runtime}" in row.ci_only
                named = bool(asked.store or asked.runtime)
                if asked.store in (None, store) and asked.runtime in (None, runtime) and (kept or named):
                    found.append((row, store, runtime))
    return found


class Server:
    """The PostgreSQL server of this run, started when the first scenario wants it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._server: Postgres | None = None

    def __call__(self) -> Postgres:
        if self._server is None:
            self._server = self._stack.enter_context(Postgres())
        elif self._server.pid() is None:
            # A scenario left it down.
            self._server.start()
        return self._server


def play(row: Row, store: str, runtime: str, asked: argparse.Namespace, seed: int, server: Server) -> tuple[str, Any]:
    """Plays one scenario; gives its line and `passed`, `failed` or `skipped`."""
    amount = asked.times or asked.duration or row.amount(asked.size)
    evidence = EVIDENCE / time.strftime("%Y%m%d-%H%M%S") / f"{row.name}-{store}-{runtime}-{seed}"
    stage = Stage(row.name, store, runtime, seed, amount, asked.size, evidence, server, asked.verbose)
    label, began = f"{row.name} ({store}, {runtime})", time.monotonic()
    try:
        row.play(stage)
    except Missing as missing:
        return f"SKIPPED: {label}: {missing}", "skipped"
    counts = stage.counts
    words = [f"runs {counts.runs}", f"violations {len(counts.violations)}"]
    words += [f"{kind} {counts.of_kind(kind)}" for kind in ("lost", "doubled", "restarted")]
    if counts.recoveries:
        ordered = sorted(counts.recoveries)
        words.append(f"recovery p50 {ordered[len(ordered) // 2]:.2f} s, max {ordered[-1]:.2f} s")
    words += [f"{name} {value}" for name, value in stage.figures.items()]
    outcome = "failed" if counts.violations or counts.runs == 0 else "passed"
    if counts.runs == 0 and not counts.violations:
        words.append("nothing was done")
    words[-1] += f"; took {time.monotonic() - began:.0f} s"
    words += [f"first: {violation}" for violation in counts.violations[:1]]
    return f"{'ok' if outcome == 'passed' else 'FAILED'} {label}: {', '.join(words)}", outcome


def main() -> int:
    asked = options()
    if asked.list:
        print(listed())
        return 0
    # As Ctrl-C: everything that was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = asked.seed if asked.seed is not None else int(time.time())
    try:
        det = det_executable()
    except Missing as missing:
        sys.exit(f"chaos: {missing}")
    kind = "release" if "release" in det.parts else "debug" if "debug" in det.parts else "named by DET_BIN"
    print(f"chaos: {det} ({kind}), seed {seed}, {os.cpu_count()} cores, Linux {platform.release()}", flush=True)
    tally = {"passed": 0, "failed": 0, "skipped": 0}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        server = Server(stack)
        for row, store, runtime in chosen(asked):
            line, outcome = play(row, store, runtime, asked, seed, server)
            tally[outcome] += 1
            print(line, flush=True)
    counts = ", ".join(f"{count} {name}" for name, count in tally.items())
    print(f"= {counts} in {time.monotonic() - began:.1f}s =", flush=True)
    return 1 if tally["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
