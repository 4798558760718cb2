"""Who is who when several processes train together.

This package runs one process per trial: contexts of more are refused, and the collective operations
are the identity. Scripts written for any number of processes therefore run unchanged on one.
"""

from __future__ import annotations

import json
import os
from typing import Any

from determined import errors

__all__ = ["DistributedContext", "DummyDistributedContext"]


class DistributedContext:
    """Rank and size of this process among those that train together."""

    def __init__(
        self,
        *,
        rank: int | None,
        size: int | None,
        local_rank: int | None,
        local_size: int | None,
        cross_rank: int | None,
        cross_size: int | None,
        chief_ip: str | None = None,
        # These three say where processes meet and have no effect on one process. The PyPI package
        # takes the defaults of the ports from its environment.
        pub_port: int = 12360,
        pull_port: int = 12376,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        """Give all six numbers, or None for all of them: one process.

        Raises `errors.UnsupportedDistributed` for more than one process.
        """
        numbers = (rank, size, local_rank, local_size, cross_rank, cross_size)
        given = [number for number in numbers if number is not None]
        if len(given) not in (0, 6):
            raise ValueError(
                "of rank, size, local_rank, local_size, cross_rank and cross_size give all or none, "
                f"not {len(given)} of 6"
            )
        rank, size, local_rank, local_size, cross_rank, cross_size = given or (0, 1, 0, 1, 0, 1)
        if size > 1:
            raise errors.UnsupportedDistributed(
                f"a DistributedContext of {size} processes was asked for; this package trains with one "
                "process per trial (the PyPI package determined supports more)"
            )
        #: Index of this process in the whole job; 0 is the chief.
        self.rank = rank
        #: Number of processes in the whole job.
        self.size = size
        #: Index of this process on its machine.
        self.local_rank = local_rank
        #: Number of processes on this machine.
        self.local_size = local_size
        #: Index of this machine in the job.
        self.cross_rank = cross_rank
        #: Number of machines in the job.
        self.cross_size = cross_size

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:
        """From an initialised Horovod module."""
        return cls(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(),
            cross_size=hvd.cross_size(),
            chief_ip=chief_ip or os.environ.get("DET_CHIEF_IP"),
        )

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """From the variables DeepSpeed's launcher sets; KeyError names one that is missing."""
        return cls._from_env("LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", chief_ip)

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """From the variables torch's launcher sets.

        KeyError names one that is missing: scripts catch it to notice that nobody launched them.
        """
        return cls._from_env("LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", chief_ip)

    @classmethod
    def _from_env(
        cls, local_size: str, cross_rank: str, cross_size: str, chief_ip: str | None
    ) -> DistributedContext:
        env = os.environ
        return cls(
            rank=int(env["RANK"]),
            size=int(env["WORLD_SIZE"]),
            local_rank=int(env["LOCAL_RANK"]),
            local_size=int(env[local_size]),
            cross_rank=int(env[cross_rank]),
            cross_size=int(env[cross_size]),
            chief_ip=chief_ip or env.get("DET_CHIEF_IP"),
        )

    @classmethod
    def from_tf_config(cls) -> tuple[DistributedContext, Any]:
        """From TF_CONFIG, together with the `tf.distribute` strategy for this process' devices."""
        workers, index = 1, 0
        if "TF_CONFIG" in os.environ:
            config = json.loads(os.environ["TF_CONFIG"])
            if config["task"]["type"] != "worker":
                raise RuntimeError(
                    f'TF_CONFIG has a task of type {config["task"]["type"]!r}; only "worker" is supported'
                )
            workers, index = len(config["cluster"]["worker"]), config["task"]["index"]
        context = cls(
            rank=index,
            size=workers,
            local_rank=0,
            local_size=1,
            cross_rank=index,
            cross_size=workers,
        )
        import importlib

        tf: Any = importlib.import_module("tensorflow")
        gpus = tf.config.list_physical_devices("GPU")
        strategy = tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()
        return context, strategy

    def close(self) -> None:
        """Nothing to close with one process."""

    def get_rank(self) -> int:
        """Index of this process in the whole job."""
        return self.rank

    def get_local_rank(self) -> int:
        """Index of this process on its machine."""
        return self.local_rank

    def get_size(self) -> int:
        """Number of processes in the whole job."""
        return self.size

    def get_num_agents(self) -> int:
        """Number of machines in the job."""
        return self.cross_size

    def gather(self, stuff: Any) -> list[Any] | None:
        """Everybody's `stuff` in rank order for the chief, None for the others."""
        return [stuff]

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """`gather` among the processes of one machine."""
        return [stuff]

    def allgather(self, stuff: Any) -> list[Any]:
        """Everybody's `stuff` in rank order."""
        return [stuff]

    def allgather_local(self, stuff: Any) -> list[Any]:
        """`allgather` among the processes of one machine."""
        return [stuff]

    def broadcast(self, stuff: Any) -> Any:
        """The chief's `stuff`."""
        return stuff

    def broadcast_local(self, stuff: Any = None) -> Any:
        """The local chief's `stuff`."""
        return stuff


class DummyDistributedContext(DistributedContext):
    """One process."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
