"""Hangs, and does not listen when asked to end."""

import signal
import threading

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: print("not listening", flush=True))
print("hanging", flush=True)
while True:
    threading.Event().wait(3600)
