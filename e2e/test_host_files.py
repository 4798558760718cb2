"""What tasks reach and use of their hosts: storage of the cluster behind links, directories of users that stay, limits."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from configs import experiment
from conftest import equipment, flavoured
from harness import Agent, Missing
from test_attacks import failure
from test_shell_command import require_ssh

pytestmark = pytest.mark.core

MEMORY_MIB = 192
# Allocates so many MiB, and uses them.
ALLOCATE = ["python3", "-c", "import sys; x = bytearray(int(sys.argv[1]) << 20); print('allocated', len(x) >> 20)"]


@pytest.fixture
def host() -> Iterator[pathlib.Path]:
    """A directory of the host that all its users may write to."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="det-e2e-host-", dir="/var/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def root_only() -> None:
    with equipment():
        if os.geteuid() != 0:
            raise Missing("this test has to be root, whose agent runs tasks as other users")


def can_limit() -> bool:
    """Whether this host lets the tests make control groups that limit memory."""
    root = pathlib.Path("/sys/fs/cgroup")
    tree = root if (root / "cgroup.controllers").exists() else root / "memory"
    probe = tree / f"det-probe-{uuid.uuid4().hex[:8]}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    controllers = root / "cgroup.controllers"
    return not controllers.exists() or "memory" in controllers.read_text().split()


def mounted(path: pathlib.Path, place: str = "/host") -> list[dict[str, Any]]:
    return [{"host_path": str(path), "container_path": place}]


def test_a_task_cannot_lead_the_clusters_storage_elsewhere(host: pathlib.Path) -> None:
    root_only()
    storage = host / "team" / "checkpoints"
    (host / "team").mkdir()
    (host / "team").chmod(0o777)
    master = {"checkpoint_storage": {"type": "shared_fs", "host_path": str(storage)}}
    with flavoured("core", agents=[Agent(slots=2)], master_config=master) as cluster:
        show = ["sh", "-c", "ls -a /determined_shared_fs; echo shown"]
        assert "shown" in cluster.printed(cluster.run(experiment("before", show))["id"])
        assert storage.stat().st_mode & 0o7777 == 0o1777
        new = pathlib.Path("/etc") / f"det-attack-{uuid.uuid4().hex[:8]}"
        before = pathlib.Path("/etc").stat().st_mode
        for target in ("/etc", str(cluster.data_dir), str(new)):
            attack = f"cd /host && rm -rf moved; mv checkpoints moved && ln -s {target} checkpoints && echo planted"
            trial = cluster.run(experiment("plants", ["sh", "-c", attack], bind_mounts=mounted(host / "team")))
            assert "planted" in cluster.printed(trial["id"])
            log = failure(cluster, "follows")
            assert f'"{storage}" is a link that users of this host could have made' in log, log
            # Put right again by hand.
            storage.unlink()
            (storage.parent / "moved").rename(storage)
        assert not new.exists()
        assert pathlib.Path("/etc").stat().st_mode == before
        assert "shown" in cluster.printed(cluster.run(experiment("after", show))["id"])


def test_the_directory_of_the_clusters_storage_belongs_to_no_user(host: pathlib.Path) -> None:
    root_only()
    storage = host / "storage"
    master = {"checkpoint_storage": {"type": "shared_fs", "host_path": str(storage), "storage_path": "a/base"}}
    with flavoured("core", agents=[Agent(slots=2)], master_config=master) as cluster:
        base = storage / "a/base"
        config = experiment("saves", hyperparameters={"steps": 2, "checkpoint_every": 2})
        of_first = cluster.run(config, "train")
        common = base / cluster.cluster_id / "tensorboard/experiment"
        for path in (storage, base.parent, base, common):
            assert (path.stat().st_uid, path.stat().st_mode & 0o7777) == (0, 0o1777), path
        # As an earlier version left it, for the user whose task came first.
        [checkpoint] = cluster.checkpoints(of_first["experimentId"])
        owner = (base / checkpoint["uuid"]).stat().st_uid
        assert owner != 0
        cluster.expect_alarm("a directory of checkpoint storage belonged to a user")
        os.chown(base, owner, owner)
        base.chmod(0o755)
        other = {"DET_USER": "admin", "DET_PASS": cluster.password}
        attack = (
            f"cd /determined_shared_fs/a && chmod 777 base; cd base && mv {checkpoint['uuid']} moved; mkdir own; ls"
        )
        written = cluster.write_config(experiment("changes", ["sh", "-c", attack]))
        cluster.run_det("experiment", "create", written, cluster.empty_context(), env=other)
        changing = max(one["id"] for one in cluster.experiments())
        cluster.wait_experiment(changing, "COMPLETED")
        seen = cluster.printed(cluster.only_trial(changing)["id"])
        assert checkpoint["uuid"] in seen and "own" in seen and "moved" not in seen, seen
        assert (base.stat().st_uid, base.stat().st_mode & 0o7777) == (0, 0o1777)
        # Nor can the user who had it rename what the other one has made since.
        attack = "cd /determined_shared_fs/a && chmod 777 base; cd base && mv own taken; ls"
        seen = cluster.printed(cluster.run(experiment("renames", ["sh", "-c", attack]))["id"])
        assert "own" in seen and "taken" not in seen, seen


