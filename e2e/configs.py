"""Configurations of experiments, small ones, as mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TRAIN = "python3 train.py"

SEARCHERS: dict[str, dict[str, Any]] = {
    "single": {"name": "single"},
    "random": {"name": "random", "max_trials": 3, "max_concurrent_trials": 2},
    "grid": {"name": "grid", "max_concurrent_trials": 2},
    "async_halving": {
        "name": "async_halving",
        "max_trials": 4,
        "max_concurrent_trials": 2,
        "num_rungs": 2,
        "divisor": 2,
        "time_metric": "epochs",
        "max_time": 4,
    },
    "adaptive_asha": {
        "name": "adaptive_asha",
        "max_trials": 4,
        "max_concurrent_trials": 2,
        "max_rungs": 2,
        "divisor": 2,
        "mode": "standard",
        "time_metric": "epochs",
        "max_time": 4,
    },
}


def experiment(name: str, entrypoint: Any = TRAIN, **more: Any) -> dict[str, Any]:
    """A one-trial experiment on one slot that is not restarted; `more` beats and adds keys, maps key by key."""
    config: dict[str, Any] = {
        "name": name,
        "entrypoint": entrypoint,
        "searcher": {"name": "single", "metric": "validation_loss", "smaller_is_better": True},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 0,
    }
    return merged(config, more)


def search(searcher: str, **more: Any) -> dict[str, Any]:
    """A search with `train.py`."""
    rate: Any = {"type": "double", "minval": 0.5, "maxval": 2.0}
    if searcher == "single":
        rate = 1.0
    if searcher == "grid":
        rate = {"type": "categorical", "vals": [0.5, 1.0, 2.0]}
    hparams = {"rate": rate, "steps": 4, "checkpoint_every": 2}
    return experiment(f"search-{searcher}", searcher=SEARCHERS[searcher], hyperparameters=hparams, **more)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`; maps are merged, all else is replaced."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
