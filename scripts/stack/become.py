"""Become a service: ``become.py NAME`` in the folder of the services, as supervisord starts it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

MARKS = ("STATECHECK_STACK", "STATECHECK_SERVICE")


def main(name: str) -> None:
    """Take a service's environment and run its command in the place of this process."""
    service = json.loads(Path("services.json").read_text())[name]
    end_what_is_left(service["environment"])
    os.environ["PATH"] = service["environment"]["PATH"]
    os.execvpe(service["command"][0], service["command"], service["environment"])


def end_what_is_left(environment: dict[str, str]) -> None:
    """
    Kill what an earlier process of the service has left, its tasks and drivers for instance.

    A container ends as a whole when its first process does. What lived on here would hold locks of a dead scheduler, or
    the memory of a dead PostgreSQL.
    """
    marks = {name: environment[name] for name in MARKS}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().items() >= marks.items():
                process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