def test_directories_of_users_stay_and_are_reached_by_their_users_alone(host: pathlib.Path) -> None:
    root_only()
    with equipment():
        require_ssh()
    base = host / "users"
    agent = Agent(slots=2, args=["--set", f"user_directories={base}"])
    with flavoured("core", agents=[agent]) as cluster:

        def shell(command: str, **env: str) -> str:
            started = cluster.run_det("shell", "start", "--config", "resources.slots=0", "--", command, env=env)
            id = started.out.partition("(id: ")[2].partition(",")[0]
            cluster.run_det("shell", "kill", id, env=env)
            return started.out

        shell("echo secret > persistent/file")
        assert "secret" in shell("cat persistent/file")
        other = {"DET_USER": "admin", "DET_PASS": cluster.password}
        assert "secret" not in shell("cat persistent/file; echo other > persistent/file", **other)
        assert "secret" in shell("cat persistent/file")

        [of_cluster] = base.iterdir()
        own = sorted(of_cluster.iterdir())
        assert of_cluster.name == cluster.cluster_id and len(own) == 2
        assert [path.stat().st_mode & 0o7777 for path in (base, of_cluster, *own)] == [0o711, 0o711, 0o700, 0o700]
        assert len({path.stat().st_uid for path in own}) == 2, "unmapped users have an account each"

        # Nothing else reaches them.
        look = ["sh", "-c", f"ls -A {base}; cat {base}/*/*/file; ls -A persistent; echo looked"]
        seen = cluster.printed(cluster.run(experiment("looks", look))["id"])
        assert "looked" in seen and not {"secret", "other", cluster.cluster_id} & set(seen), seen
        (host / "link").symlink_to(base)
        for source in (base, of_cluster, *own, own[0] / "file", host, host / "link"):
            log = failure(cluster, "mounts", bind_mounts=mounted(source))
            assert "belongs to the cluster itself" in log, log
        for path in (base / "checkpoints", host):
            storage = {"type": "shared_fs", "host_path": str(path)}
            log = failure(cluster, "stores", checkpoint_storage=storage)
            assert "belongs to the cluster itself" in log, log
        # What a user leaves in the own directory is not followed by the agent.
        [theirs] = [path for path in own if (path / "file").read_text() == "other\n"]
        [mine] = set(own) - {theirs}
        assert "secret" in shell(f"cat persistent/file; ln -s {theirs} persistent/link; ln -s /etc persistent/etc")
        shutil.rmtree(theirs)
        theirs.symlink_to(mine)
        refused = cluster.run_det(
            "shell", "start", "--config", "resources.slots=0", "--", "true", env=other, check=False
        )
        assert refused.code != 0
        assert "cannot give the task the directory of its user" in refused.out + refused.err, refused


def test_a_task_that_takes_more_than_its_memory_ends_and_says_so() -> None:
    root_only()
    with equipment():
        if not can_limit():
            raise Missing("the tests may not make control groups that limit memory")
    args = ["--set", f"task_limits.memory={MEMORY_MIB}MiB", "--set", "task_limits.processes=200"]
    with flavoured("core", agents=[Agent(slots=2, args=args)]) as cluster:
        small = cluster.run(experiment("small", [*ALLOCATE, "64"]))
        assert "allocated 64" in cluster.printed(small["id"])
        more = str(MEMORY_MIB + 64)
        id = cluster.submit(experiment("large", [*ALLOCATE, more]))
        cluster.wait_experiment(id, "ERROR")
        trial = cluster.only_trial(id)["id"]
        log = "\n".join(cluster.log_lines(trial))
        assert "memory ran out" in log, log
        assert f"memory limit of {MEMORY_MIB} MiB" in log, log
        # Two slots have twice as much.
        both = cluster.run(experiment("both", [*ALLOCATE, more], resources={"slots_per_trial": 2}))
        assert f"allocated {more}" in cluster.printed(both["id"])
        forks = "for i in $(seq 300); do sleep 30 & done; echo survived"
        id = cluster.submit(experiment("forks", ["sh", "-c", forks]))
        cluster.wait_experiment(id, "ERROR", "COMPLETED")
        log = "\n".join(cluster.log_lines(cluster.only_trial(id)["id"]))
        assert "refused a process or thread" in log and "200 of both" in log, log
        containers = {record.get("containerId") for record in cluster.logs(trial)} - {None, ""}
        cgroups = pathlib.Path("/sys/fs/cgroup")
        left = [path for name in containers for path in (*cgroups.glob(f"determined/{name}"), *cgroups.glob(f"*/determined/{name}"))]
        assert containers and not left, left
