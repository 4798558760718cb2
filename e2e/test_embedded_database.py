"""The embedded database beside other programs: users read it and back it up while the master runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import flavoured

pytestmark = pytest.mark.core

LOOK = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("SELECT COUNT(*) FROM users").fetchone()
database.close()
"""


def test_what_is_acknowledged_after_another_program_looked_into_the_database_stays() -> None:
    with flavoured("core") as cluster:
        for name in ("before", "after"):
            cluster.api("POST", "/api/v1/workspaces", {"name": name})
            subprocess.run([sys.executable, "-c", LOOK, str(cluster.data_dir / "det.db")], check=True, timeout=30)
        cluster.api("POST", "/api/v1/workspaces", {"name": "last"})
        cluster.expect_alarm("lost the master|no connection to the master")
        cluster.restart("master")
        names = [workspace["name"] for workspace in cluster.api("GET", "/api/v1/workspaces")["workspaces"]]
        assert names == ["Uncategorized", "before", "after", "last"]
