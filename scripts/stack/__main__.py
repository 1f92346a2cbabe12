"""``python -m scripts.stack up | status | logs | down``; the Makefile has a target for each."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from scripts.stack.compose import DOCKER, ROOT, Service, links, read_services, settings
from scripts.stack.stack import Stack, choices_of, say
from scripts.stack.supervision import StackError

A_DAG = "example_resume_flights"
INTERRUPTED = 130


def main() -> int:
    """Run one of the commands and return its exit status."""
    chosen = _arguments()
    try:
        return 0 if _run(chosen) else 1
    except (StackError, ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"{chosen.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("\nInterrupted. What has started goes on: make up waits for the rest of it, make down ends it.")
        return INTERRUPTED


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.stack", description=__doc__)
    parser.add_argument("command", choices=["up", "status", "logs", "down"])
    parser.add_argument("--folder", type=Path, default=ROOT / ".stack", help="where the processes live")
    parser.add_argument("--service", help="whose log, all by default")
    parser.add_argument("--lines", type=int, default=20, help="how many lines of each log")
    return parser.parse_args()


def _run(chosen: argparse.Namespace) -> bool:
    folder = chosen.folder.resolve()
    # A folder keeps its choices: the shell that asks for the status need not repeat them.
    choices = {**settings(), **choices_of(folder)}
    services = read_services(folder, choices)
    stack = Stack(folder, services, choices, prepare)
    if chosen.command == "up":
        return _up(stack, services, choices)
    if chosen.command == "status":
        return stack.status()
    if chosen.command == "logs":
        stack.logs(chosen.service, chosen.lines)
    else:
        stack.down()
    return True


def prepare(folder: Path) -> None:
    """Put into a folder what a container has of its image and its mounts, and the secrets."""
    for link, target in links(folder).items():
        link.symlink_to(target)
    subprocess.run(["sh", str(DOCKER / "make_secrets"), str(folder / "secrets")], check=True)


def _up(stack: Stack, services: list[Service], choices: Mapping[str, str]) -> bool:
    began = time.monotonic()
    if not stack.up():
        return False
    say(f"All are healthy after {time.monotonic() - began:.0f} s.\n")
    _show_where(stack.folder, services, choices)
    return True


def _show_where(folder: Path, services: list[Service], choices: Mapping[str, str]) -> None:
    page = f"http://localhost:{choices['AIRFLOW_PORT']}"
    say(f"Airflow        {page}  user {choices['AIRFLOW_USER']}, password in {folder}/secrets/admin_password")
    say(f"A Dag          {page}/dags/{A_DAG}")
    for service in services:
        if service.port and service.name.startswith("spark"):
            say(f"{service.name:<14} http://localhost:{service.port}")
    say(f"PostgreSQL     localhost:{choices['POSTGRES_PORT']}, database airflow, user airflow")
    say(f"S3 store       http://localhost:{choices['STORE_PORT']}, bucket {choices['STORE_BUCKET']}")
    say(f"Data, logs     {folder}/data, {folder}/logs")
    say("make status, make logs, make down; docs/docker.md says what to break.")


if __name__ == "__main__":
    sys.exit(main())
