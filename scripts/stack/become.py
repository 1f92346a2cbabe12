"""Become a service: ``become.py NAME`` in the folder of the services, as supervisord starts it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(name: str) -> None:
    """Take a service's environment and run its command in the place of this process."""
    service = json.loads(Path("services.json").read_text())[name]
    os.environ["PATH"] = service["environment"]["PATH"]
    os.execvpe(service["command"][0], service["command"], service["environment"])


if __name__ == "__main__":
    main(*sys.argv[1:])
