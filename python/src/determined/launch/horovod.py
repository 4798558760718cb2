"""Starts a script under `horovodrun`: one process for each slot of the trial.

`python3 -m determined.launch.horovod [[HVD_OVERRIDES...] --] SCRIPT...`
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from determined import _info
from determined._task import mark_daemon
from determined.launch import _processes, _ssh
from determined.launch._arguments import Arguments, task_info
from determined.launch.torch_distributed import share_secret

__all__ = ["command", "main"]

MODULE = "determined.launch.horovod"

#: Seconds that all processes may take to start, and to meet.
START_WITHIN_S = 1200
MEET_WITHIN_S = 240
#: Where Horovod writes what its tuning found.
TUNING_LOG = "/tmp/autotune_log.csv"
#: Variables with a process' rank, of Horovod itself and of the MPIs that it may use.
RANKS = "HOROVOD_RANK,OMPI_COMM_WORLD_RANK,PMI_RANK"


#: What runs a rank on this machine.
WRAPPER = ("python3", "-m", "determined.launch.wrap_rank")


def command(
    info: _info.ClusterInfo,
    overrides: Sequence[str],
    script: Sequence[str],
    *,
    config: Mapping[str, Any],
    port: int,
    identity: str | None,
    wrapper: Sequence[str] = WRAPPER,
) -> list[str]:
    """The command line of the chief.

    `config` is the experiment's configuration, `identity` the key for SSH; `wrapper` runs a rank.
    """
    others = info.container_addrs[1:]
    # The chief's own processes are started without SSH.
    hosts = zip(["localhost", *others], info.container_slot_counts)
    words = ["horovodrun", "-np", str(sum(info.container_slot_counts)), "-p", str(port)]
    words += ["-H", ",".join(f"{host}:{slots}" for host, slots in hosts)]
    words += ["--start-timeout", str(START_WITHIN_S), "--gloo-timeout-seconds", str(MEET_WITHIN_S)]
    if identity is not None:
        words += ["--ssh-identity-file", identity]
    network = info.trial._inter_node_network_interface  # pyright: ignore[reportPrivateUsage]
    if network is not None and others:
        words += ["--network-interface", network]
    words += _tuning(config.get("optimizations") or {})
    if config.get("debug"):
        words.append("--verbose")
    words += (config.get("data") or {}).get("__det_dtrain_args", [])
    return [*words, *overrides, "--", *wrapper, RANKS, "--", *script]


def _tuning(optimizations: Mapping[str, Any]) -> list[str]:
    if optimizations.get("auto_tune_tensor_fusion"):
        words = ["--autotune", "--autotune-log-file", TUNING_LOG]
    else:
        words = ["--fusion-threshold-mb", str(optimizations.get("tensor_fusion_threshold", 64))]
        words += ["--cycle-time-ms", str(optimizations.get("tensor_fusion_cycle_time", 1))]
    # Not for its tuning to change.
    return [*words, "--cache-capacity", "1024", "--no-hierarchical-allreduce", "--no-hierarchical-allgather"]


def main(arguments: Sequence[str]) -> int:
    """Starts the processes, or in other containers than the chief's the SSH server; gives the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(name)s: %(message)s")
    parsed = Arguments.parse(arguments, module=MODULE, overridable=True, flags=["--autohorovod"])
    info = task_info(MODULE)
    machines = len(info.container_addrs)
    if parsed.flags.autohorovod and machines == 1 and len(info.slot_ids) <= 1:
        with subprocess.Popen(parsed.script) as process, _processes.forwarded_signals(process):
            return _processes.exit_code(process.wait())
    os.environ.update(USE_HOROVOD="1", DET_CHIEF_IP=info.container_addrs[0])
    # With it MPI would ask the batch system of a cluster that the container is not part of.
    os.environ.pop("SLURM_JOBID", None)
    share_secret(info)
    port = int(os.environ.get("DTRAIN_SSH_PORT", "12350"))
    keys = _ssh.Keys() if machines > 1 else None
    wrapper = WRAPPER if keys is None else _ssh.rank_wrapper(os.environ)
    if keys is not None and info.container_rank > 0:
        mark_daemon(info, os.environ["DET_RESOURCES_ID"])
        return _processes.run(_ssh.server_command(keys, port))
    if keys is not None:
        _ssh.wait_for_servers(info.container_addrs[1:], port)
    words = command(
        info,
        parsed.overrides,
        parsed.script,
        config=info.trial._config,  # pyright: ignore[reportPrivateUsage]
        port=port,
        identity=None if keys is None else keys.identity,
        wrapper=wrapper,
    )
    # Of SIGTERM it leaves its processes behind.
    return _processes.run(words, on_failure=signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
