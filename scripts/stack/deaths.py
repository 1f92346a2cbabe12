"""Write down each service that ended by itself, with the end of its log: a listener of supervisord in its folder."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from supervisor import childutils

_LINES = 15


def main() -> None:
    """Listen until supervisord ends."""
    services = json.loads(Path("services.json").read_text())
    jobs = {name for name, service in services.items() if not service["check"]}
    while True:
        headers, payload = childutils.listener.wait(sys.stdin, sys.stdout)
        told = childutils.get_headers(payload)
        if told.get("expected") != "1" or told["processname"] not in jobs:  # a service never ends well by itself
            with Path("deaths.txt").open("a") as deaths:
                deaths.write(_obituary(headers["eventname"], told))
        childutils.listener.ok(sys.stdout)


def end_of(log: Path, lines: int = _LINES) -> str:
    """Return the last lines of a log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "".join(f"    {line}\n" for line in text.splitlines()[-lines:])


def _obituary(event: str, told: dict[str, str]) -> str:
    name, when = told["processname"], datetime.now(UTC).strftime("%H:%M:%S")
    how = "could not be started" if event.endswith("FATAL") else f"ended by itself as process {told['pid']}"
    return f"{when} UTC {name} {how}; the end of its log:\n{end_of(Path('logs', f'{name}.log'))}"


if __name__ == "__main__":
    main()
