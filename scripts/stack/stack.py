"""Services in a folder: brought up in order, shown, and taken down again."""

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
"""What was chosen for a folder; by this file ``down`` knows a folder that ``up`` has made."""
_POLL_SECONDS = 0.5
_CHECK_SECONDS = 30
_FINE = ("healthy", "done")


class Stack:
    """
    The services of a folder.

    :param folder: Where their processes live.
    :param services: All of them, each after those that it waits for.
    :param choices: What was chosen for them; those whose names end with ``_PORT`` are ports that they open.
    :param prepare: Puts into the new folder what the services expect there.
    :param limit_seconds: How long all of them may take until they are healthy.
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
        Start what was not started yet, and tell whether all of it becomes healthy.

        :raises StackError: where the folder or a port is taken.
        """
        if not self.supervisor.is_running():
            self._check_folder()
            self._check_ports()
            self._make_folder()
            self.supervisor.launch(self._services)
        self._start_again()
        return self._start_in_order()

    def status(self) -> bool:
        """Show each service and each that ended by itself; tell whether all are healthy."""
        if not self.supervisor.is_running():
            self._say_what_is_left()
            return False
        told = [self._say_state(service) for service in self._services]
        deaths = self.folder / "deaths.txt"
        if deaths.exists():
            say(f"\n{deaths.read_text()}")
        return all(health in _FINE for health in told)

    def logs(self, only: str | None, lines: int) -> None:
        """
        Show the end of each log, or of one.

        :raises StackError: for a service that is none.
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
        End everything and remove the folder.

        :raises StackError: for a folder of something else, and for processes that do not end.
        """
        if self.folder.exists() and not _is_of_a_stack(self.folder):
            raise StackError(f"expected a folder that up has made, found another in {self.folder}; it stays as it is")
        if self.supervisor.is_running():
            for service in reversed(self._services):
                self.supervisor.stop(service.name)
        self.supervisor.end()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        say(f"Nothing of {self.folder} is left.")

    def _check_folder(self) -> None:
        self.supervisor.check_folder()
        if _was_interrupted(self.folder) and not list(self.supervisor.left()):
            shutil.rmtree(self.folder)
        if self.folder.exists():
            raise StackError(
                f"expected no folder {self.folder}, found what an earlier start has left; run make down first"
            )

    def _check_ports(self) -> None:
        chosen: dict[str, str] = {}
        for name, port in self._choices.items():
            if name.endswith("_PORT"):
                wrong = _wrong_with(port, chosen)
                if wrong:
                    raise StackError(f"{wrong}; choose another: {name}=… make up")
                chosen[port] = name

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o711)  # PostgreSQL's user passes through, whatever the umask
        written = self.folder / f"{CHOICES}.new"
        written.write_text(json.dumps(dict(self._choices), indent=1))
        written.rename(self.folder / CHOICES)
        self._prepare(self.folder)

    def _start_again(self) -> None:
        """Start what had failed when ``up`` was given before, but no service whose end lost what it held."""
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
                    self._name_the_dead(service, process, health)
                    return False
            time.sleep(_POLL_SECONDS if waiting else 0)
        return True

    def _started(self, service: Service) -> Process:
        process = self.supervisor.process(service.name)
        if process.state != "STOPPED":
            return process
        self.supervisor.start(service.name)
        return self.supervisor.process(service.name)

    def _name_the_dead(self, service: Service, process: Process, health: str) -> None:
        log = self.supervisor.log(service.name)
        say(f"{service.name} is not healthy: {process.state}, {health}; the end of {log}:\n{end_of(log)}")
        say("make logs shows more, make down cleans up.")

    def _say_state(self, service: Service) -> str:
        process = self.supervisor.process(service.name)
        health = _health(service, process)
        say(f"{service.name:<16} {process.state:<9} {process.pid or '':<8} {health}")
        return health

    def _say_what_is_left(self) -> None:
        left = len(list(self.supervisor.left()))
        if left:
            say(f"supervisord of {self.folder} is gone, {left} of its processes are left; make down ends them.")
        elif self.folder.exists():
            say(f"Nothing runs in {self.folder}, which an earlier start has left; make down removes it.")
        else:
            say(f"Nothing runs in {self.folder}; make up starts it.")


def choices_of(folder: Path) -> dict[str, str]:
    """Return with which choices a folder was made, none for a folder that is not there."""
    file = folder / CHOICES
    return dict(json.loads(file.read_text())) if file.exists() else {}


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def _health(service: Service, process: Process) -> str:
    if service.is_job:
        return "done" if process.state == "EXITED" and process.status == 0 else process.told
    if process.state != "RUNNING":
        return process.told or process.state.lower()
    try:
        done = subprocess.run(
            service.check, env=service.environment, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"unhealthy: no answer within {_CHECK_SECONDS} s"
    return "healthy" if done.returncode == 0 else f"unhealthy: {(done.stdout + done.stderr).strip()[-300:]}"


def _has_ended(service: Service, process: Process) -> bool:
    # One that is started again is EXITED for a moment too.
    return process.state == "FATAL" or (process.state == "EXITED" and not service.restarts)


def _is_of_a_stack(folder: Path) -> bool:
    return not any(folder.iterdir()) or (folder / CHOICES).exists()


def _was_interrupted(folder: Path) -> bool:
    return (folder / CHOICES).exists() and not (folder / SERVICES).exists()


def _wrong_with(port: str, chosen: Mapping[str, str]) -> str:
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        return f"expected the number of a port, found {port!r}"
    if port in chosen:
        return f"expected a port for each, found {port} for {chosen[port]} too"
    return f"expected port {port} to be free, found it in use" if _is_taken(int(port)) else ""


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False
