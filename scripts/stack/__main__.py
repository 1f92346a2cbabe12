"""Commands ``python -m scripts.stack up | status | logs | cli | down``, each with a target in the Makefile."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from scripts.stack.compose import DOCKER, ROOT, Service, links, read_services, settings
from scripts.stack.stack import Stack, choices_of, say
from scripts.stack.supervision import StackError

EXAMPLE_DAG = "example_resume_flights"
INTERRUPTED = 130


def main() -> int:
    """Run one of the commands and return its exit status."""
    arguments = _arguments()
    try:
        return _run(arguments)
    except (StackError, ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"{arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("\nInterrupted. The started services keep running: make up waits for the others, make down stops all.")
        return INTERRUPTED


def _arguments() -> argparse.Namespace:
    # Each command has its options itself: what follows cli is for Airflow, also where it looks like one of them.
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--folder", type=Path, default=ROOT / ".stack", help="folder of the processes")
    parser = argparse.ArgumentParser(prog="python -m scripts.stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "status", "down"):
        commands.add_parser(name, parents=[folder], allow_abbrev=False)
    logs = commands.add_parser("logs", parents=[folder], allow_abbrev=False)
    logs.add_argument("--service", help="show the log of this service only")
    logs.add_argument("--lines", type=int, default=20, help="number of lines of each log")
    cli = commands.add_parser("cli", parents=[folder], allow_abbrev=False)
    cli.add_argument("airflow", nargs=argparse.REMAINDER, help="arguments of the command airflow")
    return parser.parse_args()


def _run(arguments: argparse.Namespace) -> int:
    """Run a command and return its exit status."""
    folder = arguments.folder.resolve()
    # The folder stores the settings of up, so that later commands need no environment variables.
    choices = {**settings(), **choices_of(folder)}
    services = read_services(folder, choices)
    stack = Stack(folder, services, choices, prepare)
    if arguments.command == "cli":
        return _run_airflow(folder, services, arguments.airflow)
    if arguments.command == "up":
        return int(not _up(stack, services, choices))
    if arguments.command == "status":
        return int(not stack.status())
    if arguments.command == "logs":
        stack.logs(arguments.service, arguments.lines)
    else:
        stack.down()
    return 0


def _run_airflow(folder: Path, services: list[Service], arguments: list[str]) -> int:
    """Run a command of Airflow with the database, the store and the credentials of the scheduler."""
    if not folder.exists():
        raise StackError(f"expected the services in {folder}, found none; run make up first")
    environment = _scheduler(services).environment
    done = subprocess.run(["airflow", *arguments], env=os.environ | environment, cwd=folder, check=False)
    return done.returncode


def _scheduler(services: list[Service]) -> Service:
    return next(service for service in services if service.name == "scheduler")


def prepare(folder: Path) -> None:
    """Create the links and the secrets in a folder, which replace the image and the mounts of a container."""
    for link, target in links(folder).items():
        link.symlink_to(target)
    subprocess.run(["sh", str(DOCKER / "make_secrets"), str(folder / "secrets")], check=True)


def _up(stack: Stack, services: list[Service], choices: Mapping[str, str]) -> bool:
    began = time.monotonic()
    if not stack.up():
        return False
    say(f"All services are healthy after {time.monotonic() - began:.0f} s.\n")
    _show_addresses(stack.folder, services, choices)
    return True


def _show_addresses(folder: Path, services: list[Service], choices: Mapping[str, str]) -> None:
    page = f"http://localhost:{choices['AIRFLOW_PORT']}"
    say(f"Airflow        {page}  user {choices['AIRFLOW_USER']}, password in {folder}/secrets/admin_password")
    say(f"Example Dag    {page}/dags/{EXAMPLE_DAG}")
    for service in services:
        if service.port and service.name.startswith("spark"):
            say(f"{service.name:<14} http://localhost:{service.port}")
    say(f"PostgreSQL     localhost:{choices['POSTGRES_PORT']}, database airflow, user airflow")
    say(f"S3 store       http://localhost:{choices['STORE_PORT']}, bucket {choices['STORE_BUCKET']}")
    dags = Path(_scheduler(services).environment["AIRFLOW__CORE__DAGS_FOLDER"]).resolve()
    say(f"Your own Dags  {dags}, read every few seconds")
    say(f"Data, logs     {folder}/data, {folder}/logs")
    say(
        'Command line   make cli ARGS="jobs", for airflow statecheck with the database and the store of this '
        "installation"
    )
    say("Next: make status, make logs, make down; docs/operate/docker.md has experiments with failures.")


if __name__ == "__main__":
    sys.exit(main())
