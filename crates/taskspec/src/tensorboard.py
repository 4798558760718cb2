"""Starts TensorBoard for one reader: the proxy of the master, which knows the key.

What TensorBoard shows was written by other users. It reads it with the rights of its owner, so it has no part that opens
files which that data names, or runs programs that it contains.
"""

import hmac
import importlib
import os
import sys

from absl import app
from tensorboard import version

# `from tensorboard import program` gives a stand-in, whose classes others do not see.
program = importlib.import_module("tensorboard.program")

KEY_FILE = "/run/determined/tensorboard/key"
# The header with the key, as WSGI names it.
KEY_HEADER = "HTTP_X_DET_SERVICE_KEY"
# "projector" opens the files that a file among the data names; "beholder", of older versions, unpickles.
LEFT_OUT = ("projector", "beholder")
REFUSAL = b"This TensorBoard answers the proxy of its master only.\n"

with open(KEY_FILE) as file:
    KEY = file.read().strip().encode()


def is_for(environ):
    """Whether the proxy has sent this request, for a part that may answer."""
    if any("/plugin/%s/" % name in environ.get("PATH_INFO", "") for name in LEFT_OUT):
        return False
    shown = environ.get(KEY_HEADER, "").encode("latin-1", "replace")
    return hmac.compare_digest(shown, KEY)


class Server(program.WerkzeugServer):
    def __init__(self, app, flags):
        def guarded(environ, start_response):
            if is_for(environ):
                return app(environ, start_response)
            length = str(len(REFUSAL))
            start_response("403 Forbidden", [("Content-Type", "text/plain"), ("Content-Length", length)])
            return [REFUSAL]

        super().__init__(guarded, flags)

    def print_serving_message(self):
        # Its own message would name the address at which only the proxy reaches it.
        task = os.environ["DET_TASK_ID"]
        where = "/proxy/%s/ of the master; `det tensorboard open %s` opens it" % (task, task)
        print(
            "TensorBoard %s is running at %s (Press CTRL+C to quit)" % (version.VERSION, where),
            file=sys.stderr,
            flush=True,
        )


def plugins():
    """What TensorBoard consists of, without the parts that are left out."""
    every = importlib.import_module("tensorboard.default").get_plugins()
    return [part for part in every if getattr(part, "plugin_name", None) not in LEFT_OUT]


def main():
    try:
        importlib.import_module("tensorboard.main_lib").global_init()
    except ImportError:
        pass  # An older version, which needs no such call.
    board = program.TensorBoard(plugins=plugins(), server_class=Server)
    app.run(board.main, flags_parser=board.configure)


if __name__ == "__main__":
    main()
