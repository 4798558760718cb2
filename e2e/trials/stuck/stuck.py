"""One of the ranks of a gang that meet once with the Core API; then the rank that the trial names hangs."""

import time

import determined as det
from determined import core

info = det.get_cluster_info()
rank, addresses = info.container_rank, info.container_addrs
stuck = info.trial.hparams["stuck"]


def hang() -> None:
    """Nothing ends this."""
    while True:
        time.sleep(3600)


size = len(addresses)
distributed = core.DistributedContext(
    rank=rank,
    size=size,
    local_rank=0,
    local_size=1,
    cross_rank=rank,
    cross_size=size,
    chief_ip=addresses[0],
)
with core.init(distributed=distributed) as context:
    print(f"rank {rank} of {size} goes on", flush=True)
    if rank == 0:
        context.train.report_training_metrics(steps_completed=1, metrics={"loss": 1.0})
    distributed.allgather(rank)
    if rank == stuck:
        hang()
    distributed.allgather(rank)
