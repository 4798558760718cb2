"""What each value of the chart leads to: every value that the schema knows has a row in `chart/effects.yaml`.

A row names a value, where its effect is seen, and the effect, which the rendering without the value must not have.
"""

from __future__ import annotations

import base64
import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import yaml

from test_chart import CASES, CHART, configuration, helm, rendered  # noqa: F401

pytestmark = pytest.mark.kubernetes

LEAST: dict[str, Any] = {"maxSlotsPerPod": 8, "checkpointStorage": {"type": "s3", "bucket": "b"}}
EFFECTS: dict[str, Any] = yaml.safe_load((CASES / "effects.yaml").read_text())
PRESENT = "(present)"
# Accepted, and without an effect on what is rendered; Helm's own.
WITHOUT_EFFECT = {
    "coscheduler.installed",
    "defaultImages.kubeScheduler",
    "fluent",
    "genai",
    "global",
    "telemetry.enabled",
}


class Row(NamedTuple):
    value: str
    given: Any
    where: str
    effect: Any


def rows_of(group: str) -> list[Row]:
    return [Row(*row) for row in EFFECTS["groups"][group]["rows"]]


def at(thing: Any, path: str) -> Any:
    """What is at a dotted path; `None` where there is nothing. A part `KEY=TEXT` selects from a list."""
    for part in [] if path == "" else path.replace("\\.", "\0").split("."):
        part = part.replace("\0", ".")
        if thing is None:
            return None
        if isinstance(thing, list):
            if "=" in part:
                key, text = part.split("=", 1)
                thing = next((it for it in thing if str(it.get(key)) == text), None)
            else:
                thing = thing[int(part)] if int(part) < len(thing) else None
        else:
            thing = thing.get(part) if isinstance(thing, dict) else None
    return thing


def nested(rows: list[Row], base: dict[str, Any]) -> dict[str, Any]:
    """The values of rows, over others."""
    values = json.loads(json.dumps(base))
    for row in rows:
        inner = values
        *parents, last = row.value.split(".")
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = row.given
    return values


def objects_of(text: str, upgrade: bool) -> list[dict[str, Any]]:
    words = ["--values", text, *(["--is-upgrade"] if upgrade else [])]
    return [found for found in yaml.safe_load_all(rendered(*words)) if found]


def seen(found: list[dict[str, Any]], where: str) -> Any:
    """What a rendering has at a place: `config PATH`, `agent PATH`, or `KIND NAME PATH`."""
    if where.startswith("$"):
        place = next(it for it in sorted(EFFECTS["places"], reverse=True) if where.startswith(f"${it}"))
        where = EFFECTS["places"][place] + where.removeprefix(f"${place}")
    kind, _, rest = where.partition(" ")
    if kind == "config":
        return at(configuration(found), rest)
    name, _, path = rest.partition(" ")
    if kind == "agent":
        name, path, kind = "determined-agent-config-r", rest, "ConfigMap"
    one = next((it for it in found if it["kind"] == kind and it["metadata"]["name"] == name), None)
    if one is not None and where.startswith("agent"):
        return at(yaml.safe_load(one["data"]["agent.yaml"]), path)
    if one is not None and path.startswith("decoded "):
        text = at(one, path.removeprefix("decoded "))
        return None if text is None else base64.b64decode(text).decode()
    return at(one, path)


def leaves(part: dict[str, Any], whole: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """The values that a schema knows."""
    if "$ref" in part and not part["$ref"].endswith(("/pools", "/secretKey")):
        part = whole["$defs"][part["$ref"].rsplit("/", 1)[1]]
    if "properties" in part:
        for name, inner in part["properties"].items():
            yield from leaves(inner, whole, (*path, name))
    else:
        yield ".".join(path)


def test_every_value_has_a_row() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = set(leaves(schema, schema))
    with_rows = {row.value for group in EFFECTS["groups"] for row in rows_of(group)}
    assert known - with_rows - WITHOUT_EFFECT == set()
    assert with_rows - known == set(), "the schema does not know these"


@pytest.mark.parametrize("group", EFFECTS["groups"])
def test_values_have_their_effects(group: str, tmp_path: pathlib.Path) -> None:
    rows = rows_of(group)
    least = {**LEAST, **EFFECTS["groups"][group].get("over", {})}
    without, given = tmp_path / "without.yaml", tmp_path / "with.yaml"
    # A storage that its group only begins to describe is not rendered without the rest.
    storage = LEAST["checkpointStorage"] if group in ("s3", "gcs", "azure") else least["checkpointStorage"]
    without.write_text(yaml.safe_dump({**least, "checkpointStorage": storage}))
    given.write_text(yaml.safe_dump(nested(rows, least)))
    is_upgrade = "(upgrade)" in group
    before, after = objects_of(str(without), is_upgrade), objects_of(str(given), is_upgrade)
    wrong = []
    for row in rows:
        was, now = seen(before, row.where), seen(after, row.where)
        if row.effect == PRESENT:
            holds = now is not None and was != now
        else:
            holds = now == row.effect and was != now
        if not holds:
            wrong.append(f"{row.value}: {row.where} was {was!r} and is {now!r}, not {row.effect!r}")
    assert not wrong, "\n".join(wrong)


def test_values_without_an_effect_change_nothing(tmp_path: pathlib.Path) -> None:
    values = {"coscheduler": {"installed": True}, "defaultImages": {"kubeScheduler": "x"}, "fluent": {"image": "x"}}
    values |= {"genai": {"version": "1"}, "telemetry": {"enabled": True}}
    for file, content in (("without", LEAST), ("with", {**LEAST, **values})):
        (tmp_path / f"{file}.yaml").write_text(yaml.safe_dump(content))
    assert rendered("--values", str(tmp_path / "without.yaml")) == rendered("--values", str(tmp_path / "with.yaml"))


OLDER = ("--values", str(CHART / "pedl-values.yaml"))
PRESETS = {"defaults": (), "older defaults": OLDER, "older login": (*OLDER, "--set", "registry.password=p")}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_defaults_are_those_that_are_documented(preset: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "least.yaml"
    file.write_text(yaml.safe_dump(LEAST))
    found = [it for it in yaml.safe_load_all(rendered("--values", str(file), *PRESETS[preset])) if it]
    wrong = [
        f"{where}: {seen(found, where)!r}, not {value!r}"
        for where, value in EFFECTS[preset]
        if seen(found, where) != value
    ]
    assert not wrong, "\n".join(wrong)
