"""`det shell` of ours: sessions of the host's ssh through our client, ports, what is left behind, and what goes wrong."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence

import pytest
import yaml

import harness
from configs import experiment, merged
from conftest import equipment, flavoured
from harness import Agent, Cluster, Missing, Result
from processes import free_port
from test_tls import make_certificates
from waiting import wait_for

pytestmark = pytest.mark.core

# Of the host, where tasks that are processes find their SSH server.
SSHD = pathlib.Path("/usr/sbin/sshd")

# Answers each connection with the digest of all that it sends, once it has sent all.
DIGEST = """
import hashlib, socket
server = socket.create_server(("127.0.0.1", PORT))
while True:
    connection, _ = server.accept()
    digest = hashlib.sha256()
    while data := connection.recv(65536):
        digest.update(data)
    connection.sendall(digest.hexdigest().encode())
    connection.close()
"""


def require_ssh() -> None:
    if not SSHD.is_file() or shutil.which("ssh") is None or shutil.which("scp") is None:
        raise Missing("there is no SSH server and client: install openssh-server and openssh-client")


@pytest.fixture(scope="module", params=["plain", "tls"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with equipment():
        require_ssh()
        tls = make_certificates(tmp_path_factory.mktemp("tls")) if request.param == "tls" else None
    with flavoured("core", tls=tls, agents=[Agent(slots=2)]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shell(cluster: Cluster) -> str:
    """A shell whose hook exports a variable."""
    context = cluster.root / "shell-context"
    context.mkdir()
    (context / "startup-hook.sh").write_text("export FROM_HOOK='of the hook'\n")
    return cluster.run_det("shell", "start", "--detach", "-c", context, "--config", "resources.slots=0").out.strip()


def private_tmp(cluster: Cluster, name: str) -> tuple[pathlib.Path, dict[str, str]]:
    """A directory for temporary files, and the environment that names it."""
    directory = cluster.root / name
    directory.mkdir()
    return directory, {"TMPDIR": str(directory)}


def printed(cluster: Cluster, shell: str, *options: str) -> list[str]:
    """The words of the ssh command that our client prints."""
    return shlex.split(cluster.run_det("shell", "show-ssh-command", shell, *options).out)


def run(
    cluster: Cluster, argv: Sequence[object], stdin: bytes = b"", within: float = 60, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs a program of the host in the user's environment, without what names the cluster."""
    environment = {name: value for name, value in cluster.client_environment().items() if not name.startswith("DET_")}
    argv = [str(word) for word in argv]
    return subprocess.run(argv, env={**environment, **env}, input=stdin, capture_output=True, timeout=within)


def test_start_waits_runs_and_ends_with_the_code_of_the_command(cluster: Cluster) -> None:
    tmp, env = private_tmp(cluster, "tmp-start")
    command = 'echo "<$DET_TASK_ID|$PWD>"; exit 7'
    started = cluster.run_det("shell", "start", "--config", "resources.slots=0", "--", command, env=env, check=False)
    assert started.code == 7, started
    first, output = started.out.splitlines()
    assert first.startswith("Launched shell (id: "), started
    id = first.removeprefix("Launched shell (id: ").partition(",")[0]
    assert output == f"<{id}|/run/determined/workdir>"
    for expected in (f"waiting for shell {id} to be ready", "Scheduling shell", f"`det shell open {id}`"):
        assert expected in started.err, started
    assert list(tmp.iterdir()) == [], "the key is removed"
    cluster.run_det("shell", "kill", id)


def test_a_session_has_what_the_task_has_and_carries_bytes_as_they_are(cluster: Cluster, shell: str) -> None:
    opened = cluster.run_det("shell", "open", shell[:8], 'echo "<$FROM_HOOK>"; test -t 0 || echo "<no terminal>"')
    assert opened.out == "<of the hook>\n<no terminal>\n", opened
    content = os.urandom(3 << 20)
    argv = [cluster.det, "shell", "open", shell, "--", "tee there.bin"]
    env = cluster.client_environment()
    back = subprocess.run(argv, env=env, input=content, capture_output=True, timeout=60)
    assert back.returncode == 0 and back.stdout == content, back.stderr


