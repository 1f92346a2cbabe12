"""
Stand-alone servers of queryable state in processes of their own.

``python -m tests.state_servers`` forks a server for each line on its standard input, which has the settings as JSON,
and prints the process id and the URL. The servers serve as those of ``airflow statecheck serve-state``, which take
longer to start because they import Airflow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - imported once, before the servers are forked
import httpx
import uvicorn.lifespan.on
import uvicorn.loops.auto
import uvicorn.protocols.http.auto  # noqa: F401 - as above

from airflow_provider_statecheck.api.state_server import (
    StateServerSettings,
    create_state_app,
    load_libraries,
    run_server,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class StateServer:
    """A running server."""

    process_id: int
    url: str

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.process_id, signal.SIGKILL)


class StateServerProcess:
    """The process that forks the servers, which has imported what they need."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.state_servers"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    @contextmanager
    def running(self, api_url: str, count: int = 1, **settings: Any) -> Iterator[list[StateServer]]:
        """
        Run servers side by side.

        :param api_url: Root URL of the api-server.
        :param settings: Further fields of ``StateServerSettings``.
        """
        servers: list[StateServer] = []
        try:
            servers.extend(self._started({"api_url": api_url} | settings) for _ in range(count))
            yield servers
        finally:
            for server in servers:
                server.kill()

    def close(self) -> None:
        self._process.communicate(timeout=30)

    def _started(self, settings: dict[str, Any]) -> StateServer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(settings) + "\n")
        self._process.stdin.flush()
        process_id, url = self._process.stdout.readline().split()
        return StateServer(int(process_id), url)


def announce(url: str) -> None:
    sys.stdout.write(f"{os.getpid()} {url}\n")
    sys.stdout.flush()


def serve(settings: StateServerSettings) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    run_server(create_state_app(settings, httpx.AsyncClient, CheckpointStorage.open), "127.0.0.1", 0, announce)


def main() -> None:
    load_libraries()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the servers leave no zombies
    while line := sys.stdin.readline():
        if os.fork() == 0:
            try:
                serve(StateServerSettings(**json.loads(line)))
            finally:
                os._exit(1)


if __name__ == "__main__":
    main()
