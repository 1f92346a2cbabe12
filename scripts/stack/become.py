"""Become a service: ``become.py FOLDER NAME``, as supervisord starts it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(folder: str, name: str) -> None:
    """Take a service's environment and run its command in the place of this process."""
    service = json.loads(Path(folder, "services.json").read_text())[name]
    os.chdir(folder)
    os.environ["PATH"] = service["environment"]["PATH"]
    os.execvpe(service["command"][0], service["command"], service["environment"])


if __name__ == "__main__":
    main(*sys.argv[1:])
