"""Starts a script under the `deepspeed` launcher: one process for each slot of the trial.

`python3 -m determined.launch.deepspeed SCRIPT...`
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

from determined import _info
from determined._task import mark_daemon
from determined.launch import _processes, _ssh
from determined.launch._arguments import Arguments, task_info
from determined.launch.torch_distributed import choose_interface, share_secret

__all__ = ["command", "environment_lines", "host_lines", "main"]

MODULE = "determined.launch.deepspeed"

logger = logging.getLogger("determined.launch")

#: Variables of one container, which those of others must not get.
OTHERS = ["BASH_FUNC_.*", "OLDPWD", "HOSTNAME", ".*CUDA_VISIBLE_DEVICES", "SLURM_PROCID"]
OWN = re.compile("|".join([*OTHERS, *_ssh.OWN]))
#: What runs a rank on this machine.
WRAPPER = ("python3", "-m", "determined.launch.wrap_rank")


def host_lines(info: _info.ClusterInfo) -> list[str]:
    """The lines of DeepSpeed's hostfile."""
    hosts = zip(info.container_addrs, info.container_slot_counts)
    return [f"{address} slots={slots}" for address, slots in hosts]


def environment_lines(env: Mapping[str, str]) -> list[str]:
    """The lines of DeepSpeed's file of variables: those that all containers share.

    Values with line ends are left out, which that file cannot have.
    """
    kept = ((name, value) for name, value in sorted(env.items()) if not OWN.fullmatch(name))
    return [f"{name}={shlex.quote(value)}" for name, value in kept if "\n" not in value and "\r" not in value]


def command(
    info: _info.ClusterInfo,
    script: Sequence[str],
    *,
    hostfile: str | None,
    ssh_check: bool,
    wrapper: Sequence[str] = WRAPPER,
) -> list[str]:
    """The command line of the chief. `wrapper` runs a rank.

    `ssh_check`: this DeepSpeed has no flag that leaves its own check out.
    """
    words = ["deepspeed"]
    if hostfile is not None:
        words += ["-H", hostfile]
    address = "localhost" if hostfile is None else info.container_addrs[0]
    words += ["--master_addr", address, "--no_python", "--no_local_rank"]
    if not ssh_check:
        words.append("--no_ssh_check")
    return [*words, "--", *wrapper, "RANK", "--", *script]


def has_ssh_check(version: str, machines: int) -> bool:
    """Whether DeepSpeed checks SSH by itself, which fails here; ValueError names versions with which that
    stays so.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if machines > 1 and (0, 6, 1) <= numbers <= (0, 6, 4):
        raise ValueError(
            f"DeepSpeed {version} checks SSH in a way that fails between containers; use 0.6.0, or 0.6.5 or "
            "newer"
        )
    return numbers <= (0, 6, 4)


def main(arguments: Sequence[str]) -> int:
    """Starts the processes, or in other containers than the chief's the SSH server; gives the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(name)s: %(message)s")
    parsed = Arguments.parse(arguments, module=MODULE, overridable=False)
    info = task_info(MODULE)
    os.environ.update(USE_DEEPSPEED="1", DET_CHIEF_IP=info.container_addrs[0])
    choose_interface(info, os.environ)
    share_secret(info)
    try:
        ssh_check = has_ssh_check(importlib.metadata.version("deepspeed"), len(info.container_addrs))
    except importlib.metadata.PackageNotFoundError:
        logger.error("DeepSpeed is not installed in this task")
        return 1
    if len(info.container_addrs) == 1:
        return _processes.run(command(info, parsed.script, hostfile=None, ssh_check=ssh_check))
    port = int(os.environ.get("DTRAIN_SSH_PORT", "12350"))
    keys = _ssh.Keys()
    wrapper = _ssh.rank_wrapper(os.environ)
    server = _ssh.server_command(keys, port)
    hostfile = os.path.join(os.path.dirname(keys.identity), "hostfile")
    os.environ["DET_DEEPSPEED_HOSTFILE_PATH"] = hostfile
    _write_lines(hostfile, host_lines(info))
    if info.container_rank > 0:
        mark_daemon(info, os.environ["DET_RESOURCES_ID"])
        return _processes.run(server)
    # DeepSpeed reads it from the working directory.
    _write_lines(os.environ.get("DS_ENV_FILE", ".deepspeed_env"), environment_lines(os.environ))
    os.environ["PDSH_SSH_ARGS"] = (
        f"-o PasswordAuthentication=no -o StrictHostKeyChecking=yes -o UserKnownHostsFile={keys.known_hosts} "
        f"-i {keys.identity} -p {port} -2 -a -x %h"
    )
    # The chief's processes are started over SSH as well.
    with subprocess.Popen(server) as own:
        try:
            _ssh.wait_for_servers(info.container_addrs, port, own)
            return _processes.run(
                command(info, parsed.script, hostfile=hostfile, ssh_check=ssh_check, wrapper=wrapper)
            )
        finally:
            with contextlib.suppress(OSError):
                own.kill()


def _write_lines(path: str, lines: Sequence[str]) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
