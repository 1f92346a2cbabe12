"""Lifecycle of the services in a folder: start in order, status, logs and removal."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.stack.compose import LOOPBACK, Service
from scripts.stack.deaths import end_of
from scripts.stack.supervision import SERVICES, Process, StackError, Supervisor

CHOICES = "statecheck-stack.json"
"""File with the settings of ``up``; ``down`` deletes only folders that contain it."""
POLL_SECONDS = 0.5
_CHECK_SECONDS = 30
_FINE = ("healthy", "done")


class Stack:
    """
    Services of a folder.

    :param folder: Folder of the processes.
    :param services: Services in start order.
    :param choices: Settings; those whose names end with ``_PORT`` are ports that the services open.
    :param prepare: Function that creates the files that the services expect in a new folder.
    :param limit_seconds: Time limit in seconds until all services are healthy.
    """

    def __init__(
        self,
        folder: Path,
        services: list[Service],
        choices: Mapping[str, str],
        prepare: Callable[[Path], None],
        limit_seconds: float = 300,
    ) -> None:
        self.folder = folder
        self.supervisor = Supervisor(folder)
        self._services = services
        self._choices = choices
        self._prepare = prepare
        self._limit_seconds = limit_seconds

    def up(self) -> bool:
        """
        Start the services that are not running, and return whether all of them become healthy.

        :raises StackError: if the folder or a port is in use.
        """
        if not self.supervisor.is_running():
            self._check_folder()
            self._check_ports()
            self._create_folder()
            self.supervisor.launch(self._services)
        self._restart_failed()
        return self._start_in_order()

    def status(self) -> bool:
        """Print the state of each service and unexpected exits; return whether all services are healthy."""
        if not self.supervisor.is_running():
            self._say_remaining()
            return False
        healths = [self._say_state(service) for service in self._services]
        deaths = self.folder / "deaths.txt"
        if deaths.exists():
            say(f"\n{deaths.read_text()}")
        return all(health in _FINE for health in healths)

    def logs(self, only: str | None, lines: int) -> None:
        """
        Print the last lines of each log, or of one.

        :raises StackError: if there is no such service.
        """
        names = [service.name for service in self._services]
        if only and only not in names:
            raise StackError(f"expected one of {', '.join(names)}, found {only}")
        for name in [only] if only else names:
            log = self.supervisor.log(name)
            if log.exists():
                say(f"{name}: {log}\n{end_of(log, lines)}")

    def down(self) -> None:
        """
        Stop all processes and delete the folder.

        :raises StackError: if ``up`` did not create the folder, or a process does not end.
        """
        if self.folder.exists() and not _is_of_a_stack(self.folder):
            raise StackError(
                f"expected a folder that up created, found other files in {self.folder}; nothing was deleted"
            )
        if self.supervisor.is_running():
            for service in reversed(self._services):
                self.supervisor.stop(service.name)
        self.supervisor.end()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        say(f"All processes of {self.folder} were stopped, and its files were deleted.")

    def _check_folder(self) -> None:
        self.supervisor.check_folder()
        if _was_interrupted(self.folder) and not list(self.supervisor.left()):
            shutil.rmtree(self.folder)
        if self.folder.exists():
            raise StackError(
                f"expected no folder {self.folder}, found the files of an earlier start; run make down first"
            )

    def _check_ports(self) -> None:
        chosen: dict[str, str] = {}
        for name, port in self._choices.items():
            if name.endswith("_PORT"):
                problem = _port_problem(port, chosen)
                if problem:
                    raise StackError(f"{problem}; choose another: {name}=… make up")
                chosen[port] = name

    def _create_folder(self) -> None:
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o711)  # PostgreSQL's user needs access with any umask
        written = self.folder / f"{CHOICES}.new"
        written.write_text(json.dumps(dict(self._choices), indent=1))
        written.rename(self.folder / CHOICES)
        self._prepare(self.folder)

    def _restart_failed(self) -> None:
        """Start the services that failed in an earlier ``up``, except those that lost their data when they ended."""
        for service in self._services:
            process = self.supervisor.process(service.name)
            if (service.is_job or service.restarts) and _has_ended(service, process) and process.status != 0:
                self.supervisor.start(service.name)

    def _start_in_order(self) -> bool:
        waiting = {service.name: service for service in self._services}
        deadline = time.monotonic() + self._limit_seconds
        while waiting:
            for service in [s for s in waiting.values() if waiting.keys().isdisjoint(s.needs)]:
                process = self._started(service)
                health = _health(service, process)
                if health in _FINE:
                    say(f"{service.name:<16} {health}")
                    del waiting[service.name]
                elif _has_ended(service, process) or time.monotonic() > deadline:
                    self._say_failed(service, process, health)
                    return False
            time.sleep(POLL_SECONDS if waiting else 0)
        return True

    def _started(self, service: Service) -> Process:
        process = self.supervisor.process(service.name)
        if process.state != "STOPPED":
            return process
        self.supervisor.start(service.name)
        return self.supervisor.process(service.name)

    def _say_failed(self, service: Service, process: Process, health: str) -> None:
        log = self.supervisor.log(service.name)
        say(f"{service.name} is not healthy: {process.state}, {health}; last lines of {log}:\n{end_of(log)}")
        say("make logs shows more, make down cleans up.")

    def _say_state(self, service: Service) -> str:
        process = self.supervisor.process(service.name)
        health = _health(service, process)
        say(f"{service.name:<16} {process.state:<9} {process.pid or '':<8} {health}")
        return health

    def _say_remaining(self) -> None:
        remaining = len(list(self.supervisor.left()))
        if remaining:
            say(
                f"supervisord of {self.folder} has ended, {remaining} of its processes are running; make down stops "
                "them."
            )
        elif self.folder.exists():
            say(f"No processes in {self.folder}, but files of an earlier start; make down deletes them.")
        else:
            say(f"No processes in {self.folder}; make up starts them.")


def choices_of(folder: Path) -> dict[str, str]:
    """Return the settings with which a folder was created, empty for a missing folder."""
    file = folder / CHOICES
    return dict(json.loads(file.read_text())) if file.exists() else {}


def say(text: str) -> None:
    """Print a line without buffering."""
    print(text, flush=True)


def _health(service: Service, process: Process) -> str:
    if service.is_job:
        return "done" if process.state == "EXITED" and process.status == 0 else process.description
    if process.state != "RUNNING":
        return process.description or process.state.lower()
    try:
        result = subprocess.run(
            service.check, env=service.environment, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"unhealthy: no reply within {_CHECK_SECONDS} s"
    return "healthy" if result.returncode == 0 else f"unhealthy: {(result.stdout + result.stderr).strip()[-300:]}"


def _has_ended(service: Service, process: Process) -> bool:
    # A service that restarts is also EXITED for a moment.
    return process.state == "FATAL" or (process.state == "EXITED" and not service.restarts)


def _is_of_a_stack(folder: Path) -> bool:
    return not any(folder.iterdir()) or (folder / CHOICES).exists()


def _was_interrupted(folder: Path) -> bool:
    return (folder / CHOICES).exists() and not (folder / SERVICES).exists()


def _port_problem(port: str, chosen: Mapping[str, str]) -> str:
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        return f"expected a port number, found {port!r}"
    if port in chosen:
        return f"expected a different port for each service, found {port} for {chosen[port]} too"
    return f"expected port {port} to be free, found it in use" if _is_taken(int(port)) else ""


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False
