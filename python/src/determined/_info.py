"""Who and where the running task is: `get_cluster_info()`.

Two sources, the first one found wins: the files under `/run/determined/info`, written before the
user's code starts, then the `DET_*` variables of the task. Neither: the code runs off-cluster.
Attributes and file layout are those of the PyPI package, whose preparation step writes the same files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from determined import errors
from determined._master_url import canonicalize_master_url

__all__ = ["ClusterInfo", "RendezvousInfo", "ResourcesInfo", "TrialInfo", "get_cluster_info"]

#: Fixed: images and launchers in the field rely on it.
INFO_DIR = "/run/determined/info"

#: All of these describe a task; a user's shell may well have DET_MASTER alone.
_REQUIRED_ENV = (
    "DET_MASTER",
    "DET_CLUSTER_ID",
    "DET_AGENT_ID",
    "DET_SLOT_IDS",
    "DET_TASK_ID",
    "DET_ALLOCATION_ID",
    "DET_SESSION_TOKEN",
    "DET_TASK_TYPE",
)


class RendezvousInfo:
    """The containers of this allocation, in rank order."""

    def __init__(
        self,
        container_addrs: list[str],
        container_rank: int,
        container_slot_counts: list[int],
    ) -> None:
        #: Addresses of all containers, ordered by rank.
        self.container_addrs = container_addrs
        #: Rank of this container; 0 is the chief.
        self.container_rank = container_rank
        #: Number of slots of each container, ordered by rank.
        self.container_slot_counts = container_slot_counts


class TrialInfo:
    """The trial that is running."""

    def __init__(
        self,
        trial_id: int,
        experiment_id: int,
        trial_seed: int,
        hparams: dict[str, Any],
        config: dict[str, Any],
        steps_completed: int,
        trial_run_id: int,
        debug: bool,
        inter_node_network_interface: str | None,
    ) -> None:
        #: This trial.
        self.trial_id = trial_id
        #: Its experiment.
        self.experiment_id = experiment_id
        #: Seed for the trial's own random generators, an unsigned 32-bit number.
        self.trial_seed = trial_seed
        #: This trial's hyperparameter values, nested as in the configuration.
        self.hparams = hparams
        # Underscored as in the PyPI package: the shape of the configuration may change.
        self._config = config
        self._steps_completed = steps_completed
        self._trial_run_id = trial_run_id
        self._debug = debug
        self._inter_node_network_interface = inter_node_network_interface

    @classmethod
    def _from_env(cls, env: Mapping[str, str]) -> TrialInfo:
        config = _env_json(env, "DET_EXPERIMENT_CONFIG")
        return cls(
            trial_id=_env_int(env, "DET_TRIAL_ID"),
            experiment_id=_env_int(env, "DET_EXPERIMENT_ID"),
            trial_seed=_env_int(env, "DET_TRIAL_SEED"),
            hparams=_env_json(env, "DET_HPARAMS"),
            config=config,
            steps_completed=_env_int(env, "DET_STEPS_COMPLETED"),
            trial_run_id=_env_int(env, "DET_TRIAL_RUN_ID"),
            debug=bool(config.get("debug", False)),
            inter_node_network_interface=env.get("DET_INTER_NODE_NETWORK_INTERFACE"),
        )


class ResourcesInfo:
    """The accelerators of this container."""

    def __init__(self, gpu_uuids: list[str]) -> None:
        self._gpu_uuids = gpu_uuids

    @property
    def gpu_uuids(self) -> list[str]:
        """UUIDs of the GPUs given to this container; empty without GPUs."""
        return self._gpu_uuids


class ClusterInfo:
    """The running task: how to reach the master, and what was assigned."""

    def __init__(
        self,
        master_url: str,
        cluster_id: str,
        agent_id: str,
        slot_ids: list[int],
        task_id: str,
        allocation_id: str,
        session_token: str,
        task_type: str,
        master_cert_name: str | None = None,
        master_cert_file: str | None = None,
        latest_checkpoint: str | None = None,
        trial_info: TrialInfo | None = None,
        rendezvous_info: RendezvousInfo | None = None,
        resources_info: ResourcesInfo | None = None,
    ) -> None:
        #: Address of the master with scheme and port, no slash at the end.
        self.master_url = canonicalize_master_url(master_url)
        #: The cluster.
        self.cluster_id = cluster_id
        #: The agent this container runs on.
        self.agent_id = agent_id
        #: The agent's slots given to this container.
        self.slot_ids = slot_ids
        #: The task.
        self.task_id = task_id
        #: This attempt at running the task.
        self.allocation_id = allocation_id
        #: Token of this allocation. A secret.
        self.session_token = session_token
        #: `TRIAL`, `NOTEBOOK`, `SHELL`, `COMMAND`, `TENSORBOARD`, `CHECKPOINT_GC` or `GENERIC`.
        self.task_type = task_type
        #: Name expected on the master's certificate, if not the host name.
        self.master_cert_name = master_cert_name
        #: File with the certificate to trust, `noverify`, or None for the system's store.
        self.master_cert_file = master_cert_file
        self._latest_checkpoint = latest_checkpoint
        self._trial_info = trial_info
        self._rendezvous_info = rendezvous_info
        self._resources_info = resources_info

    @property
    def latest_checkpoint(self) -> str | None:
        """The checkpoint to resume from; None to start afresh, and for tasks that are no trials."""
        return self._latest_checkpoint if self.task_type == "TRIAL" else None

    @property
    def user_data(self) -> dict[str, Any]:
        """The `data` section of the experiment configuration; empty for other tasks."""
        if self.task_type != "TRIAL":
            return {}
        # Private in TrialInfo only towards users; `null` is a spelling of "empty".
        return self.trial._config.get("data") or {}  # pyright: ignore[reportPrivateUsage]

    @property
    def trial(self) -> TrialInfo:
        """The trial; RuntimeError if this task is not a trial."""
        if self.task_type != "TRIAL":
            raise RuntimeError(
                f'this task is a "{self.task_type}" and has no .trial; only "TRIAL" tasks have'
            )
        if self._trial_info is None:
            raise errors.InvalidTaskInfo(
                f"task {self.task_id!r} is a trial, but neither {INFO_DIR}/trial.json nor "
                "DET_TRIAL_ID describes it"
            )
        return self._trial_info

    @property
    def container_addrs(self) -> list[str]:
        """Addresses of all containers of the allocation, ordered by rank."""
        return self._rendezvous().container_addrs

    @property
    def container_slot_counts(self) -> list[int]:
        """Numbers of slots of all containers of the allocation, ordered by rank."""
        return self._rendezvous().container_slot_counts

    @property
    def container_rank(self) -> int:
        """Rank of this container in the allocation; a framework may count differently."""
        return self._rendezvous().container_rank

    @property
    def gpu_uuids(self) -> list[str]:
        """UUIDs of the GPUs given to this container."""
        return self._resources_info.gpu_uuids if self._resources_info else []

    def _rendezvous(self) -> RendezvousInfo:
        # Only trials meet in a rendezvous, and only those of several containers need it: everything
        # else is alone, also when the supervisor has written no file.
        if self.task_type == "TRIAL" and self._rendezvous_info is not None:
            return self._rendezvous_info
        return RendezvousInfo(["127.0.0.1"], 0, [len(self.slot_ids)])


_T = TypeVar("_T")

# A sentinel, because None means "off-cluster" and is remembered as well.
_UNREAD = object()
_info: object = _UNREAD


def get_cluster_info() -> ClusterInfo | None:
    """The running task, or None if the code does not run in a task. Read once per process.

    Raises `errors.InvalidTaskInfo` if there is a description that cannot be read.
    """
    global _info
    if _info is _UNREAD:
        _info = read_cluster_info(INFO_DIR, os.environ)
    assert _info is None or isinstance(_info, ClusterInfo)
    return _info


def read_cluster_info(info_dir: str, env: Mapping[str, str]) -> ClusterInfo | None:
    """`get_cluster_info` without memory, from the given places."""
    trial_info = _read(TrialInfo, info_dir, "trial")
    parts: dict[str, Any] = {
        "rendezvous_info": _read(RendezvousInfo, info_dir, "rendezvous"),
        "resources_info": _read(ResourcesInfo, info_dir, "resources"),
    }
    from_file = _read(ClusterInfo, info_dir, "cluster", trial_info=trial_info, **parts)
    if from_file is not None:
        return from_file
    if any(not env.get(name) for name in _REQUIRED_ENV):
        return None
    if trial_info is None and env["DET_TASK_TYPE"] == "TRIAL":
        trial_info = TrialInfo._from_env(env)  # pyright: ignore[reportPrivateUsage]
    return ClusterInfo(
        master_url=env["DET_MASTER"],
        cluster_id=env["DET_CLUSTER_ID"],
        agent_id=env["DET_AGENT_ID"],
        slot_ids=_env_json(env, "DET_SLOT_IDS"),
        task_id=env["DET_TASK_ID"],
        allocation_id=env["DET_ALLOCATION_ID"],
        session_token=env["DET_SESSION_TOKEN"],
        task_type=env["DET_TASK_TYPE"],
        master_cert_name=env.get("DET_MASTER_CERT_NAME"),
        master_cert_file=env.get("DET_MASTER_CERT_FILE"),
        latest_checkpoint=env.get("DET_LATEST_CHECKPOINT") or None,
        trial_info=trial_info,
        **parts,
    )


def _read(kind: type[_T], info_dir: str, name: str, **extra: Any) -> _T | None:
    """One info file as the object its keys are the arguments of; None if there is no such file."""
    path = os.path.join(info_dir, f"{name}.json")
    try:
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise errors.InvalidTaskInfo(
            f"cannot read the description of this task in {path!r}: {error}"
        ) from error
    if not isinstance(fields, dict):
        raise errors.InvalidTaskInfo(f"{path!r} must hold a JSON object, not {type(fields).__name__}")
    import inspect  # Here, because it is slow to import and off-cluster code never gets this far.

    # Keys we do not know come from a newer supervisor; they are nothing to fail on.
    known = inspect.signature(kind).parameters
    arguments = {key: value for key, value in cast("dict[str, Any]", fields).items() if key in known}
    try:
        return kind(**arguments, **extra)
    except TypeError as error:
        raise errors.InvalidTaskInfo(f"{path!r} is incomplete: {error}") from error


def _env_json(env: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(env[name])
    except (KeyError, ValueError) as error:
        raise errors.InvalidTaskInfo(f"{name} must be set to JSON in a task: {error!r}") from error


def _env_int(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except (KeyError, ValueError) as error:
        raise errors.InvalidTaskInfo(f"{name} must be set to a whole number in a task: {error!r}") from error
