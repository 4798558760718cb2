"""HTTP by hand: bytes out, status back, within a limit."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Reply:
    """What came back. `status` is None if the connection ended without an answer, `late` if nothing came in time."""

    status: int | None
    head: bytes
    body: bytes
    late: bool
    took: float

    def __str__(self) -> str:
        outcome = "no answer in time" if self.late else f"status {self.status}"
        return f"{outcome} after {self.took:.2f} s: {self.body[:300].decode(errors='replace')}"


def exchange(port: int, data: bytes, *, within: float, ends: bool = False, body: bool = True) -> Reply:
    """Sends bytes on a connection of their own and reads one answer, of a stream only the head."""
    began = time.monotonic()

    def left() -> float:
        return max(0.001, within - (time.monotonic() - began))

    def reply(status: int | None, head: bytes = b"", rest: bytes = b"", late: bool = False) -> Reply:
        return Reply(status, head, rest, late, time.monotonic() - began)

    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=within) as connection:
        # A refusal may come, and the connection end, while there is still something to send.
        try:
            connection.sendall(data)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        except TimeoutError:
            return reply(None, late=True)
        except OSError:
            pass
        try:
            while b"\r\n\r\n" not in received:
                connection.settimeout(left())
                piece = connection.recv(65536)
                if not piece:
                    return reply(None, received)
                received += piece
            head, _, rest = received.partition(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            length = next(
                (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")),
                0,
            )
            while body and len(rest) < length:
                connection.settimeout(left())
                piece = connection.recv(65536)
                if not piece:
                    break
                rest += piece
            return reply(status, head, rest)
        except TimeoutError:
            return reply(None, received, late=True)
        except OSError:
            return reply(None, received)
