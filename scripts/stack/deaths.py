"""Write down each service that ended by itself, with the end of its log: a listener of supervisord."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from supervisor import childutils

_LINES = 15


def main(folder: str) -> None:
    """Listen until supervisord ends."""
    logs = Path(folder, "logs")
    while True:
        headers, payload = childutils.listener.wait(sys.stdin, sys.stdout)
        told = childutils.get_headers(payload)
        if told.get("expected") != "1":
            with Path(folder, "deaths.txt").open("a") as deaths:
                deaths.write(_obituary(headers["eventname"], told, logs))
        childutils.listener.ok(sys.stdout)


def end_of(log: Path, lines: int = _LINES) -> str:
    """Return the last lines of a log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "".join(f"    {line}\n" for line in text.splitlines()[-lines:])


def _obituary(event: str, told: dict[str, str], logs: Path) -> str:
    name, when = told["processname"], datetime.now(UTC).strftime("%H:%M:%S")
    how = "could not be started" if event.endswith("FATAL") else f"ended by itself as process {told['pid']}"
    return f"{when} UTC {name} {how}; the end of its log:\n{end_of(logs / f'{name}.log')}"


if __name__ == "__main__":
    main(sys.argv[1])
