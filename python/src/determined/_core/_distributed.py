"""Who is who when several processes train together, and how they pass small things to each other.

The operations are for coordination, not for gradients: those are the training framework's. With one process
they are the identity, so that scripts written for any number run unchanged on one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from determined import _info, errors

if TYPE_CHECKING:
    from determined._core._stars import Chief, Star

__all__ = ["DistributedContext", "DummyDistributedContext", "agree"]

#: Where processes meet. The cluster gives each training ports of its own in these variables.
PUB_PORT = int(os.environ.get("INTER_TRAIN_PROCESS_COMM_PORT_1", "12360"))
PULL_PORT = int(os.environ.get("INTER_TRAIN_PROCESS_COMM_PORT_2", str(PUB_PORT + 16)))

#: Variable with a secret that all processes of a training share; the launchers of this package set it.
SECRET = "DET_DISTRIBUTED_SECRET"

_T = TypeVar("_T")


class DistributedContext:
    """Rank and size of this process among those that train together.

    All processes make one, which meets the others, and then make the same calls in the same order: each call
    waits for the others. `errors.DistributedError` is raised in all that are left when one of them ends.
    """

    # Contexts so far in this process: each asks the master for a secret of its own.
    _made = 0

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
        pub_port: int = PUB_PORT,
        # Of the PyPI package's other socket; this one needs none.
        pull_port: int = PULL_PORT,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        """Give all six numbers, or None for all of them: one process.

        `chief_ip` is the address of rank 0's machine, needed when there are several machines; rank 0 listens
        on
        `pub_port`. Processes of one machine meet over sockets of the file system unless `force_tcp`.
        Raises `errors.DistributedError` if the others cannot be met.
        """
        numbers = (rank, size, local_rank, local_size, cross_rank, cross_size)
        given = [number for number in numbers if number is not None]
        if len(given) not in (0, 6):
            raise ValueError(
                "of rank, size, local_rank, local_size, cross_rank and cross_size give all or none, "
                f"not {len(given)} of 6"
            )
        rank, size, local_rank, local_size, cross_rank, cross_size = given or (0, 1, 0, 1, 0, 1)
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
        self._everybody: Star | None = None
        self._machine: Star | None = None
        self._directory: str | None = None
        if size < 2:
            return
        if local_size != size and not chief_ip:
            raise ValueError(
                f"this DistributedContext has {size} processes, {local_size} of them on this machine; "
                "processes on "
                "several machines need chief_ip, the address of the machine of rank 0 (or the variable "
                "DET_CHIEF_IP)"
            )
        try:
            self._meet(chief_ip, pub_port + port_offset, force_tcp)
        except BaseException:
            self.close()
            raise

    def _meet(self, chief_ip: str | None, port: int, force_tcp: bool) -> None:
        from determined._core import _stars

        alone = self.local_size == self.size
        secret = self._secret(port, alone)
        if self.rank == 0:
            host = "127.0.0.1" if alone else ""
            chief = _stars.Chief(self.size, address=(host, port), secret=secret(), what="training")
            self._everybody = chief
            chief.meet()
        else:
            host = "127.0.0.1" if alone else str(chief_ip)
            self._everybody = _stars.Worker(self.rank, address=(host, port), secret=secret, what="training")
        if alone:
            self._machine = self._everybody
            return
        # Each machine has a star of its own; all get its address, and only its machine uses it.
        local: Chief | None = None
        offer: tuple[int, _stars.Address, bytes] | None = None
        if self.local_rank == 0 and self.local_size > 1:
            local, offer = self._local_chief(force_tcp)
            self._machine = local
        offers = self.allgather(offer)
        if local is not None:
            local.meet()
        elif self.local_size > 1:
            own = [one for one in offers if one is not None and one[0] == self.cross_rank]
            if len(own) != 1:
                raise errors.DistributedError(
                    f"machine {self.cross_rank} has {len(own)} processes with local_rank 0, and must have "
                    "one; rank "
                    f"{self.rank} has local_rank {self.local_rank} of {self.local_size} there"
                )
            _, address, machine_secret = own[0]
            self._machine = _stars.Worker(
                self.local_rank, address=address, secret=lambda: machine_secret, what="machine"
            )

    def _local_chief(self, force_tcp: bool) -> tuple[Chief, tuple[int, Any, bytes]]:
        from determined._core import _stars

        secret = os.urandom(32)
        address: _stars.Address = ("127.0.0.1", 0)
        if not force_tcp:
            import tempfile

            self._directory = tempfile.mkdtemp(prefix="determined-")
            address = os.path.join(self._directory, "machine.sock")
        chief = _stars.Chief(self.local_size, address=address, secret=secret, what="machine")
        if not isinstance(address, str):
            address = ("127.0.0.1", chief.port)
        return chief, (self.cross_rank, address, secret)

    def _secret(self, port: int, alone: bool) -> Callable[[], bytes]:
        """What proves that a process belongs to this training."""
        from determined._core import _stars

        DistributedContext._made += 1
        given = os.environ.get(SECRET)
        if given:
            return given.encode
        if alone:
            is_chief = self.rank == 0
            return lambda: _stars.local_secret(port, is_chief=is_chief)
        info = _info.get_cluster_info()
        if info is None:
            raise ValueError(
                f"processes on several machines prove to each other that they belong together: set {SECRET} "
                "to the same "
                "random text for all of them (on a cluster it is not needed)"
            )
        from determined._task import exchange

        name = f"distributed-{port}-{DistributedContext._made}"
        shared = exchange(info, name, self.rank, self.size, os.urandom(32).hex() if self.rank == 0 else "")
        return shared.encode

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

        KeyError names one that is missing: scripts catch it to notice that no launcher started them.
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
        workers, index, chief_ip = 1, 0, None
        if "TF_CONFIG" in os.environ:
            config = json.loads(os.environ["TF_CONFIG"])
            if config["task"]["type"] != "worker":
                raise RuntimeError(
                    f'TF_CONFIG has a task of type {config["task"]["type"]!r}; only "worker" is supported'
                )
            workers, index = len(config["cluster"]["worker"]), config["task"]["index"]
            chief_ip = config["cluster"]["worker"][0].rpartition(":")[0]
        context = cls(
            rank=index,
            size=workers,
            local_rank=0,
            local_size=1,
            cross_rank=index,
            cross_size=workers,
            chief_ip=chief_ip,
        )
        import importlib

        tf: Any = importlib.import_module("tensorflow")
        if workers > 1:
            return context, tf.distribute.MultiWorkerMirroredStrategy()
        gpus = tf.config.list_physical_devices("GPU")
        strategy = tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()
        return context, strategy

    def close(self) -> None:
        """Ends the connections to the other processes."""
        stars, self._everybody, self._machine = {self._everybody, self._machine}, None, None
        for star in stars:
            if star is not None:
                star.close()
        self._leave()

    def _leave(self) -> None:
        """Removes the files, and leaves the connections to the end of the process.

        When this process fails, that keeps the others from failing, because it is gone, before its error is
        shown.
        """
        if self._directory is not None:
            import shutil

            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

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
        """All ranks' `stuff` in rank order for the chief, None for the others, who wait until it has all."""
        return _gather(self._star(), "gather", stuff)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """`gather` among the processes of one machine."""
        return _gather(self._local_star(), "gather_local", stuff)

    def allgather(self, stuff: Any) -> list[Any]:
        """The `stuff` of all ranks in rank order."""
        return _allgather(self._star(), "allgather", stuff)

    def allgather_local(self, stuff: Any) -> list[Any]:
        """`allgather` among the processes of one machine."""
        return _allgather(self._local_star(), "allgather_local", stuff)

    def broadcast(self, stuff: Any) -> Any:
        """The chief's `stuff`."""
        star = self._star()
        return stuff if star is None else star.scatter("broadcast", stuff)

    def broadcast_local(self, stuff: Any = None) -> Any:
        """The local chief's `stuff`."""
        star = self._local_star()
        return stuff if star is None else star.scatter("broadcast_local", stuff)

    def _star(self) -> Star | None:
        """None for one process."""
        if self._everybody is None and self.size > 1:
            raise errors.DistributedError(
                f"rank {self.rank} uses a DistributedContext that is closed; core.init() closes it at the "
                "end of its block"
            )
        return self._everybody

    def _local_star(self) -> Star | None:
        return self._machine if self._star() is not None and self.local_size > 1 else None


def _gather(star: Star | None, kind: str, stuff: Any) -> list[Any] | None:
    if star is None:
        return [stuff]
    gathered = star.gather(kind, stuff)
    # No rank goes on before the chief has everything.
    star.scatter(kind, None)
    return gathered


def _allgather(star: Star | None, kind: str, stuff: Any) -> list[Any]:
    if star is None:
        return [stuff]
    return star.scatter(kind, star.gather(kind, stuff))


def agree(dist: DistributedContext, doing: str, work: Callable[[], _T]) -> list[_T]:
    """Has every process do a part of something, and gives all results in rank order.

    When one of them fails, all raise: it its own error, the others one that names it. So none of them waits
    for
    a process that is not coming.
    """
    error: Exception | None = None
    result: Any = None
    try:
        result = work()
    except Exception as own:
        error = own
    outcomes = dist.allgather(
        (error is None, result if error is None else f"{type(error).__name__}: {error}")
    )
    if error is not None:
        raise error
    for rank, (done, outcome) in enumerate(outcomes):
        if not done:
            raise errors.DistributedError(f"rank {rank} failed while {doing}: {outcome}")
    return [outcome for _, outcome in outcomes]


class DummyDistributedContext(DistributedContext):
    """One process."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
