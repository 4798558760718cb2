"""What `services.leaked` finds, by doctored views of a cluster."""

from __future__ import annotations

from dataclasses import replace

from services import MORE_DESCRIPTORS, Use, leaked

BEFORE = Use(
    descriptors={"master": 20, "agent-1": 10},
    threads={"master": 5, "agent-1": 4},
    memory={"master": 18.0, "agent-1": 8.0},
    ports={8080},
    files={"/d/master/det.log"},
    rows={"allocations": 0, "containers": 0},
)


def words(after: Use) -> list[str]:
    return [f"{violation.subject}: {violation.what}" for violation in leaked(BEFORE, after)]


def test_a_cluster_as_before_has_leaked_nothing() -> None:
    a_few_more = {"master": 20 + MORE_DESCRIPTORS, "agent-1": 3}
    assert leaked(BEFORE, BEFORE) == []
    assert leaked(BEFORE, replace(BEFORE, descriptors=a_few_more, files=set(), ports=set())) == []


def test_each_kind_of_leak_is_named() -> None:
    many = {"master": 21 + MORE_DESCRIPTORS, "agent-1": 10}
    assert words(replace(BEFORE, descriptors=many)) == [f"master: it has {many['master']} descriptors, and had 20 before"]
    assert words(replace(BEFORE, threads={"master": 5, "agent-1": 40})) == ["agent-1: it has 40 threads, and had 4 before"]
    assert words(replace(BEFORE, ports={8080, 3200}))[0].startswith("port 3200: ")
    assert words(replace(BEFORE, files={*BEFORE.files, "/d/tmp/x"})) == ["file /d/tmp/x: it was not there before"]
    [row] = words(replace(BEFORE, rows={"allocations": 0, "containers": 2}))
    assert row.startswith("table containers: 2 rows are live")
