"""Compares messages with the generated classes of the unmodified client.

Reads a JSON list of cases from standard input: operation, role (response, request, query), class (for queries: the
client's function), default, full. Writes one line for each disagreement and nothing else.

- Each response must be readable, in its default form and with everything set, and must hold every field of the class.
- Each request with everything set must be readable by the client's own class, and hold every field of it.
- Each query must know every parameter of the client's function.
- Fields that the class lacks must be in ADDITIONS.
"""

import inspect
import json
import re
import sys
from typing import Any, Iterator

from determined.common.api import bindings

# Our own fields, by the class that has them beyond the client's.
ADDITIONS = {
    ("trialv1Trial", "waitReason"),
    ("trialv1Trial", "lastFailure"),
    ("trialv1Trial", "notice"),
    ("v1Experiment", "checkpointFailure"),
    ("v1Task", "waitReason"),
    ("v1Task", "lastFailure"),
    ("v1Task", "logsDeletedTime"),
    ("v1Task", "username"),
    ("v1Task", "description"),
    ("v1Task", "resourcePool"),
    ("v1Task", "name"),
    ("v1Task", "schedulerType"),
    ("v1Task", "priority"),
    ("v1Task", "priorityOrder"),
    ("v1AllocationSummary", "jobId"),
    ("v1AllocationSummary", "taskType"),
    ("v1AllocationSummary", "username"),
    ("v1AllocationSummary", "description"),
    ("v1AllocationSummary", "priorityOrder"),
    ("v1AllocationSummary", "waitReason"),
    ("v1ResourcePool", "priorityOrder"),
    ("v1AllocationSummary", "isStopping"),
    ("v1AllocationSummary", "state"),
    ("v1Job", "waitReason"),
    ("v1CreateExperimentRequest", "templates"),
    ("v1CreateExperimentResponse", "messages"),
    ("v1ReportTrialMetricsRequest", "reportId"),
    ("v1PostTaskLogsRequest", "spool"),
    ("v1Workspace", "maxSlots"),
    ("v1PostWorkspaceRequest", "maxSlots"),
    ("v1PatchWorkspace", "maxSlots"),
    ("runtimeStreamError", "error"),
    ("ResourceManagerHealth", "name"),
    ("ResourceManagerHealth", "reason"),
    ("HealthCheck", "background"),
    ("v1GetTasksResponse", "pausedTasks"),
    ("v1GetTasksResponse", "endedTasks"),
    ("v1Command", "exitCode"),
    ("v1Command", "lastFailure"),
    ("v1Command", "paused"),
    ("v1LaunchCommandRequest", "preview"),
    ("v1LaunchCommandResponse", "messages"),
    ("v1Shell", "exitCode"),
    ("v1Shell", "lastFailure"),
    ("v1Shell", "paused"),
    ("v1LaunchShellRequest", "preview"),
    ("v1LaunchShellResponse", "messages"),
    ("v1Notebook", "exitCode"),
    ("v1Notebook", "lastFailure"),
    ("v1Notebook", "paused"),
    # Commands have this key, and all kinds share their type.
    ("v1LaunchNotebookRequest", "data"),
    ("v1LaunchNotebookResponse", "messages"),
    ("v1Tensorboard", "exitCode"),
    ("v1Tensorboard", "lastFailure"),
    ("v1Tensorboard", "paused"),
    ("v1LaunchTensorboardRequest", "data"),
    ("v1LaunchTensorboardRequest", "preview"),
    ("v1LaunchTensorboardResponse", "messages"),
    ("v1CreateGenericTaskRequest", "preview"),
    ("v1CreateGenericTaskRequest", "templateName"),
    ("v1CreateGenericTaskResponse", "messages"),
    ("v1CreateGenericTaskResponse", "config"),
    ("v1Agent", "agentVersion"),
    ("v1Agent", "disconnected"),
    ("v1Agent", "fault"),
    ("v1Slot", "usage"),
    ("v1Slot", "fault"),
}
# Query parameters that the client does not have: our own, and of a query that several operations share here.
OTHER_PARAMETERS = {("get_TrialLogs", "allocationIds"), ("get_MasterLogs", "trialId"), ("get_GetTasks", "withEnded")}


