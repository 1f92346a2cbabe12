"""The processes of a folder, under supervisord: started, started again, ended, and what became of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

import psutil
from supervisor.xmlrpc import SupervisorTransport

from scripts.stack.compose import MARK, Service

HERE = Path(__file__).parent
_LONGEST_SOCKET = 100
_SETTLED_SECONDS = 2
_GRACE_SECONDS = 20
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Process:
    """What supervisord knows of one service."""

    state: str
    """RUNNING, STOPPED, EXITED, BACKOFF, FATAL, …, as supervisord names them."""
    pid: int
    seconds: int
    """How long it has been running."""
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

    def is_running(self) -> bool:
        """Tell whether supervisord answers."""
        try:
            self._server.getState()
        except (OSError, Fault):
            return False
        return True

    def launch(self, services: list[Service]) -> None:
        """
        Start supervisord, and no service yet.

        :raises ValueError: where the folder's path is too long for a socket.
        """
        if len(str(self._socket)) > _LONGEST_SOCKET:
            raise ValueError(
                f"expected a path of at most {_LONGEST_SOCKET} characters for a socket, found {self._socket}"
            )
        self.log("supervisord").parent.mkdir(exist_ok=True)
        commands = {service.name: asdict(service) for service in services}
        _write_privately(self._folder / "services.json", json.dumps(commands, indent=1))
        configuration = self._folder / "supervisord.conf"
        configuration.write_text("\n".join(self._sections(services)))
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(configuration)]
        subprocess.run(command, check=True, env={**os.environ, MARK: str(self._folder)})
        while not self.is_running():
            time.sleep(_POLL_SECONDS)

    def start(self, name: str) -> None:
        """Start a service, without waiting for its health."""
        self._server.startProcess(name, False)

    def stop(self, name: str) -> None:
        """End a service, if it runs, and wait until it has ended."""
        with suppress(Fault):
            self._server.stopProcess(name, True)

    def process(self, name: str) -> Process:
        """Return what became of a service."""
        found = self._server.getProcessInfo(name)
        seconds = found["now"] - found["start"] if found["pid"] else 0
        return Process(found["statename"], found["pid"], seconds, found["exitstatus"], found["description"])

    def log(self, name: str) -> Path:
        """Return the file of what a service says."""
        return self._folder / "logs" / f"{name}.log"

    def end(self) -> None:
        """End supervisord and whatever is left of the folder's processes, also where supervisord itself is gone."""
        with suppress(OSError, Fault):
            self._server.shutdown()
        deadline = time.monotonic() + _GRACE_SECONDS
        while self.is_running() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        left = list(self.left())
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=_GRACE_SECONDS)

    def left(self) -> Iterator[psutil.Process]:
        """Find every process that was started for the folder, by a variable that all of them inherit."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(MARK) == str(self._folder):
                    yield process

    @property
    def _server(self) -> Any:
        # One for each call: a connection that was refused once is of no use afterwards.
        transport = SupervisorTransport(None, None, f"unix://{self._socket}")
        return ServerProxy("http://localhost", transport=transport).supervisor

    def _sections(self, services: list[Service]) -> Iterator[str]:
        folder = _escaped(self._folder)
        yield f"[supervisord]\ndirectory={folder}\nlogfile={folder}/logs/supervisord.log\nsilent=true"
        yield f"pidfile={folder}/supervisord.pid\nchildlogdir={folder}/logs"
        if os.geteuid() == 0:
            yield "user=root"  # as which it was started; without this it warns
        yield f"[unix_http_server]\nfile={folder}/supervisor.sock\nchmod=0700"
        yield "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface"
        yield f"[eventlistener:deaths]\ncommand={_escaped(sys.executable)} {_escaped(HERE / 'deaths.py')} {folder}"
        yield f"events=PROCESS_STATE_EXITED,PROCESS_STATE_FATAL\nstderr_logfile={folder}/logs/deaths.log"
        for service in services:
            yield self._program(service)

    def _program(self, service: Service) -> str:
        run = f"{_escaped(sys.executable)} {_escaped(HERE / 'become.py')} {_escaped(self._folder)} {service.name}"
        settled = 0 if service.is_job else _SETTLED_SECONDS
        return (
            f"[program:{service.name}]\ncommand={run}\nautostart=false\nautorestart={str(service.restarts).lower()}\n"
            f"startsecs={settled}\nexitcodes=0\nstopsignal={service.stop_signal}\nstopwaitsecs={_GRACE_SECONDS}\n"
            f"killasgroup=true\nredirect_stderr=true\nstdout_logfile={_escaped(self.log(service.name))}"
        )


def _escaped(value: object) -> str:
    return str(value).replace("%", "%%")


def _write_privately(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)
