"""Report metrics, checkpoints and progress of a training script to a Determined cluster.

Start with `core.init()`; `get_cluster_info()` returns whether and as what the code runs on a cluster.
"""

from determined import core, errors
from determined._info import (
    ClusterInfo,
    RendezvousInfo,
    ResourcesInfo,
    TrialInfo,
    get_cluster_info,
)
from determined._version import __version__
from determined.errors import InvalidHP

#: Format for `logging` from which the cluster's log viewer reads the level of each line.
LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"

__all__ = [
    "LOG_FORMAT",
    "ClusterInfo",
    "InvalidHP",
    "RendezvousInfo",
    "ResourcesInfo",
    "TrialInfo",
    "__version__",
    "core",
    "errors",
    "get_cluster_info",
]
