"""Flags and commands for services and logs with the PyPI client, unmodified: what no other test passes."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import re
import shutil
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

import harness
from conftest import equipment, flavoured
from harness import Agent, Cluster, Missing
from waiting import wait_for

pytestmark = pytest.mark.client

AUX = ("--config", "resources.slots=0")
SERVICES = ["notebook", "shell", "tensorboard"]
WORKSPACE = "elsewhere"
TEMPLATE = {"environment": {"environment_variables": ["OF_THE_TEMPLATE=yes"]}, "description": "by the template"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with equipment():
        harness.wheel_det()
        if not pathlib.Path("/usr/sbin/sshd").is_file() or shutil.which("ssh") is None:
            raise Missing("there is no SSH server and client: install openssh-server and openssh-client")
        try:
            import jupyterlab  # noqa: F401
            import tensorboard  # noqa: F401
        except ImportError as error:
            raise Missing(f"{error.name} is not installed: make setup") from None
    with flavoured("core", agents=[Agent(slots=2)]) as cluster:
        cluster.client("workspace", "create", WORKSPACE)
        cluster.client("template", "create", "of-services", cluster.write_config(TEMPLATE))
        yield cluster


@pytest.fixture(scope="module")
def experiment(cluster: Cluster) -> int:
    """An experiment that rests."""
    config = {
        "name": "resting",
        "entrypoint": "true",
        "resources": {"slots_per_trial": 0},
        "searcher": {"name": "single", "metric": "loss"},
    }
    asked = {"config": json.dumps(config), "activate": False}
    return cluster.api("POST", "/api/v1/experiments", asked)["experiment"]["id"]


@pytest.fixture(scope="module")
def start(cluster: Cluster, experiment: int) -> Callable[..., str]:
    """Launches a service without waiting for it; gives its id."""

    def started(kind: str, *flags: object) -> str:
        about = [experiment] if kind == "tensorboard" else []
        aux = AUX if kind != "tensorboard" else ()
        return cluster.client(kind, "start", "-d", *about, *aux, *flags).out.split()[-1]

    return started


def shown(cluster: Cluster, kind: str, ident: str) -> Any:
    return cluster.api("GET", f"/api/v1/{kind}s/{ident}")


def priority(cluster: Cluster, kind: str, ident: str) -> int:
    """The priority of a service's job in the queue."""
    job = shown(cluster, kind, ident)[kind]["jobId"]
    jobs = cluster.api("GET", "/api/v1/job-queues-v2?resourcePool=default")["jobs"]
    return next(entry["command"]["priority"] for entry in [unfold(job) for job in jobs] if entry["jobId"] == job)


def unfold(entry: Any) -> Any:
    """An entry of the queue with its details under one name, and the job's id beside them."""
    details = entry.get("full") or entry
    return {"jobId": details["jobId"], "command": details}


@pytest.mark.parametrize("kind", SERVICES)
def test_a_service_is_configured_ordered_and_ended_by_the_beginning_of_its_id(
    cluster: Cluster, start: Callable[..., str], kind: str
) -> None:
    file = cluster.write_config({"description": f"a {kind} of a file"})
    service = start(kind, "--config-file", file, "--config", "environment.environment_variables=[A=1]")
    begins = service[:13]
    config = yaml.safe_load(cluster.client(kind, "config", begins).out)
    assert config["description"] == f"a {kind} of a file"
    assert "A=1" in config["environment"]["environment_variables"]["cpu"]
    assert f"Set priority of {kind} {service} to 7" in cluster.client(kind, "set", "priority", begins, 7).out
    assert priority(cluster, kind, service) == 7
    refused = cluster.client(kind, "set", "priority", begins, 700)
    assert "Skipping" in refused.out and "700" in refused.out, str(refused)
    assert f"Killed {kind} {service}" in cluster.client(kind, "kill", begins).out

    def ended() -> bool:
        return bool(shown(cluster, kind, service)[kind]["state"] == "STATE_TERMINATED")

    wait_for(f"the end of the {kind}", ended, within=30, seen=cluster.describe)
    # One that has ended is no error, and one that never was is one that -f passes over.
    nothing = "00000000-0000-0000-0000-000000000000"
    killed = cluster.client(kind, "kill", "-f", nothing, service)
    assert f"Killed {kind} {service}" in killed.out and "Skipping" in killed.out, str(killed)
    assert cluster.client(kind, "kill", nothing, check=False).code != 0


