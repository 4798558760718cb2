"""Files and directories that hold secrets belong to the user of the process alone, also where they were open to others before."""

from __future__ import annotations

import stat

import pytest

from conftest import flavoured

pytestmark = pytest.mark.core

# Names below the data directory of `det up`.
SECRET_FILES = ("det.db", "det.log", "agent-token")


def test_files_with_secrets_are_closed_to_others_and_closed_again() -> None:
    with flavoured("core", shape="up") as cluster:
        for directory in (cluster.data_dir, *cluster._agent_dirs()):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory
        files = [cluster.data_dir / name for name in SECRET_FILES]
        assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in files} == dict.fromkeys(
            SECRET_FILES, "0o600"
        )
        cluster.part("up").stop()
        for path in files:
            path.chmod(0o644)
        cluster.start()
        assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in files} == dict.fromkeys(
            SECRET_FILES, "0o600"
        )
