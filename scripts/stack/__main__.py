"""``python -m scripts.stack up | status | logs | down``; the Makefile has a target for each."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from scripts.stack.compose import DOCKER, LOOPBACK, ROOT, Service, links, read_services, settings
from scripts.stack.deaths import end_of
from scripts.stack.supervision import Process, Supervisor

LIMIT_SECONDS = 300
POLL_SECONDS = 0.5
A_DAG = "example_resume_flights"


def main() -> int:
    """Run one of the commands and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.stack", description=__doc__)
    parser.add_argument("command", choices=["up", "status", "logs", "down"])
    parser.add_argument("--folder", type=Path, default=ROOT / ".stack", help="where the processes live")
    parser.add_argument("--service", help="whose log, all by default")
    parser.add_argument("--lines", type=int, default=20, help="how many lines of each log")
    chosen = parser.parse_args()
    stack = Stack(chosen.folder.resolve())
    if chosen.command == "logs":
        return stack.logs(chosen.service, chosen.lines)
    done: int = getattr(stack, chosen.command)()
    return done


class Stack:
    """The services in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = settings()
        self.services = read_services(folder, self.variables)
        self.supervisor = Supervisor(folder)

    def up(self) -> int:
        """Start what does not run yet, and wait until all of it is healthy."""
        if self.supervisor.is_running():
            say(f"The services of {self.folder} are running already; make status shows them, make down ends them.")
            return self.status()
        began = time.monotonic()
        self._check_folder_and_ports()
        self._prepare_folder()
        self.supervisor.launch(self.services)
        if not self._start_in_order():
            return 1
        say(f"All are healthy after {time.monotonic() - began:.0f} s.\n")
        self._show_where()
        return 0

    def status(self) -> int:
        """Show each service and each that ended by itself; the exit status tells whether all are healthy."""
        if not self.supervisor.is_running():
            say(f"Nothing runs in {self.folder}; make up starts it.")
            return 1
        states = [(service, self.supervisor.process(service.name)) for service in self.services]
        told = [_health(service, process) for service, process in states]
        for (service, process), health in zip(states, told, strict=True):
            say(f"{service.name:<16} {process.state:<9} {process.pid or '':<8} {health}")
        deaths = self.folder / "deaths.txt"
        if deaths.exists():
            say(f"\n{deaths.read_text()}")
        return 0 if all(health in ("healthy", "done") for health in told) else 1

    def logs(self, only: str | None, lines: int) -> int:
        """Show the end of each log."""
        for service in self.services:
            log = self.supervisor.log(service.name)
            if only in (None, service.name) and log.exists():
                say(f"{service.name}: {log}\n{end_of(log, lines)}")
        return 0

    def down(self) -> int:
        """End everything and remove the folder."""
        if self.supervisor.is_running():
            for service in reversed(self.services):
                self.supervisor.stop(service.name)
        self.supervisor.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        say(f"Nothing of {self.folder} is left.")
        return 0

    def _check_folder_and_ports(self) -> None:
        if self.folder.exists():
            sys.exit(f"up: expected no folder {self.folder}, found what an earlier start has left; run make down first")
        for name, value in self.variables.items():
            if name.endswith("_PORT") and _is_taken(int(value)):
                sys.exit(f"up: expected port {value} to be free, found it in use; choose another: {name}=… make up")

    def _prepare_folder(self) -> None:
        self.folder.mkdir(mode=0o711, parents=True)  # PostgreSQL's user passes through
        for link, target in links(self.folder).items():
            link.symlink_to(target)
        subprocess.run(["sh", str(DOCKER / "make_secrets"), str(self.folder / "secrets")], check=True)

    def _start_in_order(self) -> bool:
        waiting, ready = list(self.services), set[str]()
        deadline = time.monotonic() + LIMIT_SECONDS
        started: list[Service] = []
        while len(ready) < len(self.services):
            for service in [s for s in waiting if ready.issuperset(s.needs)]:
                self.supervisor.start(service.name)
                waiting.remove(service)
                started.append(service)
            for service in [s for s in started if s.name not in ready]:
                process = self.supervisor.process(service.name)
                if _health(service, process) in ("healthy", "done"):
                    say(f"{service.name:<16} {'done' if service.is_job else 'healthy'}")
                    ready.add(service.name)
                elif process.state in ("FATAL", "EXITED") or time.monotonic() > deadline:
                    self._name_the_dead(service, process)
                    return False
            time.sleep(POLL_SECONDS)
        return True

    def _name_the_dead(self, service: Service, process: Process) -> None:
        log = self.supervisor.log(service.name)
        say(f"{service.name} is not healthy: {process.state}, {process.told}; the end of {log}:\n{end_of(log)}")
        say("make logs shows more, make down cleans up.")

    def _show_where(self) -> None:
        variables = self.variables
        page = f"http://localhost:{variables['AIRFLOW_PORT']}"
        say(
            f"Airflow        {page}  user {variables['AIRFLOW_USER']}, password in {self.folder}/secrets/admin_password"
        )
        say(f"A Dag          {page}/dags/{A_DAG}")
        for service in self.services:
            if service.port and service.name.startswith("spark"):
                say(f"{service.name:<14} http://localhost:{service.port}")
        say(f"PostgreSQL     localhost:{variables['POSTGRES_PORT']}, database airflow, user airflow")
        say(f"S3 store       http://localhost:{variables['STORE_PORT']}, bucket {variables['STORE_BUCKET']}")
        say(f"Data, logs     {self.folder}/data, {self.folder}/logs")
        say("make status, make logs, make down; docs/docker.md says what to break.")


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def _health(service: Service, process: Process) -> str:
    if service.is_job:
        return "done" if process.state == "EXITED" and process.status == 0 else process.told
    if process.state != "RUNNING":
        return process.told
    done = subprocess.run(
        service.check, env=service.environment, capture_output=True, text=True, timeout=30, check=False
    )
    return "healthy" if done.returncode == 0 else f"unhealthy: {(done.stdout + done.stderr).strip()[-300:]}"


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
