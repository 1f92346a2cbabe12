"""Processes of a folder under supervisord: start, stop and state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from shlex import quote
from typing import Any
from xmlrpc.client import Fault, ProtocolError, ServerProxy

import psutil
from supervisor.xmlrpc import SupervisorTransport

from scripts.stack.become import MARKS
from scripts.stack.compose import Service

MARK, SERVICE_MARK = MARKS
"""Environment variables that identify all processes of a folder and of a service, including descendants."""

HERE = Path(__file__).parent
SERVICES = "services.json"
_LONGEST_SOCKET = 95  # of 103 that an address holds on macOS: supervisord binds another name first, with its process id
_UNQUOTED = "\"'`$\\;\n"
_SETTLED_SECONDS = 2
_GRACE_SECONDS = 20
_POLL_SECONDS = 0.1


class StackError(Exception):
    """Error that a user of the commands can fix."""


@dataclass(frozen=True, slots=True)
class Process:
    """State of a service in supervisord."""

    state: str
    """State name of supervisord: RUNNING, STOPPED, EXITED, BACKOFF, FATAL, …"""
    pid: int
    status: int
    """Exit status, if it has ended."""
    description: str


class Supervisor:
    """
    Instance of supervisord for a folder.

    :param folder: Folder of its configuration, its socket and all logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "supervisor.sock"

    def check_folder(self) -> None:
        """
        Check the path of the folder.

        :raises StackError: if the path is too long for a socket, or needs quoting in configurations or shells.
        """
        if len(os.fsencode(self._socket)) > _LONGEST_SOCKET:
            raise StackError(
                f"expected a path of at most {_LONGEST_SOCKET} bytes for a socket, found {self._socket}; "
                "choose a shorter folder: --folder"
            )
        if set(_UNQUOTED) & set(str(self._folder)):
            raise StackError(f"expected a folder with none of {_UNQUOTED!r} in its path, found {self._folder}")

    def is_running(self) -> bool:
        """Return whether supervisord replies."""
        try:
            self._call("getState")
        except (StackError, Fault):
            return False
        return True

    def launch(self, services: list[Service]) -> None:
        """
        Start supervisord without services.

        :raises StackError: if it does not start.
        """
        self.log("supervisord").parent.mkdir(exist_ok=True)
        marked = {service.name: self._marked(service) for service in services}
        _write_privately(self._folder / SERVICES, json.dumps(marked, indent=1))
        (self._folder / "supervisord.conf").write_text("\n".join(_sections(services)))
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", "supervisord.conf"]
        subprocess.run(command, cwd=self._folder, check=True, env={**os.environ, **self._marks})
        if not _becomes_true(self.is_running):
            raise StackError(f"expected a reply of supervisord, found none; see {self.log('supervisord')}")

    def start(self, name: str) -> None:
        """Start a service without waiting until it is healthy."""
        self._call("startProcess", name, False)

    def stop(self, name: str) -> None:
        """Stop a service if it is running, and wait until it has ended."""
        with suppress(StackError, Fault):
            self._call("stopProcess", name, True)

    def process(self, name: str) -> Process:
        """
        Return the state of a service.

        :raises StackError: if supervisord does not reply.
        """
        found = self._call("getProcessInfo", name)
        return Process(found["statename"], found["pid"], found["exitstatus"], found["description"])

    def log(self, name: str) -> Path:
        """Return the log file of a service."""
        return self._folder / "logs" / f"{name}.log"

    def end(self) -> None:
        """
        Stop supervisord and all remaining processes of the folder, also if supervisord itself has died.

        :raises StackError: if a process does not end.
        """
        with suppress(StackError, Fault):
            self._call("shutdown")
        _becomes_true(lambda: not self.is_running())
        if not _becomes_true(self._kill_remaining):
            pids = [process.pid for process in self.left()]
            raise StackError(f"expected the processes of {self._folder} to end, found {pids} running; kill them")

    def left(self) -> Iterator[psutil.Process]:
        """Yield all processes of the folder, identified by an inherited environment variable."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(MARK) == str(self._folder):
                    yield process

    def _kill_remaining(self) -> bool:
        """Kill all processes and return whether there were none; children started meanwhile need another call."""
        remaining = list(self.left())
        for process in remaining:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(remaining, timeout=_GRACE_SECONDS)
        return not remaining

    def _marked(self, service: Service) -> dict[str, Any]:
        environment = {**service.environment, **self._marks, SERVICE_MARK: service.name}
        return {**asdict(service), "environment": environment}

    @property
    def _marks(self) -> dict[str, str]:
        # Without SPT_NOENV, Airflow's processes overwrite their environment with a process title.
        return {MARK: str(self._folder), "SPT_NOENV": "1"}

    def _call(self, method: str, *arguments: Any) -> Any:
        # One connection per call, because a refused connection cannot be reused.
        transport = SupervisorTransport(None, None, f"unix://{self._socket}")
        server = ServerProxy("http://localhost", transport=transport).supervisor
        try:
            return getattr(server, method)(*arguments)
        except (OSError, HTTPException, ProtocolError) as error:
            raise StackError(
                f"expected a reply of supervisord of {self._folder}, found none: {error}; make down stops the others"
            ) from error


def _sections(services: list[Service]) -> Iterator[str]:
    # Paths are relative to the folder in which supervisord starts, except those of these scripts.
    yield "[supervisord]\nlogfile=logs/supervisord.log\npidfile=supervisord.pid\nchildlogdir=logs\nsilent=true"
    if os.geteuid() == 0:
        yield "user=root"  # avoids a warning about running as root
    yield "[unix_http_server]\nfile=supervisor.sock\nchmod=0700"
    yield "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface"
    yield f"[eventlistener:deaths]\ncommand={_command(HERE / 'deaths.py')}"
    yield "events=PROCESS_STATE_EXITED,PROCESS_STATE_FATAL\nstderr_logfile=logs/deaths.log"
    for service in services:
        yield _program(service)


def _program(service: Service) -> str:
    settled = 0 if service.is_job else _SETTLED_SECONDS
    return (
        f"[program:{service.name}]\ncommand={_command(HERE / 'become.py', service.name)}\nautostart=false\n"
        f"autorestart={str(service.restarts).lower()}\nstartsecs={settled}\nexitcodes=0\n"
        f"stopsignal={service.stop_signal}\nstopwaitsecs={_GRACE_SECONDS}\nkillasgroup=true\n"
        f"redirect_stderr=true\nstdout_logfile=logs/{service.name}.log"
    )


def _command(*arguments: object) -> str:
    return " ".join(quote(str(part)) for part in (sys.executable, *arguments)).replace("%", "%%")


def _becomes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _GRACE_SECONDS
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return true


def _write_privately(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)
