"""A master that records what is reported to it and fails on request, over real HTTP."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

WAIT_S = 30


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


class StubMaster:
    """Use as a context manager. `stop()` and `start()` again keep address and records: a restart."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        # Reports as a master would keep them: each identity once.
        self.points: dict[str, dict[str, Any]] = {}
        self.answers: list[tuple[str, re.Pattern[str], Callable[[Request], Answer]]] = []
        self.preempt = threading.Event()
        self._cuts: list[str] = []
        self._held: dict[str, threading.Event] = {}
        self._changed = threading.Condition()
        self._tls = tls
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._sockets: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def on(self, method: str, path: str, answer: Answer | Callable[[Request], Answer]) -> None:
        """Answers requests for a path (a regular expression) from now on; the latest wins."""
        reply = answer if callable(answer) else lambda _: answer
        self.answers.insert(0, (method, re.compile(path), reply))

    def cut_next(self, path: str, times: int = 1) -> None:
        """Takes the next requests for `path` to heart and drops the connection instead of answering."""
        self._cuts.extend([path] * times)

    def hold(self, path: str, release: threading.Event) -> None:
        """Answers requests for `path` only once `release` is set."""
        self._held[path] = release

    def sent(self, method: str, path: str) -> list[Request]:
        return [r for r in self.requests if r.method == method and re.fullmatch(path, r.path)]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_S), "the master never got what the test waits for"

    def start(self) -> None:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                stub._sockets.add(self.connection)

            def finish(self) -> None:
                stub._sockets.discard(self.connection)
                super().finish()

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                stub._serve(self)

            do_POST = do_PATCH = do_GET

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Clients that vanish are part of the tests."""

        self._server = Server(("127.0.0.1", self._port), Handler)
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            for connection in list(self._sockets):
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def __enter__(self) -> StubMaster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        raw = handler.rfile.read(length)
        parts = urlsplit(handler.path)
        request = Request(
            handler.command,
            parts.path,
            {key: values[0] for key, values in parse_qs(parts.query).items()},
            {key.lower(): value for key, value in handler.headers.items()},
            json.loads(raw) if raw else None,
        )
        with self._changed:
            self.requests.append(request)
            answer = self._answer(request)
            cut = request.path in self._cuts
            if cut:
                self._cuts.remove(request.path)
            self._changed.notify_all()
        if request.path.endswith("/signals/preemption") and answer is None:
            # Not answered at the deadline on purpose: tests end it by preempting or by stopping.
            if request.query["timeout_seconds"] != "0":
                self.preempt.wait(WAIT_S)
            answer = Answer(body={"preempt": self.preempt.is_set()})
        if request.path in self._held:
            self._held[request.path].wait(WAIT_S)
        if cut:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        answer = answer or Answer()
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _answer(self, request: Request) -> Answer | None:
        for method, path, reply in self.answers:
            if method == request.method and path.fullmatch(request.path):
                answer = reply(request)
                break
        else:
            answer = None
            if request.path == "/api/v1/runs/start":
                answer = Answer(body={"storageId": 7})
        if request.path.endswith("/metrics") and (answer is None or answer.status < 300):
            self.points.setdefault(request.body["reportId"], request.body)
        return answer
