"""The proxy: bytes pass unchanged, and the weather does to them what it describes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from proxy import BLACKHOLE, FINE, HALF_OPEN_DOWN, HALF_OPEN_UP, Proxy, Weather
from waiting import wait_for


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(one: socket.socket) -> None:
        with one:
            try:
                while piece := one.recv(65536):
                    one.sendall(piece)
            except OSError:
                return

    def serve() -> None:
        while True:
            try:
                one, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(one,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield int(listening.getsockname()[1])
    # A blocked accept is not ended by closing alone.
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(timeout=10)


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy("test", echo, seed=1) as proxy:
        yield proxy


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=20)


def read(one: socket.socket, count: int) -> bytes:
    """So many bytes, or what came before the end."""
    got = b""
    while len(got) < count:
        piece = one.recv(count - len(got))
        if not piece:
            break
        got += piece
    return got


@pytest.mark.parametrize("weather", [FINE, Weather(latency=0.02), Weather(loss=0.2)], ids=["fine", "latency", "loss"])
def test_bytes_arrive_whole_and_in_order(proxy: Proxy, weather: Weather) -> None:
    proxy.set(weather)
    sent = bytes(range(256)) * 400
    with connected(proxy) as one:
        one.sendall(sent)
        assert read(one, len(sent)) == sent


@pytest.mark.parametrize(
    "weather", [BLACKHOLE, HALF_OPEN_UP, HALF_OPEN_DOWN], ids=["both ways", "towards the server", "from the server"]
)
def test_what_is_held_arrives_when_the_weather_clears(proxy: Proxy, weather: Weather) -> None:
    with connected(proxy) as one:
        one.sendall(b"before")
        assert read(one, 6) == b"before"
        proxy.set(weather)
        one.sendall(b"during")
        one.settimeout(0.3)
        with pytest.raises(TimeoutError):
            one.recv(1)
        proxy.set(FINE)
        one.settimeout(20)
        assert read(one, 6) == b"during"


def test_a_connection_made_in_a_black_hole_works_afterwards(proxy: Proxy) -> None:
    proxy.set(BLACKHOLE)
    with connected(proxy) as one:
        one.sendall(b"early")
        proxy.set(FINE)
        assert read(one, 5) == b"early"


def test_connections_are_reset_on_demand_and_at_intervals(proxy: Proxy) -> None:
    with connected(proxy) as one:
        one.sendall(b"x")
        assert read(one, 1) == b"x"
        proxy.reset_all()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
    proxy.set(Weather(reset_every=0.05))
    with pytest.raises(ConnectionResetError), connected(proxy) as one:
        one.recv(1)
    wait_for("the resets to be counted", lambda: proxy.traffic.resets >= 2, within=10)


def test_new_connections_can_be_refused(proxy: Proxy) -> None:
    proxy.set(Weather(refuse=True))
    # It may come while the connection is still being made.
    with pytest.raises(ConnectionResetError), connected(proxy) as one:
        one.recv(1)


def test_no_server_behind_it_is_a_broken_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = int(gone.getsockname()[1])
    with Proxy("test", port) as proxy, pytest.raises(ConnectionResetError), connected(proxy) as one:
        one.recv(1)
