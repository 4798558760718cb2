"""Attacks that an ordinary account tries: each has to fail, and nothing may be left of it."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from configs import experiment
from conftest import equipment
from harness import Cluster, Missing

pytestmark = pytest.mark.core

# Prints a line that begins with "REACHED" for everything that a task must not reach. Our Python package is shown to it.
PROBE = """
for path in {files}; do
    (cat "$path" > /dev/null) 2> /dev/null && echo "REACHED reading $path"
    # Where it is not there, the task may make a file of that name in a directory of its own.
    [ -e "$path" ] && (echo x >> "$path") 2> /dev/null && echo "REACHED writing $path"
done
for path in /etc /usr/bin /etc/systemd/system /boot; do
    (echo x > $path/det-attack) 2> /dev/null && echo "REACHED writing $path"
done
for path in {directories}; do
    for file in $(find $path -type f -not -path "*/python/determined/*" 2> /dev/null); do echo "REACHED listing $file"; done
done
for device in /dev/[svx]d[a-z] /dev/vda* /dev/nvme* /dev/mem /dev/kmsg /dev/kvm /dev/loop*; do
    [ -e $device ] && echo "REACHED the device $device"
done
for process in /proc/[0-9]*; do
    grep -qaE "det.(up|agent|master)" $process/cmdline 2> /dev/null && [ $process != /proc/$$ ] \
        && grep -qa -- --data-dir $process/cmdline && echo "REACHED the process $process"
