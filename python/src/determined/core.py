"""The Core API: what a training script reports to its cluster, and what it receives.

`with init() as context` gives a `Context` of small parts: `train` (metrics, progress), `checkpoint`,
`preempt`, `searcher` and `distributed`. Off-cluster the same parts log instead of reporting.
"""

from determined._core._checkpoint import CheckpointContext, DownloadMode, DummyCheckpointContext
from determined._core._context import Context, init
from determined._core._distributed import DistributedContext, DummyDistributedContext
from determined._core._experimental import DummyExperimentalCoreContext, ExperimentalCoreContext
from determined._core._preempt import DummyPreemptContext, PreemptContext, PreemptMode
from determined._core._profiler import DummyProfilerContext, ProfilerContext
from determined._core._searcher import (
    DummySearcherContext,
    DummySearcherOperation,
    SearcherContext,
    SearcherContextMissing,
    SearcherMode,
    SearcherOperation,
    Unit,
)
from determined._core._tensorboard import TensorboardMode
from determined._core._train import DummyTrainContext, EarlyExitReason, TrainContext

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "DummyCheckpointContext",
    "DummyDistributedContext",
    "DummyExperimentalCoreContext",
    "DummyPreemptContext",
    "DummyProfilerContext",
    "DummySearcherContext",
    "DummySearcherOperation",
    "DummyTrainContext",
    "EarlyExitReason",
    "ExperimentalCoreContext",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherContextMissing",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "Unit",
    "init",
]
