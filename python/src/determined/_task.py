"""What the code of a task asks the master beside reports: who it is to it, and exchanges with its peers."""

from __future__ import annotations

import os

from determined import _info, errors
from determined._session import MasterSession, TrustSettings

__all__ = ["exchange", "mark_daemon", "session_of_task"]


def session_of_task(info: _info.ClusterInfo) -> MasterSession:
    """A session with the token of this task."""
    return MasterSession(
        info.master_url,
        token=os.environ.get("DET_SESSION_TOKEN") or info.session_token,
        trust=TrustSettings.resolve(
            os.environ, cert_file=info.master_cert_file, cert_name=info.master_cert_name
        ),
    )


def exchange(info: _info.ClusterInfo, name: str, rank: int, size: int, value: str) -> str:
    """The value that rank 0 gives under this name, for all `size` members, through the master. Waits for
    all.
    """
    session = session_of_task(info)
    try:
        answer = session.post(
            f"/api/v1/allocations/{info.allocation_id}/all_gather",
            {
                "allocationId": info.allocation_id,
                "requestUuid": f"{name}-{rank}",
                "numPeers": size,
                "data": {"rank": rank, "value": value},
            },
        ).object()
    finally:
        session.close()
    for given in answer.get("data") or []:
        if given.get("rank") == 0 and isinstance(given.get("value"), str) and given["value"]:
            return given["value"]
    raise errors.BadResponseException(
        f"the master's answer to the exchange {name!r} of allocation {info.allocation_id} has nothing of "
        "rank 0"
    )


def mark_daemon(info: _info.ClusterInfo, resources_id: str) -> None:
    """Reports to the master that this container is a helper: it ends with the last of the others, whatever it
    does.
    """
    session = session_of_task(info)
    try:
        session.post(f"/api/v1/allocations/{info.allocation_id}/resources/{resources_id}/daemon")
    finally:
        session.close()
