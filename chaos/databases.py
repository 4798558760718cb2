"""Scenarios of a database that fails, of masters that compete for one, and of masters killed while they make one."""

from __future__ import annotations

import re
import time

from kills import checked
from loads import Churn, Steady
from network import Probe
from processes import Part, free_port, tail
from proxy import BLACKHOLE, FINE, Weather
from stage import Stage
from violations import Violation
from waiting import TooLate, wait_for
from world import World

# After the database is back everything must go on within this time.
RECOVERED_WITHIN = 5.0
# What a master logs once it serves.
LISTENS = "the master listens"


def postgres_faults(stage: Stage) -> None:
    """PostgreSQL restarts, crashes, loses connections, is not reached: answers are 503 with a hint, or wait."""
    away = 10.0 if stage.size == "ci" else 60.0
    kinds = ("restart immediate", "connections ended", "network away", "restart fast", "killed", "resets", "away")
    with stage.world(slots=12, proxied=("database",)) as world, Churn(world, per_second=0.5) as churn:
        steady = Steady(world, trials=8)
        for number in range(1, stage.amount + 1):
            kind = kinds[(number - 1) % len(kinds)]
            time.sleep(stage.random.uniform(0.2, 1.0))
            stage.say(kind)
            with Probe(world) as probe:
                break_database(world, kind, away, stage)
                recovered = steady.progress()
                # A few more questions with the database back.
                time.sleep(0.5)
            stage.found(probe.violations)
            stage.recovered(recovered)
            if recovered > RECOVERED_WITHIN:
                what = f"{recovered:.1f} s passed after {kind} until everything went on, not {RECOVERED_WITHIN:g} s"
                stage.late(Violation(4, "slow", "trials", what))
            answered = ", ".join(f"{status or 'none'} {count}" for status, count in sorted(probe.answered.items()))
            stage.say(f"{kind}: went on after {recovered:.2f} s; the probe was answered {answered}")
            checked(stage, world, steady, number)
        stage.end(world, steady, churn)


def break_database(world: World, kind: str, away: float, stage: Stage) -> None:
    """Does one thing to PostgreSQL; gives back once it can be reached again."""
    server, proxy = world.server, world.proxies["database"]
    assert server is not None, "this scenario has a PostgreSQL server"
    if kind == "restart fast":
        server.stop("fast")
    elif kind == "restart immediate":
        server.stop("immediate")
    elif kind == "killed":
        server.kill()
    elif kind == "away":
        server.stop("fast")
        time.sleep(away)
    elif kind == "connections ended":
        for _ in range(3):
            server.terminate_connections(world.database)
            time.sleep(stage.random.uniform(0.05, 0.3))
    elif kind == "network away":
        proxy.set(BLACKHOLE)
        time.sleep(away / 2)
        # Whatever waited is gone with the connections.
        proxy.set(Weather(refuse=True))
        proxy.reset_all()
        time.sleep(away / 4)
        proxy.set(FINE)
    elif kind == "resets":
        proxy.set(Weather(reset_every=1.0))
        time.sleep(min(away, 5.0))
        proxy.set(FINE)
    if server.pid() is None:
        server.start()


# --- masters that compete ------------------------------------------------------------------------------------------


def two_masters(stage: Stage) -> None:
    """A second master on the data directory or the database of a running one is turned away, and does no harm."""
    with stage.world(slots=6) as world:
        steady = Steady(world, trials=4)
        for number in range(1, stage.amount + 1):
            second = another(world, f"second-{number}", same_directory=world.store == "sqlite")
            second.start()
            turned_away(stage, second)
            stage.recovered(steady.progress())
            checked(stage, world, steady, number)
        stage.end(world, steady)


def turned_away(stage: Stage, master: Part) -> None:
    """A master that may not start ends soon, with a sentence on why and what to do."""
    try:
        code = master.wait(within=30)
    except TooLate:
        master.kill()
        what = "a second master neither serves nor ends"
        stage.found([Violation(8, "wrong", master.name, what, {"log": tail(master.log)})])
        return
    text = tail(master.log)
    if code == 0 or not re.search(r"in use by another master: stop it, or", text):
        what = f"a second master ended with exit code {code} and without a reason in its log"
        stage.found([Violation(8, "wrong", master.name, what, {"log": text})])


