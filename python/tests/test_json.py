from __future__ import annotations

import datetime
import enum
import json
import uuid
from typing import Any

import numpy as np
import pytest

from determined._json import encode


class Colour(enum.Enum):
    RED = "#f00"


class Custom:
    def __json__(self) -> Any:
        return {"custom": 1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(float("nan"), "NaN", id="nan"),
        pytest.param(float("inf"), "Infinity", id="inf"),
        pytest.param(float("-inf"), "-Infinity", id="minus inf"),
        pytest.param(np.float32("nan"), "NaN", id="numpy nan"),
        pytest.param(np.float64(0.5), 0.5, id="numpy float"),
        pytest.param(np.int64(2**40), 2**40, id="numpy int"),
        pytest.param(np.bool_(True), True, id="numpy bool"),
        pytest.param(np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]], id="array"),
        pytest.param(np.array([1.0, np.inf]), [1.0, "Infinity"], id="array with inf"),
        pytest.param(np.array(3), 3, id="array without dimensions"),
        pytest.param({"a": (1, {"b": None})}, {"a": [1, {"b": None}]}, id="nested"),
        pytest.param(True, True, id="bool stays bool"),
        pytest.param(b"text", "text", id="bytes"),
        pytest.param(Colour.RED, "RED", id="enum by name"),
        pytest.param(uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001", id="uuid"),
        pytest.param(datetime.datetime(2026, 1, 2, 3), "2026-01-02T03:00:00", id="datetime"),
        pytest.param(Custom(), {"custom": 1}, id="own method"),
        pytest.param({3: 1}, {"3": 1}, id="number as key"),
    ],
)
def test_encodes_what_people_report(value: Any, expected: Any) -> None:
    assert json.loads(encode(value)) == expected


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j], ids=["object", "set", "complex"])
def test_refuses_what_has_no_json_form(value: Any) -> None:
    with pytest.raises(TypeError):
        encode({"metric": value})


def test_refusal_names_type_and_value() -> None:
    with pytest.raises(TypeError, match=r"type set cannot be reported: \{1\}"):
        encode({1})
