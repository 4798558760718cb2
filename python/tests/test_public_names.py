"""What can be imported, and what importing it costs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from conftest import PROJECT

sys.path.insert(0, str(PROJECT / "tools"))
import snapshot_signatures

import determined
from determined import core, errors

SNAPSHOT = json.loads((PROJECT / "tests/data/signatures-0.38.1.json").read_text())


@pytest.mark.parametrize("module", [determined, core, errors], ids=lambda m: m.__name__)
def test_all_lists_exactly_the_public_names(module: ModuleType) -> None:
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "annotations" and not inspect.ismodule(value)
    }
    listed = set(module.__all__)
    assert public <= listed
    assert {name for name in listed if not hasattr(module, name)} == set()
    assert len(module.__all__) == len(listed)


@pytest.mark.parametrize("module", [determined, core, errors], ids=lambda m: m.__name__)
def test_every_public_name_is_described(module: ModuleType) -> None:
    bare = []
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            members = [(f"{name}.{m}", v) for m, v in vars(value).items() if not m.startswith("_")]
        else:
            members = []
        for path, member in [(name, value), *members]:
            target = member.__func__ if isinstance(member, classmethod) else member
            if (callable(target) or isinstance(target, property)) and not inspect.getdoc(target):
                bare.append(path)
    assert bare == []


def test_core_offers_every_public_name_of_the_pypi_package() -> None:
    assert set(SNAPSHOT["determined.core"]) - set(core.__all__) == set()


def shared_names() -> list[Any]:
    return [
        pytest.param(module, name, id=f"{module}.{name}")
        for module, names in SNAPSHOT.items()
        for name in names
        if hasattr(sys.modules[module], name)
    ]


def public_parameters(description: dict[str, Any]) -> list[dict[str, Any]]:
    """Underscored parameters are between the package's own parts."""
    return [p for p in description.get("parameters", []) if not p["name"].startswith("_")]


@pytest.mark.parametrize(("module", "name"), shared_names())
def test_signature_is_that_of_the_pypi_package(module: str, name: str) -> None:
    theirs = SNAPSHOT[module][name]
    ours = snapshot_signatures.describe(module)[name]
    assert ours["kind"] == theirs["kind"]
    if theirs["kind"] == "class":
        for member, description in theirs["members"].items():
            assert member in ours["members"], f"{name}.{member} is missing"
            found = ours["members"][member]
            assert found["kind"] == description["kind"], member
            assert public_parameters(found) == public_parameters(description), member
    elif theirs["kind"] == "function":
        assert public_parameters(ours) == public_parameters(theirs)
    else:
        assert ours == theirs


@pytest.mark.skipif(sys.version_info < (3, 10), reason="needs sys.stdlib_module_names (Python 3.10)")
def test_import_loads_nothing_heavy() -> None:
    """Counted in modules, because times depend more on the machine: bench/import_time.py prints them."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import determined, determined.core\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(PROJECT / "src")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert foreign == {"determined"}
    slow = {"asyncio", "dataclasses", "datetime", "email", "http", "inspect", "multiprocessing", "shutil"}
    slow |= {"ssl", "subprocess", "tempfile", "unittest", "urllib.request", "uuid"}
    assert slow.intersection(loaded) == set()
    assert len(loaded) < 90


def test_version_satisfies_a_pin_of_the_pypi_package() -> None:
    public, _, local = determined.__version__.partition("+")
    assert public == "0.38.1"
    assert local
