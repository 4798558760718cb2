"""Writes the public signatures of an installed `determined` as JSON to standard output.

Run it with the Python that has the package: `python tools/snapshot_signatures.py > tests/data/....json`.
Recorded are facts a caller depends on: names, parameter names, kinds and defaults, enum members.
"""

from __future__ import annotations

import enum
import inspect
import json
import sys
from typing import Any

MODULES = ("determined", "determined.core")


def parameters(function: Any) -> list[dict[str, Any]]:
    found = []
    for parameter in inspect.signature(function).parameters.values():
        entry: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name}
        if parameter.default is not inspect.Parameter.empty:
            default = parameter.default
            if isinstance(default, enum.Enum):
                entry["default"] = f"{type(default).__name__}.{default.name}"
            elif callable(default):
                # Which function it is cannot be compared; that there is one can.
                entry["default"] = "a function"
            else:
                entry["default"] = default
        found.append(entry)
    return found


def describe_class(cls: type) -> dict[str, Any]:
    if issubclass(cls, enum.Enum):
        return {"kind": "enum", "members": {member.name: member.value for member in cls}}
    members: dict[str, Any] = {}
    for name in dir(cls):
        if name.startswith("_") and name not in ("__init__", "__enter__", "__exit__"):
            continue
        found = inspect.getattr_static(cls, name)
        if name == "__init__" and not inspect.isfunction(found):
            continue
        if isinstance(found, property):
            members[name] = {"kind": "property"}
        elif isinstance(found, classmethod):
            members[name] = {"kind": "classmethod", "parameters": parameters(getattr(cls, name))}
        elif inspect.isfunction(found):
            members[name] = {"kind": "method", "parameters": parameters(found)}
    return {"kind": "class", "members": members}


def describe(module_name: str) -> dict[str, Any]:
    module = __import__(module_name, fromlist=["_"])
    found: dict[str, Any] = {}
    for name in sorted(dir(module)):
        value = getattr(module, name)
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if inspect.isclass(value):
            if value.__module__.startswith("determined"):
                found[name] = describe_class(value)
        elif inspect.isfunction(value):
            found[name] = {"kind": "function", "parameters": parameters(value)}
        elif isinstance(value, str):
            found[name] = {"kind": "constant", "value": value}
    return found


def main() -> None:
    json.dump({name: describe(name) for name in MODULES}, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