def test_the_printed_command_works_alone(cluster: Cluster, shell: str, tmp_path: pathlib.Path) -> None:
    words = printed(cluster, shell)
    assert words[0] == "ssh" and words[-1].endswith(f"@{shell}")
    secret = cluster.token("determined")
    assert secret not in " ".join(words)
    key = pathlib.Path(words[words.index("-i") + 1])
    assert key.stat().st_mode & 0o777 == 0o600 and key.parent.stat().st_mode & 0o777 == 0o700
    assert run(cluster, [*words, "exit 5"]).returncode == 5

    options, destination = words[1:-1], words[-1]
    content = os.urandom(1 << 20)
    (tmp_path / "file.bin").write_bytes(content)
    sent = run(cluster, ["scp", "-q", *options, tmp_path / "file.bin", f"{destination}:"])
    assert sent.returncode == 0, sent
    back = run(cluster, ["scp", "-q", *options, f"{destination}:file.bin", tmp_path / "back.bin"])
    assert back.returncode == 0 and (tmp_path / "back.bin").read_bytes() == content, back
    # Another server under its name is not taken for it.
    hosts = key.with_name("known_hosts")
    whole = hosts.read_text()
    hosts.write_text(whole.replace("AAAAC3NzaC1lZDI1NTE5AAAAI", "AAAAC3NzaC1lZDI1NTE5AAAAJ"))
    stranger = run(cluster, [*words, "true"])
    assert stranger.returncode == 255 and b"erification failed" in stranger.stderr, stranger
    hosts.write_text(whole)


def test_ssh_forwards_ports(cluster: Cluster, shell: str) -> None:
    inside, here = free_port(), free_port()
    serve = f"exec python3 -m http.server --bind 127.0.0.1 {inside}"
    forward = ["-o", "ExitOnForwardFailure=yes", "-L", f"{here}:127.0.0.1:{inside}"]
    with cluster.det_beside("shell", "open", shell, "--", *forward, serve) as session:
        answer = wait_for(
            "the forwarded port to answer",
            lambda: urllib.request.urlopen(f"http://127.0.0.1:{here}/", timeout=10).status,
            within=30,
        )
        assert answer == 200
        # Who ends this program ends ssh, and nothing is left.
        session.send(signal.SIGTERM)
        assert session.wait(within=30) != 0


def digest_through(port: int, content: bytes) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    return answer.decode()


def test_published_ports_lead_to_the_task_and_end_in_each_direction_alone(cluster: Cluster) -> None:
    inside, here, other = free_port(), free_port(), free_port()
    command = ["cmd", "run", "--config", "resources.slots=0", "-p", f"{here}:{inside}", "-p", f"{other}:{inside + 1}"]
    program = DIGEST.replace("PORT", str(inside))
    with cluster.det_beside(*command, "python3", "-c", program) as running:
        content = os.urandom(2 << 20)
        # Until the program listens a connection ends without an answer.
        answer = wait_for("the digest", lambda: digest_through(here, content), within=30)
        assert answer == hashlib.sha256(content).hexdigest()
        # Where nothing listens a connection ends, too.
        assert digest_through(other, b"") == ""
        output = running.log.read_text()
        assert f"127.0.0.1:{here} leads to port {inside} of the task" in output, output
        id = output.partition("(id: ")[2].partition(",")[0]
        cluster.run_det("cmd", "kill", id)
        assert running.wait(within=30) == 1


def test_ports_of_an_experiment_are_published_as_long_as_it_is_followed(cluster: Cluster) -> None:
    inside, here = free_port(), free_port()
    program = DIGEST.replace("PORT", str(inside)).replace("while True:", "for _ in range(1):")
    ports = {"environment": {"proxy_ports": [{"proxy_port": inside, "proxy_tcp": True}]}}
    config = cluster.write_config(merged(experiment("published", ["python3", "-c", program]), ports))
    with cluster.det_beside("experiment", "create", config, "-f", "-p", f"{here}:{inside}") as running:
        answer = wait_for("the digest", lambda: digest_through(here, b"x"), within=60)
        assert answer == hashlib.sha256(b"x").hexdigest()
        assert running.wait(within=60) == 0
    refused = cluster.run_det("experiment", "create", config, "-p", "1:1", check=False)
    assert refused.code == 2 and "--publish needs --follow-first-trial" in refused.err, refused


