"""One of two members of a gang: finds the chief through the rendezvous and sends it a greeting over TCP."""

import os
import socket
import time

import determined as det

info = det.get_cluster_info()
addresses, rank = info.container_addrs, info.container_rank
port = int(os.environ["INTER_TRAIN_PROCESS_COMM_PORT_1"])
print(f"rank {rank} of {len(addresses)} with slots {info.container_slot_counts} on {info.agent_id}", flush=True)
assert len(addresses) == 2, addresses
if rank == 0:
    with socket.create_server(("", port)) as server:
        server.settimeout(60)
        connection, _ = server.accept()
        with connection:
            print(f"the chief received: {connection.recv(100).decode()}", flush=True)
            connection.sendall(b"welcome")
else:
    for _ in range(600):
        try:
            connection = socket.create_connection((addresses[0], port), timeout=1)
            break
        except OSError:
            # The chief may not listen yet; the two start at the same time, not in order.
            time.sleep(0.1)
    else:
        raise SystemExit(f"the chief does not answer at {addresses[0]}:{port}")
    with connection:
        connection.sendall(f"hello from rank {rank}".encode())
        print(f"the member received: {connection.recv(100).decode()}", flush=True)