@pytest.mark.parametrize("kind", ["command", *SERVICES])
def test_lists_are_sorted_filtered_and_read_by_programs(
    cluster: Cluster, start: Callable[..., str], kind: str
) -> None:
    def launched(name: str, *flags: object) -> str:
        described = ("--config", f"description={name}", *flags)
        if kind == "command":
            return cluster.client("cmd", "run", "-d", *AUX, *described, "sleep", 600).out.split()[-1]
        return start(kind, *described)

    services = {name: launched(name) for name in ("b", "a")}
    services["c"] = launched("c", "-w", WORKSPACE)

    def names(*flags: object) -> list[str]:
        listed = json.loads(cluster.client(kind, "list", "--json", *flags).out)
        return [entry["description"] for entry in listed if entry["id"] in services.values()]

    assert names() == ["b", "a", "c"], "by the time at which they were launched"
    assert names("--order-by", "desc") == ["c", "a", "b"]
    assert names("--sort-by", "description") == ["a", "b", "c"]
    assert names("--sort-by", "description", "--order-by", "desc", "-a") == ["c", "b", "a"]
    fields = ["id", "username", "state", "exitStatus", "resourcePool", "workspaceName", "startTime"]
    for field in fields:
        assert sorted(names("--sort-by", field)) == ["a", "b", "c"], field
    assert names("-w", WORKSPACE) == ["c"]
    assert sorted(names("--workspace-name", "Uncategorized")) == ["a", "b"]
    rows = {row["id"]: row for row in csv.DictReader(io.StringIO(cluster.client(kind, "list", "--csv").out))}
    assert rows[services["c"]]["workspaceName"] == WORKSPACE
    assert set(services.values()) <= set(cluster.client(kind, "ls", "-q").out.split())
    absent = cluster.client(kind, "list", "-w", "nowhere", check=False)
    assert absent.code != 0 and "Traceback" not in absent.err and "nowhere" in absent.err + absent.out, str(absent)
    cluster.client(kind, "kill", *services.values())


@pytest.mark.parametrize("kind", ["notebook", "shell"])
def test_a_service_is_launched_over_a_template(cluster: Cluster, start: Callable[..., str], kind: str) -> None:
    service = start(kind, "--template", "of-services", "--config", "environment.environment_variables=[OWN=1]")
    config = shown(cluster, kind, service)["config"]
    assert config["description"] == "by the template"
    variables = config["environment"]["environment_variables"]["cpu"]
    assert "OF_THE_TEMPLATE=yes" in variables and "OWN=1" in variables, variables
    cluster.client(kind, "kill", service)
    absent = cluster.client(kind, "start", "-d", "--template", "nowhere", check=False)
    assert absent.code != 0 and "Traceback" not in absent.err and "nowhere" in absent.err + absent.out, str(absent)


def test_a_notebook_is_shown_before_it_is_launched(cluster: Cluster) -> None:
    before = cluster.client("notebook", "list", "-q").out
    shared = cluster.shared_dir()
    flags = ("--template", "of-services", "--volume", f"{shared}:/second", *AUX)
    preview = yaml.safe_load(cluster.client("notebook", "start", "--preview", *flags).out)
    assert preview["description"] == "by the template"
    assert [mount["container_path"] for mount in preview["bind_mounts"]] == ["/second"]
    assert preview["resources"]["slots"] == 0
    assert cluster.client("notebook", "list", "-q").out == before
    refused = cluster.client("notebook", "start", "--preview", "--config", "nonsense=1", check=False)
    assert refused.code != 0 and "nonsense: is not a known key" in refused.err + refused.out, str(refused)


