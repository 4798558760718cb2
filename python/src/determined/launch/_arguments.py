"""The command line that all launchers share: `[[OVERRIDES...] --] SCRIPT...`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from determined import _info, errors

__all__ = ["Arguments", "task_info"]

#: Exit code for a wrong command line.
WRONG_USAGE = 2


class Arguments:
    """What a launcher is asked to start."""

    def __init__(self, overrides: list[str], script: list[str], flags: argparse.Namespace) -> None:
        #: Arguments for the framework's own launcher, after those that follow from the cluster.
        self.overrides = overrides
        #: The program of each process with its arguments.
        self.script = script
        #: Other flags of the launcher.
        self.flags = flags

    @classmethod
    def parse(
        cls, arguments: Sequence[str], *, module: str, overridable: bool, flags: Sequence[str] = ()
    ) -> Arguments:
        """From the words after the module's name. A wrong command line ends the process with code 2."""
        words, overrides = list(arguments), []
        if overridable and "--" in words:
            split = words.index("--")
            overrides, words = words[:split], words[split + 1 :]
        elif words[:1] == ["--"]:
            words = words[1:]
        prefix = "[[OVERRIDES...] --] " if overridable else ""
        parser = argparse.ArgumentParser(
            prog=f"python3 -m {module}",
            usage=f"%(prog)s {prefix}(--trial TRIAL)|(SCRIPT...)",
            description="Starts SCRIPT once for each slot of this trial, on all of its machines.",
        )
        parser.add_argument("--trial", help="a trial class; only the PyPI package determined can train one")
        for flag in flags:
            parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
        parser.add_argument(
            "script", metavar="SCRIPT...", nargs=argparse.REMAINDER, help="program and arguments"
        )
        parsed = parser.parse_args(words)
        if parsed.trial is not None:
            parser.error(
                f"--trial {parsed.trial}: trial classes are trained by the PyPI package determined, which "
                "this task does "
                "not have; install determined==0.38.1 in its image, or give a script that uses "
                "determined.core"
            )
        if not parsed.script:
            parser.error("there is no SCRIPT to start")
        return cls(overrides, parsed.script, parsed)


def task_info(module: str) -> _info.ClusterInfo:
    """The trial that the launcher runs in; ends the process with code 2 outside of one."""
    try:
        info = _info.get_cluster_info()
    except errors.InvalidTaskInfo as error:
        sys.exit(f"{module}: {error}")
    if info is None or info.task_type != "TRIAL":
        what = "outside of a cluster" if info is None else f'in a task of the type "{info.task_type}"'
        sys.stderr.write(f"{module} starts the processes of a trial, and was called {what}\n")
        sys.exit(WRONG_USAGE)
    return info
