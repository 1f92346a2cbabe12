"""Memory of real processes that read the files of hostile jobs: at most 300 MiB above idle."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import LARGEST_METADATA
from airflow_provider_statecheck.storage.stored_json import MOST_VALUES
from tests.hostile.memory import memory_of
from tests.hostile.odd_values import body_of, put, sealed
from tests.live.components import Component
from tests.live.rest import AirflowApi, wait_until
from tests.messages import make_owner
from tests.sqlite_rows import new_engine
from tests.standalone_cluster import free_port
from tests.unit.written_stage import WrittenStage, local_path

MOST_KIB = 300 * 1024


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of an Airflow with the database and the checkpoint directory of a folder."""
    return {
        **os.environ,
        "AIRFLOW_HOME": str(folder / "home"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/state.db",
        "AIRFLOW__STATECHECK__CHECKPOINT_DIR": str(folder / "base"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    }


class HostileJobs:
    """Jobs whose files are as large as readers accept, or larger, in rows that name them as they are."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder = folder
        self.engine = engine
        self.stage = WrittenStage(CheckpointStorage.open(str(folder / "base")), store=SqlJobStore(self.engine))

    def add(self, job: str, change: Callable[[Any], Any], numbers: tuple[int, ...] = (3,)) -> None:
        """Let a job write metadata with other values, and acknowledge it."""
        self.run(job)
        for number in numbers:
            path = self.metadata_of(job, number)
            data = sealed(json.dumps(change(body_of(path.read_bytes())), separators=(",", ":")).encode())
            path.write_bytes(data)
            self._acknowledge(job, number, data)

    def run(self, job: str) -> None:
        """Let a task of a Dag write three checkpoints of a job."""
        self.stage.run(job, owner=make_owner(airflow=(("dag_id", "dag"),)))

    def metadata_of(self, job: str, number: int) -> Path:
        return local_path(f"{self.stage.storage.base_uri}/{job_id_of(job)}/chk-{number}/_metadata")

    def _acknowledge(self, job: str, number: int, data: bytes) -> None:
        values = {"size": len(data), "digest": hashlib.sha256(data).hexdigest(), "job": job_id_of(job), "id": number}
        changed = "SET metadata_size = :size, metadata_sha256 = :digest WHERE job_id = :job AND checkpoint_id = :id"
        with self.engine.begin() as connection:
            connection.execute(text(f"UPDATE statecheck_checkpoint {changed}"), values)


def many_snapshots(body: Any) -> Any:
    """Return metadata with as many snapshots as are read."""
    [handle] = body["snapshots"]
    text = json.dumps(handle)
    count = (MOST_VALUES - 1000) // (1 + sum(map(text.count, ",[{")))
    return body | {"snapshots": [handle | {"name": f"step {i}", "uri": f"{handle['uri']}-{i}"} for i in range(count)]}


def many_values(body: Any) -> Any:
    """Return metadata with as many values as are read, each an object of its own."""
    return body | {"state": {"kind": "inline", "value": {"a": [[]] * (MOST_VALUES // 2 - 1000)}}}


def long_text(body: Any) -> Any:
    """Return metadata of the largest size."""
    return body | {"state": {"kind": "inline", "value": {"a": "é" * (LARGEST_METADATA // 6 - 10_000)}}}


KINDS = {"snapshots": many_snapshots, "values": many_values, "text": long_text}


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[HostileJobs]:
    made = HostileJobs(tmp_path, new_engine(tmp_path / "state.db"))
    yield made
    made.engine.dispose()


def peaks(jobs: HostileJobs, *commands: list[str]) -> tuple[int, int]:
    """Return the memory in KiB that commands took above idle, and that of the largest process that they started."""
    given = json.dumps([["statecheck", "jobs"], *(["statecheck", *each] for each in commands)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.measured_commands", given],
        env=environment(jobs.folder),
        capture_output=True,
        text=True,
        timeout=1800,  # on a machine that others use; what is measured is memory
        check=True,
    )
    assert " ended with 2\n" not in done.stderr, done.stderr
    _, own, children = done.stdout.splitlines()[-1].split()
    return int(own), int(children)


def add_files(jobs: HostileJobs, kinds: list[str]) -> None:
    """
    Add jobs with the largest metadata that is read, in all of their checkpoints, and jobs with files that are none.
    """
    for number, kind in enumerate(kinds):
        jobs.add(f"{kind} {number}", KINDS[kind], numbers=(1, 2, 3) if number % 2 else (3,))
    for number, kind in enumerate(["huge", "endless", "many values", "pipe"]):
        jobs.run(f"orphans {kind}")
        put(kind, local_path(f"{jobs.stage.storage.base_uri}/{job_id_of(f'orphans {kind}')}/_orphans"))
        jobs.run(f"metadata {kind}")
        put(kind, jobs.metadata_of(f"metadata {kind}", 1 + number % 3))


def test_collection_takes_little_memory_for_the_largest_files_of_several_jobs(jobs: HostileJobs) -> None:
    add_files(jobs, ["text"] * 4)
    own, children = peaks(jobs, ["gc", "--all", "--yes"])
    assert max(own, children) < MOST_KIB, (own // 1024, children // 1024)


@pytest.mark.soak
@pytest.mark.parametrize("command", ["recover", "gc", "prune", "verify"])
def test_maintenance_takes_little_memory_for_the_largest_files_of_any_kind(jobs: HostileJobs, command: str) -> None:
    add_files(jobs, [*KINDS, "snapshots", "snapshots"])
    of_all = {
        "recover": [["recover", str(jobs.folder / "base"), "--dry-run"]],
        "gc": [["gc", "--all", "--dry-run", "--quarantine"], ["gc", "--all", "--yes"]],
        "prune": [["prune", "--older-than", "30d", "--yes"]],
        "verify": [["verify", f"{kind} {number}"] for number, kind in enumerate(KINDS)],
    }
    own, children = peaks(jobs, *of_all[command])
    assert max(own, children) < MOST_KIB, (own // 1024, children // 1024)


PATHS = (
    "/statecheck/jobs/{job}",
    "/statecheck/jobs/{job}/checkpoints/{checkpoint}",
    "/statecheck/v1/jobs/{job}/snapshots",
    "/statecheck/v1/jobs/{job}/snapshots/rows",
    "/statecheck/v1/jobs/{job}/items?loop=days",
    "/statecheck/v1/jobs/{job}/state",
    "/statecheck/v1/jobs/{job}/state/total?key=1",
)
"""Pages and reads of a job that open its files or show what its rows say of them."""


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[Component, str]]:
    """A real api-server of Airflow with an empty database, and its URL."""
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=environment(folder), timeout=300, check=True)
    port = free_port()
    url = f"http://localhost:{port}"
    server = Component(("api-server", "--port", str(port), "--workers", "1"), environment(folder), folder / "log")
    try:
        server.start()
        with closing(AirflowApi(url)) as api:
            wait_until("the api-server", api.is_up)
        yield server, url
    finally:
        server.sweep()


@pytest.mark.soak
@pytest.mark.airflow
def test_an_api_server_takes_little_memory_for_the_largest_files_of_any_kind(tmp_path: Path) -> None:
    with api_server(tmp_path) as (server, url):
        jobs = HostileJobs(tmp_path, create_engine(f"sqlite:///{tmp_path}/state.db"))
        add_files(jobs, [*KINDS, "snapshots", "snapshots"])
        with httpx.Client(base_url=url, timeout=600) as client:
            client.headers["Authorization"] = (
                f"Bearer {client.get('/auth/token').raise_for_status().json()['access_token']}"
            )
            names = [job.name for job in jobs.stage.store.jobs()]
            ask(client, ["a job that does not exist"])
            idle = memory_of_tree(server.pid, "VmRSS")
            statuses = ask(client, names)
            assert Counter(statuses)[200] >= 2 * len(names), Counter(statuses)
            assert memory_of_tree(server.pid, "VmHWM") - idle < MOST_KIB
        jobs.engine.dispose()


def ask(client: httpx.Client, names: list[str]) -> list[int]:
    """Ask for all pages and reads of jobs, several at once, and return the statuses of the replies."""
    paths = [path.format(job=job_id_of(name), checkpoint=3) for name in names for path in PATHS]
    with ThreadPoolExecutor(8) as threads:
        return [reply.status_code for reply in threads.map(client.get, paths)]


def memory_of_tree(pid: int, name: str) -> int:
    """Return the memory in KiB of a process and of those that it has started."""
    return sum(
        memory_of(each.pid, name) for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
    )