@pytest.mark.parametrize("kind", ["notebook", "tensorboard"])
def test_open_leads_a_browser_to_the_service(
    cluster: Cluster, start: Callable[..., str], tmp_path: pathlib.Path, kind: str
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$1" > {tmp_path}/page\n')
    browser.chmod(0o755)
    service = start(kind)
    cluster.client(kind, "open", service[:13], env={"BROWSER": f"{browser} %s"})
    page = wait_for("the page that the browser is to open", lambda: (tmp_path / "page").read_text().strip(), within=20)
    address = urllib.parse.urlsplit(page)
    assert f"{address.scheme}://{address.netloc}" == cluster.url and service in address.path, page
    cluster.client(kind, "kill", service)

    def ended() -> bool:
        return bool(cluster.api("GET", f"/api/v1/tasks/{service}")["task"].get("endTime"))

    wait_for(f"the end of the {kind}", ended, within=30, seen=cluster.describe)
    opened = cluster.client(kind, "open", service, env={"BROWSER": f"{browser} %s"}, check=False)
    assert opened.code != 0 and "has ended" in opened.out + opened.err, str(opened)


def test_a_shell_prints_its_ssh_command_by_every_name(cluster: Cluster, start: Callable[..., str]) -> None:
    shell = start("shell")
    for words in (["show-ssh-command", shell], ["show_ssh_command", shell[:13]]):
        printed = cluster.client("shell", *words)
        assert "ProxyCommand" in printed.out and shell in printed.out, str(printed)
    opened = cluster.client("shell", "open", shell, "echo", "in the shell", "--show-ssh-command")
    assert "ProxyCommand" in opened.out and "in the shell" in opened.out, str(opened)
    started = cluster.client("shell", "start", "echo", "at once", "--show-ssh-command", *AUX)
    assert "ProxyCommand" in started.out and "at once" in started.out, str(started)
    other = re.search(r"\(id: ([0-9a-f-]{36})", started.out)
    assert other, str(started)
    cluster.client("shell", "kill", shell, other.group(1))


def wait_for_state(cluster: Cluster, command: str, state: str) -> None:
    def reached() -> bool:
        return bool(shown(cluster, "command", command)["command"]["state"] == f"STATE_{state}")

    wait_for(f"the command to be {state}", reached, within=30, seen=cluster.describe)


LINES = "echo one; echo two >&2; echo WARNING: three; echo four"


def test_logs_are_cut_and_filtered(cluster: Cluster) -> None:
    command = cluster.client("cmd", "run", "-d", *AUX, LINES).out.split()[-1]
    wait_for_state(cluster, command, "TERMINATED")
    entries = [json.loads(line) for line in json_lines(cluster, "cmd", "logs", command, "--json")]
    own = [entry for entry in entries if entry["source"] == "task"]
    # Both streams are read at once: only the order within each is that of the program.
    assert {"one", "two", "four"} <= {entry["log"].rstrip("\n") for entry in own}, entries

    def lines(*flags: object, group: str = "cmd") -> list[str]:
        return [json.loads(line)["log"].rstrip("\n") for line in json_lines(cluster, group, "logs", command, "--json", *flags)]

    every = lines()
    assert lines("--head", 2) == every[:2]
    assert lines("--tail", 2) == every[-2:]
    assert lines(group="task") == every
    assert lines("-f") == every
    assert lines("--allocation-id", f"{command}.1") == every
    of_agent = lines("--agent-id", "agent-1")
    assert {"one", "two", "four"} <= set(of_agent) < set(every)
    assert lines("--agent-id", "nowhere") == []
    container = own[0]["containerId"]
    assert {"one", "two", "four"} <= set(lines("--container-id", container))
    assert lines("--container-id", "nothing") == []
    # Only the processes of a trial have ranks.
    assert lines("--rank-id", 0) == []
    assert "two" in lines("--stdtype", "stderr") and "one" in lines("--stdtype", "stdout")
    assert "two" not in lines("--stdtype", "stdout")
    assert {"one", "two"} <= set(lines("--stdtype", "stdout", "--stdtype", "stderr"))
    sources = {entry["source"] for entry in entries if entry.get("source")}
    assert sorted(line for source in sources for line in lines("--source", source)) == sorted(
        entry["log"].rstrip("\n") for entry in entries if entry.get("source")
    )
    first, last = entries[0]["timestamp"], entries[-1]["timestamp"]
    assert lines("--timestamp-before", first) == [] or lines("--timestamp-before", first) == every[:1]
    assert set(lines("--timestamp-after", first)) <= set(every)
    assert every[0] not in lines("--timestamp-after", last)
    assert lines("--timestamp-after", "2100-01-01T00:00:00Z") == []
    # Whatever the level: of its own words for levels the client of that version accepts none here, and asks no master.
    unknown = cluster.client("cmd", "logs", command, "--level", "WARNING", check=False)
    assert unknown.code != 0 and "'WARNING' is not in list" in unknown.err, str(unknown)
    plain = cluster.client("cmd", "logs", command, "--tail", 1).out
    assert every[-1] in plain and "one" not in plain.splitlines()[0]
    wrong = cluster.client("cmd", "logs", command, "--timestamp-after", "yesterday", check=False)
    assert wrong.code != 0 and "Traceback" not in wrong.err, str(wrong)


def json_lines(cluster: Cluster, *words: object) -> list[str]:
    """The objects that the client prints, each on several lines, as one line each."""
    out = cluster.client(*words).out
    decoder, found, rest = json.JSONDecoder(), [], out.lstrip()
    while rest.startswith("{"):
        value, end = decoder.raw_decode(rest)
        found.append(json.dumps(value))
        rest = rest[end:].lstrip()
    return found


def test_commands_and_tasks_are_described_for_programs(cluster: Cluster) -> None:
    command = cluster.client("cmd", "run", "-d", "--template", "of-services", *AUX, "sleep", 600).out.split()[-1]
    wait_for_state(cluster, command, "RUNNING")
    [row] = csv.DictReader(io.StringIO(cluster.client("cmd", "describe", command, "--csv").out))
    assert (row["id"], row["description"]) == (command, "by the template")
    listed = json.loads(cluster.client("task", "list", "--json").out)
    assert command in json.dumps(listed)
    rows = list(csv.DictReader(io.StringIO(cluster.client("task", "list", "--csv").out)))
    assert any(command in row.values() for row in rows), rows
    cluster.client("cmd", "kill", command)
