"""Scenarios of bad networks, through proxies between agents, tasks, clients, the master and its PostgreSQL."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence

import observe
from harness import Agent, ApiError
from kills import checked
from loads import Churn, Pace, Steady
from proxy import BLACKHOLE, FINE, HALF_OPEN_DOWN, HALF_OPEN_UP, Weather
from stage import Stage
from violations import Violation
from waiting import TooLate, wait_for
from world import World

# After its return what an agent still holds of others must be gone within this time.
FENCED_WITHIN = 10.0
# After the network is good again everything must go on as before within this time.
NORMAL_WITHIN = 5.0
# Each kind of weather lasts so long at least.
SHORTEST = 8.0
# How long a master waits in silence before it takes a connection for dead, and then some.
SILENCE = 35.0

BAD = {
    "30 % loss": Weather(loss=0.3),
    "2 s latency": Weather(latency=2.0),
    "reset each second": Weather(reset_every=1.0),
    "half-open towards the master": HALF_OPEN_UP,
    "half-open from the master": HALF_OPEN_DOWN,
    "30 % loss, 2 s latency, reset each second": Weather(latency=2.0, loss=0.3, reset_every=1.0),
    "30 % loss, 200 ms latency, reset each 5 s": Weather(latency=0.2, loss=0.3, reset_every=5.0),
}


def everywhere(world: World, weather: Weather) -> None:
    """The same weather on all proxies."""
    for proxy in world.proxies.values():
        proxy.set(weather)


def bad_network(stage: Stage) -> None:
    """Every kind of bad network for an equal share of the time, between all parties: agents, tasks, clients, the
    master, and its database where that is elsewhere."""
    parties = ("agent", "task", "client", *(["database"] if stage.store == "postgres" else []))
    with stage.world(slots=10, proxied=parties) as world, Churn(world, per_second=0.25) as churn:
        steady = Steady(world, trials=4)
        share = max(stage.amount / len(BAD), SHORTEST)
        for name, weather in BAD.items():
            stage.say(f"{name} for {share:.0f} s")
            with Probe(world) as probe:
                everywhere(world, weather)
                time.sleep(share)
                everywhere(world, FINE)
                recovered = steady.progress(by=2)
            stage.found(probe.violations)
            answered = ", ".join(f"{status or 'none'} {count}" for status, count in sorted(probe.answered.items()))
            stage.say(f"{name}: went on after {recovered:.1f} s; the probe was answered {answered}")
            stage.recovered(recovered)
            if recovered > NORMAL_WITHIN:
                what = f"after {name} it took {recovered:.1f} s until everything went on, not {NORMAL_WITHIN:g} s"
                stage.late(Violation(4, "slow", "trials", what))
            checked(stage, world, steady, stage.counts.runs + 1)
        stage.end(world, steady, churn)


def cut_agent(stage: Stage) -> None:
    """An agent is cut off for less than the master's patience: its tasks go on, and nothing is started again."""
    lengths: Sequence[float] = (5, 30) if stage.size == "ci" else (5, 30, 120, 500)
    with stage.world(slots=6, proxied=("agent", "task")) as world:
        steady = Steady(world, trials=4)
        agent, task = world.proxies["agent agent-1"], world.proxies["task agent-1"]
        for number in range(stage.amount):
            seconds = lengths[number % len(lengths)]
            # Its machine is cut off, or only the agent itself while its tasks still reach the master.
            both = stage.random.random() < 0.5
            stage.say(f"{'agent and tasks are' if both else 'the agent is'} cut off for {seconds:g} s")
            for proxy in (agent, task) if both else (agent,):
                proxy.set(BLACKHOLE)
            before = steady.acknowledged()
            time.sleep(seconds)
            if not both and steady.acknowledged() == before:
                what = f"while their agent was cut off for {seconds:g} s, no trial reported anything"
                stage.found([Violation(4, "stuck", "trials", what)])
            everywhere(world, FINE)
            began = time.monotonic()
            steady.progress()
            wait_for("the agent's return", lambda: connected(world, "agent-1"), within=60, seen=world.describe)
            stage.recovered(time.monotonic() - began)
            checked(stage, world, steady, stage.counts.runs + 1)
        stage.end(world, steady)


def connected(world: World, agent: str) -> bool:
    """Whether the master lists this agent."""
    agents = world.api("GET", "/api/v1/agents", user="admin")["agents"]
    return any(a["id"] == agent and a["slots"] for a in agents)


