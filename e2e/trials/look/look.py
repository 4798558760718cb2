"""Prints as one line of JSON what a task sees: environment, user, directories, files of the run directory."""

import json
import os
import pathlib

info = {}
for file in sorted(pathlib.Path("/run/determined/info").glob("*.json")):
    info[file.stem] = json.loads(file.read_text())
seen = {
    "environment": dict(os.environ),
    "uid": os.getuid(),
    "gid": os.getgid(),
    "cwd": os.getcwd(),
    "files": sorted(str(path.relative_to(".")) for path in pathlib.Path(".").rglob("*") if path.is_file()),
    "model": sorted(path.name for path in pathlib.Path("/run/determined/train/model").iterdir()),
    "info": info,
    "root": sorted(os.listdir("/")),
}
print("seen: " + json.dumps(seen), flush=True)
