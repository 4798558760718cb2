"""The program of the tasks behind the proxy that figures of services measure: started with its ports as arguments.

It needs nothing but Python, sends bodies from memory by `sendfile`, and so costs as little as a program can: what a
figure shows is the way to it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

# What bodies are made of.
PIECE = 16 << 20


def serve(connection: socket.socket, piece: int) -> None:
    """Answers requests until the client has gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = bytearray(1 << 20)
    received = b""
    while True:
        while b"\r\n\r\n" not in received:
            more = connection.recv(65536)
            if not more:
                return
            received += more
        head, _, received = received.partition(b"\r\n\r\n")
        first, *fields = head.split(b"\r\n")
        pairs = (field.partition(b":") for field in fields)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if headers.get(b"upgrade", b"").lower() == b"websocket":
            # Whatever the key: its clients do not check the answer.
            connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            while connection.recv(4096):
                pass
            return
        left = int(headers.get(b"content-length", b"0")) - len(received)
        while left > 0:
            count = connection.recv_into(buffer, min(left, len(buffer)))
            if not count:
                return
            left -= count
        received = b""
        # GET …?bytes=N
        size = int(first.split(b" ")[1].partition(b"bytes=")[2] or 2)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while size > 0:
            size -= os.sendfile(connection.fileno(), piece, 0, min(size, PIECE))


def handle(connection: socket.socket, piece: int) -> None:
    with connection:
        try:
            serve(connection, piece)
        except OSError:
            # The client has gone.
            pass


def main() -> None:
    piece = os.memfd_create("piece")
    os.write(piece, b"x" * PIECE)
    # Hundreds of them wait in web sockets.
    threading.stack_size(256 << 10)
    server = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024)
    print("listening", flush=True)
    while True:
        connection, _ = server.accept()
        threading.Thread(target=handle, args=(connection, piece), daemon=True).start()


main()
