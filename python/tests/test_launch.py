"""Launchers: the commands that they build, and what becomes of the processes that they start."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from conftest import PROJECT
from determined import ClusterInfo, RendezvousInfo, TrialInfo, errors
from determined.launch import _processes, _ssh, deepspeed, horovod, torch_distributed, wrap_rank
from determined.launch._arguments import Arguments

SCRIPT = ["python3", "train.py", "--lr", "0.1"]


def info(addresses: list[str], rank: int = 0, slots: list[int] | None = None, **config: Any) -> ClusterInfo:
    """A container of a gang with these addresses."""
    slots = slots or [2] * len(addresses)
    optimizations = {"tensor_fusion_threshold": 32, "tensor_fusion_cycle_time": 5}
    trial = TrialInfo(2, 1, 7, {}, {"optimizations": optimizations, **config}, 0, 1, False, "eth1")
    return ClusterInfo(
        "http://127.0.0.1:1",
        "cluster",
        "agent",
        list(range(slots[rank])),
        "1.c0ffee",
        "1.c0ffee.1",
        "token",
        "TRIAL",
        trial_info=trial,
        rendezvous_info=RendezvousInfo(addresses, rank, slots),
    )


def test_torch_meets_at_the_chief() -> None:
    words = torch_distributed.command(
        info(["10.0.0.1", "10.0.0.2"], 1, [4, 2]), ["--max_restarts", "3"], SCRIPT, port=29411
    )
    assert words == [
        *(
            "python3",
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--nproc_per_node",
            "2",
            "--node_rank",
            "1",
        ),
        *(
            "--max_restarts",
            "0",
            "--master_addr",
            "10.0.0.1",
            "--master_port",
            "29411",
            "--max_restarts",
            "3",
        ),
        *("--module", "determined.launch.wrap_rank", "RANK", "--", *SCRIPT),
    ]


def test_torch_alone_trains_on_this_machine_also_without_slots() -> None:
    alone = info(["10.0.0.1"])
    alone.slot_ids = []
    words = torch_distributed.command(alone, [], SCRIPT, port=29400)
    assert words[words.index("--nproc_per_node") + 1] == "1"
    assert words[words.index("--master_addr") + 1] == "localhost"


@pytest.mark.parametrize(
    ("addresses", "env", "expected"),
    [
        (["10.0.0.1", "10.0.0.2"], {}, {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib0"}),
        (
            ["10.0.0.1", "10.0.0.2"],
            {"NCCL_SOCKET_IFNAME": "=eth7", "GLOO_SOCKET_IFNAME": ""},
            {"NCCL_SOCKET_IFNAME": "=eth7", "GLOO_SOCKET_IFNAME": ""},
        ),
        (["10.0.0.1"], {}, {}),
    ],
    ids=["several", "chosen by the task", "alone"],
)
def test_frameworks_use_the_interface_of_the_cluster(
    addresses: list[str], env: dict[str, str], expected: dict[str, str]
) -> None:
    given = {"DET_INTER_NODE_NETWORK_INTERFACE": "ib0", **env}
    torch_distributed.choose_interface(info(addresses), given)
    assert given == {"DET_INTER_NODE_NETWORK_INTERFACE": "ib0", **expected}
    nothing = {"DET_INTER_NODE_NETWORK_INTERFACE": ""}
    torch_distributed.choose_interface(info(addresses), nothing)
    assert nothing == {"DET_INTER_NODE_NETWORK_INTERFACE": ""}


def test_deepspeed_gets_hosts_and_variables() -> None:
    gang = info(["10.0.0.1", "10.0.0.2"], 0, [4, 2])
    assert deepspeed.host_lines(gang) == ["10.0.0.1 slots=4", "10.0.0.2 slots=2"]
    words = deepspeed.command(gang, SCRIPT, hostfile="/tmp/hosts", ssh_check=False)
    assert words == [
        *("deepspeed", "-H", "/tmp/hosts", "--master_addr", "10.0.0.1", "--no_python", "--no_local_rank"),
        *("--no_ssh_check", "--", "python3", "-m", "determined.launch.wrap_rank", "RANK", "--", *SCRIPT),
    ]
    assert "--no_ssh_check" not in deepspeed.command(gang, SCRIPT, hostfile="/tmp/hosts", ssh_check=True)
    alone = deepspeed.command(info(["10.0.0.1"]), SCRIPT, hostfile=None, ssh_check=False)
    assert alone[:4] == ["deepspeed", "--master_addr", "localhost", "--no_python"]
    over_ssh = deepspeed.command(gang, SCRIPT, hostfile="/h", ssh_check=False, wrapper=["sh", "/start"])
    assert over_ssh[-len(SCRIPT) - 4 :] == ["sh", "/start", "RANK", "--", *SCRIPT]
    env = {
        "A": "two words",
        "B": "line\nline",
        "CUDA_VISIBLE_DEVICES": "1",
        "DET_SLOT_IDS": "[0]",
        "DET_USER": "ada",
    }
    assert deepspeed.environment_lines(env) == ["A='two words'", "DET_USER=ada"]


@pytest.mark.parametrize(
    ("version", "machines", "checks"),
    [
        ("0.6.0", 2, True),
        ("0.6.4", 1, True),
        ("0.6.5", 2, False),
        ("0.16.1+cu", 2, False),
        ("0.6.3", 2, None),
    ],
)
def test_versions_of_deepspeed_that_cannot_start_are_named(
    version: str, machines: int, checks: bool | None
) -> None:
    if checks is None:
        with pytest.raises(ValueError, match=r"0\.6\.5 or newer"):
            deepspeed.has_ssh_check(version, machines)
    else:
        assert deepspeed.has_ssh_check(version, machines) is checks


def test_horovod_starts_on_all_hosts() -> None:
    gang = info(["10.0.0.1", "10.0.0.2"], 0, [4, 2], debug=True, data={"__det_dtrain_args": ["--extra"]})
    config = gang.trial._config
    words = horovod.command(gang, ["--own"], SCRIPT, config=config, port=12370, identity="/tmp/key")
    assert words == [
        *("horovodrun", "-np", "6", "-p", "12370", "-H", "localhost:4,10.0.0.2:2", "--start-timeout", "1200"),
        *("--gloo-timeout-seconds", "240", "--ssh-identity-file", "/tmp/key", "--network-interface", "eth1"),
        *("--fusion-threshold-mb", "32", "--cycle-time-ms", "5", "--cache-capacity", "1024"),
        *(
            "--no-hierarchical-allreduce",
            "--no-hierarchical-allgather",
            "--verbose",
            "--extra",
            "--own",
            "--",
        ),
        *(
            "python3",
            "-m",
            "determined.launch.wrap_rank",
            "HOROVOD_RANK,OMPI_COMM_WORLD_RANK,PMI_RANK",
            "--",
            *SCRIPT,
        ),
    ]
    tuned = {"optimizations": {"auto_tune_tensor_fusion": True}}
    words = horovod.command(info(["10.0.0.1"]), [], SCRIPT, config=tuned, port=12350, identity=None)
    assert "--autotune" in words and "--network-interface" not in words and "--ssh-identity-file" not in words


def test_what_comes_before_the_dashes_is_for_the_framework() -> None:
    parsed = Arguments.parse(["--max_restarts", "1", "--", *SCRIPT, "--", "x"], module="m", overridable=True)
    assert (parsed.overrides, parsed.script) == (["--max_restarts", "1"], [*SCRIPT, "--", "x"])
    parsed = Arguments.parse(SCRIPT, module="m", overridable=True)
    assert (parsed.overrides, parsed.script) == ([], SCRIPT)
    parsed = Arguments.parse(
        ["--autohorovod", *SCRIPT], module="m", overridable=True, flags=["--autohorovod"]
    )
    assert parsed.flags.autohorovod and parsed.script == SCRIPT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no SCRIPT"),
        (["--", "--trial", "model:Trial"], "PyPI package"),
        (["--trial"], "expected one argument"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_reason(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        Arguments.parse(arguments, module="m", overridable=True)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("launcher", [torch_distributed, deepspeed, horovod], ids=lambda m: m.__name__)
def test_launchers_work_in_trials_only(launcher: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        launcher.main(SCRIPT)
    assert caught.value.code == 2
    assert "outside of a cluster" in capsys.readouterr().err


@pytest.fixture
def run_dir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "train").mkdir()
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "src"))
    return tmp_path


def rank_command(rank: str, *script: str) -> list[str]:
    return [sys.executable, "-m", "determined.launch.wrap_rank", rank, "--", *script]


def test_lines_get_the_rank_and_its_end_is_the_programs(run_dir: pathlib.Path) -> None:
    code = "import sys; print('one\\rtwo'); print('x' * 5000, file=sys.stderr)"
    code += "; sys.stdout.write('end'); sys.exit(3)"
    env = {**os.environ, "LATER": "4"}
    done = subprocess.run(
        rank_command("EARLIER,LATER", sys.executable, "-c", code), capture_output=True, env=env
    )
    assert done.returncode == 3
    assert done.stdout == b"[rank=4] one\n[rank=4] two\n[rank=4] end\n"
    lines = done.stderr.splitlines()
    assert all(line.startswith(b"[rank=4] x") and len(line) < 4096 for line in lines)
    assert sum(line.count(b"x") for line in lines) == 5000


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["7", "/nonexistent"], 127), (["7", "--", "/etc/passwd"], 126), (["NOTHING", "true"], 2), (["7"], 2)],
    ids=["absent", "no program", "no rank", "no script"],
)
def test_what_cannot_be_run_has_the_shells_code(
    run_dir: pathlib.Path, arguments: list[str], code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "determined.launch.wrap_rank", *arguments], capture_output=True
    )
    assert done.returncode == code, done.stderr
    assert done.stderr


def test_lines_go_to_the_containers_own_output(run_dir: pathlib.Path) -> None:
    pipe = run_dir / "train" / "logs" / "stdout.log"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    done = subprocess.run(rank_command("1", "echo", "hello"), capture_output=True, check=True)
    assert done.stdout == b""
    assert os.read(reader, 100) == b"[rank=1] hello\n"
    os.close(reader)


def launched(tmp_path: pathlib.Path, *ranks: str) -> list[str]:
    """Something like a framework's launcher: starts ranks, and looks after them only every minute."""
    program = tmp_path / "framework.py"
    program.write_text(
        "import subprocess, sys, time\n"
        "ranks = [subprocess.Popen([sys.executable, '-m', 'determined.launch.wrap_rank', str(n), 'sh', '-c', "
        "text])\n"
        "         for n, text in enumerate(sys.argv[1:])]\n"
        "if any('hang' in text or 'exit' in text or 'kill' in text for text in sys.argv[1:]):\n"
        "    time.sleep(60)\n"
        "sys.exit(max(rank.wait() for rank in ranks))\n"
    )
    return [sys.executable, str(program), *ranks]


