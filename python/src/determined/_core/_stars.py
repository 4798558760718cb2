"""Messages between the processes of one training: a star of connections with the chief in the middle.

Everything that passes is pickled, so both ends prove first that they know the same secret: no other process
of the hosts may take part, and no message of a stranger is ever unpickled.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol, Union

from determined import errors

__all__ = ["Address", "Chief", "Star", "Worker", "local_secret"]

#: Where a chief listens: a host with a port, or the path of a socket.
Address = Union[tuple[str, int], str]

#: Seconds until all processes must have met.
MEET_WITHIN_S = 600.0
#: Seconds that one newcomer may take to prove itself; others wait for it.
PROVE_WITHIN_S = 5.0
#: Seconds between attempts to reach a chief that does not listen yet.
RETRY_S = 0.05
#: Bytes of a challenge.
CHALLENGE = 32
#: Bytes of a proof (SHA-256).
PROOF = 32
#: Longest message in bytes: a length beyond it is no length.
MOST_BYTES = 1 << 40

_LENGTH = struct.Struct("!Q")
_RANK = struct.Struct("!I")


class Star(Protocol):
    """One process' end of the star."""

    def gather(self, kind: str, stuff: Any) -> list[Any] | None:
        """All processes' values in rank order for the chief, None for the others."""
        ...

    def scatter(self, kind: str, stuff: Any) -> Any:
        """The chief's value, for every rank."""
        ...

    def close(self) -> None:
        """Ends the connections."""
        ...


class Chief:
    """The middle of the star."""

    def __init__(self, size: int, *, address: Address, secret: bytes, what: str) -> None:
        self._what = what
        self._listener = _listen(address)
        self._path = address if isinstance(address, str) else None
        self._size = size
        self._secret = secret
        self._peers: dict[int, _Peer] = {}

    @property
    def port(self) -> int:
        """The TCP port on which it listens."""
        return self._listener.getsockname()[1]

    def meet(self) -> None:
        """Waits until all others have come."""
        deadline = time.monotonic() + MEET_WITHIN_S
        try:
            while len(self._peers) < self._size - 1:
                self._admit(deadline)
        except BaseException:
            self.close()
            raise

    def _admit(self, deadline: float) -> None:
        missing = sorted(set(range(1, self._size)) - set(self._peers))
        left = deadline - time.monotonic()
        if left <= 0:
            raise errors.DistributedError(
                f"rank 0 has waited {MEET_WITHIN_S:g} s for the other processes of this {self._what}, and "
                "ranks "
                f"{_listed(missing)} of {self._size} have not come; see their logs for what keeps them"
            )
        self._listener.settimeout(left)
        try:
            connection, _ = self._listener.accept()
        except socket.timeout:
            return
        try:
            rank = _examine(connection, self._secret)
        except (OSError, EOFError, ValueError):
            # A stranger, or a process that has died meanwhile: it is not one of ours.
            connection.close()
            return
        if rank not in missing:
            connection.close()
            raise errors.DistributedError(
                f"a process came to this {self._what} as rank {rank}, which is not one of the expected ranks "
                f"{_listed(missing)}; each process must have a rank of its own below the size {self._size}"
            )
        self._peers[rank] = _Peer(connection, rank)

    def gather(self, kind: str, stuff: Any) -> list[Any] | None:
        return [stuff, *(self._peers[rank].receive(kind) for rank in range(1, self._size))]

    def scatter(self, kind: str, stuff: Any) -> Any:
        data = _encode(kind, stuff)
        for rank in range(1, self._size):
            self._peers[rank].send(data)
        return stuff

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._listener.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


class Worker:
    """A point of the star."""

    def __init__(self, rank: int, *, address: Address, secret: Callable[[], bytes], what: str) -> None:
        """`secret` is asked at each attempt: what it gives may be that of an earlier training until the
        chief listens.
        """
        deadline = time.monotonic() + MEET_WITHIN_S
        last: Exception | None = None
        while True:
            try:
                connection = _reach(address)
                try:
                    _prove(connection, secret(), rank)
                except BaseException:
                    connection.close()
                    raise
                break
            except (OSError, EOFError) as error:
                last = error
            if time.monotonic() >= deadline:
                raise errors.DistributedError(
                    f"rank {rank} has tried for {MEET_WITHIN_S:g} s to reach rank 0 of this {what} at "
                    f"{_shown(address)}: "
                    f"{last!r}; see the log of rank 0, and whether that address can be reached from this host"
                ) from last
            # The chief may not listen yet: the processes start at the same time, in no order.
            time.sleep(RETRY_S)
        self._chief = _Peer(connection, 0)

    def gather(self, kind: str, stuff: Any) -> list[Any] | None:
        self._chief.send(_encode(kind, stuff))
        return None

    def scatter(self, kind: str, stuff: Any) -> Any:
        return self._chief.receive(kind)

    def close(self) -> None:
        self._chief.close()


