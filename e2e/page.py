"""The blocks of docs/kubernetes.md, which tests run as users read them."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness import HERE

PAGE = HERE.parent / "docs" / "kubernetes.md"


class Block(NamedTuple):
    """Where a block is: its heading, its language, and its number among those of that language there."""

    heading: str
    language: str
    number: int


def blocks(page: pathlib.Path = PAGE) -> dict[Block, str]:
    """The texts of a page's blocks, by where they are."""
    found: dict[Block, str] = {}
    heading = ""
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if title := re.match(r"#+ (.*)", line):
            heading = title[1]
        if fence := re.match(r"(\s*)```(\w+)", line):
            indent = len(fence[1])
            inner = []
            while not (line := next(lines)).strip().startswith("```"):
                inner.append(line[indent:])
            number = sum(it.heading == heading and it.language == fence[2] for it in found)
            found[Block(heading, fence[2], number)] = "\n".join(inner) + "\n"
    return found


def text(heading: str, language: str = "sh", number: int = 0, **replaced: str) -> str:
    """A block, with what its placeholders (words in capitals) and names are replaced by."""
    found = blocks()[Block(heading, language, number)]
    for name, by in replaced.items():
        found = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", by, found)
    return found


def commands(script: str) -> list[list[str]]:
    """The words of each command of a script of single commands."""
    return [words for line in script.replace("\\\n", " ").splitlines() if (words := shlex.split(line, comments=True))]


def run(script: str, directory: pathlib.Path, env: Mapping[str, str], first: Sequence[pathlib.Path] = ()) -> str:
    """Runs a block as a shell does, up to the first command that fails; gives what it prints. `first`: directories with
    programs that go before others."""
    path = os.pathsep.join([*map(str, first), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env={**os.environ, **env, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout
