"""Prints, as JSON, which GPUs a task sees: its environment, the driver's tool, device files, torch."""

import glob
import json
import os
import stat
import subprocess
import sys


def device_file_can_be_made():
    """Whether the task can make itself the device file of the first GPU."""
    path = "/tmp/nvidia0"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(195, 0))
        with open(path, "rb"):
            return True
    except OSError:
        return False


def torch_sees(**variables):
    """How many GPUs torch sees in a process of its own, with these variables, and what a product on one of them gives."""
    code = (
        "import torch; n = torch.cuda.device_count(); x = torch.ones(64, 64, device='cuda' if n else 'cpu');"
        "print(n, (x @ x).sum().item())"
    )
    env = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip()[-500:]


tool = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
found = {
    "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "slots": os.environ.get("DET_SLOT_IDS"),
    "tool": [tool.returncode, (tool.stdout + tool.stderr).splitlines()],
    "files": sorted(path for path in glob.glob("/dev/nvidia*") if not os.path.isdir(path)),
    "makes": device_file_can_be_made(),
    "torch": torch_sees(),
    "torch without the variable": torch_sees(CUDA_VISIBLE_DEVICES=None),
    "uid": os.getuid(),
}
print("sees", json.dumps(found), flush=True)
