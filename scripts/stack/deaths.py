"""Event listener of supervisord that records unexpected exits of services with the last lines of their logs."""

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
        details = childutils.get_headers(payload)
        # Only a job may exit on its own.
        if details.get("expected") != "1" or details["processname"] not in jobs:
            with Path("deaths.txt").open("a") as deaths:
                deaths.write(_report(headers["eventname"], details))
        childutils.listener.ok(sys.stdout)


def end_of(log: Path, lines: int = _LINES) -> str:
    """Return the last lines of a log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "".join(f"    {line}\n" for line in text.splitlines()[-lines:])


def _report(event: str, details: dict[str, str]) -> str:
    name, time = details["processname"], datetime.now(UTC).strftime("%H:%M:%S")
    what = "could not be started" if event.endswith("FATAL") else f"exited unexpectedly as process {details['pid']}"
    return f"{time} UTC {name} {what}; last lines of its log:\n{end_of(Path('logs', f'{name}.log'))}"


if __name__ == "__main__":
    main()
