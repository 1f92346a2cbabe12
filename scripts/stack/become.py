"""Start of a service under supervisord: ``become.py NAME`` in the folder of the services."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

MARKS = ("STATECHECK_STACK", "STATECHECK_SERVICE")


def main(name: str) -> None:
    """Replace this process by the command of a service, with its environment."""
    service = json.loads(Path("services.json").read_text())[name]
    kill_remaining(service["environment"])
    os.environ["PATH"] = service["environment"]["PATH"]
    os.execvpe(service["command"][0], service["command"], service["environment"])


def kill_remaining(environment: dict[str, str]) -> None:
    """
    Kill the remaining child processes of an earlier start of the service, for instance its tasks and drivers.

    A container ends with its first process. Without containers, remaining processes would hold the locks of a dead
    scheduler or the shared memory of a dead PostgreSQL.
    """
    marks = {name: environment[name] for name in MARKS}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().items() >= marks.items():
                process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