done
mount -t tmpfs none /tmp 2> /dev/null && echo "REACHED mounting"
unshare --user true 2> /dev/null && echo "REACHED namespaces"
grep -E "^CapBnd:.*[1-9a-f]" /proc/self/status && echo "REACHED capabilities"
grep -qE "^NoNewPrivs:.1" /proc/self/status || echo "REACHED new privileges"
grep -qE "^Seccomp:.2" /proc/self/status || echo "REACHED all system calls"
echo "uid $(id -u), tried everything"
"""


def probe(cluster: Cluster) -> list[str]:
    """Runs the probe as a trial; gives what it printed."""
    data = cluster.data_dir
    files = [data / "det.db", data / "agent-token", cluster.root / "master.yaml", *_agent_files(cluster)]
    text = PROBE.format(
        files=" ".join(str(path) for path in files if path.is_file()),
        directories=" ".join(str(path) for path in (data, cluster.root / "home", cluster.root / "logs")),
    )
    assert (data / "det.db").is_file()
    trial = cluster.run(experiment("probe", ["sh", "-c", text]), within=90)
    return cluster.printed(trial["id"])


def _agent_files(cluster: Cluster) -> Iterator[pathlib.Path]:
    for directory in cluster._agent_dirs():
        yield from (path for path in directory.rglob("*") if path.is_file() and "containers" not in path.parts)


def failure(cluster: Cluster, name: str, **more: Any) -> str:
    """Submits an experiment that must not run; gives the log of its trial."""
    id = cluster.submit(experiment(name, ["sh", "-c", "echo it ran"], **more))
    cluster.wait_experiment(id, "ERROR")
    trial = cluster.only_trial(id)["id"]
    assert "it ran" not in cluster.printed(trial)
    return "\n".join(cluster.log_lines(trial))


def test_a_task_reaches_nothing_of_the_cluster(up: Cluster) -> None:
    printed = probe(up)
    assert not [line for line in printed if "REACHED" in line], printed
    assert printed[-1].endswith("tried everything")
    if os.geteuid() == 0:
        assert printed[-1].startswith("uid 20000000"), "a task of an unmapped user has an id of its own"


def test_no_task_logs_in_with_a_blank_password(up: Cluster) -> None:
    trial = up.run(experiment("logs-in", "python3 login.py"), "login")
    answers = [line for line in up.printed(trial["id"]) if line.startswith("login ")]
    assert len(answers) == 4
    assert all(answer.endswith(": 403") for answer in answers), answers
    assert up.token("admin"), "local users still do"


def test_the_log_of_a_process_names_the_capabilities_that_it_was_not_given(up: Cluster) -> None:
    asked = {"environment": {"add_capabilities": ["SYS_PTRACE"]}}
    trial = up.run(experiment("asks", ["sh", "-c", "grep CapEff /proc/self/status"], **asked))
    assert any("SYS_PTRACE not given" in line for line in up.log_lines(trial["id"]))
    [line] = up.printed(trial["id"])
    assert int(line.split()[1], 16) == 0, line


def test_no_task_changes_the_checkpoints_of_another_user(up: Cluster) -> None:
    with equipment():
        _need_root("setpriv")
    saved = up.run(experiment("saves", hyperparameters={"steps": 2, "checkpoint_every": 2}), "train")
    [checkpoint] = up.checkpoints(saved["experimentId"])
    directory = up.data_dir / "checkpoints" / checkpoint["uuid"]
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    # A restored checkpoint is code of the user who wrote it: `admin` is another user to the hosts, not another set of rights.
    change = f"cd /determined_shared_fs/{checkpoint['uuid']} && (echo x >> metadata.json; rm -rf *; touch new); ls"
    config = up.write_config(experiment("changes", ["sh", "-c", change]))
    up.run_det("experiment", "create", config, up.empty_context(), env={"DET_USER": "admin", "DET_PASS": ""})
    changing = max(one["id"] for one in up.experiments())
    up.wait_experiment(changing, "COMPLETED")
    assert "metadata.json" in up.printed(up.only_trial(changing)["id"])
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_no_mount_leads_to_the_cluster_or_the_system(up: Cluster) -> None:
    work = up.shared_dir()
    (work / "link").symlink_to(up.data_dir)
    for source in (up.data_dir, up.data_dir / "det.db", up.root, work / "link", "/", "/etc", "/proc", "/run", "/dev"):
        mounts = [{"host_path": str(source), "container_path": "/attack"}]
        log = failure(up, "mount", bind_mounts=mounts)
        assert f'cannot mount "{source}"' in log, log
    log = failure(up, "device", resources={"devices": [{"host_path": "/dev/null", "container_path": "/dev/attack"}]})
    assert "allowed_host_paths" in log


def test_the_agent_creates_nothing_where_users_point(up: Cluster) -> None:
    name = f"det-attack-{uuid.uuid4().hex[:8]}"
    for path in (pathlib.Path("/etc") / name, pathlib.Path("/var/lib") / name, up.data_dir / name):
        storage = {"type": "shared_fs", "host_path": str(path)}
        config = up.write_config(experiment("storage", ["sh", "-c", "true"], checkpoint_storage=storage))
        submitted = up.run_det("experiment", "create", config, up.empty_context(), check=False)
        found = re.search(r"Created experiment (\d+)", submitted.out)
        if found:
            up.wait_experiment(int(found.group(1)), "ERROR")
        assert not path.exists(), path
    # A mount point is made in the task's own tree.
    work = up.shared_dir()
    (work / "there").touch(mode=0o666)
    mounts = [
        {"host_path": str(work), "container_path": f"/etc/{name}"},
        {"host_path": str(work / "there"), "container_path": f"/etc/{name}-file"},
    ]
    config = experiment("points", ["sh", "-c", f"ls /etc/{name} /etc/{name}-file"], bind_mounts=mounts)
    assert "there" in up.printed(up.run(config)["id"])
    assert not list(pathlib.Path("/etc").glob(f"{name}*"))


def test_the_check_agrees(up: Cluster) -> None:
    data = up.root / "check"
    rows = up.run_det("agent", "check-isolation", "--json", "--data-dir", data).json()
    assert {row["outcome"] for row in rows} == {"isolated", "shared"}, rows
    assert [row["what"] for row in rows if row["outcome"] == "shared"] == ["network"]
    table = up.run_det("agent", "check-isolation", "--data-dir", data).out
    assert "capabilities" in table and "no, by design" in table


def test_an_unprivileged_cluster_keeps_its_tasks_out() -> None:
    with equipment():
        _need_root("setpriv")
    with Cluster(shape="up", account=65534) as cluster:
        printed = probe(cluster)
        assert not [line for line in printed if "REACHED" in line], printed
        assert printed[-1] == "uid 0, tried everything"


def test_where_the_kernel_gives_no_boundary_that_is_logged() -> None:
    with equipment():
        _need_root("unshare")
    # An account in a user namespace in which no further one can be made.
    limit = 'echo 1 > /proc/sys/user/max_user_namespaces; exec unshare --user --map-user=1000 --map-group=1000 "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "sh", "-c", limit, "sh"]
    with Cluster(shape="up", up_prefix=prefix) as cluster:
        cluster.expect_alarm("cannot keep tasks apart")
        output = cluster.part("master").log.read_text()
        assert output.count("this host cannot keep tasks apart") == 1, output
        log = failure(cluster, "no-boundary")
        assert "user namespace" in log, log


def _need_root(*programs: str) -> None:
    if os.geteuid() != 0:
        raise Missing("this test has to be root, to become another user")
    for program in programs:
        if shutil.which(program) is None:
            raise Missing(f'there is no "{program}" on PATH')
