"""A TCP proxy between two parties, whose network gets as bad as a scenario sets it, at any moment.

A `Proxy` listens on a port of its own and passes on to one address. Its `Weather` holds for every connection at once,
old and new. Bytes are never changed and never left out of the middle of a stream, since TCP does not do that either:
what a network loses arrives late or not at all, and then the connection is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

# Bytes read at once. Small, so that loss strikes in the middle of messages.
PIECE = 16 * 1024
# How often a held piece looks whether the weather has changed.
LOOK_EVERY = 0.02


@dataclass(frozen=True)
class Weather:
    """How bad a network is. The default is a good one."""

    # Seconds each piece is under way, in each direction.
    latency: float = 0.0
    # Share of pieces that are lost and sent again by TCP: a loss costs 0.2 s, each further one of a piece twice that.
    loss: float = 0.0
    # Every connection is reset (RST) after so many seconds; None = never.
    reset_every: float | None = None
    # Nothing passes towards the server, towards the client, and no connection is made; what is under way waits.
    hold_up: bool = False
    hold_down: bool = False
    # New connections are refused (reset at once).
    refuse: bool = False


FINE = Weather()
BLACKHOLE = Weather(hold_up=True, hold_down=True)
HALF_OPEN_UP = Weather(hold_up=True)
HALF_OPEN_DOWN = Weather(hold_down=True)


@dataclass
class Traffic:
    """What has passed, for reports."""

    connections: int = 0
    resets: int = 0
    up_bytes: int = 0
    down_bytes: int = 0


class Proxy:
    """One proxy, on a thread of its own. Use it with `with`."""

    def __init__(self, name: str, target_port: int, seed: int = 0, target_host: str = "127.0.0.1") -> None:
        self.name = name
        self.traffic = Traffic()
        self._target = (target_host, target_port)
        self._weather = FINE
        self._random = random.Random(f"{seed} {name}")
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, name=f"proxy {name}", daemon=True)
        self._stop = asyncio.Event()

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def weather(self) -> Weather:
        return self._weather

    def set(self, weather: Weather) -> None:
        """The weather from now on."""
        self._weather = weather

    def change(self, **what: Any) -> None:
        """The weather from now on, as it is but for `what`."""
        self._weather = replace(self._weather, **what)

    def reset_all(self) -> None:
        """Resets every connection once."""
        self._loop.call_soon_threadsafe(self._reset_now)

    def close(self) -> None:
        """Ends it and every connection."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout=10)
        self._listening.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._run())
        finally:
            self._loop.close()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listening, limit=PIECE)
        await self._stop.wait()
        server.close()
        self._reset_now()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reset_now(self) -> None:
        for writer in list(self._writers):
            self.traffic.resets += 1
            _reset(writer)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.traffic.connections += 1
        self._writers.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            if self._weather.refuse:
                _reset(writer)
                return
            while self._weather.hold_up:
                await asyncio.sleep(LOOK_EVERY)
            back, onward = await asyncio.open_connection(*self._target, limit=PIECE)
            self._writers.add(onward)
            both = [
                asyncio.create_task(self._pass(reader, onward, up=True)),
                asyncio.create_task(self._pass(back, writer, up=False)),
                asyncio.create_task(self._resets(writer, onward)),
            ]
            try:
                # A side that has ended ends the other once what was under way has arrived: no half-closed sockets here.
                await asyncio.wait(both[:2], return_when=asyncio.ALL_COMPLETED)
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        except OSError:
            # The other end is not there: to the caller the connection breaks.
            _reset(writer)
        finally:
            for each in (writer, onward):
                if each is not None:
                    self._writers.discard(each)
                    with contextlib.suppress(OSError, RuntimeError):
                        each.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        """Passes bytes on as late as the weather wants; a second task sends, so that latency is no bottleneck."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)
        sender = asyncio.create_task(self._send(under_way, writer, up=up))
        try:
            while True:
                try:
                    piece = await reader.read(PIECE)
                except OSError:
                    _reset(writer)
                    return
                await under_way.put((time.monotonic() + self._lateness(), piece))
                if not piece:
                    await sender
                    return
                if sender.done():
                    return
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    def _lateness(self) -> float:
        weather = self._weather
        late, again = weather.latency, 0.2
        while weather.loss and self._random.random() < weather.loss and again < 2:
            late, again = late + again, again * 2
        return late

    async def _send(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        while True:
            due, piece = await under_way.get()
            left = due - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
            while self._weather.hold_up if up else self._weather.hold_down:
                await asyncio.sleep(LOOK_EVERY)
            try:
                if not piece:
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                writer.write(piece)
                await writer.drain()
            except (OSError, RuntimeError):
                return
            if up:
                self.traffic.up_bytes += len(piece)
            else:
                self.traffic.down_bytes += len(piece)

    async def _resets(self, *writers: asyncio.StreamWriter) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            every = self._weather.reset_every
            if every is not None and time.monotonic() - began >= every:
                self.traffic.resets += 1
                for writer in writers:
                    _reset(writer)
                return


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection with RST: what has not arrived is lost."""
    found = writer.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
