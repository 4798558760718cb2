# Runs a file apart from the main module, which is a program's later, and notes what every start of the interpreter has.
import sys

_names = {
    "AT_START": list(sys.modules),
    "OF_MAIN": [name for name in globals() if name.startswith("__")],
    "__name__": "warm_start",
}
with open(sys.argv[1], "rb") as _file:
    exec(compile(_file.read(), sys.argv[1], "exec"), _names)
_names["serve"](sys.argv[2:])
