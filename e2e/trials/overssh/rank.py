"""One rank of a training that is launched over SSH: meets the others, and prints what it received.

With the hyperparameter `fail_rank` that rank exits with code 9 in place of the last exchange.
"""

import os
import sys

import determined as det
from determined import core


class Horovod:
    """The numbers of Horovod, from its variables."""

    def __getattr__(self, name):
        return lambda: int(os.environ[f"HOROVOD_{name.upper()}"])


def numbers():
    """The numbers of this rank, from the launcher that has started it."""
    if "HOROVOD_RANK" in os.environ:
        return core.DistributedContext.from_horovod(Horovod())
    given = {name: int(os.environ[name.upper()]) for name in ("local_rank", "local_size", "cross_rank", "cross_size")}
    size = {"rank": int(os.environ["RANK"]), "size": int(os.environ["WORLD_SIZE"])}
    return core.DistributedContext(**size, **given, chief_ip=os.environ["DET_CHIEF_IP"])


dist = numbers()
with core.init(distributed=dist, tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    trial = det.get_cluster_info().trial
    container = det.get_cluster_info().container_rank
    met = dist.allgather((dist.rank, container, dist.local_rank))
    print(f"rank {dist.rank} of {dist.size} in container {container} has met {met}", flush=True)
    if dist.rank == 0:
        context.train.report_validation_metrics(steps_completed=1, metrics={"validation_loss": 1.0})
    if dist.rank == trial.hparams.get("fail_rank"):
        sys.exit(9)
    dist.broadcast("the end")
