"""A real Kubernetes control plane with fake nodes, which the environment names (KUBECONFIG), and `kubectl`."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import yaml

from harness import HERE, Missing

CHART = HERE.parent / "deploy" / "helm" / "determined"
VALUES = HERE / "chart" / "defaults.yaml"


class Kubernetes:
    """A control plane. Pods of its fake nodes live as their annotations `k8s-testbed/…` want."""

    def __init__(self) -> None:
        self.kubeconfig = os.environ.get("KUBECONFIG", "")
        if not os.path.isfile(self.kubeconfig):
            raise Missing("KUBECONFIG names no Kubernetes control plane (k8s-testbed up --nodes 4 --gpus 8)")
        client = shutil.which("kubectl")
        if client is None:
            raise Missing("there is no kubectl on PATH")
        self.client = client

    def run(self, *args: str, text: str | None = None) -> str:
        """Runs kubectl; gives its output."""
        argv = [self.client, "--kubeconfig", self.kubeconfig, *args]
        done = subprocess.run(argv, input=text, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}"
        return done.stdout

    def items(self, *args: str) -> list[dict[str, Any]]:
        """The objects that `kubectl get ARGS` finds."""
        return json.loads(self.run("get", *args, "--output", "json"))["items"]

    def nodes(self) -> dict[str, int]:
        """GPUs by node."""
        found = self.items("nodes")
        return {it["metadata"]["name"]: int(it["status"]["allocatable"].get("nvidia.com/gpu", 0)) for it in found}

    def has_rights(self) -> bool:
        """Whether `masters_kubeconfig` limits the master to the rights that the chart gives it."""
        limited = os.environ.get("K8S_TESTBED_LIMITED_KUBECONFIG", "")
        return shutil.which("helm") is not None and os.path.isfile(limited)

    def masters_kubeconfig(self, namespace: str, *settings: str) -> str:
        """The access of a user with the very rights that the chart gives the master for tasks in a namespace, with these
        settings (`KEY=VALUE`); that of the tests where the control plane has no such user."""
        limited = os.environ.get("K8S_TESTBED_LIMITED_KUBECONFIG", "")
        helm = shutil.which("helm")
        if helm is None or not os.path.isfile(limited):
            return self.kubeconfig
        argv = [helm, "template", "e2e", str(CHART), "--namespace", "default", "--values", str(VALUES)]
        argv += ["--set", f"resourceManager.defaultNamespace={namespace}"]
        argv += [word for setting in settings for word in ("--set", setting)]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        objects = [found for found in yaml.safe_load_all(done.stdout) if found]
        kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        names = re.compile(r"determined-(master|gateway-\d+)-e2e")
        rights = [it for it in objects if it["kind"] in kinds and names.fullmatch(it["metadata"]["name"])]
        for found in rights:
            if "subjects" in found:
                found["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "det-master"}]
        self.apply(*rights)
        return limited

    def apply(self, *objects: dict[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.run("apply", "--filename", "-", text=json.dumps(listed))

    @contextlib.contextmanager
    def paused(self, component: str = "kube-apiserver") -> Iterator[None]:
        """A component of the control plane accepts connections and answers nothing. Needs a testbed on this machine."""
        file = pathlib.Path(os.environ.get("K8S_TESTBED_STATE", ""), "run", f"{component}.pid")
        if not file.is_file():
            raise Missing("K8S_TESTBED_STATE names no testbed whose control plane can be paused")
        process = int(file.read_text().split()[0])
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)