def lose_agent(stage: Stage) -> None:
    """An agent is cut off for longer than the master's patience: its trials go on elsewhere; when it comes back, what
    it still runs is fenced, and stopped at once."""
    patience = 4 if stage.size == "ci" else 600
    pools = [{"pool_name": "default", "agent_reconnect_wait": f"{patience}s"}]
    agents = [Agent("agent-1", slots=3), Agent("agent-2", slots=3)]
    config = {"resource_pools": pools}
    with stage.world(agents=agents, proxied=("agent", "task"), master_config=config) as world:
        steady = Steady(world, trials=3, pace=Pace(checkpoint_every=10))
        for number in range(stage.amount):
            lost = victim(world)
            old = {name for name, agent in observe.views(world).in_rows.items() if agent == lost}
            agent, task = world.proxies[f"agent {lost}"], world.proxies[f"task {lost}"]
            # Every other time its tasks still reach the master: then nothing but the fence keeps them out.
            tasks_too = number % 2 == 0
            stage.say(f"{lost} is cut off with {len(old)} containers{', and its tasks with it' if tasks_too else ''}")
            if stage.size == "ci":
                # A reset notifies the master, which need not wait for silence.
                agent.set(Weather(refuse=True))
                agent.reset_all()
            else:
                agent.set(BLACKHOLE)
            if tasks_too:
                task.set(BLACKHOLE)
            runs = steady.runs()
            moved = steady.trials_in(old)
            go_on_elsewhere(steady, {trial: runs[trial] for trial in moved}, within=patience + SILENCE + 60)
            for trial in moved:
                # Its old run goes on printing where no master listens: only the end of its lines may be missing.
                steady.caused(trial, charged=False, tail_lost=True)
            everywhere(world, FINE)
            seconds = ends(world, old)
            stage.figures["stopped max s"] = max(stage.figures.get("stopped max s", 0.0), round(seconds, 2))
            if seconds > FENCED_WITHIN:
                what = f"it ended what was lost {seconds:.1f} s after its return, not within {FENCED_WITHIN:g} s"
                stage.late(Violation(2, "slow", lost, what))
            wait_for("both agents", lambda: all(connected(world, a.name) for a in agents), within=60)
            stage.recovered(steady.progress())
            checked(stage, world, steady, number + 1)
        stage.end(world, steady)


def go_on_elsewhere(steady: Steady, runs: dict[int, int], within: float) -> None:
    """Waits until each of these trials has begun a later run than the one given."""
    wait_for(
        "the trials to go on elsewhere",
        lambda: all(steady.runs()[trial] > run for trial, run in runs.items()),
        within=within,
        seen=steady.world.describe,
    )


def ends(world: World, containers: set[str], within: float = 60) -> float:
    """Waits until nothing of these containers runs any more; gives the seconds that took, endless if it does not."""
    began = time.monotonic()

    def ended() -> bool:
        return not containers & {container for container, _ in observe.processes(world)}

    try:
        wait_for("the end of what was lost", ended, within=within, look_every=0.1)
    except TooLate:
        return math.inf
    return time.monotonic() - began


def victim(world: World) -> str:
    """The agent that holds the most containers."""
    held = list(observe.views(world).in_rows.values())
    return max(sorted(set(held)), key=held.count)


class Probe:
    """Asks the master again and again while something is wrong with it, and notes what it answers."""

    def __init__(self, world: World, every: float = 0.2) -> None:
        self._world = world
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
        # How often each status was answered; 0 = nothing at all.
        self.answered: dict[int, int] = {}
        self.violations: list[Violation] = []

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        calls = (
            ("GET", "/api/v1/experiments?limit=5", None),
            ("GET", "/api/v1/trials/1", None),
            ("POST", "/api/v1/experiments/999999/kill", {}),
            ("PATCH", "/api/v1/experiments/1", {"notes": "asked by the probe"}),
        )
        number = 0
        while not self._ended.wait(self._every):
            method, path, body = calls[number % len(calls)]
            number += 1
            self._ask(method, path, body)

    def _ask(self, method: str, path: str, body: object) -> None:
        status, text = 200, ""
        try:
            self._world.api(method, path, body, user="admin", within=40)
        except ApiError as error:
            status, text = error.status, error.body
        except OSError:
            status = 0
        self.answered[status] = self.answered.get(status, 0) + 1
        if status == 503:
            hint = (json.loads(text).get("error") or {}).get("hint")
            if not hint:
                self.violations.append(
                    Violation(9, "wrong", f"{method} {path}", "a 503 without a hint", {"body": text})
                )
        elif status >= 500:
            what = f"it was answered with {status}, not with 503 and a hint"
            self.violations.append(Violation(9, "wrong", f"{method} {path}", what, {"body": text}))
