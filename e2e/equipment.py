"""What the tests run with: executables, interpreters, images and GPUs, by the variables that name them.

What is not there is [`Missing`], and the tests of its lane are skipped with the reason.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from processes import docker_client, podman_socket

HERE = pathlib.Path(__file__).resolve().parent


class Missing(Exception):
    """Equipment of a lane is not there; the lane is skipped with this reason."""


def det_executable() -> pathlib.Path:
    """The `det` under test: DET_BIN, else the newest build of this tree."""
    named = os.environ.get("DET_BIN")
    if named is not None:
        if not os.access(named, os.X_OK):
            raise Missing(f'there is no executable "{named}", which DET_BIN names')
        return pathlib.Path(named).absolute()
    built = [HERE.parent / "target" / profile / "det" for profile in ("debug", "release")]
    built = [path for path in built if path.is_file() and path.with_name("det-supervisor").is_file()]
    if not built:
        raise Missing(f"no det with det-supervisor beside it below {HERE.parent}/target: build them, or set DET_BIN")
    return max(built, key=lambda path: path.stat().st_mtime)


def task_python() -> pathlib.Path:
    """The interpreter for process tasks: DET_E2E_PYTHON, else the one that runs the tests."""
    return _interpreter(os.environ.get("DET_E2E_PYTHON", sys.executable), "import urllib3, yaml", "DET_E2E_PYTHON")


def wheel_python() -> pathlib.Path:
    """An interpreter with the unmodified PyPI package."""
    if "DET_WHEEL_PYTHON" not in os.environ:
        raise Missing("DET_WHEEL_PYTHON names no interpreter with determined==0.38.1 from PyPI")
    code = "import determined; assert determined.__version__ == '0.38.1'"
    return _interpreter(os.environ["DET_WHEEL_PYTHON"], code, "DET_WHEEL_PYTHON")


def torch_python(*, own: bool) -> pathlib.Path:
    """An interpreter with torch and the unmodified PyPI package, or with torch alone, so that tasks get ours."""
    variable = "DET_TORCH_OWN_PYTHON" if own else "DET_TORCH_PYTHON"
    if variable not in os.environ:
        raise Missing(f"{variable} names no interpreter with torch")
    package = "import urllib3, yaml" if own else "import determined; assert determined.__version__ == '0.38.1'"
    code = f"import torch.distributed as d; assert d.is_available(); {package}"
    return _interpreter(os.environ[variable], code, variable)


def gpu_python(*, wheel: bool = False) -> pathlib.Path:
    """An interpreter with torch that finds a GPU, on a host whose driver lists one; with the PyPI package, or without."""
    listed_gpus()
    variable = "DET_GPU_WHEEL_PYTHON" if wheel else "DET_GPU_PYTHON"
    if variable not in os.environ:
        package = ", and determined==0.38.1 from PyPI" if wheel else ""
        raise Missing(f"{variable} names no interpreter with torch that finds a GPU{package}")
    package = "import determined; assert determined.__version__ == '0.38.1'" if wheel else "import urllib3, yaml"
    code = f"import torch; assert torch.cuda.is_available(), 'torch finds no GPU'; {package}"
    return _interpreter(os.environ[variable], code, variable)


def listed_gpus() -> list[dict[str, str]]:
    """The GPUs of this host as NVIDIA's tool lists them now, by the names of its columns; memory in MiB."""
    columns = ("uuid", "name", "memory.total", "memory.used", "memory.free", "utilization.gpu", "temperature.gpu")
    query = [f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True)
    except FileNotFoundError:
        raise Missing("there is no GPU: no nvidia-smi is on PATH") from None
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    gpus = [dict(zip(columns, row)) for row in rows if row[0].startswith("GPU-")]
    if not gpus:
        raise Missing(f"nvidia-smi lists no GPU: {(done.stdout + done.stderr).strip()}")
    return gpus


def wheel_det() -> pathlib.Path:
    """The PyPI client."""
    path = pathlib.Path(os.environ.get("DET_WHEEL_DET", "/nonexistent"))
    if not path.is_file():
        raise Missing("DET_WHEEL_DET names no det of determined==0.38.1 from PyPI")
    return path


def _interpreter(path: str, code: str, variable: str) -> pathlib.Path:
    done = subprocess.run([path, "-c", code], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it prints nothing"])[-1]
        raise Missing(f'the interpreter "{path}" ({variable}) cannot run "{code}": {last}')
    # Not resolved: the interpreter of a virtual environment is known by the path it is called by.
    return pathlib.Path(path).absolute()


def docker_image() -> str:
    """An image with Python and our package, on an engine that answers."""
    if "DET_TEST_IMAGE" not in os.environ:
        raise Missing("DET_TEST_IMAGE names no image with Python and our package")
    client = docker_client()
    if client is None:
        raise Missing("there is no docker on PATH")
    image = os.environ["DET_TEST_IMAGE"]
    done = subprocess.run([client, "image", "inspect", image], capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f'the Docker engine has no image "{image}": {done.stderr.strip()}')
    return image


def wheel_image() -> str:
    """The image with the unmodified PyPI package in place of ours."""
    docker_image()
    if "DET_TEST_WHEEL_IMAGE" not in os.environ:
        raise Missing("DET_TEST_WHEEL_IMAGE names no image with determined==0.38.1 from PyPI (scripts/test-images wheel)")
    return os.environ["DET_TEST_WHEEL_IMAGE"]


def podman_image(engine: str = "podman") -> str:
    """An image with Python and our package, at Podman's service; see `processes.podman_socket`."""
    if "DET_TEST_PODMAN_IMAGE" not in os.environ:
        raise Missing("DET_TEST_PODMAN_IMAGE names no image with Python and our package at Podman's service")
    if not os.path.exists(podman_socket(engine)):
        raise Missing(f"the service of Podman ({engine}) does not listen at {podman_socket(engine)}")
    if docker_client() is None:
        raise Missing("there is no docker on PATH, with which the tests ask Podman's service")
    return os.environ["DET_TEST_PODMAN_IMAGE"]
