"""Jupyter servers of notebooks behind the proxy, asked as their pages ask them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from typing import Any

import pytest

from harness import Cluster
from waiting import wait_for

websocket = pytest.importorskip("websocket", reason="websocket-client is not installed: make setup")

# As whom the clients of tests log in.
OWNER = "determined"


class Server:
    """A notebook's server behind the proxy, asked with the session of its owner."""

    def __init__(self, cluster: Cluster, notebook: str) -> None:
        shown = cluster.api("GET", f"/api/v1/notebooks/{notebook}", user=OWNER)["notebook"]
        path, _, self.query = shown["serviceAddress"].partition("?")
        self.base = f"{cluster.url}{path}"
        self.cookie = f"auth={cluster.token(OWNER)}"
        # Jupyter writes that it runs, by which it is ready, a moment before it listens.
        wait_for("the server to listen", lambda: answers(self), within=30, seen=cluster.describe)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Cookie": self.cookie, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.base}{path}?{self.query}", method=method, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def connect(self, kernel: str, session: str = "") -> Any:
        """A connection to a kernel; one with a session receives what the kernel wrote since that session's last one."""
        query = self.query + (f"&session_id={session}" if session else "")
        address = f"{self.base}api/kernels/{kernel}/channels?{query}".replace("http", "ws", 1)
        return websocket.create_connection(address, cookie=self.cookie, timeout=60)


def begin(socket: Any, code: str) -> str:
    """Has a kernel run code; gives the id by which its output is known."""
    ident = uuid.uuid4().hex
    header = {"msg_id": ident, "username": "", "session": ident, "msg_type": "execute_request", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    socket.send(json.dumps({**message, "buffers": []}))
    return ident


def output(socket: Any, ident: str, until: str | None = None) -> str:
    """What begun code prints from now on, to its end or until it has printed a text."""
    printed = ""
    while True:
        answer = json.loads(socket.recv())
        if answer.get("parent_header", {}).get("msg_id") != ident:
            continue
        if answer["msg_type"] == "stream":
            printed += answer["content"]["text"]
            if until is not None and until in printed:
                return printed.strip()
        if answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
            return printed.strip()


def run(socket: Any, code: str) -> str:
    """What code prints, run by a kernel."""
    return output(socket, begin(socket, code))


def answers(server: Server) -> bool:
    """Whether a server can be reached now."""
    try:
        return "kernels" in server.call("GET", "api/status")
    except urllib.error.HTTPError as refused:
        refused.close()
        return False
