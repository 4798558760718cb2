"""A closed loop of requests over kept connections: each connection sends its next request when the last was answered.

Some processes share the connections. Requests are written as bytes and answers read only as far as needed: with
`http.client` a request costs the generator some 150 µs of processor time, ten times as much as here, and on the two
cores that it shares with what it measures the figures would be the generator's own.
"""

from __future__ import annotations

import array
import gc
import multiprocessing
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe

from measure.cluster import HOST, Failed
from measure.results import percentile

# Makes the bytes of a connection's next request.
NextRequest = Callable[[], bytes]

# Requests are sent for so long before counting starts.
WARM_UP_SECONDS = 0.5
# Answers still under way at the end are waited for so long, so that one window does not disturb the next.
DRAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Window:
    """What came of a closed loop."""

    # Answered within the window.
    requests: int
    seconds: float
    # Answered in all, while warming up and after the window too.
    all_requests: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def closed_loop(port: int, connections: Sequence[NextRequest], seconds: float) -> Window:
    """Drives the connections for a while. Every answer must be a success: only what was acknowledged counts."""
    processes = min(len(connections), len(os.sched_getaffinity(0)))
    context = multiprocessing.get_context("fork")
    begin = time.monotonic() + 0.2 + WARM_UP_SECONDS
    workers = []
    for number in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        share = connections[number::processes]
        worker = context.Process(target=_work, args=(port, share, begin, begin + seconds, theirs), daemon=True)
        worker.start()
        theirs.close()
        workers.append((worker, ours))
    latencies = array.array("d")
    answered = 0
    problems = []
    for worker, pipe in workers:
        try:
            outcome = pipe.recv()
        except EOFError:
            outcome = "a process of the load generator ended early"
        worker.join()
        if isinstance(outcome, str):
            problems.append(outcome)
        else:
            answered += outcome[0]
            latencies.frombytes(outcome[1])
    if problems:
        raise Failed(problems[0])
    if not latencies:
        raise Failed(f"not one answer came within {seconds:g} s")
    to_ms = [percentile(latencies, percent) * 1e3 for percent in (50, 99, 100)]
    return Window(len(latencies), seconds, answered, *to_ms)


def _work(port: int, share: Sequence[NextRequest], begin: float, end: float, out: Pipe) -> None:
    """A process of the generator: sends back how much was answered and the latencies it counted, or what went wrong."""
    # No cycles are made here, and a collection would be a pause in the figures.
    gc.disable()
    try:
        answered, latencies = _loop(port, share, begin, end)
        out.send((answered, latencies.tobytes()))
    except Exception as error:
        out.send(f"{error}" if isinstance(error, Failed) else repr(error))
    finally:
        out.close()


def _loop(port: int, share: Sequence[NextRequest], begin: float, end: float) -> tuple[int, array.array]:
    poller = select.epoll()
    open_connections = {}
    for next_request in share:
        connection = _Connection(port, next_request)
        open_connections[connection.socket.fileno()] = connection
        poller.register(connection.socket.fileno(), select.EPOLLIN)
    for number, connection in open_connections.items():
        connection.send_next(poller, number)
    latencies = array.array("d")
    count, clock = latencies.append, time.monotonic
    answered, waiting = 0, len(open_connections)
    while waiting:
        ready = poller.poll(1.0)
        if clock() > end + DRAIN_SECONDS:
            raise Failed(f"{waiting} answers did not come for {DRAIN_SECONDS:g} s")
        for number, what in ready:
            connection = open_connections[number]
            if what & select.EPOLLOUT:
                connection.send_rest(poller, number)
            if not what & ~select.EPOLLOUT or not connection.answered():
                continue
            now = clock()
            answered += 1
            if begin <= now < end:
                count(now - connection.sent)
            if now < end:
                connection.send_next(poller, number)
            else:
                waiting -= 1
    return answered, latencies


class _Connection:
    """One kept connection with at most one request under way."""

    def __init__(self, port: int, next_request: NextRequest) -> None:
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.sent = 0.0
        self._next_request = next_request
        self._unsent = memoryview(b"")
        self._received = b""

    def send_next(self, poller: select.epoll, number: int) -> None:
        data = self._next_request()
        self.sent = time.monotonic()
        try:
            done = self.socket.send(data)
        except BlockingIOError:
            done = 0
        if done < len(data):
            self._unsent = memoryview(data)[done:]
            poller.modify(number, select.EPOLLIN | select.EPOLLOUT)

    def send_rest(self, poller: select.epoll, number: int) -> None:
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return
        if not self._unsent:
            poller.modify(number, select.EPOLLIN)

    def answered(self) -> bool:
        """Reads what has arrived; whether the answer is complete. Raises for anything but a success."""
        data = self.socket.recv(65536)
        if not data:
            raise Failed("the master closed a connection")
        if self._received:
            data = self._received + data
        end_of_head = data.find(b"\r\n\r\n")
        if end_of_head < 0:
            self._received = data
            return False
        if not data.startswith(b"HTTP/1.1 200"):
            raise Failed(f"the master answered {data[:600].decode(errors='replace')}")
        start = data.find(b"content-length: ", 0, end_of_head)
        if start < 0:
            raise Failed(f"an answer without a length: {data[:end_of_head].decode(errors='replace')}")
        length = int(data[start + 16 : data.find(b"\r\n", start)])
        if len(data) < end_of_head + 4 + length:
            self._received = data
            return False
        self._received = b""
        return True
