"""Shells, entered by the unmodified PyPI client with the host's ssh."""

from __future__ import annotations

import os
import pathlib
import shlex
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence

import pytest

import harness
from conftest import equipment, flavoured
from harness import Agent, Cluster, Missing
from processes import free_port
from waiting import wait_for

pytestmark = pytest.mark.client

ADMIN = {"DET_USER": "admin", "DET_PASS": ""}
# Of the host, where tasks that are processes find their SSH server.
SSHD = pathlib.Path("/usr/sbin/sshd")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with equipment():
        harness.wheel_det()
        python = harness.wheel_python()
        if not SSHD.is_file() or shutil.which("ssh") is None or shutil.which("scp") is None:
            raise Missing("there is no SSH server and client: install openssh-server and openssh-client")
    with flavoured("core", python=python, agents=[Agent(slots=2)]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shell(cluster: Cluster) -> str:
    """A shell whose hook exports a variable."""
    context = cluster.root / "shell-context"
    context.mkdir()
    (context / "startup-hook.sh").write_text("export FROM_HOOK='of the hook'\n")
    started = cluster.client("shell", "start", "--detach", "--context", context)
    return started.out.split()[-1]


class Session:
    """What the client prints of how to reach a shell by ssh."""

    def __init__(self, cluster: Cluster, shell: str) -> None:
        shown = cluster.client("shell", "show-ssh-command", shell).out
        line = next(line for line in shown.splitlines() if "ProxyCommand" in line)
        words = shlex.split(line[line.index("ssh -o") :].replace("\x1b[0m", ""))
        self.destination = words[-1]
        # Without a terminal, whose line ends and echo would be in the output.
        self.options = [word for word in words[1:-1] if word != "-tt"]
        self.env = cluster.client_environment("wheel-home")

    def run(self, program: str, arguments: Sequence[str], within: float = 60) -> subprocess.CompletedProcess[bytes]:
        argv = [program, "-q", *self.options, *arguments]
        return subprocess.run(argv, env=self.env, capture_output=True, timeout=within, stdin=subprocess.DEVNULL)


def test_a_session_has_the_tasks_variables_user_and_terminal(cluster: Cluster, shell: str) -> None:
    script = 'echo "<$DET_TASK_ID|$FROM_HOOK|$PWD|$(id -u)>"; python3 -c \'import getpass, os, pwd; '
    script += 'print("<" + pwd.getpwuid(os.getuid()).pw_dir + ">")\'; test -t 0 && echo "<terminal>"'
    out = cluster.client("shell", "open", shell, "--", script).out
    user = cluster.api("GET", "/api/v1/me")["user"]["id"]
    work_dir = "/run/determined/workdir"
    assert f"<{shell}|of the hook|{work_dir}|{2_000_000_000 + user}>" in out, out
    assert f"<{work_dir}>" in out and "<terminal>" in out, out


def test_files_exit_codes_and_ports_go_through_the_tunnel(cluster: Cluster, shell: str, tmp_path: pathlib.Path) -> None:
    session = Session(cluster, shell)
    content = os.urandom(3 << 20)
    (tmp_path / "there.bin").write_bytes(content)
    sent = session.run("scp", [str(tmp_path / "there.bin"), f"{session.destination}:"])
    assert sent.returncode == 0, sent
    back = session.run("scp", [f"{session.destination}:there.bin", str(tmp_path / "back.bin")])
    assert back.returncode == 0, back
    assert (tmp_path / "back.bin").read_bytes() == content
    assert session.run("ssh", [session.destination, "exit 7"]).returncode == 7

    inside, here = free_port(), free_port()
    serve = f"exec python3 -m http.server --bind 127.0.0.1 {inside}"
    forward = ["-o", "ExitOnForwardFailure=yes", "-L", f"{here}:127.0.0.1:{inside}", session.destination, serve]
    argv = ["ssh", "-q", *session.options, *forward]
    with subprocess.Popen(argv, env=session.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as forwarded:
        try:
            got = wait_for(
                "the forwarded port to answer",
                lambda: urllib.request.urlopen(f"http://127.0.0.1:{here}/there.bin", timeout=10).read(),
                within=30,
            )
        finally:
            forwarded.kill()
    assert got == content


def test_a_session_ends_with_its_agent_and_what_runs_in_the_shell_goes_on(cluster: Cluster, shell: str) -> None:
    session = Session(cluster, shell)
    counts = "n=0; while :; do n=$((n+1)); echo $$ $n > beat; sleep 0.1; done"
    aside = f"(setsid sh -c '{counts}' >/dev/null 2>&1 </dev/null &)"
    assert session.run("ssh", [session.destination, aside]).returncode == 0

    def beat() -> tuple[str, int] | None:
        words = session.run("ssh", [session.destination, "cat beat"]).stdout.split()
        return (words[0].decode(), int(words[1])) if len(words) == 2 else None

    before = wait_for("what runs in the shell", beat, within=30)
    argv = ["ssh", "-q", *session.options, session.destination, "echo inside; exec sleep 86400"]
    cluster.expect_alarm(r"lost the master|no connection to the master|connection")
    with subprocess.Popen(argv, env=session.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as opened:
        try:
            assert opened.stdout is not None and opened.stdout.readline() == b"inside\n"
            cluster.restart("agent-1")
            # The client does not hang: its user sees that the session is over.
            assert opened.wait(timeout=60) == 255
        finally:
            opened.kill()

    def goes_on() -> bool:
        now = beat()
        return now is not None and now[0] == before[0] and now[1] > before[1]

    wait_for("the same process to go on in a new session", goes_on, within=60, seen=cluster.describe)


def test_no_other_user_is_given_the_key(cluster: Cluster, shell: str) -> None:
    path = f"/api/v1/shells/{shell}"
    own = cluster.api("GET", path)["shell"]
    assert own["privateKey"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    cluster.run_det("user", "create", "grace", "--password", "Compiler1", env=ADMIN)
    grace = {"DET_USER": "grace", "DET_PASS": "Compiler1"}
    for env in (grace, ADMIN):
        opened = cluster.client("shell", "open", shell, "--", "echo inside", env=env, check=False)
        assert "inside" not in opened.out, opened


@pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that is root starts tasks as other users")
def test_a_linked_user_is_that_user_in_shells(cluster: Cluster) -> None:
    cluster.run_det("user", "create", "linked", "--password", "Compiler1", env=ADMIN)
    link = ["--agent-user", "svc", "--agent-uid", "1234", "--agent-group", "lab", "--agent-gid", "1235"]
    cluster.client("user", "link-with-agent-user", "linked", *link, env=ADMIN)
    linked = {"DET_USER": "linked", "DET_PASS": "Compiler1"}
    shell = cluster.client("shell", "start", "--detach", env=linked).out.split()[-1]
    out = cluster.client("shell", "open", shell, "--", "id", env=linked).out
    assert "uid=1234(svc) gid=1235(lab)" in out, out
    cluster.client("shell", "kill", shell, env=linked)


def test_lists_and_the_end(cluster: Cluster, shell: str) -> None:
    assert shell in cluster.client("shell", "list", "--quiet").out.split()
    assert "Server listening on 127.0.0.1" in cluster.client("shell", "logs", shell).out
    cluster.client("shell", "kill", shell)
    listed = wait_for(
        "the shell to end",
        lambda: "TERMINATED" in (out := cluster.client("shell", "list").out) and out,
        within=30,
    )
    assert "it was killed" in listed
    opened = cluster.client("shell", "open", shell, "--", "echo inside", check=False)
    assert "terminated" in opened.out + opened.err and "inside" not in opened.out, opened


def test_the_log_warns_where_files_are_lost(cluster: Cluster, shell: str) -> None:
    assert "files are lost when it ends" in cluster.client("shell", "logs", shell).out
