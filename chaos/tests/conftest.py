"""The runner's modules and what e2e lends them."""

from __future__ import annotations

import pathlib
import sys

CHAOS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(CHAOS), str(CHAOS.parent / "e2e")]