def test_a_port_that_is_taken_is_reported_before_anything_is_launched(cluster: Cluster) -> None:
    before = cluster.run_det("cmd", "list", "-q").out
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = cluster.run_det("cmd", "run", "-p", f"{port}:80", "true", check=False)
    assert refused.code == 1 and f"127.0.0.1:{port}" in refused.err, refused
    assert cluster.run_det("cmd", "list", "-q").out == before


def test_ctrl_c_ends_waiting_and_not_the_shell(cluster: Cluster) -> None:
    config = ["--config", "resources.slots=2"]
    running = cluster.run_det("shell", "start", "-d", *config).out.strip()
    with cluster.det_beside("shell", "start", *config) as waiting:
        output = wait_for("the reason why it waits", lambda: reason_in(waiting.log), within=30)
        waiting.send(signal.SIGINT)
        assert waiting.wait(within=30) == 130
    id = output.partition("(id: ")[2].partition(",")[0]
    assert f"shell {id} goes on; open it with `det shell open {id}`" in waiting.log.read_text()
    assert "TERMINATED" not in cluster.run_det("shell", "describe", id).out
    cluster.run_det("shell", "kill", id, running)


def reason_in(log: pathlib.Path) -> str:
    output = log.read_text()
    return output if "slot" in output.partition("to be ready")[2] else ""


def test_why_a_shell_does_not_become_ready_is_reported(cluster: Cluster) -> None:
    context = cluster.root / "failing"
    context.mkdir()
    (context / "startup-hook.sh").write_text("echo 'the hook fails'; exit 9\n")
    started = cluster.run_det("shell", "start", "-c", context, "--config", "resources.slots=0", check=False)
    assert started.code == 1 and "the hook fails" in started.err, started
    last = started.err.splitlines()[-2]
    assert last.startswith("error: shell ") and "has ended: " in last and "9" in last, started
    id = last.split()[2]
    opened = cluster.run_det("shell", "open", id, check=False)
    assert opened.code == 1 and "has ended: " in opened.err and f"det shell logs {id}" in opened.err, opened


def test_a_machine_without_ssh_is_reported_before_a_shell_is_started(cluster: Cluster) -> None:
    before = cluster.run_det("shell", "list", "-q").out
    for words in (["start"], ["open", "0" * 36]):
        missing = cluster.run_det("shell", *words, env={"PATH": "/nowhere"}, check=False)
        assert missing.code == 1 and '"ssh"' in missing.err and "openssh-client" in missing.err, missing
    assert cluster.run_det("shell", "list", "-q").out == before


def test_others_are_not_given_the_key(cluster: Cluster, shell: str) -> None:
    opened = cluster.run_det("shell", "open", shell, "true", env={"DET_USER": "admin", "DET_PASS": ""}, check=False)
    assert opened.code == 1 and "is for its owner, determined, alone" in opened.err, opened


@pytest.mark.client
def test_both_clients_enter_each_others_shells(cluster: Cluster, shell: str) -> None:
    with equipment():
        harness.wheel_det()
    opened = cluster.client("shell", "open", shell, "--", "echo '<of ours>'")
    assert "<of ours>" in opened.out, opened
    theirs = cluster.client("shell", "start", "--detach", "--config", "resources.slots=0").out.split()[-1]
    out = cluster.run_det("shell", "open", theirs, "echo $DET_TASK_ID").out
    assert out == f"{theirs}\n"

    def row(result: Result) -> str:
        return next(line for line in result.out.splitlines() if line.startswith(theirs))

    assert row(cluster.client("shell", "list", "--csv")) == row(cluster.run_det("shell", "list", "--csv"))
    configs = (yaml.safe_load(run("shell", "config", theirs).out) for run in (cluster.client, cluster.run_det))
    assert next(configs) == next(configs)
    cluster.run_det("shell", "set", "priority", theirs, "7")
    cluster.run_det("shell", "kill", theirs)


def test_the_end(cluster: Cluster, shell: str) -> None:
    assert "Server listening on 127.0.0.1" in cluster.run_det("shell", "logs", shell).out
    with cluster.det_beside("shell", "open", shell, "--", "echo inside; exec sleep 600") as session:
        wait_for("the session", lambda: "inside" in session.log.read_text(), within=30)
        # The end of the shell ends its sessions at once.
        cluster.run_det("shell", "kill", shell)
        assert session.wait(within=30) == 255
