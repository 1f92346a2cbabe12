"""
The coordinator's API in a process of its own, which may be killed before each reply.

``python -m tests.conformance.api_process PORT`` listens on a port, or on a free one for 0, and prints it. Each line on
its standard input names a folder, whose database and clock a forked server serves from then on; a folder that it serves
already gets a new server. A server that died is replaced at once; meanwhile connections wait in the queue of the
listening socket.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - imported once, before the servers are forked
import pyarrow  # noqa: F401 - as above
import uvicorn
import uvicorn.loops.auto
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.app import create_server_app
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.api.state_server import load_libraries
from airflow_provider_statecheck.checkpoint.declared_uids import DagTasks
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.metadata.tables import Caller
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.sqlite_rows import engine_on

KILL_FOLDER = "killed"
KILL_RATE_FILE = "one_in"
"""Where it is there, only one in so many messages kills."""
DATABASE_FILE = "database"
"""Where it is there, it holds the URL of the database."""
RUNNING_FILE = "running"
"""Where it is there, it holds the ids of the runs of which a task runs."""
DAGS_FILE = "dags"
"""Where it is there, it holds the current tasks of Dags."""
ENDED_FILE = "ended"
"""Where it is there, no task runs or is deferred."""
MAINTENANCE_DAG = "dag"
"""The Dag whose tasks may do maintenance."""
SECRET = "the secret that the test's tasks know"


class ServedFolder:
    """
    A folder that is served: its database, the time, the running runs, and Dags, as the test wrote them into files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        elsewhere = folder / DATABASE_FILE
        self._engine = create_engine(elsewhere.read_text()) if elsewhere.exists() else engine_on(folder / "state.db")

    def engine(self) -> Engine:
        return self._engine

    def now(self) -> datetime:
        return datetime.fromisoformat((self.folder / "now").read_text())

    def is_running(self, owner: AttemptOwner) -> bool:
        running = self.folder / RUNNING_FILE
        return running.exists() and owner.run_id in running.read_text().splitlines()

    def is_last_try(self, owner: AttemptOwner) -> bool:
        return self.is_running(owner)

    def tasks_of(self, dag_id: str, job_name: str) -> DagTasks | None:
        dags = self.folder / DAGS_FILE
        found = json.loads(dags.read_text()).get(dag_id) if dags.exists() else None
        if found is None:
            return None
        return DagTasks(**found | {"uids": {task: tuple(uids) for task, uids in found["uids"].items()}})

    def earlier_run_of(self, owner: AttemptOwner) -> str | None:
        running = self.folder / RUNNING_FILE
        names = running.read_text().splitlines() if running.exists() else []
        return min((each for each in names if each < owner.run_id), default=None)


class NamedFolder:
    """The name of the served folder in a file, which changes from test to test while the server runs."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> Path:
        return Path(self._file.read_text())

    def write(self, folder: Path) -> None:
        hidden = self._file.with_suffix(".new")
        hidden.write_text(str(folder))
        hidden.rename(self._file)


class TrustingTasks:
    """Believes who a task says it is, if it knows the secret."""

    def __init__(self, folder: Path | None = None) -> None:
        self._ended = None if folder is None else folder / ENDED_FILE

    def prove(self, ti_id: str, secret: str) -> Caller:
        assert secret == SECRET
        return Caller(**json.loads(ti_id))

    def running(self, caller: Caller) -> Caller:
        return caller

    def is_waiting(self, caller: Caller) -> bool:
        return self._ended is None or not self._ended.exists()

    def has_teams(self) -> bool:
        return False

    def of_team(self, dag_id: str, others: Collection[str]) -> frozenset[str]:
        return frozenset(others)

    def is_dag(self, dag_id: str) -> bool:
        return dag_id == "another_dag"


class DiesBeforeReplies:
    """Kills its process when the reply of a message it has not seen before is about to be sent."""

    def __init__(self, app: Any, folder: Path) -> None:
        self._app = app
        self._seen = folder / KILL_FOLDER
        rate = folder / KILL_RATE_FILE
        self._one_in = int(rate.read_text()) if rate.exists() else 1

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        digest = hashlib.sha256(scope.get("path", "").encode())

        async def listen() -> Any:
            message = await receive()
            digest.update(message.get("body", b""))
            return message

        async def reply(message: Any) -> None:
            if scope["type"] == "http" and self._is_new(digest.hexdigest()):
                os.kill(os.getpid(), signal.SIGKILL)
            await send(message)

        await self._app(scope, listen, reply)

    def _is_new(self, name: str) -> bool:
        marker = self._seen / name
        if not self._seen.is_dir() or marker.exists() or int(name, 16) % self._one_in:
            return False
        marker.touch()
        return True


class FoldersInTurn:
    """The API over the folder that is named when a request arrives."""

    def __init__(self, named: NamedFolder) -> None:
        self._named = named
        self._served: ServedFolder | None = None
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        folder = self._named.read()
        if self._served is None or self._served.folder != folder:
            if self._served is not None:
                self._served.engine().dispose()
            self._served = ServedFolder(folder)
            self._app = DiesBeforeReplies(make_app(self._served), folder)
        await self._app(scope, receive, send)


def make_app(served: ServedFolder) -> Any:
    """Return the API over a folder."""
    return create_server_app(
        Services(
            served.engine,
            TrustingTasks(served.folder),
            liveness=served,
            dags=served,
            clock=served,
            maintenance_dags=lambda: frozenset({MAINTENANCE_DAG}),
            open_storage=CheckpointStorage.open,
        )
    )


class Forker:
    """Keeps one server alive."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self._folder = TemporaryDirectory(prefix="statecheck-served-")
        self._named = NamedFolder(Path(self._folder.name, "folder"))
        # The modules and the models of the server are loaded once, which takes longer than most tests.
        uvicorn.Config(make_app(ServedFolder(Path(self._folder.name))), lifespan="off").load()
        self._child = 0

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def serve(self, folder: Path) -> None:
        """Serve a folder from now on, with a new server if it is the same again."""
        if self._child and folder == self._named.read():
            self._end_child()
        self._named.write(folder)
        if not self._child:
            self._fork()

    def replace_dead(self) -> None:
        """Fork a new server if the present one has ended."""
        if self._child and os.waitpid(self._child, os.WNOHANG)[0]:
            self._fork()

    def stop(self) -> None:
        if self._child:
            self._end_child()
        self._folder.cleanup()

    def _end_child(self) -> None:
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        self._child = 0

    def _fork(self) -> None:
        self._child = os.fork()
        if self._child == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                app = FoldersInTurn(self._named)
                uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning")).run(sockets=[self._listener])
            finally:
                os._exit(1)


def wake_at_the_end_of_a_child() -> int:
    """Return a descriptor that can be read when a child has ended; a handler alone could come just before a wait."""
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return woken


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    forker, woken = Forker(int(sys.argv[1])), wake_at_the_end_of_a_child()
    load_libraries()
    say(forker.port)
    while True:
        ready, _, _ = select.select([sys.stdin, woken], [], [])
        if woken in ready:
            os.read(woken, 1024)
            forker.replace_dead()
        if sys.stdin in ready:
            folder = sys.stdin.readline().strip()
            if not folder:
                break
            forker.serve(Path(folder))
            say("serving")
    forker.stop()


if __name__ == "__main__":
    main()
