"""Starts a script under `torch.distributed.run`: one process for each slot of the trial.

`python3 -m determined.launch.torch_distributed [[TORCH_OVERRIDES...] --] SCRIPT...`
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import MutableMapping, Sequence

from determined import _info
from determined._core._distributed import SECRET
from determined._task import exchange
from determined.launch import _processes
from determined.launch._arguments import Arguments, task_info

__all__ = ["choose_interface", "command", "main"]

MODULE = "determined.launch.torch_distributed"

#: Variables by which Gloo and NCCL are given interfaces.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def command(
    info: _info.ClusterInfo, overrides: Sequence[str], script: Sequence[str], *, port: int
) -> list[str]:
    """The command line of this container: torch's launcher, which wraps the script with its rank."""
    alone = len(info.container_addrs) == 1
    return [
        # Literally: what the task has installed is found by this name.
        "python3",
        "-m",
        "torch.distributed.run",
        "--nnodes",
        str(len(info.container_addrs)),
        # A container without slots trains on its processor.
        "--nproc_per_node",
        str(len(info.slot_ids) or 1),
        "--node_rank",
        str(info.container_rank),
        "--max_restarts",
        "0",
        "--master_addr",
        "localhost" if alone else info.container_addrs[0],
        "--master_port",
        str(port),
        # Those of the user win: torch takes the last.
        *overrides,
        "--module",
        "determined.launch.wrap_rank",
        "RANK",
        "--",
        *script,
    ]


def main(arguments: Sequence[str]) -> int:
    """Starts the processes of this container; gives the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(name)s: %(message)s")
    parsed = Arguments.parse(arguments, module=MODULE, overridable=True)
    info = task_info(MODULE)
    os.environ["USE_TORCH_DISTRIBUTED"] = "True"
    os.environ["DET_CHIEF_IP"] = info.container_addrs[0]
    share_secret(info)
    choose_interface(info, os.environ)
    port = int(os.environ.get("C10D_PORT", "29400"))
    return _processes.run(command(info, parsed.overrides, parsed.script, port=port))


def choose_interface(info: _info.ClusterInfo, env: MutableMapping[str, str]) -> None:
    """Has Gloo and NCCL use the interface that the cluster is configured with, unless the task chooses one.

    A container alone may have a network of its own, in which the interface does not exist.
    """
    network = env.get("DET_INTER_NODE_NETWORK_INTERFACE")
    if network and len(info.container_addrs) > 1:
        for name in INTERFACES:
            env.setdefault(name, network)


def share_secret(info: _info.ClusterInfo) -> None:
    """Gives the processes of all containers what they prove to each other that they belong together with."""
    if os.environ.get(SECRET):
        return
    own = secrets.token_hex(32) if info.container_rank == 0 else ""
    size = len(info.container_addrs)
    if size > 1:
        own = exchange(info, "launch-secret", info.container_rank, size, own)
    os.environ[SECRET] = own


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
