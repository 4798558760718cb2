"""Two containers: the member's SSH server has first the trial's key, then another one; the chief connects to both."""

import os
import subprocess

import determined as det
from determined import core

info = det.get_cluster_info()
rank, port = info.container_rank, os.environ["DTRAIN_SSH_PORT"]
dist = core.DistributedContext(
    rank=rank, size=2, local_rank=0, local_size=1, cross_rank=rank, cross_size=2, chief_ip=info.container_addrs[0]
)


def serve(*options):
    """Starts a server, and waits until it listens."""
    argv = ["/usr/sbin/sshd", "-D", "-e", "-p", port, "-f", "/run/determined/ssh/sshd_config", *options]
    server = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if "Server listening" in line:
            return server
    raise SystemExit(f"the SSH server ended with exit code {server.wait()}")


def connect(name):
    """Connects as launchers do, which want no check of the server."""
    argv = ["ssh", "-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no", "-p", port]
    done = subprocess.run([*argv, info.container_addrs[1], "echo inside"], stdout=subprocess.PIPE, text=True)
    print(f"the server with {name}: {done.returncode} {done.stdout.strip()}", flush=True)


server = serve() if rank == 1 else None
dist.allgather("it listens")
if rank == 0:
    connect("the trial's key")
dist.allgather("it was asked")
if server is not None:
    server.kill()
    server.wait()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "other"], check=True)
    server = serve("-h", os.path.abspath("other"), "-o", f"HostKey={os.path.abspath('other')}")
dist.allgather("another one listens")
if rank == 0:
    connect("another key")
dist.allgather("it was asked")
if server is not None:
    server.kill()
