"""A generator makes a client of the committed description of the API."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import flavoured

pytestmark = pytest.mark.core

DOCUMENT = pathlib.Path(__file__).parent.parent / "openapi" / "det.json"
# What the generator has no type for by itself; the same keys are shown for the reader of a failure.
CONFIG = {"content_type_overrides": {"application/gzip": "application/octet-stream"}, "post_hooks": []}


def test_a_generator_makes_a_whole_client_of_the_description(tmp_path: pathlib.Path) -> None:
    if importlib.util.find_spec("openapi_python_client") is None:
        pytest.skip("SKIPPED: openapi-python-client is not installed; scripts/setup python-dev installs it")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    target = tmp_path / "generated"
    words = ["generate", "--path", str(DOCUMENT), "--meta", "none", "--output-path", str(target)]
    run = subprocess.run(
        [sys.executable, "-m", "openapi_python_client", *words, "--config", str(config), "--fail-on-warning"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    # It imports, knows the enumerations of queries, and keeps members of free JSON.
    script = (
        "from generated.models import AgentUserGroup, Empty, OrderBy, Template\n"
        "assert {'ORDER_BY_ASC', 'ORDER_BY_DESC'} <= {order.value for order in OrderBy}\n"
        "template = Template.from_dict({'name': 'a', 'config': {'max_restarts': 1}, 'workspaceId': 1})\n"
        "assert template.to_dict()['config'] == {'max_restarts': 1}, template\n"
        "assert AgentUserGroup.from_dict({'agentGid': 7}).agent_gid == 7\n"
        "import generated.api.experiments.get_experiments\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    used = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert used.returncode == 0, used.stdout + used.stderr


def test_a_large_answer_is_whole_for_clients_that_take_it_compressed() -> None:
    with flavoured("core") as cluster:
        path = "/api/v1/api.swagger.json"
        plain = cluster.raw("GET", path, user=None, headers={"Accept-Encoding": "identity"})
        assert len(plain) > 256 * 1024, "as large as answers that go out in pieces"
        assert gzip.decompress(cluster.raw("GET", path, user=None, headers={"Accept-Encoding": "gzip"})) == plain