def another(world: World, name: str, *, same_directory: bool) -> Part:
    """A further master on the world's database, on a port of its own; not one of the world's parts."""
    directory = world.data_dir if same_directory else world.root / name
    argv = [str(world.det), "master", "--host", "127.0.0.1", "--port", str(free_port()), "--data-dir", str(directory)]
    if world.database_url is not None:
        argv += ["--db-url", world.database_url]
    return Part(name, argv, world.client_environment(), world.root / "logs" / f"{name}.log", world.root / "work")


def four_masters(stage: Stage) -> None:
    """Four masters start at once on an empty database: one of them makes it and serves, the others are turned away."""
    for number in range(1, stage.amount + 1):
        with stage.unstarted(number) as world:
            masters = [another(world, f"master-{n}", same_directory=world.store == "sqlite") for n in range(1, 5)]
            for master in masters:
                master.start()
            try:
                began = time.monotonic()
                wait_for(
                    "three of four masters to end",
                    lambda masters=masters: sum(not master.running() for master in masters) >= 3,
                    within=60,
                )
                stage.recovered(time.monotonic() - began)
                left = [master for master in masters if master.running()]
                if len(left) != 1:
                    stage.found([Violation(8, "wrong", "masters", "all four have ended", {"logs": logs(masters)})])
                    continue
                for master in masters:
                    if master is not left[0]:
                        turned_away(stage, master)
                wait_for("the winner to listen", lambda one=left[0]: LISTENS in one.log.read_text(), within=30)
                stage.found(sound(world))
                if left[0].stop() != 0:
                    stage.found([Violation(4, "wrong", "masters", "the winner does not end well")])
            except TooLate as error:
                stage.found([Violation(8, "stuck", "masters", str(error), {"logs": logs(masters)})])
            finally:
                for master in masters:
                    master.kill()
            stage.counts.runs += 1


def logs(masters: list[Part]) -> dict[str, str]:
    return {master.name: tail(master.log) for master in masters}


def kill_migration(stage: Stage) -> None:
    """A master is killed while it makes its database, and started again: the database is whole."""
    longest = 0.5
    for number in range(1, stage.amount + 1):
        with stage.unstarted(number) as world:
            master = world.part("master")
            # Kills are spread over the time that the start takes; one in three strikes a second time.
            for _ in range(2 if stage.random.random() < 0.3 else 1):
                master.start()
                time.sleep(stage.random.uniform(0.0, longest))
                master.kill()
            began = time.monotonic()
            master.start()
            world.wait_for_master(within=30)
            stage.recovered(time.monotonic() - began)
            stage.found(sound(world))
            with_agent = world.create({**EMPTY, "name": f"after-{number}"})
            world.start_part("agent-1")
            world.wait_experiment(with_agent, "COMPLETED", within=60)
            stage.counts.runs += 1
            stage.end(world, refusals=False)


EMPTY = {
    "entrypoint": "true",
    "searcher": {"name": "single", "metric": "m", "smaller_is_better": True},
    "resources": {"slots_per_trial": 1},
    "max_restarts": 0,
}


def sound(world: World) -> list[Violation]:
    """A fresh database has its users and its identity once, and all its migrations."""
    found = []
    users = [row["username"] for row in world.rows("select username from users order by username")]
    if users != ["admin", "determined"]:
        found.append(Violation(7, "wrong", "database", f"its users are {users}"))
    identities = world.rows("select value from settings where key = 'cluster_id'")
    if len(identities) != 1:
        found.append(Violation(7, "wrong", "database", f"it has {len(identities)} identities"))
    # A change of the schema and the line about it are one transaction.
    versions = [row["version"] for row in world.rows("select version from schema_versions order by version")]
    if not versions or versions != list(range(1, len(versions) + 1)):
        found.append(Violation(4, "wrong", "database", f"its schema has versions {versions}"))
    return found
