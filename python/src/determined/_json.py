"""JSON as the master expects it from a training script.

Plain `json` cannot carry what training code reports: NaN and infinities become the strings `"NaN"`,
`"Infinity"` and `"-Infinity"`, NumPy scalars and arrays become numbers and lists. NumPy is never
imported from here.
"""

from __future__ import annotations

import enum
import json
import math
import numbers
import sys
from collections.abc import Sequence
from typing import Any, cast

__all__ = ["encode", "jsonable"]


def encode(obj: Any) -> bytes:
    """`obj` as UTF-8 JSON. Raises TypeError for what has no JSON form."""
    return json.dumps(jsonable(obj), separators=(",", ":"), allow_nan=False).encode()


def jsonable(obj: Any) -> Any:
    """`obj` made of nothing but what `json` can write, non-finite numbers as strings.

    Raises TypeError, naming the type, for what has no JSON form.
    """
    if obj is None or isinstance(obj, (str, bool)):
        return obj
    if isinstance(obj, numbers.Integral):
        return int(obj)
    if isinstance(obj, numbers.Number):
        return _float(obj)
    if isinstance(obj, bytes):
        return obj.decode()
    if isinstance(obj, (list, tuple)):
        return [jsonable(item) for item in cast("Sequence[Any]", obj)]
    if isinstance(obj, dict):
        return {key: jsonable(value) for key, value in cast("dict[Any, Any]", obj).items()}
    if isinstance(obj, enum.Enum):
        # By name, not by value, as the PyPI package writes it.
        return obj.name
    # An object of a module that was never imported cannot exist, so these cost no import.
    datetime, uuid = sys.modules.get("datetime"), sys.modules.get("uuid")
    if datetime is not None and isinstance(obj, datetime.datetime):
        return obj.isoformat()
    if uuid is not None and isinstance(obj, uuid.UUID):
        return str(obj)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, (numpy.ndarray, numpy.generic)):
        # `generic` is for numpy.bool, which belongs to no number class.
        return jsonable(obj.tolist())
    if hasattr(obj, "__json__"):
        return obj.__json__()
    raise TypeError(
        f"a value of type {type(obj).__name__} cannot be reported: {_short(obj)}; allowed are "
        "numbers, strings, booleans, None, lists, maps and their NumPy forms "
        "(of a one-element tensor report .item())"
    )


def _float(obj: Any) -> float | str:
    number = float(obj)
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _short(obj: Any) -> str:
    text = repr(obj)
    return text if len(text) <= 80 else text[:77] + "..."
