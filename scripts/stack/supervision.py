"""The processes of a folder, under supervisord: started, started again, ended, and what became of them."""

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
"""The variables by which every process of a folder and of a service is known, its children's children too."""

HERE = Path(__file__).parent
SERVICES = "services.json"
_LONGEST_SOCKET = 95  # of 103 that an address holds on macOS: supervisord binds another name first, with its process id
_UNQUOTED = "\"'`$\\;\n"
_SETTLED_SECONDS = 2
_GRACE_SECONDS = 20
_POLL_SECONDS = 0.1


class StackError(Exception):
    """What a user of the commands can mend."""


@dataclass(frozen=True, slots=True)
class Process:
    """What supervisord knows of one service."""

    state: str
    """RUNNING, STOPPED, EXITED, BACKOFF, FATAL, …, as supervisord names them."""
    pid: int
    status: int
    """With what it ended, if it did."""
    told: str


class Supervisor:
    """
    The supervisord of a folder.

    :param folder: Where its configuration, its socket and all logs are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "supervisor.sock"

    def check_folder(self) -> None:
        """
        Look whether processes can live in a folder of this name.

        :raises StackError: for a path that is too long for a socket, or that no configuration or shell takes as it is.
        """
        if len(os.fsencode(self._socket)) > _LONGEST_SOCKET:
            raise StackError(
                f"expected a path of at most {_LONGEST_SOCKET} bytes for a socket, found {self._socket}; "
                "choose a shorter folder: --folder"
            )
        if set(_UNQUOTED) & set(str(self._folder)):
            raise StackError(f"expected a folder with none of {_UNQUOTED!r} in its path, found {self._folder}")

    def is_running(self) -> bool:
        """Tell whether supervisord answers."""
        try:
            self._ask("getState")
        except (StackError, Fault):
            return False
        return True

    def launch(self, services: list[Service]) -> None:
        """
        Start supervisord, and no service yet.

        :raises StackError: where it does not come up.
        """
        self.log("supervisord").parent.mkdir(exist_ok=True)
        marked = {service.name: self._marked(service) for service in services}
        _write_privately(self._folder / SERVICES, json.dumps(marked, indent=1))
        (self._folder / "supervisord.conf").write_text("\n".join(_sections(services)))
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", "supervisord.conf"]
        subprocess.run(command, cwd=self._folder, check=True, env={**os.environ, **self._marks})
        if not _comes_true(self.is_running):
            raise StackError(f"expected supervisord to answer, found silence; {self.log('supervisord')} may tell why")

    def start(self, name: str) -> None:
        """Start a service, without waiting for its health."""
        self._ask("startProcess", name, False)

    def stop(self, name: str) -> None:
        """End a service, if it runs, and wait until it has ended."""
        with suppress(StackError, Fault):
            self._ask("stopProcess", name, True)

    def process(self, name: str) -> Process:
        """
        Return what became of a service.

        :raises StackError: where supervisord is gone.
        """
        found = self._ask("getProcessInfo", name)
        return Process(found["statename"], found["pid"], found["exitstatus"], found["description"])

    def log(self, name: str) -> Path:
        """Return the file of what a service says."""
        return self._folder / "logs" / f"{name}.log"

    def end(self) -> None:
        """
        End supervisord and whatever is left of the folder's processes, also where supervisord itself is gone.

        :raises StackError: for processes that do not end.
        """
        with suppress(StackError, Fault):
            self._ask("shutdown")
        _comes_true(lambda: not self.is_running())
        if not _comes_true(self._kill_what_is_left):
            pids = [process.pid for process in self.left()]
            raise StackError(f"expected that the processes of {self._folder} end, found {pids} alive; kill them")

    def left(self) -> Iterator[psutil.Process]:
        """Find every process that was started for the folder, by a variable that all of them inherit."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(MARK) == str(self._folder):
                    yield process

    def _kill_what_is_left(self) -> bool:
        """Tell whether nothing was left: what a process starts while it is being killed is found the next time."""
        left = list(self.left())
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=_GRACE_SECONDS)
        return not left

    def _marked(self, service: Service) -> dict[str, Any]:
        environment = {**service.environment, **self._marks, SERVICE_MARK: service.name}
        return {**asdict(service), "environment": environment}

    @property
    def _marks(self) -> dict[str, str]:
        # Airflow's processes write a title over their environment, unless the second one forbids it.
        return {MARK: str(self._folder), "SPT_NOENV": "1"}

    def _ask(self, method: str, *arguments: Any) -> Any:
        # One connection for each call: one that was refused once is of no use afterwards.
        transport = SupervisorTransport(None, None, f"unix://{self._socket}")
        server = ServerProxy("http://localhost", transport=transport).supervisor
        try:
            return getattr(server, method)(*arguments)
        except (OSError, HTTPException, ProtocolError) as error:
            raise StackError(
                f"expected supervisord of {self._folder} to answer, found none: {error}; make down ends what is left"
            ) from error


def _sections(services: list[Service]) -> Iterator[str]:
    # Every path but those of our programs is relative to the folder, in which supervisord starts.
    yield "[supervisord]\nlogfile=logs/supervisord.log\npidfile=supervisord.pid\nchildlogdir=logs\nsilent=true"
    if os.geteuid() == 0:
        yield "user=root"  # as which it was started; without this it warns
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


def _comes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _GRACE_SECONDS
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return true


def _write_privately(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)