class _Peer:
    """A connection to one other process, which has proved what it is."""

    def __init__(self, connection: socket.socket, rank: int) -> None:
        connection.settimeout(None)
        if connection.family != getattr(socket, "AF_UNIX", None):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A host that is gone without a word is noticed at some time.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection = connection
        self._rank = rank

    def send(self, data: bytes) -> None:
        try:
            self._connection.sendall(_LENGTH.pack(len(data)))
            self._connection.sendall(data)
        except OSError as error:
            raise self._gone(error) from error

    def receive(self, kind: str) -> Any:
        import pickle

        try:
            (length,) = _LENGTH.unpack(_read(self._connection, _LENGTH.size))
            if length > MOST_BYTES:
                raise EOFError(f"a message of {length} bytes")
            data = _read(self._connection, length)
        except (OSError, EOFError) as error:
            raise self._gone(error) from error
        theirs, stuff = pickle.loads(data)
        if theirs != kind:
            raise errors.DistributedError(
                f"the processes are out of step: this one calls {kind}() and rank {self._rank} {theirs}(); "
                "all must make "
                "the same calls in the same order"
            )
        return stuff

    def close(self) -> None:
        self._connection.close()

    def _gone(self, error: Exception) -> errors.DistributedError:
        return errors.DistributedError(
            f"rank {self._rank} is gone: its process has ended or closed its DistributedContext, or its host "
            "cannot be "
            f"reached ({error!r}); see the log of rank {self._rank}"
        )


def _encode(kind: str, stuff: Any) -> bytes:
    import pickle

    return pickle.dumps((kind, stuff), protocol=pickle.HIGHEST_PROTOCOL)


def _read(connection: socket.socket, length: int) -> bytes:
    pieces: list[bytes] = []
    left = length
    while left > 0:
        piece = connection.recv(min(left, 1 << 20))
        if not piece:
            raise EOFError("the connection was closed")
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _proof(secret: bytes, who: bytes, *parts: bytes) -> bytes:
    import hmac

    return hmac.new(secret, b"determined " + who + b" " + b"".join(parts), "sha256").digest()


def _examine(connection: socket.socket, secret: bytes) -> int:
    """Lets a newcomer prove that it knows the secret, proves the same to it, and gives its rank."""
    import hmac

    connection.settimeout(PROVE_WITHIN_S)
    challenge = os.urandom(CHALLENGE)
    connection.sendall(challenge)
    theirs = _read(connection, _RANK.size + CHALLENGE + PROOF)
    rank, counter, proof = (
        theirs[: _RANK.size],
        theirs[_RANK.size : _RANK.size + CHALLENGE],
        theirs[_RANK.size + CHALLENGE :],
    )
    if not hmac.compare_digest(proof, _proof(secret, b"worker", rank, challenge, counter)):
        raise ValueError("it does not know the secret")
    connection.sendall(_proof(secret, b"chief", rank, challenge, counter))
    return _RANK.unpack(rank)[0]


def _prove(connection: socket.socket, secret: bytes, rank: int) -> None:
    import hmac

    # The chief examines one newcomer at a time.
    connection.settimeout(MEET_WITHIN_S)
    challenge = _read(connection, CHALLENGE)
    packed, counter = _RANK.pack(rank), os.urandom(CHALLENGE)
    connection.sendall(packed + counter + _proof(secret, b"worker", packed, challenge, counter))
    proof = _read(connection, PROOF)
    if not hmac.compare_digest(proof, _proof(secret, b"chief", packed, challenge, counter)):
        raise errors.DistributedError(
            f"rank {rank} has reached something that is not rank 0 of its training: another program uses the "
            "port"
        )


def _listen(address: Address) -> socket.socket:
    if isinstance(address, str):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
        return listener
    host, port = address
    try:
        if host == "" and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=socket.SOMAXCONN
            )
        return socket.create_server((host, port), backlog=socket.SOMAXCONN)
    except OSError as error:
        raise errors.DistributedError(
            f"rank 0 cannot listen on port {port} for the other processes: {error}; another program may use "
            "it "
            "(pub_port or INTER_TRAIN_PROCESS_COMM_PORT_1 choose another)"
        ) from error


def _reach(address: Address) -> socket.socket:
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address)
        except BaseException:
            connection.close()
            raise
        return connection
    return socket.create_connection(address, timeout=PROVE_WITHIN_S)


def _shown(address: Address) -> str:
    return address if isinstance(address, str) else f"{address[0]}, port {address[1]}"


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, ..." if len(ranks) > 8 else shown


def local_secret(port: int, *, is_chief: bool) -> bytes:
    """A secret that the processes of one user on one machine share: a file that only they can read.

    The chief makes it anew, before it listens; the others read it, and fail with OSError until it exists.
    """
    import tempfile

    directory = os.path.join(tempfile.gettempdir(), f"determined-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise errors.DistributedError(
            f"{directory!r} must be a directory that only this user can use: the processes of a training "
            "share a secret "
            "in it; remove it, or set TMPDIR to another directory"
        )
    path = os.path.join(directory, f"meeting-{port}")
    if is_chief:
        secret = os.urandom(32)
        temporary = f"{path}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(secret)
        os.replace(temporary, path)
        return secret
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read()
