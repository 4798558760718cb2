"""A member of a gang: the chief keeps the ledger (`ledger.py`), the others run until it stops, and talk to it.

Each other member holds a TCP connection to the chief at the address of the rendezvous, and sends a byte now and then. A
member whose chief is gone ends with an error, as training code does.
"""

from __future__ import annotations

import os
import pathlib
import socket
import sys
import threading
import time

import determined
import ledger

PORT = int(os.environ["INTER_TRAIN_PROCESS_COMM_PORT_1"])
STOP = pathlib.Path(os.environ["CHAOS_DIR"]) / "stop"
# How long members look for each other.
PATIENCE = 60.0


def chief() -> int:
    server = socket.create_server(("", PORT))
    server.settimeout(PATIENCE)
    member, _ = server.accept()

    def listen() -> None:
        while member.recv(100):
            pass
        if not STOP.exists():
            print("the other member is gone", flush=True)
            os._exit(7)

    threading.Thread(target=listen, daemon=True).start()
    return ledger.main()


def other(address: str) -> int:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection = socket.create_connection((address, PORT), timeout=5)
            break
        except OSError:
            # The two start at the same time, not in order.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    with connection:
        while not STOP.exists():
            connection.sendall(b".")
            time.sleep(0.2)
    return 0


if __name__ == "__main__":
    info = determined.get_cluster_info()
    assert info is not None and len(info.container_addrs) == 2, info
    sys.exit(chief() if info.container_rank == 0 else other(info.container_addrs[0]))