@pytest.mark.parametrize(
    ("text", "code"), [("exit 7", 7), ("kill -KILL $$", 137)], ids=["exit code", "signal"]
)
def test_the_first_failed_rank_ends_the_launcher_with_its_code(
    run_dir: pathlib.Path, text: str, code: int
) -> None:
    before = time.time()
    assert _processes.run(launched(run_dir, "sleep 60; hang", text)) == code
    failed = json.loads((run_dir / "failed_rank.json").read_text())
    assert (failed["rank"], failed["exit_code"]) == (1, code)
    assert before <= failed["failed_at"] / 1e6 <= time.time()
    assert not (run_dir / "train" / "launch.sock").exists()


def test_of_several_the_one_that_failed_first_counts_not_the_one_that_ended_first(
    run_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, log = run_dir / "go", run_dir / "train" / "logs" / "stderr.log"
    os.mkfifo(go)
    log.parent.mkdir(parents=True, exist_ok=True)
    # The launcher ends with its ranks, and that ends the wait for other reports: however slow the machine is.
    monkeypatch.setattr(_processes, "SETTLE_S", 600.0)
    # The second fails because the first does, and ends before it. It begins when the first's wrapper has read
    # what it wrote.
    traceback = "echo Traceback '(most recent call last):' >&2"
    seen = f"until grep -q rank=0 {log}; do sleep 0.02; done"
    first = f"{traceback}; {seen}; echo go > {go}; read done < {go}; return 7"
    second = f"read go < {go}; {traceback}; echo done > {go}; return 1"
    log.touch()
    assert _processes.run(launched(run_dir, first, second)) == 7
    log.write_text("")
    silent = f"echo go > {go}; read done < {go}; return 9"
    assert _processes.run(launched(run_dir, silent, second)) == 9


def test_a_good_end_leaves_nothing_not_even_of_an_attempt_before(run_dir: pathlib.Path) -> None:
    (run_dir / "failed_rank.json").write_text("{}")
    assert _processes.run(launched(run_dir, "true", "true")) == 0
    assert list((run_dir / "train").iterdir()) == [] and not (run_dir / "failed_rank.json").exists()


def test_a_launcher_that_does_not_end_is_killed(
    run_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_processes, "GRACE_S", 0.2)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    program = run_dir / "deaf.py"
    program.write_text(
        "import subprocess, sys\n"
        f"child = subprocess.Popen({[sys.executable, '-m', 'determined.launch.wrap_rank', '0', 'false']!r})\n"
        f"exec({deaf!r})\n"
    )
    assert _processes.run([sys.executable, str(program)], on_failure=signal.SIGINT) == 1


def test_reports_of_strangers_are_passed_over(run_dir: pathlib.Path) -> None:
    text = "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    reports = [b"{", b"[]", b'{"rank": "x"}', b'{"rank": 1, "exit_code": 0, "failed_at": 1}']
    text += f"for report in {reports!r}:\n"
    text += f"    s.sendto(report, {str(run_dir / 'train' / 'launch.sock')!r})\n"
    assert _processes.run([sys.executable, "-c", text]) == 0


def test_without_a_launcher_the_end_is_not_reported(run_dir: pathlib.Path) -> None:
    _processes.report_end(3, -9)
    assert not any((run_dir / "train").iterdir())


def test_a_rank_has_the_variables_of_its_own_container(run_dir: pathlib.Path) -> None:
    own = {
        "PYTHONPATH": os.environ["PYTHONPATH"],
        "DET_AGENT_ID": "it's own",
        "DET_USER": "not of a container",
    }
    wrapper = _ssh.rank_wrapper({**own, "PATH": os.environ["PATH"]})
    env = {"PATH": "/nonexistent:/usr/bin:/bin", "PYTHONPATH": "/nonexistent", "DET_AGENT_ID": "the chief's"}
    script = ["sh", "-c", 'echo "$DET_AGENT_ID, $DET_USER"']
    done = subprocess.run([*wrapper, "2", "--", *script], env=env, capture_output=True, text=True)
    assert done.stdout == "[rank=2] it's own, \n", done.stderr


def test_the_platforms_key_is_used_and_named_where_it_is_missing(run_dir: pathlib.Path) -> None:
    identity = run_dir / "ssh" / "id_rsa"
    with pytest.raises(errors.DistributedError, match=re.escape(f"there is no SSH key at {identity}")):
        _ssh.Keys()
    identity.parent.mkdir()
    identity.touch()
    keys = _ssh.Keys()
    assert keys.identity == str(identity)
    config = str(run_dir / "ssh" / "sshd_config")
    assert _ssh.server_command(keys, 12350) == [_ssh.SSHD, "-p", "12350", "-f", config, "-D", "-e"]


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ssh, "SERVERS_WITHIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(errors.DistributedError, match=rf"no SSH server answers at 127\.0\.0\.1, port {port}"):
        _ssh.wait_for_servers(["127.0.0.1"], port)


def test_ranks_are_numbers_or_names() -> None:
    assert wrap_rank._rank("12") == 12
    assert wrap_rank._rank("NOTHING,ALSO_NOT") is None