def fields(cls: Any) -> dict[str, str]:
    """Names and type expressions of a class's fields."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return {p.name: str(p.annotation) for p in parameters}


def message_class(annotation: str) -> Any:
    """The class of the messages in a field (also inside a list or map), if it holds any."""
    for name in re.findall(r"\w+", annotation):
        cls = getattr(bindings, name, None)
        if inspect.isclass(cls) and hasattr(cls, "from_json") and name not in ("Unset", "Json"):
            return cls
    return None


def compare(cls: Any, ours: Any, path: str) -> Iterator[str]:
    """Field names of a message that only one side knows, at every level."""
    if not isinstance(ours, dict):
        return
    theirs = fields(cls)
    for name in sorted(theirs.keys() - ours.keys()):
        yield f"{path}: {cls.__name__}.{name} is missing here"
    for name in sorted(ours.keys() - theirs.keys()):
        if (cls.__name__, name) not in ADDITIONS:
            yield f"{path}: {cls.__name__} has no {name}"
    for name, annotation in theirs.items():
        inner = message_class(annotation)
        if inner is None or name not in ours:
            continue
        value = ours[name]
        if "Dict[" in annotation and isinstance(value, dict):
            value = list(value.values())
        for element in value if isinstance(value, list) else [value]:
            yield from compare(inner, element, f"{path}.{name}")


def core_type(annotation: str) -> str:
    """The type expression without quotes, module prefix and the ways of leaving a field out."""
    annotation = annotation.replace("typing.", "").replace('"', "")
    annotation = re.sub(r"^<class '(\w+)'>$", r"\1", annotation)
    return re.sub(r"^Union\[(.*), None, Unset\]$", r"\1", annotation)


def is_a(value: Any, kind: str) -> bool:
    """Whether a JSON value fits a type expression of the client."""
    plain = {"str": str, "int": int, "bool": bool}
    if kind in plain:
        return type(value) is plain[kind]
    if kind == "float":
        return type(value) in (int, float) or value in ("NaN", "Infinity", "-Infinity")
    if kind == "Any":
        return True
    if match := re.fullmatch(r"Sequence\[(.*)\]", kind):
        return isinstance(value, list) and all(is_a(x, match[1]) for x in value)
    if match := re.fullmatch(r"Dict\[str, (.*)\]", kind):
        return isinstance(value, dict) and all(is_a(x, match[1]) for x in value.values())
    cls = getattr(bindings, kind)
    if issubclass(cls, bindings.DetEnum):
        return value in [member.value for member in cls]
    return isinstance(value, dict)


def types(cls: Any, ours: dict[str, Any], path: str, everything_set: bool) -> Iterator[str]:
    """Fields whose JSON is not of the client's type, at every level. Null may stand for a field that can be unset."""
    for name, annotation in fields(cls).items():
        value = ours.get(name)
        kind = core_type(annotation)
        if value is None:
            if everything_set or "Unset" not in annotation:
                yield f"{path}: {cls.__name__}.{name} is null"
        elif not is_a(value, kind):
            yield f"{path}: {cls.__name__}.{name} is {value!r}, not {kind}"
        elif inner := message_class(annotation):
            if kind.startswith("Dict["):
                value = list(value.values())
            for element in value if isinstance(value, list) else [value]:
                yield from types(inner, element, f"{path}.{name}", everything_set)


def read(cls: Any, message: Any, path: str) -> Iterator[str]:
    try:
        cls.from_json(message)
    except Exception as error:  # Whatever it is, the user of the client would see it.
        yield f"{path}: {cls.__name__} cannot be read: {type(error).__name__}: {error}"


def query(function: Any, ours: dict[str, Any], path: str) -> Iterator[str]:
    source = inspect.getsource(function)
    block = re.search(r"_params = \{(.*?)\n    \}", source, re.S)
    theirs = set(re.findall(r'^        "([\w.]+)":', block.group(1), re.M)) if block else set()
    known = set()
    for name, value in ours.items():
        known |= {f"{name}.{inner}" for inner in value} if isinstance(value, dict) else {name}
    for name in sorted(theirs - known):
        yield f"{path}: query parameter {name} is missing here"
    for name in sorted(known - theirs):
        if (function.__name__, name) not in OTHER_PARAMETERS:
            yield f"{path}: {function.__name__} has no query parameter {name}"


def check(case: dict[str, Any]) -> Iterator[str]:
    path = f"{case['operation']} {case['role']}"
    target = getattr(bindings, case["class"], None)
    if target is None:
        yield f"{path}: the client has no {case['class']}"
    elif case["role"] == "query":
        yield from query(target, case["full"], path)
    else:
        forms = ("default", "full") if case["role"] == "response" else ("full",)
        for form in forms:
            yield from read(target, case[form], f"{path} ({form})")
            yield from types(target, case[form], f"{path} ({form})", everything_set=form == "full")
        yield from compare(target, case["full"], path)


for case in json.load(sys.stdin):
    for line in check(case):
        print(line)
