"""Prints what a log must be able to hold: many lines, a progress bar, bytes that are not UTF-8, levels and ranks."""

import os
import sys

out = sys.stdout.buffer
for number in range(int(os.environ["E2E_LINES"])):
    out.write(b"line %d\n" % number)
out.write(b"\n".join([b"before the bar", b" 10%\r 50%\r100%", b"after the bar", b""]))
out.write(b"not \xff\xfe UTF-8\n")
out.write("ünïcödé ✓\n".encode())
out.write(b"WARNING: careful\n")
out.write(b"[rank=3] of rank three\n")
out.flush()
os.write(2, b"to standard error\n")
# The last line has no end.
os.write(1, b"the last words")
